//- cuda_fn_hides_helper
// A function has the name of a helper.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn max(value: f32) -> f32 = r"__device__ float max(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = max(x[token]);
            }
        }
    }
}

//- cuda_fn_no_file
// The file of a function does not exist.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 from "twice.cuh";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = twice(x[token]);
            }
        }
    }
}

//- cuda_fn_no_text
// The C++ text does not define the function.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ float twize(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = twice(x[token]);
            }
        }
    }
}

//- cuda_fn_parameter
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

//- cuda_fn_parameter_count
// The C++ text of a function takes another number of parameters.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ float twice(float value, float by) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = twice(x[token]);
            }
        }
    }
}

//- cuda_fn_result
// The C++ text of a function gives another type.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ int twice(float value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = twice(x[token]);
            }
        }
    }
}

//- cuda_fn_wrong_text
// The C++ text of a function has another parameter than its declaration.
ep_runtime::pipeline! {
    pipeline Scales {
        shape { hidden: 16..=32768 step 16 }
        size tokens;
        input x: f32[tokens, hidden];
        output y: f32[tokens, hidden];
        cuda fn twice(value: f32) -> f32 = r"__device__ float twice(int value) { return 2 * value; }";
        role Scale on all blocks, one block a token {
            for token in tokens {
                store y[token] = twice(x[token]);
            }
        }
    }
}

//- fragments_of_no_file
// The file of fragments is not there.
ep_runtime::pipeline! {
    fragments from "src/fragments.pipe";
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: i32[ranks];
        role All on all blocks, warps shared by rank {
            store y[rank] = rank;
        }
    }
}
