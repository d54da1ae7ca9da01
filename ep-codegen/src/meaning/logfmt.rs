//! logfmt10 as `cast.cuh` has it, bit for bit: a sign, and nine bits of the logarithm of a magnitude between
//! the least and the greatest of a block. Logarithms and powers are polynomials whose every operation is
//! rounded, so that all backends find the same codes.
//!
//! A value is off by at most 2^(step / 2) - 1 of itself: 2.2 % where a block spans 32 octaves, 0.6 % where it
//! spans 8. What is more than 32 octaves below the greatest comes back as a magnitude 32 octaves below it,
//! zeros and what is below 2^-126 as zero. Values have to be finite.

/// Codes 1 to 511; 0 is zero.
const STEPS: f32 = 510.0;

/// Octaves that codes span at most.
const OCTAVES: f32 = 32.0;

/// The least magnitude that is not taken for zero: floats below it have fewer digits.
const LEAST: f32 = f32::MIN_POSITIVE;

/// log2(1 + t) for t in 0..1, from the power of 1 on; within 3e-6.
const LOG: [f32; 6] =
    [1.442_544_9, -0.718_145_25, 0.457_549_18, -0.277_905_32, 0.121_797_89, -0.025_841_443];

/// 2^t for t in 0..1, from the power of 0 on; within 2e-7.
const EXP: [f32; 6] =
    [1.0, 0.693_152_96, 0.240_147_13, 0.055_855_296, 0.008_947_751, 0.001_896_850_1];

/// Where the logarithms of a block begin, and how far those of two codes lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The logarithm of code 1.
    pub low: f32,
    /// From one code to the next.
    pub step: f32,
}

impl Range {
    /// The range of a block.
    pub fn of(values: &[f32]) -> Range {
        let present = values.iter().map(|value| value.abs()).filter(|it| *it >= LEAST);
        let (mut least, mut peak) = (0.0_f32, 0.0_f32);
        for magnitude in present {
            least = if least == 0.0 || magnitude < least { magnitude } else { least };
            peak = peak.max(magnitude);
        }
        if peak < LEAST {
            return Range { low: 0.0, step: 0.0 };
        }
        let high = log2(peak);
        let low = log2(least).max(high - OCTAVES);
        Range { low, step: (high - low) / STEPS }
    }

    /// The ten bits of a value.
    pub fn encode(self, value: f32) -> u32 {
        let sign = value.to_bits() >> 31 << 9;
        let magnitude = value.abs();
        if magnitude < LEAST {
            return sign;
        }
        let place = match self.step > 0.0 {
            true => (log2(magnitude) - self.low) / self.step,
            false => 0.0,
        };
        sign | (place + 1.5).clamp(1.0, STEPS + 1.0) as u32
    }

    /// The value of ten bits.
    pub fn decode(self, code: u32) -> f32 {
        let place = code & 511;
        if place == 0 {
            return 0.0;
        }
        let magnitude = exp2((place as f32 - 1.0).mul_add(self.step, self.low));
        if code & 512 == 0 { magnitude } else { -magnitude }
    }
}

/// log2 of a positive number that is not below [`LEAST`].
fn log2(value: f32) -> f32 {
    let bits = value.to_bits();
    let t = f32::from_bits(bits & 0x7f_ffff | 0x3f80_0000) - 1.0;
    let sum = LOG.iter().rev().copied().reduce(|sum, it| sum.mul_add(t, it)).unwrap_or(0.0);
    sum.mul_add(t, ((bits >> 23) as i32 - 127) as f32)
}

/// 2^value, of the range of floats that are not below [`LEAST`].
fn exp2(value: f32) -> f32 {
    let value = value.clamp(-126.0, 128.0);
    let whole = (value.floor() as i32).min(127);
    let t = value - whole as f32;
    let sum = EXP.iter().rev().copied().reduce(|sum, it| sum.mul_add(t, it)).unwrap_or(0.0);
    f32::from_bits(((whole + 127) as u32) << 23) * sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meaning::Dice;

    /// A block whose magnitudes span so many octaves.
    fn block(dice: &mut Dice, octaves: f64) -> Vec<f32> {
        let value = |dice: &mut Dice| {
            let part = dice.below(1 << 20) as f64 / f64::from(1 << 20);
            let magnitude = (part * octaves - octaves / 2.0).exp2();
            (if dice.below(2) == 0 { magnitude } else { -magnitude }) as f32
        };
        (0..128).map(|_| value(dice)).collect()
    }

    #[test]
    fn values_come_back_within_half_a_step() {
        let mut dice = Dice::new(7);
        for octaves in [0.0, 0.01, 1.0, 8.0, 20.0, 31.9] {
            for _ in 0..50 {
                let values = block(&mut dice, octaves);
                let range = Range::of(&values);
                assert!(f64::from(range.step) <= octaves / 510.0 + 1e-6);
                // Half a step, and what the polynomials are off.
                let most = (octaves / 1020.0).exp2() - 1.0 + 1e-5;
                for value in &values {
                    let back = f64::from(range.decode(range.encode(*value)));
                    let exact = f64::from(*value);
                    let off = (back - exact).abs() / exact.abs();
                    assert!(off <= most, "{octaves} octaves: {exact} became {back}, off {off}");
                }
            }
        }
    }

    #[test]
    fn what_is_far_below_the_greatest_keeps_its_sign_and_zeros_stay() {
        let values = [1.0, -1e-20, 0.0, -0.0, f32::MIN_POSITIVE / 2.0];
        let range = Range::of(&values);
        let back: Vec<f32> = values.iter().map(|it| range.decode(range.encode(*it))).collect();
        assert!((back[0] - 1.0).abs() < 1e-5 && back[2..] == [0.0; 3]);
        assert!(back[1] < 0.0 && back[1].abs() <= 1.001 / 2.0_f32.powi(32), "{}", back[1]);
        let none = Range::of(&[0.0, -0.0]);
        assert_eq!((none, none.encode(0.0)), (Range { low: 0.0, step: 0.0 }, 0));
    }

    #[test]
    fn polynomials_stay_within_their_bounds_and_the_range_of_floats() {
        for at in 0..=4096 {
            let t = f64::from(at) / 4096.0;
            let found = f64::from(log2((1.0 + t) as f32)) - (1.0 + t).log2();
            assert!(found.abs() < 4e-6, "log2({})", 1.0 + t);
            let found = f64::from(exp2(t as f32)) / t.exp2() - 1.0;
            assert!(found.abs() < 4e-7, "2^{t}");
        }
        assert_eq!((exp2(-500.0), exp2(0.0)), (f32::MIN_POSITIVE, 1.0));
        let range = Range::of(&[f32::MAX, f32::MIN_POSITIVE]);
        assert!(range.decode(range.encode(f32::MAX)) > 3e38);
    }
}
