//- arm_without_parts
// An arm says nothing although its variant is an element type.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16, Fp8 { x: e4m3, scale: f32 block 128 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Bf16 {
                    store cast[token] = x[token];
                }
                when payload is Fp8 {
                    store cast[token] = cast_e4m3(x[token], 128);
                }
            }
        }
    }
}

//- cast_block_zero
// A cast makes scales for blocks of no elements.
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
                    store cast[token] = cast_e4m3(x[token], 0);
                }
            }
        }
    }
}

//- part_not_scalar
// A part of an arm is not an element.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16 { x: payload }, Fp8 { x: e4m3, scale: f32 block 128 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Bf16 {
                    store cast[token] = x[token];
                }
                when payload is Fp8 {
                    store cast[token] = cast_e4m3(x[token], 128);
                }
            }
        }
    }
}

//- part_without_block
// A scale does not say how many elements share it.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16 { x: bf16 }, Fp8 { x: e4m3, scale: f32 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Bf16 {
                    store cast[token] = x[token];
                }
                when payload is Fp8 {
                    store cast[token] = cast_e4m3(x[token], 128);
                }
            }
        }
    }
}

//- row_with_block
// The row itself has a scale block.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16 { x: bf16 block 2 }, Fp8 { x: e4m3, scale: f32 block 128 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Bf16 {
                    store cast[token] = x[token];
                }
                when payload is Fp8 {
                    store cast[token] = cast_e4m3(x[token], 128);
                }
            }
        }
    }
}

//- scale_block_zero
// A scale is shared by no elements.
ep_runtime::pipeline! {
    pipeline Casts {
        shape { hidden: 128..=32768 step 128 }
        variant payload { Bf16 { x: bf16 }, Fp8 { x: e4m3, scale: f32 block 0 } }
        size tokens;
        input x: bf16[tokens, hidden];
        output cast: payload[tokens, hidden];
        role Cast on all blocks, one block a token {
            for token in tokens {
                when payload is Bf16 {
                    store cast[token] = x[token];
                }
                when payload is Fp8 {
                    store cast[token] = cast_e4m3(x[token], 128);
                }
            }
        }
    }
}

//- too_many_texts
// The variants make more kernel texts than a pipeline may have.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        variant mode { Fresh, Cached, Warm }
        variant order { Rows, Columns, Blocks }
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

//- variant_without_arms
// A variant offers nothing.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        variant how {}
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
