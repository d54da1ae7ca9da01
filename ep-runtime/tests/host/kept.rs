//! What the host backend keeps on disk: loaded only as it was made, and only if nobody else could have
//! put it there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ep_runtime::backend::{Backend, BackendError};
use ep_runtime::host::{HostBackend, HostOptions, Programs};
use ep_runtime::jit::{Cache, CacheWarning, Scratch};

use crate::{BLOCK, KERNEL};

/// An empty folder of this test; none on a machine without a compiler.
fn folder() -> Option<Scratch> {
    crate::programs()?;
    Some(Scratch::below(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap())
}

/// Compiles the kernel, or takes it from the cache in `folder`; what the cache could not do.
fn compile(folder: &Path) -> Result<Vec<CacheWarning>, BackendError> {
    let programs = Programs::find_with(folder)?;
    let backend = HostBackend::new(&programs, HostOptions::new(1))?;
    backend.compile("add", KERNEL)?;
    Ok(programs.warnings())
}

/// The entries of a cache: that of the kernel and that of what all kernels are linked with.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "entry")).collect()
}

fn assert_rebuilt(folder: &Path, entry: &Path) {
    let warnings = compile(folder).unwrap();
    let path = entry.canonicalize().unwrap();
    let damaged = |warning: &CacheWarning| matches!(warning, CacheWarning::Damaged { path: found, .. } if *found == path);
    assert!(warnings.iter().any(damaged), "{warnings:?}");
    assert_eq!(compile(folder).unwrap(), [], "it is whole again");
}

#[test]
fn a_truncated_or_changed_library_is_rebuilt() {
    let Some(folder) = folder() else { return };
    let folder = &folder.path().join("cache");
    assert_eq!(compile(folder).unwrap(), []);
    let listed = Cache::open(folder).unwrap().list().unwrap();
    let library = listed.iter().find(|it| it.entry.as_ref().unwrap().name == "add.cu").unwrap();
    assert_eq!(library.entry.as_ref().unwrap().target, "host plain");
    let library = folder.join(format!("{}.entry", library.key));
    let good = fs::read(&library).unwrap();
    let mut changed = good.clone();
    changed[good.len() / 2] ^= 1;
    for bytes in [&good[..good.len() / 2], &good[..0], &changed] {
        fs::write(&library, bytes).unwrap();
        assert_rebuilt(folder, &library);
    }
}

#[test]
fn the_kernels_of_a_text_are_compiled_together() {
    let Some(folder) = folder() else { return };
    let folder = &folder.path().join("cache");
    let programs = Programs::find_with(folder).unwrap();
    let backend = HostBackend::new(&programs, HostOptions::new(1)).unwrap();
    let kernels = ["first", "second"].map(|name| {
        format!("extern \"C\" __global__ void\npair_{name}(int* x) {{ x[0] += 1; }}\n")
    });
    let text = format!("namespace pair {{\n{}}}\n", kernels.concat());
    let image = backend.compile("pair_first", &text).unwrap();
    for name in ["pair_first", "pair_second"] {
        backend.load(0, &image, name, BLOCK).unwrap();
    }
    assert_eq!(entries(folder).len(), 2, "the text and what all are linked with");
    let error = backend.load(0, &image, "pair_third", BLOCK).unwrap_err();
    assert!(error.to_string().contains("pair_third"), "{error}");
}

#[test]
fn a_library_that_others_could_have_planted_is_not_loaded() {
    let Some(folder) = folder() else { return };
    let cache = &folder.path().join("cache");
    assert_eq!(compile(cache).unwrap(), []);
    for entry in entries(cache) {
        fs::set_permissions(&entry, Permissions::from_mode(0o622)).unwrap();
    }
    let warnings = compile(cache).unwrap();
    let damaged = |warning: &CacheWarning| matches!(warning, CacheWarning::Damaged { .. });
    assert!(warnings.len() == 2 && warnings.iter().all(damaged), "{warnings:?}");

    let elsewhere = folder.path().join("elsewhere");
    for entry in entries(cache) {
        fs::rename(&entry, &elsewhere).unwrap();
        symlink(&elsewhere, &entry).unwrap();
    }
    let warnings = compile(cache).unwrap();
    assert!(warnings.iter().all(damaged) && !warnings.is_empty(), "{warnings:?}");

    fs::set_permissions(cache, Permissions::from_mode(0o777)).unwrap();
    let refused = compile(cache).unwrap_err().to_string();
    assert!(refused.contains("can be written by other users (mode 0777)"), "{refused}");
}

#[test]
fn an_emptied_cache_is_filled_again_and_a_cleared_one_is_empty() {
    let Some(folder) = folder() else { return };
    let cache = &folder.path().join("cache");
    assert_eq!(compile(cache).unwrap(), []);
    for file in fs::read_dir(cache).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert_eq!(compile(cache).unwrap(), []);
    assert_eq!(entries(cache).len(), 2);

    let opened = Cache::open(cache).unwrap();
    assert_eq!(opened.clear().unwrap().entries, 2);
    let left = fs::read_dir(cache).unwrap().count();
    assert_eq!(left, 0, "no entry, lock or folder is left");
}

/// A process that is killed while it compiles leaves a folder; the next one removes it, and none
/// that is in use.
#[test]
fn folders_of_killed_compiles_are_removed() {
    let Some(folder) = folder() else { return };
    let cache = &folder.path().join("cache");
    let opened = Cache::open(cache).unwrap();
    let used = opened.scratch().unwrap();
    let killed = cache.join("epforge-scratch-0123456789abcdef");
    fs::create_dir_all(killed.join("ep")).unwrap();
    fs::write(killed.join("ep/shim.cpp"), "half").unwrap();
    let lock = killed.with_extension("lock");
    fs::write(&lock, "").unwrap();
    let others = cache.join("notes");
    fs::create_dir(&others).unwrap();
    assert_eq!(compile(cache).unwrap(), []);
    assert_eq!([&*killed, used.path(), &others].map(Path::exists), [false, true, true]);

    assert!(!lock.exists());
    fs::create_dir_all(&killed).unwrap();
    fs::write(killed.join("left"), [0; 1000]).unwrap();
    fs::write(&lock, "").unwrap();
    assert!(opened.clear().unwrap().bytes > 1000);
    assert_eq!([&*killed, used.path(), &others].map(Path::exists), [false, true, true]);
    let path = used.path().to_owned();
    drop(used);
    assert!(!path.exists());
}

/// A named cache that cannot be used ends the search with its name.
#[test]
fn a_named_cache_that_cannot_be_used_is_said() {
    let Some(folder) = folder() else { return };
    fs::write(folder.path().join("file"), "").unwrap();
    for name in ["file", "file/below"] {
        let path = folder.path().join(name);
        let error = compile(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

/// Two processes, or two caches, that compile the same thing at the same time.
#[test]
fn compiles_of_the_same_text_do_not_collide() {
    let Some(folder) = folder() else { return };
    let cache: Arc<Path> = Arc::from(folder.path().join("cache"));
    std::thread::scope(|scope| {
        let all = [0; 4].map(|_| scope.spawn(|| compile(&cache).unwrap()));
        assert!(all.into_iter().all(|one| one.join().unwrap().is_empty()));
    });
    assert_eq!(entries(&cache).len(), 2);
}
