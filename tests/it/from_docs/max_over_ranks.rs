//! The greatest and the least over all ranks: each one tells every other its numbers, and folds what it is told.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Leaves on each rank the greatest and the least of the weighted numbers of all ranks.
    pub pipeline MaxOverRanks {
        shape { ranks: 1..=64, width: 1..=256 }
        input x: f32[width], weight: f32[1];
        output most: f32[width], least: f32[width], total: f32[1];
        message Share { values: f32[width], weight: f32 }
        channel shares: slots<Share> over nvlink from Fold to Fold per all { slot: [source], epochs: 2 };

        role Fold on block 0 {
            for peer in ranks {
                push shares[peer] { values: x, weight: weight[0] };
            }
            await shares;
            for i in width {
                store most[i] = max(source in ranks: shares[source].values[i] * shares[source].weight);
                store least[i] = min(source in ranks: shares[source].values[i] * shares[source].weight);
            }
            store total[0] = sum(source in ranks: shares[source].weight);
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<MaxOverRanks>(&[("ranks", 2), ("width", 2)])
        .rank(|rank| {
            rank.give("x", [2], [-1.0, 4.0])
                .give("weight", [1], [1.0])
                .want("most", [-1.0, 6.0])
                .want("least", [-4.0, 4.0])
                .want("total", [3.0])
        })
        .rank(|rank| {
            rank.give("x", [2], [-2.0, 3.0])
                .give("weight", [1], [2.0])
                .want("most", [-1.0, 6.0])
                .want("least", [-4.0, 4.0])
                .want("total", [3.0])
        })
}
