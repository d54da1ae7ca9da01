//! Functions of the user on rows, where a condition holds: on the way out, and where they have come.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends each row to the rank that it names, cut off at one; of what comes, even tokens are kept, halved.
    pub pipeline CappedRows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=32 }
        size tokens in 0..=most;
        input x: bf16[tokens, hidden], to: i32[tokens] in -1..ranks;
        output y: bf16[ranks, most, hidden];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        cuda fn capped(v: f32) -> f32 = r"__device__ inline float capped(float v) { return v < 1.0f ? v : 1.0f; }";
        cuda fn half(v: f32) -> f32 = r"__device__ inline float half(float v) { return 0.5f * v; }";
        message Row { row x: bf16[hidden], token: i32 }
        channel ring: ring<Row> over nvlink from Send to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send[peer] on even blocks, 4 warps {
            announce ring[peer] { count: sum(token in stripe: (to[token] == peer) as i32) };
            for token in stripe where to[token] == peer {
                push ring[peer] { x: capped(x[token] as f32) as bf16, token: token };
            }
        }
        role Take[peer] on odd blocks, 4 warps {
            for message in ring[peer] {
                if message.token % 2 == 0 {
                    store y[peer, message.token] = half(message.x as f32) as bf16;
                }
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<CappedRows>(&[("ranks", 2), ("hidden", 16), ("most", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [3.0, 0.25])
                .give("to", [2], [0, 1])
                .want_where_written("y", [Some(0.5), None, None, None])
        })
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [-2.0, 4.0])
                .give("to", [2], [1, 0])
                .want_where_written("y", [None, None, Some(-1.0), None])
        })
}
