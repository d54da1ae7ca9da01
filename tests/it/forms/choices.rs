//! `if` as a statement and as a value.

use super::meaning::held;
use super::run::accepted;

/// What kernels leave is what the declaration means, on one rank and on several.
fn holds(source: &str) {
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    for seed in 0..4 {
        let ranks = [("ranks", 1 + seed as i64 % 3)];
        let found = held(std::slice::from_ref(&ir), &ranks, seed);
        found.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

#[test]
fn blocks_run_where_their_condition_says_so() {
    holds(
        "shape { ranks: 1..=64, stripes: 1..=4, topk: 1..=4 }
         size tokens in 1..=9;
         arg { way: i32 = 1 in 0..=2 }
         input n: i32[tokens] in -4..9, by: i32[topk] in 0..5;
         inout kept: i32[1], least: i32[ranks];
         output a: i32[tokens], b: i32[tokens, topk], c: i32[topk], d: i32[ranks], e: i64[2];
         role Work on all blocks, 2 warps, warps shared by stripe {
             for t in stripe {
                 if n[t] < 0 {
                     store a[t] = -n[t];
                 } else if n[t] % 2 == 0 {
                     store a[t] = n[t];
                     for k in topk { if by[k] > 1 { store b[t, k] = n[t] + k; } }
                 } else {
                     let twice = n[t] * 2;
                     store a[t] = twice;
                     for k in topk { if k == 1 { store b[t, k] = 7; } else { store b[t, k] = twice; } }
                 }
             }
         }
         role All on all blocks, 2 warps {
             if way > 0 {
                 for k in topk { store c[k] = by[k]; }
             } else {
                 for k in topk { store c[k] = 1; }
                 store e[0] = 5;
             }
             if way == 2 { store e[1] = sum(k in topk: by[k] * 3); }
         }
         role Changed on all blocks, 1 warps {
             if kept[0] > 3 { store kept[0] = 0; } else { add kept[0] = 5; }
         }
         role Each on all blocks, 1 warps, warps shared by rank {
             if least[rank] > 2 { store least[rank] = 1; } else { store d[rank] = least[rank]; }
         }",
    );
}

#[test]
fn positions_are_recorded_where_a_condition_says_no() {
    holds(
        "shape { ranks: 1..=64, stripes: 1..=3 }
         size tokens in 0..=9;
         input to: i32[tokens] in 0..3, n: i32[tokens] in 0..9;
         output odd: i32[ranks, 9], even: i32[ranks, 9], other: i32[tokens];
         table at: i32[tokens, ranks];
         message Word { n: i32, src: i32 }
         channel words: ring<Word> over nvlink from Send to Take per all { depth: 32, chunk: 1, header: [first, count] };
         role Send[peer] on even blocks {
             announce words[peer] {
                 first: 0, count: sum(t in stripe: (to[t] % ranks == peer) as i32),
             };
             for t in stripe {
                 if to[t] % ranks == peer {
                     push words[peer] { n: n[t], src: t };
                     record at[t, peer] = words[peer].position;
                 } else if peer == (to[t] + 1) % ranks && ranks > 1 {
                     store other[t] = n[t];
                 }
             }
         }
         role Take[peer] on odd blocks {
             for m in words[peer] {
                 if m.n % 2 == 1 {
                     store odd[peer, m.src] = m.n;
                 } else {
                     store even[peer, m.src] = m.n;
                 }
             }
         }",
    );
}

#[test]
fn neither_block_runs_where_the_condition_needs_what_is_absent() {
    super::absent::agrees(
        "few",
        "shape { ranks: 1..=64, stripes: 1..=4 }
         size tokens in 1..=9;
         input few: optional i32[tokens] in 0..5, n: i32[tokens] in 0..9;
         inout kept: i32[tokens];
         output a: i32[tokens], b: i32[tokens], c: i32[tokens], d: bool[tokens];
         role Work on all blocks, 2 warps, warps shared by stripe {
             for t in stripe {
                 if few[t] + kept[t] > 2 { store kept[t] = 0; store a[t] = 1; } else { store b[t] = 2; }
                 store c[t] = if n[t] > 4 { few[t] } else { n[t] };
                 store d[t] = n[t] > 4 || few[t] > 2;
             }
         }",
    );
}

#[test]
fn only_the_value_that_counts_is_computed() {
    holds(
        "shape { ranks: 1..=64, stripes: 1..=4, topk: 1..=4, width: 1..=40 }
         size tokens in 1..=9;
         input at: i32[tokens] in -3..4, four: i32[4] in 0..9, big: i64[4] in 0..9, small: u8[4],
             half: bf16[tokens, width], whole: f32[tokens, width], flags: bool[tokens];
         output a: i64[tokens], b: i64[tokens], c: f32[tokens], d: bf16[tokens, width], e: bool[tokens],
             f: f32[tokens, width], g: i32[tokens, topk], h: bf16[tokens], i: i64[tokens];
         role Work on all blocks, 2 warps, warps shared by stripe {
             for t in stripe {
                 store a[t] = if at[t] >= 0 { big[at[t]] } else { -1 } * 2;
                 store b[t] = if at[t] > 0 { sum(k in topk: four[at[t]] / at[t] + k) } else { 10 / (at[t] - 1) };
                 store c[t] = if flags[t] { whole[t, 0] } else if at[t] == 2 { half[t, 0] } else { 0 as f32 };
                 store d[t] = if flags[t] { half[t] } else { half[t] + half[t] };
                 store e[t] = if at[t] >= 0 { four[at[t]] > 3 } else { flags[t] };
                 store f[t] = if at[t] >= 0 { whole[at[t] % tokens] } else { half[t] } * whole[t];
                 for k in topk { store g[t, k] = if k < at[t] && at[t] < 4 { small[at[t]] as i32 } else { k }; }
                 store h[t] = if flags[t] { half[t, 0] } else { half[t, width - 1] };
                 let big_or_small = if at[t] > 0 { small[at[t]] } else { 3000000000 };
                 store i[t] = big_or_small * 5;
             }
         }",
    );
}
