//! What slots of rows leave between nodes; see `net_slot_rows.cu`.

use super::{Check, Sheet};

/// Ranks of two nodes.
pub(super) const RANKS: usize = 4;

/// Three channels, one behind the other.
pub(super) const WINDOW_BYTES: i64 = 6144;
pub(super) const DATA_BYTES: i64 = 6144;

/// Counters of each source and queue, of which nobody has the first one.
pub(super) const COUNTERS: i64 = 1 + 2 + 2 + 2;

pub(super) const CHECKS: [Check; 1] = [("slots of rows between nodes", all)];

const CALLS: usize = 6;
const KEYS: usize = 3;
const MOST: usize = 2;
const WORDS: usize = 4;
const FAR: usize = 2;

/// Two readers take counted keys, uncounted keys, and messages that are filled once. Then the words of the ends are
/// dumped.
fn all() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let (notes, keys) = (1 + MOST * WORDS, RANKS * KEYS);
    let each = 2 * CALLS * keys * notes;
    for (channel, counts, once) in [(0, true, false), (1, false, false), (2, true, true)] {
        for at in 0..2 * CALLS * keys {
            let (call, i) = (at / keys % CALLS + 1, at % keys);
            let (place, number) = (i % RANKS, i / RANKS);
            let rows = if counts { (place + number + call) % 3 } else { 1 };
            let to = if once { 0 } else { place * 10 };
            let word = |row: usize, i: usize| ((to + number * 3 + row) * 100 + call) * 10 + i;
            let words = (0..rows).flat_map(|row| (0..WORDS).map(move |i| word(row, i) as i64));
            sheet.put(channel * each + at * notes, std::iter::once(rows as i64).chain(words));
        }
        // Near ranks have read, far ones have closed and read; and all of these have been told so.
        let told = RANKS - FAR + 2 * FAR + 2 * FAR;
        let words = if counts { KEYS } else { 1 };
        let messages = if once { MOST * KEYS } else { 0 };
        let zeros = vec![0; RANKS * words + 2 + messages];
        sheet.put(3 * each + channel * 100, std::iter::repeat_n(CALLS as i64, told).chain(zeros));
    }
    sheet.0
}
