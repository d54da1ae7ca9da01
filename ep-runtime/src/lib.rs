//! JIT, devices, symmetric memory and the standard pipelines.

pub mod args;
pub mod backend;
pub mod buffer;
pub mod device;
pub mod doctor;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod group;
#[cfg(feature = "host")]
pub mod host;
pub mod jit;
#[cfg(target_os = "linux")]
pub mod join;
pub mod memory;
pub mod oracle;
pub mod record;
pub mod selftest;
pub mod tune;
pub mod whereabouts;

mod emit;
#[cfg(test)]
mod fake;
mod order;
mod parallel;
mod pipeline;
pub mod pipelines;

pub use emit::{EmitError, Emitted, Entry};
pub use ep_codegen::{ir, plan};
pub use ep_dsl::pipeline;
pub use pipeline::{Pipeline, Table, Text};

// The expansion of `pipeline!` names this crate; so do the pipelines inside it.
extern crate self as ep_runtime;

/// What the expansion of `pipeline!` names. Not for other use.
#[doc(hidden)]
pub mod __private {
    pub use crate::pipeline::{Table, Text, elem};
    pub use ep_codegen::ir;
}
