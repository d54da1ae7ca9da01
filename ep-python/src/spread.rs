//! Rows that experts made of the rows of a `Buffer`'s dispatch, back to their tokens: each by itself, and added up there.

use ep_runtime::AnyPipeline;
use ep_runtime::calls::CallKernel;
use ep_runtime::pipelines::{MergeCombine, merge_combine, packed_dispatch};
use pyo3::prelude::*;

use crate::arguments::{CallTuple, call};
use crate::errors::{launched, released};
use crate::group::Group;
use crate::low_latency::{Shape, dense, machine};

/// Sends the row of each entry back, and adds the rows of a token up in order of its top-k.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct SpreadKernel {
    kernel: merge_combine::Kernel,
    shape: Shape,
}

/// The shape and the choices of the kernel in a node.
fn choices(numbers: [usize; 4]) -> (merge_combine::Shape, merge_combine::Options) {
    let [max_tokens, hidden, topk, experts] = numbers;
    let tokens = max_tokens;
    let shape = merge_combine::Shape { nodes: 1, hidden, topk, experts, max_tokens, tokens };
    (shape, merge_combine::Options { via: merge_combine::Via::Spread, ..Default::default() })
}

#[pymethods]
impl SpreadKernel {
    /// Emits, compiles and loads the kernel and maps its window, on all ranks together.
    #[new]
    fn new(py: Python<'_>, group: &Group, numbers: [usize; 4]) -> PyResult<SpreadKernel> {
        released(py, || {
            let (own, options) = choices(numbers);
            let shape = Shape::new(group, numbers, None)?;
            let kernel = MergeCombine::prepare(&group.inner, own, options)?;
            Ok(SpreadKernel { kernel, shape })
        })
    }

    /// Bytes of device memory on each rank.
    #[getter]
    fn device_bytes(&self) -> u64 {
        self.kernel.core.device_bytes()
    }

    /// The bytes of a kernel that is not made, on each of `ranks` ranks.
    #[staticmethod]
    fn bytes_of(py: Python<'_>, ranks: usize, numbers: [usize; 4]) -> PyResult<u64> {
        released(py, || {
            let (own, options) = choices(numbers);
            let entry = AnyPipeline::of::<MergeCombine>();
            let bytes = merge_combine::Kernel::chosen(&own, &options, |chosen| {
                CallKernel::bytes(&machine(ranks, 1), &entry, chosen)
            })?;
            Ok(bytes)
        })
    }

    /// Launches the call. `given` is where the rows, their experts and their weights are, `tables` where it is said how many
    /// rows came from each rank, which token each was, and which of the rows belong to its experts.
    #[expect(clippy::too_many_arguments, reason = "Python passes what the call takes, by position")]
    fn send(
        &self,
        py: Python<'_>,
        rank: usize,
        tokens: u64,
        given: [u64; 3],
        tables: [u64; 3],
        combined: u64,
        how: CallTuple,
    ) -> PyResult<()> {
        launched(py, &self.shape.group, || {
            let shape = &self.shape;
            let (ranks, topk, rows) = (shape.group.ranks() as u64, shape.topk as u64, shape.rows());
            let [x, topk_idx, topk_weights] = given;
            let [rank_prefix, recv_src, packed_row] = tables;
            let inputs = merge_combine::Inputs {
                x: dense(x, [shape.local_experts as u64 * rows, shape.hidden as u64]),
                topk_idx: Some(dense(topk_idx, [tokens, topk])),
                topk_weights: Some(dense(topk_weights, [tokens, topk])),
                expert_begin: Some(shape.expert_begin(rank)?),
            };
            let outputs =
                merge_combine::Outputs { combined: dense(combined, [tokens, shape.hidden as u64]) };
            let from = packed_dispatch::Handle {
                rank_prefix: dense(rank_prefix, [ranks + 1, ranks]),
                recv_src: dense(recv_src, [rows]),
                packed_row: dense(packed_row, [rows, topk]),
                ..Default::default()
            };
            let args = merge_combine::Args { tokens: tokens as usize, tokens_from: None };
            self.kernel.launch(rank, &call(how)?, &inputs, &outputs, &from, &args)?;
            Ok(())
        })
    }
}
