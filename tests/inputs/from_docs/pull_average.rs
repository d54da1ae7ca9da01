ep_runtime::pipeline! {
    /// Adds up the rows that the ranks offer for a token, in order of rank, and a bias.
    pub pipeline PullAverage {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size rows;
        input
            x: bf16[rows, hidden] in window,
            row_of: i32[tokens, ranks],
            bias: bf16[tokens, hidden];
        output combined: bf16[tokens, hidden];
        tune {
            stages: 3 in [2, 3, 4], piece: 3584 in [1024, 3584],
            stripes: 64 in [8, 16, 32, 64],
        }
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;

        role Offer on block 0 {
            for peer in ranks {
                for row in 0..rows {
                    push parts[peer] at row { x: x[row] };
                }
            }
        }
        role Reduce on other blocks, warps shared by token {
            for token in stripe gather part from parts[peer] at row_of[token, peer] across peer in ranks {
                store combined[token] = sum(part.x) + bias[token];
            }
        }
    }
}
