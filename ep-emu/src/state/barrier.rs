//! One block barrier.

use super::Idx;
use crate::abi::Pc;

/// One of a block's sixteen barriers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier {
    /// Threads that the generation in progress wants.
    pub(crate) wanted: u32,
    /// Threads that have arrived.
    pub(crate) arrived: u32,
    pub(crate) waiting: Vec<Idx>,
    /// Warps of this generation with the lanes that have come.
    pub(crate) warps: Vec<(Idx, u32)>,
    /// Warps of the generation before.
    pub(crate) earlier: Option<Vec<Idx>>,
    pub(crate) pc: Pc,
}
