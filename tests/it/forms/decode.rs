//! A dispatch in one launch, and the way back of its rows: their kernels, with the rules and without, leave
//! what the declarations mean.

use std::cell::Cell;

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::{RuleSet, Ways};
use ep_runtime::pipelines::{
    DecodeCombine, DecodeDispatch, MergeCombine, PackedDispatch, SpreadCombine,
};
use ep_runtime::{Pipeline, ir};

use super::meaning::{held_by, only};
use super::planted::all_are_found;
use super::run::Form;
use crate::usual;

/// How many tokens of all ranks travel as words.
fn words_of(seed: u64) -> i64 {
    [0, 256, 16][seed as usize % 3]
}

/// Calls of 1 to 5 ranks, each rank with a number of tokens of its own.
const SEEDS: u64 = 10;

#[test]
fn a_dispatch_in_one_launch_leaves_what_it_means() {
    if crate::host::programs().is_none() {
        return;
    }
    let (ir, ruled) = (DecodeDispatch::ir(), Cell::new(0));
    let mut calls = 0;
    for seed in usual::some(0..SEEDS, 2) {
        calls += 1;
        let ranks = 1 + seed as i64 % 5;
        // What the window of a test has room for; more tokens than a word has bits, with few ranks.
        let tokens = (1 + seed as i64 * 17 % 70).min(160 / ranks);
        let numbers = [
            ("ranks", ranks),
            ("max_tokens", tokens),
            ("hidden", 64),
            ("experts", 60),
            ("topk", 1 + seed as i64 % 7),
            ("words", words_of(seed)),
        ];
        let held = held_by(
            std::slice::from_ref(&ir),
            &numbers,
            seed,
            &|drawn| {
                let ways = Ways::of(&drawn.ir, RuleSet::All);
                assert!(!ways.is_composed("Dispatch"), "the rule is for it");
                drawn
            },
            &|form| {
                // Where weights are sent and not received, the plan asks for a place for them.
                ruled.set(ruled.get() + u64::from(!form.is_refused()));
                form
            },
        );
        if let Err(words) = held {
            panic!("seed {seed}, {numbers:?}: {words}");
        }
    }
    assert!(ruled.get() >= calls / 2, "the rule took {} of {calls} calls", ruled.get());
}

/// Bugs of rows that a dispatch in one launch sends as words.
const BUGS_OF_SENT_WORDS: &str = "
== the halves of a unit are exchanged
in ep/as_words.cuh
- WordPair{stamped(epoch, it.z), stamped(epoch, it.w)}
+ WordPair{stamped(epoch, it.w), stamped(epoch, it.z)}

== rows as words are those behind the rows of the rank before
in ep/one_launch.cuh
- if (source > 0 && g == (source - 1) / kLanes) rows = through;
+ if (source > 1 && g == (source - 1) / kLanes) rows = through;

== small fields are those of a row that came before
in ep/one_launch.cuh
- send_fields(Words::numbers(to), record, [](int i)
+ send_fields(Words::numbers(to) + 1, record, [](int i)
";

#[test]
fn planted_bugs_of_sent_words_are_found() {
    let ir = DecodeDispatch::ir();
    let sent = |seed: u64, run: &dyn Fn(Form) -> Form| {
        let numbers = [
            ("ranks", 3),
            ("max_tokens", 5),
            ("hidden", 64),
            ("experts", 12),
            ("topk", 4),
            ("words", 256),
        ];
        held_by(std::slice::from_ref(&ir), &numbers, seed, &|drawn| drawn, run)
    };
    all_are_found(BUGS_OF_SENT_WORDS, 6, |_, seed, planted| sent(seed, planted));
}

/// A dispatch and its combine with so many ranks, tokens and values in a row.
fn back(shape: (i64, i64, i64, u64), run: &dyn Fn(Form) -> Form) -> Result<(), String> {
    back_as(words_of(shape.3), shape, run)
}

/// The same where so many tokens of all ranks travel as words.
fn back_as(
    words: i64,
    (ranks, tokens, hidden, seed): (i64, i64, i64, u64),
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let numbers = [
        ("ranks", ranks),
        ("max_tokens", tokens),
        ("hidden", hidden),
        ("experts", 2 * ranks + 1),
        ("topk", 1 + seed as i64 % 5),
        ("words", words),
    ];
    let ruled = |drawn: Drawn| {
        let ways = Ways::of(&drawn.ir, RuleSet::All);
        assert!(
            drawn.ir.roles.iter().all(|role| !ways.is_composed(&role.name)),
            "rules are for it"
        );
        drawn
    };
    held_by(&[DecodeDispatch::ir(), DecodeCombine::ir()], &numbers, seed, &ruled, run)
}

fn come_back(shapes: &[(i64, i64, i64)]) {
    for (seed, (ranks, tokens, hidden)) in (0..).zip(shapes.iter().copied()) {
        let held = back((ranks, tokens, hidden, seed), &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

/// Quarters of whole steps, short ones and empty ones.
#[test]
fn rows_come_back_to_their_tokens() {
    come_back(&[(2, 3, 4240), (1, 9, 16)]);
}

/// More rows than warps, and fewer; more ranks than a warp has lanes.
#[test]
fn rows_of_other_shapes_come_back_at_length() {
    come_back(&[(3, 3, 2880), (4, 12, 128), (5, 2, 2064), (2, 60, 64), (36, 1, 32)]);
}

/// A dispatch whose rows are packed, and a combine of what is made of them, with so many ranks, tokens and values in
/// a row.
fn packed(
    combine: ir::Pipeline,
    shape: (i64, i64, i64, u64),
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    packed_as(words_of(shape.3), combine, shape, run)
}

/// The same where so many tokens of all ranks travel as words.
fn packed_as(
    words: i64,
    combine: ir::Pipeline,
    (ranks, tokens, hidden, seed): (i64, i64, i64, u64),
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let numbers = [
        ("ranks", ranks),
        ("max_tokens", tokens),
        ("hidden", hidden),
        ("experts", 3 * ranks + 2),
        ("topk", 1 + seed as i64 * 5 % 11),
        ("words", words),
    ];
    let ruled = |drawn: Drawn| {
        let ways = Ways::of(&drawn.ir, RuleSet::All);
        let composed = drawn.ir.roles.iter().any(|role| ways.is_composed(&role.name));
        let is_whole = drawn.ir.name == "MergeCombine";
        assert!(!is_whole || !composed, "rules are for it");
        drawn
    };
    let pipelines = [only(PackedDispatch::ir(), "via", "Direct"), combine.clone()];
    held_by(&pipelines, &numbers, seed, &ruled, run)
}

/// No row, fewer and more than are loaded at once; quarters of whole steps, short and empty ones; more rows than warps.
const PACKED: [(i64, i64, i64); 7] =
    [(2, 3, 4240), (3, 3, 2880), (4, 5, 128), (1, 9, 16), (5, 2, 2064), (2, 40, 64), (34, 1, 32)];

#[test]
fn rows_are_added_up_where_they_are_sent_at_length() {
    for (seed, (ranks, tokens, hidden)) in usual::some((0..).zip(PACKED), 3) {
        let held = packed(
            only(MergeCombine::ir(), "via", "Direct"),
            (ranks, tokens, hidden, seed),
            &|form| form,
        );
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

#[test]
fn rows_come_back_to_the_choices_of_their_tokens_at_length() {
    for (seed, (ranks, tokens, hidden)) in usual::some((0..).zip(PACKED), 3) {
        let held = packed(SpreadCombine::ir(), (ranks, tokens, hidden, seed), &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

/// Nobody waits for slots that a rank which takes no part would fill.
#[test]
fn choices_at_a_rank_that_is_left_out_count_for_nothing_at_length() {
    let combine = SpreadCombine::ir();
    let pipelines = [only(PackedDispatch::ir(), "via", "Direct"), combine.clone()];
    let numbers = [("ranks", 3), ("max_tokens", 4), ("hidden", 64), ("experts", 7), ("topk", 4)];
    let left_out = |mut drawn: Drawn| {
        drawn.ranks[1].alive = drawn.ir.name != combine.name;
        drawn
    };
    for seed in usual::some(0..6, 2) {
        let held = held_by(&pipelines, &numbers, seed, &left_out, &|form| form);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Sums that the library does not make where they are sent: of lists longer than a warp, of other rows, or without a
/// factor.
#[test]
fn other_sums_are_composed() {
    let made = "sum(at in list[row]: w[at] * x[at] as f32) as bf16";
    assert!(!adds_composed(32, made), "the rule is for it");
    assert!(adds_composed(64, made), "a lane has a row of the list");
    assert!(adds_composed(32, "sum(at in list[row]: x[at] as f32) as bf16"));
    assert!(adds_composed(32, "sum(at in list[row]: w[row] * w[at] * x[at] as f32) as bf16"));
    assert!(adds_composed(32, "sum(at in most: w[at] * x[at] as f32) as bf16"));
}

/// Whether a way back of rows that are `made` of lists of so many is composed.
fn adds_composed(most: i64, made: &str) -> bool {
    let source = format!(
        "shape {{ ranks: 1..=64, hidden: 8..=4096 step 8, most: 1..={most}, max_tokens: 1..=64 }}
         size tokens in 0..=max_tokens;
         uses handle ep_runtime::pipelines::DecodeDispatch {{
             rank_prefix: i32[ranks + 1, ranks], recv_src: i32[ranks * max_tokens], send_row: i32[tokens, ranks],
         }};
         input x: bf16[max_tokens, hidden], w: f32[max_tokens], list: i32[max_tokens, most] in -1..max_tokens;
         output out: bf16[tokens, hidden];
         message Part {{ row x: bf16[hidden] }}
         channel back: slots<Part> over nvlink from Send to Reduce per all {{
             slot: [source, token: max_tokens], epochs: 2,
         }};
         role Send on all blocks, 4 warps, warps shared by source {{
             for row in rank_prefix[source, me]..rank_prefix[source + 1, me] {{
                 push back[source] at recv_src[row] {{ x: {made} }};
             }}
         }}
         role Reduce on all blocks, 4 warps, warps shared by token {{
             for token in tokens gather part from back[peer]
                 at (token + 1) * (send_row[token, peer] >= 0) as i32 - 1 across peer in ranks
             {{
                 store out[token] = sum(part.x);
             }}
         }}"
    );
    let shape = [("ranks", 2), ("hidden", 64), ("most", 4), ("max_tokens", 8)];
    Form::new(&source, &shape).is_plain()
}

/// Bugs of sums that are made where they are sent.
const BUGS_OF_SUMS: &str = "
== the first row of a sum is left out
in ep/way_back.cuh
- for (u32 left = lanes; left != 0;) {
+ for (u32 left = lanes & (lanes - 1); left != 0;) {

== rows of a sum count with the factor of the first one
in ep/way_back.cuh
- factors[n] = __shfl_sync(kAllLanes, factor, lane);
+ factors[n] = __shfl_sync(kAllLanes, factor, __ffs(static_cast<int>(lanes)) - 1);

== four rows are loaded, and three added
in ep/way_back.cuh
-         for (int n = 0; n < kRowsAtOnce; ++n) {
-             if (n >= some) continue;
+         for (int n = 0; n < 3; ++n) {
+             if (n >= some) continue;

== rows that are there are skipped with those that are not
in ep/way_back.cuh
- __ballot_sync(kAllLanes, at >= 0)};
+ __ballot_sync(kAllLanes, at > 0)};

== the sum of a row of this rank is not sent
in ep/way_back.cuh
- count<true>(rows);
+ count<false>(rows);
";

/// Bugs of sums that go as words.
const BUGS_OF_SUMS_AS_WORDS: &str = "
== the words of a sum are one token off
in ep/way_back.cuh
- Parts::send(Parts::at(End::window_of(source), End::own(), to), units,
+ Parts::send(Parts::at(End::window_of(source), End::own(), to ^ 1), units,

== each part of a sum is the first one
in ep/way_back.cuh
- listed(row), from, part * Cut::kStep, Slots::kMeta);
+ listed(row), from, 0, Slots::kMeta);

== the last parts of sums are not sent
in ep/way_back.cuh
- unit < total * Parts::kParts && !team_.stopped;
+ unit < total * (Parts::kParts - 1) && !team_.stopped;

== sums go as words to ranks that do not take them
in ep/way_back.cuh
- // The first units are added up while the others say what they take.
-             if (!takes_words(source)) continue;
+ // The first units are added up while the others say what they take.

== the sums of this rank are looked for where rows lie
in ep/way_back.cuh
- own_elsewhere_ && number == End::own()
+ number == End::own()
";

#[test]
fn planted_bugs_of_sums_are_found_at_length() {
    all_are_found(BUGS_OF_SUMS, 60, |_, seed, planted| {
        packed(
            only(MergeCombine::ir(), "via", "Direct"),
            (2 + seed as i64 % 2, 4, 2064, seed + 1),
            planted,
        )
    });
    all_are_found(BUGS_OF_SUMS_AS_WORDS, 6, |_, seed, planted| {
        packed_as(16, only(MergeCombine::ir(), "via", "Direct"), (3, 7, 2064, seed + 1), planted)
    });
}

/// Bugs of the way back: what they change in its header.
const BUGS: &str = "
== a quarter is told without a release
in ep/way_back.cuh
- store_release_sys(word_, stamped(team_.epoch, 1));
+ store_relaxed_sys(word_, stamped(team_.epoch, 1));

== a quarter is told before all lanes have stored
in ep/way_back.cuh
-     __device__ __forceinline__ void tell() {
-         __syncwarp();
+     __device__ __forceinline__ void tell() {

== one quarter too few is told
in ep/way_back.cuh
- if (team_.lane / quarters == owed_) word_
+ if (team_.lane / quarters == owed_ && team_.lane % quarters + 1 < quarters) word_

== quarters are seen without an acquire
in ep/way_back.cuh
- found = load_acquire_sys(word);
+ found = load_relaxed_sys(word);

== nobody waits for quarters
in ep/way_back.cuh
- return seen == team_.epoch && value_of(found) != 0;
+ return true;

== numbers go with the second quarter
in ep/way_back.cuh
- if (quarter == 0 && at < kFloats) numbers[at] = held[i];
+ if (quarter != 0 && at < kFloats) numbers[at] = held[i];

== rows are those of the source before
in ep/way_back.cuh
- totals_upto<kPeers>(through_, number);
+ totals_upto<kPeers>(through_, number - 1);

== a row of this rank is taken for the one before it
in ep/way_back.cuh
- static_cast<u32>(row) + 2
+ static_cast<u32>(row) + 1

== rows of this rank are told by one quarter
in ep/way_back.cuh
- for (int i = 0; i < kQuarters; ++i) {
-             store_relaxed_sys(words + i,
+ for (int i = 0; i < 1; ++i) {
+             store_relaxed_sys(words + i,

== the third part of a token is left out
in ep/way_back.cuh
- for (int n = 2; n < parts_; ++n) {
+ for (int n = 3; n < parts_; ++n) {

== the second of two parts is left out
in ep/way_back.cuh
-                 add_bf16(sum[i], second[i]);

== a token is added up by one warp too many
in ep/way_back.cuh
- if (quarter_ != 0 || part_ >= 0) return;
+ if (quarter_ == 0 || part_ >= 0) return;
";

/// Bugs of rows that come back as words.
const BUGS_OF_WORDS: &str = "
== the words of a row are one row off
in ep/way_back.cuh
- End::window_of(source), End::own(), to);
+ End::window_of(source), End::own(), to ^ 1);

== one part too few goes as words
in ep/way_back.cuh
- if (part < Words::kParts) Words::read(units, from(row), part);
+ if (part + 1 < Words::kParts) Words::read(units, from(row), part);

== parts that come as words are added up by half of the lanes
in ep/as_words.cuh
- if (is_in(part, i)) store_quad
+ if (is_in(part, i) && lane_index() < 16) store_quad

== a word that has not come is taken for zero
in ep/as_words.cuh
-             come = false;
+             come = seen == 0;

== rows of this rank are looked for as words
in ep/way_back.cuh
- return source_of(key) == End::own() && own_.row != nullptr;
+ return false;
";

/// A bug that shows where a warp has several quarters of a row.
const BUG_OF_QUARTERS: &str = "
== the words of the first quarter are waited for alone
in ep/way_back.cuh
- const bool used = key >= 0 && quarter < quarters_ && is_told;
+ const bool used = key >= 0 && quarter == 0 && is_told;
";

/// Bugs of the way back that show when a rank is calls ahead of those that it takes nothing from.
const BUGS_AHEAD: &str = "
== nobody waits for the slots of the call before the last
in ep/way_back.cuh
- return reached(seen, want);
+ return true;

== slots are offered before they are read
in ep/slot_rows.cuh
- Slots::kReleased) + group.rank, epoch);
+ Slots::kReleased) + group.rank, epoch + 1);

== slots are offered without a release
in ep/slot_rows.cuh
- store_entry_sys(reinterpret_cast<u32*>(group.windows[peer] + Slots::kReleased)
+ store_relaxed_sys(reinterpret_cast<u32*>(group.windows[peer] + Slots::kReleased)

== an offer of slots is seen without an acquire
in ep/way_back.cuh
- seen = load_acquire_sys(End::released(peer));
+ seen = load_relaxed_sys(End::released(peer));
";

/// The same of rows that come back as words.
const BUGS_OF_WORDS_AHEAD: &str = "
== nobody waits until a rank has said what it takes
in ep/way_back.cuh
- return value_of(found) != 0 && reached(seen, team_.epoch);
+ return true;

";

#[test]
fn slots_are_free_before_they_are_filled_again_at_length() {
    let ahead = |words, seed, run: &dyn Fn(Form) -> Form| {
        back_as(words, (4, 2, 128, seed), &|form| run(form.calls(6)))
    };
    for (seed, words) in [(0, 0), (1, 0), (0, 16), (1, 16)] {
        let held = ahead(words, seed, &|form| form);
        held.unwrap_or_else(|wrong| panic!("seed {seed}, words {words}: {wrong}"));
    }
    all_are_found(BUGS_AHEAD, 6, |_, seed, planted| ahead(0, seed, planted));
    all_are_found(BUGS_OF_WORDS_AHEAD, 6, |_, seed, planted| ahead(16, seed, planted));
}

#[test]
fn planted_bugs_of_the_way_back_are_found_at_length() {
    all_are_found(BUGS, 6, |_, seed, planted| back((3, 2, 4240, seed), planted));
    all_are_found(BUGS_OF_WORDS, 6, |_, seed, planted| back((3, 2, 4240, seed), planted));
    all_are_found(BUG_OF_QUARTERS, 8, |_, seed, planted| back_as(0, (2, 60, 64, seed), planted));
}
