//! A dispatch in one launch, and the way back of its rows: their kernels, with the rules and without, leave
//! what the declarations mean.

use std::cell::Cell;

use ep_codegen::ir::{BinaryOp, Domain, Expr, Tensor};
use ep_codegen::meaning::Drawn;
use ep_codegen::plan::{Arch, Config, plan};
use ep_codegen::render::body_with;
use ep_codegen::schedule::{Recipe, RuleSet, Ways};
use ep_runtime::pipelines::{DecodeCombine, DecodeDispatch, MergeCombine, PackedDispatch};
use ep_runtime::{Pipeline, ir};

use super::meaning::{accepted, held_by, only};
use super::planted::all_are_found;
use super::run::Form;
use crate::near_misses::{Edit, bound, exprs, gate};
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
                assert!(ways.routes().is_some(), "the rule is for it");
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

/// A word has bits for 64 ranks. Some ranks send rows as words, and others do not.
#[test]
fn a_dispatch_between_more_ranks_than_bits_of_a_word_is_right() {
    let mut ir = DecodeDispatch::ir();
    bound(&mut ir, "ranks", 128);
    let numbers = [("ranks", 67), ("max_tokens", 2), ("hidden", 16), ("experts", 80)];
    let numbers = [&numbers[..], &[("topk", 5), ("words", 128)]].concat();
    let held = held_by(&[ir], &numbers, 3, &|drawn| drawn, &|form| form);
    held.unwrap_or_else(|words| panic!("{words}"));
}

/// A count of the choices of each expert, of which a gate or a part of the choices decides.
#[test]
fn counts_of_some_tokens_or_choices_are_right() {
    if crate::host::programs().is_none() {
        return;
    }
    let half = |ir: &mut ir::Pipeline| {
        exprs(ir, &mut |part| {
            if let Expr::Fold { binder, domain, .. } = part
                && binder == "choice"
            {
                let (low, high) = (Expr::Int { value: 0 }, Expr::Int { value: 1 });
                **domain = Domain::Range { low, high };
            }
        });
    };
    // An expert counts where it stands in two lists.
    let both = |ir: &mut ir::Pipeline| {
        let ids = ir.tensors.iter().find(|it| it.name == "topk_idx").expect("it has a list");
        let other = Tensor { name: "others".to_string(), ..ids.clone() };
        ir.tensors.push(other);
        exprs(ir, &mut |part| {
            let Expr::Binary { op: BinaryOp::Eq, left, right } = part else { return };
            let Expr::Element { indices, .. } = &**left else { return };
            let (tensor, indices) = ("others".to_string(), indices.clone());
            let left = Box::new(Expr::Element { tensor, indices });
            let other = Expr::Binary { op: BinaryOp::Eq, left, right: right.clone() };
            let (left, right) = (Box::new(part.clone()), Box::new(other));
            *part = Expr::Binary { op: BinaryOp::And, left, right };
        });
    };
    let edits: [(Edit, bool); 3] = [(gate, true), (half, false), (both, false)];
    for (edit, is_counted_at_entry) in edits {
        let mut ir = DecodeDispatch::ir();
        edit(&mut ir);
        let config = small(&ir);
        let body = body_with(&ir.select(&config.choice), RuleSet::All).expect("it has a text");
        let text = plan(&ir, &config).expect("it fits").cuda(&body);
        assert_eq!(text.contains("ep::values_of<false>"), is_counted_at_entry, "{text}");
        // The last block counts everything else, and the lanes of a warp share each sum.
        assert_eq!(text.contains("ep::sum_of_lanes("), !is_counted_at_entry, "{text}");
        let numbers = [("ranks", 2), ("max_tokens", 40), ("hidden", 64), ("experts", 7)];
        let numbers = [&numbers[..], &[("topk", 3), ("words", 0)]].concat();
        for seed in 0..3 {
            let all = std::slice::from_ref(&ir);
            let held = held_by(all, &numbers, seed, &|drawn| drawn, &|form| form);
            held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
        }
    }
}

/// A second payload of a dispatch: a short one goes as words, a part at a time, and one that may be as long as a row makes
/// the warps meet. As many of them run as shared memory has room for.
#[test]
fn a_second_payload_leaves_what_it_means() {
    for (extent, meets) in [("700", false), ("hidden", true)] {
        let ir = accepted(&TWO_PAYLOADS.replace("EXTENT", extent));
        let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
        let recipe = &Recipe::of(&ir, RuleSet::All).roles[0];
        assert_eq!(recipe.routes.is_none(), meets, "{:?}", recipe.reasons());
        let is_named = recipe.reasons().iter().any(|why| why.contains("`second` may have"));
        assert_eq!(is_named, meets, "{:?}", recipe.reasons());
        let mut config = small(&ir);
        config.set(&ir, "hidden", "14000").expect("the shape is legal");
        let warps = plan(&ir, &config).expect("it fits").roles[0].count;
        assert_eq!(warps < 8, meets, "{warps} warps");
        for seed in 0..3 {
            let numbers =
                [("ranks", 3), ("hidden", 720), ("experts", 7), ("topk", 3), ("max_tokens", 9)];
            let held =
                held_by(std::slice::from_ref(&ir), &numbers, seed, &|drawn| drawn, &|form| form);
            held.unwrap_or_else(|words| panic!("{extent}, seed {seed}: {words}"));
        }
    }
}

const TWO_PAYLOADS: &str = "
    shape {
        ranks: 1..=8, hidden: 16..=16384 step 16, topk: 1..=8, experts: 1..=32, max_tokens: 1..=32,
        let local_experts = ceil(experts, ranks), let max_rows = ranks * max_tokens,
    }
    size tokens in 0..=max_tokens;
    input
        x: bf16[tokens, hidden], second: bf16[tokens, EXTENT], ids: i64[tokens, topk] in -1..experts,
        expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
    output came: bf16[max_rows, hidden] in window, more: bf16[max_rows, EXTENT];
    table to_rank: i32[ranks], first_row: i32[ranks + 1, ranks];
    message Totals { per_rank: i32[ranks] }
    message Token { row x: bf16[hidden], second: bf16[EXTENT] }
    channel counts: slots<Totals> over nvlink from All to All per all { slot: [source], epochs: 2 };
    channel rows: direct<Token> over nvlink from All to All per all { few: 4 };
    role All on all blocks {
        for peer in ranks { record to_rank[peer] = sum(t in tokens: routed(ids[t], peer) as i32); }
        for peer in ranks { push counts[peer] { per_rank: to_rank }; }
        await counts;
        for dest in ranks {
            record first_row[source, dest] = prefix_sum(source in ranks: counts[source].per_rank[dest]);
        }
        for t in tokens {
            for peer in ranks where routed(ids[t], peer) {
                push rows[peer] at first_row[me, peer] { x: x[t], second: second[t] };
            }
        }
        for m in rows {
            store came[m.row] = m.x;
            store more[m.row] = m.second;
        }
    }";

/// A small shape of a dispatch.
fn small(ir: &ir::Pipeline) -> Config {
    let mut config = Config::new(ir, Arch::Sm90a);
    let numbers = [("ranks", "2"), ("hidden", "64"), ("topk", "2"), ("experts", "4")];
    for (name, value) in numbers.into_iter().chain([("max_tokens", "4")]) {
        config.set(ir, name, value).expect("the shape is legal");
    }
    config
}

/// A field that a dispatch in one launch sends has to go somewhere: its output may be left away with its input alone.
#[test]
fn an_absent_output_of_a_field_is_refused() {
    let ir = DecodeDispatch::ir();
    let refusal = |absent: &[&str]| {
        let mut config = small(&ir);
        config.copies.extend(absent.iter().map(|name| (name.to_string(), 0)));
        plan(&ir, &config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal(&[]), "");
    assert_eq!(refusal(&["topk_weights", "recv_topk_weights"]), "");
    assert_eq!(refusal(&["topk_weights"]), "");
    let said = "needs 1 tensor `recv_topk_weights`, there are 0; pass this tensor, or leave out `topk_weights` too";
    let own = refusal(&["recv_topk_weights"]);
    assert!(own.ends_with(said), "{own}");
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

/// A dispatch and its combine with so many ranks, tokens and values in a row. `words` says how many tokens of all ranks
/// travel as words.
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
    held_by(&[DecodeDispatch::ir(), DecodeCombine::ir()], &numbers, seed, &|drawn| drawn, run)
}

fn come_back(shapes: &[(i64, i64, i64)]) {
    for (seed, (ranks, tokens, hidden)) in (0..).zip(shapes.iter().copied()) {
        let held = back((ranks, tokens, hidden, seed), &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

/// Slices of several turns, short ones and empty ones.
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
    (ranks, tokens, hidden, seed): (i64, i64, i64, u64),
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let numbers = [
        ("ranks", ranks),
        ("max_tokens", tokens),
        ("hidden", hidden),
        ("experts", 3 * ranks + 2),
        ("topk", 1 + seed as i64 * 5 % 11),
        ("words", words_of(seed)),
    ];
    let pipelines = [only(PackedDispatch::ir(), "via", "Direct"), combine.clone()];
    held_by(&pipelines, &numbers, seed, &|drawn| drawn, run)
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
        let spread = only(MergeCombine::ir(), "via", "Spread");
        let held = packed(spread, (ranks, tokens, hidden, seed), &|form| form);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, {tokens} x {hidden}: {words}"));
    }
}

/// Nobody waits for slots that a rank which takes no part would fill.
#[test]
fn choices_at_a_rank_that_is_left_out_count_for_nothing_at_length() {
    let combine = only(MergeCombine::ir(), "via", "Spread");
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

/// Bugs of sums that are made where they are sent.
const BUGS_OF_SUMS: &str = "
== the first row of a sum is left out
in ep/wide.cuh
- for (u32 left = there[g]; left != 0;) {
+ for (u32 left = there[g] & (there[g] - 1); left != 0;) {

== a row of a sum counts with the number of another one
in ep/wide.cuh
- return __shfl_sync(kAllLanes, value, number % kLanes);
+ return __shfl_sync(kAllLanes, value, number % kLanes / 2);

== the first stretch alone is added up
in ep/wide.cuh
- for (int s = 0; s < kStretches; ++s) add(sums[s],
+ for (int s = 0; s < 1; ++s) add(sums[s],

== the sum of a slice ends early
in ep/wide.cuh
- if (i < end) set(i, sums[s]);
+ if (i + kTurn < end) set(i, sums[s]);
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
}

/// Bugs of rows that come back in slices.
const BUGS: &str = "
== slices are published before all lanes have stored them
in ep/slot_rows.cuh
-     __device__ __forceinline__ void tell_slices() {
-         __syncwarp();
+     __device__ __forceinline__ void tell_slices() {

== one slice too few is published
in ep/slot_rows.cuh
- if (behind >= 0 && behind < count) held_peer_
+ if (behind >= 0 && behind + 1 < count) held_peer_

== the slices of a row count from its begin
in ep/slot_rows.cuh
- held_slice_ = slices.begin + behind;
+ held_slice_ = behind;

== slices are seen without an acquire
in ep/slot_rows.cuh
- return load_acquire_sys(flag(team_.group.window, key, slice))
+ return load_relaxed_sys(flag(team_.group.window, key, slice))

== every slice of a slot is the first one
in ep/slot_rows.cuh
- const u32 come = slots_.wait_for_slice(key, team_.lane % kSlices);
+ const u32 come = slots_.wait_for_slice(key, 0);

== the stretch behind the last one is left out
in ep/wide.cuh
- return first + k * kTurn < end;
+ return first + (k + 1) * kTurn < end;

== a slice begins a turn late
in ep/wide.cuh
- return begin < count ? begin : count;
+ return begin < count && begin > 0 ? begin + kTurn : begin < count ? begin : count;
";

/// A bug that shows where a warp has many slices.
const BUG_OF_MANY: &str = "
== more slices are held than there are lanes
in ep/slot_rows.cuh
- if (held_ + count > kLanes) tell_slices();
+
";

/// Bugs of rows that come back as words.
const BUGS_OF_WORDS: &str = "
== the words of a row are one row off
in ep/slot_rows.cuh
- words_ = FewSlots<Slots>::at(End::window_of(peer), End::own(), place);
+ words_ = FewSlots<Slots>::at(End::window_of(peer), End::own(), place ^ 1);

== rows go as words to ranks that do not take them
in ep/slot_rows.cuh
- return (takes_ & bit) != 0;
+ return true;

== words of a slice are those of the first one
in ep/few_slots.cuh
- send_unit(words, at / 16 + number, it, epoch);
+ send_unit(words, number, it, epoch);

== a word that has not come is taken for zero
in ep/as_words.cuh
-             if (own == epoch) continue;
+             if (own == epoch || own == 0) continue;

== words of the second of two parts are not waited for
in ep/slot_rows.cuh
- if (keys[k] < 0 || !at.has(0)) continue;
+ if (k > 0 || keys[k] < 0 || !at.has(0)) continue;

== fields are taken before they have come
in ep/slot_rows.cuh
- has_words = may_be_words(key) && seen == team_.epoch;
+ has_words = may_be_words(key);

== the fields of a part are those of the part before
in ep/slot_rows.cuh
- slots_.bring_field(key, number - part * kWords);
+ slots_.bring_field(key, (number - part * kWords) ^ 1);
";

/// Bugs that show when a rank is calls ahead of those that it takes nothing from.
const BUGS_AHEAD: &str = "
== nobody waits for the slots of the call before the last
in ep/slot_rows.cuh
-             wait_counter(team_, site, released);

== slots are offered before they are read
in ep/slot_rows.cuh
- Slots::kReleased) + group.rank, epoch);
+ Slots::kReleased) + group.rank, epoch + 1);

== slots are offered without a release
in ep/slot_rows.cuh
- store_entry_sys(reinterpret_cast<u32*>(group.windows[peer] + Slots::kReleased)
+ store_relaxed_sys(reinterpret_cast<u32*>(group.windows[peer] + Slots::kReleased)
";

/// Bugs that show when a rank is calls ahead, and rows come as words.
const BUGS_OF_WORDS_AHEAD: &str = "
== nobody waits until a rank has said what it takes
in ep/slot_rows.cuh
- return value_of(said) != 0 && reached(seen, team_.epoch);
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
    all_are_found(BUGS_OF_WORDS, 12, |_, seed, planted| back_as(16, (3, 7, 528, seed), planted));
    all_are_found(BUG_OF_MANY, 8, |_, seed, planted| back_as(0, (2, 60, 64, seed), planted));
}
