//! The queued work of all ranks and how it runs: host work when it reaches the front, kernels of all ranks
//! together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ep_codegen::plan::Plan;
use ep_emu::{Address, Failure, FailureKind, Kernel, Launch, RunStats, Wait, World};

use super::capture::Captures;
use super::memory::Blocks;
use crate::backend::{BackendError, Block, Code, Kept, RowCopy};
use crate::timeouts::{self, StuckWait, WaitNumbers};

/// One thing in a rank's queue.
#[derive(Clone)]
pub(super) enum Work {
    Kernel(Launch),
    Write { to: u64, from: Vec<u8> },
    Fill { at: u64, byte: u8, bytes: u64 },
    Copy(RowCopy),
    Event { number: usize },
    Hold { at: u64, value: u32 },
}

/// A kernel that was loaded for a rank.
pub(super) struct Loaded {
    pub(super) rank: usize,
    pub(super) kernel: Kernel,
    pub(super) block: Block,
}

/// A rank's queue, and how many phases its kernels have run.
#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    phases_run: u64,
}

impl Queue {
    /// Kernels at the front, before any host work, that run so many phases at most: how many kernels and
    /// how many phases.
    fn kernels_ahead(&self, most: u64) -> (usize, u64) {
        let mut ahead = (0, 0);
        for work in &self.work {
            let Work::Kernel(Launch { phases, .. }) = work else { break };
            let phases = ahead.1 + u64::from(*phases);
            if phases > most {
                break;
            }
            ahead = (ahead.0 + 1, phases);
        }
        ahead
    }
}

/// All ranks with their memory.
pub(super) struct Machine {
    pub(super) world: World,
    pub(super) blocks: Blocks,
    pub(super) windows: BTreeMap<u64, Vec<u64>>,
    pub(super) codes: Vec<Option<Loaded>>,
    /// What kernels were planned as, by the number that they record.
    pub(super) pipelines: BTreeMap<u32, Arc<Plan>>,
    /// The clock when an event passed.
    pub(super) events: Vec<Option<u64>>,
    pub(super) stats: RunStats,
    pub(super) failure: Option<Failure>,
    pub(super) captures: Captures,
    /// What graphs kept that are gone; dropped while the machine is not locked.
    pub(super) dropped: Vec<Kept>,
    queues: Vec<Queue>,
    isolation: Option<Duration>,
    /// A run that failed in the middle of a kernel: nothing can be run any more.
    lost: Option<BackendError>,
}

impl Machine {
    pub(super) fn new(world: World, isolation: Option<Duration>) -> Machine {
        let ranks = world.spec().ranks;
        Machine {
            world,
            blocks: Blocks::default(),
            windows: BTreeMap::new(),
            codes: Vec::new(),
            pipelines: BTreeMap::new(),
            events: Vec::new(),
            stats: RunStats::default(),
            failure: None,
            captures: Captures::default(),
            dropped: Vec::new(),
            queues: (0..ranks).map(|_| Queue::default()).collect(),
            isolation,
            lost: None,
        }
    }

    /// A kernel that is loaded for this rank.
    pub(super) fn code(&self, rank: usize, code: Code) -> Result<&Loaded, BackendError> {
        let loaded = self.codes.get(code.0 as usize).and_then(Option::as_ref);
        loaded.filter(|loaded| loaded.rank == rank).ok_or_else(|| BackendError::Wrong {
            what: format!("kernel {} is not loaded for rank {rank}", code.0),
        })
    }

    /// Fails after a run that failed.
    pub(super) fn check(&self) -> Result<(), BackendError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    pub(super) fn queue(&mut self, rank: usize, work: Work) {
        self.queues[rank].work.push_back(work);
    }

    /// Runs until the rank's queue is empty, and with it what the other ranks have queued.
    pub(super) fn drain(&mut self, rank: usize) -> Result<(), BackendError> {
        loop {
            self.run_host_work();
            if self.queues[rank].work.is_empty() {
                self.give_back();
                return self.check();
            }
            self.check()?;
            self.run_kernels()?;
        }
    }

    /// Gives back the memory that was freed of ranks with nothing in their queues: what is queued may use it, and
    /// to run that now would ask for calls that other ranks have still to make.
    pub(super) fn give_back(&mut self) {
        let Machine { world, blocks, queues, .. } = self;
        for address in blocks.give_back(|rank| queues[rank].work.is_empty()) {
            world.forget_parts(Address(address));
        }
    }

    /// Does the host work at the front of every queue.
    pub(super) fn run_host_work(&mut self) {
        for rank in 0..self.queues.len() {
            while let Some(work) = self.queues[rank].work.pop_front() {
                if let Some(work) = self.host_work(work) {
                    self.queues[rank].work.push_front(work);
                    break;
                }
            }
        }
    }

    /// Does a piece of host work; gives back what cannot be done now. The ranges were checked when
    /// it was queued.
    fn host_work(&mut self, work: Work) -> Option<Work> {
        match work {
            Work::Kernel(..) => return Some(work),
            Work::Write { to, from } => {
                if let Ok(bytes) = self.bytes(to, from.len() as u64) {
                    bytes.copy_from_slice(&from);
                }
            }
            Work::Fill { at, byte, bytes } => {
                if let Ok(bytes) = self.bytes(at, bytes) {
                    bytes.fill(byte);
                }
            }
            Work::Copy(copy) => {
                for (to, from) in copy.places() {
                    let row = self.bytes(from, copy.row_bytes).map(|row| row.to_vec());
                    if let (Ok(row), Ok(bytes)) = (row, self.bytes(to, copy.row_bytes)) {
                        bytes.copy_from_slice(&row);
                    }
                }
            }
            Work::Event { number } => {
                if let Some(event) = self.events.get_mut(number) {
                    *event = Some(self.stats.clock_ns);
                }
            }
            Work::Hold { at, value } => {
                let word = self.bytes(at, 4).map(|word| [word[0], word[1], word[2], word[3]]);
                if word.is_ok_and(|word| u32::from_le_bytes(word) < value) {
                    return Some(work);
                }
            }
        }
        None
    }

    /// Runs the kernels at the fronts of the queues in one run. Ranks wait for one another in phases of the
    /// same number, so when host work comes behind a kernel, no rank runs later ones with it.
    fn run_kernels(&mut self) -> Result<(), BackendError> {
        let behind = |queue: &Queue| {
            let (kernels, phases) = queue.kernels_ahead(u64::MAX);
            (kernels < queue.work.len()).then_some(queue.phases_run + phases)
        };
        let end = self.queues.iter().filter_map(behind).min().unwrap_or(u64::MAX);
        let mut lists = Vec::new();
        for queue in &mut self.queues {
            let most = end.saturating_sub(queue.phases_run);
            let (count, phases) = queue.kernels_ahead(most);
            queue.phases_run += phases;
            let kernels = queue.work.drain(..count).filter_map(|work| match work {
                Work::Kernel(launch) => Some(launch),
                _ => None,
            });
            lists.push(kernels.collect::<Vec<Launch>>());
        }
        if lists.iter().all(Vec::is_empty) {
            let what = "a queue waits for a host word that has not been set".to_string();
            return Err(BackendError::Wrong { what });
        }
        let result = match self.isolation {
            Some(limit) => self.world.run_isolated(lists, limit),
            None => self.world.run(lists),
        };
        match result {
            Ok(stats) => {
                add(&mut self.stats, &stats);
                self.mourn()
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// A rank that a fault has stopped in this run never ends its kernels, even if no other rank needs it.
    fn mourn(&mut self) -> Result<(), BackendError> {
        match self.world.spec().faults.dead_rank {
            Some((rank, step)) if self.stats.steps >= step && !self.waits_run_out() => {
                let seed = self.world.spec().seed;
                let message = format!("rank {rank} was stopped by a fault at step {step}");
                let kind = FailureKind::Hang;
                let (waits, left) = (Vec::new(), Vec::new());
                Err(self.failed(Failure { kind, message, seed, drained: false, waits, left }))
            }
            _ => Ok(()),
        }
    }

    /// Whether the others go on without it.
    fn waits_run_out(&self) -> bool {
        self.world.spec().longest_wait_ns.is_some()
    }

    /// What happened, in the words of timeout records.
    pub(super) fn report(&self, failure: &Failure) -> String {
        let text = failure.report(|wait| match self.named(wait) {
            Some(named) => named.to_string(),
            None => wait.to_string(),
        });
        let edges = failure.waits.iter().filter_map(|wait| self.named(wait));
        let edges: Vec<_> = edges.filter_map(|wait| Some((wait.rank, wait.peer?))).collect();
        timeouts::circle(&edges)
            .into_iter()
            .fold(text, |text, circle| format!("{text}\n  {circle}"))
    }

    /// A wait with the names of its plan, if it is one that records name.
    pub(super) fn named(&self, wait: &Wait) -> Option<StuckWait> {
        let site = wait.site?;
        let numbers = WaitNumbers {
            rank: wait.rank as usize,
            role: site.role,
            channel: site.channel,
            kind: site.kind,
            expired: true,
            stripe: site.stripe,
            peer: site.peer,
            want: site.want,
            seen: None,
            epoch: site.epoch,
            block: wait.block,
            warp: wait.warp,
        };
        Some(StuckWait::named(self.pipelines.get(&site.pipeline)?, &numbers))
    }

    fn failed(&mut self, failure: Failure) -> BackendError {
        let error = BackendError::Kernel {
            kind: failure.kind.name(),
            report: self.report(&failure),
            seed: failure.seed,
        };
        // Kernels whose waits expired have ended like any other, and have recorded why.
        if !failure.drained {
            self.lost = Some(error.clone());
            self.queues.iter_mut().for_each(|queue| queue.work.clear());
        }
        self.failure = Some(failure);
        error
    }
}

/// Adds what a run did.
fn add(all: &mut RunStats, run: &RunStats) {
    all.lanes += run.lanes;
    all.steps += run.steps;
    all.switches += run.switches;
    all.collectives += run.collectives;
    all.polls += run.polls;
    all.bulk_steps += run.bulk_steps;
    all.idle += run.idle;
    all.clock_ns += run.clock_ns;
    all.schedule = run.schedule;
}
