//- absent_in_arm
// A role names a channel that only one arm has.
ep_runtime::pipeline! {
    pipeline Exchange {
        shape { ranks: 1..=64 }
        input tokens_per_rank: i32[ranks];
        output received: i32[ranks];
        message Counts { rows: i32 }
        variant how { Told, Guessed }
        when how is Told {
            channel counts: slots<Counts> over nvlink from Swap to Swap per all { slot: [source], epochs: 2 };
        }
        role Swap on block 0 {
            for peer in ranks {
                push counts[peer] { rows: tokens_per_rank[peer] };
            }
            await counts;
            for source in ranks {
                store received[source] = counts[source].rows;
            }
        }
    }
}

//- binder_hides_a_name
// A loop gives its binder the name of a tensor.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for per_rank in ranks {
                    record in_rank[token, per_rank] = routed(topk_idx[token], per_rank);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- cast_to_variant
// A row is cast to a variant.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16 { x: bf16 }, Fp8 { x: e4m3, scale: f32 block 128 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Bf16 {
                    store cast[token] = x[token];
                }
                when payload is Fp8 {
                    store cast[token] = x[token] as payload;
                }
            }
        }
    }
}

//- duplicate_arm
// Two arms of a variant have one name.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice, Plain }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token];
                }
            }
        }
        when via is Twice {
            role Doubled on all blocks, warps shared by stripe {
                for token in stripe {
                    store copy[token] = x[token] + x[token];
                }
            }
        }
    }
}

//- duplicate_field
// Two fields of a message have one name.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        input
            x: bf16[tokens, hidden],
            weights: optional f32[tokens, topk],
            in_rank: bool[tokens, ranks],
            first_row: i32[ranks, stripes],
            num_rows: i32[ranks, stripes];
        output recv_x: bf16[received, hidden], recv_weights: optional f32[received, topk];
        table recv_src: i32[received], send_head: i32[tokens, ranks];
        message Token { row x: bf16[hidden], src: i32, src: i64, weights: f32[topk] with weights }
        channel ring: ring<Token> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };
        role Send[peer] on even blocks {
            announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe where in_rank[token, peer] {
                push ring[peer] { x: x[token], src: token, weights: weights[token] };
                record send_head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] at ring[peer].first {
                store recv_x[message.row] = message.x;
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- duplicate_name
// Two tensors have one name.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table per_rank: i32[ranks], in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- duplicate_pipeline
// Two pipelines of one block have one name.
ep_runtime::pipeline! {
    pipeline Halves {
        shape { ranks: 1..=64 }
        input ours: i32[ranks];
        output theirs: i32[ranks];
        message Word { value: i32 }
        channel words: slots<Word> over nvlink from Give to Take per all { slot: [source], epochs: 2 };
        phase send {
            role Give on block 0 {
                for peer in ranks {
                    push words[peer] { value: ours[peer] };
                }
            }
        }
        phase recv {
            role Take on block 0 {
                await words;
                for source in ranks {
                    store theirs[source] = words[source].value;
                }
            }
        }
    }

    pipeline Halves {
        shape { ranks: 1..=64 }
        input ours: i32[ranks];
        output theirs: i32[ranks];
        message Word { value: i32 }
        channel words: slots<Word> over nvlink from Give to Take per all { slot: [source], epochs: 2 };
        phase send {
            role Give on block 0 {
                for peer in ranks {
                    push words[peer] { value: ours[peer] };
                }
            }
        }
        phase recv {
            role Take on block 0 {
                await words;
                for source in ranks {
                    store theirs[source] = words[source].value;
                }
            }
        }
    }
}

//- duplicate_role
// Two roles have one name.
ep_runtime::pipeline! {
    pipeline Chain {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        tune { stripes: 12 in [4, 12] }
        size tokens;
        size received;
        input x: bf16[tokens, hidden], first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
        output back: bf16[received, hidden];
        message Row { row x: bf16[hidden] }
        channel there: ring<Row> over nvlink from Near to Far per all { depth: 64, chunk: 8, header: [first, count] };
        channel here: ring<Row> over nvlink from Far to Far per all { depth: 64, chunk: 8, header: [first, count] };
        role Near[peer] on blocks 0..8 {
            announce there[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe {
                push there[peer] { x: x[token] };
            }
        }
        role Far[peer] on blocks 8..16 {
            announce here[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for message in there[peer] {
                push here[peer] { x: message.x };
            }
        }
        role Far[peer] on other blocks {
            for message in here[peer] at here[peer].first {
                store back[message.row] = message.x;
            }
        }
    }
}

//- reserved_name
// A size has a name that has a meaning of its own.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        size stripe;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- role_like_its_pipeline
// A role has the name of its pipeline.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Tally on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- role_not_in_camel_case
// A role is named like a tensor.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role count_tokens on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- same_struct
// A channel and a role become one struct of the emitted text.
ep_runtime::pipeline! {
    pipeline Rows {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16, topk: 1..=32 }
        tune { stripes: 12 in [4, 12], depth: 64 in [32, 64], chunk: 8 in [4, 8] }
        size tokens;
        size received;
        input
            x: bf16[tokens, hidden],
            weights: optional f32[tokens, topk],
            in_rank: bool[tokens, ranks],
            first_row: i32[ranks, stripes],
            num_rows: i32[ranks, stripes];
        output recv_x: bf16[received, hidden], recv_weights: optional f32[received, topk];
        table recv_src: i32[received], send_head: i32[tokens, ranks];
        message Token { row x: bf16[hidden], src: i32, weights: f32[topk] with weights }
        channel recv: ring<Token> over nvlink from Send to Recv per all {
            depth: depth, chunk: chunk, header: [first, count],
        };
        role Send[peer] on even blocks {
            announce recv[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
            for token in stripe where in_rank[token, peer] {
                push recv[peer] { x: x[token], src: token, weights: weights[token] };
                record send_head[token, peer] = recv[peer].position;
            }
        }
        role Recv[peer] on odd blocks {
            for message in recv[peer] at recv[peer].first {
                store recv_x[message.row] = message.x;
                store recv_weights[message.row] = message.weights;
                record recv_src[message.row] = message.src;
            }
        }
    }
}

//- tensor_not_in_snake_case
// A tensor is named like a role.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        table InRank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record InRank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- role_named_by_a_word
// A role becomes a function in snake case.
ep_runtime::pipeline! {
    pipeline Doubling {
        shape { ranks: 1..=64, stripes: 1..=1024 }
        size tokens;
        input x: i32[tokens];
        output copy: i32[tokens];
        role Return on all blocks, warps shared by stripe {
            for token in stripe {
                store copy[token] = x[token] * 2;
            }
        }
    }
}

//- word_of_cpp
// A tensor is named by a word of C++.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output register: i32[ranks];
        table in_rank: bool[tokens, ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks {
                    record in_rank[token, peer] = routed(topk_idx[token], peer);
                }
                for peer in ranks where routed(topk_idx[token], peer) {
                    count register[peer];
                }
            }
        }
    }
}

//- word_of_the_emitted_text
// A function has a name that the emitted functions use themselves.
ep_runtime::pipeline! {
    pipeline Doubled {
        shape { ranks: 1..=64 }
        input x: f32[ranks];
        output y: f32[ranks];
        cuda fn team(v: f32) -> f32 = r"__device__ inline float team(float v) { return v + v; }";
        role Work on block 0 { for peer in ranks { store y[peer] = team(x[peer]); } }
    }
}

//- variant_like_a_type_of_calls
// A variant becomes a type beside those of every pipeline's calls.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        variant shape { Narrow, Wide }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- option_like_that_of_all_calls
// A tune becomes an option of its kernel, beside those of every kernel.
ep_runtime::pipeline! {
    pipeline Tally {
        shape { ranks: 1..=64, topk: 1..=32, experts: 1..=4096, stripes: 1..=1024 }
        tune { live: 1 in [1, 2] }
        size tokens;
        input topk_idx: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output per_rank: i32[ranks];
        role Count on all blocks, live warps, warps shared by stripe {
            for token in stripe {
                for peer in ranks where routed(topk_idx[token], peer) {
                    count per_rank[peer];
                }
            }
        }
    }
}

//- declared_in_a_fragment_too
// The standard `payload` declares a variant of this name.
ep_runtime::pipeline! {
    pipeline Copy {
        shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
        variant payload { Narrow { x: e4m3, scale: f32 block 128 }, Wide { x: bf16 } }
        use payload;
        size tokens;
        input x: payload[tokens, hidden];
        output y: payload[tokens, hidden];
        role All on all blocks, one block a token {
            for token in tokens { store y[token] = x[token]; }
        }
    }
}
