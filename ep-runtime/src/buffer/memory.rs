//! What lies where: the tables of a handle, the parts of an output, the regions of the window.

use super::options::BufferOptions;
use crate::memory::align_up;

/// Named blocks one behind another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Blocks {
    places: Vec<(&'static str, u64)>,
    bytes: u64,
}

impl Blocks {
    fn of(blocks: impl IntoIterator<Item = (&'static str, u64)>) -> Blocks {
        let mut all = Blocks::default();
        for (name, bytes) in blocks {
            all.places.push((name, all.bytes));
            all.bytes += align_up(bytes);
        }
        all
    }

    /// Start of a block.
    pub(super) fn at(&self, name: &str) -> Option<u64> {
        self.places.iter().find(|(own, _)| *own == name).map(|(_, at)| *at)
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Names, starts and sizes.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let ends = self.places.iter().skip(1).map(|(_, at)| *at).chain([self.bytes]);
        self.places.iter().zip(ends).map(|((name, at), end)| (*name, *at, end - at))
    }
}

/// The layout of all memory of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemoryLayout {
    /// Tables of a handle, in device memory.
    pub(super) tables: Blocks,
    /// Counts of a handle, in host memory.
    pub(super) counts: Blocks,
    /// What of an output is unpacked into device memory.
    pub(super) unpacked: Blocks,
    /// What of an output peers write: a region of the window.
    pub(super) received: Blocks,
    /// What of a combine input peers read: a region of the window.
    pub(super) offered: Blocks,
    /// First byte of the window behind all control memory.
    regions_at: u64,
    live: u64,
}

impl MemoryLayout {
    /// `control_bytes`: the control memory of all plans; `meta_bytes`: a direct channel's record.
    pub(super) fn new(
        options: &BufferOptions,
        ranks: usize,
        stripes: usize,
        control_bytes: u64,
        meta_bytes: u64,
    ) -> MemoryLayout {
        let (tokens, experts) = (options.tokens as u64, options.experts as u64);
        let (ranks_u, stripes) = (ranks as u64, stripes as u64);
        let capacity = options.capacity(ranks) as u64;
        let topk = options.topk as u64;
        let scales = options.payload.scales(options.hidden) as u64 * options.payload.scale_bytes();
        let pairs = ranks_u * stripes;
        MemoryLayout {
            tables: Blocks::of([
                ("tokens_per_rank", 4 * ranks_u),
                ("tokens_per_expert", 4 * experts),
                ("stripe_tokens", 4 * pairs),
                ("in_rank", tokens * ranks_u),
                ("rank_prefix", 4 * (ranks_u + 1) * ranks_u),
                ("stripe_prefix", 4 * pairs),
                ("send_row", 4 * tokens * ranks_u),
                ("send_head", 4 * tokens * ranks_u),
                ("recv_first", 4 * pairs),
                ("recv_count", 4 * pairs),
                ("recv_src", 4 * capacity),
            ]),
            counts: Blocks::of([
                ("received", 4),
                ("received_per_expert", 4 * options.local_experts(ranks) as u64),
            ]),
            unpacked: Blocks::of([
                ("scale", capacity * scales),
                ("recv_topk_idx", 8 * capacity * topk),
                ("recv_topk_weights", 4 * capacity * topk),
            ]),
            received: Blocks::of([
                ("rows", options.rows_bytes(ranks)),
                ("meta", capacity * meta_bytes),
            ]),
            offered: Blocks::of([
                ("rows", 2 * capacity * options.combine_stride()),
                ("weights", 4 * capacity * options.weights_stride()),
            ]),
            regions_at: align_up(control_bytes),
            live: options.live as u64,
        }
    }

    /// Start of the `index`-th received region in the window.
    pub(super) fn received_at(&self, index: usize) -> u64 {
        self.regions_at + index as u64 * self.received.bytes()
    }

    /// Start of the `index`-th offered region in the window.
    pub(super) fn offered_at(&self, index: usize) -> u64 {
        self.received_at(self.live as usize) + index as u64 * self.offered.bytes()
    }

    /// Bytes of the window.
    pub(super) fn window_bytes(&self) -> u64 {
        self.offered_at(self.live as usize)
    }

    /// Memory of a buffer per rank, for a user who wants to know before it is allocated.
    pub(super) fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            control: self.regions_at,
            outputs: self.live * (self.received.bytes() + self.unpacked.bytes()),
            combine_inputs: self.live * self.offered.bytes(),
            tables: self.live * self.tables.bytes(),
            host: self.live * self.counts.bytes(),
        }
    }
}

/// Memory that a buffer takes on each rank, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Rings, flags and counters.
    pub control: u64,
    /// Outputs of dispatches.
    pub outputs: u64,
    /// Inputs of combines.
    pub combine_inputs: u64,
    /// Tables of handles.
    pub tables: u64,
    /// Host memory for counts.
    pub host: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_follow_the_control_memory_and_do_not_meet() {
        let options = BufferOptions { live: 2, ..BufferOptions::new(10, 48, 2, 8) };
        let layout = MemoryLayout::new(&options, 3, 4, 1000, 128);
        assert_eq!(layout.received_at(0), 1024);
        // 30 rows of 96 bytes in lines of 128, and as many records of 128 bytes.
        assert_eq!(layout.received.bytes(), 2 * align_up(30 * 128));
        assert_eq!(layout.received_at(1), 1024 + layout.received.bytes());
        assert_eq!(layout.offered_at(0), 1024 + 2 * layout.received.bytes());
        assert_eq!(layout.window_bytes(), layout.offered_at(0) + 2 * layout.offered.bytes());
    }

    #[test]
    fn tables_are_found_by_name() {
        let layout = MemoryLayout::new(&BufferOptions::new(10, 64, 2, 8), 2, 4, 0, 0);
        assert_eq!(layout.tables.at("tokens_per_rank"), Some(0));
        assert_eq!(layout.tables.at("tokens_per_expert"), Some(256));
        assert_eq!(layout.tables.at("nothing"), None);
    }
}
