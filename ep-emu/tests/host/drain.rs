//! Stops, deaths and late starts at any step: the tests judge what they leave behind.

use ep_emu::{Build, Failure, FailureKind, Faults, RunStats, Spec, World};

use crate::support::{alloc, bytes, compile, launch, source, words};

const ROUNDS: u64 = 12;

/// What became of an exchange, and how many rounds each rank was sent.
struct Exchanged {
    result: Result<RunStats, Failure>,
    sent: Vec<u32>,
}

fn exchange(build: Build, seed: u64, faults: Faults, edits: &[(&str, &str)]) -> Exchanged {
    let program = compile(&source("drain.cu", edits), build);
    let mut world =
        World::new(Spec { ranks: 2, seed, faults, ..Spec::default() }).expect("a world");
    let mut each = |name: &str| [0, 1].map(|rank| alloc(&mut world, rank, 16, name));
    let (rows, sent, stops) = (each("row"), each("sent"), each("stop"));
    let mut lists = Vec::new();
    for rank in 0..2 {
        world.set_stop_word(rank as u32, stops[rank]);
        let mut launch = launch(&program, "exchange", 1, 64);
        launch.shared_bytes = 128;
        launch.args = bytes(&[
            rows[1 - rank].0,
            sent[rank].0,
            sent[1 - rank].0,
            stops[rank].0,
            1 << 40,
            ROUNDS,
        ]);
        lists.push(vec![launch]);
    }
    let result = world.run(lists);
    Exchanged { result, sent: sent.iter().map(|at| words(&world, *at, 1)[0]).collect() }
}

/// Steps of a run without a fault.
fn steps(seed: u64) -> u64 {
    let exchanged = exchange(Build::Plain, seed, Faults::default(), &[]);
    exchanged.result.unwrap_or_else(|failure| panic!("{failure}")).steps
}

/// Steps all over a run.
fn anywhere(seed: u64) -> impl Iterator<Item = u64> {
    let steps = steps(seed);
    (0..24).map(move |part| 1 + part * steps / 24)
}

fn stopped(step: u64) -> Faults {
    Faults { stopped_rank: Some((1, step)), ..Faults::default() }
}

#[test]
fn a_stop_anywhere_drains() {
    let mut cut_short = 0;
    for build in [Build::Plain, Build::Checked] {
        for seed in 1..5 {
            for step in anywhere(seed) {
                let Exchanged { result, sent } = exchange(build, seed, stopped(step), &[]);
                match result {
                    Ok(_) => assert_eq!(sent, [ROUNDS as u32; 2], "step {step}"),
                    Err(failure) => {
                        assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
                        assert!(failure.drained && failure.left.is_empty(), "{failure}");
                        cut_short += 1;
                    }
                }
            }
        }
    }
    assert!(cut_short > 50, "{cut_short} runs were cut short");
}

/// What stops all over some runs come to.
fn failures(edit: (&'static str, &'static str)) -> impl Iterator<Item = Failure> {
    let places = (1..5).flat_map(|seed| anywhere(seed).map(move |step| (seed, step)));
    places.filter_map(move |(seed, step)| {
        exchange(Build::Plain, seed, stopped(step), &[edit]).result.err()
    })
}

#[test]
fn what_a_stop_leaves_behind_is_found_at_length() {
    let open = ("ep::tma_wait_stored<0>();  // M6", "");
    let outside = ("/* stopped */", "args.row_there[100] = 1;");
    let absent = ("/* the other one */", "return;");
    for (edit, kind) in [
        (open, FailureKind::Exit),
        (outside, FailureKind::OutOfBounds),
        (absent, FailureKind::Deadlock),
    ] {
        let clean = exchange(Build::Plain, 1, Faults::default(), &[edit]);
        assert!(clean.result.is_ok(), "{edit:?} shows only when a run is stopped");
        let all = failures(edit);
        let found: Vec<Failure> = all.filter(|failure| !failure.drained).collect();
        assert!(found.len() > 3, "{edit:?}: {} runs", found.len());
        assert!(found.iter().all(|failure| failure.kind == kind), "{found:?}");
    }
    let mut all = failures(absent);
    let some_left = |failure: &Failure| !failure.left.is_empty() && failure.left != failure.waits;
    let failure = all.find(some_left).expect("who waits at the barrier");
    assert!(failure.left.iter().any(|wait| wait.what.contains("of 64 threads")), "{failure}");
    assert!(failure.to_string().contains("these had not left the kernel:"), "{failure}");
}

#[test]
fn a_death_anywhere_lets_the_others_leave() {
    for seed in 1..5 {
        for step in anywhere(seed) {
            let faults = Faults { dead_rank: Some((1, step)), ..Faults::default() };
            let Exchanged { result, .. } = exchange(Build::Plain, seed, faults, &[]);
            let Err(failure) = result else { continue };
            assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
            assert!(failure.drained && failure.left.is_empty(), "{failure}");
        }
    }
}

#[test]
fn who_comes_late_changes_nothing() {
    let mut waited = 0;
    for seed in 1..5 {
        for step in anywhere(seed).chain([1 << 40]) {
            let faults = Faults { late_rank: Some((0, step)), ..Faults::default() };
            let Exchanged { result, sent } = exchange(Build::Checked, seed, faults, &[]);
            let stats = result.unwrap_or_else(|failure| panic!("step {step}: {failure}"));
            assert_eq!(sent, [ROUNDS as u32; 2]);
            waited += stats.idle;
        }
    }
    assert!(waited > 0, "a rank that is out of reach begins when nothing else can run");
}

#[test]
fn steps_count_from_the_first_run_of_a_world() {
    let program = compile(&source("drain.cu", &[]), Build::Plain);
    let dead_rank = |step| Faults { dead_rank: Some((0, step)), ..Faults::default() };
    let run = |faults| {
        let spec = Spec { faults, ..Spec::default() };
        let mut world = World::new(spec).expect("a world");
        let at = alloc(&mut world, 0, 16, "all");
        let mut launch = launch(&program, "exchange", 1, 64);
        (launch.shared_bytes, launch.args) = (128, bytes(&[at.0, at.0, at.0, at.0, 1, 0]));
        let runs = (0..3).map(|_| world.run(vec![vec![launch.clone()]]));
        runs.map(|result| result.map(|stats| (stats.steps, stats.lanes))).collect::<Vec<_>>()
    };
    let whole = run(Faults::default());
    let steps =
        |result: &Result<(u64, u64), Failure>| result.as_ref().map_or(0, |(steps, _)| *steps);
    let before = steps(&whole[0]) + steps(&whole[1]) / 2;
    let struck = run(dead_rank(before));
    assert_eq!(steps(&struck[0]), steps(&whole[0]));
    assert_ne!(struck[1].as_ref().ok(), whole[1].as_ref().ok(), "it dies in the second run");
    assert_eq!(struck[2].as_ref().map_or(1, |(_, lanes)| *lanes), 0, "and begins no other one");
}
