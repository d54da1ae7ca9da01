//! Rows that are copied to places of the values that they list, and the counts of these: they leave what the
//! declarations mean, and others like them are composed.

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::{RuleSet, Ways};
use ep_runtime::Pipeline;
use ep_runtime::pipelines::{DecodeDispatch, Pack};

use super::meaning::held_by;
use super::planted::all_are_found;
use super::run::Form;
use crate::by_commit;

/// A dispatch whose rows are packed, by so many ranks with tokens and values in a row.
fn packed(
    (ranks, tokens, hidden, topk): (i64, i64, i64, i64),
    seed: u64,
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let numbers = [
        ("ranks", ranks),
        ("max_tokens", tokens),
        ("hidden", hidden),
        ("experts", 21 * ranks - 2),
        ("topk", topk),
    ];
    let ruled = |drawn: Drawn| {
        let ways = Ways::of(&drawn.ir, RuleSet::All);
        let composed = drawn.ir.roles.iter().any(|role| ways.is_composed(&role.name));
        assert!(!composed, "rules are for {}", drawn.ir.name);
        drawn
    };
    held_by(&[DecodeDispatch::ir(), Pack::ir()], &numbers, seed, &ruled, run)
}

/// Lists of one value, of all lanes, and of some that divide no warp; more rows than are looked at at once, and rows
/// of several pieces.
#[test]
fn rows_are_packed_as_declared() {
    let shapes = [
        (1, 12, 64, 8),
        (7, 12, 16, 31),
        (2, 3, 4240, 3),
        (3, 12, 32, 5),
        (3, 9, 2880, 1),
        (2, 1, 4096, 2),
        (2, 12, 128, 32),
        (34, 1, 32, 7),
        (2, 12, 16, 12),
    ];
    for (seed, shape) in by_commit::some((0..).zip(shapes), 4) {
        let held = packed(shape, seed, &|form| form);
        held.unwrap_or_else(|words| panic!("{shape:?}, seed {seed}: {words}"));
    }
}

/// Other ways to copy rows by what they list.
#[test]
fn other_rows_are_composed() {
    let usual = Packs::default();
    assert!(!usual.are_composed(), "the rule is for it");
    let all_before = "sum(before in 0..row: listed(ids[before], e) as i32)";
    let unusual = [
        Packs { topk: 64, ..usual },
        Packs { values: "-1..99", ..usual },
        Packs { values: "-2..experts", ..usual },
        Packs { elem: "f32", ..usual },
        Packs { step: 4, ..usual },
        Packs {
            place: "sum(before in 0..row + 1: listed(ids[before], e) as i32) * there",
            ..usual
        },
        Packs { place: "sum(before in 1..row: listed(ids[before], e) as i32) * there", ..usual },
        Packs {
            place: "sum(before in 0..row: listed(ids[before], e + 1) as i32) * there",
            ..usual
        },
        Packs { place: all_before, ..usual },
        Packs { there: "(e > 0) as i32", ..usual },
        Packs { takes: "again == 0", ..usual },
        Packs { takes: "e > 0 && again == 0", ..usual },
        Packs { copied: "x[row + 0 * choice]", ..usual },
        Packs { rows: "received - 1", ..usual },
        Packs {
            first: "sum(row in 0..rank_prefix[0, me]: listed(ids[row], expert) as i32)",
            ..usual
        },
        Packs { shared: "(source, expert)", ..usual },
        Packs { warps: "even blocks", ..usual },
    ];
    for other in unusual {
        assert!(other.are_composed(), "{}", other.source());
    }
}

/// Parts of a declaration like that of `Pack`.
#[derive(Clone, Copy)]
struct Packs {
    topk: i64,
    step: i64,
    elem: &'static str,
    values: &'static str,
    there: &'static str,
    place: &'static str,
    takes: &'static str,
    copied: &'static str,
    rows: &'static str,
    first: &'static str,
    shared: &'static str,
    warps: &'static str,
}

impl Default for Packs {
    fn default() -> Packs {
        Packs {
            topk: 32,
            step: 8,
            elem: "bf16",
            values: "-1..experts",
            there: "(e >= 0) as i32",
            place: "sum(before in 0..row: listed(ids[before], e) as i32) * there",
            takes: "e >= 0 && again == 0",
            copied: "x[row]",
            rows: "received",
            first: "sum(row in 0..rank_prefix[source, me]: listed(ids[row], expert) as i32)",
            shared: "(expert, source)",
            warps: "all blocks",
        }
    }
}

impl Packs {
    fn source(&self) -> String {
        let Packs {
            topk,
            step,
            elem,
            values,
            there,
            place,
            takes,
            copied,
            rows,
            first,
            shared,
            warps,
        } = self;
        format!(
            "shape {{ ranks: 1..=64, hidden: 8..=4096 step {step}, topk: 1..={topk}, experts: 1..=64, most: 1..=64 }}
             size received = rank_prefix[ranks, me];
             uses handle ep_runtime::pipelines::DecodeDispatch {{ rank_prefix: i32[ranks + 1, ranks] }};
             input x: {elem}[received, hidden], ids: i64[most, topk] in {values};
             output out: {elem}[experts, most, hidden], counts: i32[experts, ranks], firsts: i32[experts, ranks];
             role Move on {warps}, 4 warps, one block a token {{
                 for row in 0..{rows} {{
                     for choice in topk {{
                         let e = ids[row, choice];
                         let there = {there};
                         let place = {place};
                         let again = sum(c in topk: (c < choice && ids[row, c] == e) as i32);
                         for once in 0..1 where {takes} {{ store out[e, place] = {copied}; }}
                     }}
                 }}
             }}
             role Count on all blocks, 4 warps, warps shared by {shared} {{
                 let first = {first};
                 let count = sum(row in rank_prefix[source, me]..rank_prefix[source + 1, me]:
                     listed(ids[row], expert) as i32);
                 store firsts[expert, source] = first;
                 store counts[expert, source] = count;
             }}"
        )
    }

    fn are_composed(&self) -> bool {
        let shape = [("ranks", 2), ("hidden", 64), ("topk", 4), ("experts", 6), ("most", 8)];
        Form::new(&self.source(), &shape).is_plain()
    }
}

/// Bugs of counted rows: what they change in their header.
const BUGS: &str = "
== the rows ahead of a block's own are not counted
in ep/listed.cuh
- if (at < own.begin) add_relaxed_shared(smem.ahead + value, 1);
+ if (at < 0) add_relaxed_shared(smem.ahead + value, 1);

== the first row of a block counts as one ahead of it
in ep/listed.cuh
- if (at < own.begin) add_relaxed_shared(smem.ahead + value, 1);
+ if (at <= own.begin) add_relaxed_shared(smem.ahead + value, 1);

== a row that lists a value twice counts twice
in ep/listed.cuh
- return again ? -1 : value;
+ return value;

== values of the row before are taken for the row's own
in ep/listed.cuh
- again = again || (back <= k && other == value);
+ again = again || other == value;

== a row counts itself
in ep/listed.cuh
- listed_between<kWidth, kValues>(own.begin, row, value, entry);
+ listed_between<kWidth, kValues>(own.begin, row + 1, value, entry);

== rows between are looked at by the first lanes alone
in ep/listed.cuh
- if (lane_index() == k) rows += __popc(list);
+ if (lane_index() == 0) rows += __popc(list);

== rows of a source count for the one before
in ep/listed.cuh
- begun += smem.begins[source] <= at ? 1 : 0;
+ begun += smem.begins[source] < at ? 1 : 0;

== the counts are not zeroed
in ep/listed.cuh
- for (int i = thread; i < kValues; i += threads) smem.ahead[i] = 0;
+ for (int i = thread; i < kValues - 1; i += threads) smem.ahead[i] = 0;

== rows that are asked for ahead are taken for those behind
in ep/listed.cuh
- base != first && i < kAhead
+ false && i < kAhead

== a block leaves its last row to nobody
in ep/listed.cuh
- unit < rows * parts && !team.stopped; unit += team.warps) {
+ unit < (rows - 1) * parts && !team.stopped; unit += team.warps) {

== what is done once for a row is done by its last slice
in ep/listed.cuh
- const int row = own.begin + unit / parts, slice = unit % parts;
+ const int row = own.begin + unit / parts, slice = unit % slices;

== counts of sources are not added up
in ep/listed.cuh
- first += count;
+ first = count;
";

#[test]
fn planted_bugs_of_counted_rows_are_found() {
    all_are_found(BUGS, 8, |_, seed, planted| {
        let shapes = [(3, 12, 32, 5), (1, 12, 16, 8), (6, 12, 16, 31), (1, 2, 2064, 3)];
        packed(shapes[seed as usize % 4], seed, planted)
    });
}
