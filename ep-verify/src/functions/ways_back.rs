//! What ways back of few tokens leave, in the order of `ways_back.cu`.

use super::back_slots::{CALL, Channel, FLAG, MEMORY_END, NODE, Slots};
use super::back_slots::{element, floats, number, own_row, part_of, put_states, row, takes_part};
use super::waits::state;
use super::{Check, Sheet};

/// Ranks that send each other rows.
pub(super) const RANKS: usize = 2;

const MANY: Channel = way(0, (NODE, 23), 2, (40, 5));
const FEW: Channel = way(1, (3, 1), 136, (24, 0));
const LONG: Channel = way(2, (3, 1), 4, (1112, 34));
const TWO: Channel = way(3, (2, 0), 7, (520, 4));

/// Four channels.
pub(super) const WINDOW_BYTES: i64 =
    MEMORY_END + MANY.bytes() + FEW.bytes() + LONG.bytes() + TWO.bytes() + 512;

pub(super) const CHECKS: [Check; 30] = [
    ("rows that all take", Vec::new),
    ("cuts of a short row", || cuts(48)),
    ("cuts of a long row", || cuts(2224)),
    ("ranks that begin", Vec::new),
    ("what they say", Vec::new),
    ("what others hear", begun),
    ("rows to many ranks", || sends(MANY, Kind::Rows, (CALL, 1), None)),
    ("rows to many ranks by more warps", || sends(MANY, Kind::Rows, (CALL + 1, 4), None)),
    ("many rows to few ranks", || sends(FEW, Kind::Rows, (CALL, 4), None)),
    ("long rows in call 0", || sends(LONG, Kind::Rows, (0, 1), None)),
    ("long rows by a few warps", || sends(LONG, Kind::Rows, (CALL, 3), None)),
    ("long rows by several warps", || sends(LONG, Kind::Rows, (CALL, 7), None)),
    ("sums to many ranks", || sends(MANY, Kind::Sums, (CALL, 1), None)),
    ("many sums to few ranks", || sends(FEW, Kind::Sums, (CALL, 4), None)),
    ("long sums", || sends(LONG, Kind::Sums, (CALL, 3), None)),
    ("rows to a rank that has not read", || sends(MANY, Kind::Rows, (CALL, 1), Some(11))),
    ("no part of a row to a rank that has not read", || nothing(FEW, Some(0))),
    ("sums to a rank that has read", || sends(MANY, Kind::Sums, (CALL, 1), None)),
    ("no part of a sum to a rank that has not read", || nothing(FEW, Some(0))),
    ("rows of a team that is stopped", || nothing(FEW, None)),
    ("sums of many parts", || adds(MANY, true, CALL, (8, 1))),
    ("sums of many parts in slots", || adds(MANY, false, CALL + 1, (8, 3))),
    ("sums of few parts", || adds(FEW, true, CALL, (9, 4))),
    ("sums of long rows", || adds(LONG, true, CALL, (5, 1))),
    ("sums of long rows in call 0", || adds(LONG, true, 0, (5, 2))),
    ("sums of long rows in slots", || adds(LONG, false, CALL, (5, 3))),
    ("quarters that have not come", waits),
    ("rows between two ranks", || rounds(TWO, Kind::Rows, 20)),
    ("sums between two ranks", || rounds(TWO, Kind::Sums, 40)),
    ("sums of fewer rows than are loaded at once", || vec![0; 128]),
];

/// What half of a number is that nobody has written.
const UNTOUCHED_HALF: u64 = 0xa5a5_a5a5;

/// What is sent of a row.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Rows,
    Sums,
}

/// Slots for so many tokens of each source.
pub(super) const fn way(
    group: i64,
    (peers, own): (i64, i64),
    tokens: i64,
    (elements, floats): (i64, i64),
) -> Channel {
    Channel { group, peers, own, tokens, keys: peers * tokens, elements, floats }
}

/// What is made of a row: four times each element.
pub(super) fn made(kind: Kind, row: i64, i: i64) -> i64 {
    let part = |k| part_of(row, k).map(|at| (at % 5 * 2 + 1) * element(at, i));
    match kind {
        Kind::Rows => 4 * element(row, i),
        Kind::Sums => (0..9).filter_map(part).sum(),
    }
}

fn cuts(row_bytes: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let units = (row_bytes / 16 + 3) / 4;
    sheet.put(0, (0..5).map(|quarter| (quarter * units * 16).min(row_bytes)));
    let rows = [0, 1, 3, 10, 17, 33];
    let each = |at: i64| Channel::quarters(rows[(at / 40) as usize], at % 40 + 1);
    sheet.put(10, (0..240).map(each));
    for c in 0..12 {
        let (count, warps) = (rows[c / 2], if c % 2 == 0 { 4 } else { 3 });
        let quarters = Channel::quarters(count, warps);
        for warp in 0..warps {
            for unit in (warp..count * 4 / quarters).step_by(warps as usize) {
                let (row, quarter) = (unit * quarters / 4, unit * quarters % 4);
                let place = 300 + c * 150 + (row * 4 + quarter) as usize;
                sheet.set(place, warp * 100 + quarters);
                if c >= 10 && row > 20 {
                    break;
                }
            }
        }
    }
    sheet.0
}

/// The last warp of the first block has told all ranks that take part.
fn begun() -> Vec<i64> {
    let heard = |peer: i64, rank: i64| match rank {
        2 if takes_part(NODE, peer) => CALL,
        _ => 0,
    };
    (0..NODE).flat_map(|peer| (0..NODE).map(move |rank| heard(peer, rank))).collect()
}

/// All rows; `late`: the warp stops at this rank, and has told nothing then.
fn sends(way: Channel, kind: Kind, (call, warps): (i64, i64), late: Option<i64>) -> Vec<i64> {
    let mut slots = Slots::new(way);
    for source in (0..late.unwrap_or(way.peers)).filter(|it| takes_part(way.peers, *it)) {
        for sent in way.rows(source) {
            let place = (source, call, way.own * way.tokens + way.token(sent));
            let lies = kind == Kind::Rows && source == way.own;
            if !lies {
                let beside = if kind == Kind::Rows { way.floats } else { 0 };
                let row = row(way.elements, |i| made(kind, sent, i));
                slots.fill(place, row.chain(floats(beside, 0, |i| number(sent, i))).collect());
            }
            if late.is_none() {
                slots.tell(place, lies.then_some(sent));
            }
        }
    }
    slots.sheet(call, warps, late, false)
}

/// Nothing is sent by a team that is stopped, or stops at this rank.
fn nothing(way: Channel, late: Option<i64>) -> Vec<i64> {
    Slots::new(way).sheet(CALL, 1, late, true)
}

/// The rows that make up a token: `row(peer, place)` is that of a part.
pub(super) fn parts_of(
    (peers, places): (i64, i64),
    token: i64,
    row: impl Fn(i64, i64) -> i64,
) -> Vec<i64> {
    let part = |peer: i64| {
        let place = match token {
            0 => -1,
            1 if peer == peers - 1 => 1,
            1 => -1,
            2 => 1,
            _ => (token + peer * peer) % 3 - 1,
        };
        let is_there = place >= 0 && takes_part(peers, peer);
        is_there.then(|| row(peer, (token * 7 + place) % places))
    };
    (0..peers).filter_map(part).collect()
}

/// The row of a token as the sum of parts, and of as many biases as it has.
pub(super) fn sum_of(way: Channel, token: i64, parts: &[i64]) -> Vec<i64> {
    let biases = if token % 4 == 3 { 0 } else { token % 3 };
    let rows = || parts.iter().copied().chain(600..600 + biases);
    row(way.elements, |i| 4 * rows().map(|row| element(row, i)).sum::<i64>()).collect()
}

/// So many of the numbers beside it.
pub(super) fn numbers_of(parts: &[i64], count: i64) -> Vec<i64> {
    let beside = |i| parts.iter().map(|row| number(*row, i + 1)).sum();
    floats(count, UNTOUCHED_HALF, beside).collect()
}

/// The sum of a token.
fn sum(sheet: &mut Sheet, place: usize, way: Channel, lies: bool, call: i64, token: i64) {
    put_sum(sheet, place, way, token, &slot_parts(way, way.tokens, lies, call, token));
}

/// The rows that make up a token from slots, of so many places of a source.
pub(super) fn slot_parts(way: Channel, places: i64, lies: bool, call: i64, token: i64) -> Vec<i64> {
    parts_of((way.peers, places), token, |peer, place| {
        let key = peer * way.tokens + place;
        if lies && peer == way.own { own_row(key) } else { way.first(call) + key + 1 }
    })
}

/// All of a token that is made of these rows.
pub(super) fn put_sum(sheet: &mut Sheet, place: usize, way: Channel, token: i64, parts: &[i64]) {
    sheet.put(place, sum_of(way, token, parts));
    sheet.put(place + 280, numbers_of(parts, (way.floats - 1).max(0)));
}

/// What so many warps add up; `parts(token)`: the rows that make up a token.
pub(super) fn sums(
    way: Channel,
    (tokens, warps): (i64, i64),
    parts: impl Fn(i64) -> Vec<i64>,
) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for token in 0..tokens {
        put_sum(&mut sheet, token as usize * 300, way, token, &parts(token));
    }
    put_states(&mut sheet, warps, &state(false, None));
    sheet.0
}

fn adds(way: Channel, lies: bool, call: i64, all: (i64, i64)) -> Vec<i64> {
    sums(way, all, |token| slot_parts(way, way.tokens, lies, call, token))
}

fn waits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // Who is waited for in vain, and what is there instead.
    let old = CALL - 2;
    let late = [
        None,
        Some((34, old)),
        None,
        Some((34, old)),
        Some((34, old)),
        Some((34, old)),
        Some((34, CALL)),
        Some((20, old)),
        Some((23, old)),
        None,
        Some((34, 0)),
        Some((34, -2)),
    ];
    for (c, late) in late.into_iter().enumerate() {
        let call = if c >= 10 { 0 } else { CALL };
        let place = c * 1000;
        match c {
            // The third quarter of five units in pairs is the last unit.
            0 | 2 => {
                let mut all = Sheet::new();
                sum(&mut all, 0, MANY, true, call, 1);
                sheet.put(place + 308, all.0.drain(8..10));
            }
            9 => sum(&mut sheet, place, MANY, true, call, 0),
            _ => {}
        }
        let record = late.map(|(peer, seen)| (MANY.record(FLAG, peer, (call, seen)), call));
        sheet.put(place + 900, state(late.is_some(), record));
    }
    sheet.0
}

/// Each token comes from the other rank, the last one first.
pub(super) fn rounds(way: Channel, kind: Kind, first: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for call in first..first + 5 {
        for token in 0..way.tokens {
            let sent = call + way.tokens - 1 - token;
            let place = ((call - first) * 2000 + token * 200) as usize;
            sheet.put(place, row(way.elements, |i| made(kind, sent, i)));
            let beside = |i| number(sent, i);
            if kind == Kind::Rows {
                sheet.put(place + 150, floats(way.floats, 0, beside));
            }
        }
    }
    sheet.0
}
