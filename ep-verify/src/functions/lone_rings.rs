//! What ends of rings leave that one warp has alone, in the order of `lone_rings.cu`.

use super::played_rings::{ARRIVAL, CREDIT, HEADER, RETIRED, Vain};
use super::played_rings::{BASE, BYTES, CALL, MANY, SELF, ends, slot, told};
use super::{Check, Sheet};

/// What a warp moves rows in, and the sequences of its rings, in whole lines.
pub(super) const SHARED_BYTES: i64 = 1408 + 36 * 40 + 96;

pub(super) const WINDOW_BYTES: i64 = 64 + BYTES;

pub(super) const CHECKS: [Check; 16] = [
    ("messages to many ranks", || sends(false)),
    ("messages to many ranks whose rows are moved", || sends(true)),
    ("messages of many ranks", || takes(false)),
    ("messages of many ranks whose rows are moved", || takes(true)),
    ("messages of many ranks in turn", in_turn),
    ("messages of many ranks by position", finds),
    ("a header that is not free", || waits(Side::OUT, (0, 0), (RETIRED, 34, CALL - 2, CALL - 3))),
    ("a slot that is not free", || waits(Side::OUT, (252, 3), (CREDIT, 34, BASE, BASE - 1))),
    ("a header that does not come", || waits(Side::IN, (0, 0), (HEADER, 34, CALL, CALL - 2))),
    ("a message that does not come", || {
        waits(Side::IN, (252, 2), (ARRIVAL, 34, BASE + 4, BASE + 3))
    }),
    ("a position that does not come", || {
        waits(Side::IN, (0, 0), (ARRIVAL, 34, BASE + 2, BASE + 1))
    }),
    ("no message of any ring", || waits(Side::IN, (-1, 0), (ARRIVAL, -1, 0, BASE))),
    ("no message of a ring whose lane has another one", || vec![1, 0, 1, 0, 1, 0, 1, 0]),
    ("messages that come late", || {
        let mut sheet = Sheet::new();
        sheet.put(0, [2, 34, -1]);
        sheet.put(20, ends(None));
        sheet.0
    }),
    ("slots that nobody has filled", Vec::new),
    ("a slot that is given back and filled again", || vec![0; 32]),
];

/// Messages of which a peer is told at once, but where the warp waits, or sends a message that no mover carries.
const CHUNK: i64 = 2;

/// How many messages a ring has: of two ranks it is not served.
fn messages(peer: i64) -> i64 {
    if is_served(peer) { peer % 4 } else { 0 }
}

fn is_served(peer: i64) -> bool {
    peer >= 1 && peer != 20
}

/// Which end is looked at: where what it tells begins in this rank's own window, and whether it retires headers.
#[derive(Clone, Copy)]
struct Side {
    begin: i64,
    retires: bool,
}

impl Side {
    const OUT: Side = Side { begin: BASE + 3, retires: false };
    const IN: Side = Side { begin: BASE - 1, retires: true };

    /// What each peer has been told, what is kept of its ring, and which header is free: in the stripe, or behind it.
    fn dump(self, sheet: &mut Sheet, place: usize, is_over: bool, of: impl Fn(i64) -> i64) {
        let begin = |peer: i64| if peer == SELF { self.begin } else { 0 };
        sheet.put(place, (0..MANY).map(|peer| begin(peer) + of(peer)));
        let kept = |peer: i64| BASE + if is_over { of(peer) } else { 0 };
        sheet.put(place + 40, (0..MANY).map(kept));
        let retired = |peer: i64| match peer {
            _ if is_over && self.retires && is_served(peer) => CALL,
            SELF => CALL - 2,
            _ => 0,
        };
        sheet.put(place + 80, (0..MANY).map(retired));
    }
}

/// The messages of all rings, in turn.
fn all() -> impl Iterator<Item = (i64, i64)> {
    let peers = |turn: i64| (0..MANY).filter(move |peer| turn < messages(*peer));
    (0..3).flat_map(move |turn| peers(turn).map(move |peer| (turn, peer)))
}

/// How many messages of each ring are told of behind each turn, if as many rows are done as the mover is sure of, but for
/// the last ones of all: the first message that is due, and then all that came since when the last of them is.
fn told_after(recent: i64) -> [Vec<i64>; 3] {
    let (mut due, mut later) = (vec![(0, 0); 36], vec![(0, 0); 36]);
    let (mut told, mut rows) = (vec![0; 36], 0);
    [0, 1, 2].map(|turn| {
        for (_, peer) in all().filter(|it| it.0 == turn) {
            rows += 1;
            let at = peer as usize;
            let one: &mut (i64, i64) = if due[at].0 == 0 { &mut due[at] } else { &mut later[at] };
            *one = (one.0 + 1, rows);
        }
        for at in 0..36 {
            while due[at].0 != 0 && due[at].1 <= rows - recent {
                told[at] += due[at].0;
                due[at] = std::mem::take(&mut later[at]);
            }
        }
        told.iter().map(|all| all - all % CHUNK).collect()
    })
}

/// What each turn and the end of all leaves; `slots`: whose slot a message has.
fn turns(sheet: &mut Sheet, side: Side, recent: Option<i64>, slots: impl Fn(i64) -> i64) {
    for (turn, peer) in all() {
        let at = (400 + (turn * MANY + peer) * 2) as usize;
        sheet.put(at, [turn * 4 + 3, slot(slots(peer), turn)]);
    }
    let moved = recent.map(told_after);
    for turn in 0..3 {
        let at_once = |peer: i64| messages(peer).min(turn as i64 + 1);
        let of = |peer: i64| match &moved {
            Some(told) => told[turn][peer as usize],
            None if side.retires => at_once(peer) - at_once(peer) % CHUNK,
            None => at_once(peer),
        };
        side.dump(sheet, turn * 120, false, of);
    }
    side.dump(sheet, 1000, true, messages);
    sheet.put(1200, ends(None));
}

fn sends(moves: bool) -> Vec<i64> {
    let mut sheet = Sheet::new();
    turns(&mut sheet, Side::OUT, moves.then_some(2), |_| SELF);
    sheet.put(1220, [told(70), 0, 0, told(71), 0, 0]);
    sheet.0
}

fn takes(moves: bool) -> Vec<i64> {
    let mut sheet = Sheet::new();
    turns(&mut sheet, Side::IN, moves.then_some(1), |peer| peer);
    sheet.0
}

fn in_turn() -> Vec<i64> {
    let mut sheet = Sheet::new();
    Side::IN.dump(&mut sheet, 0, true, messages);
    sheet.put(160, ends(None));
    sheet.set(180, all().count() as i64);
    sheet.put(200, all().map(|(_, peer)| peer));
    sheet.0
}

fn finds() -> Vec<i64> {
    let mut sheet = Sheet::new();
    turns(&mut sheet, Side::IN, None, |peer| peer);
    for (turn, peer) in all() {
        let at = slot(peer, turn);
        sheet.put((400 + (turn * MANY + peer) * 2) as usize, [at, at + 64]);
    }
    sheet.0
}

/// What an end finds that waits in vain, and how many messages of ring 34 it has told of before.
fn waits(side: Side, (found, before): (i64, i64), vain: Vain) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, ends(Some(vain)));
    sheet.set(20, found);
    if !side.retires {
        sheet.set(39, 0);
    }
    side.dump(&mut sheet, 40, false, |peer| if peer == 34 { before } else { 0 });
    sheet.0
}
