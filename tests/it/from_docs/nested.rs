//! Loops nested three deep, over numbers and over tokens.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Multiplies two tables entry by entry, for all pairs of ranks, and counts which slots of the top-k
    /// lead to which rank.
    pub pipeline Pairs {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input
            a: i32[ranks, experts], b: i32[ranks, experts],
            topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output third: i32[ranks, ranks, experts], total: i64[ranks, ranks], pairs: i32[ranks, topk];

        role Multiply on all blocks, 4 warps {
            for i in ranks {
                for j in ranks {
                    for e in experts {
                        store third[i, j, e] = a[i, e] * b[j, e];
                    }
                    store total[i, j] = sum(e in experts: a[i, e] * b[j, e]);
                }
            }
        }
        role Count on all blocks, 4 warps, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    for slot in topk where topk_idx[token, slot] >= 0 && owner(topk_idx[token, slot]) == peer {
                        count pairs[peer, slot];
                    }
                }
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    let shape = [("ranks", 2), ("topk", 2), ("experts", 2), ("stripes", 2)];
    ByHand::of::<Pairs>(&shape)
        .rank(|rank| {
            rank.size("tokens", 3)
                .give("a", [2, 2], [1, 2, 3, 4])
                .give("b", [2, 2], [10, 20, 30, 40])
                .give("topk_idx", [3, 2], [0, 1, 1, 0, 0, -1])
                .give("expert_begin", [3], [0, 1, 2])
                .want("third", [10, 40, 30, 80, 30, 80, 90, 160])
                .want("total", [50, 110, 110, 250])
                .want("pairs", [2, 1, 1, 1])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("a", [2, 2], [1, 0, 0, 1])
                .give("b", [2, 2], [5, 6, 7, 8])
                .give("topk_idx", [1, 2], [1, 1])
                .give("expert_begin", [3], [0, 1, 2])
                .want("third", [5, 0, 7, 0, 0, 6, 0, 8])
                .want("total", [5, 7, 6, 8])
                .want("pairs", [0, 0, 1, 1])
        })
}
