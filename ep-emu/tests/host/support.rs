//! Compiling and running small kernels.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ep_emu::{
    Address, Build, CompileError, Compiler, Launch, Product, Program, Shelf, Source, Spec, World,
    kernels_of,
};

/// The folder of this crate.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A kernel file of `tests/kernels` with edits, each of which must hit. All of its kernels can be launched, so that
/// tests of different kernels share one compile.
pub(crate) fn source(file: &str, edits: &[(&str, &str)]) -> Source {
    let path = root().join("tests/kernels").join(file);
    let mut text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    for (from, to) in edits {
        assert!(text.contains(from), "{file} has no {from:?}");
        text = text.replacen(from, to, 1);
    }
    Source { name: file.to_owned(), kernels: kernels_of(&text), text, headers: Vec::new() }
}

/// A folder of the build: what lies there is what these tests have put there.
#[derive(Debug)]
pub(crate) struct Kept(PathBuf);

impl Kept {
    /// A path that no other test, of this process or another, uses.
    fn fresh(&self) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.0.join(format!("{}-{number}", std::process::id()))
    }
}

/// Removed with what is in it.
struct Fresh(PathBuf);

impl AsRef<Path> for Fresh {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // It is below the folder of the build.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Shelf for Kept {
    fn fetch(
        &self,
        _: &Product<'_>,
        parts: &[&str],
        make: &mut dyn FnMut() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        let mut hash = DefaultHasher::new();
        parts.hash(&mut hash);
        let place = self.0.join(format!("{:016x}", hash.finish()));
        if let Ok(kept) = fs::read(&place) {
            return Ok(kept);
        }
        let made = make()?;
        let fresh = self.fresh();
        fs::write(&fresh, &made).and_then(|()| fs::rename(&fresh, &place)).expect("it is kept");
        Ok(made)
    }

    fn folder(&self) -> io::Result<Box<dyn AsRef<Path>>> {
        let path = self.fresh();
        fs::create_dir_all(&path).map(|()| Box::new(Fresh(path)) as Box<dyn AsRef<Path>>)
    }
}

/// The folder, made if it is missing.
pub(crate) fn kept() -> Kept {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept");
    fs::create_dir_all(&folder).expect("the folder of the build");
    Kept(folder)
}

/// Compiles by way of a folder of the build, and keeps the program for other runs of this process.
pub(crate) fn compile(source: &Source, build: Build) -> Arc<Program> {
    static COMPILER: LazyLock<Compiler> = LazyLock::new(|| {
        Compiler::find(Arc::new(kept())).unwrap_or_else(|error| panic!("{error}"))
    });
    static PROGRAMS: Mutex<BTreeMap<u64, Arc<Program>>> = Mutex::new(BTreeMap::new());
    let mut hash = DefaultHasher::new();
    (&source.name, &source.text, &source.headers, &source.kernels, build).hash(&mut hash);
    let key = hash.finish();
    let programs = || PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = programs().get(&key) {
        return Arc::clone(known);
    }
    let program = COMPILER.compile(source, build).unwrap_or_else(|error| panic!("{error}"));
    programs().insert(key, Arc::clone(&program));
    program
}

/// One launch with default settings.
pub(crate) fn launch(program: &Arc<Program>, kernel: &str, blocks: u32, threads: u32) -> Launch {
    let kernel = program.kernel(kernel).unwrap_or_else(|error| panic!("{error}"));
    Launch {
        kernel,
        blocks,
        threads,
        shared_bytes: 0,
        cooperative: true,
        comes_early: false,
        phases: 1,
        args: Vec::new(),
        tensors: Vec::new(),
    }
}

/// A world of `ranks` ranks.
pub(crate) fn world(ranks: u32, seed: u64) -> World {
    World::new(Spec { ranks, seed, ..Spec::default() }).unwrap_or_else(|error| panic!("{error}"))
}

/// A buffer.
pub(crate) fn alloc(world: &mut World, rank: u32, bytes: usize, name: &str) -> Address {
    world.alloc(rank, bytes, name).unwrap_or_else(|error| panic!("{error}"))
}

/// Words as the bytes of parameters.
pub(crate) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `count` 32-bit words of a buffer.
pub(crate) fn words(world: &World, at: Address, count: usize) -> Vec<u32> {
    let bytes = world.bytes(at, 4 * count).expect("inside a buffer");
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4"))).collect()
}
