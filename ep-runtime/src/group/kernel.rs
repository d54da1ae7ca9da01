//! Kernels that are prepared for all local ranks of a group, with their control memory.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ep_codegen::plan::Plan;

use super::{Enlisted, Group};
use crate::args::{ArgsBlock, ArgsMap, Bindings, GroupArgs};
use crate::backend::{Block, Code, Image, KernelLaunch, Stream};
use crate::call_order::Turn;
use crate::emit::Emitted;
use crate::error::CallError;
use crate::memory::{DeviceMemory, Window, align_up};
use crate::parallel;
use crate::timeouts::{RECORD_BYTES, RECORD_CAPACITY};

/// An emitted kernel, compiled and loaded on every local rank, with its control memory in a window.
pub struct GroupKernel {
    group: Group,
    plan: Arc<Plan>,
    control_at: u64,
    ranks: Vec<RankKernel>,
    window: Arc<Window>,
    /// Keeps the records alive while a launch may write them.
    enlisted: Enlisted,
}

/// What one rank needs to launch a kernel.
struct RankKernel {
    /// The kernel of each phase.
    codes: Vec<Code>,
    /// The kernel of all phases, where there is one.
    joined: Option<Code>,
    args: GroupArgs,
    /// The array of all ranks' control memory; kernels hold its address.
    _bases: DeviceMemory,
}

impl RankKernel {
    /// All its kernels.
    fn all(&self) -> impl Iterator<Item = Code> {
        self.codes.iter().chain(&self.joined).copied()
    }
}

/// Room for `ep::State` behind the regions of the plan.
const STATE_BYTES: u64 = 256;

/// Where `ep::State` is in a plan's control memory.
pub(super) fn state_offset(plan: &Plan) -> u64 {
    align_up(positive(plan.window_bytes))
}

/// Bytes of the window that a plan's kernel needs.
pub fn control_bytes(plan: &Plan) -> u64 {
    state_offset(plan) + STATE_BYTES
}

/// Compiles all of `programs` at once and returns their images in the same order.
pub fn compile_all(group: &Group, programs: &[&Emitted]) -> Result<Vec<Image>, CallError> {
    let backend = group.backend();
    let names: BTreeSet<&str> =
        programs.iter().map(|emitted| emitted.plan.pipeline.as_str()).collect();
    backend.say(&format!("compile {}", Vec::from_iter(names).join(", ")));
    let compile = |emitted: &&Emitted| backend.compile(&emitted.plan.kernels[0], &emitted.cuda);
    Ok(parallel::map(programs, compile).into_iter().collect::<Result<Vec<_>, _>>()?)
}

impl GroupKernel {
    /// Compiles and loads `emitted`. The kernel's control memory starts `control_at` bytes into the window
    /// on every rank, and is zero.
    pub fn prepare(
        group: &Group,
        window: &Arc<Window>,
        control_at: u64,
        emitted: &Emitted,
    ) -> Result<GroupKernel, CallError> {
        let image = group.backend().compile(&emitted.plan.kernels[0], &emitted.cuda)?;
        GroupKernel::load(group, window, control_at, &emitted.plan, &image)
    }

    /// Loads an image that was compiled for `plan`; otherwise the same as [`GroupKernel::prepare`].
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
                what: "bytes of control memory after its start in the window",
                need,
                have: window.bytes().saturating_sub(control_at),
            });
        }
        let enlisted = group.enlist(&plan, window, control_at)?;
        // No window has the address 0: the rank's memory cannot be reached from here.
        let place = |base: u64| if base == 0 { 0 } else { base + control_at };
        let pipeline = enlisted.number;
        group.tell_presences(&enlisted.recorder)?;
        group.backend().name_pipeline(pipeline, &plan);
        let mut ranks = Vec::new();
        for (rank, records) in group.local().zip(&enlisted.recorder.records) {
            let bases: Vec<u64> = window.bases(rank)?.iter().map(|base| place(*base)).collect();
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
                alive: u64::MAX,
                record_capacity: RECORD_CAPACITY,
                pipeline,
                rank: rank as u32,
            };
            name_memory(group, rank, &plan, &args);
            let load = |kernel: &String| group.backend().load(rank, image, kernel, block);
            let codes = plan.kernels.iter().map(load).collect::<Result<Vec<_>, _>>()?;
            let joined = plan.joined.as_ref().map(load).transpose()?;
            ranks.push(RankKernel { codes, joined, args, _bases: bases });
        }
        let (group, window) = (group.clone(), Arc::clone(window));
        Ok(GroupKernel { group, plan, control_at, ranks, window, enlisted })
    }

    /// The plan of the kernel.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where the control memory starts in the window; kernels count window offsets from here.
    pub fn control_at(&self) -> u64 {
        self.control_at
    }

    /// Address of the window of a local rank from the control memory on, and its bytes from there.
    pub(crate) fn window(&self, rank: usize) -> Result<(u64, u64), CallError> {
        let (at, bytes) = (self.window.own(rank)?, self.window.bytes());
        Ok((at + self.control_at, bytes - self.control_at))
    }

    /// Launches with arguments by name. Resolving the names takes microseconds.
    pub fn launch(
        &self,
        rank: usize,
        stream: Stream,
        blocks: u32,
        bindings: &Bindings,
    ) -> Result<(), CallError> {
        self.launch_by_names(rank, stream, 0..self.plan.kernels.len(), blocks, bindings)
    }

    /// Launches one phase. The phases of a call are launched in order, with the same arguments.
    pub fn launch_phase(
        &self,
        rank: usize,
        stream: Stream,
        phase: usize,
        blocks: u32,
        bindings: &Bindings,
    ) -> Result<(), CallError> {
        self.launch_by_names(rank, stream, phase..phase + 1, blocks, bindings)
    }

    fn launch_by_names(
        &self,
        rank: usize,
        stream: Stream,
        phases: Range<usize>,
        blocks: u32,
        bindings: &Bindings,
    ) -> Result<(), CallError> {
        bindings.check_names(&self.plan)?;
        bindings.check_tensors(&self.plan)?;
        let map = ArgsMap::new(&self.plan, |param| bindings.operand(param, self.control_at))?;
        let own = &self.ranks[self.group.local_index(rank)?];
        let mut args = map.block(&own.args);
        let turn = self.group.turn(rank, stream)?;
        self.launch_phases(&turn, phases, (blocks, None), &mut args)
    }

    /// Position of a local rank among the local ones.
    pub(crate) fn local_index(&self, rank: usize) -> Result<usize, CallError> {
        self.group.local_index(rank)
    }

    /// `struct Args` of each local rank, with all that no call changes.
    pub(crate) fn args_blocks<'a>(
        &'a self,
        map: &'a ArgsMap,
    ) -> impl Iterator<Item = ArgsBlock> + 'a {
        self.ranks.iter().map(|own| map.block(&own.args))
    }

    /// Fails if a launch on this many blocks would be refused.
    pub(crate) fn check_blocks(&self, rank: usize, blocks: u32) -> Result<(), CallError> {
        self.require_blocks(blocks)?;
        let own = &self.ranks[self.group.local_index(rank)?];
        let (backend, waits) = (self.group.backend(), self.plan.waits);
        own.all().try_for_each(|code| backend.check_blocks(rank, code, blocks, waits))?;
        Ok(())
    }

    fn require_blocks(&self, have: u32) -> Result<(), CallError> {
        let need = positive(self.plan.blocks_min) as u32;
        if have >= need.max(1) {
            return Ok(());
        }
        Err(CallError::TooFewBlocks { pipeline: self.plan.pipeline.clone(), have, need })
    }

    /// Launches phases, in order: those that come next. They wait as long as the group says where there is
    /// no `timeout`; `args` has all numbers of the call.
    pub(crate) fn launch_phases(
        &self,
        turn: &Turn<'_>,
        phases: Range<usize>,
        (blocks, timeout): (u32, Option<Duration>),
        args: &mut ArgsBlock,
    ) -> Result<(), CallError> {
        self.require_blocks(blocks)?;
        let index = self.group.local_index(turn.rank())?;
        let own = &self.ranks[index];
        let timeout_ns = timeout.map_or(own.args.timeout_ns, nanoseconds);
        let alive = self.group.who_is_in(&self.enlisted.recorder)?;
        args.set_call(timeout_ns, alive);
        let Plan { waits, enters, .. } = *self.plan;
        let has_channels = !self.plan.messages.is_empty();
        let launch = |code, phases| {
            // Only phases in which ranks wait for one another count: a rank may make other calls alone.
            let phases = if has_channels { phases } else { 0 };
            let args = args.bytes();
            let launch = KernelLaunch { code, blocks, waits, enters, phases, args };
            self.group.backend().launch(turn.rank(), turn.stream(), &launch)
        };
        if let Some(joined) = own.joined.filter(|_| phases.len() == own.codes.len()) {
            let count = phases.len() as u32;
            self.take_phases(index, phases)?;
            return Ok(launch(joined, count)?);
        }
        for phase in phases {
            self.take_phases(index, phase..phase + 1)?;
            launch(own.codes[phase], 1)?;
        }
        Ok(())
    }

    /// The turn of phases: those of a call are launched in order, each once.
    fn take_phases(&self, local: usize, phases: Range<usize>) -> Result<(), CallError> {
        let kernels = &self.plan.kernels;
        let (phase, after) = (phases.start, phases.end % kernels.len().max(1));
        let next = &self.enlisted.recorder.next[local];
        let taken = next.compare_exchange(phase, after, Ordering::Relaxed, Ordering::Relaxed);
        taken.map(drop).map_err(|next| {
            let name = |phase: usize| kernels.get(phase).map_or("no phase", String::as_str);
            let what = format!("{} is next, and {} was launched", name(next), name(phase));
            CallError::Mismatch { what }
        })
    }
}

impl Drop for GroupKernel {
    fn drop(&mut self) {
        let backend = self.group.backend();
        for (rank, own) in self.group.local().zip(std::mem::take(&mut self.ranks)) {
            // Code and words must outlive their last launch. Where its end cannot be waited for they stay.
            if backend.require_no_capture(rank).is_err() {
                std::mem::forget((own, Arc::clone(&self.enlisted.recorder)));
                continue;
            }
            // A failure means that the device is lost.
            let _ = self.group.settle(rank);
            for code in own.all() {
                let _ = backend.unload(rank, code);
            }
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

/// Places the control memory of several plans one after another, and returns their starts and the end.
pub fn place_control<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> (Vec<u64>, u64) {
    let mut end = 0;
    let starts = plans.into_iter().map(|plan| {
        let start = end;
        end += control_bytes(plan);
        start
    });
    (starts.collect(), end)
}
