//! Low latency over NVLink: slots with rows that their senders count and close, casts on the way, and two
//! phases, against what the declarations mean.

use ep_runtime::Pipeline;
use ep_runtime::pipelines::{LowLatencyCombine, LowLatencyDispatch};

use super::meaning::held;

/// Calls by so many ranks with rows of so many elements.
fn check(ranks: i64, hidden: i64, seeds: std::ops::Range<u64>) {
    if crate::host::programs().is_none() {
        return;
    }
    let all = [LowLatencyDispatch::ir(), LowLatencyCombine::ir()];
    let numbers = [
        ("ranks", ranks),
        ("hidden", hidden),
        ("max_tokens", 12),
        ("experts", 2 * ranks + 1),
        ("topk", 3),
    ];
    for seed in seeds {
        let held = held(&all, &numbers, seed);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, hidden {hidden}, seed {seed}: {words}"));
    }
}

#[test]
fn rows_go_to_experts_and_come_back() {
    for ranks in [1, 2, 3, 5, 8] {
        check(ranks, 128, 0..3);
    }
}

#[test]
fn a_last_block_may_be_short() {
    check(2, 2880, 0..3);
}
