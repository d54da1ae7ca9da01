//! The way from CUDA text to a CUBIN: the search for NVRTC, the compiles, the disk cache.

#[cfg(unix)]
mod cache;
mod nvrtc;
#[cfg(unix)]
mod search;
mod support;
