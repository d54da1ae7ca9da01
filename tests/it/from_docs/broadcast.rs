//! From one rank to all: who sends is an argument of the call.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends the rows of one rank to all.
    pub pipeline Broadcast {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=32 }
        size tokens in 0..=most;
        arg { root: i32 = 0 in 0..=1 }
        input x: bf16[tokens, hidden];
        output y: bf16[most, hidden], known: i32[ranks];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 8 in [1, 8] }
        message Row { row x: bf16[hidden], src: i32 }
        channel ring: ring<Row> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send[peer] on even blocks {
            announce ring[peer] { count: if me == root { sum(token in stripe: 1) } else { 0 } };
            for token in stripe where me == root {
                push ring[peer] { x: x[token], src: token };
            }
        }
        role Recv[peer] on odd blocks, 4 warps {
            for message in ring[peer] {
                store y[message.src] = message.x;
            }
        }
        role Note on odd blocks, 1 warps {
            for peer in ranks {
                store known[peer] = (peer == root) as i32;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<Broadcast>(&[("ranks", 2), ("hidden", 16), ("most", 2)])
        .set("root", 1)
        .rank(|rank| {
            rank.size("tokens", 0)
                .give("x", [0, 16], [0.0; 0])
                .want("y", [3.0, 4.0])
                .want("known", [0, 1])
        })
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [3.0, 4.0])
                .want("y", [3.0, 4.0])
                .want("known", [0, 1])
        })
}
