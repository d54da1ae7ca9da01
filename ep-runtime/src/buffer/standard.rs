//! The pipelines that a buffer launches, and the source of their kernels.

use ep_codegen::plan::Config;
use ep_codegen::schedule::RuleSet;

use crate::emit::Emitted;
use crate::error::CallError;
use crate::pipeline::AnyPipeline;
use crate::pipelines;

/// The pipelines that a buffer launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandardPipeline {
    /// Counts where tokens go, and exchanges the counts.
    Layout,
    /// Moves rows and fills the tables that combine and cached dispatches read.
    NvlDispatch,
    /// Moves rows by the tables of an earlier dispatch.
    NvlDispatchCached,
    /// Returns rows and sums them.
    NvlCombine,
    /// Counts and moves rows in one launch, and fills the tables that combine reads.
    DecodeDispatch,
    /// Pushes rows to the ranks of their tokens, and sums them there.
    DecodeCombine,
    /// Counts where tokens go, per rank and per node, and exchanges the counts.
    NodeLayout,
    /// Moves rows between nodes, in two hops.
    NodeDispatch,
    /// Moves rows between nodes by the tables of an earlier dispatch.
    NodeDispatchCached,
    /// Returns rows in two hops, and sums them at each.
    NodeCombine,
}

impl StandardPipeline {
    /// Every one.
    pub const ALL: [StandardPipeline; 10] = [
        StandardPipeline::Layout,
        StandardPipeline::NvlDispatch,
        StandardPipeline::NvlDispatchCached,
        StandardPipeline::NvlCombine,
        StandardPipeline::DecodeDispatch,
        StandardPipeline::DecodeCombine,
        StandardPipeline::NodeLayout,
        StandardPipeline::NodeDispatch,
        StandardPipeline::NodeDispatchCached,
        StandardPipeline::NodeCombine,
    ];

    /// The pipeline's name on the command line.
    pub fn name(self) -> &'static str {
        BuiltIn::entry(self).name
    }
}

/// Source of a buffer's kernels: the compiled-in declarations, or files made by `emit`.
pub trait Emit {
    /// The plan and text of `pipeline`.
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError>;
}

/// The standard pipelines as this crate declares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuiltIn;

impl BuiltIn {
    /// The declaration of a standard pipeline.
    pub fn entry(pipeline: StandardPipeline) -> AnyPipeline {
        match pipeline {
            StandardPipeline::Layout => AnyPipeline::of::<pipelines::Layout>(),
            StandardPipeline::NvlDispatch | StandardPipeline::NvlDispatchCached => {
                AnyPipeline::of::<pipelines::NvlDispatch>()
            }
            StandardPipeline::NvlCombine => AnyPipeline::of::<pipelines::NvlCombine>(),
            StandardPipeline::DecodeDispatch => AnyPipeline::of::<pipelines::DecodeDispatch>(),
            StandardPipeline::DecodeCombine => AnyPipeline::of::<pipelines::DecodeCombine>(),
            StandardPipeline::NodeLayout => AnyPipeline::of::<pipelines::NodeLayout>(),
            StandardPipeline::NodeDispatch | StandardPipeline::NodeDispatchCached => {
                AnyPipeline::of::<pipelines::NodeDispatch>()
            }
            StandardPipeline::NodeCombine => AnyPipeline::of::<pipelines::NodeCombine>(),
        }
    }
}

/// The standard pipelines with some of the rules that make roles fast. These kernels are slower; compare others with
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltInBy(pub RuleSet);

impl Emit for BuiltInBy {
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
        let config = Config { rules: self.0, ..config.clone() };
        Ok(BuiltIn::entry(pipeline).emit(&config)?)
    }
}

impl Emit for BuiltIn {
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
        Ok(BuiltIn::entry(pipeline).emit(config)?)
    }
}
