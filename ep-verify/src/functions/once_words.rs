//! What rows as words leave in a dispatch of one launch, in the order of `once_words.cu`.

use super::once::taker;
use super::waits::{Record, state};
use super::{Check, Sheet, stamped};

/// Where tokens go, and what a warp moves.
pub(super) const SHARED_BYTES: i64 = 1536;

/// What 8 groups have of their own, rows of tokens, counts, and windows: of 34 ranks, each of which lies a call's rows of one
/// rank behind the one before.
pub(super) const WINDOW_BYTES: i64 =
    64 + 8 * 512 + 41 * 1024 + 1040 + MANY * MANY * 8 + 102 * 36 * 1344 + 16_384;

const MANY: i64 = 34;

pub(super) const CHECKS: [Check; 22] = [
    ("rows of tokens", Vec::new),
    ("rows to many ranks", || sends(&TO_MANY, &Sent::new(7, 36))),
    ("rows of two tokens to many ranks", || sends(&TO_MANY, &Sent::new(8, 2))),
    ("long rows", || sends(&TO_FEW, &Sent::new(9, 5))),
    ("a row of a rank that sends no more", || sends(&TO_ONE, &Sent::new(10, 1))),
    ("rows up to a stop", || sends(&TO_FEW, &Sent { stop: 0, ..Sent::new(11, 5) })),
    ("a count that does not come", || {
        sends(&TO_FEW, &Sent { only: Some(0), missing: true, ..Sent::new(13, 2) })
    }),
    ("a count that a warp without tokens does not wait for", || {
        sends(&TO_FEW, &Sent { only: Some(1), missing: true, ..Sent::new(15, 2) })
    }),
    ("rows of a warp that is stopped", || {
        sends(&TO_FEW, &Sent { only: Some(1), is_stopped: true, ..Sent::new(17, 5) })
    }),
    ("rows that many ranks send otherwise", || takes(&FROM_MANY, &Taken::new(0))),
    ("few rows that ranks send otherwise", || takes(&FROM_MANY_FEWER, &Taken::new(0))),
    ("rows of which some are words", || takes(&FROM_MANY_FEWER, &Taken::new(SOME_OF_SOME))),
    ("rows that all are words", || takes(&FROM_MANY, &Taken::new(0x2_aaaa_aaaa))),
    ("rows of the first rank as words", || takes(&FROM_FIRST, &Taken::new(1))),
    ("rows where none are words", || takes(&FROM_MANY_FEWER, &Taken::new(0))),
    ("rows of ranks that send no more", || takes(&FROM_MANY_FEWER, &Taken::new(SOME_OF_SOME))),
    ("long rows as words", || takes(&FROM_FEW, &Taken::new(5))),
    ("a row far behind the first one", || takes(&FAR, &Taken { alone: true, ..Taken::new(2) })),
    ("a word of a last part that does not come", || {
        lacks(16, 2, &[(0, 65), (1, 65), (3, 65), (4, 64)])
    }),
    ("a word of a first part that does not come", || lacks(17, 3, &[(0, 65), (1, 65)])),
    ("long rows in the last call before 0", || sends(&TO_FEW, &Sent::new(0xffff_ffff, 5))),
    ("few rows in call 0, which has no words", || sends_whole(5)),
];

const SOME_OF_SOME: i64 = 1 << 5 | 1 << 13 | 1 << 29 | 1 << 32 | 1 << 33;

/// Kinds of waits.
const READY: i64 = 4;
const CLOSED: i64 = 5;

fn record(group: i64, kind: i64, peer: i64, (want, seen): (i64, i64)) -> Record {
    let (pipeline, role, channel, expired, block) = (70 + group, 2, 3, 1, 0);
    Record { pipeline, role, channel, kind, expired, stripe: -1, peer, want, seen, block }
}

/// A channel to send through: units of a row and words of its fields.
struct To {
    peers: i64,
    own: i64,
    few: i64,
    units: i64,
    words: i64,
}

const TO_MANY: To = To { peers: MANY, own: 33, few: 36, units: 5, words: 34 };
const TO_FEW: To = To { peers: 3, own: 1, few: 6, units: 65, words: 34 };
const TO_ONE: To = To { peers: 3, own: 2, few: 1, units: 5, words: 5 };

/// Which warps send, and what stops them.
struct Sent {
    call: i64,
    tokens: i64,
    only: Option<i64>,
    is_stopped: bool,
    stop: i64,
    missing: bool,
}

impl Sent {
    fn new(call: i64, tokens: i64) -> Sent {
        Sent { call, tokens, only: None, is_stopped: false, stop: -1, missing: false }
    }
}

fn goes(token: i64, rank: i64) -> bool {
    token % 5 != 3 && (token * 9 + rank * rank * 3 + token * token % 13 * rank) % 7 < 3
}

/// The words of a row, in the order in which they lie.
struct Image(Vec<i64>);

impl Image {
    fn new(to: &To) -> Image {
        let lines = (to.units + 31) / 32;
        Image(vec![0; (lines * 128 + (to.words * 8 + 63) / 64 * 8) as usize])
    }
}

/// A sum over words that tells their places.
fn sum_of(words: impl IntoIterator<Item = i64>) -> i64 {
    words.into_iter().fold(0, |sum: i64, word| sum.wrapping_mul(31).wrapping_add(word))
}

/// Rows of the ranks before this one at `peer`.
fn first(to: &To, peer: i64) -> i64 {
    (0..to.own).map(|source| (source * 3 + peer) % 4).sum()
}

fn before(token: i64, peer: i64) -> i64 {
    (0..token).filter(|other| goes(*other, peer)).count() as i64
}

/// What call 0 sends to a few ranks: no words, but rows where they take them, as the offer says.
fn sends_whole(tokens: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let to = &TO_FEW;
    sheet.put(0, [0; 2036]);
    sheet.put(4000, vec![0; (to.peers * to.few) as usize]);
    sheet.put(6300, [0; 60]);
    sheet.put(6400, [0; 60]);
    for token in (0..tokens).filter(|token| (0..to.peers).any(|peer| goes(*token, peer))) {
        sheet.set(2000 + token as usize, 101);
    }
    for peer in 0..to.peers {
        let mut told = [0; 4];
        for token in 0..tokens {
            let row = first(to, peer) + before(token, peer);
            sheet.add(
                (token * to.peers + peer) as usize,
                i64::from(goes(token, peer)) * 10_000 + row + 1,
            );
            if goes(token, peer) {
                let at = (peer * 20 + row) as usize;
                let words = (0..to.units * 4).map(|i| 3 * (token * 256 + i) + 1);
                sheet.set(6300 + at, sum_of(words.chain([0; 8])));
                sheet.set(6400 + at, sum_of((0..to.words).map(|i| token * 100 + i)));
                told[(token % 4) as usize] += 1;
            }
        }
        sheet.set(6000 + peer as usize, sum_of(told));
        // Where rows go, in 128 bytes, and who sends them.
        sheet.set(6100 + peer as usize, 998);
        sheet.set(6200 + peer as usize, 1);
    }
    for index in 0..6 {
        sheet.put(2100 + index * 20, state(false, None));
        sheet.put(3000 + index * 32, [0; 32]);
    }
    sheet.0
}

fn sends(to: &To, sent: &Sent) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0; 2036]);
    let rows = to.peers * to.few;
    let mut images: Vec<Image> = (0..rows).map(|_| Image::new(to)).collect();
    let row_parts = (to.units + 63) / 64;
    for index in (0..6).filter(|index| sent.only.is_none_or(|only| only == *index)) {
        let (block, warp) = (index / 2, index % 2);
        let turn = if block < 2 { warp * 2 + block } else { 4 + warp };
        let mut is_stopped = sent.is_stopped;
        let units = if turn < 4 { sent.tokens * (row_parts + 1) } else { 0 };
        for unit in (turn..units).step_by(4) {
            let (token, part) = (unit % sent.tokens, unit / sent.tokens);
            if is_stopped || !(0..to.peers).any(|peer| goes(token, peer)) {
                continue;
            }
            let is_row = part < row_parts;
            sheet.add(2000 + token as usize, if is_row { 1 } else { 100 });
            for peer in (0..to.peers).filter(|peer| goes(token, *peer)) {
                let image = &mut images[(peer * to.few + before(token, peer)) as usize].0;
                for unit in (part * 64..to.units.min(part * 64 + 64)).filter(|_| is_row) {
                    for k in 0..4 {
                        let place = unit / 32 * 128 + k / 2 * 64 + unit % 32 * 2 + k % 2;
                        let word = 3 * (token * 256 + unit * 4 + k) + 1;
                        image[place as usize] = stamped(sent.call, word);
                    }
                }
                for i in (0..to.words).filter(|_| !is_row) {
                    let place = (to.units + 31) / 32 * 128 + i;
                    image[place as usize] = stamped(sent.call, token * 100 + i);
                }
            }
            is_stopped = !is_row && token == sent.stop;
        }
        let waits = turn < sent.tokens.min(4) && !is_stopped;
        let gives_up = waits && sent.missing;
        for token in (turn..sent.tokens).step_by(4).filter(|_| waits && !gives_up) {
            for peer in 0..to.peers {
                let matches = i64::from(goes(token, peer)) * 10_000;
                let at = (token * to.peers + peer) as usize;
                sheet.add(at, matches + first(to, peer) + before(token, peer) + 1);
            }
        }
        let wait = record(0, READY, 0, (sent.call, sent.call));
        let ends = state(is_stopped || gives_up, gives_up.then_some((wait, sent.call)));
        sheet.put(2100 + index as usize * 20, ends);
        sheet.put(3000 + index as usize * 32, [0; 32]);
    }
    sheet.put(4000, images.into_iter().map(|image| sum_of(image.0)));
    sheet.put(6000, vec![0; to.peers as usize]);
    sheet.0
}

/// A channel to take from: units of a row, and how many rows a rank sends.
struct From {
    peers: i64,
    units: i64,
    rows: fn(i64) -> i64,
}

const FROM_MANY: From = From { peers: MANY, units: 5, rows: |source| source % 2 };
const FROM_MANY_FEWER: From =
    From { peers: MANY, units: 5, rows: |source| i64::from(source % 4 == 1 || source == 32) };
const FROM_FIRST: From =
    From { peers: MANY, units: 5, rows: |source| if source == 0 { 3 } else { 0 } };
const FROM_FEW: From = From { peers: 3, units: 65, rows: |source| [2, 1, 3][source as usize] };
const FAR: From = From { peers: 3, units: 5, rows: |source| [8, 1, 0][source as usize] };

impl From {
    /// The source of each row.
    fn sources(&self) -> Vec<i64> {
        let rows = |source: i64| std::iter::repeat_n(source, (self.rows)(source) as usize);
        (0..self.peers).flat_map(rows).collect()
    }
}

/// Which sources send words, and whether one warp takes them.
struct Taken {
    words: i64,
    alone: bool,
}

impl Taken {
    fn new(words: i64) -> Taken {
        Taken { words, alone: false }
    }
}

/// So many units of a row as they lie in the end, with what is behind them.
fn digest(from: &From, row: i64, units: i64) -> i64 {
    let stride = from.units * 4 + if from.peers == 3 && from.units == 5 { 0 } else { 8 };
    let word = |i: i64| if i < units * 4 { row * 1000 + i } else { 0 };
    sum_of((0..stride).map(word))
}

fn takes(from: &From, taken: &Taken) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let sources = from.sources();
    let total = sources.len() as i64;
    let warps = if taken.alone { 1 } else { 6 };
    let is_busy = taken.words == 0 && (6 - 2) * 4 >= total;
    sheet.put(1200, [0; 20]);
    for (row, source) in (0..).zip(&sources) {
        let place = row as usize * 40;
        sheet.put(place, (0..34).map(|i| row * 100 + i + 5));
        let taker = if taken.alone { 0 } else { taker(if is_busy { 2 } else { 0 }, row) };
        sheet.set(place + 36, taker + 1);
        let words = taken.words >> source & 1 != 0;
        sheet.set(1200 + row as usize, if words { digest(from, row, from.units) } else { 0 });
    }
    sheet.put(900, (0..warps).map(|_| total));
    for index in 0..warps as usize {
        sheet.put(1000 + index * 20, state(false, None));
    }
    if taken.alone {
        // The others are nowhere.
        let far = *sheet.at(1208);
        let untouched = i64::from_le_bytes(super::UNTOUCHED);
        sheet.put(1200, [untouched; 20]);
        sheet.set(1208, far);
    }
    sheet.0
}

/// One warp has taken these units of rows to their places when a word of the last rank does not come.
fn lacks(call: i64, group: i64, taken: &[(i64, i64)]) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(1200, [0; 20]);
    for (row, units) in taken {
        sheet.set(1200 + *row as usize, digest(&FROM_FEW, *row, *units));
    }
    sheet.set(900, 6);
    sheet.put(1000, state(true, Some((record(group, CLOSED, 2, (call, call - 2)), call))));
    sheet.0
}
