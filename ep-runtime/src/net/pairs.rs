//! The memory layout of one rank whose kernels write to a card that is a model or a kernel, the same on every
//! rank, and the description of their queue pairs for kernels.
//!
//! ```text
//! data         rows: peers write here, and kernels read and write
//! counters     [source, queue, counter] u32: what has landed, for kernels
//! before       [peer, queue] 8 bytes: what a counter of a peer was before an add
//! entries      [peer, queue, slot] 64 bytes: what kernels ask the card for
//! completions  [peer, queue] 64 bytes: how far the card is
//! records      [peer, queue] 8 bytes: entries to receive, and to send
//! doorbells    [peer, queue] 8 bytes: the card's own
//! ```

use super::layout::{ALIGNMENT, Layout};
use super::mlx5::{
    self, BLOCK_BYTES, COMPLETION_WORD_AT, Entry, INVALID, Place, Source, Syndrome, Work,
};
use super::pair_words::PairWords;

/// Bytes of a record, and of a doorbell.
const RECORD_BYTES: u64 = 8;

/// The number of the first queue pair of a card.
const FIRST_PAIR: usize = 0x100;

/// The key of the first region of the first rank.
const FIRST_KEY: usize = 0x1000;

/// What a card lets others touch; counters are apart, since nothing may pass them on a bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    Data,
    Counters,
}

/// Which queue pair: that of `rank` to `peer` for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) rank: usize,
    pub(super) peer: usize,
    pub(super) queue: usize,
}

/// The numbers that decide over it: those of a network of queues, whose places are others.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairLayout(pub(super) Layout);

impl PairLayout {
    /// Peers and queues.
    pub(super) fn ends(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let queues = self.0.queues;
        (0..self.0.ranks).flat_map(move |peer| (0..queues).map(move |queue| (peer, queue)))
    }

    fn pairs(&self) -> u64 {
        (self.0.ranks * self.0.queues) as u64
    }

    fn flow(&self, peer: usize, queue: usize) -> u64 {
        self.0.flow(peer, queue) as u64
    }

    /// What `source` has added to the first counter of a queue.
    pub(super) fn counters(&self, source: usize, queue: usize) -> u64 {
        let first = self.0.data_bytes.next_multiple_of(ALIGNMENT);
        first + self.flow(source, queue) * self.0.counters as u64 * 4
    }

    fn befores(&self) -> u64 {
        self.counters(self.0.ranks, 0).next_multiple_of(ALIGNMENT)
    }

    pub(super) fn before(&self, peer: usize, queue: usize) -> u64 {
        self.befores() + self.flow(peer, queue) * 8
    }

    fn entries(&self) -> u64 {
        self.before(self.0.ranks, 0).next_multiple_of(ALIGNMENT)
    }

    /// The slot of the entry of this number.
    pub(super) fn entry(&self, peer: usize, queue: usize, number: u32) -> u64 {
        let slots = self.0.slots as u64;
        let slot = self.flow(peer, queue) * slots + u64::from(number) % slots;
        self.entries() + slot * BLOCK_BYTES as u64
    }

    pub(super) fn completion(&self, peer: usize, queue: usize) -> u64 {
        let first = self.entries() + self.pairs() * self.0.slots as u64 * BLOCK_BYTES as u64;
        first + self.flow(peer, queue) * BLOCK_BYTES as u64
    }

    /// The half of a record that counts what is sent.
    pub(super) fn record(&self, peer: usize, queue: usize) -> u64 {
        self.completion(self.0.ranks, 0) + self.flow(peer, queue) * RECORD_BYTES + 4
    }

    pub(super) fn doorbell(&self, peer: usize, queue: usize) -> u64 {
        let first = self.completion(self.0.ranks, 0) + self.pairs() * RECORD_BYTES;
        first + self.flow(peer, queue) * RECORD_BYTES
    }

    /// All of it.
    pub(super) fn bytes(&self) -> u64 {
        self.doorbell(self.0.ranks, 0)
    }

    /// The number of a queue pair, among those of its card.
    pub(super) fn number(&self, peer: usize, queue: usize) -> u32 {
        (FIRST_PAIR + self.0.flow(peer, queue)) as u32
    }

    /// The number of the first entry: that of every other queue pair wraps soon, at 2^16 and at 2^32.
    pub(super) fn first(&self, peer: usize, queue: usize) -> u32 {
        match (peer + queue) % 2 {
            0 => 0,
            _ => u32::MAX - 20,
        }
    }

    /// The last word of a completion before the first entry.
    pub(super) fn completion_word(&self, peer: usize, queue: usize) -> u32 {
        match self.first(peer, queue) {
            0 => INVALID,
            first => mlx5::completed(first.wrapping_sub(1)),
        }
    }

    /// What stands in the memory of a queue pair before its first entry, where that is not zero: words at an offset.
    pub(super) fn begun(&self, peer: usize, queue: usize) -> [(u64, Vec<u32>); 2] {
        let mut completion = vec![INVALID; BLOCK_BYTES / 4];
        completion[COMPLETION_WORD_AT / 4] = self.completion_word(peer, queue);
        let record = vec![(self.first(peer, queue) & 0xffff).swap_bytes()];
        [(self.completion(peer, queue), completion), (self.record(peer, queue), record)]
    }

    /// The key of what a rank lets others touch through a port.
    pub(super) fn key(&self, rank: usize, port: usize, region: Region) -> u32 {
        (FIRST_KEY + 2 * (rank * self.0.ports + port) + region as usize) as u32
    }

    /// The port of a queue pair, at both ends.
    pub(super) fn port(&self, end: End) -> usize {
        self.0.port(end.rank, end.peer, end.queue)
    }

    /// Where a region begins and ends.
    pub(super) fn range(&self, region: Region) -> (u64, u64) {
        match region {
            Region::Data => (0, self.0.data_bytes),
            Region::Counters => (self.counters(0, 0), self.entries()),
        }
    }

    /// Where a place lies in the memory of a rank, which begins at `base`, if its key gives the right to it
    /// through a port of the rank.
    fn offset(&self, (rank, port): (usize, usize), base: u64, place: &Place) -> Option<u64> {
        let mut regions = [Region::Data, Region::Counters].into_iter();
        let region = regions.find(|region| self.key(rank, port, *region) == place.key)?;
        let (low, high) = self.range(region);
        let offset = place.address.checked_sub(base)?;
        let end = offset.checked_add(u64::from(place.bytes))?;
        (low <= offset && end <= high).then_some(offset)
    }

    /// Whether an entry of a queue pair may touch what it names; `own` and `theirs` are where the memory of this rank and
    /// that of the peer begin.
    pub(super) fn check(
        &self,
        end: End,
        [own, theirs]: [u64; 2],
        entry: &Entry,
    ) -> Result<(), (Syndrome, String)> {
        let (to, from) = match &entry.work {
            Work::Write { to, source: Source::Memory(from) } => (to, Some(from)),
            Work::Write { to, source: Source::Inline(_) } => (to, None),
            Work::Add { to, before, .. } => (to, Some(before)),
        };
        let (End { rank, peer, .. }, port) = (end, self.port(end));
        let no_right = |rank: usize, place: &Place| {
            let Place { address, key, bytes } = place;
            format!(
                "names {bytes} bytes at {address:#x} of rank {rank}, to which key {key:#x} gives no right"
            )
        };
        if let Some(place) = from.filter(|place| self.offset((rank, port), own, place).is_none()) {
            return Err((Syndrome::Protection, no_right(rank, place)));
        }
        if self.offset((peer, port), theirs, to).is_none() {
            return Err((Syndrome::RemoteAccess, no_right(peer, to)));
        }
        let is_add = matches!(entry.work, Work::Add { .. });
        match is_add && !to.address.is_multiple_of(u64::from(mlx5::ADD_BYTES)) {
            true => Err((Syndrome::Operation, format!("adds at {:#x}, inside a word", to.address))),
            false => Ok(()),
        }
    }

    /// `ep::QueuePair` of all queue pairs of a rank, in whose memory each of `bases` is known to its card.
    pub(super) fn table(&self, rank: usize, bases: &[u64]) -> Vec<u8> {
        let own = bases[rank];
        let words = |(peer, queue)| {
            let (theirs, port) = (bases[peer], self.port(End { rank, peer, queue }));
            PairWords {
                entries: own + self.entry(peer, queue, 0),
                done: own + self.completion(peer, queue) + COMPLETION_WORD_AT as u64,
                record: own + self.record(peer, queue),
                doorbell: own + self.doorbell(peer, queue),
                data: theirs,
                counters: theirs + self.counters(rank, queue),
                before: own + self.before(peer, queue),
                data_key: self.key(peer, port, Region::Data),
                counters_key: self.key(peer, port, Region::Counters),
                own_data_key: self.key(rank, port, Region::Data),
                own_counters_key: self.key(rank, port, Region::Counters),
                number: self.number(peer, queue),
                first: self.first(peer, queue),
            }
        };
        self.ends().flat_map(|end| words(end).encode()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: PairLayout = PairLayout(Layout {
        ranks: 3,
        data_bytes: 1000,
        queues: 2,
        slots: 32,
        counters: 5,
        ports: 1,
    });

    #[test]
    fn parts_lie_behind_one_another() {
        let ends = [
            (SMALL.counters(0, 0), 1000),
            (SMALL.before(0, 0), SMALL.counters(2, 1) + 20),
            (SMALL.entry(0, 0, 0), SMALL.before(2, 1) + 8),
            (SMALL.completion(0, 0), SMALL.entry(2, 1, 31) + 64),
            (SMALL.record(0, 0) - 4, SMALL.completion(2, 1) + 64),
            (SMALL.doorbell(0, 0), SMALL.record(2, 1) + 4),
            (SMALL.bytes(), SMALL.doorbell(2, 1) + 8),
        ];
        for (index, (start, end)) in ends.into_iter().enumerate() {
            assert!(start >= end && start < end + ALIGNMENT, "part {index}: {start} after {end}");
        }
        assert_eq!(SMALL.entry(1, 1, 35), SMALL.entry(1, 1, 3));
    }

    #[test]
    fn a_key_gives_the_right_to_one_region_of_one_rank() {
        let base = 1 << 20;
        let at = |rank, region, offset: u64, bytes| {
            let place = Place { address: base + offset, key: SMALL.key(rank, 0, region), bytes };
            SMALL.offset((1, 0), base, &place)
        };
        assert_eq!(at(1, Region::Data, 990, 10), Some(990));
        assert_eq!(at(1, Region::Data, 990, 11), None);
        assert_eq!(at(2, Region::Data, 0, 4), None);
        let counters = SMALL.counters(0, 0);
        assert_eq!(at(1, Region::Counters, counters, 4), Some(counters));
        assert_eq!(at(1, Region::Counters, counters - 4, 4), None);
        assert_eq!(at(1, Region::Data, counters, 4), None);
        let below = Place { address: base - 1, key: SMALL.key(1, 0, Region::Data), bytes: 1 };
        assert_eq!(SMALL.offset((1, 0), base, &below), None);
    }
}
