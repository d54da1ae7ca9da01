//! The interface of a declared pipeline to the rest of the crate: its IR, its texts and its tables.

use std::fmt::Debug;

use ep_codegen::ir;
use ep_codegen::plan::{Body, kebab};

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

    /// The other pipelines whose handles it reads.
    fn handles() -> Vec<AnyPipeline>;
}

/// A pipeline as the command line and other tools see it.
#[derive(Debug, Clone, Copy)]
pub struct AnyPipeline {
    /// Name on the command line (`nvl-dispatch`).
    pub name: &'static str,
    /// Digest of the IR that the texts were rendered from.
    pub digest: u128,
    source: Source,
}

/// Where the parts of a pipeline come from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// What the macro made of it.
    Macro {
        ir: fn() -> ir::Pipeline,
        texts: fn() -> &'static [Text],
        handles: fn() -> Vec<AnyPipeline>,
    },
    /// What this process has compiled.
    Compiled(&'static Compiled),
}

/// The parts of a pipeline that this process has compiled.
#[derive(Debug)]
struct Compiled {
    ir: ir::Pipeline,
    texts: Vec<Text>,
    handles: Vec<AnyPipeline>,
}

impl AnyPipeline {
    /// The entry of `P`.
    pub const fn of<P: Pipeline>() -> AnyPipeline {
        let source = Source::Macro { ir: P::ir, texts: P::texts, handles: P::handles };
        AnyPipeline { name: P::NAME, digest: P::DIGEST, source }
    }

    /// The entry of a declaration that this process has compiled. Its parts stay in memory until the process ends.
    #[doc(hidden)]
    pub fn compiled(ir: ir::Pipeline, texts: Vec<Text>, handles: Vec<AnyPipeline>) -> AnyPipeline {
        let (name, digest) = (kebab(&ir.name).leak(), ir.digest());
        let compiled: &'static Compiled = Box::leak(Box::new(Compiled { ir, texts, handles }));
        AnyPipeline { name, digest, source: Source::Compiled(compiled) }
    }

    /// The declaration as data, for the tools above this crate.
    #[doc(hidden)]
    pub fn ir(&self) -> ir::Pipeline {
        match self.source {
            Source::Macro { ir, .. } => ir(),
            Source::Compiled(compiled) => compiled.ir.clone(),
        }
    }

    /// The CUDA body of each choice of arms.
    pub fn texts(&self) -> &'static [Text] {
        match self.source {
            Source::Macro { texts, .. } => texts(),
            Source::Compiled(compiled) => &compiled.texts,
        }
    }

    /// The other pipelines whose handles this pipeline reads.
    pub fn handles(&self) -> Vec<AnyPipeline> {
        match self.source {
            Source::Macro { handles, .. } => handles(),
            Source::Compiled(compiled) => compiled.handles.clone(),
        }
    }
}

/// The CUDA body of one choice of arms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The chosen arm of each axis, in order of the axes.
    pub arms: &'static [&'static str],
    /// The body, and the constants and headers that it needs from the prologue.
    pub body: Body,
}
