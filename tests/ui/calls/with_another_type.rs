// A tensor of another element type, and one of another rank.
use ep_runtime::tensor::DeviceTensor;

ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        variant way { Long, Short }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

fn main() {
    let topk_idx: DeviceTensor<i32, 2> = DeviceTensor::default();
    let expert_begin: DeviceTensor<i32, 2> = DeviceTensor::default();
    tally::Inputs { topk_idx, expert_begin };
}
