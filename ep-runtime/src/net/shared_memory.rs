//! The words of one rank's memory that a proxy, a network and kernels use at the same time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::endpoint::Block;

/// Host memory that kernels and peers change meanwhile. Whoever made it keeps it alive and says which offsets
/// of the network it has; places outside of it are a mistake of the caller and end the thread.
#[derive(Clone, Copy)]
pub(super) struct SharedMemory {
    start: NonNull<u8>,
    first: u64,
    bytes: u64,
}

// SAFETY: it is memory that many write; all accesses here are atomic.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// # Safety
    ///
    /// The `bytes` from `start` on are those from the offset `first` on, both multiples of 8. They are alive
    /// as long as any copy is used, and whoever else accesses the words that are accessed here does it in
    /// whole words.
    pub(super) unsafe fn new(start: NonNull<u8>, first: u64, bytes: u64) -> SharedMemory {
        SharedMemory { start, first, bytes }
    }

    /// Its first offset.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// What lies before the offset `end`, for a network.
    pub(super) fn block(&self, end: u64) -> Block<'static> {
        let bytes = end - self.first;
        assert!(bytes <= self.bytes);
        Block { first: self.first, start: self.start.as_ptr() as u64, bytes, gpu: None }
    }

    fn place(&self, at: u64, bytes: u64) -> *mut u8 {
        let inside = at.checked_sub(self.first).filter(|inside| {
            at.is_multiple_of(bytes) && *inside < self.bytes && bytes <= self.bytes - inside
        });
        let inside = inside.expect("the words of a network have their places");
        // SAFETY: the place lies inside, as was just checked.
        unsafe { self.start.as_ptr().add(inside as usize) }
    }

    fn narrow(&self, at: u64) -> &AtomicU32 {
        // SAFETY: the place is aligned and inside, and the memory outlives `self` (`new`).
        unsafe { AtomicU32::from_ptr(self.place(at, 4).cast()) }
    }

    fn wide(&self, at: u64) -> &AtomicU64 {
        // SAFETY: as in `narrow`.
        unsafe { AtomicU64::from_ptr(self.place(at, 8).cast()) }
    }

    /// A word, and what its writer did before.
    pub(super) fn acquire(&self, at: u64) -> u64 {
        self.wide(at).load(Ordering::Acquire)
    }

    /// A word of 32 bits, and what its writer did before.
    pub(super) fn acquire_half(&self, at: u64) -> u32 {
        self.narrow(at).load(Ordering::Acquire)
    }

    /// A word; orders nothing.
    pub(super) fn load(&self, at: u64) -> u64 {
        self.wide(at).load(Ordering::Relaxed)
    }

    /// Writes a word; orders nothing.
    pub(super) fn store(&self, at: u64, value: u64) {
        self.wide(at).store(value, Ordering::Relaxed);
    }

    /// Writes a word that says what was done before.
    pub(super) fn release(&self, at: u64, value: u32) {
        self.narrow(at).store(value, Ordering::Release);
    }

    /// Writes a word of 64 bits that says what was done before.
    pub(super) fn release_wide(&self, at: u64, value: u64) {
        self.wide(at).store(value, Ordering::Release);
    }

    /// Adds to a word that only the caller writes, and that says what was done before.
    pub(super) fn release_sum(&self, at: u64, count: u32) {
        let word = self.narrow(at);
        word.store(word.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }
}
