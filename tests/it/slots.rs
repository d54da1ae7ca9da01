//! Records in slots: ranks that run ahead of one another, and elements of every size.

use std::sync::Arc;

use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::group::{GroupKernel, place_control};
use ep_runtime::host::{Build, Faults, HostBackend, HostOptions};
use ep_runtime::jit::Arch;
use ep_runtime::memory::{DeviceMemory, Window};
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, pipeline};

pipeline! {
    /// Every rank tells all others a few numbers of every kind.
    pub pipeline Talk {
        shape { ranks: 1..=64, length: 1..=1000 }
        input wide: i64[length], narrow: bool[ranks], real: f32[ranks];
        table heard_wide: i64[ranks, length], heard_narrow: bool[ranks, ranks], heard_real: f32[ranks, ranks];
        message Word { narrow: bool[ranks], wide: i64[length], real: f32[ranks] }
        channel words: slots<Word> over nvlink from Speak to Speak per all { slot: [source], epochs: 1 };

        role Speak on block 0 {
            for peer in ranks {
                push words[peer] { narrow: narrow, wide: wide, real: real };
            }
            await words;
            for source in ranks {
                for i in length {
                    record heard_wide[source, i] = words[source].wide[i];
                }
                for i in ranks {
                    record heard_narrow[source, i] = words[source].narrow[i];
                    record heard_real[source, i] = words[source].real[i];
                }
            }
        }
    }
}

/// Calls in the queue of every rank at once: nothing but the words keeps the ranks together.
const CALLS: usize = 5;

struct Call {
    bindings: Bindings,
    blocks: Vec<(&'static str, DeviceMemory)>,
}

/// What `rank` says in `call`: the bytes of its three tensors.
fn said(rank: usize, call: usize, ranks: usize, long: usize) -> [(&'static str, Vec<u8>); 3] {
    let seed = 1 + rank + 100 * call;
    let wide = (0..long).map(|i| (seed as i64 * 7_000_000_007).wrapping_mul(i as i64 - 3));
    let narrow = (0..ranks).map(|i| u8::from((seed >> i & 1) != 0));
    let real = (0..ranks).map(|i| (seed * (i + 1)) as f32 / 3.0);
    [
        ("wide", wide.flat_map(i64::to_le_bytes).collect()),
        ("narrow", narrow.collect()),
        ("real", real.flat_map(f32::to_le_bytes).collect()),
    ]
}

fn call(backend: &Arc<dyn Backend>, rank: usize, number: usize, ranks: usize, long: usize) -> Call {
    let mut call = Call { bindings: Bindings::new(), blocks: Vec::new() };
    let mut bind = |name: &'static str, bytes: &[u8]| {
        let memory = DeviceMemory::new(backend, rank, bytes.len() as u64).expect("there is room");
        memory.write(0, bytes).expect("it fits");
        call.bindings.tensor(name, Rows::new(memory.address(), 1));
        call.blocks.push((name, memory));
    };
    for (name, bytes) in said(rank, number, ranks, long) {
        bind(name, &bytes);
        let heard = ["heard_wide", "heard_narrow", "heard_real"];
        let heard = heard.iter().find(|heard| heard.ends_with(name)).expect("there is one");
        bind(heard, &vec![0xa5; bytes.len() * ranks]);
    }
    call
}

fn check(ranks: usize, long: usize, build: Build, seed: u64) {
    let Some(programs) = crate::host::programs() else { return };
    let entry = AnyPipeline::of::<Talk>();
    let ir = entry.ir();
    let mut config = Config::new(&ir, Arch::Sm90a);
    for (name, value) in [("ranks", ranks), ("length", long)] {
        config.set(&ir, name, &value.to_string()).expect("the shape is legal");
    }
    let emitted = entry.emit(&config).expect("it is emitted");
    let mut options = HostOptions { build, ..HostOptions::new(ranks) };
    options.spec.seed = seed;
    // The others are as far ahead of it as the words let them.
    options.spec.faults = Faults { slow_ranks: vec![0], ..Faults::default() };
    options.spec.max_ahead = CALLS as u64;
    let backend = HostBackend::new(programs, options).expect("there is a host");
    let group = backend.group().expect("there is a group");
    let (_, bytes) = place_control([&emitted.plan]);
    let window = Arc::new(Window::new(group.backend(), bytes).expect("there is room"));
    let kernel = GroupKernel::prepare(&group, &window, 0, &emitted).expect("it compiles");
    let mut calls = Vec::new();
    for number in 0..CALLS {
        for rank in 0..ranks {
            calls.push((rank, number, call(group.backend(), rank, number, ranks, long)));
        }
    }
    for (rank, _, call) in &calls {
        kernel.launch(*rank, Stream::OWN, 1, &call.bindings).expect("it starts");
    }
    for rank in 0..ranks {
        group.sync(rank).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    for (rank, number, call) in &calls {
        for (index, (name, _)) in said(0, 0, ranks, long).iter().enumerate() {
            let all = (0..ranks).map(|source| said(source, *number, ranks, long));
            let wanted: Vec<u8> = all.flat_map(|said| said[index].1.clone()).collect();
            let is_heard = |own: &&(&str, DeviceMemory)| own.0 == format!("heard_{name}");
            let (_, memory) = call.blocks.iter().find(is_heard).expect("it is bound");
            let mut found = vec![0; wanted.len()];
            memory.read(0, &mut found).expect("it can be read");
            assert!(found == wanted, "seed {seed}: rank {rank}, call {number}: {name}");
        }
    }
}

#[test]
fn ranks_may_be_a_call_ahead() {
    for seed in 1..=12 {
        check(3, 9, Build::Plain, seed);
    }
    check(3, 9, Build::Checked, 1);
}

#[test]
fn records_of_any_length_reach_any_number_of_ranks() {
    for (ranks, long) in [(1, 1), (5, 1), (33, 2), (2, 700)] {
        check(ranks, long, Build::Plain, 1);
    }
}
