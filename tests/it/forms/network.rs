//! Rings over a network: the two hops of a dispatch and a combine, and rings of one's own, in an emulated
//! network that reorders what it can, against what the declarations mean.

use std::time::Duration;

use ep_codegen::meaning::Drawn;
use ep_runtime::Pipeline;
use ep_runtime::ir::Transport;
use ep_runtime::net::ModelOptions;
use ep_runtime::pipelines::{
    LowLatencyCombine, LowLatencyDispatch, NodeCombine, NodeDispatch, NodeLayout,
};

use super::meaning::{held_behind, held_by};
use super::planted::all_are_found;
use super::run::{Form, accepted};
use crate::usual;

/// Dispatch and combine on so many nodes of so many ranks, behind the layout of the same tokens.
fn judged(
    (nodes, local_ranks, seed): (i64, i64, u64),
    call: &dyn Fn(Drawn) -> Drawn,
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let before = [NodeLayout::ir()];
    let all = [NodeDispatch::ir(), NodeCombine::ir()];
    let ranks = nodes * local_ranks;
    let numbers = [
        ("nodes", nodes),
        ("local_ranks", local_ranks),
        ("hidden", 48),
        ("experts", 2 * ranks + 1),
        ("topk", 3),
        ("stripes", 4),
    ];
    held_behind(&before, &all, &numbers, seed, call, run)
}

/// Rows to every rank: by stores to those of the node, over the network to all others.
const SPREAD: &str = "
    shape { nodes: 2..=4, local_ranks: 1..=4, hidden: 8..=64, stripes: 1..=4, let ranks = nodes * local_ranks }
    size tokens;
    input x: bf16[tokens, hidden];
    output out: bf16[ranks * 64, hidden];
    table head: i32[tokens, ranks], counts: i32[ranks, stripes];
    message Token { row x: bf16[hidden], src: i32 }
    channel ring: ring<Token> over nvlink | rdma from Send to Recv per all {
        depth: 4, chunk: 2, header: [first, count],
    };
    role Send[peer] on even blocks {
        announce ring[peer] { first: peer, count: sum(t in stripe: 1) };
        for t in stripe {
            push ring[peer] { x: x[t], src: t };
            record head[t, peer] = ring[peer].position;
        }
    }
    role Recv on odd blocks, warps shared by stripe {
        for source in ranks {
            record counts[source, stripe] = ring[source].count + ring[source].first;
        }
        for m in ring {
            store out[m.source * 64 + m.src] = m.x;
        }
    }";

/// Rows along the rail, each of which all warps of the receiving rank read, and one takes.
const FAN: &str = "
    shape { nodes: 2..=4, local_ranks: 1..=4, hidden: 8..=64, stripes: 1..=4, let ranks = nodes * local_ranks }
    size tokens;
    input x: bf16[tokens, hidden];
    output out: bf16[nodes * 64, hidden];
    message Token { row x: bf16[hidden], src: i32 }
    channel rail: ring<Token> over rdma from Send to Take per rail {
        depth: 4, chunk: 2, header: [count],
    };
    role Send on even blocks, warps shared by stripe {
        for node in nodes {
            announce rail[node] { count: sum(t in stripe: 1) };
        }
        for t in stripe {
            for node in nodes {
                push rail[node] { x: x[t], src: t };
            }
        }
    }
    role Take[peer in local] on odd blocks, 4 warps {
        for m in rail where m.src % local_ranks == peer {
            store out[m.source * 64 + m.src] = m.x;
        }
    }";

/// A declaration with rings of its own, on so many nodes of so many ranks.
fn own(source: &str, shape: (i64, i64, u64), run: &dyn Fn(Form) -> Form) -> Result<(), String> {
    let (nodes, local_ranks, seed) = shape;
    let all = [accepted(source)?];
    let numbers = [("nodes", nodes), ("local_ranks", local_ranks), ("hidden", 24), ("stripes", 2)];
    held_by(&all, &numbers, seed, &|drawn| drawn, run)
}

#[test]
fn rings_reach_near_and_far_peers() {
    for source in [SPREAD, FAN] {
        for shape in usual::some([(2, 2, 1), (3, 1, 2), (2, 4, 3)], 3) {
            let held = own(source, shape, &|form| form);
            held.unwrap_or_else(|words| panic!("{shape:?}: {words}"));
        }
    }
}

/// Fewer slots than rows, and a slow wire that keeps order.
#[test]
fn a_slow_wire_changes_nothing() {
    let latency = Duration::from_micros(300);
    let slow =
        ModelOptions { latency, bytes_per_us: 50, reorder: false, ..ModelOptions::default() };
    let held = own(FAN, (2, 2, 4), &|form| form.over(&slow));
    held.unwrap_or_else(|words| panic!("{words}"));
}

#[test]
fn a_dead_link_is_named() {
    if crate::host::programs().is_none() {
        return;
    }
    let dead = ModelOptions { dead_links: vec![(0, 2)], ..ModelOptions::default() };
    let words = own(FAN, (2, 2, 1), &|form| form.over(&dead)).expect_err("nothing comes of rank 0");
    assert!(words.contains("rank 2") && words.contains("rank 0"), "{words}");
    assert!(words.contains("waits for rank 0"), "{words}");
}

/// In every pipeline between nodes, the error names both ranks of a dead link: the one that waits, and the one that it
/// waits for.
#[test]
fn every_pipeline_names_a_dead_link() {
    if crate::host::programs().is_none() {
        return;
    }
    let two_hops = [NodeLayout::ir(), NodeDispatch::ir(), NodeCombine::ir()];
    let low_latency = [LowLatencyDispatch::ir(), LowLatencyCombine::ir()];
    let numbers = [("nodes", 2), ("local_ranks", 2), ("ranks", 4), ("hidden", 128), ("stripes", 4)];
    let numbers = [&numbers[..], &[("max_tokens", 12), ("experts", 9), ("topk", 3)]].concat();
    let dead = ModelOptions { dead_links: vec![(0, 2)], ..ModelOptions::default() };
    let (hops, slots) = (&two_hops[..], &low_latency[..]);
    let all = [(hops, 0), (hops, 1), (hops, 2), (slots, 0), (slots, 1)];
    for (all, number) in usual::some(all, 3) {
        let (before, own) = (&all[..number], &all[number..=number]);
        let run = |form: Form| form.over(&dead);
        let held = held_behind(before, own, &numbers, 1, &|drawn| drawn, &run);
        let name = &own[0].name;
        let Err(words) = held else { panic!("{name}: something comes of rank 0") };
        let record = format!("rank 2: {name} ");
        let is_named = |line: &str| {
            let record = line.trim_start().strip_prefix(&record);
            record.is_some_and(|it| it.contains(" waits for rank 0: ") && it.contains("(call 1, "))
        };
        assert!(words.contains("the group is stopped; "), "{name}: {words}");
        assert!(words.lines().any(is_named), "{name}: {words}");
    }
}

/// A pipeline over a network that cannot be emitted is refused at the statement that prevents it.
#[test]
fn what_a_network_does_not_carry_is_said() {
    let said = |source: &str| accepted(source).err().unwrap_or_default();
    let refused = |from: &str, to: &str| {
        assert!(FAN.contains(from), "{from}");
        said(&FAN.replace(from, to))
    };
    assert_eq!(refused("chunk: 2", "chunk: 1"), "");
    assert_eq!(refused("peer in local", "peer in rail"), "");
    let parts = refused("per rail {", "per rail, one part per stripes {");
    let without = said(&ROWS.replace("close rows;", ""));
    let apart =
        said(&ROWS.replace("[word: width, source]", "[word: width]").replace("m.source", "0"));
    let closes = "one role has to fill slots over a network and close them by one statement, \
                  which signals their arrival";
    let named = "slots over a network need the index `source`, because a sender signals for all of its \
                 slots at once";
    let all =
        [(parts, "a ring over a network cannot have parts yet"), (without, closes), (apart, named)];
    for (errors, why) in all {
        assert!(errors.contains(&format!("error: `Form` cannot be emitted: {why}")), "{errors}");
    }
}

/// A record along the rail and one to everybody, in each of many calls.
const NOTES: &str = "
    shape { nodes: 2..=4, local_ranks: 1..=4, let ranks = nodes * local_ranks }
    input given: i32[nodes] in 0..1000, all: i32[ranks] in 0..1000, wide: i32[nodes, 4];
    output got: i32[nodes], sums: i32[ranks], total: i32[1];
    message Note { note: i32 }
    message Share { share: i32, twice: i32 }
    channel notes: slots<Note> over rdma from Tell to Tell per rail { slot: [source], epochs: 2 };
    channel shares: slots<Share> over nvlink | rdma from Add to Add per all { slot: [source], epochs: 2 };
    role Tell on block 0 {
        for node in nodes {
            push notes[node] { note: given[node] };
        }
        await notes;
        for node in nodes {
            store got[node] = notes[node].note;
        }
    }
    role Add on block 1 {
        for peer in ranks {
            push shares[peer] { share: all[peer], twice: all[peer] * 2 };
        }
        await shares;
        for source in ranks {
            store sums[source] = shares[source].share + shares[source].twice;
        }
        store total[0] = sum(source in ranks: shares[source].share);
    }";

/// Rows of fixed places along the rail, and of counted ones to everybody.
const ROWS: &str = "
    shape { nodes: 2..=4, local_ranks: 1..=4, hidden: 8..=64, width: 1..=4, let ranks = nodes * local_ranks }
    input x: bf16[nodes, width, hidden], pick: i32[width, ranks] in 0..3;
    output heard: bf16[nodes, width, hidden], sum: i32[ranks], came: i32[ranks];
    message Word { row x: bf16[hidden] }
    message Note { note: i32 }
    channel rows: slots<Word> over rdma from Speak to Hear per rail { slot: [word: width, source] };
    channel notes: slots<Note> over nvlink | rdma from Tell to Take per all {
        slot: [source, arrival: width], epochs: 4,
    };
    role Speak on even blocks, 2 warps, warps shared by word {
        for node in nodes {
            push rows[node] at word { x: x[node, word] };
        }
        close rows;
    }
    role Hear on odd blocks, 2 warps, warps shared by word {
        for m in rows[word] {
            store heard[m.source, word] = m.x;
        }
    }
    role Tell on even blocks, 2 warps, warps shared by token {
        for w in width {
            for peer in ranks where pick[w, peer] > 0 {
                push notes[peer] { note: pick[w, peer] };
            }
        }
        close notes;
    }
    role Take on odd blocks, 2 warps, warps shared by source {
        store came[source] = notes[source].count;
        store sum[source] = 0;
        for m in notes[source] {
            add sum[source] = m.note;
        }
    }";

#[test]
fn rows_in_slots_reach_near_and_far_peers() {
    let all = [accepted(ROWS).unwrap_or_else(|errors| panic!("{errors}"))];
    for (nodes, local_ranks, seed) in usual::some([(2, 2, 1), (3, 1, 2), (4, 3, 3)], 3) {
        let numbers = [("nodes", nodes), ("local_ranks", local_ranks), ("hidden", 24)];
        let held = held_by(&all, &numbers, seed, &|drawn| drawn, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}: {words}"));
    }
}

#[test]
fn records_reach_near_and_far_peers() {
    let all = [accepted(NOTES).unwrap_or_else(|errors| panic!("{errors}"))];
    for (nodes, local_ranks, seed) in usual::some([(2, 2, 1), (3, 1, 2), (4, 3, 3)], 3) {
        let numbers = [("nodes", nodes), ("local_ranks", local_ranks)];
        let held = held_by(&all, &numbers, seed, &|drawn| drawn, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}: {words}"));
    }
}

/// The counts of two hops, as kernels count and exchange them.
#[test]
fn counts_are_exchanged_over_nodes() {
    let all = [NodeLayout::ir()];
    for (nodes, local_ranks, seed) in usual::some([(2, 2, 1), (3, 2, 2)], 2) {
        let numbers = [
            ("nodes", nodes),
            ("local_ranks", local_ranks),
            ("experts", 2 * nodes * local_ranks + 1),
            ("stripes", 4),
        ];
        let held = held_by(&all, &numbers, seed, &|drawn| drawn, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}: {words}"));
    }
}

/// Bugs of rings over a network.
const BUGS: &str = "
== a word that is put behind a slot says that it is there
in ep/net_rings.cuh
-         if (!is_near(ring)) return queue_.counter(rank_of(ring), number(Word::kNumber));
+         const u64 place = 8 * static_cast<u64>(far(ring, own())) * Ring::kHeaderWords + 4;
+         if (!is_near(ring) && Word::kNumber == 0) {
+             return reinterpret_cast<const u32*>(net_->data + Ring::kHeadersIn + place);
+         }
+         if (!is_near(ring)) return queue_.counter(rank_of(ring), number(Word::kNumber));
and
-         queue_.signal(rank_of(ring), number(Word::kNumber), is_near(ring) ? 0 : count);
+         if (Word::kNumber == 0 && !is_near(ring)) {
+             const u64 from = 8 * static_cast<u64>(far(ring, own())) * Ring::kHeaderWords + 4;
+             const u64 to = 8 * static_cast<u64>(far(own(), ring)) * Ring::kHeaderWords + 4;
+             if (count != 0) *reinterpret_cast<u32*>(net_->data + Ring::kHeadersOut + from) += count;
+             queue_.put(rank_of(ring), Ring::kHeadersIn + to, Ring::kHeadersOut + from, count != 0 ? 4 : 0);
+             return;
+         }
+         queue_.signal(rank_of(ring), number(Word::kNumber), is_near(ring) ? 0 : count);

== slots are told of before they are sent
in ep/net_rings.cuh
-         put(ring, at, before);
+         add<TailWord>(ring, count);
+         put(ring, at, before);
and
-         if (__ballot_sync(kAllLanes, far_count != before) != 0) put(ring, 0, far_count - before);
-         add<TailWord>(ring, count);
+         if (__ballot_sync(kAllLanes, far_count != before) != 0) put(ring, 0, far_count - before);

== a run of slots goes on behind the end of its ring
in ep/net_rings.cuh
-         put(ring, at, before);
+         put(ring, at, far_count);
and
-         if (__ballot_sync(kAllLanes, far_count != before) != 0) put(ring, 0, far_count - before);

== the last slots of a stripe are not sent
in ep/ends.cuh
-             tell_of<Word>(g, is_last, true);
+             tell_of<Word>(g, is_last, false);

== a run begins at its last slot
in ep/ends.cuh
-                 Rings::send(ring(g), (start_[g] + upto - count) % Ring::kDepth, count);
+                 Rings::send(ring(g), (start_[g] + upto - 1) % Ring::kDepth, count);

== a chunk is given back by the first of its readers
in ep/net_rings.cuh
-             if (fetch_add_acq_rel_gpu(passed, 1) + 1 != Ring::kReaders) return false;
+             const u32 before = fetch_add_acq_rel_gpu(passed, 1);
+             if (before != 0) {
+                 if (before + 1 == Ring::kReaders) store_relaxed_gpu(passed, 0u);
+                 return false;
+             }
+             return true;

== readers do not order what they read
in ep/net_rings.cuh
-             if (fetch_add_acq_rel_gpu(passed, 1) + 1 != Ring::kReaders) return false;
+             if (fetch_add_relaxed_gpu(passed, 1) + 1 != Ring::kReaders) return false;

== a header is read before it has come
in ep/net_rings.cuh
-         site.want = team_.epoch * Ring::kHeaderWords;
+         site.want = (team_.epoch - 1) * Ring::kHeaderWords;

== records are not waited for
in ep/net_slots.cuh
-             wait_counter(team_, site,
-                          some ? End::told(peer, Slots::kCome, End::kComeNumber) : nullptr);

== a record is told of before it is put
in ep/net_slots.cuh
-         End::queue_.put(End::rank_of(peer_), to, from, sends ? Slots::kSlotBytes : 0);
-         // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
-         End::tell(peer_, Slots::kCome, End::kComeNumber, team_.leader());
+         End::tell(peer_, Slots::kCome, End::kComeNumber, team_.leader());
+         End::queue_.put(End::rank_of(peer_), to, from, sends ? Slots::kSlotBytes : 0);

== the slots of the call before are filled
in ep/net_slots.cuh
-         const u64 set = team_.epoch % Slots::kEpochs;
+         const u64 set = 0;

== a slot lands where that of another rank belongs
in ep/net_rings.cuh
-         const u64 to = Ring::kInbox + slot_at(far(own(), ring), at);
+         const u64 to = Ring::kInbox + slot_at(far(ring, own()), at);
";

#[test]
fn planted_bugs_are_found() {
    all_are_found(BUGS, 6, |bug, seed, planted| {
        let source = if bug.file == "ep/net_slots.cuh" { NOTES } else { FAN };
        own(source, (3, 2, seed), planted)
    });
}

/// Rows take two hops and come back, where kernels themselves send through a network card.
#[test]
fn rows_take_two_hops_through_cards() {
    let over_cards = |mut drawn: Drawn| {
        drawn.config.carrier = Some(Transport::Ibgda);
        drawn
    };
    for (nodes, local_ranks, seed) in usual::some([(2, 2, 0), (3, 2, 1)], 2) {
        let held = judged((nodes, local_ranks, seed), &over_cards, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}, seed {seed}: {words}"));
    }
}

/// Every kind of channel that a network carries, listed for cards alone; and a slow wire that keeps order.
#[test]
fn every_channel_goes_through_cards() {
    let slow = ModelOptions {
        latency: Duration::from_micros(300),
        bytes_per_us: 50,
        reorder: false,
        ..ModelOptions::default()
    };
    for source in [SPREAD, FAN, NOTES, ROWS] {
        let all = [accepted(&source.replace("rdma", "ibgda")).unwrap_or_else(|it| panic!("{it}"))];
        let numbers = [("nodes", 2), ("local_ranks", 2), ("hidden", 24), ("stripes", 2)];
        let held = held_by(&all, &numbers, 1, &|drawn| drawn, &|form| form.over(&slow));
        held.unwrap_or_else(|words| panic!("{words}"));
    }
}

#[test]
fn rows_take_two_hops_and_come_back() {
    let shapes = [(2, 2, 0), (2, 2, 1), (2, 1, 2), (3, 2, 3), (2, 4, 4)];
    for (nodes, local_ranks, seed) in usual::some(shapes, 3) {
        let held = judged((nodes, local_ranks, seed), &|drawn| drawn, &|form| form);
        held.unwrap_or_else(|words| panic!("{nodes} x {local_ranks}, seed {seed}: {words}"));
    }
}

/// Fewer experts than choices, so that tokens name some twice and others not at all, and rows of which the last
/// block of scales is short.
#[test]
fn choices_repeat_and_are_left_out_between_nodes_at_length() {
    let all = [NodeLayout::ir(), NodeDispatch::ir(), NodeCombine::ir()];
    let numbers = [("nodes", 2), ("local_ranks", 2), ("hidden", 2880), ("stripes", 4)];
    let numbers = [&numbers[..], &[("experts", 5), ("topk", 7)]].concat();
    let held = held_by(&all, &numbers, 0, &|drawn| drawn, &|form| form);
    held.unwrap_or_else(|words| panic!("{words}"));
}
