ep_runtime::pipeline! {
    /// Keeps which row of each rank's tensor every token of this rank takes (negative: none).
    pub pipeline Places {
        shape { ranks: 1..=64, stripes: 1..=1024 }
        size tokens;
        input wanted: i32[tokens, ranks];
        table row_of: i32[tokens, ranks];
        role Copy on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record row_of[token, peer] = wanted[token, peer];
                }
            }
        }
    }
}

ep_runtime::pipeline! {
    /// Adds up the rows that the ranks offer for a token, in order of rank, and a bias.
    pub pipeline PullAverage {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size rows;
        uses handle crate::Places { row_of: i32[tokens, ranks] };
        input
            x: bf16[rows, hidden] in window,
            bias: up to 2 bf16[tokens, hidden];
        output combined: bf16[tokens, hidden];
        tune {
            stages: 3 in [2, 3, 4], piece: 3584 in [1024, 3584],
        }
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Reduce per all;

        role Offer on block 0 {
            push parts { x: x };
        }
        role Reduce on other blocks, one block a token {
            for token in tokens gather part from parts[peer] at row_of[token, peer] across peer in ranks {
                store combined[token] = sum(part.x) + bias[token];
            }
        }
    }
}
