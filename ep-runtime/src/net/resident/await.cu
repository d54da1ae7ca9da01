
// Waits for one signal after another at the rank that rows go to, and compares the rows in front of each.
namespace card {

struct AwaitArgs {
    const u32* counter;
    const u32* rows;  // [signal, word] where they land
    const u32* want;
    u32* wrong;
    u32 signals, words;
};

}  // namespace card

extern "C" __global__ void card_await(const __grid_constant__ card::AwaitArgs args) {
    using namespace card;
    u32 wrong = 0;
    for (u32 signal = 0; signal < args.signals; ++signal) {
        if (threadIdx.x == 0) {
            while (load_acquire_sys(args.counter) <= signal) {}
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < args.words; i += blockDim.x) {
            const u32 at = signal * args.words + i;
            wrong += args.rows[at] != args.want[at] ? 1 : 0;
        }
        __syncthreads();
    }
    if (wrong != 0) add_relaxed_gpu(args.wrong, wrong);
}
