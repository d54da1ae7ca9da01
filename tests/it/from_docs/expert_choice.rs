//! Routing by the experts: each one picks the tokens of every rank to which it gives the highest scores.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Sends each expert the `capacity` tokens of every rank that it scores highest.
    pub pipeline ExpertChoice {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, experts: 1..=4096, capacity: 1..=1024,
            let local_experts = ceil(experts, ranks),
        }
        size tokens;
        input
            x: bf16[tokens, hidden], score: f32[tokens, experts],
            expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
        output
            picked: bf16[local_experts, ranks, capacity, hidden], token_of: i32[local_experts, ranks, capacity],
            picks_of: i32[local_experts, ranks];
        message Pick { row x: bf16[hidden], token: i32, place: i32 }
        channel picks: slots<Pick> over nvlink from Send to Take per all {
            slot: [expert: local_experts, source, pick: capacity], epochs: 2,
        };
        role Send on even blocks, warps shared by token {
            for token in tokens {
                for expert in experts {
                    let higher = sum(other in tokens: (score[other, expert] > score[token, expert]
                        || score[other, expert] == score[token, expert] && other < token) as i32);
                    if higher < capacity {
                        push picks[owner(expert)] at [local(expert, owner(expert))] {
                            x: x[token], token: token, place: higher,
                        };
                    }
                }
            }
            close picks;
        }
        role Take on odd blocks, warps shared by (expert, source) {
            for message in picks[expert, source] {
                store picked[expert, source, message.place] = message.x;
                store token_of[expert, source, message.place] = message.token;
            }
            store picks_of[expert, source] = picks[expert, source].count;
        }
    }
}

/// Two ranks with an expert each, which takes two tokens of each rank: rank 0 has three tokens, rank 1 one.
pub(super) fn by_hand() -> ByHand {
    ByHand::of::<ExpertChoice>(&[("ranks", 2), ("hidden", 16), ("experts", 2), ("capacity", 2)])
        .rank(|rank| {
            rank.size("tokens", 3)
                .give("x", [3, 16], [1.0, 2.0, 3.0])
                .give("score", [3, 2], [0.1, 0.5, 0.9, 0.5, 0.4, 0.2])
                .give("expert_begin", [3], [0, 1, 2])
                .want_where_written("token_of", [Some(1), Some(2), Some(0), None])
                .want("picks_of", [2, 1])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("x", [1, 16], [4.0])
                .give("score", [1, 2], [0.3, 0.3])
                .give("expert_begin", [3], [0, 1, 2])
                .want_where_written("token_of", [Some(0), Some(1), Some(0), None])
                .want("picks_of", [2, 1])
        })
}
