// The network as a kernel sees it: rows to other machines, and counters of what has landed there.
//
// Each rank has some bytes for rows, the data, at the same offsets everywhere, which peers write into and
// kernels of both ends read. A kernel asks for three things, through a queue of its rank:
//
//   put     so many bytes from an offset of its own data to one of a peer's data
//   signal  to add a number to a counter at a peer
//   drain   to wait until the sources of all puts so far may be written again
//
// The promise, which holds for any network and is all that may be relied on: puts of one queue land in any
// order. A signal adds its number once all puts to that peer, which the same lane posted before to the same
// queue, or which happened before it, have landed. So whoever acquires a counter and finds it as high as
// it will be after a signal may read the rows of all puts before it. A put that no signal follows has
// landed at a time that nobody knows. Nothing orders the signals of two queues, nor those to two peers.
//
// A counter belongs to one source and queue; it only rises, wraps at 2^32 and is never cleared (M7).
// `Net` describes the memory of one rank, as far as it is that of one kernel: offsets and counters of
// several kernels are apart. `ep-runtime/src/net/layout.rs` says where everything lies.
//
// `NetQueue` asks the processor of the host, `PairQueue` (ibgda.cuh) the network card itself.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What one lane asks for, in host memory. The last word is written last and holds the turn of the slot
/// (M7), so that whoever empties the queue sees a whole descriptor or none.
struct alignas(32) NetDescriptor {
    static constexpr u32 kPut = 1;
    static constexpr u32 kSignal = 2;

    u64 to;      // put: an offset of the peer's data; signal: a counter
    u64 from;    // put: an offset of the own data
    u64 who;     // {kind, peer}
    u64 stamp;   // {turn, bytes of a put or number of a signal}
};

/// How far a queue has been emptied, in host memory.
struct alignas(64) NetProgress {
    u32 taken;  // descriptors whose slots may be written again
    u32 done;   // descriptors whose sources may be written again
};

struct QueuePair;

/// One rank's view of the network, in local device memory. Of the memory of the two kinds of queues, one is
/// there.
struct Net {
    char* data;                  // of this kernel
    u32* counters;               // [source, queue, counter], from the first one of this kernel on
    NetDescriptor* descriptors;  // [queue, slot]
    NetProgress* progress;       // [queue]
    u32* claimed;                // [queue] descriptors that lanes have claimed
    QueuePair* pairs;            // [peer, queue]
    u64 begin;                   // bytes of data before those of this kernel
    u32 slots;                   // of each queue; a power of two
    u32 queues;
    u32 counters_each;  // of each source and queue
    u32 rank;
    u32 first;  // counter of this kernel
    u32 ranks;
};

/// What `source` has added to a counter of a queue here; wait for it with `wait_counter` (M2).
__device__ __forceinline__ const u32* counter_of(const Net* net, int source, int queue, int index) {
    const u32 flow = static_cast<u32>(source) * net->queues + static_cast<u32>(queue);
    return net->counters + static_cast<u64>(flow) * net->counters_each + index;
}

/// One warp's view of a queue; all lanes call every method. A stopped team posts nothing.
class NetQueue {
public:
    __device__ __forceinline__ NetQueue(Team& team, const Net* net, int queue)
        : team_(team), net_(net), queue_(queue), has_posted_(false), posted_{} {}

    /// Puts `bytes` of each lane, if there are any, from the offset `from` here to `to` at `peer`. What the
    /// lane has written or seen, and the warp before, is there when the bytes are read (M1: bulk stores
    /// are waited for by the caller). False: the team is stopped.
    __device__ __forceinline__ bool put(int peer, u64 to, u64 from, u32 bytes) {
        // Where all peers are near, nothing is put and there is no network to look at.
        const u64 begin = bytes != 0 ? net_->begin : 0;
        return post(bytes != 0, NetDescriptor::kPut, peer, begin + to, begin + from, bytes);
    }

    /// Adds `number` of each lane, if it is not 0, to a counter at `peer`, when all earlier puts to that
    /// peer have landed. False: the team is stopped.
    __device__ __forceinline__ bool signal(int peer, u32 counter, u32 number) {
        const u32 first = number != 0 ? net_->first : 0;
        return post(number != 0, NetDescriptor::kSignal, peer, first + counter, 0, number);
    }

    /// Goes on with another queue.
    __device__ __forceinline__ void turn_to(int queue) {
        if (queue == queue_) return;
        queue_ = queue;
        has_posted_ = false;
        posted_.taken = 0;
    }

    /// Waits until the sources of everything that this warp has posted may be written again. False: the
    /// team is stopped.
    __device__ __forceinline__ bool drain() {
        // M4: acquires what the proxy tells when it has read the sources for the last time.
        const u32* done = has_posted_ ? &net_->progress[queue_].done : nullptr;
        wait_counter(team_, site(queue_, Waiting::kDrained, posted_.end), done);
        return !team_.stopped;
    }

    /// A counter of this queue, see `counter_of`.
    __device__ __forceinline__ const u32* counter(int source, int index) const {
        return counter_of(net_, source, queue_, index);
    }

private:
    /// What a warp knows of a queue.
    struct Posted {
        u32 end;       // the number behind its last descriptor
        u32 taken;     // what the lane has seen of the proxy's number; 0: nothing yet
        bool stopped;  // whether the team is
    };

    static __device__ __forceinline__ Site site(int queue, Waiting kind, u32 want) {
        return Site{queue, kind, -1, -1, want};
    }

    /// Writes the descriptors of the lanes that ask for something.
    __device__ __forceinline__ bool post(bool asks, u32 kind, int peer, u64 to, u64 from, u32 number) {
        if (team_.stopped || __ballot_sync(kAllLanes, asks) == 0) return !team_.stopped;
        has_posted_ = true;
        posted_ = post_all(team_.group, team_.epoch, team_.role, net_, queue_, posted_.taken, asks, kind, peer, to,
                           from, number);
        team_.stopped = posted_.stopped;
        return !team_.stopped;
    }

    /// Writes the descriptors when there is room for them. Out of line, by value: the many places of a kernel that
    /// ask for something share one copy, and the caller's variables stay in registers.
    static __device__ __noinline__ Posted post_all(const Group& group, u32 epoch, int role, const Net* net, int queue,
                                                   u32 taken, bool asks, u32 kind, int peer, u64 to, u64 from,
                                                   u32 number) {
        Team team(group, Call{epoch, false, false}, role);
        const u32 lanes = __ballot_sync(kAllLanes, asks);
        const u32 count = static_cast<u32>(__popc(lanes));
        u32 first = 0;
        if (team.leader()) first = fetch_add_relaxed_gpu(net->claimed + queue, count);
        first = __shfl_sync(kAllLanes, first, 0);
        const u32 before = lanes & ((1u << team.lane) - 1u);
        const u32 own = first + static_cast<u32>(__popc(before));
        // The proxy is on the other side of a bus, so that what it said last is asked first.
        const u32 want = own + 1 - net->slots;
        const bool knows = !asks || (taken != 0 && reached(taken, want));
        const u32* word = knows ? nullptr : &net->progress[queue].taken;
        // M4: the proxy has read what stood in the slot before it says that it has taken it.
        const u32 found = wait_counter(team, site(queue, Waiting::kQueue, want), word);
        if (word != nullptr) taken = found;
        if (asks && !team.stopped) {
            const u32 slots = net->slots;
            const u64 place = static_cast<u64>(queue) * slots + (own & (slots - 1));
            NetDescriptor* descriptor = net->descriptors + place;
            const u32 turn = own / slots + 1;
            store_relaxed_sys(&descriptor->to, to);
            store_relaxed_sys(&descriptor->from, from);
            store_relaxed_sys(&descriptor->who, stamped(kind, static_cast<u32>(peer)));
            // M1, M7: the proxy acquires it, and then reads the descriptor and what it names.
            store_release_sys(&descriptor->stamp, stamped(turn, number));
        }
        __syncwarp();
        return Posted{first + count, taken, team.stopped};
    }

    Team& team_;
    const Net* net_;
    int queue_;
    bool has_posted_;
    Posted posted_;
};

}  // namespace ep
