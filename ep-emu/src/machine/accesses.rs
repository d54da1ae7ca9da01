//! Strong loads, stores, atomics and fences.

use super::{Fault, Machine, Outcome};
use crate::abi::{Pc, Qualifiers, Scope};
use crate::failure::FailureKind;
use crate::heap::Reach;
use crate::memory::{ADD, COMPARE_AND_SWAP, read, swap, update, write};
use crate::state::Idx;

impl Machine<'_> {
    /// Why a lane may not touch these bytes of the arena, if so.
    pub(crate) fn out_of_reach(
        &self,
        lane: Idx,
        offset: usize,
        bytes: usize,
    ) -> Option<&'static str> {
        let block = &self.blocks[self.block_of(lane)];
        let in_shared = offset.wrapping_sub(block.shared);
        if in_shared.saturating_add(bytes) <= block.view.shared_bytes as usize {
            return None;
        }
        if in_shared < block.shared_capacity {
            return Some("past the end of the block's shared memory");
        }
        let Some(region) = self.heap.region_of(offset, bytes) else {
            return Some("outside every buffer");
        };
        match region.reach {
            Reach::Rank if region.rank != block.rank => Some("in another rank's local memory"),
            Reach::Block => Some("in another block's shared memory"),
            _ if self.heap.padded(offset, bytes).is_some() => {
                Some("after the end of the part of a buffer")
            }
            _ => None,
        }
    }

    /// A strong access touches aligned memory that the lane may reach.
    pub(crate) fn check_access(&self, at: usize, bytes: u32, what: &str, pc: Pc) -> Outcome<()> {
        let (here, offset) = (self.here(), at.wrapping_sub(self.heap.base()));
        let why = match self.out_of_reach(here, offset, bytes as usize) {
            None if at.is_multiple_of(bytes as usize) => return Ok(()),
            None => "at a misaligned address",
            Some(why) => why,
        };
        let (who, place) = (self.who(here), self.place(offset));
        let message = format!("{who}: a strong {what} of {bytes} bytes {why}: {place},");
        Err(Box::new(Fault::new(FailureKind::OutOfBounds, message, pc)))
    }

    /// Before a load: checks it, and parks the lane if it polls. Returns whether it parked.
    pub(crate) fn before_load(&mut self, at: usize, bytes: u32, pc: Pc) -> Outcome<bool> {
        self.lane().pc = pc;
        self.check_access(at, bytes, "load", pc)?;
        // SAFETY: `check_access` found the address inside a region.
        let value = unsafe { read(at, bytes) };
        Ok(self.park_if_polling(at, value))
    }

    /// A strong load.
    pub(crate) fn load(&mut self, at: usize, bytes: u32, how: Qualifiers, pc: Pc) -> Outcome<u64> {
        self.stats.polls += 1;
        let here = self.here();
        // SAFETY: `before_load` found the address inside a region.
        let value = unsafe { read(at, bytes) };
        let mut older = None;
        self.checked(|checker| {
            older = checker.strong_load(here, (at, bytes), value, how, pc);
        })?;
        if older.is_some() {
            self.forget_looks(here);
        }
        Ok(older.unwrap_or(value))
    }

    /// A strong store.
    pub(crate) fn store(
        &mut self,
        at: usize,
        value: u64,
        bytes: u32,
        how: Qualifiers,
        pc: Pc,
    ) -> Outcome<()> {
        self.lane().pc = pc;
        self.check_access(at, bytes, "store", pc)?;
        self.lane().polling.forget();
        let here = self.here();
        // SAFETY: the address lies inside a region.
        let values = (unsafe { read(at, bytes) }, value);
        self.checked(|checker| checker.strong_store(here, (at, bytes), values, how, pc))?;
        // SAFETY: as above.
        unsafe { write(at, value, bytes) };
        self.touch(at, bytes as usize);
        Ok(())
    }

    /// Before an atomic: checks it, and parks the lane if the update changes nothing again and
    /// again. Returns whether it parked.
    pub(crate) fn before_atomic(
        &mut self,
        op: u32,
        at: usize,
        (operand, expected): (u64, u64),
        bytes: u32,
        pc: Pc,
    ) -> Outcome<bool> {
        self.lane().pc = pc;
        self.check_access(at, bytes, "atomic", pc)?;
        // SAFETY: the address lies inside a region.
        let old = unsafe { read(at, bytes) };
        let changes = update(op, old, operand, expected, bytes) != old;
        // An add of nothing waits for nobody.
        Ok(op != ADD && !changes && self.park_if_polling(at, old))
    }

    /// An atomic update; returns the old value.
    pub(crate) fn atomic(
        &mut self,
        op: u32,
        at: usize,
        (operand, expected): (u64, u64),
        bytes: u32,
        how: Qualifiers,
        pc: Pc,
    ) -> Outcome<u64> {
        self.stats.polls += 1;
        let here = self.here();
        loop {
            // SAFETY: `before_atomic` found the address inside a region.
            let old = unsafe { read(at, bytes) };
            let new = update(op, old, operand, expected, bytes);
            let values = (op != COMPARE_AND_SWAP || old == expected).then_some((old, new));
            self.checked(|checker| checker.atomic(here, (at, bytes), values, how, pc))?;
            if new == old {
                return Ok(old);
            }
            // Another process may have been faster, if it shares the window.
            // SAFETY: as above.
            if unsafe { swap(at, old, new, bytes) } {
                self.lane().polling.forget();
                self.touch(at, bytes as usize);
                return Ok(old);
            }
        }
    }

    /// `fence.acq_rel` of a scope.
    pub(crate) fn fence(&mut self, scope: Scope) {
        let here = self.here();
        if let Some(checker) = &mut self.checker {
            checker.fence(here, scope);
        }
    }
}
