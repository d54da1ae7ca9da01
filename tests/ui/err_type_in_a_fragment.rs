// A fragment of the block stores a whole number where a float belongs.
ep_runtime::pipeline! {
    fragment fill(to: tensor, value: value) {
        for rank in ranks {
            store to[rank] = value * rank;
        }
    }
    pipeline Tell {
        shape { ranks: 1..=64 }
        output y: f32[ranks];
        role All on all blocks { fill(y, 2); }
    }
}

fn main() {}
