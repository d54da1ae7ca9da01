//! `spread-combine`: returns each row that the experts of a rank made to its token unchanged, in one
//! launch.

use super::packed_dispatch::PackedDispatch;
use crate::pipeline;
pub use spread_combine::*;

pipeline! {
    /// Sums the weighted rows that the experts made of a token, in order of choice, for few tokens.
    ///
    /// Use it after a `packed-dispatch`. Only the token's rank needs the weights. If the ranks of the
    /// experts have the weights, `merge-combine` sends one row per rank where this pipeline sends one per
    /// expert.
    pub pipeline SpreadCombine {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096,
            max_tokens: 1..=8192,
            let local_experts = ceil(experts, ranks),
            let max_rows = ranks * max_tokens,
        }
        size tokens in 0..=max_tokens;
        uses handle PackedDispatch {
            rank_prefix: i32[ranks + 1, ranks], recv_src: i32[max_rows], packed_row: i32[max_rows, topk],
        };
        input
            x: bf16[local_experts * max_rows, hidden],
            topk_idx: i64[tokens, topk] in -1..experts,
            topk_weights: f32[tokens, topk],
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output combined: bf16[tokens, hidden];
        tune { back_warps: 8 in [4, 8], sum_warps: 8 in [4, 8] }

        message Part { row x: bf16[hidden] }
        channel back: slots<Part> over nvlink from Send to Reduce per all {
            slot: [token: max_tokens, choice: topk], epochs: 2,
        };

        role Send on all blocks, back_warps warps, warps shared by source {
            for row in rank_prefix[source, me]..rank_prefix[source + 1, me] {
                for choice in topk where packed_row[row, choice] >= 0 {
                    push back[source] at [recv_src[row], choice] { x: x[packed_row[row, choice]] };
                }
            }
        }
        role Reduce on all blocks, sum_warps warps, warps shared by token {
            // Entries of a token that name one expert have a slot together, and count together.
            for token in tokens gather part from back[owner(topk_idx[token, choice])]
                at [token, (choice + 1) * (topk_idx[token, choice] >= 0
                    && sum(earlier in 0..choice: (topk_idx[token, earlier] == topk_idx[token, choice]) as i32) == 0) as i32 - 1]
                across choice in topk
            {
                store combined[token] = sum(
                    sum(entry in topk: topk_weights[token, entry] * (topk_idx[token, entry] == topk_idx[token, choice]) as f32)
                        * part.x as f32) as bf16;
            }
        }
    }
}
