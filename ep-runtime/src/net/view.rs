//! The description of a network for a kernel: `ep::Net` in device memory, for the whole network or for one
//! kernel's part.

use std::sync::Arc;

use ep_codegen::ir::Transport;
use ep_codegen::plan::Plan;

use super::layout::Layout;
use crate::backend::Backend;
use crate::group::positive;
use crate::memory::{DeviceMemory, align_up};
use crate::net_error::NetError;

/// The words of `ep::Net` (`templates/device/ep/net.cuh`) in order. A test holds this list against the
/// header's text.
const NET_WORDS: [&str; 13] = [
    "char* data",
    "u32* counters",
    "NetDescriptor* descriptors",
    "NetProgress* progress",
    "u32* claimed",
    "QueuePair* pairs",
    "u64 begin",
    "u32 slots",
    "u32 queues",
    "u32 counters_each",
    "u32 rank",
    "u32 first",
    "u32 ranks",
];

/// Bytes of `ep::Net`.
const NET_BYTES: u64 = 80;

/// One kernel's part of a network: its rows, at the same offset on every rank, and its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetPart {
    /// Bytes of rows before those of the kernel.
    pub begin: u64,
    /// Number of counters of each source and queue before those of the kernel.
    pub first: u32,
}

impl NetPart {
    /// Places the parts of several plans one after another, and returns them with the total rows and
    /// counters. Fails if a plan was made for another kind of network.
    pub fn place<'a>(
        plans: impl IntoIterator<Item = &'a Plan>,
        carrier: &Transport,
    ) -> Result<(Vec<NetPart>, u64, usize), NetError> {
        let mut end = NetPart::default();
        let mut parts = Vec::new();
        for plan in plans {
            if plan.network_counters > 0 && plan.carrier.as_ref() != Some(carrier) {
                let (pipeline, is_card) = (plan.pipeline.clone(), *carrier == Transport::Ibgda);
                return Err(NetError::Carrier { pipeline, is_card });
            }
            parts.push(end);
            end.begin += align_up(positive(plan.network_bytes));
            end.first += positive(plan.network_counters) as u32;
        }
        Ok((parts, end.begin, end.first as usize))
    }
}

/// What kernels speak to, by its addresses.
pub(super) enum Ends {
    /// Queues that the processor empties.
    Queues { descriptors: u64, progress: u64 },
    /// The queue pairs of a card, whose table is in device memory.
    Pairs,
}

/// Where kernels find what a rank has.
pub(super) struct Places {
    pub(super) data: u64,
    pub(super) counters: u64,
    pub(super) ends: Ends,
}

impl Places {
    /// Of queues that the processor empties: offsets of words count from `base`, and rows are at `data`.
    pub(super) fn of_queues(layout: &Layout, data: u64, base: u64) -> Places {
        let at = |offset: u64| base.wrapping_add(offset);
        let (descriptors, progress) = (at(layout.descriptor(0, 0)), at(layout.progress(0)));
        let counters = at(layout.counter(0, 0, 0));
        Places { data, counters, ends: Ends::Queues { descriptors, progress } }
    }
}

/// `ep::Net` of one rank in device memory: of all that is there, and of parts of it.
pub(super) struct Views {
    backend: Arc<dyn Backend>,
    local: usize,
    layout: Layout,
    rank: usize,
    places: Places,
    /// A word for each queue: how many descriptors were claimed; or the table of queue pairs.
    claims: DeviceMemory,
    /// That of all.
    pub(super) all: DeviceMemory,
}

impl Views {
    /// Of queues that the processor empties.
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        local: usize,
        (layout, rank): (&Layout, usize),
        places: Places,
    ) -> Result<Views, NetError> {
        let claims = DeviceMemory::zeroed(backend, local, 4 * layout.queues as u64)?;
        Views::at((backend, local), (layout, rank), places, claims)
    }

    /// Of such places, and what kernels claim in device memory.
    pub(super) fn at(
        (backend, local): (&Arc<dyn Backend>, usize),
        (layout, rank): (&Layout, usize),
        places: Places,
        claims: DeviceMemory,
    ) -> Result<Views, NetError> {
        let all = DeviceMemory::zeroed(backend, local, NET_BYTES)?;
        let (backend, layout) = (Arc::clone(backend), *layout);
        let views = Views { backend, local, layout, rank, places, claims, all };
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
        let Views { layout, places, .. } = self;
        let claims = self.claims.address();
        let [descriptors, progress, claimed, pairs] = match places.ends {
            Ends::Queues { descriptors, progress } => [descriptors, progress, claims, 0],
            Ends::Pairs => [0, 0, 0, claims],
        };
        let (data, counters) =
            (places.data + part.begin, places.counters + 4 * u64::from(part.first));
        let wide = [data, counters, descriptors, progress, claimed, pairs, part.begin];
        let narrow = [layout.slots, layout.queues, layout.counters, self.rank];
        let narrow = narrow.map(|number| number as u32).into_iter();
        let narrow = narrow.chain([part.first, layout.ranks as u32]);
        let wide = wide.into_iter().flat_map(u64::to_le_bytes);
        let words: Vec<u8> = wide.chain(narrow.flat_map(u32::to_le_bytes)).collect();
        debug_assert_eq!(words.len(), 8 * 7 + 4 * (NET_WORDS.len() - 7));
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
