//! What lies where: the tables of a handle, the parts of an output, the regions of the window.

use std::fmt;

use ep_codegen::plan::{Extent, Plan};

use super::options::BufferOptions;
use crate::group::positive;
use crate::memory::align_up;

/// Blocks of counts that each handle has: so many calls in a row may drop theirs unread before one waits.
pub(super) const COUNT_BLOCKS: usize = 16;

/// Named blocks one behind another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Blocks {
    /// Name, start, size.
    places: Vec<(String, u64, u64)>,
    bytes: u64,
}

impl Blocks {
    fn of<'a>(blocks: impl IntoIterator<Item = (&'a str, u64)>) -> Blocks {
        let mut all = Blocks::default();
        for (name, bytes) in blocks {
            all.places.push((name.to_string(), all.bytes, bytes));
            all.bytes += align_up(bytes);
        }
        all
    }

    /// Start of a block.
    pub(super) fn at(&self, name: &str) -> Option<u64> {
        self.places.iter().find(|(own, ..)| *own == name).map(|(_, at, _)| *at)
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Names, starts and sizes.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.places.iter().map(|(name, at, bytes)| (name.as_str(), *at, *bytes))
    }
}

/// Where things are inside their blocks that a call needs by itself, so that it looks up no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Places {
    /// Among the counts.
    pub(super) received: u64,
    pub(super) per_expert: u64,
    /// Among the tables.
    pub(super) rank_prefix: u64,
    /// In the regions of the window.
    pub(super) received_rows: u64,
    pub(super) offered_rows: u64,
    pub(super) offered_weights: u64,
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
    /// Some places inside these.
    pub(super) places: Places,
    /// First byte of the window behind all control memory.
    regions_at: u64,
    live: u64,
    handles: u64,
}

impl MemoryLayout {
    /// `control_bytes`: the control memory of all plans; `meta_bytes`: a direct channel's record. What
    /// a dispatch leaves for later calls are the tables of its plans and what their kernels read of
    /// one another.
    pub(super) fn new<'a>(
        options: &BufferOptions,
        ranks: usize,
        plans: impl Iterator<Item = &'a Plan>,
        control_bytes: u64,
        meta_bytes: u64,
    ) -> MemoryLayout {
        let capacity = options.capacity(ranks) as u64;
        let topk = options.topk as u64;
        let scales = options.payload.scales(options.hidden) as u64 * options.payload.scale_bytes();
        let rows = |extent: &Extent| match extent.size.as_deref() {
            Some("tokens") => options.tokens as u64,
            Some(_) => capacity,
            None => 1,
        };
        let (mut tables, mut counts): (Vec<(&str, u64)>, Vec<_>) = (Vec::new(), Vec::new());
        for extent in plans.flat_map(|plan| &plan.extents) {
            let (name, bytes) = (extent.tensor.as_str(), rows(extent) * positive(extent.bytes));
            match extent {
                Extent { to_host: true, .. } => counts.push((name, bytes)),
                // Any other output is the caller's or lies in a region.
                Extent { is_table: false, .. } => {}
                // A cached dispatch writes some tables of the fresh one again.
                _ => match tables.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, most)) => *most = bytes.max(*most),
                    None => tables.push((name, bytes)),
                },
            }
        }
        let mut layout = MemoryLayout {
            tables: Blocks::of(tables),
            counts: Blocks::of(counts),
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
            places: Places::default(),
            regions_at: align_up(control_bytes),
            live: options.live as u64,
            handles: options.handles() as u64,
        };
        let at = |blocks: &Blocks, name: &str| blocks.at(name).unwrap_or(0);
        layout.places = Places {
            received: at(&layout.counts, "received"),
            per_expert: at(&layout.counts, "received_per_expert"),
            rank_prefix: at(&layout.tables, "rank_prefix"),
            received_rows: at(&layout.received, "rows"),
            offered_rows: at(&layout.offered, "rows"),
            offered_weights: at(&layout.offered, "weights"),
        };
        layout
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

    /// Memory of a buffer per rank, known before it is allocated.
    pub(super) fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            control: self.regions_at,
            outputs: self.live * (self.received.bytes() + self.unpacked.bytes()),
            combine_inputs: self.live * self.offered.bytes(),
            tables: self.handles * self.tables.bytes(),
            host: self.handles * COUNT_BLOCKS as u64 * self.counts.bytes(),
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

/// In MiB, rounded up.
impl fmt::Display for MemoryUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryUsage { control, outputs, combine_inputs, tables, host } = self;
        let mib = |bytes: &u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "control {} MiB, outputs {} MiB, combine inputs {} MiB, tables {} MiB, on the host {} MiB",
            mib(control),
            mib(outputs),
            mib(combine_inputs),
            mib(tables),
            mib(host)
        )
    }
}

#[cfg(test)]
mod tests {
    use ep_codegen::plan::Arch;

    use super::*;
    use crate::buffer::programs::Programs;
    use crate::buffer::{BuiltIn, Via};

    fn programs(options: &BufferOptions, ranks: usize) -> Programs {
        Programs::emit(&BuiltIn, ranks, Arch::Sm90a, options).unwrap()
    }

    #[test]
    fn regions_follow_the_control_memory_and_do_not_meet() {
        let options = BufferOptions { live: 2, ..BufferOptions::new(10, 48, 2, 8) };
        let programs = programs(&options, 3);
        let layout = MemoryLayout::new(&options, 3, programs.plans(), 1000, 128);
        assert_eq!(layout.received_at(0), 1024);
        // 30 rows of 96 bytes in lines of 128, and as many records of 128 bytes.
        assert_eq!(layout.received.bytes(), 2 * align_up(30 * 128));
        assert_eq!(layout.received_at(1), 1024 + layout.received.bytes());
        assert_eq!(layout.offered_at(0), 1024 + 2 * layout.received.bytes());
        assert_eq!(layout.window_bytes(), layout.offered_at(0) + 2 * layout.offered.bytes());
    }

    /// The tables are those of the plans, with room for all tokens, all rows and all stripes.
    #[test]
    fn tables_have_the_extents_of_their_plans() {
        for via in Via::ALL {
            let options = BufferOptions { via, ..BufferOptions::new(1000, 64, 2, 8) };
            let programs = programs(&options, 2);
            let layout = programs.layout(&options, 2);
            let stripes = programs.dispatch.plan.numbers["stripes"] as u64;
            let bytes = |name: &str| {
                let part = layout.tables.parts().find(|(own, ..)| *own == name);
                part.map(|(_, _, bytes)| bytes)
            };
            assert_eq!(bytes("tokens_per_expert"), Some(4 * 8));
            assert_eq!(bytes("in_rank"), Some(2 * 1000));
            assert_eq!(bytes("stripe_tokens"), Some(4 * 2 * stripes));
            assert_eq!(bytes("recv_src"), Some(4 * 2 * 1000));
            let (row, head) = (bytes("send_row"), bytes("send_head"));
            let table = Some(4 * 2 * 1000);
            let wanted = if via == Via::Direct { (table, None) } else { (None, table) };
            assert_eq!((row, head), wanted);
            assert_eq!(bytes("recv_topk_idx"), None, "it lies in the output");
            assert_eq!(layout.places.per_expert, 256);
            assert_eq!(layout.tables.at("nothing"), None);
        }
    }

    #[test]
    fn memory_is_known_before_it_is_allocated() {
        let options = BufferOptions { live: 2, ..BufferOptions::new(4096, 7168, 8, 256) };
        let usage = MemoryUsage::of(&options, 4, Arch::Sm90a, &BuiltIn).unwrap();
        // Two outputs of 16384 rows of 14336 bytes, and what comes with them.
        let rows = 2 * 16384 * 14336;
        assert!(usage.outputs > rows && usage.outputs < rows + rows / 20, "{usage}");
        assert!(usage.control < 8 << 20, "{usage}");
        let text = usage.to_string();
        assert!(text.starts_with("control ") && text.contains(", outputs 4"), "{text}");
    }

    #[test]
    fn the_largest_buffer_has_a_size_and_a_larger_one_an_error() {
        let most = BufferOptions { live: 4096, ..BufferOptions::new(1 << 24, 32768, 32, 4096) };
        let usage = |options| MemoryUsage::of(&options, 64, Arch::Sm90a, &BuiltIn);
        assert!(usage(most.clone()).is_ok());
        let larger = BufferOptions { tokens: usize::MAX, ..most };
        assert!(usage(larger).unwrap_err().to_string().contains("tokens on each of 64 ranks"));
    }
}
