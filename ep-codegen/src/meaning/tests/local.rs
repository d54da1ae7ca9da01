//! Roles that stay on their rank.

use super::*;

const NONE: i64 = i64::MIN;

#[test]
fn numbers_have_64_bits_and_rows_go_element_by_element() {
    let case = Case::new(
        "shape { n: 1..=8, let more = n + 1 }
         arg { least: i32 = 2 in 0..=9, real: f32 = 1 in 0..=9 }
         input a: i32[n, 3], w: i64[n], f: f32[n];
         output wide: i64[n], twice: i32[n, 3], mixed: f32[n], sums: i32[n], total: i32[more],
                part: i32[n], flag: bool[n];
         role R on all blocks {
             for i in n { store wide[i] = a[i, 0] * w[i]; store twice[i] = a[i] * 2 - a[i, 1]; }
             for i in n { store mixed[i] = f[i] * 2 + least + real; store flag[i] = a[i, 0] > 1 && !(i == 1); }
             store sums[i] = prefix_sum(i in n: a[i, 2]);
             store total[i] = prefix_sum(i in n: a[i, 2]);
             for i in 1..n where i % 2 == 1 { let square = i * i; store part[i] = square; }
         }",
        &[("n", "3")],
        1,
    );
    let mut case = case
        .give("a", &|_| i32s(&[3, 3], &[1, 2, 3, 70000, 5, 6, 7, 8, 9]))
        .give("w", &|_| i64s(&[3], &[5, 1 << 40, -1]))
        .give("f", &|_| f32s(&[3], &[0.5, 1.5, 2.5]));
    case.args.insert("real".into(), Scalar::Real(3.0));
    let outcome = case.outcome();
    assert_eq!(ints(&outcome, 0, "wide"), [5, 70000 << 40, -7]);
    assert_eq!(ints(&outcome, 0, "twice"), [0, 2, 4, 139995, 5, 7, 6, 8, 10]);
    assert_eq!(reals(&outcome, 0, "mixed"), [6.0, 8.0, 10.0]);
    assert_eq!(ints(&outcome, 0, "flag"), [0, 0, 1]);
    assert_eq!(ints(&outcome, 0, "sums"), [0, 3, 9]);
    assert_eq!(ints(&outcome, 0, "total"), [0, 3, 9, 18]);
    assert_eq!(ints(&outcome, 0, "part"), [NONE, 1, NONE]);
}

#[test]
fn helpers_know_where_experts_live() {
    let case = Case::new(
        "shape { nodes: 1..=4, local_ranks: 1..=4, topk: 1..=4, experts: 1..=16, let ranks = nodes * local_ranks }
         size tokens;
         input ids: i64[tokens, topk], expert_begin: i32[ranks + 1], per: i32[experts];
         output goes: bool[tokens, ranks], node_of: bool[tokens, nodes], at: i32[tokens, topk], who: i32[tokens],
                mine: i32[4], few: i32[1], rounded: i32[4], listed_two: bool[tokens], any_at: bool[tokens], other: i32[1];
         table bits_of: bits[local_ranks][tokens, nodes];
         role R on all blocks, one block a token {
             for t in tokens {
                 for r in ranks { store goes[t, r] = routed(ids[t], r); }
                 for n in nodes {
                     store node_of[t, n] = routed_node(ids[t], n);
                     record bits_of[t, n] = routed_bits(ids[t], n);
                 }
                 store at[t] = local(ids[t], me);
                 store who[t] = owner(ids[t, 0]);
                 store listed_two[t] = listed(ids[t], 2);
                 store any_at[t] = any(bits_of[t, node(me)]) && has(bits_of[t, node(me)], local_rank(me));
             }
             store mine = owned(per, me);
             store few[0] = rank_at(node(me), local_rank(me)) - me;
             store rounded[0] = align(5, 4);
             store rounded[1] = ceil(5, 4);
             store rounded[2] = max(2, 3);
             store rounded[3] = min(2, 3);
             store other[0] = sum(peer in others: peer);
         }",
        &[("nodes", "2"), ("local_ranks", "2"), ("topk", "2"), ("experts", "6")],
        4,
    );
    let case = case
        .size("tokens", &|_| 3)
        .give("ids", &|_| i64s(&[3, 2], &[0, 5, -1, 2, 2, (1 << 32) + 2]))
        .give("expert_begin", &|_| i32s(&[5], &[0, 2, 3, 5, 6]))
        .give("per", &|_| i32s(&[6], &[10, 11, 12, 13, 14, 15]));
    let outcome = case.outcome();
    assert_eq!(ints(&outcome, 1, "goes"), [1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0]);
    assert_eq!(ints(&outcome, 1, "node_of"), [1, 1, 1, 0, 1, 0]);
    assert_eq!(ints(&outcome, 1, "at"), [-1, -1, -1, 0, 0, -1]);
    assert_eq!(ints(&outcome, 1, "who"), [0, -1, 1]);
    assert_eq!(ints(&outcome, 2, "mine"), [13, 14, 0, 0]);
    assert_eq!(ints(&outcome, 3, "few"), [0]);
    assert_eq!(ints(&outcome, 0, "rounded"), [8, 2, 3, 2]);
    assert_eq!(ints(&outcome, 0, "listed_two"), [0, 1, 1]);
    assert_eq!(ints(&outcome, 1, "any_at"), [0, 1, 1]);
    assert_eq!(ints(&outcome, 1, "other"), [5]);
    assert_eq!(
        outcome.ranks[3]["bits_of"].tensor.parts[0].data,
        Data::Bits(vec![1, 2, 2, 0, 2, 0])
    );
}

#[test]
fn stripes_count_and_the_last_block_sees_it() {
    let case = Case::new(
        "shape { ranks: 1..=4, stripes: 1..=8 }
         size tokens;
         input to: i32[tokens];
         output hits: i32[ranks];
         table of: i32[stripes, ranks], first: i32[ranks, stripes], place: i32[tokens];
         inout kept: f32[tokens], all: i32[1];
         role Count on all blocks, warps shared by stripe {
             for t in stripe {
                 count hits[to[t]];
                 count of[stripe, to[t]];
                 add kept[t] = t as f32 / 2;
                 count all[0];
             }
         }
         role Last on last block {
             for r in ranks { record first[r, s] = prefix_sum(s in stripes: of[s, r]); }
         }
         role Place on last block, 2 warps {
             for t in tokens { record place[t] = hits_of(to[t]); }
         }
         cuda fn hits_of(n: i32) -> i32 = r\"__device__ ep::i32 hits_of(ep::i32 n) { return n; }\";"
            .replace("role Last on last block {", "role Last on last block, 2 warps {")
            .as_str(),
        &[("ranks", "2"), ("stripes", "3")],
        1,
    );
    let mut case = case
        .size("tokens", &|_| 5)
        .give("to", &|_| i32s(&[5], &[1, 0, 1, 1, 0]))
        .give("kept", &|_| f32s(&[5], &[1.0; 5]))
        .give("all", &|_| i32s(&[1], &[10]));
    case.functions.insert(
        "hits_of".into(),
        Box::new(|args| match args {
            [Scalar::Int(value)] => Scalar::Int(value * 10),
            _ => Scalar::Int(-1),
        }),
    );
    let outcome = case.outcome();
    assert_eq!(ints(&outcome, 0, "hits"), [2, 3]);
    // Stripes are 2, 2 and 1 tokens.
    assert_eq!(ints(&outcome, 0, "of"), [1, 1, 0, 2, 1, 0]);
    assert_eq!(ints(&outcome, 0, "first"), [0, 1, 1, 0, 1, 3]);
    assert_eq!(ints(&outcome, 0, "place"), [10, 0, 10, 10, 0]);
    assert_eq!(reals(&outcome, 0, "kept"), [1.0, 1.5, 2.0, 2.5, 3.0]);
    assert_eq!(ints(&outcome, 0, "all"), [15]);
    // What is changed in place stays changed.
    case.ranks = crate::meaning::again(&case.ranks, &outcome, &case.ir);
    assert_eq!(ints(&case.outcome(), 0, "all"), [20]);
}

#[test]
fn places_are_dealt_out_in_order_of_the_rows() {
    let case = Case::new(
        "shape { experts: 1..=8, topk: 1..=4, stripes: 1..=4, hidden: 1..=8 }
         variant payload { Bf16 { x: bf16 }, Fp8 { x: e4m3, scale: f32 block 2 } }
         size rows;
         size placed;
         input x: payload[rows, hidden], ids: i64[rows, topk], first: i32[experts, stripes];
         output out: payload[placed, hidden];
         table from: i32[placed];
         role Move on all blocks, warps shared by stripe {
             for row in stripe {
                 for e in experts at first[e, stripe] where listed(ids[row], e) {
                     store out[e.position] = x[row];
                     record from[e.position] = row;
                 }
             }
         }",
        &[("experts", "2"), ("topk", "2"), ("stripes", "2"), ("hidden", "3"), ("payload", "fp8")],
        1,
    );
    let rows = Tensor {
        extents: vec![3, 3],
        parts: vec![
            super::super::Part { data: Data::E4m3((0..9).collect()), block: 1 },
            super::super::Part { data: Data::F32((0..6).map(|at| at as f32).collect()), block: 2 },
        ],
    };
    let case = case
        .size("rows", &|_| 3)
        .size("placed", &|_| 5)
        .give("x", &|_| rows.clone())
        .give("ids", &|_| i64s(&[3, 2], &[1, 0, 1, 1, 0, -1]))
        .give("first", &|_| i32s(&[2, 2], &[0, 1, 2, 4]));
    let outcome = case.outcome();
    assert_eq!(ints(&outcome, 0, "from"), [0, 2, 0, 1, NONE]);
    let out = &outcome.ranks[0]["out"];
    assert_eq!(out.tensor.parts[0].data.slice(3, 6), Data::E4m3(vec![6, 7, 8, 0, 1, 2]));
    assert_eq!(out.tensor.parts[1].data.slice(2, 4), Data::F32(vec![4.0, 5.0, 0.0, 1.0]));
    assert_eq!(out.written, [[true; 12].as_slice(), &[false; 3]].concat());
}

#[test]
fn what_is_absent_is_skipped_and_spare_rows_are_filled() {
    let items = "shape { n: 1..=8 }
         size rows;
         input maybe: optional i32[rows], bias: up to 2 f32[rows], on: bool[rows];
         output a: i32[rows] fill -1 beyond rows, b: optional i32[rows], c: f32[rows], d: i32[rows];
         role R on all blocks {
             for i in rows where on[i] {
                 store a[i] = maybe[i];
                 store b[i] = i;
                 store c[i] = 1 as f32 + bias[i];
                 let twice = maybe[i] * 2;
                 store d[i] = twice;
             }
         }";
    let with = |maybe: bool, biases: usize| {
        let mut case = Case::new(items, &[("n", "1")], 1)
            .size("rows", &|_| 2)
            .give("on", &|_| bools(&[2], &[true, true]));
        if maybe {
            case = case.give("maybe", &|_| i32s(&[2], &[4, 5]));
        }
        for copy in 0..biases {
            case = case.give("bias", &|_| f32s(&[2], &[copy as f32, 10.0]));
        }
        case.ranks[0].capacity.insert("rows".into(), 3);
        if !maybe {
            case.ranks[0].without.insert("b".into());
        }
        case.outcome()
    };
    let outcome = with(true, 2);
    assert_eq!(ints(&outcome, 0, "a"), [4, 5, -1]);
    assert_eq!(ints(&outcome, 0, "b"), [0, 1, NONE]);
    assert_eq!(ints(&outcome, 0, "d"), [8, 10, NONE]);
    assert_eq!(reals(&outcome, 0, "c"), [2.0, 21.0, 0.0]);
    let outcome = with(false, 0);
    assert_eq!(ints(&outcome, 0, "a"), [NONE, NONE, -1]);
    assert!(!outcome.ranks[0].contains_key("b"));
    assert_eq!(reals(&outcome, 0, "c"), [1.0, 1.0, 0.0]);
}

#[test]
fn codes_are_read_as_the_floats_that_they_stand_for() {
    let case = |payload: &str| {
        let case = Case::new(
            "shape { hidden: 1..=8 }
             variant payload {
                 Fp8 { x: e4m3, scale: f32 block 4 },
                 Packed { x: e4m3, scale: ue8m0 block 4 },
                 Logfmt { x: u8, upper: u8 block 4, low: f32 block 4, step: f32 block 4 },
             }
             size tokens;
             input x: bf16[tokens, hidden];
             table coded: payload[tokens, hidden];
             output back: f32[tokens, hidden];
             role R on all blocks, one block a token {
                 for t in tokens {
                     when payload is Fp8 | Packed { record coded[t] = cast_e4m3(x[t], 4); }
                     when payload is Logfmt { record coded[t] = cast_logfmt10(x[t], 4); }
                 }
             }
             role Back on last block {
                 for t in tokens { let row = coded[t]; store back[t] = row as f32; }
             }",
            &[("hidden", "6"), ("payload", payload)],
            1,
        );
        let rows = [1.0, -4.0, 0.0, 2.0, 1.5, -0.25, 8.0, 0.0, 0.0, 0.0, -0.0, 3.0];
        let case = case.size("tokens", &|_| 2).give("x", &|_| bf16s(&[2, 6], &rows));
        reals(&case.outcome(), 0, "back")
    };
    let near = |found: &[f32], wanted: &[f32], off: f32| {
        found.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= b.abs() * off)
    };
    let rows = [1.0, -4.0, 0.0, 2.0, 1.5, -0.25, 8.0, 0.0, 0.0, 0.0, 0.0, 3.0];
    // Values of three bits lose nothing where scales are powers of two.
    for (payload, off) in [("packed", 0.0), ("fp8", 1.0 / 16.0), ("logfmt", 0.01)] {
        let found = case(payload);
        assert!(near(&found, &rows, off), "{payload}: {found:?}");
    }
}

#[test]
fn rows_are_quantised_as_their_place_asks_for() {
    let case = Case::new(
        "shape { hidden: 1..=8 }
         variant payload { Fp8 { x: e4m3, scale: f32 block 2 }, Packed { x: e4m3, scale: ue8m0 block 2 } }
         size tokens;
         input x: bf16[tokens, hidden];
         output out: payload[tokens, hidden];
         role R on all blocks, one block a token {
             for t in tokens { let row = cast_e4m3(x[t], 2); store out[t] = row; }
         }",
        &[("hidden", "3"), ("payload", "packed")],
        1,
    );
    let case = case.size("tokens", &|_| 1).give("x", &|_| bf16s(&[1, 3], &[448.0, -1.0, 0.0]));
    let out = &case.outcome().ranks[0]["out"].tensor;
    // A scale of 1 leaves values as they are; zeros have the least scale there may be.
    assert_eq!(out.parts[0].data, Data::E4m3(vec![0x7e, 0xb8, 0]));
    assert_eq!(out.parts[1].data.slice(0, 1), Data::Ue8m0(vec![127]));
}
