//! `decode-combine`: returns few rows to their tokens and sums them, in one launch.

use crate::pipeline;
pub use decode_combine::*;

pipeline! {
    /// Sums the rows that the experts made of a token, in order of rank, and any bias, for few tokens.
    ///
    /// Rows are pushed to the ranks of their tokens, so nobody announces or fetches any. A slot for each
    /// token and rank takes memory; `nvl-combine` needs no slots and is for more tokens. Use
    /// `decode-combine` after a `decode-dispatch`.
    pub pipeline DecodeCombine {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32,
            max_tokens: 1..=1024,
            let max_rows = ranks * max_tokens,
        }
        size tokens in 0..=max_tokens;
        size received = rank_prefix[ranks, me];
        uses handle super::DecodeDispatch {
            rank_prefix: i32[ranks + 1, ranks], recv_src: i32[max_rows], send_row: i32[tokens, ranks],
        };
        input
            x: bf16[received, hidden],
            weights: optional f32[received, topk],
            bias: up to 2 bf16[tokens, hidden];
        output combined: bf16[tokens, hidden], combined_weights: optional f32[tokens, topk];
        // `words`: so many tokens of all ranks get their rows as words.
        tune {
            back_warps: 4 in [2, 4], sum_warps: 12 in [8, 12],
            words: 32 in [0, 16, 32, 64, 128, 256],
        }

        message Part { row x: bf16[hidden], weights: f32[topk] with weights }
        channel back: slots<Part> over nvlink from Send to Reduce per all {
            slot: [source, token: max_tokens], epochs: 2, few: words / ranks,
        };

        role Send on all blocks, back_warps warps, warps shared by source {
            for row in rank_prefix[source, me]..rank_prefix[source + 1, me] {
                push back[source] at recv_src[row] { x: x[row], weights: weights[row] };
            }
        }
        role Reduce on all blocks, sum_warps warps, warps shared by token {
            for token in tokens gather part from back[peer]
                at if send_row[token, peer] >= 0 { token } else { -1 } across peer in ranks
            {
                store combined[token] = sum(part.x) + bias[token];
                store combined_weights[token] = sum(part.weights);
            }
        }
    }
}
