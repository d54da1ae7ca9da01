// Host twin of the device library's lowest layer: the same functions, run by the emulator.
//
// The orders and scopes named here reach the happens-before checker as they stand, so that a wrong
// qualifier in a header above this one is found without a GPU.
#pragma once

namespace ep {

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

/// bfloat16, as its bits: the library converts, the compiler never sees a half type.
struct bf16 {
    u16 bits;
};

/// 8-bit float with 4 exponent and 3 mantissa bits, as its bits.
struct e4m3 {
    u8 bits;
};

/// 8-bit power of two (2^(bits - 127)), the scale of packed FP8 rows.
struct ue8m0 {
    u8 bits;
};

/// 16 bytes: the unit of every vector access.
struct alignas(16) Quad {
    u32 x, y, z, w;
};

struct alignas(16) WordPair {
    u64 first, second;
};

constexpr u32 kAllLanes = 0xffffffffu;

/// A warp that has looked in vain sleeps here until what it looked at changes.
constexpr int kEarlyLooks = 2;

constexpr bool kSpareRegisters = true;

}  // namespace ep

/// The dynamic shared memory of the block, seen as `Type`; the launch must have asked for enough.
#define EP_SHARED(Type, name) Type& name = *reinterpret_cast<Type*>(emu_shared(sizeof(Type)))

namespace ep {

// ---- Who and when ----

__device__ __forceinline__ int lane_index() {
    return static_cast<int>(emu_lane->lane);
}

/// The virtual clock: it advances with the schedule and jumps when nothing can run.
__device__ __forceinline__ u64 clock_ns() {
    return emu_clock();
}

/// Lets the lane see what the kernels before this one in its stream did. The kernels of a stream run one after another
/// here, but a kernel that may begin early sees nothing of the earlier ones until this call.
__device__ __forceinline__ void after_last_kernel() {
    emu_last_kernel();
}
/// Lets the next kernel of the stream start. From then on, no lane of this block may wait for anybody.
__device__ __forceinline__ void bring_next_kernel() {
    emu_next_kernel();
}

/// Names the wait in deadlock reports, by the numbers of its timeout record.
__device__ __forceinline__ void note_wait(u32 pipeline, u32 role, u32 channel, u32 kind, i32 stripe,
                                          i32 peer, u32 want, u32 epoch) {
    emu_note_wait(pipeline, role, channel, kind, stripe, peer, want, epoch);
}

/// Ends the wait.
__device__ __forceinline__ void note_met() {
    emu_note_met();
}

// ---- Flags and counters in global memory ----

__device__ __forceinline__ u32 load_relaxed_sys(const u32* at) {
    return static_cast<u32>(emu_load(at, 4, EMU_RELAXED | EMU_SYS << 4));
}

__device__ __forceinline__ u64 load_relaxed_sys(const u64* at) {
    return emu_load(at, 8, EMU_RELAXED | EMU_SYS << 4);
}

__device__ __forceinline__ WordPair load_pair_relaxed_sys(const WordPair* at) {
    const u64 first = load_relaxed_sys(&at->first);
    return WordPair{first, load_relaxed_sys(&at->second)};
}

__device__ __forceinline__ u32 load_acquire_sys(const u32* at) {
    return static_cast<u32>(emu_load(at, 4, EMU_ACQUIRE | EMU_SYS << 4));
}

__device__ __forceinline__ u64 load_acquire_sys(const u64* at) {
    return emu_load(at, 8, EMU_ACQUIRE | EMU_SYS << 4);
}

__device__ __forceinline__ u32 load_relaxed_gpu(const u32* at) {
    return static_cast<u32>(emu_load(at, 4, EMU_RELAXED | EMU_GPU << 4));
}

__device__ __forceinline__ u32 load_acquire_gpu(const u32* at) {
    return static_cast<u32>(emu_load(at, 4, EMU_ACQUIRE | EMU_GPU << 4));
}

__device__ __forceinline__ u64 load_acquire_gpu(const u64* at) {
    return emu_load(at, 8, EMU_ACQUIRE | EMU_GPU << 4);
}

__device__ __forceinline__ void store_relaxed_sys(u32* at, u32 value) {
    emu_store(at, value, 4, EMU_RELAXED | EMU_SYS << 4);
}

__device__ __forceinline__ void store_relaxed_sys(u64* at, u64 value) {
    emu_store(at, value, 8, EMU_RELAXED | EMU_SYS << 4);
}

__device__ __forceinline__ void store_pair_relaxed_sys(WordPair* at, WordPair pair) {
    store_relaxed_sys(&at->first, pair.first);
    store_relaxed_sys(&at->second, pair.second);
}

__device__ __forceinline__ void store_release_sys(u32* at, u32 value) {
    emu_store(at, value, 4, EMU_RELEASE | EMU_SYS << 4);
}

__device__ __forceinline__ void store_release_sys(u64* at, u64 value) {
    emu_store(at, value, 8, EMU_RELEASE | EMU_SYS << 4);
}

__device__ __forceinline__ void store_entry_sys(u32* at, u32 value) {
    emu_store(at, value, 4, EMU_ENTRY | EMU_SYS << 4);
}

__device__ __forceinline__ void store_entry_sys(u64* at, u64 value) {
    emu_store(at, value, 8, EMU_ENTRY | EMU_SYS << 4);
}

__device__ __forceinline__ void store_relaxed_gpu(u32* at, u32 value) {
    emu_store(at, value, 4, EMU_RELAXED | EMU_GPU << 4);
}

__device__ __forceinline__ void add_relaxed_gpu(i32* at, i32 value) {
    emu_atomic(EMU_ATOMIC_ADD, at, static_cast<u32>(value), 0, 4, EMU_RELAXED | EMU_GPU << 4);
}

__device__ __forceinline__ void add_relaxed_gpu(u32* at, u32 value) {
    emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 4, EMU_RELAXED | EMU_GPU << 4);
}

__device__ __forceinline__ void add_relaxed_gpu(i64* at, i64 value) {
    emu_atomic(EMU_ATOMIC_ADD, at, static_cast<u64>(value), 0, 8, EMU_RELAXED | EMU_GPU << 4);
}

__device__ __forceinline__ void add_relaxed_gpu(float* at, float value) {
    const unsigned how = EMU_RELAXED | EMU_GPU << 4;
    u64 seen = emu_atomic(EMU_ATOMIC_ADD, at, 0, 0, 4, how);
    for (;;) {
        const float sum = __uint_as_float(static_cast<u32>(seen)) + value;
        const u32 next = __float_as_uint(sum);
        const u64 before = next == seen ? emu_atomic(EMU_ATOMIC_ADD, at, 0, 0, 4, how)
                                        : emu_atomic(EMU_ATOMIC_CAS, at, next, seen, 4, how);
        if (before == seen) return;
        seen = before;
    }
}

__device__ __forceinline__ void add_release_sys(u32* at, u32 value) {
    emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 4, EMU_RELEASE | EMU_SYS << 4);
}

__device__ __forceinline__ void add_release_gpu(u32* at, u32 value) {
    emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 4, EMU_RELEASE | EMU_GPU << 4);
}

__device__ __forceinline__ u32 fetch_add_relaxed_gpu(u32* at, u32 value) {
    return static_cast<u32>(
        emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 4, EMU_RELAXED | EMU_GPU << 4));
}

__device__ __forceinline__ u32 fetch_next_relaxed_gpu(u32* at) {
    return fetch_add_relaxed_gpu(at, 1);
}

__device__ __forceinline__ u32 fetch_add_acq_rel_gpu(u32* at, u32 value) {
    return static_cast<u32>(
        emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 4, EMU_ACQ_REL | EMU_GPU << 4));
}

__device__ __forceinline__ u64 fetch_add_acq_rel_gpu(u64* at, u64 value) {
    return emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 8, EMU_ACQ_REL | EMU_GPU << 4);
}

__device__ __forceinline__ u64 fetch_add_release_gpu(u64* at, u64 value) {
    return emu_atomic(EMU_ATOMIC_ADD, at, value, 0, 8, EMU_RELEASE | EMU_GPU << 4);
}

__device__ __forceinline__ void raise_relaxed_gpu(u64* at, u64 value) {
    emu_atomic(EMU_ATOMIC_MAX, at, value, 0, 8, EMU_RELAXED | EMU_GPU << 4);
}

__device__ __forceinline__ u64 take_relaxed_gpu(u64* at) {
    return emu_atomic(EMU_ATOMIC_EXCHANGE, at, 0, 0, 8, EMU_RELAXED | EMU_GPU << 4);
}

__device__ __forceinline__ u64 compare_swap_acq_rel_sys(u64* at, u64 expected, u64 desired) {
    return emu_atomic(EMU_ATOMIC_CAS, at, desired, expected, 8, EMU_ACQ_REL | EMU_SYS << 4);
}

// ---- Words in shared memory, between the warps of a block ----

__device__ __forceinline__ void add_relaxed_shared(i32* at, i32 value) {
    emu_atomic(EMU_ATOMIC_ADD, at, static_cast<u32>(value), 0, 4, EMU_RELAXED | EMU_CTA << 4);
}

__device__ __forceinline__ u64 load_acquire_shared(const u64* at) {
    return emu_load(at, 8, EMU_ACQUIRE | EMU_CTA << 4);
}

__device__ __forceinline__ u64 compare_swap_shared(u64* at, u64 expected, u64 desired) {
    return emu_atomic(EMU_ATOMIC_CAS, at, desired, expected, 8, EMU_ACQ_REL | EMU_CTA << 4);
}

// ---- Proxies (sm_90 and later) ----

__device__ __forceinline__ void fence_proxy_async_global() {
    emu_fence_proxy(EMU_PROXY_GLOBAL);
}

__device__ __forceinline__ void fence_proxy_async_shared() {
    emu_fence_proxy(EMU_PROXY_SHARED);
}

// ---- mbarriers (sm_90 and later), private to one warp ----

__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
    emu_mbarrier_init(barrier, arrivals);
}

/// What has been written over is an mbarrier no more.
__device__ __forceinline__ void mbarrier_end(u64* barrier) {
    *barrier = 0;
}

/// A TMA load on an mbarrier that this thread initialised and did not fence is an error.
__device__ __forceinline__ void fence_mbarrier_init() {
    emu_fence_proxy(EMU_PROXY_MBARRIER);
}

__device__ __forceinline__ void mbarrier_arrive_expect(u64* barrier, u32 bytes) {
    emu_mbarrier_arrive(barrier, bytes);
}

__device__ __forceinline__ bool mbarrier_try_wait(u64* barrier, u32 parity) {
    return emu_mbarrier_test(barrier, parity) != 0;
}

// ---- TMA bulk copies (sm_90 and later): addresses and sizes are multiples of 16 ----

__device__ __forceinline__ void tma_load(void* shared, const void* global, u32 bytes,
                                         u64* barrier) {
    emu_bulk_load(shared, global, bytes, barrier);
}

__device__ __forceinline__ void tma_store(void* global, const void* shared, u32 bytes) {
    emu_bulk_store(global, shared, bytes);
}

__device__ __forceinline__ void tma_commit() {
    emu_bulk_commit();
}

template <int kOpen>
__device__ __forceinline__ void tma_wait_stored() {
    emu_bulk_wait(kOpen, 0);
}

template <int kOpen>
__device__ __forceinline__ void tma_wait_read() {
    emu_bulk_wait(kOpen, 1);
}

// ---- Vector accesses of the path without TMA: plain accesses, seen by the instrumentation ----

__device__ __forceinline__ Quad load_quad(const void* global) {
    return *static_cast<const Quad*>(global);
}

__device__ __forceinline__ void store_quad(void* global, Quad value) {
    *static_cast<Quad*>(global) = value;
}

__device__ __forceinline__ void store_units(void* at, Quad value) {
    *static_cast<Quad*>(at) = value;
}

// ---- Numbers: bit for bit what the PTX conversions give ----

__device__ __forceinline__ float float_of(u32 bits) {
    return __uint_as_float(bits);
}

__device__ __forceinline__ u32 bits_of(float value) {
    return __float_as_uint(value);
}

__device__ __forceinline__ float product(float a, float b) {
    return a * b;
}

__device__ __forceinline__ float fused(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    return emu::round_bf16(low) | emu::round_bf16(high) << 16;
}

/// A float to e4m3, to nearest even, saturating at 448; NaN becomes 0x7f without its sign.
__device__ __forceinline__ u8 round_e4m3(float value) {
    const u32 bits = bits_of(value);
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    const u32 sign = bits >> 24 & 0x80u;
    if (magnitude >= 0x43e00000u) return static_cast<u8>(sign | 0x7eu);
    if (magnitude < 0x3c800000u) {
        // Subnormal results have steps of 2^-9: scaling by 2^9 is exact and rintf goes to even.
        return static_cast<u8>(sign | static_cast<u32>(rintf(float_of(magnitude) * 512.0f)));
    }
    const u32 rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return static_cast<u8>(sign | ((rounded >> 20) - (120u << 3)));
}

/// Rounds two floats to e4m3 as `round_e4m3` does, and packs them, the first one in the lower byte.
__device__ __forceinline__ u16 pack_e4m3(float low, float high) {
    return static_cast<u16>(round_e4m3(low) | round_e4m3(high) << 8);
}

}  // namespace ep
