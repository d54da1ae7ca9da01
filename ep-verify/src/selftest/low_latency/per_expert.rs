//! Rows that travel once for each of their experts.

use std::sync::Arc;

use ep_runtime::buffer::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipelines::{
    LowLatencyCombine, LowLatencyDispatch, low_latency_combine as combine,
    low_latency_dispatch as dispatch,
};
use ep_runtime::tensor::DeviceTensor;

use super::{Calls, Given, Left, LowLatencyCase};

/// The two kernels.
pub(super) struct Kernels {
    dispatch: dispatch::Kernel,
    combine: combine::Kernel,
}

/// The calls of one rank.
struct PerExpert {
    kernels: Arc<Kernels>,
    rank: usize,
    given: Given,
    came: dispatch::Outputs,
    tables: dispatch::Handle,
    back: combine::Inputs,
    sums: combine::Outputs,
}

impl Kernels {
    pub(super) fn prepare(group: &Group, case: &LowLatencyCase) -> Result<Arc<Kernels>, CallError> {
        let LowLatencyCase { tokens, hidden, topk, experts, payload, .. } = *case;
        let (nodes, max_tokens) = (group.nodes(), tokens);
        let shape = dispatch::Shape { nodes, hidden, topk, experts, max_tokens, tokens };
        let options = dispatch::Options { payload, ..Default::default() };
        let dispatch = LowLatencyDispatch::prepare(group, shape, options)?;
        let shape = combine::Shape { nodes, hidden, topk, experts, max_tokens, tokens };
        let combine = LowLatencyCombine::prepare(group, shape, combine::Options::default())?;
        Ok(Arc::new(Kernels { dispatch, combine }))
    }

    /// The calls of a rank, which read what it is `given`.
    pub(super) fn of_rank(
        self: &Arc<Kernels>,
        group: &Group,
        case: &LowLatencyCase,
        rank: usize,
        given: &Given,
    ) -> Result<Box<dyn Calls>, CallError> {
        let Given { topk_idx, topk_weights, expert_begin, .. } = given.clone();
        let (local, rows) = case.packed(group.ranks());
        let back = combine::Inputs {
            x: DeviceTensor::zeros(group, rank, [local, rows, case.hidden])?,
            topk_idx,
            topk_weights,
            expert_begin,
            expert_done: None,
            tile_done: None,
        };
        Ok(Box::new(PerExpert {
            kernels: Arc::clone(self),
            rank,
            given: given.clone(),
            came: self.dispatch.outputs(rank)?,
            tables: self.dispatch.tables(rank)?,
            back,
            sums: self.combine.outputs(rank)?,
        }))
    }
}

impl Calls for PerExpert {
    fn send_rows(&self, call: &CallOptions, tokens: usize, apart: bool) -> Result<(), CallError> {
        let inputs = self.given.inputs(tokens);
        let (kernel, args) = (&self.kernels.dispatch, dispatch::Args::default());
        if !apart {
            return kernel.launch_into(self.rank, call, &inputs, &self.came, &args, &self.tables);
        }
        let sent = kernel.send_into(self.rank, call, &inputs, &self.came, &args, &self.tables)?;
        sent.recv(call).map(drop)
    }

    fn send_back(&self, call: &CallOptions, tokens: usize, apart: bool) -> Result<(), CallError> {
        let inputs = combine::Inputs {
            x: self.back.x.clone(),
            topk_idx: self.back.topk_idx.first(tokens),
            topk_weights: self.back.topk_weights.first(tokens),
            expert_begin: self.back.expert_begin.clone(),
            expert_done: None,
            tile_done: None,
        };
        let combined = self.sums.combined.first(tokens);
        let outputs = combine::Outputs { combined, wait_ns: None };
        let (kernel, args) = (&self.kernels.combine, combine::Args::default());
        if !apart {
            let done = kernel.launch(self.rank, call, &inputs, &outputs, &self.tables, &args);
            return done.map(drop);
        }
        let sent = kernel.send(self.rank, call, &inputs, &outputs, &self.tables, &args)?;
        sent.recv(call).map(drop)
    }

    fn left(&self) -> Left {
        let of = &self.tables;
        let tables = [&of.src_info, &of.range_first, &of.range_count];
        Left::of(&self.came, tables, &self.back.x, &self.sums.combined)
    }

    #[cfg(test)]
    fn spoil_made(&self) {
        self.back.x.fill(0).unwrap();
    }
}
