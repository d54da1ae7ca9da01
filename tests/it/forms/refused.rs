//! Forms that rules do not know: each is composed, or refused at its statement, channel or role.

use super::run::accepted;

/// A role of one team, or of what `share` says, with `body`, beside the declarations `more`.
fn role(share: &str, more: &str, body: &str) -> String {
    format!(
        "shape {{ ranks: 1..=8, experts: 1..=8, topk: 1..=4, stripes: 1..=8 }}
        size tokens;
        arg {{ many: i32 = 2 in 1..=4 }}
        input
            a: i32[ranks], f: f32[ranks], b: bf16[ranks], w: i64[ranks], on: bool[tokens],
            cube: i32[ranks, experts, topk], ids: i64[tokens, topk], narrow: i32[tokens, topk],
            perm: i32[tokens], several: up to 2 i32[ranks], maybe: optional i32[ranks],
            expert_begin: i32[ranks + 1], bits: bits[8][ranks];
        {more}
        role Work on all blocks{share} {{ {body} }}"
    )
}

fn team(more: &str, body: &str) -> String {
    role("", more, body)
}

fn tokens(more: &str, body: &str) -> String {
    role(", warps shared by stripe", more, &format!("for token in stripe {{ {body} }}"))
}

/// A role of one team on all blocks, and one with the body `rest` on `blocks`.
fn beside(more: &str, blocks: &str, body: &str, rest: &str) -> String {
    let last = format!("{more} output p: i32[tokens]; role Rest on {blocks} {{ {rest} }}");
    team(&last, body)
}

/// A ring whose two roles have been edited.
fn ring(edits: &[(&str, &str)]) -> String {
    edited(
        "shape { ranks: 1..=8, hidden: 16..=64 step 16, topk: 1..=4, stripes: 1..=8 }
        size tokens;
        size received = first[me];
        input
            x: bf16[tokens, hidden], to: bool[tokens, ranks], first: i32[ranks], count: i32[stripes, ranks],
            ids: i64[tokens, topk], expert_begin: i32[ranks + 1];
        output out: bf16[received, hidden];
        table head: i32[tokens, ranks], srcs: i32[received];
        message Token { row x: bf16[hidden], src: i32, more: i32[topk] }
        channel ring: ring<Token> over nvlink from Send to Recv per all {
            depth: 16, chunk: 4, header: [first, count],
        };
        role Send[peer] on even blocks {
            announce ring[peer] { first: first[peer], count: count[stripe, peer] };
            for token in stripe where to[token, peer] {
                push ring[peer] { x: x[token], src: token, more: ids[token] };
                record head[token, peer] = ring[peer].position;
            }
        }
        role Recv[peer] on odd blocks {
            for message in ring[peer] at first[peer] + ring[peer].first {
                store out[message.row] = message.x;
                record srcs[message.row] = message.src;
            }
        }",
        edits,
    )
}

fn direct(edits: &[(&str, &str)]) -> String {
    edited(
        "shape { ranks: 1..=8, hidden: 16..=64 step 16, stripes: 1..=8 }
        size tokens;
        size received = first[ranks, me];
        input
            x: bf16[tokens, hidden], to: bool[tokens, ranks], first: i32[ranks + 1, ranks],
            before: i32[ranks, stripes];
        output out: bf16[received, hidden] in window;
        table srcs: i32[received];
        message Token { row x: bf16[hidden], src: i32 }
        channel rows: direct<Token> over nvlink from Send to Recv per all;
        role Send on all blocks, 4 warps, warps shared by token {
            for token in stripe {
                for peer in ranks where to[token, peer] {
                    push rows[peer] at first[me, peer] + before[peer, stripe] { x: x[token], src: token };
                }
            }
        }
        role Recv on all blocks, 4 warps, warps shared by (source, stripe) {
            for message in rows[source] {
                store out[message.row] = message.x;
                record srcs[message.row] = message.src;
            }
        }",
        edits,
    )
}

fn slots(edits: &[(&str, &str)]) -> String {
    edited(
        "shape { ranks: 1..=8 }
        input n: i32[ranks, 2];
        table heard: i32[ranks];
        message Words { n: i32[ranks, 2] }
        channel words: slots<Words> over nvlink from Talk to Talk per all { slot: [source] };
        role Talk on block 0 {
            for peer in ranks { push words[peer] { n: n }; }
            await words;
            for s in ranks { record heard[s] = 1; }
        }",
        edits,
    )
}

fn pull(edits: &[(&str, &str)]) -> String {
    edited(
        "shape { ranks: 1..=8, hidden: 16..=64 step 16, topk: 1..=4 }
        size tokens;
        size rows;
        input
            x: bf16[rows, hidden] in window, w: f32[rows, topk] in window, v: f32[rows, topk] in window,
            at: i32[tokens, ranks], b: bf16[tokens, hidden], c: bf16[hidden];
        output sums: bf16[tokens, hidden], weights: f32[tokens, topk];
        message Part { row x: bf16[hidden], w: f32[topk] }
        channel parts: pull<Part> over nvlink from Offer to Sum per all;
        role Offer on block 0, 1 warps { push parts { x: x, w: w }; }
        role Sum on all blocks, 4 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at at[token, peer] across peer in ranks {
                store sums[token] = sum(part.x);
                store weights[token] = sum(part.w);
            }
        }",
        edits,
    )
}

fn placed(edits: &[(&str, &str)]) -> String {
    edited(
        "shape { hidden: 16..=64 step 16, experts: 1..=8, stripes: 1..=8, topk: 1..=4 }
        size rows;
        size places;
        input x: bf16[rows, hidden], ids: i64[rows, topk], first: i32[experts, stripes];
        output out: bf16[places, hidden];
        table src: i32[places];
        role Move on all blocks, 4 warps, warps shared by stripe {
            for row in stripe {
                for e in experts at first[e, stripe] where listed(ids[row], e) {
                    store out[e.position] = x[row];
                    record src[e.position] = row;
                }
            }
        }",
        edits,
    )
}

fn edited(source: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(source.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "no `{from}` in {text}");
        text.replace(from, to)
    })
}

/// Loops, values and places of one team.
fn of_teams() -> Vec<String> {
    let out = "output o: i32[ranks];";
    vec![
        team(out, "store o[0] = 1; let first = a[0];"),
        team(out, "for e in narrow[0] { store o[e] = 1; }"),
        team(
            "inout n: i32[ranks]; output o: i32[ranks];",
            "for r in ranks { count n[r]; store o[r] = n[r]; }",
        ),
        team(
            "variant payload { Fp8 { x: e4m3, scale: f32 block 8 } } input y: payload[tokens, experts]; output o: f32[tokens];",
            "for t in tokens { store o[t] = y.scale[t, 0]; }",
        ),
        team("output o: i32[ranks, experts, topk];", "for r in ranks { store o[r] = cube[r]; }"),
        team(
            "output o: i32[ranks, topk];",
            "for r in ranks { let row = cube[r, 0]; store o[r] = row; }",
        ),
        team("output o: bf16[ranks];", "for r in ranks { store o[r] = b[r] + b[0]; }"),
        team("output o: bf16[ranks];", "for r in ranks { store o[r] = f[r] as bf16; }"),
        team("output o: i64[ranks];", "for r in ranks { store o[r] = max(w[r], 3); }"),
        team("output o: bool[ranks];", "for r in ranks { store o[r] = any(bits[r]); }"),
        team(
            "output o: bool[tokens, ranks];",
            "for t in tokens { for r in ranks { store o[t, r] = routed(ids[t], r); } }",
        ),
        team(out, "for r in ranks { store o[r] = several[r]; }"),
        team(out, "for r in ranks where maybe[r] > 0 { store o[r] = 1; }"),
        team("output o: f32[ranks];", "store o[i] = prefix_sum(i in ranks: f[i]);"),
        team(out, "store o[i] = prefix_sum(i in 1..ranks: a[i]);"),
        team("output o: i32[ranks + 2];", "store o[i] = prefix_sum(i in ranks: a[i]);"),
        team("output o: i32[ranks + 1];", "store o[i + 1] = prefix_sum(i in ranks: a[i]);"),
        team(
            "output o: i32[ranks, ranks];",
            "for r in ranks where a[r] > 0 { store o[r, i] = prefix_sum(i in ranks: a[i]); }",
        ),
        team("inout o: i32[1];", "for r in ranks { add o[0] = a[r]; }"),
        team(out, "for r in ranks { add o[r] = a[r]; }"),
        team("output o: f32[ranks] to host;", "for r in ranks { store o[r] = f[r]; }"),
        team(
            "table t: i32[ranks]; output o: i32[ranks];",
            "for r in ranks { record t[r] = r; } for r in ranks { store o[r] = t[ranks - 1 - r]; }",
        ),
        role(", many warps", out, "for r in ranks { store o[r] = r; }"),
        role(
            ", warps shared by (expert, rank)",
            "output o: i32[experts];",
            "store o[expert] = rank;",
        ),
        role(", warps shared by stripe", "table t: i32[stripes];", "record t[stripe] = 1;"),
        beside(out, "last block", "for r in ranks { store o[r] = r; }", "store p[0] = 1;"),
        beside(out, "last block", "for r in ranks { count o[r]; }", "count p[0];"),
        beside(
            out,
            "last block, warps shared by token",
            "for r in ranks { count o[r]; }",
            "for token in stripe { store p[token] = 1; }",
        ),
        edited(
            &team(out, "for r in ranks { store o[r] = r; }"),
            &[
                ("on all blocks", "on other blocks"),
                (
                    "role Work",
                    "output p: i32[ranks]; role Named on block 3 { for r in ranks { store p[r] = r; } } role Work",
                ),
            ],
        ),
    ]
}

/// Words that count with what is not declared.
fn of_undeclared() -> Vec<String> {
    let out = "output o: i32[ranks];";
    vec![
        edited(&team(out, "for r in ranks { store o[r] = owner(ids[0, 0]); }"), &[("expert_begin", "begins")]),
        "shape { n: 1..=8 } output o: i32[n]; role Work on all blocks { for r in others { store o[r] = 1; } }".to_string(),
        "shape { n: 1..=8 } input expert_begin: i32[n + 1]; output o: i32[n]; \
            role Work on all blocks { for r in n { store o[r] = owner(r); } }"
            .to_string(),
        team(out, "for r in ranks { store o[r] = node(r); }"),
        team(out, "for r in ranks { store o[r] = rank_at(r, 0); }"),
        team(&format!("{out} input e: i32[experts];"), "for r in ranks { store o[r] = sum(own in owned(e, r): own); }"),
    ]
}

/// Names that meet in the text.
fn of_names() -> Vec<String> {
    let out = "output o: i32[ranks];";
    vec![
        edited(&team(out, "for r in ranks { store o[r] = r; }"), &[("cube:", "tokens_from:")]),
        edited(
            &team(out, "for r in ranks { store o[r] = r; }"),
            &[("experts: 1..=8", "threads: 1..=8, experts: 1..=8")],
        ),
        edited(&team(out, "for r in ranks { store o[r] = r; }"), &[("role Work", "role Call")]),
        edited(
            &beside(out, "last block", "for r in ranks { count o[r]; }", "store p[0] = 1;"),
            &[("role Rest", "role Last")],
        ),
        tokens("output count: i32[ranks];", "count count[0];"),
        ring(&[("more", "depth"), ("Token", "Ring")]),
    ]
}

/// Loops over tokens.
fn of_tokens() -> Vec<String> {
    let routed = "for r in ranks { record t[token, r] = routed(ids[token], r); }";
    vec![
        edited(
            &tokens("table t: bool[tokens, ranks];", routed),
            &[("ranks: 1..=8", "ranks: 1..=128")],
        ),
        tokens("output o: u8[ranks];", "count o[0];"),
        tokens("inout o: i64[tokens];", "count o[token];"),
        tokens(
            "output o: i32[experts];",
            "for e in ids[token] { count o[e]; } for e in ids[perm[token]] { count o[e]; }",
        ),
        tokens("output o: i32[experts];", "let p = perm[token]; for e in ids[p] { count o[e]; }"),
        tokens(
            "output o: i32[experts], p: i32[ranks];",
            "for e in ids[token] { count o[e]; count p[e]; }",
        ),
        tokens(
            "table t: bool[tokens, ranks];",
            "for r in ranks { record t[token, r] = routed(narrow[token], r); }",
        ),
        "shape { ranks: 1..=8, stripes: 1..=8 } output o: i32[ranks];
        role Work on all blocks, warps shared by stripe { for token in stripe { count o[0]; } }"
            .to_string(),
        slots(&[
            ("shape { ranks: 1..=8 }", "shape { ranks: 1..=8, stripes: 1..=8 } size tokens;"),
            ("on block 0 {", "on block 0, warps shared by stripe {"),
            (
                "for s in ranks { record heard[s] = 1; }",
                "for t in stripe { count heard[words[0].n[1]]; }",
            ),
            ("n: i32[ranks, 2]", "n: i32[ranks]"),
        ]),
    ]
}

/// Rings.
fn of_rings() -> Vec<String> {
    let ring_body = "record srcs[message.row] = message.src;";
    let head = "record head[token, peer] = ring[peer].position;";
    vec![
        ring(&[("per all", "per others"), ("[peer] on", "[peer in others] on")]),
        ring(&[("Send[peer] on", "Send[peer in others] on")]),
        ring(&[
            ("header: [first, count]", "header: [count]"),
            ("first: first[peer], count: count", "count: count"),
            (" + ring[peer].first", ""),
        ]),
        ring(&[("to[token, peer]", "routed(ids[token], peer)")]),
        ring(&[("for token in stripe where", "for token in 0..tokens where")]),
        ring(&[
            (head, "record head[token, peer] = ring[peer].position; count hits[0];"),
            ("table head", "output hits: i32[1]; table head"),
        ]),
        ring(&[
            (head, "push ring[peer] { x: x[token], src: 0, more: ids[token] };"),
            ("table head: i32[tokens, ranks], srcs", "table srcs"),
        ]),
        ring(&[(head, "record head[token, peer] = ring[peer].position + 1;")]),
        ring(&[("x: x[token]", "x: x[token] * 2")]),
        ring(&[
            ("row x: bf16[hidden], ", ""),
            ("x: x[token], ", ""),
            ("store out[message.row] = message.x;", ""),
            ("output out: bf16[received, hidden];", ""),
        ]),
        ring(&[(
            "for message in ring[peer] at first[peer] + ring[peer].first",
            "for message in ring[peer] at first[peer] + ring[peer].first where message.src > 0",
        )]),
        ring(&[(ring_body, "record srcs[message.row] = message.source;")]),
        ring(&[(ring_body, "record srcs[message.row] = message.more[0];")]),
        ring(&[(ring_body, "record srcs[message.src] = message.src;")]),
        ring(&[("store out[message.row] = message.x;", "store out[message.row] = message.x * 2;")]),
        ring(&[
            (
                ring_body,
                "record srcs[message.row] = message.src; store out2[message.row] = message.x;",
            ),
            ("output out", "output out2: bf16[received, hidden], out"),
        ]),
        ring(&[
            (
                "row x: bf16[hidden], src: i32, more: i32[topk]",
                "row x: bf16[hidden], src: i32, more: i32[tokens]",
            ),
            ("ids: i64[tokens, topk]", "ids: i64[tokens, tokens]"),
        ]),
        ring(&[("channel ring", "channel sent"), ("ring[peer]", "sent[peer]")]),
    ]
}

/// Direct channels.
fn of_direct_channels() -> Vec<String> {
    let ring_body = "record srcs[message.row] = message.src;";
    vec![
        direct(&[(
            "role Send on all blocks, 4 warps, warps shared by token",
            "role Send on all blocks, 4 warps, warps shared by stripe",
        )]),
        direct(&[("for peer in ranks", "for peer in others")]),
        direct(&[("before[peer, stripe] {", "before[peer, stripe] + token {")]),
        direct(&[("src: token };", "src: peer };")]),
        direct(&[(ring_body, "record srcs[message.row] = source;")]),
        direct(&[
            (
                "role Send",
                "message More { row x: bf16[hidden] } channel more: direct<More> over nvlink from Send to Take per all; output out2: bf16[received, hidden] in window; role Take on all blocks, 4 warps, warps shared by (source, stripe) { for message in more[source] { store out2[message.row] = message.x; } } role Send",
            ),
            (
                "src: token };\n                }\n            }",
                "src: token };\n                }\n            }\n            for token in stripe { for peer in ranks { push more[peer] at 0 { x: x[token] }; } }",
            ),
        ]),
        direct(&[("(source, stripe)", "(stripe, source)")]),
    ]
}

/// Slots.
fn of_slots() -> Vec<String> {
    vec![
        slots(&[("peer in ranks", "peer in others")]),
        slots(&[("record heard[s] = 1", "record heard[s] = words[s].n[0, 1]")]),
        slots(&[("await words;", "await words; for peer in ranks { push words[peer] { n: n }; }")]),
    ]
}

/// Gathers.
fn of_gathers() -> Vec<String> {
    let gathered = "store sums[token] = sum(part.x);";
    vec![
        pull(&[("peer in ranks {", "peer in others {")]),
        pull(&[(gathered, "store sums[token] = sum(part.x) + b[token] + c;")]),
        pull(&[(gathered, "store sums[token] = sum(part.x) * 2;")]),
        pull(&[(gathered, ""), ("sums: bf16[tokens, hidden], ", "")]),
        pull(&[
            ("x: bf16[rows, hidden] in window", "x: f32[rows, hidden] in window"),
            ("row x: bf16", "row x: f32"),
            ("sums: bf16", "sums: f32"),
        ]),
        pull(&[("w: f32[topk] }", "w: f32[topk], v: f32[topk] }"), ("w: w };", "w: w, v: v };")]),
        pull(&[("sums: bf16[tokens, hidden]", "sums: bf16[tokens, hidden] to host")]),
    ]
}

/// Rows in order of an index.
fn of_places() -> Vec<String> {
    vec![
        placed(&[("= x[row];", "= x[e];")]),
        placed(&[
            (
                "record src[e.position] = row;",
                "record src[e.position] = row; record has[e.position] = listed(ids[row], e);",
            ),
            ("table src", "table has: bool[places], src"),
        ]),
        placed(&[("for row in stripe {", "for row in stripe where ids[row, 0] > 0 {")]),
    ]
}

#[test]
fn forms_are_emitted_or_say_why() {
    let cases = [
        of_teams(),
        of_undeclared(),
        of_names(),
        of_tokens(),
        of_rings(),
        of_direct_channels(),
        of_slots(),
        of_gathers(),
        of_places(),
    ];
    let said: Vec<String> = cases.concat().iter().map(|source| verdict(source)).collect();
    insta::assert_snapshot!(said.join("\n"));
}

/// A record of the position of a push that is refused has no reason of its own.
#[test]
fn what_follows_from_a_refusal_is_not_said() {
    let moved = direct(&[
        (
            "before[peer, stripe] { x: x[token], src: token };",
            "before[peer, stripe] + token { x: x[token], src: token }; record at[token, peer] = rows[peer].position;",
        ),
        ("table srcs", "table at: i32[tokens, ranks], srcs"),
    ]);
    let said = accepted(&moved).expect_err("the position depends on the token");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert!(said.contains("`stripe.first` is the number of the stripe's first row"), "{said}");
}

/// What is said first, and of which words.
fn verdict(source: &str) -> String {
    let Err(errors) = accepted(source) else { return "is emitted".to_string() };
    let lines: Vec<&str> = errors.lines().collect();
    let said = lines[0].trim_start_matches("error: `Form` cannot be emitted: ");
    let at = lines.iter().position(|line| line.contains(" ^")).expect("it points at something");
    let (from, to) = (lines[at].find('^'), lines[at].rfind('^'));
    let pointed = from.zip(to).and_then(|(from, to)| lines[at - 1].get(from..=to));
    format!("{said}\n    {}", pointed.unwrap_or_default())
}
