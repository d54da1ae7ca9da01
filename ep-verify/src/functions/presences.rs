//! What looks for ranks leave that do not answer, in the order of `presences.cu`.

use super::waits::Record;
use super::{Check, Sheet};

/// What 51 groups have of their own.
pub(super) const WINDOW_BYTES: i64 = 64 + 51 * 1728;

pub(super) const CHECKS: [Check; 9] = [
    ("ranks that all warps miss", Vec::new),
    ("who is missed", missed),
    ("looks for peers", looks),
    ("waits that are longer than any peer", expiries),
    ("pulses", || vec![1; 21]),
    ("waits for peers", polls),
    ("counters of peers", counters),
    ("ranks that look for each other", meet),
    ("a stop while a peer is waited for", stops),
];

/// What has become of a group: whether it is stopped, in which call, and the one record of it; and whom it misses.
#[derive(Default)]
struct Own {
    record: Option<(Record, i64)>,
    stop: i64,
    absent: i64,
}

impl Own {
    fn numbers(&self) -> Vec<i64> {
        let gave_up = |(record, epoch): &(Record, i64)| record.expired * epoch;
        let given = self.record.as_ref();
        let words = given.map_or([0; 13], |(record, epoch)| record.words(*epoch));
        let head = [self.stop, given.map_or(0, gave_up), i64::from(given.is_some())];
        [&head[..], &words, &[self.absent]].concat()
    }
}

/// What a lane waits for with a peer, or none (-1), in the group of case `number`.
fn record(number: i64, lane: i64, peer: i64) -> Record {
    Record {
        pipeline: 70 + number,
        role: 0,
        channel: 7,
        kind: 6,
        expired: 1,
        stripe: 20 + lane,
        peer,
        want: 300 + lane,
        seen: 800 + lane,
        block: 0,
    }
}

fn bits(lanes: impl IntoIterator<Item = i64>) -> i64 {
    lanes.into_iter().fold(0, |bits, lane| bits | 1 << lane)
}

fn missed() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, (-1..64).map(|rank: i64| i64::from(rank >= 0 && rank % 5 != 2)));
    sheet.put(70, [40, 0]);
    let all = bits((0..64).filter(|rank| rank % 5 != 2));
    sheet.put(80, (0..64).flat_map(|rank| [if (11..41).contains(&rank) { all } else { 0 }, 0]));
    sheet.0
}

/// One lane's look for a peer, which ages are told of in half times of the longest wait.
fn look(c: i64, lane: i64) -> ([i64; 2], bool) {
    let third = lane % 3;
    let [changed, unready, first] = [4, 8, 16].map(|bit| lane & bit != 0);
    let is_asked = unready && !(c % 2 == 1 && third == 2);
    let is_told = third == 0 && (c / 2 == 1 || c / 2 == 2);
    let stands_still = !first && !changed && lane & 3 >= 2;
    let absent = if is_asked { is_told || stands_still } else { c / 2 == 3 && third == 1 };
    let is_new = first || (is_asked && changed);
    let begun = if first { 8 } else { 2 };
    let since = if is_new { 16 } else { 4 };
    let pulse = if is_asked || !changed { 100 + lane } else { 99 + lane };
    ([i64::from(absent) + begun + since, pulse], is_asked && absent)
}

fn looks() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for c in 0..8 {
        let all: Vec<_> = (0..32).map(|lane| look(c, lane)).collect();
        let known = (0..32).filter(|lane| c / 2 == 1 && lane % 3 == 0);
        let found = (0..32).filter(|lane| all[*lane as usize].1);
        let own = Own { absent: bits(known.chain(found)), ..Own::default() };
        sheet.put(c as usize * 100, all.iter().flat_map(|it| it.0));
        sheet.put(c as usize * 100 + 64, own.numbers());
        // The clock has not come to the first beat.
        sheet.set(c as usize * 100 + 90, 0);
    }
    sheet.0
}

fn expiries() -> Vec<i64> {
    // Who is absent, what besides each lane gives, the lane that leaves a record, and its peer.
    let cases = [
        (0..0, 4, None),
        (0..0, 2, Some((7, 7))),
        (0..0, 2, Some((5, 5))),
        (7..11, 2, Some((11, 11))),
        (9..12, 2, Some((9, 9))),
        (0..0, 2, None),
        (0..0, 4, None),
        (0..0, 2, Some((4, -1))),
        (0..32, 4, None),
    ];
    let mut sheet = Sheet::new();
    for (c, (absent, rest, blamed)) in cases.into_iter().enumerate() {
        let number = c as i64;
        let expired = i64::from(c != 4);
        let record = blamed
            .map(|(lane, peer)| Record { role: 4, expired, ..record(13 + number, lane, peer) })
            .map(|record| (record, 500 + number));
        let stop = i64::from(record.is_some() || c == 5);
        let is_absent = |lane: i64| i64::from(absent.contains(&lane));
        sheet.put(c * 60, (0..32).map(|lane| rest + is_absent(lane)));
        sheet.put(c * 60 + 32, Own { record, stop, absent: bits(absent.clone()) }.numbers());
    }
    sheet.0
}

fn polls() -> Vec<i64> {
    const DONE: i64 = 4;
    const STOPPED: i64 = 2;
    // How it ends, in which turn, which lanes are asked less often and how often, the lanes whose peers are
    // absent then, and the lane that leaves a record, with its peer.
    let none = || -> Vec<i64> { Vec::new() };
    let odd = || (1..32).step_by(2).collect::<Vec<i64>>();
    let cases = [
        (DONE, 1, 0, none(), None),
        (DONE, 63, 0, none(), None),
        (DONE, 127, 0, none(), None),
        (DONE, 65, 64, (5..32).collect(), None),
        (STOPPED, 64, 64, (9..32).collect(), Some((5, -1))),
        (DONE, 128, 128, (0..32).collect(), None),
        (STOPPED, 128, 0, none(), Some((0, -1))),
        (STOPPED, 0, 0, none(), None),
        (DONE, 3, 0, odd(), None),
        (STOPPED, 128, 0, none(), Some((0, 0))),
        (DONE, 128, 0, none(), None),
        (DONE, 128, 128, (0..32).collect(), None),
        (DONE, 34, 0, none(), None),
    ];
    let peers = [0, 0, 0, 0, 9, 0, 5, 0, 0, 0, 0, 0, 0];
    let mut sheet = Sheet::new();
    for (c, (end, turns, fewer, absent, blamed)) in cases.into_iter().enumerate() {
        let number = c as i64;
        let place = c * 120;
        let asked = |lane| if absent.contains(&lane) { fewer } else { turns };
        sheet.put(place, (0..32).map(asked));
        // Who does not look for its peer learns nothing.
        let says = |lane| if c == 12 { lane == 4 } else { absent.contains(&lane) };
        sheet.put(place + 32, (0..32).map(|lane| end + i64::from(says(lane))));
        let expired = i64::from(c != 6);
        let seen = |lane| if c == 4 { 0 } else { 800 + lane };
        let record = blamed
            .map(|(lane, peer)| (lane, record(29 + number, lane, peer)))
            .map(|(lane, it)| Record { role: 5, expired, seen: seen(lane), ..it })
            .map(|record| (record, 1000 + number));
        let known = if c == 12 { odd() } else { absent.iter().map(|it| it - peers[c]).collect() };
        let stop = i64::from(record.is_some());
        sheet.put(place + 64, Own { record, stop, absent: bits(known) }.numbers());
        if asked(0) > 0 {
            sheet.set(place + 110, asked(0));
        }
        if asked(3) > 0 {
            sheet.set(place + 111, asked(0) + 1);
        }
    }
    sheet.0
}

fn counters() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (c, done) in [(0, true), (1, false), (2, false), (3, true)] {
        sheet.put(c * 40, (0..32).map(|lane| if done { 30 + lane } else { -2 }));
    }
    sheet.put(160, [-1; 32]);
    sheet.set(200, bits([7, 8]));
    sheet.0
}

fn meet() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0; 32]);
    sheet.put(32, (0..32).map(|lane| i64::from(lane == 3)));
    sheet.set(64, 1);
    sheet.0
}

fn stops() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [2; 32]);
    let record = Record { role: 2, expired: 0, seen: 0, ..record(50, 9, 9) };
    sheet.put(32, Own { record: Some((record, 9)), stop: 1, absent: 0 }.numbers());
    sheet.0
}
