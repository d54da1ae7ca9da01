//! The memory of all ranks: one arena, cut into named regions with gaps between them.
//!
//! Every rank's buffers and every block's shared memory lie in it, so that one address check finds
//! what an access touches. The arena is shared with forked workers: what the parent wrote before a
//! run and reads after it needs no copy.

use std::cell::Cell;
use std::io;

use crate::abi::Poison;
use crate::failure::{Failure, FailureKind};
use crate::hb::Rules;
use crate::os::Pages;

/// Bytes of address space; pages are backed when touched.
pub(crate) const ARENA_BYTES: usize = 16 << 30;
/// Unused bytes after each region: an access just past the end hits none.
const GAP: usize = 256;

/// An address inside a world, valid in the arguments of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Who may touch a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Every rank.
    All,
    /// The rank that it belongs to.
    Rank,
    /// One block at a time: it is shared memory.
    Block,
}

/// A named piece of memory.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Offset in the arena.
    pub(crate) from: usize,
    /// Length.
    pub(crate) bytes: usize,
    /// Name in reports.
    pub(crate) name: String,
    /// Whose memory it is.
    pub(crate) rank: u32,
    /// Who may touch it.
    pub(crate) reach: Reach,
}

/// A named part of a region, such as a channel's slots in a window.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Offset in the arena.
    pub(crate) from: usize,
    /// Length.
    pub(crate) bytes: usize,
    /// Name in reports.
    pub(crate) name: String,
    /// Policies that do not hold here, with the reason that the declaration gives.
    pub(crate) waived: Rules,
}

/// The arena and its regions.
pub(crate) struct Heap {
    pages: Pages,
    used: usize,
    regions: Vec<Region>,
    parts: Vec<Part>,
    /// The region that was asked for last: the next question is often about it.
    last: Cell<usize>,
}

impl Heap {
    /// An empty arena.
    pub(crate) fn new() -> io::Result<Self> {
        let pages = Pages::shared(ARENA_BYTES)?;
        let (regions, parts) = (Vec::new(), Vec::new());
        Ok(Self { pages, used: GAP, regions, parts, last: Cell::new(0) })
    }

    /// First byte of the arena.
    pub(crate) fn base(&self) -> usize {
        self.pages.start() as usize
    }

    /// Bytes up to the last region's end.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// A new region of zeros; `align` is a power of two.
    pub(crate) fn alloc(
        &mut self,
        (rank, reach): (u32, Reach),
        bytes: usize,
        align: usize,
        name: &str,
    ) -> Result<usize, Failure> {
        let from = self.used.next_multiple_of(align);
        let end = from.checked_add(bytes).and_then(|end| end.checked_add(GAP));
        let Some(end) = end.filter(|end| *end <= self.pages.len()) else {
            let message = format!("{name}: {bytes} bytes do not fit in the world's memory");
            return Err(Failure::new(FailureKind::Launch, message));
        };
        self.used = end;
        self.regions.push(Region { from, bytes, name: name.to_owned(), rank, reach });
        Ok(from)
    }

    /// Names a part of a region.
    pub(crate) fn name_part(&mut self, part: Part) {
        let at = self.parts.partition_point(|known| known.from <= part.from);
        self.parts.insert(at, part);
    }

    /// The named parts.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Forgets the regions from `count` on and all that was allocated since.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.regions.truncate(count);
        self.used = self.regions.last().map_or(GAP, |last| last.from + last.bytes + GAP);
    }

    /// How many regions there are.
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// The region that holds the `bytes` from `offset` on, all of them.
    pub(crate) fn region_of(&self, offset: usize, bytes: usize) -> Option<&Region> {
        let holds =
            |region: &Region| offset >= region.from && offset + bytes <= region.from + region.bytes;
        if let Some(region) = self.regions.get(self.last.get())
            && holds(region)
        {
            return Some(region);
        }
        let after = self.regions.partition_point(|region| region.from <= offset);
        let index = after.checked_sub(1)?;
        self.last.set(index);
        Some(&self.regions[index]).filter(|region| holds(region))
    }

    /// The innermost named part that holds `offset`.
    pub(crate) fn part_of(&self, offset: usize) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.from <= offset);
        self.parts[..after].iter().rev().find(|part| offset < part.from + part.bytes)
    }

    /// `offset` as a reader knows it: part or region, rank, distance from its start.
    pub(crate) fn describe(&self, offset: usize) -> String {
        if offset >= self.pages.len() {
            let address = self.base().wrapping_add(offset);
            return format!("{address:#x}, which is no address of the world");
        }
        let Some(region) = self.region_of(offset, 1) else {
            let before = self.regions.iter().rfind(|region| region.from <= offset);
            return match before {
                Some(near) => {
                    let past = offset.wrapping_sub(near.from + near.bytes);
                    format!("{past} bytes past {} of rank {}", near.name, near.rank)
                }
                None => "an address outside every buffer".to_owned(),
            };
        };
        let (name, from) = match self.part_of(offset) {
            Some(part) => (format!("{}.{}", region.name, part.name), part.from),
            None => (region.name.clone(), region.from),
        };
        format!("{name} of rank {} + {}", region.rank, offset - from)
    }

    /// Marks the gaps between the regions as forbidden for the address sanitizer, or allows all.
    pub(crate) fn poison(&self, mark: Poison, on: bool) {
        // SAFETY: `mark` only changes the sanitizer's own notes about memory of the arena.
        unsafe {
            mark(self.base(), self.used + GAP, i32::from(on));
            if on {
                for region in &self.regions {
                    mark(self.base() + region.from, region.bytes, 0);
                }
            }
        }
    }

    /// The bytes of a region or a part of one.
    pub(crate) fn bytes(&self, at: Address, bytes: usize) -> Option<&[u8]> {
        let offset = (at.0 as usize).wrapping_sub(self.base());
        self.region_of(offset, bytes)?;
        // SAFETY: the range lies inside the mapping, and no kernel runs while `self` is borrowed:
        // a run holds the world exclusively.
        Some(unsafe { std::slice::from_raw_parts((self.base() + offset) as *const u8, bytes) })
    }

    /// The bytes of a region, to be written.
    pub(crate) fn bytes_mut(&mut self, at: Address, bytes: usize) -> Option<&mut [u8]> {
        let offset = (at.0 as usize).wrapping_sub(self.base());
        self.region_of(offset, bytes)?;
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        Some(unsafe { std::slice::from_raw_parts_mut((self.base() + offset) as *mut u8, bytes) })
    }
}
