//! A drop policy: an expert takes so many tokens of each rank, and the others are dropped.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Counts the tokens of each expert, by stripe.
    pub pipeline DropPlan {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        arg { capacity: i32 = 64 in 1..=64 }
        input topk_idx: i64[tokens, topk] in -1..experts distinct;
        output kept: i32[experts], dropped: i32[experts];
        table stripe_expert: i32[stripes, experts], first_place: i32[experts, stripes];

        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for expert in topk_idx[token] {
                    count stripe_expert[stripe, expert];
                }
            }
        }
        role Place on last block {
            for expert in experts {
                record first_place[expert, s] = prefix_sum(s in stripes: stripe_expert[s, expert]);
            }
            for expert in experts {
                let wanted = sum(s in stripes: stripe_expert[s, expert]);
                store kept[expert] = min(wanted, capacity);
                store dropped[expert] = max(wanted - capacity, 0);
            }
        }
    }

    /// Sends each token to its experts, as long as they have room.
    pub pipeline DropDispatch {
        shape {
            ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024,
        }
        size tokens;
        arg { capacity: i32 = 64 in 1..=64 }
        uses handle DropPlan { stripe_expert: i32[stripes, experts], first_place: i32[experts, stripes] };
        input
            x: bf16[tokens, hidden], topk_idx: i64[tokens, topk] in -1..experts distinct,
            expert_begin: i32[ranks + 1] in 0..=experts ascending;
        output recv_x: bf16[experts, ranks, 64, hidden], recv_src: i32[experts, ranks, 64];
        table place: i32[tokens, experts];
        message Token { row x: bf16[hidden], src: i32, expert: i32, place: i32 }
        channel rows: ring<Token> over nvlink from Send to Take per all {
            depth: 16, chunk: 4, header: [count],
        };

        role Send on all blocks, 4 warps, warps shared by stripe {
            for peer in ranks {
                announce rows[peer] {
                    count: sum(e in expert_begin[peer]..expert_begin[peer + 1]:
                        min(stripe_expert[stripe, e], max(capacity - first_place[e, stripe], 0))),
                };
            }
            for token in stripe {
                for expert in experts at first_place[expert, stripe] where listed(topk_idx[token], expert) {
                    if expert.position < capacity {
                        push rows[owner(expert)] {
                            x: x[token], src: token, expert: expert, place: expert.position,
                        };
                    }
                    record place[token, expert] = expert.position;
                }
            }
        }
        role Take[peer] on all blocks, 4 warps {
            for message in rows[peer] {
                store recv_x[message.expert, peer, message.place] = message.x;
                store recv_src[message.expert, peer, message.place] = message.src;
            }
        }
    }
}

/// Expert 0 of rank 0 takes one token of each rank; three tokens want it.
pub(super) fn by_hand() -> ByHand {
    let shape = [("ranks", 2), ("hidden", 16), ("topk", 1), ("experts", 2), ("stripes", 1)];
    ByHand::of::<DropDispatch>(&shape)
        .set("capacity", 1)
        .rank(|rank| {
            rank.size("tokens", 3)
                .give("topk_idx", [3, 1], [0, 1, 0])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [3, 16], [1.0, 2.0, 3.0])
                .want_first("recv_src", [(0, 0), (64, 0)])
                .want_where_written("place", [Some(0), None, None, Some(0), Some(1), None])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("topk_idx", [1, 1], [0])
                .give("expert_begin", [3], [0, 1, 2])
                .give("x", [1, 16], [4.0])
                .want_first("recv_src", [(128, 1)])
                .want_where_written("place", [Some(0), None])
        })
}
