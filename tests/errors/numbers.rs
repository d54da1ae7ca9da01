//- arg_default_out_of_range
// The default of an arg is not in its range.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        arg { alignment: i32 = 0 in 1..=128 }
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
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

//- arg_does_not_fit
// The range of an arg is wider than its type.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        arg { alignment: u8 = 1 in 1..=1000 }
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
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

//- arg_element_type
// An arg has an element type that no argument has.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        arg { alignment: bf16 = 1 in 1..=128 }
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
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

//- derived_before_its_number
// A derived name stands above the number it needs.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { let half = ceil(ranks, 2), ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- derived_from_a_size
// A number of the shape depends on a number of the call.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024, let pages = ceil(tokens, 64) }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- derived_from_itself
// A derived name is computed from itself.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024, let a = a + ranks }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- derived_recursion
// Two derived names are computed from each other.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024, let a = b + 1, let b = a + 1 }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- divisor_zero
// A derived name divides by a number that may be 0.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024, nodes: 0..=8, let local_ranks = ranks / nodes }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- several_mistakes
// Four independent mistakes are reported together.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 8 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
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
                push ring[peer] { x: x[token], weights: weights[token] };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on odd blocks, 40 warps {
            for message in ring[peer] at ring[peer].first {
                store recv_y[message.row] = message.x;
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- shape_contradictory
// No legal shape meets a condition.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024, require ranks > experts + 64 }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- shape_in_arm
// A number of the shape stands inside a `when`, beside a condition, which may.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            shape { extra: 1..=4, require stripes > 1 }
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
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

//- shape_negative
// A number of the shape may be negative.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: -1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- shape_range_empty
// A range of the shape holds no number.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 32..=1, experts: 1..=4096, stripes: 1..=1024 }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- shape_step_zero
// A range of the shape has no step.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 0, topk: 1..=32 }
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
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- shape_too_great
// A number of the shape needs more than 32 bits.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=5000000000, stripes: 1..=1024 }
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
                    count per_rank[peer];
                }
            }
        }
    }
}

//- size_in_arm
// A size stands inside a `when`.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            size extra;
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
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

//- tune_default_not_in_list
// The default of a tune is not one of its values.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 8 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
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
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- tune_not_ascending
// The values of a tune are out of order.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 12 in [12, 4], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
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
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- tune_value_twice
// A tune lists a value twice.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 12 in [4, 12, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
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
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- tune_without_values
// A tune has no values.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 12 in [], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
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
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- variant_in_arm
// A variant stands inside a `when`.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            variant inner { One, Two }
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
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

//- decimal_of_whole_arg
// An arg of whole numbers has a decimal default.
ep_runtime::pipeline! {
    pipeline Gate {
        shape { ranks: 1..=64 }
        arg { least: i32 = 0.5 in 0..=1 }
        output kept: i32[1];
        role Keep on block 0 { store kept[0] = least; }
    }
}
