// A role needs more shared memory than any architecture has, for every shape.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, pages: 2048..=4096 }
        tune { stripes: 64 in [32, 64] }
        size tokens;
        size received = rows_for[me];
        input
            x: bf16[tokens, hidden],
            in_rank: bool[tokens, ranks],
            rows_for: i32[ranks],
            first_row: i32[ranks, stripes],
            all: i32[tokens, pages];
        output recv_x: bf16[received, hidden] in window;
        table recv_src: i32[received];
        message Token { row x: bf16[hidden], src: i32, all: i32[pages] }
        channel rows: direct<Token> over nvlink from Send, Local to Unpack per all;
        role Send on blocks 0..8, 32 warps, warps shared by token {
            for token in stripe {
                for peer in others where in_rank[token, peer] {
                    push rows[peer] at first_row[peer, stripe] { x: x[token], src: token, all: all[token] };
                }
            }
        }
        role Local on other blocks, 8 warps, warps shared by token {
            for token in stripe where in_rank[token, me] {
                push rows[me] at first_row[me, stripe] { x: x[token], src: token, all: all[token] };
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
