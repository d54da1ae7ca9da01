//- message_too_large
// The fields of a message never fit shared memory.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, pages: 65536..=131072 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        input
            x: bf16[tokens, hidden],
            weights: optional f32[tokens, topk],
            in_rank: bool[tokens, ranks],
            all: i32[tokens, pages],
            first_row: i32[ranks, stripes],
            num_rows: i32[ranks, stripes];
        output recv_x: bf16[received, hidden], recv_weights: optional f32[received, topk];
        table recv_src: i32[received], send_head: i32[tokens, ranks];
        message Token { row x: bf16[hidden], src: i32, all: i32[pages], weights: f32[topk] with weights }
        channel ring: ring<Token> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };
        role Send[peer] on even blocks {
            announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: x[token], src: token, all: all[token], weights: weights[token] };
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

//- no_room_for_the_warps
// Two roles need more warps than a block has.
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
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 32 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- shared_memory_exceeded
// A role needs more shared memory than any architecture has, for every shape.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, pages: 2048..=4096 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received = rows_for[me];
        input
            x: bf16[tokens, hidden],
            in_rank: bool[tokens, ranks],
            rows_for: i32[ranks],
            first_row: i32[ranks, stripes],
            all: i32[tokens, pages];
        output recv_x: bf16[received, hidden] in window;
        table recv_src: i32[received];
        message Token { row x: bf16[hidden], src: i32, all: i32[pages] }
        channel rows: direct<Token> over nvlink from Send, Local to Unpack per all;
        role Send on blocks 0..8, 32 warps, warps shared by token {
            for token in stripe {
                for peer in others where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token], src: token, all: all[token] };
                }
            }
        }
        role Local on other blocks, 8 warps, warps shared by token {
            for token in stripe where in_rank[token, me] {
                push rows[me] at first_row[me, stripe] { x: x[token], src: token, all: all[token] };
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

//- too_many_bits
// A set of bits is wider than a word for every legal shape.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024, wide: 65..=128 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        input node_bits: bits[wide][tokens];
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

//- too_many_warps
// A role needs more warps than a block has.
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
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 48 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}
