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
    for (seed, (ranks, tokens, hidden)) in (0..).zip(shapes) {
        let held = back((ranks, tokens, hidden, seed), &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

/// Bugs of the way back: what they change in its header.
const BUGS: &str = "
== a quarter is told without a release
in ep/way_back.cuh
- store_release_sys(words + quarter + team_.lane, stamped(team_.epoch, 1));
+ store_relaxed_sys(words + quarter + team_.lane, stamped(team_.epoch, 1));

== a quarter is told before all lanes have stored
in ep/way_back.cuh
-             __syncwarp();
-             if (team_.lane < quarters) {
+             if (team_.lane < quarters) {

== one quarter too few is told
in ep/way_back.cuh
- if (team_.lane < quarters) {
+ if (team_.lane + 1 < quarters) {

== quarters are seen without an acquire
in ep/way_back.cuh
- load_acquire_sys(words + i);
+ load_relaxed_sys(words + i);

== the words of the last quarter are waited for alone
in ep/way_back.cuh
- come = come && found == stamped(team_.epoch, 1);
+ come = found == stamped(team_.epoch, 1);

== nobody waits for quarters
in ep/way_back.cuh
-                 return come;
+                 return true;

== numbers go with the second quarter
in ep/way_back.cuh
- quarter == 0 && i < kFloats
+ quarter != 0 && i < kFloats

== rows are those of the source before
in ep/way_back.cuh
- through_[g] <= number;
+ through_[g] < number;

== the last part of a token is left out
in ep/way_back.cuh
-         if (held != nullptr) body(held, nullptr);

== the second of two parts is left out
in ep/way_back.cuh
-                 add(sum, second);

== a token is added up by one warp too many
in ep/way_back.cuh
- if (quarter_ != 0) return;
+ if (quarter_ == 0) return;
";

/// Bugs of the way back that show when a rank is calls ahead of those that it takes nothing from.
const BUGS_AHEAD: &str = "
== nobody waits for the slots of the call before the last
in ep/way_back.cuh
-                 if (!is_free(source)) return;
-                 Cut::write(out, quads, base, end);
+                 Cut::write(out, quads, base, end);
and
-             if (!is_free(source)) return;
-             if constexpr (kFloats > 0) {
+             if constexpr (kFloats > 0) {

== warps that have read are counted without an order
in ep/slot_rows.cuh
-         if (team_.leader()) before = fetch_add_acq_rel_gpu(done, 1);
+         if (team_.leader()) before = fetch_add_relaxed_gpu(done, 1);
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
}
