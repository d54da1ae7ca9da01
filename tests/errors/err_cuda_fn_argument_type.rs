// A function is given an argument of another type.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ float twice(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token, 0] = twice(token);
            }
        }
    }
}

fn main() {}
