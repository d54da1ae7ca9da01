//! A message with two payloads: a row, and a shorter one beside it, straight into the outputs.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends each token's row together with its rotary part.
    pub pipeline WideField {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, rope_dim: 8..=512 step 8 }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks], rank_prefix: i32[ranks + 1, ranks],
            stripe_prefix: i32[ranks, stripes],
        };
        input x: bf16[tokens, hidden], rope: bf16[tokens, rope_dim], aux: f32[tokens, 2];
        output
            recv_x: bf16[received, hidden] in window,
            recv_rope: bf16[received, rope_dim], recv_aux: f32[received, 2];
        tune { stripes: 8 in [1, 8, 16] }
        message Token { row x: bf16[hidden], rope: bf16[rope_dim], aux: f32[2] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;

        role Send on all blocks, 8 warps, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at rank_prefix[me, peer] + stripe_prefix[peer, stripe] {
                        x: x[token], rope: rope[token], aux: aux[token],
                    };
                }
            }
        }
        role Unpack on all blocks, 4 warps, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
                store recv_rope[message.row] = message.rope;
                store recv_aux[message.row] = message.aux;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    let shape = [("ranks", 2), ("hidden", 16), ("rope_dim", 8), ("topk", 1), ("experts", 2)];
    ByHand::of::<WideField>(&shape)
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("topk_idx", [2, 1], [1, 0])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [2, 16], [1.0, 2.0])
                .give("rope", [2, 8], [-1.0, -2.0])
                .give("aux", [2, 2], [0.5, 0.25, 1.5, 1.25])
                .want("recv_x", [2.0])
                .want("recv_rope", [-2.0])
                .want("recv_aux", [1.5, 1.25])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 1], [1])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [1, 16], [3.0])
                .give("rope", [1, 8], [-3.0])
                .give("aux", [1, 2], [8.0, 9.0])
                .want("recv_x", [1.0, 3.0])
                .want("recv_rope", [-1.0, -3.0])
                .want("recv_aux", [0.5, 0.25, 8.0, 9.0])
        })
}
