//! What the runtime keeps of each lane, warp and block.

use std::collections::VecDeque;

use super::Idx;
use super::barrier::Barrier;
use super::collective::Collective;
use super::mbarrier::Mbarrier;
use crate::abi::{BlockView, LaneView, Pc, Run};
use crate::failure::WaitSite;

/// Why a lane does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It may run, or does.
    Ready,
    /// It polls values that have not changed.
    Poll,
    /// It waits for the other lanes of a warp function.
    Warp {
        /// Lanes that take part.
        mask: u32,
    },
    /// It waits at a block barrier.
    Barrier {
        /// Which one.
        id: u8,
    },
    /// It waits for its bulk groups.
    Bulk {
        /// Groups that may stay open.
        open: u32,
        /// Whether only the reads are waited for.
        read_only: bool,
    },
    /// It has left the kernel, or its slot holds no kernel.
    Done,
}

/// Most addresses of one polling loop that are told apart: a lane may wait for a word of every rank.
const POLLED: usize = 128;

/// The recent loads of a lane, to notice that it polls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polling {
    /// The addresses of the loop, in the order of its first round.
    seen: Vec<(usize, u64)>,
    /// The one that comes next if this is another round.
    next: usize,
    repeats: usize,
    /// Loads that do not park, after the clock was advanced for waits to expire.
    pub(crate) grace: u32,
}

impl Polling {
    /// Notes a load of `value` at `at`, and says whether it polls: the third time that nothing in a
    /// loop has changed.
    pub(crate) fn note(&mut self, at: usize, value: u64) -> bool {
        if self.grace > 0 {
            self.grace -= 1;
            return false;
        }
        match self.find(at) {
            Some(place) if self.seen[place].1 == value => {
                (self.next, self.repeats) = (place + 1, self.repeats + 1);
                self.repeats >= 2 * self.seen.len()
            }
            // A new value begins anew; so does a loop too wide to be kept, or no loop at all.
            found => {
                if found.is_some() || self.seen.len() == POLLED {
                    self.seen.clear();
                }
                self.seen.push((at, value));
                (self.next, self.repeats) = (0, 0);
                false
            }
        }
    }

    /// Where the address is among those of the loop. Rounds are alike, so the search is short.
    fn find(&self, at: usize) -> Option<usize> {
        let is_it = |(seen, _): &(usize, u64)| *seen == at;
        let next = self.next.min(self.seen.len());
        let (before, after) = self.seen.split_at(next);
        let after = after.iter().position(is_it).map(|place| place + next);
        after.or_else(|| before.iter().position(is_it))
    }

    /// The lane did something else: what it loads next is no longer the same loop.
    pub(crate) fn forget(&mut self) {
        self.seen.clear();
        (self.next, self.repeats) = (0, 0);
    }

    /// How many words one look of the loop takes; 1 where it is not known to be one.
    pub(crate) fn words(&self) -> u32 {
        self.seen.len().max(1) as u32
    }

    /// The addresses of the loop, with the values seen.
    pub(crate) fn addresses(&self) -> &[(usize, u64)] {
        &self.seen
    }
}

/// One committed or open bulk group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    /// Copies whose source is still to be read.
    pub(crate) reads: u32,
    /// Copies that are still to be written.
    pub(crate) writes: u32,
}

/// The bulk groups of a lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// Groups that may be unfinished, oldest first.
    pub(crate) pending: VecDeque<Group>,
    /// Number of the oldest of them, counted from the lane's first group.
    pub(crate) first: u64,
    /// The group not yet committed.
    pub(crate) open: Option<Group>,
    /// Groups that a wait has covered, at least their reads.
    pub(crate) waited: u64,
    /// One more than the last group that holds a copy.
    pub(crate) used: u64,
}

impl Groups {
    /// Number that the open group has or will have.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.pending.len() as u64
    }

    /// The group of this number, if it is still kept.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Group> {
        let index = number.checked_sub(self.first)? as usize;
        if index == self.pending.len() {
            return self.open.as_mut();
        }
        self.pending.get_mut(index)
    }

    /// Whether all groups but the last `open` are finished, by reads or by writes.
    pub(crate) fn finished(&self, open: u32, read_only: bool) -> bool {
        let covered = self.pending.len().saturating_sub(open as usize);
        let done = |group: &Group| if read_only { group.reads == 0 } else { group.writes == 0 };
        self.pending.iter().take(covered).all(done)
    }

    /// Drops finished groups from the front.
    pub(crate) fn trim(&mut self) {
        while self.pending.front().is_some_and(|group| group.writes == 0) {
            self.pending.pop_front();
            self.first += 1;
        }
    }
}

/// A lane. The kernel sees its first member.
#[repr(C)]
pub(crate) struct Lane {
    pub(crate) view: LaneView,
    /// Stack pointer while another fiber runs.
    pub(crate) sp: usize,
    /// Where its library keeps the running lane.
    pub(crate) module: *mut *const LaneView,
    pub(crate) warp: Idx,
    pub(crate) state: State,
    /// What a warp function returns to it.
    pub(crate) result: u64,
    /// Where it last called the runtime.
    pub(crate) pc: Pc,
    pub(crate) polling: Polling,
    pub(crate) groups: Groups,
    /// What the kernel said it is about to wait for.
    pub(crate) site: Option<WaitSite>,
}

impl Lane {
    /// The lane of a slot that holds no kernel.
    pub(crate) fn empty(warp: Idx) -> Self {
        let view = LaneView { thread: [0; 3], lane: 0, block: std::ptr::null() };
        Self {
            view,
            sp: 0,
            module: std::ptr::null_mut(),
            warp,
            state: State::Done,
            result: 0,
            pc: 0,
            polling: Polling::default(),
            groups: Groups::default(),
            site: None,
        }
    }
}

/// A warp of a resident block.
pub(crate) struct Warp {
    pub(crate) block: Idx,
    /// Its number in the block.
    pub(crate) index: u32,
    /// Lanes that may run.
    pub(crate) ready: u32,
    /// Lanes inside the kernel.
    pub(crate) live: u32,
    /// Place in the machine's list of warps with ready lanes.
    pub(crate) place: Option<usize>,
    /// A fault has stopped it for good.
    pub(crate) frozen: bool,
    pub(crate) collectives: Vec<Collective>,
}

impl Warp {
    /// A warp of a slot that holds no kernel.
    pub(crate) fn empty(block: Idx, index: usize) -> Self {
        Self {
            block,
            index: index as u32,
            ready: 0,
            live: 0,
            place: None,
            frozen: false,
            collectives: Vec::new(),
        }
    }
}

/// A slot of a rank that holds one block at a time.
pub(crate) struct Block {
    pub(crate) view: Box<BlockView>,
    pub(crate) rank: u32,
    /// Offset of its shared memory in the arena.
    pub(crate) shared: usize,
    /// Bytes of it that the slot has.
    pub(crate) shared_capacity: usize,
    /// First warp and first lane of the slot.
    pub(crate) first_warp: Idx,
    /// Lanes still inside the kernel; 0: the slot is free.
    pub(crate) live: u32,
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) mbarriers: Vec<Mbarrier>,
    pub(crate) run: Option<Run>,
    pub(crate) args: *const u8,
    /// Which launch of its rank it belongs to.
    pub(crate) launch: usize,
    /// Whether the next one may run beside it.
    pub(crate) has_brought_next: bool,
}

impl Block {
    /// A slot that holds no kernel; `shared`: offset, bytes and address of its shared memory.
    pub(crate) fn empty(rank: u32, first_warp: Idx, shared: (usize, usize, *mut u8)) -> Self {
        let (offset, capacity, at) = shared;
        let view =
            BlockView { index: [0; 3], size: [0; 3], grid: [0; 3], shared_bytes: 0, shared: at };
        Self {
            view: Box::new(view),
            rank,
            shared: offset,
            shared_capacity: capacity,
            first_warp,
            live: 0,
            barriers: vec![Default::default(); 16],
            mbarriers: Vec::new(),
            run: None,
            args: std::ptr::null(),
            launch: 0,
            has_brought_next: false,
        }
    }

    /// Warps of the running block.
    pub(crate) fn warps(&self) -> std::ops::Range<Idx> {
        self.first_warp..self.first_warp + self.view.size[0] as usize / 32
    }
}
