//! `local-layout` and `local-node-layout`: count the tokens of one rank, without the other ranks.

use crate::pipeline;
pub use local_layout::*;

pipeline! {
    /// What a rank counts by itself.
    items local_counts {
        size tokens;
        input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output per_rank: i32[ranks], per_expert: i32[experts], in_rank: bool[tokens, ranks];
    }

    /// Counts a token for its ranks and for its experts, and stores to which ranks it goes.
    fragment count_token(ids: tensor, token: value, per_rank: tensor, per_expert: tensor, in_rank: tensor) {
        for expert in ids[token] {
            count per_expert[expert];
        }
        for peer in ranks {
            store in_rank[token, peer] = routed(ids[token], peer);
        }
        for peer in ranks where routed(ids[token], peer) {
            count per_rank[peer];
        }
    }

    /// Counts the tokens of this rank for each rank and each expert, and stores to which ranks a token goes.
    ///
    /// Nothing is exchanged, so a rank may make the call alone. A token counts once for a rank, and once for each
    /// entry that names an expert.
    pub pipeline LocalLayout {
        shape {
            ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024,
            let local_experts = ceil(experts, ranks),
        }
        use local_counts;
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                count_token(topk_idx, token, per_rank, per_expert, in_rank);
            }
        }
    }

    /// Counts the tokens of this rank for each rank, each node and each expert, and stores to which ranks a token goes.
    ///
    /// Nothing is exchanged, so a rank may make the call alone.
    pub pipeline LocalNodeLayout {
        shape {
            ranks: 1..=1024, nodes: 1..=1024, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024,
            let local_ranks = ceil(ranks, nodes),
            let local_experts = ceil(experts, ranks),
            require nodes * local_ranks == ranks,
        }
        use local_counts;
        output per_node: i32[nodes];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                count_token(topk_idx, token, per_rank, per_expert, in_rank);
                for node in nodes where routed_node(topk_idx[token], node) {
                    count per_node[node];
                }
            }
        }
    }
}
