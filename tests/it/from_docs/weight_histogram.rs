//! Sums by expert: of floats in order of the tokens, and into what the caller keeps from call to call.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Adds up the weights that each expert gets, and counts the calls that gave it any.
    pub pipeline WeightSum {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096 }
        size tokens in 1..=64;
        input topk_idx: i64[tokens, topk] in -1..experts, weights: f32[tokens, topk];
        inout calls: i64[experts];
        output weight_of: f32[experts], tokens_of: i32[experts];

        role Count on all blocks {
            for expert in experts {
                store weight_of[expert] = sum(token in tokens:
                    sum(slot in topk: if topk_idx[token, slot] == expert { weights[token, slot] } else { 0 as f32 }));
                store tokens_of[expert] = sum(token in tokens: sum(slot in topk: (topk_idx[token, slot] == expert) as i32));
                add calls[expert] = listed(topk_idx[0], expert) as i32;
            }
        }
    }
}

/// Two calls: what is kept has what both have added.
pub(super) fn by_hand() -> ByHand {
    ByHand::of::<WeightSum>(&[("ranks", 2), ("topk", 2), ("experts", 3)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("topk_idx", [2, 2], [0, 2, 2, -1])
                .give("weights", [2, 2], [0.5, 0.25, 1.0, 7.0])
                .give("calls", [3], [10, 20, 30])
                .want("weight_of", [0.5, 0.0, 1.25])
                .want("tokens_of", [1, 0, 2])
                .want("calls", [11, 20, 31])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 2], [1, 1])
                .give("weights", [1, 2], [0.5, 0.25])
                .give("calls", [3], [1, 2, 3])
                .want("weight_of", [0.0, 0.75, 0.0])
                .want("tokens_of", [0, 2, 0])
                .want("calls", [1, 3, 3])
        })
}
