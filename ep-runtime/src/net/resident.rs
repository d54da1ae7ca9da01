//! Network cards that are kernels: on GPUs of one machine, without a network card.
//!
//! A kernel on a few SMs of each GPU plays the cards of its ranks (`card.cu`). It reads the work-queue entries of mlx5
//! that the kernels of the ranks write, and carries their bytes to the memory of the peer by stores, at the rate and
//! with the latency of a link. So kernels over `ibgda` run on GPUs, and are timed, without a card.
//!
//! The layout of memory is that of the model of a card (`pairs.rs`), in a window on the GPUs.

mod group;
mod player;
mod tables;
#[cfg(all(test, feature = "host"))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::layout::Layout;
#[cfg(feature = "host")]
use super::model::{ModelNetwork, ModelOptions};
use super::pairs::PairLayout;
use super::view::{Ends, NetPart, Places, Views};
use crate::backend::{Backend, BackendError};
use crate::error::CallError;
pub use crate::group::CardTraffic;
use crate::group::{Group, Watched};
#[cfg(feature = "host")]
use crate::host::HostBackend;
use crate::memory::{DeviceMemory, Window};
use crate::net_error::NetError;
pub(crate) use group::SharedCards;
use player::{Part, Player};

/// The kernel.
pub const RESIDENT_TEXT: &str = include_str!("resident/card.cu");

/// Entries of a queue pair, and queues of a rank.
const SLOTS: usize = 1024;
#[cfg(feature = "host")]
const MODEL_SLOTS: usize = 64;
const QUEUES: usize = 2;

/// SMs of each GPU that play its cards, for all networks of a group.
pub const RESIDENT_SMS: u32 = 8;

/// What cards that are kernels do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentOptions {
    /// Bytes that a port of a card sends per microsecond; 0: as many as it can.
    pub bytes_per_us: u64,
    /// Ports of each rank, which its queue pairs take in turn.
    pub ports: usize,
    /// Least time from the end of an entry's departure until its bytes count at the peer.
    pub latency: Duration,
    /// Seed of the puts that are late, so that puts land in another order; 0: none is.
    pub seed: u32,
    /// Entries that fail: the rank of the card, the peer, and the number of the entry in each of their queue pairs.
    pub failing: Vec<(usize, usize, u32)>,
}

impl Default for ResidentOptions {
    /// A port of 400 Gbit/s.
    fn default() -> ResidentOptions {
        let latency = Duration::from_micros(3);
        ResidentOptions { bytes_per_us: 50_000, ports: 1, latency, seed: 0, failing: Vec::new() }
    }
}

/// The network of all ranks of a process, each with a card that is a kernel, or a model of one in the emulator. Other
/// processes of the machine may have the other ranks of the group. All networks of a group share its cards.
pub struct ResidentNetwork {
    views: Vec<Views>,
    players: Arc<Vec<Player>>,
    /// Its queue pairs and memory on each GPU, in the order of `players`.
    parts: Vec<Arc<Part>>,
    backend: Arc<dyn Backend>,
    memory: Memory,
    /// What the group asks.
    failure: Option<Arc<Watched>>,
}

/// What the cards use.
enum Memory {
    #[cfg_attr(
        not(all(test, feature = "host")),
        expect(dead_code, reason = "kept for the kernels")
    )]
    Window(Arc<Window>),
    #[cfg(feature = "host")]
    Models(ModelNetwork),
}

impl ResidentNetwork {
    /// Connects the ranks of a group over cards that are kernels, for so many bytes of rows and counters; all of its
    /// processes make this call. Ranks of one node do not use their cards between them. Waits until no kernel of the
    /// process is in flight, at most for twice the timeout of the group. The group is stopped when an entry fails.
    pub fn new(group: &Group, size: (u64, usize)) -> Result<ResidentNetwork, NetError> {
        let mut network = ResidentNetwork::connected(group, size)?;
        let failure = network.watched();
        group.watch(&failure);
        network.failure = Some(failure);
        Ok(network)
    }

    fn connected(
        group: &Group,
        (data_bytes, counters): (u64, usize),
    ) -> Result<ResidentNetwork, NetError> {
        let (backend, ranks) = (group.backend(), group.ranks());
        let cards = group.cards().and_then(|it| it.downcast_ref::<SharedCards>());
        let cards = cards.ok_or_else(|| NetError::NoCard {
            why: "the nodes of the group are not connected by cards that are kernels".to_string(),
        })?;
        #[cfg(feature = "host")]
        if let Some(emulator) = backend.emulator().and_then(|it| it.downcast_ref()) {
            let size = (data_bytes, counters);
            return ResidentNetwork::modelled(backend, emulator, size, cards);
        }
        let ports = cards.options.ports;
        let queues = QUEUES.max(ports);
        let layout = Layout { ranks, data_bytes, queues, slots: SLOTS, counters, ports };
        ResidentNetwork::played(&cards.players(group)?, group.nodes(), PairLayout(layout))
    }

    /// Models of the cards, whose memory the processes share.
    #[cfg(feature = "host")]
    fn modelled(
        backend: &Arc<dyn Backend>,
        emulator: &HostBackend,
        (data_bytes, counters): (u64, usize),
        cards: &SharedCards,
    ) -> Result<ResidentNetwork, NetError> {
        let options = &cards.options;
        if let Some((from, to, entry)) = options.failing.first() {
            let why = format!(
                "`fail={from}-{to}@{entry}` works only on GPUs: models of cards fail no entry"
            );
            return Err(NetError::NoCard { why });
        }
        let ResidentOptions { bytes_per_us, latency, ports, .. } = *options;
        let model = ModelOptions { bytes_per_us, latency, ports, ..ModelOptions::default() };
        let layout = Layout {
            ranks: backend.ranks(),
            data_bytes,
            queues: QUEUES.max(ports),
            slots: MODEL_SLOTS,
            counters,
            ports,
        };
        let mut network = ModelNetwork::of_shared_cards(backend, emulator, layout, &model)?;
        cards.models.add(network.shared());
        Ok(ResidentNetwork {
            views: network.take_views(),
            players: Arc::default(),
            parts: Vec::new(),
            backend: Arc::clone(backend),
            memory: Memory::Models(network),
            failure: None,
        })
    }

    /// One whose cards these kernels are.
    fn played(
        players: &Arc<Vec<Player>>,
        nodes: usize,
        layout: PairLayout,
    ) -> Result<ResidentNetwork, NetError> {
        layout.0.check_pairs()?;
        let first = players.first().ok_or_else(|| NetError::NoCard {
            why: "the process has no rank whose card a kernel could be".to_string(),
        })?;
        let backend = &first.backend;
        let window = Arc::new(Window::of_machine(backend, layout.bytes())?);
        let mut views = Vec::new();
        for rank in backend.local() {
            let (bases, own) = (window.bases(rank)?, window.own(rank)?);
            let table = layout.table(rank, bases);
            let claims = DeviceMemory::new(backend, rank, table.len() as u64)?;
            claims.write(0, &table)?;
            for (peer, queue) in layout.ends() {
                for (at, words) in layout.begun(peer, queue) {
                    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
                    backend.write(rank, own + at, &bytes)?;
                }
            }
            let places =
                Places { data: own, counters: own + layout.counters(0, 0), ends: Ends::Pairs };
            views.push(Views::at((backend, rank), (&layout.0, rank), places, claims)?);
        }
        let mut network = ResidentNetwork {
            views,
            players: Arc::clone(players),
            parts: Vec::new(),
            backend: Arc::clone(backend),
            memory: Memory::Window(Arc::clone(&window)),
            failure: None,
        };
        for player in players.iter() {
            let part = Part::new(player, layout, layout.0.ranks / nodes.max(1), &window)?;
            network.parts.push(Arc::new(part));
            player.add(&network.parts[network.parts.len() - 1])?;
        }
        Ok(network)
    }

    /// The network that a plan needs, if any.
    pub fn of_plan(group: &Group, plan: &Plan) -> Result<Option<ResidentNetwork>, NetError> {
        if plan.network_counters == 0 {
            return Ok(None);
        }
        let (_, bytes, counters) = NetPart::place([plan], &Transport::Ibgda)?;
        ResidentNetwork::new(group, (bytes.max(1), counters)).map(Some)
    }

    /// The addresses of the local ranks' `ep::Net`, an argument of kernels.
    pub fn addresses(&self) -> Vec<u64> {
        self.views.iter().map(|view| view.all.address()).collect()
    }

    /// `ep::Net` of a local rank, for one kernel that has a part of the network.
    pub fn part(&self, rank: usize, part: NetPart) -> Result<DeviceMemory, NetError> {
        let local = self.backend.local();
        let view = rank.checked_sub(local.start).and_then(|index| self.views.get(index));
        let what = || format!("rank {rank} is not local: this process drives {local:?}");
        view.ok_or_else(|| BackendError::Wrong { what: what() })?.part(part)
    }

    /// Reads the traffic of each rank's card, between two calls. A process knows the cards of its own ranks only.
    pub fn traffic(&self) -> Result<Vec<CardTraffic>, NetError> {
        match &self.memory {
            Memory::Window(_) => {
                let mut all = vec![CardTraffic::default(); self.backend.ranks()];
                self.parts.iter().try_for_each(|part| part.count(&mut all))?;
                Ok(all)
            }
            #[cfg(feature = "host")]
            Memory::Models(models) => Ok(models.traffic()),
        }
    }

    /// The first entry that has failed, or doorbell that makes no sense, if any.
    pub fn failure(&self) -> Option<NetError> {
        match &self.memory {
            Memory::Window(_) => self.players.iter().find_map(Player::failure),
            #[cfg(feature = "host")]
            Memory::Models(models) => models.failure(),
        }
    }

    /// What a group asks whether calls can go on.
    fn watched(&self) -> Arc<Watched> {
        #[cfg(feature = "host")]
        if let Memory::Models(models) = &self.memory {
            return models.watched();
        }
        let players = Arc::clone(&self.players);
        Arc::new(move || players.iter().find_map(Player::failure).map(CallError::Network))
    }
}

impl Drop for ResidentNetwork {
    fn drop(&mut self) {
        for (player, part) in self.players.iter().zip(&self.parts) {
            // The player keeps what it may still use.
            let _ = player.remove(part);
        }
    }
}
