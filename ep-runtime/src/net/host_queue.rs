//! The CPU's side of a queue: implements `ep::NetQueue` for one thread, for programs that measure a network
//! and for those that move data without a kernel.

use std::time::{Duration, Instant};

use super::layout::Layout;
use super::proxy::Rest;
use super::queue::{PUT, SIGNAL, STAMP_AT, turn};
use super::shared_memory::SharedMemory;

/// One queue with exclusive access for writing.
pub struct HostQueue<'a> {
    pub(super) memory: SharedMemory,
    pub(super) layout: &'a Layout,
    pub(super) queue: usize,
    pub(super) next: u32,
    /// What it has seen of the proxy's number, which it asks for again when there seems to be no room.
    pub(super) taken: u32,
    /// Longest wait for room or for a counter.
    pub(super) patience: Duration,
}

impl HostQueue<'_> {
    /// Puts `bytes` from the offset `from` here to `to` at `peer`. Returns false if there was no room for
    /// too long.
    pub fn put(&mut self, peer: usize, to: u64, from: u64, bytes: u32) -> bool {
        self.post([to, from, u64::from(PUT) << 32 | peer as u64], bytes)
    }

    /// Adds `count` to a counter at `peer` after all earlier puts to it have landed.
    pub fn signal(&mut self, peer: usize, counter: u32, count: u32) -> bool {
        self.post([u64::from(counter), 0, u64::from(SIGNAL) << 32 | peer as u64], count)
    }

    /// Waits until the sources of all puts may be written again.
    pub fn drain(&mut self) -> bool {
        let (at, next) = (self.layout.progress(self.queue) + 4, self.next);
        self.wait(|memory| reached(memory.acquire_half(at), next))
    }

    /// Waits until `source` has increased a counter here to `want`.
    pub fn wait_counter(&mut self, source: usize, counter: usize, want: u32) -> bool {
        let at = self.layout.counter(source, self.queue, counter);
        self.wait(|memory| reached(memory.acquire_half(at), want))
    }

    fn post(&mut self, words: [u64; 3], number: u32) -> bool {
        let (own, slots) = (self.next, self.layout.slots);
        let want = own.wrapping_add(1).wrapping_sub(slots as u32);
        if !reached(self.taken, want) {
            let taken = self.layout.progress(self.queue);
            if !self.wait(|memory| reached(memory.acquire_half(taken), want)) {
                return false;
            }
            self.taken = self.memory.acquire_half(taken);
        }
        let at = self.layout.descriptor(self.queue, own);
        for (index, word) in words.into_iter().enumerate() {
            self.memory.store(at + 8 * index as u64, word);
        }
        let stamp = u64::from(turn(own, slots)) << 32 | u64::from(number);
        self.memory.release_wide(at + STAMP_AT, stamp);
        self.next = own.wrapping_add(1);
        true
    }

    fn wait(&self, is_over: impl Fn(&SharedMemory) -> bool) -> bool {
        if is_over(&self.memory) {
            return true;
        }
        let (begun, mut rest) = (Instant::now(), Rest::default());
        while !is_over(&self.memory) {
            if begun.elapsed() > self.patience {
                return false;
            }
            rest.pause();
        }
        true
    }
}

/// Whether a counter that wraps has come to `want`.
fn reached(value: u32, want: u32) -> bool {
    value.wrapping_sub(want) as i32 >= 0
}
