//! Comparing what came with what should have come; the report shows the first differences.

use std::fmt;

use ep_runtime::bf16::bf16_to_f32;

/// How many differences a report shows.
const SHOWN: usize = 4;

/// What differs between two tensors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Differences {
    /// Values compared.
    pub compared: u64,
    /// Values that differ.
    pub wrong: u64,
    /// The first ones, a sentence each.
    pub first: Vec<String>,
}

impl Differences {
    /// Whether everything was equal.
    pub fn is_empty(&self) -> bool {
        self.wrong == 0
    }

    /// Counts one value; `words` is asked only for the ones that are shown.
    pub fn note(&mut self, equal: bool, words: impl FnOnce() -> String) {
        self.compared += 1;
        if !equal {
            self.wrong += 1;
            if self.first.len() < SHOWN {
                self.first.push(words());
            }
        }
    }

    /// Adds those of another tensor.
    pub fn merge(&mut self, other: Differences) {
        self.compared += other.compared;
        self.wrong += other.wrong;
        let room = SHOWN.saturating_sub(self.first.len());
        self.first.extend(other.first.into_iter().take(room));
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return write!(f, "{} values equal", self.compared);
        }
        write!(f, "{} of {} values differ", self.wrong, self.compared)?;
        self.first.iter().try_for_each(|words| write!(f, "\n  {words}"))
    }
}

/// Rows inside a block of bytes, possibly padded.
#[derive(Debug, Clone, Copy)]
pub struct RowReader<'a> {
    /// The block.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of a row.
    pub width: usize,
}

impl<'a> RowReader<'a> {
    /// Dense rows.
    pub fn dense(bytes: &'a [u8], width: usize) -> RowReader<'a> {
        RowReader { bytes, stride: width, width }
    }

    /// One row; empty when the block ends before it does.
    pub fn row(&self, index: usize) -> &'a [u8] {
        let start = index * self.stride;
        self.bytes.get(start..start + self.width).unwrap_or_default()
    }
}

/// Compares rows bit by bit; `want` gives the expected bytes and says where a row comes from.
pub fn compare_bytes<'a>(
    name: &str,
    got: RowReader<'_>,
    rows: usize,
    want: impl Fn(usize) -> (&'a [u8], String),
) -> Differences {
    let mut differences = Differences::default();
    for index in 0..rows {
        let (want, from) = want(index);
        let row = got.row(index);
        differences.note(row == want, || {
            let at = row.iter().zip(want).position(|(got, want)| got != want);
            let at = at.unwrap_or(row.len().min(want.len()));
            let byte =
                |bytes: &[u8]| bytes.get(at).map_or("nothing".into(), |b| format!("{b:#04x}"));
            format!("{name} row {index} ({from}) byte {at}: {}, not {}", byte(row), byte(want))
        });
    }
    differences
}

/// Compares a bf16 row with an exact sum: one rounding to bf16 plus what fp32 additions may lose.
/// `magnitude` is the sum of the terms' absolute values, `terms` their number.
pub fn compare_sums(
    name: &str,
    index: usize,
    got: &[u8],
    want: &[f64],
    magnitude: &[f64],
    terms: usize,
) -> Differences {
    compare_sums_of_sums(name, index, got, want, (magnitude, terms), &[])
}

/// As [`compare_sums`], where parts of the sum were rounded to bf16 before: `rounded` is what that may have lost in each
/// column.
pub(crate) fn compare_sums_of_sums(
    name: &str,
    index: usize,
    got: &[u8],
    want: &[f64],
    (magnitude, terms): (&[f64], usize),
    rounded: &[f64],
) -> Differences {
    let mut differences = Differences::default();
    for (column, want) in want.iter().enumerate() {
        let bits = got.get(2 * column..2 * column + 2).map(|pair| [pair[0], pair[1]]);
        let got = bits.map_or(f32::NAN, |pair| bf16_to_f32(u16::from_le_bytes(pair)));
        let before = rounded.get(column).copied().unwrap_or(0.0);
        let lost = magnitude[column] * terms as f64 * 2f64.powi(-24) + before;
        // The rounded fp32 sum may lie in the next binade, where the step is twice as wide.
        let allowed = half_step_bf16(want.abs() + lost) + lost;
        let equal = (f64::from(got) - want).abs() <= allowed;
        differences.note(equal, || {
            format!("{name} row {index} column {column}: {got}, not {want} (+- {allowed:.2e})")
        });
    }
    differences
}

/// Half the distance between neighbouring bf16 values around `value`: the error of one rounding.
pub(crate) fn half_step_bf16(value: f64) -> f64 {
    const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
    // The power of two below the value; neighbours are a 128th of it apart, and below the least
    // normal bf16 as far apart as there.
    let power = f64::from_bits(value.to_bits() & EXPONENT);
    power.max(f64::from(f32::MIN_POSITIVE)) / 256.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_runtime::bf16::bf16_from_f32;

    #[test]
    fn the_first_differences_are_shown() {
        let got = [1u8, 2, 3, 4, 5, 6];
        let want = [[1u8, 2], [3, 9], [5, 6]];
        let rows = RowReader::dense(&got, 2);
        let differences =
            compare_bytes("recv_x", rows, 3, |row| (&want[row][..], format!("token {row}")));
        assert_eq!((differences.compared, differences.wrong), (3, 1));
        assert_eq!(differences.first, ["recv_x row 1 (token 1) byte 1: 0x04, not 0x09"]);
    }

    #[test]
    fn a_missing_row_differs() {
        let want = [7u8; 4];
        let rows = RowReader::dense(&[], 4);
        let differences = compare_bytes("x", rows, 1, |_| (&want[..], String::new()));
        assert_eq!(differences.first, ["x row 0 () byte 0: nothing, not 0x07"]);
    }

    #[test]
    fn a_sum_may_be_rounded_once() {
        let exact = 1.0 + 1.0 / 512.0;
        let row = bf16_from_f32(exact as f32).to_le_bytes();
        let check = |bits: [u8; 2]| compare_sums("y", 0, &bits, &[exact], &[exact], 2);
        assert!(check(row).is_empty());
        let next = (u16::from_le_bytes(row) + 2).to_le_bytes();
        assert!(!check(next).is_empty());
        assert!(!compare_sums("y", 0, &[], &[exact], &[exact], 2).is_empty());
    }

    #[test]
    fn half_a_step_bounds_one_rounding() {
        for value in [1.0f32, 1.003, 1.996, 3.1e-20, 7.7e8, -0.3] {
            let rounded = f64::from(bf16_to_f32(bf16_from_f32(value)));
            assert!((rounded - f64::from(value)).abs() <= half_step_bf16(f64::from(value)));
        }
        assert_eq!(half_step_bf16(1.0), 2f64.powi(-8));
    }
}
