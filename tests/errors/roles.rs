//- binder_and_share
// The warps of a role are shared in two ways.
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
        role Send[peer] on even blocks, warps shared by stripe {
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

//- blocks_empty
// A role runs on no blocks.
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
        role Send on blocks 8..0, 8 warps, warps shared by token {
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
        role Unpack on other blocks, 4 warps, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- blocks_not_covered
// No role runs on the odd blocks.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on even blocks, warps shared by stripe {
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

//- blocks_with_a_gap
// No role runs on the blocks between two roles.
ep_runtime::pipeline! {
    pipeline Chain {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
        output back: bf16[received, hidden];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel here: ring<Row> over nvlink from Far to Home per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on blocks 0..8 {
            announce there[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe {
                push there[peer] { x: x[token] };
            }
        }
        role Far[peer] on blocks 12..16 {
            announce here[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in there[peer] {
                push here[peer] { x: message.x };
            }
        }
        role Home[peer] on blocks 16..24 {
            for message in here[peer] at here[peer].first {
                store back[message.row] = message.x;
            }
        }
    }
}

//- no_role
// A pipeline does nothing.
ep_runtime::pipeline! {
    pipeline Nothing {
        shape { ranks: 1..=64 }
        input counts: i32[ranks];
    }
}

//- no_roles_in_arm
// One arm has no role.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        when via is Plain {
            output copy: f32[tokens, hidden];
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
                }
            }
        }
    }
}

//- no_stripe
// A role that shares no stripes names the stripe.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on all blocks, one block a token {
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

//- no_stripes
// Nothing says how many stripes there are.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16 }
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
        when via is Twice {
            role Doubled on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token] + x[token];
                }
            }
        }
    }
}

//- other_than_nothing
// A role runs on other blocks, and no role runs on named ones.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on other blocks, warps shared by stripe {
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

//- token_with_others
// Tokens are shared beside another index.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on all blocks, warps shared by (stripe, token) {
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

//- two_roles_on_the_same_warps
// Two roles run on the same warps.
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
        role Send[peer] on all blocks, 8 warps {
            announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: x[token], src: token, weights: weights[token] };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on even blocks {
            for message in ring[peer] at ring[peer].first {
                store recv_x[message.row] = message.x;
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- warps_none
// A role has no warps.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle super::Dispatch { send_row: i32[tokens, ranks] };
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 0 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}
