//! Rows that are cast as they leave and packed as they come: they leave what the declaration means, and the warps of
//! others like it meet.

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::{RuleSet, Ways};
use ep_runtime::Pipeline;
use ep_runtime::pipelines::PackedDispatch;

use super::meaning::{accepted, held_by, only};
use super::planted::all_are_found;
use super::run::Form;
use crate::near_misses::{bound, scales};
use crate::usual;

/// A dispatch whose rows are packed, by so many ranks with tokens and values in a row, of which so many tokens of all
/// ranks travel as words. The seed decides how many values share a scale.
fn packed(
    (ranks, tokens, hidden, topk, words): (i64, i64, i64, i64, i64),
    seed: u64,
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let numbers = [
        ("ranks", ranks),
        ("max_tokens", tokens),
        ("hidden", hidden),
        ("experts", 5 * ranks - 2),
        ("topk", topk),
        ("words", words),
        ("piece", 1024),
    ];
    let mut ir = only(PackedDispatch::ir(), "via", "Direct");
    scales(&mut ir, [128, 32, 16, 64][seed as usize % 4]);
    if topk > 32 {
        bound(&mut ir, "topk", 64);
    }
    held_by(&[ir], &numbers, seed, &ruled, run)
}

/// The call, which the rule is for.
fn ruled(drawn: Drawn) -> Drawn {
    let ways = Ways::of(&drawn.ir.select(&drawn.config.choice), RuleSet::All);
    for role in &ways.recipe.roles {
        assert!(role.routes.is_some(), "the rule is for {}: {:?}", drawn.ir.name, role.reasons());
    }
    drawn
}

/// Choices of one value, of all lanes, and more than lanes; tokens behind those of a warp's first look; rows of several pieces and parts,
/// with short blocks; words of all, of some and of no rank; more ranks than lanes.
const SHAPES: [(i64, i64, i64, i64, i64); 11] = [
    (1, 12, 64, 8, 0),
    (3, 7, 48, 40, 16),
    (3, 5, 2064, 3, 16),
    (2, 40, 16, 5, 64),
    (3, 9, 2880, 1, 0),
    (2, 3, 4240, 2, 256),
    (2, 6, 128, 32, 0),
    (34, 1, 32, 7, 64),
    (5, 4, 1040, 12, 16),
    (2, 70, 32, 4, 64),
    (3, 6, 2064, 4, 0),
];

#[test]
fn rows_are_packed_as_declared() {
    for (seed, shape) in usual::some((0..22).zip(SHAPES.into_iter().cycle()), 6) {
        let held = packed(shape, seed, &|form| form);
        held.unwrap_or_else(|words| panic!("{shape:?}, seed {seed}: {words}"));
    }
}

/// What a user declares, with pieces that are no whole turns of a warp.
#[test]
fn rows_of_another_declaration_are_packed_alike() {
    let ir = accepted(&Packs::default().source()).expect("the declaration is right");
    for seed in usual::some(0..8, 2) {
        let ranks = 2 + seed as i64 % 2;
        let numbers =
            [("ranks", ranks), ("hidden", 1040), ("experts", 7), ("topk", 3), ("max_tokens", 6)];
        let held = held_by(std::slice::from_ref(&ir), &numbers, seed, &ruled, &|form| form);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Other ways to cast rows and to pack them, of which the rule takes the first ones.
#[test]
fn other_rows_leave_what_they_mean() {
    let usual = Packs::default();
    let taken = [
        Packs { counted: "sum(k in topk: (ids[t, k] == expert) as i32)", takes: "e >= 0", ..usual },
        Packs {
            turn: "sum(b in 0..t + 1: listed(ids[b], e) as i32) * (e >= 0) as i32 - (e >= 0) as i32",
            ..usual
        },
        Packs { turn: "sum(b in 0..t: listed(ids[b], e) as i32)", ..usual },
        Packs {
            turn: "(e >= 0) as i32 * (0 + sum(b in 0..t: listed(ids[b], e + 0) as i32))",
            ..usual
        },
        Packs { turned: "turn[t, k + 0]", ..usual },
        Packs { value: "local(m.experts[choice + 0], me)", ..usual },
        Packs { own: "m.turns[choice] * 1", ..usual },
        Packs { has: "(e >= 0) as i32", ..usual },
        Packs { takes: "again == 0 && e >= 0 && m.experts[0] >= 0", ..usual },
        Packs { stored: "out[e, place + 0]", ..usual },
        Packs { stored: "out[e + 0, place]", ..usual },
        Packs { number: "m.row", ..usual },
        Packs { block: 64, ..usual },
        Packs { topk: 64, ..usual },
    ];
    let others = [
        Packs { topk: 65, ..usual },
        Packs { step: 8, ..usual },
        Packs { block: 256, ..usual },
        Packs { ahead: "sum(b in 1..m.source: counts[b].per_expert[e * has])", ..usual },
        Packs { ahead: "sum(b in 0..m.source: counts[b].per_expert[e * has + b * 0])", ..usual },
        Packs { number: "m.index", ..usual },
        Packs { packs: false, ..usual },
    ];
    assert!(!usual.meet(), "the rule is for it");
    for (seed, other) in crate::usual::some((0..).zip(taken), 4) {
        assert!(!other.meet(), "{}", other.source());
        let ir = accepted(&other.source()).expect("the declaration is right");
        let numbers =
            [("ranks", 2), ("hidden", 64), ("experts", 7), ("topk", 3), ("max_tokens", 6)];
        let held = held_by(std::slice::from_ref(&ir), &numbers, seed, &ruled, &|form| form);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    for other in others {
        assert!(other.meet(), "{}", other.source());
    }
}

/// Parts of a declaration like that of `PackedDispatch`.
#[derive(Clone, Copy)]
struct Packs {
    topk: i64,
    step: i64,
    counted: &'static str,
    turn: &'static str,
    turned: &'static str,
    block: i64,
    value: &'static str,
    ahead: &'static str,
    own: &'static str,
    has: &'static str,
    takes: &'static str,
    stored: &'static str,
    recorded: &'static str,
    number: &'static str,
    packs: bool,
}

impl Default for Packs {
    fn default() -> Packs {
        Packs {
            topk: 32,
            step: 16,
            counted: "listed(ids[t], expert) as i32",
            turn: "sum(b in 0..t: listed(ids[b], e) as i32) * (e >= 0) as i32",
            turned: "turn[t, k]",
            block: 128,
            value: "local(m.experts[choice], me)",
            ahead: "sum(b in 0..m.source: counts[b].per_expert[e * has])",
            own: "m.turns[choice]",
            has: "(e >= 0 && again == 0) as i32",
            takes: "e >= 0 && again == 0",
            stored: "out[e, place]",
            recorded: "place_of[m.row, choice]",
            number: "m.source",
            packs: true,
        }
    }
}

impl Packs {
    fn source(&self) -> String {
        let Packs { topk, step, counted, turn, turned, block, value, .. } = self;
        let Packs { ahead, own, has, takes, stored, recorded, number, packs, .. } = self;
        let packing = format!(
            "for choice in topk {{
                 let e = {value};
                 let again = sum(c in topk: (c < choice && m.experts[c] == m.experts[choice]) as i32);
                 let has = {has};
                 let place = {ahead} + {own};
                 record {recorded} = place * has + {number} * 0;
                 if {takes} {{ store {stored} = m.x; }}
             }}"
        );
        let (packing, out, place_of) = match packs {
            true => (
                packing.as_str(),
                ", out: payload[local_experts, max_rows, hidden]",
                ", place_of: i32[max_rows, topk]",
            ),
            false => ("", "", ""),
        };
        format!(
            "shape {{
                 ranks: 1..=64, hidden: 16..=4096 step {step}, topk: 1..={topk}, experts: 1..=64, max_tokens: 1..=64,
                 let local_experts = ceil(experts, ranks), let max_rows = ranks * max_tokens,
             }}
             variant payload {{ Fp8 {{ x: e4m3, scale: f32 block {block} }} }}
             tune {{ piece: 100 in [100, 1024] }}
             size tokens in 0..=max_tokens;
             input x: bf16[tokens, hidden], ids: i64[tokens, topk] in -1..experts,
                 expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts;
             output came: payload[max_rows, hidden] in window{out};
             table to_rank: i32[ranks], to_expert: i32[experts], first_row: i32[ranks + 1, ranks],
                 turn: i32[tokens, topk]{place_of};
             message Totals {{ per_rank: i32[ranks], per_expert: i32[local_experts] }}
             message Token {{ row x: payload[hidden], experts: i32[topk], turns: i32[topk] }}
             channel counts: slots<Totals> over nvlink from All to All per all {{ slot: [source], epochs: 2 }};
             channel rows: direct<Token> over nvlink from All to All per all;
             role All on all blocks {{
                 for peer in ranks {{ record to_rank[peer] = sum(t in tokens: routed(ids[t], peer) as i32); }}
                 for expert in experts {{ record to_expert[expert] = sum(t in tokens: {counted}); }}
                 for peer in ranks {{
                     push counts[peer] {{ per_rank: to_rank, per_expert: owned(to_expert, peer) }};
                 }}
                 await counts;
                 for dest in ranks {{
                     record first_row[source, dest] = prefix_sum(source in ranks: counts[source].per_rank[dest]);
                 }}
                 for t in tokens {{
                     for k in topk {{ let e = ids[t, k]; record {turned} = {turn}; }}
                     for peer in ranks where routed(ids[t], peer) {{
                         push rows[peer] at first_row[me, peer] {{
                             x: cast_e4m3(x[t], {block}), experts: ids[t], turns: turn[t],
                         }};
                     }}
                 }}
                 for m in rows {{
                     store came[m.row] = m.x;
                     {packing}
                 }}
             }}"
        )
    }

    fn meet(&self) -> bool {
        let numbers =
            [("ranks", 2), ("hidden", 64), ("topk", 4), ("experts", 6), ("max_tokens", 8)];
        Form::new(&self.source(), &numbers).is_plain()
    }
}

/// Bugs of packed rows, and of rows that are cast as they leave: what they change in their headers.
const BUGS: &str = "
== a token counts among those before it
in ep/packed.cuh
- row(at < token ? at : 0, at < token);
+ row(at, at <= token);

== choices behind those of the first lanes are not taken
in ep/packed.cuh
- for (int first = 0; first < kWidth; first += kLanes) {
+ for (int first = 0; first < kWidth && first < kLanes; first += kLanes) {

== tokens are looked at for the first ones alone
in ep/packed.cuh
- if (lane_index() == k) tokens += found;
+ if (lane_index() == k) tokens = found;

== the tokens past the last one are looked at
in ep/packed.cuh
- lists = lists && base + n * kLanes + lane_index() < token;
+

== a token that names an expert twice counts twice
in ep/compute.cuh
- if (!again) body(values[k]);
+ body(values[k]);

== rows of a rank are ahead of its own
in ep/packed.cuh
- for (int earlier = 0; earlier < source; ++earlier) {
+ for (int earlier = 0; earlier <= source; ++earlier) {

== the counts of the ranks before are not waited for
in ep/packed.cuh
- if (epoch_of(found) != team_.epoch) seen = epoch_of(found);
+ if (false) seen = epoch_of(found);

== pieces are stored at the beginning of the row
in ep/made.cuh
- if (to != nullptr) tma_store(to + piece * Cut::kBytes, smem_.stage[0],
+ if (to != nullptr) tma_store(to, smem_.stage[0],

== a piece is told of before it is there
in ep/made.cuh
- tma_wait_stored<0>();
+ tma_wait_read<0>();

== what lanes have made is not fenced for the copy engine
in ep/made.cuh
- fence_proxy_async_shared();
+

== a piece is told of in the word of the first one
in ep/packed.cuh
- row * Pieces<Role>::kCount + piece;
+ row * Pieces<Role>::kCount;

== pieces are not waited for
in ep/packed.cuh
- come = come && seen == team_.epoch;
+ come = true;

== scales go with the first piece
in ep/packed.cuh
- return (value < 0 ? 0 : value / Cut::kBytes) == piece;
+ return piece == 0;

== scales lie at the beginning of the record
in ep/made.cuh
- [i / kBlock] = scales[k];
+ [(i - begin) / kBlock] = scales[k];

== a piece that goes nowhere is still being loaded when the next one begins
in ep/made.cuh
- await();  // the piece before may have gone nowhere
+

== without TMA, the scales of a piece lie beside their places
in ep/made.cuh
- row.make(to + first, meta(), first, end);
+ row.make(to + first, meta() + 4, first, end);

== a lane reads the same values twice
in ep/made.cuh
- halves[1] = get_wide<bf16>(row, i + kWide, end);
+ halves[1] = get_wide<bf16>(row, i, end);

== half of the lanes of a block share its scale
in ep/made.cuh
- for (int step = kLanesOfBlock / 2; step > 0; step /= 2) {
+ for (int step = kLanesOfBlock / 4; step > 0; step /= 2) {

== the lanes of a word take the scales of the first one
in ep/made.cuh
- word |= __shfl_sync(kAllLanes, own, first + kLanesOfBlock * k) << 8 * k;
+ word |= __shfl_sync(kAllLanes, own, kLanesOfBlock * k) << 8 * k;

== the scales of words are sent twice, once unset
in ep/one_launch.cuh
- return scaled_by(Row{}, i) < 0; });
+ return i >= 0; });

== a part that came as words is written at the first one's place
in ep/packed.cuh
- Words::write(reinterpret_cast<void*>(place), units, this->part);
+ Words::write(reinterpret_cast<void*>(place), units, 0);

== slices of a row are those of the first one
in ep/packed.cuh
- for (int base = slice * kLanes; base < kUnits && lanes != 0;
+ for (int base = 0 * slice; base < kUnits && lanes != 0;

== small values go to the place of the first lane
in ep/packed.cuh
- reinterpret_cast<T*>(row)[i * column] = value;
+ to[i * column] = value;
";

#[test]
fn planted_bugs_of_packed_rows_are_found_at_length() {
    all_are_found(BUGS, 20, |_, seed, planted| {
        let shapes = [
            (3, 12, 2064, 5, 0),
            (2, 6, 2064, 4, 64),
            (1, 100, 16, 9, 0),
            (3, 9, 2880, 1, 0),
            (4, 3, 1168, 40, 16),
        ];
        packed(shapes[seed as usize % 5], seed, planted)
    });
}
