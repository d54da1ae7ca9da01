// Calls among two nodes of two ranks, for the kernels of net_slots.cu and net_slot_rows.cu, which this stands before: two
// warps read each call, of which the senders are ahead. All is one launch: a network that is modelled beside kernels in a
// process of their own forgets behind it where it was.
#include <ep/net.cuh>
#include <ep/sync.cuh>

namespace net_calls {

constexpr int kRanks = 4;
constexpr int kCalls = 6;
constexpr int kReaders = 2;
constexpr int kWords = 4;  // of a record

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
    const ep::Net* net;
};

__device__ __forceinline__ ep::u32* word_at(const ep::Group& group, ep::u64 at) {
    return reinterpret_cast<ep::u32*>(group.window + at);
}

/// A word of a record to the rank that is at a place which is the same seen from either end.
__device__ __forceinline__ ep::i64 word_of(int rank, int place, ep::u32 call, int i) {
    return rank * 1000000ll + (place * 100ll + call) * 10 + i;
}

/// Lets time pass, more than others take to go on.
__device__ __forceinline__ void linger() {
    const ep::u64 first = ep::clock_ns();
    while (ep::clock_ns() - first < 4000) {
    }
}

/// Sends all calls: `send(team)` one of them.
template <class Slots, class Send>
__device__ __forceinline__ void send_calls(const Args& args, const ep::Call& call, Send send) {
    ep::Team team(args.group, call, 3);
    for (team.epoch = 1; team.epoch <= kCalls; ++team.epoch) {
        if (team.leader()) ep::store_relaxed_gpu(word_at(args.group, Slots::kBegun), team.epoch);
        send(team);
    }
}

/// Reads all calls as one of the readers: `read(team)` one of them.
template <class Slots, class Read>
__device__ __forceinline__ void read_calls(const Args& args, const ep::Call& call, int reader, Read read) {
    ep::Team team(args.group, call, 3, reader, kReaders, 0, 1);
    ep::u32* met = word_at(args.group, Slots::kMet);
    // The sender has filled the slots of all epochs, and waits for one.
    while (ep::load_relaxed_gpu(word_at(args.group, Slots::kBegun)) < 1 + Slots::kEpochs) {
    }
    linger();
    for (team.epoch = 1; team.epoch <= kCalls; ++team.epoch) {
        read(team);
        // The calls of a rank do not overlap.
        if (team.leader()) ep::fetch_add_acq_rel_gpu(met, 1);
        while (ep::load_acquire_gpu(met) < team.epoch * kReaders) {
        }
        __syncwarp();
    }
}

/// A number that another rank tells, once it is as high as it is at the end.
__device__ __forceinline__ ep::i64 last(const ep::u32* word, ep::u32 value) {
    while (ep::load_relaxed_sys(word) != value) {
    }
    return value;
}

}  // namespace net_calls

