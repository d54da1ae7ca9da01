//! A count that nobody else sees, used further down in the same role.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Counts the experts of each token, here and elsewhere, and says which tokens are heavy.
    pub pipeline Fanout {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        arg { heavy_from: i32 = 4 in 1..=32 }
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending;
        table valid: i32[tokens], away: i32[tokens], heavy: bool[tokens], stay: i32[tokens];

        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                let all = sum(slot in topk: (topk_idx[token, slot] >= 0) as i32);
                let here = sum(slot in topk: (local(topk_idx[token, slot], me) >= 0) as i32);
                record valid[token] = all;
                record away[token] = all - here;
                record heavy[token] = all >= heavy_from;
                record stay[token] = here;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    let shape = [("ranks", 2), ("topk", 3), ("experts", 4), ("stripes", 2)];
    ByHand::of::<Fanout>(&shape)
        .set("heavy_from", 3)
        .rank(|rank| {
            rank.size("tokens", 3)
                .give("topk_idx", [3, 3], [0, 1, 2, 3, -1, -1, 2, 0, -1])
                .give("expert_begin", [3], [0, 2, 4])
                .want("valid", [3, 1, 2])
                .want("away", [1, 1, 1])
                .want("heavy", [1, 0, 0])
                .want("stay", [2, 0, 1])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 3], [0, 2, 3])
                .give("expert_begin", [3], [0, 2, 4])
                .want("valid", [3])
                .want("away", [1])
                .want("heavy", [1])
                .want("stay", [2])
        })
}
