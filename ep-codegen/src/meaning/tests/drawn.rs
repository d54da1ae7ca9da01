//! Inputs drawn from a declaration are legal, and the same for the same seed.

use super::*;
use crate::meaning::{Drawing, Drawn, Undrawn};

fn lowered(source: &str) -> Vec<Pipeline> {
    let (file, mut errors) = syntax::parse(source.parse().expect("its brackets are balanced"));
    errors.extend(check::check(&file));
    assert!(errors.is_empty(), "{}", errors.to_text(source));
    file.pipelines.iter().map(|pipeline| lower::lower(&file, pipeline)).collect()
}

const CHAIN: &str = "
    pipeline First {
        shape { ranks: 1..=8, topk: 1..=4, experts: 1..=16, stripes: 1..=4, let most = ceil(experts, ranks) }
        variant how { Without, With }
        size tokens in 1..=topk * 2;
        input ids: i64[tokens, topk] in -1..experts distinct,
              expert_begin: i32[ranks + 1] in 0..=experts ascending by at most most,
              maybe: optional f32[tokens];
        output twice: i32[tokens];
        when how is With {
            table goes: bool[tokens, ranks];
        }
        role R on all blocks, one block a token {
            for t in tokens {
                store twice[t] = sum(k in topk: ids[t, k]) * 2;
                when how is With { for r in ranks { record goes[t, r] = routed(ids[t], r); } }
            }
        }
    }
    pipeline Second {
        shape { ranks: 1..=8, topk: 1..=4, experts: 1..=16 }
        size tokens;
        uses handle First;
        input ids: i64[tokens, topk] in -1..experts, twice: i32[tokens], row: i32[tokens, ranks] in 0..tokens;
        output again: i32[tokens];
        role R on all blocks, one block a token {
            for t in tokens { store again[t] = twice[t] + sum(k in topk: ids[t, k]) + sum(r in ranks: row[t, r]) * 0; }
            for t in tokens where goes[t, 0] { let there = 1; }
        }
    }";

fn draw(seed: u64) -> Drawn {
    let all = lowered(CHAIN);
    let known: Vec<&Pipeline> = all.iter().collect();
    let functions = BTreeMap::new();
    let mut drawing = Drawing::new(seed, &known, &functions);
    drawing.draw(&all[1]).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_chain_shares_what_has_one_name() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let drawn = draw(seed);
        assert_eq!(drawn.ranks, draw(seed).ranks);
        let outcome = drawn.run(&BTreeMap::new()).unwrap_or_else(|wrong| panic!("{wrong}"));
        for (rank, given) in drawn.ranks.iter().enumerate() {
            let ids = &given.tensors["ids"][0];
            let (topk, again) = (ids.extents[1], ints(&outcome, rank, "again"));
            for (token, again) in again.iter().enumerate() {
                let row = (0..topk).filter_map(|k| match ids.get(token * topk + k) {
                    Some(Scalar::Int(id)) => Some(id),
                    _ => None,
                });
                // What the first call left is the input of the second.
                assert_eq!(*again, 3 * row.sum::<i64>());
            }
            seen.insert(given.sizes["tokens"]);
        }
    }
    assert!(seen.len() > 4 && !seen.contains(&0), "{seen:?}");
}

#[test]
fn full_sizes_have_the_most_rows() {
    let all = lowered(
        "pipeline P {
            shape { ranks: 1..=8, most: 1..=40 }
            size free; size few in 3..=5; size bound in 0..=most;
            output o: i32[1];
            role R on block 0 { store o[0] = free + few + bound; }
        }",
    );
    let functions = BTreeMap::new();
    let drawing = Drawing::new(1, &[], &functions).number("ranks", 2).number("most", 30);
    let drawn = drawing.rows(20).full().draw(&all[0]).unwrap_or_else(|error| panic!("{error}"));
    for rank in &drawn.ranks {
        assert_eq!(["free", "few", "bound"].map(|size| rank.sizes[size]), [20, 5, 20]);
    }
}

#[test]
fn what_cannot_be_drawn_is_said() {
    let all = lowered(CHAIN);
    let functions = BTreeMap::new();
    let alone = Drawing::new(1, &[], &functions).draw(&all[1]).map(drop);
    let words = alone.map_err(|error| error.to_string());
    assert_eq!(words, Err("Second: no arm of `First` leaves the tables of its handle".to_string()));
    let few = lowered(
        "pipeline P { shape { n: 1..=2 } input a: i32[3] in 0..n distinct; output o: i32[1];
           role R on block 0 { store o[0] = a[0]; } }",
    );
    let said = Drawing::new(1, &[], &functions).draw(&few[0]).map(drop);
    assert!(matches!(said, Err(Undrawn::Values { .. })));
}

#[test]
fn what_is_given_is_in_its_range() {
    let given = |list: &[i64], begin: &[i32]| {
        let sets = [("ranks", "2"), ("topk", "3"), ("experts", "4")];
        let items = "shape { ranks: 1..=8, topk: 1..=4, experts: 1..=16 } size tokens in 0..2;
             input ids: i64[tokens, topk] in -1..experts distinct,
                   expert_begin: i32[ranks + 1] in 0..=experts ascending by at most 3;
             output o: i32[1];
             role R on block 0 { store o[0] = sum(t in tokens: ids[t, 0]); }";
        let (list, begin) = (list.to_vec(), begin.to_vec());
        Case::new(items, &sets, 1)
            .size("tokens", &|_| list.len() as i64 / 3)
            .give("ids", &|_| i64s(&[list.len() / 3, 3], &list))
            .give("expert_begin", &|_| i32s(&[3], &begin))
            .wrong()
    };
    assert_eq!(given(&[-1, 3, -1], &[0, 2, 4]), "");
    assert_eq!(given(&[0, 4, 1], &[0, 2, 4]), "ids[0, 1] is 4, declared in -1..experts distinct");
    assert_eq!(given(&[0, 1, 0], &[0, 2, 4]), "ids[0, 2] is 0, declared in -1..experts distinct");
    let ascending = "declared in 0..experts + 1 ascending by at most 3";
    for (begin, words) in [
        ([1, 2, 4], "expert_begin[0] is 1"),
        ([0, 2, 3], "expert_begin[2] is 3"),
        ([0, 4, 4], "expert_begin[1] is 4"),
        ([0, 3, 2], "expert_begin[2] is 2"),
    ] {
        assert_eq!(given(&[0, 1, 2], &begin), format!("{words}, {ascending}"));
    }
    assert_eq!(given(&[0; 9], &[0, 2, 4]), "`tokens` is 3, not 0..2");
}

/// What a drawn call of some seed says.
fn said_of(items: &str) -> String {
    let all = lowered(&format!("pipeline P {{ shape {{ ranks: 1..=8, most: 1..=9 }} {items} }}"));
    let functions = BTreeMap::new();
    let said = (0..20).find_map(|seed| {
        let mut drawing = Drawing::new(seed, &[], &functions).number("ranks", 3);
        drawing.draw(&all[0]).ok()?.run(&functions).err()
    });
    said.map(|wrong| wrong.to_string()).unwrap_or_default()
}

#[test]
fn an_index_without_a_range_is_named_with_the_range_that_it_needs() {
    let pulled = |range: &str| {
        said_of(&format!(
            "size tokens in 1..=most; size rows in 1..=most;
             input x: f32[rows, 16] in window, row_of: i32[tokens, ranks]{range};
             output y: f32[tokens, 16];
             message Part {{ row x: f32[16] }}
             channel parts: pull<Part> over nvlink from Offer to Sum per all;
             role Offer on block 0, 1 warps {{ push parts {{ x: x }}; }}
             role Sum on all blocks, 2 warps, warps shared by token {{
                 for t in tokens gather part from parts[peer] at row_of[t, peer] across peer in ranks {{
                     store y[t] = sum(part.x);
                 }}
             }}"
        ))
    };
    let said = pulled("");
    let declared = "declare `row_of: i32[tokens, ranks] in -1..rows`";
    assert!(said.contains("index 0 of `parts.x` is") && said.ends_with(declared), "{said}");
    assert_eq!(pulled(" in -1..rows"), "");
    let of = |input: &str, body: &str| {
        said_of(&format!(
            "size tokens in 1..=most; input {input}; inout o: i32[tokens, most], p: i32[ranks];
             role R on block 0 {{ {body} }}"
        ))
    };
    for (input, body, declared) in [
        (
            "a: i32[ranks]",
            "for t in tokens { let m = a[me]; store o[t, m] = 1; }",
            "`a: i32[ranks] in 0..most`",
        ),
        (
            "a: i64[tokens, 2]",
            "for t in tokens { for e in a[t] { count p[e]; } }",
            "`a: i64[tokens, 2] in -1..ranks`",
        ),
        ("a: i32[2]", "for i in a[0]..a[1] { add p[i] = 1; }", "`a: i32[2] in 0..=ranks`"),
        (
            "a: i32[1], b: i32[most]",
            "for t in tokens { store o[t, 0] = b[a[0]]; }",
            "`a: i32[1] in 0..most`",
        ),
    ] {
        let said = of(input, body);
        assert!(said.ends_with(&format!("declare {declared}")), "{said}");
    }
}

#[test]
fn args_are_drawn_between_their_ends() {
    let all = lowered(
        "pipeline P {
            shape { ranks: 1..=8 }
            arg { open: f32 = 0.1 in 0..=1, scale: f32 = 1 in 0.25..=1024.0, n: i32 = 1 in 1..=3 }
            output o: f32[1];
            role R on block 0 { store o[0] = open * scale * n; }
        }",
    );
    let functions = BTreeMap::new();
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let call = Drawing::new(seed, &[], &functions)
            .draw(&all[0])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(call.run(&functions).is_ok());
        for (name, value) in &call.args {
            drawn.insert(format!("{name} {value:?}"));
        }
    }
    let has = |value: &str| drawn.contains(value);
    assert!(has("open Real(0.0)") && has("open Real(1.0)") && has("open Real(0.5)"), "{drawn:?}");
    assert!(has("scale Real(0.25)") && has("n Int(3)"), "{drawn:?}");
}
