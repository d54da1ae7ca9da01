//! Fibers: a stack each, and a switch of about twenty instructions.
//!
//! A switch saves what the C calling convention says a call preserves, swaps the stack pointers
//! and returns into the other fiber. Nothing is ever unwound: a fiber of a failed run is dropped.

use std::io;

use crate::os::Pages;

/// Bytes of a fiber's stack; only the pages it touches are ever backed. Unoptimized and inlined, a role of two
/// hops takes more than 64 KiB, and a kernel of nine roles that share rings more than 160 KiB.
pub(crate) const STACK_BYTES: usize = 480 << 10;
/// Bytes with the address sanitizer, which pads every array.
pub(crate) const SANITIZED_STACK_BYTES: usize = 672 << 10;
/// The tops of neighbouring stacks lie this far apart within their pages, in so many steps: tops at
/// a power-of-two distance would compete for the same cache sets (measured: four times slower
/// switches), and a top in the upper half of its page keeps a shallow fiber within one page.
const COLOUR: (usize, usize) = (64, 32);
/// A stack pointer closer to the end than this is an overflow.
const RESERVE: usize = 6 << 10;

/// Whether this platform has a switch.
pub(crate) const SUPPORTED: bool =
    cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));

/// The stacks of all fibers.
pub(crate) struct Stacks {
    pages: Pages,
    count: usize,
    bytes: usize,
}

impl Stacks {
    /// `count` stacks of `bytes` each.
    pub(crate) fn new(count: usize, bytes: usize) -> io::Result<Self> {
        Pages::private(count.max(1) * bytes).map(|pages| Self { pages, count, bytes })
    }

    /// Whether these are at least `count` stacks of `bytes`.
    pub(crate) fn suffice(&self, count: usize, bytes: usize) -> bool {
        self.count >= count && self.bytes == bytes
    }

    /// The low end of stack `index`.
    pub(crate) fn low(&self, index: usize) -> usize {
        assert!(index < self.count, "stack {index} of {}", self.count);
        self.pages.start() as usize + index * self.bytes
    }

    /// Prepares stack `index` so that the first switch to the returned stack pointer calls
    /// `entry`, which must never return.
    pub(crate) fn start(&mut self, index: usize, entry: extern "C" fn() -> !) -> usize {
        let (step, steps) = COLOUR;
        let top = self.low(index) + self.bytes - index % steps * step;
        // SAFETY: the words written lie inside this stack, which no running fiber uses.
        unsafe { imp::prepare(top, entry as usize) }
    }

    /// The stack pointer below which a fiber of stack `index` has overflown.
    pub(crate) fn floor(&self, index: usize) -> usize {
        self.low(index) + RESERVE
    }
}

/// Saves the running fiber's stack pointer in `save` and continues the fiber of `to`.
///
/// # Safety
/// `to` was made by [`Stacks::start`] or saved by an earlier switch and not continued since;
/// `save` is valid for a write; no borrow that the other fiber could invalidate is alive.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut usize, to: usize) {
    // SAFETY: the caller's obligation.
    unsafe { imp::ep_emu_switch(save, to) }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod imp {
    // System V: rbx, rbp and r12-r15 survive a call. The stack holds, from low to high: r15, r14,
    // r13, r12, rbx, rbp, return address.
    core::arch::global_asm!(
        ".text",
        ".balign 16",
        ".hidden ep_emu_switch",
        ".globl ep_emu_switch",
        ".type ep_emu_switch, @function",
        "ep_emu_switch:",
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        ".size ep_emu_switch, . - ep_emu_switch",
    );

    unsafe extern "C" {
        pub(super) fn ep_emu_switch(save: *mut usize, to: usize);
    }

    /// Lays out a frame that the switch can pop.
    ///
    /// # Safety
    /// The words below `top` are free, and `top` is a multiple of 16.
    pub(super) unsafe fn prepare(top: usize, entry: usize) -> usize {
        // A called function finds rsp at 8 modulo 16, below a return address (null ends a trace).
        let frame = [0, 0, 0, 0, 0, 0, entry, 0, 0];
        let sp = top - size_of_val(&frame) - 8;
        // SAFETY: the caller's obligation.
        unsafe { (sp as *mut [usize; 9]).write(frame) };
        sp
    }
}

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod imp {
    // AAPCS64: x19-x30 and d8-d15 survive a call.
    core::arch::global_asm!(
        ".text",
        ".balign 16",
        ".hidden ep_emu_switch",
        ".globl ep_emu_switch",
        ".type ep_emu_switch, @function",
        "ep_emu_switch:",
        "sub sp, sp, #160",
        "stp x19, x20, [sp]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "ret",
        ".size ep_emu_switch, . - ep_emu_switch",
    );

    unsafe extern "C" {
        pub(super) fn ep_emu_switch(save: *mut usize, to: usize);
    }

    /// Lays out a frame that the switch can load: x30 is the twelfth word.
    ///
    /// # Safety
    /// The words below `top` are free, and `top` is a multiple of 16.
    pub(super) unsafe fn prepare(top: usize, entry: usize) -> usize {
        let mut frame = [0usize; 20];
        frame[11] = entry;
        let sp = top - size_of_val(&frame);
        // SAFETY: the caller's obligation.
        unsafe { (sp as *mut [usize; 20]).write(frame) };
        sp
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod imp {
    /// There is no switch on this platform; `SUPPORTED` keeps runs from starting.
    ///
    /// # Safety
    /// None.
    pub(super) unsafe fn ep_emu_switch(_save: *mut usize, _to: usize) {
        unreachable!("runs are refused where fibers are unsupported");
    }

    /// See above.
    ///
    /// # Safety
    /// None.
    pub(super) unsafe fn prepare(top: usize, _entry: usize) -> usize {
        top
    }
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static MAIN: Cell<usize> = const { Cell::new(0) };
        static OTHER: Cell<usize> = const { Cell::new(0) };
        static TURNS: Cell<u32> = const { Cell::new(0) };
    }

    extern "C" fn counts_turns() -> ! {
        loop {
            TURNS.set(TURNS.get() + 1);
            // SAFETY: the main fiber waits at its own switch.
            unsafe { switch(OTHER.with(Cell::as_ptr), MAIN.get()) };
        }
    }

    #[test]
    fn a_fiber_keeps_its_place() {
        let mut stacks = Stacks::new(2, STACK_BYTES).expect("two stacks");
        OTHER.set(stacks.start(1, counts_turns));
        for turn in 1..=1000 {
            // SAFETY: the other fiber is fresh or waits at its own switch.
            unsafe { switch(MAIN.with(Cell::as_ptr), OTHER.get()) };
            assert_eq!(TURNS.get(), turn);
        }
        assert!(OTHER.get() > stacks.floor(1));
    }
}
