//! Runs emitted CUDA on the host.
//!
//! The text that NVRTC would get is compiled by the system's C++ compiler against
//! `templates/host` and run lane by lane: every CUDA thread is a fiber, all ranks live in one
//! process, and a seeded scheduler decides every step. A seed replays a run in every build.
//!
//! - [`Compiler`] turns a [`Source`] into a [`Program`] with [`Kernel`]s.
//! - [`World`] holds the memory of the ranks; [`World::run`] runs [`Launch`]es in it and ends with
//!   [`RunStats`] or a [`Failure`] that names places in the kernel and statements of its
//!   declaration.
//! - A program built as [`Build::Checked`] reports each plain access, and the run is checked
//!   against the memory model (`hb`).

mod abi;
mod actor;
mod calls;
mod compiler;
mod failure;
mod fiber;
mod hb;
mod heap;
mod machine;
mod memory;
mod message;
pub mod mutant;
pub mod mutation;
mod os;
mod program;
mod rng;
mod rules;
mod run;
mod state;
mod symbols;
pub mod worker;
mod world;

pub use actor::{Actor, ActorMemory, Outside};
pub use compiler::{Compiler, Product, Shelf, kernels_of};
pub use failure::{Failure, FailureKind, RunStats, Wait, WaitSite};
pub use heap::{Address, LaunchTensor};
pub use program::{Build, CompileError, Kernel, Program, Source};
pub use rules::{Rule, Rules};
pub use state::schedule::{Faults, Policy};
pub use state::stream::Launch;
pub use world::{Beside, Raising, Spec, Told, World, memory_file};
