//! Sums that are spread over the ranks: each share goes round from neighbor to neighbor, and each rank adds its own.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Leaves on each rank the sum over all ranks of the rows that are for it.
    pub pipeline ReduceScatter {
        shape { ranks: 2..=64, hidden: 16..=32768 step 16, rows: 1..=8192, let steps = ranks - 1 }
        input x: f32[ranks, rows, hidden];
        output y: f32[rows, hidden];
        message Share { row x: f32[hidden] }
        channel hop: slots<Share> over nvlink from Pass to Pass per all { slot: [step: steps, row: rows], epochs: 2 };

        role Pass on all blocks, 8 warps, warps shared by row {
            push hop[(me + 1) % ranks] at [0, row] { x: x[(me + steps) % ranks, row] };
            for step in 1..ranks {
                for share in hop[step - 1, row] {
                    for once in 0..1 where step < steps {
                        push hop[(me + 1) % ranks] at [step, row] {
                            x: share.x + x[(me + steps - step) % ranks, row],
                        };
                    }
                    for once in 0..1 where step == steps {
                        store y[row] = share.x + x[me, row];
                    }
                }
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<ReduceScatter>(&[("ranks", 3), ("hidden", 16), ("rows", 1)])
        .rank(|rank| rank.give("x", [3, 1, 16], [1.0, 2.0, 3.0]).want("y", [111.0]))
        .rank(|rank| rank.give("x", [3, 1, 16], [10.0, 20.0, 30.0]).want("y", [222.0]))
        .rank(|rank| rank.give("x", [3, 1, 16], [100.0, 200.0, 300.0]).want("y", [333.0]))
}
