// A network that nobody serves, for the kernels of net_queues.cu and net_ends.cu, which this stands before: what a rank of
// many asks of it stays where it was written. The host knows the same of it; see lone_net.rs.
#include <ep/net.cuh>
#include <ep/sync.cuh>

namespace lone_net {

constexpr int kPeers = 33;
constexpr int kNear = 3;  // ranks of a node
constexpr int kQueues = 2;
constexpr int kSlots = 64;
constexpr int kCounters = 12;  // of a source and queue
constexpr ep::u64 kBegin = 4096;
constexpr ep::u32 kFirst = 5;
constexpr ep::u64 kWindow = 4096;
constexpr ep::u64 kData = 8192;

/// What the rank has, and its group; zero at first. Windows are those of its node.
struct Own : given_up::Own {
    ep::Net net;
    ep::NetProgress progress[kQueues];
    ep::NetDescriptor descriptors[kQueues * kSlots];
    ep::u32 claimed[kQueues];
    ep::u32 counters[kPeers * kQueues * kCounters];
    char* windows[2 * ep::kLanes];
    ep::u64 memory[kNear * kWindow / 8];
    ep::u64 data[kData / 8];
};

/// Clears `own`; warp.
template <class Memory>
__device__ __forceinline__ void clear(Memory& own) {
    ep::u64* words = reinterpret_cast<ep::u64*>(&own);
    for (ep::u64 i = ep::lane_index(); i < sizeof(Memory) / 8; i += ep::kLanes) words[i] = 0;
    __syncwarp();
}

/// Group `number`, of which this is a rank.
__device__ __forceinline__ ep::Group play(const ep::Group& given, Own& own, int number, int rank) {
    clear(own);
    char* memory = reinterpret_cast<char*>(own.memory);
    const int lane = ep::lane_index();
    if (lane < kNear) own.windows[rank / kNear * kNear + lane] = memory + lane * kWindow;
    if (lane == 0) {
        ep::Net& net = own.net;
        net.data = reinterpret_cast<char*>(own.data);
        net.counters = own.counters;
        net.descriptors = own.descriptors;
        net.progress = own.progress;
        net.claimed = own.claimed;
        net.begin = kBegin;
        net.slots = kSlots;
        net.queues = kQueues;
        net.counters_each = kCounters;
        net.rank = static_cast<ep::u32>(rank);
        net.first = kFirst;
        net.ranks = kPeers;
    }
    __syncwarp();
    return given_up::group_of(given, own, number, own.windows, rank);
}

/// What the queues have been asked for: how much of one, and all descriptors.
__device__ __forceinline__ void dump(const Own& own, int queue, ep::i64* out) {
    __syncwarp();
    const ep::u64* words = reinterpret_cast<const ep::u64*>(own.descriptors);
    for (int i = ep::lane_index(); i < 4 * kQueues * kSlots; i += ep::kLanes) {
        out[1 + i] = static_cast<ep::i64>(words[i]);
    }
    if (ep::lane_index() == 3) out[0] = own.claimed[queue];
    __syncwarp();
}

}  // namespace lone_net

