//! Launches: each rank runs its list in order, blocks enter as slots become free.

use std::mem;

use super::{Fault, Machine, Outcome};
use crate::abi::LaneView;
use crate::failure::FailureKind;
use crate::state::Idx;
use crate::state::lane::{Groups, Polling, State};

impl Machine<'_> {
    /// Whether any rank that is alive has launches left.
    pub(crate) fn streams_left(&self) -> bool {
        let dead = self.dead_rank();
        self.streams
            .iter()
            .enumerate()
            .any(|(rank, stream)| Some(rank as u32) != dead && stream.at < stream.launches.len())
    }

    /// The rank that a fault has stopped by now.
    pub(crate) fn dead_rank(&self) -> Option<u32> {
        let (rank, step) = self.schedule.faults().dead_rank?;
        (self.steps() >= step).then_some(rank)
    }

    /// Whether a rank that is late has not begun.
    pub(crate) fn late_rank_is_out(&self) -> bool {
        let late = self.schedule.faults().late_rank;
        late.is_some_and(|(rank, _)| !self.has_joined(rank as usize))
    }

    /// Whether a rank may begin its first launch.
    fn has_joined(&self, rank: usize) -> bool {
        match self.schedule.faults().late_rank {
            Some((late, step)) if late as usize == rank => self.steps() >= step,
            _ => true,
        }
    }

    /// Lets launches start and blocks enter; returns whether the run goes on.
    pub(crate) fn refill(&mut self) -> bool {
        if !std::mem::take(&mut self.refill) || self.failure.is_some() || self.stuck {
            return false;
        }
        for rank in 0..self.streams.len() {
            let stream = &self.streams[rank];
            let left = stream.at < stream.launches.len();
            if !left || Some(rank as u32) == self.dead_rank() {
                continue;
            }
            if !stream.running && self.has_joined(rank) && self.may_start(rank) {
                let stream = &mut self.streams[rank];
                (stream.running, stream.next_block, stream.ended) = (true, 0, 0);
                if let Some(checker) = &mut self.checker {
                    checker.launch_starts(rank);
                }
            }
            if self.streams[rank].running {
                self.fill_slots(rank);
            }
        }
        true
    }

    /// A rank may be at most `max_ahead` phases ahead of the slowest one: they are what ranks have in common,
    /// one of which launches at once what another one launches by phases.
    fn may_start(&self, rank: usize) -> bool {
        let dead = self.dead_rank().map(|rank| rank as usize);
        let living = self.streams.iter().enumerate().filter(|(rank, _)| Some(*rank) != dead);
        let behind = living.filter(|(_, stream)| stream.at < stream.launches.len());
        let slowest = behind.map(|(_, stream)| stream.phases_run).min().unwrap_or(0);
        self.streams[rank].phases_run <= slowest + self.max_ahead
    }

    /// Lets blocks of the running launch enter free slots.
    fn fill_slots(&mut self, rank: usize) {
        for slot in self.streams[rank].slots.clone() {
            let stream = &self.streams[rank];
            let blocks = stream.launches[stream.at].launch.blocks;
            if stream.next_block < blocks && self.blocks[slot].live == 0 {
                self.streams[rank].next_block += 1;
                let index = self.streams[rank].next_block - 1;
                self.enter_block(rank, slot, index);
            }
        }
    }

    fn enter_block(&mut self, rank: usize, slot: Idx, index: u32) {
        let stream = &self.streams[rank];
        let prepared = &stream.launches[stream.at];
        let launch = &prepared.launch;
        let (module, args) = (prepared.module, prepared.args.as_ptr().cast::<u8>());
        let (threads, at, run) = (launch.threads, stream.at, launch.kernel.run);
        let (grid, shared_bytes) = (launch.blocks, launch.shared_bytes);
        let comes_early = launch.comes_early;
        let block = &mut self.blocks[slot];
        block.view.index = [index, 0, 0];
        block.view.size = [threads, 1, 1];
        block.view.grid = [grid, 1, 1];
        block.view.shared_bytes = shared_bytes;
        (block.live, block.launch, block.run, block.args) = (threads, at, Some(run), args);
        block.has_brought_next = false;
        block.barriers.fill_with(Default::default);
        block.mbarriers.clear();
        let (shared, capacity) = (block.shared, block.shared_capacity);
        // SAFETY: the slot's shared memory is a region of the heap, and no lane of the slot runs.
        unsafe { ((self.heap.base() + shared) as *mut u8).write_bytes(0xcb, capacity) };
        self.live += u64::from(threads);
        self.stats.lanes += u64::from(threads);
        if let Some(checker) = &mut self.checker {
            let who = (rank as u32, slot);
            checker.block_enters(who, block.warps(), (shared, capacity), comes_early);
        }
        for warp in self.blocks[slot].warps() {
            self.enter_warp(warp, module);
        }
    }

    fn enter_warp(&mut self, warp: Idx, module: *mut *const LaneView) {
        let entry = &mut self.warps[warp];
        (entry.ready, entry.live) = (0, u32::MAX);
        entry.collectives.clear();
        let view: *const _ = &*self.blocks[entry.block].view;
        let first = warp * 32;
        for index in first..first + 32 {
            let sp = self.stacks.start(index, self.entry);
            let number = (self.warps[warp].index * 32) + (index - first) as u32;
            let lane = &mut self.lanes[index];
            lane.view = LaneView { thread: [number, 0, 0], lane: number % 32, block: view };
            (lane.sp, lane.module, lane.pc, lane.site) = (sp, module, 0, None);
            lane.polling = Polling::default();
            lane.groups = Groups::default();
            self.make_ready(index);
        }
    }

    /// The running lane has waited for the launches before its own.
    pub(crate) fn after_last_kernel(&mut self) {
        let here = self.here();
        if let Some(checker) = &mut self.checker {
            checker.after_last_kernel(here);
        }
    }

    /// The running lane lets the next launch in, beside its own block, in which nobody may wait from now on: the next
    /// launch may hold the SM that those need who are waited for.
    pub(crate) fn bring_next_kernel(&mut self) -> Outcome<()> {
        let slot = self.block_of(self.here());
        if mem::replace(&mut self.blocks[slot].has_brought_next, true) {
            // Since another lane has, each wait is looked at when it begins.
            return Ok(());
        }
        let warps = self.blocks[slot].warps();
        let mut lanes = warps.start * 32..warps.end * 32;
        match lanes.find(|lane| self.lanes[*lane].state == State::Poll) {
            Some(lane) => Err(self.waits_beside_next(lane)),
            None => Ok(()),
        }
    }

    /// What is wrong with a wait in a block that has let the next launch in.
    pub(crate) fn waits_beside_next(&self, lane: Idx) -> Box<Fault> {
        let who = self.who(lane);
        let message = format!("{who} waits after its block has let the next kernel start,");
        Box::new(Fault::new(FailureKind::Deadlock, message, self.lanes[lane].pc))
    }

    /// The running lane has returned from the kernel.
    pub(crate) fn lane_exits(&mut self) -> Outcome<()> {
        let here = self.here();
        let slot = self.block_of(here);
        self.check_exit(here)?;
        let warp = self.lanes[here].warp;
        self.lanes[here].state = State::Done;
        self.warps[warp].live &= !(1 << (here % 32));
        self.blocks[slot].live -= 1;
        self.live -= 1;
        self.progress += 1;
        if self.blocks[slot].live == 0 {
            self.check_block_exit(slot)?;
            self.block_ends(slot);
        }
        Ok(())
    }

    /// M6: every bulk group of a leaving lane has been waited for.
    fn check_exit(&mut self, lane: Idx) -> Outcome<()> {
        let groups = &self.lanes[lane].groups;
        let open = if groups.open.is_some() {
            "with an uncommitted bulk group"
        } else if groups.waited < groups.used {
            "with a bulk group that it never waited for"
        } else {
            return Ok(());
        };
        let message = format!("{} leaves the kernel {open} (M6), last seen", self.who(lane));
        let pc = self.lanes[lane].pc;
        Err(Box::new(Fault::new(FailureKind::Exit, message, pc)))
    }

    fn block_ends(&mut self, slot: Idx) {
        let rank = self.blocks[slot].rank as usize;
        if let Some(checker) = &mut self.checker {
            checker.block_ends(rank as u32, self.blocks[slot].warps());
        }
        let stream = &mut self.streams[rank];
        stream.ended += 1;
        if stream.ended == stream.launches[stream.at].launch.blocks {
            stream.phases_run += u64::from(stream.launches[stream.at].launch.phases);
            stream.at += 1;
            stream.running = false;
            if let Err(fault) = self.checked(|checker| checker.launch_ends(rank)) {
                self.fail(*fault);
            }
        }
        self.refill = true;
    }
}
