//! What a network that nobody serves is asked for; see `lone_net.cu`.

use super::{Sheet, stamped};

/// Bytes of the data, and counters, before those of the kernel.
pub(super) const BEGIN: i64 = 4096;
const FIRST: i64 = 5;

/// Words of the descriptors of all queues.
const WORDS: usize = 4 * 2 * 64;

/// Words of a descriptor in the first turn of its slot.
pub(super) type Descriptor = [i64; 4];

pub(super) fn put(peer: i64, to: i64, from: i64, bytes: i64) -> Descriptor {
    [BEGIN + to, BEGIN + from, stamped(1, peer), stamped(1, bytes)]
}

pub(super) fn signal(peer: i64, counter: i64, number: i64) -> Descriptor {
    [FIRST + counter, 0, stamped(2, peer), stamped(1, number)]
}

/// How much a queue was asked for, and what of it stands where: from descriptor `first` on.
pub(super) fn asked(
    sheet: &mut Sheet,
    place: usize,
    claimed: i64,
    (first, all): (usize, Vec<Descriptor>),
) {
    sheet.set(place, claimed);
    sheet.put(place + 1, [0; WORDS]);
    sheet.put(place + 1 + 4 * first, all.into_iter().flatten());
}
