// A lane hands a buffer to an actor by a doorbell and waits for its answer.
#include <ep/ptx.cuh>

struct Args {
    ep::u32* data;      // [32], read by the actor
    ep::u64* doorbell;  // told to the actor
    ep::u64* done;      // told by the actor
    ep::u32* answer;    // [32], written by the actor
    ep::u32* result;    // [32]
};

extern "C" __global__ void courier(const __grid_constant__ Args args) {
    const int lane = ep::lane_index();
    args.data[lane] = 3 * lane;
    __syncwarp();
    if (lane == 0) {
        ep::store_release_sys(args.doorbell, 1);
        while (ep::load_relaxed_sys(args.done) == 0) {
        }
        ep::load_acquire_sys(args.done);
    }
    __syncwarp();
    args.result[lane] = args.answer[lane];
}
