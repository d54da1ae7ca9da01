//! The gate of [`super::gate`], written with fragments of a file and of the block.

use super::by_hand::ByHand;
use super::gate;
use ep_runtime::pipeline;

pipeline! {
    fragments from "inputs/fragments/gate.pipe";

    fragment take(message: message, from: value, row: tensor, weight: tensor) {
        store row[from, message.token] = message.x;
        store weight[from, message.token] = message.weight;
    }

    /// Sends each token to the ranks whose gate is open for it, with half of its weight.
    pub pipeline SharedGate {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=32 }
        use gated;
        arg { threshold: f32 = 0.25 in 0..=1 }
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        channel ring: ring<Row> over nvlink from Send to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send[peer] on even blocks, 4 warps {
            announce ring[peer] { count: sum(token in stripe: (gate[token, peer] >= threshold) as i32) };
            each_open(gate, token, peer, threshold, {
                push ring[peer] { x: x[token], token: token, weight: 0.5 * gate[token, peer] };
            });
        }
        role Drop on even blocks, 1 warps {
            // The fragment has a `peer` and a `closed` of its own.
            for peer in tokens {
                let closed = peer;
                count_closed(gate, closed, threshold, dropped);
            }
        }
        role Take[peer] on odd blocks, 4 warps {
            for message in ring[peer] {
                take(message, peer, y, weight);
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    gate::calls(ByHand::of::<SharedGate>(&[("ranks", 2), ("hidden", 16), ("most", 2)]))
}
