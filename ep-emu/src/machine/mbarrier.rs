//! mbarriers: a record each beside the eight bytes in shared memory, which hold only a stamp.
//!
//! The stamp changes with every change of the record, so that an mbarrier that a plain store has
//! overwritten, or that was never initialised, is noticed at its next use.

use super::{Fault, Machine, Outcome};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::memory::{read, write};
use crate::state::Idx;
use crate::state::mbarrier::{Mbarrier, MbarrierRef};

const MAGIC: u64 = 0xeb << 56;

impl Machine<'_> {
    fn mbarrier_fault(&self, at: usize, what: &str, pc: Pc) -> Box<Fault> {
        let place = self.place(at.wrapping_sub(self.heap.base()));
        let who = self.current.map_or_else(String::new, |lane| self.who(lane) + ": ");
        let message = format!("{who}mbarrier {place} {what},");
        Box::new(Fault::new(FailureKind::Mbarrier, message, pc))
    }

    /// Checks that `at` is a whole word of the block's own shared memory.
    fn check_mbarrier_place(&self, slot: Idx, at: usize, pc: Pc) -> Outcome<()> {
        let block = &self.blocks[slot];
        let offset = at.wrapping_sub(self.heap.base()).wrapping_sub(block.shared);
        if offset + 8 > block.view.shared_bytes as usize || !at.is_multiple_of(8) {
            return Err(self.mbarrier_fault(at, "is not a word of the block's shared memory", pc));
        }
        Ok(())
    }

    /// `mbarrier.init`.
    pub(crate) fn mbarrier_init(&mut self, at: usize, arrivals: u32, pc: Pc) -> Outcome<()> {
        let here = self.here();
        let slot = self.block_of(here);
        self.check_mbarrier_place(slot, at, pc)?;
        if arrivals == 0 || arrivals >= 1 << 20 {
            return Err(self.mbarrier_fault(at, "is initialised with an impossible count", pc));
        }
        // PTX leaves that undefined; what has been written over is an mbarrier no more.
        let is_valid = self.mbarrier(slot, at, pc).is_ok();
        let id = self.next_mbarrier;
        self.next_mbarrier += 1;
        let list = &mut self.blocks[slot].mbarriers;
        let index = match list.iter().position(|known| known.at == at) {
            Some(index) if list[index].in_flight > 0 => {
                return Err(self.mbarrier_fault(at, "is initialised again under a load", pc));
            }
            Some(_) if is_valid => {
                return Err(self.mbarrier_fault(at, "is initialised again", pc));
            }
            Some(index) => index,
            None => list.len(),
        };
        let fresh = Mbarrier {
            at,
            stamp: 0,
            expected: arrivals,
            pending: arrivals,
            bytes: 0,
            phase: 0,
            fenced: false,
            owner: here,
            in_flight: 0,
            loads_until: 0,
            seen: 0,
            loaded_at: 0,
            id,
        };
        if index == list.len() {
            list.push(fresh);
        } else {
            list[index] = fresh;
        }
        if let Some(checker) = &mut self.checker {
            checker.mbarrier_init(here, id, pc);
        }
        self.stamp((slot, index));
        Ok(())
    }

    /// `fence.mbarrier_init`: covers the mbarriers that this lane initialised.
    pub(crate) fn fence_mbarriers(&mut self) {
        let here = self.here();
        let slot = self.block_of(here);
        for known in &mut self.blocks[slot].mbarriers {
            known.fenced |= known.owner == here;
        }
    }

    /// Writes a new stamp for a changed record.
    fn stamp(&mut self, (slot, index): MbarrierRef) {
        let record = &mut self.blocks[slot].mbarriers[index];
        record.stamp = record.stamp.wrapping_add(1);
        let word = MAGIC | (index as u64) << 32 | u64::from(record.stamp);
        // SAFETY: `mbarrier_init` found the word inside the block's shared memory.
        unsafe { write(record.at, word, 8) };
    }

    /// The record of the mbarrier at `at`.
    fn mbarrier(&self, slot: Idx, at: usize, pc: Pc) -> Outcome<usize> {
        self.check_mbarrier_place(slot, at, pc)?;
        // SAFETY: the word lies inside the block's shared memory.
        let word = unsafe { read(at, 8) };
        let index = (word >> 32 & 0xff_ffff) as usize;
        let list = &self.blocks[slot].mbarriers;
        if word & 0xff << 56 == MAGIC
            && let Some(record) = list.get(index)
            && record.at == at
            && u64::from(record.stamp) == word & 0xffff_ffff
        {
            return Ok(index);
        }
        let known = list.iter().any(|record| record.at == at);
        let what = if known { "was overwritten by a plain store" } else { "is not initialised" };
        Err(self.mbarrier_fault(at, what, pc))
    }

    /// `mbarrier.arrive`, with `expect_bytes` more bytes to come in this phase.
    pub(crate) fn mbarrier_arrive(&mut self, at: usize, expect_bytes: u32, pc: Pc) -> Outcome<()> {
        let here = self.here();
        let slot = self.block_of(here);
        self.lanes[here].pc = pc;
        self.lanes[here].polling.forget();
        let index = self.mbarrier(slot, at, pc)?;
        let record = &mut self.blocks[slot].mbarriers[index];
        if record.pending == 0 {
            return Err(self.mbarrier_fault(
                at,
                "gets more arrivals in a phase than it expects",
                pc,
            ));
        }
        record.pending -= 1;
        record.bytes += i64::from(expect_bytes);
        let id = record.id;
        self.checked(|checker| checker.mbarrier_arrive(here, id, pc))?;
        self.advance((slot, index));
        Ok(())
    }

    /// Completes the phase if nothing is missing.
    fn advance(&mut self, (slot, index): MbarrierRef) {
        let record = &mut self.blocks[slot].mbarriers[index];
        if record.pending == 0 && record.bytes == 0 {
            record.pending = record.expected;
            record.phase += 1;
            let (at, id) = (record.at, record.id);
            if let Some(checker) = &mut self.checker {
                checker.mbarrier_completes(id);
            }
            self.stamp((slot, index));
            self.touch(at, 8);
        } else {
            self.stamp((slot, index));
        }
    }

    /// Before a test: parks the lane if it polls. Returns whether it parked.
    pub(crate) fn before_test(&mut self, at: usize, parity: u32, pc: Pc) -> Outcome<bool> {
        let here = self.here();
        let slot = self.block_of(here);
        self.lanes[here].pc = pc;
        let index = self.mbarrier(slot, at, pc)?;
        if parity > 1 {
            return Err(self.mbarrier_fault(at, &format!("has no parity {parity}"), pc));
        }
        let phase = self.blocks[slot].mbarriers[index].phase;
        let complete = phase & 1 != u64::from(parity & 1);
        // The kernel names waits for others; this one is for its own copies.
        self.lanes[here].site = None;
        Ok(!complete && self.park_if_polling(at, phase))
    }

    /// `mbarrier.try_wait.parity`: whether the phase of this parity has completed.
    pub(crate) fn mbarrier_test(&mut self, at: usize, parity: u32, pc: Pc) -> Outcome<bool> {
        let here = self.here();
        let slot = self.block_of(here);
        self.stats.polls += 1;
        let index = self.mbarrier(slot, at, pc)?;
        let record = &mut self.blocks[slot].mbarriers[index];
        let complete = record.phase & 1 != u64::from(parity & 1);
        if complete {
            record.seen = record.phase;
            let id = record.id;
            self.lanes[here].polling.forget();
            self.checked(|checker| checker.mbarrier_seen(here, id, pc))?;
        }
        Ok(complete)
    }

    /// A bulk load that completes on `at` is issued; returns the mbarrier and its checker id.
    pub(crate) fn mbarrier_load_starts(
        &mut self,
        at: usize,
        pc: Pc,
    ) -> Outcome<(MbarrierRef, u32)> {
        let slot = self.block_of(self.here());
        let index = self.mbarrier(slot, at, pc)?;
        let record = &mut self.blocks[slot].mbarriers[index];
        if !record.fenced {
            let what = "was initialised without fence.mbarrier_init before this load";
            return Err(self.mbarrier_fault(at, what, pc));
        }
        record.in_flight += 1;
        (record.loads_until, record.loaded_at) = (record.phase + 1, pc);
        Ok(((slot, index), record.id))
    }

    /// `bytes` of a bulk load have arrived.
    pub(crate) fn mbarrier_load_ends(&mut self, at: MbarrierRef, bytes: u32) -> Outcome<()> {
        let (slot, index) = at;
        let place = self.blocks[slot].mbarriers[index].at;
        self.mbarrier(slot, place, 0)?;
        let record = &mut self.blocks[slot].mbarriers[index];
        record.bytes -= i64::from(bytes);
        record.in_flight -= 1;
        self.advance(at);
        Ok(())
    }

    /// M6: no bulk load of a leaving block is in flight or was never waited for.
    pub(crate) fn check_block_exit(&self, slot: Idx) -> Outcome<()> {
        let open = |record: &&Mbarrier| record.in_flight > 0 || record.loads_until > record.seen;
        let Some(record) = self.blocks[slot].mbarriers.iter().find(open) else { return Ok(()) };
        let block = &self.blocks[slot];
        let place = self.place(record.at.wrapping_sub(self.heap.base()));
        let message = format!(
            "rank {} block {} leaves the kernel with a bulk load on mbarrier {place} that no thread \
            waited for (M6), issued",
            block.rank, block.view.index[0]
        );
        Err(Box::new(Fault::new(FailureKind::Exit, message, record.loaded_at)))
    }

    /// What the mbarrier at `at` misses, in words, for reports.
    pub(crate) fn describe_mbarrier(&self, slot: Idx, at: usize) -> Option<String> {
        let record = self.blocks[slot].mbarriers.iter().find(|record| record.at == at)?;
        Some(format!(
            "phase {} of an mbarrier: {} arrivals and {} bytes missing",
            record.phase, record.pending, record.bytes
        ))
    }
}
