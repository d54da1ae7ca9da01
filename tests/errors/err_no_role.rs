// A pipeline does nothing.
ep_runtime::pipeline! {
    pipeline Nothing {
        shape { ranks: 1..=64 }
        input counts: i32[ranks];
    }
}

fn main() {}
