//- announced_to_some
// A header that only some ranks get, where every rank waits for it.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        input x: bf16[tokens, hidden], wanted: bool[ranks];
        output y: bf16[ranks, 64, hidden];
        message Row { row x: bf16[hidden], token: i32 }
        channel ring: ring<Row> over nvlink from Send to Recv per all { depth: 64, chunk: 8, header: [count] };
        role Send on even blocks, warps shared by stripe {
            for peer in ranks where wanted[peer] {
                announce ring[peer] { count: sum(token in stripe: 1) };
            }
            for token in stripe {
                for peer in ranks where wanted[peer] {
                    push ring[peer] { x: x[token], token: token };
                }
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] {
                store y[peer, message.token] = message.x;
            }
        }
    }
}

//- never_to_me
// A ring of all ranks that goes to the other ones alone.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        input x: bf16[tokens, hidden], wanted: bool[ranks];
        output y: bf16[ranks, 64, hidden];
        message Row { row x: bf16[hidden], token: i32 }
        channel ring: ring<Row> over nvlink from Send to Recv per all { depth: 64, chunk: 8, header: [count] };
        role Send on even blocks, warps shared by stripe {
            for peer in others {
                announce ring[peer] { count: sum(token in stripe: 1) };
            }
            for token in stripe {
                for peer in others {
                    push ring[peer] { x: x[token], token: token };
                }
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] {
                store y[peer, message.token] = message.x;
            }
        }
    }
}

//- only_to_me
// A slot of each rank that only its own rank fills.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        input x: bf16[4, hidden];
        output y: bf16[ranks, 4, hidden];
        message Row { row x: bf16[hidden] }
        channel rows: slots<Row> over nvlink from Send to Recv per all { slot: [source, k: 4] };
        role Send on all blocks, 4 warps, warps shared by k {
            push rows[me] at k { x: x[k] };
        }
        role Recv on all blocks, 4 warps, warps shared by (source, k) {
            for message in rows[source, k] {
                store y[source, k] = message.x;
            }
        }
    }
}
