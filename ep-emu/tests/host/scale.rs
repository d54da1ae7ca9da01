//! Large grids: they run, and a lane stays small.

use std::fs;
use std::time::{Duration, Instant};

use ep_emu::{Build, Launch, RunStats, Spec, World, worker};

use crate::support::{alloc, bytes, compile, launch, source, words};

fn crowd(ranks: u32, blocks: u32, threads: u32, rounds: u64, build: Build) -> RunStats {
    let program = compile(&source("crowd.cu", &[]), build);
    let mut world = World::new(Spec { ranks, ..Spec::default() }).expect("a world");
    let mut arrived = Vec::new();
    let mut lists: Vec<Vec<Launch>> = Vec::new();
    for rank in 0..ranks {
        let sums = alloc(&mut world, rank, 4 * blocks as usize, "sums");
        arrived.push(alloc(&mut world, rank, 4, "arrived"));
        let mut launch = launch(&program, "crowd", blocks, threads);
        launch.shared_bytes = 256;
        launch.args = bytes(&[sums.0, arrived[rank as usize].0, rounds]);
        lists.push(vec![launch]);
    }
    let stats = world.run(lists).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(arrived.iter().all(|at| words(&world, *at, 1) == [blocks]));
    stats
}

/// Peak resident bytes of this process.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("VmHWM");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    kib.expect("a number") << 10
}

#[test]
fn seventy_four_thousand_lanes_fit() {
    let answer = worker::isolate(Duration::from_secs(300), |_| {
        crowd(1, 1, 32, 1, Build::Plain);
        let before = peak_bytes();
        let begun = Instant::now();
        let stats = crowd(4, 24, 768, 2, Build::Plain);
        let spent = begun.elapsed();
        let each = (peak_bytes() - before) / stats.lanes;
        let rate = spent.as_nanos() as u64 / stats.switches;
        assert_eq!(stats.lanes, 73_728);
        [each.to_le_bytes(), rate.to_le_bytes()].concat()
    });
    let answer = answer.expect("it runs");
    let number = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("8 bytes"));
    let (each, rate) = (number(0), number(8));
    assert!(each <= 6 << 10, "{each} bytes a lane");
    // Far above what it takes on an idle machine: this only notices a change of kind.
    assert!(rate < 5_000, "{rate} ns a switch");
}

#[test]
fn blocks_beyond_the_residents_wait_for_a_slot() {
    let program = compile(&source("crowd.cu", &[]), Build::Checked);
    let spec = Spec { ranks: 2, max_resident_blocks: 3, ..Spec::default() };
    let mut world = World::new(spec).expect("a world");
    let mut lists = Vec::new();
    let mut arrived = Vec::new();
    for rank in 0..2 {
        let sums = alloc(&mut world, rank, 4 * 20, "sums");
        arrived.push(alloc(&mut world, rank, 4, "arrived"));
        let mut launch = launch(&program, "crowd", 20, 64);
        launch.shared_bytes = 256;
        launch.cooperative = false;
        launch.args = bytes(&[sums.0, arrived[rank as usize].0, 1]);
        lists.push(vec![launch]);
    }
    let stats = world.run(lists).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(stats.lanes, 2 * 20 * 64);
    assert!(arrived.iter().all(|at| words(&world, *at, 1) == [20]));
}

/// A lane that waits for many words looks at them again when one of them has changed, not when anything
/// has.
#[test]
fn a_wait_for_many_words_does_not_spin() {
    let program = compile(&source("crowd.cu", &[]), Build::Plain);
    let polls = |rounds: u64| {
        let mut world = World::new(Spec { ranks: 1, ..Spec::default() }).expect("a world");
        let sums = alloc(&mut world, 0, 4 * 40, "sums");
        let arrived = alloc(&mut world, 0, 4, "arrived");
        let mut launch = launch(&program, "many_words", 12, 32);
        launch.shared_bytes = 256;
        launch.args = bytes(&[sums.0, arrived.0, rounds]);
        let stats = world.run(vec![vec![launch]]).unwrap_or_else(|failure| panic!("{failure}"));
        stats.polls - rounds * 40
    };
    let (short, long) = (polls(1000), polls(10_000));
    assert!(long < 2 * short, "{short} looks, and {long} when the words come later");
}
