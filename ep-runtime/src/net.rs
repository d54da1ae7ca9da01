//! Rows between machines: kernels write descriptors into a queue in host memory, and a CPU thread posts
//! them through libfabric.
//!
//! `templates/device/ep/net.cuh` is the interface for kernels: `put`, `signal` and `drain`, and counters
//! that say what has landed. A network only needs writes that carry a 32-bit number, which arrives no
//! sooner than their bytes; it needs no order, atomics or GPU memory. A [`Network`] is one rank's end. The
//! ranks find one another through a [`Store`](crate::join::Store).
//!
//! For minutes, a network reports neither a peer that has died nor a cable that is cut. So every rank sends
//! signs of life. A peer without them becomes a [`NetError`] at all others, which names it.

#[cfg(feature = "host")]
mod card;
mod carrier;
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
#[cfg_attr(
    not(feature = "host"),
    expect(dead_code, reason = "a model of a card writes completions")
)]
mod mlx5;
#[cfg(feature = "host")]
mod model;
mod network;
mod nodes;
mod pair_words;
mod pairs;
mod provider;
mod proxy;
mod queue;
mod resident;
mod rows;
mod shared_memory;
mod signals;
mod stream;
mod swept;
#[allow(dead_code, reason = "C structs are declared in full")]
mod sys;
mod together;
mod view;

pub use carrier::{Carrier, NET_VARIABLE, duration};
pub use fabric::Fabric;
pub use find::VARIABLE;
pub use host_queue::HostQueue;
pub use ibgda::{CardNetwork, CardOptions, CardPort, Verbs, card_ports};
pub(crate) use ibgda::{card_places, nearest};
pub use layout::Layout;
#[cfg(feature = "host")]
pub use model::{ModelNetwork, ModelOptions};
pub use network::{NetOptions, NetStats, Network};
pub use provider::{Offer, Provider};
pub(crate) use resident::SharedCards;
pub use resident::{CardTraffic, RESIDENT_SMS, RESIDENT_TEXT, ResidentNetwork, ResidentOptions};
pub use rows::RowsOn;
pub use view::NetPart;

pub use crate::net_error::NetError;

use crate::jit::Search;
