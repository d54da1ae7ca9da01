//! Where everything lies in the memory of one rank whose card is a real one.
//!
//! ```text
//! rows, which peers write into: in device memory, or in host memory that kernels reach
//!     data         a region of its own, which the bus may reorder
//!     counters     [source, queue, counter] u32
//!     before       [peer, queue] 8 bytes: what a counter of a peer was before an add
//! queues, in host memory that kernels reach: for each peer and queue
//!     entries      [slot] 64 bytes
//!     completions  [slot] 64 bytes, of which the card writes the first one alone
//!     records      a page: that of the completions, and that of the entries
//! ```

use super::super::layout::Layout;
use super::super::mlx5::BLOCK_BYTES;
use super::super::rows::UNIT;

/// What a card maps at once, as a power of two.
pub(super) const LOG_PAGE: u64 = 12;
pub(super) const PAGE: u64 = 1 << LOG_PAGE;

/// Where the record of the completions lies in its page, and that of the entries: those to receive, and
/// behind it those to send.
const RECORDS_AT: u64 = 64;
const SENT_AT: u64 = 4;

/// The parts of one queue pair, from the begin of the queues on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairPlaces {
    pub(super) entries: u64,
    pub(super) completions: u64,
    pub(super) completion_record: u64,
    pub(super) records: u64,
}

impl PairPlaces {
    /// The half of the record that counts what is sent.
    pub(super) fn record(&self) -> u64 {
        self.records + SENT_AT
    }
}

/// The numbers that decide over it.
#[derive(Debug, Clone, Copy)]
pub(super) struct CardPlaces(pub(super) Layout);

impl CardPlaces {
    fn flows(&self) -> u64 {
        (self.0.ranks * self.0.queues) as u64
    }

    /// What `source` has added to the first counter of a queue.
    pub(super) fn counters(&self, source: usize, queue: usize) -> u64 {
        let first = self.0.data_bytes.next_multiple_of(UNIT);
        first + self.0.flow(source, queue) as u64 * self.0.counters as u64 * 4
    }

    pub(super) fn before(&self, peer: usize, queue: usize) -> u64 {
        let first = self.counters(self.0.ranks, 0).next_multiple_of(8);
        first + self.0.flow(peer, queue) as u64 * 8
    }

    /// All that peers write into, in whole units.
    pub(super) fn row_bytes(&self) -> u64 {
        self.before(self.0.ranks, 0).next_multiple_of(UNIT)
    }

    fn queue_bytes(&self) -> u64 {
        (self.0.slots as u64 * BLOCK_BYTES as u64).next_multiple_of(PAGE)
    }

    pub(super) fn pair(&self, peer: usize, queue: usize) -> PairPlaces {
        let each = 2 * self.queue_bytes() + PAGE;
        let entries = self.0.flow(peer, queue) as u64 * each;
        let completions = entries + self.queue_bytes();
        let completion_record = completions + self.queue_bytes();
        PairPlaces {
            entries,
            completions,
            completion_record,
            records: completion_record + RECORDS_AT,
        }
    }

    /// All queues, in whole pages.
    pub(super) fn queues_bytes(&self) -> u64 {
        self.flows() * (2 * self.queue_bytes() + PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_one_another() {
        let numbers =
            Layout { ranks: 3, data_bytes: 1000, queues: 2, slots: 32, counters: 5, ports: 1 };
        let places = CardPlaces(numbers);
        assert_eq!((places.counters(0, 0), places.counters(2, 1)), (UNIT, UNIT + 5 * 20));
        assert_eq!((places.before(0, 0), places.before(2, 1)), (UNIT + 120, UNIT + 160));
        assert_eq!(places.row_bytes(), 2 * UNIT);
        let first =
            PairPlaces { entries: 0, completions: 4096, completion_record: 8192, records: 8256 };
        assert_eq!((places.pair(0, 0), first.record()), (first, 8260));
        assert_eq!(places.pair(1, 1).entries, 3 * 12288);
        assert_eq!(places.queues_bytes(), 6 * 12288);
        let large = CardPlaces(Layout { slots: 1024, ..numbers });
        assert_eq!(large.pair(0, 0).completions, 65536);
    }
}
