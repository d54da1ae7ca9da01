// One small kernel for each way to order two accesses. Tests run them as they are (clean) and with
// one word changed (a race of a known rule).
#include <ep/ptx.cuh>

using ep::u32;
using ep::u64;

/// `data` and `flag` may be in any rank's memory; `rank` and the block say who acts.
struct Args {
    u32* data;
    u32* flag;
    u64* pair;
    u32* result;
    u32 rank;
    u32 blocks;
};

struct Smem {
    u32 words[128];
    u64 word;
};

/// Block 0 writes data and raises the flag, block 1 waits for it and reads.
extern "C" __global__ void message(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        args.data[0] = 7;
        ep::fetch_add_acq_rel_gpu(args.flag, 1);
    } else {
        while (ep::load_relaxed_gpu(args.flag) == 0) {
        }
        ep::load_acquire_gpu(args.flag);
        args.result[0] = args.data[0];
    }
}

/// Rank 0 writes data and raises the flag, rank 1 waits for it and reads.
extern "C" __global__ void message_to_peer(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0) {
        args.data[0] = 7;
        ep::store_release_sys(args.flag, 1);
    } else {
        while (ep::load_relaxed_sys(args.flag) == 0) {
        }
        ep::load_acquire_sys(args.flag);
        args.result[0] = args.data[0];
    }
}

/// Block 0 writes data and raises the flag, block 1 waits for it and reads. Both use relaxed accesses and fences.
extern "C" __global__ void message_by_fence(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        args.data[0] = 7;
        __threadfence();  // writer
        ep::store_relaxed_gpu(args.flag, 1);
    } else {
        while (ep::load_relaxed_gpu(args.flag) == 0) {
        }
        __threadfence();  // reader
        args.result[0] = args.data[0];
    }
}

/// Every block writes its word and counts itself; the last one reads all words.
extern "C" __global__ void last_block(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    args.data[blockIdx.x] = blockIdx.x + 1;
    if (ep::fetch_add_acq_rel_gpu(args.flag, 1) != args.blocks - 1) return;
    u32 sum = 0;
    for (u32 block = 0; block < args.blocks; ++block) sum += args.data[block];
    args.result[0] = sum;
}

/// A chain over three blocks: what the first wrote reaches the third through the second.
extern "C" __global__ void chain(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        args.data[0] = 7;
        ep::fetch_add_acq_rel_gpu(args.flag, 1);
    } else if (blockIdx.x == 1) {
        while (ep::load_acquire_gpu(args.flag) == 0) {
        }
        ep::fetch_add_acq_rel_gpu(args.flag + 1, 1);
    } else {
        while (ep::load_acquire_gpu(args.flag + 1) == 0) {
        }
        args.result[0] = args.data[0];
    }
}

/// Lanes hand words to their neighbours.
extern "C" __global__ void lanes(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const int lane = ep::lane_index();
    smem.words[lane] = lane;
    __syncwarp();
    args.result[lane] = smem.words[31 - lane];
}

/// Two halves of a warp, each on its own.
extern "C" __global__ void half_warps(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const int lane = ep::lane_index();
    const u32 half = lane < 16 ? 0xffffu : 0xffff0000u;
    smem.words[lane] = lane;
    __syncwarp(half);
    args.result[lane] = smem.words[lane ^ 15];
}

/// Warps hand words to each other over a block barrier.
extern "C" __global__ void warps(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    smem.words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    args.result[threadIdx.x] = smem.words[127 - threadIdx.x];
}

/// A leader acquires for its warp, then the warp meets.
extern "C" __global__ void leader(const __grid_constant__ Args args) {
    const int lane = ep::lane_index();
    if (blockIdx.x == 0) {
        args.data[lane] = lane;
        __syncwarp();  // writers
        if (lane == 0) ep::fetch_add_acq_rel_gpu(args.flag, 1);
    } else {
        if (lane == 0) {
            while (ep::load_acquire_gpu(args.flag) == 0) {
            }
        }
        __syncwarp();  // readers
        args.result[lane] = args.data[lane];
    }
}

/// Warps of a block through a word in shared memory.
extern "C" __global__ void shared_word(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x == 0) smem.word = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        smem.words[0] = 7;
        u64 seen = 0;
        while (ep::compare_swap_shared(&smem.word, seen, 1) != seen) seen = 1;
    } else if (threadIdx.x == 32) {
        while (ep::load_acquire_shared(&smem.word) != 1) {
        }
        args.result[0] = smem.words[0];
    }
}

/// Flag and value in one word (M7): the value needs no other order.
extern "C" __global__ void whole_word(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        ep::store_relaxed_sys(args.pair, u64(7) << 32 | 1);
    } else {
        u64 word = 0;
        while ((word = ep::load_relaxed_sys(args.pair)) == 0) {
        }
        args.result[0] = static_cast<u32>(word >> 32);
    }
}

/// Inputs through the read-only path, outputs elsewhere (M5).
extern "C" __global__ void read_only(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    args.result[blockIdx.x] = __ldg(args.data);
}

/// Each rank writes what its next launch reads.
extern "C" __global__ void next_launch(const __grid_constant__ Args args) {
    if (threadIdx.x == 0) args.data[0] += 1;
}

/// Rank 0 offers what its earlier launch read, and rank 1 writes there.
extern "C" __global__ void offer_to_peer(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0) {
        const u32 launch = args.result[0] + 1;
        args.result[0] = launch;
        if (launch == 1) args.result[1] = args.data[0];
        if (launch == 2) ep::store_entry_sys(args.flag, 1);
        return;
    }
    if (args.result[0] != 0) return;
    args.result[0] = 1;
    while (ep::load_relaxed_sys(args.flag) == 0) {
    }
    ep::load_acquire_sys(args.flag);
    args.data[0] = 7;
}

/// Rank 0 offers what its earlier launch read, and rank 1 writes there. A launch may begin before the last one is over:
/// until it waits for the last one, all that it does is to look at a word.
extern "C" __global__ void offer_early(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    ep::load_relaxed_gpu(args.result);
    ep::after_last_kernel();
    const u32 launch = ep::load_relaxed_gpu(args.result) + 1;
    ep::store_relaxed_gpu(args.result, launch);
    if (args.rank == 0) {
        if (launch == 1) args.result[1] = args.data[0];
        if (launch == 2) ep::store_entry_sys(args.flag, 1);
        return;
    }
    if (launch == 2) return;
    while (ep::load_relaxed_sys(args.flag) == 0) {
    }
    ep::load_acquire_sys(args.flag);
    args.data[0] = 7;
}

/// Each rank writes what its next launch reads, which may begin before this one is over.
extern "C" __global__ void next_early(const __grid_constant__ Args args) {
    ep::after_last_kernel();
    if (threadIdx.x == 0) args.data[0] += 1;
}

/// The second warp waits for the first one of another block, which comes behind it; both let the next kernel in.
extern "C" __global__ void next_beside(const __grid_constant__ Args args) {
    if (blockIdx.x == 1 && threadIdx.x == 0) ep::store_relaxed_gpu(args.flag, 1);
    if (blockIdx.x == 0 && threadIdx.x == 32) {
        ep::note_wait(0, 0, 0, 0, 0, 0, 1, 0);
        while (ep::load_relaxed_gpu(args.flag) == 0) {
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) ep::bring_next_kernel();
}

/// Rank 0 lends what rank 1 reads, and stays until it has.
extern "C" __global__ void lent(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    u32* told = args.flag + args.rank;
    u32* heard = args.flag + 1 - args.rank;
    if (args.rank == 0) {
        args.data[0] = 7;
        ep::store_release_sys(told, 1u);
    }
    while (ep::load_relaxed_sys(heard) == 0u) {
    }
    ep::load_acquire_sys(heard);
    if (args.rank == 0) return;
    args.result[0] = args.data[0];
    ep::store_release_sys(told, 1u);
}

/// Rank 1 writes what rank 0 lends, which stays until it has.
extern "C" __global__ void filled(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 1) {
        args.data[0] = 7;
        ep::store_release_sys(args.flag, 1u);
        return;
    }
    while (ep::load_relaxed_sys(args.flag) == 0u) {
    }
    ep::load_acquire_sys(args.flag);
}

/// A lane reads what a kernel of another stream has written before it raised a word.
extern "C" __global__ void beside(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    ep::load_acquire_gpu(args.flag);
    args.result[0] = args.data[0];
}

/// A lane reads the two halves of what a kernel of another stream writes, each behind a word of its own.
extern "C" __global__ void beside_in_turn(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    ep::load_acquire_gpu(args.flag);
    args.result[0] = args.data[0];
    ep::load_acquire_gpu(args.flag + 1);
    args.result[1] = args.data[64];
}

/// The lanes write for a kernel of another stream, and one of them raises its word.
extern "C" __global__ void told(const __grid_constant__ Args args) {
    args.data[threadIdx.x] = 1;
    __syncwarp();
    if (threadIdx.x == 0) ep::add_release_gpu(args.flag, 1u);
}

/// A lane reads one word.
extern "C" __global__ void one_read(const __grid_constant__ Args args) {
    if (threadIdx.x == 0) args.result[0] = args.data[0];
}
