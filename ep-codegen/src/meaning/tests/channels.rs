//! Messages: rings, direct rows, slots, rows that are pulled.

use super::*;

/// Where the tokens of a rank go.
fn goes(rank: usize, token: usize, peer: usize) -> bool {
    (rank * 5 + token * 3 + peer) % 4 != 1
}

const RANKS: usize = 3;
const STRIPES: usize = 2;

fn tokens(rank: usize) -> usize {
    [5, 0, 4][rank]
}

fn span(tokens: usize, stripe: usize) -> std::ops::Range<usize> {
    let (each, longer) = (tokens / STRIPES, tokens % STRIPES);
    let begin = stripe * each + stripe.min(longer);
    begin..begin + each + usize::from(stripe < longer)
}

/// Rows that arrive at a rank, in order.
fn arrivals(at: usize) -> Vec<(usize, usize)> {
    let of = |from| (0..tokens(from)).filter(move |t| goes(from, *t, at)).map(move |t| (from, t));
    (0..RANKS).flat_map(of).collect()
}

fn before(at: usize, from: usize) -> usize {
    arrivals(at).iter().filter(|(sender, _)| *sender < from).count()
}

fn matches(from: usize, range: std::ops::Range<usize>, peer: usize) -> i32 {
    range.filter(|token| goes(from, *token, peer)).count() as i32
}

/// What a dispatch is given.
fn dispatch(case: Case) -> Case {
    let table = |rank: usize, first: bool| {
        let mut list = Vec::new();
        for peer in 0..RANKS {
            for stripe in 0..STRIPES {
                let own = span(tokens(rank), stripe);
                list.push(matches(rank, if first { 0..own.start } else { own }, peer));
            }
        }
        i32s(&[RANKS, STRIPES], &list)
    };
    let to = |rank: usize| {
        let list: Vec<bool> =
            (0..tokens(rank) * RANKS).map(|at| goes(rank, at / RANKS, at % RANKS)).collect();
        bools(&[tokens(rank), RANKS], &list)
    };
    let starts: Vec<i32> =
        (0..=RANKS).flat_map(|from| (0..RANKS).map(move |at| before(at, from) as i32)).collect();
    case.size("tokens", &|rank| tokens(rank) as i64)
        .give("to", &to)
        .give("starts", &|_| i32s(&[RANKS + 1, RANKS], &starts))
        .give("counts", &|rank| table(rank, false))
        .give("firsts", &|rank| table(rank, true))
        .give("own", &|rank| i64s(&[2], &[rank as i64, -1]))
        .give("x", &|rank| {
            let list: Vec<f32> = (0..tokens(rank) * 2).map(|at| (rank * 100 + at) as f32).collect();
            bf16s(&[tokens(rank), 2], &list)
        })
}

const SHAPE: &str = "
    shape { ranks: 1..=8, hidden: 1..=8, stripes: 1..=4 }
    size tokens;
    size received = starts[ranks, me];
    input to: bool[tokens, ranks], starts: i32[ranks + 1, ranks], counts: i32[ranks, stripes],
          firsts: i32[ranks, stripes], x: bf16[tokens, hidden], own: i64[2];
    message Token { row x: bf16[hidden], src: i32, pair: i64[2] }";

const SETS: [(&str, &str); 3] = [("ranks", "3"), ("hidden", "2"), ("stripes", "2")];

/// Position of a token's row, or that there is none and how many have gone before.
fn position(first: usize, gone: usize, is_there: bool) -> i64 {
    if is_there { (first + gone) as i64 } else { -1 - (first + gone) as i64 }
}

fn check_rows(outcome: &Outcome, rank: usize) {
    let rows = arrivals(rank);
    let src: Vec<i64> = rows.iter().map(|(_, token)| *token as i64).collect();
    assert_eq!(ints(outcome, rank, "src"), src);
    let pairs: Vec<i64> = rows.iter().flat_map(|(from, _)| [*from as i64, -1]).collect();
    assert_eq!(ints(outcome, rank, "pairs"), pairs);
    let row = |(from, token): &(usize, usize)| {
        let first = (from * 100 + token * 2) as f32;
        [first, first + 1.0]
    };
    assert_eq!(reals(outcome, rank, "out"), rows.iter().flat_map(row).collect::<Vec<f32>>());
    assert!(outcome.ranks[rank].values().all(|left| left.open.is_empty()));
    for from in 0..RANKS {
        let comes = outcome.moved.iter().filter(|it| (it.from, it.to) == (from, rank));
        let sent = rows.iter().filter(|(sender, _)| *sender == from).count() as u64;
        assert_eq!(comes.map(|it| it.messages).sum::<u64>(), sent, "{:?}", outcome.moved);
    }
}

fn rings(depth: &str) -> Case {
    let items = format!(
        "{SHAPE}
         output out: bf16[received, hidden], pairs: i64[received, 2];
         table src: i32[received], head: i32[tokens, ranks], note: i32[ranks, stripes];
         channel ring: ring<Token> over nvlink from Send to Recv per all {{
             depth: {depth}, chunk: 1, header: [count, first],
         }};
         role Send[peer] on even blocks {{
             announce ring[peer] {{ first: firsts[peer, stripe], count: counts[peer, stripe] }};
             for t in stripe where to[t, peer] {{
                 push ring[peer] {{ x: x[t], src: t, pair: own }};
                 record head[t, peer] = ring[peer].position;
             }}
         }}
         role Recv[peer] on odd blocks {{
             record note[peer, stripe] = ring[peer].first * 10 + ring[peer].count;
             for m in ring[peer] at starts[peer, me] + ring[peer].first {{
                 store out[m.row] = m.x;
                 record src[m.row] = m.src;
                 store pairs[m.row] = m.pair;
             }}
         }}"
    );
    dispatch(Case::new(&items, &SETS, RANKS))
}

#[test]
fn rings_keep_their_order_whatever_their_depth() {
    for depth in ["2", "64"] {
        let outcome = rings(depth).outcome();
        for rank in 0..RANKS {
            check_rows(&outcome, rank);
            let mut heads = Vec::new();
            for token in 0..tokens(rank) {
                for peer in 0..RANKS {
                    let own =
                        (0..STRIPES).map(|s| span(tokens(rank), s)).find(|s| s.contains(&token));
                    let start = own.map_or(0, |own| own.start);
                    let gone = matches(rank, start..token, peer) as usize;
                    heads.push(position(0, gone, goes(rank, token, peer)));
                }
            }
            assert_eq!(ints(&outcome, rank, "head"), heads);
            for peer in 0..RANKS {
                for stripe in 0..STRIPES {
                    let own = span(tokens(peer), stripe);
                    let (first, count) =
                        (matches(peer, 0..own.start, rank), matches(peer, own, rank));
                    let note = ints(&outcome, rank, "note")[peer * STRIPES + stripe];
                    assert_eq!(note, i64::from(first * 10 + count));
                }
            }
        }
    }
}

#[test]
fn direct_rows_lie_where_they_were_sent() {
    let items = format!(
        "{SHAPE}
         output out: bf16[received, hidden] in window, pairs: i64[received, 2];
         table src: i32[received], row_of: i32[tokens, ranks];
         channel rows: direct<Token> over nvlink from Send, Local to Unpack per all;
         role Send on block 0, 2 warps, warps shared by token {{
             for t in stripe where t >= 0 {{
                 for peer in others where to[t, peer] {{
                     push rows[peer] at starts[me, peer] + firsts[peer, stripe] {{ x: x[t], src: t, pair: own }};
                     record row_of[t, peer] = rows[peer].position;
                 }}
             }}
         }}
         role Local on other blocks, 2 warps, warps shared by token {{
             for t in stripe where to[t, me] {{
                 push rows[me] at starts[me, me] + firsts[me, stripe] {{ x: x[t], src: t, pair: own }};
                 record row_of[t, me] = rows[me].position;
             }}
         }}
         role Unpack on all blocks, 2 warps, warps shared by (source, stripe) {{
             for m in rows[source] {{
                 store out[m.row] = m.x;
                 record src[m.row] = m.src;
                 store pairs[m.row] = m.pair;
             }}
         }}"
    );
    let case = dispatch(Case::new(&items, &SETS, RANKS));
    let outcome = case.outcome();
    for rank in 0..RANKS {
        check_rows(&outcome, rank);
        let mut rows = Vec::new();
        for token in 0..tokens(rank) {
            for peer in 0..RANKS {
                let gone = matches(rank, 0..token, peer) as usize;
                rows.push(position(before(peer, rank), gone, goes(rank, token, peer)));
            }
        }
        assert_eq!(ints(&outcome, rank, "row_of"), rows);
    }
}

#[test]
fn slots_are_read_once_all_are_there() {
    let case = Case::new(
        "shape { ranks: 1..=8, experts: 1..=8, let most = ceil(experts, ranks) }
         input rows: i32[ranks], load: i32[experts], expert_begin: i32[ranks + 1];
         output total: i32[1], per: i32[most];
         table first: i32[ranks + 1, ranks];
         message Counts { rows: i32[ranks], mine: i32[most], one: f32 }
         channel counts: slots<Counts> over nvlink from Talk to Talk per all { slot: [source], epochs: 2 };
         output ones: f32[ranks];
         role Talk on block 0 {
             for peer in ranks { push counts[peer] { rows: rows, mine: owned(load, peer), one: me as f32 / 2 }; }
             await counts;
             for dest in ranks { record first[s, dest] = prefix_sum(s in ranks: counts[s].rows[dest]); }
             store total[0] = sum(s in ranks: counts[s].rows[me]);
             for e in most { store per[e] = sum(s in ranks: counts[s].mine[e]); }
             for s in ranks { store ones[s] = counts[s].one; }
         }",
        &[("ranks", "2"), ("experts", "3")],
        2,
    );
    let case = case
        .give("rows", &|rank| i32s(&[2], &[1 + rank as i32, 10]))
        .give("load", &|rank| i32s(&[3], &[1, 2, 4 + rank as i32]))
        .give("expert_begin", &|_| i32s(&[3], &[0, 2, 3]));
    let outcome = case.outcome();
    assert_eq!(ints(&outcome, 0, "total"), [3]);
    assert_eq!(ints(&outcome, 1, "total"), [20]);
    assert_eq!(ints(&outcome, 0, "per"), [2, 4]);
    assert_eq!(ints(&outcome, 1, "per"), [9, 0]);
    assert_eq!(ints(&outcome, 1, "first"), [0, 0, 1, 10, 3, 20]);
    assert_eq!(reals(&outcome, 1, "ones"), [0.0, 0.5]);
}

#[test]
fn parts_are_added_in_order_and_rounded_once() {
    let case = Case::new(
        "shape { ranks: 1..=8, hidden: 1..=8, topk: 1..=8 }
         size tokens;
         size rows;
         input x: bf16[rows, hidden] in window, w: f32[rows, topk] in window, at: i32[tokens, ranks],
               bias: up to 2 bf16[hidden], scale: f32[tokens, ranks];
         output sums: bf16[tokens, hidden], weights: f32[tokens, topk], scaled: f32[tokens, hidden];
         message Part { row x: bf16[hidden], w: f32[topk] }
         channel parts: pull<Part> over nvlink from Offer to Sum per all;
         role Offer on block 0, 1 warps { push parts { x: x, w: w }; }
         role Sum on all blocks, 4 warps, warps shared by token {
             for t in tokens gather part from parts[peer] at at[t, peer] across peer in ranks {
                 store sums[t] = sum(part.x) + bias;
                 store weights[t] = sum(part.w);
                 store scaled[t] = sum(part.x * scale[t, peer]);
             }
         }",
        &[("ranks", "2"), ("hidden", "1"), ("topk", "1")],
        2,
    );
    let case = case
        .size("tokens", &|_| 2)
        .size("rows", &|_| 2)
        .give("x", &|rank| bf16s(&[2, 1], &[256.0 + rank as f32 * 256.0, 1.0]))
        .give("w", &|rank| f32s(&[2, 1], &[rank as f32, 0.25]))
        .give("at", &|_| i32s(&[2, 2], &[0, 1, -1, -7]))
        .give("scale", &|_| f32s(&[2, 2], &[0.5, 3.0, 1.0, 1.0]))
        .give("bias", &|_| bf16s(&[1], &[1.0]))
        .give("bias", &|_| bf16s(&[1], &[0.5]));
    let outcome = case.outcome();
    // 256 + 1 + 1 + 0.5 goes to 258; rounded at each step it would be 256.
    assert_eq!(reals(&outcome, 0, "sums"), [258.0, 1.5]);
    assert_eq!(reals(&outcome, 0, "weights"), [0.25, 0.0]);
    assert_eq!(reals(&outcome, 0, "scaled"), [131.0, 0.0]);
    let pulled = outcome.moved.iter().map(|it| (it.channel.as_str(), it.from, it.to, it.messages));
    let want = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(from, to)| ("parts", from, to, 1));
    assert_eq!(Vec::from_iter(pulled), want);
}

#[test]
fn a_bias_that_is_absent_adds_nothing() {
    let sums = |bias: bool| {
        let case = Case::new(
            "shape { ranks: 1..=8, hidden: 1..=8 }
             size tokens;
             input x: bf16[tokens, hidden] in window, at: i32[tokens, ranks], bias: optional bf16[hidden];
             output sums: bf16[tokens, hidden];
             message Part { row x: bf16[hidden] }
             channel parts: pull<Part> over nvlink from Offer to Sum per all;
             role Offer on block 0, 1 warps { push parts { x: x }; }
             role Sum on all blocks, 4 warps, warps shared by token {
                 for t in tokens gather part from parts[peer] at at[t, peer] across peer in ranks {
                     store sums[t] = sum(part.x) + bias;
                 }
             }",
            &[("ranks", "1"), ("hidden", "1")],
            1,
        );
        let case = case
            .size("tokens", &|_| 1)
            .give("x", &|_| bf16s(&[1, 1], &[3.0]))
            .give("at", &|_| i32s(&[1, 1], &[0]));
        let case = if bias { case.give("bias", &|_| bf16s(&[1], &[4.0])) } else { case };
        reals(&case.outcome(), 0, "sums")
    };
    assert_eq!((sums(true), sums(false)), (vec![7.0], vec![3.0]));
}

/// Rows of two sources go on through one ring as they come: their order is open, and is compared as
/// a set, or by what is recorded of it.
#[test]
fn an_order_that_nothing_fixes_is_compared_as_a_set() {
    let case = Case::new(
        "shape { ranks: 1..=8, stripes: 1..=1 }
         size tokens;
         input x: i32[tokens];
         output got: i32[4], who: i32[4], exact: i32[4];
         table at: i32[4];
         message Word { value: i32, who: i32 }
         channel to: ring<Word> over nvlink from Send to Pass per all { depth: 4, chunk: 1, header: [count] };
         channel on: ring<Word> over nvlink from Pass to Keep per all { depth: 4, chunk: 1, header: [count] };
         role Send[peer] on block 0 {
             announce to[peer] { count: 2 };
             for t in tokens { push to[peer] { value: x[t], who: me }; }
         }
         role Pass on block 1, 1 warps, warps shared by stripe {
             announce on[me] { count: 4 };
             for m in to {
                 push on[me] { value: m.value, who: m.who };
                 record at[m.who * 2 + m.index] = on[me].position;
             }
         }
         role Keep on other blocks, 1 warps, warps shared by stripe {
             for m in on[me] {
                 store got[m.row] = m.value;
                 store who[m.row] = m.who;
                 store exact[m.row] = m.row;
             }
         }",
        &[("ranks", "2"), ("stripes", "1")],
        2,
    );
    let case = case
        .size("tokens", &|_| 2)
        .give("x", &|rank| i32s(&[2], &[rank as i32 * 10 + 1, rank as i32 * 10 + 2]));
    let outcome = case.outcome();
    assert!(outcome.ranks[0]["got"].open.len() == 4 && outcome.ranks[0]["at"].open.len() == 4);
    let found = |got: [i32; 4], who: [i32; 4], at: Option<[i32; 4]>| {
        let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
        tensors.insert("got".into(), i32s(&[4], &got));
        tensors.insert("who".into(), i32s(&[4], &who));
        tensors.insert("exact".into(), i32s(&[4], &[0, 1, 2, 3]));
        if let Some(at) = at {
            tensors.insert("at".into(), i32s(&[4], &at));
        }
        crate::meaning::compare(&outcome.ranks, &[tensors, BTreeMap::new()]).len()
    };
    assert_eq!(found([1, 2, 11, 12], [0, 0, 1, 1], None), 0);
    assert_eq!(found([11, 1, 12, 2], [1, 0, 1, 0], Some([1, 3, 0, 2])), 0);
    assert_eq!(found([11, 1, 12, 2], [1, 1, 1, 0], None), 1);
    assert_eq!(found([11, 1, 12, 12], [1, 0, 1, 1], None), 1);
    assert_eq!(found([11, 1, 12, 2], [1, 0, 1, 0], Some([3, 1, 0, 2])), 1);
    assert_eq!(found([11, 1, 12, 2], [1, 0, 1, 0], Some([1, 1, 0, 2])), 1);
}
