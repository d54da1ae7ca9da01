//! Rows between machines: kernels write what they want into a queue in host memory, and a thread of the
//! processor posts it through libfabric.
//!
//! What a kernel sees is `templates/device/ep/net.cuh`: `put`, `signal` and `drain`, and counters that say
//! what has landed. Nothing is asked of a network but writes that carry a number of 32 bits, which comes no
//! sooner than their bytes: neither order, nor atomics, nor GPU memory. A [`Network`] is one rank's end; the
//! ranks find one another through a [`Store`](crate::join::Store).
//!
//! A network says nothing when a peer dies or a cable is cut, for minutes. So every rank gives signs of life,
//! and a peer that gives none is a [`NetError`] at all others, which names it.

#[cfg(feature = "host")]
mod card;
mod cores;
mod endpoint;
mod fabric;
mod find;
#[cfg(test)]
mod fuzz;
mod host_queue;
mod ibgda;
mod layout;
pub mod measure;
#[cfg_attr(not(feature = "host"), expect(dead_code, reason = "a model of a card reads all of it"))]
mod mlx5;
#[cfg(feature = "host")]
mod model;
mod network;
mod nodes;
mod pair_words;
#[cfg(feature = "host")]
mod pairs;
mod provider;
mod proxy;
mod queue;
mod rows;
mod shared_memory;
mod signals;
mod stream;
mod swept;
#[allow(dead_code, reason = "C structs are declared in full")]
mod sys;
mod together;
mod view;

pub use fabric::Fabric;
pub use find::VARIABLE;
pub use host_queue::HostQueue;
pub use ibgda::{CardNetwork, CardOptions, CardPort, Verbs, card_ports};
pub use layout::Layout;
#[cfg(feature = "host")]
pub use model::{ModelNetwork, ModelOptions};
pub use network::{NetOptions, NetStats, Network};
pub use provider::{NET_VARIABLE, Offer, Provider};
pub use rows::RowsOn;
pub use view::NetPart;

pub use crate::net_error::NetError;

use crate::jit::Search;
