//! Tests of the host backend on kernels of its own.

mod actors;
mod basics;
mod bounds;
mod compiler;
mod drain;
mod faults;
mod model;
mod mutation;
mod only;
mod pauses;
mod relay;
mod rules;
mod scale;
mod support;
mod twins;
