//! The interface of a declared pipeline to the rest of the crate: its IR, its texts and its tables.

use std::fmt::Debug;

use ep_codegen::ir;
use ep_codegen::plan::Body;

/// A pipeline declared with [`pipeline!`](crate::pipeline).
pub trait Pipeline {
    /// The tables that a call leaves for later pipelines.
    type Handle: Debug + Clone + Default;

    /// Name on the command line and in file names (`nvl-dispatch`).
    const NAME: &'static str;

    /// Digest of the IR that the texts were rendered from.
    const DIGEST: u128;

    /// The declaration as data, for the tools above this crate.
    #[doc(hidden)]
    fn ir() -> ir::Pipeline;

    /// The CUDA body of each choice of arms.
    fn texts() -> &'static [Text];

    /// The pipelines whose handles it reads.
    fn handles() -> Vec<AnyPipeline>;
}

/// A pipeline as the command line and other tools see it.
#[derive(Debug, Clone, Copy)]
pub struct AnyPipeline {
    /// Name on the command line (`nvl-dispatch`).
    pub name: &'static str,
    /// Digest of the IR that the texts were rendered from.
    pub digest: u128,
    /// The declaration as data, for the tools above this crate.
    #[doc(hidden)]
    pub ir: fn() -> ir::Pipeline,
    /// The CUDA body of each choice of arms; empty for a pipeline that is not emitted yet.
    pub texts: fn() -> &'static [Text],
    /// The pipelines whose handles this pipeline reads.
    pub handles: fn() -> Vec<AnyPipeline>,
}

impl AnyPipeline {
    /// The entry of `P`.
    pub const fn of<P: Pipeline>() -> AnyPipeline {
        AnyPipeline {
            name: P::NAME,
            digest: P::DIGEST,
            ir: P::ir,
            texts: P::texts,
            handles: P::handles,
        }
    }

    /// Whether the pipeline has CUDA texts.
    pub fn is_emitted(&self) -> bool {
        !(self.texts)().is_empty()
    }
}

/// The CUDA body of one choice of arms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The chosen arm of each axis, in order of the axes.
    pub arms: &'static [&'static str],
    /// The body, and the constants and headers that it needs from the prologue.
    pub body: Body,
    /// The body with every role composed statement by statement.
    pub plain: Body,
}
