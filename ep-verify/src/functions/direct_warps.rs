//! What warps of direct channels leave, in the order of `direct_warps.cu`.

use super::waits::{Record, state};
use super::{Check, Sheet, stamped};

/// Movers of three warps.
pub(super) const SHARED_BYTES: i64 = 3 * 1024;

/// What 24 groups have of their own, rows of tokens, and windows of 40 ranks.
pub(super) const WINDOW_BYTES: i64 = 128 + 24 * 832 + TOKENS * 32 + 40 * 15_488;

pub(super) const CHECKS: [Check; 19] = [
    ("where receivers want rows", tells),
    ("before two warps send", Vec::new),
    ("rows that two warps send", || rows(TOKENS, 2)),
    ("what they have told", || words(None)),
    ("before two warps copy", Vec::new),
    ("rows that two warps copy", || rows(TOKENS, 2)),
    ("what these have told", || words(None)),
    ("rows up to a stop", || alone(Some(86))),
    ("rows of a team that is stopped", || alone(Some(0))),
    ("rows that one warp sends", || alone(None)),
    ("where rows go", opens),
    ("before a row is sent", Vec::new),
    ("a row for another warp", passed),
    ("before a row is copied", Vec::new),
    ("a copied row for another warp", passed),
    ("before stripes come late", Vec::new),
    ("stripes that come late", late),
    ("rows of all stripes", reads),
    ("stripes that have not come", waits),
];

const CALL: i64 = 7;
const TOKENS: i64 = 400;
const MANY: Channel = Channel { peers: 40, stripes: 5 };
const FEW: Channel = Channel { peers: 3, stripes: 5 };
const LAST: Channel = Channel { peers: 17, stripes: 1 };

/// A row so far that its bytes take more than 32 bits.
const FAR: i64 = 1 << 29;

/// Kinds of waits.
const READY: i64 = 4;
const CLOSED: i64 = 5;
const CAPACITY: i64 = 10;

fn record(group: i64, role: i64, kind: i64, (stripe, peer): (i64, i64)) -> Record {
    let pipeline = 70 + group;
    let (channel, expired, block) = (5, 1, 0);
    Record { pipeline, role, channel, kind, expired, stripe, peer, want: 0, seen: 0, block }
}

/// A receiver tells all ranks where rows, records and the room for them are.
fn tells() -> Vec<i64> {
    let words = [(1 << 25) + 5, (1 << 26) + 9, 77].map(|word| stamped(CALL, word));
    let mut sheet = Sheet::new();
    for c in 0..3 {
        let told = c == 2;
        sheet.set(c * 200, if told { 3 * MANY.peers } else { 0 });
        for peer in 0..MANY.peers as usize {
            sheet.put(c * 200 + 1 + peer * 3, if told { words } else { [0; 3] });
        }
    }
    sheet.0
}

/// Whether a token goes to a peer.
fn goes(token: i64, peer: i64) -> bool {
    match peer {
        _ if (100..130).contains(&token) => false,
        3 => token < 80,
        5 => false,
        _ => (token * 7 + peer * peer * 3 + token * token % 13 * peer) % 11 < 2,
    }
}

fn rows_before(end: i64, peer: i64) -> i64 {
    (0..end).filter(|token| goes(*token, peer)).count() as i64
}

/// Where the rows of tokens before `end` go, to peers that warps come to, of which none finds anything wrong.
fn rows(end: i64, warps: usize) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let peers = if end < TOKENS { 32 } else { MANY.peers };
    for (token, peer) in (0..end).flat_map(|token| (0..peers).map(move |peer| (token, peer))) {
        let position = 3 + peer + rows_before(token, peer);
        let recorded = if goes(token, peer) { position } else { -1 - position };
        sheet.set((token * MANY.peers + peer) as usize, recorded);
    }
    let faults = (TOKENS * MANY.peers) as usize;
    (0..warps).for_each(|warp| sheet.put(faults + warp * 64, [0; 64]));
    if warps == 2 {
        // The third one has read what they sent.
        sheet.put(faults + 128, [0; 32]);
    }
    sheet.0
}

/// What all receivers have been told, and words of units and claims; or what a warp leaves that is stopped in the second
/// stripe or from the beginning.
fn words(end: Option<i64>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.set(0, 0);
    for (peer, stripe) in (0..MANY.peers).flat_map(|peer| (0..5).map(move |stripe| (peer, stripe)))
    {
        let (begin, through) = (stripe * 80, stripe * 80 + 80);
        let first = 3 + peer + rows_before(begin, peer);
        let count = rows_before(through, peer) - rows_before(begin, peer);
        let words = [stamped(CALL, first), stamped(CALL, count)];
        let place = (peer * 10 + stripe * 2) as usize;
        sheet.put(1 + place, if end.is_none() { words } else { [0; 2] });
        // The last unit of the first stripe is still on its way then.
        let counted = end.is_some_and(|end| end > 80) && stripe == 0 && peer < 32;
        let sum = if counted { stamped(4, rows_before(64, peer)) } else { 0 };
        sheet.set((500 + peer * 5 + stripe) as usize, sum);
    }
    // Each unit that is taken asks for one more: 16 tokens each, and 4 of the last stripes.
    let asked = match end {
        None => [55, 55],
        Some(0) => [0, 0],
        Some(end) => [end / 16 + 1, 0],
    };
    sheet.put(800, [0; 6].into_iter().chain(asked).chain([0; 8]));
    sheet.0
}

fn alone(end: Option<i64>) -> Vec<i64> {
    let mut sheet = Sheet(rows(end.unwrap_or(TOKENS), 1));
    sheet.put(20_000, words(end));
    sheet.put(21_000, state(end.is_some(), None));
    sheet.0
}

fn opens() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // Who is blamed, and for what: the kind, what was wanted and what seen.
    let blamed = [
        None,
        Some((6, READY, CALL, CALL - 2)),
        Some((0, READY, CALL, CALL)),
        Some((31, READY, CALL, CALL)),
        Some((0, CAPACITY, 71, 70)),
        Some((9, CAPACITY, 80, 79)),
    ];
    for (c, blamed) in blamed.into_iter().enumerate() {
        let is_known = !matches!(blamed, Some((_, READY, ..)));
        for lane in 0..32 {
            let known = is_known && lane != 2;
            let at = [(1 << 25) + 5, (1 << 26) + 9].map(|at| if known { at * 128 } else { 0 });
            sheet.put(c * 120 + lane * 2, [at[0] + FAR * 32, at[1] + FAR * 16]);
        }
        let record = blamed.map(|(peer, kind, want, seen)| {
            (Record { want, seen, ..record(4 + c as i64, 1, kind, (-1, peer)) }, CALL)
        });
        sheet.put(c * 120 + 80, state(blamed.is_some(), record));
    }
    sheet.0
}

fn passed() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0, 0]);
    sheet.put(10, (0..8).map(|lane| 50 + lane % 4));
    sheet.put(20, (0..8).map(|lane| 9 * 16 + lane));
    sheet.0
}

/// The first row of a stripe from a source, and how many there are.
fn first_of(source: i64, stripe: i64) -> i64 {
    (source * 5 + stripe) * 7
}
fn count_of(source: i64, stripe: i64) -> i64 {
    (source * 5 + stripe * 3) % 7
}

fn late() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for i in 0..15 {
        let (source, stripe) = (i % 3, i / 3);
        let rows = if stripe < 3 { 1 + i % 2 } else { 4 };
        sheet.put(first_of(source, stripe) as usize, (0..rows).map(|k| 100 * i + k));
    }
    sheet.0
}

struct Channel {
    peers: i64,
    stripes: i64,
}

impl Channel {
    /// How often each row is read, and where its record is, of stripes that have come.
    fn put(&self, sheet: &mut Sheet, place: usize, has_come: impl Fn(i64, i64) -> bool) {
        sheet.put(place, [0; 1500]);
        for source in 0..self.peers {
            for stripe in (0..self.stripes).filter(|stripe| has_come(source, *stripe)) {
                let first = first_of(source, stripe);
                for row in first..first + count_of(source, stripe) {
                    sheet.set(place + row as usize, 1 + row * 16_000);
                }
            }
        }
    }
}

fn reads() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let all = [(MANY, 2), (FEW, 1), (FEW, 5), (LAST, 1)];
    for (c, (channel, warps)) in all.into_iter().enumerate() {
        channel.put(&mut sheet, c * 2000, |_, _| true);
        (0..warps).for_each(|warp| sheet.put(c * 2000 + 1500 + warp * 20, state(false, None)));
    }
    sheet.0
}

fn waits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // The first that is missing, which one is said to be, and what is seen of it.
    let all = [
        (vec![(1, 0), (2, 4)], CALL, CALL - 3),
        (vec![(2, 4)], CALL, CALL - 3),
        (vec![(0, 2)], CALL, CALL),
        (vec![(0, 1)], 0, 0),
        (vec![(1, 3)], 0, -1),
    ];
    for (c, (missing, call, seen)) in all.into_iter().enumerate() {
        FEW.put(&mut sheet, c * 2000, |source, stripe| !missing.contains(&(source, stripe)));
        let (peer, stripe) = missing[0];
        let it = Record { want: call, seen, ..record(11 + c as i64, 3, CLOSED, (stripe, peer)) };
        sheet.put(c * 2000 + 1500, state(true, Some((it, call))));
    }
    sheet.0
}
