//! What queues that nobody empties hold, in the order of `net_queues.cu`.

use super::lone_net::{BEGIN, asked, put};
use super::waits::{Record, state};
use super::{Check, Sheet, stamped};

/// A network, and 66 queue pairs of eight entries.
pub(super) const WINDOW_BYTES: i64 = 1 << 17;

pub(super) const CHECKS: [Check; 9] = [
    ("queues that are full", rooms),
    ("queues that are not read", drains),
    ("entries of a card", card_puts),
    ("queue pairs that are full", card_rooms),
    ("queue pairs that are not read", card_drains),
    ("entries in a row", card_runs),
    ("a queue pair that goes on", || {
        let mut sheet = Sheet::new();
        (1..=24).for_each(|turn| sheet.put(turn * 2, [1, 5]));
        sheet.0
    }),
    ("a queue pair that others write to", card_is_told),
    ("a card that is late", || {
        let mut sheet = Sheet::new();
        sheet.put(0, (0..24).map(|round| if round % 2 == 0 { 0 } else { 5 }));
        sheet.put(100, [1; 24]);
        sheet.0
    }),
];

/// Kinds of waits.
const QUEUE: i64 = 11;
const DRAINED: i64 = 12;

/// A wait for queue 1 of a group, which has run out.
fn expired(group: i64, kind: i64, peer: i64, want: i64, seen: i64) -> Vec<i64> {
    let record = Record {
        pipeline: 70 + group,
        role: 3,
        channel: 1,
        kind,
        expired: 1,
        stripe: -1,
        peer,
        want,
        seen,
        block: 0,
    };
    state(true, Some((record, 7)))
}

fn rooms() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let late = 0xc000_0000;
    // What is claimed at last, the lanes that have asked, and the wait that runs out.
    let cases = [
        (9, vec![4], None),
        (9, vec![4], Some((1, 0))),
        (10, vec![3, 4], Some((2, 1))),
        (10, vec![0, 1], None),
        (late + 1, vec![4], Some((late - 7, late - 8))),
        (late + 1, vec![4], None),
    ];
    for (i, (claimed, lanes, vain)) in cases.into_iter().enumerate() {
        let ends = |(want, seen)| expired(i as i64, QUEUE, -1, want, seen);
        sheet.set(i * 600, i64::from(vain.is_none()));
        sheet.put(i * 600 + 1, vain.map_or(state(false, None), ends));
        let turn = (claimed - 1) / 8 + 1;
        let descriptor = |lane: i64| {
            let [to, from, who, _] = put(lane + 1, lane * 16, lane * 32, 0);
            [to, from, who, stamped(turn & 0xffff_ffff, 8 + lane)]
        };
        let all = if vain.is_none() { lanes.into_iter().map(descriptor).collect() } else { vec![] };
        asked(&mut sheet, i * 600 + 20, claimed, (8, all));
    }
    sheet.0
}

fn drains() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // How it ends, what is claimed of queue 1, and the slot of what was put.
    let good = || state(false, None);
    let cases = [
        (1, good(), 3, None),
        (3, good(), 4, Some(8 + 3)),
        (2, expired(2, DRAINED, -1, 4, 3), 4, Some(8 + 3)),
        (3, good(), 3, Some(3)),
        (0, state(true, None), 3, None),
    ];
    for (i, (done, ends, claimed, slot)) in cases.into_iter().enumerate() {
        sheet.set(i * 600, done);
        sheet.put(i * 600 + 1, ends);
        let all = slot.map(|_| put(2, 0, 0, 8)).into_iter().collect();
        asked(&mut sheet, i * 600 + 20, claimed, (slot.unwrap_or(0), all));
    }
    sheet.0
}

/// A put of some bytes by a card.
struct Put {
    peer: i64,
    to: i64,
    from: i64,
    bytes: i64,
}

fn swapped(word: i64) -> i64 {
    i64::from((word as u32).swap_bytes())
}

impl Put {
    /// The words of entry `own` of queue 1, with those that it holds if it does.
    fn entry(&self, own: i64, held: Option<Vec<i64>>) -> Vec<i64> {
        let pair = self.peer * 2 + 1;
        let units = if held.as_ref().is_some_and(|held| held.len() > 3) { 4 } else { 3 };
        let there = 0x1122_3344_0000_0000 + (pair << 20) + BEGIN + self.to;
        let mut words = vec![
            swapped(0x08 | (own & 0xffff) << 8),
            swapped((0x0012_3400 + pair) << 8 | units),
            0x08 << 24,
            0,
            swapped(there >> 32),
            swapped(there),
            swapped(0xa1b2_c300 + pair),
            0,
        ];
        match held {
            Some(held) => {
                words.push(swapped(0x8000_0000 | self.bytes));
                words.extend(held);
            }
            None => words.extend([swapped(self.bytes), swapped(0x0a0b_0c0d), self.from, 0]),
        }
        words.resize(16, 0);
        words
    }
}

/// The state of a queue pair to `peer`: how many entries are claimed, the word `written`, the entry up to which the card was
/// told, and the entries in the slots.
fn pair(
    sheet: &mut Sheet,
    place: usize,
    (peer, [claimed, written]): (i64, [i64; 2]),
    next: Option<i64>,
    entries: Vec<(i64, Vec<i64>)>,
) {
    sheet.put(place, [claimed, written, 0x77, 0]);
    if let Some(next) = next {
        let number = 0x0012_3400 + peer * 2 + 1;
        let head = next & 0xffff;
        sheet.put(place + 2, [swapped(head), stamped(swapped(number << 8), swapped(head << 8))]);
    }
    sheet.put(place + 4, [0; 8 * 16]);
    for (own, entry) in entries {
        sheet.put(place + 4 + (own % 8) as usize * 16, entry);
    }
}

fn card_puts() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.set(0, 1);
    sheet.put(1, state(false, None));
    for (peer, bytes) in [4, 12, 16, 28, 32, 6, 30, 8, 24, 13].into_iter().enumerate() {
        let place = 20 + peer * 140;
        let peer = peer as i64;
        let from = peer * 64 + if peer == 7 { 2 } else { 0 };
        let it = Put { peer, to: peer * 4096 + 4, from, bytes };
        let fits = bytes <= 28 && bytes % 4 == 0 && from % 4 == 0;
        let word = |i| ((from / 4 + i) * 0x0102_0301) & 0xffff_ffff;
        let held = fits.then(|| (0..bytes / 4).map(word).collect());
        pair(&mut sheet, place, (peer, [1, 1]), Some(1), vec![(0, it.entry(0, held))]);
    }
    sheet.0
}

fn card_rooms() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // The final counts of claimed and written entries, the entry up to which the card was told, the written entries, and the
    // entry that waited for room.
    let cases = [
        ([9, 8], None, vec![], Some((8, 8))),
        ([9, 9], Some(9), vec![8], None),
        ([9, 8], None, vec![], Some((8, 8))),
        ([0x20000, 0x20000], Some(0), vec![0x1ffff], None),
        ([40001, 0], None, vec![], Some((40000, 0))),
    ];
    let it = Put { peer: 4, to: 0, from: 0, bytes: 32 };
    for (i, (counts, next, entries, vain)) in cases.into_iter().enumerate() {
        let ends = |(want, seen)| expired(i as i64, QUEUE, 4, want, seen);
        sheet.set(i * 200, i64::from(vain.is_none()));
        sheet.put(i * 200 + 1, vain.map_or(state(false, None), ends));
        let entries = entries.into_iter().map(|own| (own, it.entry(own, None))).collect();
        pair(&mut sheet, i * 200 + 20, (4, counts), next, entries);
    }
    sheet.0
}

/// A card is told of each eighth entry, though another one was claimed behind it.
fn card_is_told() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let it = Put { peer: 4, to: 0, from: 0, bytes: 32 };
    for (i, (own, next)) in [(13, None), (15, Some(16))].into_iter().enumerate() {
        let entries = vec![(own, it.entry(own, None))];
        pair(&mut sheet, i * 200, (4, [own + 2, own + 1]), next, entries);
    }
    sheet.0
}

/// The lane that writes the first entry also tells the card of the written entries behind it.
fn card_runs() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let it = Put { peer: 4, to: 0, from: 0, bytes: 32 };
    let bit = |own: i64| 1 << (32 + own % 32);
    // The final counts of claimed and written entries, the entry up to which the card was told, and either the written entries
    // or the count that a wait for room saw.
    let cases = [
        ([14, 12 + bit(13)], None, Ok(13..14)),
        ([16, 17], Some(17), Ok(15..16)),
        ([64, 65], Some(65), Ok(63..64)),
        ([15, 15], Some(15), Ok(12..15)),
        ([65, 33 + bit(64)], None, Ok(64..65)),
        ([65, 32], None, Err(32)),
    ];
    for (i, (counts, next, ends)) in cases.into_iter().enumerate() {
        let record = |seen| expired(i as i64, QUEUE, 4, 64, seen);
        sheet.set(i * 200, i64::from(ends.is_ok()));
        sheet.put(i * 200 + 1, ends.clone().err().map_or(state(false, None), record));
        let entries = ends.into_iter().flatten().map(|own| (own, it.entry(own, None))).collect();
        pair(&mut sheet, i * 200 + 20, (4, counts), next, entries);
    }
    sheet.0
}

fn card_drains() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let vain = |peer, want, seen| Some((peer, want, seen));
    // Whether anything was put in the queue or another one, and the wait that runs out.
    let cases = [
        (true, 3, None),
        (true, 2, vain(32, 5, 5)),
        (true, 2, vain(0, 5, 4)),
        (true, 3, None),
        (true, 3, None),
        (true, 2, vain(32, 50, 57)),
        (true, 2, vain(31, 5, 5)),
        (false, 1, None),
        (false, 3, None),
        (true, 2, vain(3, 5, 5)),
        (false, 3, None),
        (false, 0, None),
        (true, 3, None),
        (true, 2, vain(32, 40000, 5)),
    ];
    let it = Put { peer: 2, to: 0, from: 0, bytes: 8 };
    for (i, (puts, ends, vain)) in cases.into_iter().enumerate() {
        sheet.set(i * 200, ends);
        let expired = |(peer, want, seen)| expired(i as i64, DRAINED, peer, want, seen);
        sheet.put(i * 200 + 1, vain.map_or(state(ends == 0, None), expired));
        let entries = if puts { vec![(2, it.entry(2, Some(vec![0, 0])))] } else { vec![] };
        let counts = if puts { [3, 3] } else { [2, 2] };
        pair(&mut sheet, i * 200 + 20, (2, counts), puts.then_some(3), entries);
    }
    sheet.0
}
