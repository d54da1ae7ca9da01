//! A dispatch in one launch: its kernel, with the rule and without, leaves what its declaration means.

use std::cell::Cell;

use ep_codegen::schedule::{RuleSet, Ways};
use ep_runtime::Pipeline;
use ep_runtime::pipelines::DecodeDispatch;

use super::meaning::held_by;

/// Calls of 1 to 5 ranks, each rank with a number of tokens of its own.
const SEEDS: u64 = 10;

#[test]
fn a_dispatch_in_one_launch_leaves_what_it_means() {
    if crate::host::programs().is_none() {
        return;
    }
    let (ir, ruled) = (DecodeDispatch::ir(), Cell::new(0));
    for seed in 0..SEEDS {
        let ranks = 1 + seed as i64 % 5;
        // What the window of a test has room for; more tokens than a word has bits, with few ranks.
        let tokens = (1 + seed as i64 * 17 % 70).min(160 / ranks);
        let numbers = [
            ("ranks", ranks),
            ("max_tokens", tokens),
            ("hidden", 64),
            ("experts", 60),
            ("topk", 1 + seed as i64 % 7),
        ];
        let held = held_by(
            std::slice::from_ref(&ir),
            &numbers,
            seed,
            &|drawn| {
                let ways = Ways::of(&drawn.ir, RuleSet::All);
                assert!(!ways.is_composed("Dispatch"), "the rule is for it");
                drawn
            },
            &|form| {
                // Where weights are sent and not received, the plan asks for a place for them.
                ruled.set(ruled.get() + u64::from(!form.is_refused()));
                form
            },
        );
        if let Err(words) = held {
            panic!("seed {seed}, {numbers:?}: {words}");
        }
    }
    assert!(ruled.get() >= SEEDS / 2, "the rule took {} of {SEEDS} calls", ruled.get());
}
