//! An end of rings among many ranks, as `played_rings.cu` has it.

use super::stamped;
use super::waits::{Record, state};

/// Ranks, of which one is played.
pub(super) const MANY: i64 = 36;
pub(super) const SELF: i64 = 35;
/// Its call, and where its counters begin.
pub(super) const CALL: i64 = 7;
pub(super) const BASE: i64 = 102;

/// What its group has of its own, the words of all windows, and slots of one.
pub(super) const BYTES: i64 = 512 + MANY * SLOTS + 3 * MANY * 4 * 96;
const SLOTS: i64 = 6528;

/// Kinds of waits.
pub(super) const CREDIT: i64 = 0;
pub(super) const ARRIVAL: i64 = 1;
pub(super) const HEADER: i64 = 2;
pub(super) const RETIRED: i64 = 3;

/// A wait of the second stripe that has run out: its kind, for which peer, and what was wanted and seen.
pub(super) type Vain = (i64, i64, i64, i64);

/// What a team has come to.
pub(super) fn ends(vain: Option<Vain>) -> Vec<i64> {
    let record = |(kind, peer, want, seen)| {
        let (pipeline, role, channel, expired, stripe, block) = (70, 3, 6, 1, 1, 0);
        let it = Record { pipeline, role, channel, kind, expired, stripe, peer, want, seen, block };
        (it, CALL)
    };
    state(vain.is_some(), vain.map(record))
}

/// Where a slot of the second stripe is, in the window that has it.
pub(super) fn slot(peer: i64, position: i64) -> i64 {
    SLOTS + ((MANY + peer) * 4 + (BASE + position) % 4) * 96
}

/// A word of a header.
pub(super) fn told(value: i64) -> i64 {
    stamped(CALL, value)
}
