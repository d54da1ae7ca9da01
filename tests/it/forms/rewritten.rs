//! Roles that rules over steps make faster: what they leave is the same, and what becomes of their text.

use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::AnyPipeline;
use ep_runtime::jit::Arch;
use ep_runtime::pipelines::PackedDispatch;
use ep_runtime::plan::Config;

use super::apart::GATHER;
use super::channels::{goes, stripe, tokens_of};
use super::run::{Call, Form, rows};

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

/// A shape that fits without rules fits with them, in smaller pieces.
#[test]
fn many_warps_share_the_memory_of_a_block() {
    let many =
        there_and_back(8).replace("Pass[peer] on all blocks, 2", "Pass[peer] on all blocks, 24");
    let numbers = [("ranks", 8), ("hidden", 4096), ("stripes", 8)];
    let bytes = |source: &str| Form::new(source, &numbers).shared_bytes();
    let (few, many) = (bytes(&there_and_back(8)), bytes(&many));
    assert!(few > 100_000, "{few} bytes where there is room for all");
    assert!(many > 100_000 && many <= 227 << 10, "{many} bytes");
}

/// The function of a role, as `rules` have it.
fn function(form: &Form, role: &str, rules: RuleSet) -> String {
    function_in(&form.text(rules), role)
}

fn function_in(text: &str, role: &str) -> String {
    let start = text.find(&format!("/// role {role}")).expect("the role has a function");
    let end = text[start..].find("\n}\n").expect("it ends") + start;
    text[start..end + 3].to_string()
}

#[test]
fn a_forwarder_moves_rows_through_shared_memory() {
    let form = form(8, 2048);
    insta::assert_snapshot!(function(&form, "Pass", RuleSet::All));
}

/// Parts that are scaled before they are added: no library function does it.
const SCALED: &str = "
    shape { ranks: 1..=64, hidden: 8..=4096 step 8, odd: 1..=4096 }
    size tokens;
    size rows;
    input
        x: bf16[rows, hidden] in window, at: i32[tokens, ranks], scale: f32[tokens, ranks], more: f32[tokens, odd];
    output out: bf16[tokens, hidden], twice: f32[tokens, odd];
    message Part { row x: bf16[hidden] }
    channel parts: pull<Part> over nvlink from Offer to Sum per all;
    role Offer on block 0, 1 warps { push parts { x: x }; }
    role Sum on all blocks, 2 warps, warps shared by token {
        for token in tokens gather part from parts[peer] at at[token, peer] across peer in ranks {
            store out[token] = sum(part.x * scale[token, peer]);
            store twice[token] = more[token] * 2 - 1;
        }
    }";

/// Rows of whole units, and with a few elements behind them.
#[test]
fn scaled_parts_are_added_by_eight() {
    const ROWS: usize = 5;
    for (hidden, odd) in [(8, 3), (304, 259), (512, 323)] {
        let at = |token: usize, peer: usize| {
            if (token + peer) % 4 == 1 { -1.0 } else { (token * 3 + peer) as f64 % 5.0 }
        };
        let x = |rank: usize, row: usize, i: usize| ((rank * 5 + row * 3 + i) % 16) as f64;
        let scale = |token: usize, peer: usize| [0.5, 1.0, 2.0][(token + peer) % 3];
        let more = |me: usize, token: usize, i: usize| (me * 100 + token * 10 + i) as f64;
        let call = |me: usize| {
            let tokens = [6, 0, 3][me];
            let sum = |token: usize, i: usize| {
                let part = |peer: usize| match at(token, peer) {
                    row if row < 0.0 => 0.0,
                    row => x(peer, row as usize, i) * scale(token, peer),
                };
                (0..RANKS).map(part).sum::<f64>()
            };
            Call::new()
                .number("tokens", tokens)
                .number("rows", ROWS)
                .give("x", hidden, rows(ROWS, hidden, |row, i| x(me, row, i)))
                .give("at", RANKS, rows(tokens, RANKS, at))
                .give("scale", RANKS, rows(tokens, RANKS, scale))
                .give("more", odd, rows(tokens, odd, |token, i| more(me, token, i)))
                .want("out", hidden, rows(tokens, hidden, sum))
                .want("twice", odd, rows(tokens, odd, |token, i| more(me, token, i) * 2.0 - 1.0))
        };
        let sizes = [("ranks", RANKS), ("hidden", hidden), ("odd", odd)];
        let sizes = sizes.map(|(name, size)| (name, size as i64));
        Form::new(SCALED, &sizes).check(&call);
    }
}

#[test]
fn each_rule_can_be_left_out() {
    let pass = form(8, 2048);
    let sum = Form::new(SCALED, &[("ranks", 3), ("hidden", 64), ("odd", 1)]);
    let offer = Form::new(GATHER, &[("ranks", 3), ("hidden", 64), ("topk", 3), ("rows", 2)]);
    let count = Form::new(
        "shape { ranks: 1..=64, hidden: 8..=4096 step 8, many: 9..=99 }
         size tokens in 0..=99;
         input x: bf16[tokens, hidden], n: i32[many];
         output o: bf16[tokens, hidden], s: i32[tokens];
         role Count on all blocks, one block a token {
             for t in tokens where n[0] == 1 { store o[t] = x[t]; store s[t] = sum(m in many: n[m]); }
         }",
        &[("ranks", 3), ("hidden", 64), ("many", 40)],
    );
    let team = Form::new(
        "shape { ranks: 1..=64, experts: 1..=16 }
         output twice: i32[experts];
         table own: i32[experts];
         role All on all blocks {
             for expert in experts { record own[expert] = expert + sum(other in experts: other); }
             for expert in experts { store twice[expert] = own[experts - 1 - expert]; }
         }",
        &[("ranks", 3), ("experts", 5)],
    );
    let asks = Form::new(
        "shape { ranks: 1..=64, experts: 1..=16, topk: 1..=8, hidden: 64..=128 }
         size tokens in 0..=99;
         input x: bf16[tokens, hidden], ids: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts;
         output goes: bf16[tokens, ranks, hidden];
         role Send on all blocks, warps shared by token {
             for t in tokens { for peer in ranks where routed(ids[t], peer) { store goes[t, peer] = x[t]; } }
         }",
        &[("ranks", 3), ("experts", 6), ("topk", 2), ("hidden", 64)],
    );
    let seen = |rules: RuleSet| {
        let send = function(&pass, "Send", rules);
        let sum = function(&sum, "Sum", rules);
        [
            (RoleRule::Staged, send.contains("mover.row(")),
            (RoleRule::Claims, sum.contains("ep::Units<")),
            (RoleRule::Wide, sum.contains("ep::for_wide<")),
            (RoleRule::Copies, function(&pass, "Take", rules).contains("ep::copy_row<float")),
            (RoleRule::Sums, function(&count, "Count", rules).contains("ep::sum_of_lanes(")),
            (RoleRule::Cut, function(&team, "All", rules).contains("ep::meet<")),
            (RoleRule::Looks, function(&asks, "Send", rules).contains("ep::ranks_of<")),
            (RoleRule::Apart, function(&offer, "Offer", rules).contains("% Cfg::kRanks")),
        ]
    };
    for rule in RoleRule::ALL {
        for (known, is_used) in seen(RuleSet::Only(rule)) {
            assert_eq!(is_used, known == rule, "{known:?} with {rule:?} alone");
        }
        for (known, is_used) in seen(RuleSet::Without(rule)) {
            assert_eq!(is_used, known != rule, "{known:?} without {rule:?}");
        }
    }
    insta::assert_snapshot!(function(&sum, "Sum", RuleSet::All));
}

/// A row that goes to several ranks is read by one statement, ahead of what is written for each of them.
#[test]
fn a_row_is_read_once_for_all_ranks() {
    let entry = AnyPipeline::of::<PackedDispatch>();
    let ir = entry.ir();
    for (payload, reads) in [("bf16", "ep::copy_row<ep::bf16, "), ("fp8", "ep::cast_row<float>(")] {
        let mut config = Config::new(&ir, Arch::Sm90a);
        for (name, value) in [
            ("via", "slots"),
            ("ranks", "16"),
            ("nodes", "2"),
            ("hidden", "256"),
            ("topk", "2"),
            ("experts", "32"),
            ("max_tokens", "8"),
            ("payload", payload),
        ] {
            config.set(&ir, name, value).expect("the shape is legal");
        }
        let cast = function_in(&entry.emit(&config).expect("it is emitted").cuda, "Cast");
        let (_, sends) =
            cast.split_once("while (rows.reserve_wanted(").expect("ranks are served together");
        let (all, each) = sends.split_once("rows.next()").expect("each has fields of its own");
        let count = |part: &str| part.matches(reads).count();
        assert_eq!([count(&cast), count(all), count(each)], [1, 1, 0], "{cast}");
    }
}
