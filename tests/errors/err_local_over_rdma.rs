// A channel inside a node goes over a network.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64, local_ranks: 1..=8 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over rdma from Swap to Swap per local { slot: [source], epochs: 2 };
        role Swap on block 0 {
            for peer in local {
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
