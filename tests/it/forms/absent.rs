//! What optional tensors bring, and what is made of it, where they are absent.

use std::cell::Cell;

use super::meaning::held_by;
use super::run::accepted;

/// Calls in which `tensor` is there, and calls in which it is absent.
pub(super) fn agrees(tensor: &str, source: &str) {
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    let (present, absent) = (Cell::new(0), Cell::new(0));
    for seed in 0..6 {
        let call = |drawn: ep_codegen::meaning::Drawn| {
            let there = drawn.ranks.iter().all(|rank| rank.tensors.contains_key(tensor));
            let seen = if there { &present } else { &absent };
            seen.set(seen.get() + 1);
            drawn
        };
        let ranks = [("ranks", 1 + seed as i64 % 3)];
        let held = held_by(std::slice::from_ref(&ir), &ranks, seed, &call, &|form| form);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    assert!(present.get() > 0 && absent.get() > 0, "{present:?} {absent:?}");
}

#[test]
fn a_name_may_stand_for_what_is_absent() {
    agrees(
        "few",
        "shape { ranks: 1..=64, stripes: 1..=4 }
         size tokens in 1..=9;
         input few: optional i32[tokens, 3] in 0..5, n: i32[tokens] in 0..9;
         output a: i64[tokens], b: i32[tokens], rows: i32[tokens, 3], some: i32[tokens], beyond: i32[1];
         role Work on all blocks, 2 warps, warps shared by stripe {
             for t in stripe {
                 let m = few[t, 1];
                 let twice = m * 2;
                 store a[t] = twice + n[t];
                 store b[t] = n[t];
                 let row = few[t];
                 store rows[t] = row * 2;
                 for once in 0..1 where twice > 3 { store some[t] = m; }
             }
         }
         role Alone on all blocks, 1 warps {
             let first = few[0, 0];
             store beyond[0] = first + 1;
         }",
    );
}

#[test]
fn fields_of_slots_come_with_their_tensors() {
    agrees(
        "few",
        "shape { ranks: 1..=64 }
         input few: optional i32[3] in 0..5;
         output firsts: optional i32[ranks], rows: optional i32[ranks, 3], taken: optional i32[2, ranks, 3], all: i32[ranks];
         message Word { few: i32[3] with few }
         message Kept { few: i32[3] with few }
         channel words: slots<Word> over nvlink from Talk to Talk per all { slot: [source], epochs: 2 };
         channel kept: slots<Kept> over nvlink from Say to Hear per all { slot: [k: 2, source] };
         role Talk on block 0, 2 warps {
             for peer in ranks { push words[peer] { few: few }; }
             await words;
             for s in ranks { store firsts[s] = words[s].few[0]; store rows[s] = words[s].few; }
         }
         role Rest on other blocks, 2 warps { for r in ranks { store all[r] = r; } }
         role Say on all blocks, 1 warps, warps shared by k {
             for peer in ranks { push kept[peer] at k { few: few }; }
         }
         role Hear on all blocks, 1 warps, warps shared by source {
             for k in 0..2 { for m in kept[k, source] { store taken[k, source] = m.few; } }
         }",
    );
}
