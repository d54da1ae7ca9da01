//! A table that is spread over the ranks: rows are asked for over one ring, and come over another one.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Brings row `key[token]` of a table of which each rank has `entries` rows.
    pub pipeline RemoteLookup {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, entries: 1..=64 }
        size tokens;
        input key: i32[tokens] in 0..ranks * entries, rows: bf16[entries, hidden];
        output y: bf16[tokens, hidden];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 1 in [1, 8] }
        message Ask { entry: i32, token: i32 }
        message Answer { row x: bf16[hidden], token: i32 }
        channel asks: ring<Ask> over nvlink from Look to Serve per all {
            depth: depth, chunk: chunk, header: [count],
        };
        channel answers: ring<Answer> over nvlink from Serve to Take per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role Look on even blocks, 2 warps, warps shared by stripe {
            for peer in ranks {
                announce asks[peer] { count: sum(token in stripe: (key[token] / entries == peer) as i32) };
            }
            for token in stripe {
                push asks[key[token] / entries] { entry: key[token] % entries, token: token };
            }
        }
        role Serve[peer] on odd blocks, 4 warps {
            announce answers[peer] { count: asks[peer].count };
            for ask in asks[peer] {
                push answers[peer] { x: rows[ask.entry], token: ask.token };
            }
        }
        role Take[peer] on even blocks, 2 warps {
            for answer in answers[peer] {
                store y[answer.token] = answer.x;
            }
        }
    }
}

/// Entries 0 and 1 are on rank 0, entries 2 and 3 on rank 1.
pub(super) fn by_hand() -> ByHand {
    ByHand::of::<RemoteLookup>(&[("ranks", 2), ("hidden", 16), ("entries", 2)])
        .rank(|rank| {
            rank.size("tokens", 3)
                .give("key", [3], [3, 0, 3])
                .give("rows", [2, 16], [1.0, 2.0])
                .want("y", [4.0, 1.0, 4.0])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("key", [1], [1])
                .give("rows", [2, 16], [3.0, 4.0])
                .want("y", [2.0])
        })
}
