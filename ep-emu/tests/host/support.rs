//! Compiling and running small kernels.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ep_emu::{Address, Build, Compiler, Launch, Program, Source, Spec, World};

/// The folder of this crate.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A kernel file of `tests/kernels` with edits, each of which must hit.
pub(crate) fn source(file: &str, kernels: &[&str], edits: &[(&str, &str)]) -> Source {
    let path = root().join("tests/kernels").join(file);
    let mut text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    for (from, to) in edits {
        assert!(text.contains(from), "{file} has no {from:?}");
        text = text.replacen(from, to, 1);
    }
    Source {
        name: file.to_owned(),
        text,
        headers: Vec::new(),
        kernels: kernels.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Compiles into a folder of the build.
pub(crate) fn compile(source: &Source, build: Build) -> Arc<Program> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let compiler = Compiler::find(&cache).unwrap_or_else(|error| panic!("{error}"));
    compiler.compile(source, build).unwrap_or_else(|error| panic!("{error}"))
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
