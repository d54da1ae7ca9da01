//! Dispatches in one launch, by the calls of a buffer: rows, counts and tables against the oracle, and the
//! cached dispatches and combines that follow those tables.

use ep_runtime::buffer::{Payload, Via};
use ep_runtime::error::CallError;
use ep_runtime::host::{Build, FailureKind, Faults, HostOptions};

use crate::host::{Shape, check, good, on_host};
use crate::usual;

fn one_launch(ranks: usize, hidden: usize, topk: usize, experts: usize) -> Shape {
    let mut shape = Shape::new(ranks, Via::Direct, hidden, topk, experts);
    shape.options.one_launch = Some(true);
    shape
}

/// Experts that no number of ranks divides.
fn uneven() -> Shape {
    one_launch(4, 128, 4, 10)
}

#[test]
fn one_launch_is_right_under_every_schedule() {
    check(&uneven(), Build::Plain, 0..12);
}

/// Several words of bits for each rank, and several tokens for a warp.
#[test]
fn warps_that_send_many_tokens_are_right_at_length() {
    let mut long = one_launch(3, 64, 1, 5);
    long.options.tokens = 200;
    check(&long, Build::Plain, 0..3);
    check(&long.vector(), Build::Plain, 0..1);
}

#[test]
fn rows_of_models_are_right_at_length() {
    check(&one_launch(2, 2048, 16, 33).payload(Payload::Fp8), Build::Plain, 0..3);
    check(&one_launch(3, 2880, 5, 32).payload(Payload::Fp8Packed), Build::Plain, 0..3);
    check(&one_launch(2, 7168, 8, 19).vector(), Build::Plain, 0..2);
}

/// More ranks than a warp has lanes; and one, without weights.
#[test]
fn any_number_of_ranks_is_served_at_length() {
    let mut crowd = one_launch(34, 64, 2, 41);
    crowd.options.tokens = 3;
    for seed in usual::some(0..2, 2) {
        let case = crowd.case(seed);
        on_host(&crowd, case, HostOptions::new(34), |test, _| good(seed, test.check()));
    }
    let mut alone = one_launch(1, 128, 3, 5);
    alone.options.weights = false;
    check(&alone, Build::Plain, 0..3);
}

#[test]
fn no_access_of_one_launch_races_with_another_at_length() {
    check(&uneven(), Build::Checked, 0..2);
    check(&uneven().payload(Payload::Fp8).vector(), Build::Checked, 0..1);
}

/// Slow ranks and late copies change nothing but the order.
#[test]
fn slow_parts_change_nothing_at_length() {
    let slow = Faults { slow_ranks: vec![1], ..Faults::default() };
    let ahead = Faults { slow_ranks: vec![0, 2, 3], ..Faults::default() };
    let late = Faults { late_bulk: Some(0), ..Faults::default() };
    for faults in [slow, ahead, late] {
        let mut options = HostOptions::new(4);
        options.spec.faults = faults;
        let mut case = uneven().case(5);
        case.options.live = 5;
        on_host(&uneven(), case, options, |test, _| {
            good(5, test.check_back_to_back());
            good(5, test.check());
        });
    }
}

/// At whatever step a rank ends, the others leave their kernel and say whom they waited for.
#[test]
fn a_rank_that_ends_is_named() {
    for (dead, step) in usual::some([(0, 1), (1, 60), (2, 400), (3, 900)], 1) {
        let mut case = uneven().case(3);
        case.tokens = vec![12; 4];
        let mut options = HostOptions::new(4);
        options.spec.faults.dead_rank = Some((dead, step));
        on_host(&uneven(), case, options, |test, backend| {
            let error = test.check().expect_err("a rank is dead");
            let CallError::Timeout(timeouts) = &error else { panic!("{error}") };
            let waits_on_dead = |edge: &(usize, usize)| edge.1 == dead as usize;
            assert!(timeouts.edges().iter().any(waits_on_dead), "{error}");
            let failure = backend.failure().expect("the run failed");
            assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
            assert!(failure.drained, "{failure}");
        });
    }
}

/// Warps publish their rows before they take the rows of others, with one token each and with several.
#[test]
fn rows_may_be_published_early_at_length() {
    let early = |mut shape: Shape, tokens: usize| {
        shape.options.tunes.decode_dispatch.early = Some(1);
        shape.options.tokens = tokens;
        shape
    };
    check(&early(uneven(), 12), Build::Plain, 0..6);
    check(&early(one_launch(3, 64, 1, 5).payload(Payload::Fp8), 200), Build::Plain, 0..2);
    check(&early(uneven().vector(), 12), Build::Checked, 0..1);
}

/// Rows come back by stores into slots of their tokens, behind dispatches of either kind.
#[test]
fn a_combine_by_stores_is_right_behind_any_dispatch_at_length() {
    for one_launch in [true, false] {
        let mut shape = uneven();
        (shape.options.one_launch, shape.options.push_combine) = (Some(one_launch), Some(true));
        shape.options.biases = 2;
        check(&shape, Build::Plain, 0..4);
        check(&shape.payload(Payload::Fp8), Build::Checked, 0..1);
    }
}

/// Counts that were exchanged before still have their own dispatch, in the same buffer.
#[test]
fn counts_may_come_first() {
    let case = uneven().case(2);
    on_host(&uneven(), case, HostOptions::new(4), |test, _| {
        assert!(test.buffer().dispatches_in_one_launch());
        good(2, test.check_counts());
        good(2, test.check());
    });
}
