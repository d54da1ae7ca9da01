//! What a warp finds of several sources, in the order of `sources.cu`.

use super::{Check, Sheet};

/// Words of times behind one that nobody writes, sums, and what lanes say.
pub(super) const WINDOW_BYTES: i64 = 2048 + 32 * 8;

pub(super) const CHECKS: [Check; 3] =
    [("parts of tokens", parts), ("times of waits", times), ("sums of times", sums)];

/// Where the part of a peer is in a token; none has one in the last but those that the token before had.
fn entry(turn: i64, peer: i64) -> Option<i64> {
    let is_there = (turn == 0 || peer % 5 == 1) && peer % 3 != 0;
    is_there.then_some(peer * 7 % 90)
}

fn parts() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for turn in 0..4 {
        let at = turn as usize * 500;
        sheet.put(at, [i64::from(turn < 2); 32]);
        sheet.put(at + 32, (0..32).map(|lane| turn * 100 + (lane + 1) % 32));
        // A stopped team does not look.
        sheet.put(at + 64, [(turn + 1).min(3); 32]);
        let places = |peer: i64| {
            let place = |kind: i64| {
                let at =
                    |entry: i64| kind * 1_000_000 + peer % 32 * 10_000 + peer / 32 * 1000 + entry;
                entry(turn, peer).map_or(0, at)
            };
            [i64::from(entry(turn, peer).is_some()), place(1), place(2)]
        };
        sheet.put(at + 96, (0..64).flat_map(places));
        let entries = |turn| (0..64).map(move |peer| entry(turn, peer).unwrap_or(-1));
        sheet.put(at + 300, entries(turn.min(2)));
        sheet.put(at + 364, entries(turn));
    }
    sheet.0
}

fn times() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (at, given) in [0, 1, 1, 0, 4 + 8, 1, 1, 1].into_iter().enumerate() {
        sheet.put(at * 32, [given; 32]);
    }
    sheet.put(256, [0; 9]);
    sheet.0
}

fn sums() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, (0..32).map(|lane| (lane + 1) % 32 * 7 + 1));
    sheet.put(32, (0..40).map(|source| 1000 + source + 7 * source + 1));
    sheet.put(72, [0; 40]);
    sheet.0
}
