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

fn main() {}
