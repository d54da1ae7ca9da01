//! Parked lanes, by what they poll.

use super::Idx;

/// Buckets of parked lanes; a power of two.
const BUCKETS: usize = 1 << 12;

/// The parked lanes.
pub(crate) struct Parking {
    /// By cache line of the offset in the arena: an order that does not depend on where the
    /// system put the arena.
    pub(crate) buckets: Vec<Vec<Idx>>,
    pub(crate) count: usize,
}

impl Parking {
    /// Nobody parked.
    pub(crate) fn new() -> Self {
        Self { buckets: vec![Vec::new(); BUCKETS], count: 0 }
    }

    /// The bucket of a cache line.
    pub(crate) fn bucket(line: usize) -> usize {
        (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) % BUCKETS
    }
}
