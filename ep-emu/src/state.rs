//! What a machine is made of: plain data, which knows nothing of the machine.

pub(crate) mod barrier;
pub(crate) mod bulk;
pub(crate) mod collective;
pub(crate) mod lane;
pub(crate) mod mbarrier;
pub(crate) mod parking;
pub(crate) mod schedule;
pub(crate) mod stream;

/// Index of a lane, warp or block slot in the machine's tables.
pub(crate) type Idx = usize;
