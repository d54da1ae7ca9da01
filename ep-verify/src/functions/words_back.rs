//! What ways back of so few tokens that rows go as words leave, in the order of `words_back.cu`.

use super::back_slots::{CALL, CREDIT, Channel, FLAG, MEMORY_END, NODE, Slots};
use super::back_slots::{floats, number, own_row, row, takes_part};
use super::waits::{Record, state};
use super::ways_back::{
    Kind, made, numbers_of, parts_of, put_sum, rounds, slot_parts, sum_of, sums, way,
};
use super::{Check, Sheet, stamped};

/// Ranks that send each other rows.
pub(super) const RANKS: usize = 2;

const TO_MANY: Few = few(way(0, (NODE, 24), 3, (40, 5)), 2);
const TO_FEW: Few = few(way(1, (3, 1), 4, (1112, 34)), 2);
const TO_ONE: Few = few(way(5, (3, 1), 4, (24, 0)), 1);
const FROM_MANY: Few = few(way(2, (NODE, 23), 6, (40, 5)), 4);
const FROM_FEW: Few = few(way(3, (3, 1), 6, (1112, 34)), 4);
const TWO: Few = few(way(4, (2, 0), 7, (520, 4)), 7);

/// Six channels, of which two have one window.
pub(super) const WINDOW_BYTES: i64 = MEMORY_END
    + NODE * TO_MANY.window_bytes()
    + 3 * TO_FEW.window_bytes()
    + 3 * TO_ONE.window_bytes()
    + FROM_MANY.window_bytes()
    + FROM_FEW.window_bytes()
    + 2 * TWO.window_bytes()
    + 512;

pub(super) const CHECKS: [Check; 29] = [
    ("rows that all take", Vec::new),
    ("ranks that have said nothing", Vec::new),
    ("ranks that begin", Vec::new),
    ("what others hear", begun),
    ("rows to many ranks", || sends(TO_MANY, Kind::Rows, (CALL, 1))),
    ("sums to many ranks", || sends(TO_MANY, Kind::Sums, (CALL + 1, 4))),
    ("long rows by many warps", || sends(TO_FEW, Kind::Rows, (CALL + 1, 7))),
    ("long rows to a rank that takes no words", || sends(TO_FEW, Kind::Rows, (CALL + 2, 7))),
    ("long sums", || sends(TO_FEW, Kind::Sums, (CALL, 3))),
    ("long sums by many warps", || sends(TO_FEW, Kind::Sums, (CALL + 1, 11))),
    ("rows to a rank that is in no call yet", || unheard(TO_MANY, CALL, 1, (34, CALL - 1))),
    ("rows to a rank that has never said a word", || unheard(TO_MANY, 0, 0, (34, 0))),
    ("sums to one that is in no call yet after many", || unheard(TO_MANY, LATE, 0, (34, LATE - 1))),
    ("rows to ranks of one token", || sends(TO_ONE, Kind::Rows, (CALL + 1, 2))),
    ("sums to a rank that is in no call yet", || unheard(TO_FEW, CALL, 1, (0, CALL - 2))),
    ("rows of a team that is stopped", || nothing(TO_FEW, CALL + 1, 0, None)),
    ("sums of a team that is stopped", || nothing(TO_FEW, CALL + 1, 0, None)),
    ("rows as words up to a stop", || words_up_to(TO_MANY, Kind::Rows, 88)),
    ("sums as words up to a stop", || words_up_to(TO_MANY, Kind::Sums, 89)),
    ("sums of words", || adds(FROM_MANY, true, (4, 1))),
    ("sums of words of this rank too", || adds(FROM_MANY, false, (3, 5))),
    ("sums of long rows as words", || adds(FROM_FEW, true, (4, 4))),
    ("sums of long rows as words of this rank too", || adds(FROM_FEW, false, (4, 7))),
    ("sums of slots in call 0", || adds_slots(FROM_MANY, true, 0, 4)),
    ("sums of slots of more tokens", || adds_slots(FROM_FEW, false, CALL, 5)),
    ("words that have not come", waits),
    ("rows between two ranks", || rounds(TWO.way, Kind::Rows, 20)),
    ("sums between two ranks", || rounds(TWO.way, Kind::Sums, 40)),
    ("sums to ranks of one token", || sends(TO_ONE, Kind::Sums, (CALL + 2, 5))),
];

/// A call shortly before 2^32.
const LATE: i64 = 0xffff_fff1;

/// A channel on which ranks with at most so many tokens take words.
#[derive(Clone, Copy)]
struct Few {
    way: Channel,
    few: i64,
}

const fn few(way: Channel, few: i64) -> Few {
    Few { way, few }
}

impl Few {
    /// Units of a row, of which a warp sends a number side by side.
    const fn lines(self) -> i64 {
        (self.way.elements / 8 + 31) / 32
    }

    const fn row_bytes(self) -> i64 {
        self.lines() * 1024 + (self.way.floats * 8 + 15) / 16 * 16
    }

    const fn window_bytes(self) -> i64 {
        let takes = self.way.bytes() / self.way.peers + self.way.peers * 8;
        let rows = self.way.peers * self.few * self.row_bytes();
        ((takes + 63) / 64 * 64 + rows + 63) / 64 * 64
    }

    /// The rows that came from a rank.
    fn rows(self, source: i64) -> std::ops::Range<i64> {
        let begin = source * self.way.tokens + 1;
        begin..begin + if self.way.peers == NODE { (source * 3 + 1) % 5 - 1 } else { source + 1 }
    }

    /// How a rank takes them.
    fn how(self, source: i64, call: i64) -> How {
        let count = self.rows(source).count() as i64;
        match (source / 5 + source % 5 + call) % 4 {
            _ if !takes_part(self.way.peers, source) || count == 0 => How::Not,
            _ if count > self.few => How::Rows,
            0 => How::Words,
            1 => How::Rows,
            _ => How::Not,
        }
    }

    fn token(self, source: i64, row: i64) -> i64 {
        let is_few = self.rows(source).count() as i64 <= self.few;
        row * 5 % if is_few { self.few } else { self.way.tokens }
    }
}

/// A rank of a later call takes nothing either.
#[derive(PartialEq)]
enum How {
    Words,
    Rows,
    Not,
}

fn begun() -> Vec<i64> {
    let said = [stamped(CALL + 1, 1), stamped(CALL + 2, 1), stamped(CALL + 3, 2), stamped(0, 2)];
    let heard = |peer: i64, rank: i64| match rank {
        0 | 11 | 22 | 33 if takes_part(NODE, peer) => said[rank as usize / 11],
        _ => 0,
    };
    (0..NODE).flat_map(|peer| (0..NODE).map(move |rank| heard(peer, rank))).collect()
}

/// What goes beside a row.
fn beside(way: Channel, kind: Kind) -> i64 {
    if kind == Kind::Rows { way.floats } else { 0 }
}

/// The digests of all rows as words in all windows, in the order of windows, sources and tokens.
struct Words {
    few: Few,
    call: i64,
    digests: Vec<i64>,
}

impl Words {
    fn new(few: Few, call: i64) -> Words {
        let peers = few.way.peers;
        Words { few, call, digests: vec![0; (peers * peers * few.few) as usize] }
    }

    /// A row for a rank.
    fn send(&mut self, kind: Kind, source: i64, sent: i64) {
        let (few, way) = (self.few, self.few.way);
        let mut halves = vec![(0, 0); (few.row_bytes() / 8) as usize];
        let mut put = |at: i64, word: i64| halves[at as usize] = (word & 0xffff_ffff, self.call);
        for (i, word) in (0..).zip(row(way.elements, |i| made(kind, sent, i))) {
            let (unit, half) = (i / 2, i % 2);
            let at = unit / 32 * 128 + half * 64 + unit % 32 * 2;
            put(at, word);
            put(at + 1, word >> 32);
        }
        for i in 0..beside(way, kind) {
            put(few.lines() * 128 + i, i64::from((number(sent, i) as f32).to_bits()));
        }
        let all = halves.into_iter().flat_map(|(low, high)| [low, high]);
        let digest = all.fold(0_i64, |sum, half| sum.wrapping_mul(31).wrapping_add(half));
        let row = way.own * few.few + few.token(source, sent);
        self.digests[(source * way.peers * few.few + row) as usize] = digest;
    }
}

/// No lane of a warp has asked for a row that there is not.
fn put_faults(sheet: &mut Sheet, warp: usize) {
    sheet.put(20_500 + warp * 32, [0; 32]);
}

/// All rows; each rank gets them as it takes them.
fn sends(few: Few, kind: Kind, (call, warps): (i64, i64)) -> Vec<i64> {
    let way = few.way;
    let (mut slots, mut words) = (Slots::new(way), Words::new(few, call));
    for source in 0..way.peers {
        let lies = kind == Kind::Rows && source == way.own;
        for sent in few.rows(source) {
            let place = (source, call, way.own * way.tokens + few.token(source, sent));
            match few.how(source, call) {
                _ if lies => slots.tell(place, Some(sent)),
                How::Words => words.send(kind, source, sent),
                How::Rows => {
                    let row = row(way.elements, |i| made(kind, sent, i));
                    let numbers = floats(beside(way, kind), 0, |i| number(sent, i));
                    slots.fill(place, row.chain(numbers).collect());
                    slots.tell(place, None);
                }
                How::Not => {}
            }
        }
    }
    let mut sheet = Sheet(slots.sheet(call, warps, None, false));
    (0..warps).for_each(|warp| put_faults(&mut sheet, warp as usize));
    sheet.put(21_000, words.digests);
    sheet.0
}

/// Nothing is sent by a warp that is stopped, or stops in a wait.
fn nothing(few: Few, call: i64, warp: usize, record: Option<Record>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, vec![0; (few.way.peers * few.way.keys * 4) as usize]);
    put_faults(&mut sheet, warp);
    sheet.put(20_000 + warp * 20, state(true, record.map(|record| (record, call))));
    sheet.put(21_000, Words::new(few, call).digests);
    sheet.0
}

/// Nothing is sent while a rank has not said how it takes rows.
fn unheard(few: Few, call: i64, warp: usize, (late, seen): (i64, i64)) -> Vec<i64> {
    nothing(few, call, warp, Some(few.way.record(CREDIT, late, (call, seen))))
}

/// One warp sends the rows before this one as words, and is stopped.
fn words_up_to(few: Few, kind: Kind, end: i64) -> Vec<i64> {
    let mut words = Words::new(few, CALL);
    for source in 0..few.way.peers {
        let is_sent =
            few.how(source, CALL) == How::Words && !(kind == Kind::Rows && source == few.way.own);
        for sent in few.rows(source).filter(|row| is_sent && *row < end) {
            words.send(kind, source, sent);
        }
    }
    let mut sheet = Sheet(nothing(few, CALL, 0, None));
    sheet.put(21_000, words.digests);
    sheet.0
}

/// The rows that make up a token from words.
fn parts(few: Few, lies: bool, token: i64) -> Vec<i64> {
    parts_of((few.way.peers, few.few), token, |peer, place| {
        let row = peer * few.few + place;
        if lies && peer == few.way.own { own_row(row) } else { row + 1 }
    })
}

fn adds(few: Few, lies: bool, all: (i64, i64)) -> Vec<i64> {
    sums(few.way, all, |token| parts(few, lies, token))
}

fn adds_slots(few: Few, lies: bool, call: i64, tokens: i64) -> Vec<i64> {
    sums(few.way, (tokens, 3), |token| slot_parts(few.way, few.few, lies, call, token))
}

/// What a warp is left with: units of the third token, and so many numbers beside it.
struct Left {
    few: Few,
    lies: bool,
    units: std::ops::Range<usize>,
    numbers: i64,
    /// Who is waited for in vain, and what is there instead.
    late: Option<(i64, i64)>,
}

fn waits() -> Vec<i64> {
    let (old, before, after) = (CALL - 3, CALL - 1, CALL + 1);
    let of_few = |units, numbers, late| Left { few: FROM_FEW, lies: true, units, numbers, late };
    let of_many = |units, numbers, late| Left { few: FROM_MANY, lies: false, units, numbers, late };
    let cases = [
        of_few(0..0, 0, Some((2, old))),
        of_few(0..0, 0, Some((2, old))),
        of_few(0..0, 0, Some((2, old))),
        of_few(0..0, 0, Some((2, old))),
        of_few(32..64, 0, None),
        of_few(0..0, 0, Some((2, before))),
        of_few(128..139, 0, None),
        of_few(0..0, 32, Some((2, old))),
        of_few(0..0, 0, Some((2, old))),
        of_few(0..0, 33, None),
        of_few(0..0, 0, Some((1, old))),
        of_few(0..0, 0, Some((1, CALL))),
        of_few(0..0, 0, Some((1, before))),
        of_few(0..32, 0, Some((2, old))),
        of_many(0..0, 0, Some((34, old))),
        of_many(0..0, 0, Some((23, after))),
        of_many(0..5, 0, None),
        of_many(0..0, 0, Some((31, old))),
        of_many(0..0, 4, None),
    ];
    let mut sheet = Sheet::new();
    for (c, left) in cases.into_iter().enumerate() {
        let (place, Left { few, lies, units, numbers, late }) = (c * 1300, left);
        // One warp has all tokens there.
        if c == 13 {
            for token in 0..2 {
                let parts = parts(few, lies, token);
                put_sum(&mut sheet, place + token as usize * 300, few.way, token, &parts);
            }
        }
        let parts = parts(few, lies, 2);
        let row = sum_of(few.way, 2, &parts);
        sheet.put(place + 600 + units.start * 2, row[units.start * 2..units.end * 2].to_vec());
        sheet.put(place + 880, numbers_of(&parts, numbers));
        let record = late.map(|(peer, seen)| (few.way.record(FLAG, peer, (CALL, seen)), CALL));
        sheet.put(place + 1200, state(late.is_some(), record));
    }
    sheet.0
}
