// Conversions between the element types, and the codes of quantised rows.
#pragma once

#include <ep/ptx.cuh>

namespace ep {

// ---- bf16: the upper half of a float ----

/// A bf16 as a float, exactly. By reference, as all of its kind: host compilers do not tell the checker of a read that
/// only copies an argument.
__device__ __forceinline__ float to_float(const bf16& value) {
    return float_of(static_cast<u32>(value.bits) << 16);
}

/// A float to bf16, to nearest even.
__device__ __forceinline__ bf16 to_bf16(float value) {
    return bf16{static_cast<u16>(pack_bf16(value, 0.0f))};
}

// ---- e4m3 with a scale per block ----

constexpr float kE4m3Max = 448.0f;

/// A float to e4m3, to nearest even, saturating.
__device__ __forceinline__ e4m3 to_e4m3(float value) {
    return e4m3{round_e4m3(value)};
}

/// An e4m3 as a float, exactly.
__device__ __forceinline__ float to_float(const e4m3& value) {
    const u32 bits = value.bits;
    const u32 sign = (bits & 0x80u) << 24;
    const u32 magnitude = bits & 0x7fu;
    if (magnitude == 0x7fu) return float_of(sign | 0x7fc00000u);
    // Below 2^-6 the code counts steps of 2^-9.
    if (magnitude < 8)
        return float_of(sign | bits_of(static_cast<float>(magnitude) * 0.001953125f));
    return float_of(sign | ((magnitude << 20) + (120u << 23)));
}

/// The scale of a block whose largest magnitude is `peak`: what the codes are multiplied by.
__device__ __forceinline__ float scale_e4m3(float peak) {
    // A block of zeros keeps a scale that can be divided by.
    const float least = 1e-10f;
    return (peak > least ? peak : least) / kE4m3Max;
}

/// The greater of a magnitude and that of a value.
__device__ __forceinline__ float greater_magnitude(float peak, float value) {
    const float magnitude = float_of(bits_of(value) & 0x7fffffffu);
    return magnitude > peak ? magnitude : peak;
}

/// The greatest magnitude of a block of which each lane knows a part; warp.
__device__ __forceinline__ float block_peak(float peak) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        peak = greater_magnitude(peak, float_of(__shfl_xor_sync(kAllLanes, bits_of(peak), step)));
    }
    return peak;
}

/// The scale of a block of which each lane knows a part: `peak` is the largest magnitude there; warp.
__device__ __forceinline__ float block_scale(float peak) {
    return scale_e4m3(block_peak(peak));
}

// ---- ue8m0: a power of two ----

/// The least power of two that is not below `value` (positive, finite).
__device__ __forceinline__ ue8m0 ceil_ue8m0(float value) {
    const u32 bits = bits_of(value);
    const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
    return ue8m0{static_cast<u8>(exponent < 254u ? exponent : 254u)};
}

/// A ue8m0 as a float; code 0 is 2^-127.
__device__ __forceinline__ float to_float(const ue8m0& value) {
    return float_of(value.bits == 0 ? 0x00400000u : static_cast<u32>(value.bits) << 23);
}

// ---- logfmt10: a sign and nine bits of the logarithm, between a block's least and greatest ----
//
// Polynomials whose every operation is rounded: all backends find the same codes.

constexpr float kLogfmtSteps = 510.0f;      // codes 1..511; 0 is zero
constexpr float kLogfmtOctaves = 32.0f;     // what codes span at most
constexpr float kLeastNormal = 0x1p-126f;  // what is below is taken for zero

/// log2 of a number that is not below `kLeastNormal`, within 4e-6.
__device__ __forceinline__ float log2_of(float value) {
    const u32 bits = bits_of(value);
    const float t = float_of((bits & 0x7fffffu) | 0x3f800000u) - 1.0f;
    float sum = fused(-0.025841443f, t, 0.12179789f);
    sum = fused(sum, t, -0.27790532f);
    sum = fused(sum, t, 0.45754918f);
    sum = fused(sum, t, -0.71814525f);
    sum = fused(sum, t, 1.4425449f);
    return fused(sum, t, static_cast<float>(static_cast<i32>(bits >> 23) - 127));
}

/// 2^value, of the range of floats that are not below `kLeastNormal`, within 4e-7 of it.
__device__ __forceinline__ float exp2_of(float value) {
    const float above = value > -126.0f ? value : -126.0f;
    const float inside = above < 128.0f ? above : 128.0f;
    // Toward zero, and then down.
    i32 whole = static_cast<i32>(inside);
    if (static_cast<float>(whole) > inside) --whole;
    if (whole > 127) whole = 127;
    const float t = inside - static_cast<float>(whole);
    float sum = fused(0.0018968501f, t, 0.008947751f);
    sum = fused(sum, t, 0.055855296f);
    sum = fused(sum, t, 0.24014713f);
    sum = fused(sum, t, 0.69315296f);
    sum = fused(sum, t, 1.0f);
    return float_of(static_cast<u32>(whole + 127) << 23) * sum;
}

/// The lesser of a magnitude and that of a value; 0 where there is none yet, or the value is taken for it.
__device__ __forceinline__ float lesser_magnitude(float least, float value) {
    const float magnitude = float_of(bits_of(value) & 0x7fffffffu);
    if (magnitude < kLeastNormal) return least;
    return least == 0.0f || magnitude < least ? magnitude : least;
}

/// The least magnitude of a block of which each lane knows a part; warp.
__device__ __forceinline__ float block_least(float least) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        least = lesser_magnitude(least, float_of(__shfl_xor_sync(kAllLanes, bits_of(least), step)));
    }
    return least;
}

/// The logarithm at which the codes of a block begin: no further than `kLogfmtOctaves` below its greatest.
__device__ __forceinline__ float log_low(float least, float peak) {
    if (peak < kLeastNormal) return 0.0f;
    const float farthest = log2_of(peak) - kLogfmtOctaves;
    const float wanted = log2_of(least);
    return wanted > farthest ? wanted : farthest;
}

/// How far the logarithms of two codes of a block lie apart.
__device__ __forceinline__ float log_step(float low, float peak) {
    return peak < kLeastNormal ? 0.0f : (log2_of(peak) - low) / kLogfmtSteps;
}

/// The ten bits of a value.
__device__ __forceinline__ i32 to_logfmt10(float value, float low, float step) {
    const i32 sign = static_cast<i32>(bits_of(value) >> 31 << 9);
    const float magnitude = float_of(bits_of(value) & 0x7fffffffu);
    if (magnitude < kLeastNormal) return sign;
    const float place = step > 0.0f ? (log2_of(magnitude) - low) / step : 0.0f;
    const float code = place + 1.5f;
    if (code < 1.0f) return sign | 1;
    return sign | (code < kLogfmtSteps + 1.0f ? static_cast<i32>(code) : 511);
}

/// The upper bits of four codes, with those of the code of element `i`.
__device__ __forceinline__ i32 with_upper(i32 upper, i32 code, i32 i) {
    return upper | code >> 8 << 2 * (i & 3);
}

/// The value of element `i`, from the lower bits of its code and the upper ones of four.
__device__ __forceinline__ float from_logfmt10(u32 lower, u32 upper, i32 i, float low, float step) {
    const u32 code = lower | (upper >> 2 * (i & 3) & 3u) << 8;
    const u32 place = code & 511u;
    if (place == 0) return 0.0f;
    const float magnitude = exp2_of(fused(static_cast<float>(place - 1), step, low));
    return (code & 512u) != 0 ? -magnitude : magnitude;
}

}  // namespace ep
