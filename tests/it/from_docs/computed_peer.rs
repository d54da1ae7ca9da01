//! Peers that are computed in a push: a permutation says to which rank a row goes.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Row `k * ranks + r` goes to rank `moved[r]`, row by row.
    pub pipeline MovedByRow {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=32 }
        size tokens in 0..=most;
        input x: bf16[tokens, hidden], moved: i32[ranks] in 0..ranks distinct;
        output y: bf16[ranks, most, hidden];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        message Row { row x: bf16[hidden], src: i32 }
        channel ring: ring<Row> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send on even blocks, 2 warps, warps shared by stripe {
            for peer in ranks {
                announce ring[peer] { count: sum(row in stripe: (moved[row % ranks] == peer) as i32) };
            }
            for row in stripe {
                push ring[moved[row % ranks]] { x: x[row], src: row };
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] {
                store y[peer, message.src] = message.x;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<MovedByRow>(&[("ranks", 2), ("hidden", 16), ("most", 4)])
        .rank(|rank| {
            rank.size("tokens", 4)
                .give("x", [4, 16], [1.0, 2.0, 3.0, 4.0])
                .give("moved", [2], [1, 0])
                .want_where_written(
                    "y",
                    [None, Some(2.0), None, Some(4.0), Some(5.0), None, Some(7.0), None],
                )
        })
        .rank(|rank| {
            rank.size("tokens", 4)
                .give("x", [4, 16], [5.0, 6.0, 7.0, 8.0])
                .give("moved", [2], [0, 1])
                .want_where_written(
                    "y",
                    [Some(1.0), None, Some(3.0), None, None, Some(6.0), None, Some(8.0)],
                )
        })
}
