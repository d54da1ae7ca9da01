// Rows of an output that may not hold them all.
#include <ep/ptx.cuh>

using ep::i32;
using ep::u32;

struct Args {
    float* y;
    u32* flag;
    i32 first;
    u32 rows;
};

constexpr int kColumns = 32;

/// `rows` rows from `first` on, a lane a column.
extern "C" __global__ void store_rows(const __grid_constant__ Args args) {
    for (u32 row = 0; row < args.rows; ++row) {
        args.y[(args.first + static_cast<i32>(row)) * kColumns + ep::lane_index()] = 1.0f;
    }
}

/// Stores `rows` rows from `first` on by strong stores. Each lane stores a column.
extern "C" __global__ void strong_rows(const __grid_constant__ Args args) {
    for (u32 row = 0; row < args.rows; ++row) {
        float* at = args.y + (args.first + static_cast<i32>(row)) * kColumns + ep::lane_index();
        ep::store_relaxed_sys(reinterpret_cast<u32*>(at), 1);
    }
}

/// Waits for what never comes, and stores when it gives up.
extern "C" __global__ void store_in_the_drain(const __grid_constant__ Args args) {
    const ep::u64 begun = ep::clock_ns();
    for (u32 turn = 1; ep::load_relaxed_sys(args.flag) == 0; ++turn) {
        if (turn % 64 == 0 && ep::clock_ns() - begun >= 1u << 30) {
            args.y[args.first * kColumns + ep::lane_index()] = 1.0f;
            return;
        }
    }
}
