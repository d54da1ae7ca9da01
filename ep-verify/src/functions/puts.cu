// What a warp asks of a network: rows to peers, signals behind them, and waits until their sources may be
// written again. The same kernel runs where the processor empties queues and where a card does. The host
// knows what each check leaves in `out`; see puts.rs, which has the checks in the same order.
#include <ep/ibgda.cuh>
#include <ep/net.cuh>
#include <ep/sync.cuh>

namespace puts {

constexpr int kRanks = 3;
constexpr int kWarps = 2;
constexpr int kSenders = 4;  // warps of a rank
constexpr int kRounds = 14;
constexpr int kWords = 16;  // of a row
constexpr int kRowBytes = kWords * 4;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
    const ep::Net* net;
};

/// How many bytes of a row are sent in a round: as many as an entry of a card holds, fewer, or more.
__device__ __forceinline__ ep::u32 bytes_of(int round) {
    const ep::u32 all[7] = {kRowBytes, 28, 12, 30, 16, 4, 32};
    return all[round % 7];
}

__device__ __forceinline__ ep::u32 word_of(int far, int sender, int round, int i) {
    return static_cast<ep::u32>(((far * 5 + sender) * 17 + round) * 100 + i + 1) * 2654435761u;
}

/// Where a row for the peer that is so far behind this rank leaves, and where it comes.
__device__ __forceinline__ ep::u64 leaves_at(int far, int sender) {
    return static_cast<ep::u64>(sender * kRanks + far) * kRowBytes;
}

__device__ __forceinline__ ep::u64 comes_at(int far, int sender, int round) {
    const int row = kSenders * kRanks + (far * kSenders + sender) * kRounds + round;
    return static_cast<ep::u64>(row) * kRowBytes;
}

/// The queue that rows of a round go through.
__device__ __forceinline__ int queue_of(int round) {
    return round / 3 % 2;
}

/// Rows of one place, which are written anew as soon as the ones before have left.
template <class Queue>
__device__ __forceinline__ void send(ep::Team& team, const ep::Net* net, ep::i64* out) {
    Queue queue(team, net, 0);
    const int sender = team.index(), far = team.lane < kRanks ? team.lane : 0;
    const int peer = (static_cast<int>(net->rank) + far) % kRanks;
    int done = 0;
    for (int round = 0; round < kRounds; ++round) {
        queue.turn_to(queue_of(round));
        for (int other = 1; other < kRanks; ++other) {
            ep::u32* row = reinterpret_cast<ep::u32*>(net->data + leaves_at(other, sender));
            if (team.lane < kWords) row[team.lane] = word_of(other, sender, round, team.lane);
        }
        __syncwarp();
        const ep::u64 to = comes_at(far, sender, round), from = leaves_at(far, sender);
        done += queue.put(peer, to, from, far == 0 ? 0 : bytes_of(round)) ? 1 : 0;
        done += queue.drain() ? 100 : 0;
    }
    for (int i = 0; i < 2; ++i) {
        queue.turn_to(i);
        done += queue.signal(peer, 0, far == 0 ? 0 : 3 + i) ? 10000 : 0;
    }
    if (team.leader()) out[sender] = done;
}

/// The rows of one sender of each rank, once all have come.
template <class Queue>
__device__ __forceinline__ void receive(ep::Team& team, const ep::Net* net, ep::i64* out) {
    const int sender = team.index(), far = team.lane < kRanks ? team.lane : 0;
    const int source = (static_cast<int>(net->rank) + kRanks - far) % kRanks;
    for (int i = 0; i < 2; ++i) {
        Queue queue(team, net, i);
        const ep::u32 want = static_cast<ep::u32>(kSenders * (3 + i));
        const ep::Site site{i, ep::Waiting::kArrival, -1, source, want};
        ep::wait_counter(team, site, far == 0 ? nullptr : queue.counter(source, 0));
    }
    for (int other = 1; other < kRanks; ++other) {
        for (int round = 0; round < kRounds; ++round) {
            const char* row = net->data + comes_at(other, sender, round);
            const int words = static_cast<int>(bytes_of(round) / 4);
            ep::i64* found = out + 10 + ((other * kSenders + sender) * kRounds + round) * kWords;
            if (team.lane < words) found[team.lane] = reinterpret_cast<const ep::u32*>(row)[team.lane];
        }
    }
}

/// A queue that nothing was asked of, and a team that is stopped.
template <class Queue>
__device__ __forceinline__ void idle(ep::Team& team, const ep::Net* net, ep::i64* out) {
    const int peer = (static_cast<int>(net->rank) + 1) % kRanks;
    Queue queue(team, net, 1);
    const bool nothing = queue.drain();
    team.stopped = true;
    const bool put = queue.put(peer, comes_at(1, 0, 0), leaves_at(1, 0), 16);
    const bool signal = queue.signal(peer, 1, 1);
    const bool drained = queue.drain();
    if (team.lane == 7) {
        out[0] = nothing ? 1 : 0;
        out[1] = put || signal || drained ? 1 : 0;
    }
}

template <class Queue>
__device__ __forceinline__ void run(const Args& args, const ep::Call& call) {
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const int block = static_cast<int>(blockIdx.x);
    ep::Team team(args.group, call, 0, block, 2, warp, kWarps);
    if (args.check == 0) {
        send<Queue>(team, args.net, args.out);
        receive<Queue>(team, args.net, args.out);
    } else if (team.index() == 0) {
        idle<Queue>(team, args.net, args.out);
    }
}

}  // namespace puts

extern "C" __global__ void __launch_bounds__(puts::kWarps * 32)
    puts_of(const __grid_constant__ puts::Args args) {
    const ep::Call call = ep::enter(args.group);
    if (args.net->pairs != nullptr) {
        puts::run<ep::PairQueue>(args, call);
    } else {
        puts::run<ep::NetQueue>(args, call);
    }
    ep::leave(args.group, call);
}
