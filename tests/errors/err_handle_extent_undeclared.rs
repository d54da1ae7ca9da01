// A table of a handle has an extent that is not declared here.
ep_runtime::pipeline! {
    pipeline Dispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table send_row: i32[tokens, ranks], seen: i32[stripes];
        message Token { row x: bf16[hidden] }
        channel rows: direct<Token> over nvlink from Send to Unpack per all;
        role Send on blocks 0..8, warps shared by token {
            record seen[stripe] = 1;
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
                let first = seen[0];
                store combined[token] = sum(part.x);
            }
        }
    }
}

fn main() {}
