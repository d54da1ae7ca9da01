//! Moves rows between nodes of two GPUs, in two hops each way. A row crosses the network once per node, to the
//! rank with the sender's index in that node, which forwards it to the ranks of its experts. On the way back that
//! rank sums their rows, and the token's rank sums the nodes.

use std::collections::BTreeSet;

use ep_runtime::buffer::Placement;
use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::host::{HostBackend, HostOptions, Programs};
use ep_runtime::net::ModelOptions;
use ep_runtime::pipelines::{NodeCombine, NodeDispatch, NodeLayout};
use ep_runtime::pipelines::{node_combine, node_dispatch, node_layout};
use ep_runtime::tensor::{Bf16, DeviceTensor};

const LOCAL_RANKS: usize = 2;
const TOKENS: usize = 5;
const TOPK: usize = 3;
const HIDDEN: usize = 64;

/// The experts of a token.
fn wanted(rank: usize, token: usize, experts: usize) -> [i64; TOPK] {
    let first = (rank * 3 + token) % experts;
    [first as i64, ((first + 3) % experts) as i64, if token == 1 { -1 } else { 7 }]
}

fn value(rank: usize, token: usize) -> f32 {
    (rank * TOKENS + token + 1) as f32
}

fn main() -> Result<(), CallError> {
    // Between machines: Group::over_network(backend, options, &id, &net, deadline), one process per node.
    let backend = HostBackend::new(&Programs::find()?, HostOptions::new(2 * LOCAL_RANKS))?;
    run(&Group::over_model(&backend, 2, &ModelOptions::default())?)
}

/// The kernels of a dispatch and its combine, in order.
struct Kernels {
    layout: node_layout::Kernel,
    dispatch: node_dispatch::Kernel,
    combine: node_combine::Kernel,
}

/// What a rank brings, and what it gets.
struct Rank {
    rank: usize,
    to: node_layout::Inputs,
    counts: node_layout::Outputs,
    rows: node_dispatch::Inputs,
    received: node_dispatch::Outputs,
    sums: node_combine::Outputs,
}

impl Kernels {
    fn prepare(group: &Group) -> Result<Kernels, CallError> {
        let (nodes, local_ranks, hidden, topk, tokens) =
            (group.nodes(), LOCAL_RANKS, HIDDEN, TOPK, TOKENS);
        let (experts, received, relayed) =
            (2 * group.ranks(), group.ranks() * TOKENS, nodes * TOKENS);
        let shape = node_dispatch::Shape {
            nodes,
            local_ranks,
            hidden,
            topk,
            experts,
            tokens,
            received,
            relayed,
        };
        let options = node_dispatch::Options {
            topk_weights: false,
            recv_topk_weights: false,
            ..Default::default()
        };
        let dispatch = NodeDispatch::prepare(group, shape, options)?;
        let stripes = dispatch.tunes().stripes as usize;
        let shape = node_layout::Shape { nodes, local_ranks, topk, experts, stripes, tokens };
        let layout = NodeLayout::prepare(group, shape, Default::default())?;
        let shape =
            node_combine::Shape { nodes, local_ranks, hidden, topk, tokens, received, relayed };
        let options = node_combine::Options {
            weights: false,
            combined_weights: false,
            bias: 0,
            ..Default::default()
        };
        let combine = NodeCombine::prepare(group, shape, options)?;
        Ok(Kernels { layout, dispatch, combine })
    }

    fn rank(&self, group: &Group, rank: usize) -> Result<Rank, CallError> {
        let begin = Placement::even(2 * group.ranks(), group.ranks());
        let begin = begin.begin();
        let chosen = (0..TOKENS).flat_map(|token| wanted(rank, token, 2 * group.ranks()));
        let chosen: Vec<i64> = chosen.collect();
        let topk_idx = DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &chosen)?;
        let expert_begin = DeviceTensor::from_slice(group, rank, [begin.len()], begin)?;
        let x: Vec<Bf16> = (0..TOKENS * HIDDEN).map(|i| value(rank, i / HIDDEN).into()).collect();
        let x = DeviceTensor::from_slice(group, rank, [TOKENS, HIDDEN], &x)?;
        Ok(Rank {
            rank,
            to: node_layout::Inputs {
                topk_idx: topk_idx.clone(),
                expert_begin: expert_begin.clone(),
            },
            counts: self.layout.outputs(rank)?,
            rows: node_dispatch::Inputs {
                x: node_dispatch::PayloadTensor::Bf16 { x },
                topk_idx: Some(topk_idx),
                topk_weights: None,
                expert_begin,
            },
            received: self.dispatch.outputs(rank)?,
            sums: self.combine.outputs(rank)?,
        })
    }

    /// Sends the rows of a rank, and combines the rows that arrive there unchanged. Experts would run in
    /// between.
    fn launch(&self, own: &Rank) -> Result<(), CallError> {
        let (Rank { rank, received, .. }, call) = (own, CallOptions::default());
        let places = self.layout.launch(*rank, &call, &own.to, &own.counts, &Default::default())?;
        let args = Default::default();
        let ways = self.dispatch.launch(*rank, &call, &own.rows, received, &places, &args)?;
        let node_dispatch::PayloadTensor::Bf16 { x } = received.recv_x.clone() else {
            unreachable!("the default payload is bf16");
        };
        let made = node_combine::Inputs { x, weights: None, bias: [None, None] };
        let args = node_combine::Args { tokens: TOKENS, ..Default::default() };
        self.combine.launch(*rank, &call, &made, &own.sums, &places, &ways, &args).map(drop)
    }
}

/// Makes one dispatch and one combine.
pub(crate) fn run(group: &Group) -> Result<(), CallError> {
    let kernels = Kernels::prepare(group)?;
    let ranks = group.local().map(|rank| kernels.rank(group, rank));
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    ranks.iter().try_for_each(|own| kernels.launch(own))?;
    for own in &ranks {
        group.sync(own.rank)?;
        let sums = own.sums.combined.read()?.into_iter().step_by(HIDDEN).map(f32::from);
        // A row goes to each rank that has at least one of its experts: each rank has two experts.
        let ranks_of = |token: usize| {
            let wanted = wanted(own.rank, token, 2 * group.ranks()).into_iter();
            wanted.filter(|it| *it >= 0).map(|it| it / 2).collect::<BTreeSet<i64>>().len()
        };
        let all = (0..TOKENS).map(|token| value(own.rank, token) * ranks_of(token) as f32);
        assert_eq!(sums.collect::<Vec<f32>>(), all.collect::<Vec<f32>>(), "rank {}", own.rank);
    }
    Ok(())
}
