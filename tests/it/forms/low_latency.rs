//! Low latency within and between nodes: slots with rows that their senders count and close, casts on the way,
//! and two phases, against what the declarations mean.

use ep_codegen::meaning::Drawn;
use ep_runtime::Pipeline;
use ep_runtime::ir::Transport;
use ep_runtime::pipelines::{LowLatencyCombine, LowLatencyDispatch, MergeCombine, PackedDispatch};

use super::meaning::{held_behind, held_by, only};
use super::planted::all_are_found;
use super::run::Form;
use crate::usual;

type Change<'a, T> = &'a dyn Fn(T) -> T;

/// Calls by so many ranks of one node with rows of so many elements.
fn judged(
    (ranks, hidden, seed): (i64, i64, u64),
    call: Change<'_, Drawn>,
    run: Change<'_, Form>,
) -> Result<(), String> {
    between((1, ranks, hidden), seed, call, run)
}

/// Calls by so many nodes of so many ranks each, of which rows go in runs; `once.rs` has those that are filled once.
fn between(
    (nodes, local_ranks, hidden): (i64, i64, i64),
    seed: u64,
    call: Change<'_, Drawn>,
    run: Change<'_, Form>,
) -> Result<(), String> {
    let all = [LowLatencyDispatch::ir(), LowLatencyCombine::ir()];
    let ranks = nodes * local_ranks;
    let numbers = [
        ("ranks", ranks),
        ("nodes", nodes),
        ("hidden", hidden),
        ("max_tokens", 12),
        ("experts", 2 * ranks + 1),
        ("topk", 3),
        ("once", 2048),
    ];
    held_by(&all, &numbers, seed, call, run)
}

fn check(ranks: i64, hidden: i64, seeds: std::ops::Range<u64>, call: Change<'_, Drawn>) {
    for seed in usual::some(seeds, 3) {
        let held = judged((ranks, hidden, seed), call, &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, hidden {hidden}, seed {seed}: {words}"));
    }
}

#[test]
fn rows_go_to_experts_and_come_back() {
    for ranks in usual::some([3, 1, 2, 5, 8], 3) {
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

/// Near ranks by stores, far ones over a network that reorders.
#[test]
fn rows_cross_nodes_and_come_back() {
    let shapes = [(2, 2, 0), (2, 2, 1), (2, 4, 2), (3, 2, 3), (4, 1, 4)];
    for (nodes, local_ranks, seed) in usual::some(shapes, 3) {
        let held = between((nodes, local_ranks, 128), seed, &|drawn| drawn, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}, seed {seed}: {words}"));
    }
}

/// Rows go to near ranks by stores. Kernels themselves send rows to far ranks through a network card.
#[test]
fn rows_cross_nodes_through_cards() {
    let over_cards = |mut drawn: Drawn| {
        drawn.config.carrier = Some(Transport::Ibgda);
        drawn
    };
    for (nodes, local_ranks, seed) in usual::some([(2, 2, 0), (3, 2, 1), (4, 1, 2)], 3) {
        let held = between((nodes, local_ranks, 128), seed, &over_cards, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}, seed {seed}: {words}"));
    }
}

#[test]
fn a_far_rank_may_be_left_out() {
    for seed in usual::some(0..2, 2) {
        let held = between(
            (2, 2, 144),
            seed,
            &|mut drawn| {
                drawn.ranks[2].alive = false;
                drawn
            },
            &|form| form,
        );
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Bugs that show when a rank is calls ahead.
const BUGS_AHEAD: &str = "
== far slots are filled before they are read
in ep/net_slot_rows.cuh
-         if (!is_near(peer)) return counter(peer, kReleasedNumber);
+         if (!is_near(peer)) return nullptr;

== calls are not told apart
in ep/net_slot_rows.cuh
-             *told = team_.epoch;
";

/// A sender that nobody waits for fills the slots of later calls, unless it waits itself.
#[test]
fn far_slots_are_filled_when_they_are_read() {
    if crate::host::programs().is_none() {
        return;
    }
    let numbers = [("ranks", 4), ("nodes", 4), ("hidden", 128), ("max_tokens", 12), ("experts", 9)];
    let numbers = [&numbers[..], &[("topk", 2)]].concat();
    let (before, all) = ([LowLatencyDispatch::ir()], [LowLatencyCombine::ir()]);
    let held = |seed, run: &dyn Fn(Form) -> Form| {
        held_behind(&before, &all, &numbers, seed, &|drawn| drawn, run)
    };
    let good = held(0, &|form| form.calls(6));
    good.unwrap_or_else(|words| panic!("{words}"));
    all_are_found(BUGS_AHEAD, 4, |_, seed, planted| held(seed, &|form| planted(form.calls(6))));
}

/// Bugs of slots: what they change in their header, and the statement that is wrong then.
const BUGS: &str = "
== the receiver does not wait for the count
in ep/slot_rows.cuh
-             return times_.found(source, key < 0 || come != 0 || End::looks_closed(key, seen));
+             return true;

== a count is published before the rows
in ep/slot_rows.cuh
-         __threadfence_system();
+         __threadfence();

== the slots of the call before are filled
in ep/slot_rows.cuh
-         const i64 slot = (set() * kKeys + key) * Slots::kArrivals + arrival;
+         const i64 slot = static_cast<i64>(key) * Slots::kArrivals + arrival;

== warps are not waited for before a close
in ep/slot_rows.cuh
-         if (team_.leader()) before = fetch_add_acq_rel_gpu(done, 1);
+         if (team_.leader()) before = fetch_add_relaxed_gpu(done, 1);

== a flag does not release the row
in ep/slot_rows.cuh
-             store_release_sys(flag(window, key, slice), stamped(team_.epoch, 1));
+             store_relaxed_sys(flag(window, key, slice), stamped(team_.epoch, 1));

== a gather does not wait for its slots
in ep/slot_rows.cuh
-             const bool here = key < 0 || End::looks_filled(key, slice, seen) || (!all && is_over(source));
+             const bool here = true;

== what was taken counts on in the next call
in ep/slot_rows.cuh
-             if (some) store_relaxed_gpu(taken + i, 0u);

== a scale is that of one lane
in ep/cast.cuh
-         peak = greater_magnitude(peak, float_of(__shfl_xor_sync(kAllLanes, bits_of(peak), step)));

== the least of a block is that of one lane
in ep/cast.cuh
-         least = lesser_magnitude(least, float_of(__shfl_xor_sync(kAllLanes, bits_of(least), step)));

== upper bits of a code stand where those of another one do
in ep/cast.cuh
-     return upper | code >> 8 << 2 * (i & 3);
+     return upper | code >> 8 << 2 * (i & 1);

== a phase ends the call
in ep/sync.cuh
- if (!call.stopped && call.ends) store_relaxed_gpu(
+ if (!call.stopped) store_relaxed_gpu(
";

/// Rows that cross once for each rank, and their sums.
fn per_rank(
    (nodes, local_ranks, tokens): (i64, i64, i64),
    seed: u64,
    call: Change<'_, Drawn>,
    run: Change<'_, Form>,
) -> Result<(), String> {
    let all = [PackedDispatch::ir(), MergeCombine::ir()].map(|it| only(it, "via", "Slots"));
    let ranks = nodes * local_ranks;
    let numbers = [
        ("ranks", ranks),
        ("nodes", nodes),
        ("hidden", 144),
        ("max_tokens", tokens),
        ("experts", 2 * ranks + 1),
        ("topk", 1 + seed as i64 * 3 % 7),
        ("once", 2048),
    ];
    held_by(&all, &numbers, seed, call, run)
}

/// Fewer rows than a run has, whole runs and parts of them.
#[test]
fn rows_cross_once_for_each_rank_and_come_back_as_sums() {
    let shapes = [(2, 1, 19), (2, 2, 8), (1, 2, 5), (3, 1, 12), (2, 2, 17)];
    for (seed, shape) in usual::some((0..).zip(shapes), 3) {
        for carrier in [Transport::Rdma, Transport::Ibgda] {
            let over = |mut drawn: Drawn| {
                drawn.config.carrier = (shape.0 > 1).then_some(carrier);
                drawn
            };
            let held = per_rank(shape, seed, &over, &|form| form);
            held.unwrap_or_else(|words| panic!("{shape:?}, seed {seed}: {words}"));
        }
    }
}

/// Bugs of slots that leave in runs.
const BUGS_OF_RUNS: &str = "
== a group leaves before all of its slots are filled
in ep/net_slot_rows.cuh
-         return is_last ? slots : 0;
+         return first == 0 || is_last ? slots : 0;

== the warp that sends a group has not seen its slots
in ep/net_slot_rows.cuh
-         const bool is_last = fetch_add_acq_rel_gpu(word, own) + own == ~0u >> (32 - slots);
+         const bool is_last = fetch_add_relaxed_gpu(word, own) + own == ~0u >> (32 - slots);

== a group that was sent begins filled
in ep/net_slot_rows.cuh
-         if (is_last) store_relaxed_gpu(word, 0u);

== the arrivals behind the last group stay
in ep/net_slot_rows.cuh
-             put_run(peer, line * kLine + first, some && !drops ? rest : 0);

== the groups that are not full stay
in ep/net_slot_rows.cuh
-                 if (!some || !joins(peer)) left = 0;
+                 left = 0;

== a group that is not full begins filled
in ep/net_slot_rows.cuh
-                 if (left != 0) store_relaxed_gpu(word, 0u);
";

#[test]
fn planted_bugs_of_runs_are_found_at_length() {
    all_are_found(BUGS_OF_RUNS, 6, |_, seed, planted| {
        per_rank((3, 1, 19), seed, &|drawn| drawn, planted)
    });
}

/// Bugs of slots for ranks of other nodes.
const FAR_BUGS: &str = "
== a far sender is not waited for
in ep/net_slot_rows.cuh
-         return reached(seen, team_.epoch);
+         return true;

== a far sender says that it has closed before its counts are on their way
in ep/net_slot_rows.cuh
-             if constexpr (Slots::kCounts) {
-                 const u64 from = Slots::kCountsOut + counts(far_of(peer, own()));
+             tell_call(peer, kClosedNumber, Slots::kClosedTold, some);
+             if constexpr (Slots::kCounts) {
+                 const u64 from = Slots::kCountsOut + counts(far_of(peer, own()));
and
-             // M1: every warp's puts come before it, through the counter; the receiver acquires.
-             tell_call(peer, kClosedNumber, Slots::kClosedTold, some);

== the counts of the call before are overwritten
in ep/net_slot_rows.cuh
-         return 4 * static_cast<u64>((near_.set() * kFar + far) * Slots::kShared);
+         return 4 * static_cast<u64>(far * Slots::kShared);

== a slot lands where that of another rank belongs
in ep/net_slot_rows.cuh
-         const u64 to = Slots::kInbox + far_place(far_of(own(), peer), first);
+         const u64 to = Slots::kInbox + far_place(far_of(peer, own()), first);

== the far slots of the call before are filled
in ep/net_slot_rows.cuh
-         const i64 before = (near_.set() * kFar + far) * (i64{kEach} * Slots::kArrivals);
+         const i64 before = far * (i64{kEach} * Slots::kArrivals);

== a far slot does not say that it was filled
in ep/net_slot_rows.cuh
-         queue_.put(rank_of(peer), to, from, count * Slots::kFarBytes);
+         queue_.put(rank_of(peer), to, from, count * Slots::kFarBytes - (count != 0 ? 16 : 0));

== every key of a far sender has the count of its first one
in ep/net_slot_rows.cuh
-             return reinterpret_cast<const u32*>(net_->data + at)[number] + 1;
+             return reinterpret_cast<const u32*>(net_->data + at)[0 * number] + 1;

== what a far sender has closed is not acquired
in ep/net_slot_rows.cuh
-         load_acquire_sys(counter(source, kClosedNumber));
-         if constexpr (Slots::kCounts) {
+         if constexpr (Slots::kCounts) {
";

#[test]
fn planted_bugs_are_found_at_length() {
    // Whichever payload has scales, and whichever rows come back in fewer bits.
    for (list, nodes) in [(BUGS, 1), (FAR_BUGS, 2)] {
        all_are_found(list, 24, |_, seed, planted| {
            between((nodes, 2, 144), seed, &|drawn| drawn, planted)
        });
    }
}
