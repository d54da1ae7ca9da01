//! Strong loads, stores, atomics and fences.

use crate::abi::{Pc, Qualifiers, Scope};
use crate::failure::FailureKind;
use crate::heap::Reach;
use crate::lane::Idx;
use crate::machine::{Fault, Machine, Outcome};

/// Reads `bytes` (1, 2, 4 or 8) at `at`.
///
/// # Safety
/// The address is valid for the read.
pub(crate) unsafe fn read(at: usize, bytes: u32) -> u64 {
    // SAFETY: the caller's obligation; volatile, because other fibers write behind the compiler.
    unsafe {
        match bytes {
            1 => u64::from((at as *const u8).read_volatile()),
            2 => u64::from((at as *const u16).read_volatile()),
            4 => u64::from((at as *const u32).read_volatile()),
            _ => (at as *const u64).read_volatile(),
        }
    }
}

/// Writes the low `bytes` of `value` at `at`.
///
/// # Safety
/// The address is valid for the write.
pub(crate) unsafe fn write(at: usize, value: u64, bytes: u32) {
    // SAFETY: the caller's obligation.
    unsafe {
        match bytes {
            1 => (at as *mut u8).write_volatile(value as u8),
            2 => (at as *mut u16).write_volatile(value as u16),
            4 => (at as *mut u32).write_volatile(value as u32),
            _ => (at as *mut u64).write_volatile(value),
        }
    }
}

/// `EMU_ATOMIC_CAS`.
const COMPARE_AND_SWAP: u32 = 7;

/// The new value of an atomic update.
fn update(op: u32, old: u64, operand: u64, expected: u64, bytes: u32) -> u64 {
    let mask = if bytes == 8 { u64::MAX } else { u64::from(u32::MAX) };
    let signed = |bits: u64| if bytes == 8 { bits as i64 } else { i64::from(bits as u32 as i32) };
    let new = match op {
        0 => old.wrapping_add(operand),
        1 if signed(old) < signed(operand) => operand,
        2 if signed(old) > signed(operand) => operand,
        1 | 2 => old,
        3 => old | operand,
        4 => old & operand,
        5 => old ^ operand,
        6 => operand,
        _ if old == expected & mask => operand,
        _ => old,
    };
    new & mask
}

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
            _ if self.heap.padded(offset, bytes).is_some() => Some("behind the part of a buffer"),
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
        self.checked(|checker| checker.strong_load(here, at, bytes, how, pc))?;
        // SAFETY: `before_load` found the address inside a region.
        Ok(unsafe { read(at, bytes) })
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
        self.checked(|checker| checker.strong_store(here, at, bytes, how, pc))?;
        // SAFETY: the address lies inside a region.
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
        Ok(!changes && self.park_if_polling(at, old))
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
        // SAFETY: `before_atomic` found the address inside a region.
        let old = unsafe { read(at, bytes) };
        let new = update(op, old, operand, expected, bytes);
        let writes = op != COMPARE_AND_SWAP || old == expected;
        self.checked(|checker| checker.atomic(here, (at, bytes), how, writes, pc))?;
        if new != old {
            self.lane().polling.forget();
            // SAFETY: as above.
            unsafe { write(at, new, bytes) };
            self.touch(at, bytes as usize);
        }
        Ok(old)
    }

    /// `fence.acq_rel` of a scope.
    pub(crate) fn fence(&mut self, scope: Scope) {
        let here = self.here();
        if let Some(checker) = &mut self.checker {
            checker.fence(here, scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::update;

    #[test]
    fn updates_keep_their_width_and_sign() {
        assert_eq!(update(0, 0xffff_ffff, 1, 0, 4), 0);
        assert_eq!(update(0, u64::MAX, 2, 0, 8), 1);
        assert_eq!(update(1, 0xffff_fffe, 1, 0, 4), 1, "max is signed");
        assert_eq!(update(2, 0xffff_fffe, 1, 0, 4), 0xffff_fffe, "min is signed");
        assert_eq!(update(7, 5, 9, 5, 8), 9);
        assert_eq!(update(7, 6, 9, 5, 8), 6);
    }
}
