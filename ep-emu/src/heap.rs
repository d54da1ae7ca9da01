//! The memory of all ranks: one arena, cut into named regions with gaps between them.
//!
//! Every rank's buffers and every block's shared memory lie in it, so that one address check finds
//! what an access touches. The arena is shared with forked workers: what the parent wrote before a
//! run and reads after it needs no copy.

use std::cell::Cell;
use std::fs::File;
use std::io;

use crate::abi::Poison;
use crate::failure::{Failure, FailureKind};
use crate::os::Pages;
use crate::rules::Rules;

/// Bytes of address space; pages are backed when touched.
pub(crate) const ARENA_BYTES: usize = 16 << 30;
/// The arena is opened in steps: a kernel that writes on and on must not use up the machine's memory.
const STEP_BYTES: usize = 1 << 30;
/// How buffers, and the parts of one, are aligned.
pub(crate) const ALIGNMENT: usize = 256;
/// Marked bytes on both sides of each region: what a run has changed there it wrote outside.
const GUARD: usize = 1024;
const MARK: u8 = 0x5a;
/// Unused bytes after each region, by its length: a row number far out of range hits no other buffer.
const GAP: std::ops::RangeInclusive<usize> = 4 * GUARD..=1 << 20;

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

/// Memory that a launch knows as a tensor, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchTensor {
    /// Name in the kernel.
    pub name: String,
    /// First element.
    pub at: Address,
    /// Bytes from one row to the next; 0 if it has no rows.
    pub row_bytes: u64,
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
    /// Bytes that can be touched.
    open: usize,
    regions: Vec<Region>,
    parts: Vec<Part>,
    /// The region that was asked for last: the next question is often about it.
    last: Cell<usize>,
}

/// Unused bytes behind a region of `bytes`.
fn gap(bytes: usize) -> usize {
    bytes.saturating_mul(4).clamp(*GAP.start(), *GAP.end())
}

impl Heap {
    /// An empty arena.
    pub(crate) fn new() -> io::Result<Self> {
        let pages = Pages::shared(ARENA_BYTES)?;
        pages.open(STEP_BYTES)?;
        let (used, open) = (*GAP.start(), STEP_BYTES);
        let (regions, parts) = (Vec::new(), Vec::new());
        Ok(Self { pages, used, open, regions, parts, last: Cell::new(0) })
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
        let end = from.checked_add(bytes).and_then(|end| end.checked_add(gap(bytes)));
        let Some(end) = end.filter(|end| *end <= self.pages.len()) else {
            let message = format!("{name}: {bytes} bytes do not fit into the emulator's memory");
            return Err(Failure::new(FailureKind::Launch, message));
        };
        if end > self.open {
            let open = end.next_multiple_of(STEP_BYTES);
            self.pages.open(open).map_err(|error| {
                Failure::new(FailureKind::Launch, format!("{name}: {bytes} bytes: {error}"))
            })?;
            self.open = open;
        }
        self.used = end;
        self.regions.push(Region { from, bytes, name: name.to_owned(), rank, reach });
        self.mark_guards(self.regions.len() - 1);
        Ok(from)
    }

    /// Backs a region of whole pages, which begins at `from`, by the memory of a file; without one, by fresh zeros.
    pub(crate) fn place(&mut self, from: usize, file: Option<&File>) -> io::Result<()> {
        let known = self.regions.iter().find(|region| region.from == from);
        let region = known.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.pages.place(from, region.bytes, file)
    }

    /// The marked bytes before and behind a region.
    fn guards(&mut self, region: usize) -> [(usize, &mut [u8]); 2] {
        let Region { from, bytes, .. } = self.regions[region];
        [from - GUARD, from + bytes].map(|at| {
            // SAFETY: the gaps are longer than two guards, so that these lie inside the mapping and
            // apart from each other and from every region; no kernel runs while `self` is borrowed.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(self.pages.start().add(at), GUARD) };
            (at, bytes)
        })
    }

    fn mark_guards(&mut self, region: usize) {
        self.guards(region).into_iter().for_each(|(_, bytes)| bytes.fill(MARK));
    }

    /// Bytes outside the regions that a run has written, as offset and length, region by region; they
    /// are marked again.
    pub(crate) fn take_strays(&mut self) -> Vec<(usize, usize)> {
        let mut strays = Vec::new();
        for region in 0..self.regions.len() {
            for (at, bytes) in self.guards(region) {
                let strange = |byte: &u8| *byte != MARK;
                let Some(first) = bytes.iter().position(strange) else { continue };
                let last = bytes.iter().rposition(strange).unwrap_or(first);
                strays.push((at + first, last + 1 - first));
                bytes.fill(MARK);
            }
        }
        strays
    }

    /// Names a part of a region.
    pub(crate) fn name_part(&mut self, part: Part) {
        let at = self.parts.partition_point(|known| known.from <= part.from);
        self.parts.insert(at, part);
    }

    /// Forgets the parts of the region that begins at `from`.
    pub(crate) fn forget_parts(&mut self, from: usize) {
        let Some(region) = self.regions.iter().find(|region| region.from == from) else { return };
        let end = from + region.bytes;
        self.parts.retain(|part| !(from..end).contains(&part.from));
    }

    /// Whether `offset` in a region is memory of one of these tensors, and not of the pipeline itself.
    pub(crate) fn is_tensor(
        &self,
        region: &Region,
        offset: usize,
        tensors: &[LaunchTensor],
    ) -> bool {
        let begin = self.part_of(offset).map_or(region.from, |part| part.from);
        let is_before = |tensor: &LaunchTensor| {
            let from = (tensor.at.0 as usize).wrapping_sub(self.base());
            (begin..=offset).contains(&from)
        };
        tensors.iter().any(is_before)
    }

    /// The named parts.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Forgets the regions from `count` on and all that was allocated since.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.regions.truncate(count);
        let end = |last: &Region| last.from + last.bytes + gap(last.bytes);
        self.used = self.regions.last().map_or(*GAP.start(), end);
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

    /// The part behind which an access touches bytes that only align the next one, if so.
    pub(crate) fn padded(&self, offset: usize, bytes: usize) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.from <= offset);
        let last = self.parts[..after].last()?;
        let end = last.from + last.bytes;
        if offset + bytes <= end || offset >= end.next_multiple_of(ALIGNMENT) {
            return None;
        }
        let region = self.region_of(offset, bytes)?;
        let holds = |part: &&Part| offset + bytes <= part.from + part.bytes;
        let whole = self.parts[..after].iter().rev().take_while(|part| part.from >= region.from);
        (last.from >= region.from && !whole.into_iter().any(|part| holds(&part))).then_some(last)
    }

    /// `offset` as a reader knows it: tensor, part or region, rank, place in it.
    pub(crate) fn describe(&self, offset: usize, tensors: &[LaunchTensor]) -> String {
        if offset >= self.pages.len() {
            let address = self.base().wrapping_add(offset);
            return format!("{address:#x}, which is not an address of the emulator");
        }
        let Some(region) = self.near(offset) else {
            return "an address outside of all buffers".to_owned();
        };
        let part = self.part_of(offset).or_else(|| self.padded(offset, 1));
        let from = part.map_or(region.from, |part| part.from);
        if let Some(tensor) = self.tensor_at(region, from, offset, tensors) {
            return tensor;
        }
        let rank = region.rank;
        let end = part.map_or(region.from + region.bytes, |part| part.from + part.bytes);
        let name = match part {
            Some(part) => format!("{}.{}", region.name, part.name),
            None => region.name.clone(),
        };
        match offset.checked_sub(end) {
            Some(past) => format!("{past} bytes past {name} of rank {rank}"),
            None if offset < region.from => {
                format!("{} bytes before {name} of rank {rank}", region.from - offset)
            }
            None => format!("{name} of rank {rank} + {}", offset - from),
        }
    }

    /// The region that holds `offset`, or whose guard does, or that ends before it.
    fn near(&self, offset: usize) -> Option<&Region> {
        let after = self.regions.partition_point(|region| region.from <= offset + GUARD);
        let regions = &self.regions[..after];
        match regions {
            [.., before, last] if offset < last.from && offset < before.from + before.bytes => {
                Some(before)
            }
            [.., last] => Some(last),
            [] => None,
        }
    }

    /// The last tensor that begins in the region at `from` or later and not behind `offset`.
    fn tensor_at(
        &self,
        region: &Region,
        from: usize,
        offset: usize,
        tensors: &[LaunchTensor],
    ) -> Option<String> {
        let place = |tensor: &LaunchTensor| (tensor.at.0 as usize).wrapping_sub(self.base());
        let end = region.from + region.bytes;
        let known = tensors.iter().filter(|it| (from..=offset).contains(&place(it)));
        let tensor = known.filter(|it| place(it) < end).max_by_key(|it| place(it))?;
        let (start, rank) = (place(tensor), region.rank);
        let end = self.part_of(start).map_or(end, |part| part.from + part.bytes);
        let at = offset - start;
        let row_bytes = usize::try_from(tensor.row_bytes).unwrap_or(0);
        let mut text = format!("{} of rank {rank}", tensor.name);
        if let Some(row) = at.checked_div(row_bytes) {
            text.push_str(&format!(", row {row} of {}", (end - start) / row_bytes));
            if !(end - start).is_multiple_of(row_bytes) {
                text.push_str(&format!(" and {} bytes", (end - start) % row_bytes));
            }
            if !at.is_multiple_of(row_bytes) {
                text.push_str(&format!(", byte {}", at % row_bytes));
            }
        } else if offset < end {
            text.push_str(&format!(" + {at}"));
        } else {
            text.push_str(&format!(", {} bytes past its end", offset - end));
        }
        Some(text)
    }

    /// Marks the gaps between the regions as forbidden for the address sanitizer, or allows all.
    pub(crate) fn poison(&self, mark: Poison, on: bool) {
        // SAFETY: `mark` only changes the sanitizer's own notes about memory of the arena.
        unsafe {
            mark(self.base(), self.used, i32::from(on));
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
