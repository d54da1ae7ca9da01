// A loop deeper than those that a kernel is written for.
ep_runtime::pipeline! {
    pipeline Hits {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=64, stripes: 1..=64 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        table hit: bool[tokens, ranks, experts];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    for expert in experts {
                        record hit[token, peer, expert] = routed(topk_idx[token], peer);
                    }
                }
            }
        }
    }
}

fn main() {}
