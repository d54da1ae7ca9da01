//! What a warp leaves that casts, sends and copies rows, in the order of `made.cu`.

use std::iter::repeat_n;

use super::{Check, ROOM, Sheet, UNTOUCHED, stamped};

/// What a warp moves.
pub(super) const SHARED_BYTES: i64 = 2176;

/// A row, and large values up to the end of this.
pub(super) const WINDOW_BYTES: i64 = 64 + UNITS as i64 * 16;

const VALUES: usize = 2704;
const WHOLE: usize = 2560;
const UNITS: usize = 449;

pub(super) const CHECKS: [Check; 22] = [
    ("a row that is cast", Vec::new),
    ("parts that are cast", || makes(Scales::Floats)),
    ("parts that are cast by powers of two", || makes(Scales::Powers)),
    ("words that have scales", scaled),
    ("casts as words", || sends(Some(Scales::Floats), VALUES)),
    ("casts as words of several units", || sends(Some(Scales::Floats), WHOLE)),
    ("casts by powers of two as words", || sends(Some(Scales::Powers), VALUES)),
    ("casts by powers of two as words of several units", || sends(Some(Scales::Powers), WHOLE)),
    ("a row as words", || sends(None, VALUES)),
    ("pieces", || moves(None)),
    ("pieces that are cast", || moves(Some(Scales::Floats))),
    ("pieces by vectors", || moves(None)),
    ("pieces by vectors that are cast", || moves(Some(Scales::Powers))),
    ("tokens that list eight values", || lists(8)),
    ("tokens that list nine values", || lists(9)),
    ("fields of floats", || fields(4)),
    ("fields of bytes", || fields(1)),
    ("slices", slices),
    ("values of a row", once),
    ("a cast of one unit as words", || sends(Some(Scales::Powers), 16)),
    ("a cast whose last word has one scale", || sends(Some(Scales::Powers), 1152)),
    ("tokens that list more values than a warp has lanes", || lists(40)),
];

/// Bytes of memory that nobody else has written.
pub(super) struct Memory(Vec<u8>);

impl Memory {
    pub(super) fn new(bytes: usize) -> Memory {
        Memory(repeat_n(UNTOUCHED, bytes / 8).flatten().collect())
    }

    pub(super) fn zero(bytes: usize) -> Memory {
        Memory(vec![0; bytes])
    }

    /// One behind the other.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn put_words(&mut self, at: usize, words: impl IntoIterator<Item = i64>) {
        let bytes: Vec<u8> = words.into_iter().flat_map(i64::to_le_bytes).collect();
        self.put(at, &bytes);
    }

    pub(super) fn words(&self) -> Vec<i64> {
        let words = self.0.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
        words.map(i64::from_le_bytes).collect()
    }
}

/// What stands beside the blocks of a row.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scales {
    Floats,
    Powers,
}

impl Scales {
    pub(super) fn bytes(self) -> usize {
        if self == Scales::Floats { 4 } else { 1 }
    }

    /// The scale of a block.
    pub(super) fn of(self, row: usize, block: usize) -> Vec<u8> {
        let exponent = exponent(row, block);
        match self {
            Scales::Floats => (exponent << 23).to_le_bytes().to_vec(),
            Scales::Powers => vec![exponent as u8],
        }
    }

    /// Words of the scales of a row of so many values.
    pub(super) fn words(self, row: usize, values: usize) -> Vec<i64> {
        let bytes: Vec<u8> =
            (0..values.div_ceil(128)).flat_map(|block| self.of(row, block)).collect();
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | i64::from(*byte));
        bytes.chunks(4).map(word).collect()
    }
}

/// The code of a value of a row.
pub(super) fn code(row: usize, i: usize) -> u8 {
    let block = i / 128;
    let sign = if (i * i + row) % 7 < 3 { 0x80 } else { 0 };
    let is_peak = i % 128 == (block * 37 + 5) % 128;
    sign | if is_peak { 0x7e } else { ((i * 5 + row * 3 + block) % 0x7d + 1) as u8 }
}

/// Bits of the power of two that a block is scaled by.
fn exponent(row: usize, block: usize) -> u32 {
    125 + (block + row) as u32 % 5
}

/// The bytes of a row of so many values, and of large ones up to an end.
pub(super) fn lying(row: usize, count: usize, end: usize) -> Vec<u8> {
    let value = |i: usize| {
        let code = code(row, i);
        let (high, low) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match high {
            0 => low * 2f32.powi(-9),
            _ => (1.0 + low / 8.0) * 2f32.powi(high - 7),
        };
        let scaled = magnitude * f32::from_bits(exponent(row, i / 128) << 23);
        if code & 0x80 == 0 { scaled } else { -scaled }
    };
    let bits = |i: usize| if i < count { value(i) } else { 29_952.0 }.to_bits() >> 16;
    (0..end).flat_map(|i| (bits(i) as u16).to_le_bytes()).collect()
}

fn makes(scales: Scales) -> Vec<i64> {
    let mut memory = Memory::new(8 * ROOM);
    let ranges = [(0, 2704), (128, 2704), (512, 1024), (2560, 2704), (384, 384), (0, 2176)];
    for (c, (begin, end)) in ranges.into_iter().enumerate() {
        let codes: Vec<u8> = (begin..end).map(|i| code(0, i)).collect();
        memory.put(c * 4096, &codes);
        for block in begin / 128..end.div_ceil(128) {
            memory.put(c * 4096 + 2816 + 8 + block * scales.bytes(), &scales.of(0, block));
        }
    }
    memory.words()
}

fn scaled() -> Vec<i64> {
    let floats = |word: i64| if (2..24).contains(&word) { (word - 2) * 128 } else { -1 };
    let powers = |word: i64| if (2..8).contains(&word) { (word - 2) * 512 } else { -1 };
    (0..32).map(floats).chain((0..32).map(powers)).chain([-1; 32]).collect()
}

/// The words of bytes, with their call, in the order in which they lie.
pub(super) fn words_of(call: i64, bytes: &[u8]) -> Vec<(usize, i64)> {
    let place = |i: usize| i / 4 / 32 * 128 + i % 4 / 2 * 64 + i / 4 % 32 * 2 + i % 2;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | i64::from(*byte));
    let words = bytes.chunks(4).map(|bytes| stamped(call, word(bytes)));
    words.enumerate().map(|(i, word)| (place(i), word)).collect()
}

fn sends(scales: Option<Scales>, values: usize) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let codes: Vec<u8> = (0..values).map(|i| code(0, i)).collect();
    let bytes = scales.map_or_else(|| lying(0, VALUES, values / 2), |_| codes);
    words_of(7, &bytes).into_iter().for_each(|(place, word)| sheet.set(place, word));
    let words = scales.map(|scales| scales.words(0, values)).unwrap_or_default();
    sheet.put(values.div_ceil(512) * 128 + 2, words.into_iter().map(|word| stamped(7, word)));
    sheet.0
}

fn moves(scales: Option<Scales>) -> Vec<i64> {
    let mut memory = Memory::new(8 * ROOM);
    let codes: Vec<u8> = (0..1808).map(|i| code(0, i)).collect();
    let row = scales.map_or_else(|| lying(0, VALUES, 904), |_| codes);
    for (lane, place) in [(1, 0), (30, 2048)] {
        memory.put(place, &row);
        for (piece, end) in [512, 1024, 1536, 1808].into_iter().enumerate() {
            memory.put(16384 + (piece * 32 + lane) * 8, &row[end - 8..end]);
        }
    }
    for i in 0..132_u32 {
        memory.put(4096 + i as usize * 4, &(17 * i).to_le_bytes());
    }
    for block in (0..15).filter(|_| scales.is_some()) {
        let Some(scales) = scales else { break };
        memory.put(4096 + 8 + block * scales.bytes(), &scales.of(0, block));
    }
    (0..4).for_each(|turn| marks(&mut memory, 8192 + turn * 512));
    memory.words()
}

/// What all lanes have written before the warp met, and read behind it.
fn marks(memory: &mut Memory, at: usize) {
    memory.put_words(at, (0..32).chain((0..32).map(|lane| (lane + 1) % 32)));
}

fn lists(width: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let listed = |token: i64, value: i64| {
        (0..width).any(|k| {
            let own = if token % 4 == 0 { k % 5 } else { k };
            (token * 7 + own * 11) % 26 - 3 == value
        })
    };
    for (c, tokens) in [0, 1, 31, 32, 33, 64, 127, 128, 129, 160, 300].into_iter().enumerate() {
        let before = |lane: i64| {
            let value = match lane {
                4 => -3,
                // Its low half is listed.
                5 => (1 << 32) + 10,
                lane => lane * 2,
            };
            (0..tokens).filter(|token| lane < width && listed(*token, value)).count() as i64
        };
        sheet.put(c * 32, (0..32).map(before));
        sheet.put(400 + c * 32, [0; 32]);
    }
    sheet.0
}

fn fields(size: usize) -> Vec<i64> {
    let mut memory = Memory::new(8 * ROOM);
    let all = lying(0, VALUES, UNITS * 8);
    for (c, (count, column)) in [(40, 3), (32, 3), (5, 3), (65, 1)].into_iter().enumerate() {
        let from = &all[all.len() - count * size..];
        for lane in [0, 7, 31] {
            for i in 0..count {
                let at = c * 8192 + lane * 256 + i * column;
                memory.put(at * size, &from[i * size..(i + 1) * size]);
            }
        }
        marks(&mut memory, 16384 * 8 + c * 512);
    }
    memory.words()
}

fn slices() -> Vec<i64> {
    let mut memory = Memory::new(8 * ROOM);
    let from = lying(0, VALUES, UNITS * 8);
    memory.put(8 * ROOM - from.len(), &from);
    for (c, (slice, slices)) in [(0, 1), (0, 2), (1, 2), (7, 8)].into_iter().enumerate() {
        for (place, unit) in (0..if c < 3 { 3 } else { 1 })
            .flat_map(|place| (0..UNITS).map(move |unit| (place, unit)))
        {
            if unit / 32 % slices == slice {
                let at = (c * 3 + place) * 8192 + unit * 16;
                memory.put(at, &from[unit * 16..(unit + 1) * 16]);
            }
        }
        marks(&mut memory, 16384 * 8 + c * 512);
    }
    memory.words()
}

fn once() -> Vec<i64> {
    let named = |lane: i64, value: i64| [lane % 3, lane % 5, lane % 2, lane / 8].contains(&value);
    let all = (0..32).flat_map(|lane| (0..8).map(move |value| (lane, value)));
    all.map(|(lane, value)| i64::from(lane != 9 && named(lane, value))).collect()
}
