//- count_a_row
// A count goes to a whole row.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank;
                }
            }
        }
    }
}

//- cuda_fn_argument_type
// A function is given an argument of another type.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ float twice(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token, 0] = twice(token);
            }
        }
    }
}

//- cuda_fn_arguments
// A function is given too many arguments.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ float twice(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = twice(x[token], 2);
            }
        }
    }
}

//- helper_argument_type
// A helper is given a number instead of a row.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token, 0], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- helper_arguments
// A helper is given too few arguments.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token]) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- index_not_whole
// A row stands where an index is needed.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[topk_idx[token]];
                }
            }
        }
    }
}

//- index_of_a_sum
// A sum is indexed.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input per_topk: i32[ranks], topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where (per_topk + 1)[peer] > 0 {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- index_of_another_extent
// Two indices are swapped.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[peer, token] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- loop_over_a_tensor
// A loop runs over a tensor of two extents.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in topk_idx {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- loop_over_an_element
// A loop runs over a single element.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in topk_idx[token, 0] {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- too_many_indices
// A tensor is given more indices than it has extents.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer, 0];
                }
            }
        }
    }
}

//- unknown_field
// A message has no such field.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        input
            x: bf16[tokens, hidden],
            weights: optional f32[tokens, topk],
            in_rank: bool[tokens, ranks],
            first_row: i32[ranks, stripes],
            num_rows: i32[ranks, stripes];
        output recv_x: bf16[received, hidden], recv_weights: optional f32[received, topk];
        table recv_src: i32[received], send_head: i32[tokens, ranks];
        message Token { row x: bf16[hidden], src: i32, weights: f32[topk] with weights }
        channel ring: ring<Token> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };
        role Send[peer] on even blocks {
            announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: x[token], src: token, weights: weights[token] };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] at ring[peer].first {
                store recv_x[message.row] = message.x;
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.source_token;
            }
        }
    }
}

//- wrong_extent
// A row of another length is stored.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden], y: f32[tokens, stripes];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = y[token];
                }
            }
        }
        when via is Twice {
            role Doubled on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token] + x[token];
                }
            }
        }
    }
}

//- wrong_rank
// A row is stored where one element is declared.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = topk_idx[token];
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- field_of_stripe
// A stripe has a first row and a number of rows.
ep_runtime::pipeline! {
    pipeline Numbered {
        shape { ranks: 1..=64, stripes: 1..=64 }
        size tokens;
        output number: i32[tokens];
        role Count on all blocks, warps shared by stripe {
            for token in stripe { store number[token] = token - stripe.begin; }
        }
    }
}

//- stripe_of_nothing
// The rows of a stripe are rows of some size.
ep_runtime::pipeline! {
    pipeline Numbered {
        shape { ranks: 1..=64, stripes: 1..=64 }
        output first: i32[stripes];
        role Count on all blocks, warps shared by stripe { store first[stripe] = stripe.first; }
    }
}

//- bare_part
// A part of a gather where one value is wanted.
ep_runtime::pipeline! {
    pipeline Ahead {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size rows;
        input x: bf16[rows, hidden] in window, row_of: i32[tokens, ranks];
        output y: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Fetch per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Fetch on all blocks, 8 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at row_of[token, peer] across peer in ranks {
                store y[token] = part.x;
            }
        }
    }
}

//- bare_peer
// The peer of a part where one value is wanted.
ep_runtime::pipeline! {
    pipeline Ahead {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size rows;
        input x: bf16[rows, hidden] in window, row_of: i32[tokens, ranks];
        output y: bf16[tokens, hidden], from: i32[tokens];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Fetch per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Fetch on all blocks, 8 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at row_of[token, peer] across peer in ranks {
                store y[token] = first(part.x);
                store from[token] = peer;
            }
        }
    }
}
