//! bf16 on the host.

/// The value of a bf16.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To the nearest bf16, ties to even; NaN stays NaN.
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let rounding = 0x7fff + ((bits >> 16) & 1);
    (bits.wrapping_add(rounding) >> 16) as u16
}

/// Half the distance between neighbouring bf16 values around `value`: the error of one rounding.
pub fn half_step_bf16(value: f64) -> f64 {
    const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
    // The power of two below the value; neighbours are a 128th of it apart, and below the least
    // normal bf16 as far apart as there.
    let power = f64::from_bits(value.to_bits() & EXPONENT);
    power.max(f64::from(f32::MIN_POSITIVE)) / 256.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!(bf16_from_f32(1.0), 0x3f80);
        assert_eq!(bf16_from_f32(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(bf16_from_f32(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(bf16_from_f32(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(bf16_from_f32(f32::MAX), 0x7f80);
        assert!(bf16_to_f32(bf16_from_f32(f32::NAN)).is_nan());
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
