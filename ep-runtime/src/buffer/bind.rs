//! The calls of a buffer as calls of its pipelines: each tensor at its field, checked and ready.

use super::handles::{CombineInput, Handle, Received};
use super::inputs::{CombineOutput, DispatchInput};
use super::kernels::Combine;
use super::options::BufferOptions;
use super::{Buffer, CallOptions};
use crate::args::Rows;
use crate::calls::BoundCall;
use crate::error::CallError;
use crate::pipelines::{
    decode_combine, decode_dispatch, decode_stripes, layout, nvl_combine, nvl_dispatch,
};
use crate::tensor::DeviceTensor;

impl Buffer {
    /// A dispatch in one launch.
    pub(super) fn bind_one_launch<'k>(
        &self,
        kernel: &'k decode_dispatch::Kernel,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<BoundCall<'k>, CallError> {
        let (rank, options) = (handle.rank(), self.options());
        let inputs = decode_dispatch::Inputs {
            x: input.rows(options).into(),
            topk_idx: input.topk_idx(options),
            topk_weights: input.topk_weights(options),
            expert_begin: self.shared.rank(rank)?.expert_begin.clone(),
        };
        let layout::Outputs { received: count, received_per_expert } = handle.counts_to()?;
        let outputs = decode_dispatch::Outputs {
            received: Some(count),
            received_per_expert: Some(received_per_expert),
            ..received.memory()?.one_launch.clone()
        };
        let (alignment, tokens_from) = (options.alignment, handle.tokens_word());
        let args = decode_dispatch::Args { alignment, tokens_from };
        let into = &handle.memory()?.tables().one_launch;
        kernel.bind_into(rank, call, &inputs, &outputs, &args, into)
    }

    /// Counts and their exchange.
    pub(super) fn bind_counts(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<BoundCall<'_>, CallError> {
        let (shared, rank, options) = (&self.shared, handle.rank(), self.options());
        let expert_begin = shared.rank(rank)?.expert_begin.clone();
        let inputs = layout::Inputs { topk_idx: input.topk_idx(options), expert_begin };
        let (alignment, tokens_from) = (options.alignment, handle.tokens_word());
        let args = layout::Args { alignment, tokens_from };
        let (outputs, into) = (handle.counts_to()?, &handle.memory()?.tables().layout);
        shared.kernels.layout.bind_into(rank, call, &inputs, &outputs, &args, into)
    }

    /// The rows of a fresh dispatch.
    pub(super) fn bind_rows(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<BoundCall<'_>, CallError> {
        let (kernel, options) = (&self.shared.kernels.dispatch, self.options());
        let own = self.shared.rank(handle.rank())?;
        let inputs = nvl_dispatch::Inputs {
            x: input.rows(options).into(),
            topk_idx: Some(input.topk_idx(options)),
            topk_weights: input.topk_weights(options),
            expert_begin: own.expert_begin.clone(),
        };
        self.bind_dispatch(kernel, handle, &inputs, &received.memory()?.fresh, call)
    }

    fn bind_dispatch<'k>(
        &self,
        kernel: &'k nvl_dispatch::Kernel,
        handle: &Handle,
        inputs: &nvl_dispatch::Inputs,
        outputs: &nvl_dispatch::Outputs,
        call: &CallOptions,
    ) -> Result<BoundCall<'k>, CallError> {
        let remote_blocks = self.shared.remote_sms(call) as i32;
        let args = nvl_dispatch::Args { remote_blocks, tokens_from: handle.tokens_word() };
        let tables = handle.memory()?.tables();
        let (from, into) = (&tables.layout, &tables.dispatch);
        kernel.bind_into(handle.rank(), call, inputs, outputs, from, &args, into)
    }

    /// The rows of a cached dispatch, which brings neither indices nor weights.
    pub(super) fn bind_cached<'k>(
        &self,
        kernel: &'k nvl_dispatch::Kernel,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<BoundCall<'k>, CallError> {
        let inputs = nvl_dispatch::Inputs {
            x: input.rows(self.options()).into(),
            topk_idx: None,
            topk_weights: None,
            expert_begin: self.shared.rank(handle.rank())?.expert_begin.clone(),
        };
        self.bind_dispatch(kernel, handle, &inputs, &received.memory()?.cached, call)
    }

    /// The tables of stripes that later dispatches read, if one launch has left them out.
    pub(super) fn bind_stripes(
        &self,
        handle: &Handle,
        call: &CallOptions,
    ) -> Result<Option<BoundCall<'_>>, CallError> {
        let kernel = self.shared.kernels.stripes.as_ref().filter(|_| handle.lacks_stripes());
        let Some(kernel) = kernel else { return Ok(None) };
        let tables = handle.memory()?.tables();
        let (from, into) = (&tables.one_launch, &tables.stripes);
        let (tokens, tokens_from) = (handle.tokens(), handle.tokens_word());
        let args = decode_stripes::Args { tokens, tokens_from };
        kernel.bind_into(handle.rank(), call, from, &args, into).map(Some)
    }

    /// The way back.
    pub(super) fn bind_combine(
        &self,
        handle: &Handle,
        input: CombineInput<'_>,
        biases: &[Rows],
        output: &CombineOutput,
        call: &CallOptions,
    ) -> Result<BoundCall<'_>, CallError> {
        let (shared, rank, tokens) = (&self.shared, handle.rank(), handle.tokens());
        let BufferOptions { hidden, topk, weights: moves_weights, .. } = *self.options();
        let (x, weights) = input.tensors(shared, rank)?;
        let rows = [tokens as u64, hidden as u64];
        let bias =
            [0, 1].map(|copy| biases.get(copy).map(|bias| DeviceTensor::borrowed_rows(bias, rows)));
        let combined = DeviceTensor::borrowed(output.combined, rows);
        let added_up = || DeviceTensor::borrowed(output.combined_weights, [rows[0], topk as u64]);
        let combined_weights = moves_weights.then(added_up);
        let (tokens_from, tables) = (handle.tokens_word(), handle.memory()?.tables());
        match &shared.kernels.combine {
            Combine::Fetched(kernel) => {
                let inputs = nvl_combine::Inputs { x, weights, bias };
                let outputs = nvl_combine::Outputs { combined, combined_weights };
                let args = nvl_combine::Args { tokens, tokens_from };
                let (of, sent) = (&tables.layout, &tables.dispatch);
                let into = nvl_combine::Handle::default();
                kernel.bind_into(rank, call, &inputs, &outputs, of, sent, &args, &into)
            }
            Combine::Stored(kernel) => {
                let inputs = decode_combine::Inputs { x, weights, bias };
                let outputs = decode_combine::Outputs { combined, combined_weights };
                let args = decode_combine::Args { tokens, tokens_from };
                let (of, into) = (&tables.one_launch, decode_combine::Handle::default());
                kernel.bind_into(rank, call, &inputs, &outputs, of, &args, &into)
            }
        }
    }
}
