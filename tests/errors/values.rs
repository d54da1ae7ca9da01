//- values_none
// No value is in the range.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk] in experts..1, expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- values_not_whole
// A range of values is of floats.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending, weights: f32[tokens, topk] in 0..1;
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- values_of_a_size
// A size ends at an arg.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens in 0..most;
        arg { most: i32 = 4 in 1..=8 }
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- values_of_an_output
// An output has a range of values.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output per_rank: i32[ranks] in 0..experts;
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- values_up_to_me
// A range of values ends at what only a rank knows.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..me, expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- values_without_steps
// The steps of an ascending row go nowhere.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending by at most 0;
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}
