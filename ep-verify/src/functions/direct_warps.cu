// Warps of direct channels: one that tells senders where rows go, two that send the tokens of stripes to many ranks, and
// those that read what has come. Windows of all ranks lie in one. The host knows what each check leaves in `out`; see
// direct_warps.rs, which has the checks in the same order.
#include <ep/direct.cuh>
#include <ep/sync.cuh>

namespace direct_warps {

constexpr int kMost = 40;  // ranks of a node, of which this is the second one
constexpr int kOwn = 20;
constexpr int kGroups = 24;
constexpr ep::u32 kCall = 7;
constexpr int kTokens = 400;
constexpr int kRoom = 192;     // rows of a receiver
constexpr int kFar = 1 << 29;  // a row so far that its bytes take more than 32 bits

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a group has of its own.
struct Own : given_up::Own {
    char* windows[2 * kMost];
};

/// A row, and the record beside it.
struct alignas(16) Row {
    ep::u32 words[8];
};
struct alignas(16) Record {
    ep::u32 words[4];
};

/// A channel between so many ranks, with so many stripes.
template <int kPeers_, int kStripes_>
struct Rows {
    static constexpr int kChannel = 5;
    static constexpr int kPeers = kPeers_;
    static constexpr int kStripes = kStripes_;
    static constexpr int kRoles = 2;
    static constexpr int kRowStride = sizeof(Row);
    static constexpr int kMetaBytes = sizeof(Record);
    // Sixteen tokens for four peers; of the last stripes, four.
    static constexpr int kUnitBytes = 16 * 4 * kRowStride;
    static constexpr ep::u64 kReady = 128;
    static constexpr ep::u64 kClosed = kReady + kPeers * sizeof(ep::DirectReady);
    static constexpr ep::u64 kStored = kClosed + kPeers * kStripes * sizeof(ep::DirectClosed);
    static constexpr ep::u64 kClaims = kStored + kPeers * kStripes * 8;
    static constexpr ep::u64 kRows = (kClaims + 64 + 127) / 128 * 128;
    static constexpr ep::u64 kRecords = kRows + kRoom * sizeof(Row);
    static constexpr ep::u64 kSize = kRecords + kRoom * sizeof(Record);
};

using Many = Rows<kMost, 5>;
// All peers in lanes of one group, and a share more than a warp has lanes.
using Some = Rows<21, 5>;
using Few = Rows<3, 5>;
// No other stripes than the last ones.
using Last = Rows<17, 1>;

template <bool kTma_>
struct Sender {
    static constexpr int kRowBytes = sizeof(Row);
    static constexpr int kPieceBytes = 512;
    static constexpr int kStages = 3;
    static constexpr int kMetaBytes = sizeof(Record);
    static constexpr bool kTma = kTma_;
};

constexpr ep::u64 kTable = 128 + kGroups * sizeof(Own);
constexpr ep::u64 kWindows = kTable + (kTokens * sizeof(Row) + 127) / 128 * 128;

__device__ __forceinline__ Own& own_of(const ep::Group& given, int number) {
    return reinterpret_cast<Own*>(given.window + 128)[number];
}

/// The rows of tokens.
__device__ __forceinline__ Row* table_of(const ep::Group& given) {
    return reinterpret_cast<Row*>(given.window + kTable);
}

/// Group `number`; the windows of the first node are those of nobody.
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number) {
    Own& own = own_of(given, number);
    return given_up::group_of(given, own, number, own.windows + kMost, kOwn);
}

/// Clears all windows, writes the rows of tokens, and says where windows are; for all checks.
inline __device__ __noinline__ void prepare(const ep::Group& given) {
    for (int i = ep::lane_index(); i < kGroups * kMost; i += ep::kLanes) {
        char** windows = own_of(given, i / kMost).windows;
        windows[i % kMost] = nullptr;
        windows[kMost + i % kMost] = given.window + kWindows + i % kMost * Many::kSize;
    }
    for (int i = ep::lane_index(); i < kTokens * 8; i += ep::kLanes) {
        table_of(given)[i / 8].words[i % 8] = static_cast<ep::u32>(i / 8 * 16 + i % 8);
    }
}

/// As if no rank had been in a call.
inline __device__ __noinline__ void clear(const ep::Group& given) {
    __syncwarp();
    ep::Quad* quads = reinterpret_cast<ep::Quad*>(given.window + kWindows);
    for (ep::u64 i = ep::lane_index(); i < kMost * Many::kSize / 16; i += ep::kLanes) {
        quads[i] = ep::Quad{0, 0, 0, 0};
    }
    __syncwarp();
}

/// What a sender hears from each receiver, where it tells it so; in units of 128 bytes.
template <class S>
__device__ __forceinline__ void announce(const ep::Group& group, ep::u64 rows, ep::u64 records, ep::u32 room) {
    auto* ready = reinterpret_cast<ep::DirectReady*>(group.window + S::kReady);
    for (int peer = ep::lane_index(); peer < S::kPeers; peer += ep::kLanes) {
        ready[peer].rows = ep::stamped(kCall, static_cast<ep::u32>(rows / 128));
        ready[peer].meta = ep::stamped(kCall, static_cast<ep::u32>(records / 128));
        ready[peer].capacity = ep::stamped(kCall, room + peer);
    }
    __syncwarp();
}

/// A receiver tells all senders of its node where rows go; but for one that is stopped, and a warp that is not the first.
inline __device__ __noinline__ void tells(const ep::Group& given, ep::i64* out) {
    clear(given);
    for (int c = 0; c < 3; ++c) {
        ep::Group group = group_of(given, 0);
        group.windows -= kMost;
        group.rank += kMost;
        ep::Team team(group, ep::Call{kCall, c == 0, true}, 3, 0, 1, c == 1 ? 1 : 0, 2);
        // Further than 32 bits reach.
        ep::direct_ready<Many>(team, 128 * ((1ull << 25) + 5), 128 * ((1ull << 26) + 9), 77);
        __syncwarp();
        ep::i64* own = out + c * 200;
        if (team.leader()) own[0] = 0;
        for (int peer = 0; peer < kMost && team.leader(); ++peer) {
            const char* window = group.windows[kMost + peer] + Many::kReady;
            const auto* words = reinterpret_cast<const ep::u64*>(window);
            for (int i = 0; i < kMost * 4; ++i) own[0] += words[i] != 0 ? 1 : 0;
            for (int i = 0; i < 3; ++i) own[1 + peer * 3 + i] = static_cast<ep::i64>(words[kOwn * 4 + i]);
        }
        __syncwarp();
    }
}

/// Whether a token goes to a peer: to one all of the first stripe, to another none, and of some units none to any.
__device__ __forceinline__ bool goes(int token, int peer) {
    if (token >= 100 && token < 130) return false;
    if (peer == 3) return token < 80;
    return peer != 5 && (token * 7 + peer * peer * 3 + token * token % 13 * peer) % 11 < 2;
}

/// How many tokens go to a peer before this one.
__device__ __forceinline__ int rows_before(int end, int peer) {
    int rows = 0;
    for (int token = 0; token < end; ++token) rows += goes(token, peer) ? 1 : 0;
    return rows;
}

/// What a lane has found wrong: of what it was asked for, and of rows that it was told of.
struct Faults {
    ep::i64 asked = 0;
    ep::i64 told = 0;
};

/// A lane looks at all stripes of its peer that have been told of: their rows are there.
template <class S>
__device__ __forceinline__ void look(const ep::Group& group, int peer, ep::u32& seen, Faults& faults) {
    if (peer < 0) return;
    const char* window = group.windows[peer];
    for (int stripe = 0; stripe < S::kStripes; ++stripe) {
        if ((seen >> stripe & 1) != 0) continue;
        const auto* words = reinterpret_cast<const ep::DirectClosed*>(window + S::kClosed) + kOwn * S::kStripes + stripe;
        const ep::u64 rows = ep::load_relaxed_sys(&words->rows), first = ep::load_acquire_sys(&words->first);
        if (ep::epoch_of(rows) != kCall || ep::epoch_of(first) != kCall) continue;
        seen |= 1u << stripe;
        int row = static_cast<int>(ep::value_of(first));
        const ep::Span tokens = ep::stripe_span(kTokens, S::kStripes, stripe);
        for (int token = tokens.begin; token < tokens.end; ++token) {
            if (!goes(token, peer)) continue;
            const auto& it = reinterpret_cast<const Row*>(window + S::kRows)[row];
            const auto& record = reinterpret_cast<const Record*>(window + S::kRecords)[row];
            for (int i = 0; i < 8; ++i) faults.told += it.words[i] != static_cast<ep::u32>(token * 16 + i) ? 1 : 0;
            for (int i = 0; i < 4; ++i) faults.told += record.words[i] != static_cast<ep::u32>(token + i) ? 1 : 0;
            ++row;
        }
        faults.told += row - static_cast<int>(ep::value_of(first)) != static_cast<int>(ep::value_of(rows)) ? 1 : 0;
    }
}

/// A warp's share of the tokens of all stripes, for all peers. Its team is stopped at a token. `out`: where the row of each
/// token and peer goes, and behind them what each lane found wrong.
template <class S, class R>
__device__ __forceinline__ void sends(ep::Team& team, const ep::Group& given, ep::MoverSmem<R>& smem, int stop,
                                      ep::i64* out) {
    ep::Mover<R> mover(smem, team);
    Faults faults;
    for (int base = 0; base < S::kPeers; base += ep::kLanes) {
        const int peer = base + team.lane < S::kPeers ? base + team.lane : -1;
        if (team.warps == 1) announce<S>(team.group, S::kRows, S::kRecords, 1000);
        ep::DirectUnits<S> units(team, base, peer, kTokens);
        ep::DirectProducer<S, R> rows(team, mover, units, peer);
        ep::u32 seen = 0;
        const auto where = [&](int token, int to) {
            faults.asked += token < units.all().begin || token >= units.all().end || to < 0 || to >= S::kPeers ? 1 : 0;
            return to >= 0 && goes(token, to);
        };
        while (units.take()) {
            const ep::Span stripe = units.all();
            rows.open(
                where, [&](int to) { return faults.asked += to < 0 ? 1 : 0, 3 + to + rows_before(stripe.begin, to); },
                [&](int to) { return faults.asked += to < 0 ? 1 : 0, rows_before(kTokens, to); });
            // What is said then nobody asks for.
            if (team.warps == 1) announce<S>(team.group, 1 << 20, 1 << 20, 0);
            rows.for_tokens(
                [&](int token, int position) {
                    faults.asked += __ballot_sync(ep::kAllLanes, position >= 0) == 0 ? 1 : 0;
                    mover.row(rows.row(position), &table_of(given)[token]);
                    if (team.lane < 4) reinterpret_cast<Record*>(mover.meta())->words[team.lane] = token + team.lane;
                    mover.send_meta(rows.meta(position));
                    team.stopped = team.stopped || token == stop;
                },
                [&](int token, int to, bool match, int position) {
                    if (token < kTokens) out[token * kMost + to] = ep::recorded(match, position);
                });
            rows.close();
            if (team.warps == 1) look<S>(team.group, peer, seen, faults);
        }
        rows.finish();
        if (team.warps == 1) look<S>(team.group, peer, seen, faults);
    }
    mover.finish();
    out[kTokens * kMost + team.warp * 64 + team.lane * 2] = faults.asked;
    out[kTokens * kMost + team.warp * 64 + team.lane * 2 + 1] = faults.told;
}

/// All stripes of all peers, as soon as they are told of.
__device__ __forceinline__ void receives(const ep::Group& group, ep::i64* out) {
    Faults faults;
    for (int base = 0; base < kMost; base += ep::kLanes) {
        const int peer = base + ep::lane_index() < kMost ? base + ep::lane_index() : -1;
        const ep::u32 all = peer < 0 ? 0 : (1u << Many::kStripes) - 1;
        for (ep::u32 seen = 0; seen != all;) look<Many>(group, peer, seen, faults);
        __syncwarp();
    }
    out[kTokens * kMost + 128 + ep::lane_index()] = faults.told;
}

/// Two warps of a role send at the same time, and a third one looks at what they tell of.
template <class R>
inline __device__ __noinline__ void sends_all(const ep::Group& given, int number, ep::MoverSmem<R>& smem, int warp,
                                              ep::i64* out) {
    ep::Group group = group_of(given, number);
    group.timeout_ns = given.timeout_ns;
    if (warp == 2) return receives(group, out);
    ep::Team team(group, ep::Call{kCall, false, true}, 1, 0, 1, warp, 2);
    sends<Many, R>(team, given, smem, -1, out);
}

/// Words that all ranks are left with: of closed stripes, of units, and of claims of this call and the next one.
inline __device__ __noinline__ void dump(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of(given, 0);
    if (ep::lane_index() == 0) out[0] = 0;
    for (int i = ep::lane_index(); i < kMost * kMost * Many::kStripes * 2; i += ep::kLanes) {
        const auto* words = reinterpret_cast<const ep::u64*>(group.windows[i % kMost] + Many::kClosed);
        const int at = i / kMost, source = at / (2 * Many::kStripes);
        if (source == kOwn) {
            out[1 + i % kMost * 10 + at % 10] = static_cast<ep::i64>(words[at]);
        } else if (words[at] != 0) {
            out[0] = at;
        }
    }
    const auto* stored = reinterpret_cast<const ep::u64*>(group.window + Many::kStored);
    for (int i = ep::lane_index(); i < kMost * Many::kStripes; i += ep::kLanes) out[500 + i] = static_cast<ep::i64>(stored[i]);
    const auto* claims = reinterpret_cast<const ep::u32*>(group.window + Many::kClaims);
    for (int i = ep::lane_index(); i < 16; i += ep::kLanes) out[800 + i] = claims[i];
    __syncwarp();
}

/// Before a call: what counts the claims of the next one is what another call has left.
inline __device__ __noinline__ void begin(const ep::Group& given) {
    clear(given);
    const ep::Group group = group_of(given, 0);
    announce<Many>(group, Many::kRows, Many::kRecords, 1000);
    auto* claims = reinterpret_cast<ep::u32*>(group.window + Many::kClaims);
    // Those of this call, in the second half, are clear.
    for (int i = ep::lane_index(); i < 4; i += ep::kLanes) claims[i] = 9;
    __syncwarp();
}

/// One warp alone, which is stopped at a token, from the beginning, or not at all.
inline __device__ __noinline__ void stops(const ep::Group& given, ep::MoverSmem<Sender<true>>& smem, int number, int stop,
                                          ep::i64* out) {
    begin(given);
    const ep::Group group = group_of(given, number);
    ep::Team team(group, ep::Call{kCall, stop < 0, true}, 1, 0, 1, 0, 1);
    sends<Many, Sender<true>>(team, given, smem, stop, out);
    dump(given, out + 20000);
    if (team.lane == 5) given_up::put(out + 21000, team, own_of(given, number));
}

/// What a peer has not announced, or that its room is too small.
struct Lack {
    int peer;
    int word;  // 3: the room
};

/// Where rows go once all peers have announced it, and a wait for one of a group that has not.
inline __device__ __noinline__ void opens(const ep::Group& given, ep::MoverSmem<Sender<false>>& smem, ep::i64* out) {
    begin(given);
    const Lack all[] = {{-1, 0}, {6, 0}, {0, 1}, {31, 2}, {0, 3}, {9, 3}};
    for (int c = 0; c < 6; ++c) {
        const ep::Group group = group_of(given, 4 + c);
        announce<Many>(group, 128ull * ((1u << 25) + 5), 128ull * ((1u << 26) + 9), 70);
        if (all[c].word < 3 && all[c].peer >= 0 && ep::lane_index() == 0) {
            auto* words = reinterpret_cast<ep::u64*>(group.window + Many::kReady) + all[c].peer * 4;
            words[all[c].word] = ep::stamped(kCall - 2, 70);
        }
        __syncwarp();
        ep::Team team(group, ep::Call{kCall, false, true}, 1, 0, 1, 0, 1);
        // The third lane has no peer.
        const int peer = team.lane == 2 ? -1 : team.lane;
        ep::Mover<Sender<false>> mover(smem, team);
        ep::DirectUnits<Many> units(team, 0, peer, 0), none(team, ep::kLanes, -1, 0);
        ep::DirectProducer<Many, Sender<false>> rows(team, mover, units, peer);
        const bool has = units.take() && none.take();
        rows.open([](int, int) { return false; }, [](int) { return 3; },
                  [&](int to) { return 70 + to + (all[c].word == 3 && to >= all[c].peer ? 1 : 0); });
        const ep::u64 window = peer < 0 ? 0 : reinterpret_cast<ep::u64>(group.windows[peer]);
        const ep::u64 row = reinterpret_cast<ep::u64>(rows.row(kFar)), record = reinterpret_cast<ep::u64>(rows.meta(kFar));
        ep::i64* own = out + c * 120 + team.lane * 2;
        own[0] = static_cast<ep::i64>(row - (row < 1ull << 36 ? 0 : window));
        own[1] = static_cast<ep::i64>(record - (record < 1ull << 36 ? 0 : window));
        if (rows.row(-1) != nullptr || rows.meta(-1) != nullptr || !has) own[0] = -1;
        mover.finish();
        if (team.lane == 5) given_up::put(out + c * 120 + 80, team, own_of(given, 4 + c));
        __syncwarp();
    }
}

/// How many rows of a stripe come from a source, and the first one.
__device__ __forceinline__ int count_of(int source, int stripe) { return (source * 5 + stripe * 3) % 7; }
__device__ __forceinline__ int first_of(int source, int stripe) { return (source * 5 + stripe) * 7; }

template <class S>
__device__ __forceinline__ ep::DirectClosed* closed_of(const ep::Group& group, int source, int stripe) {
    return reinterpret_cast<ep::DirectClosed*>(group.window + S::kClosed) + source * S::kStripes + stripe;
}

/// All stripes have come, in a call.
template <class S>
__device__ __forceinline__ void come(const ep::Group& group, ep::u32 call) {
    for (int i = ep::lane_index(); i < S::kPeers * S::kStripes; i += ep::kLanes) {
        const int source = i / S::kStripes, stripe = i % S::kStripes;
        *closed_of<S>(group, source, stripe) = ep::DirectClosed{ep::stamped(call, first_of(source, stripe)),
                                                                ep::stamped(call, count_of(source, stripe))};
    }
    __syncwarp();
}

/// Counts rows as they are read, each by its place, and the place of its record.
struct Reads {
    const char* records;
    ep::i64* out;

    __device__ __forceinline__ void operator()(const ep::DirectMessages& message) const {
        for (int i = 0; i < 4; ++i) {
            if (message.record[i] == nullptr || ep::lane_index() % 8 != 0) continue;
            out[message.row[i]] += 1 + (message.record[i] - records) * 1000;
        }
    }
};

/// What warps read, one behind the other, of stripes of which some have not come: the words of these are `first` and `rows`.
struct Missing {
    int source, stripe;
    ep::u64 first, rows;
};

template <class S, int kMissing>
inline __device__ __noinline__ void reads(const ep::Group& given, int number, int warps, ep::u32 call,
                                          const Missing (&missing)[kMissing], ep::i64* out) {
    const ep::Group group = group_of(given, number);
    come<S>(group, call);
    for (const Missing& it : missing) {
        if (it.source < 0 || ep::lane_index() != 0) continue;
        *closed_of<S>(group, it.source, it.stripe) = ep::DirectClosed{it.first, it.rows};
    }
    const Reads read{group.window + 640, out};
    for (int i = ep::lane_index(); i < 1500; i += ep::kLanes) out[i] = 0;
    __syncwarp();
    for (int warp = 0; warp < warps; ++warp) {
        ep::Team team(group, ep::Call{call, false, true}, 3, 0, 1, warp, warps);
        ep::for_messages<S>(team, read.records, read);
        if (team.lane == 5) given_up::put(out + 1500 + warp * 20, team, own_of(given, number));
        __syncwarp();
    }
}

inline __device__ __noinline__ void reads_all(const ep::Group& given, ep::i64* out) {
    const Missing none[] = {{-1, 0, 0, 0}};
    reads<Many>(given, 10, 2, kCall, none, out);
    reads<Few>(given, 10, 1, kCall, none, out + 2000);
    reads<Few>(given, 10, 5, kCall, none, out + 4000);
    reads<Last>(given, 10, 1, kCall, none, out + 6000);
}

inline __device__ __noinline__ void waits(const ep::Group& given, ep::i64* out) {
    const ep::u64 before = ep::stamped(kCall - 3, 2);
    const Missing early[] = {{1, 0, before, before}, {2, 4, before, before}};
    reads<Few>(given, 11, 1, kCall, early, out);
    const Missing late[] = {{2, 4, ep::stamped(kCall, 8), before}};
    reads<Few>(given, 12, 1, kCall, late, out + 2000);
    const Missing half[] = {{0, 2, before, ep::stamped(kCall, 2)}};
    reads<Few>(given, 13, 1, kCall, half, out + 4000);
    // A word that has not been looked at is one of call 0.
    const Missing first[] = {{0, 1, ~0ull, ep::stamped(0, 2)}};
    reads<Few>(given, 14, 1, 0, first, out + 6000);
    const Missing second[] = {{1, 3, ep::stamped(0, 3), ~0ull}};
    reads<Few>(given, 15, 1, 0, second, out + 8000);
}

/// Stripes that come late, each once that before it has been read.
inline __device__ __noinline__ void reads_late(const ep::Group& given, int warp, ep::i64* out) {
    ep::Group group = group_of(given, 16);
    group.timeout_ns = 1ull << 62;
    ep::u32* read = reinterpret_cast<ep::u32*>(group.window);
    ep::Team team(group, ep::Call{kCall, false, true}, 3, 0, 1, 0, 1);
    if (warp == 0) {
        ep::for_messages<Few>(team, group.window, [&](const ep::DirectMessages& message) {
            for (int i = 0; i < 4; ++i) {
                if (message.record[i] == nullptr || team.lane % 8 != 0) continue;
                out[message.row[i]] = reinterpret_cast<const Record*>(message.record[i] + Few::kRecords)->words[0];
                ep::add_relaxed_gpu(read, 1u);
            }
        });
        return;
    }
    ep::u32 sent = 0;
    for (int i = 0; i < 15; ++i) {
        if (i < 2) given_up::linger();
        const int source = i % 3, stripe = i / 3, row = first_of(source, stripe);
        // Each part of the last stripes has a row.
        const int rows = stripe < 3 ? 1 + i % 2 : 4;
        auto* records = reinterpret_cast<Record*>(group.window + Few::kRecords);
        for (int k = team.lane; k < rows; k += ep::kLanes) records[row + k].words[0] = 100u * i + k;
        __syncwarp();
        ep::DirectClosed* closed = closed_of<Few>(group, source, stripe);
        if (team.leader()) {
            ep::store_release_sys(&closed->first, ep::stamped(kCall, row));
            ep::store_relaxed_sys(&closed->rows, ep::stamped(kCall, rows));
        }
        sent += rows;
        while (__shfl_sync(ep::kAllLanes, ep::load_relaxed_gpu(read), 0) != sent) {
        }
    }
}

inline __device__ __noinline__ void clear_late(const ep::Group& given) {
    clear(given);
    ep::u32* read = reinterpret_cast<ep::u32*>(group_of(given, 16).window);
    if (ep::lane_index() == 0) *read = 0;
    __syncwarp();
}

/// A row that another warp reads, once it has given up what was there before.
template <class R>
inline __device__ __noinline__ void passes(const ep::Group& given, ep::MoverSmem<R>& smem, int number, int warp, ep::i64* out) {
    ep::Group group = group_of(given, number);
    group.timeout_ns = 1ull << 62;
    ep::Team team(group, ep::Call{kCall, false, true}, 0);
    const auto* row = reinterpret_cast<const Row*>(group.window + Some::kRows);
    const auto* record = reinterpret_cast<const Record*>(group.window + Some::kRecords);
    if (warp == 0) {
        ep::Mover<R> mover(smem, team);
        const int peer = team.lane == kOwn ? kOwn : -1;
        ep::DirectUnits<Some> units(team, 0, peer, 1);
        ep::DirectProducer<Some, R> rows(team, mover, units, peer);
        while (units.take()) {
            rows.open([](int, int) { return true; }, [](int) { return 0; }, [](int) { return 1; });
            rows.for_tokens(
                [&](int token, int position) {
                    mover.row(rows.row(position), &table_of(given)[token + 9]);
                    if (team.lane < 4) reinterpret_cast<Record*>(mover.meta())->words[team.lane] = 50 + team.lane;
                    mover.send_meta(rows.meta(position));
                },
                [](int, int, bool, int) {});
            rows.close();
        }
        rows.finish();
        mover.finish();
    } else {
        // What is there before is read, by the lane that speaks to this sender.
        if (team.lane == kOwn) out[0] = row->words[3], out[1] = record->words[2];
        __syncwarp();
        ep::direct_ready<Some>(team, Some::kRows, Some::kRecords, 1);
        for (int i = team.lane; i < kOwn * Some::kStripes; i += ep::kLanes) {
            *closed_of<Some>(group, i / Some::kStripes, i % Some::kStripes) =
                ep::DirectClosed{ep::stamped(kCall, 0), ep::stamped(kCall, 0)};
        }
        __syncwarp();
        ep::for_messages<Some>(team, group.window + Some::kRecords, [&](const ep::DirectMessages& message) {
            if (message.record[0] == nullptr || message.row[0] != 0) return;
            out[10 + team.lane] = reinterpret_cast<const Record*>(message.record[0])->words[team.lane % 4];
            out[20 + team.lane] = row->words[team.lane];
        });
    }
}

struct Smem {
    ep::MoverSmem<Sender<true>> movers[3];
};

template <class R>
__device__ __forceinline__ ep::MoverSmem<R>& mover_of(Smem& smem, int warp) {
    static_assert(sizeof(ep::MoverSmem<R>) <= sizeof(smem.movers[0]), "it has room");
    return reinterpret_cast<ep::MoverSmem<R>&>(smem.movers[warp]);
}

}  // namespace direct_warps

extern "C" __global__ void __launch_bounds__(3 * 32)
    direct_warps_of(const __grid_constant__ direct_warps::Args args) {
    using namespace direct_warps;
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const auto& group = args.group;
    ep::i64* out = args.out;
    auto& tma = mover_of<Sender<true>>(smem, warp);
    auto& copies = mover_of<Sender<false>>(smem, warp);
    switch (args.check) {
        case 2: sends_all(group, 1, tma, warp, out); break;
        case 5: sends_all(group, 2, copies, warp, out); break;
        case 12: if (warp < 2) passes(group, tma, 17, warp, out); break;
        case 14: if (warp < 2) passes(group, copies, 18, warp, out); break;
        case 16: if (warp < 2) reads_late(group, warp, out); break;
        default: break;
    }
    if (warp == 0) {
        switch (args.check) {
            case 0: prepare(group), tells(group, out); break;
            case 1:
            case 4: begin(group); break;
            case 3:
            case 6: dump(group, out); break;
            case 7: stops(group, tma, 3, 85, out); break;
            case 8: stops(group, tma, 19, -1, out); break;
            case 9: stops(group, tma, 20, kTokens, out); break;
            case 10: opens(group, copies, out); break;
            case 11:
            case 13: clear(group); break;
            case 15: clear_late(group); break;
            case 17: clear(group), reads_all(group, out); break;
            case 18: waits(group, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
