//! Sums of rows that a warp gathers, in the order of `sums.cu`.

use super::{Check, Sheet};

/// As many stages as lanes, with what else a gathering warp has.
pub(super) const SHARED_BYTES: i64 = 5504;

/// Parts, fields beside them, and biases.
pub(super) const WINDOW_BYTES: i64 = 19 * (1120 + 144) + 2 * 1120;

const PEERS: i64 = 40;
const TOKENS: i64 = 24;

/// How many parts are added up: the first ones.
const SOURCES: usize = 12;

pub(super) const CHECKS: [Check; 17] = [
    ("biases", Vec::new),
    ("sums in two pieces", || sums(&TWO, 0, None)),
    ("sums in two pieces of other tokens", || sums(&TWO, 1, None)),
    ("sums in few stages", || sums(&TIGHT, 2, None)),
    ("sums in few stages of other tokens", || sums(&TIGHT, 1, None)),
    ("sums in many stages", || sums(&MANY, 1, None)),
    ("sums in one piece", || sums(&SHORT, 1, None)),
    ("sums in one piece of other tokens", || sums(&SHORT, 2, None)),
    ("sums by vectors", || sums(&TIGHT, 1, None)),
    ("a stop in two pieces", || sums(&TWO, 1, Some(5))),
    ("a stop in one piece", || sums(&SHORT, 1, Some(5))),
    ("a stop behind parts that do not come", || sums(&SHORT, 2, Some(3))),
    ("a stop before the first sum", || sums(&TIGHT, 2, Some(0))),
    ("no sums", || sums(&TWO, 30, None)),
    ("sums in one piece without fields", || sums(&PLAIN, 1, None)),
    ("a stop while a sum is made", stopped_within),
    ("a team that is stopped", || sums(&TWO, 1, Some(0))),
];

/// Elements of a row, and of its other fields.
struct Role {
    row: i64,
    fields: i64,
}

const TWO: Role = Role { row: 560, fields: 36 };
const TIGHT: Role = Role { row: 560, fields: 35 };
const MANY: Role = Role { row: 560, fields: 0 };
const SHORT: Role = Role { row: 48, fields: 36 };
const PLAIN: Role = Role { row: 48, fields: 0 };

/// Where a token's part is, among those of its peer.
fn entry(token: i64, peer: i64) -> i64 {
    let each = match token % 8 {
        3 | 7 => 2,
        1 => 4,
        _ => 8,
    };
    let is_there = (peer + token) % each == 0 || (token % 8 == 1 && peer == 0);
    if token % 4 != 2 && is_there { (token * 3 + peer) % 7 } else { -1 }
}

/// Four numbers of 16 bits, or two of 32, as one.
pub(super) fn packed(parts: impl Iterator<Item = u64>, bits: u32) -> i64 {
    (0..).zip(parts).fold(0, |sum, (i, part)| sum | part << (i * bits)) as i64
}

/// The two bytes of a whole number that is small.
fn bf16(value: i64) -> u64 {
    u64::from((value as f32).to_bits() >> 16)
}

/// Every third token from `begin` on; a team is stopped when it asks for number `stop` of them.
fn sums(role: &Role, begin: i64, stop: Option<i64>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let mut count = 0;
    let tokens = (begin..TOKENS).step_by(3);
    for token in tokens.take(stop.map_or(usize::MAX, |stop| stop as usize)) {
        let entries: Vec<i64> = (0..PEERS).map(|peer| entry(token, peer)).collect();
        let places = (0..).zip(&entries).filter(|(_, entry)| **entry >= 0);
        let places = places.map(|(peer, entry): (i64, _)| (entry + peer * 7) % 19);
        let places: Vec<i64> = places.take(SOURCES).collect();
        let biases = if token % 3 == 0 { 0 } else { token % 3 + token / 3 % 2 - 1 };
        let element = |i: i64| {
            let part = |place: &i64| (place * 5 + i * 3) % 17 - 8;
            let bias: i64 = [i % 13, 20 - i % 7].iter().take(biases as usize).sum();
            bf16(places.iter().map(part).sum::<i64>() + bias)
        };
        let words = (0..role.row / 4).map(|word| packed((word * 4..word * 4 + 4).map(element), 16));
        sheet.put(token as usize * 142, words);
        let field = |i: i64| {
            let part = |place: &i64| (place * 7 + i) % 29 - 14;
            u64::from((places.iter().map(part).sum::<i64>() as f32).to_bits())
        };
        let fields = (0..17).filter(|_| role.fields > 0);
        let fields = fields.map(|word| packed((word * 2 + 1..word * 2 + 3).map(field), 32));
        sheet.put(3500 + token as usize * 20, fields);
        let at = 5000 + count as usize * 64;
        sheet.put(at, entries.into_iter().chain([-1; 24]));
        sheet.put(at + 2000, [1; 64]);
        count += 1;
    }
    sheet.put(9990, [count, count * 101, 1, 1, 0, 0, 4711]);
    sheet.0
}

/// The first sum is the last one, while which the next token has been opened and parts of it are on their way.
fn stopped_within() -> Vec<i64> {
    let mut sheet = Sheet(sums(&SHORT, 0, Some(1)));
    sheet.put(5000 + 64, (0..PEERS).map(|peer| entry(3, peer)).chain([-1; 24]));
    sheet.put(9990, [2, 201]);
    sheet.0
}
