//! `merge-combine`: sums the rows that experts made of the rows of a `packed-dispatch`, in one launch.

use super::packed_dispatch::PackedDispatch;
use crate::pipeline;
pub use merge_combine::*;

pipeline! {
    /// Sums the weighted rows of each rank's experts there, then the sums of the ranks, for few tokens.
    ///
    /// Sums are in order of choice, then in order of rank. This is `decode-combine` for rows that a
    /// `packed-dispatch` has packed: the sender computes each rank's sum. `via Direct` and `via Spread` belong to a
    /// dispatch `via Direct`. With `via Spread` each expert's row is returned unchanged, and the token's rank, which
    /// alone needs the weights, sums in order of choice. The others belong to a dispatch `via Slots`: with `via Slots`
    /// the weights came with the rows, and with `via Asked` this call sends them to the ranks of the experts, which
    /// answer with their sums.
    pub pipeline MergeCombine {
        shape {
            ranks: 1..=1024, nodes: 1..=1024, hidden: 16..=32768 step 16, topk: 1..=32,
            experts: 1..=4096, max_tokens: 1..=8192,
            let local_ranks = ceil(ranks, nodes),
            let local_experts = ceil(experts, ranks),
            let max_rows = ranks * max_tokens,
            // Extents of the indices that warps share: tokens of this rank and peers.
            let sends = max_tokens, let peers = ranks,
            require nodes * local_ranks == ranks,
        }
        variant via { Direct, Spread, Slots, Asked }
        size tokens in 0..=max_tokens;
        input x: bf16[local_experts * max_rows, hidden];
        output combined: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }

        when via is Direct {
            shape { require ranks <= 64 }
            uses handle PackedDispatch {
                rank_prefix: i32[ranks + 1, ranks], recv_src: i32[max_rows], send_row: i32[tokens, ranks],
                packed_row: i32[max_rows, topk], packed_weight: f32[local_experts * max_rows],
            };
            // `words`: so many tokens of all ranks get their sums as words.
            tune { back_warps: 8 in [4, 8], words: 32 in [0, 16, 32, 64, 128, 256] }
            channel back: slots<Part> over nvlink from Send to Reduce per all {
                slot: [source, token: max_tokens], epochs: 2, few: words / ranks,
            };

            role Send on all blocks, back_warps warps, warps shared by source {
                for row in rank_prefix[source, me]..rank_prefix[source + 1, me] {
                    push back[source] at recv_src[row] {
                        x: sum(at in packed_row[row]: packed_weight[at] * x[at] as f32) as bf16,
                    };
                }
            }
            role Reduce on all blocks, 4 warps, warps shared by token {
                for token in tokens gather part from back[peer]
                    at if send_row[token, peer] >= 0 { token } else { -1 } across peer in ranks
                {
                    store combined[token] = sum(part.x);
                }
            }
        }

        when via is Spread {
            shape { require ranks <= 64 }
            uses handle PackedDispatch {
                rank_prefix: i32[ranks + 1, ranks], recv_src: i32[max_rows], packed_row: i32[max_rows, topk],
            };
            input
                topk_idx: i64[tokens, topk] in -1..experts, topk_weights: f32[tokens, topk],
                expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
            tune { back_warps: 8 in [4, 8], sum_warps: 8 in [4, 8] }
            channel back: slots<Part> over nvlink from Send to Reduce per all {
                slot: [token: max_tokens, choice: topk], epochs: 2,
            };

            role Send on all blocks, back_warps warps, warps shared by source {
                for row in rank_prefix[source, me]..rank_prefix[source + 1, me] {
                    for choice in topk where packed_row[row, choice] >= 0 {
                        push back[source] at [recv_src[row], choice] { x: x[packed_row[row, choice]] };
                    }
                }
            }
            role Reduce on all blocks, sum_warps warps, warps shared by token {
                // Entries of a token that name one expert have a slot together, and count together.
                for token in tokens gather part from back[owner(topk_idx[token, choice])]
                    at [token, (choice + 1) * (topk_idx[token, choice] >= 0
                        && sum(earlier in 0..choice: (topk_idx[token, earlier] == topk_idx[token, choice]) as i32) == 0) as i32 - 1]
                    across choice in topk
                {
                    store combined[token] = sum(
                        sum(entry in topk: topk_weights[token, entry] * (topk_idx[token, entry] == topk_idx[token, choice]) as f32)
                            * part.x as f32) as bf16;
                }
            }
        }

        when via is Slots | Asked {
            // `shares`: so many warps take the rows of a rank in turn.
            tune { shares: 128 in [4, 8, 16, 32, 64, 128] }
            // A slot for each row that a rank has sent, by its number: neighboring slots travel together.
            channel back: slots<Part> over nvlink | ibgda | rdma from Send to Reduce per all {
                slot: [source, place: max_tokens], epochs: 2,
            };
        }
        when via is Slots {
            uses handle PackedDispatch {
                came_first: i32[ranks + 1], send_place: i32[tokens, ranks],
                packed_row: i32[max_rows, topk], packed_weight: f32[local_experts * max_rows],
            };
            // Row by row, so that not all ranks send to one peer first.
            role Send on all blocks, 10 warps, warps shared by (source, share) {
                for row in came_first[source]..came_first[source + 1] where row % shares == share {
                    push back[source] at row - came_first[source] {
                        x: sum(at in packed_row[row]: packed_weight[at] * x[at] as f32) as bf16,
                    };
                }
                close back;
            }
        }
        when via is Asked {
            uses handle PackedDispatch {
                came_first: i32[ranks + 1], send_place: i32[tokens, ranks], packed_row: i32[max_rows, topk],
            };
            input topk_idx: i64[tokens, topk] in -1..experts, topk_weights: f32[tokens, topk];
            // The number of a row among those of its rank, and what counts for each of its choices.
            message Request { place: i32, weights: f32[topk] }
            channel asks: slots<Request> over nvlink | ibgda | rdma from Ask to Send per all {
                slot: [source, arrival: max_tokens], epochs: 2,
            };

            role Ask on all blocks, 2 warps, warps shared by (peer, send) {
                for token in send..min(send + 1, tokens) where send_place[send, peer] >= 0 {
                    // Entries of a token that name one expert share a row of it, and count together.
                    push asks[peer] {
                        place: send_place[send, peer],
                        weights: sum(entry in topk:
                            topk_weights[send, entry] * (topk_idx[send, entry] == topk_idx[send]) as f32),
                    };
                }
                close asks;
            }
            role Send on all blocks, 8 warps, warps shared by (source, share) {
                for request in asks[source] where request.index % shares == share {
                    let row = came_first[source] + request.place;
                    push back[source] at request.place {
                        x: sum(choice in topk: if packed_row[row, choice] >= 0 {
                            request.weights[choice] * x[packed_row[row, choice]] as f32
                        } else { 0.0 }) as bf16,
                    };
                }
                close back;
            }
        }
        when via is Slots | Asked {
            role Reduce on all blocks, 6 warps, one block a token {
                for token in tokens gather part from back[peer] at send_place[token, peer] across peer in ranks {
                    store combined[token] = sum(part.x);
                }
            }
        }
    }
}
