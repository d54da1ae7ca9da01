//! A group of ranks, and kernels prepared for all local ones of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ep_codegen::plan::Plan;

use crate::args::{ArgsMap, Bindings, GroupArgs};
use crate::backend::{Backend, BackendError, Block, Code, Image, Launch, Stream};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::memory::{DeviceMemory, HostMemory, Window, align_up};
use crate::record::{RECORD_BYTES, RECORD_CAPACITY, Timeouts, WRITTEN_AT};

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
    /// The prepared pipelines, whose records say why the group was stopped.
    recorders: Mutex<Vec<Weak<Recorder>>>,
    /// Pipelines prepared so far: the number of the next one.
    enlisted: AtomicU32,
    poison: OnceLock<CallError>,
}

/// The records of one prepared pipeline.
struct Recorder {
    plan: Arc<Plan>,
    /// One block per local rank.
    records: Vec<HostMemory>,
}

impl Group {
    /// A group of all ranks of the backend.
    pub fn new(backend: Arc<dyn Backend>, options: GroupOptions) -> Result<Group, CallError> {
        let local = backend.local();
        let stops = local.map(|rank| DeviceMemory::zeroed(&backend, rank, 4));
        let stops = stops.collect::<Result<Vec<_>, _>>()?;
        let shared = Shared {
            backend,
            options,
            stops,
            recorders: Mutex::default(),
            enlisted: AtomicU32::new(0),
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
    pub(crate) fn local_index(&self, rank: usize) -> Result<usize, CallError> {
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
        match recorded()? {
            true => Err(self.poison()),
            false => Ok(()),
        }
    }

    /// Waits until the rank's own stream is empty and reports a stopped group.
    pub fn sync(&self, rank: usize) -> Result<(), CallError> {
        self.explain(rank, self.shared.backend.sync(rank, Stream::OWN))
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
            let _ = self.shared.backend.sync(rank, Stream::OWN);
        }
        let mut timeouts = Timeouts::default();
        for recorder in self.recorders().iter().filter_map(Weak::upgrade) {
            for (rank, records) in self.local().zip(&recorder.records) {
                let _ = timeouts.collect(rank, &recorder.plan, records);
            }
        }
        let overflow = timeouts.waits.iter().find(|wait| wait.is_overflow());
        let error = match overflow {
            Some(wait) => CallError::OutputTooSmall {
                rank: wait.peer.unwrap_or(wait.rank),
                need: u64::from(wait.want),
                have: u64::from(wait.seen.unwrap_or(0)),
            },
            None => CallError::Timeout(timeouts),
        };
        self.shared.poison.get_or_init(|| error).clone()
    }

    fn recorders(&self) -> MutexGuard<'_, Vec<Weak<Recorder>>> {
        self.shared.recorders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates the records of a pipeline and gives it a number.
    fn enlist(&self, plan: &Arc<Plan>) -> Result<(u32, Arc<Recorder>), CallError> {
        let backend = &self.shared.backend;
        let bytes = RECORD_BYTES * u64::from(RECORD_CAPACITY);
        let records = self.local().map(|rank| HostMemory::new(backend, rank, bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let recorder = Arc::new(Recorder { plan: Arc::clone(plan), records });
        let mut recorders = self.recorders();
        recorders.retain(|recorder| recorder.strong_count() > 0);
        recorders.push(Arc::downgrade(&recorder));
        Ok((self.shared.enlisted.fetch_add(1, Ordering::Relaxed), recorder))
    }
}

/// An emitted kernel, compiled and loaded on every local rank, with its control memory in a window.
pub struct Kernel {
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
    /// `ep::State`, then the array of all ranks' control memory; kernels hold their addresses.
    _words: DeviceMemory,
}

/// Room for `ep::State` before the array of windows.
const STATE_BYTES: u64 = 256;

impl Kernel {
    /// Compiles and loads `emitted`; its control memory starts `control_at` bytes into the window,
    /// on every rank alike, and is zero.
    pub fn prepare(
        group: &Group,
        window: &Arc<Window>,
        control_at: u64,
        emitted: &Emitted,
    ) -> Result<Kernel, CallError> {
        let image = group.backend().compile(&emitted.plan.entry, &emitted.cuda)?;
        Kernel::load(group, window, control_at, &emitted.plan, &image)
    }

    /// Loads an image that was compiled for `plan`; otherwise as [`Kernel::prepare`].
    pub fn load(
        group: &Group,
        window: &Arc<Window>,
        control_at: u64,
        plan: &Plan,
        image: &Image,
    ) -> Result<Kernel, CallError> {
        let plan = Arc::new(plan.clone());
        let control_bytes = positive(plan.window_bytes);
        if control_at.checked_add(control_bytes).is_none_or(|end| end > window.bytes()) {
            return Err(CallError::TooLarge {
                what: "bytes of control memory behind its start in the window",
                need: control_bytes,
                have: window.bytes().saturating_sub(control_at),
            });
        }
        let (pipeline, recorder) = group.enlist(&plan)?;
        group.backend().name_pipeline(pipeline, &plan);
        let mut ranks = Vec::new();
        for (rank, records) in group.local().zip(&recorder.records) {
            let bases: Vec<u64> =
                window.bases(rank)?.iter().map(|base| base + control_at).collect();
            let words = state_words(group, rank, &bases)?;
            let block = Block {
                threads: positive(plan.threads) as u32,
                shared_bytes: positive(plan.shared_bytes) as u32,
            };
            let args = GroupArgs {
                windows: words.address() + STATE_BYTES,
                window: window.own(rank)? + control_at,
                state: words.address(),
                stop: group.shared.stops[group.local_index(rank)?].address(),
                records: records.address(),
                timeout_ns: u64::try_from(group.timeout().as_nanos()).unwrap_or(u64::MAX),
                record_capacity: RECORD_CAPACITY,
                pipeline,
                rank: rank as u32,
            };
            name_memory(group, rank, &plan, &args);
            let code = group.backend().load(rank, image, &plan.entry, block)?;
            ranks.push(RankKernel { code, args, _words: words });
        }
        let _window = Arc::clone(window);
        Ok(Kernel { group: group.clone(), plan, control_at, ranks, _window, _recorder: recorder })
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
        let map = ArgsMap::new(&self.plan, |param| bindings.operand(param, self.control_at))?;
        let mut bytes = vec![0; map.bytes()];
        self.launch_mapped(rank, stream, blocks, &map, &[], &mut bytes)
    }

    /// Launches with resolved arguments; `bytes` is scratch of the size of `struct Args`.
    pub(crate) fn launch_mapped(
        &self,
        rank: usize,
        stream: Stream,
        blocks: u32,
        map: &ArgsMap,
        slots: &[u64],
        bytes: &mut [u8],
    ) -> Result<(), CallError> {
        let need = positive(self.plan.blocks_min) as u32;
        if blocks < need.max(1) {
            let pipeline = self.plan.pipeline.clone();
            return Err(CallError::TooFewBlocks { pipeline, have: blocks, need });
        }
        let own = &self.ranks[self.group.local_index(rank)?];
        map.fill(&own.args, slots, bytes);
        let launch = Launch { code: own.code, blocks, waits: true, args: bytes };
        Ok(self.group.backend().launch(rank, stream, &launch)?)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let backend = self.group.backend();
        for (rank, own) in self.group.local().zip(&self.ranks) {
            // Code and words must outlive their last launch. A failure means that the device is
            // lost.
            let _ = backend.sync(rank, Stream::OWN);
            let _ = backend.unload(rank, own.code);
        }
    }
}

/// State, zeroed, and behind it the addresses of all ranks' control memory.
fn state_words(group: &Group, rank: usize, bases: &[u64]) -> Result<DeviceMemory, CallError> {
    let bytes = STATE_BYTES + 8 * bases.len() as u64;
    let words = DeviceMemory::zeroed(group.backend(), rank, bytes)?;
    let addresses: Vec<u8> = bases.iter().flat_map(|base| base.to_le_bytes()).collect();
    words.write(STATE_BYTES, &addresses)?;
    Ok(words)
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

/// A size of a plan; plans never hold negative ones.
pub(crate) fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Places the control memory of several plans one behind another: their starts, and the end.
pub fn place_control<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> (Vec<u64>, u64) {
    let mut end = 0;
    let starts = plans.into_iter().map(|plan| {
        let start = end;
        end += align_up(positive(plan.window_bytes));
        start
    });
    (starts.collect(), end)
}
