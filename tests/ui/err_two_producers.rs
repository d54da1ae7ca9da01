// Two roles push to a channel for the same peer.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks], first_row: i32[ranks, stripes];
        output recv_x: bf16[received, hidden] in window;
        table recv_src: i32[received];
        message Token { row x: bf16[hidden], src: i32 }
        channel rows: direct<Token> over nvlink from Send, Local to Unpack per all;
        role Send on blocks 0..8, 8 warps, warps shared by token {
            for token in stripe {
                for peer in ranks where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token], src: token };
                }
            }
        }
        role Local on other blocks, 8 warps, warps shared by token {
            for token in stripe where in_rank[token, me] {
                push rows[me] at first_row[me, stripe] { x: x[token], src: token };
            }
        }
        role Unpack on other blocks, 4 warps, warps shared by (source, stripe) {
            for message in rows[source] {
                store recv_x[message.row] = message.x;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

fn main() {}
