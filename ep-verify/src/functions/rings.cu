// Ends of rings in windows that all ranks reach: many of them at one warp, against an end for each. They run on both
// ranks at once, and rings go round many times. The host knows what each check leaves in `out`; see rings.rs, which
// has the checks in the same order.
namespace rings {

constexpr int kRims = 4;
constexpr int kEachPart = 40;  // what messages call the hub, by its parts
constexpr ep::u32 kStart = 0xfffffff8;  // near which all counters begin, which then go through 0

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// Sequences of rings that nobody has used.
__device__ __forceinline__ ep::Sequence* fresh(ep::Sequence* all, int count) {
    for (int i = ep::lane_index(); i < count; i += ep::kLanes) all[i] = ep::Sequence{};
    __syncwarp();
    return all;
}

/// A channel from `kAt` of a window on.
template <ep::u64 kAt, int kPeers_, int kParts_>
struct Channel {
    static constexpr int kChannel = 6;
    static constexpr int kPeers = kPeers_;
    static constexpr int kParts = kParts_;
    static constexpr int kStripes = ring_ends::kStripes;
    static constexpr int kDepth = 4;
    static constexpr int kChunk = 2;
    static constexpr int kSlotBytes = 48;
    static constexpr int kMeta = 32;
    static constexpr int kHeaderWords = 2;
    static constexpr int kRings = kStripes * kPeers * kParts;
    static constexpr ep::u64 kTail = kAt;
    static constexpr ep::u64 kHead = kTail + kRings * 4;
    static constexpr ep::u64 kRetired = kHead + kRings * 4;
    static constexpr ep::u64 kTaken = kRetired + kRings * 4;
    static constexpr ep::u64 kSent = kTaken + 2 * kRings * 4;
    static constexpr ep::u64 kHeader = kSent + 2 * kRings * 4;
    static constexpr ep::u64 kSlots = kHeader + 2 * kRings * kHeaderWords * 8;
    static constexpr ep::u64 kBytes = kSlots + ep::u64{kRings} * kDepth * kSlotBytes;
};

/// Rings to some of 36 peers, which lanes of two groups keep, and rings of two parts to all.
using Wide = Channel<64, 36, 1>;
using Parted = Channel<64, 4, 2>;

/// The sequences of each warp's rings, at two ends.
struct Smem {
    ep::Sequence of[kRims + 1][2][Wide::kPeers];
};

/// The ends of each: the hub keeps rings of all rims, a rim those of the hub.
template <class Ring>
struct Ends {
    using Hub = ep::WindowRings<Ring>;
    using Rim = ep::WindowRings<Ring>;
    static constexpr int kRims = 4;
    static constexpr int kFirst = 30;
    static __device__ __forceinline__ int rim(int i) { return i < 3 ? kFirst + i : 34; }
};

template <>
struct Ends<Parted> {
    using Hub = ep::WindowRings<Parted, ep::Kept::kPeersOfPart>;
    using Rim = ep::WindowRings<Parted, ep::Kept::kPartsOfPeer>;
    static constexpr int kRims = 3;
    static constexpr int kFirst = 1;
    static __device__ __forceinline__ int rim(int i) { return 1 + i; }
};

/// Windows of a hub and its rims.
constexpr ep::u64 kBytes = (Wide::kBytes + 63) / 64 * 64;
static_assert(Parted::kBytes <= kBytes, "one kind of window holds either");
constexpr int kWindows = kRims + 1;
constexpr int kWorlds = 2;  // that of this rank's hub, and that of its rims
constexpr ep::u64 kTables = kWorlds * kWindows * kBytes;

/// What a world has here of its own, beside windows.
struct World {
    char* windows[Wide::kPeers];
    ep::u32 begun[Parted::kParts][kWindows];  // calls of each that sends
};

__device__ __forceinline__ char* window_at(const ep::Group& group, int rank, int world, int i) {
    return group.windows[rank] + (world * kWindows + i) * kBytes;
}

/// Where the window of the i-th rank of a world is, of which the hub has the first.
__device__ __forceinline__ char* window_of(const ep::Group& group, int world, int i) {
    const int self = static_cast<int>(group.rank);
    const int hub = world == 0 ? self : 1 - self;
    // It is the first world of the rank that has its hub, and the second one of the other.
    return i == 0 ? window_at(group, hub, 0, 0) : window_at(group, 1 - hub, 1, i);
}

__device__ __forceinline__ World* world_of(const ep::Group& group, int world) {
    return reinterpret_cast<World*>(group.window + kTables) + world;
}

/// Gives all worlds their windows, and all words of this rank their begin.
template <class Ring>
__device__ __forceinline__ void prepare(const ep::Group& group) {
    const int lane = ep::lane_index();
    for (int world = 0; world < kWorlds; ++world) {
        World* it = world_of(group, world);
        for (int part = 0; part < Parted::kParts; ++part) {
            if (lane < kWindows) it->begun[part][lane] = 0;
        }
        for (int v = lane; v < Wide::kPeers; v += ep::kLanes) {
            // Nobody reaches one that is not served.
            it->windows[v] = v == 0 ? window_of(group, world, 0) : nullptr;
            for (int i = 0; i < Ends<Ring>::kRims; ++i) {
                if (v == Ends<Ring>::rim(i)) it->windows[v] = window_of(group, world, 1 + i);
            }
        }
        for (int i = 0; i < kWindows; ++i) {
            char* window = window_at(group, static_cast<int>(group.rank), world, i);
            ep::u64* all = reinterpret_cast<ep::u64*>(window);
            for (ep::u64 at = lane; at < kBytes / 8; at += ep::kLanes) all[at] = 0;
            __syncwarp();
            const int own = i == 0 ? 0 : Ends<Ring>::rim(i - 1);
            for (int at = lane; at < Ring::kRings; at += ep::kLanes) {
                const int peer = at / Ring::kParts % Ring::kPeers;
                const int stripe = at / Ring::kParts / Ring::kPeers, part = at % Ring::kParts;
                const ep::u32 start = kStart - 3 * (own + peer) - 2 * part - stripe;
                ep::u32* words[4] = {reinterpret_cast<ep::u32*>(window + Ring::kTail),
                                     reinterpret_cast<ep::u32*>(window + Ring::kHead),
                                     reinterpret_cast<ep::u32*>(window + Ring::kTaken),
                                     reinterpret_cast<ep::u32*>(window + Ring::kSent)};
                // Of where the ends stand, that of the call before the first one.
                for (ep::u32* word : words) word[at] = start;
            }
        }
    }
}

/// All words of a window but its slots.
template <class Ring>
__device__ __forceinline__ void dump(const char* window, ep::i64* out) {
    const ep::u32* words = reinterpret_cast<const ep::u32*>(window + Ring::kTail);
    for (int i = ep::lane_index(); i < static_cast<int>((Ring::kSlots - Ring::kTail) / 4);
         i += ep::kLanes) {
        out[i] = words[i];
    }
}

/// Those of all windows that this rank has of both worlds.
template <class Ring>
__device__ __forceinline__ void dump_all(const ep::Group& group, ep::i64* out) {
    constexpr int kEach = static_cast<int>((Ring::kSlots - Ring::kTail) / 4);
    for (int i = 0; i < kWindows; ++i) {
        const int world = i == 0 ? 0 : 1;
        const char* window = window_at(group, static_cast<int>(group.rank), world, i);
        if (i < 1 + Ends<Ring>::kRims) dump<Ring>(window, out + i * kEach);
    }
}

/// A rank of a world.
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int world, int rank) {
    World* it = world_of(given, world);
    ep::Group group = given;
    group.windows = it->windows;
    group.window = it->windows[rank];
    group.rank = rank;
    return group;
}

/// What the hub serves: all rims, or those of a part.
template <class Ring>
__device__ __forceinline__ ring_ends::Served hub_of(int part) {
    ring_ends::Served it{};
    it.kept = ep::Peers{Ends<Ring>::kFirst, Ring::kPeers < 35 ? Ring::kPeers : 35, 33};
    it.of = part;
    it.own = kEachPart * part;
    it.count = Ends<Ring>::kRims;
    for (int i = 0; i < it.count; ++i) it.rings[i] = it.peers[i] = Ends<Ring>::rim(i);
    return it;
}

/// What a rim serves: the ring of the hub, or that of a part.
template <class Ring>
__device__ __forceinline__ ring_ends::Served rim_of(int i, int part) {
    ring_ends::Served it{};
    it.kept = ep::one_peer(Ring::kParts == 1 ? 0 : part);
    it.count = 1;
    it.rings[0] = it.kept.begin;
    it.peers[0] = kEachPart * part;
    it.own = Ends<Ring>::rim(i);
    return it;
}

/// All calls of one warp: a hub or a rim, which sends or receives.
template <class Ring>
inline __device__ __noinline__ void serve(const ep::Group& given, Smem& smem, const ep::Call& call, int warp, bool sends,
                                      ep::i64* out) {
    using Hub = typename Ends<Ring>::Hub;
    using Rim = typename Ends<Ring>::Rim;
    if (warp > Ends<Ring>::kRims) return;
    const bool is_hub = warp == 0;
    const int rank = is_hub ? 0 : Ends<Ring>::rim(warp - 1);
    const ep::Group group = group_of(given, is_hub ? 0 : 1, rank);
    ep::Team team(group, call, 3);
    for (int part = 0; part < Ring::kParts; ++part) {
        const ring_ends::Served it = is_hub ? hub_of<Ring>(part) : rim_of<Ring>(warp - 1, part);
        ep::u32* begun = &world_of(given, 0)->begun[part][warp];
        ep::i64* noted = ring_ends::noted(out, (is_hub ? 0 : warp + 3) + part * 10, 1, 0);
        if (is_hub && sends) {
            ep::RingsOut<Ring, Hub> ends(team, fresh(smem.of[warp][0], Wide::kPeers));
            ring_ends::send_all<Ring>(ends, team, it, begun);
        } else if (is_hub) {
            ep::RingsIn<Ring, Hub> ends(team, fresh(smem.of[warp][0], Wide::kPeers));
            ring_ends::receive_all<Ring>(ends, team, it, noted, begun, [] {});
        } else if (sends) {
            ep::RingsOut<Ring, Rim> ends(team, fresh(smem.of[warp][0], Wide::kPeers));
            ring_ends::send_all<Ring>(ends, team, it, begun);
        } else {
            ep::RingsIn<Ring, Rim> ends(team, fresh(smem.of[warp][0], Wide::kPeers));
            ring_ends::receive_all<Ring>(ends, team, it, noted, begun, [] {});
        }
    }
}

/// All that a team does which is stopped: nothing, but that it counts for itself.
inline __device__ __noinline__ void idle(const ep::Group& given, Smem& smem, const ep::Call& call, ep::i64* out) {
    const ep::Group group = group_of(given, 0, 0);
    const ring_ends::Served it = hub_of<Wide>(0);
    ep::Team team(group, call, 3);
    team.stopped = true;
    ep::RingsOut<Wide> sends(team, fresh(smem.of[0][0], Wide::kPeers));
    ep::RingsIn<Wide> takes(team, fresh(smem.of[0][1], Wide::kPeers));
    for (team.epoch = 1; team.epoch < 3; ++team.epoch, out += 5) {
        sends.open(1, it.kept, 0);
        ring_ends::announce(sends, team, it, 1);
        const bool has_room = sends.reserve(it.rings[1]);
        sends.publish(it.rings[1]);
        sends.close();
        takes.open(1, it.kept, 0);
        const int told = takes.header(it.rings[1], 1), next = takes.next(0);
        const bool has_come = takes.arrived(it.rings[1]);
        takes.release(it.rings[1]);
        const ep::i32 positions[2] = {team.lane == 31 ? 3 : -1, team.lane == 2 ? 3 : -1};
        const bool has_all = takes.arrived(positions, true);
        takes.done(positions);
        takes.close();
        const ep::i64 found[5] = {has_room, told, next, has_come, has_all};
        for (int i = 0; i < 5 && team.lane == 7; ++i) out[i] = found[i];
    }
}

/// How many messages come to the hub from a rim, none of which waits for another.
__device__ __forceinline__ int few(int rim) {
    return 1 + rim * 3 % Wide::kDepth;
}

/// Sends those of one rim.
inline __device__ __noinline__ void send_few(const ep::Group& given, Smem& smem, const ep::Call& call, int rim) {
    const ep::Group group = group_of(given, 1, Ends<Wide>::rim(rim));
    ep::Team team(group, call, 3);
    ep::RingsOut<Wide> rings(team, fresh(smem.of[rim][0], Wide::kPeers));
    for (int stripe = 0; stripe < Wide::kStripes; ++stripe) {
        rings.open(stripe, ep::one_peer(0));
        for (int word = 0; word < 2; ++word) rings.announce(0, word, few(rim));
        for (int k = 0; k < few(rim); ++k) rings.publish(0);
        rings.close();
    }
}

/// The rings whose messages are taken when all are there.
inline __device__ __noinline__ void take_in_turn(const ep::Group& given, Smem& smem, const ep::Call& call, ep::i64* out) {
    const ep::Group group = group_of(given, 0, 0);
    ep::Team team(group, call, 3);
    ep::RingsIn<Wide> rings(team, fresh(smem.of[0][0], Wide::kPeers));
    for (int stripe = 0; stripe < Wide::kStripes; ++stripe, out += 20) {
        rings.open(stripe, hub_of<Wide>(0).kept);
        int count = 0;
        for (int ring; (ring = rings.next(0)) >= 0; ++count) {
            if (team.lane == 9) out[count] = ring;
            rings.release(ring);
        }
        rings.close();
    }
}

}  // namespace rings

extern "C" __global__ void __launch_bounds__((rings::kRims + 1) * 32)
    rings_of(const __grid_constant__ rings::Args args) {
    EP_SHARED(rings::Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const bool is_first = blockIdx.x == 0, is_one = is_first && warp == 0;
    switch (args.check) {
        case 0:
            if (is_one) rings::prepare<rings::Wide>(args.group);
            break;
        case 1: rings::serve<rings::Wide>(args.group, smem, call, warp, is_first, args.out); break;
        case 2:
            if (is_one) rings::dump_all<rings::Wide>(args.group, args.out);
            break;
        case 3:
            if (is_one) rings::prepare<rings::Parted>(args.group);
            break;
        case 4: rings::serve<rings::Parted>(args.group, smem, call, warp, is_first, args.out); break;
        case 5:
            if (is_one) rings::dump_all<rings::Parted>(args.group, args.out);
            break;
        case 6:
        case 9:
            if (is_one) rings::prepare<rings::Wide>(args.group);
            break;
        case 7:
            if (is_one) rings::idle(args.group, smem, call, args.out);
            break;
        case 8:
            if (is_one) rings::dump_all<rings::Wide>(args.group, args.out);
            break;
        case 10: {
            // The epoch is that of the first call.
            const ep::Call first{1, false, true};
            if (is_first && warp > 0) rings::send_few(args.group, smem, first, warp - 1);
            break;
        }
        case 11: {
            const ep::Call first{1, false, true};
            if (is_one) rings::take_in_turn(args.group, smem, first, args.out);
            break;
        }
        default: break;
    }
    ep::leave(args.group, call);
}
