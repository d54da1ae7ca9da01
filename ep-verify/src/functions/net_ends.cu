// Ends of channels between nodes, as one rank of many has them: it writes what all others tell itself, and looks at what each
// of its node is told, and what is asked of the network. The host knows what each check leaves in `out`; see net_ends.rs,
// which has the checks in the same order.
#include <ep/net_rings.cuh>
#include <ep/net_slot_rows.cuh>
#include <ep/net_slots.cuh>
#include <ep/rings.cuh>

namespace net_ends {

using namespace lone_net;

constexpr int kFar = kPeers - kNear;
constexpr ep::u32 kCall = 7;
constexpr int kStripe = 1;
constexpr ep::u32 kBase = 10;  // messages of a ring in earlier calls

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

struct Slots {
    static constexpr int kChannel = 8;
    static constexpr bool kRail = false;
    static constexpr bool kIbgda = false;
    static constexpr bool kSkipsOwn = true;
    static constexpr int kPeers = net_ends::kPeers;
    static constexpr int kNodeRanks = net_ends::kNear;
    static constexpr int kNear = kNodeRanks;
    static constexpr int kEpochs = 2;
    static constexpr int kSlotBytes = 32;
    static constexpr ep::u64 kCome = 64;
    static constexpr ep::u64 kReleased = kCome + kNear * 4;
    static constexpr ep::u64 kReaders = kReleased + kNear * 4;
    static constexpr ep::u64 kSlots = 128;
    static constexpr ep::u64 kInbox = 64;
    static constexpr ep::u64 kOutbox = kInbox + kEpochs * kFar * kSlotBytes;
    static constexpr int kCounters = 1;
};

/// Two keys of each source, of which each has a slot of `kBytes`, or two that are counted.
template <bool kCounts_, ep::u64 kBytes>
struct Rows {
    static constexpr int kChannel = 9;
    static constexpr bool kRail = false;
    static constexpr bool kIbgda = false;
    static constexpr bool kCounts = kCounts_;
    static constexpr bool kSkipsOwn = false;
    static constexpr bool kSkipsAbsent = false;
    static constexpr int kPeers = net_ends::kPeers;
    static constexpr int kNodeRanks = net_ends::kNear;
    static constexpr int kNear = kNodeRanks;
    static constexpr int kEpochs = 2;
    static constexpr int kKeys = kPeers * 2;
    static constexpr int kShared = kCounts ? 2 : 1;
    static constexpr int kSourceStride = 2;
    static constexpr int kArrivals = kCounts ? 2 : 1;
    static constexpr int kSlotBytes = kBytes - 8;
    static constexpr int kMeta = kSlotBytes;
    static constexpr int kFarBytes = kBytes;
    static constexpr int kRun = 1;
    static constexpr int kOnce = 0;
    static constexpr ep::u64 kFilled = 0;
    static constexpr int kSlices = 1;
    static constexpr int kFewTokens = 0;
    static constexpr ep::u64 kFlags = 64;
    static constexpr ep::u64 kClosed = kFlags + kEpochs * kNear * 2 * 8;
    static constexpr ep::u64 kReleased = kClosed + kEpochs * kNear * kShared * 8;
    static constexpr ep::u64 kTaken = kReleased + kNear * 4;
    static constexpr ep::u64 kClosers = kTaken + kPeers * kShared * 4;
    static constexpr ep::u64 kReaders = kClosers + 4;
    static constexpr ep::u64 kClosedTold = kReaders + 4;
    static constexpr ep::u64 kReleasedTold = kClosedTold + kFar * 4;
    static constexpr ep::u64 kSlots = 1024;
    static constexpr ep::u64 kCountsIn = 64;
    static constexpr ep::u64 kCountsOut = kCountsIn + kEpochs * kFar * kShared * 4;
    static constexpr ep::u64 kOutbox = 1024;
    static constexpr ep::u64 kInbox = kOutbox + kEpochs * kFar * 2 * kArrivals * kBytes;
    static constexpr int kCounters = 1;
};

using Told = Rows<false, 24>;
using Counted = Rows<true, 32>;
/// More than 32 bits count.
using Huge = Rows<true, 1 << 24>;

/// Of two ranks that are nodes of their own.
struct Pair : Told {
    static constexpr int kPeers = 2;
    static constexpr int kNodeRanks = 1;
    static constexpr int kNear = 1;
    static constexpr int kKeys = 4;
};

template <int kPeers_, int kReaders_>
struct Ring {
    static constexpr int kChannel = 7;
    static constexpr bool kRail = false;
    static constexpr bool kIbgda = false;
    static constexpr int kPeers = kPeers_;
    static constexpr int kNodeRanks = net_ends::kNear;
    static constexpr int kNear = kNodeRanks;
    static constexpr int kReaders = kReaders_;
    static constexpr int kStripes = 2;
    static constexpr int kDepth = 4;
    static constexpr int kChunk = 2;
    static constexpr int kSlotBytes = 48;
    static constexpr int kMeta = 32;
    static constexpr int kHeaderWords = 2;
    static constexpr int kRings = kStripes * kPeers;
    static constexpr int kFars = kStripes * (kPeers - kNear);
    static constexpr ep::u64 kTail = 64;
    static constexpr ep::u64 kHead = kTail + kStripes * kNear * 4;
    static constexpr ep::u64 kRetired = kHead + kStripes * kNear * 4;
    static constexpr ep::u64 kHeader = kRetired + kStripes * kNear * 4;
    static constexpr ep::u64 kTaken = kHeader + 2 * kStripes * kNear * kHeaderWords * 8;
    static constexpr ep::u64 kSent = kTaken + 2 * kRings * 4;
    static constexpr ep::u64 kPassed = kSent + 2 * kRings * 4;
    static constexpr ep::u64 kSlots = kPassed + kRings * (kDepth / kChunk + 2) * 4;
    static constexpr ep::u64 kHeadersIn = 64;
    static constexpr ep::u64 kHeadersOut = kHeadersIn + 2 * kFars * kHeaderWords * 8;
    static constexpr ep::u64 kInbox = kHeadersOut + 2 * kFars * kHeaderWords * 8;
    static constexpr ep::u64 kOutbox = kInbox + kFars * kDepth * kSlotBytes;
    static constexpr int kCounters = 1;
};

using Shared = Ring<kPeers, 2>;
using Alone = Ring<kPeers, 1>;
/// Nobody is far.
using Node = Ring<kNear, 1>;

__device__ __forceinline__ ep::u32& word_at(const ep::Group& group, int rank, ep::u64 at, int place) {
    return reinterpret_cast<ep::u32*>(group.windows[rank] + at)[place];
}

/// What a peer tells by a counter.
__device__ __forceinline__ ep::u32& counter_at(Own& own, int peer, int queue, int counter) {
    return own.counters[(peer * kQueues + queue) * kCounters + counter];
}

/// What all peers tell: the near ones in a word of the window, of which `near` is the first one.
__device__ __forceinline__ void tell_all(const ep::Group& group, Own& own, ep::u64 near, int queue, int counter,
                                         ep::u32 value) {
    for (int peer = ep::lane_index(); peer < kPeers; peer += ep::kLanes) {
        counter_at(own, peer, queue, counter) = value;
        if (peer < kNear) word_at(group, group.rank, near, peer) = value;
    }
    __syncwarp();
}

/// What the ranks of the node are told, one word of each.
__device__ __forceinline__ void dump_near(const ep::Group& group, ep::u64 at, int place, ep::i64* out) {
    __syncwarp();
    const int first = group.rank / kNear * kNear, lane = ep::lane_index();
    if (lane < kNear) out[lane] = word_at(group, first + lane, at, place);
    __syncwarp();
}

__device__ __forceinline__ void end(const ep::Team& team, const Own& own, ep::i64* out) {
    if (team.lane == 7) given_up::put(out, team, own);
}

/// Slots of one record, near and far ones, of which the last one is not free.
inline __device__ __noinline__ void sends_slots(const ep::Group& given, Own& own, ep::i64* out) {
    const ep::Group group = play(given, own, 0, 20);
    tell_all(group, own, Slots::kReleased, 0, Slots::kCounters + 1, kCall - Slots::kEpochs);
    if (ep::lane_index() == 0) counter_at(own, 31, 0, Slots::kCounters + 1) = kCall - Slots::kEpochs - 1;
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::NetSlotsOut<Slots> slots(team, &own.net);
    const int peers[6] = {19, 4, 32, 18, 5, 31};
    for (int i = 0; i < 6; ++i) {
        const bool some = slots.reserve(peers[i], 0);
        const bool is_near = peers[i] / kNear == 20 / kNear;
        const ep::i64 at = slots.slot() - (is_near ? group.windows[peers[i]] : own.net.data);
        if (team.lane == 3) out[i * 2] = some ? 1 : 0, out[i * 2 + 1] = at;
        // A team may stop between the two.
        team.stopped = team.stopped || i == 3 || i == 4;
        slots.publish();
        team.stopped = !some;
    }
    end(team, own, out + 20);
    dump_near(group, Slots::kCome, 20 % kNear, out + 40);
    dump(own, 0, out + 50);
}

/// Slots of all peers, of which that of `late` has not come; then two warps have read them, and a team that is stopped.
inline __device__ __noinline__ void takes_slots(const ep::Group& given, Own& own, int number, int late, ep::i64* out) {
    const ep::Group group = play(given, own, number, 20);
    tell_all(group, own, Slots::kCome, 0, Slots::kCounters, kCall);
    // No peer announces this rank's own slot.
    if (ep::lane_index() == 0) word_at(group, 20, Slots::kCome, 20 % kNear) = 0;
    if (ep::lane_index() == 0 && late == 18) word_at(group, 20, Slots::kCome, 18 % kNear) = kCall - 1;
    if (ep::lane_index() == 0 && late == 32) counter_at(own, 32, 0, Slots::kCounters) = kCall - 1;
    __syncwarp();
    for (int warp = 0; warp < 2; ++warp) {
        ep::Team team(group, ep::Call{kCall, false, true}, 3, 0, 1, warp, 2);
        ep::NetSlotsIn<Slots> slots(team, &own.net);
        slots.await();
        slots.release();
        end(team, own, out + warp * 600);
        dump_near(group, Slots::kReleased, 20 % kNear, out + warp * 600 + 20);
        dump(own, 0, out + warp * 600 + 30);
    }
}

/// A group that ranks 0 and 7 have left, of which this is rank 1.
__device__ __forceinline__ ep::Group without_some(const ep::Group& given, Own& own, int number) {
    ep::Group group = play(given, own, number, 1);
    group.alive = ~(1ull << 0 | 1ull << 7);
    return group;
}

/// Slots of rows, and what peers are told of them.
template <class Slots>
inline __device__ __noinline__ void sends_rows(const ep::Group& given, Own& own, ep::i64* out) {
    const ep::Group group = without_some(given, own, 0);
    tell_all(group, own, Slots::kReleased, 0, Slots::kCounters + 1, kCall - Slots::kEpochs);
    for (int i = ep::lane_index(); i < kFar; i += ep::kLanes) word_at(group, 1, Slots::kClosedTold, i) = kCall - 2;
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::SlotRowsOut<Slots, ep::NetSlotRows<Slots>> slots(team, &own.net);
    const int peers[5] = {2, 4, 7, 32, 5};
    for (int i = 0; i < 5; ++i) {
        const bool some = slots.reserve(peers[i], 2 + i % 2);
        if (team.lane == 3) out[i] = some ? 1 : 0;
        team.stopped = i == 4;
        if (some) slots.publish();
    }
    // Where nobody counts, a word stands behind each slot.
    constexpr ep::u64 kAt = Slots::kOutbox + kFar * 2 * Slots::kFarBytes + Slots::kSlotBytes;
    for (int i = team.lane; i < kFar * 2 && !Slots::kCounts; i += ep::kLanes) {
        out[100 + i] = static_cast<ep::i64>(own.data[(kAt + i * Slots::kFarBytes) / 8]);
    }
    team.stopped = false;
    slots.close(1);
    for (int i = 0; i < 4; ++i) dump_near(group, Slots::kFlags, (kNear * 2 + 2) * 2 + i, out + 10 + i * kNear);
    for (int i = 0; i < 4; ++i) {
        const int place = (kNear + 1) * Slots::kShared * 2 + i;
        dump_near(group, Slots::kClosed, place, out + 30 + i * kNear);
    }
    for (int i = team.lane; i < kFar; i += ep::kLanes) out[50 + i] = word_at(group, 1, Slots::kClosedTold, i);
    dump(own, 0, out + 200);
}

/// Slots that are farther apart than 32 bits count.
inline __device__ __noinline__ void sends_huge(const ep::Group& given, Own& own, ep::i64* out) {
    const ep::Group group = play(given, own, 0, 1);
    tell_all(group, own, Huge::kReleased, 0, Huge::kCounters + 1, kCall - Huge::kEpochs);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::SlotRowsOut<Huge, ep::NetSlotRows<Huge>> slots(team, &own.net);
    for (int i = 0; i < 2; ++i) {
        const bool some = slots.reserve(32, 3);
        if (team.lane == 3) out[i] = some ? 1 : 0;
        slots.publish();
    }
    dump(own, 0, out + 10);
}

/// The end of what one rank sends to another one.
inline __device__ __noinline__ void sends_to_one(const ep::Group& given, Own& own, ep::i64* out) {
    const ep::Group group = play(given, own, 0, 1);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::SlotRowsOut<Pair, ep::NetSlotRows<Pair>> slots(team, &own.net);
    slots.close(1);
    dump(own, 0, out);
}

/// Slots of sources that have left: what came of them before they closed does not count. Then all have been read.
inline __device__ __noinline__ void takes_rows(const ep::Group& given, Own& own, ep::i64* out) {
    const ep::Group group = without_some(given, own, 0);
    tell_all(group, own, Told::kReleased, 0, Told::kCounters, kCall);
    const int lane = ep::lane_index();
    constexpr ep::u64 kAt = Told::kInbox + kFar * 2 * Told::kFarBytes + Told::kSlotBytes;
    // One of rank 7 has come; rank 5 has closed without one.
    if (lane == 0) counter_at(own, 7, 0, Told::kCounters) = kCall - 1;
    if (lane == 0) own.data[(kAt + (7 - kNear) * 2 * Told::kFarBytes) / 8] = ep::stamped(kCall, 1);
    if (lane == 0) own.data[(kAt + (8 - kNear) * 2 * Told::kFarBytes) / 8] = ep::stamped(kCall, 1);
    for (int i = lane; i < kFar; i += ep::kLanes) word_at(group, 1, Told::kReleasedTold, i) = kCall - 2;
    for (int i = lane; i < kNear; i += ep::kLanes) word_at(group, i, Told::kReleased, 1) = 3;
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::SlotRowsIn<Told, ep::NetSlotRows<Told>> slots(team, &own.net);
    const int sources[3] = {7, 8, 5};
    for (int i = 0; i < 3; ++i) {
        const bool come = slots.arrived(sources[i] * 2);
        if (lane == 3) out[i] = come ? 1 : 0;
    }
    // Who has closed without a count has sent none that counts.
    const int count = slots.count(8);
    if (lane == 3) out[3] = count;
    slots.release();
    dump_near(group, Told::kReleased, 1, out + 10);
    for (int i = lane; i < kFar; i += ep::kLanes) out[20 + i] = word_at(group, 1, Told::kReleasedTold, i);
    end(team, own, out + 60);
    dump(own, 0, out + 80);
}

/// Where the rings of the stripe stand, and what their other ends tell.
template <class Ring>
__device__ __forceinline__ ep::Group play_rings(const ep::Group& given, Own& own, int number, int rank) {
    const ep::Group group = play(given, own, number, rank);
    for (int i = ep::lane_index(); i < 2 * Ring::kRings; i += ep::kLanes) {
        word_at(group, rank, Ring::kTaken, i) = kBase;
        word_at(group, rank, Ring::kSent, i) = kBase;
    }
    const ep::u32 told[4] = {kBase + 8, kBase, kCall - 2, kCall * Ring::kHeaderWords};
    const ep::u64 near[3] = {Ring::kTail, Ring::kHead, Ring::kRetired};
    for (int word = 0; word < 4; ++word) {
        for (int peer = ep::lane_index(); peer < Ring::kPeers; peer += ep::kLanes) {
            counter_at(own, peer, 1, Ring::kCounters + word * Ring::kStripes + kStripe) = told[word];
            if (word < 3 && peer < kNear) word_at(group, rank, near[word], kStripe * kNear + peer) = told[word];
        }
    }
    __syncwarp();
    return group;
}

/// Sequences of rings that nobody has used.
__device__ __forceinline__ ep::Sequence* fresh(ep::Sequence* all, int count) {
    for (int i = ep::lane_index(); i < count; i += ep::kLanes) all[i] = ep::Sequence{};
    __syncwarp();
    return all;
}

template <class Ring>
using Out = ep::RingsOut<Ring, ep::NetRings<Ring>>;
template <class Ring>
using In = ep::RingsIn<Ring, ep::NetRings<Ring>>;

/// Those of two ends.
struct Smem {
    ep::Sequence sequences[2 * kPeers];
};

/// A word of the header of this call of a ring.
template <class Ring>
__device__ __forceinline__ ep::u64& header_at(char* headers, int each, int ring, int word) {
    const int at = (Ring::kStripes + kStripe) * each + ring;
    return reinterpret_cast<ep::u64*>(headers)[at * Ring::kHeaderWords + word];
}

/// Messages of a ring that is near and of two that are not, with their headers; a team that stops tells nothing more.
inline __device__ __noinline__ void sends_messages(const ep::Group& given, Own& own, ep::Sequence* sequences, int late, ep::i64* out) {
    const ep::Group group = play_rings<Alone>(given, own, late, 20);
    if (ep::lane_index() == 0) word_at(group, 20, Alone::kRetired, kStripe * kNear) = kCall - 3;
    if (ep::lane_index() == 0) counter_at(own, 5, 1, Alone::kCounters + 2 * Alone::kStripes + kStripe) = kCall - 3;
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    Out<Alone> rings(team, &own.net, fresh(sequences, kPeers));
    rings.open(kStripe, ep::all_peers(kPeers));
    const int peers[3] = {19, 4, 32};
    for (int i = 0; i < 3; ++i) {
        rings.announce(peers[i], i % 2, 70 + i);
        rings.reserve(peers[i]);
        rings.publish(peers[i]);
    }
    // The headers of earlier calls of these have not been read.
    rings.announce(late, 0, 80);
    rings.announce(19, 1, 81);
    rings.announce(4, 0, 82);
    for (int peer : peers) rings.publish(peer);
    rings.close();
    end(team, own, out);
    dump_near(group, Alone::kTail, kStripe * kNear + 20 % kNear, out + 20);
    if (team.lane < 2) {
        for (int i = 0; i < kNear; ++i) {
            char* headers = group.windows[18 + i] + Alone::kHeader;
            out[30 + i * 2 + team.lane] =
                static_cast<ep::i64>(header_at<Alone>(headers, kNear, 20 % kNear, team.lane));
        }
        for (int i = 0; i < kFar; ++i) {
            char* headers = own.net.data + Alone::kHeadersOut;
            out[40 + i * 2 + team.lane] = static_cast<ep::i64>(header_at<Alone>(headers, kFar, i, team.lane));
        }
    }
    dump(own, 1, out + 200);
}

/// Takes messages of two rings, up to a number.
template <class Ring>
__device__ __forceinline__ void take(In<Ring>& rings, int near, int far) {
    const int count[2] = {near, far}, peers[2] = {19, 4};
    for (int i = 0; i < 2; ++i) {
        while (rings.taken(peers[i]) < count[i]) {
            rings.arrived(peers[i]);
            rings.release(peers[i]);
        }
    }
}

/// Two readers of which one is ahead: what senders hear when both have read a chunk, and the rest of the stripe.
inline __device__ __noinline__ void takes_messages(const ep::Group& given, Own& own, ep::Sequence* sequences, ep::i64* out) {
    const ep::Group group = play_rings<Shared>(given, own, 0, 20);
    ep::Team team(group, ep::Call{kCall, false, true}, 3), other(group, ep::Call{kCall, false, true}, 3);
    In<Shared> first(team, &own.net, fresh(sequences, kPeers)),
        second(other, &own.net, fresh(sequences + kPeers, kPeers));
    first.open(kStripe, ep::all_peers(kPeers));
    second.open(kStripe, ep::all_peers(kPeers));
    const auto look = [&](ep::i64* at) {
        dump_near(group, Shared::kHead, kStripe * kNear + 20 % kNear, at);
        dump_near(group, Shared::kRetired, kStripe * kNear + 20 % kNear, at + kNear);
        dump(own, 1, at + 10);
    };
    take<Shared>(first, 4, 4);
    look(out);
    take<Shared>(second, 4, 4);
    look(out + 600);
    take<Shared>(first, 8, 7);
    first.close();
    look(out + 1200);
    take<Shared>(second, 8, 7);
    second.close();
    look(out + 1800);
    for (int i = team.lane; i < 4 * Shared::kRings; i += ep::kLanes) out[2400 + i] = word_at(group, 20, Shared::kPassed, i);
}

/// A header that never comes; then the rings are closed, of which nobody is told.
inline __device__ __noinline__ void waits_for_header(const ep::Group& given, Own& own, ep::Sequence* sequences, int peer, ep::i64* out) {
    const ep::Group group = play_rings<Alone>(given, own, peer, 20);
    if (ep::lane_index() == 0) {
        counter_at(own, 4, 1, Alone::kCounters + 3 * Alone::kStripes + kStripe) = kCall * 2 - 1;
        char* headers = own.net.data + Alone::kHeadersIn;
        header_at<Alone>(headers, kFar, 4, 1) = 77;
    }
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    In<Alone> rings(team, &own.net, fresh(sequences, kPeers));
    rings.open(kStripe, ep::all_peers(kPeers));
    const int found = rings.header(peer, 1);
    rings.release(19);
    rings.close();
    end(team, own, out);
    if (team.lane == 3) out[20] = found;
    dump_near(group, Alone::kHead, kStripe * kNear + 20 % kNear, out + 30);
    dump_near(group, Alone::kRetired, kStripe * kNear + 20 % kNear, out + 33);
    dump(own, 1, out + 40);
}

/// Rings within a node: lanes that keep none have nothing to tell.
inline __device__ __noinline__ void takes_near(const ep::Group& given, Own& own, ep::Sequence* sequences, ep::i64* out) {
    const ep::Group group = play_rings<Node>(given, own, 0, 2);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    In<Node> rings(team, &own.net, fresh(sequences, kPeers));
    rings.open(kStripe, ep::all_peers(kNear));
    rings.arrived(1);
    rings.release(1);
    rings.close();
    end(team, own, out);
    dump_near(group, Node::kHead, kStripe * kNear + 2, out + 20);
    dump_near(group, Node::kRetired, kStripe * kNear + 2, out + 23);
}

}  // namespace net_ends

extern "C" __global__ void __launch_bounds__(32)
    net_ends_of(const __grid_constant__ net_ends::Args args) {
    using namespace net_ends;
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    Own& own = *reinterpret_cast<Own*>(group.window + 64);
    ep::i64* out = args.out;
    switch (args.check) {
        case 0: sends_slots(group, own, out); break;
        case 1: takes_slots(group, own, 0, -1, out); break;
        case 2: takes_slots(group, own, 1, 18, out); break;
        case 3: takes_slots(group, own, 2, 32, out); break;
        case 4: sends_rows<Told>(group, own, out); break;
        case 5: sends_rows<Counted>(group, own, out); break;
        case 6: sends_huge(group, own, out); break;
        case 7: takes_rows(group, own, out); break;
        case 8: sends_messages(group, own, smem.sequences, 18, out); break;
        case 9: sends_messages(group, own, smem.sequences, 5, out); break;
        case 10: takes_messages(group, own, smem.sequences, out); break;
        case 11: waits_for_header(group, own, smem.sequences, 4, out); break;
        case 12: waits_for_header(group, own, smem.sequences, 19, out); break;
        case 13: takes_near(group, own, smem.sequences, out); break;
        case 14: sends_to_one(group, own, out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
