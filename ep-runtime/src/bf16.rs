//! bf16 on the host: the conversions of the compiler's own interpreter.

pub use ep_codegen::meaning::round::{bf16_to_f32, f32_to_bf16 as bf16_from_f32};

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
}
