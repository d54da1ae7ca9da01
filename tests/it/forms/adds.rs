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
