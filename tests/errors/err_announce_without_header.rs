// A channel without header is announced.
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
            announce ring[peer] { first: 0, count: 0 };
            for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer, stripe] {
                push ring[peer] { x: x[row] };
            }
        }
        role Recv on odd blocks, warps shared by token {
            for token in stripe gather part from ring[peer] at send_head[token, peer] across peer in ranks {
                store combined[token] = sum(part.x);
            }
        }
    }
}

fn main() {}
