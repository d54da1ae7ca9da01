//- not_a_tensor
// A statement writes to a number.
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
                    count ranks;
                }
            }
        }
    }
}

//- share_unknown
// Warps share something that does not exist.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table recv_src: i32[received];
        message Token { row x: bf16[hidden], src: i32 }
        channel rows: direct<Token> over nvlink from Send, Local to Unpack per all;
        role Send on blocks 0..8, 8 warps, warps shared by token {
            for token in stripe {
                for peer in others where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token], src: token };
                }
            }
        }
        role Local on other blocks, 8 warps, warps shared by token {
            for token in stripe where in_rank[token, me] {
                push rows[me] at first_row[me, stripe] { x: x[token], src: token };
            }
        }
        role Unpack on other blocks, 4 warps, warps shared by (sauce, stripe) {
            for message in rows[sauce] {
                store recv_x[message.row] = message.x;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- unknown_channel
// A statement pushes to a channel that nothing declares.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over nvlink from Swap to Swap per all { slot: [source], epochs: 2 };
        role Swap on block 0 {
            for peer in ranks {
                push cuonts[peer] { rows: tokens_per_rank[peer] };
            }
            await counts;
            for source in ranks {
                store received[source] = counts[source].rows;
            }
        }
    }
}

//- unknown_element_type
// A tensor has an element type that does not exist.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: int32[ranks];
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

//- unknown_extent
// An extent names a number that nothing declares.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[rank_count];
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

//- unknown_helper
// An expression calls a helper that does not exist.
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
                for peer in ranks where ruoted(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- unknown_message
// A channel carries a message that nothing declares.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Count> over nvlink from Swap to Swap per all { slot: [source], epochs: 2 };
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

//- unknown_name
// An expression names something that nothing declares.
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
                    record in_rank[token, peer] = routed(topk_ids[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- unknown_role
// A channel goes to a role that nothing declares.
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
        channel ring: ring<Token> over nvlink from Send to Receive per all {
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

//- unknown_tensor
// A statement writes to a tensor that nothing declares.
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
                    count per_rnak[peer];
                }
            }
        }
    }
}

//- unknown_variant
// A `when` names a variant that nothing declares.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
                }
            }
        }
        when vai is Twice {
            role Doubled on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token] + x[token];
                }
            }
        }
    }
}

//- variant_arm_missing
// A `when` names an arm that its variant does not have.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Thrice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
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

//- fragment_misspelt
// A call names no fragment.
ep_runtime::pipeline! {
    fragment fill(to: tensor) {
        for rank in ranks { store to[rank] = rank; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks { fil(y); }
    }
}

//- fragment_of_declarations_misspelt
// A `use` names no fragment.
ep_runtime::pipeline! {
    pipeline Copy {
        shape { ranks: 1..=64, rows: 1..=64 }
        use paylod;
        input x: i32[rows];
        output y: i32[rows];
        role All on all blocks, warps shared by row {
            store y[row] = x[row];
        }
    }
}

//- argument_unknown
// A tensor of a call stands for nothing.
ep_runtime::pipeline! {
    fragment fill(to: tensor) {
        for rank in ranks { store to[rank] = rank; }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output totals: i32[ranks];
        role All on all blocks { fill(total); }
    }
}
