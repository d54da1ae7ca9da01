//! The compiler of EPForge.
//!
//! ```text
//! tokens --parse--> ast --expand--> ast --check--> ast --lower--> ir --render--> CUDA body   (in the macro)
//!                                                 ir + config --plan--> Plan   (at run time)
//! ```
//!
//! The crate is pure: it reads no file, no environment and no clock, and nothing in it depends on
//! hash order, so the same input always gives the same bytes.

#[cfg(feature = "syntax")]
pub mod ast;
#[cfg(feature = "syntax")]
mod calls;
#[cfg(feature = "syntax")]
pub mod check;
#[cfg(feature = "syntax")]
pub mod cuda_fn;
#[cfg(feature = "syntax")]
pub mod diagnostics;
pub mod digest;
#[cfg(feature = "syntax")]
pub mod expansion;
#[cfg(feature = "syntax")]
pub mod fragments;
pub mod ir;
#[cfg(feature = "syntax")]
pub mod keywords;
#[cfg(feature = "syntax")]
pub mod lower;
pub mod meaning;
pub mod plan;
#[cfg(feature = "render")]
pub mod print;
#[cfg(feature = "render")]
pub mod render;
pub mod schedule;
pub mod spelling;
#[cfg(feature = "syntax")]
pub mod syntax;
