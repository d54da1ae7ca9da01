// Ends of slots among many ranks: one warp writes the words of all of them itself, and looks at each word that an end
// leaves, and at what it records where a word is missing. The host knows what each check leaves in `out`; see
// slot_ends.rs, which has the checks in the same order.
#include <ep/slot_rows.cuh>
#include <ep/sync.cuh>

namespace slot_ends {

constexpr int kNode = 33;  // ranks of a node, of which this is the second one
constexpr int kMany = 70;
constexpr int kOwn = 20;   // this rank among those of its node
constexpr int kGroups = 44;
constexpr ep::u64 kNever = 1ull << 62;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a group has of its own.
struct Own : given_up::Own {
    ep::Presence* places[kMany];
    ep::Presence all[kMany];
    char* windows[kMany];
};

constexpr ep::u64 kChannels = 64 + kGroups * sizeof(Own);

/// A channel whose windows begin at `kAt`, `kSize` apart; nobody writes slots, so that they may share bytes.
template <ep::u64 kAt_, int kPeers_, int kEach, int kStride, bool kCounts_, bool kSkipsAbsent_>
struct Channel {
    static constexpr ep::u64 kAt = kAt_;
    // Presences are of the first 64 ranks.
    static constexpr int kFirst = kPeers_ == kNode && !kSkipsAbsent_ ? kNode : 0;
    static constexpr int kChannel = 5;
    static constexpr int kPeers = kPeers_;
    static constexpr int kEpochs = 2;
    static constexpr int kKeys = kPeers * kEach;
    static constexpr int kShared = kCounts_ ? kEach : 1;
    static constexpr int kSourceStride = kStride;
    static constexpr bool kCounts = kCounts_;
    static constexpr bool kSkipsOwn = !kSkipsAbsent_;
    static constexpr bool kSkipsAbsent = kSkipsAbsent_;
    static constexpr int kArrivals = kCounts_ ? 2 : 1;
    static constexpr int kSlotBytes = 48;
    static constexpr int kMeta = 32;
    static constexpr int kSlices = 1;
    static constexpr int kFewTokens = 0;
    static constexpr ep::u64 kFlags = 64;
    static constexpr ep::u64 kClosed = kFlags + kEpochs * kKeys * 8 + 8;
    static constexpr ep::u64 kAgreed = kClosed + kEpochs * kShared * kPeers * 8 + 8;
    static constexpr ep::u64 kReleased = kAgreed + kShared * kPeers * 8;
    static constexpr ep::u64 kTaken = kReleased + kPeers * 4;
    static constexpr ep::u64 kClosers = kTaken + kPeers * kShared * 4;
    static constexpr ep::u64 kReaders = kClosers + 4;
    static constexpr ep::u64 kSlots = (kReaders + 4 + 63) / 64 * 64;
    static constexpr ep::u64 kSize = kSlots;
    static constexpr ep::u64 kEnd = kAt + kPeers * kSize;
};

using Told = Channel<kChannels, kNode, 4, 2, false, false>;
using ToldAbsent = Channel<Told::kEnd, kNode, 4, 2, false, true>;
using Counted = Channel<ToldAbsent::kEnd, kNode, 4, 2, true, false>;
using CountedAbsent = Channel<Counted::kEnd, kNode, 4, 2, true, true>;
/// Words that begin where a window does.
struct First : Counted {
    static constexpr ep::u64 kClosed = 0;
};
using Unnamed = Channel<CountedAbsent::kEnd, kNode, 1, 0, false, false>;
using Many = Channel<Unnamed::kEnd, kMany, 1, 1, false, false>;

__device__ __forceinline__ Own* own_of(const ep::Group& given, int number) {
    return reinterpret_cast<Own*>(given.window + 64) + number;
}

/// Group `number`, of which the peers of a channel are.
template <class Slots>
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number) {
    Own* own = own_of(given, number);
    for (int i = ep::lane_index(); i < Slots::kPeers; i += ep::kLanes) {
        own->windows[Slots::kFirst + i] = given.window + Slots::kAt + i * Slots::kSize;
    }
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) own->places[i] = own->all + i;
    if (ep::lane_index() == 0) own->state.presences = own->places;
    __syncwarp();
    return given_up::group_of(given, *own, number, own->windows, Slots::kFirst + kOwn);
}

/// One in which some ranks are left out, and another one is missed if the channel asks for that.
template <class Slots>
__device__ __forceinline__ ep::Group without_some(const ep::Group& given, int number) {
    ep::Group group = group_of<Slots>(given, number);
    group.alive = ~(1ull << Slots::kFirst | 1ull << (Slots::kFirst + 7));
    if (Slots::kSkipsAbsent && ep::lane_index() == 6) ep::miss(group, Slots::kFirst + 9);
    __syncwarp();
    return group;
}

__device__ __forceinline__ ep::u64* wide(char* window, ep::u64 at) {
    return reinterpret_cast<ep::u64*>(window + at);
}

__device__ __forceinline__ ep::u32* narrow(char* window, ep::u64 at) {
    return reinterpret_cast<ep::u32*>(window + at);
}

/// Key `number` of a source.
template <class Slots>
__device__ __forceinline__ int key_of(int number, int source) {
    constexpr int kStride = Slots::kSourceStride == 0 ? 1 : Slots::kSourceStride;
    return (number / kStride * Slots::kPeers + source) * kStride + number % kStride;
}

/// The source that a key names; -1: none.
template <class Slots>
__device__ __forceinline__ int key_source(int key) {
    return Slots::kSourceStride == 0 ? -1 : key / 2 % Slots::kPeers;
}

/// How many of the words of all windows are not 0, and what is in those of a place, peer by peer.
template <class Slots>
__device__ __forceinline__ void dump(const ep::Group& group, ep::u64 at, int count, int place,
                                     ep::i64* out) {
    __syncwarp();
    int some = 0;
    for (int peer = 0; peer < Slots::kPeers; ++peer) {
        const ep::u64* words = wide(group.windows[group.rank - kOwn + peer], at);
        for (int i = ep::lane_index(); i < count; i += ep::kLanes) some += words[i] != 0 ? 1 : 0;
        if (ep::lane_index() == 3) out[1 + peer] = static_cast<ep::i64>(words[place]);
    }
    for (int step = 1; step < ep::kLanes; step *= 2) some += __shfl_xor_sync(ep::kAllLanes, some, step);
    if (ep::lane_index() == 3) out[0] = some;
    __syncwarp();
}

/// Slots to peers that take part or do not: which are taken, and the words that all peers are told.
template <class Slots>
__device__ __forceinline__ void sends(const ep::Group& given, int number, ep::i64* out) {
    const ep::Group group = without_some<Slots>(given, number);
    ep::Team team(group, ep::Call{7, false, true}, 3);
    ep::u32* released = narrow(group.window, Slots::kReleased);
    for (int peer = team.lane; peer < Slots::kPeers; peer += ep::kLanes) released[peer] = 5;
    __syncwarp();
    constexpr int kClosedKeys = Slots::kShared * Slots::kPeers;
    constexpr int kWords = Slots::kCounts ? 4 : 1;
    ep::SlotRowsOut<Slots> slots(team);
    const int peers[7] = {4, 4, 0, 9, 11, 4, 32}, numbers[7] = {3, 3, 1, 1, 0, 2, 3};
    for (int i = 0; i < 7; ++i) {
        if (!Slots::kCounts && i == 1) continue;  // one slot a key
        const bool some = slots.reserve(peers[i], key_of<Slots>(numbers[i], kOwn));
        const char* all = group.windows[Slots::kFirst + peers[i]] + Slots::kSlots;
        const ep::i64 at = slots.slot() - all;
        if (team.lane == 2) {
            out[i * 3] = some ? 1 : 0;
            out[i * 3 + 1] = slots.position();
            out[i * 3 + 2] = at;
        }
        // The last one of a team that is stopped.
        team.stopped = i == 6;
        if (some) slots.publish();
    }
    dump<Slots>(group, Slots::kFlags, 2 * Slots::kKeys, Slots::kKeys + key_of<Slots>(3, kOwn), out + 30);
    team.stopped = false;
    const ep::u32* taken = narrow(group.window, Slots::kTaken);
    for (int i = team.lane; i < kWords * Slots::kPeers; i += ep::kLanes) {
        out[70 + i] = static_cast<ep::i64>(taken[i]);
    }
    slots.close(2);
    dump<Slots>(group, Slots::kClosed, 2 * kClosedKeys, 0, out + 210);
    slots.close(2);
    for (int i = 0; i < kWords; ++i) {
        const int key = ep::SlotKeys<Slots>::key_of(i, kOwn);
        dump<Slots>(group, Slots::kClosed, 2 * kClosedKeys, kClosedKeys + key, out + 250 + i * 40);
    }
    // Another time of the same call, stopped: what is told stays.
    team.stopped = true;
    if (team.leader()) narrow(group.window, Slots::kTaken)[4 * Slots::kShared] = 9;
    slots.close(1);
    const int first = ep::SlotKeys<Slots>::key_of(0, kOwn);
    dump<Slots>(group, Slots::kClosed, 2 * kClosedKeys, kClosedKeys + first, out + 420);
    if (team.lane == 1) {
        out[460] = taken[4 * Slots::kShared];
        out[461] = narrow(group.window, Slots::kClosers)[0];
        given_up::put(out + 462, team, *own_of(given, number));
    }
}

/// Slots that are free or not when they are asked for; a peer's are known to be free behind the first time, if it is
/// one of the first 64.
__device__ __forceinline__ void reserves(const ep::Group& given, int number, ep::i64* out) {
    const ep::Group group = group_of<Many>(given, number);
    ep::Team team(group, ep::Call{9, false, true}, 3);
    Own* own = own_of(given, number);
    ep::SlotRowsOut<Many> slots(team);
    const int peers[14] = {0, 0, 0, 1, 64, 64, 64, 63, 63, 62, 65, 69, 1, 2};
    const bool free[14] = {false, true,  false, false, false, true, false,
                           true,  false, false, false, true,  true, false};
    for (int i = 0; i < 14; ++i) {
        if (team.leader()) {
            narrow(group.window, Many::kReleased)[peers[i]] = free[i] ? 7 : 6;
            own->stop = 0;
        }
        __syncwarp();
        team.stopped = false;
        const bool some = slots.reserve(peers[i], peers[i]);
        if (team.lane == 1) out[i] = (some ? 2 : 0) + (team.stopped ? 1 : 0);
        if (i == 0 && team.lane == 1) given_up::put(out + 20, team, *own);
        __syncwarp();
    }
}

/// What is said of the times of waits, lane by lane: how often they begin, how often something is found, and of which
/// source the last look was, and whether it was there; and how much all that was found weighs.
class Noted {
public:
    __device__ __forceinline__ Noted(const ep::Team& team, ep::i64* out) : out_(out + team.lane * 5) {
        for (int i = 0; i < 5; ++i) out_[i] = 0;
        all_ = out + ep::kLanes * 5;
        if (team.leader()) *all_ = 0;
        __syncwarp();
    }

    __device__ __forceinline__ void begin() { ++out_[0]; }

    __device__ __forceinline__ bool found(int source, bool here) {
        out_[1] += here ? 1 : 0;
        out_[2] = source;
        out_[3] = here ? 1 : 0;
        out_[4] += here ? (source + 2) * (source + 2) : 0;
        return here;
    }

    __device__ __forceinline__ void add() const {
        if (ep::lane_index() == 0) ++*all_;
        __syncwarp();
    }

private:
    ep::i64* out_;
    ep::i64* all_;
};

template <class Slots>
using In = ep::SlotRowsIn<Slots, ep::WindowSlots<Slots>, Noted>;

/// Writes words of slots that have come, a lane each, and before the first of them one that nobody owns.
template <class Slots>
__device__ __forceinline__ void fill(const ep::Team& team, int key, ep::u32 epoch) {
    ep::u64* flags = wide(team.group.window, Slots::kFlags) + Slots::kKeys;
    if (team.leader()) flags[-1] = ep::stamped(team.epoch, 1);
    if (key >= 0) flags[key] = ep::stamped(epoch, 1);
    __syncwarp();
}

/// Waits for slots, a lane each; the answer, what is recorded, and what is noted of times.
template <class Slots>
__device__ __forceinline__ void wait_for(const ep::Group& group, const Own& own, int key, bool stopped,
                                         ep::i64* out) {
    ep::Team team(group, ep::Call{7, false, true}, 3);
    team.stopped = stopped;
    In<Slots> slots(team, out + 20);
    const ep::u32 lanes = slots.wait_for(key);
    if (team.lane == 5) out[0] = lanes;
    if (team.lane == 5) given_up::put(out + 1, team, own);
    __syncwarp();
}

/// Slots that have come, that never come, and that a team which is stopped does not look at.
__device__ __forceinline__ void looks(const ep::Group& given, ep::i64* out) {
    const int lane = ep::lane_index(), key = lane < 12 ? key_of<Told>(lane % 4, lane) : -1;
    const ep::Group all = group_of<Told>(given, 1), some = without_some<Told>(given, 2);
    const ep::Group absent = without_some<ToldAbsent>(given, 3), last = group_of<Told>(given, 4);
    const ep::Call call{7, false, true};
    ep::Team team(all, call, 3), other(absent, call, 3);
    // All have come.
    fill<Told>(team, key, 7);
    wait_for<Told>(all, *own_of(given, 1), key, false, out);
    wait_for<Told>(all, *own_of(given, 1), key, true, out + 200);
    // Some are not there: sources 0 and 7 take no part, and 5 has closed.
    fill<Told>(team, lane == 0 || lane == 5 || lane == 7 ? key : -1, 5);
    if (lane == 2) wide(all.window, Told::kClosed)[Told::kPeers + 5] = ep::stamped(7, 1);
    __syncwarp();
    wait_for<Told>(some, *own_of(given, 2), key, false, out + 400);
    // With all ranks it is waited for.
    wait_for<Told>(last, *own_of(given, 4), lane == 5 ? key : -1, false, out + 600);
    // Source 9 is missed, whose slot has come.
    fill<ToldAbsent>(other, key, 7);
    wait_for<ToldAbsent>(absent, *own_of(given, 3), key, false, out + 800);
    // Sources 0, which has closed, and 6, of which another one behind has.
    const ep::Group late = without_some<Told>(given, 5);
    ep::Group first = group_of<Told>(given, 6);
    first.alive = ~(1ull << (kNode + 7));
    if (lane == 2) wide(all.window, Told::kClosed)[Told::kPeers] = ep::stamped(7, 1);
    fill<Told>(team, lane == 6 ? key : -1, 5);
    wait_for<Told>(first, *own_of(given, 6), lane == 0 ? key : -1, false, out + 1000);
    wait_for<Told>(late, *own_of(given, 5), lane == 6 ? key : -1, false, out + 1200);
}

/// Slots whose keys name no source: all have to close.
__device__ __forceinline__ void unnamed(const ep::Group& given, ep::i64* out) {
    const int lane = ep::lane_index();
    // Everyone takes part; then one rank does not, and another one has not closed; all but it have.
    const int missing[4] = {-1, 12, 0, -1};
    for (int c = 0; c < 4; ++c) {
        ep::Group group = group_of<Unnamed>(given, 7 + c);
        if (c > 0) group.alive = ~(1ull << (kNode + 7));
        for (int peer = lane; peer < Unnamed::kPeers; peer += ep::kLanes) {
            const bool closes = peer != missing[c] && peer != 7 && c > 0;
            wide(group.window, Unnamed::kClosed)[Unnamed::kPeers + peer] = closes ? ep::stamped(7, 1) : 0;
        }
        __syncwarp();
        wait_for<Unnamed>(group, *own_of(given, 7 + c), lane == 3 ? 11 : -1, false, out + c * 200);
    }
}

/// Parts of a token of which some never come.
__device__ __forceinline__ void parts(const ep::Group& given, ep::i64* out) {
    const ep::Group group = without_some<Told>(given, 11);
    ep::Team team(group, ep::Call{7, false, true}, 3);
    // Of sources 0 and 7 nothing comes.
    ep::i32 keys[2];
    for (int g = 0; g < 2; ++g) {
        const int source = (team.lane * 3 + g) % 16;
        const bool some = team.lane < 16 && team.lane % 4 != 3;
        keys[g] = some ? key_of<Told>(g, source) : -1;
        fill<Told>(team, source == 7 || source == 0 ? -1 : keys[g], 7);
    }
    using Slots = ep::SlotRowsIn<Told>;
    Slots slots(team);
    ep::SlotParts<Slots, 40> parts(team, slots);
    const bool done = parts.arrived(keys, true);
    out[team.lane] = done ? keys[0] : -9;
    out[32 + team.lane] = keys[1];
    if (team.lane == 4) {
        const char* all = group.window + Told::kSlots;
        out[64] = parts.row(0, keys[0]) - all;
        out[65] = parts.meta(1, keys[1]) - all;
    }
}

/// The count of a key, the word of `kAgreed` that keeps it, and the count when it is asked for again.
template <class Slots>
__device__ __forceinline__ void count(const ep::Group& group, const Own& own, ep::u32 epoch, int key,
                                      bool stopped, ep::i64* out) {
    ep::Team team(group, ep::Call{epoch, false, true}, 3);
    team.stopped = stopped;
    In<Slots> slots(team, out + 20);
    const int count = slots.count(key);
    ep::u64* word = wide(group.window, Slots::kClosed) + epoch % 2 * Slots::kKeys + key;
    if (team.lane == 4) {
        out[0] = count;
        out[1] = static_cast<ep::i64>(wide(group.window, Slots::kAgreed)[key]);
        given_up::put(out + 2, team, own);
        *word = ep::stamped(epoch, 900);
    }
    __syncwarp();
    const int again = slots.count(key);
    if (team.lane == 4) out[18] = again;
    __syncwarp();
}

/// Keys that are closed, that are not, and of ranks that take no part or are missed.
template <class Slots>
__device__ __forceinline__ void counts(const ep::Group& given, int number, ep::i64* out) {
    const int lane = ep::lane_index();
    const int sources[8] = {4, 7, 9, 4, 4, 11, 0, 13}, numbers[8] = {3, 1, 2, 0, 1, 3, 0, 2};
    for (int c = 0; c < 8; ++c) {
        const ep::Group group =
            c == 6 ? group_of<Slots>(given, number + c) : without_some<Slots>(given, number + c);
        const int key = key_of<Slots>(numbers[c], sources[c]);
        // One word is of an earlier call; in call 0 one that nobody wrote tells nothing.
        const ep::u32 epoch = c == 7 ? 0 : 7, told = c == 5 ? 5 : epoch;
        ep::u64* words = wide(group.window, Slots::kClosed) + epoch % 2 * Slots::kKeys;
        if (lane == 1 && c != 7) words[key] = ep::stamped(told, 18 + c);
        __syncwarp();
        // Who may be absent shows no sign of life, and is missed at the first look around.
        count<Slots>(group, *own_of(given, number + c), epoch, key, c == 3, out + c * 200);
    }
}

/// What a reader tells all sources: once it is the last one, and is not stopped.
template <class Slots>
__device__ __forceinline__ void releases(const ep::Group& given, int number, ep::i64* out) {
    const ep::Group group = without_some<Slots>(given, number);
    const auto release = [&](int warps, bool stopped, ep::i64* out) {
        ep::Team team(group, ep::Call{7, false, true}, 3, 0, 1, 0, warps);
        team.stopped = stopped;
        In<Slots> slots(team, out + 40);
        slots.release();
        if (team.lane != 9) return;
        for (int peer = 0; peer < Slots::kPeers; ++peer) {
            out[peer] = narrow(group.windows[Slots::kFirst + peer], Slots::kReleased)[kOwn];
        }
        out[kNode] = narrow(group.window, Slots::kReaders)[0];
    };
    release(1, true, out);
    __syncwarp();
    release(2, false, out + 200);
    __syncwarp();
    release(2, false, out + 400);
}

/// Waits for all slots or keys of a call, of which one, if any, is of an earlier one.
template <class Slots>
__device__ __forceinline__ void await(const ep::Group& group, const Own& own, int late, ep::i64* out) {
    constexpr int kWords = Slots::kCounts ? Slots::kShared * Slots::kPeers : Slots::kKeys;
    ep::u64* words = wide(group.window, Slots::kCounts ? Slots::kClosed : Slots::kFlags) + kWords;
    for (int key = ep::lane_index(); key < kWords; key += ep::kLanes) {
        const int source = key_source<Slots>(key);
        const bool skips = Slots::kSkipsOwn && source == kOwn;
        // Nobody fills those of ranks that take no part, nor sends to itself where that is left out.
        const bool some = source < 0 || (ep::is_alive(group, Slots::kFirst + source) && !skips);
        words[key] = some ? ep::stamped(key == late ? 5 : 7, 1) : 0;
    }
    __syncwarp();
    ep::Team team(group, ep::Call{7, false, true}, 3);
    In<Slots> slots(team, out + 20);
    slots.await();
    if (team.lane == 5) given_up::put(out + 1, team, own);
    __syncwarp();
}

/// All slots or keys: with and without some ranks, and with one that is late.
__device__ __forceinline__ void awaits(const ep::Group& given, ep::i64* out) {
    for (int c = 0; c < 4; ++c) {
        const ep::Group told = c == 0 || c == 2 ? group_of<Told>(given, 31 + c) : without_some<Told>(given, 31 + c);
        const int late = c < 2 ? -1 : c == 2 ? 0 : key_of<Told>(3, 12);
        await<Told>(told, *own_of(given, 31 + c), late, out + c * 200);
        const ep::Group counted =
            c == 0 || c == 2 ? group_of<Counted>(given, 35 + c) : without_some<Counted>(given, 35 + c);
        await<Counted>(counted, *own_of(given, 35 + c), late, out + 800 + c * 200);
    }
    ep::Group absent = without_some<CountedAbsent>(given, 39);
    if (ep::lane_index() == 2) ep::miss(absent, 7);
    __syncwarp();
    await<CountedAbsent>(absent, *own_of(given, 39), -1, out + 1600);
    for (int c = 0; c < 2; ++c) {
        // The rank before the first peer takes no part.
        ep::Group group = group_of<Unnamed>(given, 40 + c);
        group.alive = ~(1ull << (kNode - 1));
        ep::u64* closed = wide(group.window, Unnamed::kClosed) + Unnamed::kPeers;
        if (ep::lane_index() == 0) closed[13] = 0;
        await<Unnamed>(group, *own_of(given, 40 + c), c == 0 ? -1 : 32, out + 1800 + c * 200);
    }
}

/// One slot, more of a key than there are, and how many the sources before have filled.
__device__ __forceinline__ void alone(const ep::Group& given, ep::i64* out) {
    const ep::Group told = group_of<Told>(given, 42), counted = without_some<Counted>(given, 43);
    ep::Team team(told, ep::Call{7, false, true}, 3), other(counted, ep::Call{7, false, true}, 3);
    const int key = key_of<Told>(1, 6);
    fill<Told>(team, team.lane == 0 ? key : -1, 7);
    In<Told> slots(team, out + 20);
    const bool come = slots.arrived(key);
    if (team.lane == 4) out[0] = come ? 1 : 0;
    ep::u64* closed = wide(counted.window, Counted::kClosed) + Counted::kKeys;
    for (int i = team.lane; i < Counted::kKeys; i += ep::kLanes) closed[i] = ep::stamped(7, i + 1);
    for (int i = team.lane; i < Counted::kPeers; i += ep::kLanes) {
        narrow(counted.window, Counted::kReleased)[i] = 5;
    }
    __syncwarp();
    ep::SlotRowsIn<Counted> in(other);
    const int base = in.base(key_of<Counted>(3, 5)), none = in.base(key_of<Counted>(2, 0));
    if (team.lane == 4) out[1] = base * 1000 + none;
    ep::SlotRowsOut<Counted> sender(other);
    for (int i = 0; i < 4; ++i) {
        const bool some = sender.reserve(8, key_of<Counted>(2, kOwn));
        if (team.lane == 4) out[2 + i] = some ? sender.position() : -1;
    }
    if (team.lane == 4) given_up::put(out + 200, other, *own_of(given, 43));
    // Nothing is before them that a lane without a key could look at.
    ep::Group first = told;
    first.window = given.window;
    ep::Team alone(first, ep::Call{8, false, true}, 3);
    if (team.leader()) wide(given.window, First::kClosed)[4] = ep::stamped(8, 4);
    __syncwarp();
    ep::SlotRowsIn<First> few(alone);
    const int filled = few.count(4);
    if (team.lane == 4) out[6] = filled;
}

}  // namespace slot_ends

extern "C" __global__ void __launch_bounds__(32)
    slot_ends_of(const __grid_constant__ slot_ends::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const auto& group = args.group;
    ep::i64* out = args.out;
    using namespace slot_ends;
    if (warp == 0) {
        switch (args.check) {
            case 0: sends<Told>(group, 0, out); break;
            case 1: sends<ToldAbsent>(group, 0, out); break;
            case 2: sends<Counted>(group, 0, out); break;
            case 3: sends<CountedAbsent>(group, 0, out); break;
            case 4: reserves(group, 12, out); break;
            case 5: looks(group, out); break;
            case 6: unnamed(group, out); break;
            case 7: parts(group, out); break;
            case 8: counts<Counted>(group, 13, out); break;
            case 9: counts<CountedAbsent>(group, 23, out); break;
            case 10: releases<Told>(group, 21, out); break;
            case 11: releases<CountedAbsent>(group, 22, out); break;
            case 12: awaits(group, out); break;
            case 13: alone(group, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
