//! The functions behind the table: what a kernel calls, in the order of `abi::Table`.
//!
//! Each borrows the machine for its operation, then switches fibers if the operation says so.

use std::ffi::{CStr, c_char};

use crate::abi::{PROXY_GLOBAL, PROXY_MBARRIER, PROXY_SHARED, Pc, Qualifiers, Scope, Table};
use crate::failure::{FailureKind, WaitSite};
use crate::machine::{Fault, Outcome};
use crate::run::{abandon, preempt, reschedule, settle, with};

/// The table that every kernel library gets.
pub(crate) static TABLE: Table = Table {
    warp,
    barrier,
    load,
    store,
    atomic,
    fence,
    fence_proxy,
    read_only,
    mbarrier_init,
    mbarrier_arrive,
    mbarrier_test,
    bulk_load,
    bulk_store,
    bulk_commit,
    bulk_wait,
    shared,
    last_kernel,
    next_kernel,
    clock,
    note_wait,
    note_met,
    trap,
    plain,
    sanitizer,
};

/// First function of every lane's fiber.
pub(crate) extern "C" fn lane_main() -> ! {
    let (run, args) = with(|machine| {
        let block = &machine.blocks[machine.block_of(machine.here())];
        (block.run.expect("a block that runs has a kernel"), block.args)
    });
    // SAFETY: `args` points at as many bytes as the launch checked that the kernel wants.
    unsafe { run(args) };
    check(with(|machine| machine.lane_exits()));
    reschedule(true);
    unreachable!("a lane that has left is never continued");
}

/// Unwraps an operation's result or ends the lane.
#[inline(always)]
fn check<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Ok(value) => value,
        Err(fault) => abandon(fault),
    }
}

extern "C" fn warp(op: u32, mask: u32, value: u64, argument: i32, width: i32, pc: Pc) -> u64 {
    let result =
        settle(with(|machine| machine.warp_function(op, mask, value, argument, width, pc)));
    preempt();
    result
}

extern "C" fn barrier(id: i32, threads: i32, waits: i32, pc: Pc) {
    settle(with(|machine| machine.barrier(id, threads, waits != 0, pc)));
    preempt();
}

extern "C" fn load(at: usize, bytes: u32, how: u32, pc: Pc) -> u64 {
    preempt();
    if check(with(|machine| machine.before_load(at, bytes, pc))) {
        reschedule(true);
    }
    check(with(|machine| machine.load(at, bytes, Qualifiers(how), pc)))
}

extern "C" fn store(at: usize, value: u64, bytes: u32, how: u32, pc: Pc) {
    preempt();
    check(with(|machine| machine.store(at, value, bytes, Qualifiers(how), pc)));
    preempt();
}

extern "C" fn atomic(
    op: u32,
    at: usize,
    value: u64,
    expected: u64,
    bytes: u32,
    how: u32,
    pc: Pc,
) -> u64 {
    preempt();
    let operands = (value, expected);
    if check(with(|machine| machine.before_atomic(op, at, operands, bytes, pc))) {
        reschedule(true);
    }
    let old = check(with(|machine| machine.atomic(op, at, operands, bytes, Qualifiers(how), pc)));
    preempt();
    old
}

extern "C" fn fence(scope: u32, _pc: Pc) {
    with(|machine| machine.fence(Scope::of(scope)));
    preempt();
}

extern "C" fn fence_proxy(proxies: u32, _pc: Pc) {
    with(|machine| {
        if proxies & PROXY_MBARRIER != 0 {
            machine.fence_mbarriers();
        }
        let here = machine.here();
        if let Some(checker) = &mut machine.checker {
            checker.fence_proxy(here, proxies & PROXY_GLOBAL != 0, proxies & PROXY_SHARED != 0);
        }
    });
    preempt();
}

extern "C" fn read_only(at: usize, bytes: u32, pc: Pc) {
    check(with(|machine| {
        let here = machine.here();
        machine.checked(|checker| checker.read_only(here, at, bytes as usize, pc))
    }));
}

extern "C" fn mbarrier_init(at: usize, arrivals: u32, pc: Pc) {
    check(with(|machine| machine.mbarrier_init(at, arrivals, pc)));
}

extern "C" fn mbarrier_arrive(at: usize, expect_bytes: u32, pc: Pc) {
    preempt();
    check(with(|machine| machine.mbarrier_arrive(at, expect_bytes, pc)));
}

extern "C" fn mbarrier_test(at: usize, parity: u32, pc: Pc) -> i32 {
    preempt();
    if check(with(|machine| machine.before_test(at, parity, pc))) {
        reschedule(true);
    }
    i32::from(check(with(|machine| machine.mbarrier_test(at, parity, pc))))
}

extern "C" fn bulk_load(to: usize, from: usize, bytes: u32, barrier: usize, pc: Pc) {
    check(with(|machine| machine.bulk_load(to, from, bytes, barrier, pc)));
    preempt();
}

extern "C" fn bulk_store(to: usize, from: usize, bytes: u32, pc: Pc) {
    check(with(|machine| machine.bulk_store(to, from, bytes, pc)));
    preempt();
}

extern "C" fn bulk_commit(pc: Pc) {
    with(|machine| machine.bulk_commit(pc));
}

extern "C" fn bulk_wait(open: u32, read_only: i32, pc: Pc) {
    settle(with(|machine| Ok(machine.bulk_wait(open, read_only != 0, pc))));
    with(|machine| machine.bulk_waited(open, read_only != 0));
}

extern "C" fn shared(bytes: u32, pc: Pc) -> usize {
    check(with(|machine| {
        let here = machine.here();
        let block = &machine.blocks[machine.block_of(here)];
        let given = block.view.shared_bytes;
        if bytes > given {
            let who = machine.who(here);
            let message =
                format!("{who}: the kernel needs {bytes} bytes of shared memory, not {given},");
            return Err(Box::new(Fault::new(FailureKind::Launch, message, pc)));
        }
        Ok(machine.heap.base() + block.shared)
    }))
}

extern "C" fn clock() -> u64 {
    with(|machine| {
        machine.clock_ns += 1;
        machine.clock_ns
    })
}

#[rustfmt::skip]
extern "C" fn last_kernel() {
    with(|machine| machine.after_last_kernel());
}

extern "C" fn next_kernel() {
    check(with(|machine| machine.bring_next_kernel()));
}

extern "C" fn note_wait(
    pipeline: u32,
    role: u32,
    channel: u32,
    kind: u32,
    stripe: i32,
    peer: i32,
    want: u32,
    epoch: u32,
) {
    let site = WaitSite { pipeline, role, channel, kind, stripe, peer, want, epoch };
    check(with(|machine| machine.begin_wait(site)));
}

extern "C" fn note_met() {
    with(|machine| machine.met());
}

extern "C" fn trap(message: *const c_char, pc: Pc) {
    let fault = with(|machine| {
        // SAFETY: the shim passes a string constant of the kernel library.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        let message = format!("{}: {message}", machine.who(machine.here()));
        Box::new(Fault::new(FailureKind::Trap, message, pc))
    });
    abandon(fault);
}

extern "C" fn sanitizer(what: *const c_char, at: usize, bytes: u64, writes: i32, pc: Pc) {
    let fault = with(|machine| {
        // SAFETY: the sanitizer describes its report in a constant string.
        let what = unsafe { CStr::from_ptr(what) }.to_string_lossy();
        let word = if writes != 0 { "write" } else { "read" };
        let who = machine.current.map_or_else(String::new, |lane| machine.who(lane));
        let place = machine.place(at.wrapping_sub(machine.heap.base()));
        let message = format!("{who}: {what}, a {word} of {bytes} bytes: {place},");
        Box::new(Fault::new(FailureKind::OutOfBounds, message, pc))
    });
    abandon(fault);
}

extern "C" fn plain(at: usize, bytes: u64, writes: i32, pc: Pc) {
    let outcome = with(|machine| {
        let here = machine.here();
        machine.plain_access(here, at, bytes as usize, writes != 0, pc)
    });
    check(outcome);
}
