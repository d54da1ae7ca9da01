//! Rounding to the narrow floats, as `cast.cuh` does it.

/// The value of a bf16.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To the nearest bf16, ties to even; NaN stays NaN.
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let rounding = 0x7fff + ((bits >> 16) & 1);
    (bits.wrapping_add(rounding) >> 16) as u16
}

/// To the nearest e4m3, ties to even; what is too great becomes the greatest.
pub fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = ((bits >> 24) & 0x80) as u8;
    if magnitude > 0x7f80_0000 {
        return 0x7f;
    }
    if magnitude >= 0x43e0_0000 {
        return sign | 0x7e;
    }
    if magnitude < 0x3c80_0000 {
        // Below 2^-6 codes count steps of 2^-9; scaling by a power of two is exact.
        let steps = (f32::from_bits(magnitude) * 512.0).round_ties_even();
        return sign | steps as u8;
    }
    let rounded = magnitude + 0x7_ffff + ((magnitude >> 20) & 1);
    sign | ((rounded >> 20).wrapping_sub(120 << 3) & 0x7f) as u8
}

/// The value of an e4m3.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let (sign, magnitude) = (u32::from(code & 0x80) << 24, u32::from(code & 0x7f));
    match magnitude {
        0x7f => f32::NAN,
        0..=7 => f32::from_bits(sign | (magnitude as f32 / 512.0).to_bits()),
        _ => f32::from_bits(sign | ((magnitude << 20) + (120 << 23))),
    }
}

/// The greatest e4m3.
const E4M3_MAX: f32 = 448.0;

/// The scale of a block whose largest magnitude is `peak`: what its codes are multiplied by.
pub fn e4m3_scale(peak: f32) -> f32 {
    // A block of zeros keeps a scale that can be divided by.
    (if peak > 1e-10 { peak } else { 1e-10 }) / E4M3_MAX
}

/// The least power of two that is not below `value` (positive, finite), as a ue8m0.
pub fn f32_to_ue8m0(value: f32) -> u8 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
    exponent.min(254) as u8
}

/// The value of a ue8m0; code 0 is 2^-127.
pub fn ue8m0_to_f32(code: u8) -> f32 {
    f32::from_bits(if code == 0 { 0x0040_0000 } else { u32::from(code) << 23 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_goes_to_the_nearest_even() {
        for (bits, rounded) in [
            (0x3f80_8000, 0x3f80),
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (f32::MAX.to_bits(), 0x7f80),
        ] {
            assert_eq!(f32_to_bf16(f32::from_bits(bits)), rounded);
        }
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn every_e4m3_is_its_own_rounding_and_halves_go_to_even() {
        for code in 0..=0xff_u8 {
            if code & 0x7f != 0x7f {
                assert_eq!(f32_to_e4m3(e4m3_to_f32(code)), code);
            }
        }
        for code in 0..0x7e_u8 {
            let half = (e4m3_to_f32(code) + e4m3_to_f32(code + 1)) / 2.0;
            assert_eq!(f32_to_e4m3(half), if code % 2 == 0 { code } else { code + 1 }, "{half}");
        }
        assert_eq!((f32_to_e4m3(1e9), f32_to_e4m3(-1e9)), (0x7e, 0xfe));
    }

    #[test]
    fn a_power_of_two_is_not_below() {
        for value in [1.0, 1.5, 0.3, 3.9e-5, 448.0] {
            let power = ue8m0_to_f32(f32_to_ue8m0(value));
            assert!(power >= value && power < 2.0 * value);
        }
        assert_eq!(ue8m0_to_f32(127), 1.0);
    }
}
