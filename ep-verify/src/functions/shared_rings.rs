//! What ends of rings that warps share leave, in the order of `shared_rings.cu`.

use super::played_rings::{ARRIVAL, CREDIT, HEADER, RETIRED, SEQUENCE, Vain};
use super::played_rings::{BASE, BYTES, CALL, MANY, SELF, ends, slot, told as word_told};
use super::waits::state;
use super::{Check, Sheet, stamped};

/// Ranks that send each other rows.
pub(super) const RANKS: usize = 2;

/// What four warps move rows in, and sequences of 36 peers, behind which there is room for four more.
pub(super) const SHARED_BYTES: i64 = 5760;

/// A channel between two ranks with the rows of one, words of 36 ranks, and slots of the last one.
pub(super) const WINDOW_BYTES: i64 = 8192 + BYTES;

pub(super) const CHECKS: [Check; 28] = [
    ("the begin of rings that warps share", Vec::new),
    ("rings that warps share", taken),
    ("words of rings that warps share", || words(false)),
    ("the begin of rings by vectors", Vec::new),
    ("rings by vectors", taken),
    ("words of rings by vectors", || words(false)),
    ("the begin of rings that are gathered", Vec::new),
    ("rings that are gathered", gathered),
    ("words of rings that are gathered", || words(true)),
    ("the begin of rings that are gathered by vectors", Vec::new),
    ("rings that are gathered by vectors", gathered),
    ("words of rings that are gathered by vectors", || words(true)),
    ("rows for which there is no room", || {
        Left { tail: 3, ..SENT }.sheet(Some((CREDIT, SELF, 102, 101)))
    }),
    ("rows that cannot be announced", || {
        Left { announced: None, retired: CALL - 3, base: 3, ..SENT }.sheet(Some((
            RETIRED,
            SELF,
            CALL - 2,
            CALL - 3,
        )))
    }),
    ("rows too far ahead of those of another warp", || {
        Left { head: 101, base: 4, ..SENT }.sheet(Some((SEQUENCE, SELF, 34, 1)))
    }),
    ("a sender without its other warp", || {
        Left { tail: 1, head: 101, base: 4, signed: 2, ..SENT }.sheet(Some((SEQUENCE, SELF, 3, 2)))
    }),
    ("a sender that is stopped", || Left::NOTHING.stopped()),
    ("rows without a header", || taken_in_vain(Some(0))),
    ("rows with half a header", || taken_in_vain(Some(1))),
    ("rows that do not come", || taken_in_vain(None)),
    ("a receiver without its other warp", || {
        let left = Left { head: 1, announced: Some([40, 3]), base: 1, signed: 1, ..Left::NOTHING };
        let mut sheet = Sheet(left.sheet(Some((SEQUENCE, SELF, 2, 1))));
        sheet.put(50, [slot(SELF, 0)]);
        sheet.put(52, [slot(SELF, 2)]);
        sheet.put(60, [40, 3]);
        sheet.0
    }),
    ("a receiver that is stopped", || {
        let mut sheet = Sheet(Left::NOTHING.stopped());
        sheet.put(60, [0, 0]);
        sheet.0
    }),
    ("rows of many ranks", || gathered_of_many(&GATHERED, None)),
    ("rows of many ranks, of which one does not come", || {
        gathered_of_many(&Gathered { comes: 1, ..LATE }, Some((ARRIVAL, 33, BASE + 2, BASE + 1)))
    }),
    ("rows of many ranks, of which one of the first does not come", || {
        let late = Gathered { peer: 3, comes: 1, ..LATE };
        gathered_of_many(&late, Some((ARRIVAL, 3, BASE + 2, BASE + 1)))
    }),
    ("rows of many ranks, of which one is far ahead", || {
        let late = Gathered { late: [Some(0), Some(40)], marks: false, ..LATE };
        gathered_of_many(&late, Some((SEQUENCE, 33, 40, 1)))
    }),
    ("rows of many ranks without another warp", || {
        gathered_of_many(&GATHERED, Some((SEQUENCE, 0, 2, 1)))
    }),
    ("a warp that gathers and is stopped", || {
        gathered_of_many(&Gathered { tokens: 0, ..GATHERED }, None)
    }),
];

const PLACES: i64 = 2;
const STRIPES: i64 = 3;
const MOST: i64 = 9;
const WORDS: i64 = 8;
const NOTES: i64 = WORDS + 3;
const CALLS: i64 = 6;

/// Each place, and each stripe.
fn rings() -> impl Iterator<Item = (i64, i64)> {
    (0..STRIPES).flat_map(|stripe| (0..PLACES).map(move |place| (place, stripe)))
}

fn word(place: i64, stripe: i64, k: i64, i: i64) -> i64 {
    ((place * STRIPES + stripe) * MOST + k) * 100 + i
}

/// How many rows go to a place in a stripe of a call.
fn rows(place: i64, stripe: i64, call: i64) -> i64 {
    (place * 5 + stripe * 4 + call * 2) % if call > 4 { 2 } else { MOST + 1 }
}

/// The tokens of a stripe that have a part from a place.
fn tokens(place: i64, stripe: i64, call: i64) -> Vec<i64> {
    let has = |token: &i64| {
        let is_early = call <= 4 || token % 4 == 1;
        is_early && (token * 3 + place + stripe + token * token + call) % 3 != 0
    };
    // In one stripe there are no tokens, and in another one there is one.
    let count = match (stripe, call) {
        (2, 2) => 0,
        (2, 3) => 1,
        _ => MOST,
    };
    (0..count).filter(has).collect()
}

/// Notes a row of a call, and what is known of it here.
fn note(sheet: &mut Sheet, call: i64, (place, stripe): (i64, i64), k: i64, known: i64) {
    let at = ((call - 1) * PLACES + place) * STRIPES + stripe;
    let words = (0..WORDS).chain([50, 51]).map(|i| word(place, stripe, k, i));
    sheet.put(((at * (MOST + 1) + k) * (NOTES + 1)) as usize, words.chain([known]));
}

fn taken() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (call, (place, stripe)) in (1..=CALLS).flat_map(|call| rings().map(move |it| (call, it))) {
        let count = rows(place, stripe, call);
        (0..count).for_each(|k| note(&mut sheet, call, (place, stripe), k, 700 + k));
        let at = ((call - 1) * PLACES + place) * STRIPES + stripe;
        let header = (at * (MOST + 1) + MOST) * (NOTES + 1);
        sheet.put(header as usize, [call * 10 + place, count]);
    }
    sheet.0
}

fn gathered() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (call, (place, stripe)) in (1..=CALLS).flat_map(|call| rings().map(move |it| (call, it))) {
        for (k, token) in (0..).zip(tokens(place, stripe, call)) {
            note(&mut sheet, call, (place, stripe), k, token);
        }
    }
    sheet.0
}

/// What is left of each ring behind all calls.
fn words(gathers: bool) -> Vec<i64> {
    let of = |(place, stripe): (i64, i64)| {
        let count = move |call| match gathers {
            true => tokens(place, stripe, call).len() as i64,
            false => rows(place, stripe, call),
        };
        let start = 0xffff_fff8 - 3 * place - stripe;
        let through = |calls: i64| (start + (1..=calls).map(count).sum::<i64>()) & 0xffff_ffff;
        let all = through(CALLS);
        let mut words = vec![all, all, if gathers { 0 } else { CALLS }];
        for call in [CALLS, CALLS - 1] {
            words.extend([through(call); 2]);
            let header = [call * 10 + place, call, count(call), call];
            words.extend(if gathers { [0; 4] } else { header });
        }
        words
    };
    rings().flat_map(of).collect()
}

/// What is left of the ring of a peer.
#[derive(Clone, Copy)]
struct Left {
    /// Of the second stripe: how many rows the peer has been told of, and of how many slots.
    tail: i64,
    head: i64,
    retired: i64,
    /// Where the ring stands behind the first stripe, in which three rows were sent.
    sent: i64,
    announced: Option<[i64; 2]>,
    /// Where the sequence of the warps stands, and how many have signed off.
    base: i64,
    signed: i64,
}

/// Three rows of a first stripe.
const SENT: Left = Left {
    tail: 0,
    head: 0,
    retired: CALL - 2,
    sent: 3,
    announced: Some([5, 50]),
    base: 6,
    signed: 1,
};

impl Left {
    const NOTHING: Left = Left { sent: 0, announced: None, base: 0, signed: 0, ..SENT };

    fn put(self, sheet: &mut Sheet, state: Vec<i64>) {
        let first = [BASE + 3 + self.sent, BASE - 1, CALL - 2, BASE, BASE + self.sent];
        let second = [BASE + 3 + self.tail, BASE - 1 + self.head, self.retired, BASE, BASE];
        let header = self.announced.unwrap_or([40, 6]).map(word_told);
        let words = first.into_iter().chain(second).chain(header);
        sheet.put(0, state.into_iter().chain(words).chain([self.base, self.signed]));
    }

    fn sheet(self, vain: Option<Vain>) -> Vec<i64> {
        let mut sheet = Sheet::new();
        self.put(&mut sheet, ends(vain));
        sheet.0
    }

    fn stopped(self) -> Vec<i64> {
        let mut sheet = Sheet::new();
        self.put(&mut sheet, state(true, None));
        sheet.0
    }
}

/// A receiver that lacks a word of its header, or the fourth row.
fn taken_in_vain(lacks: Option<usize>) -> Vec<i64> {
    let Some(word) = lacks else {
        let left = Left { head: 3, base: 3, ..Left::NOTHING };
        let mut sheet = Sheet(left.sheet(Some((ARRIVAL, SELF, BASE + 4, BASE + 3))));
        sheet.put(50, (0..3).map(|position| slot(SELF, position)));
        sheet.put(60, [40, 6]);
        return sheet.0;
    };
    let mut sheet = Sheet(Left::NOTHING.sheet(Some((HEADER, SELF, CALL, CALL - 2))));
    sheet.set(26 + word, stamped(CALL - 2, 1));
    sheet.put(60, [0, 0]);
    sheet.0
}

/// Two tokens, of which the first one has a part from each rank, and the second one from those with an odd number.
struct Gathered {
    /// A rank of which this is not so, and what it has instead.
    peer: i64,
    late: [Option<i64>; 2],
    /// How many of the tokens are looked at, and how many of those are there at the first look.
    tokens: i64,
    comes: i64,
    /// Whether the rows of the second one are given back, but for those of that rank.
    marks: bool,
}

const GATHERED: Gathered =
    Gathered { peer: 33, late: [Some(0), None], tokens: 2, comes: 2, marks: true };
const LATE: Gathered = Gathered { late: [Some(0), Some(1)], ..GATHERED };

fn gathered_of_many(it: &Gathered, vain: Option<Vain>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let part = |token: i64, peer: i64| match token {
        _ if peer == it.peer => it.late[token as usize],
        0 => Some(0),
        _ => (peer % 2 == 1).then_some(1),
    };
    for token in 0..it.tokens {
        sheet.set(50 + token as usize, i64::from(token < it.comes));
        for peer in 0..MANY {
            let Some(position) = part(token, peer) else { continue };
            let at = slot(peer, position);
            sheet.put(100 + ((token * MANY + peer) * 2) as usize, [at, at + 64]);
        }
    }
    // Who waits for a row has told of all that is complete before: of the first token. A team that stops tells nothing.
    let waits = it.comes < it.tokens;
    let complete = |peer: i64| match it.tokens {
        0 => 0,
        _ if waits || part(1, peer).is_none() || peer == it.peer => 1,
        _ => 2,
    };
    let before = |peer: i64| if peer == SELF { BASE - 1 } else { 0 };
    let chunks = |count: i64| match () {
        () if waits => count,
        () if it.marks => count / 2 * 2,
        () => 0,
    };
    sheet.put(300, (0..MANY).map(|peer| before(peer) + chunks(complete(peer))));
    let told = |peer: i64| if it.marks { complete(peer) } else { 0 };
    sheet.put(340, (0..MANY).map(|peer| before(peer) + told(peer)));
    let ends_well = vain.is_none();
    sheet.put(380, (0..MANY).map(|peer| BASE + if ends_well { complete(peer) } else { 0 }));
    let is_stopped = it.tokens == 0;
    let states = if is_stopped { state(true, None) } else { ends(vain) };
    let taken = if ends_well { complete(it.peer) } else { 0 };
    let first = [0, 0, 0, BASE, BASE];
    let second = [0, told(it.peer), 0, BASE + taken, BASE];
    let signed = i64::from(ends_well && !is_stopped);
    let words = first.into_iter().chain(second).chain([40, 6].map(word_told));
    let words = words.chain([complete(it.peer), signed]);
    sheet.put(0, states.into_iter().chain(words));
    sheet.0
}
