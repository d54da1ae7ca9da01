//! Roles that rules over steps make faster: what they leave is the same, and what becomes of their text.

use ep_codegen::schedule::{Rule, RuleSet};

use super::channels::{goes, stripe, tokens_of};
use super::run::{Call, Form, RULES, rows};

const RANKS: usize = 3;
const STRIPES: usize = 2;
/// More than one lane copies at a time.
const WEIGHTS: usize = 40;

/// Rows go to a rank, which sends those of even tokens back.
fn there_and_back(depth: usize) -> String {
    format!(
        "shape {{ ranks: 1..=64, hidden: 8..=4096 step 8, stripes: 1..=8 }}
        size tokens;
        size back = starts[ranks];
        input
            x: bf16[tokens, hidden], w: f32[tokens, {WEIGHTS}], to: bool[tokens, ranks],
            sent: i32[stripes, ranks], even: i32[ranks, stripes], starts: i32[ranks + 1], first: i32[ranks, stripes];
        output out: bf16[back, hidden];
        table weights: f32[back, {WEIGHTS}], srcs: i32[back], heads: i32[tokens, ranks];
        message Token {{ w: f32[{WEIGHTS}], row x: bf16[hidden], src: i32 }}
        channel ring: ring<Token> over nvlink from Send to Pass per all {{ depth: {depth}, chunk: 1, header: [count] }};
        channel next: ring<Token> over nvlink from Pass to Take per all {{ depth: {depth}, chunk: 1, header: [count] }};
        role Send on all blocks, 3 warps, warps shared by stripe {{
            for peer in ranks {{ announce ring[peer] {{ count: sent[stripe, peer] }}; }}
            for token in stripe {{
                for peer in ranks where to[token, peer] {{
                    push ring[peer] {{ x: x[token], w: w[token], src: token }};
                    record heads[token, peer] = ring[peer].position;
                }}
            }}
        }}
        role Pass[peer] on all blocks, 2 warps {{
            announce next[peer] {{ count: even[peer, stripe] }};
            for message in ring[peer] where message.src % 2 == 0 {{
                push next[peer] {{ ..message }};
            }}
        }}
        role Take[peer] on all blocks, 2 warps {{
            for message in next[peer] at starts[peer] + first[peer, stripe] {{
                store out[message.row] = message.x;
                record weights[message.row] = message.w;
                record srcs[message.row] = message.src;
            }}
        }}"
    )
}

/// The tokens of a stripe that go from one rank to another, and come back if they are `even`.
fn going(from: usize, to: usize, s: usize, even: bool) -> Vec<usize> {
    let all = stripe(tokens_of(from), STRIPES, s);
    all.filter(|token| goes(from, *token, to) && (!even || token % 2 == 0)).collect()
}

fn call(me: usize, hidden: usize) -> Call {
    let tokens = tokens_of(me);
    let of = |peer: usize| (0..STRIPES).flat_map(move |s| going(me, peer, s, true));
    let back: Vec<usize> = (0..RANKS).flat_map(of).collect();
    let x = |token: usize, i: usize| ((me * 31 + token * 7 + i) % 120) as f64;
    let w = |token: usize, k: usize| (me * 100 + token * 10) as f64 + k as f64 / 4.0;
    let before = |peer: usize| (0..peer).map(|earlier| of(earlier).count()).sum::<usize>();
    let ahead =
        |peer: usize, s: usize| (0..s).map(|s| going(me, peer, s, true).len()).sum::<usize>();
    let head = |token: usize, peer: usize| {
        let own = (0..STRIPES).find(|s| stripe(tokens, STRIPES, *s).contains(&token)).unwrap_or(0);
        let gone = going(me, peer, own, false).iter().filter(|it| **it < token).count() as f64;
        if goes(me, token, peer) { gone } else { -1.0 - gone }
    };
    Call::new()
        .number("tokens", tokens)
        .number("back_capacity", back.len())
        .give("x", hidden, rows(tokens, hidden, x))
        .give("w", WEIGHTS, rows(tokens, WEIGHTS, w))
        .give("to", RANKS, rows(tokens, RANKS, |token, to| f64::from(goes(me, token, to))))
        .give("sent", RANKS, rows(STRIPES, RANKS, |s, to| going(me, to, s, false).len() as f64))
        .give(
            "even",
            STRIPES,
            rows(RANKS, STRIPES, |from, s| going(from, me, s, true).len() as f64),
        )
        .give("starts", 1, rows(RANKS + 1, 1, |peer, _| before(peer) as f64))
        .give("first", STRIPES, rows(RANKS, STRIPES, |peer, s| ahead(peer, s) as f64))
        .want("out", hidden, rows(back.len(), hidden, |row, i| x(back[row], i)))
        .want("weights", WEIGHTS, rows(back.len(), WEIGHTS, |row, k| w(back[row], k)))
        .want("srcs", 1, rows(back.len(), 1, |row, _| back[row] as f64))
        .want("heads", RANKS, rows(tokens, RANKS, head))
}

fn form(depth: usize, hidden: usize) -> Form {
    let numbers = [("ranks", RANKS), ("hidden", hidden), ("stripes", STRIPES)];
    let numbers = numbers.map(|(name, number)| (name, number as i64));
    Form::new(&there_and_back(depth), &numbers)
}

/// With rows of two pieces, and with rings that hold little: a warp that waits for one of them owes
/// nothing to another.
#[test]
fn rows_pass_through_a_rank() {
    for (depth, hidden) in [(2, 2048), (8, 16)] {
        let form = form(depth, hidden);
        form.check(&|me| call(me, hidden));
        form.check_vector(&|me| call(me, hidden));
    }
}

/// The function of a role, as `rules` have it.
fn function(form: &Form, role: &str, rules: RuleSet) -> String {
    let text = form.text(rules);
    let start = text.find(&format!("/// role {role}")).expect("the role has a function");
    let end = text[start..].find("\n}\n").expect("it ends") + start;
    text[start..end + 3].to_string()
}

#[test]
fn a_forwarder_moves_rows_through_shared_memory() {
    let form = form(8, 2048);
    insta::assert_snapshot!(function(&form, "Pass", RuleSet::All));
    for rules in RULES {
        let moves = function(&form, "Pass", rules).contains("mover.row(");
        assert_eq!(moves, rules.has(Rule::Staged), "{rules:?}");
    }
}
