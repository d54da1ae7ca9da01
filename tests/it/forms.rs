//! Every form that the language allows is emitted and computes what it says, or is refused.

mod absent;
mod adds;
mod apart;
mod channels;
mod choices;
mod counters;
mod decode;
mod gathers;
mod kernels;
mod listed;
mod local;
mod low_latency;
mod meaning;
mod mended;
mod network;
mod once;
mod packed;
mod planted;
mod refused;
mod rewritten;
mod run;
mod sabotaged;
mod shared;
mod slots;
mod stripes;
mod teams;
mod wide_rows;
mod words;

pub(crate) use meaning::held;
