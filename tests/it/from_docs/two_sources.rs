//! A consumer of two channels: one role empties the rings of two batches with routings of their own.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Moves two batches of rows through two rings, which one role empties.
    pub pipeline TwoSources {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, most: 1..=16 }
        size tokens in 0..=most;
        input
            a: bf16[tokens, hidden], a_to: bool[tokens, ranks],
            b: bf16[tokens, hidden], b_to: bool[tokens, ranks];
        output recv_a: bf16[ranks, most, hidden], recv_b: bf16[ranks, most, hidden];
        tune { stripes: 2 in [1, 2, 4], depth: 16 in [16, 64], chunk: 8 in [1, 8] }
        message Token { row x: bf16[hidden], src: i32 }
        channel from_a: ring<Token> over nvlink from SendA to Recv per all {
            depth: depth, chunk: chunk, header: [count],
        };
        channel from_b: ring<Token> over nvlink from SendB to Recv per all {
            depth: depth, chunk: chunk, header: [count],
        };

        role SendA[peer] on even blocks, 8 warps {
            announce from_a[peer] { count: sum(token in stripe: a_to[token, peer] as i32) };
            for token in stripe where a_to[token, peer] {
                push from_a[peer] { x: a[token], src: token };
            }
        }
        role SendB[peer] on even blocks, 8 warps {
            announce from_b[peer] { count: sum(token in stripe: b_to[token, peer] as i32) };
            for token in stripe where b_to[token, peer] {
                push from_b[peer] { x: b[token], src: token };
            }
        }
        role Recv[peer] on odd blocks {
            for message in from_a[peer] {
                store recv_a[peer, message.src] = message.x;
            }
            for message in from_b[peer] {
                store recv_b[peer, message.src] = message.x;
            }
        }
    }
}

pub(super) fn by_hand() -> ByHand {
    ByHand::of::<TwoSources>(&[("ranks", 2), ("hidden", 16), ("most", 2)])
        .rank(|rank| {
            rank.size("tokens", 2)
                .give("a", [2, 16], [1.0, 2.0])
                .give("a_to", [2, 2], [1, 1, 0, 1])
                .give("b", [2, 16], [10.0, 20.0])
                .give("b_to", [2, 2], [0, 1, 1, 0])
                .want_where_written("recv_a", [Some(1.0), None, Some(3.0), None])
                .want_where_written("recv_b", [None, Some(20.0), Some(30.0), None])
        })
        .rank(|rank| {
            rank.size("tokens", 1)
                .give("a", [1, 16], [3.0])
                .give("a_to", [1, 2], [1, 0])
                .give("b", [1, 16], [30.0])
                .give("b_to", [1, 2], [1, 1])
                .want_where_written("recv_a", [Some(1.0), Some(2.0), None, None])
                .want_where_written("recv_b", [Some(10.0), None, Some(30.0), None])
        })
}
