//! A dispatch in one launch, and the way back of its rows: their kernels, with the rules and without, leave
//! what the declarations mean.

use std::cell::Cell;

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::{RuleSet, Ways};
use ep_runtime::Pipeline;
use ep_runtime::pipelines::{DecodeCombine, DecodeDispatch};

use super::meaning::held_by;
use super::planted::all_are_found;
use super::run::Form;
use crate::by_commit;

/// Calls of 1 to 5 ranks, each rank with a number of tokens of its own.
const SEEDS: u64 = 10;

#[test]
fn a_dispatch_in_one_launch_leaves_what_it_means() {
    if crate::host::programs().is_none() {
        return;
    }
    let (ir, ruled) = (DecodeDispatch::ir(), Cell::new(0));
    let mut calls = 0;
    for seed in by_commit::some(0..SEEDS, 2) {
        calls += 1;
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
    assert!(ruled.get() >= calls / 2, "the rule took {} of {calls} calls", ruled.get());
}

/// A dispatch and its combine with so many ranks, tokens and values in a row.
fn back(
    (ranks, tokens, hidden, seed): (i64, i64, i64, u64),
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let numbers = [
        ("ranks", ranks),
        ("max_tokens", tokens),
        ("hidden", hidden),
        ("experts", 2 * ranks + 1),
        ("topk", 1 + seed as i64 % 5),
    ];
    let ruled = |drawn: Drawn| {
        let ways = Ways::of(&drawn.ir, RuleSet::All);
        assert!(
            drawn.ir.roles.iter().all(|role| !ways.is_composed(&role.name)),
            "rules are for it"
        );
        drawn
    };
    held_by(&[DecodeDispatch::ir(), DecodeCombine::ir()], &numbers, seed, &ruled, run)
}

/// Quarters of whole steps, short ones and empty ones; more rows than warps, and fewer.
#[test]
fn rows_come_back_to_their_tokens() {
    let shapes = [
        (2, 3, 4240),
        (3, 3, 2880),
        (4, 12, 128),
        (1, 9, 16),
        (5, 2, 2064),
        (2, 60, 64),
        (36, 1, 32),
    ];
    for (seed, (ranks, tokens, hidden)) in by_commit::some((0..).zip(shapes), 3) {
        let held = back((ranks, tokens, hidden, seed), &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

/// Bugs of the way back: what they change in its header.
const BUGS: &str = "
== a quarter is told without a release
in ep/way_back.cuh
- store_release_sys(word_, stamped(team_.epoch, 1));
+ store_relaxed_sys(word_, stamped(team_.epoch, 1));

== a quarter is told before all lanes have stored
in ep/way_back.cuh
-     __device__ __forceinline__ void tell() {
-         __syncwarp();
+     __device__ __forceinline__ void tell() {

== one quarter too few is told
in ep/way_back.cuh
- if (team_.lane / quarters == owed_) word_
+ if (team_.lane / quarters == owed_ && team_.lane % quarters + 1 < quarters) word_

== quarters are seen without an acquire
in ep/way_back.cuh
- found = load_acquire_sys(word);
+ found = load_relaxed_sys(word);

== nobody waits for quarters
in ep/way_back.cuh
- return seen == team_.epoch && value_of(found) != 0;
+ return true;

== numbers go with the second quarter
in ep/way_back.cuh
- if (quarter == 0 && at < kFloats) numbers[at] = held[i];
+ if (quarter != 0 && at < kFloats) numbers[at] = held[i];

== rows are those of the source before
in ep/way_back.cuh
- totals_upto<kPeers>(through_, number);
+ totals_upto<kPeers>(through_, number - 1);

== a row of this rank is taken for the one before it
in ep/way_back.cuh
- static_cast<u32>(row) + 2
+ static_cast<u32>(row) + 1

== rows of this rank are told by one quarter
in ep/way_back.cuh
- for (int i = 0; i < kQuarters; ++i) {
-                 store_relaxed_sys(words + i,
+ for (int i = 0; i < 1; ++i) {
+                 store_relaxed_sys(words + i,

== the third part of a token is left out
in ep/way_back.cuh
- for (int n = 2; n < parts_; ++n) {
+ for (int n = 3; n < parts_; ++n) {

== the second of two parts is left out
in ep/way_back.cuh
-                 add_bf16(sum[i], second[i]);

== a token is added up by one warp too many
in ep/way_back.cuh
- if (quarter_ != 0) return;
+ if (quarter_ == 0) return;
";

/// A bug that shows where a warp has several quarters of a row.
const BUG_OF_QUARTERS: &str = "
== the words of the first quarter are waited for alone
in ep/way_back.cuh
- const bool used = key >= 0 && quarter < quarters_;
+ const bool used = key >= 0 && quarter == 0;
";

/// Bugs of the way back that show when a rank is calls ahead of those that it takes nothing from.
const BUGS_AHEAD: &str = "
== nobody waits for the slots of the call before the last
in ep/way_back.cuh
- return reached(seen, want);
+ return true;

== slots are offered before they are read
in ep/way_back.cuh
- store_release_sys(released + group.rank, epoch);
+ store_release_sys(released + group.rank, epoch + 1);

== slots are offered without a release
in ep/way_back.cuh
- store_release_sys(released + group.rank, epoch);
+ store_relaxed_sys(released + group.rank, epoch);

== an offer of slots is seen without an acquire
in ep/way_back.cuh
- seen = load_acquire_sys(End::released(peer));
+ seen = load_relaxed_sys(End::released(peer));
";

#[test]
fn slots_are_free_before_they_are_filled_again() {
    let ahead =
        |seed, run: &dyn Fn(Form) -> Form| back((4, 2, 128, seed), &|form| run(form.calls(6)));
    for seed in 0..2 {
        ahead(seed, &|form| form).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    all_are_found(BUGS_AHEAD, 6, |_, seed, planted| ahead(seed, planted));
}

#[test]
fn planted_bugs_of_the_way_back_are_found() {
    all_are_found(BUGS, 6, |_, seed, planted| back((3, 2, 4240, seed), planted));
    all_are_found(BUG_OF_QUARTERS, 2, |_, seed, planted| back((2, 60, 64, seed), planted));
}
