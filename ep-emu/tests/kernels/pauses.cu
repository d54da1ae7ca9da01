// How long threads linger in a disturbed text: pauses[thread][turn] of one rank. What defines it stands in
// front.
struct Args {
    ep::u32* pauses;
    ep::u32 rank;
    ep::u32 turns;
};

extern "C" __global__ void pauses(const __grid_constant__ Args args) {
    const ep::u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (ep::u32 turn = 0; turn < args.turns; ++turn) {
        args.pauses[thread * args.turns + turn] = ep::pause_ns(args.rank, thread, turn);
    }
}
