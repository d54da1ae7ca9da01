//! `local-layout`: counts the tokens of one rank, without the other ranks.

use crate::pipeline;
pub use local_layout::*;

pipeline! {
    /// Counts the tokens of this rank for each rank and each expert, and stores to which ranks a token goes.
    ///
    /// Nothing is exchanged, so a rank may make the call alone. A token counts once for a rank, and once for each
    /// entry that names an expert. `across Nodes` counts tokens for each node, too.
    pub pipeline LocalLayout {
        shape {
            ranks: 1..=1024, nodes: 1..=1024, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024,
            let local_ranks = ceil(ranks, nodes),
            let local_experts = ceil(experts, ranks),
            require nodes * local_ranks == ranks,
        }
        variant across { Ranks, Nodes }
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output per_rank: i32[ranks], per_expert: i32[experts], in_rank: bool[tokens, ranks];
        when across is Nodes {
            output per_node: i32[nodes];
        }
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    count per_expert[expert];
                }
                for peer in ranks {
                    store in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
                when across is Nodes {
                    for node in nodes where routed_node(topk_idx[token], node) {
                        count per_node[node];
                    }
                }
            }
        }
    }
}
