//! A network card inside the emulator, which executes the entries that kernels write into its queue pairs.
//!
//! Each queue pair is an actor of the scheduler and an agent of the checker, because nothing orders two of
//! them. The card sees an entry only when a doorbell or a doorbell record says so, and executes entries in order.
//! The card's guarantees are those of a reliable connection and no more: bytes of neighboring writes land in any
//! order, an atomic add executes after all writes before it have landed, and a completion says that its
//! entry and all before it have landed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ep_emu::{Actor, ActorMemory, Address};

use super::mlx5::{
    self, BLOCK_BYTES, COMPLETION_WORD_AT, Entry, Heard, News, Source, Syndrome, Work,
};
use super::model::ModelOptions;
use super::pairs::{End, PairLayout};
use super::resident::CardTraffic;
use crate::net_error::NetError;

/// Entries that a card works on at once.
const AT_ONCE: usize = 16;

/// How long a card asks a peer again that does not answer. A real one takes seconds.
const RETRIES_NS: u64 = 100_000;

/// What the network and its cards know of one another.
pub(super) struct Shared {
    pub(super) gone: AtomicBool,
    pub(super) failure: OnceLock<NetError>,
    /// When each port of all ranks has received what is on its way to it.
    ports: Vec<AtomicU64>,
    now_ns: AtomicU64,
    /// The entries, doorbells and bytes of each rank's card.
    carried: Vec<[AtomicU64; 3]>,
}

/// The cards of a group's networks that are models.
#[derive(Default)]
pub(super) struct Models(Mutex<Vec<Weak<Shared>>>);

impl Models {
    pub(super) fn add(&self, shared: &Arc<Shared>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|shared| shared.strong_count() > 0);
        known.push(Arc::downgrade(shared));
    }

    /// What the card of each of `ranks` ranks has carried, as far as this process knows.
    pub(super) fn traffic(&self, ranks: usize) -> Vec<CardTraffic> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = vec![CardTraffic::default(); ranks];
        for shared in known.iter().filter_map(Weak::upgrade) {
            all.iter_mut().zip(shared.traffic()).for_each(|(sum, own)| *sum += own);
        }
        all
    }
}

impl Shared {
    pub(super) fn new(ranks: usize, ports: usize) -> Shared {
        let ports = (0..ranks * ports).map(|_| AtomicU64::new(0)).collect();
        Shared {
            gone: AtomicBool::new(false),
            failure: OnceLock::new(),
            ports,
            now_ns: AtomicU64::new(0),
            carried: (0..ranks).map(|_| <[AtomicU64; 3]>::default()).collect(),
        }
    }

    /// The traffic of each rank's card.
    pub(super) fn traffic(&self) -> Vec<CardTraffic> {
        let read = |counts: &[AtomicU64; 3]| {
            let [entries, doorbells, bytes] =
                counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            CardTraffic { entries, doorbells, bytes }
        };
        self.carried.iter().map(read).collect()
    }

    fn count(&self, rank: usize, [entries, doorbells, bytes]: [u64; 3]) {
        for (sum, number) in self.carried[rank].iter().zip([entries, doorbells, bytes]) {
            sum.fetch_add(number, Ordering::Relaxed);
        }
    }

    /// Takes note of the time, which each run counts from 0.
    pub(super) fn pass(&self, now_ns: u64) {
        if now_ns < self.now_ns.swap(now_ns, Ordering::Relaxed) {
            self.ports.iter().for_each(|port| port.store(0, Ordering::Relaxed));
        }
    }

    /// When `bytes` that reach a port at `arrives_ns` have been received, behind all that came before, at `rate` bytes
    /// per microsecond.
    pub(super) fn received(&self, port: usize, arrives_ns: u64, (bytes, rate): (u64, u64)) -> u64 {
        let Some(takes) = (bytes * 1000).checked_div(rate) else { return arrives_ns };
        // Actors take their steps one after another.
        let port = &self.ports[port];
        let begins = arrives_ns.saturating_sub(takes).max(port.load(Ordering::Relaxed));
        port.store(begins + takes, Ordering::Relaxed);
        begins + takes
    }
}

/// How far the card is with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has been read.
    Read,
    /// What it sends has left, and so many bytes of that have landed.
    Sent(usize),
    /// All has landed, and the answer is on its way.
    Landed,
}

/// An entry that the card works on.
struct Packet {
    number: u32,
    entry: Entry,
    bytes: Vec<u8>,
    stage: Stage,
    due_ns: u64,
}

/// One queue pair of the card of one rank.
pub(super) struct CardPair {
    end: End,
    layout: PairLayout,
    /// The memory of this rank and of the peer.
    own: u64,
    theirs: u64,
    latency_ns: u64,
    bytes_per_us: u64,
    receives_per_us: u64,
    reorder: bool,
    is_dead: bool,
    heard: Heard,
    /// The next entry to read.
    read: u32,
    packets: VecDeque<Packet>,
    free_ns: u64,
    now_ns: u64,
    /// An entry has failed: no other one is carried out.
    has_failed: bool,
    shared: Arc<Shared>,
}

impl CardPair {
    /// The queue pair `end` of ranks whose memories begin at `bases`.
    pub(super) fn new(
        end: End,
        layout: PairLayout,
        bases: &[u64],
        options: &ModelOptions,
        shared: &Arc<Shared>,
    ) -> CardPair {
        let first = layout.first(end.peer, end.queue);
        CardPair {
            end,
            layout,
            own: bases[end.rank],
            theirs: bases[end.peer],
            latency_ns: u64::try_from(options.latency.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_us: options.bytes_per_us,
            receives_per_us: options.receives_per_us,
            reorder: options.reorder,
            is_dead: options.dead_links.contains(&(end.rank, end.peer)),
            heard: Heard { rung: 0, recorded: 0, known: first },
            read: first,
            packets: VecDeque::new(),
            free_ns: 0,
            now_ns: 0,
            has_failed: false,
            shared: Arc::clone(shared),
        }
    }

    fn here(&self, offset: u64) -> Address {
        Address(self.own + offset)
    }

    /// Its own number.
    fn number(&self) -> u32 {
        self.layout.number(self.end.peer, self.end.queue)
    }

    /// Says what is wrong with an entry, to the kernel as a card does, and ends the run.
    fn refuse(
        &mut self,
        memory: &mut dyn ActorMemory,
        (number, syndrome): (u32, Syndrome),
        why: String,
    ) {
        self.complete(memory, number, Some(syndrome));
        let End { rank, peer, queue } = self.end;
        let error = NetError::Entry { rank, peer, queue, number, why };
        memory.fail(error.to_string());
        let _ = self.shared.failure.set(error);
    }

    /// Looks at the doorbell, and at the record.
    fn listen(&mut self, memory: &mut dyn ActorMemory) -> bool {
        let End { peer, queue, .. } = self.end;
        let doorbell = self.here(self.layout.doorbell(peer, queue));
        let record = self.here(self.layout.record(peer, queue));
        let said = (memory.peek(doorbell), mlx5::recorded(memory.peek_half(record)));
        match self.heard.hear(said, self.read, (self.number(), self.layout.0.slots)) {
            Ok(News::Nothing) => return false,
            Ok(News::Doorbell) => {
                memory.acquire(doorbell);
                self.shared.count(self.end.rank, [0, 1, 0]);
            }
            Ok(News::Record) => drop(memory.acquire_half(record)),
            Err((number, why)) => self.refuse(memory, (number, Syndrome::Operation), why),
        }
        true
    }

    /// Reads the next entry.
    fn fetch(&mut self, memory: &mut dyn ActorMemory) -> bool {
        if self.read == self.heard.known || self.packets.len() == AT_ONCE {
            return false;
        }
        let (number, End { peer, queue, .. }) = (self.read, self.end);
        let mut block = [0; BLOCK_BYTES];
        memory.read(self.here(self.layout.entry(peer, queue, number)), &mut block);
        self.read = number.wrapping_add(1);
        match Entry::read(&block, self.number(), number) {
            Err(why) => self.refuse(memory, (number, Syndrome::Operation), why),
            Ok(entry) => match self.layout.check(self.end, [self.own, self.theirs], &entry) {
                Err((syndrome, why)) => self.refuse(memory, (number, syndrome), why),
                Ok(()) => {
                    let (bytes, stage) = (Vec::new(), Stage::Read);
                    self.packets.push_back(Packet { number, entry, bytes, stage, due_ns: 0 });
                }
            },
        }
        true
    }

    /// Moves one entry on: its bytes leave, or some of them land.
    fn carry(&mut self, memory: &mut dyn ActorMemory) -> bool {
        let movable: Vec<usize> = (0..self.packets.len()).filter(|at| self.can_move(*at)).collect();
        if movable.is_empty() {
            return false;
        }
        let at = movable[memory.draw(movable.len())];
        match self.packets[at].stage {
            Stage::Read => self.depart(at, memory),
            _ => self.arrive(at, memory),
        }
        true
    }

    fn can_move(&self, at: usize) -> bool {
        let packet = &self.packets[at];
        let before = || self.packets.iter().take(at).filter(|it| it.stage != Stage::Landed);
        let is_add = |packet: &Packet| matches!(packet.entry.work, Work::Add { .. });
        match packet.stage {
            // They leave in order.
            Stage::Read => before().all(|it| it.stage != Stage::Read),
            Stage::Sent(_) if self.is_dead || packet.due_ns > self.now_ns => false,
            Stage::Sent(_) if is_add(packet) || !self.reorder => before().count() == 0,
            Stage::Sent(_) => !before().any(is_add),
            Stage::Landed => false,
        }
    }

    /// What an entry sends is read.
    fn depart(&mut self, at: usize, memory: &mut dyn ActorMemory) {
        let bytes = match &self.packets[at].entry.work {
            Work::Write { source: Source::Memory(from), .. } => {
                let mut bytes = vec![0; from.bytes as usize];
                memory.read(Address(from.address), &mut bytes);
                bytes
            }
            Work::Write { source: Source::Inline(bytes), .. } => bytes.clone(),
            Work::Add { number, .. } => number.to_le_bytes().to_vec(),
        };
        let takes = (bytes.len() as u64 * 1000).checked_div(self.bytes_per_us).unwrap_or(0);
        self.free_ns = self.free_ns.max(self.now_ns) + takes;
        let arrives = self.free_ns + self.latency_ns;
        let incoming = (bytes.len() as u64, self.receives_per_us);
        let port = self.end.peer * self.layout.0.ports + self.layout.port(self.end);
        let arrives = self.shared.received(port, arrives, incoming);
        self.shared.count(self.end.rank, [1, 0, bytes.len() as u64]);
        let packet = &mut self.packets[at];
        packet.bytes = bytes;
        packet.stage = Stage::Sent(0);
        packet.due_ns = if self.is_dead { self.now_ns + RETRIES_NS } else { arrives };
    }

    /// Some of what an entry sends lands.
    fn arrive(&mut self, at: usize, memory: &mut dyn ActorMemory) {
        let packet = &mut self.packets[at];
        let Stage::Sent(landed) = packet.stage else { return };
        match &packet.entry.work {
            Work::Write { to, .. } => {
                let left = packet.bytes.len() - landed;
                // Whole words, as a network writes them.
                let piece = match left {
                    0..16 => left,
                    _ => left.min((1 + memory.draw(left / 8)) * 8),
                };
                let part = &packet.bytes[landed..landed + piece];
                memory.write(Address(to.address + landed as u64), part);
                packet.stage = Stage::Sent(landed + piece);
                if piece < left {
                    return;
                }
            }
            Work::Add { to, number, .. } => {
                let was = memory.peek_half(Address(to.address));
                memory.release_half(Address(to.address), was.wrapping_add(*number));
                packet.bytes = was.to_le_bytes().to_vec();
            }
        }
        packet.stage = Stage::Landed;
        packet.due_ns = self.now_ns + self.latency_ns;
    }

    /// Ends the first entry, when the peer has answered or does not.
    fn finish(&mut self, memory: &mut dyn ActorMemory) -> bool {
        let Some(first) = self.packets.front().filter(|first| first.due_ns <= self.now_ns) else {
            return false;
        };
        let number = first.number;
        if self.is_dead && first.stage == Stage::Sent(0) {
            self.complete(memory, number, Some(Syndrome::Retries));
            self.flush(memory);
            return true;
        }
        if first.stage != Stage::Landed {
            return false;
        }
        if let Work::Add { before, .. } = &first.entry.work {
            memory.write(Address(before.address), &first.bytes);
        }
        let says_done = first.entry.says_done;
        self.packets.pop_front();
        if says_done {
            self.complete(memory, number, None);
        }
        true
    }

    /// Says of all entries that it knows that they are not carried out, as one before them was not.
    fn flush(&mut self, memory: &mut dyn ActorMemory) {
        self.packets.clear();
        self.complete(memory, self.heard.known.wrapping_sub(1), Some(Syndrome::Flushed));
    }

    /// Writes the completion of an entry over the one before.
    fn complete(&mut self, memory: &mut dyn ActorMemory, number: u32, failed: Option<Syndrome>) {
        let block = mlx5::completion(self.number(), number, failed);
        let at = self.here(self.layout.completion(self.end.peer, self.end.queue));
        let (body, last) = block.split_at(COMPLETION_WORD_AT);
        memory.write(at, body);
        let last = last.first_chunk().copied().map_or(0, u32::from_le_bytes);
        memory.release_half(at.offset(COMPLETION_WORD_AT as u64), last);
        self.has_failed |= failed.is_some();
    }

    fn is_over(&self) -> bool {
        self.shared.failure.get().is_some() || self.shared.gone.load(Ordering::Relaxed)
    }
}

impl Actor for CardPair {
    fn name(&self) -> String {
        let End { rank, peer, queue } = self.end;
        format!("the card of rank {rank} for queue {queue} to rank {peer}")
    }

    fn step(&mut self, memory: &mut dyn ActorMemory) -> bool {
        if self.is_over() {
            return false;
        }
        let now_ns = memory.clock_ns();
        self.shared.pass(now_ns);
        if now_ns < self.now_ns {
            self.free_ns = 0;
            self.packets.iter_mut().for_each(|packet| packet.due_ns = packet.due_ns.min(now_ns));
        }
        self.now_ns = now_ns;
        if self.has_failed {
            let hears = self.listen(memory);
            if hears {
                self.flush(memory);
            }
            return hears;
        }
        // Any of these may be what happens next.
        let first = memory.draw(4);
        (first..first + 4).any(|turn| match turn % 4 {
            0 => self.listen(memory),
            1 => self.fetch(memory),
            2 => self.carry(memory),
            _ => self.finish(memory),
        })
    }

    fn due_ns(&self) -> Option<u64> {
        // What is due already waits for something else.
        let later =
            self.packets.iter().map(|packet| packet.due_ns).filter(|due| *due > self.now_ns);
        later.min().filter(|_| !self.is_over())
    }
}
