//! `low-latency-combine`: returns each expert's row to the slot of its expert and token, and sums the rows
//! there.

use super::low_latency_dispatch::LowLatencyDispatch;
use crate::pipeline;
pub use low_latency_combine::*;

pipeline! {
    /// Sums the weighted rows that the experts made of a token.
    pub pipeline LowLatencyCombine {
        shape {
            ranks: 1..=1024, nodes: 1..=1024, hidden: 16..=32768 step 16, topk: 1..=32,
            experts: 1..=4096, max_tokens: 1..=8192,
            let local_ranks = ceil(ranks, nodes),
            let local_experts = ceil(experts, ranks),
            let tiles = ceil(ranks * max_tokens, 64),
            require nodes * local_ranks == ranks,
        }
        variant wire {
            Bf16 { x: bf16 },
            // Ten bits a value: eight, two more of four values in a byte, and the range of each block.
            Logfmt { x: u8, upper: u8 block 4, low: f32 block 128, step: f32 block 128 },
        }
        tune { stages: 3 in [2, 3, 4], shares: 4 in [1, 2, 4, 8] }
        arg { done_at: i32 = 1 in 1..=65536 }
        size tokens in 0..=max_tokens;
        uses handle LowLatencyDispatch {
            src_info: i32[local_experts, ranks * max_tokens],
            range_first: i32[local_experts, ranks],
            range_count: i32[local_experts, ranks],
        };
        input
            x: bf16[local_experts, ranks * max_tokens, hidden],
            topk_idx: i64[tokens, topk] in -1..experts distinct,
            topk_weights: f32[tokens, topk],
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        // What the experts' kernel raises while it runs beside this one, each to `done_at`: a word for each
        // expert, or one for each 64 of its rows.
        input expert_done: optional i32[local_experts], tile_done: optional i32[local_experts, tiles];
        output combined: bf16[tokens, hidden];
        // How long each rank was waited for, in ns.
        inout wait_ns: optional i64[ranks];

        message Part { row x: wire[hidden] }
        channel back: slots<Part> over nvlink | ibgda | rdma from Send to Reduce per all {
            slot: [expert: local_experts, source, token: max_tokens], epochs: 2,
            waited: wait_ns,
        };

        phase send {
            // Several warps share what goes from an expert to a source.
            role Send on all blocks, warps shared by (local_expert, source, share) {
                await expert_done[local_expert] >= done_at;
                let first = range_first[local_expert, source];
                for row in first..first + range_count[local_expert, source] where row % shares == share {
                    await tile_done[local_expert, row / 64] >= done_at;
                    when wire is Bf16 {
                        push back[source] at [local_expert, src_info[local_expert, row]] {
                            x: x[local_expert, row],
                        };
                    }
                    when wire is Logfmt {
                        push back[source] at [local_expert, src_info[local_expert, row]] {
                            x: cast_logfmt10(x[local_expert, row], 128),
                        };
                    }
                }
                close back;
            }
        }
        phase recv {
            role Reduce on all blocks, one block a token {
                for token in tokens gather part from back[owner(topk_idx[token, choice])] at [local(topk_idx[token, choice], owner(topk_idx[token, choice])), token] across choice in topk {
                    store combined[token] = sum(topk_weights[token, choice] * part.x as f32) as bf16;
                }
            }
        }
    }
}
