//! Low latency over NVLink: slots with rows that their senders count and close, casts on the way, and two
//! phases, against what the declarations mean.

use ep_codegen::meaning::Drawn;
use ep_runtime::Pipeline;
use ep_runtime::device::HEADERS;
use ep_runtime::host::mutant::Mutant;
use ep_runtime::pipelines::{LowLatencyCombine, LowLatencyDispatch};

use super::meaning::held_by;
use super::run::Form;

type Change<'a, T> = &'a dyn Fn(T) -> T;

/// Calls by so many ranks with rows of so many elements.
fn judged(
    (ranks, hidden, seed): (i64, i64, u64),
    call: Change<'_, Drawn>,
    run: Change<'_, Form>,
) -> Result<(), String> {
    let all = [LowLatencyDispatch::ir(), LowLatencyCombine::ir()];
    let numbers = [
        ("ranks", ranks),
        ("hidden", hidden),
        ("max_tokens", 12),
        ("experts", 2 * ranks + 1),
        ("topk", 3),
    ];
    held_by(&all, &numbers, seed, call, run)
}

fn check(ranks: i64, hidden: i64, seeds: std::ops::Range<u64>, call: Change<'_, Drawn>) {
    for seed in seeds {
        let held = judged((ranks, hidden, seed), call, &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, hidden {hidden}, seed {seed}: {words}"));
    }
}

#[test]
fn rows_go_to_experts_and_come_back() {
    for ranks in [1, 2, 3, 5, 8] {
        check(ranks, 128, 0..3, &|drawn| drawn);
    }
}

#[test]
fn a_last_block_may_be_short() {
    check(2, 2880, 0..2, &|drawn| drawn);
}

#[test]
fn a_rank_may_be_left_out() {
    check(3, 144, 0..2, &|mut drawn| {
        drawn.ranks[1].alive = false;
        drawn
    });
}

/// Bugs of slots: what they change in their header, and the statement that is wrong then.
const BUGS: &str = "
== the receiver does not wait for the count
in ep/slot_rows.cuh
-             return seen == team_.epoch && value_of(found) != 0;
+             return true;

== a count is published before the rows
in ep/slot_rows.cuh
-             store_release_sys(closed, stamped(team_.epoch, count + 1));
+             store_relaxed_sys(closed, stamped(team_.epoch, count + 1));

== the slots of the call before are filled
in ep/slot_rows.cuh
-         const i64 slot = (set() * Slots::kKeys + key) * Slots::kArrivals + arrival;
+         const i64 slot = static_cast<i64>(key) * Slots::kArrivals + arrival;

== warps are not waited for before a close
in ep/slot_rows.cuh
-         if (team_.leader()) before = fetch_add_acq_rel_gpu(done, 1);
+         if (team_.leader()) before = fetch_add_relaxed_gpu(done, 1);

== a flag does not release the row
in ep/slot_rows.cuh
-                 store_release_sys(End::flag(End::window_of(peer_), key_), stamped(team_.epoch, 1));
+                 store_relaxed_sys(End::flag(End::window_of(peer_), key_), stamped(team_.epoch, 1));

== a gather does not wait for its slots
in ep/slot_rows.cuh
-             return found == come || (!all && is_over(source));
+             return true;

== what was taken counts on in the next call
in ep/slot_rows.cuh
-             store_relaxed_gpu(taken + i, 0u);

== a scale is that of one lane
in ep/cast.cuh
-         peak = greater_magnitude(peak, float_of(__shfl_xor_sync(kAllLanes, bits_of(peak), step)));

== a phase ends the call
in ep/sync.cuh
-     if (call.stopped || !call.ends) return;
+     if (call.stopped) return;
";

#[test]
fn planted_bugs_are_found() {
    if crate::host::programs().is_none() {
        return;
    }
    for bug in Mutant::parse(BUGS).expect("the list is read") {
        let (_, text) = HEADERS.iter().find(|(name, _)| *name == bug.file).expect("a header");
        let once = bug.edits.iter().all(|(old, _)| text.matches(old.as_str()).count() == 1);
        assert!(once, "the text of `{}` has moved", bug.name);
        // Whichever payload has scales.
        let run = |form: Form| form.planted(&bug);
        let mut seeds = (0..4).map(|seed| judged((2, 144, seed), &|drawn| drawn, &run));
        let words = seeds.find_map(Result::err);
        let words = words.unwrap_or_else(|| panic!("nothing finds that {}", bug.name));
        assert!(!words.contains("does not compile"), "{}: {words}", bug.name);
    }
}
