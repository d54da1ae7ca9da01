//! Roles that are dealt by stripes and send rows of direct channels: several warps send each stripe and take it, and
//! leave what they mean.

use ep_codegen::meaning::Drawn;
use ep_codegen::schedule::{RoleRule, RuleSet, Warps, Ways};

use super::meaning::held_by;
use super::run::Form;
use crate::usual;

/// Two stripes for many more warps. `%` stands for what `Send` does, and the tables that it records.
const ROWS: &str = "
    shape {
        ranks: 1..=8, hidden: 16..=64 step 16, max_tokens: 1..=256,
        let most = 2 * max_tokens, let max_rows = ranks * stripes * most,
    }
    size tokens in 0..=max_tokens;
    input x: bf16[tokens, hidden], to: i32[tokens] in 0..ranks;
    output landed: bf16[max_rows, hidden] in window;
    table from: i32[max_rows];
    tune { stripes: 2 in [1, 2] }
    message Row { row x: bf16[hidden], src: i32 }
    channel rows: direct<Row> over nvlink from Send to Take per all;
    %
    role Take on all blocks, 3 warps, warps shared by (source, stripe) {
        for row in rows[source] {
            store landed[row.row] = row.x;
            record from[row.row] = row.src;
        }
    }";

const SENDS: [(&str, &str); 5] = [
    (
        "every token to every rank, the first position by a name",
        "role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
            for peer in ranks {
                let first = (me * stripes + stripe) * most;
                push rows[peer] at first { x: x[token], src: token };
            }
        } }",
    ),
    (
        "two loops with positions recorded, the first one to a computed rank",
        "table place: i32[tokens, ranks];
        role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
            let dest = to[token];
            push rows[dest] at (me * stripes + stripe) * most { x: x[token], src: token };
        }
        for token in stripe {
            for peer in ranks where to[token] != peer {
                push rows[peer] at (me * stripes + stripe) * most { x: x[token], src: -token };
                record place[token, peer] = rows[peer].position;
            }
        } }",
    ),
    (
        "some tokens to this rank alone",
        "role Send on all blocks, 3 warps, warps shared by stripe { for token in stripe where to[token] == me {
            push rows[me] at (me * stripes + stripe) * most { x: x[token], src: token };
        } }",
    ),
    (
        "some tokens to the others, twice",
        "role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
            if to[token] > 0 {
                for peer in others {
                    push rows[peer] at (me * stripes + stripe) * most { x: x[token], src: token };
                    push rows[peer] at (me * stripes + stripe) * most { x: x[token], src: -token };
                }
            }
        } }",
    ),
    (
        "some tokens to the peer that a warp serves",
        "role Send[peer] on all blocks, 3 warps { for token in stripe where to[token] % 2 == peer % 2 {
            push rows[peer] at (me * stripes + stripe) * most { x: x[token], src: token };
        } }",
    ),
];

#[test]
fn parts_of_stripes_leave_what_stripes_mean() {
    if crate::host::programs().is_none() {
        return;
    }
    let all_warps = |drawn: Drawn| {
        for role in &Ways::of(&drawn.ir, RuleSet::Without(RoleRule::OneLaunch)).recipe.roles {
            assert_eq!(role.warps, Warps::All, "{role:?}");
        }
        drawn
    };
    for (item, (name, sends)) in SENDS.into_iter().enumerate() {
        let body = ROWS.replace('%', sends);
        let source = format!("ep_runtime::pipeline! {{ pub pipeline Rows {{ {body} }} }}");
        let pipeline = ep_tests::lowered(&source).remove(0);
        for seed in usual::one(item, 10) {
            let ranks = [3, 1, 5, 2, 4][seed as usize % 5];
            let most = [70, 9, 160, 1][seed as usize % 4] / ranks + 1;
            let numbers = [("ranks", ranks), ("max_tokens", most), ("hidden", 64)];
            held_by(std::slice::from_ref(&pipeline), &numbers, seed, &all_warps, &|form| form)
                .unwrap_or_else(|words| panic!("{name}, seed {seed}: {words}"));
        }
    }
}

/// Fields are loaded before their row moves, and lanes look up ahead what a loop asks of an input, but not of a tensor
/// that a role writes.
#[test]
fn what_a_message_waits_for_is_asked_for_ahead() {
    let send = |table: &str| {
        let sends = "inout seen: i32[tokens, ranks];
        role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
            for peer in ranks where to[token] != peer {
                push rows[peer] at (me * stripes + stripe) * most { x: x[token], src: -token };
                store seen[token, peer] = 1;
            }
        } }";
        let body = ROWS.replace('%', &sends.replace("to[token]", table));
        let sizes = [("ranks", 3), ("max_tokens", 40), ("hidden", 64)];
        let text = Form::new(&body, &sizes).text(RuleSet::Without(RoleRule::OneLaunch));
        let at = |what: &str| text.find(what).unwrap_or(usize::MAX);
        (at("ep::Flags<"), at("ep::ask<"), at("mover.row("), at(".put("))
    };
    let (flags, asked, moved, put) = send("to[token]");
    assert!(flags < asked && asked < moved && moved < put && put < usize::MAX);
    assert_ne!(send("(to[token] + 1 - 1)").0, usize::MAX, "the same in other words");
    assert_eq!(send("(token % ranks)").0, usize::MAX, "memory is not asked");
    assert_eq!(send("seen[token, peer]").0, usize::MAX, "the loop writes it");
    assert_eq!(send("(8 / (to[token] + 1))").0, usize::MAX, "the divisor is known in its turn");
}

/// A row that goes to several peers is loaded once, if the message is the same for all of them, and if it reads nothing that
/// a condition guards. The rows before a part are counted with the same answers.
#[test]
fn a_token_goes_to_all_its_peers_at_once() {
    let send = |src: &str, condition: &str, before: &str| {
        let sends = "input hint: i32[tokens, ranks];
        role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
            for peer in ranks where to[token] != peer { BEFORE
                push rows[peer] at (me * stripes + stripe) * most { x: x[token], src: SRC };
            }
        } }";
        let sends = sends.replace("SRC", src).replace("to[token] != peer", condition);
        let sends = sends.replace("BEFORE", before);
        let sizes = [("ranks", 3), ("max_tokens", 40), ("hidden", 64)];
        let text = Form::new(&ROWS.replace('%', &sends), &sizes)
            .text(RuleSet::Without(RoleRule::OneLaunch));
        text.split_whitespace().collect::<String>()
    };
    let all = send("token", "to[token] != peer", "");
    assert!(all.contains("ep::at_each(") && !all.contains("ep::at_lane_of("), "{all}");
    assert!(all.contains("rows.behind(flags.ahead("), "{all}");
    let each = send("peer", "to[token] != peer", "");
    assert!(each.contains("ep::at_lane_of(") && !each.contains("ep::at_each("), "{each}");
    for read in ["hint[token, peer]", "hint[token, 0]"] {
        let through = send("read", "to[token] != peer", &format!("let read = {read};"));
        assert!(!through.contains("ep::at_each("), "{through}");
    }
    let apart = send("token", "to[token] != peer && token % 2 == 0", "");
    assert!(apart.contains("rows.behind(flags.ahead("), "{apart}");
}

/// Lanes share the small rows that messages bring, unless only some messages have one.
#[test]
fn small_rows_are_moved_element_by_element() {
    let take = |more: &str| {
        let sends = "role Send on all blocks, 3 warps, warps shared by token { for token in stripe {
            push rows[to[token]] at (me * stripes + stripe) * most { x: x[token], src: token, w: w[token] };
        } }";
        let body = ROWS.replace('%', sends);
        let body = body.replace("src: i32 }", "src: i32, w: f32[8] }");
        let body = body.replace(
            "to: i32[tokens] in 0..ranks;",
            "to: i32[tokens] in 0..ranks, w: f32[tokens, 8];",
        );
        let body = body.replace(
            "table from",
            "output came: f32[max_rows, 8], twice: f32[max_rows, 8]; table from",
        );
        let body =
            body.replace("= row.src;", &format!("= row.src; store came[row.row] = row.w; {more}"));
        let sizes = [("ranks", 3), ("max_tokens", 40), ("hidden", 64)];
        let text = Form::new(&body, &sizes).text(RuleSet::Without(RoleRule::OneLaunch));
        text.matches("ep::row_elements<").count()
    };
    assert_eq!(take("store twice[row.row] = 2.0 * row.w;"), 3);
    let some = "if row.src > 0 { store twice[row.row] = 2.0 * row.w; }";
    assert_eq!(take(some), 2, "what holds for a row alone its lane knows");
}
