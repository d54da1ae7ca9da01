//! What ends of direct channels leave among many ranks, in the order of `direct_ends.cu`.

use super::waits::{Record, state};
use super::{Check, Sheet, stamped};

/// What 12 groups have of their own, and 70 windows.
pub(super) const WINDOW_BYTES: i64 = 64 + 12 * 1344 + 70 * (64 + 70 * 32 + 70 * 3 * 16 + 192) + 64;

pub(super) const CHECKS: [Check; 12] = [
    ("where rows of many peers go", opens),
    ("rows of stripes to many peers", stores),
    ("room for rows", reserves),
    ("peers that are not ready", waits),
    ("stripes that come or do not", arrives),
    ("a row for another warp", || {
        (0..32).map(|lane| 70 + (lane + 1) % 32).chain([0; 32]).collect()
    }),
    ("what is offered to many peers", offers),
    ("where rows of many peers are pulled from", pulls),
    ("when many peers are told that rows are read", releases),
    ("peers that have read", awaits),
    ("a row that other warps pull", || vec![77; 64]),
    ("other fields that come with rows", || {
        let mut sheet = Sheet::new();
        (0..2).for_each(|warp| sheet.put(warp * 32, [0; 21]));
        sheet.0
    }),
];

const PEERS: i64 = 70;
/// A row so far that its bytes take more than 32 bits.
const FAR: i64 = 1 << 29;

/// Kinds of waits.
const READY: i64 = 4;
const CLOSED: i64 = 5;
const CAPACITY: i64 = 10;
const RELEASED: i64 = 7;

/// What a team gives up for, in a call.
fn record(
    group: i64,
    kind: i64,
    stripe: i64,
    peer: i64,
    (want, seen): (i64, i64),
) -> (Record, i64) {
    let pipeline = 70 + group;
    let (role, channel, expired, block) = (3, 5, 1, 0);
    (Record { pipeline, role, channel, kind, expired, stripe, peer, want, seen, block }, 7)
}

/// Whether a stripe has rows for a peer.
fn is_open(peer: i64, (begin, end, skip): (i64, i64, i64)) -> bool {
    (begin..end).contains(&peer) && peer != skip
}

fn opens() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let all = [(3, 68, 9), (3, 68, 9), (2, 68, 9), (2, 67, 9), (2, 67, 10), (2, 67, 10)];
    let mut rows = [(0, 0); PEERS as usize];
    for (turn, peers) in all.into_iter().enumerate() {
        for peer in 0..PEERS {
            let at = &mut rows[peer as usize];
            if is_open(peer, peers) && (turn == 0 || all[turn - 1] != peers) {
                let number = (turn as i64 + 1) * 1000 + peer;
                *at = (((1 << 25) + number) * 128, ((1 << 26) + number * 2) * 128);
            }
            sheet.put(
                turn * 200 + peer as usize * 2,
                [at.0 + (FAR + 5) * 32, at.1 + (FAR + 5) * 16],
            );
        }
    }
    sheet.put(1300, state(false, None));
    sheet.set(1400, ((1 << 25) + 6000) * 128);
    sheet.0
}

fn stores() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let peers = (3, 68, 9);
    let mut told = 0;
    for stripe in 1..3 {
        let mut rows = [(0, 0); PEERS as usize];
        for i in 0..40 {
            let peer = (3 + i * 7 * stripe % 65) as usize;
            // So do lanes of peers without rows, of which the number tells nothing.
            let near = rows.iter_mut().enumerate().filter(|(other, _)| other / 32 == peer / 32);
            near.filter(|(_, own)| own.1 == 0).for_each(|(_, own)| own.0 = 100 * stripe + i);
            let own = &mut rows[peer];
            sheet.set((stripe * 40 + i) as usize, own.0 + own.1);
            own.1 += 1;
        }
        let place = stripe as usize * 200;
        for peer in 0..PEERS {
            let (first, count) = rows[peer as usize];
            let some = is_open(peer, peers);
            told += 2 * i64::from(some);
            let words = if some { [stamped(7, first), stamped(7, count)] } else { [0, 0] };
            sheet.put(place + 1 + peer as usize * 2, words);
        }
        sheet.set(place, told);
    }
    sheet.set(600, told);
    sheet.put(601, [0; 2 * PEERS as usize]);
    sheet.put(800, state(true, None));
    sheet.0
}

fn reserves() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let asked =
        [(5, 1007, 1008), (40, 1042, 1043), (66, 1068, 1069), (5, 1008, 1008), (40, -1, 1043)];
    for (c, (peer, position, capacity)) in asked.into_iter().enumerate() {
        let has = c < 3;
        sheet.set(c * 40, if has { 3 } else { 0 });
        let it = record(2 + c as i64, CAPACITY, 2, peer, (position + 1, capacity));
        sheet.put(c * 40 + 1, state(!has, (!has).then_some(it)));
    }
    sheet.0
}

fn waits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for c in 0..4 {
        let late = c < 3;
        let seen = if c == 0 { 5 } else { 7 };
        let it = record(7 + c, READY, -1, 40, (7, seen));
        sheet.set(c as usize * 40, i64::from(!late));
        sheet.put(c as usize * 40 + 1, state(late, late.then_some(it)));
    }
    sheet.0
}

fn arrives() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for c in 0..5 {
        let (first, rows) = [(500, 60), (500, 60), (0, 60), (0, 0), (0, 60)][c as usize];
        let late = c != 0 && c != 3;
        let group = if c == 0 { 0 } else { 10 - c };
        let epoch = if c == 4 { 0 } else { 7 };
        let seen = if c == 1 { epoch } else { epoch - 3 };
        let (it, _) = record(group, CLOSED, 2, 33, (epoch, seen));
        let place = c as usize * 40;
        sheet.put(place, [i64::from(c == 0), first, rows, 640 + (FAR + 9) * 16]);
        let mut ends = state(c > 0, late.then_some((it, epoch)));
        if c == 3 {
            // The record before it is still there.
            let (before, epoch) = record(8, CLOSED, 2, 33, (7, 4));
            ends.splice(3.., before.words(epoch));
        }
        sheet.put(place + 4, ends);
    }
    sheet.0
}

fn offers() -> Vec<i64> {
    let words = [stamped(7, (1 << 25) + 5), stamped(7, (1 << 26) + 9)];
    [0, 2 * PEERS].into_iter().chain((0..PEERS).flat_map(|_| words)).collect()
}

fn pulls() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for c in 0..2 {
        let place = c as usize * 300;
        let late = record(10, READY, -1, 40, (7, 5));
        sheet.set(place, 1);
        sheet.put(place + 1, state(c == 1, (c == 1).then_some(late)));
        for peer in 0..96 {
            // What is offered later is not looked at; of a team that is stopped those before the late one are known.
            let known = peer < if c == 1 { 32 } else { PEERS };
            let at = [((1 << 25) + peer) * 128, ((1 << 24) + peer * 2) * 128];
            let at = if known { at } else { [0; 2] };
            sheet.put(place + 20 + 2 * peer as usize, [at[0] + FAR * 32, at[1] + FAR * 16]);
        }
    }
    sheet.0
}

fn releases() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for turn in 0..4 {
        let place = 10 + turn * 80;
        sheet.set(place, [1, 0, 1, 0][turn]);
        sheet.put(place + 1, [if turn == 3 { 7 } else { 0 }; PEERS as usize]);
    }
    sheet.0
}

fn awaits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, state(false, None));
    for (place, peer) in [(20, 69), (40, 0), (60, 64)] {
        sheet.put(place, state(true, Some(record(10, RELEASED, -1, peer, (7, 5)))));
    }
    sheet.0
}
