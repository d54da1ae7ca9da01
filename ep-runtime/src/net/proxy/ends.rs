//! What a proxy knows of its queues and of its peers.

use std::collections::VecDeque;
use std::time::Instant;

use crate::net::queue::Request;

/// One queue of this rank.
pub(super) struct QueueEnd {
    /// Descriptors taken: the number of the next one.
    pub(super) taken: u32,
    /// Those taken together whose writes have not all left, and the number of the first.
    pub(super) batches: VecDeque<Batch>,
    pub(super) first_batch: u64,
    /// What waits for the network, by peer, with its batch.
    pub(super) waiting: Vec<VecDeque<(Request, u64)>>,
    pub(super) waiting_count: usize,
}

/// Descriptors that were taken together.
pub(super) struct Batch {
    /// The number behind the last one.
    pub(super) end: u32,
    /// Writes that have not left.
    pub(super) open: usize,
}

impl QueueEnd {
    /// One write of a batch has left, or never will.
    pub(super) fn close(&mut self, batch: u64) {
        if let Some(batch) = self.batches.get_mut((batch - self.first_batch) as usize) {
            batch.open -= 1;
        }
    }

    /// The number of the first descriptor that is not done with, if that is news.
    pub(super) fn done(&mut self) -> Option<u32> {
        let mut news = None;
        while let Some(Batch { end, open: 0 }) = self.batches.front() {
            news = Some(*end);
            self.batches.pop_front();
            self.first_batch += 1;
        }
        news
    }
}

/// What is known of one peer.
pub(super) struct PeerEnd {
    pub(super) heard: Instant,
    pub(super) said: Instant,
    /// Since when the network takes nothing for it.
    pub(super) refused: Option<Instant>,
    pub(super) left: bool,
    /// It knows that this rank leaves.
    pub(super) told: bool,
}

/// A write that may be under way.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub(super) peer: usize,
    /// The queue and batch that it belongs to.
    pub(super) batch: Option<(usize, u64)>,
}
