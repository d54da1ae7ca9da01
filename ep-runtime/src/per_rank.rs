//! Low-latency calls in which a row travels once for each rank, not once for each expert.
//!
//! With eight experts per token and few ranks, each rank has several experts of a token. [`PerRank`] sends
//! the token's row to that rank once, and packs the row by expert on arrival. If the weights came with the
//! rows, the rank sums its experts' results, and returns one row. Otherwise, within a node, it returns the row
//! of each expert, and the token's rank, which has the weights, sums them. Between nodes only sums travel
//! back: the combine first sends the weights to the ranks of the experts. Calls take and return the same
//! tensors as those of `low-latency-dispatch` and `low-latency-combine`. They run in one phase and wait for
//! every rank; for phases and ranks that are left out, use the other two.
//!
//! The calls of one rank run one after another, because rows in flight use memory of the kernels. The
//! results of a dispatch belong to the caller, so several dispatches may wait for their combines.
//!
//! ```no_run
//! use ep_runtime::buffer::CallOptions;
//! use ep_runtime::error::CallError;
//! use ep_runtime::group::Group;
//! use ep_runtime::per_rank::{PerRank, Shape, Weights};
//! use ep_runtime::pipelines::low_latency_dispatch::{Inputs, Payload};
//! use ep_runtime::tensor::{Bf16, DeviceTensor};
//!
//! fn there_and_back(
//!     group: &Group,
//!     rank: usize,
//!     inputs: &Inputs,
//!     weights: &DeviceTensor<f32, 2>,
//!     made_by_experts: &DeviceTensor<Bf16, 3>,
//!     sums: &DeviceTensor<Bf16, 2>,
//! ) -> Result<(), CallError> {
//!     let shape = Shape { hidden: 7168, topk: 8, experts: 288, max_tokens: 128 };
//!     let calls = PerRank::prepare(group, shape, Payload::Fp8, Weights::AtDispatch)?;
//!     let (outputs, tables) = (calls.outputs(rank)?, calls.tables(rank)?);
//!     let call = CallOptions::sms(64);
//!     let sent = calls.dispatch(rank, &call, inputs, Some(weights), &outputs, &tables)?;
//!     // Experts work on the first `packed_count` rows of each list in `outputs.packed_x` here.
//!     calls.combine(rank, &call, made_by_experts, None, &sent, sums)
//! }
//! ```

use crate::buffer::CallOptions;
use crate::calls::{CallKernel, Machine, PrepareOptions};
use crate::error::CallError;
use crate::group::Group;
use crate::pipeline::AnyPipeline;
use crate::pipelines::low_latency_dispatch::{Inputs, Outputs, Payload, PayloadTensor};
use crate::pipelines::{MergeCombine, PackedDispatch, merge_combine, packed_dispatch};
use crate::tensor::{Bf16, DeviceTensor};

/// The shape of such calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Values of a row.
    pub hidden: usize,
    /// Maximum number of experts per token.
    pub topk: usize,
    /// Number of experts of all ranks.
    pub experts: usize,
    /// Maximum number of tokens of a rank in a call.
    pub max_tokens: usize,
}

/// Which call passes the weights of the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// The dispatch: weights travel with the rows, and each rank returns one sum.
    AtDispatch,
    /// The combine: each expert's row is returned within a node, and the sums of each rank between nodes.
    AtCombine,
}

/// The kernels of dispatches and of their combines, and the memory that rows pass through.
pub struct PerRank {
    dispatch: packed_dispatch::Kernel,
    combine: merge_combine::Kernel,
    weights: Weights,
    group: Group,
    shape: Shape,
    payload: Payload,
    ranks: Vec<Passing>,
}

/// Memory of a rank that rows pass through, with their small fields. Between nodes rows pass through slots of the kernel.
struct Passing {
    came: Option<packed_dispatch::PayloadTensor<2>>,
    records: Option<DeviceTensor<u8, 1>>,
}

/// The tables that a dispatch fills for its combine: where rows have gone, and where they are packed.
pub type Tables = packed_dispatch::Handle;

/// A dispatch that has been launched. If the combine passes the weights, it reads the dispatch's `topk_idx`
/// again.
#[derive(Debug, Clone)]
pub struct Dispatched {
    tables: Tables,
    topk_idx: DeviceTensor<i64, 2>,
    expert_begin: DeviceTensor<i32, 1>,
}

/// Bytes of the scales of rows that arrive, which lie outside of the window.
fn scale_bytes(ranks: usize, nodes: usize, shape: Shape, payload: Payload) -> u64 {
    if nodes > 1 {
        return 0;
    }
    let scales = ranks * shape.max_tokens * shape.hidden.div_ceil(128);
    match payload {
        Payload::Bf16 => 0,
        Payload::Fp8 => 4 * scales as u64,
        Payload::Fp8Packed => scales as u64,
    }
}

/// The number of warps that take the rows of a rank in turn, if they come over a network: `usual`, but no more than there
/// are rows. Between many ranks there are fewer, because a warp looks for rows of each rank.
fn shares(ranks: usize, max_tokens: usize, usual: i64) -> i64 {
    let (rows, most) = (max_tokens.max(1).next_power_of_two(), 2048 / ranks.next_power_of_two());
    (rows.min(most) as i64).clamp(4, usual)
}

/// The choices of a dispatch between so many ranks of so many nodes.
fn choices(
    (ranks, nodes): (usize, usize),
    shape: Shape,
    payload: Payload,
    weights: Weights,
) -> (packed_dispatch::Shape, packed_dispatch::Options) {
    let Shape { hidden, topk, experts, max_tokens } = shape;
    let tokens = max_tokens;
    let shape = packed_dispatch::Shape { nodes, hidden, topk, experts, max_tokens, tokens };
    let via = match nodes {
        1 => packed_dispatch::Via::Direct,
        _ => packed_dispatch::Via::Slots,
    };
    let shares = (nodes > 1).then(|| shares(ranks, max_tokens, 64));
    let options = packed_dispatch::Options {
        payload: of_dispatch(payload),
        via,
        tunes: packed_dispatch::TuneOptions { shares, ..Default::default() },
        topk_weights: weights == Weights::AtDispatch,
        ..Default::default()
    };
    (shape, options)
}

/// The choices of a combine between so many ranks of so many nodes.
fn combine_choices(
    (ranks, nodes): (usize, usize),
    shape: Shape,
    weights: Weights,
) -> (merge_combine::Shape, merge_combine::Options) {
    let Shape { hidden, topk, experts, max_tokens } = shape;
    let tokens = max_tokens;
    let shape = merge_combine::Shape { nodes, hidden, topk, experts, max_tokens, tokens };
    let via = match (nodes, weights) {
        (1, Weights::AtDispatch) => merge_combine::Via::Direct,
        (1, Weights::AtCombine) => merge_combine::Via::Spread,
        (_, Weights::AtDispatch) => merge_combine::Via::Slots,
        (_, Weights::AtCombine) => merge_combine::Via::Asked,
    };
    let shares = (nodes > 1).then(|| shares(ranks, max_tokens, 128));
    let tunes = merge_combine::TuneOptions { shares, ..Default::default() };
    (shape, merge_combine::Options { via, tunes, ..Default::default() })
}

impl PerRank {
    /// Bytes that the kernels take on each rank of a machine of so many nodes: of device memory, and of rows that pass
    /// through a network. Allocates nothing.
    pub fn bytes(
        machine: &Machine,
        nodes: usize,
        shape: Shape,
        payload: Payload,
        weights: Weights,
    ) -> Result<(u64, u64), CallError> {
        let (own, options) = choices((machine.ranks, nodes), shape, payload, weights);
        let entry = AnyPipeline::of::<PackedDispatch>();
        let dispatch =
            packed_dispatch::Kernel::chosen(&own, &options, |it| both_bytes(machine, &entry, it))?;
        let (own, options) = combine_choices((machine.ranks, nodes), shape, weights);
        let entry = AnyPipeline::of::<MergeCombine>();
        let combine =
            merge_combine::Kernel::chosen(&own, &options, |it| both_bytes(machine, &entry, it))?;
        let scales = scale_bytes(machine.ranks, nodes, shape, payload);
        Ok((dispatch.0 + scales + combine.0, dispatch.1 + combine.1))
    }

    /// Emits, compiles and loads the kernels, on all ranks of the group together.
    pub fn prepare(
        group: &Group,
        shape: Shape,
        payload: Payload,
        weights: Weights,
    ) -> Result<PerRank, CallError> {
        let (own, options) = choices((group.ranks(), group.nodes()), shape, payload, weights);
        let dispatch = PackedDispatch::prepare(group, own, options)?;
        let (own, options) = combine_choices((group.ranks(), group.nodes()), shape, weights);
        let combine = MergeCombine::prepare(group, own, options)?;
        let passing = |rank| {
            let packed_dispatch::Outputs { came, rows_records, .. } = dispatch.outputs(rank)?;
            Ok(Passing { came, records: rows_records })
        };
        let ranks = group.local().map(passing).collect::<Result<_, CallError>>()?;
        Ok(PerRank { dispatch, combine, weights, group: group.clone(), shape, payload, ranks })
    }

    /// Allocates memory for the outputs of a rank's dispatches, which its experts read.
    pub fn outputs(&self, rank: usize) -> Result<Outputs, CallError> {
        let [lists, rows, hidden] = self.packed();
        let codes = || DeviceTensor::zeros(&self.group, rank, [lists, rows, hidden]);
        let blocks = [lists, rows, hidden.div_ceil(128)];
        let packed_x = match self.payload {
            Payload::Bf16 => {
                let x = DeviceTensor::zeros(&self.group, rank, [lists, rows, hidden])?;
                PayloadTensor::Bf16 { x }
            }
            Payload::Fp8 => {
                let scale = DeviceTensor::zeros(&self.group, rank, blocks)?;
                PayloadTensor::Fp8 { x: codes()?, scale }
            }
            Payload::Fp8Packed => {
                let scale = DeviceTensor::zeros(&self.group, rank, blocks)?;
                PayloadTensor::Fp8Packed { x: codes()?, scale }
            }
        };
        Ok(Outputs {
            packed_x,
            packed_count: DeviceTensor::zeros(&self.group, rank, [lists])?,
            statistics: Some(DeviceTensor::zeros(&self.group, rank, [lists])?),
            wait_ns: None,
            arrived_rows: None,
            arrived_parts: None,
        })
    }

    /// Allocates memory for the tables of a rank's dispatches, which their combines read.
    pub fn tables(&self, rank: usize) -> Result<Tables, CallError> {
        self.dispatch.tables(rank)
    }

    /// Bytes of device memory that the kernels take on each rank.
    pub fn device_bytes(&self) -> u64 {
        let (ranks, nodes) = (self.group.ranks(), self.group.nodes());
        let scales = scale_bytes(ranks, nodes, self.shape, self.payload);
        self.dispatch.core.device_bytes() + scales + self.combine.core.device_bytes()
    }

    /// Sends the row of each token to the ranks of its experts, which pack it for each expert. If the
    /// weights come with the rows, the combine needs no extra exchange between ranks.
    pub fn dispatch(
        &self,
        rank: usize,
        call: &CallOptions,
        inputs: &Inputs,
        topk_weights: Option<&DeviceTensor<f32, 2>>,
        outputs: &Outputs,
        tables: &Tables,
    ) -> Result<Dispatched, CallError> {
        let [tokens, _] = inputs.x.extents();
        if outputs.wait_ns.is_some() {
            return Err(mismatch(
                "rows that travel once per rank do not measure how long each rank was waited for",
            ));
        }
        self.check_weights("dispatch", Weights::AtDispatch, topk_weights)?;
        self.group.check(rank)?;
        let tables = first(tables, tokens as usize);
        let rows = packed_dispatch::Inputs {
            x: inputs.x.clone(),
            topk_idx: inputs.topk_idx.clone(),
            topk_weights: topk_weights.cloned(),
            expert_begin: inputs.expert_begin.clone(),
        };
        let passing = &self.ranks[self.group.local_index(rank)?];
        let made = packed_dispatch::Outputs {
            came: passing.came.clone(),
            rows_records: passing.records.clone(),
            packed_x: (&outputs.packed_x).into(),
            packed_count: outputs.packed_count.clone(),
            statistics: outputs.statistics.clone(),
        };
        let args = packed_dispatch::Args::default();
        let bound = self.dispatch.bind_into(rank, call, &rows, &made, &args, &tables)?;
        let kept = || Box::new((rows.clone(), made.clone(), tables.clone()));
        self.group.launch(rank, call, [&bound], || kept())?;
        let (topk_idx, expert_begin) = (rows.topk_idx.clone(), rows.expert_begin.clone());
        Ok(Dispatched { tables, topk_idx, expert_begin })
    }

    /// Sums the rows that the experts made of each token. The weights come with the dispatch or with this
    /// call.
    pub fn combine(
        &self,
        rank: usize,
        call: &CallOptions,
        rows: &DeviceTensor<Bf16, 3>,
        topk_weights: Option<&DeviceTensor<f32, 2>>,
        sent: &Dispatched,
        combined: &DeviceTensor<Bf16, 2>,
    ) -> Result<(), CallError> {
        fits("rows", rows.extents(), self.packed().map(|extent| extent as u64))?;
        let uneven = || mismatch("the rows of `rows` are not equally far apart");
        let list = rows.as_list().ok_or_else(uneven)?;
        self.check_weights("combine", Weights::AtCombine, topk_weights)?;
        self.group.check(rank)?;
        let tokens = sent.topk_idx.extents()[0] as usize;
        let is_spread = self.weights == Weights::AtCombine && self.group.nodes() == 1;
        let inputs = merge_combine::Inputs {
            x: list,
            topk_idx: topk_weights.map(|_| sent.topk_idx.clone()),
            topk_weights: topk_weights.cloned(),
            expert_begin: is_spread.then(|| sent.expert_begin.clone()),
        };
        let outputs = merge_combine::Outputs { combined: combined.clone() };
        let args = merge_combine::Args { tokens, tokens_from: None };
        let (kernel, none) = (&self.combine, merge_combine::Handle::default());
        let bound = kernel.bind_into(rank, call, &inputs, &outputs, &sent.tables, &args, &none)?;
        let kept = || {
            let given = (rows.clone(), topk_weights.cloned(), combined.clone());
            Box::new((given, sent.clone()))
        };
        self.group.launch(rank, call, [&bound], || kept())
    }

    /// Refuses a call that brings weights which the other one brings, or none that it has to bring.
    fn check_weights(
        &self,
        call: &str,
        at: Weights,
        given: Option<&DeviceTensor<f32, 2>>,
    ) -> Result<(), CallError> {
        let are_due = self.weights == at;
        if given.is_some() == are_due {
            return Ok(());
        }
        let due = if are_due { "have to" } else { "do not" };
        Err(mismatch(&format!("`topk_weights` {due} come with the {call}")))
    }

    /// Extents of the packed rows.
    fn packed(&self) -> [usize; 3] {
        let (Shape { hidden, experts, max_tokens, .. }, ranks) = (self.shape, self.group.ranks());
        [experts.div_ceil(ranks), ranks * max_tokens, hidden]
    }
}

/// Bytes of a kernel: of device memory, and of rows that pass through a network.
fn both_bytes(
    machine: &Machine,
    entry: &AnyPipeline,
    chosen: &PrepareOptions<'_>,
) -> Result<(u64, u64), CallError> {
    let device = CallKernel::bytes(machine, entry, chosen)?;
    Ok((device, CallKernel::network_bytes(machine, entry, chosen)?))
}

/// The tables of a call of so many tokens.
fn first(tables: &Tables, tokens: usize) -> Tables {
    Tables {
        send_row: tables.send_row.first(tokens),
        send_turn: tables.send_turn.first(tokens),
        send_place: tables.send_place.first(tokens),
        places: tables.places.first(tokens),
        turns: tables.turns.first(tokens),
        ..tables.clone()
    }
}

/// The payload as the kernel calls it.
fn of_dispatch(payload: Payload) -> packed_dispatch::Payload {
    match payload {
        Payload::Bf16 => packed_dispatch::Payload::Bf16,
        Payload::Fp8 => packed_dispatch::Payload::Fp8,
        Payload::Fp8Packed => packed_dispatch::Payload::Fp8Packed,
    }
}

/// Refuses a tensor of another shape.
fn fits<const RANK: usize>(
    name: &str,
    extents: [u64; RANK],
    wanted: [u64; RANK],
) -> Result<(), CallError> {
    if extents == wanted {
        return Ok(());
    }
    Err(mismatch(&format!("`{name}` has extents {extents:?}, and needs {wanted:?}")))
}

fn mismatch(what: &str) -> CallError {
    CallError::Mismatch { what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBackend;
    use crate::group::GroupOptions;

    #[test]
    fn few_warps_look_for_the_rows_of_each_of_many_ranks() {
        assert_eq!([16, 32, 256, 1024].map(|ranks| shares(ranks, 128, 128)), [128, 64, 8, 4]);
        assert_eq!([1, 9, 128].map(|tokens| shares(16, tokens, 64)), [4, 16, 64]);
    }

    #[test]
    fn a_call_that_is_refused_has_launched_nothing() {
        let backend = FakeBackend::new(1);
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let shape = Shape { hidden: 256, topk: 2, experts: 4, max_tokens: 8 };
        let calls = PerRank::prepare(&group, shape, Payload::Fp8, Weights::AtDispatch).unwrap();
        let inputs = Inputs {
            x: DeviceTensor::zeros(&group, 0, [3, 256]).unwrap(),
            topk_idx: DeviceTensor::zeros(&group, 0, [3, 2]).unwrap(),
            expert_begin: DeviceTensor::from_slice(&group, 0, [2], &[0, 4]).unwrap(),
        };
        let weights = DeviceTensor::zeros(&group, 0, [3, 2]).unwrap();
        let (outputs, tables) = (calls.outputs(0).unwrap(), calls.tables(0).unwrap());
        let call = CallOptions::sms(12);
        let launches = |outputs: &Outputs| {
            backend.asked();
            let made = calls.dispatch(0, &call, &inputs, Some(&weights), outputs, &tables);
            let asked = backend.asked();
            let launches = asked.iter().filter(|it| **it == "launch").count();
            (made.err().map(|error| error.to_string()), launches)
        };
        // What the kernel leaves.
        let packed_count = outputs.packed_count.first(3);
        let (refused, launched) = launches(&Outputs { packed_count, ..outputs.clone() });
        assert!(refused.is_some_and(|it| it.contains("`packed_count`")));
        assert_eq!(launched, 0);
        assert_eq!(launches(&outputs), (None, 1), "rows are cast, sent and packed at once");
    }
}
