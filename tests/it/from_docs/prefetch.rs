//! Weights of experts that are fetched ahead: rows of other ranks as they lie there, bit for bit.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Copies the rows of `wanted` experts, each of which has `rows` on the rank where it lives.
    pub pipeline Prefetch {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, rows: 1..=64, local: 1..=64, slots: 1..=64,
            let held = local * rows, let fetched = slots * rows,
        }
        input
            weights: bf16[held, hidden] in window,
            wanted: i32[slots] in -1..ranks * local;
        output fetched_weights: bf16[fetched, hidden];
        message Row { row x: bf16[hidden] }
        channel lent: pull<Row> over nvlink from Lend to Fetch per all;

        role Lend on block 0, 1 warps {
            push lent { x: weights };
        }
        role Fetch on all blocks, 8 warps, warps shared by token {
            for row in fetched
                gather part from lent[peer]
                at (wanted[row / rows] >= 0 && wanted[row / rows] / local == peer) as i32
                    * (wanted[row / rows] % local * rows + row % rows + 1) - 1
                across peer in ranks
            {
                store fetched_weights[row] = first(part.x);
            }
        }
    }
}

/// Expert 3 is the second one of rank 1; nobody wants a third one here.
pub(super) fn by_hand() -> ByHand {
    ByHand::of::<Prefetch>(&[("ranks", 2), ("hidden", 16), ("rows", 2), ("local", 2), ("slots", 2)])
        .rank(|rank| {
            rank.give("weights", [4, 16], [1.0, 2.0, 3.0, 4.0])
                .give("wanted", [2], [3, -1])
                .want_where_written("fetched_weights", [Some(7.0), Some(8.0), None, None])
        })
        .rank(|rank| {
            rank.give("weights", [4, 16], [5.0, 6.0, 7.0, 8.0])
                .give("wanted", [2], [0, 2])
                .want("fetched_weights", [1.0, 2.0, 5.0, 6.0])
        })
}
