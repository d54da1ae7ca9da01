// Work that keeps multiprocessors and memory busy beside calls, as a layer's experts do: a product of
// two square matrices, tile by tile.
#include <ep/ptx.cuh>

namespace load {

constexpr int kTile = 32;
constexpr int kThreads = 256;

struct Args {
    const float* a;
    const float* b;
    float* c;
    ep::i32 n;      // a multiple of the tile
    ep::i32 turns;  // how often the same product is made
};

struct Smem {
    float a[kTile][kTile];
    float b[kTile][kTile];
};

__device__ __forceinline__ void tile(const Args& args, Smem& smem, int row, int column) {
    constexpr int kEach = kTile * kTile / kThreads;
    float sums[kEach] = {};
    for (int k = 0; k < args.n; k += kTile) {
        for (int i = 0; i < kEach; ++i) {
            const int place = static_cast<int>(threadIdx.x) + i * kThreads;
            const int y = place / kTile;
            const int x = place % kTile;
            smem.a[y][x] = args.a[(row + y) * args.n + k + x];
            smem.b[y][x] = args.b[(k + y) * args.n + column + x];
        }
        __syncthreads();
        for (int i = 0; i < kEach; ++i) {
            const int place = static_cast<int>(threadIdx.x) + i * kThreads;
            for (int j = 0; j < kTile; ++j) {
                sums[i] = ep::fused(smem.a[place / kTile][j], smem.b[j][place % kTile], sums[i]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < kEach; ++i) {
        const int place = static_cast<int>(threadIdx.x) + i * kThreads;
        args.c[(row + place / kTile) * args.n + column + place % kTile] = sums[i];
    }
}

}  // namespace load

extern "C" __global__ void __launch_bounds__(load::kThreads)
    load_product(const __grid_constant__ load::Args args) {
    EP_SHARED(load::Smem, smem);
    const int across = args.n / load::kTile;
    for (int turn = 0; turn < args.turns; ++turn) {
        for (int i = static_cast<int>(blockIdx.x); i < across * across;
             i += static_cast<int>(gridDim.x)) {
            load::tile(args, smem, i / across * load::kTile, i % across * load::kTile);
        }
    }
}
