//! What a warp finds of several sources, in the order of `sources.cu`.

use super::{Check, Sheet};

/// Words of times behind one that nobody writes, sums, fields, slots, and what lanes say.
pub(super) const WINDOW_BYTES: i64 = 7168 + 32 * 8;

pub(super) const CHECKS: [Check; 4] = [
    ("parts of tokens", parts),
    ("times of waits", times),
    ("sums of times", sums),
    ("fields of words", fields),
];

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

/// A word with its epoch.
fn stamped(epoch: i64, bits: u32) -> i64 {
    epoch << 32 | i64::from(bits)
}

fn fields() -> Vec<i64> {
    let wide = |i: i64| if i % 2 == 0 { 1 } else { -1 } * (i + 1) * 0x1_2345_6789;
    let next = |lane: i64| (lane + 1) % 32;
    let mut sheet = Sheet::new();
    sheet.put(0, (0..32).map(|lane| wide(next(lane))));
    sheet.put(32, (0..32).map(|lane| 9 - next(lane)));
    sheet.put(64, (0..32).map(next));
    let halves = |i: i64| [wide(i) as u32, (wide(i) >> 32) as u32];
    let words = (0..32).flat_map(halves).chain((0..32).map(|i| (9 - i) as u32));
    let words = words.chain((0..32).map(|i| (0.25 * i as f32).to_bits()));
    sheet.put(96, words.map(|bits| stamped(77, bits)));
    for (c, count) in (0..).zip([0, 1, 31, 33, 150]) {
        let word = |i: i64| if i < count { stamped(80 + c, (3 * i + c) as u32) } else { 0 };
        sheet.put(300 + c as usize * 160, (0..160).map(word));
    }
    sheet.put(1200, (0..32).map(|lane| 1 + lane % 2));
    sheet.put(1232, (1..33).map(|n| n * 0x1_2345_6789));
    sheet.0
}
