// Every rank sends rows to every other one, round after round, through the network: rows are written into
// the data, put, and told by a signal; who has compared them tells it by another signal, which is the right
// to send the next ones.
#include <ep/net.cuh>
#include <ep/sync.cuh>

namespace exchange {

constexpr int kRows = 0;    // counter: rows that have landed
constexpr int kCredit = 1;  // counter: rows that have been compared

struct Args {
    ep::Group group;
    int ranks;
    int rows;   // to each peer in a round
    int words;  // of a row
    int rounds;
    const ep::Net* net;
    int* wrong;  // words that are not what was sent
};

__device__ __forceinline__ ep::u32 word_of(int source, int peer, int round, int row, int i) {
    ep::u32 mixed = static_cast<ep::u32>(((source * 31 + peer) * 1009 + round) * 8191 + row);
    return (mixed * 2654435761u) ^ (static_cast<ep::u32>(i) * 40503u);
}

/// One warp's share of the rows.
struct Share {
    const Args& args;
    ep::Team& team;
    ep::NetQueue& queue;

    __device__ __forceinline__ int others() const { return args.ranks - 1; }

    /// The i-th of the other ranks.
    __device__ __forceinline__ int peer(int i) const {
        return (args.net->rank + 1 + i) % args.ranks;
    }

    /// Where a row lies: those that leave in the first half of the data, those that come behind them.
    __device__ __forceinline__ ep::u64 place(int half, int rank, int row) const {
        const ep::i64 index = (static_cast<ep::i64>(half) * args.ranks + rank) * args.rows + row;
        return static_cast<ep::u64>(index * args.words * 4);
    }

    __device__ __forceinline__ bool wait(int counter, int rank, int want) const {
        const ep::Site site{counter, ep::Waiting::kArrival, -1, rank, static_cast<ep::u32>(want)};
        ep::wait_counter(team, site, queue.counter(rank, counter));
        return !team.stopped;
    }

    __device__ __forceinline__ void send(int round, int to) const {
        const int own = static_cast<int>(args.net->rank);
        if (!wait(kCredit, to, round * args.rows)) return;
        for (int first = team.index(); first < args.rows; first += 32 * team.count()) {
            int count = 0;
            for (int row = first; row < args.rows && count < 32; row += team.count(), ++count) {
                ep::u32* words = reinterpret_cast<ep::u32*>(args.net->data + place(0, to, row));
                for (int i = team.lane; i < args.words; i += 32) {
                    words[i] = word_of(own, to, round, row, i);
                }
            }
            __syncwarp();
            const int row = first + team.lane * team.count();
            const ep::u32 bytes = team.lane < count ? static_cast<ep::u32>(args.words) * 4 : 0;
            queue.put(to, place(1, own, row), place(0, to, row), bytes);
            queue.signal(to, kRows, team.leader() ? static_cast<ep::u32>(count) : 0);
        }
    }

    /// Writes over the rows of this warp that have left.
    __device__ __forceinline__ void reuse(int to) const {
        for (int row = team.index(); row < args.rows; row += team.count()) {
            ep::u32* words = reinterpret_cast<ep::u32*>(args.net->data + place(0, to, row));
            for (int i = team.lane; i < args.words; i += 32) words[i] = 0;
        }
    }

    __device__ __forceinline__ void receive(int round, int from) const {
        const int own = static_cast<int>(args.net->rank);
        if (!wait(kRows, from, (round + 1) * args.rows)) return;
        int compared = 0;
        int wrong = 0;
        for (int row = team.index(); row < args.rows; row += team.count(), ++compared) {
            const ep::u32* words =
                reinterpret_cast<const ep::u32*>(args.net->data + place(1, from, row));
            for (int i = team.lane; i < args.words; i += 32) {
                wrong += words[i] != word_of(from, own, round, row, i);
            }
        }
        __syncwarp();
        if (wrong != 0) ep::add_relaxed_gpu(args.wrong, wrong);
        queue.signal(from, kCredit, team.leader() ? static_cast<ep::u32>(compared) : 0);
    }
};

}  // namespace exchange

extern "C" __global__ void exchange_rows(const __grid_constant__ exchange::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    ep::Team team(args.group, call, 0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                  warp, warps);
    ep::NetQueue queue(team, args.net, 0);
    exchange::Share share{args, team, queue};
    for (int round = 0; round < args.rounds && !team.stopped; ++round) {
        for (int i = 0; i < share.others(); ++i) share.send(round, share.peer(i));
        if (queue.drain()) {
            for (int i = 0; i < share.others(); ++i) share.reuse(share.peer(i));
        }
        for (int i = 0; i < share.others(); ++i) share.receive(round, share.peer(i));
    }
    ep::leave(args.group, call);
}
