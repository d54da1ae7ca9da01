//! `notify`: how many rows come from where.

use crate::pipeline;

pipeline! {
    /// Exchanges the counts of all ranks and turns them into positions.
    ///
    /// `rank_prefix[source, dest]` is the first row of `source` in the output of `dest`, and
    /// `rank_prefix[ranks, dest]` the number of rows there; `stripe_prefix[peer, stripe]` is the
    /// first row of the stripe among those that this rank sends to `peer`.
    pub pipeline Notify {
        shape {
            ranks: 1..=64, experts: 1..=4096, stripes: 1..=1024,
            let local_experts = ceil(experts, ranks),
        }
        arg { alignment: i32 = 1 in 1..=65536 }
        uses handle super::Layout { stripe_tokens: i32[stripes, ranks] };
        input tokens_per_rank: i32[ranks], tokens_per_expert: i32[experts], expert_begin: i32[ranks + 1];
        table rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes];
        output received: i32[1] to host, received_per_expert: i32[local_experts] to host;

        message Totals { per_rank: i32[ranks], per_expert: i32[local_experts] }
        channel counts: slots<Totals> over nvlink from Exchange to Exchange per all { slot: [source], epochs: 2 };

        role Exchange on block 0 {
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
        role Stripes on other blocks {
            for peer in ranks {
                record stripe_prefix[peer, s] = prefix_sum(s in stripes: stripe_tokens[s, peer]);
            }
        }
    }
}
