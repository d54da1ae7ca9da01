//! A combine over the ranks of this node alone.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Adds up the rows that the ranks of this node offer for a token.
    pub pipeline LocalSum {
        shape {
            ranks: 1..=64, local_ranks: 1..=64, hidden: 16..=32768 step 16,
            require local_ranks == ranks,
        }
        size tokens;
        size rows in 1..=16;
        input x: bf16[rows, hidden] in window, row_of: i32[tokens, ranks] in -1..rows;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;

        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at row_of[token, peer] across peer in local {
                store combined[token] = sum(part.x);
            }
        }
    }
}

/// All ranks are of one node here.
pub(super) fn by_hand() -> ByHand {
    ByHand::of::<LocalSum>(&[("ranks", 2), ("local_ranks", 2), ("hidden", 16)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .size("rows", 1)
                .give("x", [1, 16], [1.0])
                .give("row_of", [2, 2], [0, 0, -1, 0])
                .want("combined", [4.0, 3.0])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .size("rows", 1)
                .give("x", [1, 16], [3.0])
                .give("row_of", [1, 2], [0, -1])
                .want("combined", [1.0])
        })
}
