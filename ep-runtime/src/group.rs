//! A group of ranks, and kernels prepared for all of its local ranks.

mod kernel;
mod neighbors;
mod presence;
mod wire;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ep_codegen::plan::Plan;

pub use kernel::{GroupKernel, compile_all, control_bytes, place_control};
pub(crate) use kernel::{positive, waived};
pub(crate) use wire::Wire;
pub use wire::{CardTraffic, Net};

use crate::backend::{Backend, BackendError, Stream};
use crate::call_order::{CallOrder, Turn};
use crate::error::CallError;
use crate::memory::{DeviceMemory, HostMemory, Window};
use crate::timeouts::{
    CallBeside, Calls, PeerReport, Progress, RECORD_BYTES, RECORD_CAPACITY, STATE_WORDS, StuckWait,
    Timeouts, WRITTEN_AT,
};
use kernel::state_offset;
use presence::Presences;

/// Options for all calls of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOptions {
    /// Longest wait inside a kernel. When a wait takes longer, the group is stopped with an error.
    pub timeout: Duration,
    /// Whether calls continue without a rank that has not answered for the timeout. Later calls leave that
    /// rank out. This works for pipelines that can do without a rank, such as the low-latency pair, in
    /// groups of one node.
    pub leaves_out_absent: bool,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { timeout: Duration::from_secs(30), leaves_out_absent: false }
    }
}

/// The ranks that exchange rows. Clones share one group.
#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    options: GroupOptions,
    /// What joins its nodes; none: it is one.
    wire: Option<Box<dyn Wire>>,
    /// The stop word of each local rank.
    stops: Vec<DeviceMemory>,
    /// The order of each local rank's calls.
    orders: Vec<CallOrder>,
    /// The prepared pipelines, whose records say why the group was stopped.
    recorders: Mutex<Vec<Arc<Recorder>>>,
    /// Pipelines prepared so far: the number of the next one.
    enlisted: AtomicU32,
    /// A bit for each of the first 64 ranks: whether it takes part in calls.
    alive: AtomicU64,
    /// Who is missed, if calls go on without a rank that does not answer.
    presences: Option<Presences>,
    /// Held while ranks come back.
    returns: Mutex<()>,
    /// What says why calls cannot go on, beside the records: networks.
    watched: Mutex<Vec<Weak<Watched>>>,
    poison: OnceLock<CallError>,
}

/// Why calls cannot go on, if they cannot.
pub(crate) type Watched = dyn Fn() -> Option<CallError> + Send + Sync;

/// What a group keeps of one prepared pipeline.
struct Recorder {
    plan: Arc<Plan>,
    /// The records of each local rank.
    records: Vec<HostMemory>,
    /// For each local rank, where it finds the `ep::State` of every rank; 0: nowhere.
    states: Vec<Vec<u64>>,
    /// The phase that each local rank launches next.
    next: Vec<AtomicUsize>,
    /// Its words belong to calls before a rank came back, and cannot be cleared.
    is_stale: AtomicBool,
    /// Where its control memory is.
    window: Arc<Window>,
    control_at: u64,
}

/// A pipeline whose records its group looks at.
struct Enlisted {
    group: Group,
    recorder: Arc<Recorder>,
    number: u32,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        // The memory of the records goes when the list is not locked any more.
        self.group.shared.recorders().retain(|known| !Arc::ptr_eq(known, &self.recorder));
    }
}

impl Recorder {
    /// What all ranks have done of the pipeline, as the local rank `rank` sees it.
    fn calls(&self, backend: &dyn Backend, rank: usize, states: &[u64]) -> Calls {
        let ranks = states.iter().map(|state| {
            if *state == 0 {
                return None;
            }
            let mut words = [0; 4 * STATE_WORDS.len()];
            backend.read(rank, *state, &mut words).ok().map(|()| Progress::read(&words))
        });
        Calls { pipeline: self.plan.pipeline.clone(), ranks: ranks.collect() }
    }
}

impl Shared {
    fn recorders(&self) -> MutexGuard<'_, Vec<Arc<Recorder>>> {
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls that ranks are in, or were in when they gave up, as the first local rank sees them.
    fn calls_in_progress(&self) -> Vec<CallBeside> {
        let recorders = self.recorders().clone();
        let mut found = Vec::new();
        for recorder in &recorders {
            let Some(states) = recorder.states.first() else { continue };
            let calls = recorder.calls(self.backend.as_ref(), self.backend.local().start, states);
            found.extend(calls.in_progress());
        }
        found
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for order in self.orders.drain(..) {
            order.destroy(self.backend.as_ref());
        }
    }
}

impl Group {
    /// The calls that ranks are in, read from the state of their kernels as the first local rank sees it.
    /// Empty once all calls have ended.
    pub fn calls_in_progress(&self) -> Vec<CallBeside> {
        self.shared.calls_in_progress()
    }

    /// A group of all ranks of the backend.
    pub fn new(backend: Arc<dyn Backend>, options: GroupOptions) -> Result<Group, CallError> {
        Group::joined(backend, options, None)
    }

    /// A group of all ranks of the backend. `wire` joins its nodes; without a wire, the group is one node.
    pub(crate) fn joined(
        backend: Arc<dyn Backend>,
        options: GroupOptions,
        wire: Option<Box<dyn Wire>>,
    ) -> Result<Group, CallError> {
        let stops = backend.local().map(|rank| DeviceMemory::zeroed(&backend, rank, 4));
        let stops = stops.collect::<Result<Vec<_>, _>>()?;
        let orders = backend.local().map(|rank| CallOrder::new(backend.as_ref(), rank));
        let orders = orders.collect::<Result<Vec<_>, _>>()?;
        let presences = match options.leaves_out_absent {
            true => Some(Presences::new(&backend, options.timeout, wire.is_some())?),
            false => None,
        };
        let shared = Shared {
            backend,
            options,
            wire,
            stops,
            orders,
            recorders: Mutex::default(),
            enlisted: AtomicU32::new(0),
            alive: AtomicU64::new(u64::MAX),
            presences,
            returns: Mutex::default(),
            watched: Mutex::default(),
            poison: OnceLock::new(),
        };
        let shared = Arc::new(shared);
        neighbors::enlist(&shared);
        Ok(Group { shared })
    }

    /// The backend that the group runs on.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// Number of ranks, here and in other processes.
    pub fn ranks(&self) -> usize {
        self.shared.backend.ranks()
    }

    /// The ranks that this process drives.
    pub fn local(&self) -> Range<usize> {
        self.shared.backend.local()
    }

    /// Longest wait inside a kernel.
    pub fn timeout(&self) -> Duration {
        self.shared.options.timeout
    }

    /// Index of a local rank among the local ones.
    pub fn local_index(&self, rank: usize) -> Result<usize, CallError> {
        let local = self.local();
        if local.contains(&rank) {
            return Ok(rank - local.start);
        }
        let what = format!("rank {rank} is not local: this process drives {local:?}");
        Err(CallError::Mismatch { what })
    }

    /// Fails if a kernel on `rank` has recorded a wait that expired, or if the group was stopped before.
    /// Reads one word per prepared pipeline.
    pub fn check(&self, rank: usize) -> Result<(), CallError> {
        if let Some(error) = self.shared.poison.get() {
            return Err(error.clone());
        }
        let index = self.local_index(rank)?;
        let recorded = || {
            self.shared.recorders().iter().try_fold(false, |recorded, recorder| {
                let mut written = [0];
                recorder.records[index].read(WRITTEN_AT, &mut written)?;
                Ok::<bool, BackendError>(recorded || written[0] != 0)
            })
        };
        match recorded()? || self.watched_failure().is_some() {
            true => Err(self.poison()),
            false => Ok(()),
        }
    }

    /// Stops the group when `failure` has one, as long as it is alive.
    pub(crate) fn watch(&self, failure: &Arc<Watched>) {
        let mut watched = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|known| known.strong_count() > 0);
        watched.push(Arc::downgrade(failure));
    }

    fn watched_failure(&self) -> Option<CallError> {
        let watched = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().filter_map(Weak::upgrade).find_map(|failure| failure())
    }

    /// Fails if the group is stopped: nothing runs in it any more.
    pub(crate) fn check_local(&self) -> Result<(), CallError> {
        self.local().try_for_each(|rank| self.check(rank))
    }

    /// Waits until all calls of the rank have run and its own stream is empty. Fails if the group was
    /// stopped.
    pub fn sync(&self, rank: usize) -> Result<(), CallError> {
        let order = &self.shared.orders[self.local_index(rank)?];
        self.explain(rank, order.settle(self.backend().as_ref()))
    }

    /// Whether what is put into `stream` is captured instead of run.
    pub(crate) fn is_captured(&self, rank: usize, stream: Stream) -> Result<bool, CallError> {
        Ok(self.backend().capture(rank, stream)?.is_some())
    }

    /// The right to launch on `stream`, behind all earlier calls of the rank.
    pub(crate) fn turn(&self, rank: usize, stream: Stream) -> Result<Turn<'_>, CallError> {
        self.shared.orders[self.local_index(rank)?].turn(self.backend().as_ref(), stream)
    }

    /// Makes work that the caller puts into `stream` later wait for all calls of the rank so far.
    pub fn await_calls(&self, rank: usize, stream: Stream) -> Result<(), CallError> {
        self.shared.orders[self.local_index(rank)?].await_calls(self.backend().as_ref(), stream)
    }

    /// Makes later calls of the rank wait for the work that the caller has put into `stream` so far.
    pub fn follow(&self, rank: usize, stream: Stream) -> Result<(), CallError> {
        self.turn(rank, stream).map(drop)
    }

    /// Waits until all calls of the rank have run, on whatever streams.
    pub(crate) fn settle(&self, rank: usize) -> Result<(), CallError> {
        let order = &self.shared.orders[self.local_index(rank)?];
        Ok(order.settle(self.backend().as_ref())?)
    }

    /// What a wait for `rank` ended with: what a kernel recorded, on any local rank if the wait
    /// failed, says more than what the machine saw of it.
    pub(crate) fn explain(
        &self,
        rank: usize,
        waited: Result<(), BackendError>,
    ) -> Result<(), CallError> {
        if waited.is_err() {
            self.local().try_for_each(|rank| self.check(rank))?;
        }
        waited?;
        self.check(rank)
    }

    /// Collects what all local ranks recorded and stops the group for good.
    fn poison(&self) -> CallError {
        // Every kernel of the group leaves soon: its own waits are bounded and the others are
        // stopped. A device that fails here shows in the records that could be read.
        for rank in self.local() {
            let _ = self.settle(rank);
        }
        let recorders = self.shared.recorders().clone();
        let mut waits = Vec::new();
        for (own, recorder) in recorders.iter().enumerate() {
            for (rank, records) in self.local().zip(&recorder.records) {
                let read = Timeouts::read(rank, &recorder.plan, records).unwrap_or_default();
                waits.extend(read.into_iter().map(|wait| (own, wait)));
            }
        }
        let mut timeouts = Timeouts::new(waits.iter().map(|(_, wait)| wait.clone()).collect());
        timeouts.peers = self.report_peers(&recorders, &waits, &timeouts.edges());
        timeouts.beside = neighbors::calls_beside(&self.shared);
        timeouts.network = self.shared.wire.as_ref().map(|wire| wire.pending()).unwrap_or_default();
        let overflow = timeouts.waits.iter().find(|wait| wait.is_overflow());
        let error = match overflow {
            Some(wait) => CallError::OutputTooSmall {
                rank: wait.peer.unwrap_or(wait.rank),
                need: u64::from(wait.want),
                have: u64::from(wait.seen.unwrap_or(0)),
            },
            None => CallError::Timeout(timeouts),
        };
        // It is why the waits of kernels expire.
        let error = self.watched_failure().unwrap_or(error);
        self.shared.poison.get_or_init(|| error).clone()
    }

    /// Where the ranks are that others wait for, each reason once. A wait that was cut short counts
    /// if its peer is elsewhere: the one that ran out first need not be the one for the cause.
    fn report_peers(
        &self,
        recorders: &[Arc<Recorder>],
        waits: &[(usize, StuckWait)],
        edges: &[(usize, usize)],
    ) -> Vec<PeerReport> {
        let backend = self.backend().as_ref();
        let mut found: Vec<PeerReport> = Vec::new();
        for (index, rank) in self.local().enumerate() {
            let calls = recorders.iter().map(|it| it.calls(backend, rank, &it.states[index]));
            let calls: Vec<Calls> = calls.collect();
            for (own, wait) in waits.iter().filter(|(_, wait)| wait.rank == rank) {
                let why = PeerReport::of(wait, *own, &calls, |peer| backend.has_left(peer));
                let on_edge = |why: &PeerReport| edges.contains(&(rank, why.peer));
                let why = why.filter(|why| why.state.is_cause() || on_edge(why));
                let new = |why: &PeerReport| {
                    found.iter().all(|known| known.to_string() != why.to_string())
                };
                found.extend(why.filter(new));
            }
        }
        if let Some((_, wait)) = waits.first() {
            let left = (0..self.ranks()).filter(|peer| backend.has_left(*peer));
            PeerReport::add_gone(&mut found, wait, left);
        }
        found.sort_by(|a, b| a.state.cmp(&b.state));
        found
    }

    /// Allocates the records of a pipeline and gives it a number. The group looks at them until that is
    /// dropped.
    fn enlist(
        &self,
        plan: &Arc<Plan>,
        window: &Arc<Window>,
        control_at: u64,
    ) -> Result<Enlisted, CallError> {
        let backend = &self.shared.backend;
        let bytes = RECORD_BYTES * u64::from(RECORD_CAPACITY);
        let records = self.local().map(|rank| HostMemory::new(backend, rank, bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let state_at = control_at + state_offset(plan);
        let states = self.local().map(|rank| {
            let bases = window.bases(rank)?;
            let state = |base: &u64| if *base == 0 { 0 } else { base + state_at };
            Ok::<_, BackendError>(bases.iter().map(state).collect())
        });
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let next = self.local().map(|_| AtomicUsize::new(0)).collect();
        let recorder = Arc::new(Recorder {
            plan: Arc::clone(plan),
            records,
            states,
            next,
            is_stale: AtomicBool::new(false),
            window: Arc::clone(window),
            control_at,
        });
        self.shared.recorders().push(Arc::clone(&recorder));
        let number = self.shared.enlisted.fetch_add(1, Ordering::Relaxed);
        Ok(Enlisted { group: self.clone(), recorder, number })
    }
}
