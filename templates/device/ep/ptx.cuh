// The lowest layer: every line of inline PTX, and the integer types.
//
// This is the one file with asm, and the one file that the host backend replaces; a function here
// has a twin of the same name there. The names read `<what>_<order>_<scope>`; every function that
// orders memory clobbers it, so that the compiler cannot move a plain access across it.
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

/// Two {epoch, value} words side by side.
struct alignas(16) WordPair {
    u64 first, second;
};

constexpr u32 kAllLanes = 0xffffffffu;

/// Looks of a waiting warp that take as long as a call with few rows: some 25 us.
constexpr int kEarlyLooks = 64;

/// Whether threads of large blocks have registers for what saves little time. Where the compiler takes more of them, for
/// the same text, it would keep others on the stack.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
constexpr bool kSpareRegisters = true;
#else
constexpr bool kSpareRegisters = false;
#endif

}  // namespace ep

/// The dynamic shared memory of the block, seen as `Type`.
#define EP_SHARED(Type, name)                                  \
    extern __shared__ __align__(128) char ep_dynamic_shared[]; \
    Type& name = *reinterpret_cast<Type*>(ep_dynamic_shared)

namespace ep {

// ---- Who and when ----

/// Lane of the calling thread; blocks are one-dimensional.
__device__ __forceinline__ int lane_index() {
    return static_cast<int>(threadIdx.x) & 31;
}

/// Wall clock in nanoseconds, read by a wait that has lasted a while.
__device__ __forceinline__ u64 clock_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/// Waits until the kernel before this one in its stream is over, and what it stored is visible: a kernel
/// may have been brought to the SMs before that, from sm_90 on.
__device__ __forceinline__ void after_last_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel of the stream be brought to the SMs once all blocks have come here; it waits there
/// for the end of this one.
__device__ __forceinline__ void bring_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Says what the lane is about to wait for; only the host backend listens, for its reports.
__device__ __forceinline__ void note_wait(u32 pipeline, u32 role, u32 channel, u32 kind, i32 stripe,
                                          i32 peer, u32 want, u32 epoch) {
    (void)pipeline, (void)role, (void)channel, (void)kind;
    (void)stripe, (void)peer, (void)want, (void)epoch;
}

/// Says that what the lane waited for has come.
__device__ __forceinline__ void note_met() {}

// ---- Flags and counters in global memory ----

/// Polls (M2): no order, system scope.
__device__ __forceinline__ u32 load_relaxed_sys(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/// Polls of {epoch, value} words (M2, M7): no order, system scope.
__device__ __forceinline__ u64 load_relaxed_sys(const u64* at) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

/// Polls of two words at once (M2, M7): each is whole by itself, the two are not.
__device__ __forceinline__ WordPair load_pair_relaxed_sys(const WordPair* at) {
    WordPair pair;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(pair.first), "=l"(pair.second)
                 : "l"(at)
                 : "memory");
    return pair;
}

/// The one acquire after a poll (M2): what the writer released is visible to this thread.
__device__ __forceinline__ u32 load_acquire_sys(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/// The one acquire after a poll of an {epoch, value} word (M2, M7).
__device__ __forceinline__ u64 load_acquire_sys(const u64* at) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

/// Words of this device (stop, state): no order, device scope.
__device__ __forceinline__ u32 load_relaxed_gpu(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/// Words of this device: what another block released is visible to this thread.
__device__ __forceinline__ u32 load_acquire_gpu(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ u64 load_acquire_gpu(const u64* at) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

/// A word that orders nothing, system scope (records, M7 words that carry their own value).
__device__ __forceinline__ void store_relaxed_sys(u32* at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// A 64-bit word that orders nothing, system scope.
__device__ __forceinline__ void store_relaxed_sys(u64* at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Two words that order nothing, system scope: each is whole by itself, the two are not.
__device__ __forceinline__ void store_pair_relaxed_sys(WordPair* at, WordPair pair) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(pair.first),
                 "l"(pair.second)
                 : "memory");
}

/// Publishes (M1) or returns credit (M4): all that this thread did or saw comes before it.
__device__ __forceinline__ void store_release_sys(u32* at, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Publishes an {epoch, value} word (M1, M7).
__device__ __forceinline__ void store_release_sys(u64* at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Says that the kernels before this one are over (M4). What they loaded and stored was performed when
/// `after_last_kernel` came back, so that there is nothing to wait for; of what this kernel did it says
/// nothing. A release would: on an H100 its fence takes 1.6 us, however little there is to order.
__device__ __forceinline__ void store_entry_sys(u32* at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void store_entry_sys(u64* at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// A word of this device that orders nothing (stop, blocks).
__device__ __forceinline__ void store_relaxed_gpu(u32* at, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Adds to a counter that the next kernel reads; no order, no result.
__device__ __forceinline__ void add_relaxed_gpu(i32* at, i32 value) {
    asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void add_relaxed_gpu(u32* at, u32 value) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Adds to a sum of 64 bits that the next kernel reads; no order, no result.
__device__ __forceinline__ void add_relaxed_gpu(i64* at, i64 value) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Adds to a float that the next kernel reads; no result. Who adds first is open, and so is the last bit.
__device__ __forceinline__ void add_relaxed_gpu(float* at, float value) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(at), "f"(value) : "memory");
}

/// Advances a counter that several warps of this device add to and a peer polls: a ring's tail
/// (M1) or head (M4). All that this thread did or saw comes before it.
__device__ __forceinline__ void add_release_sys(u32* at, u32 value) {
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Raises a word that kernels of this device poll. All that this thread did or saw comes before it.
__device__ __forceinline__ void add_release_gpu(u32* at, u32 value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Takes a number (record slots); no order. Returns the value before.
__device__ __forceinline__ u32 fetch_add_relaxed_gpu(u32* at, u32 value) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(at), "r"(value)
                 : "memory");
    return before;
}

/// Takes the next number, for one lane; no order. An increment that wraps at 2^31: an add of one the
/// assembler makes for all lanes that are there together, and waits at once to deal out the answer.
__device__ __forceinline__ u32 fetch_next_relaxed_gpu(u32* at) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;"
                 : "=r"(before)
                 : "l"(at)
                 : "memory");
    return before;
}

/// Counts arrivals of blocks: releases the caller's work, the last one acquires everyone's.
__device__ __forceinline__ u32 fetch_add_acq_rel_gpu(u32* at, u32 value) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(at), "r"(value)
                 : "memory");
    return before;
}

/// Adds to a sum of several warps of this device: releases the caller's work, and acquires that of all before.
__device__ __forceinline__ u64 fetch_add_acq_rel_gpu(u64* at, u64 value) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(at), "l"(value)
                 : "memory");
    return before;
}

/// Adds to a sum of several warps of this device and releases the caller's work; whoever completes it
/// acquires everyone's with a load. An add that acquired would empty the cache each time.
__device__ __forceinline__ u64 fetch_add_release_gpu(u64* at, u64 value) {
    u64 before;
    asm volatile("atom.release.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(at), "l"(value)
                 : "memory");
    return before;
}

/// Raises a word of this device that several warps raise, and that one reads when all are done; no order, no
/// result.
__device__ __forceinline__ void raise_relaxed_gpu(u64* at, u64 value) {
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Takes what is in such a word, and leaves 0.
__device__ __forceinline__ u64 take_relaxed_gpu(u64* at) {
    u64 before;
    asm volatile("atom.relaxed.gpu.global.exch.b64 %0, [%1], 0;"
                 : "=l"(before)
                 : "l"(at)
                 : "memory");
    return before;
}

/// Puts `desired` where `expected` is, of a word that warps of this rank agree on, and gives what was there:
/// releases the caller's work, and acquires that of whoever was first.
__device__ __forceinline__ u64 compare_swap_acq_rel_sys(u64* at, u64 expected, u64 desired) {
    u64 before;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(at), "l"(expected), "l"(desired)
                 : "memory");
    return before;
}

// ---- Words in shared memory, between the warps of a block ----

/// Adds to a counter of the block; no order, no result.
__device__ __forceinline__ void add_relaxed_shared(i32* at, i32 value) {
    asm volatile("red.relaxed.cta.shared::cta.add.s32 [%0], %1;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(at))),
                 "r"(value)
                 : "memory");
}

/// Polls a shared word and sees what its writer did before (block scope).
__device__ __forceinline__ u64 load_acquire_shared(const u64* at) {
    u64 value;
    asm volatile("ld.acquire.cta.shared::cta.u64 %0, [%1];"
                 : "=l"(value)
                 : "r"(static_cast<u32>(__cvta_generic_to_shared(at)))
                 : "memory");
    return value;
}

/// Compare and swap on a shared word, acquire and release at block scope; returns the value before.
__device__ __forceinline__ u64 compare_swap_shared(u64* at, u64 expected, u64 desired) {
    u64 before;
    asm volatile("atom.acq_rel.cta.shared::cta.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "r"(static_cast<u32>(__cvta_generic_to_shared(at))), "l"(expected), "l"(desired)
                 : "memory");
    return before;
}

// ---- Proxies (sm_90 and later) ----

/// Orders this thread's earlier generic accesses to global memory, and what it has acquired, with
/// the TMA operations it issues afterwards (M2, M4). Older devices have none of these.
__device__ __forceinline__ void fence_proxy_async_global() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/// Orders this thread's generic accesses to shared memory with TMA operations on it (M3).
__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- mbarriers (sm_90 and later), private to one warp ----

/// Prepares an mbarrier for `arrivals` arrivals a phase.
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(barrier))),
                 "r"(arrivals)
                 : "memory");
}

/// Ends an mbarrier, whose place may hold something else from then on.
__device__ __forceinline__ void mbarrier_end(u64* barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(static_cast<u32>(__cvta_generic_to_shared(barrier)))
                 : "memory");
}

/// Makes initialised mbarriers visible to the async proxy before the first TMA load.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives and says how many bytes this phase brings; the issuer of the loads calls it first.
__device__ __forceinline__ void mbarrier_arrive_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(barrier))),
                 "r"(bytes)
                 : "memory");
}

/// Whether the phase of this parity has completed; acquires at block scope, may sleep a little.
__device__ __forceinline__ bool mbarrier_try_wait(u64* barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(done)
        : "r"(static_cast<u32>(__cvta_generic_to_shared(barrier))), "r"(parity)
        : "memory");
    return done != 0;
}

// ---- TMA bulk copies (sm_90 and later): addresses and sizes are multiples of 16 ----

/// Global to shared; completes on `barrier`. `.shared::cta`: the cluster form is a call on sm_120.
__device__ __forceinline__ void tma_load(void* shared, const void* global, u32 bytes,
                                         u64* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            static_cast<u32>(__cvta_generic_to_shared(shared))),
        "l"(global), "r"(bytes), "r"(static_cast<u32>(__cvta_generic_to_shared(barrier)))
        : "memory");
}

/// Shared to global, in the issuing thread's open bulk group.
__device__ __forceinline__ void tma_store(void* global, const void* shared, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(static_cast<u32>(__cvta_generic_to_shared(shared))), "r"(bytes)
                 : "memory");
}

/// Closes the issuing thread's bulk group; an empty one counts as well.
__device__ __forceinline__ void tma_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Until all but the thread's last `kOpen` groups have been written at their destination (M1).
template <int kOpen>
__device__ __forceinline__ void tma_wait_stored() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// Until all but the thread's last `kOpen` groups have left shared memory: it may be overwritten.
template <int kOpen>
__device__ __forceinline__ void tma_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kOpen) : "memory");
}

// ---- Vector accesses of the path without TMA ----

/// 16 bytes of a row that is read once; never `.nc`, a peer may write it in this launch (M5).
__device__ __forceinline__ Quad load_quad(const void* global) {
    Quad value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(global)
                 : "memory");
    return value;
}

/// 16 bytes of a row that this device does not read soon.
__device__ __forceinline__ void store_quad(void* global, Quad value) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global),
                 "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

/// Stores 16 bytes to any memory, and keeps them in the cache. The compiler would split the store into four if the words
/// come from conversions.
__device__ __forceinline__ void store_units(void* at, Quad value) {
    asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// ---- Numbers ----

/// The float with these bits.
__device__ __forceinline__ float float_of(u32 bits) {
    return __uint_as_float(bits);
}

/// The bits of a float.
__device__ __forceinline__ u32 bits_of(float value) {
    return __float_as_uint(value);
}

/// a * b, rounded before anything is added to it.
__device__ __forceinline__ float product(float a, float b) {
    return __fmul_rn(a, b);
}

/// a * b + c, rounded once on every backend.
__device__ __forceinline__ float fused(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}

/// Two floats to bf16, to nearest even; `low` takes the lower half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// A float to e4m3, to nearest even, saturating at 448; NaN stays NaN.
__device__ __forceinline__ u8 round_e4m3(float value) {
#if __CUDA_ARCH__ >= 890
    u16 packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(0.0f), "f"(value));
    return static_cast<u8>(packed);
#else
    const u32 bits = __float_as_uint(value);
    const u32 sign = (bits >> 24) & 0x80u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<u8>(sign | 0x7fu);
    // Past 448 + half a step everything saturates; below 2^-6 the step is 2^-9, so that adding
    // and removing 2^14 (whose own step is 2^-9) rounds to it.
    if (magnitude >= 0x43e80000u) return static_cast<u8>(sign | 0x7eu);
    if (magnitude < 0x3c800000u) {
        const float shifted = __fadd_rn(__uint_as_float(magnitude), 16384.0f);
        return static_cast<u8>(sign | (__float_as_uint(shifted) - 0x46800000u));
    }
    const u32 rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return static_cast<u8>(sign | ((rounded >> 20) - (120u << 3)));
#endif
}

/// Rounds two floats to e4m3 as `round_e4m3` does, and packs them, the first one in the lower byte.
__device__ __forceinline__ u16 pack_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890
    u16 packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return static_cast<u16>(round_e4m3(low) | round_e4m3(high) << 8);
#endif
}

}  // namespace ep
