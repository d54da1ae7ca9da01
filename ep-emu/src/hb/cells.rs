//! The last accesses of every four bytes.

use std::io;

use crate::abi::Scope;
use crate::os::Pages;

/// Bytes that share a cell.
pub(super) const GRAIN: usize = 4;

/// One access, packed: who, which of the four bytes, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access(u32);

impl Access {
    /// An access of `lane` of `warp` (or of an actor); the bytes are added per cell.
    pub(super) fn new(warp: usize, lane: u32) -> Self {
        Self((warp as u32) << 16 | lane << 11)
    }

    /// By a bulk copy: its epoch is the number of its record.
    pub(super) fn bulk(self) -> Self {
        Self(self.0 | 1)
    }

    /// Strong, of this scope and size.
    pub(super) fn strong(self, scope: Scope, bytes: u32) -> Self {
        Self(self.0 | (scope as u32 + 1) << 1 | (bytes.trailing_zeros() & 3) << 3)
    }

    /// Through the read-only path.
    pub(super) fn read_only(self) -> Self {
        Self(self.0 | 1 << 5)
    }

    fn with_bytes(self, bytes: u32) -> Self {
        Self(self.0 & !(15 << 7) | bytes << 7)
    }

    /// All but which bytes.
    fn kind(self) -> u32 {
        self.0 & !(15 << 7)
    }

    fn bytes(self) -> u32 {
        self.0 >> 7 & 15
    }

    /// Warp or actor.
    pub(crate) fn warp(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// Lane of the warp.
    pub(crate) fn lane(self) -> u32 {
        self.0 >> 11 & 31
    }

    /// Whether it was a bulk copy.
    pub(crate) fn is_bulk(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it went through the read-only path.
    pub(super) fn is_read_only(self) -> bool {
        self.0 >> 5 & 1 != 0
    }

    /// Its scope, if it was strong.
    pub(crate) fn scope(self) -> Option<Scope> {
        (self.0 >> 1 & 3).checked_sub(1).map(Scope::of)
    }

    /// Size class of a strong access.
    pub(super) fn size(self) -> u32 {
        self.0 >> 3 & 3
    }
}

/// An access with its time and place; time 0 means none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Event {
    pub(crate) access: Access,
    pub(crate) epoch: u32,
    /// Place in kernel code, relative to the checker's lowest library.
    pub(crate) pc: u32,
}

/// The last write and one read since.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Event,
    read: Event,
}

/// Cells of the arena. They are kept from run to run: epochs only grow, and older ones count as
/// none.
pub(crate) struct Cells {
    pages: Pages,
    /// Epochs below it belong to earlier runs.
    from: u32,
    used: usize,
}

/// What [`Cells::visit`] found: an earlier access that conflicts and how it does.
pub(super) struct Conflict<R> {
    /// The earlier access.
    pub(super) event: Event,
    /// Whether it was a write.
    pub(super) wrote: bool,
    /// Offset of the cell.
    pub(super) at: usize,
    /// What is wrong.
    pub(super) rule: R,
}

impl Cells {
    /// Cells of an arena of `bytes`.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let pages = Pages::private(bytes / GRAIN * size_of::<Cell>())?;
        Ok(Self { pages, from: 1, used: 0 })
    }

    /// First epoch of a new run, after one that ended with `last`; the arena is in use up to
    /// `used`.
    pub(crate) fn restart(&mut self, last: u32, used: usize) -> u32 {
        self.from = last.max(self.from) + 1;
        if self.from > super::clock::EPOCH_LIMIT / 2 {
            self.clear(0, self.used);
            self.from = 1;
        }
        self.used = self.used.max(used);
        self.from
    }

    fn cell(&mut self, index: usize) -> &mut Cell {
        assert!(index < self.pages.len() / size_of::<Cell>(), "an access inside the arena");
        // SAFETY: the index lies inside the mapping, whose zero pages are valid cells, and `self`
        // is borrowed exclusively.
        unsafe { &mut *self.pages.start().cast::<Cell>().add(index) }
    }

    /// Forgets the accesses to a range.
    pub(super) fn clear(&mut self, at: usize, bytes: usize) {
        for index in at / GRAIN..(at + bytes).div_ceil(GRAIN) {
            *self.cell(index) = Cell::default();
        }
    }

    /// Compares an access with the earlier ones of its range and keeps it.
    ///
    /// `judge(earlier, it wrote)` says what is wrong between the two, if anything;
    /// `follows(earlier)` whether an earlier read is ordered before this one.
    pub(super) fn visit<R>(
        &mut self,
        (at, bytes): (usize, usize),
        new: Event,
        writes: bool,
        mut judge: impl FnMut(Event, bool) -> Option<R>,
        mut follows: impl FnMut(Event) -> bool,
    ) -> Option<Conflict<R>> {
        let from = self.from;
        let end = at + bytes;
        // The cells of a row mostly hold the same two events: each pair is judged once.
        let mut judged = [(0, 0); 2];
        let mut followed = (0, 0);
        for index in at / GRAIN..end.div_ceil(GRAIN) {
            let start = index * GRAIN;
            let low = at.saturating_sub(start);
            let high = (end - start).min(GRAIN);
            let mask = (1u32 << high) - (1u32 << low);
            let cell = self.cell(index);
            for (wrote, event) in [(true, cell.write), (false, cell.read)] {
                let relevant =
                    event.epoch >= from && event.access.bytes() & mask != 0 && (writes || wrote);
                let key = (event.access.kind(), event.epoch);
                if !relevant || judged[usize::from(wrote)] == key {
                    continue;
                }
                if let Some(rule) = judge(event, wrote) {
                    return Some(Conflict { event, wrote, at: start, rule });
                }
                judged[usize::from(wrote)] = key;
            }
            let event = Event { access: new.access.with_bytes(mask), ..new };
            if writes {
                *cell = Cell { write: event, read: Event::default() };
            } else {
                let old = cell.read;
                let key = (old.access.kind(), old.epoch);
                let kept = old.epoch >= from && old.access.kind() != new.access.kind();
                if kept && followed != key && follows(old) {
                    followed = key;
                }
                let sticky = old.epoch >= from && old.access.is_read_only();
                // Of two reads that are not ordered, chance keeps one: over many cells a later
                // write meets both.
                let coin = (index as u32 ^ new.epoch).wrapping_mul(0x9e37_79b9) >> 31 == 1;
                if !sticky && (!kept || followed == key || coin) {
                    cell.read = event;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(warp: usize, epoch: u32) -> Event {
        Event { access: Access::new(warp, 0), epoch, pc: 0 }
    }

    #[test]
    fn accesses_survive_packing() {
        let access = Access::new(1234, 17).strong(Scope::Gpu, 8).read_only();
        assert_eq!((access.warp(), access.lane()), (1234, 17));
        assert_eq!((access.scope(), access.size()), (Some(Scope::Gpu), 3));
        assert!(access.is_read_only() && !access.is_bulk());
        assert_eq!(Access::new(1, 2).scope(), None);
    }

    #[test]
    fn only_overlapping_bytes_conflict() {
        let mut cells = Cells::new(4096).expect("cells");
        let from = cells.restart(0, 4096);
        let mut visit = |range, warp, writes| {
            let judge = |earlier: Event, wrote: bool| {
                (earlier.access.warp() != warp && (wrote || writes)).then_some(())
            };
            let found = cells.visit(range, event(warp, from), writes, judge, |_| true);
            found.map(|conflict| conflict.at)
        };
        assert_eq!(visit((8, 2), 0, true), None);
        assert_eq!(visit((10, 2), 1, true), None, "the other half of the word");
        assert_eq!(visit((8, 1), 2, false), None, "the cell keeps only its last writer");
        assert_eq!(visit((0, 16), 2, true), Some(8));
    }
}
