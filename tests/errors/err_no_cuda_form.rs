// Warps that share stripes add to one element, and nothing orders them.
ep_runtime::pipeline! {
    pipeline Weights {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=64, stripes: 1..=64 }
        size tokens;
        input topk_idx: i64[tokens, topk], weights: f32[tokens];
        inout heaviest: f32[experts];
        role Weigh on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    add heaviest[expert] = weights[token];
                }
            }
        }
    }
}

fn main() {}
