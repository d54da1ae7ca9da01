// The conversions of ptx.cuh over a range of bit patterns, so that two backends can be compared.
#include <ep/ptx.cuh>

struct Args {
    ep::u32* out;  // [count]: e4m3 << 16 | bf16 of the float with bits first + i * step
    ep::u32 first;
    ep::u32 step;
    ep::u32 count;
};

extern "C" __global__ void numbers(const __grid_constant__ Args args) {
    const ep::u32 threads = gridDim.x * blockDim.x;
    for (ep::u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < args.count; i += threads) {
        const float value = ep::float_of(args.first + i * args.step);
        args.out[i] = static_cast<ep::u32>(ep::round_e4m3(value)) << 16 |
                      (ep::pack_bf16(value, 0.0f) & 0xffffu);
    }
}
