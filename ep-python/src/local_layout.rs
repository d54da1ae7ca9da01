//! The layout of a dispatch, which a rank computes without the others: its tokens for each rank, node and expert.

use ep_runtime::AnyPipeline;
use ep_runtime::buffer::Placement;
use ep_runtime::calls::{CallKernel, CallOptions};
use ep_runtime::pipelines::{LocalLayout, local_layout};
use ep_runtime::tensor::DeviceTensor;
use pyo3::prelude::*;

use crate::arguments::{CallTuple, call};
use crate::dlpack::Looks;
use crate::errors::{Failure, launched, released};
use crate::group::Group;
use crate::low_latency::dense;
use crate::tensor::Element;

/// Slices of the tokens: blocks take them in turn, and more blocks have nothing to do.
const STRIPES: usize = 16;

/// Most tokens of a call: kernels count them in 32 bits.
const MOST_TOKENS: usize = i32::MAX as usize;

/// Tokens of a block: one for each of its lanes.
const BLOCK_TOKENS: u64 = 256;

/// Counts tokens, within one node or for several.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct LayoutKernel {
    kernel: local_layout::Kernel,
    group: ep_runtime::group::Group,
    topk: u64,
    experts: u64,
    /// The experts of each rank, for each local rank.
    expert_begin: Vec<DeviceTensor<i32, 1>>,
}

/// Where a call leaves counts for each rank, node and expert, and which token goes to which rank.
type Places = [u64; 4];

#[pymethods]
impl LayoutKernel {
    /// Emits, compiles and loads the kernel. Other ranks take no part.
    #[new]
    fn new(py: Python<'_>, group: &Group, topk: usize, experts: usize) -> PyResult<LayoutKernel> {
        released(py, || {
            let group = group.inner.clone();
            let (ranks, nodes) = (group.ranks(), group.nodes());
            let (stripes, tokens) = (STRIPES, MOST_TOKENS);
            let shape = local_layout::Shape { nodes, topk, experts, stripes, tokens };
            let across = match nodes {
                1 => local_layout::Across::Ranks,
                _ => local_layout::Across::Nodes,
            };
            let options = local_layout::Options { across, ..Default::default() };
            let entry = AnyPipeline::of::<LocalLayout>();
            let core = local_layout::Kernel::chosen(&shape, &options, |chosen| {
                CallKernel::prepare_alone(&group, entry, chosen)
            })?;
            let kernel = local_layout::Kernel { core };
            let begin = Placement::even(experts, ranks);
            let on_each = |rank| DeviceTensor::from_slice(&group, rank, [ranks + 1], begin.begin());
            let expert_begin = group.local().map(on_each).collect::<Result<_, _>>()?;
            let (topk, experts) = (topk as u64, experts as u64);
            Ok(LayoutKernel { kernel, group, topk, experts, expert_begin })
        })
    }

    /// Launches the call for so many tokens, whose experts lie at `topk_idx`.
    fn send(
        &self,
        py: Python<'_>,
        rank: usize,
        tokens: u64,
        topk_idx: u64,
        places: Places,
        how: CallTuple,
    ) -> PyResult<()> {
        launched(py, &self.group, || self.put(rank, tokens, topk_idx, places, how))
    }

    /// Launches the call for a torch tensor, and allocates its results like `likes`, in that order. Returns None if
    /// `topk_idx` has the wrong type, shape or device.
    fn send_tensors<'py>(
        &self,
        py: Python<'py>,
        looks: &Looks,
        place: (usize, Option<i32>),
        topk_idx: &Bound<'py, PyAny>,
        likes: [Bound<'py, PyAny>; 4],
        how: CallTuple,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let (rank, device) = place;
        let Some((tokens, ids)) = looks.dense_rows_of(topk_idx, Element::I64, self.topk, device)
        else {
            return Ok(None);
        };
        let (mut made, mut places) = (Vec::with_capacity(4), [0; 4]);
        for (like, place) in likes.iter().zip(&mut places) {
            let Some((tensor, at)) = looks.made_like(like)? else { return Ok(None) };
            *place = at;
            made.push(tensor);
        }
        launched(py, &self.group, || self.put(rank, tokens, ids, places, how))?;
        Ok(Some(made))
    }
}

impl LayoutKernel {
    fn put(
        &self,
        rank: usize,
        tokens: u64,
        topk_idx: u64,
        [per_rank, per_node, per_expert, in_rank]: Places,
        how: CallTuple,
    ) -> Result<(), Failure> {
        let blocks = tokens.div_ceil(BLOCK_TOKENS).clamp(1, STRIPES as u64) as u32;
        let how = CallOptions { sms: Some(blocks), ..call(how)? };
        let (ranks, nodes) = (self.group.ranks() as u64, self.group.nodes() as u64);
        let topk_idx = dense(topk_idx, [tokens, self.topk]);
        let expert_begin = self.expert_begin[self.group.local_index(rank)?].clone();
        let (per_rank, per_expert) = (dense(per_rank, [ranks]), dense(per_expert, [self.experts]));
        let in_rank = dense(in_rank, [tokens, ranks]);
        let per_node = (nodes > 1).then(|| dense(per_node, [nodes]));
        let inputs = local_layout::Inputs { topk_idx, expert_begin };
        let outputs = local_layout::Outputs { per_rank, per_expert, in_rank, per_node };
        self.kernel.launch(rank, &how, &inputs, &outputs, &Default::default())?;
        Ok(())
    }
}
