//! A gate that drops rows: what is below a threshold does not travel.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends each token to the ranks whose gate is open for it, with half of its weight.
    pub pipeline Gate {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=32 }
        size tokens in 0..=most;
        arg { threshold: f32 = 0.25 in 0..=1 }
        input x: bf16[tokens, hidden], gate: f32[tokens, ranks];
        output y: bf16[ranks, most, hidden], weight: f32[ranks, most], dropped: i32[tokens];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        message Row { row x: bf16[hidden], token: i32, weight: f32 }
        channel ring: ring<Row> over nvlink from Send to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send[peer] on even blocks, 4 warps {
            announce ring[peer] { count: sum(token in stripe: (gate[token, peer] >= threshold) as i32) };
            for token in stripe where gate[token, peer] >= threshold {
                push ring[peer] { x: x[token], token: token, weight: 0.5 * gate[token, peer] };
            }
        }
        role Drop on even blocks, 1 warps {
            for token in tokens {
                store dropped[token] = sum(peer in ranks: (gate[token, peer] < threshold) as i32);
            }
        }
        role Take[peer] on odd blocks, 4 warps {
            for message in ring[peer] {
                store y[peer, message.token] = message.x;
                store weight[peer, message.token] = message.weight;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    calls(ByHand::of::<Gate>(&[("ranks", 2), ("hidden", 16), ("most", 2)]))
}

/// What two ranks give a gate, and what it leaves.
pub(super) fn calls(gate: ByHand) -> ByHand {
    gate.set("threshold", 0.1)
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [1.0, 2.0])
                .give("gate", [2, 2], [0.5, 0.0625, 0.75, 0.25])
                .want_where_written("weight", [Some(0.25), Some(0.375), None, None])
                .want("dropped", [1, 0])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("x", [1, 16], [3.0])
                .give("gate", [1, 2], [0.0, 1.0])
                .want_where_written("weight", [None, Some(0.125), Some(0.5), None])
                .want("dropped", [1])
        })
}
