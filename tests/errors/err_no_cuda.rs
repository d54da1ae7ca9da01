// A role with a peer fills two rings.
ep_runtime::pipeline! {
    pipeline Twins {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        uses handle super::Layout { in_rank: bool[tokens, ranks], stripe_tokens: i32[stripes, ranks] };
        uses handle super::Positions { rank_prefix: i32[ranks + 1, ranks], stripe_prefix: i32[ranks, stripes] };
        size received = rank_prefix[ranks, me];
        input x: bf16[tokens, hidden];
        output left: bf16[received, hidden] in window, right: bf16[received, hidden] in window;
        message Token { row x: bf16[hidden] }
        channel one: ring<Token> over nvlink from Send to Left per all { depth: depth, chunk: chunk, header: [first, count] };
        channel two: ring<Token> over nvlink from Send to Right per all { depth: depth, chunk: chunk, header: [first, count] };
        role Send[peer] on even blocks {
            announce one[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            announce two[peer] { first: stripe_prefix[peer, stripe], count: stripe_tokens[stripe, peer] };
            for token in stripe where in_rank[token, peer] {
                push one[peer] { x: x[token] };
                push two[peer] { x: x[token] };
            }
        }
        role Left[peer] on odd blocks, 8 warps {
            for message in one[peer] at rank_prefix[peer, me] + one[peer].first {
                store left[message.row] = message.x;
            }
        }
        role Right[peer] on odd blocks, 8 warps {
            for message in two[peer] at rank_prefix[peer, me] + two[peer].first {
                store right[message.row] = message.x;
            }
        }
    }
}

fn main() {}
