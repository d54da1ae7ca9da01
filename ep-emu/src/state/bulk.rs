//! Bulk copies under way.

use super::Idx;
use super::mbarrier::MbarrierRef;

/// How a copy reports its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    /// A load: bytes arrive on an mbarrier.
    Mbarrier(MbarrierRef),
    /// A store: it belongs to this bulk group of its lane.
    Group(u64),
}

/// A copy under way.
#[derive(Debug)]
pub(crate) struct BulkCopy {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) bytes: u32,
    pub(crate) lane: Idx,
    pub(crate) signal: Signal,
    /// What was read, once it was.
    pub(crate) read: Option<Vec<u8>>,
    /// A fault delays it until nothing else can happen.
    pub(crate) late: bool,
}

/// All copies under way.
pub(crate) struct Engine {
    pub(crate) copies: Vec<BulkCopy>,
    /// Copies that a fault has stopped for good.
    pub(crate) stalled: usize,
    pub(crate) buffers: Vec<Vec<u8>>,
}

impl Engine {
    /// No copies.
    pub(crate) fn new() -> Self {
        Self { copies: Vec::new(), stalled: 0, buffers: Vec::new() }
    }

    /// Whether copies are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Copies that a fault has stopped.
    pub(crate) fn stalled(&self) -> usize {
        self.stalled
    }
}
