//! Low-latency calls whose rows travel once for each rank, and not once for each expert.
//!
//! A token of eight experts on few ranks has several of them on each: [`PerRank`] sends its row there once, packs it by
//! expert where it arrives, and adds up there what the experts made of it, so that one row comes back from each rank.
//! Calls take and leave what those of `low-latency-dispatch` and `low-latency-combine` do. They run in one go, within a
//! node, and wait for every rank: phases, networks and ranks that are left out are for the others.
//!
//! The calls of one rank run one after another: the rows on their way are in memory of the kernels. What a dispatch
//! leaves is the caller's, so that several may wait for their combines.
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
use crate::error::CallError;
use crate::group::Group;
use crate::pipelines::low_latency_dispatch::{Inputs, Outputs, Payload, PayloadTensor};
use crate::pipelines::{
    Cast, DecodeCombine, DecodeDispatch, Merge, Pack, Weigh, cast, decode_combine, decode_dispatch,
    merge, pack, weigh,
};
use crate::tensor::{Bf16, DeviceTensor};

/// The numbers of such calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Values of a row.
    pub hidden: usize,
    /// Experts of a token, at most.
    pub topk: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// The most tokens of a rank in a call.
    pub max_tokens: usize,
}

/// What call brings the weights of the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// The dispatch: they travel with the rows.
    AtDispatch,
    /// The combine, which takes them to the ranks of the experts first.
    AtCombine,
}

/// The kernels of dispatches and of their combines, and the memory that rows pass through.
pub struct PerRank {
    cast: Option<cast::Kernel>,
    dispatch: decode_dispatch::Kernel,
    pack: pack::Kernel,
    back: Back,
    group: Group,
    shape: Shape,
    ranks: Vec<Passing>,
}

/// The kernels of combines.
struct Back {
    weigh: Option<weigh::Kernel>,
    merge: merge::Kernel,
    combine: decode_combine::Kernel,
}

/// What passes through a rank.
struct Passing {
    made: Option<cast::Outputs>,
    received: decode_dispatch::Outputs,
    merged: merge::Outputs,
}

/// What a dispatch leaves for its combine.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// Where rows have gone.
    pub routes: decode_dispatch::Handle,
    /// Where they are packed.
    pub places: pack::Handle,
}

/// A dispatch that has been launched.
#[derive(Debug, Clone)]
pub struct Dispatched {
    tables: Tables,
    tokens: usize,
}

impl PerRank {
    /// Emits, compiles and loads the kernels, on all ranks of the group together.
    pub fn prepare(
        group: &Group,
        shape: Shape,
        payload: Payload,
        weights: Weights,
    ) -> Result<PerRank, CallError> {
        let Shape { hidden, topk, experts, max_tokens } = shape;
        let at_dispatch = weights == Weights::AtDispatch;
        let (tokens, received) = (max_tokens, group.ranks() * max_tokens);
        let (of_cast, of_dispatch, of_pack) = payloads(payload);
        let cast = of_cast.map(|payload| {
            let options = cast::Options { payload, ..Default::default() };
            Cast::prepare(group, cast::Shape { hidden, tokens }, options)
        });
        let cast = cast.transpose()?;
        let own = decode_dispatch::Shape { hidden, topk, experts, max_tokens, tokens };
        let options = decode_dispatch::Options {
            payload: of_dispatch,
            topk_weights: at_dispatch,
            recv_topk_weights: at_dispatch,
            received: false,
            received_per_expert: false,
            ..Default::default()
        };
        let dispatch = DecodeDispatch::prepare(group, own, options)?;
        let own = pack::Shape { hidden, topk, experts, max_tokens, received };
        let options =
            pack::Options { payload: of_pack, weights: at_dispatch, ..Default::default() };
        let pack = Pack::prepare(group, own, options)?;
        let back = Back::prepare(group, shape, weights)?;
        let passing = |rank| {
            Ok(Passing {
                made: cast.as_ref().map(|cast| cast.outputs(rank)).transpose()?,
                received: dispatch.outputs(rank)?,
                merged: back.merge.outputs(rank)?,
            })
        };
        let ranks = group.local().map(passing).collect::<Result<_, CallError>>()?;
        Ok(PerRank { cast, dispatch, pack, back, group: group.clone(), shape, ranks })
    }

    /// Memory for what dispatches of a rank leave its experts.
    pub fn outputs(&self, rank: usize) -> Result<Outputs, CallError> {
        let pack::Outputs { packed_x, packed_count, statistics } = self.pack.outputs(rank)?;
        let packed_x = match packed_x {
            pack::PayloadTensor::Bf16 { x } => PayloadTensor::Bf16 { x },
            pack::PayloadTensor::Fp8 { x, scale } => PayloadTensor::Fp8 { x, scale },
            pack::PayloadTensor::Fp8Packed { x, scale } => PayloadTensor::Fp8Packed { x, scale },
        };
        Ok(Outputs { packed_x, packed_count, statistics, wait_ns: None })
    }

    /// Memory for what they leave their combines.
    pub fn tables(&self, rank: usize) -> Result<Tables, CallError> {
        Ok(Tables { routes: self.dispatch.tables(rank)?, places: self.pack.tables(rank)? })
    }

    /// Bytes of the windows on a rank: the local kernels need none.
    pub fn window_bytes(&self) -> i64 {
        let weigh = self.back.weigh.as_ref().map(|it| it.core.plan());
        let plans = [self.dispatch.core.plan(), self.back.combine.core.plan()];
        plans.into_iter().chain(weigh).map(|plan| plan.window_bytes).sum()
    }

    /// Sends the row of each token to the ranks of its experts, which pack it for each of these. Weights that come
    /// with the rows spare the combine a way between ranks.
    pub fn dispatch(
        &self,
        rank: usize,
        call: &CallOptions,
        inputs: &Inputs,
        topk_weights: Option<&DeviceTensor<f32, 2>>,
        outputs: &Outputs,
        tables: &Tables,
    ) -> Result<Dispatched, CallError> {
        let passing = &self.ranks[self.group.local_index(rank)?];
        let [tokens, _] = inputs.x.extents();
        self.check_outputs(outputs)?;
        self.check_weights(topk_weights, self.back.weigh.is_none(), ("dispatch", tokens))?;
        let tables = tables.first(tokens as usize);
        let [first, last] = ends(call);
        let rows = decode_dispatch::Inputs {
            x: self.cast(rank, &first, &inputs.x, passing)?,
            topk_idx: inputs.topk_idx.clone(),
            topk_weights: topk_weights.cloned(),
            expert_begin: inputs.expert_begin.clone(),
        };
        let begins = if self.cast.is_some() { between(call) } else { first };
        let args = decode_dispatch::Args { alignment: 1, ..Default::default() };
        let (received, routes) = (&passing.received, &tables.routes);
        self.dispatch.launch_into(rank, &begins, &rows, received, &args, routes)?;
        let inputs = pack::Inputs {
            x: came(received),
            expert_idx: received.recv_topk_idx.clone(),
            weights: received.recv_topk_weights.clone(),
        };
        let packed = pack::Outputs {
            packed_x: packed(&outputs.packed_x),
            packed_count: outputs.packed_count.clone(),
            statistics: outputs.statistics.clone(),
        };
        self.pack.launch_into(rank, &last, &inputs, &packed, routes, &tables.places)?;
        Ok(Dispatched { tables, tokens: tokens as usize })
    }

    /// The rows of a call as they travel.
    fn cast(
        &self,
        rank: usize,
        call: &CallOptions,
        x: &DeviceTensor<Bf16, 2>,
        passing: &Passing,
    ) -> Result<decode_dispatch::PayloadTensor<2>, CallError> {
        use decode_dispatch::PayloadTensor as Sent;
        let (Some(kernel), Some(made)) = (&self.cast, &passing.made) else {
            return Ok(Sent::Bf16 { x: x.clone() });
        };
        let tokens = x.extents()[0] as usize;
        let made = match &made.made {
            cast::PayloadTensor::Fp8 { x, scale } => {
                cast::PayloadTensor::Fp8 { x: x.first(tokens), scale: scale.first(tokens) }
            }
            cast::PayloadTensor::Fp8Packed { x, scale } => {
                cast::PayloadTensor::Fp8Packed { x: x.first(tokens), scale: scale.first(tokens) }
            }
        };
        let (inputs, outputs) =
            (cast::Inputs { x: x.clone() }, cast::Outputs { made: made.clone() });
        kernel.launch(rank, call, &inputs, &outputs, &cast::Args::default())?;
        Ok(match made {
            cast::PayloadTensor::Fp8 { x, scale } => Sent::Fp8 { x, scale },
            cast::PayloadTensor::Fp8Packed { x, scale } => Sent::Fp8Packed { x, scale },
        })
    }

    /// Adds up what the experts of each rank made of a row, and what comes back of each token. The weights come with
    /// the dispatch or here.
    pub fn combine(
        &self,
        rank: usize,
        call: &CallOptions,
        rows: &DeviceTensor<Bf16, 3>,
        topk_weights: Option<&DeviceTensor<f32, 2>>,
        sent: &Dispatched,
        combined: &DeviceTensor<Bf16, 2>,
    ) -> Result<(), CallError> {
        let merged = &self.ranks[self.group.local_index(rank)?].merged;
        let (tokens, hidden) = (sent.tokens as u64, self.shape.hidden as u64);
        let Back { weigh, merge, combine } = &self.back;
        fits("rows", rows.extents(), self.packed())?;
        let uneven = || mismatch("the rows of `rows` lie unequally far apart");
        let list = rows.as_list().ok_or_else(uneven)?;
        fits("combined", combined.extents(), [tokens, hidden])?;
        self.check_weights(topk_weights, weigh.is_some(), ("combine", tokens))?;
        let Tables { routes, places } = &sent.tables;
        let [mut begins, last] = ends(call);
        if let (Some(weigh), Some(weights)) = (weigh, topk_weights) {
            let inputs = weigh::Inputs { topk_weights: weights.clone() };
            let outputs = weigh::Outputs { weight: places.packed_weight.clone() };
            let args = weigh::Args::default();
            weigh.launch(rank, &begins, &inputs, &outputs, routes, places, &args)?;
            begins = between(call);
        }
        merge.launch(rank, &begins, &merge::Inputs { x: list }, merged, routes, places)?;
        let x = merged.merged.clone();
        let inputs = decode_combine::Inputs { x, weights: None, bias: [None, None] };
        let combined = combined.clone();
        let outputs = decode_combine::Outputs { combined, combined_weights: None };
        let args = decode_combine::Args { tokens: sent.tokens, tokens_from: None };
        combine.launch(rank, &last, &inputs, &outputs, routes, &args).map(drop)
    }

    /// Extents of the packed rows.
    fn packed(&self) -> [u64; 3] {
        let (Shape { hidden, experts, max_tokens, .. }, ranks) = (self.shape, self.group.ranks());
        [experts.div_ceil(ranks), ranks * max_tokens, hidden].map(|extent| extent as u64)
    }

    /// Refuses outputs of another shape before anything is launched.
    fn check_outputs(&self, outputs: &Outputs) -> Result<(), CallError> {
        if outputs.wait_ns.is_some() {
            return Err(mismatch(
                "rows that travel once for each rank do not tell how long ranks were waited for",
            ));
        }
        let extents = match &outputs.packed_x {
            PayloadTensor::Bf16 { x } => x.extents(),
            PayloadTensor::Fp8 { x, .. } | PayloadTensor::Fp8Packed { x, .. } => x.extents(),
        };
        fits("packed_x", extents, self.packed())
    }

    /// Refuses weights that the other call brings, and a call without those that it has to bring.
    fn check_weights(
        &self,
        weights: Option<&DeviceTensor<f32, 2>>,
        are_due: bool,
        (call, tokens): (&str, u64),
    ) -> Result<(), CallError> {
        match weights {
            Some(weights) if are_due => {
                fits("topk_weights", weights.extents(), [tokens, self.shape.topk as u64])
            }
            None if !are_due => Ok(()),
            Some(_) => Err(mismatch(&format!("`topk_weights` do not come with the {call}"))),
            None => Err(mismatch(&format!("`topk_weights` have to come with the {call}"))),
        }
    }
}

impl Back {
    fn prepare(group: &Group, shape: Shape, weights: Weights) -> Result<Back, CallError> {
        let Shape { hidden, topk, experts, max_tokens } = shape;
        let (tokens, received) = (max_tokens, group.ranks() * max_tokens);
        let weigh = (weights == Weights::AtCombine).then(|| {
            let shape = weigh::Shape { topk, experts, max_tokens, tokens, received };
            Weigh::prepare(group, shape, weigh::Options::default())
        });
        let weigh = weigh.transpose()?;
        let shape = merge::Shape { hidden, topk, experts, max_tokens, received };
        let merge = Merge::prepare(group, shape, merge::Options::default())?;
        let shape = decode_combine::Shape { hidden, topk, max_tokens, tokens, received };
        let options = decode_combine::Options {
            weights: false,
            combined_weights: false,
            bias: 0,
            ..Default::default()
        };
        let combine = DecodeCombine::prepare(group, shape, options)?;
        Ok(Back { weigh, merge, combine })
    }
}

impl Tables {
    /// Those of a call of so many tokens.
    fn first(&self, tokens: usize) -> Tables {
        let mut own = self.clone();
        own.routes.send_row = own.routes.send_row.first(tokens);
        own
    }
}

/// The payload as each kernel calls it.
fn payloads(payload: Payload) -> (Option<cast::Payload>, decode_dispatch::Payload, pack::Payload) {
    use decode_dispatch::Payload as Sent;
    match payload {
        Payload::Bf16 => (None, Sent::Bf16, pack::Payload::Bf16),
        Payload::Fp8 => (Some(cast::Payload::Fp8), Sent::Fp8, pack::Payload::Fp8),
        Payload::Fp8Packed => {
            (Some(cast::Payload::Fp8Packed), Sent::Fp8Packed, pack::Payload::Fp8Packed)
        }
    }
}

/// What has come, as it is packed.
fn came(received: &decode_dispatch::Outputs) -> pack::PayloadTensor<2> {
    use decode_dispatch::PayloadTensor as Sent;
    match received.recv_x.clone() {
        Sent::Bf16 { x } => pack::PayloadTensor::Bf16 { x },
        Sent::Fp8 { x, scale } => pack::PayloadTensor::Fp8 { x, scale },
        Sent::Fp8Packed { x, scale } => pack::PayloadTensor::Fp8Packed { x, scale },
    }
}

/// Packed rows, as `pack` calls them.
fn packed(x: &PayloadTensor<3>) -> pack::PayloadTensor<3> {
    match x.clone() {
        PayloadTensor::Bf16 { x } => pack::PayloadTensor::Bf16 { x },
        PayloadTensor::Fp8 { x, scale } => pack::PayloadTensor::Fp8 { x, scale },
        PayloadTensor::Fp8Packed { x, scale } => pack::PayloadTensor::Fp8Packed { x, scale },
    }
}

/// How the first and the last kernel of a call run: only these have its events.
fn ends(call: &CallOptions) -> [CallOptions; 2] {
    [CallOptions { done: None, ..*call }, CallOptions { after: None, ..*call }]
}

/// How those between them run.
fn between(call: &CallOptions) -> CallOptions {
    CallOptions { after: None, done: None, ..*call }
}

/// Refuses a tensor of another shape before anything is launched.
fn fits<const RANK: usize>(
    name: &str,
    extents: [u64; RANK],
    wanted: [u64; RANK],
) -> Result<(), CallError> {
    if extents == wanted {
        return Ok(());
    }
    Err(mismatch(&format!("`{name}` is {extents:?}, and has to be {wanted:?}")))
}

fn mismatch(what: &str) -> CallError {
    CallError::Mismatch { what: what.to_owned() }
}
