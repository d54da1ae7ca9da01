//! Network cards that are kernels: on GPUs of one machine, without a network card.
//!
//! A kernel on a few SMs of each GPU plays the cards of its ranks (`card.cu`). It reads the work-queue entries of mlx5
//! that the kernels of the ranks write, and carries their bytes to the memory of the peer by stores, at the rate and
//! with the latency of a link. So kernels over `ibgda` run on GPUs, and are timed, without a card.
//!
//! The layout of memory is that of the model of a card (`pairs.rs`), in a window on the GPUs.

mod group;
mod tables;
#[cfg(all(test, feature = "host"))]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::layout::Layout;
use super::mlx5::{Entry, recorded};
#[cfg(feature = "host")]
use super::model::{ModelNetwork, ModelOptions};
use super::pairs::{End, PairLayout};
use super::view::{Ends, NetPart, Places, Views};
use crate::backend::{Backend, BackendError, Block, Code, Companion, Stream};
use crate::error::CallError;
pub use crate::group::CardTraffic;
use crate::group::Watched;
#[cfg(feature = "host")]
use crate::host::HostBackend;
use crate::memory::{DeviceMemory, HostMemory, Window};
use crate::net_error::NetError;
pub(crate) use group::Opened;
use tables::{
    CONTROL_BYTES, COUNTS_AT, FAULT_BYTES, Fault, KNOWN_AT, Played, STATE_BYTES, WORK_BYTES, Words,
};

/// The kernel.
pub const RESIDENT_TEXT: &str = include_str!("resident/card.cu");

const ENTRY: &str = "card_run";

/// Threads of a block, and so much shared memory that no other kernel runs beside one.
const BLOCK: Block = Block { threads: 768, shared_bytes: 160 << 10 };

/// Warps that listen to queue pairs, and that end their entries; each serves at most 32 queue pairs.
const FRONTS: u32 = 8;
const BACKS: u32 = 8;
const PAIRS_MAX: usize = 32 * FRONTS as usize;

/// Most ranks of a GPU whose links are apart.
const PORTS_MAX: usize = 64;

/// Entries of a queue pair, and queues of a rank.
const SLOTS: usize = 1024;
#[cfg(feature = "host")]
const MODEL_SLOTS: usize = 64;
const QUEUES: usize = 2;

/// SMs of each GPU that play its cards.
pub const RESIDENT_SMS: u32 = 8;

/// What cards that are kernels do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentOptions {
    /// Bytes that a card sends per microsecond; 0: as many as it can.
    pub bytes_per_us: u64,
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
        ResidentOptions { bytes_per_us: 50_000, latency, seed: 0, failing: Vec::new() }
    }
}

/// The network of all ranks of a process, each with a card that is a kernel, or a model of one in the emulator. Other
/// processes of the machine may have the other ranks of the group.
pub struct ResidentNetwork {
    views: Vec<Views>,
    players: Arc<Vec<Player>>,
    /// Stops the kernels before their memory goes.
    beside: Option<Box<dyn Send>>,
    backend: Arc<dyn Backend>,
    memory: Memory,
}

/// What the cards use.
enum Memory {
    #[cfg_attr(
        not(all(test, feature = "host")),
        expect(dead_code, reason = "kept for the kernels")
    )]
    Window(Window),
    #[cfg(feature = "host")]
    Models(ModelNetwork),
}

/// The kernel of one GPU.
struct Player {
    layout: PairLayout,
    played: Vec<Played>,
    backend: Arc<dyn Backend>,
    /// The rank that loads it.
    rank: usize,
    code: Code,
    pairs: DeviceMemory,
    states: DeviceMemory,
    works: DeviceMemory,
    tickets: DeviceMemory,
    control: DeviceMemory,
    _sums: DeviceMemory,
    stop: Arc<HostMemory>,
    fault: HostMemory,
}

impl ResidentNetwork {
    /// Connects the ranks of a group on one machine, for so many bytes of rows and counters; all of its processes make
    /// this call. Ranks of one node do not use their cards between them.
    pub fn new(
        backend: &Arc<dyn Backend>,
        nodes: usize,
        (data_bytes, counters): (u64, usize),
        options: &ResidentOptions,
    ) -> Result<ResidentNetwork, NetError> {
        let ranks = backend.ranks();
        #[cfg(feature = "host")]
        if let Some(emulator) = backend.emulator().and_then(|it| it.downcast_ref()) {
            return ResidentNetwork::modelled(backend, emulator, (data_bytes, counters), options);
        }
        let layout = Layout { ranks, data_bytes, queues: QUEUES, slots: SLOTS, counters };
        let mut network = ResidentNetwork::idle(backend, nodes, PairLayout(layout), options)?;
        let companions = network.players.iter().map(|player| player.companion(options));
        network.beside = Some(backend.accompany(companions.collect())?);
        Ok(network)
    }

    /// Models of the cards, whose memory the processes share.
    #[cfg(feature = "host")]
    fn modelled(
        backend: &Arc<dyn Backend>,
        emulator: &HostBackend,
        (data_bytes, counters): (u64, usize),
        options: &ResidentOptions,
    ) -> Result<ResidentNetwork, NetError> {
        if let Some((from, to, entry)) = options.failing.first() {
            let why = format!(
                "`fail={from}-{to}@{entry}` works only on GPUs: models of cards fail no entry"
            );
            return Err(NetError::NoCard { why });
        }
        let ResidentOptions { bytes_per_us, latency, .. } = *options;
        let model = ModelOptions { bytes_per_us, latency, ..ModelOptions::default() };
        let layout = Layout {
            ranks: backend.ranks(),
            data_bytes,
            queues: QUEUES,
            slots: MODEL_SLOTS,
            counters,
        };
        let mut network = ModelNetwork::of_shared_cards(backend, emulator, layout, &model)?;
        Ok(ResidentNetwork {
            views: network.take_views(),
            players: Arc::default(),
            beside: None,
            backend: Arc::clone(backend),
            memory: Memory::Models(network),
        })
    }

    /// All of it, with kernels that do not run yet.
    fn idle(
        backend: &Arc<dyn Backend>,
        nodes: usize,
        layout: PairLayout,
        options: &ResidentOptions,
    ) -> Result<ResidentNetwork, NetError> {
        layout.0.check_pairs()?;
        let window = Window::of_machine(backend, layout.bytes())?;
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
        let mut ranks_of: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for rank in backend.local() {
            ranks_of.entry(backend.device(rank).unwrap_or(0)).or_default().push(rank);
        }
        let each = layout.0.ranks / nodes.max(1);
        let mut players = Vec::new();
        for ranks in ranks_of.values() {
            players.push(Player::new(backend, layout, (ranks, each), &window, options)?);
        }
        let (backend, players) = (Arc::clone(backend), Arc::new(players));
        Ok(ResidentNetwork {
            views,
            players,
            beside: None,
            backend,
            memory: Memory::Window(window),
        })
    }

    /// The network that a plan needs, if any.
    pub fn of_plan(
        backend: &Arc<dyn Backend>,
        nodes: usize,
        plan: &Plan,
        options: &ResidentOptions,
    ) -> Result<Option<ResidentNetwork>, NetError> {
        if plan.network_counters == 0 {
            return Ok(None);
        }
        let (_, bytes, counters) = NetPart::place([plan], &Transport::Ibgda)?;
        let network = ResidentNetwork::new(backend, nodes, (bytes.max(1), counters), options)?;
        Ok(Some(network))
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
            Memory::Window(_) => traffic(&self.players, self.backend.ranks()),
            #[cfg(feature = "host")]
            Memory::Models(models) => Ok(models.traffic()),
        }
    }

    /// The first entry or doorbell that makes no sense, if any.
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
        if self.beside.is_some() {
            // Kernels that still run need their cards. They end within their timeout.
            for rank in self.backend.local() {
                let _ = self.backend.sync(rank, Stream::OWN);
            }
        }
        self.beside = None;
    }
}

fn pending(players: &[Player]) -> Result<Vec<String>, NetError> {
    let all = players.iter().map(Player::pending).collect::<Result<Vec<_>, _>>()?;
    Ok(all.concat())
}

fn traffic(players: &[Player], ranks: usize) -> Result<Vec<CardTraffic>, NetError> {
    let mut all = vec![CardTraffic::default(); ranks];
    for player in players {
        let mut states = vec![0; player.states.bytes() as usize];
        player.states.read(0, &mut states)?;
        for (played, state) in player.played.iter().zip(states.chunks_exact(STATE_BYTES)) {
            let half = |at: usize| {
                let word = state[at..].first_chunk().copied();
                u64::from(word.map_or(0, u32::from_le_bytes))
            };
            let [entries, doorbells, bytes] = COUNTS_AT;
            let own = &mut all[played.end.rank];
            own.entries += half(entries);
            own.doorbells += half(doorbells);
            own.bytes += half(bytes) | half(bytes + 4) << 32;
        }
    }
    Ok(all)
}

impl Player {
    fn new(
        backend: &Arc<dyn Backend>,
        layout: PairLayout,
        (ranks, each): (&[usize], usize),
        window: &Window,
        options: &ResidentOptions,
    ) -> Result<Player, NetError> {
        let rank = ranks.first().copied().unwrap_or(0);
        let far = |rank: usize, peer: usize| rank / each.max(1) != peer / each.max(1);
        let ends = ranks.iter().enumerate().flat_map(|(port, rank)| {
            let ends = layout.ends().filter(|(peer, _)| far(*rank, *peer));
            ends.map(move |(peer, queue)| (port, End { rank: *rank, peer, queue }))
        });
        let ends: Vec<(usize, End)> = ends.collect();
        for (what, value, most) in [
            ("far queue pairs of a GPU", ends.len(), PAIRS_MAX),
            ("ranks of a GPU", ranks.len(), PORTS_MAX),
        ] {
            let (value, most) = (value as u64, most as u64);
            if value > most {
                return Err(NetError::Option { what, value, least: 1, most });
            }
        }
        let sum_bytes = 4 * layout.0.counters as u64;
        let sums = DeviceMemory::zeroed(backend, rank, ends.len() as u64 * sum_bytes)?;
        let mut played = Vec::new();
        for (index, (port, end)) in ends.into_iter().enumerate() {
            let bases = window.bases(rank)?;
            let failing = options.failing.iter();
            let fault = failing.clone().find(|(from, to, _)| (*from, *to) == (end.rank, end.peer));
            played.push(Played {
                end,
                own: bases[end.rank],
                theirs: bases[end.peer],
                port: port as u32,
                sums: sums.address() + index as u64 * sum_bytes,
                fault: fault.map(|(_, _, entry)| *entry),
            });
        }
        let filled = |bytes: Vec<u8>| {
            let memory = DeviceMemory::new(backend, rank, bytes.len() as u64)?;
            memory.write(0, &bytes)?;
            Ok::<DeviceMemory, NetError>(memory)
        };
        let pairs = filled(played.iter().flat_map(|it| it.pair(&layout)).collect())?;
        let states = filled(played.iter().flat_map(|it| it.state(&layout)).collect())?;
        let entries = played.len() as u64 * layout.0.slots as u64;
        let image = backend.compile(ENTRY, RESIDENT_TEXT)?;
        let code = backend.load(rank, &image, ENTRY, BLOCK)?;
        Ok(Player {
            layout,
            played,
            backend: Arc::clone(backend),
            rank,
            code,
            pairs,
            states,
            works: DeviceMemory::new(backend, rank, entries * WORK_BYTES)?,
            tickets: DeviceMemory::zeroed(backend, rank, 8 * tickets(entries))?,
            control: DeviceMemory::zeroed(backend, rank, CONTROL_BYTES)?,
            _sums: sums,
            stop: Arc::new(HostMemory::new(backend, rank, 4)?),
            fault: HostMemory::new(backend, rank, FAULT_BYTES as u64)?,
        })
    }

    /// `card::Args`; whether the kernel ends when it has nothing left to do.
    fn args(&self, options: &ResidentOptions, until_idle: bool) -> Vec<u8> {
        let ticks = (1000_u64 << 20).checked_div(options.bytes_per_us).unwrap_or(0);
        let latency = u64::try_from(options.latency.as_nanos()).unwrap_or(u64::MAX);
        let slots = self.layout.0.slots as u32;
        let mask = (self.tickets.bytes() / 8 - 1) as u32;
        let memory = [&self.pairs, &self.states, &self.works, &self.tickets, &self.control];
        Words::default()
            .wide(memory.map(DeviceMemory::address))
            .wide([self.fault.address(), self.stop.address(), ticks, latency])
            .narrow([options.seed, self.played.len() as u32, slots, mask])
            .narrow([FRONTS, BACKS, u32::from(until_idle), 1])
            .0
    }

    fn companion(&self, options: &ResidentOptions) -> Companion {
        let stop = Arc::clone(&self.stop);
        Companion {
            rank: self.rank,
            code: self.code,
            blocks: RESIDENT_SMS,
            args: self.args(options, false),
            control: (self.control.address(), self.control.bytes()),
            stop: Box::new(move |number| stop.write(0, &[number])),
        }
    }

    /// How far the card is with each queue pair that has entries which have not ended.
    fn pending(&self) -> Result<Vec<String>, NetError> {
        let mut states = vec![0; self.states.bytes() as usize];
        self.states.read(0, &mut states)?;
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk().copied());
            word.map_or(0, u32::from_le_bytes)
        };
        let mut all = Vec::new();
        for (index, played) in self.played.iter().enumerate() {
            let End { rank, peer, queue } = played.end;
            let state = &states[index * STATE_BYTES..][..STATE_BYTES];
            let [known, read, told, settled, completed] = KNOWN_AT.map(|at| word(state, at));
            let mut record = [0; 4];
            let at = played.own + self.layout.record(peer, queue);
            self.backend.read(rank, at, &mut record)?;
            let posted = recorded(u32::from_le_bytes(record));
            if posted == completed as u16 {
                continue;
            }
            let slots = self.layout.0.slots as u64;
            let slot = index as u64 * slots + u64::from(settled) % slots;
            let mut work = [0; WORK_BYTES as usize];
            self.works.read(slot * WORK_BYTES, &mut work)?;
            let [kind, tickets, moved] = [32, 40, 44].map(|at| word(&work, at));
            all.push(format!(
                "the card of rank {rank} for queue {queue} to rank {peer}: entries before {posted} are \
                posted (of 2^16), \
                 {known} known, {read} read, {told} on their way, {settled} landed, {completed} ended; the next is of \
                 kind {kind}, with {moved} of {tickets} parts there"
            ));
        }
        Ok(all)
    }

    /// What was wrong, in the words of the model of a card.
    fn failure(&self) -> Option<NetError> {
        let mut words = [0; FAULT_BYTES / 4];
        self.fault.read(0, &mut words).ok()?;
        let fault = Fault::decode(&words)?;
        let played = self.played.get(fault.pair)?;
        let End { rank, peer, queue } = played.end;
        let pair = self.layout.number(peer, queue);
        let (number, why) = match fault.is_told {
            false => (fault.number, self.wrong_entry(played, &fault)),
            true => {
                let (mut heard, said) = (fault.heard, (fault.doorbell, recorded(fault.record)));
                let wrong = heard.hear(said, fault.read, (pair, self.layout.0.slots)).err();
                wrong.unwrap_or((fault.heard.known, "was announced wrongly".to_string()))
            }
        };
        Some(NetError::Entry { rank, peer, queue, number, why })
    }

    fn wrong_entry(&self, played: &Played, fault: &Fault) -> String {
        let End { peer, queue, .. } = played.end;
        let read = Entry::read(&fault.block, self.layout.number(peer, queue), fault.number);
        let checked = read.and_then(|entry| {
            let checked = self.layout.check(played.end, [played.own, played.theirs], &entry);
            checked.map_err(|(_, why)| why)
        });
        checked.err().unwrap_or_else(|| "is refused by its card".to_string())
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.backend.unload(self.rank, self.code);
    }
}

/// Tickets that may be open at once: more than there are movers.
fn tickets(entries: u64) -> u64 {
    (2 * entries).next_power_of_two().max(1 << 12)
}
