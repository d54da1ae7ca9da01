//! Whole-pipeline tests, in one binary.

mod count;
mod decode;
mod documents;
mod emitted;
mod errors;
mod expand;
mod forms;
mod from_docs;
mod front_end;
mod fuzz;
mod gpus;
mod host;
mod ir;
mod litmus;
mod low_latency;
mod many_ranks;
mod meaning;
mod near_misses;
#[cfg(target_os = "linux")]
mod nodes;
mod nvrtc;
mod outputs;
mod peers;
mod perturbed;
mod plans;
mod ptx;
mod pulls;
mod recipes;
mod replayed;
mod slots;
mod ui;
mod usual;
