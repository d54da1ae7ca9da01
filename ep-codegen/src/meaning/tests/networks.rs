//! What has no CUDA text yet means something all the same: nodes, rails, parts, phases, counts of
//! arrivals, ranks that take no part.

use super::*;

/// Two nodes of two ranks; rows go along the rail, and from there to a rank of the node.
#[test]
fn two_hops_bring_every_row_where_it_belongs() {
    let case = Case::new(
        "shape { nodes: 2..=4, local_ranks: 1..=4, stripes: 1..=4, let ranks = nodes * local_ranks }
         size tokens;
         input to: i32[tokens], x: i32[tokens], hops: i32[nodes], per: i32[nodes, local_ranks];
         output got: i32[16], from: i32[16];
         table head: i32[tokens, nodes];
         message Hop { value: i32, local: i32 }
         channel rail: ring<Hop> over rdma from Send to Pass per rail { depth: 4, chunk: 1, header: [count] };
         channel inner: ring<Hop> over nvlink from Pass to Keep per local, one part per nodes {
             depth: 4, chunk: 1, header: [count],
         };
         role Send on even blocks, 4 warps, warps shared by token {
             for node in nodes { announce rail[node] { count: hops[node] }; }
             for t in stripe {
                 for node in nodes where node(to[t]) == node {
                     push rail[node] { value: x[t], local: local_rank(to[t]) };
                     record head[t, node] = rail[node].position;
                 }
             }
         }
         role Pass[peer] on odd blocks {
             for node in nodes { announce inner[peer, node] { count: per[node, peer] }; }
             for m in rail where m.local == peer {
                 push inner[peer, m.source] { ..m };
             }
         }
         role Keep[peer] on even blocks, 4 warps {
             for m in inner[peer] {
                 store got[(m.part * 2 + peer) * 4 + m.index] = m.value;
                 store from[(m.part * 2 + peer) * 4 + m.index] = rank_at(m.part, peer);
             }
         }",
        &[("nodes", "2"), ("local_ranks", "2"), ("stripes", "1")],
        4,
    );
    // Every rank sends token 0 and 1 to ranks 3 and 0.
    let case = case
        .size("tokens", &|_| 2)
        .give("to", &|_| i32s(&[2], &[3, 0]))
        .give("x", &|rank| i32s(&[2], &[rank as i32 * 10, rank as i32 * 10 + 1]))
        .give("hops", &|_| i32s(&[2], &[1, 1]))
        // Of the rows that come along the rail, all go to rank 0 in node 0, and to rank 1 in node 1.
        .give("per", &|rank| i32s(&[2, 2], if rank < 2 { &[1, 0, 1, 0] } else { &[0, 1, 0, 1] }));
    let outcome = case.outcome();
    let rows = |rank: usize| {
        let (got, from) = (ints(&outcome, rank, "got"), ints(&outcome, rank, "from"));
        let mut rows: Vec<(i64, i64)> = from.into_iter().zip(got).collect();
        rows.retain(|(from, _)| *from != i64::MIN);
        rows.sort_unstable();
        rows
    };
    // `inner[peer]` comes from the rank of the node with this index, on behalf of its rail.
    assert_eq!(rows(0), [(0, 1), (1, 11), (2, 21), (3, 31)]);
    assert_eq!(rows(3), [(0, 0), (1, 10), (2, 20), (3, 30)]);
    assert!(rows(1).is_empty() && rows(2).is_empty());
    assert_eq!(ints(&outcome, 2, "head"), [-1, 0, 0, -2]);
}

const LOW_LATENCY: &str = "
    shape { ranks: 1..=8, experts: 1..=8, topk: 1..=4, max_tokens: 1..=8, let local_experts = ceil(experts, ranks) }
    size tokens;
    input x: i32[tokens], topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
    output packed: i32[local_experts, ranks * max_tokens];
    inout packed_count: i32[local_experts];
    table src: i32[local_experts, ranks * max_tokens], first: i32[local_experts, ranks];
    message Row { value: i32, src: i32 }
    channel rows: slots<Row> over nvlink | ibgda from Cast to Pack per all {
        slot: [expert: local_experts, source, arrival: max_tokens], epochs: 2,
    };
    phase send {
        role Cast on all blocks, one block a token {
            for t in tokens {
                for e in topk_idx[t] where alive(owner(e)) {
                    push rows[owner(e)] at local(e, owner(e)) { value: x[t], src: t };
                }
            }
            close rows;
        }
    }
    phase recv {
        role Pack on all blocks, warps shared by (expert, source) {
            record first[expert, source] = sum(s in 0..source: rows[expert, s].count);
            add packed_count[expert] = rows[expert, source].count;
            for m in rows[expert, source] at sum(s in 0..source: rows[expert, s].count) {
                store packed[expert, m.row] = m.value;
                record src[expert, m.row] = m.src;
            }
        }
    }";

fn low_latency() -> Case {
    Case::new(
        LOW_LATENCY,
        &[("ranks", "2"), ("experts", "2"), ("topk", "2"), ("max_tokens", "3")],
        2,
    )
    .size("tokens", &|_| 2)
    .give("x", &|rank| i32s(&[2], &[rank as i32 * 10, rank as i32 * 10 + 1]))
    .give("topk_idx", &|_| i64s(&[2, 2], &[0, 1, 1, -1]))
    .give("expert_begin", &|_| i32s(&[3], &[0, 1, 2]))
    .give("packed_count", &|_| i32s(&[1], &[100]))
}

#[test]
fn arrivals_are_counted_in_any_order() {
    let outcome = low_latency().outcome();
    let left = &outcome.ranks[1]["packed"];
    assert_eq!(ints(&outcome, 1, "packed")[..4], [0, 1, 10, 11]);
    assert_eq!(ints(&outcome, 1, "packed_count"), [104]);
    assert_eq!(ints(&outcome, 1, "first"), [0, 2]);
    assert_eq!(left.open.len(), 4);
    let found = |packed: [i32; 6], src: [i32; 6]| {
        let tensors = [("packed", packed), ("src", src)]
            .map(|(name, list)| (name.to_string(), i32s(&[1, 6], &list)));
        crate::meaning::compare(&outcome.ranks, &[BTreeMap::new(), BTreeMap::from(tensors)]).len()
    };
    assert_eq!(found([1, 0, 10, 11, 7, 7], [1, 0, 0, 1, 7, 7]), 0);
    // Rows of one source among those of another, or without their number.
    assert!(found([10, 0, 1, 11, 7, 7], [0, 0, 1, 1, 7, 7]) > 0);
    assert!(found([1, 0, 10, 11, 7, 7], [0, 1, 0, 1, 7, 7]) > 0);
}

#[test]
fn a_rank_that_takes_no_part_gets_and_sends_nothing() {
    let mut case = low_latency();
    case.ranks[0].alive = false;
    let outcome = case.outcome();
    assert!(outcome.ranks[0].is_empty());
    assert_eq!(ints(&outcome, 1, "packed")[..2], [10, 11]);
    assert_eq!(ints(&outcome, 1, "packed_count"), [102]);
    // Where its rows would begin is recorded all the same.
    let first = &outcome.ranks[1]["first"];
    assert!(ints(&outcome, 1, "first") == [0, 0] && first.written.iter().all(|is| *is));
}

#[test]
fn slots_that_are_named_are_gathered() {
    let case = Case::new(
        "shape { ranks: 1..=8, experts: 1..=8, topk: 1..=4, max_tokens: 1..=8, hidden: 1..=8 }
         size tokens;
         input x: bf16[experts, max_tokens, hidden], ids: i64[tokens, topk], w: f32[tokens, topk], mine: i32[experts];
         output combined: bf16[tokens, hidden];
         message Part { row x: bf16[hidden] }
         channel back: slots<Part> over nvlink | rdma from Send to Reduce per all {
             slot: [expert: experts, token: max_tokens], epochs: 2,
         };
         phase send {
             role Send on all blocks, warps shared by (expert, source) {
                 for t in 0..mine[expert] * 2 { push back[source] at [expert, t] { x: x[expert, t] }; }
                 close back;
             }
         }
         phase recv {
             role Reduce on all blocks, one block a token {
                 for t in tokens gather part from back at [ids[t, k], t] across k in topk {
                     store combined[t] = sum(w[t, k] * part.x as f32) as bf16;
                 }
             }
         }",
        &[("ranks", "2"), ("experts", "2"), ("topk", "2"), ("max_tokens", "2"), ("hidden", "2")],
        2,
    );
    let case = case
        .size("tokens", &|_| 2)
        .give("x", &|rank| {
            let value = |at: usize| (rank * 100 + at) as f32;
            bf16s(&[2, 2, 2], &(0..8).map(value).collect::<Vec<f32>>())
        })
        .give("ids", &|_| i64s(&[2, 2], &[1, 0, -1, 1]))
        .give("w", &|_| f32s(&[2, 2], &[0.5, 2.0, 9.0, 1.0]))
        .give("mine", &|rank| i32s(&[2], if rank == 0 { &[1, 0] } else { &[0, 1] }));
    let outcome = case.outcome();
    assert_eq!(reals(&outcome, 0, "combined"), [52.0, 54.5, 106.0, 107.0]);
}
