// `unpack` records the number of the token, and `recv_src` holds floats.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096 }
        use payload;
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks],
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input
            x: payload[tokens, hidden], topk_idx: i64[tokens, topk], topk_weights: f32[tokens, topk],
            expert_begin: i32[ranks + 1];
        output
            recv_x: payload[received, hidden] in window,
            recv_topk_idx: i64[received, topk], recv_topk_weights: f32[received, topk];
        table recv_src: f32[received];
        tune { stripes: 64 in [32, 64] }
        message Token { row x: payload[hidden], src: i32, experts: i32[topk], weights: f32[topk] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on all blocks, 8 warps, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at rank_prefix[me, peer] + stripe_prefix[peer, stripe] {
                        x: x[token], src: token, experts: topk_idx[token], weights: topk_weights[token],
                    };
                }
            }
        }
        role Unpack on all blocks, 4 warps, warps shared by (source, stripe) {
            for message in rows[source] {
                unpack(message, local(message.experts, me), recv_x, recv_src, recv_topk_idx, recv_topk_weights);
            }
        }
    }
}

fn main() {}
