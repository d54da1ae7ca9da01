// Ends of rings between two nodes of two ranks: to all ranks, where two warps read each, and along a rail. The same
// kernel runs where the processor empties queues and where a card does. The host knows what the kernel leaves in `out`;
// see net_rings.rs. All is one launch: a network that is modelled beside kernels in a process of their own forgets
// behind it where it was.
namespace net_rings {

constexpr int kRanks = 4;
constexpr int kNodeRanks = 2;
constexpr int kQueues = 2;
constexpr int kRail = 6000;  // where messages along the rail are noted,
constexpr int kLeft = 8000;  // and words of both channels

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
    const ep::Net* net;
};

/// A channel from `kAt` of a window on, and from there in the data.
template <ep::u64 kAt, bool kRail_, bool kIbgda_>
struct Channel {
    static constexpr int kChannel = 7;
    static constexpr bool kRail = kRail_;
    static constexpr bool kIbgda = kIbgda_;
    static constexpr int kNodeRanks = net_rings::kNodeRanks;
    static constexpr int kPeers = kRail ? kRanks / kNodeRanks : kRanks;
    static constexpr int kNear = kRail ? 1 : kNodeRanks;
    static constexpr int kReaders = kRail ? 1 : 2;
    static constexpr int kStripes = ring_ends::kStripes;
    static constexpr int kDepth = 4;
    static constexpr int kChunk = 2;
    static constexpr int kSlotBytes = 48;
    static constexpr int kMeta = 32;
    static constexpr int kHeaderWords = 2;
    static constexpr int kNears = kStripes * kNear;
    static constexpr int kFars = kStripes * (kPeers - kNear);
    static constexpr int kRings = kStripes * kPeers;
    static constexpr ep::u64 kTail = kAt;
    static constexpr ep::u64 kHead = kTail + kNears * 4;
    static constexpr ep::u64 kRetired = kHead + kNears * 4;
    static constexpr ep::u64 kTaken = kRetired + kNears * 4;
    static constexpr ep::u64 kSent = kTaken + 2 * kRings * 4;
    static constexpr ep::u64 kPassed = kSent + 2 * kRings * 4;
    static constexpr ep::u64 kHeader = (kPassed + kRings * (kDepth / kChunk + 2) * 4 + 7) / 8 * 8;
    static constexpr ep::u64 kSlots = kHeader + 2 * kNears * kHeaderWords * 8;
    static constexpr ep::u64 kInbox = kAt;
    static constexpr ep::u64 kOutbox = kInbox + kFars * kDepth * kSlotBytes;
    static constexpr ep::u64 kHeadersIn = kOutbox + kFars * kDepth * kSlotBytes;
    static constexpr ep::u64 kHeadersOut = kHeadersIn + 2 * kFars * kHeaderWords * 8;
    static constexpr int kCounters = kRail ? 11 : 3;
};

/// The peer that is at a place which is the same seen from either end.
template <class Ring>
__device__ __forceinline__ int peer_at(const ep::Group& group, int i) {
    return (Ring::kRail ? group.rank / kNodeRanks : group.rank) ^ i;
}

/// All rings, in the order of those places.
template <class Ring>
__device__ __forceinline__ ring_ends::Served served(const ep::Group& group) {
    ring_ends::Served it{};
    it.kept = ep::all_peers(Ring::kPeers);
    it.count = Ring::kPeers;
    it.more = group.rank * 1000000000ll;
    for (int i = 0; i < it.count; ++i) {
        it.rings[i] = peer_at<Ring>(group, i);
        it.peers[i] = i;
        const int rank = Ring::kRail ? it.rings[i] * kNodeRanks + group.rank % kNodeRanks : it.rings[i];
        it.less[i] = rank * 1000000000ll;
    }
    return it;
}

/// The sequences of each warp's rings.
struct Smem {
    ep::Sequence of[2][kRanks];
};

/// Sequences of rings that nobody has used.
__device__ __forceinline__ ep::Sequence* fresh(ep::Sequence* all, int count) {
    for (int i = ep::lane_index(); i < count; i += ep::kLanes) all[i] = ep::Sequence{};
    __syncwarp();
    return all;
}

/// All calls of one warp: of each block one reads, and one of all sends.
template <class Ring>
inline __device__ __noinline__ void serve(const Args& args, Smem& smem, const ep::Call& call, int block, int warp,
                                   ep::i64* out) {
    using Rings = ep::NetRings<Ring>;
    const ring_ends::Served it = served<Ring>(args.group);
    ep::Team team(args.group, call, 3);
    ep::u32* begun = reinterpret_cast<ep::u32*>(args.group.window) + (Ring::kRail ? 1 : 2);
    if (warp == 1 && block < Ring::kReaders) {
        ep::RingsIn<Ring, Rings> ends(team, args.net, fresh(smem.of[warp], kRanks));
        ep::u32* met = reinterpret_cast<ep::u32*>(args.group.window);
        const auto meet = [&] {
            if (Ring::kReaders == 1) return;
            if (team.leader()) ep::fetch_add_acq_rel_gpu(met, 1);
            while (ep::load_acquire_gpu(met) < team.epoch * Ring::kReaders) {
            }
            __syncwarp();
        };
        ep::i64* noted = ring_ends::noted(out, block * 4, 1, 0);
        ring_ends::receive_all<Ring>(ends, team, it, noted, begun, meet);
    } else if (warp == 0 && block == 0) {
        ep::RingsOut<Ring, Rings> ends(team, args.net, fresh(smem.of[warp], kRanks));
        ring_ends::send_all<Ring>(ends, team, it, begun);
    }
}

/// A number that another rank tells, once it is as high as it is at the end.
__device__ __forceinline__ ep::i64 last(const ep::u32* word, int value) {
    while (ep::load_relaxed_sys(word) != static_cast<ep::u32>(value)) {
    }
    return value;
}

/// All words of a channel: what near ones have told, where rings stand, and what came over the network.
template <class Ring>
inline __device__ __noinline__ void dump(const Args& args, ep::i64* out) {
    const ep::u32* words = reinterpret_cast<const ep::u32*>(args.group.window);
    for (int stripe = 0; stripe < Ring::kStripes; ++stripe) {
        for (int i = 0; i < Ring::kPeers; ++i) {
            const int peer = peer_at<Ring>(args.group, i), ring = stripe * Ring::kPeers + peer;
            const int near = stripe * Ring::kNear + peer % Ring::kNear;
            const int rank =
                Ring::kRail ? peer * kNodeRanks + args.group.rank % kNodeRanks : peer;
            int through = 0;
            for (ep::u32 call = 1; call <= ring_ends::kCalls; ++call) {
                through += ring_ends::messages(0, i, call, stripe);
            }
            const int ends[4] = {through, through, ring_ends::kCalls, 2 * ring_ends::kCalls};
            const ep::u64 told[3] = {Ring::kTail, Ring::kHead, Ring::kRetired};
            for (int word = 0; word < 3 && i < Ring::kNear; ++word) {
                *out++ = last(words + told[word] / 4 + near, ends[word]);
            }
            for (int queue = 0; queue < kQueues; ++queue) {
                for (int word = 0; word < 4; ++word) {
                    const int number = Ring::kCounters + word * Ring::kStripes + stripe;
                    const bool is_told = i >= Ring::kNear && queue == stripe;
                    const ep::u32* counter = ep::counter_of(args.net, rank, queue, number);
                    *out++ = is_told ? last(counter, ends[word]) : ep::load_relaxed_sys(counter);
                }
            }
            for (int call = 0; call < 2; ++call) {
                const ep::u64 at[2] = {Ring::kTaken, Ring::kSent};
                for (ep::u64 stands : at) *out++ = words[stands / 4 + call * Ring::kRings + ring];
                const int first = (call * Ring::kNears + near) * Ring::kHeaderWords * 2;
                for (int k = 0; k < Ring::kHeaderWords * 2 && i < Ring::kNear; ++k) {
                    *out++ = ep::load_relaxed_sys(words + Ring::kHeader / 4 + first + k);
                }
            }
            const int chunks = Ring::kDepth / Ring::kChunk + 2;
            for (int chunk = 0; chunk < chunks; ++chunk) {
                *out++ = words[Ring::kPassed / 4 + ring * chunks + chunk];
            }
        }
    }
}

/// Both channels, one behind the other, and what they leave.
template <bool kIbgda>
__device__ __forceinline__ void run(const Args& args, Smem& smem, ep::Call& call) {
    using All = Channel<64, false, kIbgda>;
    using Rail = Channel<4096, true, kIbgda>;
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes, block = static_cast<int>(blockIdx.x);
    serve<All>(args, smem, call, block, warp, args.out);
    serve<Rail>(args, smem, call, block, warp, args.out + kRail);
    ep::all_blocks(args.group, call);
    if (block != 0 || threadIdx.x != 0) return;
    dump<All>(args, args.out + kLeft);
    dump<Rail>(args, args.out + kLeft + 1000);
}

}  // namespace net_rings

extern "C" __global__ void __launch_bounds__(2 * 32)
    net_rings_of(const __grid_constant__ net_rings::Args args) {
    EP_SHARED(net_rings::Smem, smem);
    ep::Call call = ep::enter(args.group);
    if (args.net->pairs != nullptr) {
        net_rings::run<true>(args, smem, call);
    } else {
        net_rings::run<false>(args, smem, call);
    }
    ep::leave(args.group, call);
}
