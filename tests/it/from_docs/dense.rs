//! A dense all-to-all, without a routing: the k-th row for a rank is its k-th row.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends row `k * ranks + r` to rank `r`.
    pub pipeline DenseByRange {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, each: 1..=16 }
        input x: bf16[ranks * each, hidden];
        output y: bf16[ranks * each, hidden];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 8 in [1, 8] }
        message Row { row x: bf16[hidden] }
        channel ring: ring<Row> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };

        role Send[peer] on even blocks {
            let step = ceil(each, stripes);
            let low = min(stripe * step, each);
            let high = min(low + step, each);
            announce ring[peer] { first: low, count: high - low };
            for k in low..high {
                push ring[peer] { x: x[k * ranks + peer] };
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] at peer * each + ring[peer].first {
                store y[message.row] = message.x;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<DenseByRange>(&[("ranks", 2), ("hidden", 16), ("each", 2)])
        .rank(|rank| rank.give("x", [4, 16], [1.0, 2.0, 3.0, 4.0]).want("y", [1.0, 3.0, 5.0, 7.0]))
        .rank(|rank| rank.give("x", [4, 16], [5.0, 6.0, 7.0, 8.0]).want("y", [2.0, 4.0, 6.0, 8.0]))
}
