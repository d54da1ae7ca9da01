//! A combine that weighs the parts of a token: each rank's row times the token's own factor for that rank.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Adds up the rows that the ranks offer for a token, each times the token's own weight for that rank.
    pub pipeline ScaledPull {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size rows in 1..=16;
        input
            x: bf16[rows, hidden] in window, row_of: i32[tokens, ranks] in -1..rows, scale: f32[tokens, ranks];
        output combined: f32[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;

        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at row_of[token, peer] across peer in ranks {
                store combined[token] = sum(part.x * scale[token, peer]);
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<ScaledPull>(&[("ranks", 2), ("hidden", 16)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .size("rows", 2)
                .give("x", [2, 16], [1.0, 2.0])
                .give("row_of", [2, 2], [0, 0, 1, -1])
                .give("scale", [2, 2], [0.5, 2.0, 4.0, 8.0])
                .want("combined", [6.5, 8.0])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .size("rows", 2)
                .give("x", [2, 16], [3.0, 5.0])
                .give("row_of", [1, 2], [1, 0])
                .give("scale", [1, 2], [1.0, -1.0])
                .want("combined", [-1.0])
        })
}
