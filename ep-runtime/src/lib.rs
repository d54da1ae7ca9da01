//! Dispatch and combine for mixtures of experts. Dispatch sends the rows of each token to the ranks that
//! own its experts; combine returns their sums. The kernels are declared in Rust and compiled at run time
//! for one shape.
//!
//! A [`Group`](group::Group) consists of the ranks of a [`Backend`](backend::Backend): GPUs of this process
//! or of one process each ([`GpuBackend`](gpu::GpuBackend)), or emulated ranks (`host::HostBackend`). A
//! [`Buffer`](buffer::Buffer) has the kernels and the memory for one shape, which
//! [`BufferOptions`](buffer::BufferOptions) describes. Its calls take a
//! [`DispatchInput`](buffer::DispatchInput) or a [`CombineInput`](buffer::CombineInput) and
//! [`CallOptions`](buffer::CallOptions). A dispatch returns a [`Handle`](buffer::Handle) and the rows that
//! arrived, [`Received`](buffer::Received). A [`Graph`](graph::Graph) replays calls. Errors are
//! [`CallError`](error::CallError)s.
//!
//! The guide is `docs/calls.md` in the repository, and it explains the program `examples/layer.rs`. Declare
//! a pipeline of your own with [`pipeline!`]: see `docs/dsl.md`.
//!
//! | to | modules |
//! |---|---|
//! | call | [`group`], [`buffer`], [`graph`], [`error`]; [`per_rank`] for few tokens |
//! | choose a machine | [`gpu`], `host`, `join` for processes, [`backend`] for what all backends share |
//! | hold tensors and windows | [`tensor`], [`memory`], [`args`], [`bf16`] |
//! | connect several machines | `net` |
//! | compile | [`jit`], [`device`], [`doctor`]; [`perturb`] to look for races |
//! | choose SMs | [`tune`] |
//! | call a pipeline of your own | the types that [`pipeline!`] generates, based on [`calls`] |
//! | launch a pipeline by names | [`group::GroupKernel`], [`args::Bindings`], [`plan`] |
//! | launch a kernel of your own | [`handwritten`] |
//! | read a timeout | [`timeouts`] |
//! | see the declarations | [`pipelines`] |

pub mod args;
pub mod backend;
pub mod bf16;
pub mod buffer;
pub mod calls;
pub mod device;
pub mod doctor;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod group;
pub mod handwritten;
#[cfg(feature = "host")]
pub mod host;
pub mod jit;
#[cfg(target_os = "linux")]
pub mod join;
pub mod memory;
#[cfg(target_os = "linux")]
pub mod net;
pub mod per_rank;
pub mod perturb;
pub mod tensor;
pub mod timeouts;
pub mod tune;

#[cfg(test)]
mod alone;
mod call_order;
mod emit;
#[cfg(test)]
mod fake;
mod launch;
#[cfg(target_os = "linux")]
mod net_error;
mod open;
mod parallel;
mod pipeline;
pub mod pipelines;
mod streams;

pub use emit::{EmitError, Emitted};
pub use ep_codegen::plan;
pub use ep_codegen::schedule::{Recipe, RoleRecipe, RuleSet};
/// What a declaration is and means, and how its texts are spelled. These modules are for the tools above
/// this crate and change with it; other programs should not use them.
#[doc(hidden)]
pub use ep_codegen::{ir, meaning, spelling};
pub use ep_dsl::pipeline;
pub use pipeline::{AnyPipeline, Pipeline, Text};
pub use streams::{OwnedEvent, OwnedStream};

// The expansion of `pipeline!` names this crate; so do the pipelines inside it.
extern crate self as ep_runtime;

/// Items that the expansion of `pipeline!` names. Not for other use.
#[doc(hidden)]
pub mod __private {
    pub use crate::calls::{
        BoundCall, CallKernel, LeftTables, OutputMemory, PhasedCall, PrepareOptions, TensorName,
    };
    pub use crate::pipeline::Text;
    pub use crate::tensor::{
        Bf16, Bits, Composite, DeviceTensor, E4m3, Give, Given, Place, Places, Ue8m0, give_first,
        skip,
    };
    pub use ep_codegen::ir;
    pub use ep_codegen::plan::Body;
    pub use ep_codegen::schedule::Constant;
}
