//! What waits, records and calls leave, in the order of `waits.cu`.

use super::{Check, Sheet};

/// 70 sequences, and a row with its barrier.
pub(super) const SHARED_BYTES: i64 = 70 * 40 + 32;

/// Words of claims, and what 36 groups have of their own.
pub(super) const WINDOW_BYTES: i64 = 64 + 36 * 320;

pub(super) const CHECKS: [Check; 17] = [
    ("units of a first call", units),
    ("units of a second call", units),
    ("units of a third call", units),
    ("blocks that wait for each other", grids),
    ("calls that end", ends),
    ("blocks that leave", leaves),
    ("sequences that are cleared", cleared),
    ("sequences", sequences),
    ("waits", polls),
    ("records", records),
    ("a stop", stops),
    ("a record for another rank", told),
    ("words of another rank", words),
    ("a call that is stopped as it begins", || vec![1; 64]),
    ("a warp that leaves late", late),
    ("parts of stripes", cuts),
    ("words of another kernel", kernels),
];

/// What a group has of its own: its state and stop word, and its records.
struct Own {
    epoch: i64,
    blocks: i64,
    arrivals: i64,
    records: i64,
    entered: i64,
    gave_up: i64,
    stop: i64,
    written: Vec<[i64; 13]>,
}

impl Own {
    const NEW: Own = Own {
        epoch: 0,
        blocks: 0,
        arrivals: 0,
        records: 0,
        entered: 0,
        gave_up: 0,
        stop: 0,
        written: Vec::new(),
    };

    /// After one wait that has left a record: one that ran out stops the group.
    fn gave_up(epoch: i64, record: Record) -> Own {
        let stops = record.expired;
        let gave_up = if stops == 1 { epoch } else { 0 };
        Own { records: 1, gave_up, stop: stops, written: vec![record.words(epoch)], ..Own::NEW }
    }

    fn numbers(&self) -> Vec<i64> {
        let Own { epoch, blocks, arrivals, records, entered, gave_up, stop, .. } = *self;
        let mut all = vec![epoch, blocks, arrivals, records, entered, gave_up, stop];
        all.extend(self.written.iter().flatten());
        all.resize(7 + 4 * 13, 0);
        all
    }
}

/// What a warp waited for when it gave up.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) pipeline: i64,
    pub(super) role: i64,
    pub(super) channel: i64,
    pub(super) kind: i64,
    pub(super) expired: i64,
    pub(super) stripe: i64,
    pub(super) peer: i64,
    pub(super) want: i64,
    pub(super) seen: i64,
    pub(super) block: i64,
}

impl Record {
    /// Its words, of which none has a sign.
    pub(super) fn words(self, epoch: i64) -> [i64; 13] {
        let Record { pipeline, role, channel, kind, expired, stripe, peer, .. } = self;
        let Record { want, seen, block, .. } = self;
        let all =
            [pipeline, role, channel, kind, expired, stripe, peer, want, seen, epoch, block, 0, 1];
        all.map(|word| word & 0xffff_ffff)
    }
}

/// What a team has come to: whether it is stopped, whether its group is, and a record of a call; see `given_up.cu`.
pub(super) fn state(stopped: bool, record: Option<(Record, i64)>) -> Vec<i64> {
    let given_up = i64::from(record.is_some());
    let words = record.map(|(record, epoch)| record.words(epoch)).unwrap_or_default();
    [i64::from(stopped), given_up, given_up].into_iter().chain(words).collect()
}

fn units() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (place, count) in [(0, 37), (40, 6), (60, 4)] {
        (place..place + count).for_each(|unit| sheet.add(unit, 1));
    }
    sheet.0
}

fn grids() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for block in 0..2 {
        sheet.put(block * 64, 0..64);
        sheet.put(128 + block * 64, (0..64).rev());
        sheet.put(256 + block * 64, [3; 32]);
        let record = Record {
            pipeline: 96 + block as i64,
            role: 0,
            channel: 0,
            kind: 9,
            expired: 1,
            stripe: -1,
            peer: -1,
            want: 2,
            seen: 1,
            block: block as i64,
        };
        let own = Own { arrivals: 1, ..Own::gave_up(4, record) };
        sheet.put(400 + block * 60, own.numbers());
    }
    sheet.0
}

fn ends() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (c, case) in (28..32).enumerate() {
        let epoch = 41 + case;
        let (is_stopped, is_out) = (case == 30, case != 31);
        for thread in 0..64 {
            sheet.put(c * 400 + thread * 4, [epoch, i64::from(is_stopped), 1, 1]);
        }
        if is_out {
            sheet.set(c * 400 + 300, 0);
        }
        let own = Own {
            // A stopped call did not take place, and one of several phases goes on.
            epoch: if case == 28 { epoch } else { epoch - 1 },
            blocks: if is_out { 0 } else { 1 },
            arrivals: if is_out { 0 } else { 2 },
            entered: if is_stopped { 0 } else { epoch },
            stop: i64::from(is_stopped),
            ..Own::NEW
        };
        sheet.put(c * 400 + 301, own.numbers());
    }
    sheet.0
}

fn leaves() -> Vec<i64> {
    const INSIDE: i64 = 1 << 16;
    // Where a block leaves that entered last; that did and is alone; that entered first; in a phase that another one
    // follows; in a stopped call; and the same of calls whose blocks meet.
    let alone = [[7, INSIDE, 2], [7, 0, 2], [6, 1, 2], [6, 0, 2], [6, 0, 2]];
    let met = [[6, INSIDE + 2, 2], [7, 0, 0], [6, 0, 0]];
    [alone.concat(), met.concat(), vec![1]].concat()
}

fn cleared() -> Vec<i64> {
    [vec![0; 69 * 5], vec![7; 5]].concat()
}

fn sequences() -> Vec<i64> {
    const FIRST: u32 = 0xffff_fff0;
    let mut sheet = Sheet::new();
    // Where the first gap is, and the bits behind it.
    let word = |gap: u32, bits: u64| (u64::from(FIRST.wrapping_add(gap)) | bits << 32) as i64;
    let steps = [
        (1, 0, 0b10),
        (1, 0, 0b110),
        (1, 0, 1 << 31 | 0b110),
        (0, 0, 1 << 31 | 0b110),
        (1, 3, 1 << 28),
        (1, 4, 1 << 27),
        (1, 4, 1 << 31 | 1 << 27),
        (0, 4, 1 << 31 | 1 << 27),
        (1, 4, 1 << 31 | 1 << 30 | 1 << 27),
    ];
    for warp in 0..2 {
        let mut own = Vec::new();
        for (done, gap, bits) in steps {
            own.extend([done, word(gap, bits), i64::from(FIRST.wrapping_add(gap))]);
        }
        for position in (1..32).rev() {
            own.extend([1, word(0, 0xffff_ffff >> position << position)]);
        }
        own.extend([1, word(32, 0)]);
        own.extend([0, 3, 0, 0, 37]);
        own.extend([1, 1, 2, 2, 3, 3]);
        sheet.put(warp * 600, own);
    }
    for position in 0..80 {
        sheet.add(1200 + position, 500 + position as i64);
        sheet.add(1301 + position, 1);
        sheet.set(1400 + position, 500 + position as i64);
    }
    sheet.put(1500, [0, 1]);
    sheet.set(1510, 1501);
    sheet.put(1520, [1, 0]);
    for round in 0..60 {
        sheet.put(1600 + round * 2, [round as i64; 2]);
        sheet.set(1800 + round, round as i64);
    }
    sheet.0
}

fn late() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(32, [1; 32]);
    sheet.put(96, [1; 32]);
    sheet.0
}

/// A direct channel.
struct Direct {
    stripes: i64,
    row: i64,
    unit: i64,
}

impl Direct {
    /// The parts into which so many warps cut stripes that they send `sets` times, to so many peers each time.
    fn parts(&self, (warps, longest): (i64, i64), (sets, peers): (i64, i64)) -> Vec<i64> {
        let units = sets * self.stripes;
        let least = (warps + units - 1) / units;
        let most = (self.unit / (self.row * peers.clamp(1, 4))).clamp(1, 16);
        let left = |stripe: i64| sets * longest.max(1) * (self.stripes - stripe);
        let each = if left(0) < 16 * warps { 1 } else { 2 };
        let parts_of = |stripe: i64| {
            let fit = |size: &i64| left(stripe) > each * (most >> size).max(1) * warps;
            let size = most >> (0..4).find(fit).unwrap_or(4);
            ((longest + size.max(1) - 1) / size.max(1)).max(least).min(longest.max(1))
        };
        let all = (0..self.stripes).flat_map(|stripe| {
            let parts = parts_of(stripe);
            (0..parts).map(move |part| (stripe * 1000 + part) * 1000 + parts)
        });
        let all: Vec<i64> = all.collect();
        [vec![all.len() as i64], all].concat()
    }
}

fn cuts() -> Vec<i64> {
    let channels = [
        Direct { stripes: 1, row: 256, unit: 4096 },
        Direct { stripes: 6, row: 16, unit: 1024 },
        Direct { stripes: 9, row: 7168, unit: 114_688 },
    ];
    let mut all = Vec::new();
    for warps in [1, 5, 40] {
        for longest in [0, 1, 7, 64, 300] {
            for (channel, sent) in
                channels.iter().flat_map(|it| [(2, 3), (1, 32), (1, 0)].map(|sent| (it, sent)))
            {
                all.extend(channel.parts((warps, longest), sent));
            }
        }
    }
    all
}

fn polls() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // Turns, whether it was waited for, and whether the team is stopped.
    let cases = [
        (1, 1, 0),
        (63, 1, 0),
        (127, 1, 0),
        (3, 1, 0),
        (64, 0, 1),
        (64, 0, 1),
        (128, 0, 1),
        (128, 0, 1),
        (0, 0, 1),
        (1, 1, 0),
        (64, 0, 1),
        (128, 1, 0),
    ];
    // The lane that leaves a record and whether the wait ran out: of the lanes that wait (5 to 31 in two
    // cases), the first one with a peer; else the first.
    let blamed = |case: usize| -> Option<(i64, i64)> {
        match case {
            4 => Some((9, 1)),
            5 => Some((5, 1)),
            6 => Some((5, 0)),
            7 => Some((0, 1)),
            10 => Some((31, 0)),
            _ => None,
        }
    };
    let peers = [0, 0, 0, 0, 9, 32, 5, 0, 0, 0, 31, 0];
    for (c, (turns, done, stopped)) in cases.into_iter().enumerate() {
        sheet.put(c * 100, [turns * 4 + done * 2 + stopped; 32]);
        if turns > 0 {
            sheet.put(c * 100 + 92, [turns, turns + 1]);
        }
        let record = |(lane, expired)| Record {
            pipeline: 70 + c as i64,
            role: 5,
            channel: 7,
            kind: 6,
            expired,
            stripe: 20 + lane,
            peer: if lane >= peers[c] { lane - peers[c] } else { -1 },
            want: 300 + lane,
            seen: if c == 5 { 0 } else { 800 + lane },
            block: 0,
        };
        let blame = blamed(c);
        let mut own = blame.map_or(Own::NEW, |blame| Own::gave_up(1000 + c as i64, record(blame)));
        if blame.is_some() {
            own.stop = 1;
        }
        sheet.put(c * 100 + 32, own.numbers());
    }
    sheet.0
}

fn records() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let record = |i: i64| Record {
        pipeline: 82,
        role: 6,
        channel: i,
        kind: 11,
        expired: i % 2,
        stripe: -1,
        peer: 2,
        want: 9,
        seen: i,
        block: 0,
    };
    let written = (0..3).map(|i| record(i).words(50 + i)).collect();
    sheet.put(0, Own { records: 5, written, ..Own::NEW }.numbers());
    for (c, case) in (13..19).enumerate() {
        let record = Record {
            pipeline: 70 + case,
            role: 4,
            channel: -1,
            kind: 10,
            expired: 1,
            stripe: -1,
            peer: -1,
            want: if case == 13 { 8 } else { 9 },
            seen: 7,
            block: 0,
        };
        let mut own = match case {
            14..=16 => Own::NEW,
            _ => Own::gave_up(60, record),
        };
        if case == 18 {
            let none = Record {
                role: 2,
                channel: 0,
                kind: 0,
                expired: 0,
                stripe: 0,
                peer: 0,
                want: 0,
                seen: 5,
                ..record
            };
            own.written.push(none.words(61));
            own.records = 2;
        }
        sheet.set(73 + c, i64::from(case != 14));
        sheet.put(100 + c * 60, own.numbers());
    }
    sheet.0
}

fn stops() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0, 0]);
    for (place, block) in [(10, 0), (30, 1)] {
        let record = Record {
            pipeline: 90,
            role: block,
            channel: 1,
            kind: 5,
            expired: 1 - block,
            stripe: 2,
            peer: 3,
            want: 4,
            seen: 5,
            block,
        };
        sheet.put(place, record.words(11));
    }
    sheet.0
}

fn told() -> Vec<i64> {
    let record = Record {
        pipeline: 91,
        role: 3,
        channel: 1,
        kind: 2,
        expired: 1,
        stripe: 2,
        peer: 6,
        want: 4,
        seen: 8,
        block: 0,
    };
    let mut sheet = Sheet::new();
    sheet.put(0, record.words(7));
    sheet.set(20, -7);
    sheet.0
}

fn kernels() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for lane in 0..32 {
        let next = (lane as i64 + 1) % 3;
        sheet.set(lane, 40 + next);
        sheet.set(32 + lane, 50 + next);
        sheet.set(64 + lane, 1);
        sheet.set(96 + lane, 0);
        sheet.set(128 + lane, 1);
        sheet.set(160 + lane, 0);
    }
    sheet.put(192, [60, 61, 70, 71]);
    let record = Record {
        pipeline: 89,
        role: 3,
        channel: 6,
        kind: 13,
        expired: 1,
        stripe: -1,
        peer: -1,
        want: 3,
        seen: 2,
        block: 1,
    };
    let mut own = Own::gave_up(17, record).numbers();
    own[7 + 3 * 13..][..5].copy_from_slice(&[60, 61, 70, 71, 1]);
    sheet.put(200, own);
    sheet.0
}

fn words() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0; 96]);
    sheet.put(0, [5, 6]);
    sheet.put(32, [90, 91]);
    sheet.put(100, [30, 31, 30]);
    sheet.put(104, [60, 61, 60]);
    sheet.0
}
