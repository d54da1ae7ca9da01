// A channel has a name that the emitted functions use themselves.
ep_runtime::pipeline! {
    pipeline Average {
        shape { ranks: 1..=64, hidden: 16..=8192 step 16 }
        size tokens;
        size rows;
        input x: bf16[rows, hidden] in window, at: i32[tokens, ranks];
        output sums: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel units: pull<Part> over nvlink from Offer to Sum per all;
        role Offer on block 0, 1 warps { push units { x: x }; }
        role Sum on all blocks, 4 warps, warps shared by token {
            for token in tokens gather part from units[peer] at at[token, peer] across peer in ranks {
                store sums[token] = sum(part.x);
            }
        }
    }
}

fn main() {}
