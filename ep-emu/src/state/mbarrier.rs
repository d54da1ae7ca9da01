//! The record of one mbarrier.

use super::Idx;
use crate::abi::Pc;

/// One mbarrier of a block.
#[derive(Clone, Debug)]
pub(crate) struct Mbarrier {
    pub(crate) at: usize,
    pub(crate) stamp: u32,
    pub(crate) expected: u32,
    pub(crate) pending: u32,
    /// Bytes announced and not yet arrived; negative while they arrive before their announcement.
    pub(crate) bytes: i64,
    /// Completed phases.
    pub(crate) phase: u64,
    /// Whether the initialisation was fenced for the async proxy, and by whom it must be.
    pub(crate) fenced: bool,
    pub(crate) owner: Idx,
    /// Bulk loads that have not completed.
    pub(crate) in_flight: u32,
    /// One more than the last phase that a bulk load belongs to.
    pub(crate) loads_until: u64,
    /// Completed phases that a lane has seen.
    pub(crate) seen: u64,
    /// Where the last bulk load was issued.
    pub(crate) loaded_at: Pc,
    /// Unique in a run, for the checker.
    pub(crate) id: u32,
}

/// Names an mbarrier while operations on it are in flight.
pub(crate) type MbarrierRef = (Idx, usize);
