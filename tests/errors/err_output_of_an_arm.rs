// An output is stored in one arm only.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16 { x: bf16 }, Fp8 { x: e4m3, scale: f32 block 128 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Fp8 {
                    store cast[token] = cast_e4m3(x[token], 128);
                }
            }
        }
    }
}

fn main() {}
