//- deadlock_across_phases
// A ring is filled in one phase and emptied in the next.
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
        phase send {
        role Send[peer] on all blocks {
            announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: x[token], src: token, weights: weights[token] };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        }
        phase recv {
        role Recv[peer] on all blocks {
            for message in ring[peer] at ring[peer].first {
                store recv_x[message.row] = message.x;
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.src;
            }
        }
        }
    }
}

//- deadlock_await_before_push
// A role waits for what it pushes later.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        channel counts: slots<Counts> over nvlink from Swap to Swap per all { slot: [source], epochs: 2 };
        role Swap on block 0 {
            await counts;
            for peer in ranks {
                push counts[peer] { rows: tokens_per_rank[peer] };
            }
            for source in ranks {
                store received[source] = counts[source].rows;
            }
        }
    }
}

//- deadlock_between_rings
// Two roles pass rows to each other through rings, and neither can begin.
ep_runtime::pipeline! {
    pipeline Circle {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        input first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel back: ring<Row> over nvlink from Far to Near per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on even blocks {
            announce there[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in back[peer] {
                push there[peer] { ..message };
            }
        }
        role Far[peer] on odd blocks {
            announce back[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in there[peer] {
                push back[peer] { ..message };
            }
        }
    }
}

//- deadlock_in_order
// Two rings are filled one after the other and emptied in the other order.
ep_runtime::pipeline! {
    pipeline Crossed {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
        output a: bf16[received, hidden], b: bf16[received, hidden];
        message Row { row x: bf16[hidden] }
        channel first_ring: ring<Row> over nvlink from Send to Recv per all { depth: 64, chunk: 8, header: [first, count] };
        channel second_ring: ring<Row> over nvlink from Send to Recv per all { depth: 64, chunk: 8, header: [first, count] };
        role Send[peer] on even blocks {
            announce first_ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            announce second_ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe {
                push first_ring[peer] { x: x[token] };
            }
            for token in stripe {
                push second_ring[peer] { x: x[token] };
            }
        }
        role Recv[peer] on odd blocks {
            for message in second_ring[peer] at second_ring[peer].first {
                store b[message.row] = message.x;
            }
            for message in first_ring[peer] at first_ring[peer].first {
                store a[message.row] = message.x;
            }
        }
    }
}

//- deadlock_of_headers
// Two roles announce only what they have heard from each other.
ep_runtime::pipeline! {
    pipeline Circle {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        input x: bf16[tokens, hidden];
        output near: bf16[tokens, hidden], far: bf16[tokens, hidden];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel back: ring<Row> over nvlink from Far to Near per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on even blocks {
            announce there[peer] { first: back[peer].first, count: back[peer].count };
            for token in stripe {
                push there[peer] { x: x[token] };
            }
            for message in back[peer] at 0 {
                store near[message.row] = message.x;
            }
        }
        role Far[peer] on odd blocks {
            announce back[peer] { first: there[peer].first, count: there[peer].count };
            for token in stripe {
                push back[peer] { x: x[token] };
            }
            for message in there[peer] at 0 {
                store far[message.row] = message.x;
            }
        }
    }
}

//- ring_of_one_role
// A role empties a ring only after it has filled it.
ep_runtime::pipeline! {
    pipeline Around {
        shape { ranks: 2..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size rows;
        input x: f32[rows, hidden];
        output y: f32[rows, hidden];
        message Row { row x: f32[hidden], step: i32, at: i32 }
        channel ring: ring<Row> over nvlink from Pass to Pass per all { depth: 64, chunk: 8, header: [count] };
        role Pass on all blocks, warps shared by stripe {
            announce ring[(me + 1) % ranks] { count: sum(row in stripe: 1) };
            for row in stripe {
                push ring[(me + 1) % ranks] { x: x[row], step: 0, at: row };
            }
            for message in ring[(me + ranks - 1) % ranks] {
                store y[message.at] = message.x;
            }
        }
    }
}

//- ring_that_goes_round
// A role passes on what it takes through the same ring.
ep_runtime::pipeline! {
    pipeline Around {
        shape { ranks: 2..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size rows;
        input x: f32[rows, hidden];
        output y: f32[rows, hidden];
        message Row { row x: f32[hidden], step: i32, at: i32 }
        channel ring: ring<Row> over nvlink from Pass to Pass per all { depth: 64, chunk: 8, header: [count] };
        role Pass on all blocks, warps shared by stripe {
            announce ring[(me + 1) % ranks] { count: sum(row in stripe: 1) };
            for row in stripe {
                push ring[(me + 1) % ranks] { x: x[row], step: 0, at: row };
            }
            for message in ring[(me + ranks - 1) % ranks] {
                for once in 0..1 where message.step < ranks - 2 {
                    push ring[(me + 1) % ranks] { x: message.x + x[message.at], step: message.step + 1, at: message.at };
                }
                store y[message.at] = message.x;
            }
        }
    }
}
