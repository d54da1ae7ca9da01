// Blocks are nested too deeply.
ep_runtime::pipeline! {
    pipeline Copies {
        shape { hidden: 16..=32768 step 16, stripes: 1..=64 }
        variant via { Plain, Twice }
        size tokens;
        input x: f32[tokens, hidden];
        output copy: f32[tokens, hidden];
        when via is Plain {
            role Copy on all blocks, warps shared by stripe {
                for token in stripe {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    when via is Plain {
                    store copy[token] = x[token];
                    }}}}}}}}}}}}}}}}}
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

fn main() {}
