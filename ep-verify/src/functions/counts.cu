// Counters of calls, which blocks add up in the window and leave at zero. The host knows what each check
// leaves in `out`; see counts.rs, which has the checks in the same order.
#include <ep/count.cuh>
#include <ep/sync.cuh>

namespace counts {

constexpr int kThreads = 64;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// More than a block has threads, in shared memory; and more than its last block takes at once, not there.
struct Few {
    static constexpr ep::u64 kSums = 256;
    static constexpr int kCount = 70;
    static constexpr bool kInShared = true;
};

struct Many {
    static constexpr ep::u64 kSums = 1024;
    static constexpr int kCount = 4 * kThreads + 50;
    static constexpr bool kInShared = false;
};

/// Sums in the window of other types than counters have, zero between calls.
struct Sums {
    ep::i64 wide;
    float real;
    ep::i32 narrow;
};

struct Smem {
    ep::CounterSmem<Few> few;
    ep::CounterSmem<Many> many;
};

/// Counts numbers, of which some never come up, and leaves the call.
template <class Counted>
__device__ __forceinline__ void count(const Args& args, const ep::Call& call,
                                      ep::CounterSmem<Counted>& own) {
    const int thread = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    ep::Counters<Counted> counters(args.group, own);
    for (int i = thread; i < 3 * Counted::kCount; i += 2 * kThreads) {
        const int counter = i % Counted::kCount;
        if (counter % 7 != 3) counters.add(counter, i + 1);
    }
    if (thread == 5) counters.add(3, 1);
    Sums* sums = reinterpret_cast<Sums*>(args.group.window + 4096);
    ep::add_count(&sums->wide, (ep::i64{1} << 33) + thread);
    ep::add_count(&sums->real, 0.25f);
    ep::add_count(&sums->narrow, thread - 9);
    ep::i64* out = args.out;
    const auto sink = [&](int i, ep::i32 sum) { out[i] = sum; };
    if (args.check % 2 == 1) return ep::leave_counted(args.group, call, own, sink);
    ep::leave_counted(args.group, call, own, sink, [&] {
        // What other threads have sunk is there.
        const int i = static_cast<int>(threadIdx.x);
        out[400 + i] = out[(i * 5 + 11) % Counted::kCount] + 1;
        if (i != 40) return;
        // The call goes on until the last thread is through.
        for (int turn = 0; turn < 200; ++turn) __syncwarp(1u << (i % ep::kLanes));
        out[503] = call.epoch - ep::load_relaxed_gpu(&args.group.state->epoch);
        out[500] = sums->wide;
        out[501] = static_cast<ep::i64>(sums->real * 4.0f);
        out[502] = sums->narrow;
        *sums = Sums{0, 0.0f, 0};
    });
}

/// A call of which only the first warp knows that it is stopped, as where blocks did not all come: it is not over for the
/// next one, which has its number.
__device__ __forceinline__ void stops(const Args& args, const ep::Call& call, ep::CounterSmem<Few>& own) {
    ep::u32* number = reinterpret_cast<ep::u32*>(args.group.window + 4096 + sizeof(Sums));
    const bool is_first = args.check == 8;
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        if (is_first) *number = call.epoch;
        if (!is_first) args.out[0] = call.epoch - *number;
    }
    ep::Call mine = call;
    mine.stopped = is_first && threadIdx.x < ep::kLanes;
    ep::leave_counted(args.group, mine, own, [](int, ep::i32) {});
}

}  // namespace counts

extern "C" __global__ void __launch_bounds__(counts::kThreads)
    counts_of(const __grid_constant__ counts::Args args) {
    EP_SHARED(counts::Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        smem.few.clear();
        smem.many.clear();
    });
    if (args.check < 4) {
        counts::count(args, call, smem.few);
    } else if (args.check > 7) {
        counts::stops(args, call, smem.few);
    } else {
        counts::count(args, call, smem.many);
    }
}
