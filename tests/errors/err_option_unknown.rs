// A channel has an option that its kind does not have.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over nvlink from Swap to Swap per all { slot: [source], depth: 2 };
        role Swap on block 0 {
            for peer in ranks {
                push counts[peer] { rows: tokens_per_rank[peer] };
            }
            await counts;
            for source in ranks {
                store received[source] = counts[source].rows;
            }
        }
    }
}

fn main() {}
