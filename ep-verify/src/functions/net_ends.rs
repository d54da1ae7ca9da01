//! What ends of channels between nodes leave among many ranks, in the order of `net_ends.cu`.

use super::lone_net::{Descriptor, asked, put, signal};
use super::waits::{Record, state};
use super::{Check, Sheet, stamped};

/// A network, and the windows of a node.
pub(super) const WINDOW_BYTES: i64 = 1 << 16;

/// The sequences of rings at two ends.
pub(super) const SHARED_BYTES: i64 = 2 * 33 * 40;

pub(super) const CHECKS: [Check; 15] = [
    ("records to other nodes", sends_slots),
    ("records of other nodes", || takes_slots(0, None)),
    ("records of which a near one never comes", || takes_slots(1, Some(18))),
    ("records of which a far one never comes", || takes_slots(2, Some(32))),
    ("rows to other nodes", || sends_rows(TOLD)),
    ("counted rows to other nodes", || sends_rows(COUNTED)),
    ("rows that are far apart", sends_huge),
    ("rows of other nodes", takes_rows),
    ("messages to other nodes, with a late header to a near rank", || sends_messages(18)),
    ("messages to other nodes, with a late header to a far rank", || sends_messages(5)),
    ("messages of other nodes that two warps read", takes_messages),
    ("a header that never comes from another node", || waits_for_header(4)),
    ("a header that never comes from this node", || waits_for_header(19)),
    ("messages within a node", takes_near),
    ("rows to one other node", sends_to_one),
];

const PEERS: i64 = 33;
const NEAR: i64 = 3;
const FAR: i64 = PEERS - NEAR;
const CALL: i64 = 7;
const BASE: i64 = 10;

/// Kinds of waits.
const CREDIT: i64 = 0;
const HEADER: i64 = 2;
const RETIRED: i64 = 3;
const FLAG: i64 = 6;

/// The place of a peer among those that are far from another one.
fn far_of(peer: i64, at: i64) -> i64 {
    if peer < at { peer } else { peer - NEAR }
}

/// The peers of other nodes.
fn far_from(own: i64) -> impl Iterator<Item = i64> {
    (0..PEERS).filter(move |peer| peer / NEAR != own / NEAR)
}

/// A wait that has run out.
fn record(group: i64, (channel, stripe): (i64, i64), kind: i64, waited: [i64; 3]) -> Vec<i64> {
    let [peer, want, seen] = waited;
    let pipeline = 70 + group;
    let record =
        Record { pipeline, role: 3, channel, kind, expired: 1, stripe, peer, want, seen, block: 0 };
    state(true, Some((record, CALL)))
}

fn sends_slots() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let (inbox, outbox) = (64, 64 + 2 * FAR * 32);
    let slot = |first: i64, each: i64, place: i64| first + (each + place) * 32;
    let from = |peer| slot(outbox, FAR, far_of(peer, 20));
    let near = slot(128, NEAR, 20 % NEAR);
    let slots = [(1, near), (1, from(4)), (1, from(32)), (1, near), (1, from(5)), (0, from(31))];
    sheet.put(0, slots.into_iter().flat_map(|(some, at)| [some, at]));
    sheet.put(20, record(0, (8, -1), CREDIT, [31, 5, 4]));
    sheet.put(40, [0, 1, 0]);
    let sent = |peer| {
        let to = slot(inbox, FAR, far_of(20, peer));
        [put(peer, to, from(peer), 32), signal(peer, 1, 1)]
    };
    asked(&mut sheet, 50, 4, (0, [4, 32].into_iter().flat_map(sent).collect()));
    sheet.0
}

fn takes_slots(group: i64, late: Option<i64>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for warp in 0..2 {
        let place = warp * 600;
        let mut ends = match late {
            Some(late) => record(group, (8, -1), FLAG, [late, CALL, CALL - 1]),
            None => state(false, None),
        };
        // The second warp finds its group stopped, and no room for a record.
        ends[2] += i64::from(late.is_some() && warp == 1);
        sheet.put(place, ends);
        let tells = late.is_none() && warp == 1;
        let told = i64::from(tells);
        sheet.put(place + 20, [told, told, 0]);
        let all: Vec<Descriptor> =
            far_from(20).filter(|_| tells).map(|peer| signal(peer, 2, 1)).collect();
        asked(&mut sheet, place + 30, all.len() as i64, (0, all));
    }
    sheet.0
}

/// Slots of two keys of each source, of so many bytes.
#[derive(Clone, Copy)]
struct Rows {
    counts: bool,
    bytes: i64,
}

const TOLD: Rows = Rows { counts: false, bytes: 24 };
const COUNTED: Rows = Rows { counts: true, bytes: 32 };
const HUGE: Rows = Rows { counts: true, bytes: 1 << 24 };

impl Rows {
    const OUTBOX: i64 = 1024;

    fn arrivals(self) -> i64 {
        if self.counts { 2 } else { 1 }
    }

    fn inbox(self) -> i64 {
        Rows::OUTBOX + 2 * FAR * 2 * self.arrivals() * self.bytes
    }

    /// A slot of key `number`, among those of all far peers.
    fn slot(self, far: i64, number: i64, arrival: i64) -> i64 {
        (((FAR + far) * 2 + number) * self.arrivals() + arrival) * self.bytes
    }

    /// The put of one from rank 1.
    fn put(self, peer: i64, number: i64, arrival: i64) -> Descriptor {
        let to = self.inbox() + self.slot(far_of(1, peer), number, arrival);
        let from = Rows::OUTBOX + self.slot(far_of(peer, 1), number, arrival);
        put(peer, to, from, self.bytes)
    }
}

/// Peers that are far from rank 1 and have not left, as many as a warp tells at once.
fn told_at_once() -> [Vec<i64>; 2] {
    far_from(1).filter(|peer| *peer != 7).partition(|peer| *peer < 32).into()
}

/// The last call that each far peer was told of.
fn last_told() -> impl Iterator<Item = i64> {
    far_from(1).map(|peer| if peer == 7 { CALL - 2 } else { CALL })
}

fn sends_rows(rows: Rows) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [1, 1, 0, 1, 1]);
    // The first key of rank 1, in the windows of its node: ranks 1 and 2 are told how much came of both keys, if that
    // is counted.
    let flag = if rows.counts { [0; 2] } else { [1, CALL] };
    sheet.put(10, flag.into_iter().chain([0; 2]).flat_map(|word| [0, 0, word]));
    let second = if rows.counts { [0, 1, 1, 0, CALL, CALL] } else { [0; 6] };
    let first = [0, 1, if rows.counts { 2 } else { 1 }, 0, CALL, CALL];
    sheet.put(30, first.into_iter().chain(second));
    sheet.put(50, last_told());
    if !rows.counts {
        let words = (0..FAR * 2).map(|i| if i == 3 || i == 59 { stamped(CALL, 1) } else { 0 });
        sheet.put(100, words);
    }
    let mut all = vec![rows.put(4, 1, 0), rows.put(32, 1, 0)];
    for peers in told_at_once() {
        let counts = |far| 64 + (FAR + far) * 2 * 4;
        let count = |peer: &i64| {
            let from = counts(far_of(*peer, 1)) + 2 * FAR * 2 * 4;
            put(*peer, counts(far_of(1, *peer)), from, 8)
        };
        all.extend(peers.iter().filter(|_| rows.counts).map(count));
        all.extend(peers.iter().map(|peer| signal(*peer, 1, 2)));
    }
    asked(&mut sheet, 200, all.len() as i64, (0, all));
    sheet.0
}

fn sends_huge() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [1, 1]);
    asked(&mut sheet, 10, 2, (0, (0..2).map(|arrival| HUGE.put(32, 1, arrival)).collect()));
    sheet.0
}

fn sends_to_one() -> Vec<i64> {
    let mut sheet = Sheet::new();
    asked(&mut sheet, 0, 1, (0, vec![signal(0, 1, CALL)]));
    sheet.0
}

fn takes_rows() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0, 1, 0, 0]);
    sheet.put(10, [3, CALL, CALL]);
    sheet.put(20, last_told());
    sheet.put(60, state(false, None));
    let all: Vec<Descriptor> =
        told_at_once().concat().into_iter().map(|peer| signal(peer, 2, 2)).collect();
    asked(&mut sheet, 80, all.len() as i64, (0, all));
    sheet.0
}

/// Where headers and slots of rings begin in the data.
const HEADERS_IN: i64 = 64;
const HEADERS_OUT: i64 = HEADERS_IN + 2 * 2 * FAR * 2 * 8;
const INBOX: i64 = HEADERS_OUT + 2 * 2 * FAR * 2 * 8;
const OUTBOX: i64 = INBOX + 2 * FAR * 4 * 48;

/// A word of a header of the second stripe in this call, and a slot of it.
fn header_at(far: i64, word: i64) -> i64 {
    8 * ((3 * FAR + far) * 2 + word)
}

fn slot_at(far: i64, at: i64) -> i64 {
    ((FAR + far) * 4 + at) * 48
}

/// A counter of the second stripe.
fn counter(word: i64) -> i64 {
    1 + word * 2 + 1
}

fn sends_messages(late: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, record(late, (7, 1), RETIRED, [late, CALL - 2, CALL - 3]));
    // What rank 20 has been told itself stays.
    sheet.put(20, [0, 1, BASE + 8]);
    sheet.put(30, [0, 0, stamped(CALL, 70), 0, 0, 0]);
    sheet.put(40, [0; 2 * FAR as usize]);
    sheet.set(40 + 4 * 2 + 1, 71);
    sheet.set(40 + 29 * 2, 72);
    let sent = |(peer, word)| {
        let (there, here) = (far_of(20, peer), far_of(peer, 20));
        let (to, from) = (header_at(there, word), header_at(here, word));
        [
            put(peer, HEADERS_IN + to, HEADERS_OUT + from, 8),
            signal(peer, counter(3), 1),
            put(peer, INBOX + slot_at(there, BASE % 4), OUTBOX + slot_at(here, BASE % 4), 48),
            signal(peer, counter(0), 1),
        ]
    };
    asked(&mut sheet, 200, 8, (64, [(4, 1), (32, 0)].into_iter().flat_map(sent).collect()));
    sheet.0
}

fn takes_messages() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let free = |count| signal(4, counter(1), count);
    let retired = || far_from(20).map(|peer| signal(peer, counter(2), 1));
    // What near ranks are told of slots and headers, and all that far ones are.
    let looks = [
        (0, false, vec![]),
        (4, false, vec![free(2); 2]),
        (4, false, vec![free(2); 2]),
        (8, true, [free(2), free(2), free(2), free(1)].into_iter().chain(retired()).collect()),
    ];
    for (i, (head, are_retired, all)) in looks.into_iter().enumerate() {
        sheet.put(i * 600, [0, head, BASE]);
        sheet.put(i * 600 + 3, if are_retired { [CALL; 3] } else { [0, 0, CALL - 2] });
        asked(&mut sheet, i * 600 + 10, all.len() as i64, (64, all));
    }
    sheet.put(2400, [0; 4 * 2 * PEERS as usize]);
    sheet.0
}

fn waits_for_header(peer: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    // Far headers are counted, and a near one says of which call it is.
    let waited = if peer == 4 { [peer, 2 * CALL, 2 * CALL - 1] } else { [peer, CALL, 0] };
    sheet.put(0, record(peer, (7, 1), HEADER, waited));
    sheet.set(20, 0);
    sheet.put(30, [0, 0, BASE, 0, 0, CALL - 2]);
    asked(&mut sheet, 40, 0, (0, Vec::new()));
    sheet.0
}

fn takes_near() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, state(false, None));
    sheet.put(20, [0, 1, BASE, CALL, CALL, CALL]);
    sheet.0
}
