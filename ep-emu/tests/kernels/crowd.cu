// Many lanes that do little: what a run costs by lane.
#include <ep/ptx.cuh>

struct Args {
    ep::u32* sums;    // [blocks]
    ep::u32* arrived; // [1]
    ep::u32 rounds;
};

struct Smem {
    ep::u32 words[32];
};

extern "C" __global__ void crowd(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const int lane = ep::lane_index();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    ep::u32 sum = threadIdx.x;
    for (ep::u32 round = 0; round < args.rounds; ++round) {
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ep::kAllLanes, sum, step);
        if (lane == 0) smem.words[warp] = sum;
        __syncthreads();
        sum = smem.words[lane % (blockDim.x / 32)];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        args.sums[blockIdx.x] = sum;
        ep::fetch_add_relaxed_gpu(args.arrived, 1);
    }
}

// The first block sets 40 words, one in every `rounds` steps; the others wait for all of them.
extern "C" __global__ void many_words(const __grid_constant__ Args args) {
    constexpr int kWords = 40;
    if (threadIdx.x != 0) return;
    for (int word = 0; blockIdx.x == 0 && word < kWords; ++word) {
        for (ep::u32 step = 0; step < args.rounds; ++step) ep::fetch_add_relaxed_gpu(args.arrived, 1);
        ep::store_relaxed_gpu(args.sums + word, 1);
    }
    for (ep::u32 found = 0; found < kWords;) {
        found = 0;
        for (int word = 0; word < kWords; ++word) found += ep::load_relaxed_gpu(args.sums + word);
    }
}
