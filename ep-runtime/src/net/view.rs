//! What a kernel gets of a network: `ep::Net` in device memory, of all that a rank has or of one kernel's part.

use std::sync::Arc;

use ep_codegen::plan::Plan;

use super::layout::Layout;
use crate::backend::Backend;
use crate::group::positive;
use crate::memory::{DeviceMemory, align_up};
use crate::net_error::NetError;

/// The words of `ep::Net` (`templates/device/ep/net.cuh`) in order. A test holds this list against the
/// header's text.
const NET_WORDS: [&str; 11] = [
    "char* data",
    "u32* counters",
    "NetDescriptor* descriptors",
    "NetProgress* progress",
    "u32* claimed",
    "u64 begin",
    "u32 slots",
    "u32 queues",
    "u32 counters_each",
    "u32 rank",
    "u32 first",
];

/// Bytes of `ep::Net`.
const NET_BYTES: u64 = 72;

/// The part of a network that is one kernel's: its rows, at the same offset on every rank, and its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetPart {
    /// Bytes of rows before those of the kernel.
    pub begin: u64,
    /// Counters of each source and queue before those of the kernel.
    pub first: u32,
}

impl NetPart {
    /// The parts of several plans one behind another, and the rows and counters of all.
    pub fn place<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> (Vec<NetPart>, u64, usize) {
        let mut end = NetPart::default();
        let parts = plans.into_iter().map(|plan| {
            let part = end;
            end.begin += align_up(positive(plan.network_bytes));
            end.first += positive(plan.network_counters) as u32;
            part
        });
        let parts = parts.collect();
        (parts, end.begin, end.first as usize)
    }
}

/// `ep::Net` of one rank in device memory: of all that is there, and of parts of it.
pub(super) struct Views {
    backend: Arc<dyn Backend>,
    local: usize,
    layout: Layout,
    rank: usize,
    /// Where kernels find the block of host memory.
    base: u64,
    /// A word for each queue: how many descriptors were claimed.
    claimed: DeviceMemory,
    /// That of all.
    pub(super) all: DeviceMemory,
}

impl Views {
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        local: usize,
        (layout, rank): (&Layout, usize),
        base: u64,
    ) -> Result<Views, NetError> {
        let claimed = DeviceMemory::zeroed(backend, local, 4 * layout.queues as u64)?;
        let all = DeviceMemory::zeroed(backend, local, NET_BYTES)?;
        let (backend, layout) = (Arc::clone(backend), *layout);
        let views = Views { backend, local, layout, rank, base, claimed, all };
        views.all.write(0, &views.words(NetPart::default()))?;
        Ok(views)
    }

    /// That of a part.
    pub(super) fn part(&self, part: NetPart) -> Result<DeviceMemory, NetError> {
        let memory = DeviceMemory::zeroed(&self.backend, self.local, NET_BYTES)?;
        memory.write(0, &self.words(part))?;
        Ok(memory)
    }

    fn words(&self, part: NetPart) -> Vec<u8> {
        let Views { layout, base, .. } = self;
        let wide = [
            base + part.begin,
            base + layout.counter(0, 0, part.first as usize),
            base + layout.descriptor(0, 0),
            base + layout.progress(0),
            self.claimed.address(),
            part.begin,
        ];
        let narrow = [layout.slots, layout.queues, layout.counters, self.rank];
        let narrow = narrow.map(|number| number as u32).into_iter().chain([part.first]);
        let wide = wide.into_iter().flat_map(u64::to_le_bytes);
        let words: Vec<u8> = wide.chain(narrow.flat_map(u32::to_le_bytes)).collect();
        debug_assert_eq!(words.len(), 8 * 6 + 4 * (NET_WORDS.len() - 6));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_header() {
        assert_eq!(crate::device::members_of("ep/net.cuh", "struct Net {"), NET_WORDS);
    }
}
