//! The calls of a buffer as calls of its pipelines: each tensor at its place, checked and ready. What the
//! buffer owns was checked when it was made.

use super::handles::{CombineInput, Handle, Received};
use super::inputs::{CombineOutput, DispatchInput};
use super::kernels::{Combine, Kernels, NearKernels};
use super::options::BufferOptions;
use super::{Buffer, CallOptions};
use crate::args::Rows;
use crate::calls::{BoundCall, Held};
use crate::error::CallError;
use crate::pipelines::{
    decode_combine, decode_dispatch, layout, node_combine, nvl_combine, nvl_dispatch,
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
        use decode_dispatch::{Args, Kernel, PayloadTensor, places as at};
        let options = self.options();
        let x = PayloadTensor::from(input.rows(options));
        let (topk_idx, topk_weights) = (input.topk_idx(options), input.topk_weights(options));
        let mut given = Kernel::NO_TENSORS;
        at::x.put(&x, &mut given);
        at::topk_idx.put(&topk_idx, &mut given);
        at::topk_weights.put(topk_weights.as_ref(), &mut given);
        let args = Args { alignment: options.alignment, tokens_from: handle.tokens_word() };
        let (tables, output) = (&handle.memory()?.held, &received.memory()?.held);
        let held = [&tables.one_launch, &handle.counts_to()?.one_launch, &output.one_launch];
        kernel.core.bind_with(handle.rank(), call, &held, &given, &Kernel::numbers(&args))
    }

    /// Counts and their exchange.
    pub(super) fn bind_counts(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        call: &CallOptions,
    ) -> Result<BoundCall<'_>, CallError> {
        use layout::{Args, Kernel, places as at};
        let near = match &self.shared.kernels {
            Kernels::Near(near) => near,
            Kernels::Far(far) => return self.bind_far_counts(far, handle, input, call),
        };
        let options = self.options();
        let topk_idx = input.topk_idx(options);
        let mut given = Kernel::NO_TENSORS;
        at::topk_idx.put(&topk_idx, &mut given);
        let args = Args { alignment: options.alignment, tokens_from: handle.tokens_word() };
        let held = [&handle.memory()?.held.layout, &handle.counts_to()?.counts];
        let (kernel, numbers) = (&near.layout.core, Kernel::numbers(&args));
        kernel.bind_with(handle.rank(), call, &held, &given, &numbers)
    }

    /// The rows of a fresh dispatch.
    pub(super) fn bind_rows(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<BoundCall<'_>, CallError> {
        use nvl_dispatch::{Kernel, PayloadTensor, places as at};
        let near = match &self.shared.kernels {
            Kernels::Near(near) => near,
            Kernels::Far(far) => {
                return self.bind_far_rows(&far.dispatch, handle, input, received, call, true);
            }
        };
        let options = self.options();
        let x = PayloadTensor::from(input.rows(options));
        let (topk_idx, topk_weights) = (input.topk_idx(options), input.topk_weights(options));
        let mut given = Kernel::NO_TENSORS;
        at::x.put(&x, &mut given);
        at::topk_idx.put(&topk_idx, &mut given);
        at::topk_weights.put(topk_weights.as_ref(), &mut given);
        let numbers = self.dispatch_numbers(handle);
        let (kernel, rank) = (&near.dispatch.core, handle.rank());
        let held = [&handle.memory()?.held.dispatch, &received.memory()?.held.dispatch];
        kernel.bind_with(rank, call, &held, &given, numbers.as_ref())
    }

    fn dispatch_numbers(&self, handle: &Handle) -> impl AsRef<[u64]> + use<> {
        let args = nvl_dispatch::Args { tokens_from: handle.tokens_word() };
        nvl_dispatch::Kernel::numbers(&args)
    }

    /// The rows of a cached dispatch, which brings neither indices nor weights.
    pub(super) fn bind_cached(
        &self,
        handle: &Handle,
        input: &DispatchInput,
        received: &Received,
        call: &CallOptions,
    ) -> Result<BoundCall<'_>, CallError> {
        let absent = || {
            let what = "the buffer was made without cached dispatches".to_string();
            CallError::Mismatch { what }
        };
        let near = match &self.shared.kernels {
            Kernels::Near(near) => near,
            Kernels::Far(far) => {
                let kernel = far.cached.as_ref().ok_or_else(absent)?;
                return self.bind_far_rows(kernel, handle, input, received, call, false);
            }
        };
        let kernel = near.cached.as_ref().ok_or_else(absent)?;
        let x = nvl_dispatch::PayloadTensor::from(input.rows(self.options()));
        let mut given = nvl_dispatch::Kernel::NO_TENSORS;
        nvl_dispatch::places::x.put(&x, &mut given);
        let numbers = self.dispatch_numbers(handle);
        let held = [&handle.memory()?.held.cached, &received.memory()?.held.cached];
        kernel.core.bind_with(handle.rank(), call, &held, &given, numbers.as_ref())
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
        let (x, weights) = input.held(shared, rank)?;
        let rows = [tokens as u64, hidden as u64];
        let bias =
            [0, 1].map(|copy| biases.get(copy).map(|bias| DeviceTensor::borrowed_rows(bias, rows)));
        let combined = DeviceTensor::borrowed(output.combined, rows);
        let added_up = || DeviceTensor::borrowed(output.combined_weights, [rows[0], topk as u64]);
        let combined_weights = moves_weights.then(added_up);
        let (tokens_from, tables) = (handle.tokens_word(), &handle.memory()?.held.combine);
        let (all, few) = ([tables, x, weights.unwrap_or(x)], [tables, x]);
        let held: &[&Held] = if weights.is_some() { &all } else { &few };
        // What the three ways back have in common, under their own names.
        macro_rules! bind {
            ($pipeline:ident, $kernel:expr) => {{
                use $pipeline::{Args, Kernel, places as at};
                let mut given = Kernel::NO_TENSORS;
                at::bias.put(&bias, &mut given);
                at::combined.put(&combined, &mut given);
                at::combined_weights.put(combined_weights.as_ref(), &mut given);
                let numbers = Kernel::numbers(&Args { tokens, tokens_from });
                $kernel.core.bind_with(rank, call, held, &given, &numbers)
            }};
        }
        match &shared.kernels {
            Kernels::Near(NearKernels { combine: Combine::Fetched(kernel), .. }) => {
                bind!(nvl_combine, kernel)
            }
            Kernels::Near(NearKernels { combine: Combine::Stored(kernel), .. }) => {
                bind!(decode_combine, kernel)
            }
            Kernels::Far(far) => bind!(node_combine, far.combine),
        }
    }
}
