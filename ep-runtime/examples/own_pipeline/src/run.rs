//! Calls the pipeline from Rust. The standard `Layout` counts tokens and computes where rows go.

use ep_runtime::buffer::Placement;
use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::pipelines::{Layout, layout};
use ep_runtime::tensor::{Bf16, DeviceTensor};

use crate::TaggedDispatch;
use crate::tagged_dispatch::{Inputs, Kernel, Options, Shape};

/// What a rank sends: rows, tags, and the experts of each token with their weights.
pub type Sent = (Vec<Bf16>, Vec<i32>, Vec<i64>, Vec<f32>);
/// The rows that have arrived at a rank, and their tags.
pub type Arrived = (Vec<Bf16>, Vec<i32>);

/// The pipeline for one shape, and the counts that it needs.
pub struct Dispatch(Group, Shape, Kernel, layout::Kernel);

impl Dispatch {
    /// Compiles and loads both pipelines.
    pub fn prepare(group: &Group, shape: Shape, options: Options) -> Result<Dispatch, CallError> {
        let tagged = TaggedDispatch::prepare(group, shape, options)?;
        let (Shape { tokens, topk, experts, .. }, stripes) = (shape, tagged.tunes().stripes);
        let counts = layout::Shape { tokens, topk, experts, stripes: stripes as usize };
        let layout = Layout::prepare(group, counts, layout::Options::default())?;
        Ok(Dispatch(group.clone(), shape, tagged, layout))
    }

    /// Sends the rows of each local rank in each of `steps` steps, and returns the rows that arrived there.
    pub fn send(&self, sent: &[Sent], steps: usize) -> Result<Vec<Arrived>, CallError> {
        let Dispatch(group, shape, tagged, layout) = self;
        let Shape { tokens, hidden, topk, experts, .. } = *shape;
        let (begin, call) = (Placement::even(experts, group.ranks()), CallOptions::default());
        let mut ranks = Vec::new();
        for (rank, (x, tag, experts, weights)) in group.local().zip(sent) {
            let topk_idx = DeviceTensor::from_slice(group, rank, [tokens, topk], experts)?;
            let weights = DeviceTensor::from_slice(group, rank, [tokens, topk], weights)?;
            let begin = begin.begin();
            let expert_begin = DeviceTensor::from_slice(group, rank, [begin.len()], begin)?;
            let x = DeviceTensor::from_slice(group, rank, [tokens, hidden], x)?;
            let tag = DeviceTensor::from_slice(group, rank, [tokens, 4], tag)?;
            let (to, topk_weights) = (layout::Inputs { topk_idx, expert_begin }, Some(weights));
            let (topk_idx, expert_begin) = (Some(to.topk_idx.clone()), to.expert_begin.clone());
            let inputs = Inputs { x, tag, topk_idx, topk_weights, expert_begin };
            ranks.push((to, layout.outputs(rank)?, inputs, tagged.outputs(rank)?));
        }
        let mut handles = Vec::new();
        for (rank, (to, counts, inputs, rows)) in group.local().zip(&ranks) {
            let routes = layout.launch(rank, &call, to, counts, &Default::default())?;
            tagged.launch(rank, &call, inputs, rows, &routes, &Default::default())?;
            handles.push(routes);
        }
        for _ in 1..steps {
            for ((rank, routes), (to, counts, inputs, rows)) in
                group.local().zip(&handles).zip(&ranks)
            {
                layout.launch_into(rank, &call, to, counts, &Default::default(), routes)?;
                tagged.launch(rank, &call, inputs, rows, routes, &Default::default())?;
            }
        }
        group.local().try_for_each(|rank| group.sync(rank))?;
        let read = ranks.iter().map(|(_, counts, _, rows)| {
            let count = counts.received.read()?[0] as usize;
            Ok((rows.recv_x.first(count).read()?, rows.recv_tag.first(count).read()?))
        });
        read.collect()
    }
}
