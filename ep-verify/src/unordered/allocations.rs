//! Counts what a call allocates. What the backend allocates for itself does not count: a driver stands in
//! its place.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNTED: Cell<u64> = const { Cell::new(0) };
    static PAUSED: Cell<u32> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counters any more.
        let running = PAUSED.try_with(|paused| paused.get() == 0).unwrap_or(false);
        if running {
            let _ = COUNTED.try_with(|counted| counted.set(counted.get() + 1));
        }
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above; `at` came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What `body` gives, and how often it allocated on this thread.
pub(crate) fn allocations_of<T>(body: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNTED.get();
    let result = body();
    (result, COUNTED.get() - before)
}

/// While it lives, allocations of the thread do not count.
pub(super) struct Pause(());

impl Pause {
    pub(super) fn new() -> Pause {
        PAUSED.set(PAUSED.get() + 1);
        Pause(())
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        PAUSED.set(PAUSED.get() - 1);
    }
}
