//! Rows and fields of several ranks, added up.

use ep_codegen::schedule::RuleSet;

use super::meaning::held;
use super::run::{Call, Form, accepted, rows};

/// The row of `peer` that token `token` of `rank` adds, if any.
fn row(rank: usize, token: usize, peer: usize, of: usize) -> Option<usize> {
    let place = rank + 3 * token + 5 * peer;
    (of > 0 && !place.is_multiple_of(4)).then(|| place % of)
}

/// What a rank offers: numbers that add up without rounding.
fn offered(rank: usize, row: usize, column: usize) -> f64 {
    ((7 * rank + 5 * row + column) % 32) as f64
}

fn weight(rank: usize, row: usize, k: usize) -> f64 {
    (rank * 100 + row * 10 + k) as f64 / 8.0
}

/// Fields stand in front of the row, and places and biases are found through tables.
const PULLED: &str = "
        shape { ranks: 1..=64, hidden: 8..=1024 step 8, topk: 1..=32 }
        variant bias { None, One, Once, Flat, Found, Several }
        size tokens;
        size rows;
        input
            x: bf16[rows, hidden] in window, w: f32[rows, topk] in window, at: i32[tokens, ranks],
            to: i32[tokens];
        output sums: bf16[tokens, hidden], weights: f32[tokens, topk];
        when bias is One { input b: bf16[tokens, hidden]; }
        when bias is Once { input b: up to 1 bf16[tokens, hidden]; }
        when bias is Flat { input b: optional bf16[hidden]; }
        when bias is Found { input b: bf16[rows, hidden], which: i64[tokens]; }
        when bias is Several { input b: up to 3 bf16[hidden]; }
        message Part { row x: bf16[hidden], w: f32[topk] }
        channel parts: pull<Part> over nvlink from Offer to Sum per all;
        role Offer on block 1, 1 warps { push parts { x: x, w: w }; }
        role Sum on all blocks, 3 warps, warps shared by token {
            for i in tokens gather part from parts[peer] at at[i, peer] across peer in ranks {
                store weights[i] = sum(part.w);
                when bias is None { store sums[to[i]] = sum(part.x); }
                when bias is One { store sums[to[i]] = sum(part.x) + b[i]; }
                when bias is Once { store sums[to[i]] = sum(part.x) + b[i]; }
                when bias is Flat { store sums[to[i]] = sum(part.x) + b; }
                when bias is Found { store sums[to[i]] = sum(part.x) + b[which[i]]; }
                when bias is Several { store sums[to[i]] = sum(part.x) + b; }
            }
        }";

const ROWS: usize = 9;
const TOPK: usize = 5;

fn bias(row: usize, column: usize, copy: usize) -> f64 {
    ((row + column + copy * 3) % 16) as f64
}

/// What is added to the parts of a token.
fn added(arm: &str, copies: usize, token: usize, column: usize) -> f64 {
    match arm {
        "one" | "once" if copies == 1 => bias(token, column, 0),
        "flat" => bias(0, column, 0),
        "found" => bias((token * 2) % ROWS, column, 0),
        _ => (0..copies).fold(0.0, |sum, copy| sum + bias(0, column, copy)),
    }
}

fn with_bias(call: Call, arm: &str, copies: usize, tokens: usize, hidden: usize) -> Call {
    match (arm, copies) {
        (_, 0) => call,
        ("one" | "once", _) => call.give("b", hidden, rows(tokens, hidden, |t, c| bias(t, c, 0))),
        ("found", _) => call.give("b", hidden, rows(ROWS, hidden, |row, c| bias(row, c, 0))).give(
            "which",
            1,
            rows(tokens, 1, |t, _| ((t * 2) % ROWS) as f64),
        ),
        _ => (0..copies).fold(call, |call, copy| {
            call.give(&format!("b#{copy}"), hidden, rows(1, hidden, |_, c| bias(0, c, copy)))
        }),
    }
}

#[test]
fn pulled_rows_are_added_with_any_bias() {
    let cases = [
        ("none", 3, 24, 0),
        ("one", 2, 40, 1),
        ("once", 2, 16, 1),
        ("once", 1, 16, 0),
        ("flat", 2, 520, 1),
        ("found", 2, 24, 1),
        ("several", 2, 24, 3),
        ("several", 2, 24, 0),
    ];
    for (turn, (arm, ranks, hidden, copies)) in cases.into_iter().enumerate() {
        let call = |me: usize| {
            let tokens = [7, 0, 4][me % 3];
            let of = |token: usize, peer: usize| row(me, token, peer, ROWS);
            let sum = |token: usize, value: &dyn Fn(usize, usize) -> f64| {
                let parts = (0..ranks).filter_map(|peer| Some((peer, of(token, peer)?)));
                parts.fold(0.0, |sum, (peer, row)| sum + value(peer, row))
            };
            let at = |token, peer| of(token, peer).map_or(-1.0, |row| row as f64);
            let weights = |token, k| sum(token, &|peer, row| weight(peer, row, k));
            let sums = |place: usize, column: usize| {
                let token = tokens - 1 - place;
                sum(token, &|peer, row| offered(peer, row, column))
                    + added(arm, copies, token, column)
            };
            let call = Call::new()
                .number("tokens", tokens)
                .number("rows", ROWS)
                .give("x", hidden, rows(ROWS, hidden, |row, column| offered(me, row, column)))
                .give("w", TOPK, rows(ROWS, TOPK, |row, k| weight(me, row, k)))
                .give("at", ranks, rows(tokens, ranks, at))
                .give("to", 1, rows(tokens, 1, |token, _| (tokens - 1 - token) as f64))
                .want("weights", TOPK, rows(tokens, TOPK, weights))
                .want("sums", hidden, rows(tokens, hidden, sums));
            with_bias(call, arm, copies, tokens, hidden)
        };
        let shape = [("ranks", ranks as i64), ("hidden", hidden as i64), ("topk", TOPK as i64)];
        let form = Form::new(PULLED, &shape).arm("bias", arm).copies("b", copies as i64).blocks(3);
        let form = form.turn(turn);
        form.check(&call);
        form.check_vector(&call);
    }
    let wide = [("ranks", 40), ("hidden", 1024), ("topk", 32)];
    Form::new(PULLED, &wide).arm("bias", "several").compile();
}

const RINGS: &str = "
        shape { ranks: 1..=64, hidden: 8..=1024 step 8, stripes: 1..=8 }
        size tokens;
        size rows;
        input x: bf16[rows, hidden], begin: i32[ranks, stripes], count: i32[ranks, stripes];
        uses handle other::Dispatch { head: i32[tokens, ranks] };
        output sums: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: ring<Part> over nvlink from Send to Sum per all { depth: 4, chunk: 2 };
        role Send[peer] on all blocks, 4 warps {
            for i in begin[peer, stripe]..begin[peer, stripe] + count[peer, stripe] {
                push parts[peer] { x: x[i] };
            }
        }
        role Sum on all blocks, 3 warps, warps shared by token {
            for i in stripe gather part from parts[peer] at head[i, peer] across peer in ranks {
                store sums[i] = sum(part.x);
            }
        }";

/// Rows that the ranks send one another through rings, found by positions that the caller knows.
#[test]
fn rows_of_rings_are_added_without_a_bias() {
    const STRIPES: usize = 2;
    for (turn, (ranks, hidden)) in [(3, 24), (1, 8)].into_iter().enumerate() {
        let tokens = |rank: usize| [11, 5, 0][rank % 3];
        let stripe = |rank: usize, s: usize| {
            let (each, longer) = (tokens(rank) / STRIPES, tokens(rank) % STRIPES);
            let begin = s * each + s.min(longer);
            begin..begin + each + usize::from(s < longer)
        };
        let adds = |rank: usize, token: usize, from: usize| (rank + token * 2 + from) % 3 != 1;
        // What `from` sends to `to` for a stripe, in order of the tokens there.
        let sent = |from: usize, to: usize, s: usize| -> Vec<usize> {
            stripe(to, s).filter(|token| adds(to, *token, from)).collect()
        };
        let value = |from: usize, to: usize, token: usize, c: usize| {
            ((from * 5 + to * 3 + token * 7 + c) % 32) as f64
        };
        let call = |me: usize| {
            let mut all: Vec<(usize, usize)> = Vec::new();
            let (mut begins, mut counts) = (Vec::new(), Vec::new());
            for to in 0..ranks {
                for s in 0..STRIPES {
                    begins.push(all.len() as f64);
                    all.extend(sent(me, to, s).into_iter().map(|token| (to, token)));
                    counts.push(all.len() as f64 - begins[begins.len() - 1]);
                }
            }
            Call::new()
                .number("tokens", tokens(me))
                .number("rows", all.len())
                .give(
                    "x",
                    hidden,
                    rows(all.len(), hidden, |row, c| value(me, all[row].0, all[row].1, c)),
                )
                .give("begin", STRIPES, begins)
                .give("count", STRIPES, counts)
                .give(
                    "head",
                    ranks,
                    rows(tokens(me), ranks, |token, from| {
                        let s = (0..STRIPES).find(|s| stripe(me, *s).contains(&token)).unwrap_or(0);
                        let gone =
                            sent(from, me, s).iter().filter(|other| **other < token).count() as f64;
                        if adds(me, token, from) { gone } else { -1.0 - gone }
                    }),
                )
                .want(
                    "sums",
                    hidden,
                    rows(tokens(me), hidden, |token, c| {
                        let from = (0..ranks).filter(|from| adds(me, token, *from));
                        from.fold(0.0, |sum, from| sum + value(from, me, token, c))
                    }),
                )
        };
        let form = Form::new(
            RINGS,
            &[("ranks", ranks as i64), ("hidden", hidden as i64), ("stripes", STRIPES as i64)],
        );
        let form = form.turn(turn);
        form.check(&call);
        form.check_vector(&call);
    }
}

/// A window holds whatever a call brings.
#[test]
fn more_rows_are_pulled_than_a_page_holds() {
    let ir = super::run::accepted(
        "shape { ranks: 1..=64, hidden: 64..=64 }
         size tokens in 0..=9;
         size rows in 700..=700;
         input x: bf16[rows, hidden] in window, at: i32[tokens, ranks] in -1..rows;
         output o: bf16[tokens, hidden];
         message Part { row x: bf16[hidden] }
         channel parts: pull<Part> over nvlink from Offer to Sum per all;
         role Offer on block 0, 1 warps { push parts { x: x }; }
         role Sum on all blocks, 3 warps, warps shared by token {
             for t in tokens gather part from parts[p] at at[t, p] across p in ranks { store o[t] = sum(part.x); }
         }",
    );
    let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
    let held = super::meaning::held(&[ir], &[("ranks", 2)], 3);
    held.unwrap_or_else(|words| panic!("{words}"));
}

/// Of parts, of what slots hold, of rows, and of nothing.
const ENDS: &str = "
        shape { ranks: 1..=8, hidden: 16..=1024 step 16, width: 3..=3 }
        size tokens in 1..=5;
        size rows in 1..=5;
        input
            x: bf16[rows, hidden] in window, w: f32[rows, width] in window, at: i32[tokens, ranks] in -1..rows,
            bias: optional bf16[hidden], n: i32[width];
        output
            top: bf16[tokens, hidden], low: f32[tokens, hidden], both: f32[tokens, width], biased: bf16[tokens, hidden],
            named: f32[tokens, hidden],
            first: f32[width], most: i32[width], least: i64[1], none: f32[2], rows_top: bf16[hidden];
        message Part { row x: bf16[hidden], w: f32[width] }
        message Word { w: f32[width], n: i32[width] }
        channel parts: pull<Part> over nvlink from Offer to Fold per all;
        channel words: slots<Word> over nvlink from Tell to Tell per all { slot: [source], epochs: 2 };
        role Offer on block 0, 1 warps { push parts { x: x, w: w }; }
        role Fold on all blocks, 2 warps, warps shared by token {
            for t in tokens gather part from parts[p] at at[t, p] across p in ranks {
                store top[t] = max(part.x);
                store low[t] = min(part.x * part.w[0]) + sum(part.x);
                store both[t] = max(part.w) + min(part.w);
                store biased[t] = max(part.x) + bias;
                let most_of_first = max(part.w[0]);
                let all = sum(part.x as f32);
                store named[t] = all * most_of_first;
            }
        }
        role Tell on block 0, 1 warps {
            for peer in ranks { push words[peer] { w: w[0], n: n }; }
            await words;
            for i in width {
                store first[i] = max(s in ranks: words[s].w[i]);
                store most[i] = max(s in ranks: words[s].n[i] % 100);
            }
            store least[0] = min(k in width: max(j in 0..k + 1: n[j]));
            store none[0] = max(k in 0..0: w[0, k]);
            store none[1] = min(k in 0..0: w[0, k]);
        }
        role Rows on all blocks, 1 warps {
            store rows_top = max(r in rows: x[r]);
        }";

#[test]
fn the_greatest_and_the_least_are_folds() {
    let ir = accepted(ENDS).unwrap_or_else(|errors| panic!("{errors}"));
    for (seed, ranks) in [(0, 1), (1, 3)] {
        let held = held(std::slice::from_ref(&ir), &[("ranks", ranks), ("hidden", 272)], seed);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    // Eight elements a lane, of several parts at once.
    let text = Form::new(ENDS, &[("ranks", 2), ("hidden", 272), ("width", 3)]).text(RuleSet::All);
    assert!(
        text.contains("ep::for_staged_parts<ep::bf16") && text.contains("ep::greater("),
        "{text}"
    );
}

/// Rows that are pulled, of a variant with scales as well, and what else is made of a part that is taken.
const TAKEN: &str = "
        shape { ranks: 1..=8, hidden: 16..=1024 step 16 }
        variant payload { Wide { x: f32 }, Codes { x: e4m3, scale: f32 block 16 } }
        size tokens in 1..=5;
        size rows in 1..=5;
        input at: i32[tokens, ranks] in -1..rows;
        output y: payload[tokens, hidden];
        message Part { row x: payload[hidden], w: f32[2] }
        when payload is Wide {
            input x: f32[rows, hidden] in window, w: f32[rows, 2] in window, bias: optional f32[hidden];
            output
                ws: f32[tokens, 2], named: f32[tokens, hidden], less: f32[tokens, hidden], biased: f32[tokens, hidden],
                peers: i32[tokens], some: f32[tokens];
            channel parts: pull<Part> over nvlink from Offer to Take per all;
            role Offer on block 0, 1 warps { push parts { x: x, w: w }; }
        }
        when payload is Codes {
            input x: bf16[8, hidden], v: f32[2];
            channel parts: slots<Part> over nvlink from Offer to Take per all { slot: [source, row: 8] };
            role Offer on all blocks, 1 warps, warps shared by row {
                for peer in ranks { push parts[peer] at row { x: cast_e4m3(x[row], 16), w: v }; }
            }
        }
        role Take on all blocks, 2 warps, warps shared by token {
            for t in tokens gather part from parts[p] at at[t, p] across p in ranks {
                store y[t] = first(part.x);
                when payload is Wide {
                    store ws[t] = first(part.w);
                    let row = first(part.x);
                    store named[t] = row;
                    store less[t] = max(part.x) - first(part.x * part.w[1]);
                    store biased[t] = first(part.x) + bias;
                    store peers[t] = first(part.w[0] as i32 * 0 + p);
                    for once in 0..1 where first(part.w[0]) > 0 { store some[t] = first(part.w[1]); }
                }
            }
        }";

#[test]
fn a_part_is_taken_as_it_is() {
    let ir = accepted(TAKEN).unwrap_or_else(|errors| panic!("{errors}"));
    for seed in 0..4 {
        let numbers = [("ranks", 1 + seed as i64), ("hidden", 48)];
        let held = held(std::slice::from_ref(&ir), &numbers, seed);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Zeros of either sign, NaNs with bits of their own, and numbers that are hardly any.
#[test]
fn a_part_that_is_taken_keeps_its_bits() {
    const BITS: [u32; 6] = [0x8000_0000, 0x7fc1_2345, 0xffc0_0001, 0x0000_0001, 0x7f80_0000, 0];
    let form = Form::new(
        "shape { ranks: 1..=8, hidden: 16..=64 step 16 }
         size rows;
         input x: f32[rows, hidden] in window, at: i32[rows, ranks];
         output y: f32[rows, hidden];
         message Part { row x: f32[hidden] }
         channel parts: pull<Part> over nvlink from Offer to Take per all;
         role Offer on block 0, 1 warps { push parts { x: x }; }
         role Take on all blocks, 2 warps, warps shared by token {
             for t in rows gather part from parts[p] at at[t, p] across p in ranks { store y[t] = first(part.x); }
         }",
        &[("ranks", 2), ("hidden", 16)],
    );
    let value = |rank: usize, i: usize| f64::from(f32::from_bits(BITS[(5 * rank + i) % 6]));
    let call = |me: usize| {
        Call::new()
            .number("rows", 3)
            .give("x", 16, rows(3, 16, |row, i| value(me, row + i)))
            .give("at", 2, rows(3, 2, |row, peer| if peer == me { -1.0 } else { row as f64 }))
            .want("y", 16, rows(3, 16, |row, i| value(1 - me, row + i)))
    };
    form.check(&call);
}

/// A part that is taken is passed on where there is one; where there is none, nothing is sent, which has no position.
#[test]
fn a_part_that_is_taken_is_passed_on() {
    let passes = |table: &str, record: &str| {
        format!(
            "shape {{ ranks: 1..=8, hidden: 16..=64 step 16, rows: 3..=3 }}
             input x: bf16[rows, hidden] in window, at: i32[rows, ranks] in -1..rows;
             output y: bf16[ranks, rows, hidden], n: i32[ranks];
             {table}
             message Part {{ row x: bf16[hidden] }}
             message Row {{ row x: bf16[hidden], of: i32 }}
             channel parts: pull<Part> over nvlink from Offer to Pass per all;
             channel on: slots<Row> over nvlink from Pass to Keep per all {{ slot: [source, k: rows] }};
             role Offer on block 0, 1 warps {{ push parts {{ x: x }}; }}
             role Pass on block 0, 1 warps {{
                 for t in rows gather part from parts[p] at at[t, p] across p in ranks {{
                     for peer in ranks {{ push on[peer] {{ x: first(part.x), of: t }}; {record} }}
                 }}
                 close on;
             }}
             role Keep on all blocks, 1 warps, warps shared by source {{
                 store n[source] = on[source].count;
                 for m in on[source] {{ store y[source, m.of] = m.x; }}
             }}"
        )
    };
    let ir = accepted(&passes("", "")).unwrap_or_else(|errors| panic!("{errors}"));
    for (seed, ranks) in [(0, 1), (1, 3)] {
        let held = held(std::slice::from_ref(&ir), &[("ranks", ranks), ("hidden", 16)], seed);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    let table = "table places: i32[rows, ranks];";
    let marked = passes(table, "record places[t, peer] = on[peer].position;");
    let refused = accepted(&marked).expect_err("it is refused");
    assert!(refused.contains("a slot that is not filled has no position to record"), "{refused}");
}
