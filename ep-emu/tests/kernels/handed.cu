// One block hands a value to another one.
#include <ep/ptx.cuh>

struct Args {
    ep::u32* data;
    ep::u32* told;
    ep::u32* result;
};

extern "C" __global__ void handed(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        args.data[0] = 40 + 2;
        ep::store_release_sys(args.told, 1u);
    } else {
        while (ep::load_relaxed_sys(args.told) == 0u) {
        }
        ep::load_acquire_sys(args.told);
        args.result[0] = args.data[0];
    }
}
