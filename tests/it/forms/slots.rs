//! Slots of every kind, against what they mean: several indices, rows, counts, and who takes them how.

use super::meaning::held_by;
use super::run::{Form, accepted};

/// Calls of one pipeline on 1 to 3 ranks.
fn agrees(source: &str) {
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    for (seed, ranks) in [(0, 3), (1, 1), (2, 2)] {
        // The last calls count through 2^32.
        let before = if seed == 2 { u32::MAX - 1 } else { 0 };
        let (call, run) = (&|drawn| drawn, &|form: Form| form.behind(before));
        let held = held_by(std::slice::from_ref(&ir), &[("ranks", ranks)], seed, call, run);
        held.unwrap_or_else(|words| panic!("{ranks} ranks, seed {seed}: {words}"));
    }
}

#[test]
fn slots_with_rows_are_taken_one_by_one() {
    agrees(
        "shape { ranks: 1..=64, hidden: 16..=64 step 16, width: 1..=5 }
         input x: bf16[ranks, width, hidden], tag: i32[width] in 0..1000;
         output heard: bf16[ranks, width, hidden], tags: i32[width, ranks];
         message Word { row x: bf16[hidden], tag: i32 }
         channel words: slots<Word> over nvlink from Speak to Hear per all {
             slot: [word: width, source], epochs: 3,
         };
         role Speak on all blocks, 2 warps, warps shared by word {
             for peer in ranks {
                 push words[peer] at word { x: x[peer, word], tag: tag[word] * 10 + me };
             }
         }
         role Hear on all blocks, 2 warps, warps shared by source {
             for word in width {
                 for m in words[word, source] {
                     store heard[m.source, word] = m.x;
                     store tags[word, m.source] = m.tag;
                 }
             }
         }",
    );
}

#[test]
fn slots_with_rows_are_awaited_and_read_in_any_order() {
    agrees(
        "shape { ranks: 1..=64, hidden: 16..=64 step 16, width: 1..=5 }
         input x: bf16[ranks, width, hidden], tag: i32[width] in 0..1000;
         output heard: bf16[ranks, width, hidden], tags: i32[width], all: i32[1];
         message Word { row x: bf16[hidden], tag: i32 }
         channel words: slots<Word> over nvlink from Speak to Speak per all {
             slot: [source, word: width],
         };
         role Speak on all blocks, 4 warps, warps shared by token {
             for word in width {
                 for peer in ranks {
                     push words[peer] at word { x: x[peer, word], tag: tag[word] * 10 + me };
                 }
             }
             await words;
             for word in width {
                 store tags[word] = sum(s in ranks: words[s, word].tag);
                 for s in ranks {
                     store heard[s, word] = words[s, word].x;
                 }
             }
             store all[0] = sum(s in ranks: words[s, width - 1].tag);
         }",
    );
}

#[test]
fn parts_are_gathered_from_slots() {
    agrees(
        "shape { ranks: 1..=64, hidden: 16..=64 step 16, width: 1..=5 }
         size tokens in 0..=9;
         input x: bf16[width, hidden], pick: i32[tokens, ranks] in -1..width, scale: f32[tokens, ranks];
         output o: bf16[tokens, hidden], os: f32[tokens, hidden];
         message Part { row x: bf16[hidden], rank: i32 }
         channel parts: slots<Part> over nvlink from Offer to Sum per all { slot: [source, row: width] };
         output ranks_of: i32[tokens];
         role Offer on all blocks, 2 warps, warps shared by row {
             for peer in ranks { push parts[peer] at row { x: x[row], rank: me + 1 }; }
         }
         role Sum on all blocks, 3 warps, warps shared by token {
             for t in tokens gather part from parts[p] at pick[t, p] across p in ranks {
                 store o[t] = sum(part.x);
                 store os[t] = sum(part.x * scale[t, p]);
                 store ranks_of[t] = sum(part.rank);
             }
         }",
    );
}

#[test]
fn senders_count_what_arrives() {
    agrees(
        "shape { ranks: 1..=64, hidden: 16..=64 step 16, kinds: 1..=4, stripes: 1..=6 }
         size tokens in 0..=9;
         input x: bf16[tokens, hidden], of: i32[tokens] in 0..kinds;
         table first: i32[kinds, ranks], count: i32[kinds, ranks], place: i32[tokens, ranks];
         inout total: i32[kinds];
         output o: bf16[kinds, ranks * 12, hidden], src: i32[kinds, ranks * 12], from: i32[kinds, ranks * 12];
         message Row { row x: bf16[hidden], src: i32 }
         channel rows: slots<Row> over nvlink from Send to Take per all {
             slot: [kind: kinds, source, arrival: 12], epochs: 2,
         };
         role Send on all blocks, 3 warps, warps shared by stripe {
             for t in stripe {
                 for peer in ranks {
                     push rows[peer] at of[t] { x: x[t], src: t };
                     record place[t, peer] = rows[peer].position;
                 }
             }
             close rows;
         }
         role Take on all blocks, 3 warps, warps shared by (kind, source) {
             record first[kind, source] = rows[kind, source].base;
             record count[kind, source] = rows[kind, source].count;
             add total[kind] = rows[kind, source].count * 2 + 1;
             for m in rows[kind, source] at rows[kind, source].base {
                 store o[kind, m.row] = m.x;
                 store src[kind, m.row] = m.src;
                 store from[kind, m.row] = m.source;
             }
         }",
    );
}

/// Places that a condition leaves empty, in whatever order messages come.
#[test]
fn a_condition_leaves_out_what_arrives() {
    for (filter, body, output) in [
        ("where m.src % 3 != 1", "store o[m.row] = m.src;", "o: i32[ranks * 12]"),
        (
            "",
            "for k in 0..3 where m.src > k { store o[m.row, k] = m.src; }",
            "o: i32[ranks * 12, 3]",
        ),
        (
            "where m.src % 2 == 0",
            "let half = m.src / 2; for k in 0..3 where half != k { store o[m.row, k] = half; }",
            "o: i32[ranks * 12, 3]",
        ),
    ] {
        let table = "table place: i32[tokens, ranks];";
        let recorded = "record place[t, peer] = rows[peer].position;";
        for (table, record) in [("", ""), (table, recorded)] {
            agrees(&format!(
                "shape {{ ranks: 1..=64, stripes: 1..=6 }}
                 size tokens in 0..=9;
                 {table}
                 output {output};
                 message Row {{ src: i32 }}
                 channel rows: slots<Row> over nvlink from Send to Take per all {{ slot: [source, arrival: 12] }};
                 role Send on all blocks, 3 warps, warps shared by stripe {{
                     for t in stripe {{ for peer in ranks {{ push rows[peer] {{ src: t }}; {record} }} }}
                     close rows;
                 }}
                 role Take on all blocks, 3 warps, warps shared by source {{
                     for m in rows[source] at source * 12 {filter} {{ {body} }}
                 }}"
            ));
        }
    }
}

#[test]
fn counted_slots_are_taken_in_order_of_their_indices() {
    agrees(
        "shape { ranks: 1..=64, kinds: 1..=4 }
         size tokens in 0..=9;
         input of: i32[tokens] in 0..kinds;
         output n: i32[kinds, ranks], late: i32[ranks, kinds, 12];
         message Row { src: i32, kind: i32 }
         channel rows: slots<Row> over nvlink from Send to Take per others {
             slot: [source, kind: kinds, arrival: 12], epochs: 5,
         };
         role Send on all blocks, 2 warps, warps shared by token {
             for t in tokens { for peer in others where (t + peer) % 3 > 0 { push rows[peer] at of[t] { src: t, kind: of[t] }; } }
             close rows;
         }
         role Take on block 0, 2 warps {
             await rows;
             for s in others { for k in kinds { store n[k, s] = rows[s, k].count; } }
             for m in rows { store late[m.source, m.kind, m.index] = m.source; }
         }",
    );
}

#[test]
fn rows_are_cast_where_they_are_stored() {
    agrees(
        "shape { ranks: 1..=64, hidden: 16..=400 step 16 }
         variant payload { F32 { x: e4m3, scale: f32 block 64 }, Packed { x: e4m3, scale: ue8m0 block 64 } }
         size tokens in 0..=9;
         input x: bf16[tokens, hidden], y: f32[tokens, hidden];
         output o: payload[tokens, hidden], p: payload[tokens, hidden];
         role Cast on all blocks, 2 warps, warps shared by token {
             for t in tokens {
                 store o[t] = cast_e4m3(x[t], 64);
                 let both = cast_e4m3(x[t] * 2 + y[t], 64);
                 store p[t] = both;
             }
         }",
    );
}

#[test]
fn rows_of_codes_are_read_as_floats() {
    agrees(
        "shape { ranks: 1..=64, hidden: 16..=400 step 16 }
         variant payload {
             F32 { x: e4m3, scale: f32 block 64 },
             Logfmt { x: u8, upper: u8 block 4, low: f32 block 64, step: f32 block 64 },
         }
         size tokens in 0..=9;
         input x: f32[tokens, hidden], p: payload[tokens, hidden];
         output o: payload[tokens, hidden], back: f32[tokens, hidden], twice: f32[tokens, hidden];
         role Cast on all blocks, 2 warps, warps shared by token {
             for t in tokens {
                 when payload is F32 { store o[t] = cast_e4m3(x[t], 64); }
                 when payload is Logfmt { store o[t] = cast_logfmt10(x[t], 64); }
                 let row = p[t];
                 store back[t] = row as f32;
                 store twice[t] = p[t] as f32 * 2 + x[t];
             }
         }",
    );
}

#[test]
fn each_phase_counts_and_the_next_one_reads() {
    agrees(
        "shape { ranks: 1..=64, kinds: 1..=9 }
         size tokens in 0..=9;
         input of: i32[tokens] in 0..kinds;
         table per: i32[kinds];
         output twice: i32[kinds], sent: i32[ranks], odd: i32[1], seen: i32[ranks, 12];
         message Row { src: i32, per: i32 }
         channel rows: slots<Row> over nvlink from Send to Take per all { slot: [source, arrival: 12] };
         phase first {
             role Count on all blocks, 2 warps, warps shared by token {
                 for t in tokens { count per[of[t]]; }
             }
         }
         phase second {
             role Send on all blocks, 2 warps, warps shared by token {
                 for t in tokens { for peer in ranks { push rows[peer] { src: t, per: per[of[t]] }; count sent[peer]; } }
                 close rows;
             }
             role Twice on all blocks, 1 warps { for k in kinds { store twice[k] = per[k] * 2; } }
         }
         phase third {
             role Take on all blocks, 2 warps, warps shared by source {
                 for m in rows[source] { store seen[source, m.index] = m.src * 100 + m.per; }
             }
             role Odd on block 0, 1 warps { for t in tokens where of[t] % 2 == 1 { count odd[0]; } }
             role Rest on other blocks, 1 warps { for t in tokens where t < 0 { count odd[0]; } }
         }",
    );
}
