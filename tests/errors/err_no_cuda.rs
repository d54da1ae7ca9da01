// An argument has the name that the kernel gives to the word behind a size.
ep_runtime::pipeline! {
    pipeline Twins {
        shape { ranks: 1..=64 }
        size tokens;
        arg { tokens_from: i32 = 0 in 0..=8 }
        input a: i32[tokens];
        output b: i32[tokens];
        role Copy on all blocks {
            for token in tokens {
                store b[token] = a[token] + tokens_from;
            }
        }
    }
}

fn main() {}
