ep_runtime::pipeline! {
    /// Tells every rank how many tokens each rank has for each expert.
    pub pipeline GatherStats {
        shape { ranks: 1..=64, experts: 1..=4096 }
        input per_expert: i32[experts];
        output
            counts: i32[ranks, experts], total: i32[experts], before: i32[ranks, experts];
        message Stats { per_expert: i32[experts] }
        channel stats: slots<Stats> over nvlink from Share to Share per all { slot: [source], epochs: 2 };

        role Share on all blocks {
            for peer in ranks {
                push stats[peer] { per_expert: per_expert };
            }
            await stats;
            for expert in experts {
                for source in ranks {
                    store counts[source, expert] = stats[source].per_expert[expert];
                }
                store total[expert] = sum(source in ranks: stats[source].per_expert[expert]);
                store before[source, expert] = prefix_sum(source in ranks: stats[source].per_expert[expert]);
            }
        }
    }
}
