//! A step of a butterfly: each rank adds the rows of the one whose number differs in one bit.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Adds the rows of the rank whose number differs in the bit of `step`, if there is such a rank.
    pub pipeline Butterfly {
        shape { ranks: 1..=64, hidden: 8..=4096 step 8, rows: 1..=64, step: 1..=32 }
        input x: bf16[rows, hidden];
        output y: bf16[rows, hidden];
        message Row { row x: bf16[hidden] }
        channel pairs: slots<Row> over nvlink from Send to Add per all { slot: [source, row: rows] };
        role Send on all blocks, 2 warps, warps shared by row {
            if bit_xor(me, step) < ranks {
                push pairs[bit_xor(me, step)] at row { x: x[row] };
            }
        }
        role Add on all blocks, 2 warps, warps shared by row {
            if bit_xor(me, step) < ranks {
                for message in pairs[bit_xor(me, step), row] { store y[row] = x[row] + message.x; }
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    let numbers = [("ranks", 3), ("hidden", 8), ("rows", 2), ("step", 1)];
    // The third rank's partner would be the fourth one.
    ByHand::of::<Butterfly>(&numbers)
        .rank(|rank| rank.give("x", [2, 8], [1.0, 2.0]).want("y", [5.0, 7.0]))
        .rank(|rank| rank.give("x", [2, 8], [4.0, 5.0]).want("y", [5.0, 7.0]))
        .rank(|rank| {
            rank.give("x", [2, 8], [8.0, 9.0]).want_where_written("y", [None::<f64>, None])
        })
}
