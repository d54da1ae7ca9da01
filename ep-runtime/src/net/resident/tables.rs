//! What the card kernel reads and writes, in its own layout: `card.cu` declares the same structs.

use super::super::mlx5::{BLOCK_BYTES, Heard};
use super::super::pairs::{End, PairLayout, Region};

pub(super) const PAIR_BYTES: usize = 256;
pub(super) const STATE_BYTES: usize = 128;
pub(super) const WORK_BYTES: u64 = 64;
pub(super) const CONTROL_BYTES: u64 = 16;

/// Places for tickets.
pub(super) const TICKETS: u64 = 1 << 16;

/// Bytes of what is said of a fault.
pub(super) const FAULT_BYTES: usize = 112;

/// Where the counts of a queue pair's state are: entries, doorbells, bytes.
pub(super) const COUNTS_AT: [usize; 3] = [28, 32, 40];

/// Where it says how many entries are known, read, on their way, landed and ended.
pub(super) const KNOWN_AT: [usize; 5] = [12, 16, 20, 48, 52];

/// Words one after another, each at a multiple of its size.
#[derive(Default)]
pub(super) struct Words(pub(super) Vec<u8>);

impl Words {
    pub(super) fn wide(mut self, words: impl IntoIterator<Item = u64>) -> Words {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(words.into_iter().flat_map(u64::to_le_bytes));
        self
    }

    pub(super) fn narrow(mut self, words: impl IntoIterator<Item = u32>) -> Words {
        self.0.extend(words.into_iter().flat_map(u32::to_le_bytes));
        self
    }

    /// All of them in a struct of so many bytes.
    fn sized(mut self, bytes: usize) -> Vec<u8> {
        self.0.resize(bytes, 0);
        self.0
    }
}

/// A queue pair as the card kernel plays it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Played {
    pub(super) end: End,
    /// The memory of this rank and of the peer.
    pub(super) own: u64,
    pub(super) theirs: u64,
    /// The card, among those of its GPU.
    pub(super) port: u32,
    /// What the counters of the peer hold that this queue pair adds to.
    pub(super) sums: u64,
    /// How far the card is with it, and with each of its entries.
    pub(super) state: u64,
    pub(super) works: u64,
    /// No other queue pair of the GPU has it.
    pub(super) id: u32,
    /// The entry that fails, counted from the first one.
    pub(super) fault: Option<u32>,
}

impl Played {
    /// `card::Pair`.
    pub(super) fn pair(&self, layout: &PairLayout) -> Vec<u8> {
        let End { rank, peer, queue } = self.end;
        let own = |offset: u64| self.own + offset;
        let region = |base: u64, rank: usize, region: Region| {
            let (low, high) = layout.range(region);
            let key = u64::from(layout.key(rank, layout.port(self.end), region));
            [base + low, base + high, key]
        };
        let first = layout.first(peer, queue);
        let fault = self.fault.map(|entry| first.wrapping_add(entry));
        Words::default()
            .wide([
                own(layout.entry(peer, queue, 0)),
                own(layout.completion(peer, queue)),
                own(layout.record(peer, queue)),
                own(layout.doorbell(peer, queue)),
            ])
            .wide(region(self.own, rank, Region::Data))
            .wide(region(self.own, rank, Region::Counters))
            .wide(region(self.theirs, peer, Region::Data))
            .wide(region(self.theirs, peer, Region::Counters))
            .wide([self.theirs + layout.counters(rank, queue), self.sums, self.state, self.works])
            .narrow([layout.0.counters as u32, layout.number(peer, queue), layout.0.slots as u32])
            .narrow([self.port, u32::from(fault.is_some()), fault.unwrap_or(0), self.id])
            .sized(PAIR_BYTES)
    }

    /// `card::State` before the first entry.
    pub(super) fn state(&self, layout: &PairLayout) -> Vec<u8> {
        let first = layout.first(self.end.peer, self.end.queue);
        let word = layout.completion_word(self.end.peer, self.end.queue);
        Words::default()
            .wide([0])
            .narrow([first & 0xffff, first, first, first, 0, 0, 0])
            .wide([0])
            .narrow([first, first, 0, 0, word])
            .sized(STATE_BYTES)
    }
}

/// What the card kernel said of the first fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// The id of the queue pair.
    pub(super) pair: u32,
    pub(super) number: u32,
    pub(super) block: [u8; BLOCK_BYTES],
    /// Whether the doorbell or the record is wrong, and not the entry.
    pub(super) is_told: bool,
    pub(super) doorbell: u64,
    pub(super) record: u32,
    /// What had been heard before them.
    pub(super) heard: Heard,
    pub(super) read: u32,
}

impl Fault {
    /// None: there was no fault.
    pub(super) fn decode(words: &[u32; FAULT_BYTES / 4]) -> Option<Fault> {
        if words[0] == 0 {
            return None;
        }
        let mut block = [0; BLOCK_BYTES];
        let bytes = words[4..20].iter().flat_map(|word| word.to_le_bytes());
        block.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        let wide = |at: usize| u64::from(words[at + 1]) << 32 | u64::from(words[at]);
        let heard = Heard { rung: wide(22), recorded: words[26] as u16, known: words[25] };
        Some(Fault {
            pair: words[1],
            number: words[2],
            is_told: words[3] != 0,
            block,
            doorbell: wide(20),
            record: words[24],
            heard,
            read: words[27],
        })
    }
}
