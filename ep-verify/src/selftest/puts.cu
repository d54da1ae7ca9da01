// Plain puts: the least that rows take over a network. Every rank puts as many rows of one size to each far rank,
// in runs with one signal each, and waits for as many. A warp writes the entries of a run together, and tells the card of
// them once; or it writes their descriptors together, which the host joins.
#include <ep/ibgda.cuh>
#include <ep/net.cuh>
#include <ep/sync.cuh>

namespace puts {

struct Args {
    ep::Group group;
    int ranks;
    int node_ranks;
    int rows;  // to each far rank
    int row_bytes;
    int run;  // rows of a signal, at most 31
    const ep::Net* net;
};

/// Rows of a queue, to or from one rank.
__device__ __forceinline__ ep::u32 rows_of(const Args& args, int queue) {
    ep::u32 sum = 0;
    const int runs = (args.rows + args.run - 1) / args.run;
    for (int at = queue; at < runs; at += static_cast<int>(args.net->queues)) {
        sum += static_cast<ep::u32>(min(args.run, args.rows - at * args.run));
    }
    return sum;
}

constexpr ep::u32 kSaysDone = 0x08u << 24;

__device__ __forceinline__ ep::u32 swapped(ep::u32 word) {
    return word << 24 | (word & 0xff00u) << 8 | (word >> 8 & 0xff00u) | word >> 24;
}

__device__ __forceinline__ ep::u32 high(ep::u64 address) {
    return swapped(static_cast<ep::u32>(address >> 32));
}

__device__ __forceinline__ ep::u32 low(ep::u64 address) {
    return swapped(static_cast<ep::u32>(address));
}

/// Whether the card is done with `want` entries of a queue pair.
__device__ __forceinline__ bool is_done(const ep::QueuePair* pair, ep::u32 want) {
    const ep::u32 word = ep::load_acquire_sys(pair->done);
    const ep::u32 done = (swapped(word) >> 16) + 1;
    // Of a queue pair that has not said anything, all slots are free.
    if (word >> 28 == 0xf) return ep::reached(0, want);
    return word >> 28 == 0 && static_cast<ep::i32>((done - want) << 16) >= 0;
}

/// A run through a queue of the host.
__device__ __forceinline__ void ask(ep::Team& team, const ep::Net* net, int peer, int queue,
                                    ep::u64 to, ep::u64 from, ep::u32 bytes, int count) {
    ep::NetQueue host(team, net, queue);
    const ep::u64 before = team.lane * static_cast<ep::u64>(bytes);
    host.put(peer, to + before, from + before, team.lane < count ? bytes : 0);
    host.signal(peer, 0, team.leader() ? static_cast<ep::u32>(count) : 0);
}

/// A run through a queue of the card: `count` rows from the offset `from` on to `to`, and what is added to a counter behind them.
__device__ __forceinline__ void post(ep::Team& team, const ep::Net* net, int peer, int queue,
                                     ep::u64 to, ep::u64 from, ep::u32 bytes, int count) {
    ep::QueuePair* pair = net->pairs + peer * static_cast<int>(net->queues) + queue;
    const ep::u32 all = static_cast<ep::u32>(count) + 1;
    ep::u32 first = 0;
    if (team.leader()) first = ep::fetch_add_relaxed_gpu(&pair->claimed, all);
    first = __shfl_sync(ep::kAllLanes, first, 0);
    const ep::Site room{queue, ep::Waiting::kQueue, -1, peer, first};
    ep::wait(team, room, [&](ep::u32& seen) {
        seen = first;
        if (!team.leader()) return true;
        return ep::load_acquire_gpu(&pair->written) == first && is_done(pair, first + all - net->slots);
    });
    if (team.stopped) return;
    const ep::u32 own = first + static_cast<ep::u32>(team.lane);
    ep::Quad* entry = pair->entries + static_cast<ep::u64>(own & (net->slots - 1)) * 4;
    const ep::u32 head = (own & 0xffffu) << 8, number = pair->number << 8;
    if (team.lane < count) {
        const ep::u64 there = pair->data + net->begin + to + team.lane * static_cast<ep::u64>(bytes);
        const ep::u64 here = reinterpret_cast<ep::u64>(net->data) + from +
                             team.lane * static_cast<ep::u64>(bytes);
        ep::store_quad(entry, ep::Quad{swapped(0x08 | head), swapped(number | 3), kSaysDone, 0});
        ep::store_quad(entry + 1, ep::Quad{high(there), low(there), swapped(pair->data_key), 0});
        ep::store_quad(entry + 2, ep::Quad{swapped(bytes), swapped(pair->own_data_key), high(here),
                                           low(here)});
    } else if (team.lane == count) {
        const ep::u64 there = pair->counters + ep::u64{4} * net->first;
        const ep::u32 what = 0x08000015u;
        ep::store_quad(entry, ep::Quad{swapped(what | head), swapped(number | 4), kSaysDone, 0});
        ep::store_quad(entry + 1, ep::Quad{high(there), low(there), swapped(pair->counters_key), 0});
        ep::store_quad(entry + 2, ep::Quad{swapped(static_cast<ep::u32>(count)), 0, 0, 0});
        ep::store_quad(entry + 3, ep::Quad{swapped(4), swapped(pair->own_counters_key),
                                           high(pair->before), low(pair->before)});
    }
    __syncwarp();
    if (!team.leader()) return;
    const ep::u32 next = (first + all) & 0xffffu;
    // M1: the card reads entries up to the record, and the record when it hears the doorbell.
    ep::store_release_sys(pair->record, swapped(next));
    ep::store_release_sys(pair->doorbell, ep::stamped(swapped(number), swapped(next << 8)));
    // All warps of this kernel tell in turn, a run at a time. The number wraps at 2^32, the word does not.
    const ep::u64 before = first, behind = first + all;
    ep::fetch_add_acq_rel_gpu(&pair->written, behind - before);
}

}  // namespace puts

extern "C" __global__ void puts_rows(const __grid_constant__ puts::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const int warps = static_cast<int>(blockDim.x) / ep::kLanes;
    ep::Team team(args.group, call, 0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), warp, warps);
    const int own = args.group.rank, far = args.ranks - args.node_ranks;
    const int behind = own / args.node_ranks * args.node_ranks + args.node_ranks;
    const int runs = (args.rows + args.run - 1) / args.run;
    const int queues = static_cast<int>(args.net->queues);
    // Peers in turn, each rank beginning with another one.
    for (int at = team.spread(); at < runs * far && !team.stopped; at += team.count()) {
        const int peer = (behind + (at + own) % far) % args.ranks;
        const int index = at / far, first = index * args.run;
        const int count = min(args.run, args.rows - first);
        const ep::u64 bytes = static_cast<ep::u64>(args.row_bytes);
        const ep::u64 to = (static_cast<ep::u64>(own) * args.rows + first) * bytes;
        const ep::u64 from = (static_cast<ep::u64>(args.ranks) * args.rows + first) * bytes;
        const int queue = index % queues;
        if (args.net->pairs != nullptr) {
            puts::post(team, args.net, peer, queue, to, from, static_cast<ep::u32>(bytes), count);
        } else {
            puts::ask(team, args.net, peer, queue, to, from, static_cast<ep::u32>(bytes), count);
        }
        __syncwarp();
    }
    for (int at = team.spread(); at < far * queues && !team.stopped; at += team.count()) {
        const int peer = (behind + at / queues) % args.ranks, from = at % queues;
        const ep::u32 want = team.epoch * puts::rows_of(args, from);
        const ep::Site site{0, ep::Waiting::kArrival, -1, peer, want};
        // M2: nothing is read, and nobody overwrites what is.
        const ep::u32* counter = ep::counter_of(args.net, peer, from, 0);
        ep::wait_counter(team, site, team.leader() ? counter : nullptr);
    }
    ep::leave(args.group, call);
}
