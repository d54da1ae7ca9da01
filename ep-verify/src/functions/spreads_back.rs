//! What ways back with a slot for each choice leave, in the order of `spreads_back.cu`.

use super::back_slots::{CALL, Channel, FLAG, MEMORY_END, NODE, Slots};
use super::back_slots::{element, own_row, part_of, put_states, row, takes_part};
use super::waits::state;
use super::{Check, Sheet};

/// Ranks that send each other rows.
pub(super) const RANKS: usize = 2;

const MANY: Way = Way::new(0, (NODE, 23), (3, 12), 40);
const FEW: Way = Way::new(1, (3, 1), (34, 3), 24);
const LONG: Way = Way::new(2, (3, 1), (4, 10), 1112);
const TWO: Way = Way::new(3, (2, 0), (7, 5), 520);

/// Four channels.
pub(super) const WINDOW_BYTES: i64 = MEMORY_END
    + MANY.channel.bytes()
    + FEW.channel.bytes()
    + LONG.channel.bytes()
    + TWO.channel.bytes()
    + 512;

pub(super) const CHECKS: [Check; 15] = [
    ("rows that all take", Vec::new),
    ("choices to many ranks", || sends(MANY, (CALL, 1), None)),
    ("choices to few ranks", || sends(FEW, (CALL + 1, 2), None)),
    ("long rows in call 0", || sends(LONG, (0, 1), None)),
    ("long rows by a few warps", || sends(LONG, (CALL, 3), None)),
    ("choices to a rank that has not read", || sends(MANY, (CALL, 1), Some(11))),
    ("no part of a choice to a rank that has not read", || nothing(FEW, Some(0))),
    ("choices to a rank that has read", || sends(MANY, (CALL, 1), None)),
    ("choices of a team that is stopped", || nothing(FEW, None)),
    ("sums of many choices", || adds(MANY, CALL, 1)),
    ("sums of few choices", || adds(FEW, CALL, 3)),
    ("sums of long rows in call 0", || adds(LONG, 0, 1)),
    ("sums of long rows by a few warps", || adds(LONG, CALL, 3)),
    ("quarters that have not come", waits),
    ("choices between two ranks", || rounds(20)),
];

/// Slots for so many choices of each token.
#[derive(Clone, Copy)]
struct Way {
    channel: Channel,
    choices: i64,
}

impl Way {
    const fn new(
        group: i64,
        (peers, own): (i64, i64),
        (tokens, choices): (i64, i64),
        elements: i64,
    ) -> Way {
        let keys = tokens * choices;
        Way { channel: Channel { group, peers, own, tokens, keys, elements, floats: 0 }, choices }
    }
}

/// All choices; `late`: the warp stops at this rank, and has told of all before it that fill the words of a turn.
fn sends(way: Way, (call, warps): (i64, i64), late: Option<i64>) -> Vec<i64> {
    let channel = way.channel;
    let mut slots = Slots::new(channel);
    let sources = (0..late.unwrap_or(channel.peers)).filter(|it| takes_part(channel.peers, *it));
    let rows = sources.flat_map(|source| channel.rows(source).map(move |row| (source, row)));
    let choices = rows.flat_map(|it| (0..way.choices).map(move |choice| (it, choice)));
    let mut told = Vec::new();
    for ((source, sent), choice) in choices {
        let Some(part) = part_of(sent, choice) else { continue };
        let place = (source, call, channel.token(sent) * way.choices + choice);
        let is_own = source == channel.own;
        if !is_own {
            slots.fill(place, row(channel.elements, |i| 4 * element(part, i)).collect());
        }
        told.push((place, is_own.then_some(part)));
    }
    if late.is_some() {
        told.truncate(told.len() / 8 * 8);
    }
    told.into_iter().for_each(|(place, part)| slots.tell(place, part));
    slots.sheet(call, warps, late, false)
}

/// Nothing is sent by a team that is stopped, or stops at this rank.
fn nothing(way: Way, late: Option<i64>) -> Vec<i64> {
    Slots::new(way.channel).sheet(CALL, 1, late, true)
}

/// Four times how often a choice of a token counts.
fn factor_of(token: i64, choice: i64) -> i64 {
    (choice * 2 + 1) * if (token + choice) % 2 == 0 { 1 } else { -1 }
}

/// The sum of a token.
fn sum(way: Way, call: i64, token: i64) -> Vec<i64> {
    let channel = way.channel;
    let part = |choice: i64| {
        let has = token > 0 && (token == 2 || (token + choice * choice) % 4 != 0);
        let peer = (token * 17 + choice) % channel.peers;
        let key = token * way.choices + (choice * 7 + token) % way.choices;
        let row = if peer == channel.own { own_row(key) } else { channel.first(call) + key + 1 };
        (has && takes_part(channel.peers, peer)).then_some((row, factor_of(token, choice)))
    };
    let parts: Vec<(i64, i64)> = (0..way.choices).filter_map(part).collect();
    let sum = |i| parts.iter().map(|(row, factor)| factor * element(*row, i)).sum();
    row(channel.elements, sum).collect()
}

fn adds(way: Way, call: i64, warps: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    (0..way.channel.tokens)
        .for_each(|token| sheet.put(token as usize * 300, sum(way, call, token)));
    put_states(&mut sheet, warps, &state(false, None));
    sheet.0
}

fn waits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // Who is waited for in vain, and what is there instead.
    let old = CALL - 2;
    let late = [
        None,
        Some((8, old)),
        None,
        Some((8, old)),
        Some((3, old)),
        Some((3, old)),
        Some((3, CALL)),
        Some((23, old)),
        None,
        Some((8, 0)),
        Some((8, -2)),
    ];
    for (c, late) in late.into_iter().enumerate() {
        let call = if c >= 9 { 0 } else { CALL };
        let place = c * 1000;
        match c {
            // The third quarter of five units in pairs is the last unit.
            0 | 2 => sheet.put(place + 608, sum(MANY, call, 2).drain(8..10)),
            8 => sheet.put(place, sum(MANY, call, 0)),
            _ => {}
        }
        let record = late.map(|(peer, seen)| (MANY.channel.record(FLAG, peer, (call, seen)), call));
        sheet.put(place + 900, state(late.is_some(), record));
    }
    sheet.0
}

/// Each token comes from the other rank, the last one first.
fn rounds(first: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for call in first..first + 5 {
        for token in 0..TWO.channel.tokens {
            let sent = call + TWO.channel.tokens - 1 - token;
            let part = |choice| Some((part_of(sent, choice)?, factor_of(token, choice)));
            let parts: Vec<(i64, i64)> = (0..TWO.choices).filter_map(part).collect();
            let sum = |i| parts.iter().map(|(row, factor)| factor * element(*row, i)).sum();
            let place = ((call - first) * 2000 + token * 200) as usize;
            sheet.put(place, row(TWO.channel.elements, sum));
        }
    }
    sheet.0
}
