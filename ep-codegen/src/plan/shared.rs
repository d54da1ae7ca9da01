//! Shared memory of the device library's structs, as their headers lay them out; the emitted text
//! asserts that both count the same bytes.

use crate::ir::parts::align;

/// Lanes of a warp.
const LANES: i64 = 32;
/// Bytes of `ep::Sequence`.
pub(super) const SEQUENCE_BYTES: i64 = 40;

/// The numbers of a role that moves rows, or reads those of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) tma: bool,
    pub(super) stages: i64,
    pub(super) piece_bytes: i64,
    pub(super) row_bytes: i64,
    pub(super) meta_bytes: i64,
}

impl Cut {
    fn piece(&self) -> i64 {
        self.piece_bytes.min(self.row_bytes).max(16)
    }

    /// `sizeof(ep::MoverSmem<Role>)` and its alignment.
    pub(super) fn mover(&self) -> (i64, i64) {
        let meta = self.meta_bytes.max(16);
        if !self.tma {
            return (align(meta, 16), 16);
        }
        let pieces = ceil(self.row_bytes, self.piece()).max(1);
        let stage = self.stages * self.piece();
        let metas = ceil(self.stages, pieces) * meta;
        let targets = self.stages * LANES * 8;
        (align(align(align(stage, 16) + metas, 8) + targets + self.stages * 8, 128), 128)
    }

    /// `sizeof(ep::PartSmem<Role>)` and its alignment.
    pub(super) fn parts(&self) -> (i64, i64) {
        if !self.tma {
            return (16, 16);
        }
        (align(self.stages * (self.piece_bytes + 8), 128), 128)
    }
}

pub(super) fn ceil(value: i64, unit: i64) -> i64 {
    (value + unit - 1) / unit
}
