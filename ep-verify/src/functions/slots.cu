// Slots of keys between two ranks: those that a sender counts, those that say one by one that they have come,
// more messages than slots, a rank that is left out, and one that does not answer. The host knows what each check
// leaves in `out`; see slots.rs, which has the checks in the same order.
#include <ep/slot_rows.cuh>
#include <ep/sync.cuh>

namespace slots {

constexpr int kRanks = 2;
constexpr int kWarps = 2;
constexpr int kArrivals = 10;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// A channel from `kAt` of the window on, with so many keys of a source, which are `kStride` apart from those of
/// the next one.
template <ep::u64 kAt, int kEach, int kStride, bool kCounts_, bool kSkipsOwn_,
          bool kSkipsAbsent_ = false>
struct Channel {
    static constexpr int kChannel = 5;
    static constexpr int kPeers = kRanks;
    static constexpr int kEpochs = 2;
    static constexpr int kKeys = kRanks * kEach;
    static constexpr int kShared = kCounts_ ? kEach : 1;
    static constexpr int kSourceStride = kStride;
    static constexpr bool kCounts = kCounts_;
    static constexpr bool kSkipsOwn = kSkipsOwn_;
    static constexpr bool kSkipsAbsent = kSkipsAbsent_;
    static constexpr int kArrivals = kCounts_ ? slots::kArrivals : 1;
    static constexpr int kSlotBytes = 48;
    static constexpr int kMeta = 32;
    static constexpr ep::u64 kSlots = kAt;
    static constexpr int kSlices = 1;
    static constexpr int kFewTokens = 0;
    static constexpr ep::u64 kFlags = kSlots + kEpochs * kKeys * kArrivals * kSlotBytes;
    static constexpr ep::u64 kClosed = kFlags + kEpochs * kKeys * 8;
    static constexpr ep::u64 kReleased = kClosed + kEpochs * kShared * kRanks * 8;
    static constexpr ep::u64 kTaken = kReleased + kRanks * 4;
    static constexpr ep::u64 kClosers = kTaken + kRanks * kShared * 4;
    static constexpr ep::u64 kReaders = kClosers + 4;
    static constexpr ep::u64 kAgreed = kReaders + 4;
};

using Counted = Channel<1024, 3, 1, true, false>;
using Others = Channel<8192, 3, 3, true, true>;
using Told = Channel<16384, 40, 40, false, false>;
using Full = Channel<27648, 3, 1, true, false>;
using CountedAlone = Channel<34816, 3, 1, true, false>;
using ToldAlone = Channel<43008, 40, 40, false, false>;
using CountedAbsent = Channel<54272, 3, 1, true, false, true>;
using ToldAbsent = Channel<61440, 40, 40, false, false, true>;
using Agreed = Channel<72704, 32, 1, true, false, true>;

/// The rank that is so far behind this one.
__device__ __forceinline__ int rank_at(const ep::Team& team, int far) {
    return (static_cast<int>(team.group.rank) + far) % kRanks;
}

/// Key `number` of a source.
template <class Slots>
__device__ __forceinline__ int key_of(int number, int source) {
    if constexpr (Slots::kCounts) return ep::SlotKeys<Slots>::key_of(number, source);
    return source * Slots::kSourceStride + number;
}

/// Messages of one rank in a turn: none, some, or as many as there are slots.
template <class Slots>
__device__ __forceinline__ int messages(int turn) {
    if (!Slots::kCounts) return Slots::kKeys;
    return turn == 1 ? 0 : turn == 2 ? kRanks * 3 * kArrivals : 28;
}

/// Fills slots of both ranks: a row of four numbers, and beside it which of the slots of its key it is.
template <class Slots>
__device__ __forceinline__ void send(ep::Team& team, int turn) {
    constexpr int kEach = Slots::kKeys / kRanks;
    const int own = static_cast<int>(team.group.rank);
    ep::SlotRowsOut<Slots> slots(team);
    for (int i = team.index(); i < messages<Slots>(turn); i += team.count()) {
        const int peer = rank_at(team, i % 2);
        if (Slots::kSkipsOwn && peer == own) continue;
        if (!slots.reserve(peer, key_of<Slots>(i / 2 % kEach, own))) continue;
        ep::i64* row = reinterpret_cast<ep::i64*>(slots.slot());
        if (team.lane < 4) row[team.lane] = (turn * 100ll + i) * 10 + team.lane;
        if (team.lane == 9) row[Slots::kMeta / 8] = slots.position();
        slots.publish();
    }
    slots.close(team.count());
}

/// What a slot holds: its row at the place of its message, and the number beside it if that is known.
__device__ __forceinline__ void look(const char* slot, const char* meta, int lane, int turn,
                                     ep::i64* out) {
    const ep::i64* row = reinterpret_cast<const ep::i64*>(slot);
    ep::i64* own = out + 20 + (row[0] / 10 - turn * 100) * 5;
    if (lane < 4) own[lane] = row[lane];
    if (lane == 4 && meta != nullptr) own[4] = *reinterpret_cast<const ep::i64*>(meta);
}

/// Takes what is counted: how many of each key, and how many of the sources before.
template <class Slots>
__device__ __forceinline__ void receive(ep::Team& team, int turn, ep::i64* out) {
    ep::SlotRowsIn<Slots> slots(team);
    if (turn % 2 == 1) slots.await();
    for (int i = team.index(); i < Slots::kKeys; i += team.count()) {
        const int source = rank_at(team, i % 2);
        if (Slots::kSkipsOwn && source == static_cast<int>(team.group.rank)) continue;
        const int key = key_of<Slots>(i / 2, source);
        const int count = slots.count(key), base = slots.base(key);
        if (team.lane == 11) out[i] = count;
        // Where ranks differ in whom they hear, they differ in this as well.
        const int place = 10 + i / 2 * 2 + (Slots::kSkipsOwn ? 0 : source);
        const bool is_alike = ep::everyone_is_alive(team.group) && !Slots::kSkipsAbsent;
        if (team.lane == 12 && is_alike) out[place] = base;
        for (int arrival = 0; arrival < count; ++arrival) {
            const char* slot = slots.slot(key, arrival);
            look(slot, nullptr, team.lane, turn, out);
            const ep::i64 position = *reinterpret_cast<const ep::i64*>(slot + Slots::kMeta);
            if (team.lane == 13 && position != arrival) out[19] = position;
        }
    }
    slots.release();
}

/// Takes slots that have a flag each: after a wait for all of them, after a wait for each, or with a slot per lane.
template <class Slots>
__device__ __forceinline__ void receive_told(ep::Team& team, int turn, ep::i64* out) {
    constexpr int kEach = Slots::kKeys / kRanks;
    using In = ep::SlotRowsIn<Slots>;
    In slots(team);
    const int source = rank_at(team, team.index() % 2);
    if (turn == 2) {
        ep::SlotParts<In, kEach> parts(team, slots);
        ep::i32 keys[2];
        for (int g = 0; g < 2; ++g) {
            const int number = g * ep::kLanes + team.lane;
            keys[g] = number < kEach ? key_of<Slots>(number, source) : -1;
        }
        const bool done = parts.arrived(keys, true);
        const int first = __shfl_sync(ep::kAllLanes, keys[0], 0), group = team.index() / 2;
        if (team.leader()) out[team.index()] = done && first >= 0 ? 1 : 0;
        for (int lane = 0; lane < 5 && keys[group] >= 0; ++lane) {
            look(parts.row(group, keys[group]), parts.meta(group, keys[group]), lane, turn, out);
        }
    } else {
        if (turn == 0) slots.await();
        for (int number = team.index() / 2; number < kEach; number += 2) {
            const int key = key_of<Slots>(number, source);
            if (turn == 1 && !slots.arrived(key)) continue;
            const bool may_lack = !ep::everyone_is_alive(team.group) || Slots::kSkipsAbsent;
            if (turn == 0 && may_lack && source != static_cast<int>(team.group.rank)) continue;
            const char* slot = slots.slot(key, 0);
            look(slot, slot + In::kMeta, team.lane, turn, out);
        }
    }
    slots.release();
}

/// A group of one's own, as zero as its words in the window: for a stop that nobody else sees.
struct Own {
    ep::State state;
    ep::u32 stop;
    ep::u32 room[9];
    ep::Record records[2];
};

/// More messages of a key than slots: the one too many stops the team, which closes nothing.
__device__ __forceinline__ void overflow(const ep::Group& given, const ep::Call& call, ep::i64* out) {
    Own* own = reinterpret_cast<Own*>(given.window + 64);
    ep::Group group = given;
    group.state = &own->state;
    group.stop = &own->stop;
    group.records = own->records;
    group.record_capacity = 2;
    ep::Team team(group, call, 4, 0, 1, 0, 1);
    team.epoch = 1;
    const int rank = static_cast<int>(given.rank);
    const int key = ep::SlotKeys<Full>::key_of(1, rank);
    ep::SlotRowsOut<Full> slots(team);
    int taken = 0;
    for (int i = 0; i < kArrivals + 3; ++i) {
        const bool some = slots.reserve(rank, key);
        if (team.leader()) out[i] = some ? slots.position() : -1;
        taken += some ? 1 : 0;
    }
    slots.close(1);
    if (team.lane != 3) return;
    const ep::Record& record = own->records[0];
    const ep::u64* closed = reinterpret_cast<const ep::u64*>(given.window + Full::kClosed);
    ep::i64 told = 0;
    for (int i = 0; i < Full::kEpochs * Full::kKeys; ++i) told += closed[i] != 0 ? 1 : 0;
    const ep::i64 all[9] = {taken,       team.stopped,  own->stop,    own->state.records,
                            record.kind, record.want,   record.seen,  record.peer - rank,
                            told};
    for (int i = 0; i < 9; ++i) out[20 + i] = all[i];
}

/// What this rank has taken of slots of both ranks, which is zero between calls.
template <class Slots>
__device__ __forceinline__ void sum_taken(const ep::Group& group, ep::i64* out) {
    const ep::u32* taken = reinterpret_cast<const ep::u32*>(group.window + Slots::kTaken);
    out[0] = 0;
    for (int i = 0; i < kRanks * Slots::kShared; ++i) out[0] += ep::load_relaxed_gpu(taken + i);
}

/// A call of a channel, whose calls are counted from `first` on.
template <class Slots>
__device__ __forceinline__ void call_of(const ep::Team& given, ep::u32 first, int turn, ep::i64* out) {
    ep::Team team = given;
    team.epoch = first + static_cast<ep::u32>(turn);
    send<Slots>(team, turn);
    if constexpr (Slots::kCounts) {
        receive<Slots>(team, turn, out);
    } else {
        receive_told<Slots>(team, turn, out);
    }
}

/// What the warps of this rank know of a group, and whom all of them miss.
struct Known {
    struct {
        ep::State state;
        ep::Presence* places[kRanks];
    } warps[2 * kWarps];
    ep::Presence all[kRanks];
};

constexpr ep::u64 kKnown = 137216;  // behind the channels, four of them
constexpr ep::u64 kFound = kKnown + 4 * sizeof(Known);
constexpr ep::u64 kTurn = kFound + 60 * 8;
using Closed = Channel<kTurn + 8, 1, 1, false, false>;
constexpr ep::u64 kNever = 1ull << 62;

/// A group of which this rank misses who does not answer for so long; `number`: which `Known` is its own.
__device__ __forceinline__ ep::Group group_of(const ep::Team& team, int number, ep::u64 timeout) {
    Known* known = reinterpret_cast<Known*>(team.group.window + kKnown) + number;
    auto& own = known->warps[team.index()];
    if (team.lane < kRanks) own.places[team.lane] = known->all + team.lane;
    if (team.leader()) own.state.presences = own.places;
    __syncwarp();
    ep::Group group = team.group;
    group.state = &own.state;
    group.timeout_ns = timeout;
    return group;
}

/// A call in which the other rank does not answer, or has not in an earlier one.
template <class Slots>
__device__ __forceinline__ void call_without(const ep::Team& given, int number, ep::u32 epoch,
                                             int turn, ep::i64* out) {
    const ep::u64 timeout = epoch == 1 ? given.group.timeout_ns : kNever;
    const ep::Group group = group_of(given, number, timeout);
    ep::Group alone = group;
    if (epoch == 1) alone.alive = ~3ull | 1ull << alone.rank;
    const auto team_of = [&](const ep::Group& it) {
        const ep::Call call{epoch, false, true};
        return ep::Team(it, call, 0, given.block, given.blocks, given.warp, given.warps);
    };
    ep::Team sender = team_of(alone), team = team_of(group);
    send<Slots>(sender, turn);
    if constexpr (Slots::kCounts) {
        receive<Slots>(team, turn, out);
    } else {
        receive_told<Slots>(team, turn, out);
    }
}

/// How many slots of a key its source has filled, and what is in the first one.
__device__ __forceinline__ ep::i64 look_at(ep::Team& team, int key) {
    ep::SlotRowsIn<Agreed> slots(team);
    const int count = slots.count(key);
    if (count == 0) return 0;
    return count * 10000ll + *reinterpret_cast<const ep::i64*>(slots.slot(key, 0));
}

/// Two warps, of which one misses the other rank, and its counts that come meanwhile: each of 30 keys is there for
/// both or for neither. `is_over`: what they have found, and two keys more, one after the other.
__device__ __forceinline__ void agree(const ep::Team& given, bool is_over, ep::i64* out) {
    const int self = static_cast<int>(given.group.rank), other = 1 - self;
    const auto key_from = [](int number, int source) { return key_of<Agreed>(number, source); };
    const auto team_of = [&](const ep::Group& group) {
        return ep::Team(group, ep::Call{1, false, true}, 0);
    };
    ep::i64* found = reinterpret_cast<ep::i64*>(given.group.window + kFound);
    const ep::Group sure = group_of(given, 2, kNever), patient = group_of(given, 3, kNever);
    ep::Team sure_team = team_of(sure), patient_team = team_of(patient);
    if (given.index() == 0) {
        if (given.lane == 7) ep::miss(sure, other);
        __syncwarp();
        for (int i = 29; i >= 0 && !is_over; --i) {
            const ep::i64 it = look_at(sure_team, key_from(i, other));
            if (given.leader()) found[i] = it;
        }
        for (int i = 0; i < 30 && is_over; ++i) {
            const bool is_one = found[i] == 0 || found[i] == 57000 + i;
            if (given.leader()) out[i] = is_one && found[i] == found[30 + i] ? 1 : 0;
        }
        if (!is_over) return;
        const ep::i64 last[4] = {look_at(sure_team, key_from(30, other)),
                                 look_at(patient_team, key_from(30, other)),
                                 look_at(patient_team, key_from(31, other)),
                                 look_at(sure_team, key_from(31, other))};
        for (int i = 0; i < 4 && given.leader(); ++i) out[30 + i] = last[i];
    } else if (given.index() == 1 && !is_over) {
        ep::SlotWindow<Agreed, kRanks> slots(patient_team);
        char* window = given.group.windows[other];
        for (int i = 0; i < 32; ++i) {
            const int key = key_from(i, self);
            if (given.leader()) {
                *reinterpret_cast<ep::i64*>(slots.place(window, key, 0)) = 7000 + i;
                __threadfence_system();
                slots.tell_count(window, key, 5);
            }
        }
    } else if (given.index() == 2 && !is_over) {
        for (int i = 0; i < 30; ++i) {
            const ep::i64 it = look_at(patient_team, key_from(i, other));
            if (given.leader()) found[30 + i] = it;
        }
    }
}

/// Two warps of a block settle at once what has come of a key that a third one closes: one of them misses its rank.
__device__ __forceinline__ void agree_at_once(const ep::Team& given, ep::i64* out) {
    const int other = 1 - static_cast<int>(given.group.rank);
    ep::i64* found = reinterpret_cast<ep::i64*>(given.group.window + kFound);
    ep::u32* turn = reinterpret_cast<ep::u32*>(given.group.window + kTurn);
    const ep::Group group = group_of(given, given.warp == 0 ? 2 : 3, kNever);
    int same = 0;
    for (ep::u32 i = 0; i < 128 && given.index() < 3; ++i) {
        ep::Team team(group, ep::Call{2 + i / 32, false, true}, 0);
        const ep::SlotWindow<Agreed, kRanks> words(team);
        const int key = key_of<Agreed>(static_cast<int>(i % 32), other);
        if (given.index() == 2) {
            if (!given.leader()) continue;
            while (ep::load_acquire_sys(turn) != i) {
            }
            *reinterpret_cast<ep::i64*>(words.place(team.group.window, key, 0)) = 7000 + i;
            __threadfence_system();
            words.tell_count(team.group.window, key, 5);
            continue;
        }
        // Only a look, which orders nothing, keeps the one that waits for nothing from being the first.
        ep::u32 seen = 0;
        while (given.warp == 0 && given.leader() && !words.looks_closed(key, seen)) {
        }
        __syncwarp();
        const ep::i64 it = look_at(team, key);
        if (team.leader()) found[given.warp] = it;
        __syncthreads();
        same += found[0] == found[1] && (it == 0 || it == 57000 + i) ? 1 : 0;
        __syncthreads();
        if (given.index() == 0 && given.leader()) ep::store_release_sys(turn, i + 1);
    }
    if (given.index() == 0 && given.leader()) out[0] = same;
}

/// What a rank has done before it closes is there for who waits in vain for its slot.
__device__ __forceinline__ void close_alone(const ep::Team& given, ep::i64* out) {
    // Somebody else takes no part, so that a slot may never come.
    ep::Group group = given.group;
    group.alive = ~(1ull << 40);
    ep::Team team(group, ep::Call{1, false, true}, 0);
    const int peer = rank_at(team, 1), next = (team.lane + 1) % ep::kLanes;
    if (given.index() == 0) {
        ep::u32* there = reinterpret_cast<ep::u32*>(group.windows[peer] + Closed::kSlots);
        there[team.lane] = 50u + static_cast<ep::u32>(team.lane);
        ep::SlotRowsOut<Closed> slots(team);
        slots.close(1);
    } else if (given.index() == 1) {
        ep::SlotRowsIn<Closed> slots(team);
        const bool come = slots.arrived(key_of<Closed>(0, peer));
        out[team.lane] = reinterpret_cast<const ep::u32*>(group.window + Closed::kSlots)[next];
        if (team.leader()) out[32] = come ? 1 : 0;
    }
}

}  // namespace slots

extern "C" __global__ void __launch_bounds__(slots::kWarps * 32)
    slots_of(const __grid_constant__ slots::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    ep::Group alone = args.group;
    alone.alive = ~3ull | 1ull << alone.rank;
    ep::Team team(args.group, call, 0, static_cast<int>(blockIdx.x), 2, warp, slots::kWarps);
    ep::Team own(alone, call, 0, static_cast<int>(blockIdx.x), 2, warp, slots::kWarps);
    const int check = args.check;
    if (check < 4) {
        slots::call_of<slots::Counted>(team, 1, check, args.out);
    } else if (check < 7) {
        // Through 0.
        slots::call_of<slots::Others>(team, 0xffffffffu, check - 4, args.out);
    } else if (check < 10) {
        slots::call_of<slots::Told>(team, 1, check - 7, args.out);
    } else if (check < 13) {
        slots::call_of<slots::CountedAlone>(own, 1, check - 10, args.out);
    } else if (check < 16) {
        slots::call_of<slots::ToldAlone>(own, 1, check - 13, args.out);
    } else if (check == 16) {
        if (team.index() == 0) {
            slots::overflow(args.group, call, args.out);
            if (team.leader()) slots::sum_taken<slots::Full>(args.group, args.out + 29);
        }
    } else if (check < 20) {
        // Turns that take all at once, one by one, and as many as there are slots.
        const int turn = check == 17 ? 3 : check == 18 ? 0 : 2;
        slots::call_without<slots::CountedAbsent>(team, 0, check - 16, turn, args.out);
    } else if (check < 23) {
        slots::call_without<slots::ToldAbsent>(team, 1, check - 19, check - 20, args.out);
    } else if (check < 25) {
        slots::agree(team, check == 24, args.out);
    } else if (check == 25) {
        slots::agree_at_once(team, args.out);
    } else {
        slots::close_alone(team, args.out);
    }
    ep::leave(args.group, call);
}
