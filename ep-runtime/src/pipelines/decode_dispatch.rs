//! `decode-dispatch`: sends few rows to the ranks of their experts, including their counts, in one launch.

use crate::pipeline;
pub use decode_dispatch::*;

pipeline! {
    /// Sends each token's row to every rank that owns one of its experts, for calls of few tokens.
    ///
    /// No other kernel has to run before it. The kernel counts its rows for each rank, publishes the counts
    /// to every rank, and places its rows behind those of the ranks before it. The pipeline fills the same tables as
    /// `nvl-dispatch` and `layout`.
    pub pipeline DecodeDispatch {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096,
            max_tokens: 1..=1024,
            let local_experts = ceil(experts, ranks),
            let max_rows = ranks * max_tokens,
        }
        use payload;
        size tokens in 0..=max_tokens;
        arg { alignment: i32 = 1 in 1..=65536 }
        input
            x: payload[tokens, hidden],
            topk_idx: i64[tokens, topk] in -1..experts,
            topk_weights: optional f32[tokens, topk],
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output
            recv_x: payload[max_rows, hidden] in window,
            recv_topk_idx: i64[max_rows, topk],
            recv_topk_weights: optional f32[max_rows, topk];
        // Words for the host cost a call of few tokens 1 us: a graph leaves them away.
        output received: optional i32[1] to host, received_per_expert: optional i32[local_experts] to host;
        table recv_per_expert: i32[local_experts];
        table tokens_per_rank: i32[ranks], tokens_per_expert: i32[experts];
        table rank_prefix: i32[ranks + 1, ranks];
        table recv_src: i32[max_rows], send_row: i32[tokens, ranks];
        // `early`: whether a warp publishes its rows before it takes those of others. `words`: so many tokens of all
        // ranks travel as words.
        tune {
            stages: 2 in [2, 3, 4, 6], piece: 7168 in [1024, 2048, 3584, 7168], early: 0 in [0, 1],
            words: 64 in [0, 16, 32, 64, 128, 256],
        }

        message Totals { per_rank: i32[ranks], per_expert: i32[local_experts] }
        message Token {
            row x: payload[hidden],
            src: i32,
            experts: i32[topk],
            weights: f32[topk] with topk_weights,
        }
        channel counts: slots<Totals> over nvlink from Dispatch to Dispatch per all { slot: [source], epochs: 2 };
        channel rows: direct<Token> over nvlink from Dispatch to Dispatch per all { few: words / ranks, early: early };

        role Dispatch on all blocks {
            count_and_exchange(
                topk_idx, token, expert, sum(choice in topk: (topk_idx[token, choice] == expert) as i32),
                counts, tokens_per_rank, tokens_per_expert, rank_prefix,
            );
            for expert in local_experts {
                record recv_per_expert[expert] = align(sum(source in ranks: counts[source].per_expert[expert]), alignment);
                store received_per_expert[expert] = align(sum(source in ranks: counts[source].per_expert[expert]), alignment);
            }
            store received[0] = sum(source in ranks: counts[source].per_rank[me]);
            for token in tokens {
                for peer in ranks where routed(topk_idx[token], peer) {
                    push rows[peer] at rank_prefix[me, peer] {
                        x: x[token], src: token, experts: topk_idx[token], weights: topk_weights[token],
                    };
                    record send_row[token, peer] = rows[peer].position;
                }
            }
            for row in rank_prefix[ranks, me]..max_rows {
                for choice in topk {
                    store recv_topk_idx[row, choice] = -1;
                }
            }
            for message in rows {
                unpack(message, local(message.experts, me), recv_x, recv_src, recv_topk_idx, recv_topk_weights);
            }
        }
    }
}
