//! The rows of all ranks on every rank, each rank's in a part of its own.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends every row to every rank; what is this rank's own stays here.
    pub pipeline AllGather {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=8192 }
        size rows in 0..=most;
        input x: bf16[rows, hidden];
        output all: bf16[ranks * most, hidden] in window, number: i32[ranks * most];
        tune { stripes: 4 in [1, 2, 4] }
        message Row { row x: bf16[hidden], number: i32 }
        channel moved: direct<Row> over nvlink from Send, Keep to Take per all;

        role Send on all blocks, 4 warps, warps shared by token {
            for row in stripe {
                for peer in ranks where peer != me {
                    let first = me * most + stripe.first;
                    push moved[peer] at first { x: x[row], number: row };
                }
            }
        }
        role Keep on all blocks, 4 warps, warps shared by token {
            for row in stripe {
                push moved[me] at me * most + stripe.first { x: x[row], number: row };
            }
        }
        role Take on all blocks, 2 warps, warps shared by (source, stripe) {
            for message in moved[source] {
                store all[message.row] = message.x;
                store number[message.row] = message.number;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    let shape = [("ranks", 2), ("hidden", 16), ("most", 3), ("stripes", 2)];
    let numbers = [Some(0), Some(1), Some(2), Some(0), None, None];
    ByHand::of::<AllGather>(&shape)
        .rank(|rank| {
            rank.size("rows", 3)
                .give("x", [3, 16], [1.0, 2.0, 3.0])
                .want_where_written("all", [Some(1.0), Some(2.0), Some(3.0), Some(4.0), None, None])
                .want_where_written("number", numbers)
        })
        .rank(|rank| {
            rank.size("rows", 1)
                .give("x", [1, 16], [4.0])
                .want_where_written("all", [Some(1.0), Some(2.0), Some(3.0), Some(4.0), None, None])
                .want_where_written("number", numbers)
        })
}
