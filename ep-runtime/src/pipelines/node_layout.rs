//! `node-layout`: the counts of each node and their exchange, for `node-dispatch` and `node-combine`.

use crate::pipeline;
pub use node_layout::*;

pipeline! {
    /// Counts where this rank's tokens go, per rank and per node, exchanges the counts with all ranks, and
    /// along each rail those of every stripe.
    pub pipeline NodeLayout {
        shape {
            nodes: 2..=128, local_ranks: 1..=8, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024,
            let ranks = nodes * local_ranks,
            let local_experts = ceil(experts, ranks),
        }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        table tokens_per_rank: i32[ranks], tokens_per_expert: i32[experts];
        table
            node_bits: bits[local_ranks][tokens, nodes],
            node_tokens: i32[stripes, nodes],
            node_stripes: i32[nodes, stripes],
            rank_stripes: i32[nodes, local_ranks, stripes];
        table
            rank_prefix: i32[ranks + 1, ranks],
            rail_prefix: i32[nodes + 1],
            node_prefix: i32[nodes, stripes],
            rail_first: i32[nodes, stripes],
            rail_count: i32[nodes, stripes],
            forward_first: i32[nodes, stripes, local_ranks],
            forward_count: i32[nodes, stripes, local_ranks];
        output received: i32[1] to host, received_per_expert: i32[local_experts] to host;

        message Totals { per_rank: i32[ranks], per_expert: i32[local_experts] }
        message Stripes { to_node: i32[stripes], to_rank: i32[local_ranks, stripes] }
        channel counts: slots<Totals> over nvlink | rdma | ibgda from Exchange to Exchange per all {
            slot: [source], epochs: 2,
        };
        channel rails: slots<Stripes> over rdma | ibgda from RailExchange to RailExchange per rail {
            slot: [source], epochs: 2,
        };

        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    count tokens_per_expert[expert];
                }
                for node in nodes {
                    record node_bits[token, node] = routed_bits(topk_idx[token], node);
                }
                for node in nodes where routed_node(topk_idx[token], node) {
                    count node_tokens[stripe, node];
                    count node_stripes[node, stripe];
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count tokens_per_rank[peer];
                    count rank_stripes[node(peer), local_rank(peer), stripe];
                }
            }
        }
        role Exchange on last block, 8 warps {
            exchange(counts, tokens_per_rank, tokens_per_expert, rank_prefix);
            for expert in local_experts {
                store received_per_expert[expert] = sum(source in ranks: counts[source].per_expert[expert]);
            }
            store received[0] = sum(source in ranks: counts[source].per_rank[me]);
        }
        role RailExchange on last block, 4 warps {
            for node in nodes {
                push rails[node] { to_node: node_stripes[node], to_rank: rank_stripes[node] };
            }
            await rails;
            record rail_prefix[node] = prefix_sum(node in nodes: sum(s in stripes: rails[node].to_node[s]));
            for node in nodes {
                record rail_first[node, s] = prefix_sum(s in stripes: rails[node].to_node[s]);
                for s in stripes {
                    record rail_count[node, s] = rails[node].to_node[s];
                    for local in local_ranks {
                        record forward_count[node, s, local] = rails[node].to_rank[local, s];
                    }
                }
                for local in local_ranks {
                    record forward_first[node, s, local] = prefix_sum(s in stripes: rails[node].to_rank[local, s]);
                }
            }
        }
        role Prefix on last block, 4 warps {
            for node in nodes {
                record node_prefix[node, s] = prefix_sum(s in stripes: node_tokens[s, node]);
            }
        }
    }
}
