//- announce_below_if
// A channel is announced only where a condition holds.
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
            if num_rows[peer, stripe] > 0 {
                announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            }
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

//- announce_in_loop
// A channel is announced again for each token.
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
            for token in stripe where in_rank[token, peer] {
                announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
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

//- gather_not_across
// A gather takes every part from one peer.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        uses handle super::Dispatch {
            send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes],
        };
        input x: bf16[received, hidden];
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel ring: ring<Part> over nvlink from Send to Recv per all { depth: depth, chunk: chunk };
        role Send[peer] on even blocks {
            for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer, stripe] {
                push ring[peer] { x: x[row] };
            }
        }
        role Recv on odd blocks, warps shared by token {
            for token in stripe gather part from ring[me] at send_head[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- gather_position_not_recorded
// A gather looks up a table that holds no positions.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = token;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle Dispatch;
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;
        role Offer on block 0, 1 warps {
            push parts { x: x };
        }
        role Reduce on all blocks, 15 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- gather_position_of_one_peer
// A gather looks up one position for all peers.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        uses handle super::Dispatch {
            send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes],
        };
        input x: bf16[received, hidden];
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel ring: ring<Part> over nvlink from Send to Recv per all { depth: depth, chunk: chunk };
        role Send[peer] on even blocks {
            for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer, stripe] {
                push ring[peer] { x: x[row] };
            }
        }
        role Recv on odd blocks, warps shared by token {
            for token in stripe gather part from ring[peer] at send_head[token, me] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- gather_without_table
// A gather has no table of positions.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        uses handle super::Dispatch {
            send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes],
        };
        input x: bf16[received, hidden];
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel ring: ring<Part> over nvlink from Send to Recv per all { depth: depth, chunk: chunk };
        role Send[peer] on even blocks {
            for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer, stripe] {
                push ring[peer] { x: x[row] };
            }
        }
        role Recv on odd blocks, warps shared by token {
            for token in stripe gather part from ring[peer] at token across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- handle_does_not_match
// A combine gathers from a ring at the positions of a direct dispatch.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token] };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
        }
        role Unpack on other blocks, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
            }
        }
    }

    pipeline Combine {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        uses handle Dispatch;
        input x: bf16[received, hidden] in window;
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: ring<Part> over nvlink from Offer to Reduce per all { depth: 64, chunk: 8 };
        role Offer[peer] on even blocks {
            for row in 0..received {
                push parts[peer] { x: x[row] };
            }
        }
        role Reduce on odd blocks, warps shared by token {
            for token in stripe gather part from parts[peer] at send_row[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- header_not_announced
// Nobody announces the header of a ring.
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

//- position_before_push
// A position is read before the push that has it.
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
                record send_head[token, peer] = ring[peer].position;
                push ring[peer] { x: x[token], src: token, weights: weights[token] };
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

//- ring_below_if
// A ring is emptied only where a condition holds.
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
            if num_rows[peer, stripe] > 0 {
                for message in ring[peer] at ring[peer].first {
                    store recv_x[message.row] = message.x;
                    store recv_weights[message.row] = message.weights;
                    record recv_src[message.row] = message.src;
                }
            }
        }
    }
}

//- ring_emptied_twice
// Two loops empty one ring.
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
            }
            for message in ring[peer] at ring[peer].first {
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- count_of_named_slots
// Each slot signals its own arrival, and a role asks how many have arrived.
ep_runtime::pipeline! {
    pipeline Segments {
        shape { ranks: 1..=64, rows: 1..=64, hidden: 16..=32768 step 16 }
        input x: bf16[rows, hidden], to: i32[rows] in 0..ranks;
        output y: bf16[ranks, rows, hidden], received: i32[ranks];
        message Row { row x: bf16[hidden] }
        channel moved: slots<Row> over nvlink from Send to Recv per all {
            slot: [kind: 2, source, place: rows], epochs: 2,
        };
        role Send on even blocks, warps shared by row {
            push moved[to[row]] at [0, row] { x: x[row] };
        }
        role Recv on odd blocks, warps shared by source {
            for message in moved[0, source] {
                store y[source, message.index] = message.x;
            }
            store received[source] = moved[0, source].count;
        }
    }
}

//- ring_in_loop
// A ring is emptied inside another loop.
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
            for token in stripe {
                for message in ring[peer] at ring[peer].first {
                    store recv_x[message.row] = message.x;
                    store recv_weights[message.row] = message.weights;
                    record recv_src[message.row] = message.src;
                }
            }
        }
    }
}

//- ring_out_of_order
// A gather takes rows from a ring in another order than they come.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        uses handle super::Dispatch {
            send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes],
        };
        input x: bf16[received, hidden];
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel ring: ring<Part> over nvlink from Send to Recv per all { depth: depth, chunk: chunk };
        role Send[peer] on even blocks {
            for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer, stripe] {
                push ring[peer] { x: x[row] };
            }
        }
        role Recv on odd blocks, warps shared by token {
            for token in tokens gather part from ring[peer] at send_head[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

//- ring_without_count
// A loop over a ring does not know when to stop.
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
            depth: depth, chunk: chunk, header: [first],
        };
        role Send[peer] on even blocks {
            announce ring[peer] { first: first_row[peer, stripe] };
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

//- slots_before_await
// Slots are read before they have arrived.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over nvlink from Swap to Swap per all { slot: [source], epochs: 2 };
        role Swap on block 0 {
            for peer in ranks {
                push counts[peer] { rows: tokens_per_rank[peer] };
            }
            for source in ranks {
                store received[source] = counts[source].rows;
            }
            await counts;
        }
    }
}
