//! A role that takes from one ring and sends into another: a dispatch, an expert that doubles rows, and the
//! way back, in one kernel.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends each token to one rank, doubles its row there, and brings it back to where it was.
    pub pipeline Bounce {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        input x: bf16[tokens, hidden], to: i32[tokens] in 0..ranks;
        output y: bf16[tokens, hidden], came_from: i32[tokens];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        message Ask { row x: bf16[hidden], src: i32 }
        message Answer { row x: bf16[hidden], src: i32, worker: i32 }
        channel there: ring<Ask> over nvlink from Send to Expert per all {
            depth: depth, chunk: chunk, header: [count],
        };
        channel back: ring<Answer> over nvlink from Expert to Collect per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Send[peer] on all blocks, 4 warps {
            announce there[peer] { count: sum(token in stripe: (to[token] == peer) as i32) };
            for token in stripe where to[token] == peer {
                push there[peer] { x: x[token], src: token };
            }
        }
        role Expert[peer] on all blocks, 4 warps {
            announce back[peer] { count: there[peer].count };
            for message in there[peer] {
                push back[peer] { x: message.x * (2 as f32), worker: me, ..message };
            }
        }
        role Collect[peer] on all blocks, 4 warps {
            for message in back[peer] {
                store y[message.src] = message.x;
                store came_from[message.src] = message.worker;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<Bounce>(&[("ranks", 2), ("hidden", 16)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [1.0, 2.0])
                .give("to", [2], [1, 0])
                .want("y", [2.0, 4.0])
                .want("came_from", [1, 0])
        })
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("x", [2, 16], [3.0, -4.0])
                .give("to", [2], [0, 0])
                .want("y", [6.0, -8.0])
                .want("came_from", [0, 0])
        })
}
