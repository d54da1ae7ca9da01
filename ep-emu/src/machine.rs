//! The state of a run and the way from a kernel's call into it.
//!
//! One rule keeps this sound: a call from a kernel borrows the machine only inside [`with`], and
//! fibers are switched only outside. Operations therefore return what should happen next as a
//! [`Flow`] instead of switching themselves.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::Pc;
use crate::actor::Actor;
use crate::bulk::Engine;
use crate::failure::{Failure, FailureKind, RunStats, Wait};
use crate::fiber::{self, Stacks};
use crate::hb::Checker;
use crate::heap::Heap;
use crate::lane::{Block, Idx, Lane, State, Warp};
use crate::park::Parking;
use crate::schedule::Schedule;
use crate::stream::Stream;

/// All that a run changes.
pub(crate) struct Machine<'w> {
    pub(crate) heap: &'w mut Heap,
    pub(crate) stacks: Stacks,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) schedule: Schedule,
    pub(crate) parking: Parking,
    pub(crate) engine: Engine,
    pub(crate) checker: Option<Checker>,
    pub(crate) stats: RunStats,
    pub(crate) clock_ns: u64,
    /// Counts everything that another lane could notice.
    pub(crate) progress: u64,
    /// Blocks can enter, once the scheduler is back on the caller's stack.
    pub(crate) refill: bool,
    /// Lanes inside kernels that can still run to their end.
    pub(crate) live: u64,
    pub(crate) failure: Option<Failure>,
    /// A deadlock whose waits have been allowed to expire, in words, and the waits.
    pub(crate) deadlock: Option<(String, Vec<Wait>)>,
    pub(crate) actors: Vec<Box<dyn Actor>>,
    pub(crate) actor_names: Vec<String>,
    /// Number of the next mbarrier to be initialised.
    pub(crate) next_mbarrier: u32,
    /// Not even expired waits let anything run.
    pub(crate) stuck: bool,
    /// Where each rank's stop word is, for a fault that raises one.
    pub(crate) stop_words: Vec<Option<usize>>,
    /// Steps of the world's earlier runs.
    pub(crate) steps_before: u64,
    /// Launches that a rank may be ahead of the slowest.
    pub(crate) max_ahead: usize,
    /// The running lane; `None`: the caller's own stack.
    pub(crate) current: Option<Idx>,
    /// Where the running lane's stack is used up.
    pub(crate) floor: usize,
    pub(crate) main_sp: usize,
}

/// What a lane does after an operation.
pub(crate) enum Flow {
    /// It goes on with this result.
    Value(u64),
    /// It is blocked (its state says why); its result is in the lane when it runs again.
    Blocked,
}

/// An error that an operation found, before places are looked up.
pub(crate) struct Fault {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    /// Places in kernel code that belong to it, with a word each.
    pub(crate) places: Vec<(&'static str, Pc)>,
    /// Lines that follow, each with its place.
    pub(crate) more: Vec<(String, Pc)>,
    /// A last line.
    pub(crate) explain: String,
}

impl Fault {
    /// A fault with the place of the call that found it.
    pub(crate) fn new(kind: FailureKind, message: String, pc: Pc) -> Self {
        let (more, explain) = (Vec::new(), String::new());
        Self { kind, message, places: vec![("at", pc)], more, explain }
    }

    /// Adds another place.
    pub(crate) fn and(mut self, word: &'static str, pc: Pc) -> Self {
        self.places.push((word, pc));
        self
    }
}

/// What operations return.
pub(crate) type Outcome<T = Flow> = Result<T, Box<Fault>>;

/// The machine of the run in progress: kernels call plain functions, so they find it here. A
/// process runs one world at a time (`world::RUNNING`).
static MACHINE: AtomicPtr<Machine<'static>> = AtomicPtr::new(ptr::null_mut());

/// Borrows the machine for one operation; `body` must not switch fibers.
#[inline(always)]
pub(crate) fn with<R>(body: impl FnOnce(&mut Machine<'static>) -> R) -> R {
    let machine = MACHINE.load(Ordering::Relaxed);
    // SAFETY: kernels call the runtime only between `enter` and its end, where the pointer is that
    // of a live machine; the run is on one thread, and no borrow lives across a switch.
    body(unsafe { &mut *machine })
}

/// Name of the lane that runs now, if a run is in progress: for a process that is about to end.
pub(crate) fn running_lane() -> Option<String> {
    if MACHINE.load(Ordering::Relaxed).is_null() {
        return None;
    }
    with(|machine| machine.current.map(|lane| machine.who(lane)))
}

/// Runs all fibers of `machine` until none is left or one has failed.
pub(crate) fn enter(machine: &mut Machine<'_>) {
    let erased: *mut Machine<'_> = machine;
    MACHINE.store(erased.cast(), Ordering::Relaxed);
    // Blocks enter only here, off the lanes' stacks: the last lane of a block still runs on the
    // stack that the next block's lane is given.
    while with(|machine| machine.refill()) {
        reschedule(false);
    }
    MACHINE.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Lets the scheduler choose the next fiber and continues it; returns when this one is chosen.
///
/// `stay`: prefer other lanes of the same warp.
pub(crate) fn reschedule(stay: bool) {
    let target = with(|machine| machine.choose(stay));
    if let Some((save, to)) = target {
        // SAFETY: `to` was saved by a switch or prepared for a fresh lane, `save` belongs to the
        // fiber that runs now, and `with` has ended its borrow.
        unsafe { fiber::switch(save, to) };
    }
}

/// Records a failure and leaves the fiber for good.
pub(crate) fn abandon(fault: Box<Fault>) -> ! {
    with(|machine| machine.fail(*fault));
    reschedule(false);
    unreachable!("a failed run never continues a lane");
}

/// Does what an operation asked for and returns its result to the kernel.
#[inline(always)]
pub(crate) fn settle(outcome: Outcome) -> u64 {
    match outcome {
        Ok(Flow::Value(value)) => value,
        Ok(Flow::Blocked) => {
            reschedule(true);
            with(|machine| machine.lane().result)
        }
        Err(fault) => abandon(fault),
    }
}

/// With a small probability lets other lanes run first.
#[inline(always)]
pub(crate) fn preempt() {
    let switch = with(|machine| {
        let switch = machine.schedule.preempts();
        if switch && let Some(current) = machine.current {
            machine.make_ready(current);
        }
        // Every operation that other lanes could notice comes by here, so this is where a stack
        // that grows too deep is found.
        switch | machine.has_overflown()
    });
    if switch {
        reschedule(false);
    }
}

impl Machine<'_> {
    /// The running lane's index.
    #[inline(always)]
    pub(crate) fn here(&self) -> Idx {
        self.current.expect("a kernel calls the runtime from a lane")
    }

    /// The running lane.
    #[inline(always)]
    pub(crate) fn lane(&mut self) -> &mut Lane {
        let here = self.here();
        &mut self.lanes[here]
    }

    /// Block slot of a lane.
    #[inline(always)]
    pub(crate) fn block_of(&self, lane: Idx) -> Idx {
        self.warps[self.lanes[lane].warp].block
    }

    /// Rank of a lane.
    #[inline(always)]
    pub(crate) fn rank_of(&self, lane: Idx) -> u32 {
        self.blocks[self.block_of(lane)].rank
    }

    /// First lane of a warp.
    #[inline(always)]
    pub(crate) fn first_lane(&self, warp: Idx) -> Idx {
        warp * 32
    }

    /// Puts a lane among those that may run.
    #[inline(always)]
    pub(crate) fn make_ready(&mut self, lane: Idx) {
        let warp = self.lanes[lane].warp;
        self.lanes[lane].state = State::Ready;
        let entry = &mut self.warps[warp];
        entry.ready |= 1 << (lane % 32);
        if entry.place.is_none() {
            entry.place = Some(self.schedule.ready.len());
            self.schedule.ready.push(warp);
        }
    }

    /// Takes a lane out of those that may run.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, lane: Idx) {
        let warp = self.lanes[lane].warp;
        let entry = &mut self.warps[warp];
        entry.ready &= !(1 << (lane % 32));
        if entry.ready == 0
            && let Some(place) = entry.place.take()
        {
            self.schedule.ready.swap_remove(place);
            if let Some(moved) = self.schedule.ready.get(place) {
                self.warps[*moved].place = Some(place);
            }
        }
    }

    /// Chooses who runs next: where to save the running fiber and what to continue, or nothing if
    /// the running lane goes on.
    fn choose(&mut self, stay: bool) -> Option<(*mut usize, usize)> {
        let from = self.current;
        let warp = from.filter(|_| stay).map(|lane| self.lanes[lane].warp);
        let next = self.pick(warp);
        if next == from {
            return None;
        }
        self.stats.switches += 1;
        let save: *mut usize = match from {
            Some(lane) => &mut self.lanes[lane].sp,
            None => &mut self.main_sp,
        };
        self.current = next;
        self.floor = next.map_or(0, |lane| self.stacks.floor(lane));
        let to = match next {
            Some(next) => {
                let lane = &self.lanes[next];
                // SAFETY: `module` points at the `emu_lane` of a library that the launch keeps.
                unsafe { lane.module.write(&lane.view) };
                lane.sp
            }
            None => self.main_sp,
        };
        Some((save, to))
    }

    /// Whether the running lane's stack is used up; if so the run has failed.
    #[inline(always)]
    fn has_overflown(&mut self) -> bool {
        let marker = 0u8;
        if &raw const marker as usize >= self.floor {
            return false;
        }
        let lane = self.here();
        let message = format!("{} has used up its stack", self.who(lane));
        let pc = self.lanes[lane].pc;
        self.fail(Fault::new(FailureKind::StackOverflow, message, pc));
        true
    }

    /// Records the first failure.
    pub(crate) fn fail(&mut self, fault: Fault) {
        if self.failure.is_none() {
            let mut message = fault.message;
            for (word, pc) in fault.places {
                message.push_str(&format!(" {word} {}", crate::symbols::mark(pc)));
            }
            for (line, pc) in fault.more {
                message.push_str(&format!("\n  {line} at {}", crate::symbols::mark(pc)));
            }
            if !fault.explain.is_empty() {
                message.push_str(&format!("\n  {}", fault.explain));
            }
            self.failure = Some(Failure::new(fault.kind, message));
        }
    }

    /// `offset` of the arena as reports name it, by the tensors of the running lane's launch.
    pub(crate) fn place(&self, offset: usize) -> String {
        let launch = self.current.map(|lane| {
            let block = &self.blocks[self.block_of(lane)];
            &self.streams[block.rank as usize].launches[block.launch].launch
        });
        self.heap.describe(offset, launch.map_or(&[], |launch| &launch.tensors))
    }

    /// A lane as reports name it.
    pub(crate) fn who(&self, lane: Idx) -> String {
        let warp = &self.warps[self.lanes[lane].warp];
        let block = &self.blocks[warp.block];
        let (rank, index) = (block.rank, block.view.index[0]);
        format!("rank {rank} block {index} warp {} lane {}", warp.index, lane % 32)
    }
}
