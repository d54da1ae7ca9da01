//! Roles that are one team: cut at their dependences, they leave what they mean, on all of their warps.

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::{RoleRule, RuleSet, Warps, Ways};
use ep_runtime::ir;

use super::meaning::{held_by, only};
use crate::usual;

const DECODE: &str = include_str!("../../../ep-runtime/src/pipelines/decode_dispatch.rs");
const PACKED: &str = include_str!("../../../ep-runtime/src/pipelines/packed_dispatch.rs");

/// The IR of a standard declaration with other texts in place of some.
fn changed(source: &str, edits: &[(&str, &str)]) -> ir::Pipeline {
    let mut source = source.to_string();
    for (from, to) in edits {
        assert!(source.contains(from), "{from}");
        source = source.replace(from, to);
    }
    let mut found = ep_tests::lowered(&source);
    found.remove(0)
}

/// Runs calls of a pipeline, all of whose roles use all of their warps.
fn held(pipeline: &ir::Pipeline, numbers: &[(&str, i64)], seed: u64) -> Result<(), String> {
    let cut = |drawn: Drawn| {
        let ways = Ways::of(&drawn.ir, RuleSet::All);
        for role in &ways.recipe.roles {
            assert_eq!(role.warps, Warps::All, "{role:?}");
        }
        drawn
    };
    held_by(std::slice::from_ref(pipeline), numbers, seed, &cut, &|form| form)
}

/// Texts, and others that stand in place of them.
type Edits = &'static [(&'static str, &'static str)];

/// Edits of `decode-dispatch`, and whether its rows still leave without a wait for the counts of all ranks.
const DECODES: [(&str, bool, Edits); 9] = [
    ("+ 0", true, &[("where routed(topk_idx[token], peer)", "where routed(topk_idx[token + 0], peer)")]),
    (
        "a gate",
        true,
        &[
            ("x: payload[tokens, hidden],\n", "x: payload[tokens, hidden], keep: i32[tokens] in 0..=1,\n"),
            (
                "count_and_exchange(
                topk_idx, token, expert, sum(choice in topk: (topk_idx[token, choice] == expert) as i32),
                counts, tokens_per_rank, tokens_per_expert, rank_prefix,
            );",
                "for peer in ranks {
                record tokens_per_rank[peer] =
                    sum(token in tokens: (routed(topk_idx[token], peer) && keep[token] > 0) as i32);
            }
            for expert in experts { record tokens_per_expert[expert] = expert; }
            exchange(counts, tokens_per_rank, tokens_per_expert, rank_prefix);",
            ),
            ("where routed(topk_idx[token], peer)", "where routed(topk_idx[token], peer) && keep[token] > 0"),
        ],
    ),
    (
        "a loop written as two",
        true,
        &[(
            "record send_row[token, peer] = rows[peer].position;
                }
            }
            for row",
            "}
            }
            for token in tokens { for peer in ranks { record send_row[token, peer] = token; } }
            for row",
        )],
    ),
    (
        "an extra field",
        true,
        &[
            ("src: i32,", "src: i32, twice: i32,"),
            ("src: token,", "src: token, twice: 2 * token,"),
            ("recv_src: i32[max_rows],", "recv_src: i32[max_rows], recv_twice: i32[max_rows],"),
            ("unpack(", "record recv_twice[message.row] = message.twice;\n unpack("),
        ],
    ),
    (
        "a gate of whole tokens, and what is recorded of a pair and of a token",
        true,
        &[
            ("x: payload[tokens, hidden],\n", "x: payload[tokens, hidden], keep: bool[tokens],\n"),
            ("send_row: i32[tokens, ranks]", "send_row: i32[tokens, ranks], sent: i32[tokens, ranks], seen: i32[tokens]"),
            (
                "count_and_exchange(
                topk_idx, token, expert, sum(choice in topk: (topk_idx[token, choice] == expert) as i32),
                counts, tokens_per_rank, tokens_per_expert, rank_prefix,
            );",
                "for peer in ranks {
                record tokens_per_rank[peer] =
                    sum(token in tokens: keep[token] as i32 * routed(topk_idx[token], peer) as i32);
            }
            for expert in experts {
                record tokens_per_expert[expert] = sum(token in tokens: listed(topk_idx[token], expert) as i32);
            }
            exchange(counts, tokens_per_rank, tokens_per_expert, rank_prefix);",
            ),
            ("for token in tokens {\n                for peer", "for token in tokens where keep[token] {\n                for peer"),
            (
                "record send_row[token, peer] = rows[peer].position;\n                }",
                "record send_row[token, peer] = rows[peer].position;\n let own = peer * 3; record sent[token, peer] = own + token;
                }
                record seen[token] = 2 * token + keep[token] as i32;",
            ),
        ],
    ),
    (
        "more that ranks publish and record",
        true,
        &[
            ("message Totals { per_rank: i32[ranks],", "message Totals { per_rank: i32[ranks], tokens: i32, odd: i32[local_experts],"),
            ("table rank_prefix:", "table seen: i32[ranks], odd: i32[experts], odds: i32[local_experts], rank_prefix:"),
            (
                "count_and_exchange(
                topk_idx, token, expert, sum(choice in topk: (topk_idx[token, choice] == expert) as i32),
                counts, tokens_per_rank, tokens_per_expert, rank_prefix,
            );",
                "for expert in experts {
                record tokens_per_expert[expert] =
                    sum(token in tokens: sum(choice in topk: (topk_idx[token, choice] == expert) as i32));
            }
            for expert in experts { record odd[expert] = tokens_per_expert[expert] % 2; }
            for peer in ranks {
                record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer) as i32);
            }
            for peer in ranks {
                push counts[peer] {
                    per_rank: tokens_per_rank, tokens: tokens, odd: owned(odd, peer),
                    per_expert: owned(tokens_per_expert, peer),
                };
            }
            await counts;
            for dest in ranks {
                record rank_prefix[source, dest] = prefix_sum(source in ranks: counts[source].per_rank[dest]);
            }
            for source in ranks { record seen[source] = counts[source].tokens; }
            for expert in local_experts {
                record odds[expert] = sum(source in ranks: counts[source].odd[expert]);
            }",
            ),
        ],
    ),
    (
        "a condition on what has come",
        true,
        &[
            ("recv_src: i32[max_rows],", "recv_src: i32[max_rows], late: i32[max_rows],"),
            (
                "unpack(",
                "if message.src % 2 == 1 { record late[message.row] = message.src + message.source; }\n unpack(",
            ),
        ],
    ),
    (
        "rows behind all others, up to what a rank has published",
        false,
        &[(
            "..max_rows {",
            "..max_rows * (counts[0].per_rank[me] >= 0) as i32 {",
        )],
    ),
    (
        "a loop over tokens in two halves",
        true,
        &[
            (", send_row: i32[tokens, ranks]", ""),
            ("record send_row[token, peer] = rows[peer].position;", ""),
            (
                "for token in tokens {
                for peer in ranks where",
                "for token in 0..tokens / 2 {
                for peer in ranks where routed(topk_idx[token], peer) {
                    push rows[peer] at rank_prefix[me, peer] {
                        x: x[token], src: token, experts: topk_idx[token], weights: topk_weights[token],
                    };
                }
            }
            for token in tokens / 2..tokens {
                for peer in ranks where",
            ),
        ],
    ),
];

#[test]
fn near_misses_of_a_dispatch_leave_what_they_mean() {
    if crate::host::programs().is_none() {
        return;
    }
    for (item, (name, at_once, edits)) in DECODES.into_iter().enumerate() {
        let pipeline = changed(DECODE, edits);
        let one = pipeline.select(&pipeline.choices()[0]);
        let recipe = Ways::of(&one, RuleSet::All).recipe;
        assert_eq!(
            recipe.roles[0].routes.is_some(),
            at_once,
            "{name}: {:?}",
            recipe.roles[0].reasons()
        );
        for seed in usual::one(item, 10) {
            let ranks = 1 + seed as i64 % 5;
            let numbers = [
                ("ranks", ranks),
                ("max_tokens", (1 + seed as i64 * 17 % 70).min(160 / ranks)),
                ("hidden", 64),
                ("experts", 60),
                ("topk", 1 + seed as i64 % 7),
            ];
            held(&pipeline, &numbers, seed)
                .unwrap_or_else(|words| panic!("{name}, seed {seed}: {words}"));
        }
    }
}

/// All warps meet before the counts leave and before rows are unpacked. None waits for another one to record where
/// rows begin.
#[test]
fn a_table_that_every_warp_can_compute_is_not_waited_for() {
    let pipeline = changed(DECODE, &[]);
    let one = pipeline.select(&pipeline.choices()[0]);
    let ways = Ways::of(&one, RuleSet::Without(RoleRule::OneLaunch));
    assert_eq!(ways.recipe.role("Dispatch").expect("a recipe").uses.meets, 2);
}

#[test]
fn a_near_miss_of_a_packed_dispatch_leaves_what_it_means() {
    if crate::host::programs().is_none() {
        return;
    }
    let sides = [("if expert >= 0 && again == 0", "if again == 0 && expert >= 0")];
    let pipeline = only(changed(PACKED, &sides), "via", "Direct");
    for seed in usual::some(0..8, 2) {
        let ranks = 1 + seed as i64 % 4;
        let numbers = [
            ("ranks", ranks),
            ("max_tokens", 2 + seed as i64 * 5 % 11),
            ("hidden", 256),
            ("experts", 5 * ranks - 2),
            ("topk", 1 + seed as i64 % 5),
        ];
        held(&pipeline, &numbers, seed).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// Teams of other kinds, each with the body of its pipeline.
const TEAMS: [(&str, &str); 5] = [
    (
        "rows to the other ranks, by a computed peer, in two loops with names ahead",
        "shape { ranks: 1..=8, hidden: 16..=64 step 16, max_tokens: 1..=64, let max_rows = ranks * max_tokens * 2 }
         size tokens in 0..=max_tokens;
         input x: bf16[tokens, hidden], to: i32[tokens] in 0..ranks;
         output landed: bf16[max_rows, hidden] in window;
         table from: i32[max_rows], sent: i32[ranks], first: i32[ranks, ranks];
         message Row { row x: bf16[hidden], src: i32 }
         message Sent { rows: i32[ranks] }
         channel counts: slots<Sent> over nvlink from All to All per all { slot: [source], epochs: 2 };
         channel rows: direct<Row> over nvlink from All to All per all;
         role All on all blocks {
             for peer in ranks { record sent[peer] = 2 * sum(token in tokens: (to[token] == peer) as i32); }
             for peer in ranks { push counts[peer] { rows: sent }; }
             await counts;
             for dest in ranks {
                 for source in ranks {
                     record first[source, dest] = sum(before in 0..source: counts[before].rows[dest]);
                 }
             }
             for token in tokens {
                 let dest = to[token];
                 push rows[dest] at first[me, dest] { x: x[token], src: token };
             }
             for token in tokens {
                 for peer in ranks where to[token] == peer {
                     push rows[peer] at first[me, peer] { x: x[token], src: -token };
                 }
             }
             for message in rows { store landed[message.row] = message.x; record from[message.row] = message.src; }
         }",
    ),
    (
        "slots with two indices, read by all warps",
        "shape { ranks: 1..=8, experts: 1..=16, width: 16..=64 step 16 }
         input x: i32[ranks, experts, width] in -9..=9;
         output sums: i32[experts];
         table y: i32[ranks, experts, width];
         message Row { row x: i32[width] }
         channel rows: slots<Row> over nvlink from All to All per all { slot: [source, expert: experts], epochs: 2 };
         role All on all blocks {
             for peer in ranks { for expert in experts { push rows[peer] at expert { x: x[peer, expert] }; } }
             await rows;
             for source in ranks {
                 for expert in experts { record y[source, expert] = rows[source, expert].x; }
             }
             for expert in experts { store sums[expert] = sum(source in ranks: y[source, expert, 0]); }
         }",
    ),
    (
        "memory of the caller that each turn changes, one after the other",
        "shape { ranks: 1..=8, experts: 1..=16 }
         input add: i32[experts] in 0..=9;
         inout best: i32[1] in 0..=18;
         output seen: i32[experts];
         table twice: i32[experts];
         role All on all blocks {
             for expert in experts { record twice[expert] = 2 * add[expert]; }
             for expert in experts { store best[0] = max(best[0], twice[expert]); }
             for expert in experts { store seen[expert] = best[0] + twice[experts - 1 - expert]; }
         }",
    ),
    (
        "a condition around statements that need each other",
        "shape { ranks: 1..=8, experts: 1..=16 }
         arg { twice: i32 = 1 in 0..=1 }
         input add: i32[experts] in 0..=9;
         output seen: i32[experts];
         inout kept: i32[experts] in 0..=18;
         role All on all blocks {
             if twice > 0 {
                 for expert in experts { store kept[expert] = 2 * add[expert]; }
                 for expert in experts { store seen[expert] = kept[experts - 1 - expert]; }
             } else {
                 for expert in experts { store seen[expert] = add[expert]; }
             }
         }",
    ),
    (
        "slots that count what arrives",
        "shape { ranks: 1..=8, items: 1..=16 }
         input to: i32[items] in 0..ranks;
         output came: i32[ranks, items];
         message Row { src: i32 }
         channel rows: slots<Row> over nvlink from All to All per all { slot: [source, arrival: items], epochs: 2 };
         role All on all blocks {
             for item in items { push rows[to[item]] { src: item }; }
             close rows;
             for message in rows at message.source * items {
                 store came[message.source, message.index] = message.src;
             }
         }",
    ),
];

#[test]
fn teams_leave_what_they_mean() {
    if crate::host::programs().is_none() {
        return;
    }
    for (item, (name, body)) in TEAMS.into_iter().enumerate() {
        let source = format!("ep_runtime::pipeline! {{ pub pipeline Team {{ {body} }} }}");
        let pipeline = ep_tests::lowered(&source).remove(0);
        for seed in usual::one(item, 10) {
            let numbers = [("ranks", 1 + seed as i64 % 4)];
            held(&pipeline, &numbers, seed)
                .unwrap_or_else(|words| panic!("{name}, seed {seed}: {words}"));
        }
    }
}
