//! Rows that travel once for each rank, and sums that come back once from each.

use std::sync::Arc;

use ep_runtime::buffer::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipelines::{
    Cast, DecodeCombine, DecodeDispatch, Merge, Pack, cast, decode_combine, decode_dispatch,
    low_latency_dispatch::Payload, merge, pack,
};
use ep_runtime::tensor::{Bf16, DeviceTensor};

use super::{Calls, Given, Left, LowLatencyCase};

/// The kernels of a dispatch and of its combine, in order.
pub(super) struct Kernels {
    cast: Option<cast::Kernel>,
    dispatch: decode_dispatch::Kernel,
    pack: pack::Kernel,
    merge: merge::Kernel,
    combine: decode_combine::Kernel,
}

/// The calls of one rank.
struct PerRank {
    kernels: Arc<Kernels>,
    rank: usize,
    given: Given,
    made: Option<cast::Outputs>,
    received: decode_dispatch::Outputs,
    routes: decode_dispatch::Handle,
    packed: pack::Outputs,
    places: pack::Handle,
    /// What the experts make of the packed rows.
    x: DeviceTensor<Bf16, 2>,
    merged: merge::Outputs,
    sums: decode_combine::Outputs,
}

impl Kernels {
    pub(super) fn prepare(group: &Group, case: &LowLatencyCase) -> Result<Arc<Kernels>, CallError> {
        let LowLatencyCase { tokens, hidden, topk, experts, payload, .. } = *case;
        let (max_tokens, received) = (tokens, group.ranks() * tokens);
        let (of_cast, of_dispatch, of_pack) = payloads(payload);
        let cast = of_cast.map(|payload| {
            let options = cast::Options { payload, ..Default::default() };
            Cast::prepare(group, cast::Shape { hidden, tokens }, options)
        });
        let shape = decode_dispatch::Shape { hidden, topk, experts, max_tokens, tokens };
        let options = decode_dispatch::Options {
            payload: of_dispatch,
            received: false,
            received_per_expert: false,
            ..Default::default()
        };
        let dispatch = DecodeDispatch::prepare(group, shape, options)?;
        let shape = pack::Shape { hidden, topk, experts, max_tokens, received };
        let options = pack::Options { payload: of_pack, ..Default::default() };
        let pack = Pack::prepare(group, shape, options)?;
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
        Ok(Arc::new(Kernels { cast: cast.transpose()?, dispatch, pack, merge, combine }))
    }

    /// The calls of a rank, which read what it is `given`.
    pub(super) fn of_rank(
        self: &Arc<Kernels>,
        group: &Group,
        case: &LowLatencyCase,
        rank: usize,
        given: &Given,
    ) -> Result<Box<dyn Calls>, CallError> {
        let (local, rows) = case.packed(group.ranks());
        Ok(Box::new(PerRank {
            kernels: Arc::clone(self),
            rank,
            given: given.clone(),
            made: self.cast.as_ref().map(|cast| cast.outputs(rank)).transpose()?,
            received: self.dispatch.outputs(rank)?,
            routes: self.dispatch.tables(rank)?,
            packed: self.pack.outputs(rank)?,
            places: self.pack.tables(rank)?,
            x: DeviceTensor::zeros(group, rank, [local * rows, case.hidden])?,
            merged: self.merge.outputs(rank)?,
            sums: self.combine.outputs(rank)?,
        }))
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

impl PerRank {
    /// The rows of a call, cast if they travel so.
    fn rows(
        &self,
        call: &CallOptions,
        tokens: usize,
    ) -> Result<decode_dispatch::PayloadTensor<2>, CallError> {
        use decode_dispatch::PayloadTensor as Sent;
        let x = self.given.x.first(tokens);
        let (Some(kernel), Some(made)) = (&self.kernels.cast, &self.made) else {
            return Ok(Sent::Bf16 { x });
        };
        let made = match &made.made {
            cast::PayloadTensor::Fp8 { x, scale } => {
                cast::PayloadTensor::Fp8 { x: x.first(tokens), scale: scale.first(tokens) }
            }
            cast::PayloadTensor::Fp8Packed { x, scale } => {
                cast::PayloadTensor::Fp8Packed { x: x.first(tokens), scale: scale.first(tokens) }
            }
        };
        let outputs = cast::Outputs { made: made.clone() };
        kernel.launch(self.rank, call, &cast::Inputs { x }, &outputs, &cast::Args::default())?;
        Ok(match made {
            cast::PayloadTensor::Fp8 { x, scale } => Sent::Fp8 { x, scale },
            cast::PayloadTensor::Fp8Packed { x, scale } => Sent::Fp8Packed { x, scale },
        })
    }

    /// The tables of a call of so many tokens.
    fn routes(&self, tokens: usize) -> decode_dispatch::Handle {
        let send_row = self.routes.send_row.first(tokens);
        decode_dispatch::Handle { send_row, ..self.routes.clone() }
    }

    /// What has come, as it is packed.
    fn received(&self) -> pack::PayloadTensor<2> {
        use decode_dispatch::PayloadTensor as Sent;
        use pack::PayloadTensor as Packed;
        match self.received.recv_x.clone() {
            Sent::Bf16 { x } => Packed::Bf16 { x },
            Sent::Fp8 { x, scale } => Packed::Fp8 { x, scale },
            Sent::Fp8Packed { x, scale } => Packed::Fp8Packed { x, scale },
        }
    }
}

impl Calls for PerRank {
    fn send_rows(&self, call: &CallOptions, tokens: usize, _apart: bool) -> Result<(), CallError> {
        let (rank, kernels) = (self.rank, &self.kernels);
        let inputs = decode_dispatch::Inputs {
            x: self.rows(call, tokens)?,
            topk_idx: self.given.topk_idx.first(tokens),
            topk_weights: Some(self.given.topk_weights.first(tokens)),
            expert_begin: self.given.expert_begin.clone(),
        };
        let args = decode_dispatch::Args { alignment: 1, ..Default::default() };
        let (dispatch, routes) = (&kernels.dispatch, self.routes(tokens));
        dispatch.launch_into(rank, call, &inputs, &self.received, &args, &routes)?;
        let inputs = pack::Inputs {
            x: self.received(),
            expert_idx: self.received.recv_topk_idx.clone(),
            weights: self.received.recv_topk_weights.clone(),
        };
        kernels.pack.launch_into(rank, call, &inputs, &self.packed, &self.routes, &self.places)
    }

    fn send_back(&self, call: &CallOptions, tokens: usize, _apart: bool) -> Result<(), CallError> {
        let (rank, kernels) = (self.rank, &self.kernels);
        let inputs = merge::Inputs { x: self.x.clone() };
        kernels.merge.launch(rank, call, &inputs, &self.merged, &self.routes, &self.places)?;
        let inputs = decode_combine::Inputs {
            x: self.merged.merged.clone(),
            weights: None,
            bias: [None, None],
        };
        let outputs = decode_combine::Outputs {
            combined: self.sums.combined.first(tokens),
            combined_weights: None,
        };
        let args = decode_combine::Args { tokens, tokens_from: None };
        let routes = self.routes(tokens);
        kernels.combine.launch(rank, call, &inputs, &outputs, &routes, &args).map(drop)
    }

    fn left(&self) -> Left {
        let (packed, scale) = match &self.packed.packed_x {
            pack::PayloadTensor::Bf16 { x } => (x.address(), 0),
            pack::PayloadTensor::Fp8 { x, scale } => (x.address(), scale.address()),
            pack::PayloadTensor::Fp8Packed { x, scale } => (x.address(), scale.address()),
        };
        Left {
            packed,
            scale,
            packed_count: self.packed.packed_count.address(),
            src_info: self.places.src_info.address(),
            range_first: self.places.range_first.address(),
            range_count: self.places.range_count.address(),
            made: self.x.address(),
            combined: self.sums.combined.address(),
        }
    }

    #[cfg(test)]
    fn spoil_made(&self) {
        self.x.fill(0).unwrap();
    }
}
