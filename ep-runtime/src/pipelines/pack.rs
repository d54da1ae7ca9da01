//! `cast` and `pack`: what a `decode-dispatch` lacks of a low-latency dispatch. Rows are cast before they go, and those that
//! came once for all experts of this rank are copied to each of them. `merge-combine` and `spread-combine` bring them back.

use super::decode_dispatch::DecodeDispatch;
use crate::pipeline;
pub use pack::*;

pipeline! {
    /// Casts rows to `e4m3`.
    pub pipeline Cast {
        shape { hidden: 16..=32768 step 16 }
        variant payload {
            Fp8 { x: e4m3, scale: f32 block 128 },
            Fp8Packed { x: e4m3, scale: ue8m0 block 128 },
        }
        size tokens;
        input x: bf16[tokens, hidden];
        output made: payload[tokens, hidden];

        role Rows on all blocks, 16 warps, one block a token {
            for token in tokens {
                store made[token] = cast_e4m3(x[token], 128);
            }
        }
    }

    /// Copies each row that came with a `decode-dispatch` to the place that it has for each of its experts.
    ///
    /// The rows of an expert are in the order in which they came: by source rank, then token. It leaves what
    /// `low-latency-dispatch` leaves.
    pub pipeline Pack {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096,
            max_tokens: 1..=1024,
            let local_experts = ceil(experts, ranks),
            let max_rows = ranks * max_tokens,
        }
        variant payload {
            Bf16 { x: bf16 },
            Fp8 { x: e4m3, scale: f32 block 128 },
            Fp8Packed { x: e4m3, scale: ue8m0 block 128 },
        }
        size received = rank_prefix[ranks, me];
        tune { move_warps: 16 in [4, 8, 12, 16] }
        uses handle DecodeDispatch { rank_prefix: i32[ranks + 1, ranks], recv_src: i32[max_rows] };
        input
            x: payload[received, hidden],
            recv_topk_idx: i64[max_rows, topk] in -1..local_experts,
            recv_topk_weights: optional f32[max_rows, topk];
        output packed_x: payload[local_experts, max_rows, hidden], packed_count: i32[local_experts];
        // What arrives for each expert is added up over calls.
        inout statistics: optional i32[local_experts];
        table
            src_info: i32[local_experts, max_rows],
            range_first: i32[local_experts, ranks],
            range_count: i32[local_experts, ranks],
            packed_row: i32[received, topk],
            packed_weight: f32[local_experts * max_rows];

        role Move on all blocks, move_warps warps, one block a token {
            for row in 0..received {
                for choice in topk {
                    let expert = recv_topk_idx[row, choice];
                    let there = (expert >= 0) as i32;
                    let place = sum(earlier in 0..row: listed(recv_topk_idx[earlier], expert) as i32) * there;
                    // Entries of a token that name one expert share a row of it, which the first of them has.
                    let again = sum(earlier in topk:
                        (earlier < choice && recv_topk_idx[row, earlier] == expert) as i32);
                    let has = (expert >= 0 && again == 0) as i32;
                    record packed_row[row, choice] = (expert * max_rows + place + 1) * has - 1;
                    for once in 0..1 where expert >= 0 && again == 0 {
                        record src_info[expert, place] = recv_src[row];
                        record packed_weight[expert * max_rows + place] = sum(entry in topk:
                            recv_topk_weights[row, entry] * (recv_topk_idx[row, entry] == expert) as f32);
                        store packed_x[expert, place] = x[row];
                    }
                }
            }
        }
        role Count on all blocks, 4 warps, warps shared by (local_expert, source) {
            let first = sum(row in 0..rank_prefix[source, me]: listed(recv_topk_idx[row], local_expert) as i32);
            let count = sum(row in rank_prefix[source, me]..rank_prefix[source + 1, me]:
                listed(recv_topk_idx[row], local_expert) as i32);
            record range_first[local_expert, source] = first;
            record range_count[local_expert, source] = count;
            add statistics[local_expert] = count;
            for once in 0..1 where source == ranks - 1 {
                store packed_count[local_expert] = first + count;
            }
        }
    }
}
