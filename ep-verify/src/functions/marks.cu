// For checks of whether a warp meets: this stands before moves.cu and made.cu.
#include <ep/sync.cuh>

/// What each lane writes, and the one before it reads: the warp meets between.
struct Marks {
    ep::i64* at;

    __device__ __forceinline__ void write() const { at[ep::lane_index()] = ep::lane_index(); }

    __device__ __forceinline__ void read() {
        const int lane = ep::lane_index();
        at[32 + lane] = at[(lane + 1) % ep::kLanes];
        at += 64;
    }
};

