//! What ends of slots leave among many ranks, in the order of `slot_ends.cu`.

use super::waits::{Record, state};
use super::{Check, Sheet, stamped};

/// What 44 groups have of their own, and six channels.
pub(super) const WINDOW_BYTES: i64 = 1 << 20;

pub(super) const CHECKS: [Check; 14] = [
    ("slots to many ranks", || sends(TOLD)),
    ("slots to many ranks, of which one is missed", || sends(Channel { misses: true, ..TOLD })),
    ("counted slots to many ranks", || sends(COUNTED)),
    ("counted slots to many ranks, of which one is missed", || sends(COUNTED_ABSENT)),
    ("slots that are free for long", reserves),
    ("slots that never come", looks),
    ("slots that name no source", unnamed),
    ("parts that never come", parts),
    ("counts of many ranks", || counts(COUNTED, 13)),
    ("counts of many ranks, of which some are missed", || counts(COUNTED_ABSENT, 23)),
    ("slots that are read", || releases(TOLD)),
    ("slots that are read, of ranks of which one is missed", || releases(COUNTED_ABSENT)),
    ("all slots of many ranks", awaits),
    ("one slot, and one too many", alone),
];

const PEERS: i64 = 33;
const OWN: i64 = 20;

/// Kinds of waits.
const CREDIT: i64 = 0;
const CLOSED: i64 = 5;
const FLAG: i64 = 6;

#[derive(Clone, Copy)]
struct Channel {
    counts: bool,
    /// Whether rank 9 is missed; then slots to the own rank are not left out.
    misses: bool,
}

const TOLD: Channel = Channel { counts: false, misses: false };
const COUNTED: Channel = Channel { counts: true, misses: false };
const COUNTED_ABSENT: Channel = Channel { counts: true, misses: true };

impl Channel {
    /// Whether a peer takes part, and is not missed.
    fn answers(self, peer: i64) -> bool {
        peer != 0 && peer != 7 && !(self.misses && peer == 9)
    }
}

/// Key `number` of a source, of 4 in pairs.
fn key(number: i64, source: i64) -> i64 {
    (number / 2 * PEERS + source) * 2 + number % 2
}

/// A wait that has run out.
fn record(group: i64, kind: i64, peer: i64, want: i64, seen: i64) -> Record {
    let (pipeline, peer) = (70 + group, if peer < 0 { -1 } else { peer });
    Record {
        pipeline,
        role: 3,
        channel: 5,
        kind,
        expired: 1,
        stripe: -1,
        peer,
        want,
        seen,
        block: 0,
    }
}

fn sends(channel: Channel) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let arrivals = if channel.counts { 2 } else { 1 };
    // Which slots, and how many of the key were taken before.
    let all = [(4, 3, 0), (4, 3, 1), (0, 1, 0), (9, 1, 0), (11, 0, 0), (4, 2, 0), (32, 3, 0)];
    let mut taken = [0; 4 * PEERS as usize];
    for (i, (peer, number, arrival)) in all.into_iter().enumerate() {
        if !channel.counts && i == 1 {
            continue;
        }
        let slot = (4 * PEERS + key(number, OWN)) * arrivals + arrival;
        sheet.put(i * 3, [i64::from(channel.answers(peer)), arrival, slot * 48]);
        if channel.answers(peer) && channel.counts {
            taken[(peer * 4 + number) as usize] += 1;
        }
    }
    let told = if channel.counts { 0 } else { 3 + i64::from(channel.answers(9)) };
    sheet.put(
        30,
        std::iter::once(told).chain(
            (0..PEERS).map(|peer| if peer == 4 && !channel.counts { stamped(7, 1) } else { 0 }),
        ),
    );
    let words = if channel.counts { 4 } else { 1 };
    sheet.put(70, taken.into_iter().take((words * PEERS) as usize));
    sheet.put(210, [0; 34]);
    let hears = |peer| channel.answers(peer) && (channel.misses || peer != OWN);
    let hear = (0..PEERS).filter(|peer| hears(*peer)).count() as i64;
    let mut closed = |place: usize, number: i64| {
        let come = |peer: i64| taken[(peer * words + number) as usize];
        let word = |peer| if hears(peer) { stamped(7, come(peer) + 1) } else { 0 };
        sheet.put(place, std::iter::once(hear * words).chain((0..PEERS).map(word)));
    };
    (0..words).for_each(|number| closed(250 + 40 * number as usize, number));
    closed(420, 0);
    sheet.put(460, [0, 0]);
    sheet.put(462, state(true, None));
    sheet.0
}

fn reserves() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [1, 2, 2, 1, 1, 2, 1, 2, 2, 1, 1, 2, 2, 1]);
    sheet.put(20, state(true, Some((record(12, CREDIT, 0, 7, 6), 9))));
    sheet.0
}

/// What each lane notes of the times of its waits, of which each is for one source.
fn noted(sheet: &mut Sheet, place: usize, adds: i64, of: impl Fn(i64) -> [i64; 4]) {
    let weighed = |lane| {
        let [begun, found, source, here] = of(lane);
        [begun, found, source, here, found * (source + 2).pow(2)]
    };
    sheet.put(place, (0..32).flat_map(weighed).chain([adds]));
}

/// A wait of lanes for slots: those that come, and the one whose wait runs out, with its source.
fn wait(sheet: &mut Sheet, place: usize, come: i64, ends: Vec<i64>, of: impl Fn(i64) -> [i64; 4]) {
    sheet.set(place, come);
    sheet.put(place + 1, ends);
    noted(sheet, place + 20, 0, of);
}

fn looks() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let source = |lane| if lane < 12 { lane } else { -1 };
    let good = || state(false, None);
    wait(&mut sheet, 0, 0xfff, good(), |lane| [1, 1, source(lane), 1]);
    wait(&mut sheet, 200, 0, state(true, None), |_| [1, 0, 0, 0]);
    wait(&mut sheet, 400, 0xfff & !(1 | 1 << 5 | 1 << 7), good(), |lane| [1, 1, source(lane), 1]);
    // A wait looks 64 times.
    let alone =
        |which: i64| move |lane| if lane == which { [1, 0, lane, 0] } else { [1, 64, -1, 1] };
    let expired = |group, peer| state(true, Some((record(group, FLAG, PEERS + peer, 7, 5), 7)));
    wait(&mut sheet, 600, 0, expired(4, 5), alone(5));
    wait(&mut sheet, 800, 0xfff & !(1 << 9), good(), |lane| [1, 1, source(lane), 1]);
    wait(&mut sheet, 1000, 0, good(), |lane| [1, 1, if lane == 0 { 0 } else { -1 }, 1]);
    wait(&mut sheet, 1200, 0, expired(5, 6), alone(6));
    sheet.0
}

fn unnamed() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for c in 0..3 {
        let ends = state(true, Some((record(7 + c, FLAG, -1, 7, 0), 7)));
        let of = |lane| if lane == 3 { [1, 0, -1, 0] } else { [1, 64, -1, 1] };
        wait(&mut sheet, 200 * c as usize, 0, ends, of);
    }
    wait(&mut sheet, 600, 0, state(false, None), |_| [1, 1, -1, 1]);
    sheet.0
}

fn parts() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let key_at = |lane: i64, number: i64| {
        let source = (lane * 3 + number) % 16;
        let some = lane < 16 && lane % 4 != 3 && source != 0 && source != 7;
        if some { key(number, source) } else { -1 }
    };
    (0..2).for_each(|g| sheet.put(32 * g as usize, (0..32).map(|lane| key_at(lane, g))));
    let slot = |number| (4 * PEERS + key_at(4, number)) * 48;
    sheet.put(64, [slot(0), slot(1) + 32]);
    sheet.0
}

fn counts(channel: Channel, group: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let sources = [4, 7, 9, 4, 4, 11, 0, 13];
    for (c, source) in sources.into_iter().enumerate() {
        let number = c as i64;
        let is_stopped = c == 3;
        // One call is late, of the other one nothing is told.
        let late = c == 5 || c == 7;
        let (epoch, told) = (if c == 7 { 0 } else { 7 }, if c == 5 { 5 } else { 0 });
        let is_missed = channel.misses && (late || c == 2);
        let takes_part = c != 1;
        let come = if takes_part && !is_stopped && !late && !is_missed { 17 + number } else { 0 };
        // What warps agree on: what came and 2 more, or 1 if its source is missed.
        let agrees = channel.misses && takes_part && !is_stopped;
        let value = if is_missed { 1 } else { come + 2 };
        let ends = match late && !is_missed {
            true => {
                let it = record(group + number, CLOSED, PEERS + source, epoch, told);
                state(true, Some((it, epoch)))
            }
            false => state(is_stopped, None),
        };
        let place = c * 200;
        sheet.put(place, [come, if agrees { stamped(epoch, value) } else { 0 }]);
        sheet.put(place + 2, ends);
        sheet.set(place + 18, come);
        noted(&mut sheet, place + 20, 0, |lane| {
            let source = if lane == 0 { source } else { -1 };
            match (takes_part, is_stopped, late, is_missed) {
                (false, ..) => [0; 4],
                (_, true, ..) => [2, 0, 0, 0],
                // The first lane learns of it once, and all at the beginning of a second wait.
                (_, _, true, true) => [2, if lane == 0 { 2 } else { 66 }, source, 1],
                (_, _, true, false) => {
                    [2, if lane == 0 { 0 } else { 64 }, source, i64::from(lane != 0)]
                }
                (_, _, _, true) => [2, 2, source, 1],
                // A second time it is known.
                _ => [1, 1, source, 1],
            }
        });
    }
    sheet.0
}

fn releases(channel: Channel) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for turn in 0..3 {
        // What the own rank was told before is that of an earlier check.
        let before = |peer| if peer == OWN { 5 } else { 0 };
        let told = |peer| if turn == 2 && channel.answers(peer) { 7 } else { before(peer) };
        sheet.put(turn * 200, (0..PEERS).map(told));
        sheet.set(turn * 200 + PEERS as usize, i64::from(turn == 1));
        noted(&mut sheet, turn * 200 + 40, i64::from(turn == 2), |_| [0; 4]);
    }
    sheet.0
}

/// The wait for all slots or keys of a call: `late` is of an earlier one, and what each lane waits for is that of
/// `source(key)`.
fn await_all(
    sheet: &mut Sheet,
    place: usize,
    words: i64,
    (late, ends): (Option<i64>, Vec<i64>),
    source: impl Fn(i64) -> i64,
) {
    sheet.put(place + 1, ends);
    let turns = (words + 31) / 32;
    // Who waits in vain goes on to the next turns, and looks at nothing.
    let last = late.map_or(turns - 1, |late| late / 32);
    let lanes = (0..32).flat_map(|lane| {
        let mut note = [turns, 0, 0, 0, 0];
        for turn in 0..=last {
            let key = turn * 32 + lane;
            let source = if key < words { source(key) } else { -1 };
            let looks = match late.filter(|_| turn == last) {
                Some(late) if late == key => 0,
                Some(_) => 64,
                None => 1,
            };
            note[1] += looks;
            note[2] = source;
            note[3] = i64::from(looks > 0);
            note[4] += looks * (source + 2).pow(2);
        }
        note
    });
    sheet.put(place + 20, lanes.chain([0]));
}

fn awaits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for c in 0..4 {
        let takes_part = |source| c == 0 || c == 2 || (source != 0 && source != 7);
        let late = [None, None, Some(0), Some(key(3, 12))][c as usize];
        let ends = |group, kind| match late {
            Some(late) => {
                let it = record(group, kind, PEERS + late / 2 % PEERS, 7, 5);
                state(true, Some((it, 7)))
            }
            None => state(false, None),
        };
        let asks = |key| {
            let source = key / 2 % PEERS;
            if takes_part(source) && source != OWN { source } else { -1 }
        };
        let (place, words) = (c as usize * 200, 4 * PEERS);
        await_all(&mut sheet, place, words, (late, ends(31 + c, FLAG)), asks);
        await_all(&mut sheet, place + 800, words, (late, ends(35 + c, CLOSED)), asks);
    }
    // Source 9 is missed: its keys are not looked at, and are found for that.
    let asks = |key| if matches!(key / 2 % PEERS, 0 | 7) { -1 } else { key / 2 % PEERS };
    await_all(&mut sheet, 1600, 4 * PEERS, (None, state(false, None)), asks);
    await_all(&mut sheet, 1800, PEERS, (None, state(false, None)), |_| -1);
    let ends = state(true, Some((record(41, FLAG, -1, 7, 5), 7)));
    await_all(&mut sheet, 2000, PEERS, (Some(32), ends), |_| -1);
    sheet.0
}

fn alone() -> Vec<i64> {
    let mut sheet = Sheet::new();
    // The sources before the fifth, of which the first one takes no part.
    let base: i64 = (1..5).map(|source| key(3, source)).sum();
    sheet.put(0, [1, base * 1000, 0, 1, -1, -1, 3]);
    noted(&mut sheet, 20, 0, |lane| [1, 1, if lane == 0 { 6 } else { -1 }, 1]);
    // Kind 10: more than there is room for.
    sheet.put(200, state(true, Some((record(43, 10, PEERS + 8, 3, 2), 7))));
    sheet.0
}
