//! The memory layout of one rank, with the same offsets on every rank of a network. Rows may be in GPU
//! memory; everything after them is in one block of host memory.
//!
//! ```text
//! data         rows: peers write here, and kernels read and write
//! inbox        [source, queue, place] 8 bytes: what a signal adds to which counter
//! pulse        [source] 8 bytes: what signs of life are written over
//!              up to here peers write into it
//! outbox       [write] 8 bytes: what signals are sent from
//! counters     [source, queue, counter] u32: what has landed, for kernels
//! progress     [queue] 64 bytes: how far the proxy is with the queue, for kernels
//! descriptors  [queue, slot] 32 bytes: what kernels ask for
//! ```

use super::queue::DESCRIPTOR_BYTES;
use crate::net_error::NetError;

/// Writes of one source and queue that may be on their way: the reach of a `Landing`.
pub(super) const WINDOW: usize = 1024;

/// The most ranks, queues and counters that an immediate and a descriptor can name.
pub(super) const MOST_RANKS: usize = 1 << 11;
pub(super) const MOST_QUEUES: usize = 1 << 3;
const MOST_COUNTERS: usize = 1 << 16;

/// Slots of a queue; a power of two.
const SLOTS: std::ops::RangeInclusive<usize> = 32..=1 << 16;

/// The most slots of a queue pair: numbers of 16 bits tell what is done from what is not.
const PAIR_SLOTS_MAX: u64 = 1 << 14;

/// Bytes between the words that the proxy tells kernels for two queues.
pub(super) const PROGRESS_BYTES: u64 = 64;

pub(super) const ALIGNMENT: u64 = 256;

/// The numbers that determine the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of ranks in the network.
    pub ranks: usize,
    /// Bytes for rows.
    pub data_bytes: u64,
    /// Number of queues of each rank.
    pub queues: usize,
    /// Number of descriptors in a queue.
    pub slots: usize,
    /// Number of counters of each source and queue.
    pub counters: usize,
    /// Number of ports of each rank, which its queue pairs take in turn: 1 unless kernels write to network cards.
    pub ports: usize,
}

impl Layout {
    /// Fails if a number is out of its range.
    pub(super) fn check(&self) -> Result<(), NetError> {
        self.check_with(("port of a rank without cards", 1))
    }

    /// Fails if a number is out of its range, of which that of ports ends at `most_ports`.
    fn check_with(&self, (ports, most_ports): (&'static str, usize)) -> Result<(), NetError> {
        let (least_slots, most_slots) = (*SLOTS.start(), *SLOTS.end());
        let ranges = [
            ("ranks", self.ranks as u64, 1, MOST_RANKS),
            ("bytes for rows", self.data_bytes, 1, 1 << 40),
            ("queues", self.queues as u64, 1, MOST_QUEUES),
            ("slots a queue", self.slots as u64, least_slots, most_slots),
            ("counters", self.counters as u64, 1, MOST_COUNTERS),
            (ports, self.ports as u64, 1, most_ports),
        ];
        for (what, value, least, most) in ranges {
            let (least, most) = (least as u64, most as u64);
            if !(least..=most).contains(&value) {
                return Err(NetError::Option { what, value, least, most });
            }
        }
        match self.slots.is_power_of_two() {
            true => Ok(()),
            false => {
                let value = self.slots as u64;
                let (least, most) = (value.next_power_of_two() / 2, value.next_power_of_two());
                Err(NetError::Option { what: "slots a queue", value, least, most })
            }
        }
    }

    /// Fails if a number is out of its range for queue pairs of a card. A rank has at most as many ports as queues.
    pub(super) fn check_pairs(&self) -> Result<(), NetError> {
        self.check_with(("ports of a rank, as it has queues", self.queues))?;
        let (what, value) = ("slots a queue pair", self.slots as u64);
        match value <= PAIR_SLOTS_MAX {
            true => Ok(()),
            false => Err(NetError::Option { what, value, least: 1, most: PAIR_SLOTS_MAX }),
        }
    }

    /// Its numbers with their names, for ranks that compare them.
    pub(super) fn numbers(&self) -> [(&'static str, u64); 5] {
        [
            ("bytes for rows", self.data_bytes),
            ("queues", self.queues as u64),
            ("slots a queue", self.slots as u64),
            ("counters", self.counters as u64),
            ("ports of a rank", self.ports as u64),
        ]
    }

    fn flows(&self) -> u64 {
        (self.ranks * self.queues) as u64
    }

    /// Where the number of `source` and `queue` stands in a table of both.
    pub(super) fn flow(&self, source: usize, queue: usize) -> usize {
        source * self.queues + queue
    }

    /// The port of both ranks through which a queue joins them: one, so that a signal comes after the puts before it. The
    /// queues of two ranks take all ports in turn, and so do the ranks that a rank reaches by one queue.
    pub(super) fn port(&self, rank: usize, peer: usize, queue: usize) -> usize {
        (rank + peer + queue) % self.ports
    }

    /// Where the first word behind the rows is.
    pub(super) fn inboxes(&self) -> u64 {
        self.data_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Where the write with this place in the stream of `source` and `queue` says what it adds.
    pub(super) fn inbox(&self, source: usize, queue: usize, place: u16) -> u64 {
        let flow = self.flow(source, queue) as u64;
        let place = u64::from(place) % WINDOW as u64;
        self.inboxes() + (flow * WINDOW as u64 + place) * 8
    }

    /// What `source` writes over when it has nothing else to write.
    pub(super) fn pulse(&self, source: usize) -> u64 {
        self.inboxes() + self.flows() * WINDOW as u64 * 8 + source as u64 * 8
    }

    /// Bytes that peers may write into.
    pub(super) fn reachable(&self) -> u64 {
        self.pulse(self.ranks)
    }

    /// What the write of this number is sent from, if it is a signal.
    pub(super) fn outbox(&self, write: usize) -> u64 {
        self.reachable() + write as u64 * 8
    }

    /// What is registered with the network, whose endpoint has so many writes under way.
    pub(super) fn registered(&self, in_flight: usize) -> u64 {
        self.outbox(in_flight)
    }

    fn all_counters(&self) -> u64 {
        self.outbox(WINDOW).next_multiple_of(ALIGNMENT)
    }

    /// What `source` has added to a counter of a queue.
    pub(super) fn counter(&self, source: usize, queue: usize, counter: usize) -> u64 {
        let index = self.flow(source, queue) * self.counters + counter;
        self.all_counters() + index as u64 * 4
    }

    /// How many descriptors of a queue the proxy has taken, and for how many it is done: two words.
    pub(super) fn progress(&self, queue: usize) -> u64 {
        let end = self.all_counters() + self.flows() * self.counters as u64 * 4;
        end.next_multiple_of(ALIGNMENT) + queue as u64 * PROGRESS_BYTES
    }

    /// The descriptor of this number.
    pub(super) fn descriptor(&self, queue: usize, number: u32) -> u64 {
        let slot = number as usize % self.slots;
        let index = queue * self.slots + slot;
        self.progress(self.queues).next_multiple_of(ALIGNMENT) + index as u64 * DESCRIPTOR_BYTES
    }

    /// All of it.
    pub(super) fn bytes(&self) -> u64 {
        self.descriptor(self.queues, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Layout =
        Layout { ranks: 3, data_bytes: 1000, queues: 2, slots: 32, counters: 5, ports: 1 };

    #[test]
    fn parts_lie_behind_one_another() {
        let layout = SMALL;
        let ends = [
            (layout.inbox(0, 0, 0), 1024),
            (layout.pulse(0), layout.inbox(2, 1, WINDOW as u16 - 1) + 8),
            (layout.reachable(), layout.pulse(2) + 8),
            (layout.counter(0, 0, 0), layout.outbox(WINDOW)),
            (layout.progress(0), layout.counter(2, 1, 4) + 4),
            (layout.descriptor(0, 0), layout.progress(1) + PROGRESS_BYTES),
            (layout.bytes(), layout.descriptor(1, 31) + DESCRIPTOR_BYTES),
        ];
        for (index, (start, end)) in ends.into_iter().enumerate() {
            assert!(start >= end && start < end + ALIGNMENT, "part {index}: {start} after {end}");
        }
        assert_eq!(layout.descriptor(1, 32 * 7 + 3), layout.descriptor(1, 3));
        assert_eq!(layout.inbox(1, 1, WINDOW as u16 + 9), layout.inbox(1, 1, 9));
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        assert_eq!(SMALL.check(), Ok(()));
        let said = |layout: Layout| layout.check().unwrap_err().to_string();
        let text = "a network can have 1 to 8 queues, not 9";
        assert_eq!(said(Layout { queues: 9, ..SMALL }), text);
        let text = "a network can have 32 to 64 slots a queue, not 48";
        assert_eq!(said(Layout { slots: 48, ..SMALL }), text);
        assert!(said(Layout { ranks: 0, ..SMALL }).ends_with("ranks, not 0"));
        assert!(said(Layout { data_bytes: 0, ..SMALL }).ends_with("bytes for rows, not 0"));
        assert!(said(Layout { counters: 1 << 17, ..SMALL }).ends_with("counters, not 131072"));
    }

    #[test]
    fn slots_that_16_bits_do_not_tell_apart_are_refused() {
        let many = Layout { slots: 1 << 15, ..SMALL };
        let text = "a network can have 1 to 16384 slots a queue pair, not 32768";
        assert_eq!(many.check_pairs().unwrap_err().to_string(), text);
        assert_eq!(SMALL.check_pairs(), Ok(()));
    }
}
