//! Tests of the network: kernels of the host backend in processes of their own, joined by libfabric.

#![cfg(target_os = "linux")]

mod cable;
mod exchange;
mod gpu;
mod host;
mod nodes;
mod nvrtc;
mod processes;
