//! Bytes of the arena, and the values of atomic updates.
//!
//! Words of 4 and 8 bytes are those that lanes share with what is outside of the emulator, which is other
//! threads: they are accessed as such.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reads `bytes` (1, 2, 4 or 8) at `at`.
///
/// # Safety
/// The address is valid for the read, and a multiple of `bytes`.
pub(crate) unsafe fn read(at: usize, bytes: u32) -> u64 {
    // SAFETY: the caller's obligation; volatile, because other fibers write behind the compiler.
    unsafe {
        match bytes {
            1 => u64::from((at as *const u8).read_volatile()),
            2 => u64::from((at as *const u16).read_volatile()),
            4 => u64::from(AtomicU32::from_ptr(at as *mut u32).load(Ordering::Acquire)),
            _ => AtomicU64::from_ptr(at as *mut u64).load(Ordering::Acquire),
        }
    }
}

/// Writes the low `bytes` of `value` at `at`.
///
/// # Safety
/// The address is valid for the write, and a multiple of `bytes`.
pub(crate) unsafe fn write(at: usize, value: u64, bytes: u32) {
    // SAFETY: the caller's obligation.
    unsafe {
        match bytes {
            1 => (at as *mut u8).write_volatile(value as u8),
            2 => (at as *mut u16).write_volatile(value as u16),
            4 => AtomicU32::from_ptr(at as *mut u32).store(value as u32, Ordering::Release),
            _ => AtomicU64::from_ptr(at as *mut u64).store(value, Ordering::Release),
        }
    }
}

/// Writes the low `bytes` (4 or 8) of `new` at `at` if `old` is still there; returns whether it was.
///
/// # Safety
/// The address is valid for the write, and a multiple of `bytes`.
pub(crate) unsafe fn swap(at: usize, old: u64, new: u64, bytes: u32) -> bool {
    let (there, not_there) = (Ordering::AcqRel, Ordering::Relaxed);
    // SAFETY: the caller's obligation.
    unsafe {
        match bytes {
            4 => AtomicU32::from_ptr(at as *mut u32)
                .compare_exchange(old as u32, new as u32, there, not_there)
                .is_ok(),
            _ => AtomicU64::from_ptr(at as *mut u64)
                .compare_exchange(old, new, there, not_there)
                .is_ok(),
        }
    }
}

/// `EMU_ATOMIC_ADD`.
pub(crate) const ADD: u32 = 0;
/// `EMU_ATOMIC_CAS`.
pub(crate) const COMPARE_AND_SWAP: u32 = 7;

/// The new value of an atomic update.
pub(crate) fn update(op: u32, old: u64, operand: u64, expected: u64, bytes: u32) -> u64 {
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
