//! What ends of rings leave, in the order of `rings.cu`.

use super::{Check, Sheet};

/// Ranks of which each has a hub, and the rims of the other one's.
pub(super) const RANKS: usize = 2;

/// The sequences of five warps' rings.
pub(super) const SHARED_BYTES: i64 = 5 * 2 * 36 * 40;

/// Windows of two worlds, and tables of them.
pub(super) const WINDOW_BYTES: i64 = 2 * (5 * 18_240 + 328);

pub(super) const CHECKS: [Check; 12] = [
    ("the begin of rings to many", Vec::new),
    ("rings to many", || served(&WIDE)),
    ("words of rings to many", || words(&WIDE)),
    ("the begin of rings of parts", Vec::new),
    ("rings of parts", || served(&PARTED)),
    ("words of rings of parts", || words(&PARTED)),
    ("the begin of a team that is stopped", Vec::new),
    ("a team that is stopped", || [0, 0, -1, 0, 0].repeat(2)),
    ("words of a team that is stopped", untouched),
    ("the begin of rings in turn", Vec::new),
    ("rings that are filled", Vec::new),
    ("rings in turn", in_turn),
];

pub(super) const STRIPES: i64 = 2;
pub(super) const CALLS: i64 = 8;
/// Calls before senders are let ahead.
const AHEAD: i64 = 5;
const MOST: i64 = 7;
const WORDS: i64 = 5;
const HEADER_WORDS: i64 = 2;

/// Where messages of a ring are noted.
pub(super) const NOTED: usize = (CALLS * STRIPES * (MOST + 1) * WORDS) as usize;

/// What messages call the hub, by its parts.
const EACH_PART: i64 = 40;

/// A channel between a hub and its rims.
struct Channel {
    peers: i64,
    parts: i64,
    rims: &'static [i64],
}

const WIDE: Channel = Channel { peers: 36, parts: 1, rims: &[30, 31, 32, 34] };
const PARTED: Channel = Channel { peers: 4, parts: 2, rims: &[1, 2, 3] };

/// How many messages one rank sends another in a stripe of a call.
pub(super) fn messages(from: i64, to: i64, call: i64, stripe: i64) -> i64 {
    (from * 5 + to * 3 + call * 2 + stripe * 4) % if call > AHEAD { 2 } else { MOST }
}

fn word(from: i64, to: i64, call: i64, stripe: i64, at: i64) -> i64 {
    (((from * 64 + to) * 8 + call) * STRIPES + stripe) * 64 + at
}

pub(super) fn told(from: i64, to: i64, call: i64, stripe: i64) -> i64 {
    word(from, to, call, stripe, 0) % 10_007 - 5000
}

/// Notes all that comes through one ring.
pub(super) fn note(sheet: &mut Sheet, place: usize, from: i64, to: i64) {
    for (call, stripe) in (1..=CALLS).flat_map(|call| (0..STRIPES).map(move |it| (call, it))) {
        let at = place + (((call - 1) * STRIPES + stripe) * (MOST + 1) * WORDS) as usize;
        let count = messages(from, to, call, stripe);
        for k in 0..count {
            let message = (0..WORDS).map(|i| word(from, to, call, stripe, k * 8 + i));
            sheet.put(at + (k * WORDS) as usize, message);
        }
        sheet.put(at + (MOST * WORDS) as usize, [count, told(from, to, call, stripe)]);
    }
}

fn served(channel: &Channel) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for part in 0..channel.parts {
        for (i, rim) in channel.rims.iter().enumerate() {
            let first = part as usize * 10;
            note(&mut sheet, (first + i) * NOTED, *rim, EACH_PART * part);
            note(&mut sheet, (first + 4 + i) * NOTED, EACH_PART * part, *rim);
        }
    }
    sheet.0
}

impl Channel {
    fn rings(&self) -> usize {
        (STRIPES * self.peers * self.parts) as usize
    }

    /// Where the counters of a ring begin.
    fn start(&self, stripe: i64, own: i64, peer: i64, part: i64) -> u32 {
        0xffff_fff8_u32.wrapping_sub((3 * (own + peer) + 2 * part + stripe) as u32)
    }

    fn at(&self, stripe: i64, peer: i64, part: i64) -> usize {
        ((stripe * self.peers + peer) * self.parts + part) as usize
    }

    /// The words of a rank's window before any call.
    fn begin(&self, own: i64) -> Words {
        let rings = self.rings();
        let (peers, parts) = (0..self.peers, 0..self.parts);
        let all = (0..STRIPES)
            .flat_map(|stripe| peers.clone().map(move |peer| (stripe, peer)))
            .flat_map(|(stripe, peer)| parts.clone().map(move |part| (stripe, peer, part)));
        let starts: Vec<u32> =
            all.map(|(stripe, peer, part)| self.start(stripe, own, peer, part)).collect();
        Words {
            tail: starts.clone(),
            head: starts.clone(),
            retired: vec![0; rings],
            taken: starts.iter().chain(&vec![0; rings]).copied().collect(),
            sent: starts.iter().chain(&vec![0; rings]).copied().collect(),
            header: vec![0; 2 * rings * 2 * HEADER_WORDS as usize],
        }
    }
}

/// All words of a window but its slots.
struct Words {
    tail: Vec<u32>,
    head: Vec<u32>,
    retired: Vec<u32>,
    taken: Vec<u32>,
    sent: Vec<u32>,
    /// The halves of those that carry their epoch.
    header: Vec<u32>,
}

impl Words {
    /// After all calls, as far as they touch the ring of `peer`, called so.
    fn call(&mut self, channel: &Channel, part: i64, own: i64, (peer, name): (i64, i64)) {
        for (call, stripe) in (1..=CALLS).flat_map(|call| (0..STRIPES).map(move |it| (call, it))) {
            let at = channel.at(stripe, peer, part);
            let sent = messages(own, name, call, stripe) as u32;
            let taken = messages(name, own, call, stripe) as u32;
            let (tail, head) = (&mut self.tail[at], &mut self.head[at]);
            *tail = tail.wrapping_add(taken);
            *head = head.wrapping_add(sent);
            let copy = (call & 1) as usize * channel.rings();
            (self.taken[copy + at], self.sent[copy + at]) = (*tail, *head);
            let header = (copy + at) * HEADER_WORDS as usize * 2;
            let told = told(name, own, call, stripe) as u32;
            self.header[header..header + 4].copy_from_slice(&[
                taken,
                call as u32,
                told,
                call as u32,
            ]);
            self.retired[at] = call as u32;
        }
    }

    fn put(&self, sheet: &mut Sheet, place: usize) {
        let all = [&self.tail, &self.head, &self.retired, &self.taken, &self.sent, &self.header];
        let all = all.into_iter().flatten();
        sheet.put(place, all.map(|word| i64::from(*word)));
    }

    fn count(&self) -> usize {
        let all = [&self.tail, &self.head, &self.retired, &self.taken, &self.sent, &self.header];
        all.into_iter().map(Vec::len).sum()
    }
}

/// What windows hold behind all calls.
fn words(channel: &Channel) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let mut hub = channel.begin(0);
    for part in 0..channel.parts {
        for rim in channel.rims {
            hub.call(channel, part, EACH_PART * part, (*rim, *rim));
        }
    }
    let each = hub.count();
    hub.put(&mut sheet, 0);
    for (i, rim) in channel.rims.iter().enumerate() {
        let mut words = channel.begin(*rim);
        for part in 0..channel.parts {
            words.call(channel, part, *rim, (0, EACH_PART * part));
        }
        words.put(&mut sheet, (1 + i) * each);
    }
    sheet.0
}

/// What windows hold before any call.
fn untouched() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (i, rank) in std::iter::once(&0).chain(WIDE.rims).enumerate() {
        let words = WIDE.begin(*rank);
        words.put(&mut sheet, i * words.count());
    }
    sheet.0
}

/// The rings of two stripes, each begun with the first ring, as long as they have a message.
fn in_turn() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for stripe in 0..STRIPES as usize {
        let rims = WIDE.rims.iter().enumerate();
        let turn = |k: usize| rims.clone().filter(move |(i, _)| k < 1 + i * 3 % 4);
        sheet.put(stripe * 20, (0..4).flat_map(turn).map(|(_, rim)| *rim));
    }
    sheet.0
}
