//! Two pull channels in one kernel, read by two roles that share the blocks: each gives out its own
//! tokens and tells its own producers when they are done.

use std::sync::Arc;

use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::bf16::bf16_from_f32;
use ep_runtime::group::{GroupKernel, control_bytes};
use ep_runtime::host::{Build, Faults, HostBackend, HostOptions};
use ep_runtime::jit::Arch;
use ep_runtime::memory::{DeviceMemory, Window, align_up};
use ep_runtime::plan::Config;
use ep_runtime::{AnyPipeline, pipeline};

pipeline! {
    /// Adds up two tensors of all ranks, row by row.
    pub pipeline TwoSums {
        shape { ranks: 1..=64, hidden: 16..=1024 step 16 }
        size tokens;
        size rows;
        input first: bf16[rows, hidden] in window, second: bf16[rows, hidden] in window, at: i32[tokens, ranks];
        output ones: bf16[tokens, hidden], twos: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel one: pull<Part> over nvlink from OfferOne to SumOne per all;
        channel two: pull<Part> over nvlink from OfferTwo to SumTwo per all;
        role OfferOne on block 0, 1 warps {
            push one { x: first };
        }
        role OfferTwo on block 0, 1 warps {
            push two { x: second };
        }
        role SumOne on all blocks, 3 warps, warps shared by token {
            for token in tokens gather part from one[peer] at at[token, peer] across peer in ranks {
                store ones[token] = sum(part.x);
            }
        }
        role SumTwo on all blocks, 2 warps, warps shared by token {
            for token in tokens gather part from two[peer] at at[token, peer] across peer in ranks {
                store twos[token] = sum(part.x);
            }
        }
    }
}

const RANKS: usize = 3;
const HIDDEN: usize = 144;
/// Values between the rows of a tensor that peers read where it is: whole lines of 128 bytes.
const STRIDE: usize = 192;
const ROWS: usize = 20;
const TOKENS: usize = 17;
const CALLS: usize = 3;

/// The row of `peer` that token `token` of `rank` adds, if any.
fn row(rank: usize, token: usize, peer: usize) -> Option<usize> {
    let place = rank + 3 * token + 5 * peer;
    (!place.is_multiple_of(4)).then_some(place % ROWS)
}

/// What a rank offers: numbers that add up without rounding.
fn offered(rank: usize, which: usize, row: usize, column: usize) -> f32 {
    ((7 * rank + 3 * which + 5 * row + column) % 32) as f32
}

fn bf16(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| bf16_from_f32(value).to_le_bytes()).collect()
}

fn rows(rank: usize, which: usize) -> Vec<u8> {
    let places = (0..ROWS).flat_map(|row| (0..STRIDE).map(move |column| (row, column)));
    bf16(places.map(|(row, column)| match column < HIDDEN {
        true => offered(rank, which, row, column),
        false => f32::NAN,
    }))
}

fn sums(rank: usize, which: usize) -> Vec<u8> {
    let places = (0..TOKENS).flat_map(|token| (0..HIDDEN).map(move |column| (token, column)));
    bf16(places.map(|(token, column)| {
        let parts = (0..RANKS).filter_map(|peer| Some((peer, row(rank, token, peer)?)));
        parts.map(|(peer, row)| offered(peer, which, row, column)).sum()
    }))
}

fn check(build: Build, seed: u64) {
    let Some(programs) = crate::host::programs() else { return };
    let entry = AnyPipeline::of::<TwoSums>();
    let ir = entry.ir();
    let mut config = Config::new(&ir, Arch::Sm90a);
    for (name, value) in [("ranks", RANKS), ("hidden", HIDDEN)] {
        config.set(&ir, name, &value.to_string()).expect("the shape is legal");
    }
    let emitted = entry.emit(&config).expect("it is emitted");
    let mut options = HostOptions { build, ..HostOptions::new(RANKS) };
    options.spec.seed = seed;
    options.spec.faults = Faults { slow_ranks: vec![0], ..Faults::default() };
    options.spec.max_ahead = CALLS as u64;
    let backend = HostBackend::new(programs, options).expect("there is a host");
    let group = backend.group().expect("there is a group");
    let tensor = (ROWS * STRIDE * 2) as u64;
    let starts = [align_up(control_bytes(&emitted.plan)), 0];
    let starts = [starts[0], align_up(starts[0] + tensor)];
    let window = Window::new(group.backend(), starts[1] + tensor).expect("there is room");
    let window = Arc::new(window);
    let kernel = GroupKernel::prepare(&group, &window, 0, &emitted).expect("it compiles");
    let mut outputs = Vec::new();
    for rank in 0..RANKS {
        let memory = |bytes: &[u8]| {
            let memory = DeviceMemory::new(group.backend(), rank, bytes.len() as u64);
            let memory = memory.expect("there is room");
            memory.write(0, bytes).expect("it fits");
            memory
        };
        let own = window.own(rank).expect("it is local");
        let mut bindings = Bindings::new();
        bindings.number("tokens", TOKENS as i64).number("rows", ROWS as i64);
        for (which, name) in ["first", "second"].into_iter().enumerate() {
            let (at, rows) = (own + starts[which], rows(rank, which));
            group.backend().write(rank, at, &rows).expect("it fits");
            bindings.tensor(name, Rows::new(at, STRIDE as i64)).region(name, starts[which]);
        }
        let places = (0..TOKENS).flat_map(|token| (0..RANKS).map(move |peer| (token, peer)));
        let at = places.map(|(token, peer)| row(rank, token, peer).map_or(-1, |row| row as i32));
        let at = memory(&at.flat_map(i32::to_le_bytes).collect::<Vec<u8>>());
        bindings.tensor("at", Rows::new(at.address(), RANKS as i64));
        let sums = ["ones", "twos"].map(|_| memory(&vec![0xa5; TOKENS * HIDDEN * 2]));
        for (name, memory) in ["ones", "twos"].into_iter().zip(&sums) {
            bindings.tensor(name, Rows::new(memory.address(), HIDDEN as i64));
        }
        outputs.push((bindings, sums, at));
    }
    refuses_another_stride(&kernel, outputs[0].0.clone());
    for _ in 0..CALLS {
        for (rank, (bindings, ..)) in outputs.iter().enumerate() {
            kernel.launch(rank, Stream::OWN, 2, bindings).expect("it starts");
        }
    }
    for (rank, (_, found, _)) in outputs.iter().enumerate() {
        group.sync(rank).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for (which, memory) in found.iter().enumerate() {
            let mut bytes = vec![0; TOKENS * HIDDEN * 2];
            memory.read(0, &mut bytes).expect("it can be read");
            assert!(bytes == sums(rank, which), "seed {seed}: rank {rank}, tensor {which}");
        }
    }
}

/// Peers find rows by the shape alone.
fn refuses_another_stride(kernel: &GroupKernel, mut bindings: Bindings) {
    bindings.tensor("first", Rows::new(1 << 20, HIDDEN as i64));
    let error = kernel.launch(0, Stream::OWN, 2, &bindings).unwrap_err();
    let text = "the rows of `first` have a stride of 288 bytes, and TwoSums uses a stride of 384 \
                bytes in the window";
    assert_eq!(error.to_string(), text);
}

#[test]
fn each_channel_has_its_own_turns() {
    for seed in 1..=8 {
        check(Build::Plain, seed);
    }
    check(Build::Checked, 1);
}
