//! Texts that compiled once, and were wrong.

use super::meaning::held;
use super::run::{Call, Form, accepted};
use crate::front_end::SOURCES;

fn agrees(source: &str) {
    let ir = accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    for seed in 0..3 {
        let numbers = [("ranks", 1 + seed as i64)];
        let held = held(std::slice::from_ref(&ir), &numbers, seed);
        held.unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

/// A receiver waits for every sender to close its end, also for one that never sends to it.
#[test]
fn a_direct_sender_closes_its_end_towards_every_rank() {
    let sent = |loops: &str, peer: &str| {
        agrees(&format!(
            "shape {{ ranks: 1..=8, hidden: 16..=64 step 16, stripes: 2..=2 }}
             size tokens in 1..=9;
             input x: bf16[tokens, hidden], on: bool[tokens, ranks];
             output out: bf16[ranks * 16, hidden] in window;
             message Token {{ row x: bf16[hidden] }}
             channel rows: direct<Token> over nvlink from Send to Recv per all;
             role Send on all blocks, 2 warps, warps shared by stripe {{
                 for t in stripe {{ {loops} {{ push rows[{peer}] at me * 16 + stripe * 8 {{ x: x[t] }}; }} }}
             }}
             role Recv on all blocks, 2 warps, warps shared by (source, stripe) {{
                 for message in rows[source] {{ store out[message.row] = message.x; }}
             }}"
        ));
    };
    sent("for peer in others where on[t, peer]", "peer");
    sent("for once in 0..1 where on[t, me]", "me");
}

/// With two sizes, each loop has its own.
#[test]
fn a_loop_runs_over_the_size_that_it_names() {
    agrees(
        "shape { ranks: 1..=8, stripes: 1..=4, hidden: 16..=32 step 16 }
         size rows in 1..=9;
         size tokens in 0..=5;
         input x: bf16[rows, hidden] in window, at: i32[tokens, ranks] in -1..rows;
         output o: bf16[tokens, hidden], each: i32[tokens], all: i32[rows];
         message Part { row x: bf16[hidden] }
         channel parts: pull<Part> over nvlink from Offer to Sum per all;
         role Offer on block 0, 1 warps { push parts { x: x }; }
         role Sum on all blocks, 2 warps, warps shared by token {
             for t in tokens gather part from parts[p] at at[t, p] across p in ranks { store o[t] = sum(part.x); }
         }
         role Each on all blocks, 2 warps { for t in tokens { store each[t] = t; } for r in rows { store all[r] = r; } }",
    );
}

/// Products, sums and prefixes of narrow numbers, and experts that only look like known ones.
#[test]
fn whole_numbers_have_64_bits() {
    let form = Form::new(
        "shape { ranks: 1..=8, topk: 1..=4, experts: 1..=8, stripes: 1..=4 }
         size tokens;
         input a: i32[tokens], b: i32[tokens], ids: i64[tokens, topk], expert_begin: i32[ranks + 1];
         output
             product: i64[tokens], total: i64[1], before: i64[tokens], known: i32[tokens], here: i32[tokens],
             goes: bool[tokens, ranks], place: i32[tokens], hits: i32[experts];
         role Work on all blocks, 2 warps, warps shared by stripe {
             for t in stripe {
                 store product[t] = a[t] * b[t];
                 store known[t] = listed(ids[t], 1) as i32;
                 store here[t] = owner(ids[t, 0]);
                 store place[t] = local(ids[t, 0], me);
                 for peer in ranks { store goes[t, peer] = routed(ids[t], peer); }
             }
         }
         role Count on all blocks, 1 warps, warps shared by stripe {
             for t in stripe { for e in ids[t] { count hits[e]; } }
         }
         role Sum on all blocks, 1 warps {
             store total[0] = sum(t in tokens: a[t] * b[t]);
             for t in tokens { store before[t] = sum(s in 0..t: a[s] * b[s]); }
         }
         ",
        &[("ranks", 1), ("topk", 1), ("experts", 4), ("stripes", 2)],
    );
    let (a, wide) = (2e9, 4e18);
    let call = |_: usize| {
        Call::new()
            .number("tokens", 2)
            .give("a", 1, vec![a, 16.0])
            .give("b", 1, vec![a, -32.0])
            // One is 2^32 + 1, which the shape has no expert for.
            .give("ids", 1, vec![4_294_967_297.0, 1.0])
            .give("expert_begin", 1, vec![0.0, 4.0])
            .want("product", 1, vec![wide, -512.0])
            .want("total", 1, vec![wide - 512.0])
            .want("before", 1, vec![0.0, wide])
            .want("known", 1, vec![0.0, 1.0])
            .want("here", 1, vec![-1.0, 0.0])
            .want("place", 1, vec![-1.0, 1.0])
            .want("goes", 1, vec![0.0, 1.0])
            .want("hits", 1, vec![0.0, 1.0, 0.0, 0.0])
    };
    form.check(&call);
}

/// Tensors that come several times are added up as what they are.
#[test]
fn copies_of_whole_numbers_are_added_exactly() {
    agrees(
        "shape { ranks: 1..=8 }
         input n: up to 2 i64[ranks] in 16777217..16777299, x: up to 2 f32[ranks];
         output o: i64[ranks], p: i64[ranks], q: f32[ranks];
         role Work on all blocks, 2 warps {
             for r in ranks { store o[r] = n[r]; store p[r] = r + n[r]; store q[r] = x[r] + x[r]; }
         }",
    );
}

/// Words of the library and of C++ are names of the declaration like any others.
#[test]
fn names_may_be_words_of_the_text() {
    agrees(
        "shape { ranks: 1..=8, topk: 1..=4, experts: 1..=8, stripes: 1..=4 }
         size tokens in 0..=9;
         input topk_idx: i64[tokens, topk] in -1..experts, expert_begin: i32[ranks + 1] in 0..=experts ascending, row: i32[tokens] in 0..5;
         table mine: i32[tokens], goes: bool[tokens, ranks];
         output smem: i32[tokens], team: i64[tokens], slot: i32[tokens], sum: i64[tokens];
         role Work on all blocks, 2 warps, warps shared by stripe {
             for t in stripe {
                 let topk_idx_row = row[t] + 1;
                 let first = topk_idx[t, 0];
                 record mine[t] = topk_idx_row;
                 for peer in ranks { record goes[t, peer] = routed(topk_idx[t], peer); }
                 store smem[t] = topk_idx_row * 2;
                 store team[t] = first;
                 store slot[t] = t;
                 store sum[t] = sum(k in topk: topk_idx[t, k]);
             }
         }",
    );
}

/// Two lines with the same words: what is said stands at the one that is wrong.
#[test]
fn refusals_stand_at_their_statements() {
    let source = "
        shape { ranks: 1..=8, stripes: 1..=4 }
        size tokens;
        output o: i32[ranks] to host, n: i32[ranks];
        role Work on all blocks, 2 warps {
            for r in ranks { store n[r] = 1; }
        }
        role Other on last block, 2 warps {
            for r in ranks { count n[r]; }
        }
        role Adds on all blocks, 2 warps, warps shared by stripe {
            for t in stripe { add o[0] = t; }
        }";
    let said = accepted(source).expect_err("it is refused");
    let lines: Vec<&str> = said.lines().collect();
    let errors = lines.iter().filter(|line| line.starts_with("error")).count();
    assert!(errors >= 2, "{said}");
    let pointed = |word: &str| lines.iter().any(|line| line.contains(word) && line.contains('|'));
    assert!(pointed("role Other") && pointed("add o[0]"), "{said}");
}

/// The body of one of the project's pipelines, with other names for some of its loops and channels.
fn renamed(source: &str, names: &[(&str, &str)]) -> String {
    let begin = source.find("pub pipeline ").expect("it declares one");
    let begin = begin + source[begin..].find('{').expect("it has a body") + 1;
    let end = source.trim_end_matches(['}', '\n', ' ']).len();
    let mut body = source[begin..end].to_string();
    let open = body.matches('{').count() - body.matches('}').count();
    body.push_str(&"}".repeat(open));
    for (from, to) in names {
        // Words of the language stay: `warps shared by token`, `message Token`, `ring<Token>`.
        let keeps = |at: usize| {
            let (before, after) = (&body[..at], &body[at + from.len()..]);
            let in_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            before.ends_with(in_word)
                || before.ends_with("shared by ")
                || after.starts_with(in_word)
                || after.starts_with('<')
                || *from == "message" && after.starts_with(' ') && !after.starts_with(" in ")
        };
        let places = body.match_indices(from).map(|(at, _)| at).filter(|at| !keeps(*at));
        let places: Vec<usize> = places.collect();
        assert!(!places.is_empty(), "no `{from}` in {body}");
        for at in places.into_iter().rev() {
            body.replace_range(at..at + from.len(), to);
        }
    }
    body
}

/// Loops and channels may have the names that the emitted functions give to their own things, and loops may
/// have words of C++.
#[test]
fn users_names_may_be_those_of_the_text() {
    let [layout, dispatch, combine, ..] = SOURCES;
    let dispatch_by_ring = &dispatch.replace("via { Direct, Ring }", "via { Ring, Direct }");
    let combine_by_ring = &combine.replace("via { Pull, Ring }", "via { Ring, Pull }");
    let cases: [(&str, &[(&str, &str)]); 6] = [
        (layout, &[("token", "present"), ("expert", "hits"), ("peer", "goes"), ("dest", "sum")]),
        (
            dispatch,
            &[("token", "base"), ("peer", "goes"), ("rows", "records"), ("message", "mine")],
        ),
        (dispatch, &[("token", "own"), ("peer", "peers"), ("rows", "units"), ("message", "int")]),
        (
            dispatch_by_ring,
            &[("token", "position"), ("peer", "team"), ("ring", "mover"), ("message", "meta")],
        ),
        (combine, &[("token", "turns"), ("peer", "theirs"), ("part", "args"), ("parts", "smem")]),
        (combine_by_ring, &[("token", "register"), ("peer", "requires"), ("part", "new")]),
    ];
    for (source, names) in cases {
        let numbers = [("ranks", 4), ("hidden", 64), ("topk", 2), ("experts", 8), ("stripes", 4)];
        let declared = numbers.iter().filter(|(name, _)| source.contains(&format!("{name}: ")));
        let numbers: Vec<(&str, i64)> = declared.copied().collect();
        Form::new(&renamed(source, names), &numbers).compile();
    }
}

/// So may numbers, fields, channels, counters and roles.
#[test]
fn declared_names_may_be_those_of_the_text() {
    agrees(
        "shape { ranks: 1..=8, threads: 1..=4, hidden: 16..=32 step 16 }
         tune { stripes: 2 in [1, 2] }
         size tokens in 0..=6;
         input x: bf16[tokens, hidden], to: i32[tokens] in 0..ranks;
         output y: bf16[ranks, 6, hidden], n: i32[1];
         table count: i32[ranks], sums: i32[ranks];
         message Smem { row x: bf16[hidden], depth: i32, row_bytes: i32 }
         channel smem: ring<Smem> over nvlink from Call to Args per all { depth: 16, chunk: 1, header: [count] };
         role Call[peer] on even blocks, 2 warps {
             announce smem[peer] { count: sum(token in stripe: (to[token] == peer) as i32) };
             for token in stripe where to[token] == peer {
                 push smem[peer] { x: x[token], depth: token, row_bytes: threads };
             }
         }
         role Args[peer] on odd blocks, 2 warps {
             for message in smem[peer] {
                 store y[peer, message.depth] = message.x;
             }
         }
         role Store on even blocks, 1 warps, warps shared by stripe {
             for token in stripe { count count[to[token]]; count sums[to[token]]; }
         }
         role Last on last block { store n[0] = sum(r in ranks: count[r] + sums[r]) * threads; }",
    );
}
