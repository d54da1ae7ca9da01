//! `node-combine`: returns rows in two hops. The rows of a node are summed on its rail before they cross
//! the network, and the sums of the nodes are summed at the token's rank.

use super::node_dispatch::NodeDispatch;
use super::node_layout::NodeLayout;
use crate::pipeline;
pub use node_combine::*;

pipeline! {
    /// Sums the rows that the experts made of a token, first per node, then over the nodes.
    pub pipeline NodeCombine {
        shape {
            nodes: 2..=128, local_ranks: 1..=8, hidden: 16..=32768 step 16, topk: 1..=32,
            let ranks = nodes * local_ranks,
        }
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
        uses handle NodeLayout {
            rank_prefix: i32[ranks + 1, ranks],
            rail_prefix: i32[nodes + 1],
            rail_first: i32[nodes, stripes],
            rail_count: i32[nodes, stripes],
        };
        uses handle NodeDispatch {
            recv_first: i32[ranks, stripes],
            recv_count: i32[ranks, stripes],
            send_rail_head: i32[tokens, nodes],
            send_inner_head: i32[relayed, local_ranks],
        };
        input
            x: bf16[received, hidden],
            weights: optional f32[received, topk],
            bias: up to 2 bf16[tokens, hidden];
        output combined: bf16[tokens, hidden], combined_weights: optional f32[tokens, topk];

        message Part { row x: bf16[hidden], weights: f32[topk] with weights }
        channel inner: ring<Part> over nvlink from NvlSend to Forward per local, one part per nodes {
            depth: nvl_depth, chunk: nvl_chunk,
        };
        channel rail: ring<Part> over rdma | ibgda from Forward to RdmaReceive per rail {
            depth: rdma_depth, chunk: rdma_chunk,
        };

        role NvlSend[peer] on even blocks, 8 warps {
            // Stripes begin with different nodes, so that no node receives all rows at once. All ranks send a stripe in the
            // same order: a receiver needs the rows of all nodes for a token.
            for turn in nodes {
                let node = (turn + stripe) % nodes;
                for row in recv_first[rank_at(node, peer), stripe]..recv_first[rank_at(node, peer), stripe] + recv_count[rank_at(node, peer), stripe] {
                    push inner[peer, node] { x: x[row], weights: weights[row] };
                }
            }
        }
        // Positions are computed, arrival is waited for, the sum is looked up. Units of a stripe are in the order in which its
        // rows come: there may be more units than warps.
        role Forward on odd blocks, 16 warps, warps shared by (node, stripe) {
            let to = (node + stripe) % nodes;
            for row in rail_prefix[to] + rail_first[to, stripe]..rail_prefix[to] + rail_first[to, stripe] + rail_count[to, stripe] gather part from inner[peer, (node + stripe) % nodes] at send_inner_head[row, peer] across peer in local {
                push rail[(node + stripe) % nodes] { x: sum(part.x), weights: sum(part.weights) };
            }
        }
        role RdmaReceive on even blocks, 8 warps, warps shared by token {
            for token in stripe gather part from rail[node] at send_rail_head[token, node] across node in nodes {
                store combined[token] = sum(part.x) + bias[token];
                store combined_weights[token] = sum(part.weights);
            }
        }
    }
}
