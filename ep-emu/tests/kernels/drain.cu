// Two ranks send each other rows, with bounded waits and a stop word: what a kernel has to leave in
// order when it is stopped anywhere.
#include <ep/ptx.cuh>

using ep::u32;
using ep::u64;

struct Args {
    u32* row_there;
    u32* sent_here;
    u32* sent_there;
    u32* stop;
    u64 timeout_ns;
    u32 rounds;
};

struct Smem {
    alignas(128) u32 words[32];
};

static __device__ bool wait(const Args& args, u32 want) {
    const u64 begun = ep::clock_ns();
    for (u32 turn = 1; ep::load_relaxed_sys(args.sent_here) < want; ++turn) {
        if (turn % 64 != 0) continue;
        if (ep::load_relaxed_gpu(args.stop) != 0) return false;
        if (ep::clock_ns() - begun >= args.timeout_ns) {
            ep::store_relaxed_gpu(args.stop, 1);
            return false;
        }
    }
    ep::load_acquire_sys(args.sent_here);
    return true;
}

extern "C" __global__ void exchange(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x == 0) {
        for (u32 round = 1; round <= args.rounds; ++round) {
            smem.words[0] = round;
            ep::fence_proxy_async_shared();
            ep::fence_proxy_async_global();
            ep::tma_store(args.row_there, smem.words, 16);
            ep::tma_commit();
            if (!wait(args, round - 1)) {
                /* stopped */
                break;
            }
            ep::tma_wait_stored<0>();
            ep::store_release_sys(args.sent_there, round);
        }
        ep::tma_wait_stored<0>();  // M6
    } else if (threadIdx.x == 32) {
        if (!wait(args, args.rounds)) {
            /* the other one */
        }
    }
    __syncthreads();
}
