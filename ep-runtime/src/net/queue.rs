//! Requests of kernels: the descriptors of `ep/net.cuh`, and the minimum number of writes for them.

/// Bytes of a descriptor: four words.
pub(super) const DESCRIPTOR_BYTES: u64 = 32;

/// Words of `ep::NetDescriptor`.
pub(super) type Words = [u64; 4];

/// Where the word lies that a kernel writes last.
pub(super) const STAMP_AT: u64 = 24;

/// The most bytes of one write that several puts become.
const JOINED_MAX: u32 = 1 << 20;

/// `ep::NetDescriptor::kPut` and `kSignal`.
pub(super) const PUT: u32 = 1;
pub(super) const SIGNAL: u32 = 2;

/// The turn in which descriptor `number` is written into its slot: the upper half of its last word, which
/// is another one for two descriptors in a row of one slot, and never that of a slot that is unused.
pub(super) fn turn(number: u32, slots: usize) -> u32 {
    (number >> slots.trailing_zeros()).wrapping_add(1)
}

/// Whether the last word of a slot says that descriptor `number` is there.
pub(super) fn has_come(stamp: u64, number: u32, slots: usize) -> bool {
    (stamp >> 32) as u32 == turn(number, slots)
}

/// What one descriptor asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// Bytes from the data here to the data of a peer.
    Put { peer: usize, to: u64, from: u64, bytes: u32 },
    /// What to add to a counter at a peer, once all earlier puts to it have landed.
    Signal { peer: usize, counter: u16, count: u32 },
}

/// What a descriptor may name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) ranks: usize,
    pub(super) rank: usize,
    pub(super) data_bytes: u64,
    pub(super) counters: usize,
}

impl Request {
    /// Whom it is for.
    pub(super) fn peer(&self) -> usize {
        match self {
            Request::Put { peer, .. } | Request::Signal { peer, .. } => *peer,
        }
    }

    /// What the words ask for; a clause that says why it is nonsense.
    #[inline]
    pub(super) fn read(words: &Words, limits: &Limits) -> Result<Request, String> {
        let [to, from, who, stamp] = *words;
        let (peer, kind, bytes) = (who as u32 as usize, (who >> 32) as u32, stamp as u32);
        if peer >= limits.ranks || peer == limits.rank {
            let (ranks, rank) = (limits.ranks, limits.rank);
            return Err(format!("is for rank {peer}, and rank {rank} of {ranks} wrote it"));
        }
        match kind {
            PUT => {
                let inside = |at: u64| {
                    at.checked_add(u64::from(bytes)).is_some_and(|end| end <= limits.data_bytes)
                };
                if bytes == 0 || !inside(from) || !inside(to) {
                    let all = limits.data_bytes;
                    return Err(format!("puts {bytes} bytes from {from} to {to} of {all}"));
                }
                Ok(Request::Put { peer, to, from, bytes })
            }
            SIGNAL => {
                let (counter, count) = (to as u32 as usize, bytes);
                if counter >= limits.counters || to >> 32 != 0 || count == 0 {
                    let counters = limits.counters;
                    return Err(format!("adds {count} to counter {to} of {counters}"));
                }
                Ok(Request::Signal { peer, counter: counter as u16, count })
            }
            kind => Err(format!("is of the unknown kind {kind}")),
        }
    }
}

/// The writes that do what some descriptors ask for.
///
/// Puts to one peer that are neighbours on both sides become one, and signals of one counter become one
/// behind all puts of the batch: a signal may always come later, as long as nothing holds it back for good.
#[derive(Debug, Default)]
pub(super) struct Joined {
    puts: Vec<Request>,
    signals: Vec<Request>,
    /// The last put to each peer, as an index.
    last: Vec<Option<usize>>,
}

impl Joined {
    pub(super) fn new(ranks: usize) -> Joined {
        Joined { last: vec![None; ranks], ..Joined::default() }
    }

    /// Adds what one more descriptor asks for.
    #[inline]
    pub(super) fn add(&mut self, request: Request) {
        match request {
            Request::Put { peer, to, from, bytes } => {
                let last = self.last[peer].map(|index| &mut self.puts[index]);
                if let Some(Request::Put { to: at, from: source, bytes: had, .. }) = last
                    && *at + u64::from(*had) == to
                    && *source + u64::from(*had) == from
                    && had.checked_add(bytes).is_some_and(|sum| sum <= JOINED_MAX)
                {
                    *had += bytes;
                    return;
                }
                self.last[peer] = Some(self.puts.len());
                self.puts.push(request);
            }
            Request::Signal { peer, counter, count } => {
                let same = |known: &&mut Request| {
                    matches!(**known, Request::Signal { peer: p, counter: c, .. }
                        if (p, c) == (peer, counter))
                };
                match self.signals.iter_mut().find(same) {
                    Some(Request::Signal { count: sum, .. }) => *sum = sum.wrapping_add(count),
                    _ => self.signals.push(request),
                }
            }
        }
    }

    /// The writes of the batch, in their order; it is empty again.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Request> + '_ {
        self.last.fill(None);
        self.puts.drain(..).chain(self.signals.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { ranks: 4, rank: 1, data_bytes: 4096, counters: 8 };

    fn words(kind: u32, peer: u32, to: u64, from: u64, bytes: u32) -> Words {
        [to, from, u64::from(kind) << 32 | u64::from(peer), 1 << 32 | u64::from(bytes)]
    }

    fn put(peer: usize, to: u64, from: u64, bytes: u32) -> Request {
        Request::Put { peer, to, from, bytes }
    }

    #[test]
    fn descriptors_are_read_within_their_limits() {
        let read = |kind, peer, to, from, bytes| {
            Request::read(&words(kind, peer, to, from, bytes), &LIMITS)
        };
        assert_eq!(read(PUT, 3, 4000, 8, 96), Ok(put(3, 4000, 8, 96)));
        let signal = Request::Signal { peer: 0, counter: 7, count: 2 };
        assert_eq!(read(SIGNAL, 0, 7, 0, 2), Ok(signal));
        for (wrong, why) in [
            (read(PUT, 4, 0, 0, 8), "is for rank 4, and rank 1 of 4 wrote it"),
            (read(PUT, 1, 0, 0, 8), "is for rank 1, and rank 1 of 4 wrote it"),
            (read(PUT, 2, 4089, 0, 8), "puts 8 bytes from 0 to 4089 of 4096"),
            (read(PUT, 2, 0, u64::MAX, 8), "puts 8 bytes from 18446744073709551615 to 0 of 4096"),
            (read(PUT, 2, 0, 0, 0), "puts 0 bytes from 0 to 0 of 4096"),
            (read(SIGNAL, 2, 8, 0, 1), "adds 1 to counter 8 of 8"),
            (read(SIGNAL, 2, 1 << 32, 0, 1), "adds 1 to counter 4294967296 of 8"),
            (read(SIGNAL, 2, 1, 0, 0), "adds 0 to counter 1 of 8"),
            (read(0, 2, 0, 0, 8), "is of the unknown kind 0"),
        ] {
            assert_eq!(wrong, Err(why.to_string()));
        }
    }

    #[test]
    fn a_slot_shows_its_turn() {
        assert!(!has_come(0, 0, 64), "unused");
        assert!(has_come(1 << 32, 63, 64) && !has_come(1 << 32, 64, 64));
        let last = u32::MAX;
        assert!(has_come(u64::from(turn(last, 64)) << 32, last, 64));
        assert!(!has_come(u64::from(turn(last, 64)) << 32, 63, 64), "across the wrap");
    }

    #[test]
    fn neighbours_become_one_write() {
        let mut joined = Joined::new(4);
        for request in [
            put(2, 0, 100, 50),
            put(3, 0, 0, 8),
            Request::Signal { peer: 2, counter: 1, count: 1 },
            put(2, 50, 150, 50),
            // Neighbours at one end only.
            put(2, 100, 300, 8),
            put(2, 200, 308, 8),
            Request::Signal { peer: 2, counter: 1, count: u32::MAX },
            Request::Signal { peer: 2, counter: 0, count: 4 },
            Request::Signal { peer: 3, counter: 1, count: 1 },
        ] {
            joined.add(request);
        }
        let expected = [
            put(2, 0, 100, 100),
            put(3, 0, 0, 8),
            put(2, 100, 300, 8),
            put(2, 200, 308, 8),
            Request::Signal { peer: 2, counter: 1, count: 0 },
            Request::Signal { peer: 2, counter: 0, count: 4 },
            Request::Signal { peer: 3, counter: 1, count: 1 },
        ];
        assert_eq!(joined.take().collect::<Vec<_>>(), expected);
        joined.add(put(2, 208, 316, 8));
        assert_eq!(joined.take().collect::<Vec<_>>(), [put(2, 208, 316, 8)], "a new batch");
    }

    #[test]
    fn one_write_has_an_end() {
        let mut joined = Joined::new(4);
        let half = JOINED_MAX / 2 + 1;
        joined.add(put(2, 0, 0, half));
        joined.add(put(2, u64::from(half), u64::from(half), half));
        assert_eq!(joined.take().count(), 2);
    }
}
