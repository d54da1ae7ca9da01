//! `nvl-dispatch`: sends rows to the ranks of their experts, over NVLink.

use crate::pipeline;
pub use nvl_dispatch::*;

pipeline! {
    /// Sends each token's row to every rank that owns one of its experts.
    ///
    /// `via Direct` stores rows in the receiver's output, which is in the window. `via Ring` needs no
    /// output in the window. A cached call takes its positions from a fresh one: `via Direct` from
    /// `send_row`, whose absent entries also say how many rows go to the rank before them.
    pub pipeline NvlDispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096 }
        use payload;
        variant via { Direct, Ring }
        variant mode { Fresh, Cached }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle super::Layout {
            in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks],
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input
            x: payload[tokens, hidden],
            topk_idx: optional i64[tokens, topk] in -1..experts,
            topk_weights: optional f32[tokens, topk],
            expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output
            recv_x: payload[received, hidden] in window,
            recv_topk_idx: optional i64[received, topk] fill -1 beyond received,
            recv_topk_weights: optional f32[received, topk];
        table recv_src: i32[received];
        message Token {
            row x: payload[hidden],
            src: i32,
            experts: i32[topk] with topk_idx,
            weights: f32[topk] with topk_weights,
        }
        tune { piece: 3584 in [1024, 2048, 3584, 7168] }

        when via is Ring {
            tune {
                stages: 3 in [2, 3, 4, 6],
                stripes: 12 in [4, 6, 8, 10, 12, 16, 24],
                depth: 64 in [16, 32, 64, 128, 256, 512],
                chunk: 8 in [1, 2, 4, 8, 16, 32],
            }
            table send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes];
            channel ring: ring<Token> over nvlink from Send to Recv per all {
                depth: depth, chunk: chunk, header: [first, count],
            };
            role Send[peer] on even blocks, 16 warps {
                announce ring[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
                for token in stripe where in_rank[token, peer] {
                    push ring[peer] { x: x[token], src: token, experts: topk_idx[token], weights: topk_weights[token] };
                    when mode is Fresh {
                        record send_head[token, peer] = ring[peer].position;
                    }
                }
            }
            role Recv[peer] on odd blocks, 16 warps {
                when mode is Fresh {
                    record recv_first[peer, stripe] = rank_prefix[peer, me] + ring[peer].first;
                    record recv_count[peer, stripe] = ring[peer].count;
                }
                for message in ring[peer] at rank_prefix[peer, me] + ring[peer].first {
                    unpack(message, local(message.experts, me), recv_x, recv_src, recv_topk_idx, recv_topk_weights);
                }
            }
        }

        when via is Direct {
            tune {
                stages: 4 in [2, 3, 4, 6],
                stripes: 64 in [4, 8, 16, 32, 64, 96, 128, 256],
                send_warps: 8 in [4, 8, 12, 16],
                unit: 112 in [1, 7, 14, 28, 56, 112, 224],
            }
            when mode is Fresh { table send_row: i32[tokens, ranks]; }
            when mode is Cached { uses handle NvlDispatch { send_row: i32[tokens, ranks] }; }
            channel rows: direct<Token> over nvlink from Send to Unpack per all { unit: unit };
            role Send on all blocks, send_warps warps, warps shared by token {
                when mode is Fresh {
                    for token in stripe {
                        for peer in ranks where in_rank[token, peer] {
                            push rows[peer] at rank_prefix[me, peer] + stripe_prefix[peer, stripe] {
                                x: x[token], src: token, experts: topk_idx[token], weights: topk_weights[token],
                            };
                            record send_row[token, peer] = rows[peer].position;
                        }
                    }
                }
                when mode is Cached {
                    for token in stripe {
                        for peer in ranks where send_row[token, peer] >= 0 {
                            push rows[peer] at if stripe.count > 0 { max(send_row[stripe.first, peer], -1 - send_row[stripe.first, peer]) } else { 0 } {
                                x: x[token], src: token, experts: topk_idx[token], weights: topk_weights[token],
                            };
                        }
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
}
