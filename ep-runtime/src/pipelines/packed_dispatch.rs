//! `packed-dispatch`: a low-latency dispatch whose rows travel once for each rank, in one launch.

use crate::pipeline;
pub use packed_dispatch::*;

pipeline! {
    /// Sends each token's row once to every rank of its experts, which packs it per expert, for few tokens.
    ///
    /// Senders cast the rows. The rows of an expert are in order of rank and token. This pipeline fills the
    /// same tensors as `low-latency-dispatch`, in one launch as `decode-dispatch` does. `merge-combine` returns the
    /// rows. `via Slots` works between nodes.
    pub pipeline PackedDispatch {
        shape {
            ranks: 1..=1024, nodes: 1..=1024, hidden: 16..=32768 step 16, topk: 1..=32,
            experts: 1..=4096, max_tokens: 1..=8192,
            let local_ranks = ceil(ranks, nodes),
            let local_experts = ceil(experts, ranks),
            let max_rows = ranks * max_tokens,
            // Extents of the indices that warps share: tokens of this rank and choices of a token.
            let sends = max_tokens, let choices = topk,
            require nodes * local_ranks == ranks,
        }
        use payload;
        variant via { Direct, Slots }
        size tokens in 0..=max_tokens;
        input
            x: bf16[tokens, hidden],
            topk_idx: i64[tokens, topk] in -1..experts,
            topk_weights: optional f32[tokens, topk],
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output packed_x: payload[local_experts, max_rows, hidden], packed_count: i32[local_experts];
        // What arrives for each expert is added up over calls.
        inout statistics: optional i32[local_experts];
        table
            src_info: i32[local_experts, max_rows],
            range_first: i32[local_experts, ranks],
            range_count: i32[local_experts, ranks];
        table tokens_per_rank: i32[ranks], tokens_per_expert: i32[experts];
        table packed_row: i32[max_rows, topk], packed_weight: f32[local_experts * max_rows];

        when via is Direct {
            shape { require ranks <= 64 }
            // Each row lies once in the window before it is packed.
            output came: payload[max_rows, hidden] in window;
            table rank_prefix: i32[ranks + 1, ranks];
            table recv_src: i32[max_rows], send_row: i32[tokens, ranks], send_turn: i32[tokens, topk];
            // `piece`: so many values of a row a warp casts and sends. `words`: so many tokens of all ranks travel as words.
            tune {
                piece: 3584 in [1024, 2048, 3584, 7168], words: 64 in [0, 16, 32, 64, 128, 256],
            }

            message Totals { per_rank: i32[ranks], per_expert: i32[local_experts] }
            message Token {
                row x: payload[hidden],
                src: i32,
                experts: i32[topk],
                turns: i32[topk],
                weights: f32[topk] with topk_weights,
            }
            channel counts: slots<Totals> over nvlink from Dispatch to Dispatch per all { slot: [source], epochs: 2 };
            channel rows: direct<Token> over nvlink from Dispatch to Dispatch per all { few: words / ranks };

            role Dispatch on all blocks, 12 warps {
                count_and_exchange(
                    topk_idx, token, expert, listed(topk_idx[token], expert) as i32,
                    counts, tokens_per_rank, tokens_per_expert, rank_prefix,
                );
                for expert in local_experts {
                    store packed_count[expert] = sum(source in ranks: counts[source].per_expert[expert]);
                    add statistics[expert] = sum(source in ranks: counts[source].per_expert[expert]);
                    for source in ranks {
                        record range_first[expert, source] = sum(earlier in 0..source: counts[earlier].per_expert[expert]);
                        record range_count[expert, source] = counts[source].per_expert[expert];
                    }
                }
                for token in tokens {
                    // How many tokens before list each of its experts.
                    for choice in topk {
                        let expert = topk_idx[token, choice];
                        record send_turn[token, choice] =
                            sum(earlier in 0..token: listed(topk_idx[earlier], expert) as i32) * (expert >= 0) as i32;
                    }
                    for peer in ranks where routed(topk_idx[token], peer) {
                        when payload is Bf16 {
                            push rows[peer] at rank_prefix[me, peer] {
                                x: x[token], src: token, experts: topk_idx[token], turns: send_turn[token],
                                weights: topk_weights[token],
                            };
                        }
                        when payload is Fp8 | Fp8Packed {
                            push rows[peer] at rank_prefix[me, peer] {
                                x: cast_e4m3(x[token], 128), src: token, experts: topk_idx[token], turns: send_turn[token],
                                weights: topk_weights[token],
                            };
                        }
                        record send_row[token, peer] = rows[peer].position;
                    }
                }
                for message in rows {
                    store came[message.row] = message.x;
                    record recv_src[message.row] = message.src;
                    for choice in topk {
                        let expert = local(message.experts[choice], me);
                        // Entries of a token that name one expert share a row of it, which the first of them has.
                        let again = sum(earlier in topk:
                            (earlier < choice && message.experts[earlier] == message.experts[choice]) as i32);
                        let has = (expert >= 0 && again == 0) as i32;
                        let place = sum(earlier in 0..message.source: counts[earlier].per_expert[expert * has])
                            + message.turns[choice];
                        record packed_row[message.row, choice] = (expert * max_rows + place + 1) * has - 1;
                        if expert >= 0 && again == 0 {
                            record src_info[expert, place] = message.src;
                            record packed_weight[expert * max_rows + place] = sum(entry in topk:
                                message.weights[entry] * (message.experts[entry] == message.experts[choice]) as f32);
                            store packed_x[expert, place] = message.x;
                        }
                    }
                }
            }
        }

        when via is Slots {
            // Where the rows of each rank begin, the number of a token's row among those of this rank for each
            // peer (-1: none) and for the rank of each of its experts, and how many tokens before list each of these.
            table came_first: i32[ranks + 1], send_place: i32[tokens, ranks];
            table places: i32[tokens, topk], turns: i32[tokens, topk];
            // `shares`: so many warps take the rows of a rank in turn. `once`: from so many ranks on, a token's row is
            // filled once for all ranks of other nodes.
            tune { shares: 64 in [4, 8, 16, 32, 64, 128], once: 32 in [1, 32, 2048] }

            message Totals { rows: i32, per_expert: i32[local_experts] }
            // The same bytes for every rank: each finds its own place of the row beside one of its experts.
            message Token {
                row x: payload[hidden],
                src: i32,
                experts: i32[topk],
                places: i32[topk],
                turns: i32[topk],
                weights: f32[topk] with topk_weights,
            }
            channel counts: slots<Totals> over nvlink | ibgda | rdma from Count to Pack per all {
                slot: [source], epochs: 2,
            };
            // In order of arrival, so that neighboring slots are filled at the same time and travel together.
            channel rows: slots<Token> over nvlink | ibgda | rdma from Cast to Pack per all {
                slot: [source, arrival: max_tokens], epochs: 2, once: ranks / once,
            };

            role Count on all blocks, 2 warps {
                for peer in ranks {
                    record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer) as i32);
                }
                for expert in experts {
                    record tokens_per_expert[expert] = sum(token in tokens: listed(topk_idx[token], expert) as i32);
                }
                for peer in ranks {
                    push counts[peer] { rows: tokens_per_rank[peer], per_expert: owned(tokens_per_expert, peer) };
                }
            }
            // A row is cast once for all ranks that it goes to.
            role Cast on all blocks, 8 warps, warps shared by send {
                for token in send..min(send + 1, tokens) {
                    for peer in ranks {
                        let place = sum(earlier in 0..send: routed(topk_idx[earlier], peer) as i32);
                        record send_place[send, peer] = if routed(topk_idx[send], peer) { place } else { -1 };
                    }
                    for choice in topk {
                        let expert = topk_idx[send, choice];
                        record turns[send, choice] =
                            sum(earlier in 0..send: listed(topk_idx[earlier], expert) as i32) * (expert >= 0) as i32;
                        record places[send, choice] = if expert >= 0 { send_place[send, owner(expert)] } else { -1 };
                    }
                    for peer in ranks where routed(topk_idx[send], peer) {
                        when payload is Bf16 {
                            push rows[peer] {
                                x: x[send], src: send, experts: topk_idx[send], places: places[send],
                                turns: turns[send], weights: topk_weights[send],
                            };
                        }
                        when payload is Fp8 | Fp8Packed {
                            push rows[peer] {
                                x: cast_e4m3(x[send], 128), src: send, experts: topk_idx[send],
                                places: places[send], turns: turns[send], weights: topk_weights[send],
                            };
                        }
                    }
                }
                close rows;
            }
            role Pack on all blocks, 10 warps, warps shared by (choice, share, source) {
                await counts;
                if choice == 0 && share == 0 {
                    if source == 0 {
                        for bound in 0..ranks + 1 {
                            record came_first[bound] = sum(earlier in 0..bound: counts[earlier].rows);
                        }
                    }
                    for expert in local_experts {
                        record range_first[expert, source] = sum(earlier in 0..source: counts[earlier].per_expert[expert]);
                        record range_count[expert, source] = counts[source].per_expert[expert];
                        add statistics[expert] = counts[source].per_expert[expert];
                        if source == ranks - 1 {
                            store packed_count[expert] = sum(earlier in ranks: counts[earlier].per_expert[expert]);
                        }
                    }
                }
                for message in rows[source] where message.index % shares == share {
                    // Each of its experts here brings the place of the row.
                    let own = max(entry in topk:
                        message.places[entry] * (local(message.experts[entry], me) >= 0) as i32);
                    let row = sum(earlier in 0..source: counts[earlier].rows) + own;
                    let expert = local(message.experts[choice], me);
                    // Entries of a token that name one expert share a row of it, which the first of them has.
                    let again = sum(earlier in topk:
                        (earlier < choice && message.experts[earlier] == message.experts[choice]) as i32);
                    let has = (expert >= 0 && again == 0) as i32;
                    let place = sum(earlier in 0..source: counts[earlier].per_expert[expert * has])
                        + message.turns[choice];
                    record packed_row[row, choice] = (expert * max_rows + place + 1) * has - 1;
                    if expert >= 0 && again == 0 {
                        record src_info[expert, place] = message.src;
                        record packed_weight[expert * max_rows + place] = sum(entry in topk:
                            message.weights[entry] * (message.experts[entry] == message.experts[choice]) as f32);
                        store packed_x[expert, place] = message.x;
                    }
                }
            }
        }
    }
}
