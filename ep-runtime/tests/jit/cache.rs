//! The disk cache as several processes see it.

use std::convert::Infallible;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{self, Folder};
use ep_runtime::jit::{
    CACHE_VARIABLE, Cache, CacheError, CacheWarning, Entry, Fetched, Key, Scratch,
};

/// The user that root becomes to be refused something.
const NOBODY: u32 = 65534;

fn key() -> Key {
    Key::of(["the key of these tests"])
}

fn entry() -> Entry {
    Entry {
        name: "kernel.cu".to_owned(),
        target: "sm_90a".to_owned(),
        tool: "NVRTC 13.5".to_owned(),
        log: "nothing to say".to_owned(),
        binary: (0..=255).cycle().take(10_000).collect(),
    }
}

fn fetch(cache: &Cache) -> Fetched {
    let fetched = cache.fetch(&key(), || Ok::<_, Infallible>(entry())).unwrap();
    assert_eq!(fetched.entry, entry());
    fetched
}

fn open(folder: &Path) -> Cache {
    Cache::open(folder).unwrap()
}

fn entry_file(folder: &Path) -> PathBuf {
    folder.join(format!("{}.entry", key()))
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Is run by the workers; as a test of its own it has nothing to do.
#[test]
fn worker() {
    let Some(task) = support::task() else { return };
    let (task, folder) = task.split_once(' ').unwrap();
    let folder = Path::new(folder);
    match task {
        "race" => race(folder),
        "die" => {
            let cache = open(&folder.join("cache"));
            let _ = cache.fetch::<Infallible>(&key(), || std::process::abort());
        }
        "hang" => {
            let cache = open(&folder.join("cache"));
            let _ = cache.fetch(&key(), || {
                fs::write(folder.join("hanging"), "").unwrap();
                thread::sleep(Duration::from_secs(60));
                Ok::<_, Infallible>(entry())
            });
        }
        "read-only" => {
            become_nobody();
            let fetched = fetch(&open(folder));
            let [CacheWarning::CannotWrite { path, .. }] = &*fetched.warnings else {
                panic!("{:?}", fetched.warnings)
            };
            assert!(path.starts_with(folder.canonicalize().unwrap()) && !fetched.cached);
        }
        "default" => {
            let cache = Cache::at(None).unwrap();
            assert_eq!(cache.folder().map(Path::as_os_str), Some(folder.as_os_str()));
        }
        "homeless" => {
            let cache = Cache::at(None).unwrap();
            assert!(matches!(cache.warning(), Some(CacheWarning::MemoryOnly { .. })));
        }
        "no-folder" => {
            become_nobody();
            let cache = open(&folder.join("below"));
            assert_eq!(cache.folder(), None);
            assert!(matches!(cache.warning(), Some(CacheWarning::MemoryOnly { .. })));
            assert!(!fetch(&cache).cached);
        }
        other => panic!("no task {other}"),
    }
}

/// All workers wait for the file `go`, so that they ask for the entry together.
fn race(folder: &Path) {
    let cache = open(&folder.join("cache"));
    fs::write(folder.join(format!("ready-{}", std::process::id())), "").unwrap();
    while !folder.join("go").exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let fetched = cache.fetch(&key(), || {
        let mut log = OpenOptions::new().append(true).create(true).open(folder.join("made"))?;
        log.write_all(b"made\n")?;
        thread::sleep(Duration::from_millis(200));
        Ok::<_, std::io::Error>(entry())
    });
    let fetched = fetched.unwrap();
    assert_eq!((fetched.entry, fetched.warnings), (entry(), Vec::new()));
}

fn become_nobody() {
    // SAFETY: the calls touch no memory; this process has one busy thread, which is this one.
    let codes = unsafe {
        if libc::geteuid() != 0 {
            return;
        }
        [libc::setgroups(0, std::ptr::null()), libc::setgid(NOBODY), libc::setuid(NOBODY)]
    };
    assert_eq!(codes, [0; 3]);
}

fn is_root() -> bool {
    // SAFETY: the call takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn processes_that_start_together_make_an_entry_once() {
    const WORKERS: usize = 8;
    let folder = Folder::new("race");
    let task = format!("race {}", folder.path().display());
    let workers: Vec<_> =
        (0..WORKERS).map(|_| support::start("cache::worker", &task, &[])).collect();
    let ready = || fs::read_dir(folder.path()).unwrap().count();
    while ready() < WORKERS + 1 {
        thread::sleep(Duration::from_millis(1));
    }
    fs::write(folder.join("go"), "").unwrap();
    for worker in workers {
        support::finish(worker);
    }
    assert_eq!(fs::read_to_string(folder.join("made")).unwrap(), "made\n");
}

#[test]
fn the_lock_of_a_dead_process_holds_nobody_up() {
    let folder = Folder::new("dead");
    let task = format!("die {}", folder.path().display());
    let status = support::start("cache::worker", &task, &[]).wait().unwrap();
    assert!(!status.success());
    let start = Instant::now();
    let fetched = fetch(&open(&folder.join("cache")));
    assert!(start.elapsed() < Cache::PATIENCE / 4);
    assert_eq!((fetched.cached, fetched.warnings), (false, Vec::new()));
}

#[test]
fn patience_with_a_hanging_process_ends() {
    let folder = Folder::new("hang");
    let task = format!("hang {}", folder.path().display());
    let mut worker = support::start("cache::worker", &task, &[]);
    while !folder.join("hanging").exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let cache = open(&folder.join("cache")).with_patience(Duration::from_millis(50));
    let fetched = fetch(&cache);
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert!(matches!(&*fetched.warnings, [CacheWarning::LockHeld { .. }]), "{fetched:?}");
    assert!(fetch(&cache).cached, "what it made in spite of the lock is published");
}

#[test]
fn the_folder_and_its_files_are_private() {
    let folder = Folder::new("private");
    let path = folder.join("above/cache");
    fetch(&open(&path));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(entry_file(&path)).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn the_environment_names_the_folder() {
    let folder = Folder::new("environment");
    let root = folder.path().canonicalize().unwrap();
    let [own, xdg, home] = ["own", "xdg", "home"].map(|name| root.join(name));
    let (empty, relative) = (Path::new(""), Path::new("relative"));
    let cases = [
        ([&*own, &*xdg, &*home], root.join("own")),
        ([empty, &xdg, &home], root.join("xdg/epforge")),
        ([empty, empty, &home], root.join("home/.cache/epforge")),
        ([empty, relative, &home], root.join("home/.cache/epforge")),
    ];
    let run = |task: &str, [own, xdg, home]: [&Path; 3]| {
        let variables = [(CACHE_VARIABLE, own), ("XDG_CACHE_HOME", xdg), ("HOME", home)];
        support::finish(support::start("cache::worker", task, &variables));
    };
    for (values, expected) in cases {
        run(&format!("default {}", expected.display()), values);
    }
    run("homeless -", [empty; 3]);
    let named = Cache::at(Some(&folder.join("argument"))).unwrap();
    assert_eq!(named.folder(), Some(&*root.join("argument")));
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    let folder = Folder::new("writable");
    for mode in [0o777, 0o770, 0o1777, 0o702] {
        chmod(folder.path(), mode);
        let error = Cache::open(folder.path()).unwrap_err();
        assert!(matches!(error, CacheError::Writable { mode: found, .. } if found == mode));
        assert!(error.to_string().contains(&format!("(mode {mode:04o})")), "{error}");
    }
    chmod(folder.path(), 0o755);
    assert!(Cache::open(folder.path()).is_ok());
}

/// A user who can rename a folder above the cache can replace the cache.
#[test]
fn a_folder_below_one_that_others_can_write_is_refused() {
    let above = Folder::new("exposed");
    let cache = above.join("project").join("cache");
    fs::create_dir_all(&cache).unwrap();
    chmod(&cache, 0o700);
    for mode in [0o777, 0o757] {
        chmod(above.path(), mode);
        let error = Cache::open(&cache).unwrap_err();
        assert!(matches!(error, CacheError::Exposed { .. }), "{error}");
        let flaw =
            format!("{} can be written by everybody (mode {mode:04o})", above.path().display());
        assert!(error.to_string().contains(&flaw), "{error}");
        let refused = Scratch::below(&above.join("project")).unwrap_err().to_string();
        assert!(refused.contains(&flaw), "{refused}");
    }
    // In a sticky folder nobody can rename what belongs to others.
    for mode in [0o1777, 0o755] {
        chmod(above.path(), mode);
        assert!(Cache::open(&cache).is_ok() && Scratch::below(above.path()).is_ok());
    }
}

#[test]
fn a_folder_above_that_belongs_to_somebody_else_is_refused() {
    if !is_root() {
        return eprintln!("skipped: only root gives folders away");
    }
    let above = Folder::new("given");
    fs::create_dir(above.join("cache")).unwrap();
    chown(above.path(), Some(NOBODY), None).unwrap();
    chmod(above.path(), 0o1755);
    let error = Cache::open(&above.join("cache")).unwrap_err().to_string();
    assert!(error.contains("belongs to user 65534, and this process to user 0"), "{error}");
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    let folder = Folder::new("foreign");
    let mut path = folder.path();
    if is_root() {
        chown(path, Some(NOBODY), None).unwrap();
    } else {
        path = Path::new("/");
    }
    assert!(matches!(Cache::open(path), Err(CacheError::Foreign { .. })));
}

#[test]
fn a_file_in_the_place_of_the_folder_is_refused() {
    let folder = Folder::new("file");
    fs::write(folder.join("cache"), "").unwrap();
    assert!(matches!(Cache::open(&folder.join("cache")), Err(CacheError::NoFolder { .. })));
}

#[test]
fn a_read_only_folder_is_a_warning() {
    let folder = Folder::new("read-only");
    if is_root() {
        chown(folder.path(), Some(NOBODY), None).unwrap();
    }
    chmod(folder.path(), 0o500);
    let at = folder.path().display();
    support::finish(support::start("cache::worker", &format!("read-only {at}"), &[]));
    support::finish(support::start("cache::worker", &format!("no-folder {at}"), &[]));
    chmod(folder.path(), 0o700);
}

#[test]
fn entries_of_a_read_only_folder_are_read() {
    let folder = Folder::new("filled");
    fetch(&open(folder.path()));
    chmod(folder.path(), 0o500);
    assert!(fetch(&open(folder.path())).cached);
    chmod(folder.path(), 0o700);
}

#[test]
fn damaged_entries_are_rebuilt() {
    let folder = Folder::new("damaged");
    let cache = open(folder.path());
    let file = entry_file(folder.path());
    fetch(&cache);
    let good = fs::read(&file).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for bytes in [&flipped[..], &good[..good.len() / 2], b"", b"something else"] {
        fs::write(&file, bytes).unwrap();
        let fetched = fetch(&cache);
        assert!(!fetched.cached);
        assert!(matches!(&*fetched.warnings, [CacheWarning::Damaged { .. }]), "{fetched:?}");
        assert!(fetch(&cache).cached);
    }
}

#[test]
fn entries_that_others_could_have_planted_are_not_read() {
    let folder = Folder::new("planted");
    let cache = open(folder.path());
    let file = entry_file(folder.path());
    fetch(&cache);
    chmod(&file, 0o666);
    assert!(matches!(&*fetch(&cache).warnings, [CacheWarning::Damaged { .. }]));

    let elsewhere = folder.join("elsewhere");
    fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert!(matches!(&*fetch(&cache).warnings, [CacheWarning::Damaged { .. }]));

    fs::remove_file(&file).unwrap();
    let made = Command::new("mkfifo").arg(&file).status();
    if made.is_ok_and(|status| status.success()) {
        assert!(matches!(&*fetch(&cache).warnings, [CacheWarning::Damaged { .. }]));
    }
    assert!(fetch(&cache).cached);
}

#[test]
fn what_is_listed_can_be_cleared() {
    let folder = Folder::new("listed");
    let cache = open(folder.path());
    fetch(&cache);
    fs::write(folder.join("notes.txt"), "not the cache's").unwrap();
    fs::write(folder.join(&format!("{}.1-2.tmp", key())), "left by a killed process").unwrap();
    // The cache ignores folders, even one that is named like an entry.
    let namesake = folder.join(&format!("{}.entry", Key::of(["a folder"])));
    fs::create_dir(&namesake).unwrap();

    let listed = cache.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key, key());
    assert_eq!(listed[0].entry.as_ref().unwrap().target, "sm_90a");
    assert!(cache.size().unwrap() > listed[0].bytes);

    fs::write(entry_file(folder.path()), "damaged").unwrap();
    assert!(cache.list().unwrap()[0].entry.is_err());

    let cleared = cache.clear().unwrap();
    assert_eq!(cleared.entries, 1);
    assert_eq!((cache.size().unwrap(), cache.list().unwrap().len()), (0, 0));
    assert!(folder.join("notes.txt").exists() && namesake.exists());
    assert!(!fetch(&cache).cached);
}

#[test]
fn without_a_folder_everything_is_made() {
    let cache = Cache::memory_only();
    for _ in 0..2 {
        let fetched = fetch(&cache);
        assert_eq!((fetched.cached, fetched.warnings), (false, Vec::new()));
    }
    assert_eq!((cache.folder(), cache.warning()), (None, None));
    assert_eq!((cache.size(), cache.list().map(|list| list.len())), (Ok(0), Ok(0)));
}

#[test]
fn a_failed_make_leaves_nothing() {
    let folder = Folder::new("failed");
    let cache = open(folder.path());
    assert_eq!(cache.fetch(&key(), || Err::<Entry, _>("no")), Err("no"));
    assert_eq!(cache.list().unwrap().len(), 0);
    assert!(!fetch(&cache).cached);
}
