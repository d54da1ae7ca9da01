//! A network inside the emulator: all ranks in one process, with latency, bandwidth, writes that land in
//! any order and in pieces, and dead links.
//!
//! Each queue of each rank is an actor of the scheduler and an agent of the checker, which treats the
//! network's reads and writes like accesses of a lane. The model guarantees what `ep/net.cuh` promises and
//! no more. The model merges, numbers and counts writes with the same code as the libfabric thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;
use ep_emu::{Actor, ActorMemory, Address};

use super::card::{CardPair, Shared};
use super::layout::{ALIGNMENT, Layout, WINDOW};
use super::pairs::{End, PairLayout};
use super::queue::{self, Joined, Limits, Request, STAMP_AT};
use super::resident::CardTraffic;
use super::stream::{Landing, Sending};
use super::view::{Ends, NetPart, Places, Views};
use crate::backend::Backend;
use crate::error::CallError;
use crate::group::Watched;
use crate::host::HostBackend;
use crate::memory::{DeviceMemory, HostMemory, Window};
use crate::net_error::NetError;

/// What a kernel that has a network for itself finds before its part, as if others shared it.
const BEFORE: NetPart = NetPart { begin: ALIGNMENT, first: 3 };

/// Behavior of the emulated network; its clock is that of the emulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOptions {
    /// Minimum time from a write's departure to its landing.
    pub latency: Duration,
    /// Bytes that a link carries per microsecond; 0: no limit.
    pub bytes_per_us: u64,
    /// Bytes that a port of a rank receives per microsecond over all of its links; 0: no limit.
    pub receives_per_us: u64,
    /// Ports of each rank, which its queue pairs take in turn: 1 without cards.
    pub ports: usize,
    /// Whether writes overtake one another.
    pub reorder: bool,
    /// Links that carry nothing, from one rank to another.
    pub dead_links: Vec<(usize, usize)>,
}

impl Default for ModelOptions {
    fn default() -> ModelOptions {
        let latency = Duration::from_micros(2);
        ModelOptions {
            latency,
            bytes_per_us: 0,
            receives_per_us: 0,
            ports: 1,
            reorder: true,
            dead_links: Vec::new(),
        }
    }
}

/// The memory of all ranks of a modeled network.
pub struct ModelNetwork {
    memories: Vec<HostMemory>,
    /// The memory of all ranks, if processes share it.
    _window: Option<Window>,
    views: Vec<Views>,
    shared: Arc<Shared>,
}

impl ModelNetwork {
    /// Connects all ranks of the backend, whose kernels request rows by descriptors. `layout` has the same
    /// number of ranks.
    pub fn new(
        backend: &Arc<HostBackend>,
        layout: Layout,
        options: &ModelOptions,
    ) -> Result<ModelNetwork, NetError> {
        let (ranks, any) = (backend.ranks(), Arc::clone(backend) as Arc<dyn Backend>);
        let layout = Layout { ranks, ..layout };
        layout.check()?;
        let (memories, bases) = memories(&any, layout.bytes())?;
        let view = |rank: usize| {
            let places = Places::of_queues(&layout, bases[rank], bases[rank]);
            Views::new(&any, rank, (&layout, rank), places)
        };
        let views = (0..ranks).map(view).collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared::new(ranks, layout.ports));
        for rank in 0..ranks {
            for queue in 0..layout.queues {
                let actor = ModelQueue::new((rank, queue), layout, &bases, options, &shared);
                backend.add_actor(Box::new(actor));
            }
        }
        Ok(ModelNetwork { memories, _window: None, views, shared })
    }

    /// Connects all ranks of the backend, whose kernels write to the card of their rank, and adds models of
    /// the cards.
    pub fn of_cards(
        backend: &Arc<HostBackend>,
        layout: Layout,
        options: &ModelOptions,
    ) -> Result<ModelNetwork, NetError> {
        let (ranks, any) = (backend.ranks(), Arc::clone(backend) as Arc<dyn Backend>);
        let layout = PairLayout(Layout { ranks, ..layout });
        layout.0.check_pairs()?;
        let (memories, bases) = memories(&any, layout.bytes())?;
        let shared = Arc::new(Shared::new(ranks, layout.0.ports));
        let cards = Cards { backend: &any, emulator: backend, layout, options, shared: &shared };
        let views = (0..ranks).map(|rank| cards.views(rank, &bases));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        Ok(ModelNetwork { memories, _window: None, views, shared })
    }

    /// Connects the local ranks of a group to all of its ranks, as [`ModelNetwork::of_cards`] does. Other processes of
    /// the machine have the other ranks.
    pub(super) fn of_shared_cards(
        backend: &Arc<dyn Backend>,
        emulator: &HostBackend,
        layout: Layout,
        options: &ModelOptions,
    ) -> Result<ModelNetwork, NetError> {
        let layout = PairLayout(layout);
        layout.0.check_pairs()?;
        let window = Window::of_machine(backend, layout.bytes())?;
        let shared = Arc::new(Shared::new(layout.0.ranks, layout.0.ports));
        let cards = Cards { backend, emulator, layout, options, shared: &shared };
        let views = backend.local().map(|rank| cards.views(rank, window.bases(rank)?));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        Ok(ModelNetwork { memories: Vec::new(), _window: Some(window), views, shared })
    }

    /// The network that a plan needs, if any. The plan's kernel uses the part after that of another kernel,
    /// which stays unchanged.
    pub fn of_plan(
        backend: &Arc<HostBackend>,
        plan: &Plan,
        options: &ModelOptions,
    ) -> Result<Option<ModelNetwork>, NetError> {
        let Some(carrier) = plan.carrier.as_ref().filter(|_| plan.network_counters > 0) else {
            return Ok(None);
        };
        let (_, data_bytes, counters) = NetPart::place([plan], carrier)?;
        let (data_bytes, counters) = (data_bytes + BEFORE.begin, counters + BEFORE.first as usize);
        let mut network = ModelNetwork::of(backend, options, carrier, (data_bytes, counters))?;
        for view in &mut network.views {
            view.all = view.part(BEFORE)?;
        }
        Ok(Some(network))
    }

    /// A network for kernels that share it, and the part of each.
    pub(super) fn of_plans(
        backend: &Arc<HostBackend>,
        plans: &[&Plan],
        options: &ModelOptions,
        carrier: &Transport,
    ) -> Result<(ModelNetwork, Vec<NetPart>), NetError> {
        let (parts, data_bytes, counters) = NetPart::place(plans.iter().copied(), carrier)?;
        let network = ModelNetwork::of(backend, options, carrier, (data_bytes, counters))?;
        Ok((network, parts))
    }

    /// One for so many bytes of rows and so many counters.
    fn of(
        backend: &Arc<HostBackend>,
        options: &ModelOptions,
        carrier: &Transport,
        (data_bytes, counters): (u64, usize),
    ) -> Result<ModelNetwork, NetError> {
        let (ranks, data_bytes) = (backend.ranks(), data_bytes.max(1));
        let ports = options.ports;
        let queues = ports.max(2);
        let layout = Layout { ranks, data_bytes, queues, slots: 64, counters, ports };
        match carrier {
            Transport::Ibgda => ModelNetwork::of_cards(backend, layout, options),
            _ => ModelNetwork::new(backend, layout, options),
        }
    }

    /// The first invalid entry or descriptor that a kernel has written, if any.
    pub fn failure(&self) -> Option<NetError> {
        self.shared.failure.get().cloned()
    }

    /// What the card of each rank has carried; of queues, nothing is known.
    pub(super) fn traffic(&self) -> Vec<CardTraffic> {
        self.shared.traffic()
    }

    /// The state that its cards share.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The descriptions of the local ranks' networks for kernels, which are kept elsewhere from then on.
    pub(super) fn take_views(&mut self) -> Vec<Views> {
        std::mem::take(&mut self.views)
    }

    /// The function by which a group asks for the first invalid entry or descriptor that a kernel has written.
    pub(super) fn watched(&self) -> Arc<Watched> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.failure.get().cloned().map(CallError::Network))
    }

    /// The address of a rank's `ep::Net`, an argument of kernels.
    pub fn address(&self, rank: usize) -> u64 {
        self.views[rank].all.address()
    }

    /// `ep::Net` of a rank, for one kernel that has a part of the network.
    pub(super) fn part(&self, rank: usize, part: NetPart) -> Result<DeviceMemory, NetError> {
        self.views[rank].part(part)
    }

    /// The addresses of all ranks' `ep::Net`.
    pub fn addresses(&self) -> Vec<u64> {
        (0..self.views.len()).map(|rank| self.address(rank)).collect()
    }

    /// The memory of a rank, which begins with the rows.
    pub fn rows(&self, rank: usize) -> &HostMemory {
        &self.memories[rank]
    }
}

impl Drop for ModelNetwork {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Relaxed);
    }
}

/// Models of cards in the making.
struct Cards<'a> {
    backend: &'a Arc<dyn Backend>,
    emulator: &'a HostBackend,
    layout: PairLayout,
    options: &'a ModelOptions,
    shared: &'a Arc<Shared>,
}

impl Cards<'_> {
    /// Adds the card of a rank, which knows the memory of each rank at one of `bases`, and describes it to kernels.
    fn views(&self, rank: usize, bases: &[u64]) -> Result<Views, NetError> {
        let Cards { backend, emulator, layout, options, shared } = *self;
        let words = layout.table(rank, bases);
        let table = DeviceMemory::zeroed(backend, rank, words.len() as u64)?;
        table.write(0, &words)?;
        for (peer, queue) in layout.ends().filter(|(peer, _)| *peer != rank) {
            for (at, words) in layout.begun(peer, queue) {
                let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
                backend.write(rank, bases[rank] + at, &bytes)?;
            }
            let end = End { rank, peer, queue };
            emulator.add_actor(Box::new(CardPair::new(end, layout, bases, options, shared)));
        }
        let counters = bases[rank] + layout.counters(0, 0);
        let places = Places { data: bases[rank], counters, ends: Ends::Pairs };
        Views::at((backend, rank), (&layout.0, rank), places, table)
    }
}

/// Memory of so many bytes on each rank, and where it is.
fn memories(
    backend: &Arc<dyn Backend>,
    bytes: u64,
) -> Result<(Vec<HostMemory>, Vec<u64>), NetError> {
    let memory = |rank| HostMemory::new(backend, rank, bytes);
    let memories = (0..backend.ranks()).map(memory).collect::<Result<Vec<_>, _>>()?;
    let bases = memories.iter().map(HostMemory::address).collect();
    Ok((memories, bases))
}

/// A write on its way.
struct Packet {
    request: Request,
    place: u16,
    /// What it carries; none as long as it has not left.
    bytes: Option<Vec<u8>>,
    /// How much of that has landed.
    landed: usize,
    due_ns: u64,
}

/// A stream to one peer: both ends of it, and its link.
struct Flow {
    sending: Sending,
    landing: Landing,
    /// What the signals add that have landed, by their place.
    signals: Vec<(u16, u32)>,
    counters: Vec<u32>,
    free_ns: u64,
    is_dead: bool,
}

/// The network as far as it serves one queue of one rank.
struct ModelQueue {
    rank: usize,
    queue: usize,
    layout: Layout,
    /// The memory of every rank.
    bases: Vec<u64>,
    latency_ns: u64,
    bytes_per_us: u64,
    receives_per_us: u64,
    reorder: bool,
    taken: u32,
    /// Sources that have not been read, of all that were taken.
    unread: usize,
    joined: Joined,
    waiting: Vec<Request>,
    packets: Vec<Packet>,
    flows: Vec<Flow>,
    now_ns: u64,
    shared: Arc<Shared>,
    /// A descriptor that cannot be carried out: nothing moves any more.
    broken: bool,
}

impl ModelQueue {
    fn new(
        (rank, queue): (usize, usize),
        layout: Layout,
        bases: &[u64],
        options: &ModelOptions,
        shared: &Arc<Shared>,
    ) -> ModelQueue {
        let flow = |peer| Flow {
            sending: Sending::default(),
            landing: Landing::default(),
            signals: vec![(0, 0); WINDOW],
            counters: vec![0; layout.counters],
            free_ns: 0,
            is_dead: options.dead_links.contains(&(rank, peer)),
        };
        ModelQueue {
            rank,
            queue,
            layout,
            bases: bases.to_vec(),
            latency_ns: u64::try_from(options.latency.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_us: options.bytes_per_us,
            receives_per_us: options.receives_per_us,
            reorder: options.reorder,
            taken: 0,
            unread: 0,
            joined: Joined::new(layout.ranks),
            waiting: Vec::new(),
            packets: Vec::new(),
            flows: (0..layout.ranks).map(flow).collect(),
            now_ns: 0,
            shared: Arc::clone(shared),
            broken: false,
        }
    }

    fn is_over(&self) -> bool {
        self.broken || self.shared.gone.load(Ordering::Relaxed)
    }

    fn at(&self, rank: usize, offset: u64) -> Address {
        Address(self.bases[rank] + offset)
    }

    /// Takes some of the descriptors that are there.
    fn take(&mut self, memory: &mut dyn ActorMemory) -> bool {
        let limits = Limits {
            ranks: self.layout.ranks,
            rank: self.rank,
            data_bytes: self.layout.data_bytes,
            counters: self.layout.counters,
        };
        let before = self.taken;
        let most = 1 + memory.draw(8) as u32;
        while self.taken.wrapping_sub(before) < most {
            let at = self.at(self.rank, self.layout.descriptor(self.queue, self.taken));
            let stamp = memory.peek(at.offset(STAMP_AT));
            if !queue::has_come(stamp, self.taken, self.layout.slots) {
                break;
            }
            let stamp = memory.acquire(at.offset(STAMP_AT));
            let mut bytes = [0; STAMP_AT as usize];
            memory.read(at, &mut bytes);
            let word = |index: usize| {
                let word = bytes[8 * index..].first_chunk().copied();
                word.map_or(0, u64::from_le_bytes)
            };
            match Request::read(&[word(0), word(1), word(2), stamp], &limits) {
                Ok(request) => self.joined.add(request),
                Err(_) => self.broken = true,
            }
            self.taken = self.taken.wrapping_add(1);
        }
        if self.taken == before {
            return false;
        }
        let known = self.waiting.len();
        self.waiting.extend(self.joined.take());
        self.unread += self.waiting.len() - known;
        let progress = self.at(self.rank, self.layout.progress(self.queue));
        memory.release_half(progress, self.taken);
        self.tell_done(memory);
        true
    }

    /// Sources may be written again when all that was taken has been read.
    fn tell_done(&self, memory: &mut dyn ActorMemory) {
        if self.unread == 0 {
            let progress = self.at(self.rank, self.layout.progress(self.queue));
            memory.release_half(progress.offset(4), self.taken);
        }
    }

    /// Puts one request on its way, in the order of its stream.
    fn post(&mut self) -> bool {
        let now_ns = self.now_ns;
        let fits = |request: &Request| self.flows[request.peer()].sending.place().is_some();
        let Some(next) = self.waiting.iter().position(fits) else { return false };
        let request = self.waiting.remove(next);
        let flow = &mut self.flows[request.peer()];
        let Some(place) = flow.sending.place() else { return false };
        flow.sending.posted();
        let bytes = match request {
            Request::Put { bytes, .. } => u64::from(bytes),
            Request::Signal { .. } => 8,
        };
        let takes = (bytes * 1000).checked_div(self.bytes_per_us).unwrap_or(0);
        flow.free_ns = flow.free_ns.max(now_ns) + takes;
        let arrives = flow.free_ns + self.latency_ns;
        let due_ns = self.shared.received(request.peer(), arrives, (bytes, self.receives_per_us));
        self.packets.push(Packet { request, place, bytes: None, landed: 0, due_ns });
        true
    }

    /// Moves one packet on: it leaves, or a part of it lands.
    fn carry(&mut self, memory: &mut dyn ActorMemory) -> bool {
        if self.packets.is_empty() {
            return false;
        }
        let can_move = |packet: &Packet| packet.bytes.is_none() || packet.due_ns <= self.now_ns;
        let mut movable: Vec<usize> =
            (0..self.packets.len()).filter(|index| can_move(&self.packets[*index])).collect();
        if !self.reorder {
            // One after another: the first of each link.
            let peer = |index: usize| self.packets[index].request.peer();
            movable.retain(|index| (0..*index).all(|before| peer(before) != peer(*index)));
        }
        if movable.is_empty() {
            return false;
        }
        let index = movable[memory.draw(movable.len())];
        match self.packets[index].bytes {
            None => self.depart(index, memory),
            Some(_) => self.arrive(index, memory),
        }
        true
    }

    /// The source of a packet is read.
    fn depart(&mut self, index: usize, memory: &mut dyn ActorMemory) {
        let mut read = Vec::new();
        if let Request::Put { from, bytes, .. } = self.packets[index].request {
            read.resize(bytes as usize, 0);
            memory.read(self.at(self.rank, from), &mut read);
        }
        self.packets[index].bytes = Some(read);
        self.unread -= 1;
        self.tell_done(memory);
        if self.flows[self.packets[index].request.peer()].is_dead {
            self.packets.swap_remove(index);
        }
    }

    /// Some of a packet lands; with the last of it, it counts.
    fn arrive(&mut self, index: usize, memory: &mut dyn ActorMemory) {
        let packet = &self.packets[index];
        let peer = packet.request.peer();
        if let (Request::Put { to, .. }, Some(bytes)) = (packet.request, &packet.bytes) {
            let left = bytes.len() - packet.landed;
            // Whole words, as a network writes them.
            let piece = match left {
                0..16 => left,
                _ => left.min((1 + memory.draw(left / 8)) * 8),
            };
            let part = &bytes[packet.landed..packet.landed + piece];
            memory.write(self.at(peer, to + packet.landed as u64), part);
            self.packets[index].landed += piece;
            if piece < left {
                return;
            }
        }
        let packet = match self.reorder {
            true => self.packets.swap_remove(index),
            false => self.packets.remove(index),
        };
        let (flow, layout) = (&mut self.flows[peer], self.layout);
        let is_signal = matches!(packet.request, Request::Signal { .. });
        if let Request::Signal { counter, count, .. } = packet.request {
            flow.signals[usize::from(packet.place) % WINDOW] = (counter, count);
        }
        let (signals, counters) = (&flow.signals, &mut flow.counters);
        let (base, rank, queue) = (self.bases[peer], self.rank, self.queue);
        let landed = flow.landing.land(packet.place, is_signal, |place| {
            let (counter, count) = signals[usize::from(place) % WINDOW];
            let counter = usize::from(counter);
            counters[counter] = counters[counter].wrapping_add(count);
            let at = Address(base + layout.counter(rank, queue, counter));
            memory.release_half(at, counters[counter]);
        });
        self.broken |= landed.is_err();
        if let Some(owed) = flow.landing.owed(false) {
            flow.landing.told(owed);
            self.broken |= flow.sending.landed(owed).is_err();
        }
    }
}

impl Actor for ModelQueue {
    fn name(&self) -> String {
        format!("the network for queue {} of rank {}", self.queue, self.rank)
    }

    fn step(&mut self, memory: &mut dyn ActorMemory) -> bool {
        if self.is_over() {
            return false;
        }
        let now_ns = memory.clock_ns();
        self.shared.pass(now_ns);
        if now_ns < self.now_ns {
            self.flows.iter_mut().for_each(|flow| flow.free_ns = 0);
            self.packets.iter_mut().for_each(|packet| packet.due_ns = packet.due_ns.min(now_ns));
        }
        self.now_ns = now_ns;
        // Any of the three may be what happens next.
        match memory.draw(3) {
            0 => self.take(memory) || self.post() || self.carry(memory),
            1 => self.post() || self.carry(memory) || self.take(memory),
            _ => self.carry(memory) || self.take(memory) || self.post(),
        }
    }

    fn due_ns(&self) -> Option<u64> {
        let on_their_way = self.packets.iter().filter(|packet| packet.bytes.is_some());
        let due = on_their_way.map(|packet| packet.due_ns).min();
        due.filter(|_| !self.is_over())
    }
}
