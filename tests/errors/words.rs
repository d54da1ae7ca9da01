//- words_of_an_output
// What is raised is the caller's.
ep_runtime::pipeline! {
    pipeline Tell {
        shape { ranks: 1..=64, rows: 1..=64 }
        output told: i32[ranks], y: i32[rows];
        role Copy on all blocks, warps shared by row {
            store y[row] = row;
            raise told[0];
        }
    }
}

//- words_of_64_bits
// Words have 32 bits.
ep_runtime::pipeline! {
    pipeline Tell {
        shape { ranks: 1..=64, rows: 1..=64 }
        input done: i64[ranks];
        output y: i32[rows];
        role Copy on all blocks, warps shared by row {
            await done[0] >= 1;
            store y[row] = row;
        }
    }
}

//- words_read
// A word changes while the call runs.
ep_runtime::pipeline! {
    pipeline Tell {
        shape { ranks: 1..=64, rows: 1..=64 }
        input done: i32[ranks];
        output y: i32[rows];
        role Copy on all blocks, warps shared by row {
            await done[0] >= 1;
            store y[row] = done[0];
        }
    }
}

//- words_counted
// Only one statement raises a word.
ep_runtime::pipeline! {
    pipeline Tell {
        shape { ranks: 1..=64, rows: 1..=64 }
        inout told: i32[ranks];
        output y: i32[rows];
        role Copy on all blocks, warps shared by row {
            store y[row] = row;
            count told[0];
            raise told[0];
        }
    }
}
