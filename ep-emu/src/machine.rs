//! The state of a run. What can be done to it is in the modules below, a subject each.

mod accesses;
mod actors;
mod barrier;
mod bulk;
mod checked;
mod deadlock;
mod mbarrier;
mod park;
mod schedule;
mod stream;
mod warp;

use std::time::Instant;

use crate::abi::Pc;
use crate::actor::{Actor, Outside};
use crate::failure::{Failure, FailureKind, RunStats, Wait};
use crate::fiber::Stacks;
use crate::hb::Checker;
use crate::heap::Heap;
use crate::state::Idx;
use crate::state::bulk::Engine;
use crate::state::lane::{Block, Lane, State, Warp};
use crate::state::parking::Parking;
use crate::state::schedule::Schedule;
use crate::state::stream::Stream;

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
    pub(crate) outside: Vec<Outside>,
    /// Since when nothing has moved here, while something may come from outside.
    pub(crate) idle_since: Option<Instant>,
    /// Number of the next mbarrier to be initialised.
    pub(crate) next_mbarrier: u32,
    /// Not even expired waits let anything run.
    pub(crate) stuck: bool,
    /// After how long waits run out without a failure, and how often a part of that has passed.
    pub(crate) longest_wait_ns: Option<u64>,
    pub(crate) ran_out: u32,
    /// Where each rank's stop word is, for a fault that raises one.
    pub(crate) stop_words: Vec<Option<usize>>,
    /// Steps of the world's earlier runs.
    pub(crate) steps_before: u64,
    /// First function of every lane's fiber.
    pub(crate) entry: extern "C" fn() -> !,
    /// Phases that a rank may be ahead of the slowest.
    pub(crate) max_ahead: u64,
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
    pub(crate) fn choose(&mut self, stay: bool) -> Option<(*mut usize, usize)> {
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
    pub(crate) fn has_overflown(&mut self) -> bool {
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
            // What does not come from a kernel has no place.
            let place = |word: &str, pc: Pc| match pc {
                0 => String::new(),
                pc => format!(" {word} {}", crate::symbols::mark(pc)),
            };
            let mut message = fault.message;
            for (word, pc) in fault.places {
                message.push_str(&place(word, pc));
            }
            for (line, pc) in fault.more {
                message.push_str(&format!("\n  {line}{}", place("at", pc)));
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
