//! What functions give that one lane calls, in the order of `values.cu`.

use ep_runtime::bf16::{bf16_from_f32, bf16_to_f32};
use ep_runtime::meaning::logfmt::Range;

use super::Check;

pub(super) const CHECKS: [Check; 21] = [
    ("helpers of the language", helpers),
    ("sets of bits", bits),
    ("powers of two", powers),
    ("owners of experts", owners),
    ("flags of ranks", flags),
    ("numbers of a row", ids),
    ("sums", sums),
    ("stripes", spans),
    ("sets of peers", peers),
    ("words", words),
    ("ranks that take part", alive),
    ("warps and peers", split),
    ("codes of eight bits", codes),
    ("eight neighbors", neighbors),
    ("halves of floats", halves),
    ("magnitudes", magnitudes),
    ("powers of codes", powers_of_codes),
    ("fields of words", fields),
    ("parts of rows", rows),
    ("slices of rows", slices),
    ("greatest and least", ends),
];

fn codes() -> Vec<i64> {
    let bits = |value: f64| i64::from((value as f32).to_bits());
    let each = |code: i32| {
        let (exponent, mantissa) = (code >> 3 & 15, f64::from(code & 7));
        let magnitude = match (exponent, code & 127) {
            (_, 127) => f64::NAN,
            (0, _) => mantissa / 512.0,
            _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
        };
        let e4m3 = if code < 128 { magnitude } else { -magnitude };
        // The lowest code and the highest ones of a float's exponent are powers of two as well.
        let own = code % 255;
        let above = (own + 1).min(254);
        let power = if code == 255 { 0x7f80_0000 } else { bits(2f64.powi(code - 127)) };
        [bits(e4m3), power, i64::from(own), i64::from(above), i64::from(above)]
    };
    (0..256).flat_map(each).collect()
}

fn neighbors() -> Vec<i64> {
    let (a, b) = (|k: i32| 3.0 + k as f32, |k: i32| 0.5 * (1 << k) as f32);
    let all: [fn(f32, f32) -> f32; 4] = [|a, b| a + b, |a, b| a - b, |a, b| a * b, |a, b| a / b];
    let each = all.into_iter().flat_map(|give| (0..8).map(move |k| give(a(k), b(k))));
    each.flat_map(|value| [i64::from(value.to_bits()), nearest_e4m3(value)]).collect()
}

/// Elements of four bytes move in whole where every fourth begins, those of one byte where every eighth does.
fn rows() -> Vec<i64> {
    let mut all = Vec::new();
    for step in [4, 8] {
        for (begin, count) in (0..8).flat_map(|begin| (0..=17).map(move |count| (begin, count))) {
            for i in [0, 4, 8] {
                let mut row: Vec<u8> = (1..=32).collect();
                let first = begin + i;
                let got = [0, 1, 2, 3, 4, 5, 6, 7]
                    .map(|k| if i + k < count { row[first + k] } else { 0 });
                all.extend([i64::from(first % step == 0), i64::from_le_bytes(got)]);
                for k in (0..8).filter(|k| i + k < count) {
                    row[first + k] = got[k] + 100;
                }
                let words = row.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
                all.extend(words.map(i64::from_le_bytes));
            }
        }
    }
    all
}

/// Each slice has the same number of whole turns of a warp, which has 256 elements in one.
fn slices() -> Vec<i64> {
    let mut all = Vec::new();
    for slices in [1, 8, 3] {
        for count in (0..512).chain((512..=4352).step_by(128)) {
            let turns = (0..).find(|turns| turns * 256 * slices >= count).unwrap_or(0);
            all.extend((0..=slices).map(|slice| (slice * turns * 256).min(count)));
        }
    }
    let units = (0..6).flat_map(|shift| (0..70).step_by(3).map(move |unit| (1_i64 << shift, unit)));
    all.extend(units.flat_map(|(slices, unit)| {
        [unit, (1 << 40) + unit].into_iter().flat_map(move |it| [it / slices, it % slices])
    }));
    all.extend([1, 1]);
    all
}

fn halves() -> Vec<i64> {
    let mut all = Vec::new();
    for n in 0..8_u32 {
        let given = |k: u32| f32::from_bits((n * 8 + k) * 0x0246_9000 + k % 3 * 0x4000);
        let rounded: Vec<u16> = (0..8).map(|k| bf16_from_f32(given(k))).collect();
        let whole = |bits: &u16| bf16_to_f32(*bits);
        let bits = |value: f32| i64::from(value.to_bits());
        all.extend(rounded.iter().flat_map(|it| [i64::from(*it), bits(whole(it))]));
        let packed = |pair: &[u16]| i64::from(pair[0]) | i64::from(pair[1]) << 16;
        all.extend(rounded.chunks_exact(2).map(packed));
    }
    all
}

fn magnitudes() -> Vec<i64> {
    let least = f32::MIN_POSITIVE;
    let all = [0.0, 1e-10, 1.5e-10, least, -least, least / 2.0, -448.0, 3e38_f32];
    let bits = |value: f32| i64::from(value.to_bits());
    let lesser = |of: f32, other: f32| match other.abs() {
        other if other < least => of,
        other if of == 0.0 => other,
        other => of.min(other),
    };
    let each = |value: f32| {
        let with = all
            .into_iter()
            .flat_map(move |other| [bits(value.max(other.abs())), bits(lesser(value, other))]);
        std::iter::once(bits(value.max(1e-10) / 448.0)).chain(with)
    };
    all.into_iter().flat_map(each).collect()
}

fn powers_of_codes() -> Vec<i64> {
    let ranges = [(-200.0, 0.7), (-126.0, 0.5), (-3.5, 0.01), (100.0, 0.25), (3e9, 1.0)];
    let mut all = Vec::new();
    for (c, (low, step)) in ranges.into_iter().enumerate() {
        let range = Range { low, step };
        for code in (0..1024_u32).step_by(3) {
            let own = 2 * (code % 4);
            all.push(i64::from(range.decode(code).to_bits()));
            all.push(i64::from(0xff & !(3 << own) | code >> 8 << own));
            let other = f32::from_bits(code << 22 | code << 9);
            if c < 4 && other.is_finite() {
                all.push(i64::from(range.encode(other)));
            }
        }
    }
    all
}

fn fields() -> Vec<i64> {
    let word = |i: u32| 0x8000_0001_u32.wrapping_mul(i + 1);
    let each = |i: u32| {
        let wide = u64::from(word(3 + 2 * i)) << 32 | u64::from(word(2 + 2 * i));
        let narrow = word(1 + i);
        [wide as i64, i64::from(narrow as i32), i64::from(narrow)]
    };
    (0..4).flat_map(each).collect()
}

/// The code nearest to a number, of two the even one.
pub(super) fn nearest_e4m3(value: f32) -> i64 {
    let of = |code: i64| match code >> 3 {
        0 => code as f64 / 512.0,
        exponent => (8.0 + (code & 7) as f64) * 2f64.powi(exponent as i32 - 10),
    };
    let distance = |code: &i64| (of(*code) - f64::from(value.abs())).abs();
    let nearer = |a: &i64, b: &i64| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)));
    let sign = if value.is_sign_negative() { 128 } else { 0 };
    sign + (0..127).min_by(nearer).unwrap_or(0)
}

fn helpers() -> Vec<i64> {
    let wide = 1_i64 << 40;
    let each = |a: i64, b: i64| {
        let up = |value: i64| (value + b - 1).div_euclid(b);
        let (narrow, far) = ([up(a) * b, up(a)], [up(wide + a) * b, up(wide + a)]);
        let ends = [a.min(b), a.max(b)];
        [&narrow[..], &ends, &far, &ends.map(|end| wide + end), &[(wide + a) ^ b]].concat()
    };
    (0..=12).flat_map(|a| (1..=5).flat_map(move |b| each(a, b))).collect()
}

/// The first of equal values, and the first NaN; the same of eight neighbours.
fn ends() -> Vec<i64> {
    let all = [0xff80_0000, 0xbf80_0000, 0x8000_0000, 0, 0x3f80_0000, 0x7f80_0000, 0x7fc0_0001];
    let all = [all.as_slice(), &[0xffc0_0002]].concat();
    let pick = |a: u32, b: u32, wins: fn(f32, f32) -> bool| {
        let value = f32::from_bits(a);
        if value.is_nan() || wins(value, f32::from_bits(b)) { a } else { b }
    };
    let wins: [fn(f32, f32) -> bool; 2] = [|a, b| a >= b, |a, b| a <= b];
    let of = |a: u32| {
        let one = move |b: u32| wins.map(|wins| i64::from(pick(a, b, wins)));
        all.iter().flat_map(move |b| one(*b)).collect::<Vec<_>>()
    };
    let wide = wins.into_iter().flat_map(|wins| {
        let pair = move |k: usize| (k, (k * 3 + 1) % 8);
        (0..8).map(pair).map(move |(a, b)| (a, b, wins))
    });
    let wide = wide.map(|(a, b, wins)| i64::from(pick(all[a], all[b], wins)));
    let whole = [i64::MIN, i64::MAX, -7, 3, i64::from(0xff80_0000_u32), 0x7f80_0000];
    all.iter().flat_map(|a| of(*a)).chain(wide).chain(whole).collect()
}

fn bits() -> Vec<i64> {
    let with =
        |bits: i64, index: u32, count: u32| if index < count { bits | 1 << index } else { bits };
    let mut all = Vec::new();
    for (number, set) in [-1, 5, i64::MIN].into_iter().enumerate() {
        for index in -2..=66 {
            // Below 0 there is none, as beyond the last.
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            all.push(i64::from(index < 64 && set >> index & 1 != 0));
            all.extend([with(number as i64, index, 64), with(set, index, 7)]);
        }
    }
    all
}

fn powers() -> Vec<i64> {
    let below = |count: i64| (0..7).map(|bit| 1 << bit).filter(|power| *power < count).max();
    (1..=70).map(|count| below(count).unwrap_or(0)).collect()
}

/// The first expert of each rank, and the end.
fn begins(ranks: usize) -> Vec<i64> {
    let each = (0..ranks).map(|rank| (rank as i64 * 7 + 3) % 4);
    let ends = each.scan(0, |end, more| {
        *end += more;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn owners() -> Vec<i64> {
    let mut all = Vec::new();
    for ranks in [1, 2, 3, 8, 33, 64, 130] {
        let begins = begins(ranks);
        let end = begins[ranks];
        let asked = |i: i64| match i - end {
            4 => (1 << 32) + 1,
            5 => -(1 << 32),
            _ => i - 2,
        };
        let owner =
            |expert: i64| (0..ranks).find(|r| (begins[*r]..begins[r + 1]).contains(&expert));
        for i in 0..end + 6 {
            let (expert, rank) = (asked(i), i as usize % ranks);
            let number = |rank: Option<usize>| rank.map_or(-1, |rank| rank as i64);
            let local = if owner(expert) == Some(rank) { expert - begins[rank] } else { -1 };
            let row = if i % 5 == 0 { vec![] } else { vec![expert, asked(i / 2), -1] };
            let owned = row.into_iter().filter_map(owner);
            let mut set = [0_u64; 3];
            owned.for_each(|rank| set[rank / 64] |= 1 << (rank % 64));
            let (word, has) =
                (set[i as usize % ranks.div_ceil(64)], set[rank / 64] >> (rank % 64) & 1);
            let is_in = |rank: &usize| set[rank / 64] >> (rank % 64) & 1 == 1;
            let some = (rank..ranks.min(rank + 1 + i as usize % 64)).filter(is_in);
            let bits = some.fold(0_u64, |bits, own| bits | 1 << (own - rank));
            let any = (rank..ranks).any(|own| is_in(&own));
            all.extend([number(owner(expert)), local, word as i64, has as i64]);
            all.extend([bits as i64, i64::from(any)]);
        }
    }
    all
}

fn flags() -> Vec<i64> {
    let mut all = Vec::new();
    for ranks in [1, 4, 5, 8, 33, 64, 100] {
        for from in 0..10 {
            let mut set = [0x9d2c_5680_ca6b_4e1d_u64 << from, 0];
            set[(ranks - 1) / 64] |= 5 << from;
            let mut bytes = [7; 144];
            for rank in 0..ranks {
                bytes[4 + from + rank] = (set[rank / 64] >> (rank % 64) & 1) as u8;
            }
            let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
            all.extend(words.map(i64::from_le_bytes));
        }
    }
    all
}

fn ids() -> Vec<i64> {
    let sum = (5 * 3 + (1 << 32) + 5) * 3 - (1 << 31);
    vec![0, -1, -1, -1, 0, 0, 0, sum, 5, -1, -(1 << 31), 0, 1, 0]
}

fn sums() -> Vec<i64> {
    let sum = |begin: i64, count: i64| (begin..begin + count).map(|i| 10 + i).sum::<i64>();
    let mut all: Vec<i64> = (0..=4).flat_map(|count| [sum(0, count), sum(3, count)]).collect();
    all.extend((-2..=9).map(|rows: i64| rows.clamp(0, 7)));
    all.push(7);
    all
}

fn spans() -> Vec<i64> {
    let mut all = Vec::new();
    for tokens in 0..=9 {
        for stripes in 1..=4 {
            // The first ones have one more.
            let share = |stripe: i64| (tokens + stripes - 1 - stripe) / stripes;
            let mut begin = 0;
            for stripe in 0..stripes {
                all.extend([begin, begin + share(stripe)]);
                begin += share(stripe);
            }
        }
    }
    all.extend([4, 9]);
    for position in 0..=3 {
        all.extend([-1 - position, position, position, position + 1]);
    }
    all
}

fn peers() -> Vec<i64> {
    let sets: [(i64, &[i64]); 4] =
        [(5, &[0, 1, 2, 3, 4]), (5, &[0, 1, -1, 3, 4]), (1, &[3]), (2, &[2, -1])];
    let at = |set: &[i64], i: usize| set.get(i).copied().unwrap_or(-1);
    let each = |(count, set): (i64, &'static [i64])| {
        std::iter::once(count).chain((0..=6).map(move |i| at(set, i)))
    };
    sets.into_iter().flat_map(each).collect()
}

fn words() -> Vec<i64> {
    let mut all = Vec::new();
    for far in -2..=2_i32 {
        for base in -1..=1_i32 {
            let (epoch, value) = (base as u32, far as u32);
            let word = u64::from(epoch) << 32 | u64::from(value);
            let is_between = (base..base + 2).contains(&far);
            all.extend([i64::from(far >= 0), word as i64, epoch.into(), value.into()]);
            all.push(is_between.into());
        }
    }
    all
}

fn alive() -> Vec<i64> {
    let mut all = Vec::new();
    for set in [u64::MAX, 0x8000_0000_0000_0005, 0] {
        all.push(i64::from(set == u64::MAX));
        // Those behind the first 64 always do.
        all.extend((-2..=66).map(|rank: i64| match rank {
            ..0 => 0,
            0..64 => (set >> rank & 1) as i64,
            _ => 1,
        }));
    }
    all
}

fn split() -> Vec<i64> {
    let mut all = Vec::new();
    for warps in 1..=7 {
        for warp in 0..warps {
            all.extend([0, 1, 0, 1, warps + warp, warp * 3 + 1, 3 * warps, 0]);
            // With fewer warps than peers each goes on by the number of warps; else a group of them serves one,
            // and those that are left over serve none.
            let parts = (warps / 3).max(1);
            let peer = warp / parts;
            let peers = warps.min(3);
            all.extend([if peer < peers { peer } else { 3 }, peers, warp % parts, parts]);
        }
    }
    all
}
