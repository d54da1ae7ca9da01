//! What goes wrong ends as the failure that names it.

use std::time::Duration;

use ep_emu::{Build, Failure, FailureKind, Faults, Launch, RunStats, Spec, World};

use crate::relay::Relay;
use crate::support::{alloc, bytes, compile, launch, source, words};

/// A world of `faults.cu` and the launches of one kernel, one a rank.
fn prepare(kernel: &str, spec: Spec, threads: u32) -> (World, Vec<Vec<Launch>>) {
    prepare_as(Build::Plain, kernel, spec, threads)
}

fn prepare_as(build: Build, kernel: &str, spec: Spec, threads: u32) -> (World, Vec<Vec<Launch>>) {
    let program = compile(&source("faults.cu", &[]), build);
    let ranks = spec.ranks;
    let mut world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
    let flags: Vec<_> = (0..ranks).map(|rank| alloc(&mut world, rank, 4, "flag")).collect();
    let mut lists = Vec::new();
    for rank in 0..ranks {
        let peer = (rank + 1) % ranks;
        let result = alloc(&mut world, rank, 512, "result");
        let mut launch = launch(&program, kernel, 1, threads);
        launch.shared_bytes = 512;
        launch.args = bytes(&[
            flags[rank as usize].0,
            flags[peer as usize].0,
            result.0,
            if kernel == "null_write" { 0 } else { 1 << 30 },
            u64::from(rank) | u64::from(peer) << 32,
        ]);
        lists.push(vec![launch]);
    }
    (world, lists)
}

fn run(kernel: &str, threads: u32) -> Result<RunStats, Failure> {
    let (mut world, lists) = prepare(kernel, Spec::default(), threads);
    world.run(lists)
}

#[test]
fn misuse_is_named() {
    let cases = [
        ("traps", 32, FailureKind::Trap, "rank 0 block 0 warp 0 lane 9: __trap()"),
        ("half_barrier", 32, FailureKind::Deadlock, "barrier 0, 16 of 32 threads"),
        ("lost_lane", 32, FailureKind::Warp, "lane 3 has left"),
        ("wrong_mask", 32, FailureKind::Warp, "does not name the caller"),
        ("crossed_masks", 32, FailureKind::Warp, ""),
        ("mixed_functions", 32, FailureKind::Warp, "meet in different functions"),
        ("shuffles_outside", 32, FailureKind::Warp, "reads lane 20"),
        ("other_warps", 128, FailureKind::Barrier, "before"),
        ("halves_meet", 64, FailureKind::Barrier, "a barrier needs whole warps"),
        ("fresh_mbarrier", 32, FailureKind::Mbarrier, "is not initialised"),
        ("overwritten_mbarrier", 32, FailureKind::Mbarrier, "overwritten by a plain store"),
        ("twice_an_mbarrier", 32, FailureKind::Mbarrier, "is initialised again"),
        ("third_parity", 32, FailureKind::Mbarrier, "has no parity 2"),
        ("over_arrived", 32, FailureKind::Mbarrier, "more arrivals"),
        ("misaligned", 32, FailureKind::Bulk, "not a multiple of 16"),
        ("misaligned_word", 32, FailureKind::OutOfBounds, "of 4 bytes at a misaligned address"),
        ("past_the_buffer", 32, FailureKind::Bulk, "outside every buffer"),
        ("leaves_open", 32, FailureKind::Exit, "never waited for (M6)"),
        ("leaves_uncommitted", 32, FailureKind::Exit, "with an uncommitted bulk group (M6)"),
        ("leaves_a_load", 32, FailureKind::Exit, "no thread waited for (M6)"),
        ("too_much_shared", 32, FailureKind::Launch, "needs 16384 bytes"),
        ("deep_stack", 32, FailureKind::StackOverflow, "stack"),
    ];
    for (kernel, threads, kind, text) in cases {
        let failure = run(kernel, threads).expect_err(kernel);
        assert_eq!(failure.kind, kind, "{kernel}: {failure}");
        let report = failure.to_string();
        assert!(report.contains(text), "{kernel}: {report}");
        assert!(report.contains("faults.cu:"), "{kernel}: {report}");
    }
}

/// The place of a block may have more than the block was given.
#[test]
fn shared_memory_ends_where_the_launch_says() {
    let (mut world, mut lists) = prepare_as(Build::Checked, "past_shared", Spec::default(), 32);
    let program = compile(&source("faults.cu", &[]), Build::Checked);
    let mut larger = launch(&program, "empty_groups", 1, 32);
    (larger.shared_bytes, larger.args) = (2048, lists[0][0].args.clone());
    lists[0].insert(0, larger);
    let failure = world.run(lists).expect_err("word 128 of 128");
    assert_eq!(failure.kind, FailureKind::OutOfBounds, "{failure}");
    assert!(failure.message.contains("past the end of the block's shared memory"), "{failure}");
}

#[test]
fn empty_bulk_groups_may_stay() {
    run("empty_groups", 32).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_circle_is_reported_with_its_statement() {
    let (mut world, lists) = prepare("circle", Spec { ranks: 2, ..Spec::default() }, 32);
    let failure = world.run(lists).expect_err("nobody begins");
    assert_eq!(failure.kind, FailureKind::Deadlock);
    assert!(!failure.drained);
    let expected = "\
deadlock: no lane can run and no copy is under way
  rank 0 block 0: role 3 of pipeline 5 waits for kind 2 of channel 1, stripe 0, peer 1 \
(call 7, wants 1)
    warp 0 lanes 00000001: polls flag of rank 0 + 0 == 0x0 at faults.cu:26 (circle) \
[+5  await turn[peer]]
  rank 1 block 0: role 3 of pipeline 5 waits for kind 2 of channel 1, stripe 0, peer 0 \
(call 7, wants 1)
    warp 0 lanes 00000001: polls flag of rank 1 + 0 == 0x0 at faults.cu:26 (circle) \
[+5  await turn[peer]] (seed 1)";
    assert_eq!(failure.to_string(), expected);
    let site = failure.waits[1].site.expect("the kernel names its wait");
    assert_eq!((site.role, site.channel, site.kind, site.peer), (3, 1, 2, 0));
}

#[test]
fn bounded_waits_expire_in_virtual_time() {
    for kernel in ["bounded", "bounded_by_many"] {
        let (mut world, lists) = prepare(kernel, Spec { ranks: 2, ..Spec::default() }, 32);
        let results: Vec<_> = lists.iter().map(|list| list[0].args.clone()).collect();
        let failure = world.run(lists).expect_err("nobody writes the word");
        assert_eq!(failure.kind, FailureKind::Deadlock);
        assert!(failure.drained, "{kernel}: {failure}");
        for (rank, args) in results.iter().enumerate() {
            let at = u64::from_le_bytes(args[16..24].try_into().expect("a pointer"));
            assert_eq!(words(&world, ep_emu::Address(at), 1), [100 + rank as u32], "{kernel}");
        }
    }
}

#[test]
fn what_comes_when_others_give_up_was_waited_for_in_time() {
    for isolation in [None, Some(Duration::from_secs(30))] {
        let (mut world, lists) = prepare("given_up", Spec::default(), 64);
        let result = match isolation {
            None => world.run(lists),
            Some(limit) => world.run_isolated(lists, limit),
        };
        let failure = result.expect_err("nobody writes the first word");
        assert!(failure.drained, "{failure}");
        let met: Vec<_> = failure.waits.iter().map(|wait| (wait.warp, wait.met)).collect();
        assert_eq!(met, [(0, false), (1, true)], "{failure}");
    }
}

#[test]
fn crashes_and_hangs_end_only_their_worker() {
    let (mut world, lists) = prepare("null_write", Spec::default(), 32);
    let failure = world.run_isolated(lists, Duration::from_secs(30)).expect_err("a crash");
    assert_eq!(failure.kind, FailureKind::Crash);
    assert!(
        failure.message.contains("signal 11 ended the worker: rank 0 block 0 warp 0 lane 5"),
        "{failure}"
    );
    assert!(failure.message.contains("(null_write)"), "{failure}");

    // Before the memory of the machine is full.
    let (mut world, lists) = prepare("writes_on", Spec::default(), 32);
    let failure = world.run_isolated(lists, Duration::from_secs(30)).expect_err("a crash");
    assert_eq!(failure.kind, FailureKind::Crash);
    assert!(failure.message.contains("(writes_on)"), "{failure}");

    let (mut world, lists) = prepare("endless", Spec::default(), 32);
    let failure = world.run_isolated(lists, Duration::from_millis(300)).expect_err("a hang");
    assert_eq!(failure.kind, FailureKind::Hang);
    assert!(failure.message.contains("lane 7 at faults.cu"), "{failure}");
}

#[test]
fn the_sanitized_build_finds_what_the_others_cannot() {
    let cases = [
        ("past_an_array", FailureKind::OutOfBounds, "stack-buffer-overflow, a read of 4 bytes"),
        ("past_shared", FailureKind::OutOfBounds, "past shared memory of block slot 0 of rank 0"),
        ("shifts_too_far", FailureKind::Crash, "undefined behaviour: rank 0 block 0 warp 0 lane 5"),
    ];
    for (kernel, kind, text) in cases {
        let (mut world, lists) = prepare_as(Build::Sanitized, kernel, Spec::default(), 32);
        let failure = world.run(lists).expect_err(kernel);
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.message.contains(text), "{failure}");
        assert!(failure.message.contains(&format!("({kernel})")), "{failure}");
    }
    for seed in 1..4 {
        let spec = Spec { ranks: 2, seed, ..Spec::default() };
        let mut relay = Relay::new(spec, 9, Build::Sanitized, &[]);
        relay.run(2).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(relay.wrong_rows(), 0);
    }
}

#[test]
fn lanes_that_get_nothing_done_are_a_livelock() {
    let spec = Spec { max_steps: 20_000, ..Spec::default() };
    let (mut world, lists) = prepare("spins", spec, 32);
    let failure = world.run(lists).expect_err("it never ends");
    assert_eq!(failure.kind, FailureKind::Livelock);
}

#[test]
fn impossible_launches_are_refused() {
    let refused = |change: &dyn Fn(&mut Launch)| {
        let (mut world, mut lists) = prepare("circle", Spec::default(), 32);
        change(&mut lists[0][0]);
        let failure = world.run(lists).expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Launch);
        failure.message
    };
    assert!(refused(&|launch| launch.threads = 33).contains("33 threads"));
    assert!(refused(&|launch| launch.blocks = 0).contains("empty grid"));
    assert!(refused(&|launch| launch.blocks = 133).contains("of which 132 fit (M8)"));
    assert!(refused(&|launch| launch.args.truncate(8)).contains("8 bytes of arguments"));
    assert!(refused(&|launch| launch.shared_bytes = 1 << 20).contains("the maximum is 232448"));
}

fn relay_with(faults: Faults, seed: u64) -> (Result<RunStats, Failure>, usize) {
    let spec = Spec { ranks: 3, seed, faults, ..Spec::default() };
    let mut relay = Relay::new(spec, 9, Build::Plain, &[]);
    let result = relay.run(2);
    let wrong = relay.wrong_rows();
    (result, wrong)
}

#[test]
fn a_slow_rank_and_late_copies_change_nothing() {
    for seed in 1..12 {
        for faults in [
            Faults { slow_ranks: vec![1], ..Faults::default() },
            Faults { slow_ranks: vec![0, 2], ..Faults::default() },
            Faults { late_bulk: Some(2), ..Faults::default() },
        ] {
            let (result, wrong) = relay_with(faults, seed);
            result.unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(wrong, 0);
        }
    }
}

#[test]
fn a_dead_rank_and_stalled_copies_end_in_a_report() {
    for seed in 1..12 {
        let dead = Faults { dead_rank: Some((1, 400 * seed)), ..Faults::default() };
        let (result, _) = relay_with(dead, seed);
        let failure = result.expect_err("the others need it");
        assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
        let report = failure.to_string();
        assert!(report.contains("rank 1 block"), "{report}");
        assert!(report.contains("stopped by a fault"), "{report}");

        let stalled = Faults { stalled_bulk: Some((0, 300 * seed)), ..Faults::default() };
        let (result, _) = relay_with(stalled, seed);
        let failure = result.expect_err("its rows never arrive");
        assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
        assert!(failure.message.contains("stalled by a fault"), "{failure}");
    }
}
