//! The kernel of one GPU, which plays the cards of its ranks for the queue pairs of all networks of a group.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::mlx5::{Entry, recorded};
use super::super::pairs::{End, PairLayout};
use super::tables::{
    CONTROL_BYTES, COUNTS_AT, FAULT_BYTES, Fault, KNOWN_AT, PAIR_BYTES, Played, STATE_BYTES,
    TICKETS, WORK_BYTES, Words,
};
use super::{CardTraffic, RESIDENT_SMS, RESIDENT_TEXT, ResidentOptions};
use crate::backend::{Accompanied, Backend, Block, Busy, Code, Companion};
use crate::memory::{DeviceMemory, HostMemory, Window};
use crate::net_error::NetError;

const ENTRY: &str = "card_run";

/// Threads of a block, and so much shared memory that no other kernel runs beside one.
const BLOCK: Block = Block { threads: 768, shared_bytes: 160 << 10 };

/// Queue pairs of a warp that listens to them, and of a warp that ends their entries.
const EACH: usize = 32;

/// How many warps of each kind there are: as many as are needed, but no fewer than the first number.
const FRONTS: [usize; 2] = [8, 16];
const PAIRS_MAX: usize = EACH * FRONTS[1];

/// How often a thread looks whether kernels are in flight.
const LOOK: Duration = Duration::from_micros(200);

/// Most ports of the ranks of a GPU, whose links are apart.
const PORTS_MAX: usize = 64;

/// The kernel of one GPU.
pub(super) struct Player {
    pub(super) backend: Arc<dyn Backend>,
    /// The ranks of the GPU, of which the first one loads the kernel.
    ranks: Vec<usize>,
    options: ResidentOptions,
    /// How long a change of its queue pairs waits for the kernels in flight.
    patience: Duration,
    pub(super) code: Code,
    /// Keeps the kernel beside all others of the GPU.
    beside: Option<Box<dyn Accompanied>>,
    /// Two tables of queue pairs: that of the kernel, and the next one. Nothing is freed when it changes, because a free
    /// waits for kernels that other threads have launched since.
    tables: [DeviceMemory; 2],
    /// Held while the table changes.
    table: Mutex<Table>,
    parts: Mutex<Vec<Arc<Part>>>,
    /// The id of the next queue pair.
    next: AtomicU32,
    tickets: DeviceMemory,
    pub(super) control: DeviceMemory,
    pub(super) stop: Arc<HostMemory>,
    pub(super) fault: HostMemory,
}

/// A table of `card::Pair`.
#[derive(Debug, Clone, Copy, Default)]
struct Table {
    which: usize,
    count: usize,
}

/// The queue pairs of one network on a GPU, with their memory.
pub(super) struct Part {
    layout: PairLayout,
    played: Vec<Played>,
    states: DeviceMemory,
    works: DeviceMemory,
    _sums: DeviceMemory,
    /// Where its queue pairs are.
    _window: Arc<Window>,
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk().copied());
    word.map_or(0, u32::from_le_bytes)
}

impl Player {
    /// The kernels of the GPUs of this process, which do not run yet.
    pub(super) fn of_gpus(
        backend: &Arc<dyn Backend>,
        options: &ResidentOptions,
        patience: Duration,
    ) -> Result<Vec<Player>, NetError> {
        let mut ranks_of: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for rank in backend.local() {
            ranks_of.entry(backend.device(rank).unwrap_or(0)).or_default().push(rank);
        }
        let each = ranks_of.into_values();
        each.map(|ranks| Player::new(backend, ranks, options, patience)).collect()
    }

    fn new(
        backend: &Arc<dyn Backend>,
        ranks: Vec<usize>,
        options: &ResidentOptions,
        patience: Duration,
    ) -> Result<Player, NetError> {
        let value = (ranks.len() as u64).saturating_mul(options.ports as u64);
        let most = PORTS_MAX as u64;
        if value > most {
            let what = "ports of all ranks of a GPU";
            return Err(NetError::Option { what, value, least: 1, most });
        }
        let rank = ranks.first().copied().unwrap_or(0);
        let table = || DeviceMemory::new(backend, rank, (PAIRS_MAX * PAIR_BYTES) as u64);
        let tables = [table()?, table()?];
        let tickets = DeviceMemory::zeroed(backend, rank, 8 * TICKETS)?;
        let control = DeviceMemory::zeroed(backend, rank, CONTROL_BYTES)?;
        let stop = Arc::new(HostMemory::new(backend, rank, 4)?);
        let fault = HostMemory::new(backend, rank, FAULT_BYTES as u64)?;
        let image = backend.compile(ENTRY, RESIDENT_TEXT)?;
        Ok(Player {
            code: backend.load(rank, &image, ENTRY, BLOCK)?,
            backend: Arc::clone(backend),
            ranks,
            options: options.clone(),
            patience,
            beside: None,
            tables,
            table: Mutex::default(),
            parts: Mutex::default(),
            next: AtomicU32::new(0),
            tickets,
            control,
            stop,
            fault,
        })
    }

    fn rank(&self) -> usize {
        self.control.rank()
    }

    /// Lets the kernel run beside all others of the GPU.
    pub(super) fn accompany(&mut self) -> Result<(), NetError> {
        let stop = Arc::clone(&self.stop);
        let companion = Companion {
            rank: self.rank(),
            code: self.code,
            blocks: RESIDENT_SMS,
            args: self.args(Table::default(), false),
            control: (self.control.address(), self.control.bytes()),
            stop: Box::new(move |number| stop.write(0, &[number])),
        };
        self.beside = Some(self.backend.accompany(companion)?);
        Ok(())
    }

    /// `card::Args` with a table of queue pairs; `until_idle`: the kernel ends when it has nothing left to do.
    fn args(&self, Table { which, count }: Table, until_idle: bool) -> Vec<u8> {
        let ticks = (1000_u64 << 20).checked_div(self.options.bytes_per_us).unwrap_or(0);
        let latency = u64::try_from(self.options.latency.as_nanos()).unwrap_or(u64::MAX);
        let fronts = count.div_ceil(EACH).max(FRONTS[0]) as u32;
        Words::default()
            .wide([&self.tables[which], &self.tickets, &self.control].map(DeviceMemory::address))
            .wide([self.fault.address(), self.stop.address(), ticks, latency])
            .narrow([self.options.seed, count as u32, fronts, fronts, u32::from(until_idle), 1])
            .0
    }

    /// `card::Args` with all queue pairs that it has.
    #[cfg(all(test, feature = "host"))]
    pub(super) fn own_args(&self, until_idle: bool) -> Vec<u8> {
        self.args(*locked(&self.table), until_idle)
    }

    /// Adds the queue pairs of a network.
    pub(super) fn add(&self, part: &Arc<Part>) -> Result<(), NetError> {
        self.change(|parts| parts.push(Arc::clone(part)))
    }

    /// Takes the queue pairs of a network away. If kernels are in flight for too long, the queue pairs stay, with their memory.
    pub(super) fn remove(&self, part: &Arc<Part>) -> Result<(), NetError> {
        match self.parts().iter().any(|known| Arc::ptr_eq(known, part)) {
            true => self.change(|parts| parts.retain(|known| !Arc::ptr_eq(known, part))),
            false => Ok(()),
        }
    }

    /// Gives the kernel other queue pairs while it does not run.
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Part>>)) -> Result<(), NetError> {
        let mut table = locked(&self.table);
        let mut parts = self.parts();
        change(&mut parts);
        let count = parts.iter().map(|part| part.played.len()).sum::<usize>();
        if count > PAIRS_MAX {
            let why = format!(
                "ranks {:?} of one GPU have {count} queue pairs to other nodes in all networks of their group, and the \
                 kernel that is their card plays at most {PAIRS_MAX}",
                self.ranks
            );
            return Err(NetError::NoCard { why });
        }
        let described = parts.iter().flat_map(|part| {
            let each = part.played.iter();
            each.flat_map(|played| played.pair(&part.layout))
        });
        let next = Table { which: 1 - table.which, count };
        self.tables[next.which].write(0, &described.collect::<Vec<u8>>())?;
        let (begun, args) = (Instant::now(), self.args(next, false));
        // Launches go on meanwhile: the kernels in flight may wait for those that other threads launch.
        while let Some(Err(Busy { rank })) = self.beside.as_ref().map(|beside| beside.change(&args))
        {
            if begun.elapsed() >= self.patience {
                let why = format!(
                    "kernels of rank {rank} have been in flight for {:.0?}, and the queue pairs of a card that is a \
                     kernel change only while none is",
                    self.patience
                );
                return Err(NetError::NoCard { why });
            }
            thread::sleep(LOOK);
            // No kernel ends on a device that is lost.
            self.backend.poll(rank)?;
        }
        *table = next;
        *locked(&self.parts) = parts;
        Ok(())
    }

    fn parts(&self) -> Vec<Arc<Part>> {
        locked(&self.parts).clone()
    }

    /// How far the card is with each queue pair that has entries which have not ended.
    pub(super) fn pending(&self) -> Result<Vec<String>, NetError> {
        let all = self.parts().iter().map(|part| part.pending(self)).collect::<Result<Vec<_>, _>>();
        Ok(all?.concat())
    }

    /// Adds the traffic of its cards to that of all ranks.
    pub(super) fn count(&self, all: &mut [CardTraffic]) -> Result<(), NetError> {
        self.parts().iter().try_for_each(|part| part.count(all))
    }

    /// The first entry that has failed, or faulty doorbell. What makes no sense is reported in the words of the model of a
    /// card.
    pub(super) fn failure(&self) -> Option<NetError> {
        let mut words = [0; FAULT_BYTES / 4];
        self.fault.read(0, &mut words).ok()?;
        let fault = Fault::decode(&words)?;
        self.parts().iter().find_map(|part| part.failure(&fault))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.beside = None;
        let _ = self.backend.unload(self.rank(), self.code);
    }
}

impl Part {
    /// The queue pairs between ranks of the GPU and ranks of other nodes, which have `each` ranks.
    pub(super) fn new(
        player: &Player,
        layout: PairLayout,
        each: usize,
        window: &Arc<Window>,
    ) -> Result<Part, NetError> {
        let far = |rank: usize, peer: usize| rank / each.max(1) != peer / each.max(1);
        let ends = player.ranks.iter().enumerate().flat_map(|(index, rank)| {
            let ends = layout.ends().filter(|(peer, _)| far(*rank, *peer));
            ends.map(move |(peer, queue)| {
                let end = End { rank: *rank, peer, queue };
                (index * layout.0.ports + layout.port(end), end)
            })
        });
        let ends: Vec<(usize, End)> = ends.collect();
        let (backend, rank, count) = (&player.backend, player.rank(), ends.len() as u64);
        let sum_bytes = 4 * layout.0.counters as u64;
        let work_bytes = layout.0.slots as u64 * WORK_BYTES;
        let sums = DeviceMemory::zeroed(backend, rank, count * sum_bytes)?;
        let states = DeviceMemory::new(backend, rank, count * STATE_BYTES as u64)?;
        let works = DeviceMemory::new(backend, rank, count * work_bytes)?;
        let first = player.next.fetch_add(count as u32, Ordering::Relaxed);
        let bases = window.bases(rank)?;
        let played = ends.into_iter().zip(0_u32..).map(|((port, end), index)| {
            let mut failing = player.options.failing.iter();
            let fault = failing.find(|(from, to, _)| (*from, *to) == (end.rank, end.peer));
            Played {
                end,
                own: bases[end.rank],
                theirs: bases[end.peer],
                port: port as u32,
                sums: sums.address() + u64::from(index) * sum_bytes,
                state: states.address() + u64::from(index) * STATE_BYTES as u64,
                works: works.address() + u64::from(index) * work_bytes,
                id: first.wrapping_add(index),
                fault: fault.map(|(_, _, entry)| *entry),
            }
        });
        let played: Vec<Played> = played.collect();
        let begun: Vec<u8> = played.iter().flat_map(|it| it.state(&layout)).collect();
        states.write(0, &begun)?;
        Ok(Part { layout, played, states, works, _sums: sums, _window: Arc::clone(window) })
    }

    /// Each queue pair, with `card::State` of it.
    fn states(&self) -> Result<Vec<(&Played, Vec<u8>)>, NetError> {
        let mut states = vec![0; self.states.bytes() as usize];
        self.states.read(0, &mut states)?;
        let each = states.chunks_exact(STATE_BYTES).map(<[u8]>::to_vec);
        Ok(self.played.iter().zip(each).collect())
    }

    /// Adds the traffic of its queue pairs to that of all ranks.
    pub(super) fn count(&self, all: &mut [CardTraffic]) -> Result<(), NetError> {
        for (played, state) in self.states()? {
            let half = |at: usize| u64::from(word(&state, at));
            let [entries, doorbells, bytes] = COUNTS_AT;
            all[played.end.rank] += CardTraffic {
                entries: half(entries),
                doorbells: half(doorbells),
                bytes: half(bytes) | half(bytes + 4) << 32,
            };
        }
        Ok(())
    }

    fn pending(&self, player: &Player) -> Result<Vec<String>, NetError> {
        let mut all = Vec::new();
        for (played, state) in self.states()? {
            let End { rank, peer, queue } = played.end;
            let [known, read, told, settled, completed] = KNOWN_AT.map(|at| word(&state, at));
            let mut record = [0; 4];
            let at = played.own + self.layout.record(peer, queue);
            player.backend.read(rank, at, &mut record)?;
            let posted = recorded(u32::from_le_bytes(record));
            if posted == completed as u16 {
                continue;
            }
            let slot = u64::from(settled) % self.layout.0.slots as u64;
            let mut work = [0; WORK_BYTES as usize];
            let at = played.works - self.works.address() + slot * WORK_BYTES;
            self.works.read(at, &mut work)?;
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

    /// The error for a fault in one of the queue pairs of this network.
    fn failure(&self, fault: &Fault) -> Option<NetError> {
        let played = self.played.iter().find(|played| played.id == fault.pair)?;
        let End { rank, peer, queue } = played.end;
        let pair = self.layout.number(peer, queue);
        let (number, why) = match fault.is_told {
            false => match (self.wrong_entry(played, fault), played.fault) {
                (Some(why), _) => (fault.number, why),
                (None, Some(entry)) => {
                    let asked = format!("`fail={rank}-{peer}@{entry}`");
                    let why = format!(
                        "failed, as {asked} asks, and all entries behind it fail: make a new group to go on"
                    );
                    (entry, why)
                }
                (None, None) => (fault.number, "is refused by its card".to_string()),
            },
            true => {
                let (mut heard, said) = (fault.heard, (fault.doorbell, recorded(fault.record)));
                let wrong = heard.hear(said, fault.read, (pair, self.layout.0.slots)).err();
                wrong.unwrap_or((fault.heard.known, "was announced wrongly".to_string()))
            }
        };
        Some(NetError::Entry { rank, peer, queue, number, why })
    }

    /// Why an entry makes no sense, if it does not.
    fn wrong_entry(&self, played: &Played, fault: &Fault) -> Option<String> {
        let End { peer, queue, .. } = played.end;
        let read = Entry::read(&fault.block, self.layout.number(peer, queue), fault.number);
        let checked = read.and_then(|entry| {
            let checked = self.layout.check(played.end, [played.own, played.theirs], &entry);
            checked.map_err(|(_, why)| why)
        });
        checked.err()
    }
}
