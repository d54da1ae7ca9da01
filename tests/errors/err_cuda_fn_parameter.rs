// A parameter of a function is no single element.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input node_bits: bits[hidden][tokens];
        output y: f32[tokens, hidden];
        cuda fn twice(value: bits[hidden]) -> f32 = r"__device__ float twice(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token, 0] = twice(node_bits[token]);
            }
        }
    }
}

fn main() {}
