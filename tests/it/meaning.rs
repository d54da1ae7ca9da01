//! The interpreter of declarations and the references written by hand are two opinions on what the
//! standard pipelines give: they agree on random problems.

use std::collections::BTreeMap;

use ep_codegen::meaning::{Data, Drawing, Drawn, Function, Outcome, Scalar, Tensor};
use ep_runtime::Pipeline;
use ep_runtime::bf16::{bf16_from_f32, bf16_to_f32};
use ep_runtime::buffer::Placement;
use ep_runtime::ir;
use ep_runtime::pipelines::{
    Expand, Layout, LowLatencyCombine, LowLatencyDispatch, NodeCombine, NodeDispatch, NodeLayout,
    NvlCombine, NvlDispatch,
};
use ep_verify::oracle::{Arrival, Oracle, Routing, compare_sums};

use crate::usual;

/// Random problems, each of a dispatch, its combine and the rows by expert.
const PROBLEMS: u64 = 1000;

fn near() -> Vec<ir::Pipeline> {
    vec![Layout::ir(), NvlDispatch::ir(), NvlCombine::ir(), Expand::ir()]
}

/// A call, and what it leaves.
struct Made {
    drawn: Drawn,
    outcome: Outcome,
}

impl Made {
    fn new(drawing: &mut Drawing<'_>, pipeline: &ir::Pipeline, what: &str) -> Made {
        let drawn = drawing.draw(pipeline).unwrap_or_else(|error| panic!("{what}: {error}"));
        let outcome = drawn.run(&BTreeMap::new());
        let outcome = outcome.unwrap_or_else(|wrong| panic!("{what}: {}: {wrong}", pipeline.name));
        Made { drawn, outcome }
    }

    fn given(&self, rank: usize, name: &str) -> Option<&Tensor> {
        self.drawn.ranks[rank].tensors.get(name)?.first()
    }

    fn left(&self, rank: usize, name: &str) -> &Tensor {
        let left = &self.outcome.ranks[rank][name];
        assert!(left.written.iter().all(|written| *written), "{name} is written");
        assert!(left.open.is_empty() && left.loose.is_empty(), "{name} is in order");
        &left.tensor
    }

    fn ints(&self, rank: usize, name: &str) -> Vec<i64> {
        ints(self.left(rank, name))
    }
}

fn ints(tensor: &Tensor) -> Vec<i64> {
    let value = |at| match tensor.get(at) {
        Some(Scalar::Int(value)) => value,
        Some(Scalar::Bool(value)) => value.into(),
        other => panic!("{other:?} is no whole number"),
    };
    (0..tensor.count()).map(value).collect()
}

fn reals(tensor: &Tensor) -> Vec<f32> {
    let value = |at| match tensor.get(at) {
        Some(Scalar::Real(value)) => value,
        other => panic!("{other:?} is no float"),
    };
    (0..tensor.count()).map(value).collect()
}

fn wide(list: impl IntoIterator<Item = i32>) -> Vec<i64> {
    list.into_iter().map(i64::from).collect()
}

/// Row `row` of every part.
fn row(tensor: &Tensor, row: usize) -> Vec<Data> {
    let rows = tensor.extents[0].max(1);
    let cut = |data: &Data| data.slice(row * (data.len() / rows), data.len() / rows);
    tensor.parts.iter().map(|part| cut(&part.data)).collect()
}

/// The reference for what was drawn.
fn oracle(layout: &Drawn, weights: &dyn Fn(usize) -> Vec<f32>) -> Oracle {
    let tensor = |rank: usize, name: &str| &layout.ranks[rank].tensors[name][0];
    let topk = layout.numbers["topk"] as usize;
    let routing = |rank: usize| {
        let experts = ints(tensor(rank, "topk_idx"));
        let mut weights = weights(rank);
        weights.resize(experts.len(), 0.0);
        Routing { topk, experts, weights }
    };
    let routings = (0..layout.ranks.len()).map(routing).collect();
    let begin = ints(tensor(0, "expert_begin")).into_iter().map(|at| at as i32).collect();
    let placement = Placement::new(begin).expect("it ascends");
    Oracle::new(layout.numbers["experts"] as usize, placement, routings)
}

/// The tokens of a stripe.
fn span(tokens: usize, stripes: usize, stripe: usize) -> std::ops::Range<usize> {
    let (each, longer) = (tokens / stripes, tokens % stripes);
    let begin = stripe * each + stripe.min(longer);
    begin..begin + each + usize::from(stripe < longer)
}

fn check_layout(made: &Made, oracle: &Oracle, rank: usize) {
    let numbers = &made.drawn.numbers;
    let (ranks, stripes) = (numbers["ranks"] as usize, numbers["stripes"] as usize);
    let tokens = oracle.routing(rank).tokens();
    let goes = |token, peer| oracle.goes_to(rank, token, peer);
    let sent =
        |range: std::ops::Range<usize>, peer| range.filter(|t| goes(*t, peer)).count() as i64;
    assert_eq!(made.ints(rank, "tokens_per_expert"), wide(oracle.tokens_per_expert(rank)));
    let per_rank: Vec<i64> = (0..ranks).map(|peer| sent(0..tokens, peer)).collect();
    assert_eq!(made.ints(rank, "tokens_per_rank"), per_rank);
    let in_rank: Vec<i64> =
        (0..tokens * ranks).map(|at| goes(at / ranks, at % ranks).into()).collect();
    assert_eq!(made.ints(rank, "in_rank"), in_rank);
    let of = |stripe, peer| sent(span(tokens, stripes, stripe), peer);
    let ahead = |stripe, peer| sent(0..span(tokens, stripes, stripe).start, peer);
    let stripe_tokens: Vec<i64> =
        (0..stripes * ranks).map(|at| of(at / ranks, at % ranks)).collect();
    assert_eq!(made.ints(rank, "stripe_tokens"), stripe_tokens);
    let stripe_prefix: Vec<i64> =
        (0..stripes * ranks).map(|at| ahead(at % stripes, at / stripes)).collect();
    assert_eq!(made.ints(rank, "stripe_prefix"), stripe_prefix);
    assert_eq!(made.ints(rank, "rank_prefix"), wide(oracle.rank_prefix()));
    assert_eq!(made.ints(rank, "received"), [oracle.arrivals(rank).len() as i64]);
    let Some(Scalar::Int(alignment)) = made.drawn.args.get("alignment") else { panic!("no arg") };
    let local = numbers["local_experts"] as usize;
    let received = oracle.received_per_expert(rank, local, *alignment as i32);
    assert_eq!(made.ints(rank, "received_per_expert"), wide(received));
}

fn check_dispatch(made: &Made, oracle: &Oracle, rank: usize) {
    let arrivals = oracle.arrivals(rank);
    let src: Vec<i64> = arrivals.iter().map(|arrival| arrival.token as i64).collect();
    assert_eq!(made.ints(rank, "recv_src"), src);
    let at = |arrival: &Arrival, name| Some(row(made.given(arrival.source, name)?, arrival.token));
    for (place, arrival) in arrivals.iter().enumerate() {
        assert_eq!(Some(row(made.left(rank, "recv_x"), place)), at(arrival, "x"));
        let left = &made.outcome.ranks[rank];
        if at(arrival, "topk_idx").is_some()
            && let Some(left) = left.get("recv_topk_idx")
        {
            let experts = oracle.local_experts_of(rank, *arrival);
            assert_eq!(row(&left.tensor, place), [Data::I64(experts)]);
        }
        if at(arrival, "topk_idx").is_some()
            && at(arrival, "topk_weights").is_some()
            && let Some(left) = left.get("recv_topk_weights")
        {
            let weights = oracle.local_weights_of(rank, *arrival);
            assert_eq!(row(&left.tensor, place), [Data::F32(weights)]);
        }
    }
    let arm = |axis: &str| {
        let axis = made.drawn.ir.axes.iter().find(|it| it.name == axis).expect("an axis");
        axis.arms[0].name.as_str()
    };
    if arm("mode") == "Fresh" {
        check_positions(made, oracle, rank, arm("via") == "Direct");
    }
}

/// Where the rows of a rank's tokens are, and of those that never went.
fn check_positions(made: &Made, oracle: &Oracle, rank: usize, direct: bool) {
    let numbers = &made.drawn.numbers;
    let (ranks, stripes) = (numbers["ranks"] as usize, numbers["stripes"] as usize);
    let tokens = oracle.routing(rank).tokens();
    let prefix = oracle.rank_prefix();
    let mut wanted = Vec::new();
    for token in 0..tokens {
        let own = (0..stripes).map(|stripe| span(tokens, stripes, stripe));
        let start = own.clone().find(|own| own.contains(&token)).map_or(0, |own| own.start);
        for peer in 0..ranks {
            let begin = if direct { 0 } else { start };
            let gone = (begin..token).filter(|t| oracle.goes_to(rank, *t, peer)).count() as i64;
            let first = if direct { i64::from(prefix[rank * ranks + peer]) } else { 0 };
            let there = oracle.goes_to(rank, token, peer);
            wanted.push(if there { first + gone } else { -1 - first - gone });
        }
    }
    let table = if direct { "send_row" } else { "send_head" };
    assert_eq!(made.ints(rank, table), wanted);
    if !direct {
        let tokens = |from| oracle.routing(from).tokens();
        let sent = |from: usize, range: std::ops::Range<usize>| {
            range.filter(|token| oracle.goes_to(from, *token, rank)).count() as i64
        };
        let (mut first, mut count) = (Vec::new(), Vec::new());
        for from in 0..ranks {
            for stripe in 0..stripes {
                let own = span(tokens(from), stripes, stripe);
                first.push(i64::from(prefix[from * ranks + rank]) + sent(from, 0..own.start));
                count.push(sent(from, own));
            }
        }
        assert_eq!(made.ints(rank, "recv_first"), first);
        assert_eq!(made.ints(rank, "recv_count"), count);
    }
}

fn check_combine(made: &Made, oracle: &Oracle, rank: usize) {
    let (ranks, hidden) = (oracle.ranks(), made.drawn.numbers["hidden"] as usize);
    let biases = made.drawn.ranks[rank].tensors.get("bias").cloned().unwrap_or_default();
    let x: Vec<Vec<f32>> =
        (0..ranks).map(|peer| reals(made.given(peer, "x").expect("it is given"))).collect();
    let combined = made.left(rank, "combined");
    for token in 0..oracle.routing(rank).tokens() {
        let rows = (0..ranks).filter_map(|peer| {
            let place = oracle.position(rank, token, peer)?;
            Some(x[peer][place * hidden..(place + 1) * hidden].to_vec())
        });
        let own = |bias: &Tensor| reals(bias)[token * hidden..(token + 1) * hidden].to_vec();
        let terms: Vec<Vec<f32>> = rows.chain(biases.iter().map(own)).collect();
        let sum = |value: &dyn Fn(f32) -> f64| -> Vec<f64> {
            (0..hidden).map(|c| terms.iter().map(|term| value(term[c])).sum()).collect()
        };
        let [Data::Bf16(bits)] = &row(combined, token)[..] else { panic!("no bf16") };
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let (want, magnitude) = (sum(&|it| it.into()), sum(&|it| it.abs().into()));
        let found = compare_sums("combined", token, &bytes, &want, &magnitude, terms.len());
        assert!(found.is_empty(), "{found}");
        // In order of rank, in f32, rounded once.
        for (c, bits) in bits.iter().enumerate() {
            let exact = terms.iter().fold(0.0_f32, |sum, term| sum + term[c]);
            let rounded = bf16_from_f32(exact);
            assert_eq!(bf16_to_f32(*bits), bf16_to_f32(rounded));
        }
    }
}

fn check_expanded(expand: &Made, oracle: &Oracle, rank: usize) {
    let local = expand.drawn.numbers["local_experts"] as usize;
    let Some(Scalar::Int(alignment)) = expand.drawn.args.get("alignment") else { panic!("no arg") };
    let wanted = oracle.expanded(rank, local, *alignment as usize);
    assert_eq!(expand.ints(rank, "expert_first"), wide(wanted.first.clone()));
    assert_eq!(expand.ints(rank, "expanded_src"), wide(wanted.source.clone()));
    let rows = |expert: usize| {
        let own = wanted.first[expert] as usize..wanted.first[expert + 1] as usize;
        wanted.source[own].iter().filter(|source| **source >= 0).count() as i64
    };
    let per: Vec<i64> = (0..local).map(rows).collect();
    assert_eq!(expand.ints(rank, "rows_per_expert"), per);
    let left = &expand.outcome.ranks[rank]["expanded_x"];
    let width = expand.drawn.numbers["hidden"] as usize;
    for (place, source) in wanted.source.iter().enumerate() {
        assert_eq!(left.written[place * width], *source >= 0);
        if *source >= 0 {
            let from = expand.given(rank, "x").expect("it is given");
            assert_eq!(row(&left.tensor, place), row(from, *source as usize));
        }
    }
}

#[test]
fn the_interpreter_agrees_with_the_references() {
    let known = near();
    let all: Vec<&ir::Pipeline> = known.iter().collect();
    let functions: BTreeMap<String, &Function> = BTreeMap::new();
    let [layout, dispatch, combine, expand] = all[..] else { panic!("four") };
    for seed in usual::some(0..PROBLEMS, 4) {
        let what = format!("seed {seed}");
        let mut drawing =
            Drawing::new(seed, &all, &functions).number("stripes", 4).number("hidden", 16).rows(9);
        let dispatch = Made::new(&mut drawing, dispatch, &what);
        let layout = Made::new(&mut drawing, layout, &what);
        let weights =
            |rank: usize| dispatch.given(rank, "topk_weights").map(reals).unwrap_or_default();
        let oracle = oracle(&layout.drawn, &weights);
        let combine = Made::new(&mut drawing, combine, &what);
        let local = |rank: usize| {
            let rows = oracle.arrivals(rank);
            let list = rows.iter().flat_map(|row| oracle.local_experts_of(rank, *row)).collect();
            let topk = layout.drawn.numbers["topk"] as usize;
            Tensor::new(&[rows.len(), topk], Data::I64(list))
        };
        drawing.give(expand, "expert_idx", (0..oracle.ranks()).map(local).collect());
        let expand = Made::new(&mut drawing, expand, &what);
        for rank in 0..oracle.ranks() {
            check_layout(&layout, &oracle, rank);
            check_dispatch(&dispatch, &oracle, rank);
            check_combine(&combine, &oracle, rank);
            check_expanded(&expand, &oracle, rank);
        }
    }
}

/// Hops over a network, phases and casts, drawn at random.
#[test]
fn two_hops_and_low_latency_have_a_meaning() {
    let hops = [NodeLayout::ir(), NodeDispatch::ir(), NodeCombine::ir()];
    let slots = [LowLatencyDispatch::ir(), LowLatencyCombine::ir()];
    let functions: BTreeMap<String, &Function> = BTreeMap::new();
    for family in [&hops[..], &slots[..]] {
        let all: Vec<&ir::Pipeline> = family.iter().collect();
        for seed in usual::some(0..40, 4) {
            for pipeline in &all {
                let what = format!("{}, seed {seed}", pipeline.name);
                let drawing = Drawing::new(seed, &all, &functions);
                let mut drawing = drawing.number("stripes", 4).rows(9).number("max_tokens", 16);
                Made::new(&mut drawing, pipeline, &what);
            }
        }
    }
}
