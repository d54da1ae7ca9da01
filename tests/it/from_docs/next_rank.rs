//! Rows that go around: each rank sends all of its own to the next one.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends every row to the rank behind this one, from the last one to the first.
    pub pipeline NextRank {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=32 }
        size tokens in 0..=most;
        input x: bf16[tokens, hidden];
        output y: bf16[most, hidden], from: i32[most];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        message Row { row x: bf16[hidden], token: i32 }
        channel ring: ring<Row> over nvlink from Send to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send on even blocks, 2 warps, warps shared by stripe {
            for peer in ranks {
                announce ring[peer] { count: sum(token in stripe: ((me + 1) % ranks == peer) as i32) };
            }
            for token in stripe {
                push ring[(me + 1) % ranks] { x: x[token], token: token };
            }
        }
        role Take[peer] on odd blocks {
            for message in ring[peer] {
                store y[message.token] = message.x;
                store from[message.token] = message.source;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<NextRank>(&[("ranks", 3), ("hidden", 16), ("most", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [1.0, 2.0])
                .want_where_written("y", [Some(4.0), None])
                .want_where_written("from", [Some(2), None])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("x", [1, 16], [3.0])
                .want("y", [1.0, 2.0])
                .want("from", [0, 0])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("x", [1, 16], [4.0])
                .want_where_written("y", [Some(3.0), None])
                .want_where_written("from", [Some(1), None])
        })
}
