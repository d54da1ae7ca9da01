//! Sums that are spread over the ranks: each one tells every other its share of the numbers, and adds up what
//! it is told.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Leaves on each rank the sum over all ranks of the numbers that are for it.
    pub pipeline ReduceScatter {
        shape { ranks: 1..=64, width: 1..=256 }
        input x: f32[ranks, width], weight: f32[1];
        output y: f32[width], total: f32[1];
        message Share { values: f32[width], weight: f32 }
        channel shares: slots<Share> over nvlink from Reduce to Reduce per all { slot: [source], epochs: 2 };

        role Reduce on block 0 {
            for peer in ranks {
                push shares[peer] { values: x[peer], weight: weight[0] };
            }
            await shares;
            for i in width {
                store y[i] = sum(source in ranks: shares[source].values[i] * shares[source].weight);
            }
            store total[0] = sum(source in ranks: shares[source].weight);
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<ReduceScatter>(&[("ranks", 2), ("width", 2)])
        .rank(|rank| {
            rank.give("x", [2, 2], [1.0, 2.0, 3.0, 4.0])
                .give("weight", [1], [1.0])
                .want("y", [11.0, 14.0])
                .want("total", [3.0])
        })
        .rank(|rank| {
            rank.give("x", [2, 2], [5.0, 6.0, 7.0, 8.0])
                .give("weight", [1], [2.0])
                .want("y", [17.0, 20.0])
                .want("total", [3.0])
        })
}
