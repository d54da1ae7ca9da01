// The words of CUDA that the host backend offers, each with a result that a test can compute.
#include <ep/ptx.cuh>

struct WarpArgs {
    ep::u32* ballots;   // [warps]
    ep::i32* sums;      // [threads]: the lane's value plus its right neighbour's, in pairs
    ep::u32* firsts;    // [threads]: lane 3's thread index
    ep::u32* votes;     // [warps]: any | all << 1 | match << 2
};

extern "C" __global__ void warp_words(const __grid_constant__ WarpArgs args) {
    const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int lane = ep::lane_index();
    const ep::u32 odd = __ballot_sync(ep::kAllLanes, lane % 2 == 1);
    const int right = __shfl_xor_sync(ep::kAllLanes, thread, 1);
    const int third = __shfl_sync(ep::kAllLanes, thread, 3);
    const int any = __any_sync(ep::kAllLanes, lane == 31);
    const int all = __all_sync(ep::kAllLanes, lane < 31);
    const ep::u32 pairs = __match_any_sync(ep::kAllLanes, lane / 2);
    args.sums[thread] = thread + right;
    args.firsts[thread] = static_cast<ep::u32>(third);
    if (lane == 0) {
        args.ballots[thread / 32] = odd;
        args.votes[thread / 32] = static_cast<ep::u32>(any | all << 1) | pairs << 2;
    }
}

struct SharedArgs {
    ep::u32* out;  // [threads]
    ep::u32* raw;  // [1]: a word of shared memory before anyone wrote it
};

struct Shared {
    ep::u32 words[256];
};

extern "C" __global__ void block_words(const __grid_constant__ SharedArgs args) {
    EP_SHARED(Shared, shared);
    const ep::u32 thread = threadIdx.x;
    if (thread == 0 && blockIdx.x == 0) args.raw[0] = shared.words[0];
    __syncthreads();
    shared.words[thread] = thread;
    __syncthreads();
    const ep::u32 at = blockIdx.x * blockDim.x + thread;
    args.out[at] = shared.words[blockDim.x - 1 - thread] + 1000 * blockIdx.x;
}

struct RoundTrip {
    ep::u32* mine;    // flag in own memory
    ep::u32* theirs;  // flag in the peer's memory
    ep::u32* result;
    ep::u32 turns;
    ep::u32 rank;
};

/// Two ranks hand a counter to each other.
extern "C" __global__ void round_trip(const __grid_constant__ RoundTrip args) {
    if (threadIdx.x != 0) return;
    for (ep::u32 turn = 0; turn < args.turns; ++turn) {
        if (args.rank == 0) ep::store_release_sys(args.theirs, turn + 1);
        while (ep::load_acquire_sys(args.mine) != turn + 1) {
        }
        if (args.rank == 1) ep::store_release_sys(args.theirs, turn + 1);
    }
    *args.result = ep::load_relaxed_sys(args.mine);
}

/// One lane looks at the same word again and again, and then says so to the other, which waits for it.
extern "C" __global__ void many_looks(ep::u32* word, ep::u32* told, ep::u64 looks) {
    if (threadIdx.x == 0) {
        ep::u32 sum = 0;
        for (ep::u64 look = 0; look < looks; ++look) sum += ep::load_relaxed_sys(word);
        ep::store_release_sys(told, sum + 1);
    }
    if (threadIdx.x == 32) {
        while (ep::load_acquire_sys(told) == 0) {
        }
    }
}

/// Several parameters of several sizes, as CUDA packs them.
extern "C" __global__ void parameters(ep::u8 small, ep::u64* out, ep::u32 middle, ep::u64 large) {
    if (threadIdx.x == 0) *out = small + middle + large;
}
