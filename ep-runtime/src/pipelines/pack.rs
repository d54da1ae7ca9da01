//! `cast`, `pack` and `weigh`: what a `decode-dispatch` lacks of a low-latency dispatch, and what a `merge-combine` needs.
//! Rows are cast before they go; those that came once for all experts of this rank are copied to each of them; and weights
//! come with the rows or later.

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

        role Rows on all blocks, one block a token {
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
        uses handle DecodeDispatch { rank_prefix: i32[ranks + 1, ranks], recv_src: i32[max_rows] };
        input
            x: payload[received, hidden],
            expert_idx: i64[received, topk] in -1..local_experts distinct,
            weights: optional f32[received, topk];
        output packed_x: payload[local_experts, max_rows, hidden], packed_count: i32[local_experts];
        // What arrives for each expert is added up over calls.
        inout statistics: optional i32[local_experts];
        table
            src_info: i32[local_experts, max_rows],
            range_first: i32[local_experts, ranks],
            range_count: i32[local_experts, ranks],
            packed_row: i32[received, topk],
            packed_weight: f32[local_experts * max_rows];

        role Move on all blocks, 24 warps, one block a token {
            for row in 0..received {
                for choice in topk {
                    let expert = expert_idx[row, choice];
                    // Nobody counts for an expert on another rank.
                    let before = row * (expert >= 0) as i32;
                    let place = sum(earlier in 0..before: listed(expert_idx[earlier], expert) as i32);
                    record packed_row[row, choice] = (expert * max_rows + place + 1) * (expert >= 0) as i32 - 1;
                    for once in 0..1 where expert >= 0 {
                        store packed_x[expert, place] = x[row];
                        record src_info[expert, place] = recv_src[row];
                        record packed_weight[expert * max_rows + place] = weights[row, choice];
                    }
                }
            }
        }
        role Count on all blocks, 4 warps, warps shared by (local_expert, source) {
            let first = sum(row in 0..rank_prefix[source, me]: listed(expert_idx[row], local_expert) as i32);
            let count = sum(row in rank_prefix[source, me]..rank_prefix[source + 1, me]: listed(expert_idx[row], local_expert) as i32);
            record range_first[local_expert, source] = first;
            record range_count[local_expert, source] = count;
            add statistics[local_expert] = count;
            for once in 0..1 where source == ranks - 1 {
                store packed_count[local_expert] = first + count;
            }
        }
    }

    /// Brings the weights of a combine to where the rows are added up, for dispatches that had none.
    pub pipeline Weigh {
        shape {
            ranks: 1..=64, topk: 1..=32, experts: 1..=4096, max_tokens: 1..=1024,
            let local_experts = ceil(experts, ranks),
            let max_rows = ranks * max_tokens,
        }
        // A message is three loads one after another: few to a warp.
        tune { shares: 32 in [4, 8, 16, 32, 64] }
        size tokens in 0..=max_tokens;
        size received = rank_prefix[ranks, me];
        uses handle DecodeDispatch { rank_prefix: i32[ranks + 1, ranks], send_row: i32[tokens, ranks] };
        uses handle Pack { packed_row: i32[received, topk] };
        input topk_weights: f32[tokens, topk];
        output weight: f32[local_experts * max_rows];

        message Weights { place: i32, weights: f32[topk] }
        channel told: slots<Weights> over nvlink from Send to Take per all {
            slot: [source, arrival: max_tokens], epochs: 2,
        };

        role Send on all blocks, 4 warps, one block a token {
            for token in tokens {
                for peer in ranks where send_row[token, peer] >= 0 {
                    push told[peer] { place: send_row[token, peer], weights: topk_weights[token] };
                }
            }
            close told;
        }
        role Take on all blocks, 4 warps, warps shared by (source, share) {
            for message in told[source] where message.index % shares == share {
                for choice in topk {
                    let at = packed_row[message.place, choice];
                    for once in 0..1 where at >= 0 {
                        store weight[at] = message.weights[choice];
                    }
                }
            }
        }
    }
}
