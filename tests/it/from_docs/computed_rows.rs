//! Rows that are computed: by the operators of the language where they are stored, and by functions of the
//! user where they are pushed.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Stores scaled rows, and sends rows after a relu.
    pub pipeline ReluPush {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks],
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input x: bf16[tokens, hidden], w: f32[tokens, hidden], weight: f32[tokens];
        output
            recv_x: bf16[received, hidden], recv_weight: f32[received],
            doubled: bf16[tokens, hidden], moved: f32[tokens, hidden];
        tune { stripes: 4 in [1, 4, 8], depth: 64 in [16, 64], chunk: 8 in [1, 8] }
        cuda fn relu(v: f32) -> f32 = r"__device__ inline float relu(float v) { return v > 0.0f ? v : 0.0f; }";
        cuda fn half(v: f32) -> f32 = r"__device__ inline float half(float v) { return 0.5f * v; }";
        message Token { row x: bf16[hidden], weight: f32 }
        channel ring: ring<Token> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };

        role Send[peer] on even blocks, 8 warps {
            announce ring[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: relu(x[token] as f32) as bf16, weight: half(weight[token]) };
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] at rank_prefix[peer, me] + ring[peer].first {
                store recv_x[message.row] = message.x;
                store recv_weight[message.row] = message.weight;
            }
        }
        role Scale on even blocks, 4 warps, warps shared by stripe {
            for token in stripe {
                store doubled[token] = x[token] * (2 as f32);
                store moved[token] = w[token] * (2 as f32) + (1 as f32);
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<ReluPush>(&[("ranks", 2), ("hidden", 16), ("topk", 2), ("experts", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("topk_idx", [2, 2], [0, 1, 1, -1])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [2, 16], [-1.0, 2.0])
                .give("w", [2, 16], [0.5, 0.25])
                .give("weight", [2], [4.0, 8.0])
                .want("recv_x", [0.0, 3.0])
                .want("recv_weight", [2.0, 0.5])
                .want("doubled", [-2.0, 4.0])
                .want("moved", [2.0, 1.5])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 2], [-1, 0])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [1, 16], [3.0])
                .give("w", [1, 16], [-1.0])
                .give("weight", [1], [1.0])
                .want("recv_x", [0.0, 2.0])
                .want("recv_weight", [2.0, 4.0])
                .want("doubled", [6.0])
                .want("moved", [-1.0])
        })
}
