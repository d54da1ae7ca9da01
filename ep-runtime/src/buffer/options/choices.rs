//! The shape and the options of each standard pipeline that follow from those of a buffer.

use ep_codegen::plan::{Arch, Config};

use super::{BufferOptions, Payload, Via};
use crate::buffer::standard::{BuiltIn, StandardPipeline};
use crate::calls::PrepareOptions;
use crate::error::CallError;
use crate::pipelines::{
    decode_combine, decode_dispatch, layout, node_combine, node_dispatch, node_layout, nvl_combine,
    nvl_dispatch,
};

/// Options of a dispatch, within a node and between nodes. A cached dispatch moves rows and scales alone.
macro_rules! dispatch {
    ($pipeline:ident, $of:expr, $is_fresh:expr, $stripes:expr $(, $via:ident)?) => {{
        let (of, is_fresh): (&BufferOptions, bool) = ($of, $is_fresh);
        let (weights, tunes) = (is_fresh && of.weights, of.tunes.$pipeline);
        $pipeline::Options {
            payload: of.payload.into(),
            $($via: of.$via.into(),)?
            mode: if is_fresh { $pipeline::Mode::Fresh } else { $pipeline::Mode::Cached },
            tunes: $pipeline::TuneOptions { stripes: $stripes.or(tunes.stripes), ..tunes },
            topk_idx: is_fresh,
            recv_topk_idx: is_fresh,
            topk_weights: weights,
            recv_topk_weights: weights,
            live: of.live,
        }
    }};
}

/// Options of a combine.
macro_rules! combine {
    ($pipeline:ident, $of:expr, { $($tune:ident: $value:expr)? } $(, $via:ident)?) => {{
        let of: &BufferOptions = $of;
        $pipeline::Options {
            $($via: of.$via.into(),)?
            tunes: $pipeline::TuneOptions { $($tune: $value,)? ..of.tunes.$pipeline },
            weights: of.weights,
            combined_weights: of.weights,
            bias: of.biases,
            live: of.live,
        }
    }};
}

impl From<Via> for nvl_dispatch::Via {
    fn from(via: Via) -> nvl_dispatch::Via {
        match via {
            Via::Direct => nvl_dispatch::Via::Direct,
            Via::Ring => nvl_dispatch::Via::Ring,
        }
    }
}

/// The combine that reads what such a dispatch leaves.
impl From<Via> for nvl_combine::Via {
    fn from(via: Via) -> nvl_combine::Via {
        match via {
            Via::Direct => nvl_combine::Via::Pull,
            Via::Ring => nvl_combine::Via::Ring,
        }
    }
}

impl BufferOptions {
    /// The configuration of a standard pipeline for this buffer. `stripes` is what the dispatch was
    /// planned with, once that is known.
    pub fn config_of(
        &self,
        pipeline: StandardPipeline,
        ranks: usize,
        arch: Arch,
        stripes: Option<i64>,
    ) -> Result<Config, CallError> {
        let ir = BuiltIn::entry(pipeline).ir();
        let mut config =
            self.chosen(pipeline, ranks, stripes, |chosen| chosen.config(&ir, ranks, arch))?;
        // Every call says them, and a kernel has to run with the least of each.
        let args = ir.select(&config.choice).args.into_iter().filter(|arg| arg.low != arg.default);
        config.args.extend(args.map(|arg| (arg.name, arg.low)));
        config.carrier = self.carrier;
        Ok(config)
    }

    /// What a standard pipeline is prepared with.
    pub(in crate::buffer) fn chosen<T>(
        &self,
        pipeline: StandardPipeline,
        ranks: usize,
        stripes: Option<i64>,
        take: impl FnOnce(&PrepareOptions<'_>) -> T,
    ) -> T {
        use StandardPipeline as Standard;
        let BufferOptions { hidden, topk, experts, tokens, live, weights, .. } = *self;
        let received = self.capacity(ranks);
        // The stripes of a direct dispatch are its own matter.
        let of_ring = stripes.filter(|_| self.via == Via::Ring);
        match pipeline {
            Standard::Layout => {
                let shape = layout::Shape { topk, experts, stripes: counted(stripes), tokens };
                layout::Kernel::chosen(&shape, &layout::Options { live }, take)
            }
            Standard::NvlDispatch | Standard::NvlDispatchCached => {
                let shape = nvl_dispatch::Shape { hidden, topk, experts, tokens, received };
                let is_fresh = pipeline == Standard::NvlDispatch;
                let options = dispatch!(nvl_dispatch, self, is_fresh, of_ring, via);
                nvl_dispatch::Kernel::chosen(&shape, &options, take)
            }
            Standard::NvlCombine => {
                let shape = nvl_combine::Shape { hidden, topk, tokens, received };
                let options = combine!(nvl_combine, self, { stripes: of_ring }, via);
                nvl_combine::Kernel::chosen(&shape, &options, take)
            }
            Standard::DecodeDispatch => {
                let shape =
                    decode_dispatch::Shape { hidden, topk, experts, max_tokens: tokens, tokens };
                let options = decode_dispatch::Options {
                    payload: self.payload.into(),
                    tunes: self.tunes.decode_dispatch,
                    topk_weights: weights,
                    recv_topk_weights: weights,
                    live,
                    ..decode_dispatch::Options::default()
                };
                decode_dispatch::Kernel::chosen(&shape, &options, take)
            }
            Standard::DecodeCombine => {
                let shape =
                    decode_combine::Shape { hidden, topk, max_tokens: tokens, tokens, received };
                let options = combine!(decode_combine, self, {});
                decode_combine::Kernel::chosen(&shape, &options, take)
            }
            _ => self.chosen_between(pipeline, ranks, stripes, take),
        }
    }

    /// What a pipeline between nodes is prepared with.
    fn chosen_between<T>(
        &self,
        pipeline: StandardPipeline,
        ranks: usize,
        stripes: Option<i64>,
        take: impl FnOnce(&PrepareOptions<'_>) -> T,
    ) -> T {
        use StandardPipeline as Standard;
        let BufferOptions { hidden, topk, experts, tokens, live, .. } = *self;
        let (received, nodes) = (self.capacity(ranks), self.nodes.max(1));
        // Each rank passes on what the ranks of its index on all nodes send.
        let (local_ranks, relayed) = (ranks / nodes, tokens.saturating_mul(nodes));
        match pipeline {
            Standard::NodeLayout => {
                let stripes = counted(stripes);
                let shape =
                    node_layout::Shape { nodes, local_ranks, topk, experts, stripes, tokens };
                node_layout::Kernel::chosen(&shape, &node_layout::Options { live }, take)
            }
            Standard::NodeCombine => {
                let shape = node_combine::Shape {
                    nodes,
                    local_ranks,
                    hidden,
                    topk,
                    tokens,
                    received,
                    relayed,
                };
                let options = combine!(node_combine, self, { stripes: stripes });
                node_combine::Kernel::chosen(&shape, &options, take)
            }
            _ => {
                let shape = node_dispatch::Shape {
                    nodes,
                    local_ranks,
                    hidden,
                    topk,
                    experts,
                    tokens,
                    received,
                    relayed,
                };
                let is_fresh = pipeline != Standard::NodeDispatchCached;
                let mut options = dispatch!(node_dispatch, self, is_fresh, stripes);
                let tunes = &mut options.tunes;
                // A card takes as long for a put of few bytes, so that runs of short rows have twice as many.
                if self.payload != Payload::Bf16 && tunes.rdma_chunk.or(tunes.rdma_depth).is_none()
                {
                    (tunes.rdma_chunk, tunes.rdma_depth) = (Some(32), Some(256));
                }
                node_dispatch::Kernel::chosen(&shape, &options, take)
            }
        }
    }
}

/// The stripes that a layout counts by.
fn counted(stripes: Option<i64>) -> usize {
    stripes.and_then(|stripes| usize::try_from(stripes).ok()).unwrap_or(0)
}
