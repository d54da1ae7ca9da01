//! `node-dispatch`: sends rows to the ranks of their experts in two hops. A row crosses the network once
//! per node, to the rank with the sender's index in that node (the rail). That rank forwards the row over
//! NVLink to every rank of the node that needs it.

use super::node_layout::NodeLayout;
use crate::pipeline;
pub use node_dispatch::*;

pipeline! {
    /// Sends each token's row to every rank that owns one of its experts, through a rail.
    pub pipeline NodeDispatch {
        shape {
            nodes: 2..=128, local_ranks: 1..=8,
            hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096,
            let ranks = nodes * local_ranks,
        }
        use payload;
        variant mode { Fresh, Cached }
        // A ring within the node holds four chunks: one that is read, one whose credit is on its way, one that
        // travels and one that is filled. More take a window of hundreds of megabytes.
        tune {
            stripes: 12 in [4, 6, 8, 10, 12, 16, 24],
            rdma_depth: 128 in [32, 64, 128, 256, 512],
            rdma_chunk: 16 in [4, 8, 16, 32],
            nvl_depth: 32 in [32, 64, 128, 256, 512],
            nvl_chunk: 8 in [1, 2, 4, 8, 16],
            stages: 3 in [2, 3, 4],
        }
        size tokens;
        size received = rank_prefix[ranks, me];
        size relayed = rail_prefix[nodes];
        // `node_bits` says which ranks of a node a token goes to. `node_prefix` places a stripe among the
        // rows for a node, `rail_prefix` a node among the rows that this rank passes on, and `forward_first`
        // and `forward_count` the rows of a node and stripe among those for a rank of this node.
        uses handle NodeLayout {
            node_bits: bits[local_ranks][tokens, nodes],
            node_tokens: i32[stripes, nodes],
            rank_prefix: i32[ranks + 1, ranks],
            rail_prefix: i32[nodes + 1],
            node_prefix: i32[nodes, stripes],
            forward_first: i32[nodes, stripes, local_ranks],
            forward_count: i32[nodes, stripes, local_ranks],
        };
        input
            x: payload[tokens, hidden],
            topk_idx: optional i64[tokens, topk] in -1..experts,
            topk_weights: optional f32[tokens, topk],
            expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output
            recv_x: payload[received, hidden],
            recv_topk_idx: optional i64[received, topk] fill -1 beyond received,
            recv_topk_weights: optional f32[received, topk];
        table
            recv_src: i32[received],
            recv_first: i32[ranks, stripes],
            recv_count: i32[ranks, stripes],
            send_rail_head: i32[tokens, nodes],
            send_inner_head: i32[relayed, local_ranks];

        message Hop {
            row x: payload[hidden],
            src: i32,
            local: bits[local_ranks],
            experts: i32[topk] with topk_idx,
            weights: f32[topk] with topk_weights,
        }
        channel rail: ring<Hop> over rdma | ibgda from RdmaSend to Forward per rail {
            depth: rdma_depth, chunk: rdma_chunk, header: [first, count],
        };
        channel inner: ring<Hop> over nvlink from Forward to NvlReceive per local, one part per nodes {
            depth: nvl_depth, chunk: nvl_chunk, header: [first, count],
        };

        role RdmaSend on even blocks, 8 warps, warps shared by token {
            for node in nodes {
                announce rail[node] { first: node_prefix[node, stripe], count: node_tokens[stripe, node] };
            }
            for token in stripe {
                for node in nodes where any(node_bits[token, node]) {
                    push rail[node] {
                        x: x[token], src: token, local: node_bits[token, node],
                        experts: topk_idx[token], weights: topk_weights[token],
                    };
                    when mode is Fresh {
                        record send_rail_head[token, node] = rail[node].position;
                    }
                }
            }
        }
        role Forward[peer] on odd blocks {
            for node in nodes {
                announce inner[peer, node] {
                    first: forward_first[node, stripe, peer], count: forward_count[node, stripe, peer],
                };
            }
            // Without an index the nodes take turns: the next one that has a row and finds room.
            for message in rail at rail_prefix[message.source] + rail[message.source].first where has(message.local, peer) {
                push inner[peer, message.source] { ..message, experts: local(message.experts, rank_at(node(me), peer)) };
                when mode is Fresh {
                    record send_inner_head[message.row, peer] = inner[peer, message.source].position;
                }
            }
        }
        role NvlReceive[peer] on even blocks, 8 warps {
            when mode is Fresh {
                for node in nodes {
                    record recv_first[rank_at(node, peer), stripe] = rank_prefix[rank_at(node, peer), me] + inner[peer, node].first;
                    record recv_count[rank_at(node, peer), stripe] = inner[peer, node].count;
                }
            }
            for message in inner[peer] at rank_prefix[rank_at(message.part, peer), me] + inner[peer, message.part].first {
                unpack(message, message.experts, recv_x, recv_src, recv_topk_idx, recv_topk_weights);
            }
        }
    }
}
