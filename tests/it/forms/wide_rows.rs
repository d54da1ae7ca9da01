//! Rows that a warp computes or copies with several loads under way: they leave what the declarations mean.

use super::apart::agrees;
use super::meaning::held_by;
use super::planted::all_are_found;
use super::run::accepted;

/// Rows that are computed from others and stored, and rows that go on to the next rank with something added.
const COMPUTED: &str = "
    shape { ranks: 2..=64, hidden: 8..=8192 step 8, odd: 1..=8192, rows: 1..=200, let hops = 2 }
    input a: f32[rows, odd], b: bf16[rows, odd], by: f32[rows], x: f32[rows, hidden];
    output sum: bf16[rows, odd], back: f32[rows, hidden];
    message Row { row x: f32[hidden] }
    channel hop: slots<Row> over nvlink from Pass to Pass per all { slot: [hop: hops, row: rows], epochs: 2 };
    role Local on all blocks, 3 warps {
        for row in rows { store sum[row] = (a[row] + by[row] * b[row] as f32) as bf16; }
    }
    role Pass on all blocks, 2 warps, warps shared by row {
        push hop[(me + 1) % ranks] at [0, row] { x: x[row] };
        for first in hop[0, row] {
            push hop[(me + 1) % ranks] at [1, row] { x: first.x + x[row] };
        }
        for second in hop[1, row] { store back[row] = second.x - x[row]; }
    }";

/// Rows shorter than a stretch, rows of several stretches with and without a remainder, and rows that are not aligned.
#[test]
fn rows_are_computed_by_several_stretches() {
    let shapes = [(3, 264, 2600), (2, 2600, 1031), (5, 1032, 2048), (1, 2048, 3)];
    let shapes =
        shapes.map(|(rows, hidden, odd)| [("rows", rows), ("hidden", hidden), ("odd", odd)]);
    let held = [
        "ep::for_wide<Cfg::kThreads>(0, Cfg::kHidden, [&](auto",
        "ep::get_wide<ep::bf16>(&args.b[ep::i64{row * Cfg::kOdd}], i,",
    ];
    agrees(COMPUTED, &shapes.each_ref().map(|it| &it[..]), &held);
}

/// Messages with fields that are too wide for the rows of a lane: copied as they are, made of others, and one number.
const BESIDE: &str = "
    shape {
        ranks: 1..=8, hidden: 16..=64 step 16, wide: 1..=2048, few: 1..=64, max_tokens: 1..=256,
        let max_rows = ranks * max_tokens,
    }
    size tokens in 0..=max_tokens;
    input x: bf16[tokens, hidden], w: bf16[tokens, wide], n: i32[tokens, few] in 0..200, to: i32[tokens] in 0..ranks;
    output
        landed: bf16[ranks * stripes * max_rows, hidden] in window, w_out: bf16[ranks * stripes * max_rows, wide],
        n_out: i64[ranks * stripes * max_rows, few], src_out: i32[ranks * stripes * max_rows],
        c_out: u8[ranks * stripes * max_rows, few];
    tune { stripes: 2 in [1, 2] }
    message Row { row x: bf16[hidden], n: i32[few], w: bf16[wide], src: i32 }
    channel rows: direct<Row> over nvlink from Send to Take per all;
    role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
        for peer in ranks where to[token] != peer {
            push rows[peer] at (me * stripes + stripe) * max_rows { x: x[token], w: w[token], n: n[token], src: token };
        }
    } }
    role Take on all blocks, 3 warps, warps shared by (source, stripe) {
        for row in rows[source] {
            store landed[row.row] = row.x;
            store w_out[row.row] = row.w;
            store n_out[row.row] = row.n as i64;
            store c_out[row.row] = row.n as u8;
            store src_out[row.row] = row.src;
        }
    }";

/// Few rows for a warp and many; fields of whole units, which begin at one or not, and fields of other sizes.
#[test]
fn wide_fields_of_messages_are_copied_together() {
    let shapes = [(4, 520, 1), (60, 40, 8), (40, 1100, 33), (9, 3, 64), (250, 136, 2)];
    let shapes = shapes.map(|(tokens, wide, few)| {
        [("max_tokens", tokens), ("wide", wide), ("few", few), ("hidden", 16)]
    });
    let held =
        ["ep::row_units<ep::bf16, Cfg::kWide>(true,", "ep::row_elements<ep::i64>(true, Cfg::kFew,"];
    agrees(BESIDE, &shapes.each_ref().map(|it| &it[..]), &held);
}

/// Rows that several turns write to one place stay in order: the last one counts.
#[test]
fn rows_of_one_place_stay_in_order() {
    let source = "
        shape { ranks: 1..=8, hidden: 16..=4096 step 16, most: 1..=99 }
        size tokens in 0..=most;
        input x: bf16[tokens, hidden], w: f32[tokens, 8];
        inout kept: bf16[2, hidden], of_last: f32[3, 8];
        role Keep on all blocks, 3 warps, warps shared by source {
            if source == me {
                for token in 0..tokens {
                    store kept[token % 2] = x[token];
                    store of_last[token % 3] = w[token];
                }
            }
        }";
    let shapes = [(7, 64), (99, 2048), (40, 528)];
    let shapes = shapes.map(|(most, hidden)| [("most", most), ("hidden", hidden)]);
    agrees(source, &shapes.each_ref().map(|it| &it[..]), &[]);
}

const BUGS: &str = "
== a lane loads the same stretch again
in ep/wide.cuh
- body(WholeStretches<kStretches>{base + lane_index() * kWide});
+ body(WholeStretches<kStretches>{from + lane_index() * kWide});

== all stretches are stored with the values of the first
in ep/wide.cuh
- put_whole(static_cast<T*>(row) + at.first + k * kTurn, stretch(all, k));
+ put_whole(static_cast<T*>(row) + at.first + k * kTurn, stretch(all, 0));

== the rest of a row is left out
in ep/wide.cuh
- for (int i = base + lane_index() * kWide; i < to; i += kTurn) body(i);
+ for (int i = base + lane_index() * kWide; i + kWide < to; i += kTurn) body(i);
";

const BUGS_OF_COPIES: &str = "
== the second step moves the elements of the first
in ep/wide.cuh
- const int part = (step * kAhead + k) * kLanes + lane_index();
+ const int part = k * kLanes + lane_index();

== a row begins a part too late
in ep/wide.cuh
- if (there && aligned && part < rows * kUnits) each(k, first + part / kUnits, part % kUnits);
+ if (there && aligned && part + 1 < rows * kUnits) each(k, first + (part + 1) / kUnits, (part + 1) % kUnits);

== rows beyond those that move at once are left out
in ep/wide.cuh
- row - lane_index() / kLanesOfRow < end; row += kRowsAtOnce) {
+ row - lane_index() / kLanesOfRow == begin && begin < end; row += kRowsAtOnce) {
";

#[test]
fn planted_bugs_of_wide_rows_are_found_at_length() {
    let of = |bugs: &str, source: &str, numbers: &[(&str, i64)]| {
        let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
        all_are_found(bugs, 4, |_, seed, planted| {
            held_by(std::slice::from_ref(&ir), numbers, seed, &|drawn| drawn, planted)
        });
    };
    of(BUGS, COMPUTED, &[("ranks", 3), ("rows", 2), ("hidden", 2600), ("odd", 2048)]);
    let numbers = [
        ("ranks", 3),
        ("max_tokens", 250),
        ("wide", 130),
        ("few", 33),
        ("hidden", 16),
        ("stripes", 1),
    ];
    of(BUGS_OF_COPIES, BESIDE, &numbers);
}
