//! Slots that rows go back through, as `back_slots.cu` has them.

use std::ops::Range;

use super::waits::{Record, state};
use super::{Sheet, stamped};

/// What six groups have of their own, and the rows that all checks take.
pub(super) const MEMORY_END: i64 = 64 + 6 * 512 + (832 * 8 + 1112) * 2 + (832 + 34) * 4;

/// The call of most checks.
pub(super) const CALL: i64 = 7;

/// Kinds of waits.
pub(super) const CREDIT: i64 = 0;
pub(super) const FLAG: i64 = 6;

/// Ranks of a node.
pub(super) const NODE: i64 = 35;

/// Whether a rank takes part, of so many.
pub(super) fn takes_part(peers: i64, rank: i64) -> bool {
    peers != NODE || !matches!(rank, 1 | 2 | 7)
}

/// An element of a row, and a number beside it.
pub(super) fn element(row: i64, i: i64) -> i64 {
    let at = row * 8 + i;
    (at * at * 7 + at * 3) % 61 - 30
}
pub(super) fn number(row: i64, i: i64) -> i64 {
    (row + i) * 3 % 101 - 50
}

/// Of the parts that are made of a row, the number of one.
pub(super) fn part_of(row: i64, k: i64) -> Option<i64> {
    let part = (row * 3 + k * k) % 11 - 3;
    (part >= 0).then_some(part)
}

/// A row of this rank that goes to a slot of its own.
pub(super) fn own_row(key: i64) -> i64 {
    key % 3
}

/// A number of quarters as bf16, in one rounding to the nearest one.
pub(super) fn rounded(quarters: i64) -> u64 {
    let bits = (quarters as f32 / 4.0).to_bits();
    u64::from((bits + 0x7fff + (bits >> 16 & 1)) >> 16)
}

/// A row of bf16 in numbers of eight bytes, from the quarters of its elements.
pub(super) fn row(elements: i64, quarters: impl Fn(i64) -> i64) -> impl Iterator<Item = i64> {
    (0..elements / 4)
        .map(move |word| packed((word * 4..word * 4 + 4).map(|i| rounded(quarters(i))), 16))
}

/// Floats in numbers of eight bytes; `beside`: what the half of the last one is that no float has.
pub(super) fn floats(
    count: i64,
    beside: u64,
    value: impl Fn(i64) -> i64,
) -> impl Iterator<Item = i64> {
    let bits = move |i| if i < count { u64::from((value(i) as f32).to_bits()) } else { beside };
    (0..(count + 1) / 2).map(move |word| packed((word * 2..word * 2 + 2).map(&bits), 32))
}

/// A channel of slots.
#[derive(Clone, Copy)]
pub(super) struct Channel {
    pub(super) group: i64,
    pub(super) peers: i64,
    pub(super) own: i64,
    pub(super) tokens: i64,
    pub(super) keys: i64,
    /// Elements of a row, and numbers beside it.
    pub(super) elements: i64,
    pub(super) floats: i64,
}

impl Channel {
    /// Bytes of all windows.
    pub(super) const fn bytes(self) -> i64 {
        let slots = 64 + 2 * self.keys * 32 + self.peers * 4;
        let slot = (self.elements * 2 + self.floats * 4 + 15) / 16 * 16;
        self.peers * (((slots + 63) / 64 * 64 + 2 * self.keys * slot + 63) / 64 * 64)
    }

    /// The rows that came from a rank.
    pub(super) fn rows(self, source: i64) -> Range<i64> {
        let begin = source * self.tokens + 1;
        let count = match (self.peers, self.tokens) {
            (NODE, _) => source % 4 - 1,
            (_, 4) => source + 1,
            (_, tokens) if source == self.own => tokens - 4,
            _ => 20 - source * 7 / 2,
        };
        begin..begin + count
    }

    /// The token of a row.
    pub(super) fn token(self, row: i64) -> i64 {
        row * 5 % self.tokens
    }

    /// The number of the first slot of a call.
    pub(super) fn first(self, call: i64) -> i64 {
        call % 2 * self.keys
    }

    /// The wait of a team for a peer.
    pub(super) fn record(self, kind: i64, peer: i64, (want, seen): (i64, i64)) -> Record {
        let (pipeline, role, channel, expired) = (70 + self.group, 3, 5, 1);
        Record { pipeline, role, channel, kind, expired, stripe: -1, peer, want, seen, block: 0 }
    }

    /// How many quarters of a row a warp takes at a time, of so many warps.
    pub(super) fn quarters(rows: i64, warps: i64) -> i64 {
        let own = |each: &i64| (rows * (4 / each) + warps - 1) / warps * each;
        [4, 2, 1].into_iter().min_by_key(own).unwrap_or(4)
    }
}

/// What the teams of all warps have come to.
pub(super) fn put_states(sheet: &mut Sheet, warps: i64, state: &[i64]) {
    (0..warps).for_each(|warp| sheet.put(20_000 + warp as usize * 20, state.iter().copied()));
}

/// What is in all slots of all ranks, and their words.
pub(super) struct Slots {
    channel: Channel,
    slots: Vec<Vec<i64>>,
    words: Vec<[i64; 4]>,
}

impl Slots {
    pub(super) fn new(channel: Channel) -> Slots {
        let count = (channel.peers * 2 * channel.keys) as usize;
        Slots { channel, slots: vec![Vec::new(); count], words: vec![[0; 4]; count] }
    }

    fn at(&self, peer: i64, call: i64, key: i64) -> usize {
        ((peer * 2 + call % 2) * self.channel.keys + key) as usize
    }

    /// What a slot holds, in numbers of eight bytes.
    pub(super) fn fill(&mut self, (peer, call, key): (i64, i64, i64), row: Vec<i64>) {
        let at = self.at(peer, call, key);
        self.slots[at] = row;
    }

    /// That it has come, or the row that it is.
    pub(super) fn tell(&mut self, (peer, call, key): (i64, i64, i64), row: Option<i64>) {
        let at = self.at(peer, call, key);
        self.words[at] = [stamped(call, row.map_or(1, |row| row + 2)); 4];
    }

    /// What the kernel says of all that, and of teams with so many warps, of which one has stopped at a rank that has not
    /// read what it got, or by itself.
    pub(super) fn sheet(
        &self,
        call: i64,
        warps: i64,
        late: Option<i64>,
        is_stopped: bool,
    ) -> Vec<i64> {
        let mut sheet = Sheet::new();
        sheet.put(0, self.digests());
        let want = call - 2;
        let record = late.map(|late| (self.channel.record(CREDIT, late, (want, want - 1)), call));
        put_states(&mut sheet, warps, &state(is_stopped || late.is_some(), record));
        sheet.0
    }

    fn digests(&self) -> impl Iterator<Item = i64> {
        let digest = |words: &[i64], count: i64| {
            let halves =
                words.iter().flat_map(|word| [word & 0xffff_ffff, word >> 32 & 0xffff_ffff]);
            let all = halves.chain(std::iter::repeat(0)).take(count as usize);
            all.fold(0_i64, |sum, word| sum.wrapping_mul(31).wrapping_add(word))
        };
        let channel = self.channel;
        let slot_words = (channel.elements * 2 + channel.floats * 4 + 15) / 16 * 4;
        let all = self.slots.iter().zip(&self.words);
        all.flat_map(move |(slot, words)| [digest(slot, slot_words), digest(words, 8)])
    }
}

/// Four numbers of 16 bits, or two of 32, as one.
fn packed(parts: impl Iterator<Item = u64>, bits: u32) -> i64 {
    (0..).zip(parts).fold(0, |sum, (i, part)| sum | part << (i * bits)) as i64
}
