//! A dispatch that sends to two channels: rows through one ring, and what is known of each row through
//! another one.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends rows through one ring, and two numbers about each row through another.
    pub pipeline TwoRings {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks],
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input x: bf16[tokens, hidden], norm: f32[tokens], kind: i32[tokens];
        output recv_x: bf16[received, hidden], recv_norm: f32[received], recv_kind: i32[received];
        table recv_src: i32[received];
        tune { stripes: 4 in [1, 4, 8], depth: 64 in [16, 64], chunk: 8 in [1, 8] }
        message Row { row x: bf16[hidden], src: i32 }
        message Stat { norm: f32, kind: i32 }
        channel rows: ring<Row> over nvlink from Send to RecvRows per all {
            depth: depth, chunk: chunk, header: [first, count],
        };
        channel stats: ring<Stat> over nvlink from Send to RecvStats per all {
            depth: depth, chunk: chunk, header: [first, count],
        };

        role Send[peer] on even blocks {
            announce rows[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            announce stats[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            for token in stripe where in_rank[token, peer] {
                push rows[peer] { x: x[token], src: token };
                push stats[peer] { norm: norm[token], kind: kind[token] };
            }
        }
        role RecvRows[peer] on odd blocks, 8 warps {
            for message in rows[peer] at rank_prefix[peer, me] + rows[peer].first {
                store recv_x[message.row] = message.x;
                record recv_src[message.row] = message.src;
            }
        }
        role RecvStats[peer] on odd blocks, 4 warps {
            for message in stats[peer] at rank_prefix[peer, me] + stats[peer].first {
                store recv_norm[message.row] = message.norm;
                store recv_kind[message.row] = message.kind;
            }
        }
    }
}

/// Token 0 of rank 0 goes to both ranks, its token 1 to rank 1, and the only one of rank 1 to rank 0.
pub(super) fn by_hand() -> ByHand {
    ByHand::of::<TwoRings>(&[("ranks", 2), ("hidden", 16), ("topk", 2), ("experts", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("topk_idx", [2, 2], [0, 1, 1, -1])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [2, 16], [1.0, 2.0])
                .give("norm", [2], [0.5, 0.25])
                .give("kind", [2], [7, 8])
                .want("recv_x", [1.0, 3.0])
                .want("recv_src", [0, 0])
                .want("recv_norm", [0.5, 0.75])
                .want("recv_kind", [7, 9])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 2], [-1, 0])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [1, 16], [3.0])
                .give("norm", [1], [0.75])
                .give("kind", [1], [9])
                .want("recv_x", [1.0, 2.0])
                .want("recv_src", [0, 1])
                .want("recv_norm", [0.5, 0.25])
                .want("recv_kind", [7, 8])
        })
}
