// What a variable holds that has no value, where another function has left one.
#include <ep/ptx.cuh>

struct Args {
    ep::u32* out;  // [32, 8]
};

__device__ __noinline__ void leave() {
    volatile ep::u32 all[256];
    for (int i = 0; i < 256; ++i) all[i] = 7;
}

__device__ __noinline__ void read(ep::u32* out) {
    ep::u32 words[8];
    for (int i = 0; i < 8; ++i) out[i] = words[i];
}

extern "C" __global__ void unset(const __grid_constant__ Args args) {
    leave();
    read(args.out + threadIdx.x * 8);
}
