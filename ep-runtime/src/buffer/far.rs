//! Calls between nodes: rows go in two hops, there and back, by the pipelines `NodeLayout`, `NodeDispatch`
//! and `NodeCombine`.

use super::handles::{Handle, Received};
use super::held::{HeldOffer, HeldOutput, HeldTables, hold};
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
        hold!(node_layout, rank, self.layout, [], counts => [received, received_per_expert])
    }

    pub(super) fn hold_tables(
        &self,
        rank: usize,
        FarTables { layout, dispatch }: &FarTables,
        expert_begin: &DeviceTensor<i32, 1>,
    ) -> Result<HeldTables, CallError> {
        let dispatch_tables = |kernel: &node_dispatch::Kernel| {
            hold!(node_dispatch, rank, kernel, [expert_begin: expert_begin],
                layout => [node_bits, node_tokens, rank_prefix, rail_prefix, node_prefix, forward_first, forward_count],
                dispatch => [recv_src, recv_first, recv_count, send_rail_head, send_inner_head])
        };
        let cached = self.cached.as_ref().map(dispatch_tables).transpose()?;
        Ok(HeldTables {
            layout: hold!(node_layout, rank, self.layout, [expert_begin: expert_begin],
                layout => [tokens_per_rank, tokens_per_expert, node_bits, node_tokens, node_stripes, rank_stripes,
                    rank_prefix, rail_prefix, node_prefix, rail_first, rail_count, forward_first, forward_count])?,
            dispatch: dispatch_tables(&self.dispatch)?,
            cached: cached.unwrap_or_default(),
            combine: hold!(node_combine, rank, self.combine, [],
                layout => [rank_prefix, rail_prefix, rail_first, rail_count],
                dispatch => [recv_first, recv_count, send_rail_head, send_inner_head])?,
            ..HeldTables::default()
        })
    }

    pub(super) fn hold_output(
        &self,
        rank: usize,
        outputs: &nvl_dispatch::Outputs,
    ) -> Result<HeldOutput, CallError> {
        let x = node_dispatch::PayloadTensor::from(&outputs.recv_x);
        let hold_rows =
            |kernel: &node_dispatch::Kernel| hold!(node_dispatch, rank, kernel, [recv_x: &x]);
        let cached = self.cached.as_ref().map(hold_rows).transpose()?.unwrap_or_default();
        let dispatch = hold!(node_dispatch, rank, self.dispatch, [recv_x: &x,
            recv_topk_idx: outputs.recv_topk_idx.as_ref(),
            recv_topk_weights: outputs.recv_topk_weights.as_ref()])?;
        let combine = match &outputs.recv_x {
            nvl_dispatch::PayloadTensor::Bf16 { x } => {
                Some(hold!(node_combine, rank, self.combine, [x: x])?)
            }
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
        let x = hold!(node_combine, rank, self.combine, [x: x])?;
        let weights = hold!(node_combine, rank, self.combine, [weights: weights])?;
        Ok(HeldOffer { x, weights })
    }
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
