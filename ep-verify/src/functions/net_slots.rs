//! What slots of one record leave between nodes; see `net_slots.cu`.

use super::{Check, Sheet};

/// Ranks of two nodes.
pub(super) const RANKS: usize = 4;

/// Two channels, one behind the other.
pub(super) const WINDOW_BYTES: i64 = 2048;
pub(super) const DATA_BYTES: i64 = 2048;

/// Counters of each source and queue, of which nobody has the first one.
pub(super) const COUNTERS: i64 = 1 + 2 + 2;

pub(super) const CHECKS: [Check; 1] = [("slots between nodes", both)];

const CALLS: usize = 6;
const WORDS: usize = 4;

/// What two readers find, of all ranks and of all but their own, and what is told of it.
fn both() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let each = 2 * CALLS * RANKS * WORDS;
    for (channel, first) in [(0, 0), (1, 1)] {
        for at in (0..2 * CALLS * RANKS).filter(|at| at % RANKS >= first) {
            let (call, place) = (at / RANKS % CALLS + 1, at % RANKS);
            let word = |i: usize| ((place * 100 + call) * 10 + i) as i64;
            sheet.put(channel * each + at * WORDS, (0..WORDS).map(word));
        }
        let told = |place: usize| [if place < first { 0 } else { CALLS as i64 }; 2];
        let told = (0..RANKS).flat_map(told).chain([0]);
        sheet.put(2 * each + channel * (2 * RANKS + 1), told);
    }
    sheet.0
}
