// What stands in front of a text that is to be disturbed: delays around all that orders memory.
//
// Each function below lingers, does what its name says, and lingers again. The host has the text call them by
// `#define NAME disturbed_NAME`, and otherwise leaves it as it is. When a thread lingers, and for how long,
// follows from EP_PERTURB, its rank, its place in the grid, and how often it has come to such a place: a seed
// repeats its delays.
#include <ep/ptx.cuh>

namespace ep {

constexpr u32 kShortestPauseNs = 64;
constexpr int kMostDoublings = 11;

/// A number each of whose bits depends on all of `from`.
__device__ __forceinline__ u64 mixed(u64 from) {
    from = (from ^ from >> 32) * 0x9e3779b97f4a7c15;
    from = (from ^ from >> 29) * 0x9e3779b97f4a7c15;
    return from ^ from >> 32;
}

/// How long a thread of a rank lingers the `turn`-th time, mostly not at all: once in 16 to once in 512
/// times, as its warp is, and each time that is twice as long is half as likely.
__device__ __forceinline__ u32 pause_ns(u32 rank, u32 thread, u32 turn) {
    const u64 warp = mixed(mixed(mixed(EP_PERTURB) + rank) + thread / 32);
    const u64 drawn = mixed(mixed(warp + thread % 32) + turn);
    const u64 rarity = u64{16} << warp % 6;
    if (drawn % rarity != 0) return 0;
    const int doublings = __ffs(static_cast<int>(drawn >> 32) | 1 << kMostDoublings) - 1;
    return kShortestPauseNs << doublings;
}

}  // namespace ep

#ifdef __CUDACC_RTC__

/// How often each thread of a rank has come here; those of a very large grid share a number.
constexpr unsigned kPerturbedThreads = 1u << 18;
__device__ unsigned ep_perturbed_turns[kPerturbedThreads];

/// Whose module this is; the host writes it.
extern "C" {
__device__ unsigned ep_perturbed_rank;
}

namespace ep {

/// It looks at the clock, since __nanosleep is no delay alone: where it stood in this function, which is not
/// inlined, lanes went on behind it without those that slept, and the __syncwarp behind that let them pass (1 of
/// 1000 words was wrong on an H200, NVRTC 13.0), which the compiler had taken for converged.
inline __device__ __noinline__ void linger() {
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 turn = ep_perturbed_turns[thread % kPerturbedThreads]++;
    const u32 pause = pause_ns(ep_perturbed_rank, thread, turn);
    const u64 begun = pause == 0 ? 0 : clock_ns();
    while (pause != 0 && clock_ns() - begun < pause) {
    }
}

}  // namespace ep

#else

namespace ep {

/// In the emulator a schedule delays every thread anyway.
__device__ __forceinline__ void linger() {}

}  // namespace ep

#endif

#define EP_DISTURBED(name)                                                     \
    template <class... Arguments>                                              \
    __device__ __forceinline__ void disturbed_##name(Arguments... arguments) { \
        ep::linger();                                                          \
        name(arguments...);                                                    \
        ep::linger();                                                          \
    }

/// Defines `disturbed_NAME`, which lingers before and after `NAME`, and gives its value.
#define EP_DISTURBED_VALUE(name)                                               \
    template <class... Arguments>                                              \
    __device__ __forceinline__ auto disturbed_##name(Arguments... arguments) { \
        ep::linger();                                                          \
        const auto value = name(arguments...);                                 \
        ep::linger();                                                          \
        return value;                                                          \
    }

/// Defines `disturbed_NAME`, which lingers before and after a wait that leaves at most `kOpen` groups open.
#define EP_DISTURBED_WAIT(name)                             \
    template <int kOpen>                                    \
    __device__ __forceinline__ void disturbed_##name() {    \
        ep::linger();                                       \
        name<kOpen>();                                      \
        ep::linger();                                       \
    }

EP_DISTURBED(__syncwarp)
EP_DISTURBED(__syncthreads)

namespace ep {

EP_DISTURBED(after_last_kernel)
EP_DISTURBED(bring_next_kernel)
EP_DISTURBED_VALUE(load_relaxed_sys)
EP_DISTURBED_VALUE(load_acquire_sys)
EP_DISTURBED_VALUE(load_relaxed_gpu)
EP_DISTURBED_VALUE(load_acquire_gpu)
EP_DISTURBED(store_relaxed_sys)
EP_DISTURBED(store_release_sys)
EP_DISTURBED(store_entry_sys)
EP_DISTURBED_VALUE(load_pair_relaxed_sys)
EP_DISTURBED(store_pair_relaxed_sys)
EP_DISTURBED(store_relaxed_gpu)
EP_DISTURBED(add_relaxed_gpu)
EP_DISTURBED(add_release_sys)
EP_DISTURBED(add_release_gpu)
EP_DISTURBED_VALUE(fetch_add_relaxed_gpu)
EP_DISTURBED_VALUE(fetch_next_relaxed_gpu)
EP_DISTURBED_VALUE(fetch_add_acq_rel_gpu)
EP_DISTURBED_VALUE(fetch_add_release_gpu)
EP_DISTURBED(raise_relaxed_gpu)
EP_DISTURBED_VALUE(take_relaxed_gpu)
EP_DISTURBED_VALUE(compare_swap_acq_rel_sys)
EP_DISTURBED(add_relaxed_shared)
EP_DISTURBED_VALUE(load_acquire_shared)
EP_DISTURBED_VALUE(compare_swap_shared)
EP_DISTURBED(fence_proxy_async_global)
EP_DISTURBED(fence_proxy_async_shared)
EP_DISTURBED(mbarrier_init)
EP_DISTURBED(fence_mbarrier_init)
EP_DISTURBED(mbarrier_end)
EP_DISTURBED(mbarrier_arrive_expect)
EP_DISTURBED_VALUE(mbarrier_try_wait)
EP_DISTURBED(tma_load)
EP_DISTURBED(tma_store)
EP_DISTURBED(tma_commit)
EP_DISTURBED_WAIT(tma_wait_stored)
EP_DISTURBED_WAIT(tma_wait_read)

}  // namespace ep
