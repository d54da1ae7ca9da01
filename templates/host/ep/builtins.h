// The words of CUDA C++ for a host compiler: qualifiers, indices, vectors, warp functions.
//
// Included before the emitted text. What a lane does to others or to shared state goes through
// `emu.h`; everything else is plain C++ and costs nothing.
#pragma once

#include "emu.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#ifdef EMU_APART
// What is not inlined is compiled once, and not at every call: for a text that grows with all its mutations
// at every call. All others are inlined, so that an access knows its statement.
#define EMU_SMALL inline
#else
#define EMU_SMALL inline __attribute__((always_inline))
#endif
#define __forceinline__ EMU_SMALL
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

#define threadIdx (emu_lane->thread)
#define blockIdx (emu_lane->block->index)
#define blockDim (emu_lane->block->size)
#define gridDim (emu_lane->block->grid)
constexpr int warpSize = 32;

#define EMU_INLINE static EMU_SMALL

typedef decltype(sizeof(0)) size_t;

using uint3 = EmuIndex;
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

#define EMU_VECTOR(element, name, pair_align, quad_align)                                   \
    struct alignas(pair_align) name##2 { element x, y; };                                   \
    struct alignas(quad_align) name##4 { element x, y, z, w; };                             \
    EMU_INLINE name##2 make_##name##2(element x, element y) { return {x, y}; }              \
    EMU_INLINE name##4 make_##name##4(element x, element y, element z, element w) {         \
        return {x, y, z, w};                                                                \
    }
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(unsigned, uint, 8, 16)
EMU_VECTOR(float, float, 8, 16)
#undef EMU_VECTOR

struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(16) longlong2 {
    long long x, y;
};

extern "C" {
float fmaf(float, float, float) noexcept;
float exp2f(float) noexcept;
float log2f(float) noexcept;
float expf(float) noexcept;
float logf(float) noexcept;
float tanhf(float) noexcept;
float sqrtf(float) noexcept;
float rintf(float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float fabsf(float) noexcept;
float fminf(float, float) noexcept;
float fmaxf(float, float) noexcept;
}

namespace emu {

/// The bits of a value of at most eight bytes.
template <class T>
EMU_INLINE unsigned long long bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
    unsigned long long result = 0;
    __builtin_memcpy(&result, &value, sizeof(T));
    return result;
}

template <class T>
EMU_INLINE T value(unsigned long long bits) {
    T result;
    __builtin_memcpy(&result, &bits, sizeof(T));
    return result;
}

/// A float to bf16, to nearest even; every NaN becomes the canonical one, as cvt does.
EMU_INLINE unsigned round_bf16(float value) {
    const unsigned raw = (unsigned)bits(value);
    if ((raw & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (raw + 0x7fffu + (raw >> 16 & 1u)) >> 16;
}

}  // namespace emu

// ---- Warp functions ----

EMU_INLINE void __syncwarp(unsigned mask = 0xffffffffu) { emu_warp(EMU_SYNC, mask, 0, 0, 32); }

template <class T>
EMU_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return emu::value<T>(emu_warp(EMU_SHFL, mask, emu::bits(value), lane, width));
}
template <class T>
EMU_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return emu::value<T>(emu_warp(EMU_SHFL_UP, mask, emu::bits(value), (int)delta, width));
}
template <class T>
EMU_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return emu::value<T>(emu_warp(EMU_SHFL_DOWN, mask, emu::bits(value), (int)delta, width));
}
template <class T>
EMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    return emu::value<T>(emu_warp(EMU_SHFL_XOR, mask, emu::bits(value), lanes, width));
}

EMU_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)emu_warp(EMU_BALLOT, mask, predicate != 0, 0, 32);
}
EMU_INLINE int __any_sync(unsigned mask, int predicate) {
    return (int)emu_warp(EMU_ANY, mask, predicate != 0, 0, 32);
}
EMU_INLINE int __all_sync(unsigned mask, int predicate) {
    return (int)emu_warp(EMU_ALL, mask, predicate != 0, 0, 32);
}
template <class T>
EMU_INLINE unsigned __match_any_sync(unsigned mask, T value) {
    return (unsigned)emu_warp(EMU_MATCH, mask, emu::bits(value), 0, 32);
}

#define EMU_REDUCE(name, type, op)                                          \
    EMU_INLINE type name(unsigned mask, type value) {                       \
        return (type)emu_warp(op, mask, (unsigned)value, 0, 32);            \
    }
EMU_REDUCE(__reduce_add_sync, int, EMU_ADD)
EMU_REDUCE(__reduce_add_sync, unsigned, EMU_ADD)
EMU_REDUCE(__reduce_max_sync, int, EMU_MAX)
EMU_REDUCE(__reduce_max_sync, unsigned, EMU_UMAX)
EMU_REDUCE(__reduce_min_sync, int, EMU_MIN)
EMU_REDUCE(__reduce_min_sync, unsigned, EMU_UMIN)
EMU_REDUCE(__reduce_or_sync, unsigned, EMU_OR)
EMU_REDUCE(__reduce_and_sync, unsigned, EMU_AND)
EMU_REDUCE(__reduce_xor_sync, unsigned, EMU_XOR)
#undef EMU_REDUCE

// ---- Block functions and fences ----

EMU_INLINE void __syncthreads() {
    emu_barrier(0, (int)(blockDim.x * blockDim.y * blockDim.z), 1);
}
EMU_INLINE void __threadfence_block() { emu_fence(EMU_CTA); }
EMU_INLINE void __threadfence() { emu_fence(EMU_GPU); }
EMU_INLINE void __threadfence_system() { emu_fence(EMU_SYS); }
EMU_INLINE void __trap() { emu_trap("__trap()"); }
EMU_INLINE long long clock64() { return (long long)emu_clock(); }

// ---- Atomics: relaxed, device scope ----

template <class T>
EMU_INLINE T emu_update(unsigned op, T* at, T operand, T expected = T()) {
    return emu::value<T>(emu_atomic(op, at, emu::bits(operand), emu::bits(expected), sizeof(T),
                                    EMU_RELAXED | EMU_GPU << 4));
}
#define EMU_ATOMIC(name, type, op) \
    EMU_INLINE type name(type* at, type operand) { return emu_update<type>(op, at, operand); }
EMU_ATOMIC(atomicAdd, int, EMU_ATOMIC_ADD)
EMU_ATOMIC(atomicAdd, unsigned, EMU_ATOMIC_ADD)
EMU_ATOMIC(atomicAdd, unsigned long long, EMU_ATOMIC_ADD)
EMU_ATOMIC(atomicExch, int, EMU_ATOMIC_EXCHANGE)
EMU_ATOMIC(atomicExch, unsigned, EMU_ATOMIC_EXCHANGE)
EMU_ATOMIC(atomicExch, unsigned long long, EMU_ATOMIC_EXCHANGE)
EMU_ATOMIC(atomicOr, unsigned, EMU_ATOMIC_OR)
EMU_ATOMIC(atomicAnd, unsigned, EMU_ATOMIC_AND)
EMU_ATOMIC(atomicXor, unsigned, EMU_ATOMIC_XOR)
#undef EMU_ATOMIC
template <class T>
EMU_INLINE T atomicCAS(T* at, T expected, T desired) {
    return emu_update<T>(EMU_ATOMIC_CAS, at, desired, expected);
}

// ---- Numbers ----

EMU_INLINE int __popc(unsigned bits) { return __builtin_popcount(bits); }
EMU_INLINE int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
EMU_INLINE int __ffs(int bits) { return __builtin_ffs(bits); }
EMU_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
EMU_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32);
}
EMU_INLINE int __ffsll(long long bits) { return __builtin_ffsll(bits); }
EMU_INLINE int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
EMU_INLINE int __clzll(long long bits) {
    return bits ? __builtin_clzll((unsigned long long)bits) : 64;
}
EMU_INLINE unsigned __brev(unsigned bits) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (bits >> i & 1u) << (31 - i);
    return reversed;
}
EMU_INLINE float __uint_as_float(unsigned bits) { return emu::value<float>(bits); }
EMU_INLINE unsigned __float_as_uint(float value) { return (unsigned)emu::bits(value); }
EMU_INLINE float __int_as_float(int bits) { return emu::value<float>((unsigned)bits); }
EMU_INLINE int __float_as_int(float value) { return (int)emu::bits(value); }
EMU_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMU_INLINE float __fadd_rn(float a, float b) { return a + b; }
EMU_INLINE float __fmul_rn(float a, float b) { return a * b; }
EMU_INLINE float __fdividef(float a, float b) { return a / b; }
EMU_INLINE float __fdiv_rn(float a, float b) { return a / b; }
EMU_INLINE float __expf(float value) { return expf(value); }
EMU_INLINE float rsqrtf(float value) { return 1.0f / sqrtf(value); }

#define EMU_MIN_MAX(type)                                             \
    EMU_INLINE type min(type a, type b) { return b < a ? b : a; }     \
    EMU_INLINE type max(type a, type b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
EMU_INLINE float min(float a, float b) { return fminf(a, b); }
EMU_INLINE float max(float a, float b) { return fmaxf(a, b); }

template <class T>
EMU_INLINE T __ldg(const T* at) {
    emu_read_only(at, sizeof(T));
    return *at;
}
