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
