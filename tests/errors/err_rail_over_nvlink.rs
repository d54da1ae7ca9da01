// A channel along the rail goes over NVLink.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64, nodes: 2..=8 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over nvlink from Swap to Swap per rail { slot: [source], epochs: 2 };
        role Swap on block 0 {
            for peer in nodes {
                push counts[peer] { rows: tokens_per_rank[me] };
            }
            await counts;
            for source in ranks {
                store received[source] = counts[source].rows;
            }
        }
    }
}

fn main() {}
