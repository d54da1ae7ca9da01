//! A pipeline that EPForge does not ship: a dispatch whose rows carry 16 more bytes.
//!
//! This pipeline is `NvlDispatch` via a ring with one more field. The compiler places the field in the message,
//! fills it on the sender and unpacks it on the receiver.
//!
//! ```sh
//! cargo run -p own-pipeline -- list
//! cargo run -p own-pipeline -- explain tagged-dispatch --ranks 4
//! cargo run -p own-pipeline -- emit tagged-dispatch --ranks 4
//! cargo run --release -p own-pipeline --bin tag_cost     # compares its time with NvlDispatch, on GPUs
//! ```
//!
//! [`run`] calls the pipeline from Rust; `tests/runs.rs` calls it without a GPU.

pub mod run;

use ep_runtime::pipeline;

pipeline! {
    /// Sends each token's row, and a tag of the caller's, to every rank that owns one of its experts.
    pub pipeline TaggedDispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096 }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks],
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input
            x: bf16[tokens, hidden],
            tag: i32[tokens, 4],
            topk_idx: optional i64[tokens, topk],
            topk_weights: optional f32[tokens, topk],
            expert_begin: i32[ranks + 1];
        output
            recv_x: bf16[received, hidden] in window,
            recv_tag: i32[received, 4],
            recv_topk_idx: optional i64[received, topk] fill -1 beyond received,
            recv_topk_weights: optional f32[received, topk];
        table
            recv_src: i32[received],
            send_head: i32[tokens, ranks], recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes];
        message Token {
            row x: bf16[hidden],
            src: i32,
            tag: i32[4],
            experts: i32[topk] with topk_idx,
            weights: f32[topk] with topk_weights,
        }
        tune {
            stages: 3 in [2, 3, 4, 6], piece: 3584 in [1024, 2048, 3584, 7168],
            stripes: 12 in [4, 6, 8, 10, 12, 16, 24],
            depth: 64 in [16, 32, 64, 128, 256, 512],
            chunk: 8 in [1, 2, 4, 8, 16, 32],
        }
        channel ring: ring<Token> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };

        role Send[peer] on even blocks, 16 warps {
            announce ring[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] {
                    x: x[token], src: token, tag: tag[token],
                    experts: topk_idx[token], weights: topk_weights[token],
                };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on odd blocks, 16 warps {
            record recv_first[peer, stripe] = rank_prefix[peer, me] + ring[peer].first;
            record recv_count[peer, stripe] = ring[peer].count;
            for message in ring[peer] at rank_prefix[peer, me] + ring[peer].first {
                store recv_x[message.row] = message.x;
                record recv_src[message.row] = message.src;
                store recv_tag[message.row] = message.tag;
                store recv_topk_idx[message.row] = local(message.experts, me);
                store recv_topk_weights[message.row] = message.weights;
            }
        }
    }
}
