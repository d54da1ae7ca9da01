// Conversions between the element types, and the codes of quantised rows.
#pragma once

#include <ep/ptx.cuh>

namespace ep {

// ---- bf16: the upper half of a float ----

/// The lower of two packed bf16.
__device__ __forceinline__ float low_bf16(u32 packed) {
    return float_of(packed << 16);
}

/// The upper of two packed bf16.
__device__ __forceinline__ float high_bf16(u32 packed) {
    return float_of(packed & 0xffff0000u);
}

/// A bf16 as a float, exactly.
__device__ __forceinline__ float to_float(bf16 value) {
    return float_of(static_cast<u32>(value.bits) << 16);
}

/// A float to bf16, to nearest even.
__device__ __forceinline__ bf16 to_bf16(float value) {
    return bf16{static_cast<u16>(pack_bf16(value, 0.0f))};
}

/// Adds eight packed bf16 to eight floats.
__device__ __forceinline__ void add_bf16(float (&sum)[8], Quad packed) {
    sum[0] += low_bf16(packed.x), sum[1] += high_bf16(packed.x);
    sum[2] += low_bf16(packed.y), sum[3] += high_bf16(packed.y);
    sum[4] += low_bf16(packed.z), sum[5] += high_bf16(packed.z);
    sum[6] += low_bf16(packed.w), sum[7] += high_bf16(packed.w);
}

/// Eight floats as packed bf16.
__device__ __forceinline__ Quad pack_bf16(const float (&sum)[8]) {
    return Quad{pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                pack_bf16(sum[6], sum[7])};
}

// ---- e4m3 with a scale per block ----

constexpr float kE4m3Max = 448.0f;

/// A float to e4m3, to nearest even, saturating.
__device__ __forceinline__ e4m3 to_e4m3(float value) {
    return e4m3{round_e4m3(value)};
}

/// An e4m3 as a float, exactly.
__device__ __forceinline__ float to_float(e4m3 value) {
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

/// The scale of a block of which each lane knows a part: `peak` is the largest magnitude there; warp.
__device__ __forceinline__ float block_scale(float peak) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        peak = greater_magnitude(peak, float_of(__shfl_xor_sync(kAllLanes, bits_of(peak), step)));
    }
    return scale_e4m3(peak);
}

// ---- ue8m0: a power of two ----

/// The least power of two that is not below `value` (positive, finite).
__device__ __forceinline__ ue8m0 ceil_ue8m0(float value) {
    const u32 bits = bits_of(value);
    const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
    return ue8m0{static_cast<u8>(exponent < 254u ? exponent : 254u)};
}

/// A ue8m0 as a float; code 0 is 2^-127.
__device__ __forceinline__ float to_float(ue8m0 value) {
    return float_of(value.bits == 0 ? 0x00400000u : static_cast<u32>(value.bits) << 23);
}

// ---- logfmt10: a sign and nine bits of the logarithm, between a block's least and greatest ----

constexpr u32 kLogfmtSteps = 510;  // codes 1..511; 0 is zero

/// The logarithms that a block's codes span.
struct LogRange {
    float low, step;
};

/// The range of a block: `least` and `greatest` are its magnitudes, zeros left out. Codes reach no
/// further than 2^-32 below the greatest.
__device__ __forceinline__ LogRange log_range(float least, float greatest) {
    const float high = log2_approx(greatest);
    const float wanted = log2_approx(least);
    const float low = wanted > high - 32.0f ? wanted : high - 32.0f;
    return LogRange{low, (high - low) / static_cast<float>(kLogfmtSteps)};
}

/// The ten-bit code of a value.
__device__ __forceinline__ u32 to_logfmt10(float value, LogRange range) {
    const u32 sign = bits_of(value) >> 31 << 9;
    const float magnitude = float_of(bits_of(value) & 0x7fffffffu);
    if (magnitude == 0.0f) return sign;
    const float place =
        range.step > 0.0f ? (log2_approx(magnitude) - range.low) / range.step : 0.0f;
    const float code = place + 1.5f;
    if (code < 1.0f) return sign | 1u;
    return sign | (code < 511.0f ? static_cast<u32>(code) : 511u);
}

/// The value of a ten-bit code.
__device__ __forceinline__ float from_logfmt10(u32 code, LogRange range) {
    const u32 place = code & 511u;
    if (place == 0) return 0.0f;
    const float magnitude =
        exp2_approx(fused(static_cast<float>(place - 1), range.step, range.low));
    return (code & 512u) != 0 ? -magnitude : magnitude;
}

}  // namespace ep
