//! Sequence parallelism: ranks that hold all heads of some tokens come to hold some heads of all tokens.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Head group `peer` of each token goes to rank `peer`, behind the tokens of the ranks before.
    pub pipeline HeadsForTokens {
        shape { ranks: 1..=64, head_bytes: 16..=4096 step 16 }
        size tokens;
        size all_tokens = begins[ranks];
        input q: bf16[tokens, ranks, head_bytes];
        uses handle TokenCounts { begins: i32[ranks + 1] };
        output heads: bf16[all_tokens, head_bytes] in window;
        output from: i32[all_tokens];
        tune { stripes: 4 in [1, 2, 4, 8] }
        message Head { row q: bf16[head_bytes], token: i32 }
        channel heads_of: direct<Head> over nvlink from Send to Take per all;

        role Send on all blocks, 4 warps, warps shared by token {
            for token in stripe {
                for peer in ranks {
                    let first = begins[me] + stripe.first;
                    push heads_of[peer] at first { q: q[token, peer], token: token };
                }
            }
        }
        role Take on all blocks, 4 warps, warps shared by (source, stripe) {
            for head in heads_of[source] {
                store heads[head.row] = head.q;
                store from[head.row] = head.source * 1000 + head.token;
            }
        }
    }

    /// Where the tokens of each rank begin among those of all.
    pub pipeline TokenCounts {
        shape { ranks: 1..=64 }
        size tokens;
        table begins: i32[ranks + 1];
        message Count { tokens: i32 }
        channel counts: slots<Count> over nvlink from Tell to Tell per all { slot: [source], epochs: 2 };
        role Tell on block 0 {
            for peer in ranks { push counts[peer] { tokens: tokens }; }
            await counts;
            record begins[source] = prefix_sum(source in ranks: counts[source].tokens);
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<HeadsForTokens>(&[("ranks", 2), ("head_bytes", 16), ("stripes", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("q", [2, 2, 16], [1.0, 2.0, 3.0, 4.0])
                .want("heads", [1.0, 3.0, 5.0])
                .want("from", [0, 1, 1000])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("q", [1, 2, 16], [5.0, 6.0])
                .want("heads", [2.0, 4.0, 6.0])
                .want("from", [0, 1, 1000])
        })
}
