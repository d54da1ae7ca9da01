//! Bulk copies (TMA): each reads at one random moment and writes at a later one, in no order.

use super::{Fault, Flow, Machine, Outcome};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::state::Idx;
use crate::state::bulk::{BulkCopy, Signal};
use crate::state::lane::State;

impl Machine<'_> {
    /// Moves one copy, or one actor, a step on; returns whether anything was done.
    pub(crate) fn engine_step(&mut self, idle: bool) -> bool {
        let copies = self.engine.copies.len();
        let actors = self.actors.len();
        if copies + actors == 0 {
            return false;
        }
        let drawn = self.schedule.rng.below(copies + actors);
        if drawn >= copies {
            return self.actor_step(drawn - copies) || (idle && self.any_copy());
        }
        if self.engine.copies[drawn].late && !idle {
            return false;
        }
        self.advance_copy(drawn);
        true
    }

    fn any_copy(&mut self) -> bool {
        let copies = self.engine.copies.len();
        if copies == 0 {
            return (0..self.actors.len()).any(|actor| self.actor_step(actor));
        }
        let drawn = self.schedule.rng.below(copies);
        self.advance_copy(drawn);
        true
    }

    fn advance_copy(&mut self, index: usize) {
        self.stats.bulk_steps += 1;
        self.stats.schedule = self.stats.schedule.wrapping_mul(31).wrapping_add(index as u64 + 7);
        self.progress += 1;
        let copy = &mut self.engine.copies[index];
        let bytes = copy.bytes as usize;
        let Some(buffer) = copy.read.take() else {
            let mut buffer = self.engine.buffers.pop().unwrap_or_default();
            buffer.clear();
            // SAFETY: the issue checked that the source lies inside a region.
            buffer.extend_from_slice(unsafe {
                std::slice::from_raw_parts(copy.from as *const u8, bytes)
            });
            copy.read = Some(buffer);
            let (lane, signal) = (copy.lane, copy.signal);
            if let Signal::Group(number) = signal {
                if let Some(group) = self.lanes[lane].groups.get_mut(number) {
                    group.reads -= 1;
                }
                self.wake_bulk_waiter(lane);
            }
            return;
        };
        // SAFETY: the issue checked that the destination lies inside a region.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), copy.to as *mut u8, bytes) };
        self.engine.buffers.push(buffer);
        let copy = self.engine.copies.swap_remove(index);
        self.touch(copy.to, bytes);
        match copy.signal {
            Signal::Mbarrier(at) => {
                if let Err(fault) = self.mbarrier_load_ends(at, copy.bytes) {
                    self.fail(*fault);
                }
            }
            Signal::Group(number) => {
                if let Some(group) = self.lanes[copy.lane].groups.get_mut(number) {
                    group.writes -= 1;
                }
                self.wake_bulk_waiter(copy.lane);
            }
        }
    }

    fn wake_bulk_waiter(&mut self, lane: Idx) {
        if let State::Bulk { open, read_only } = self.lanes[lane].state
            && self.lanes[lane].groups.finished(open, read_only)
        {
            self.make_ready(lane);
        }
    }

    /// What both directions want of their addresses.
    fn check_copy(&self, shared: usize, global: usize, bytes: u32, pc: Pc) -> Outcome<()> {
        let here = self.here();
        let base = self.heap.base();
        let (length, block) = (bytes as usize, &self.blocks[self.block_of(here)]);
        let in_shared = shared.wrapping_sub(base).wrapping_sub(block.shared);
        let offset = global.wrapping_sub(base);
        let what = if (shared | global | length) & 15 != 0 {
            "which is not a multiple of 16 in address or size"
        } else if in_shared.saturating_add(length) > block.view.shared_bytes as usize {
            "which leaves the block's shared memory"
        } else if let Some(why) = self.out_of_reach(here, offset, length) {
            why
        } else {
            return Ok(());
        };
        let (who, place) = (self.who(here), self.place(offset));
        let message = format!(
            "{who}: a bulk copy of {bytes} bytes between shared + {in_shared} and memory {what}: {place},"
        );
        Err(Box::new(Fault::new(FailureKind::Bulk, message, pc)))
    }

    fn issue(&mut self, copy: BulkCopy) {
        let rank = self.rank_of(copy.lane);
        let faults = self.schedule.faults();
        let late = faults.late_bulk == Some(rank);
        let stalls =
            faults.stalled_bulk.is_some_and(|(who, step)| who == rank && self.steps() >= step);
        self.progress += 1;
        if stalls {
            self.engine.stalled += 1;
        } else {
            self.engine.copies.push(BulkCopy { late, ..copy });
        }
    }

    /// `cp.async.bulk` from global to shared memory.
    pub(crate) fn bulk_load(
        &mut self,
        shared: usize,
        global: usize,
        bytes: u32,
        barrier: usize,
        pc: Pc,
    ) -> Outcome<()> {
        let here = self.here();
        self.lane().pc = pc;
        self.lane().polling.forget();
        self.check_copy(shared, global, bytes, pc)?;
        let (at, id) = self.mbarrier_load_starts(barrier, pc)?;
        self.note_loan(here, global.wrapping_sub(self.heap.base()), bytes as usize);
        self.checked(|checker| checker.bulk_load(here, (shared, global), bytes, id, pc))?;
        let signal = Signal::Mbarrier(at);
        let (to, from) = (shared, global);
        self.issue(BulkCopy { to, from, bytes, lane: here, signal, read: None, late: false });
        Ok(())
    }

    /// `cp.async.bulk` from shared to global memory.
    pub(crate) fn bulk_store(
        &mut self,
        global: usize,
        shared: usize,
        bytes: u32,
        pc: Pc,
    ) -> Outcome<()> {
        let here = self.here();
        self.lane().pc = pc;
        self.lane().polling.forget();
        self.check_copy(shared, global, bytes, pc)?;
        self.note_loan(here, global.wrapping_sub(self.heap.base()), bytes as usize);
        let groups = &mut self.lane().groups;
        let group = groups.open.get_or_insert_default();
        group.reads += 1;
        group.writes += 1;
        let group = groups.next();
        groups.used = group + 1;
        self.checked(|checker| checker.bulk_store(here, (global, shared), bytes, group, pc))?;
        let signal = Signal::Group(group);
        let (to, from) = (global, shared);
        self.issue(BulkCopy { to, from, bytes, lane: here, signal, read: None, late: false });
        Ok(())
    }

    /// `cp.async.bulk.commit_group`: an empty group counts as well.
    pub(crate) fn bulk_commit(&mut self, pc: Pc) {
        let lane = self.lane();
        lane.pc = pc;
        let group = lane.groups.open.take().unwrap_or_default();
        lane.groups.pending.push_back(group);
    }

    /// `cp.async.bulk.wait_group`: all but the last `open` groups.
    pub(crate) fn bulk_wait(&mut self, open: u32, read_only: bool, pc: Pc) -> Flow {
        let lane = self.lane();
        lane.pc = pc;
        if lane.groups.finished(open, read_only) {
            return Flow::Value(0);
        }
        lane.state = State::Bulk { open, read_only };
        Flow::Blocked
    }

    /// The wait is over: notes which groups it covered.
    pub(crate) fn bulk_waited(&mut self, open: u32, read_only: bool) {
        let here = self.here();
        let groups = &mut self.lanes[here].groups;
        let covered = groups.next().saturating_sub(u64::from(open));
        groups.waited = groups.waited.max(covered);
        groups.trim();
        if let Some(checker) = &mut self.checker {
            checker.bulk_waited(here, covered, read_only);
        }
    }
}
