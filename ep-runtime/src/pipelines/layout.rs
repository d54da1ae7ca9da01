//! `layout`: where this rank's tokens go.

use crate::pipeline;

pipeline! {
    /// Counts the tokens that go to each rank and each expert.
    ///
    /// A stripe is a slice of the tokens; what it sends to each rank is counted apart, so that
    /// every stripe of a dispatch knows where its rows go without asking another one.
    pub pipeline Layout {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output tokens_per_rank: i32[ranks], tokens_per_expert: i32[experts];
        table in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks];

        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    count tokens_per_expert[expert];
                }
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count tokens_per_rank[peer];
                    count stripe_tokens[stripe, peer];
                }
            }
        }
    }
}
