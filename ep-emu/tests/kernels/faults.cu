// Kernels that go wrong, each in its own way.
#include <ep/ptx.cuh>

using ep::u32;
using ep::u64;

struct Args {
    u32* mine;
    u32* theirs;
    u32* result;
    u64 timeout_ns;
    u32 rank;
    u32 peer;
};

struct Smem {
    u32 words[64];
    u64 barrier;
};

/// Each rank waits for a word that the other one would write afterwards.
extern "C" __global__ void circle(const __grid_constant__ Args args) {
    if (ep::lane_index() == 0) {
        // +5  await turn[peer]
        ep::note_wait(5, 3, 1, 2, 0, static_cast<ep::i32>(args.peer), 1, 7);
        while (ep::load_acquire_sys(args.mine) == 0) {
        }
        ep::store_release_sys(args.theirs, 1);
    }
    __syncwarp();
    args.result[threadIdx.x] = 1;
}

/// Waits for a word, but not for ever.
extern "C" __global__ void bounded(const __grid_constant__ Args args) {
    if (ep::lane_index() != 0) return;
    const u64 begun = ep::clock_ns();
    for (u32 turn = 1; ep::load_relaxed_sys(args.mine) == 0; ++turn) {
        if (turn % 64 == 0 && ep::clock_ns() - begun >= args.timeout_ns) {
            args.result[0] = 100 + args.rank;
            return;
        }
    }
    args.result[0] = 1;
}

/// Waits for 100 words, but not for ever. No word comes. The timeout counts from the first read of the clock.
extern "C" __global__ void bounded_by_many(const __grid_constant__ Args args) {
    if (ep::lane_index() != 0) return;
    u64 begun = 0;
    for (u32 turn = 1;; ++turn) {
        bool come = true;
        for (int i = 1; i <= 100; ++i) come = ep::load_relaxed_sys(args.result + i) != 0 && come;
        if (come) break;
        if (turn % 64 != 0) continue;
        const u64 now = ep::clock_ns();
        if (begun != 0 && now - begun >= args.timeout_ns) {
            args.result[0] = 100 + args.rank;
            return;
        }
        if (begun == 0) begun = now;
    }
    args.result[0] = 1;
}

/// One warp waits for a word that never comes, and gives up; the other one for what it stores then.
extern "C" __global__ void given_up(const __grid_constant__ Args args) {
    if (ep::lane_index() != 0) return;
    if (threadIdx.x == 0) {
        ep::note_wait(5, 3, 1, 2, 0, -1, 1, 7);
        const u64 begun = ep::clock_ns();
        for (u32 turn = 1; ep::load_relaxed_sys(args.mine) == 0; ++turn) {
            if (turn % 64 == 0 && ep::clock_ns() - begun >= args.timeout_ns) break;
        }
        ep::store_release_sys(args.result, 1u);
    } else {
        ep::note_wait(5, 3, 1, 2, 1, -1, 1, 7);
        while (ep::load_acquire_sys(args.result) == 0) {
        }
        ep::note_met();
    }
}

/// A word half in one place and half in the next is no word for a strong store.
extern "C" __global__ void misaligned_word(const __grid_constant__ Args args) {
    u32* between = reinterpret_cast<u32*>(reinterpret_cast<char*>(args.result) + 2);
    if (ep::lane_index() == 0) ep::store_relaxed_gpu(between, 1u);
}

/// Rank 0 releases the others.
extern "C" __global__ void release(const __grid_constant__ Args args) {
    if (args.rank == 0) {
        if (threadIdx.x == 0) ep::store_release_sys(args.theirs, 1);
        return;
    }
    if (threadIdx.x == 0) {
        while (ep::load_acquire_sys(args.mine) == 0) {
        }
    }
}

extern "C" __global__ void null_write(const __grid_constant__ Args args) {
    if (threadIdx.x == 5) *reinterpret_cast<u32*>(args.timeout_ns) = 1;
}

/// A word in each of 64 MiB, as far as 4 GiB behind its own.
extern "C" __global__ void writes_on(const __grid_constant__ Args args) {
    for (u64 at = 0; threadIdx.x == 5 && at < 1ull << 30; at += 1ull << 24) args.result[at] = 1;
}

extern "C" __global__ void endless(const __grid_constant__ Args args) {
    volatile u32 never = 0;
    while (threadIdx.x == 7 && never == 0) {
    }
}

extern "C" __global__ void spins(const __grid_constant__ Args args) {
    while (ep::fetch_add_relaxed_gpu(args.mine, 1) != 0xffffffffu) {
    }
}

extern "C" __global__ void traps(const __grid_constant__ Args args) {
    if (threadIdx.x == 9) __trap();
}

extern "C" __global__ void half_barrier(const __grid_constant__ Args args) {
    if (ep::lane_index() < 16) __syncthreads();
}

extern "C" __global__ void lost_lane(const __grid_constant__ Args args) {
    if (ep::lane_index() == 3) return;
    __syncwarp();
}

extern "C" __global__ void wrong_mask(const __grid_constant__ Args args) {
    if (ep::lane_index() == 3) __syncwarp(0x7);
}

extern "C" __global__ void crossed_masks(const __grid_constant__ Args args) {
    __syncwarp(ep::lane_index() == 0 ? 0xffffffffu : 0xffffu);
}

extern "C" __global__ void mixed_functions(const __grid_constant__ Args args) {
    if (ep::lane_index() == 0) {
        __any_sync(ep::kAllLanes, 1);
    } else {
        __ballot_sync(ep::kAllLanes, 1);
    }
}

extern "C" __global__ void shuffles_outside(const __grid_constant__ Args args) {
    if (ep::lane_index() < 16) args.result[0] = __shfl_sync(0xffffu, 1, 20);
}

extern "C" __global__ void other_warps(const __grid_constant__ Args args) {
    emu_barrier(1, 64, 1);
    const int warp = threadIdx.x / 32;
    // The second time another pair of warps makes the same barrier.
    if (warp == 0 || warp == 2) emu_barrier(1, 64, 1);
}

extern "C" __global__ void halves_meet(const __grid_constant__ Args args) {
    // Thirty-two threads, but of two warps.
    if (ep::lane_index() < 16) emu_barrier(1, 32, 1);
}

extern "C" __global__ void empty_groups(const __grid_constant__ Args args) {
    // A group without copies has nothing to wait for.
    ep::tma_commit();
}

extern "C" __global__ void fresh_mbarrier(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x == 0) ep::mbarrier_arrive_expect(&smem.barrier, 0);
}

extern "C" __global__ void overwritten_mbarrier(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::mbarrier_init(&smem.barrier, 2);
    smem.barrier = 0;
    ep::mbarrier_arrive_expect(&smem.barrier, 0);
}

extern "C" __global__ void twice_an_mbarrier(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x == 0) ep::mbarrier_init(&smem.barrier, 1);
    __syncthreads();
    if (threadIdx.x == 1) ep::mbarrier_init(&smem.barrier, 1);
}

extern "C" __global__ void third_parity(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::mbarrier_init(&smem.barrier, 1);
    ep::mbarrier_try_wait(&smem.barrier, 2);
}

extern "C" __global__ void over_arrived(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::mbarrier_init(&smem.barrier, 1);
    ep::mbarrier_arrive_expect(&smem.barrier, 64);
    ep::mbarrier_arrive_expect(&smem.barrier, 64);
}

extern "C" __global__ void misaligned(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::tma_store(args.result, smem.words + 1, 16);
    ep::tma_commit();
    ep::tma_wait_stored<0>();
}

extern "C" __global__ void past_the_buffer(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::tma_store(args.result + 124, smem.words, 32);
    ep::tma_commit();
    ep::tma_wait_stored<0>();
}

extern "C" __global__ void leaves_open(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::tma_store(args.result, smem.words, 16);
    ep::tma_commit();
}

extern "C" __global__ void leaves_uncommitted(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x == 0) ep::tma_store(args.result, smem.words, 16);
}

extern "C" __global__ void leaves_a_load(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    ep::mbarrier_init(&smem.barrier, 1);
    ep::fence_mbarrier_init();
    ep::mbarrier_arrive_expect(&smem.barrier, 16);
    ep::tma_load(smem.words, args.result, 16, &smem.barrier);
}

extern "C" __global__ void too_much_shared(const __grid_constant__ Args args) {
    struct Large {
        u32 words[4096];
    };
    EP_SHARED(Large, large);
    large.words[threadIdx.x] = 1;
}

static __device__ __attribute__((noinline)) u32 deep(u32 depth, volatile u32* words) {
    volatile u32 local[256];
    local[depth % 256] = depth;
    __syncwarp(1u << ep::lane_index());
    return depth == 0 ? local[0] : deep(depth - 1, local) + local[depth % 256];
}

extern "C" __global__ void deep_stack(const __grid_constant__ Args args) {
    if (threadIdx.x == 0) args.result[0] = deep(720, args.result);
}

extern "C" __global__ void past_an_array(const __grid_constant__ Args args) {
    volatile u32 local[8];
    for (u32 i = 0; i < 8; ++i) local[i] = i;
    volatile u32* volatile words = local;
    if (threadIdx.x == 5) args.result[0] = words[8 + args.rank];
}

extern "C" __global__ void past_shared(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x == 5) reinterpret_cast<volatile u32*>(&smem)[128] = 1;
}

extern "C" __global__ void shifts_too_far(const __grid_constant__ Args args) {
    if (threadIdx.x == 5) args.result[0] = 1u << (args.rank + threadIdx.x + 27);
}
