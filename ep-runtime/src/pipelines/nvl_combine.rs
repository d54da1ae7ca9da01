//! `nvl-combine`: returns rows to their tokens and sums them, over NVLink.

use crate::pipeline;
pub use nvl_combine::*;

pipeline! {
    /// Sums the rows that the experts made of a token, in order of rank, and any bias.
    ///
    /// `via Pull` reads the rows where the experts wrote them and belongs to a dispatch `via Direct`. `via
    /// Ring` belongs to a dispatch `via Ring`.
    pub pipeline NvlCombine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        variant via { Pull, Ring }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle super::Layout { rank_prefix: i32[ranks + 1, ranks] };
        input
            x: bf16[received, hidden] in window,
            weights: optional f32[received, topk] in window,
            bias: up to 2 bf16[tokens, hidden];
        output combined: bf16[tokens, hidden], combined_weights: optional f32[tokens, topk];
        message Part { row x: bf16[hidden], weights: f32[topk] with weights }

        when via is Ring {
            uses handle super::NvlDispatch {
                send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes],
            };
            tune {
                stages: 3 in [2, 3, 4, 6],
                piece: 3584 in [1024, 2048, 3584, 7168],
                stripes: 12 in [4, 6, 8, 10, 12, 16, 24],
                depth: 64 in [16, 32, 64, 128, 256, 512],
                chunk: 8 in [1, 2, 4, 8, 16, 32],
            }
            channel ring: ring<Part> over nvlink from Send to Recv per all { depth: depth, chunk: chunk };
            role Send[peer] on even blocks, 16 warps {
                for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer, stripe] {
                    push ring[peer] { x: x[row], weights: weights[row] };
                }
            }
            role Recv on odd blocks, 16 warps, warps shared by token {
                for token in stripe gather part from ring[peer] at send_head[token, peer] across peer in ranks {
                    store combined[token] = sum(part.x) + bias[token];
                    store combined_weights[token] = sum(part.weights);
                }
            }
        }

        when via is Pull {
            tune { reduce_warps: 15 in [7, 11, 15] }
            uses handle super::NvlDispatch { send_row: i32[tokens, ranks] };
            channel parts: pull<Part> over nvlink from Offer to Reduce per all;
            role Offer on block 0, 1 warps {
                push parts { x: x, weights: weights };
            }
            role Reduce on all blocks, reduce_warps warps, warps shared by token {
                for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                    store combined[token] = sum(part.x) + bias[token];
                    store combined_weights[token] = sum(part.weights);
                }
            }
        }
    }
}
