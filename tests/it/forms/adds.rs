//! Numbers that several warps add to one element.

use super::meaning::held;
use super::run::accepted;

#[test]
fn several_warps_add_to_one_element() {
    let ir = accepted(
        "shape { ranks: 1..=64, topk: 1..=4, experts: 1..=9, stripes: 1..=6 }
         size tokens in 0..=30;
         input ids: i64[tokens, topk] in -1..experts, weights: f32[tokens, topk], n: i32[tokens] in -9..9;
         inout load: f32[experts], total: i64[experts], few: i32[1], rows: f32[tokens];
         role Add on all blocks, 3 warps, warps shared by stripe {
             for t in stripe {
                 for k in topk where ids[t, k] >= 0 {
                     add load[ids[t, k]] = weights[t, k] * 2;
                     add total[ids[t, k]] = n[t] * 5000000000;
                 }
                 add few[0] = n[t] / 3;
                 add rows[t] = weights[t, 0];
             }
         }",
    );
    let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
    for seed in 0..4 {
        let numbers = [("ranks", 1 + seed as i64 % 3)];
        held(std::slice::from_ref(&ir), &numbers, seed).unwrap_or_else(|words| panic!("{words}"));
    }
}

/// Memory that the caller gives for an output has any contents.
#[test]
fn an_output_that_is_added_to_starts_at_zero() {
    let ir = accepted(
        "shape { ranks: 1..=64, experts: 1..=9, stripes: 1..=6 }
         size tokens in 0..=30;
         input ids: i32[tokens] in 0..experts, weights: f32[tokens], n: i32[tokens] in -9..9;
         output
             load: f32[experts], total: i64[experts], half: bf16[tokens, 3], both: i32[experts],
             never: optional i32[experts];
         role Add on all blocks, 3 warps, warps shared by stripe {
             for t in stripe {
                 add load[ids[t]] = weights[t] * 2;
                 add total[ids[t]] = n[t] * 5000000000;
                 add half[t, 1] = weights[t] as bf16;
                 add both[ids[t]] = n[t];
                 count both[0];
                 add never[ids[t]] = n[t];
             }
         }",
    );
    let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
    for seed in 0..4 {
        let numbers = [("ranks", 1 + seed as i64 % 3)];
        held(std::slice::from_ref(&ir), &numbers, seed).unwrap_or_else(|words| panic!("{words}"));
    }
}

/// `tokens` is a number of the shape wherever it is declared as one, as `rows` would be.
#[test]
fn tokens_may_be_a_number_of_the_shape() {
    let ir = accepted(
        "shape { ranks: 1..=64, tokens: 1..=9 }
         size rows in 0..=tokens;
         input n: i32[rows] in -9..9;
         output twice: i32[tokens], all: i32[1];
         role Twice on block 0, 1 warps {
             for t in tokens { store twice[t] = 2 * t; }
             store all[0] = sum(t in tokens: t) + sum(row in rows: n[row]);
         }",
    );
    let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
    held(std::slice::from_ref(&ir), &[("ranks", 2), ("tokens", 7)], 1)
        .unwrap_or_else(|words| panic!("{words}"));
}

/// A role that has stripes and never asks for one adds each number once: warps that share stripes share the
/// turns of their loops, those that are split over peers take each peer once.
#[test]
fn what_names_no_stripe_is_done_once() {
    let roles = [
        "role Add on all blocks, 3 warps, warps shared by stripe {
             for t in tokens { add total[0] = n[t]; }
             for r in ranks { store of_peer[r] = r; }
         }",
        "role Add[peer] on all blocks, 3 warps {
             for t in tokens { add total[0] = n[t] + peer; }
             store of_peer[peer] = peer;
         }",
    ];
    for role in roles {
        let ir = accepted(&format!(
            "shape {{ ranks: 1..=64, stripes: 2..=6 }}
             size tokens in 0..=30;
             input n: i32[tokens] in -9..9;
             inout total: i32[1];
             output of_peer: i32[ranks];
             {role}"
        ));
        let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
        for seed in 0..3 {
            let numbers = [("ranks", 1 + seed as i64 % 3)];
            let found = held(std::slice::from_ref(&ir), &numbers, seed);
            found.unwrap_or_else(|words| panic!("{words}"));
        }
    }
}

/// What one warp makes of an element turn by turn, in the order of the sources: another order gives another value.
#[test]
fn elements_of_an_inout_are_carried_from_turn_to_turn() {
    let carried = |share: &str| {
        format!(
            "shape {{ ranks: 1..=8, hidden: 16..=64 step 16, rows: 2..=3 }}
             input x: f32[rows, hidden], n: i32[ranks, rows] in 0..9;
             inout best: f32[rows, hidden], top: f32[rows], mixed: i64[rows];
             message Row {{ row x: f32[hidden] }}
             channel all_rows: slots<Row> over nvlink from Send to Fold per all {{ slot: [source, row: rows], epochs: 2 }};
             role Send on all blocks, 2 warps, warps shared by row {{
                 for peer in ranks {{ push all_rows[peer] at row {{ x: x[row] }}; }}
             }}
             role Fold on all blocks, 3 warps, warps shared by {share} {{
                 for message in all_rows[source, row] {{
                     store best[row] = best[row] / (2 as f32) + message.x;
                     store top[row] = top[row] / (2 as f32) + message.x[1];
                 }}
                 store mixed[row] = mixed[row] % 1000 * 3 + n[source, row];
             }}"
        )
    };
    let in_order = carried("row").replace("for message", "for source in ranks { for message");
    let in_order = in_order.replace("n[source, row];", "n[source, row]; }");
    let ir = accepted(&in_order).unwrap_or_else(|errors| panic!("{errors}"));
    for (seed, ranks) in [(0, 3), (1, 5)] {
        let held = held(std::slice::from_ref(&ir), &[("ranks", ranks), ("hidden", 48)], seed);
        held.unwrap_or_else(|words| panic!("{words}"));
    }
    // A warp for each source: which one comes first is open.
    let refused = accepted(&carried("(source, row)")).expect_err("it is refused");
    let sentence = "another warp of this role may write the same element of `best`";
    assert!(refused.contains(sentence), "{refused}");
    assert!(refused.contains("store best[row] = best[row] / (2 as f32) + message.x;"), "{refused}");
}

/// What a role that is one team makes of an element turn by turn, in the order of the sources: another order gives
/// another value.
#[test]
fn a_team_carries_elements_of_an_inout() {
    let ir = accepted(
        "shape { ranks: 1..=8, rows: 2..=40 }
         input y: f32[ranks, rows];
         inout best: f32[rows];
         role Fold on all blocks, 4 warps {
             for source in ranks { for row in rows { store best[row] = best[row] / (2 as f32) + y[source, row]; } }
         }",
    );
    let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
    held(std::slice::from_ref(&ir), &[("ranks", 3), ("rows", 40)], 2)
        .unwrap_or_else(|words| panic!("{words}"));
}
