//! What messages in words leave, in the order of `words.cu`.

use super::{Check, ROOM, Sheet, stamped};

/// Ranks that bring each other words.
pub(super) const RANKS: usize = 2;

/// What ranks ask for, a group of its own, slots, fields, and a row.
pub(super) const WINDOW_BYTES: i64 = 16_384 + 4096 + 3072;

pub(super) const CHECKS: [Check; 8] = [
    ("fields of words", fields),
    ("fields of the other rank", brought),
    ("late words of two sources", || late(2 * 17)),
    ("late words of few sources", || late(2 * 35)),
    ("late words of many sources", || late(32 * 2)),
    ("a word that never comes", lacks),
    ("places of slots", places),
    ("rows as words", rows),
];

fn fields() -> Vec<i64> {
    let wide = |i: i64| if i % 2 == 0 { 1 } else { -1 } * (i + 1) * 0x1_2345_6789;
    let next = |lane: i64| (lane + 1) % 32;
    let mut sheet = Sheet::new();
    sheet.put(0, (0..32).map(|lane| wide(next(lane))));
    sheet.put(32, (0..32).map(|lane| 9 - next(lane)));
    sheet.put(64, (0..32).map(next));
    sheet.put(96, (0..32).map(|lane| 60_000 + next(lane)));
    let halves = |i: i64| [wide(i) as u32, (wide(i) >> 32) as u32];
    let words = (0..32).flat_map(halves).chain((0..32).map(|i| (9 - i) as u32));
    let words = words.chain((0..32).map(|i| (0.25 * i as f32).to_bits()));
    let words = words.chain(60_000..60_032);
    sheet.put(128, words.map(|bits| stamped(77, i64::from(bits))));
    for (c, count) in (0..).zip([0, 1, 31, 33, 150]) {
        let at = 300 + c as usize * 500;
        let word = |i: i64| if i < count { stamped(80 + c, 3 * i + c) } else { 0 };
        sheet.put(at, (0..160).map(word));
        sheet.put(at + 160, 0..count);
    }
    sheet.0
}

fn brought() -> Vec<i64> {
    (1..33).map(|n| n * 0x1_2345_6789).chain((0..32).map(|lane| 5 - lane)).collect()
}

/// Each word has come when the wait for it ends.
fn late(rounds: usize) -> Vec<i64> {
    vec![1; rounds]
}

fn lacks() -> Vec<i64> {
    // Stopped by one record: of role 6 and channel 4, no stripe, the source, epochs 500 and 77.
    vec![1, 1, 1, 6, 4, -1, 1, 500, 77, 500, 1]
}

fn places() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(1, [((9 + 8) << 28) + 4096, (8 << 28) + 4096]);
    // Those of the first call, behind those of none.
    let words = (0..2).flat_map(|source| (0..17).map(move |i| stamped(1, source * 100 + i)));
    sheet.put(ROOM - 2 * 17, words);
    sheet.0
}

/// A row of 65 units of four numbers, as words and as it was.
fn rows() -> Vec<i64> {
    const UNITS: i64 = 65;
    let mut sheet = Sheet::new();
    // Units that a lane takes at a time, in as many parts.
    for (round, (parts, epoch)) in (0..).zip([(2, 40), (3, 41), (1, 42)]) {
        let at = 1000 * round;
        let number = |i: i64| 7 * i + epoch;
        let word = |i: i64| {
            let (block, half, lane, second) = (i / 128, i / 64 % 2, i / 2 % 32, i % 2);
            let unit = 32 * block + lane;
            let known = unit < UNITS;
            if known { stamped(epoch, number(4 * unit + 2 * half + second)) } else { 0 }
        };
        sheet.put(at, (0..384).map(word));
        sheet.put(at + 400, [100 * parts + 99; 32]);
        // Lane 0 has the unit behind two whole turns of the warp; with several units a lane the last one is behind it.
        let zero = |part: i64| match (parts, part) {
            (3, 2) => 0xffff_fffe,
            (3, _) | (2, 0) => 0,
            _ => 0xffff_ffff,
        };
        sheet.put(at + 440, (0..parts).map(zero));
        let row = (0..4 * UNITS + 64).map(|i| if i < 4 * UNITS { number(i) } else { 4711 });
        sheet.put(at + 450, row);
        for missing in 0..4 {
            let seen = (0..32).map(|lane| if lane == 9 { epoch - 3 } else { 1099 });
            sheet.put(at + 800 + 32 * missing, seen);
        }
        sheet.put(at + 930, [0; 32]);
        sheet.put(at + 970, [384, 384]);
    }
    let call = |lane: i64| (lane / 4 % 4, lane % 4);
    let are = |most: i64, first: i64| {
        (0..32).map(move |lane| {
            let (epoch, more) = call(lane);
            i64::from(epoch != 0 && most > 0 && first + more <= most)
        })
    };
    sheet.put(3000, are(10, 8));
    sheet.put(3032, are(1, 0));
    sheet.put(3064, are(0, 0));
    sheet.set(3100, 256);
    sheet.0
}
