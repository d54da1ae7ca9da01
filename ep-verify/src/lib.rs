//! What holds the run time to its word: the oracle of dispatch and combine, runs of random problems
//! against it, looks at a machine by kernels that no pipeline declares, and timing.
//!
//! `epforge selftest`, `run`, `check` and `bench` are made of it, and so are the tests on the host and
//! on GPUs. A program that serves a model needs none of it.
//!
//! | to | modules |
//! |---|---|
//! | know what calls have to give | [`oracle`] |
//! | run, compare and time calls | [`selftest`], [`options`] |
//! | hold any pipeline against its declaration | [`declared`] |
//! | call functions of the device library | [`functions`] |
//! | look at a machine | [`probe`], [`litmus`], [`pushes`] |

pub mod declared;
pub mod functions;
pub mod litmus;
pub mod options;
pub mod oracle;
pub mod probe;
pub mod pushes;
pub mod selftest;

mod findings;
#[cfg(test)]
mod unordered;

pub use findings::Findings;

/// The kernels of this crate, of `ep_runtime::tune` and of `ep_runtime::net` that no pipeline declares and that run on GPUs: a
/// name, the text, and whether it needs bulk copies.
pub const HANDWRITTEN: [(&str, &str, bool); 10] = [
    ("card", ep_runtime::net::RESIDENT_TEXT, false),
    ("experts", selftest::EXPERTS_TEXT, false),
    ("floor", selftest::FLOOR_TEXT, true),
    ("litmus", litmus::ORDERS_TEXT, false),
    ("litmus_bulk", litmus::BULK_TEXT, true),
    ("load", selftest::LOAD_TEXT, false),
    ("low_latency", selftest::LOW_LATENCY_TEXT, false),
    ("probe", probe::TEXT, false),
    ("pushes", ep_runtime::tune::PUSH_TEXT, true),
    ("puts", selftest::PUTS_TEXT, false),
];
