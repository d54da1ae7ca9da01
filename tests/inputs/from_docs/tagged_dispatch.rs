ep_runtime::pipeline! {
    /// Sends rows, each with the 16 bytes of its request's tag, to where the tokens go, in order of rank and token.
    pub pipeline TaggedDispatch {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        size tokens;
        size received = rank_prefix[ranks, me];
        uses handle ep_runtime::pipelines::Layout {
            in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks],
        };
        uses handle ep_runtime::pipelines::Notify {
            rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes],
        };
        input x: bf16[tokens, hidden], tag: u8[tokens, 16];
        output recv_x: bf16[received, hidden], recv_tag: u8[received, 16];
        table
            recv_src: i32[received], send_head: i32[tokens, ranks],
            recv_first: i32[ranks, stripes], recv_count: i32[ranks, stripes];
        tune {
            stages: 3 in [2, 3, 4], piece: 3584 in [1024, 3584],
            stripes: 12 in [4, 8, 12, 24], depth: 64 in [16, 64, 256], chunk: 8 in [1, 8],
        }
        message Tagged { row x: bf16[hidden], src: i32, tag: u8[16] }
        channel ring: ring<Tagged> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };
        role Send[peer] on even blocks {
            announce ring[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: x[token], src: token, tag: tag[token] };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on odd blocks {
            record recv_first[peer, stripe] = rank_prefix[peer, me] + ring[peer].first;
            record recv_count[peer, stripe] = ring[peer].count;
            for message in ring[peer] at rank_prefix[peer, me] + ring[peer].first {
                store recv_x[message.row] = message.x;
                store recv_tag[message.row] = message.tag;
                record recv_src[message.row] = message.src;
            }
        }
    }
}
