//! The host backend below the typed API: queues, memory, and what a failed run leaves. And the
//! example of the typed API, as far as it needs no GPU.

#[path = "../../examples/all_gather_sum.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod all_gather_sum;
#[path = "../../examples/layer.rs"]
mod layer;
#[path = "../../examples/nvfp4.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod nvfp4;
#[path = "../../examples/top1_router.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod top1_router;
#[cfg(target_os = "linux")]
#[path = "../../examples/two_hops.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod two_hops;
#[path = "../../examples/two_payloads.rs"]
#[expect(dead_code, reason = "an example has a main")]
mod two_payloads;

mod compiled;
#[cfg(unix)]
mod kept;
mod taken;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ep_runtime::backend::{Backend, BackendError, Block, Code, KernelLaunch, Stream};
use ep_runtime::host::{Build, FailureKind, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Cache;

/// Adds `value` to `words[0]` when a peer's kernel has stored to `flag`, if there is one.
const KERNEL: &str = r#"
#include <ep/sync.cuh>

struct Args {
    ep::u32* words;
    ep::u32* own_flag;
    const ep::u32* flag;
    ep::u64 value;
};

extern "C" __global__ void add(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.own_flag != nullptr) ep::store_release_sys(args.own_flag, 1u);
    if (args.flag != nullptr) {
        while (ep::load_relaxed_sys(args.flag) == 0) {
        }
        ep::load_acquire_sys(args.flag);
    }
    args.words[0] += static_cast<ep::u32>(args.value);
}
"#;

const BLOCK: Block = Block { threads: 32, shared_bytes: 0 };

/// The C++ compiler; none on a machine without one.
fn programs() -> Option<&'static Arc<Programs>> {
    static PROGRAMS: LazyLock<Option<Arc<Programs>>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host");
        match Programs::find_with(&folder) {
            Ok(programs) => Some(programs),
            Err(error) => {
                // Past the capture of the harness, which hides what passing tests print.
                let _ = writeln!(std::io::stderr(), "skipped: {error}");
                None
            }
        }
    });
    PROGRAMS.as_ref()
}

/// Some ranks with the kernel loaded.
struct Ranks {
    backend: Arc<HostBackend>,
    codes: Vec<Code>,
}

impl Ranks {
    fn new(ranks: usize, build: Build) -> Option<Ranks> {
        let isolation = Some(Duration::from_secs(60));
        let options = HostOptions { build, isolation, ..HostOptions::new(ranks) };
        let backend = HostBackend::new(programs()?, options).unwrap();
        let image = backend.compile("add", KERNEL).unwrap();
        let codes = (0..ranks).map(|rank| backend.load(rank, &image, "add", BLOCK).unwrap());
        Some(Ranks { codes: codes.collect(), backend })
    }

    fn add(&self, rank: usize, words: u64, value: u64) -> Result<(), BackendError> {
        self.launch(rank, [words, 0, 0, value])
    }

    fn launch(&self, rank: usize, args: [u64; 4]) -> Result<(), BackendError> {
        let args: Vec<u8> = args.iter().flat_map(|word| word.to_le_bytes()).collect();
        let launch = KernelLaunch {
            code: self.codes[rank],
            blocks: 1,
            waits: true,
            enters: false,
            phases: 1,
            args: &args,
        };
        self.backend.launch(rank, Stream::OWN, &launch)
    }

    fn word(&self, rank: usize, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.backend.read(rank, at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }
}

#[test]
fn work_of_a_rank_happens_in_order() {
    let Some(ranks) = Ranks::new(1, Build::Plain) else { return };
    let backend = &ranks.backend;
    let words = backend.alloc(0, 256).unwrap();
    let event = backend.create_event(0).unwrap();
    backend.write(0, words, &5u32.to_le_bytes()).unwrap();
    ranks.add(0, words, 1).unwrap();
    backend.fill(0, Stream::OWN, words + 4, 0, 4).unwrap();
    ranks.add(0, words, 1).unwrap();
    backend.record(0, Stream::OWN, &event).unwrap();
    backend.write(0, words + 8, &9u32.to_le_bytes()).unwrap();
    ranks.add(0, words + 8, 1).unwrap();
    let last = backend.create_event(0).unwrap();
    backend.record(0, Stream::OWN, &last).unwrap();
    assert!(backend.elapsed(0, &event, &last).is_err(), "nothing has run yet");
    assert_eq!(ranks.word(0, words), 7);
    assert_eq!(ranks.word(0, words + 4), 0);
    assert_eq!(ranks.word(0, words + 8), 10);
    assert!(backend.elapsed(0, &event, &last).unwrap() > Duration::ZERO);
}

/// Ranks that wait for each other run together, whoever is waited for, also with host work in between.
#[test]
fn ranks_run_together() {
    let Some(ranks) = Ranks::new(2, Build::Checked) else { return };
    let backend = &ranks.backend;
    let window = backend.map_window(256).unwrap();
    let at = |rank: usize, word: u64| window.bases[0][rank] + 4 * word;
    for call in 0..2 {
        for rank in 0..2 {
            let (own, flag) = (at(1 - rank, 1 + call), at(rank, 1 + call));
            ranks.launch(rank, [at(rank, 0), own, flag, 10 + rank as u64]).unwrap();
            if rank == 0 {
                backend.fill(rank, Stream::OWN, at(rank, 8), 1, 4).unwrap();
            }
        }
    }
    backend.sync(1, Stream::OWN).unwrap();
    backend.sync(0, Stream::OWN).unwrap();
    assert_eq!([ranks.word(0, at(0, 0)), ranks.word(1, at(1, 0))], [20, 22]);
    backend.unmap_window(&window).unwrap();
    assert!(backend.unmap_window(&window).is_err());
}

#[test]
fn a_held_queue_starts_when_its_word_is_set() {
    let Some(ranks) = Ranks::new(1, Build::Plain) else { return };
    let backend = &ranks.backend;
    let gate = backend.alloc_host(0, 4).unwrap();
    let words = backend.alloc(0, 4).unwrap();
    backend.write(0, words, &[0; 4]).unwrap();
    backend.hold(0, Stream::OWN, &gate, 0, 3).unwrap();
    ranks.add(0, words, 1).unwrap();
    let error = backend.sync(0, Stream::OWN).unwrap_err();
    assert_eq!(error.to_string(), "a queue waits for a host word that has not been set");
    backend.write_host(&gate, 0, &[3]).unwrap();
    assert_eq!(ranks.word(0, words), 1);
    backend.free_host(0, gate).unwrap();
}

#[test]
fn memory_that_is_used_again_holds_nothing_of_before() {
    let Some(ranks) = Ranks::new(2, Build::Plain) else { return };
    let backend = &ranks.backend;
    let first = backend.alloc(1, 512).unwrap();
    backend.write(1, first, &[7; 512]).unwrap();
    assert!(backend.free(0, first).is_err(), "it is a block of another rank");
    backend.free(1, first).unwrap();
    assert!(backend.free(1, first).is_err(), "it is free already");
    let again = backend.alloc(1, 512).unwrap();
    assert_eq!(again, first);
    assert_ne!(ranks.word(1, again), 0x0707_0707);
    let window = backend.map_window(512).unwrap();
    let base = window.bases[0][1];
    backend.write(1, base, &[7; 512]).unwrap();
    backend.unmap_window(&window).unwrap();
    let window = backend.map_window(512).unwrap();
    assert_eq!((window.bases[0][1], ranks.word(1, base)), (base, 0));
}

/// A rank may free memory while a call of its own waits for others to make theirs.
#[test]
fn freed_memory_is_kept_for_what_is_queued() {
    let Some(ranks) = Ranks::new(2, Build::Checked) else { return };
    let backend = &ranks.backend;
    let window = backend.map_window(256).unwrap();
    let words = backend.alloc(0, 64).unwrap();
    ranks.launch(0, [words, window.bases[0][1], window.bases[0][0], 1]).unwrap();
    backend.free(0, words).unwrap();
    assert!(backend.free(0, words).is_err(), "it is free already");
    assert_ne!(backend.alloc(0, 64).unwrap(), words, "the kernel is still to use it");
    ranks.launch(1, [window.bases[1][1] + 4, window.bases[1][0], window.bases[1][1], 1]).unwrap();
    backend.sync(0, Stream::OWN).unwrap();
    assert_eq!(backend.alloc(0, 64).unwrap(), words);
}

/// The shared memory of a run's blocks leaves nothing in memory that is allocated after it.
#[test]
fn memory_after_a_run_is_zero() {
    let Some(mut ranks) = Ranks::new(1, Build::Plain) else { return };
    let backend = &ranks.backend;
    let image = backend.compile("add", KERNEL).unwrap();
    let block = Block { threads: 32, shared_bytes: 64 << 10 };
    ranks.codes = vec![backend.load(0, &image, "add", block).unwrap()];
    let words = backend.alloc(0, 4).unwrap();
    backend.write(0, words, &[0; 4]).unwrap();
    ranks.add(0, words, 1).unwrap();
    assert_eq!(ranks.word(0, words), 1);
    let window = ranks.backend.map_window(128 << 10).unwrap();
    let mut bytes = vec![1; 128 << 10];
    ranks.backend.read(0, window.bases[0][0], &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn wrong_numbers_are_refused() {
    let Some(ranks) = Ranks::new(2, Build::Plain) else { return };
    let backend = &ranks.backend;
    let words = backend.alloc(0, 256).unwrap();
    let text = |result: Result<(), BackendError>| result.unwrap_err().to_string();
    assert!(text(backend.write(0, words + 255, &[0; 2])).contains("outside of all blocks"));
    assert!(text(backend.sync(2, Stream::OWN)).contains("rank 2 is not local"));
    assert!(
        text(backend.read_host(&backend.alloc_host(0, 4).unwrap(), 4, &mut [0]))
            .contains("outside")
    );
    let launch = KernelLaunch {
        code: ranks.codes[1],
        blocks: 1,
        waits: true,
        enters: false,
        phases: 1,
        args: &[0; 32],
    };
    assert!(text(backend.launch(0, Stream::OWN, &launch)).contains("not loaded for rank 0"));
    let launch = KernelLaunch {
        code: ranks.codes[0],
        blocks: 133,
        waits: true,
        enters: false,
        phases: 1,
        args: &[0; 32],
    };
    let error = backend.launch(0, Stream::OWN, &launch).unwrap_err();
    assert_eq!(error, BackendError::TooManyBlocks { need: 133, have: 132, block: BLOCK });
    backend.unload(0, ranks.codes[0]).unwrap();
    assert!(backend.unload(0, ranks.codes[0]).is_err());
    let error = backend.compile("add", "this is no CUDA").unwrap_err();
    assert!(matches!(error, BackendError::Compile { .. }), "{error}");
}

/// A kernel that goes astray ends every later run, as a device that is lost; memory can be read.
#[test]
fn a_stray_kernel_loses_the_machine_and_nothing_else() {
    let Some(ranks) = Ranks::new(1, Build::Plain) else { return };
    let backend = &ranks.backend;
    let words = backend.alloc(0, 256).unwrap();
    backend.write(0, words, &[1; 256]).unwrap();
    ranks.launch(0, [words, words + (1 << 30), 0, 0]).unwrap();
    let error = backend.sync(0, Stream::OWN).unwrap_err();
    assert!(error.to_string().starts_with("out of bounds: "), "{error}");
    assert!(
        error.to_string().contains("at ptx.cuh") || error.to_string().contains("add"),
        "{error}"
    );
    assert_eq!(backend.failure().unwrap().kind, FailureKind::OutOfBounds);
    assert_eq!(ranks.add(0, words, 1).unwrap_err(), error);
    assert_eq!(backend.sync(0, Stream::OWN).unwrap_err(), error);
    // Other groups go on.
    let other = Ranks::new(1, Build::Plain).unwrap();
    let words = other.backend.alloc(0, 4).unwrap();
    other.backend.write(0, words, &[0; 4]).unwrap();
    other.add(0, words, 3).unwrap();
    assert_eq!(other.word(0, words), 3);
}

#[test]
fn rows_of_all_ranks_are_added_up() {
    let Some(programs) = programs() else { return };
    for (ranks, build) in [(1, Build::Plain), (3, Build::Checked)] {
        let options = HostOptions { build, ..HostOptions::new(ranks) };
        let group = HostBackend::new(programs, options).unwrap().group().unwrap();
        all_gather_sum::run(&group).unwrap();
    }
}

#[test]
fn tokens_are_dropped_where_an_expert_is_full() {
    let Some(programs) = programs() else { return };
    let options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
    let group = HostBackend::new(programs, options).unwrap().group().unwrap();
    top1_router::run(&group).unwrap();
}

/// Two values of four bits come in each byte.
#[test]
fn rows_are_quantized_by_functions_of_the_user() {
    let Some(programs) = programs() else { return };
    let options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
    let group = HostBackend::new(programs, options).unwrap().group().unwrap();
    nvfp4::run(&group).unwrap();
}

#[test]
fn a_small_row_travels_with_a_large_one() {
    let Some(programs) = programs() else { return };
    let options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
    let group = HostBackend::new(programs, options).unwrap().group().unwrap();
    two_payloads::run(&group).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn rows_go_between_nodes_and_back() {
    use ep_runtime::group::Group;
    use ep_runtime::net::ModelOptions;
    let Some(programs) = programs() else { return };
    let options = HostOptions { build: Build::Checked, ..HostOptions::new(4) };
    let backend = HostBackend::new(programs, options).unwrap();
    two_hops::run(&Group::over_model(&backend, 2, &ModelOptions::default()).unwrap()).unwrap();
}

#[test]
fn the_example_of_the_guide_runs() {
    let Some(programs) = programs() else { return };
    for (ranks, build) in [(1, Build::Plain), (2, Build::Checked)] {
        let options = HostOptions { build, ..HostOptions::new(ranks) };
        let group = HostBackend::new(programs, options).unwrap().group().unwrap();
        let said = layer::run(&group, &Cache::memory_only()).unwrap();
        assert!(said.contains("rows, and its output holds 9\n"), "{said}");
        let late = format!("rank {} has not made call", ranks - 1);
        assert_eq!(said.contains(&late), ranks > 1, "{said}");
        // The group was stopped for good.
        assert_eq!(group.sync(0).is_err(), ranks > 1);
    }
}
