//! `layout`: computes where tokens go, and the positions of their rows.

use crate::pipeline;
pub use layout::*;

pipeline! {
    /// Counts the tokens for each rank and each expert, exchanges the counts and computes positions.
    ///
    /// A stripe is a slice of the tokens. The rows that it sends to each rank are counted separately, so
    /// every stripe of a dispatch knows the positions of its rows without asking another stripe.
    /// `rank_prefix[source, dest]` is the first row of `source` in the output of `dest`, and
    /// `rank_prefix[ranks, dest]` the number of rows there. `stripe_prefix[peer, stripe]` is the first row
    /// of the stripe among those that this rank sends to `peer`.
    pub pipeline Layout {
        shape {
            ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024,
            let local_experts = ceil(experts, ranks),
        }
        size tokens;
        arg { alignment: i32 = 1 in 1..=65536 }
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        table tokens_per_rank: i32[ranks], tokens_per_expert: i32[experts];
        table in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks];
        table rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes];
        output received: i32[1] to host, received_per_expert: i32[local_experts] to host;

        message Totals { per_rank: i32[ranks], per_expert: i32[local_experts] }
        channel counts: slots<Totals> over nvlink from Exchange to Exchange per all { slot: [source], epochs: 2 };

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
        role Exchange on last block, 4 warps {
            for peer in ranks {
                push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert, peer) };
            }
            await counts;
            for expert in local_experts {
                store received_per_expert[expert] = align(sum(source in ranks: counts[source].per_expert[expert]), alignment);
            }
            store received[0] = sum(source in ranks: counts[source].per_rank[me]);
            for dest in ranks {
                record rank_prefix[source, dest] = prefix_sum(source in ranks: counts[source].per_rank[dest]);
            }
        }
        role Stripes on last block, 4 warps {
            for peer in ranks {
                record stripe_prefix[peer, s] = prefix_sum(s in stripes: stripe_tokens[s, peer]);
            }
        }
    }
}
