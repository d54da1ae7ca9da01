//! Messages of a token that several warps send, and rows of which each of several warps adds up a slice: they
//! leave what the declarations mean; and roles of which a warp has to do everything in order.

use ep_codegen::schedule::{RoleRule, RuleSet};

use super::meaning::held_by;
use super::planted::all_are_found;
use super::run::{Form, accepted};
use crate::usual;

/// Calls by three ranks in some shapes, whose texts have all of `holds`.
pub(super) fn agrees(source: &str, shapes: &[&[(&str, i64)]], holds: &[&str]) {
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    for (seed, shape) in usual::some((0..).zip(shapes), 3) {
        let run = |form: Form| {
            let text = form.text(RuleSet::All);
            for part in holds {
                assert!(text.contains(part), "no `{part}` in\n{text}");
            }
            form
        };
        let numbers = [&[("ranks", 3)], *shape].concat();
        let held = held_by(std::slice::from_ref(&ir), &numbers, seed, &|drawn| drawn, &run);
        held.unwrap_or_else(|words| panic!("{shape:?}, seed {seed}: {words}"));
    }
}

/// Each token goes to its experts, with the payload and the loop of the sender that are given.
fn dispatch(payload: &str, sends: &str) -> String {
    format!(
        "shape {{
             ranks: 1..=64, hidden: 8..=4096 step 8, experts: 1..=32, topk: 1..=32, most: 0..=64,
             let own = ceil(experts, ranks),
         }}
         variant payload {{ {payload} }}
         size tokens in 0..=most;
         input x: bf16[tokens, hidden], ids: i64[tokens, topk] in -1..experts distinct;
         output heard: payload[own, ranks * 64, hidden], srcs: i32[own, ranks * 64];
         message Row {{ row x: payload[hidden], src: i32 }}
         channel rows: slots<Row> over nvlink from Send to Take per all {{
             slot: [expert: own, source, arrival: 64],
         }};
         role Send on all blocks, 2 warps, one block a token {{ for t in tokens {{ {sends} }} close rows; }}
         role Take on all blocks, 2 warps, warps shared by (expert, source) {{
             for m in rows[expert, source] at sum(s in 0..source: rows[expert, s].count) {{
                 store heard[expert, m.row] = m.x;
                 store srcs[expert, m.row] = m.src;
             }}
         }}"
    )
}

const TO_EXPERTS: &str = "for e in ids[t] { push rows[e / own] at e % own { x: x[t], src: t }; }";
const OF_EVEN: &str =
    "for e in ids[t] where (e + t) % 2 == 0 { push rows[e / own] at e % own { x: x[t], src: t }; }";
const CAST: &str = "let row = cast_e4m3(x[t], 128);
    for e in ids[t] { push rows[e / own] at e % own { x: row, src: t }; }";

/// A shape of a dispatch.
fn sent(hidden: i64, topk: i64, most: i64) -> [(&'static str, i64); 4] {
    [("hidden", hidden), ("topk", topk), ("most", most), ("experts", 9)]
}

/// Calls without tokens too, and with more messages than warps.
#[test]
fn a_token_is_sent_by_several_warps() {
    let shapes = [sent(8, 1, 0), sent(24, 5, 1), sent(264, 7, 40), sent(2304, 3, 9)];
    for sends in [TO_EXPERTS, OF_EVEN] {
        let source = dispatch("Bf16 { x: bf16 }", sends);
        agrees(&source, &shapes.each_ref().map(|it| &it[..]), &["unit / Cfg::kTopk"]);
    }
}

/// Rows of whole blocks, of less than one, and of more than a warp casts at a time.
#[test]
fn a_row_is_cast_by_the_warp_that_sends_it() {
    let shapes = [(16, 2, 12), (112, 8, 4), (128, 1, 40), (1040, 3, 5), (2304, 4, 3), (128, 3, 0)];
    let shapes = shapes.map(|(hidden, topk, most)| sent(hidden, topk, most));
    for (scale, block, cast) in [
        ("f32", 128, "ep::cast_row<float>"),
        ("ue8m0", 128, "ep::cast_row<ep::ue8m0>"),
        ("ue8m0", 32, "ep::cast_row<ep::ue8m0, 32>"),
        ("f32", 256, "ep::cast_row<float, 256>"),
    ] {
        let payload = format!("Cast {{ x: e4m3, scale: {scale} block {block} }}");
        let sends = CAST.replace("128", &block.to_string());
        let shapes = shapes.each_ref().map(|it| &it[..]);
        agrees(&dispatch(&payload, &sends), &shapes, &["unit / Cfg::kTopk", cast]);
    }
}

/// Some of so many ranks that a warp serves them in two turns, and none.
#[test]
fn a_row_goes_to_more_ranks_than_a_warp_has_lanes() {
    let source = "
        shape { ranks: 1..=64, hidden: 16..=4096 step 16, sends: 1..=8 }
        variant payload { Cast { x: e4m3, scale: f32 block 128 } }
        input x: bf16[sends, hidden], to: i32[sends, ranks] in 0..40;
        output heard: payload[ranks, 8, hidden], places: i32[ranks, 8];
        message Row { row x: payload[hidden], src: i32, place: i32 }
        channel rows: slots<Row> over nvlink from Send to Take per all { slot: [source, arrival: 8] };
        role Send on all blocks, 2 warps, warps shared by send {
            for row in send..send + 1 {
                for peer in ranks where to[row, peer] > row {
                    push rows[peer] { x: cast_e4m3(x[row], 128), src: row, place: to[row, peer] };
                }
            }
            close rows;
        }
        role Take on all blocks, 2 warps, warps shared by source {
            for m in rows[source] {
                store heard[source, m.src] = m.x;
                store places[source, m.src] = m.place;
            }
        }";
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    let run = |form: Form| {
        assert!(form.text(RuleSet::All).contains("rows.reserve_wanted("));
        form
    };
    let numbers = [("ranks", 35), ("hidden", 272), ("sends", 3)];
    let held = held_by(std::slice::from_ref(&ir), &numbers, 1, &|drawn| drawn, &run);
    held.unwrap_or_else(|words| panic!("{words}"));
}

/// Rows of slots are added up, each times a weight; some parts are missing.
pub(super) const GATHER: &str = "
    shape { ranks: 1..=64, hidden: 8..=4096 step 8, topk: 1..=32, rows: 1..=5 }
    size tokens in 0..=12;
    input
        x: bf16[rows, hidden], w: f32[rows, 5], from: i32[tokens, topk] in -1..ranks,
        pick: i32[tokens, topk] in -1..rows, scale: f32[tokens, topk];
    output o: bf16[tokens, hidden], plain: bf16[tokens, hidden], few: f32[tokens, 5], first: f32[tokens];
    message Part { row x: bf16[hidden], w: f32[5] }
    channel parts: slots<Part> over nvlink from Offer to Sum per all { slot: [source, row: rows] };
    role Offer on all blocks, 2 warps, warps shared by row {
        for peer in ranks { push parts[peer] at row { x: x[row], w: w[row] }; }
    }
    role Sum on all blocks, 3 warps, one block a token {
        for t in tokens gather part from parts[from[t, c]] at pick[t, c] across c in topk {
            store o[t] = sum(scale[t, c] * part.x as f32) as bf16;
            store plain[t] = sum(part.x);
            store few[t] = sum(part.w * scale[t, c]);
            store first[t] = sum(part.w[0]);
        }
    }";

/// One part, as many as are read at a time, one more, and several times as many.
#[test]
fn a_row_is_added_up_by_several_warps() {
    let shapes = [(1, 16), (8, 256), (9, 264), (20, 2304), (32, 8)];
    let shapes = shapes.map(|(topk, hidden)| [("topk", topk), ("hidden", hidden)]);
    let shapes = shapes.each_ref().map(|it| &it[..]);
    agrees(
        GATHER,
        &shapes,
        &["ep::row_of_slice(", "ep::for_staged_parts<", "if (slice == slices - 1) {"],
    );
}

/// Each rank fills a slot of every rank for each of its rows, with the row that is given. `few`: the option by which
/// messages go as words.
fn filled(row: &str, few: &str) -> String {
    format!(
        "shape {{ ranks: 1..=64, hidden: 8..=4096 step 8, rows: 1..=200, let picks = 1 + 3 }}
         size tokens in 0..=rows;
         input
             x: bf16[ranks * rows, hidden], w: f32[ranks * rows, 5], pick: i32[ranks * rows, 3] in -1..ranks * rows,
             list: i32[ranks * rows, picks] in -1..ranks * rows, by: f32[ranks * rows];
         output o: bf16[tokens, hidden], few: f32[tokens, 5];
         message Part {{ row x: bf16[hidden], w: f32[5], n: f32 }}
         channel parts: slots<Part> over nvlink from Send to Sum per all {{ slot: [source, row: rows]{few} }};
         role Send on all blocks, 8 warps, warps shared by source {{
             for row in source * rows..(source + 1) * rows {{
                 push parts[source] at row - source * rows {{ x: {row}, w: w[row], n: by[row] * 2.0 }};
             }}
         }}
         role Sum on all blocks, 3 warps, warps shared by token {{
             for t in tokens gather part from parts[peer]
                 at if (t + peer) % 4 != 1 {{ t }} else {{ -1 }} across peer in ranks
             {{
                 store o[t] = sum(part.x as f32 * by[peer] + 1.0) as bf16;
                 store few[t] = sum(part.w * part.n);
             }}
         }}"
    )
}

/// Fewer rows than warps and more, and rows of less than a slice. With `few`, rows go as words to all ranks, or only in some
/// calls, where a rank with few tokens may get more rows.
#[test]
fn a_slot_is_filled_by_several_warps() {
    let shapes = [(5, 1032), (1, 8), (1, 2304), (3, 264), (150, 520)];
    let shapes = shapes.map(|(rows, hidden)| [("rows", rows), ("hidden", hidden)]);
    let shapes = shapes.each_ref().map(|it| &it[..]);
    let sum = "sum(at in pick[row]: x[at] as f32) as bf16";
    let weighted = "sum(at in list[row]: by[at] * x[at] as f32) as bf16";
    for (row, cut) in [
        ("x[row]", "asked.put(team, slot + begin * 2)"),
        (sum, "ep::for_wide<"),
        (weighted, "ep::row_values<float"),
    ] {
        for few in ["", ", few: 3", ", few: 200"] {
            let room = if few.is_empty() { "parts.reserve(" } else { "parts.reserve_few(" };
            let slices = "ep::slice_begin(slices.begin, Cfg::Parts::kSlices";
            let held = ["parts.publish_slices(slices)", slices, room, cut];
            agrees(&filled(row, few), &shapes, &held);
        }
    }
}

/// Bugs of messages with several fields that come as words, or of which some do.
const BUGS: &str = "
== all fields of a message lie at the first one
in ep/few_slots.cuh
- FewSlots<Slots>::fields(words) + (at - Slots::kMeta) / 4 + i,
+ FewSlots<Slots>::fields(words) + i,

== a part has the number of the one before it
in ep/few_slots.cuh
- each(first + k, values[k]);
+ each(first, values[k]);

== a part that there is not is added up
in ep/few_slots.cuh
- if ((there >> k & 1) != 0) each(
+ each(

== the last of an odd number of parts is left out
in ep/few_slots.cuh
- first < kParts; first += kBatch
+ first + 1 < kParts; first += kBatch

== a slot is read as soon as one of its slices has come
in ep/slot_rows.cuh
- if (is_told[k] && is_in_slot(keys[k], seen)) {
+ if (is_told[k]) {
";

#[test]
fn planted_bugs_of_messages_as_words_are_found_at_length() {
    all_are_found(BUGS, 12, |_, seed, planted| {
        let few = [", few: 200", ", few: 3"][seed as usize % 2];
        let ir = accepted(&filled("x[row]", few)).unwrap_or_else(|errors| panic!("{errors}"));
        let numbers = [("ranks", 3), ("rows", 6), ("hidden", 1032)];
        held_by(std::slice::from_ref(&ir), &numbers, seed, &|drawn| drawn, planted)
    });
}

/// A row goes to several slots, and a part counts by a number of its own, which only parts that there are have.
#[test]
fn a_row_fills_several_slots() {
    let shapes = [(3, 264, 2), (1, 2304, 9), (20, 520, 33)];
    let shapes = shapes
        .map(|(rows, hidden, copies)| [("rows", rows), ("hidden", hidden), ("copies", copies)]);
    let source = "shape { ranks: 1..=64, hidden: 8..=4096 step 8, rows: 1..=200, copies: 1..=64 }
         input x: bf16[ranks * rows, hidden], by: f32[rows, copies], few: f32[7];
         output o: bf16[rows, hidden];
         message Part { row x: bf16[hidden] }
         channel parts: slots<Part> over nvlink from Send to Sum per all { slot: [row: rows, copy: copies] };
         role Send on all blocks, 2 warps, warps shared by source {
             for row in source * rows..(source + 1) * rows {
                 for copy in copies where copy % ranks == me && (row - source * rows + copy) % 3 != 0 {
                     push parts[source] at [row - source * rows, copy] { x: x[row] };
                 }
             }
         }
         role Sum on all blocks, 3 warps, warps shared by token {
             for t in rows gather part from parts[copy % ranks]
                 at [t, if (t + copy) % 3 != 0 { copy } else { -1 }] across copy in copies
             {
                 store o[t] = sum(
                     sum(k in copies: by[t, k] * (k % 5 == copy % 5) as f32)
                         * (part.x as f32 + few[((t + copy) % 3 == 0) as i32 * 1000000000 + copy % 7])) as bf16;
             }
         }";
    let held = ["parts.publish_slices(slices)", "ep::part_values<float", "of_part.of(copy"];
    agrees(source, &shapes.each_ref().map(|it| &it[..]), &held);
}

/// Whether a warp sends all messages of a token.
fn is_whole(source: &str, shape: &[(&str, i64)]) -> bool {
    let form = Form::new(source, &[&[("ranks", 3), ("hidden", 64)], shape].concat());
    form.text(RuleSet::All) == form.text(RuleSet::Without(RoleRule::Apart))
}

const MOST: [(&str, i64); 1] = [("most", 9)];

/// Tokens go to every rank by the loops that are given; `more` declares what these take.
fn told(more: &str, sends: &str) -> String {
    format!(
        "shape {{ ranks: 1..=64, hidden: 8..=4096 step 8, most: 1..=300000000 }}
         size tokens in 0..=99;
         input x: bf16[tokens, hidden];
         {more}
         output o: bf16[ranks * 99, hidden];
         message Row {{ row x: bf16[hidden], src: i32 }}
         channel rows: slots<Row> over nvlink from Send to Take per all {{ slot: [source, arrival: 99] }};
         role Send on all blocks, 2 warps, one block a token {{ {sends} close rows; }}
         role Take on all blocks, 2 warps, warps shared by source {{
             for m in rows[source] at source * 99 {{ store o[m.row] = m.x; }}
         }}"
    )
}

/// Turns that leave something beside their messages, or that another statement, a condition or a second loop
/// belongs to; and more of them than 32 bits count.
#[test]
fn what_one_warp_does_in_order_is_left_to_it() {
    let to_all = "for peer in ranks { push rows[peer] { x: x[t], src: t }; }";
    let and = |then: &str| {
        format!(
            "for t in tokens {{ for peer in ranks {{ push rows[peer] {{ x: x[t], src: t }}; {then} }} }}"
        )
    };
    let own = "output own: bf16[tokens, ranks, hidden];";
    let all = [
        (false, "", format!("for t in tokens {{ {to_all} }}")),
        (
            false,
            "",
            format!(
                "for t in tokens {{ let twice = t * 2; {} }}",
                to_all.replace("src: t", "src: twice")
            ),
        ),
        (true, own, and("store own[t, peer] = x[t];")),
        (true, "output own: i32[tokens, ranks];", and("store own[t, peer] = t;")),
        (
            true,
            "table place: i32[tokens, ranks];",
            and("record place[t, peer] = rows[peer].position;"),
        ),
        (true, "table sent: i32[ranks];", and("count sent[peer];")),
        (true, "inout sent: i32[ranks];", and("add sent[peer] = t;")),
        (
            true,
            "output once: i32[tokens];",
            format!("for t in tokens {{ store once[t] = t; {to_all} }}"),
        ),
        (
            true,
            "output once: i32[tokens];",
            format!("for t in tokens {{ {to_all} store once[t] = t; }}"),
        ),
        (true, "", format!("for t in tokens {{ push rows[0] {{ x: x[t], src: t }}; {to_all} }}")),
        (true, "", format!("for t in tokens {{ {to_all} {to_all} }}")),
        (
            true,
            "input goes: bool[tokens];",
            format!("for t in tokens where goes[t] {{ {to_all} }}"),
        ),
        (
            true,
            "input some: i32[tokens];",
            format!("for t in tokens {{ {} }}", to_all.replace("in ranks", "in 0..some[t]")),
        ),
        (
            true,
            "input some: i32[tokens];",
            format!("for t in tokens {{ {} }}", to_all.replace("in ranks", "in 1..ranks")),
        ),
    ];
    for (whole, more, sends) in all {
        let source = told(more, &sends);
        assert_eq!(is_whole(&source, &MOST), whole, "{source}");
    }
    for most in ["in 0..=most", ""] {
        let source = told("", &format!("for t in tokens {{ {to_all} }}"));
        let source = source.replace("size tokens in 0..=99", &format!("size tokens {most}"));
        assert!(is_whole(&source, &MOST), "{source}");
    }
}

/// Rings keep the order of what is pushed, rows that land lie in their places, and offers are taken back.
#[test]
fn other_channels_than_slots_are_left_as_they_are() {
    let ring = "channel rows: ring<Row> over nvlink from Send to Take per all { depth: 8, chunk: 1, header: [count] };
        role Send[peer] on all blocks, 2 warps {
            announce rows[peer] { count: topk };
            for k in topk { push rows[peer] { x: x[k] }; }
        }
        role Take[peer] on all blocks, 2 warps {
            for m in rows[peer] at peer * topk { store o[m.row] = m.x; }
        }";
    let direct = "channel rows: direct<Row> over nvlink from Send to Take per all { unit: 1 };
        role Send on all blocks, 2 warps, warps shared by token {
            for t in stripe { for peer in ranks { push rows[peer] at me * topk { x: x[t] }; } }
        }
        role Take on all blocks, 2 warps, warps shared by (source, stripe) {
            for m in rows[source] { store o[m.row] = m.x; }
        }";
    let pull = "input at: i32[tokens, ranks] in -1..topk, offered: bf16[topk, hidden] in window;
        channel rows: pull<Row> over nvlink from Offer to Sum per all;
        role Offer on block 0, 1 warps { push rows { x: offered }; }
        role Sum on all blocks, 2 warps, warps shared by token {
            for t in tokens gather part from rows[peer] at at[t, peer] across peer in ranks {
                store o[t] = sum(part.x);
            }
        }";
    for channel in [ring, direct, pull] {
        let source = format!(
            "shape {{ ranks: 1..=64, hidden: 8..=4096 step 8, topk: 1..=8, stripes: 1..=4 }}
             size tokens in 0..=9;
             size got = from[0];
             input x: bf16[tokens, hidden], from: i32[1];
             output o: bf16[got, hidden] {};
             message Row {{ row x: bf16[hidden] }}
             {channel}",
            if channel == direct { "in window" } else { "" }
        );
        assert!(is_whole(&source, &[("topk", 8), ("stripes", 2)]), "{source}");
    }
}

/// What is for a whole token does not keep several warps from its row, unless the row is made of it.
#[test]
fn what_is_no_slice_is_left_to_one_warp() {
    for (output, then, is_cut) in [
        ("p: f32[tokens, hidden]", "store p[t] = sum(part.x as f32);", true),
        ("p: f32[tokens]", "store p[t] = sum(part.w[0]);", true),
        ("p: i32[topk]", "for k in topk where t == k { count p[k]; }", true),
        (
            "p: f32[tokens, hidden]",
            "let s = sum(part.w[0]); store p[t] = sum(part.x as f32) * s;",
            false,
        ),
    ] {
        let source =
            GATHER.replace("few: f32[tokens, 5]", &format!("few: f32[tokens, 5], {output}"));
        let source = source.replace("* scale[t, c]);", &format!("* scale[t, c]);\n {then}"));
        assert!(source.contains(then), "it is there");
        let numbers = [("ranks", 3), ("hidden", 64), ("topk", 3), ("rows", 2)];
        let text = Form::new(&source, &numbers).text(RuleSet::All);
        assert_eq!(text.contains("ep::row_of_slice("), is_cut, "{then}");
    }
}
