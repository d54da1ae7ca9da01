// A role with a peer fills two rings.
ep_runtime::pipeline! {
    pipeline Twins {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        uses handle super::Layout { in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks] };
        uses handle super::Notify { rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes] };
        size received = rank_prefix[ranks, me];
        input x: bf16[tokens, hidden];
        output left: bf16[received, hidden] in window, right: bf16[received, hidden] in window;
        message Token { row x: bf16[hidden] }
        channel first: ring<Token> over nvlink from Send to Left per all { depth: depth, chunk: chunk, header: [first, count] };
        channel second: ring<Token> over nvlink from Send to Right per all { depth: depth, chunk: chunk, header: [first, count] };
        role Send[peer] on even blocks {
            announce first[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            announce second[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            for token in stripe where in_rank[token, peer] {
                push first[peer] { x: x[token] };
                push second[peer] { x: x[token] };
            }
        }
        role Left[peer] on odd blocks, 8 warps {
            for message in first[peer] at rank_prefix[peer, me] + first[peer].first {
                store left[message.row] = message.x;
            }
        }
        role Right[peer] on odd blocks, 8 warps {
            for message in second[peer] at rank_prefix[peer, me] + second[peer].first {
                store right[message.row] = message.x;
            }
        }
    }
}

fn main() {}
