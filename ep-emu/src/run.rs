//! The way from a kernel's call into the machine.
//!
//! One rule keeps this sound: a call from a kernel borrows the machine only inside [`with`], and
//! fibers are switched only outside. Operations therefore return what should happen next as a
//! [`Flow`] instead of switching themselves.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fiber;
use crate::machine::{Fault, Flow, Machine, Outcome};

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
