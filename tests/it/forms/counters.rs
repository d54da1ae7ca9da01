//! Counters, flags and sums of roles that no class of the library does: what a warp does at once, and what it leaves.

use ep_codegen::schedule::{RoleRule, RuleSet};

use super::run::{Form, accepted};

/// The text of a declaration by the rules over steps.
fn text(source: &str, sets: &[(&str, i64)]) -> String {
    Form::new(source, sets).text(RuleSet::Without(RoleRule::OneLaunch))
}

/// Runs random calls of a declaration.
fn held(source: &str, numbers: &[(&str, i64)]) {
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    for seed in 1..4 {
        let held = super::meaning::held(std::slice::from_ref(&ir), numbers, seed);
        held.unwrap_or_else(|words| panic!("{words}"));
    }
}

/// Counters of tokens, of which some are left out; stripes have more rows than a warp has lanes.
const COUNTS: &str = "
    shape { ranks: 1..=64, experts: 1..=16, topk: 1..=8, stripes: 1..=8 }
    size tokens in 150..=200;
    input
        ids: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending,
        keep: i32[tokens] in 0..=1;
    output per_expert: i32[experts], per_rank: i32[ranks], some: i32[experts], goes: bool[tokens, ranks];
    table of: i32[stripes, ranks], of_token: i32[tokens];
    role Count on all blocks, 3 warps, warps shared by stripe {
        for t in stripe where keep[t] == 1 {
            for e in ids[t] { count per_expert[e]; }
            for peer in ranks { store goes[t, peer] = routed(ids[t], peer); }
            for peer in ranks where routed(ids[t], peer) { count per_rank[peer]; count of[stripe, peer]; }
            for e in experts where listed(ids[t], e) { count some[e]; }
            for peer in ranks where routed(ids[t], peer) { count of_token[t]; }
        }
    }";

const FEW_STRIPES: [(&str, i64); 4] = [("ranks", 4), ("experts", 10), ("topk", 3), ("stripes", 2)];

#[test]
fn lanes_count_their_tokens_together() {
    let count = |part: &str| text(COUNTS, &FEW_STRIPES).matches(part).count();
    let once =
        ["ep::row_of<", "ep::ranks_of<", "ep::ids_of(", "ep::StripeSlices ", "ep::store_flags<"];
    assert_eq!(once.map(count), [1; 5]);
    // What a token counts for itself its lane adds.
    assert_eq!(["ep::for_hits(", "ep::add_count(&args.of_token[t], 1)"].map(count), [2, 1]);
    for (rule, part) in [
        (RoleRule::Looks, "ep::row_of<"),
        (RoleRule::Cut, "ep::StripeSlices "),
        (RoleRule::Sums, "ep::for_hits("),
    ] {
        for other in RoleRule::ALL.into_iter().filter(|other| *other != RoleRule::OneLaunch) {
            let text = Form::new(COUNTS, &FEW_STRIPES).text(RuleSet::Only(other));
            assert_eq!(text.contains(part), other == rule, "{part} by {other:?}");
        }
    }
    held(COUNTS, &FEW_STRIPES);
}

/// Rows of tokens and of other numbers, whole and real, in loops over few numbers and over tokens.
const SUMS: &str = "
    shape { ranks: 1..=64, many: 9..=99, few: 1..=8 }
    size tokens in 0..=40;
    input
        n: i32[ranks, many] in -9..=999, w: i64[many] in 0..=9000000000, f: f32[many], m: i32[tokens, many] in 0..=9;
    output
        of_ranks: i32[ranks, many], wide: i64[many], real: f32[many], of_tokens: i32[tokens, many],
        of_few: i32[ranks, few];
    role Sums on all blocks, 2 warps {
        for r in ranks { store of_ranks[r, i] = prefix_sum(i in many: n[r, i]); }
        store wide[i] = prefix_sum(i in many: w[i]);
        store real[i] = prefix_sum(i in many: f[i]);
        for t in tokens { store of_tokens[t, i] = prefix_sum(i in many: m[t, i]); }
        for r in ranks { store of_few[r, i] = prefix_sum(i in few: n[r, i]); }
    }";

#[test]
fn a_warp_adds_up_whole_numbers_of_few_loops() {
    let sizes = [("ranks", 3), ("many", 70), ("few", 5)];
    let text = text(SUMS, &sizes);
    let count = |part: &str| text.matches(part).count();
    let loops = ["for (int r = team.index(); r <", "ep::prefix_sum(", "ep::i64 sum_", "float sum"];
    assert_eq!(loops.map(count), [1, 2, 3, 1], "{text}");
    held(SUMS, &sizes);
}

/// Records that the warps of one block send in words, and a number that one warp stores.
const RECORDS: &str = "
    shape { ranks: 1..=8, many: 1..=99 }
    output all: i32[ranks], first: i32[1];
    input n: i32[ranks, many] in 0..=99;
    message Numbers { of: i32[many] }
    channel numbers: slots<Numbers> over nvlink from Say to Say per all { slot: [source], epochs: 2 };
    role Say on block 0, 3 warps {
        for peer in ranks { push numbers[peer] { of: n[peer] }; }
        await numbers;
        for peer in ranks { store all[peer] = sum(i in many: numbers[peer].of[i]); }
        store first[0] = numbers[0].of[0];
    }";

#[test]
fn warps_of_one_block_share_records() {
    let sizes = [("ranks", 3), ("many", 70)];
    let own = text(RECORDS, &sizes);
    let count = |part: &str| own.matches(part).count();
    let parts = ["ep::put<ep::i32>(", "ep::Units<", "if (team.index() == team.count() - 1) {"];
    assert_eq!(parts.map(count), [1, 0, 1], "{own}");
    // Several blocks are not equally fast.
    let spread = RECORDS.replace("on block 0, 3 warps", "on blocks 0..2, 3 warps");
    assert!(text(&spread, &sizes).contains("ep::Units<"));
    held(RECORDS, &sizes);
}
