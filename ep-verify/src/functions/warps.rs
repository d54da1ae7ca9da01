//! What functions leave that lanes or warps call together, in the order of `warps.cu`.

use ep_runtime::meaning::logfmt::Range;

use super::values::nearest_e4m3;
use super::{Check, Sheet, UNTOUCHED};

pub(super) const CHECKS: [Check; 17] = [
    ("tokens of stripes", stripes),
    ("rows that are filled", filled),
    ("counters that are cleared", clears),
    ("folds of a warp", folds),
    ("running totals", prefixes),
    ("fields of a message", fields),
    ("copies of rows", copies),
    ("places that are dealt out", counters),
    ("numbers for which a condition holds", chosen),
    ("numbers that come up", hits),
    ("blocks of values", blocks),
    ("rows that are cast", casts),
    ("parts of a token", token_parts),
    ("small rows of several kinds", kinds),
    ("slices of rows, and large quotients", slices),
    ("what is asked for ahead", ahead),
    ("sums of rows", row_sums),
];

fn stripes() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let cases = [(0, 3), (1, 1), (5, 2), (70, 3), (200, 5), (64, 4), (97, 3)];
    for (c, (tokens, stripes)) in cases.into_iter().enumerate() {
        let mut token = 0;
        for stripe in 0..stripes {
            for _ in 0..(tokens + stripes - 1 - stripe) / stripes {
                sheet.add(c * 220 + token, stripe + 1);
                token += 1;
            }
        }
    }
    sheet.0
}

fn filled() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [77; 3 * 1027]);
    sheet.put(3200, [78; 256]);
    sheet.0
}

fn clears() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (place, words) in [(0, 33), (40, 70), (200, 300)] {
        sheet.put(place, std::iter::repeat_n(0, words));
    }
    sheet.0
}

fn folds() -> Vec<i64> {
    let mut sheet = Sheet::new();
    let mut through = 0;
    for lane in 0..32 {
        through += lane * 3 - 7;
        sheet.set(lane as usize, through);
    }
    for (n, number) in [-1, 0, 5, 77, 78, 200].into_iter().enumerate() {
        let upto = (0..40).filter(|i| i * 2 <= number).count();
        sheet.put(40 + n * 32, [upto as i64; 32]);
    }
    for (e, end) in [3, 4, 43].into_iter().enumerate() {
        sheet.put(303 + e * 50, 3..end);
    }
    sheet.put(460, (0..32).map(|lane| 3 + (lane + 1) % 32));
    sheet.put(500, [(0..32).map(|lane| 1 << (lane * 2 % 61)).sum::<i64>(); 32]);
    for (w, width) in [1, 3, 8, 32].into_iter().enumerate() {
        for (r, (from, to)) in [(0, 0), (0, 1), (3, 35), (40, 7), (5, 205)].into_iter().enumerate()
        {
            let has =
                |row: &i64| (row * width..(row + 1) * width).any(|at| at % 7 == 2 || at % 5 == 1);
            let place = 540 + w * 200 + r * 32;
            sheet.put(place, [(from..to).filter(has).count() as i64 * 1000; 32]);
            let own = |lane: i64| {
                let asked = |at: i64| at % (3 + lane) == lane % 3;
                let has = |row: &i64| (row * width..(row + 1) * width).any(asked);
                (from..to).filter(has).count() as i64 * 1000
            };
            sheet.put(place + 800, (0..if width == 8 { 11 } else { 32 }).map(own));
        }
    }
    sheet.0
}

fn prefixes() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (c, count) in [0, 1, 31, 32, 33, 96, 97, 128, 129, 300].into_iter().enumerate() {
        let mut total = 0;
        for i in 0..count {
            sheet.set(c * 320 + i, total);
            total += i as i64 % 5 + 1;
        }
        sheet.set(c * 320 + 310, total);
        if count > 9 {
            // Nine of 1 to 5.
            sheet.set(c * 320 + 311, 15 + 10);
        }
    }
    sheet.put(3200, (0..=40).map(|i| i * (i + 1) / 2));
    sheet.set(3250, 820);
    sheet.put(3260, (0..35).map(|i| (i * (i - 1) / 2) << 33));
    sheet.put(3300, (0..6_i32).map(|i| i64::from(i << 30)));
    sheet.put(3310, [(35 * 34 / 2) << 33, -(1 << 31)]);
    sheet.0
}

fn fields() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (place, count) in [(0, 3), (600, 40), (1200, 256), (1800, 300)] {
        sheet.put(place, (0..count).map(|i| i * 3 + 1));
        // More than eight for a lane are asked for when they are written.
        let asked = |lane: i64| if count <= 256 { (count - lane + 31).div_euclid(32) } else { 0 };
        sheet.put(place + 500, (0..32).map(asked));
    }
    sheet.put(2400, 70..73);
    sheet.put(2410, 70..73);
    let untouched = i64::from_le_bytes(UNTOUCHED);
    sheet.set(2420, untouched & !0xffff_ffff | 0xffff_fffe);
    sheet.0
}

fn ahead() -> Vec<i64> {
    let holds = |turn: i64, peer: i64| i64::from((turn * 7 + peer * 3) % 5 < 2);
    let mut sheet = Sheet::new();
    sheet.put(0, (5..105).flat_map(|turn| [0, 31, 4, 35].map(|peer| holds(turn, peer))));
    sheet.put(415, (5..105).map(|turn| holds(turn, 32 + turn % 8) + 2 * holds(turn, 64)));
    sheet.put(520, [8, 40, 267, 1100].into_iter().flat_map(|count| [count + 10000; 2]));
    sheet.put(600, [0; 680]);
    sheet.0
}

fn copies() -> Vec<i64> {
    const ROW: usize = 1040;
    let mut sheet = Sheet::new();
    sheet.put(0, (0..ROW as i64).map(|i| i.wrapping_mul(0x0102_0304_0506_0708)));
    let mut bytes = sheet.bytes(ROW * 29);
    let mut to = ROW * 8;
    for (size, count) in [(2, 5), (2, 32), (2, 33), (2, 1035), (2, 4107), (1, 100), (8, 259)] {
        for offset in 0..4 {
            let (there, here) = (to + offset % 2 * size, offset / 2 * size);
            bytes.copy_within(here..here + count * size, there);
            to += ROW * 8;
        }
    }
    let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
    words.map(i64::from_le_bytes).collect()
}

fn counters() -> Vec<i64> {
    let places = [0, 3900, 3901, 700, 1, 3902];
    places.into_iter().flat_map(|place| [place; 64]).collect()
}

fn chosen() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (c, (end, most)) in
        [(0, 0), (1, 9), (32, 99), (33, 99), (100, 99), (20, 3)].into_iter().enumerate()
    {
        let holds = |number: &i64| number % 7 < 3 && number / 32 != 1;
        let all: Vec<i64> = (0..end).filter(holds).take(most).collect();
        sheet.put(c * 60 + 40, [all.len() as i64; 20]);
        sheet.put(c * 60, all);
    }
    sheet.0
}

fn hits() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (c, count) in [0, 7, 45, 31, 33].into_iter().enumerate() {
        for i in (0..count).filter(|i| *i != 5) {
            sheet.add(c * 60 + i, ((i + 1).min(32) * 100 + i % 32) as i64);
        }
    }
    sheet.0
}

fn kinds() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (c, end) in [3, 17, 50, 2].into_iter().enumerate() {
        sheet.put(c * 8000 + 7100, (0..202).map(|i| i * 7));
        for row in 2..end {
            let first = 4 * row as i64;
            sheet.put(c * 8000 + 7320 + row * 4, (0..4).map(|i| (first + (c % 2) as i64 + i) * 7));
            if c != 0 {
                sheet.put(c * 8000 + 7540 + row * 3, (0..3).map(|i| (first + i) * 7));
            }
            sheet.put(c * 8000 + row * 37, (0..37).map(|i| row as i64 * 100 + i));
            sheet.put(c * 8000 + 2000 + row * 70, (0..70).map(|i| row as i64 * 300 + i));
            if c == 1 {
                sheet.set(c * 8000 + 7000 + row, row as i64);
            }
        }
    }
    sheet.0
}

fn blocks() -> Vec<i64> {
    const OCTAVES: [(u32, u32); 8] =
        [(0, 1), (0, 3), (127, 1), (120, 16), (90, 60), (1, 40), (215, 39), (254, 1)];
    let (least, power) = (f32::MIN_POSITIVE, |of: i32| 2_f32.powi(of));
    let last = [
        [0.0, -0.0, 0.0],
        [least, -least, least / 2.0],
        [power(-27), -1.5 * power(4), 1.0],
        [(1.0 + 233.0 / 256.0) * power(-29), power(4), -power(-40)],
    ];
    let value = |block: usize, i: usize| {
        let Some((first, octaves)) = OCTAVES.get(block) else { return last[block - 8][i % 3] };
        let mixed = ((block * 64 + i + 1) as u32).wrapping_mul(2_654_435_761);
        let exponent = first + (mixed >> 7) % octaves;
        f32::from_bits(mixed & 0x8000_0000 | exponent << 23 | mixed & 0x7f_ffff)
    };
    let mut sheet = Sheet::new();
    for block in 0..12 {
        let values: Vec<f32> = (0..64).map(|i| value(block, i)).collect();
        let peak = values.iter().fold(0.0_f32, |peak, value| peak.max(value.abs()));
        let range = Range::of(&values);
        let scale = peak.max(1e-10) / 448.0;
        let all = [scale, range.low, range.step].map(|it| i64::from(it.to_bits()));
        sheet.put(block * 140, all);
        sheet.put(block * 140 + 3, values.iter().map(|it| i64::from(range.encode(*it))));
    }
    sheet.0
}

/// How many parts each of so many rows is cut into by so many warps, of 8 at most.
pub(super) fn slices_of(warps: usize, rows: usize) -> usize {
    let fits = |slices: &usize| rows > 0 && slices * rows <= warps;
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

fn slices() -> Vec<i64> {
    let cuts = (0..10).flat_map(|rows| (0..32).map(move |warps| slices_of(warps, rows) as i64));
    let quotient = |i: u32| i64::from((f32::from_bits(0x7d00_0000 + i * 77_777) / 1e37).to_bits());
    cuts.chain((0..256).map(quotient)).collect()
}

fn casts() -> Vec<i64> {
    const WORDS: usize = 600 + 5 * 9 * 300;
    let bits = |i: usize| {
        let (mixed, block) = ((i as u32 + 1).wrapping_mul(2_654_435_761), i as u32 / 128);
        let exponent = 90 + block * 5 + (mixed >> 7) % 12;
        if i == 900 {
            return 0x7f80;
        }
        if block % 5 == 3 { 0 } else { mixed >> 31 << 15 | exponent << 7 | mixed & 0x7f }
    };
    let row: Vec<f32> = (0..2400).map(|i| f32::from_bits(bits(i) << 16)).collect();
    let mut bytes = Sheet::new().bytes(WORDS);
    for i in 0..row.len() {
        bytes[2 * i..2 * i + 2].copy_from_slice(&(bits(i) as u16).to_le_bytes());
    }
    let mut to = 600 * 8;
    let sorts = [(0, false, 128), (0, true, 128), (1, false, 128), (0, false, 256), (0, true, 32)];
    for (first, packed, size) in sorts {
        for count in [1, 5, 127, 128, 129, 256, 1024, 1037, 2176] {
            let mut scales = Vec::new();
            for (block, values) in row[first..first + count].chunks(size).enumerate() {
                let peak = values.iter().fold(1e-10_f32, |peak, value| peak.max(value.abs()));
                let exact = peak / 448.0;
                // The least power of two that is not below it.
                let power = exact.to_bits().div_ceil(1 << 23).min(254);
                let scale = if packed { f32::from_bits(power << 23) } else { exact };
                let code = |quotient: f32| match quotient.is_nan() {
                    true => 0x7f,
                    false => nearest_e4m3(quotient.clamp(-448.0, 448.0)) as u8,
                };
                let codes = values.iter().map(|value| code(value / scale));
                let place = to + block * size;
                bytes.splice(place..place + values.len(), codes);
                scales.extend(if packed {
                    vec![power as u8]
                } else {
                    exact.to_le_bytes().to_vec()
                });
            }
            // Each scale is two of them from the next one.
            let size = if packed { 1 } else { 4 };
            for (block, scale) in scales.chunks_exact(size).enumerate() {
                let first = to + 280 * 8 + 2 * size * block;
                bytes[first..first + size].copy_from_slice(scale);
            }
            to += 300 * 8;
        }
    }
    let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
    words.map(i64::from_le_bytes).collect()
}

fn token_parts() -> Vec<i64> {
    let value = |i: usize| (i * 7 % 251 + 1) as i64;
    let mut sheet = Sheet::new();
    let packed = |at: [i64; 4]| at.iter().rev().fold(0, |all, value| all << 16 | value);
    sheet.put(0, (0..1040).map(|word| packed([0, 1, 2, 3].map(|k| value(word * 4 + k)))));
    let mut to = 1040;
    for parts in [1, 7, 8, 9, 20] {
        for (shifted, first) in [(usize::MAX, 0), (2, 0), (usize::MAX, 1)] {
            for part in (0..parts).filter(|part| part % 3 != 1) {
                let turn = (0..=part).filter(|part| part % 3 != 1).count();
                let begin = part * 208 + usize::from(part == shifted);
                for lane in 0..32 {
                    let read = |i: usize| if i < 203 { value(begin + i) } else { 0 };
                    let eight =
                        (0..8).rev().fold(0, |all, k| all << 8 | read(first + lane * 8 + k));
                    sheet.put(to + (part * 32 + lane) * 2, [turn as i64, eight]);
                }
            }
            to += parts * 64;
        }
    }
    sheet.0
}

/// Eight neighbors of each sum, weighed by their places. A sum changes its sign with each row.
fn row_sums() -> Vec<i64> {
    let (added, count) = (5, 1300);
    let mut sheet = Sheet::new();
    let mut to = added * 1304 / 4;
    sheet.put(0, vec![0; to]);
    let element = |row: i64, i: i64| if i < 1300 { (row * 37 + i * 11) % 31 - 15 } else { 0 };
    for _ in ["whole", "uneven"] {
        for (rows, begin, end) in [(1, 0, count), (5, 256, 1280), (34, 0, count)] {
            let there = (0..rows).filter(|k| k % 3 != 1);
            let sum =
                |i| there.clone().fold(0, |sum, k| -(sum + (k + 1) * element(k % added as i64, i)));
            for i in (begin..end).step_by(8) {
                let own = (0..8).map(|k| (k + 1) * sum(i as i64 + k)).sum();
                sheet.set(to + i / 8, own);
            }
            for lane in 0..32 {
                let own = (begin + 8 * lane..end).step_by(256).count();
                sheet.set(to + count / 8 + 1 + lane, own as i64);
            }
            to += count / 8 + 33;
        }
    }
    sheet.0
}
