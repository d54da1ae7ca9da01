// A table of a handle is more than its type.
ep_runtime::pipeline! {
    pipeline Sums {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received;
        uses handle super::Dispatch { send_row: optional i32[tokens, ranks] };
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

fn main() {}
