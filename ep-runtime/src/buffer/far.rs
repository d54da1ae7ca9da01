//! Calls between nodes: rows go in two hops, there and back, by the pipelines `NodeLayout`, `NodeDispatch`
//! and `NodeCombine`.

use super::handles::{Handle, Received};
use super::held::{HeldOffer, HeldOutput, HeldTables};
use super::inputs::DispatchInput;
use super::places::Tables;
use super::standard::StandardPipeline;
use super::{Buffer, CallOptions};
use crate::calls::{BoundCall, CallKernel, Held};
use crate::error::CallError;
use crate::pipelines::{layout, node_combine, node_dispatch, node_layout, nvl_dispatch};
use crate::tensor::{Bf16, DeviceTensor};

/// The kernels between nodes.
pub(super) struct FarKernels {
    pub(super) layout: node_layout::Kernel,
    pub(super) dispatch: node_dispatch::Kernel,
    pub(super) cached: Option<node_dispatch::Kernel>,
    pub(super) combine: node_combine::Kernel,
}

/// What one of them leaves for another.
pub(super) struct FarTables {
    layout: node_layout::Handle,
    dispatch: node_dispatch::Handle,
}

impl FarKernels {
    pub(super) fn new(
        [layout, dispatch, combine]: [CallKernel; 3],
        cached: Option<CallKernel>,
    ) -> FarKernels {
        FarKernels {
            layout: node_layout::Kernel { core: layout },
            dispatch: node_dispatch::Kernel { core: dispatch },
            cached: cached.map(|core| node_dispatch::Kernel { core }),
            combine: node_combine::Kernel { core: combine },
        }
    }

    /// The kernel of a pipeline, if the buffer has it.
    pub(super) fn of(&self, pipeline: StandardPipeline) -> Option<&CallKernel> {
        match pipeline {
            StandardPipeline::NodeLayout => Some(&self.layout.core),
            StandardPipeline::NodeDispatch => Some(&self.dispatch.core),
            StandardPipeline::NodeDispatchCached => self.cached.as_ref().map(|it| &it.core),
            StandardPipeline::NodeCombine => Some(&self.combine.core),
            _ => None,
        }
    }

    /// The tables of a handle. Those that calls within a node leave as well have the same names.
    pub(super) fn tables(&self, rank: usize) -> Result<Tables, CallError> {
        let (layout, dispatch) = (self.layout.tables(rank)?, self.dispatch.tables(rank)?);
        Ok(Tables {
            layout: layout::Handle {
                tokens_per_rank: layout.tokens_per_rank.clone(),
                tokens_per_expert: layout.tokens_per_expert.clone(),
                rank_prefix: layout.rank_prefix.clone(),
                ..Default::default()
            },
            dispatch: nvl_dispatch::Handle {
                recv_src: dispatch.recv_src.clone(),
                recv_first: dispatch.recv_first.clone(),
                recv_count: dispatch.recv_count.clone(),
                ..Default::default()
            },
            one_launch: Default::default(),
            far: Some(FarTables { layout, dispatch }),
        })
    }

    /// An output.
    pub(super) fn outputs(&self, rank: usize) -> Result<nvl_dispatch::Outputs, CallError> {
        let node_dispatch::Outputs { recv_x, recv_topk_idx, recv_topk_weights } =
            self.dispatch.outputs(rank)?;
        let recv_x = nvl_dispatch::PayloadTensor::from(&recv_x);
        Ok(nvl_dispatch::Outputs { recv_x, recv_topk_idx, recv_topk_weights, rows_records: None })
    }

    pub(super) fn hold_counts(
        &self,
        rank: usize,
        counts: &layout::Outputs,
    ) -> Result<Held, CallError> {
        use node_layout::places as at;
        let mut given = node_layout::Kernel::NO_TENSORS;
        at::received.put(&counts.received, &mut given);
        at::received_per_expert.put(&counts.received_per_expert, &mut given);
        self.layout.core.hold(rank, &given)
    }

    pub(super) fn hold_tables(
        &self,
        rank: usize,
        tables: &FarTables,
        expert_begin: &DeviceTensor<i32, 1>,
    ) -> Result<HeldTables, CallError> {
        let dispatch = |kernel| dispatch_tables(rank, kernel, tables, expert_begin);
        Ok(HeldTables {
            layout: self.layout_tables(rank, tables, expert_begin)?,
            dispatch: dispatch(&self.dispatch)?,
            cached: self.cached.as_ref().map(dispatch).transpose()?.unwrap_or_default(),
            combine: self.combine_tables(rank, tables)?,
            ..HeldTables::default()
        })
    }

    fn layout_tables(
        &self,
        rank: usize,
        FarTables { layout: into, .. }: &FarTables,
        expert_begin: &DeviceTensor<i32, 1>,
    ) -> Result<Held, CallError> {
        use node_layout::places as at;
        let mut given = node_layout::Kernel::NO_TENSORS;
        at::expert_begin.put(expert_begin, &mut given);
        at::tokens_per_rank.put(&into.tokens_per_rank, &mut given);
        at::tokens_per_expert.put(&into.tokens_per_expert, &mut given);
        at::node_bits.put(&into.node_bits, &mut given);
        at::node_tokens.put(&into.node_tokens, &mut given);
        at::node_stripes.put(&into.node_stripes, &mut given);
        at::rank_stripes.put(&into.rank_stripes, &mut given);
        at::rank_prefix.put(&into.rank_prefix, &mut given);
        at::rail_prefix.put(&into.rail_prefix, &mut given);
        at::node_prefix.put(&into.node_prefix, &mut given);
        at::rail_first.put(&into.rail_first, &mut given);
        at::rail_count.put(&into.rail_count, &mut given);
        at::forward_first.put(&into.forward_first, &mut given);
        at::forward_count.put(&into.forward_count, &mut given);
        self.layout.core.hold(rank, &given)
    }

    fn combine_tables(&self, rank: usize, tables: &FarTables) -> Result<Held, CallError> {
        use node_combine::places as at;
        let FarTables { layout, dispatch } = tables;
        let mut given = node_combine::Kernel::NO_TENSORS;
        at::rank_prefix.put(&layout.rank_prefix, &mut given);
        at::rail_prefix.put(&layout.rail_prefix, &mut given);
        at::rail_first.put(&layout.rail_first, &mut given);
        at::rail_count.put(&layout.rail_count, &mut given);
        at::recv_first.put(&dispatch.recv_first, &mut given);
        at::recv_count.put(&dispatch.recv_count, &mut given);
        at::send_rail_head.put(&dispatch.send_rail_head, &mut given);
        at::send_inner_head.put(&dispatch.send_inner_head, &mut given);
        self.combine.core.hold(rank, &given)
    }

    pub(super) fn hold_output(
        &self,
        rank: usize,
        outputs: &nvl_dispatch::Outputs,
    ) -> Result<HeldOutput, CallError> {
        use node_dispatch::places as at;
        let x = node_dispatch::PayloadTensor::from(&outputs.recv_x);
        let mut given = node_dispatch::Kernel::NO_TENSORS;
        at::recv_x.put(&x, &mut given);
        let hold_rows = |kernel: &node_dispatch::Kernel| kernel.core.hold(rank, &given);
        let cached = self.cached.as_ref().map(hold_rows).transpose()?.unwrap_or_default();
        at::recv_topk_idx.put(outputs.recv_topk_idx.as_ref(), &mut given);
        at::recv_topk_weights.put(outputs.recv_topk_weights.as_ref(), &mut given);
        let dispatch = self.dispatch.core.hold(rank, &given)?;
        let combine = match &outputs.recv_x {
            nvl_dispatch::PayloadTensor::Bf16 { x } => Some(self.hold_rows(rank, x)?),
            _ => None,
        };
        Ok(HeldOutput { dispatch, cached, combine, ..HeldOutput::default() })
    }

    pub(super) fn hold_offer(
        &self,
        rank: usize,
        x: &DeviceTensor<Bf16, 2>,
        weights: Option<&DeviceTensor<f32, 2>>,
    ) -> Result<HeldOffer, CallError> {
        let mut given = node_combine::Kernel::NO_TENSORS;
        node_combine::places::weights.put(weights, &mut given);
        let weights = self.combine.core.hold(rank, &given)?;
        Ok(HeldOffer { x: self.hold_rows(rank, x)?, weights })
    }

    /// Rows that a combine reads.
    fn hold_rows(&self, rank: usize, x: &DeviceTensor<Bf16, 2>) -> Result<Held, CallError> {
        let mut given = node_combine::Kernel::NO_TENSORS;
        node_combine::places::x.put(x, &mut given);
        self.combine.core.hold(rank, &given)
    }
}

fn dispatch_tables(
    rank: usize,
    kernel: &node_dispatch::Kernel,
    FarTables { layout: from, dispatch: into }: &FarTables,
    expert_begin: &DeviceTensor<i32, 1>,
) -> Result<Held, CallError> {
    use node_dispatch::places as at;
    let mut given = node_dispatch::Kernel::NO_TENSORS;
    at::expert_begin.put(expert_begin, &mut given);
    at::node_bits.put(&from.node_bits, &mut given);
    at::node_tokens.put(&from.node_tokens, &mut given);
    at::rank_prefix.put(&from.rank_prefix, &mut given);
    at::rail_prefix.put(&from.rail_prefix, &mut given);
    at::node_prefix.put(&from.node_prefix, &mut given);
    at::forward_first.put(&from.forward_first, &mut given);
    at::forward_count.put(&from.forward_count, &mut given);
    at::recv_src.put(&into.recv_src, &mut given);
    at::recv_first.put(&into.recv_first, &mut given);
    at::recv_count.put(&into.recv_count, &mut given);
    at::send_rail_head.put(&into.send_rail_head, &mut given);
    at::send_inner_head.put(&into.send_inner_head, &mut given);
    kernel.core.hold(rank, &given)
}

impl Buffer {
    /// Counts and their exchange, between nodes.
    pub(super) fn bind_far_counts<'k>(
        &self,
        far: &'k FarKernels,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<BoundCall<'k>, CallError> {
        use node_layout::{Args, Kernel, places as at};
        let (topk_idx, rank) = (input.topk_idx(self.options()), handle.rank());
        let mut given = Kernel::NO_TENSORS;
        at::topk_idx.put(&topk_idx, &mut given);
        let numbers = Kernel::numbers(&Args { tokens_from: handle.tokens_word() });
        let held = [&handle.memory()?.held.layout, &handle.counts_to()?.counts];
        far.layout.core.bind_with(rank, call, &held, &given, &numbers)
    }

    /// The rows of a dispatch between nodes.
    pub(super) fn bind_far_rows<'k>(
        &self,
        kernel: &'k node_dispatch::Kernel,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
        is_fresh: bool,
    ) -> Result<BoundCall<'k>, CallError> {
        use node_dispatch::{Args, Kernel, PayloadTensor, places as at};
        let options = self.options();
        let x = PayloadTensor::from(input.rows(options));
        let (topk_idx, topk_weights) = (input.topk_idx(options), input.topk_weights(options));
        let mut given = Kernel::NO_TENSORS;
        at::x.put(&x, &mut given);
        let (tables, output) = (&handle.memory()?.held, &received.memory()?.held);
        let mut held = [&tables.cached, &output.cached];
        if is_fresh {
            at::topk_idx.put(&topk_idx, &mut given);
            at::topk_weights.put(topk_weights.as_ref(), &mut given);
            held = [&tables.dispatch, &output.dispatch];
        }
        let numbers = Kernel::numbers(&Args { tokens_from: handle.tokens_word() });
        kernel.core.bind_with(handle.rank(), call, &held, &given, &numbers)
    }
}
