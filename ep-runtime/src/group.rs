//! A group of ranks, and kernels prepared for all local ones of them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ep_codegen::plan::Plan;

use crate::args::{ArgsMap, Bindings, GroupArgs};
use crate::backend::{Backend, BackendError, Block, Code, Image, KernelLaunch, Stream};
use crate::call_order::{CallOrder, Turn};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::memory::{DeviceMemory, HostMemory, Window, align_up};
use crate::parallel;
use crate::timeouts::{
    Calls, PeerReport, Progress, RECORD_BYTES, RECORD_CAPACITY, STATE_WORDS, StuckWait, Timeouts,
    WRITTEN_AT,
};

/// What holds for all calls of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupOptions {
    /// Longest wait inside a kernel, after which the group is stopped with an error.
    pub timeout: Duration,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { timeout: Duration::from_secs(30) }
    }
}

/// The ranks that move rows among each other. Clones share one group.
#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    options: GroupOptions,
    /// The stop word of each local rank.
    stops: Vec<DeviceMemory>,
    /// The order of each local rank's calls.
    orders: Vec<CallOrder>,
    /// The prepared pipelines, whose records say why the group was stopped.
    recorders: Mutex<Vec<Weak<Recorder>>>,
    /// Pipelines prepared so far: the number of the next one.
    enlisted: AtomicU32,
    /// What says why calls cannot go on, beside the records: networks.
    watched: Mutex<Vec<Weak<Watched>>>,
    poison: OnceLock<CallError>,
}

/// Why calls cannot go on, if they cannot.
pub(crate) type Watched = dyn Fn() -> Option<CallError> + Send + Sync;

/// The records of one prepared pipeline.
struct Recorder {
    plan: Arc<Plan>,
    /// One block per local rank.
    records: Vec<HostMemory>,
    /// For each local rank, where it finds the `ep::State` of every rank.
    states: Vec<Vec<u64>>,
    /// Keeps these mapped.
    _window: Arc<Window>,
}

impl Recorder {
    /// What all ranks have done of the pipeline, as the local rank `rank` sees it.
    fn calls(&self, backend: &dyn Backend, rank: usize, states: &[u64]) -> Calls {
        let ranks = states.iter().map(|state| {
            let mut words = [0; 4 * STATE_WORDS.len()];
            backend.read(rank, *state, &mut words).ok().map(|()| Progress::read(&words))
        });
        Calls { pipeline: self.plan.pipeline.clone(), ranks: ranks.collect() }
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
    /// A group of all ranks of the backend.
    pub fn new(backend: Arc<dyn Backend>, options: GroupOptions) -> Result<Group, CallError> {
        let stops = backend.local().map(|rank| DeviceMemory::zeroed(&backend, rank, 4));
        let stops = stops.collect::<Result<Vec<_>, _>>()?;
        let orders = backend.local().map(|rank| CallOrder::new(backend.as_ref(), rank));
        let orders = orders.collect::<Result<Vec<_>, _>>()?;
        let shared = Shared {
            backend,
            options,
            stops,
            orders,
            recorders: Mutex::default(),
            enlisted: AtomicU32::new(0),
            watched: Mutex::default(),
            poison: OnceLock::new(),
        };
        Ok(Group { shared: Arc::new(shared) })
    }

    /// The machine.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// How many ranks there are, here and in other processes.
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

    /// Position of a local rank among the local ones.
    pub fn local_index(&self, rank: usize) -> Result<usize, CallError> {
        let local = self.local();
        if local.contains(&rank) {
            return Ok(rank - local.start);
        }
        let what = format!("rank {rank} is not local: this process drives {local:?}");
        Err(CallError::Mismatch { what })
    }

    /// Fails if a kernel on `rank` has recorded a wait that ran out, or if the group was stopped
    /// before. Costs a look at one word per prepared pipeline.
    pub fn check(&self, rank: usize) -> Result<(), CallError> {
        if let Some(error) = self.shared.poison.get() {
            return Err(error.clone());
        }
        let index = self.local_index(rank)?;
        let recorded = || {
            let recorders = self.recorders();
            let mut alive = recorders.iter().filter_map(Weak::upgrade);
            alive.try_fold(false, |recorded, recorder| {
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

    /// Fails if the group is stopped: nothing runs in it any more, and its ranks meet nobody.
    pub(crate) fn check_local(&self) -> Result<(), CallError> {
        self.local().try_for_each(|rank| self.check(rank))
    }

    /// Waits until all calls of the rank have run, and its own stream is empty; reports a stopped
    /// group.
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

    /// Makes what the caller puts into `stream` next wait for all calls of the rank so far.
    pub fn await_calls(&self, rank: usize, stream: Stream) -> Result<(), CallError> {
        self.shared.orders[self.local_index(rank)?].await_calls(self.backend().as_ref(), stream)
    }

    /// Makes later calls of the rank wait for what the caller has put into `stream` so far.
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
        let recorders: Vec<_> = self.recorders().iter().filter_map(Weak::upgrade).collect();
        let mut waits = Vec::new();
        for (own, recorder) in recorders.iter().enumerate() {
            for (rank, records) in self.local().zip(&recorder.records) {
                let read = Timeouts::read(rank, &recorder.plan, records).unwrap_or_default();
                waits.extend(read.into_iter().map(|wait| (own, wait)));
            }
        }
        let mut timeouts = Timeouts::new(waits.iter().map(|(_, wait)| wait.clone()).collect());
        timeouts.peers = self.report_peers(&recorders, &waits, &timeouts.edges());
        let overflow = timeouts.waits.iter().find(|wait| wait.is_overflow());
        let error = match overflow {
            Some(wait) => CallError::OutputTooSmall {
                rank: wait.peer.unwrap_or(wait.rank),
                need: u64::from(wait.want),
                have: u64::from(wait.seen.unwrap_or(0)),
            },
            None => CallError::Timeout(timeouts),
        };
        // Kernels wait in vain because of it.
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
        found.sort_by(|a, b| a.state.cmp(&b.state));
        found
    }

    fn recorders(&self) -> MutexGuard<'_, Vec<Weak<Recorder>>> {
        self.shared.recorders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates the records of a pipeline and gives it a number.
    fn enlist(
        &self,
        plan: &Arc<Plan>,
        window: &Arc<Window>,
        control_at: u64,
    ) -> Result<(u32, Arc<Recorder>), CallError> {
        let backend = &self.shared.backend;
        let bytes = RECORD_BYTES * u64::from(RECORD_CAPACITY);
        let records = self.local().map(|rank| HostMemory::new(backend, rank, bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let state_at = control_at + state_offset(plan);
        let states = self.local().map(|rank| {
            let bases = window.bases(rank)?;
            Ok::<_, BackendError>(bases.iter().map(|base| base + state_at).collect())
        });
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let (plan, _window) = (Arc::clone(plan), Arc::clone(window));
        let recorder = Arc::new(Recorder { plan, records, states, _window });
        let mut recorders = self.recorders();
        recorders.retain(|recorder| recorder.strong_count() > 0);
        recorders.push(Arc::downgrade(&recorder));
        Ok((self.shared.enlisted.fetch_add(1, Ordering::Relaxed), recorder))
    }
}

/// An emitted kernel, compiled and loaded on every local rank, with its control memory in a window.
pub struct GroupKernel {
    group: Group,
    plan: Arc<Plan>,
    control_at: u64,
    ranks: Vec<RankKernel>,
    /// Keeps the control memory mapped.
    _window: Arc<Window>,
    /// Keeps the records alive while a launch may write them.
    _recorder: Arc<Recorder>,
}

/// What one rank needs to launch a kernel.
struct RankKernel {
    code: Code,
    args: GroupArgs,
    /// The array of all ranks' control memory; kernels hold its address.
    _bases: DeviceMemory,
}

/// Room for `ep::State` behind the regions of the plan.
const STATE_BYTES: u64 = 256;

/// Where `ep::State` is in a plan's control memory.
fn state_offset(plan: &Plan) -> u64 {
    align_up(positive(plan.window_bytes))
}

/// Bytes of the window that a plan's kernel needs.
pub fn control_bytes(plan: &Plan) -> u64 {
    state_offset(plan) + STATE_BYTES
}

/// Compiles all of `programs` at once; their images stand in the same order.
pub fn compile_all(group: &Group, programs: &[&Emitted]) -> Result<Vec<Image>, CallError> {
    let backend = group.backend();
    let names: BTreeSet<&str> =
        programs.iter().map(|emitted| emitted.plan.pipeline.as_str()).collect();
    backend.say(&format!("compile {}", Vec::from_iter(names).join(", ")));
    let compile = |emitted: &&Emitted| backend.compile(&emitted.plan.entry, &emitted.cuda);
    Ok(parallel::map(programs, compile).into_iter().collect::<Result<Vec<_>, _>>()?)
}

impl GroupKernel {
    /// Compiles and loads `emitted`; its control memory starts `control_at` bytes into the window,
    /// on every rank alike, and is zero.
    pub fn prepare(
        group: &Group,
        window: &Arc<Window>,
        control_at: u64,
        emitted: &Emitted,
    ) -> Result<GroupKernel, CallError> {
        let image = group.backend().compile(&emitted.plan.entry, &emitted.cuda)?;
        GroupKernel::load(group, window, control_at, &emitted.plan, &image)
    }

    /// Loads an image that was compiled for `plan`; otherwise as [`GroupKernel::prepare`].
    pub fn load(
        group: &Group,
        window: &Arc<Window>,
        control_at: u64,
        plan: &Plan,
        image: &Image,
    ) -> Result<GroupKernel, CallError> {
        let plan = Arc::new(plan.clone());
        let need = control_bytes(&plan);
        if control_at.checked_add(need).is_none_or(|end| end > window.bytes()) {
            return Err(CallError::TooLarge {
                what: "bytes of control memory behind its start in the window",
                need,
                have: window.bytes().saturating_sub(control_at),
            });
        }
        let (pipeline, recorder) = group.enlist(&plan, window, control_at)?;
        group.backend().name_pipeline(pipeline, &plan);
        let mut ranks = Vec::new();
        for (rank, records) in group.local().zip(&recorder.records) {
            let bases: Vec<u64> =
                window.bases(rank)?.iter().map(|base| base + control_at).collect();
            let bytes: Vec<u8> = bases.iter().flat_map(|base| base.to_le_bytes()).collect();
            let bases = DeviceMemory::new(group.backend(), rank, bytes.len() as u64)?;
            bases.write(0, &bytes)?;
            let own = window.own(rank)? + control_at;
            let block = Block {
                threads: positive(plan.threads) as u32,
                shared_bytes: positive(plan.shared_bytes) as u32,
            };
            let args = GroupArgs {
                windows: bases.address(),
                window: own,
                state: own + state_offset(&plan),
                stop: group.shared.stops[group.local_index(rank)?].address(),
                records: records.address(),
                timeout_ns: nanoseconds(group.timeout()),
                record_capacity: RECORD_CAPACITY,
                pipeline,
                rank: rank as u32,
            };
            name_memory(group, rank, &plan, &args);
            let code = group.backend().load(rank, image, &plan.entry, block)?;
            ranks.push(RankKernel { code, args, _bases: bases });
        }
        let _window = Arc::clone(window);
        Ok(GroupKernel {
            group: group.clone(),
            plan,
            control_at,
            ranks,
            _window,
            _recorder: recorder,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where the control memory starts in the window; kernels count window offsets from here.
    pub fn control_at(&self) -> u64 {
        self.control_at
    }

    /// Launches with arguments by name; resolving them costs microseconds.
    pub fn launch(
        &self,
        rank: usize,
        stream: Stream,
        blocks: u32,
        bindings: &Bindings,
    ) -> Result<(), CallError> {
        bindings.check_strides(&self.plan)?;
        let map = ArgsMap::new(&self.plan, |param| bindings.operand(param, self.control_at))?;
        let mut bytes = vec![0; map.bytes()];
        let turn = self.group.turn(rank, stream)?;
        self.launch_mapped(&turn, blocks, None, &map, &[], &mut bytes)
    }

    /// Launches with resolved arguments, and waits as long as the group says where there is no
    /// `timeout`; `bytes` is scratch of the size of `struct Args`.
    pub(crate) fn launch_mapped(
        &self,
        turn: &Turn<'_>,
        blocks: u32,
        timeout: Option<Duration>,
        map: &ArgsMap,
        values: &[u64],
        bytes: &mut [u8],
    ) -> Result<(), CallError> {
        let need = positive(self.plan.blocks_min) as u32;
        if blocks < need.max(1) {
            let pipeline = self.plan.pipeline.clone();
            return Err(CallError::TooFewBlocks { pipeline, have: blocks, need });
        }
        let own = &self.ranks[self.group.local_index(turn.rank())?];
        let timeout_ns = timeout.map_or(own.args.timeout_ns, nanoseconds);
        map.fill(&GroupArgs { timeout_ns, ..own.args }, values, bytes);
        let launch = KernelLaunch { code: own.code, blocks, waits: self.plan.waits, args: bytes };
        Ok(self.group.backend().launch(turn.rank(), turn.stream(), &launch)?)
    }
}

impl Drop for GroupKernel {
    fn drop(&mut self) {
        let backend = self.group.backend();
        for (rank, own) in self.group.local().zip(&self.ranks) {
            // Code and words must outlive their last launch. A failure means that the device is
            // lost.
            let _ = self.group.settle(rank);
            let _ = backend.unload(rank, own.code);
        }
    }
}

/// Says what a rank's control memory holds, for reports.
fn name_memory(group: &Group, rank: usize, plan: &Plan, args: &GroupArgs) {
    let name = |at: u64, bytes: u64, what: &str, waived: &[&str]| {
        let name = format!("{} {what}", plan.pipeline);
        group.backend().name_memory(rank, at, bytes, &name, waived);
    };
    for region in &plan.window {
        let (at, bytes) = (args.window + positive(region.offset), positive(region.bytes));
        let channel = region.name.split('.').next().unwrap_or_default();
        name(at, bytes, &region.name, &waived(plan, |it| it == channel));
    }
    name(args.state, STATE_BYTES, "state", &[]);
    name(args.windows, 8 * group.ranks() as u64, "windows", &[]);
    name(args.records, RECORD_BYTES * u64::from(args.record_capacity), "records", &[]);
    name(args.stop, 4, "stop word", &[]);
}

/// The policies that the chosen channels of a plan waive.
pub(crate) fn waived(plan: &Plan, chosen: impl Fn(&str) -> bool) -> Vec<&str> {
    let chosen = plan.waivers.iter().filter(|(channel, _)| chosen(channel));
    chosen.map(|(_, waiver)| waiver.policy.as_str()).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A size of a plan; plans never hold negative ones.
pub(crate) fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Places the control memory of several plans one behind another: their starts, and the end.
pub fn place_control<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> (Vec<u64>, u64) {
    let mut end = 0;
    let starts = plans.into_iter().map(|plan| {
        let start = end;
        end += control_bytes(plan);
        start
    });
    (starts.collect(), end)
}
