// Slots that rows go back through, for the kernels of ways_back.cu, which this stands before. One warp
// plays all ranks of a node, whose windows lie in its own; between two ranks there is one more channel. What is in all slots
// is looked at; see back_slots.rs.
#include <ep/way_back.cuh>
#include <ep/sync.cuh>

namespace back_slots {

constexpr int kNode = 35;
constexpr int kGroups = 6;
constexpr int kWarps = 3;
constexpr int kRows = 832;  // begin in memory
constexpr int kMostRow = 2224;
constexpr int kMostFloats = 34;
constexpr ep::u32 kCall = 7;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a group has of its own.
struct Own : given_up::Own {
    char* windows[kNode];
};

/// Rows, each a unit behind the one before, and numbers beside them, each one behind.
struct Memory {
    alignas(16) ep::bf16 elements[kRows * 8 + kMostRow / 2];
    alignas(16) float numbers[kRows + kMostFloats];
};

constexpr ep::u64 kMemory = 64 + kGroups * sizeof(Own);

/// A channel whose windows begin at `kAt`, one behind the other: so many slots for rows of so many bytes, with numbers
/// beside them.
template <ep::u64 kAt_, int kGroup_, int kPeers_, int kOwn_, int kKeys_, int kStride, int kRow, int kFloats_>
struct Channel {
    static constexpr ep::u64 kAt = kAt_;
    static constexpr int kGroup = kGroup_;
    static constexpr int kOwn = kOwn_;  // this rank
    static constexpr int kFloats = kFloats_;
    static constexpr int kChannel = 5;
    static constexpr int kPeers = kPeers_;
    static constexpr int kWindows = kPeers;
    static constexpr int kEpochs = 2;
    static constexpr int kKeys = kKeys_;
    static constexpr int kArrivals = 1;
    static constexpr int kSourceStride = kStride;
    static constexpr int kShared = 1;
    static constexpr bool kCounts = false;
    static constexpr bool kSkipsOwn = false;
    static constexpr bool kSkipsAbsent = false;
    static constexpr int kFewTokens = 0;
    static constexpr int kMeta = kRow;
    static constexpr int kSlotBytes = (kRow + kFloats * 4 + 15) / 16 * 16;
    static constexpr ep::u64 kFlags = 64;
    static constexpr ep::u64 kReleased = kFlags + kEpochs * kKeys * ep::kQuarters * 8;
    static constexpr ep::u64 kSlots = (kReleased + kPeers * 4 + 63) / 64 * 64;
    static constexpr ep::u64 kSize = (kSlots + kEpochs * kKeys * kSlotBytes + 63) / 64 * 64;
    static constexpr ep::u64 kEnd = kAt + kWindows * kSize;
};

__device__ __forceinline__ Own& own_of(const ep::Group& given, int number) {
    return reinterpret_cast<Own*>(given.window + 64)[number];
}

__device__ __forceinline__ Memory& memory_of(const ep::Group& given) {
    return *reinterpret_cast<Memory*>(given.window + kMemory);
}

/// Writes the memory of rows.
__device__ __forceinline__ void fill_memory(const ep::Group& given) {
    Memory& memory = memory_of(given);
    for (int i = ep::lane_index(); i < kRows * 8 + kMostRow / 2; i += ep::kLanes) {
        memory.elements[i] = ep::to_bf16(static_cast<float>((i * i * 7 + i * 3) % 61 - 30));
    }
    for (int i = ep::lane_index(); i < kRows + kMostFloats; i += ep::kLanes) {
        memory.numbers[i] = static_cast<float>(i * 3 % 101 - 50);
    }
}

/// A row, and the numbers beside it.
__device__ __forceinline__ const ep::bf16* row_of(const ep::Group& given, ep::i64 row) {
    return memory_of(given).elements + row * 8;
}
__device__ __forceinline__ const float* numbers_of(const ep::Group& given, ep::i64 row) {
    return memory_of(given).numbers + row;
}

/// Says where the windows of a channel are; for all checks.
template <class Slots>
__device__ __forceinline__ void place_windows(const ep::Group& given) {
    for (int i = ep::lane_index(); i < Slots::kPeers; i += ep::kLanes) {
        own_of(given, Slots::kGroup).windows[i] = given.window + Slots::kAt + i % Slots::kWindows * Slots::kSize;
    }
}

/// The same where each is in the window of its rank.
template <class Slots>
__device__ __forceinline__ void place_in_windows(const ep::Group& given) {
    for (int i = ep::lane_index(); i < Slots::kPeers; i += ep::kLanes) {
        own_of(given, Slots::kGroup).windows[i] = given.windows[i] + Slots::kAt;
    }
}

/// The group of a channel, in which all ranks take part but two.
template <class Slots>
__device__ __forceinline__ ep::Group group_of(const ep::Group& given) {
    Own& own = own_of(given, Slots::kGroup);
    ep::Group group = given_up::group_of(given, own, Slots::kGroup, own.windows, Slots::kOwn);
    if (Slots::kPeers == kNode) group.alive = ~(1ull << 1 | 1ull << 2 | 1ull << 7);
    return group;
}

__device__ __forceinline__ ep::u32* released_of(const ep::Group& group, ep::u64 at) {
    return reinterpret_cast<ep::u32*>(group.window + at);
}

/// Forgets that its group has given up.
template <class Slots>
__device__ __forceinline__ void renew(const ep::Group& given) {
    Own& own = own_of(given, Slots::kGroup);
    __syncwarp();
    if (ep::lane_index() == 0) own.stop = own.state.records = 0, own.records[0] = ep::Record{};
    __syncwarp();
}

/// A group as if nobody had used its slots, but all peers had read what was sent two calls before this one.
template <class Slots>
__device__ __forceinline__ ep::Group fresh(const ep::Group& given, ep::u32 call) {
    const ep::Group group = group_of<Slots>(given);
    renew<Slots>(given);
    ep::Quad* quads = reinterpret_cast<ep::Quad*>(group.windows[0]);
    for (ep::u64 i = ep::lane_index(); i < Slots::kWindows * Slots::kSize / 16; i += ep::kLanes) {
        quads[i] = ep::Quad{0, 0, 0, 0};
    }
    __syncwarp();
    for (int peer = ep::lane_index(); peer < Slots::kPeers; peer += ep::kLanes) {
        released_of(group, Slots::kReleased)[peer] = call - 2;
    }
    __syncwarp();
    return group;
}

/// Plays all warps of a role, one behind the other.
template <class Play>
__device__ __forceinline__ void for_warps(const ep::Group& group, ep::u32 call, int warps, Play play) {
    for (int warp = 0; warp < warps; ++warp) {
        ep::Team team(group, ep::Call{call, false, true}, 3, 0, 1, warp, warps);
        play(team);
        __syncwarp();
    }
}

/// Units as one number, in which no two words of theirs count alike.
__device__ __forceinline__ ep::i64 digest(const char* units, int count) {
    ep::u64 sum = 0;
    for (int i = 0; i < count; ++i) {
        const ep::Quad unit = reinterpret_cast<const ep::Quad*>(units)[i];
        sum = (sum * 31 + unit.x) * 31 + unit.y;
        sum = (sum * 31 + unit.z) * 31 + unit.w;
    }
    return static_cast<ep::i64>(sum);
}

/// All slots of all ranks, and the words of each.
template <class Slots>
__device__ __forceinline__ void dump(const ep::Group& group, ep::i64* out) {
    constexpr int kSlots = Slots::kEpochs * Slots::kKeys, kWordBytes = ep::kQuarters * 8;
    __syncwarp();
    for (int i = ep::lane_index(); i < Slots::kPeers * kSlots; i += ep::kLanes) {
        const char* window = group.windows[i / kSlots];
        out[2 * i] = digest(window + Slots::kSlots + i % kSlots * Slots::kSlotBytes, Slots::kSlotBytes / 16);
        out[2 * i + 1] = digest(window + Slots::kFlags + i % kSlots * kWordBytes, kWordBytes / 16);
    }
    __syncwarp();
}

/// The words of a slot of a call here.
template <class Slots>
__device__ __forceinline__ ep::u64* words_of(const ep::Group& group, ep::u32 call, int key) {
    const int slot = static_cast<int>(call % Slots::kEpochs) * Slots::kKeys + key;
    return reinterpret_cast<ep::u64*>(group.window + Slots::kFlags) + slot * ep::kQuarters;
}

/// Fills all slots of a call here, each with the row behind its number, and tells of them.
template <class Slots>
__device__ __forceinline__ void fill(const ep::Group& group, const ep::Group& given, ep::u32 call) {
    const int first = static_cast<int>(call % Slots::kEpochs) * Slots::kKeys;
    renew<Slots>(given);
    for (int key = 0; key < Slots::kKeys; ++key) {
        char* slot = group.window + Slots::kSlots + (first + key) * Slots::kSlotBytes;
        const auto* row = reinterpret_cast<const ep::Quad*>(row_of(given, first + key + 1));
        const float* numbers = numbers_of(given, first + key + 1);
        for (int i = ep::lane_index(); i < Slots::kMeta / 16; i += ep::kLanes) {
            reinterpret_cast<ep::Quad*>(slot)[i] = row[i];
        }
        for (int i = ep::lane_index(); i < Slots::kFloats; i += ep::kLanes) {
            reinterpret_cast<float*>(slot + Slots::kMeta)[i] = numbers[i];
        }
    }
    ep::u64* words = words_of<Slots>(group, call, 0);
    for (int i = ep::lane_index(); i < Slots::kKeys * ep::kQuarters; i += ep::kLanes) {
        words[i] = ep::stamped(call, 1);
    }
    __syncwarp();
}

/// The rows that came from a rank, of some fewer than none; and the token of one, in the turn of tokens.
template <class Slots>
__device__ __forceinline__ ep::Span rows_of(int source) {
    const int begin = source * Slots::kTokens + 1;
    const int count = Slots::kPeers == kNode   ? source % 4 - 1
                      : Slots::kTokens == 4    ? source + 1
                      : source == Slots::kOwn ? Slots::kTokens - 4
                                               : 20 - source * 7 / 2;
    return ep::Span{begin, begin + count};
}
template <class Slots>
__device__ __forceinline__ int token_of(int row) {
    return row * 5 % Slots::kTokens;
}

/// Of the parts that are made of a row, the number of one: negative, if it is left out.
__device__ __forceinline__ int part_of(int row, int k) { return (row * 3 + k * k) % 11 - 3; }

/// A row of this rank that goes to a slot of its own.
__device__ __forceinline__ int own_row(int key) { return key % 3; }

/// The token of a row, behind the first one of `forgets` with its slots no longer said to be free.
template <class Slots>
__device__ __forceinline__ int token_of(const ep::Team& team, int row, int forgets) {
    if (forgets >= 0 && row == rows_of<Slots>(forgets).begin + 1) {
        __syncwarp();
        if (team.leader()) released_of(team.group, Slots::kReleased)[forgets] = team.epoch - 3;
        __syncwarp();
    }
    return token_of<Slots>(row);
}

/// What all warps of a role send: `send(team, forgets)`.
template <class Slots, class Send>
__device__ __forceinline__ void sends(const ep::Group& given, ep::u32 call, int warps, ep::i64* out, Send send) {
    const ep::Group group = fresh<Slots>(given, call);
    for_warps(group, call, warps, [&](ep::Team& team) {
        send(team, -1);
        if (team.lane == 5) given_up::put(out + 20000 + team.warp * 20, team, own_of(given, Slots::kGroup));
    });
    dump<Slots>(group, out);
}

/// What one warp of some sends, and a rank that has not read what it got, or is said not to have behind its first row.
struct Stop {
    int warp, warps;
    int late = -1;
    int forgets = -1;
    bool stopped = false;
};

template <class Slots, class Send>
__device__ __forceinline__ void stops(const ep::Group& given, const Stop& stop, ep::i64* out, Send send) {
    const ep::Group group = fresh<Slots>(given, kCall);
    if (ep::lane_index() == 0 && stop.late >= 0) released_of(group, Slots::kReleased)[stop.late] = kCall - 3;
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, stop.stopped, true}, 3, 0, 1, stop.warp, stop.warps);
    send(team, stop.forgets);
    if (team.lane == 5) given_up::put(out + 20000, team, own_of(given, Slots::kGroup));
    dump<Slots>(group, out);
}

/// What all warps of a role add up of slots that are filled: `add(team, out)`.
template <class Slots, class Add>
__device__ __forceinline__ void adds(const ep::Group& given, const ep::Group& filled, ep::u32 call, int warps,
                                     ep::i64* out, Add add) {
    for_warps(filled, call, warps, [&](ep::Team& team) {
        add(team, out);
        if (team.lane == 5) given_up::put(out + 20000 + team.warp * 20, team, own_of(given, Slots::kGroup));
    });
}

/// What a warp of some waits for: the words of a slot that are there, and what the others are.
struct Wait {
    ep::u32 call;
    int warps, warp;
    int key;
    ep::u32 there;
    ep::u64 others;
};

/// What one warp adds up of filled slots then.
template <class Slots, class Add>
__device__ __forceinline__ void wait(const ep::Group& given, const ep::Group& filled, const Wait& wait, ep::i64* out,
                                     Add add) {
    ep::u64* words = words_of<Slots>(filled, wait.call, wait.key);
    const int lane = ep::lane_index();
    if (lane < ep::kQuarters && (wait.there >> lane & 1) == 0) words[lane] = wait.others;
    __syncwarp();
    ep::Team team(filled, ep::Call{wait.call, false, true}, 3, 0, 1, wait.warp, wait.warps);
    add(team, out);
    if (lane == 5) given_up::put(out + 900, team, own_of(given, Slots::kGroup));
    __syncwarp();
}

/// Five calls between two ranks, each of which sends by two warps and adds up by one: who sends may be a call ahead.
/// `send(team)` and `add(team, out)` do so; `tokens(call)`: how many a rank says that it has.
template <class Slots, class Tokens, class Send, class Add>
__device__ __forceinline__ void rounds(const ep::Group& given, ep::u32 first, ep::i64* out, Tokens tokens, Send send,
                                       Add add) {
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (blockIdx.x != 0) return;
    ep::Group group = group_of<Slots>(given);
    group.rank = given.rank;
    group.window = group.windows[given.rank];
    group.timeout_ns = given.timeout_ns;
    for (ep::u32 call = first; call < first + 5; ++call) {
        const ep::Call it{call, false, true};
        if (warp == kWarps - 1) {
            if (ep::lane_index() == 0) own_of(given, Slots::kGroup).state.epoch = call - 1;
            __syncwarp();
            // Elsewhere a launch begins between two calls.
            __threadfence_system();
            ep::slots_are_read<Slots>(group, tokens(call));
            ep::Team team(group, it, 4);
            add(team, out + (call - first) * 2000);
        } else {
            ep::Team team(group, it, 3, 0, 1, warp, kWarps - 1);
            send(team);
        }
    }
}

/// Then the rows of a call come from the other rank, and their tokens are the other way round.
template <class Slots>
__device__ __forceinline__ ep::Span rows_between(const ep::Team& team, int source) {
    const int begin = static_cast<int>(team.epoch), count = source == team.group.rank ? 0 : Slots::kTokens;
    return ep::Span{begin, begin + count};
}
template <class Slots>
__device__ __forceinline__ int other_way(const ep::Team& team, int number) {
    return static_cast<int>(team.epoch) + Slots::kTokens - 1 - number;
}

}  // namespace back_slots

