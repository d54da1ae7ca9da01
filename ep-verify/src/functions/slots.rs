//! What slots of keys leave, in the order of `slots.cu`.

use super::{Check, Sheet};

/// Ranks that fill each other's slots.
pub(super) const RANKS: usize = 2;

/// Nine channels, one behind the other, four groups, and 60 numbers.
pub(super) const WINDOW_BYTES: i64 = 137_216 + 4 * 224 + 60 * 8 + 512;

/// Slots of a key.
const ARRIVALS: i64 = 10;

pub(super) const CHECKS: [Check; 27] = [
    ("slots that are counted", || counted(0, 0..2)),
    ("slots that nothing comes in", || counted(1, 0..2)),
    ("slots that are full", || counted(2, 0..2)),
    ("slots of a fourth call", || counted(3, 0..2)),
    ("slots of the other rank, before call 0", || counted(0, 1..2)),
    ("slots of the other rank, in call 0", || counted(1, 1..2)),
    ("slots of the other rank, behind call 0", || counted(2, 1..2)),
    ("slots that all have come", || told(0, 0..2)),
    ("slots that come one by one", || told(1, 0..2)),
    ("slots that come to lanes", || told(2, 0..2)),
    ("slots that are counted without a rank", || counted(0, 0..1)),
    ("slots that nothing comes in without a rank", || counted(1, 0..1)),
    ("slots that are full without a rank", || counted(2, 0..1)),
    ("slots that all have come without a rank", || told(0, 0..1)),
    ("slots that come one by one without a rank", || told(1, 0..1)),
    ("slots that come to lanes without a rank", || told(2, 0..1)),
    ("more messages than slots", overflow),
    ("counted slots of a rank that does not answer", || counted(3, 0..1)),
    ("counted slots of a rank that has not answered", || counted(0, 0..1)),
    ("slots that are full of a rank that has not answered", || counted(2, 0..1)),
    ("slots of a rank that does not answer", || told(0, 0..1)),
    ("slots one by one of a rank that has not answered", || told(1, 0..1)),
    ("slots to lanes of a rank that has not answered", || told(2, 0..1)),
    ("warps that find a rank absent, or do not", Vec::new),
    ("what they agree on", agreed),
    ("warps that agree at once", || vec![128]),
    ("what comes before a close", || (0..32).map(|lane| 50 + (lane + 1) % 32).chain([0]).collect()),
];

/// What a message brings.
fn message(sheet: &mut Sheet, turn: i64, i: i64) {
    sheet.put(20 + i as usize * 5, (0..4).map(|k| (turn * 100 + i) * 10 + k));
}

/// Slots of three keys, from ranks that are so far away: 0 is this one.
fn counted(turn: i64, from: std::ops::Range<i64>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let messages = [28, 0, 2 * 3 * ARRIVALS, 28][turn as usize];
    for key in 0..3 {
        let place = key as usize * 2;
        // As many come from either rank.
        let sent = (0..messages).filter(|i| i % 2 == 0 && i / 2 % 3 == key).count() as i64;
        match (from.start, from.end) {
            (0, 1) => sheet.put(place, [sent, 0]),
            (0, _) => {
                sheet.put(place, [sent; 2]);
                sheet.put(10 + place, [0, sent]);
            }
            _ => {
                sheet.set(place + 1, sent);
                sheet.set(10 + place, 0);
            }
        }
    }
    let come = (0..messages).filter(|i| from.contains(&(i % 2)));
    come.for_each(|i| message(&mut sheet, turn, i));
    sheet.0
}

fn told(turn: i64, from: std::ops::Range<i64>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    for i in (0..80).filter(|i| from.contains(&(i % 2))) {
        message(&mut sheet, turn, i);
        sheet.set(24 + i as usize * 5, 0);
    }
    if turn == 2 {
        sheet.put(0, (0..4).map(|warp| i64::from(from.contains(&(warp % 2)))));
    }
    sheet.0
}

fn overflow() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, (0..ARRIVALS).chain([-1; 3]));
    // Kind 10: the output holds fewer rows than arrive.
    sheet.put(20, [ARRIVALS, 1, 1, 1, 10, ARRIVALS + 1, ARRIVALS, 0, 0, 0]);
    sheet.0
}

fn agreed() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [1; 30]);
    // The first to ask misses the other rank, or waits for it.
    sheet.put(30, [0, 0, 57_031, 57_031]);
    sheet.0
}
