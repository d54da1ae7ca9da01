// Ranks that do not answer: what a rank notes of others, and waits that end without them or stop the group. The
// host knows what each check leaves in `out`; see presences.rs, which has the checks in the same order.
#include <ep/presence.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace presences {

constexpr int kWarps = 2;
constexpr int kRanks = 64;  // of the groups below, which are all in one window
constexpr int kRank = 40;   // this one of them
constexpr ep::u64 kNever = 1ull << 62;
constexpr ep::u64 kLong = 1ull << 40;  // longer than a run takes

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a group has of its own in a case, zero at first.
struct Own {
    ep::State state;
    ep::u32 stop;
    ep::u32 room[7];
    ep::Record records[2];
    ep::Presence* places[kRanks];
    ep::Presence all[kRanks];
};

/// What is a group's own in case `number`, on `rank`.
__device__ __forceinline__ Own* own_of(const ep::Group& given, int rank, int number) {
    return reinterpret_cast<Own*>(given.windows[rank] + 64) + number;
}

/// A group as rank `rank` of it sees it, whose presences are at `place(rank)`. One warp makes it.
template <class Place>
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number, int rank,
                                              ep::u64 timeout, Place place) {
    Own* own = own_of(given, given.rank, number);
    for (int i = ep::lane_index(); i < kRanks; i += ep::kLanes) own->places[i] = place(i);
    if (ep::lane_index() == 0) own->state.presences = own->places;
    __syncwarp();
    ep::Group group = given;
    group.state = &own->state;
    group.stop = &own->stop;
    group.records = own->records;
    group.timeout_ns = timeout;
    group.record_capacity = 2;
    group.pipeline = 70 + number;
    group.rank = rank;
    return group;
}

/// One whose presences are those of case `words`.
__device__ __forceinline__ ep::Group alone(const ep::Group& given, int number, ep::u64 timeout,
                                           int words) {
    ep::Presence* all = own_of(given, given.rank, words)->all;
    return group_of(given, number, kRank, timeout, [&](int rank) { return all + rank; });
}

/// What has become of a group, and which ranks it misses; one lane's own work.
__device__ __forceinline__ void put(ep::i64* out, const Own& own) {
    *out++ = ep::load_relaxed_gpu(&own.stop);
    *out++ = own.state.gave_up;
    *out++ = own.state.records;
    const ep::u32* words = reinterpret_cast<const ep::u32*>(own.records);
    for (int i = 0; i < 13; ++i) *out++ = words[i];
    *out = static_cast<ep::i64>(ep::load_relaxed_sys(&own.all[kRank].absent));
}

__device__ __forceinline__ ep::Site site_of(int peer) {
    const int lane = ep::lane_index();
    return ep::Site{7, ep::Waiting::kFlag, 20 + lane, peer, 300u + static_cast<ep::u32>(lane)};
}

/// All warps of 30 ranks miss others at once, those of a block the same ones, against one another's order.
__device__ __forceinline__ void misses(const ep::Group& given, int block, int warp) {
    ep::Group group = alone(given, block * kWarps + warp, kNever, 0);
    const int lane = warp == 0 ? ep::lane_index() : ep::kLanes - 1 - ep::lane_index();
    const int rank = lane * 2 + block;
    for (group.rank = kRank - 29; group.rank <= kRank; ++group.rank) {
        if (rank % 5 != 2) ep::miss(group, rank);
        // So that they meet at each word.
        __syncthreads();
    }
}

/// Whom they miss, and what a rank knows that misses nobody.
__device__ __forceinline__ void missed(const ep::Group& given, ep::i64* out) {
    if (ep::lane_index() != 0) return;
    ep::Group group = given;
    Own* own = own_of(given, given.rank, 0);
    group.state = &own->state;
    group.rank = kRank;
    for (int rank = -1; rank < kRanks; ++rank) {
        out[1 + rank] = ep::is_missed(group, rank) ? 1 : 0;
    }
    out[70] = ep::own_presence(group) - own->all;
    group.rank = 3;
    out[71] = ep::is_missed(group, 5) ? 1 : 0;
    for (int i = 0; i < kRanks; ++i) {
        out[80 + i * 2] = static_cast<ep::i64>(own->all[i].absent);
        out[81 + i * 2] = static_cast<ep::i64>(own->all[i].pulse);
    }
}

/// Looks for peers, a lane each: some have been waited for for long, of some the pulse has changed, and so on.
__device__ __forceinline__ void looks(const ep::Group& given, ep::i64* out) {
    const int lane = ep::lane_index(), third = lane % 3;
    for (int c = 0; c < 8; ++c) {
        Own* own = own_of(given, given.rank, 5 + c);
        const ep::Group group = alone(given, 5 + c, kLong, 5 + c);
        const int which = c / 2;
        own->all[lane].pulse = 100 + lane;
        if (which == 2 && third == 0) own->all[lane].absent = ep::u64{1} << kRank;
        if (which == 2 && third == 1) own->all[lane].absent = ~(ep::u64{1} << kRank);
        if (lane == 0) own->all[kRank].pulse = 9;
        if (lane == 0 && which == 1) own->all[kRank].absent = 0x0000000049249249ull;
        __syncwarp();
        const ep::u64 ages[4] = {1, kLong / 2, kLong + kLong / 2, kLong * 3};
        const int peer = c % 2 == 1 && third == 2 ? -1 : lane;
        const bool changed = (lane & 4) != 0, unready = (lane & 8) != 0, first = (lane & 16) != 0;
        const ep::u64 before = ep::clock_ns();
        const ep::Watch watch{first ? 0 : before - kLong / 4, before - ages[lane & 3],
                              100u + lane - (changed ? 1u : 0u), which == 3 && third == 1};
        const ep::Watch now =
            ep::look_for_peer(group, 1, 0, site_of(peer), 0, unready, watch);
        const ep::u64 passed = ep::clock_ns() - before;
        ep::i64* code = out + c * 100 + lane * 2;
        code[0] = (now.absent ? 1 : 0) + (now.begun == watch.begun ? 2 : 0) +
                  (now.since == watch.since ? 4 : 0) + (now.begun - before <= passed ? 8 : 0) +
                  (now.since - before <= passed ? 16 : 0);
        code[1] = static_cast<ep::i64>(now.pulse);
        __syncwarp();
        if (lane == 0) {
            put(out + c * 100 + 64, *own);
            out[c * 100 + 90] = static_cast<ep::i64>(own->all[kRank].pulse);
        }
    }
}

/// A look of lanes that have waited long: from `late` on for longer than anyone is waited for.
struct Expiry {
    int late;
    int unready;   // lanes from there on are
    int gone;      // lanes below have a peer that does not answer
    int peers;     // lanes from there on have a peer
    bool stopped;  // before
};

/// Lanes that have waited for longer than for any peer that shows signs of life, and a group that is stopped.
__device__ __forceinline__ void expiries(const ep::Group& given, ep::i64* out) {
    const int lane = ep::lane_index();
    const Expiry cases[9] = {
        {32, 0, 0, 0, false},  {5, 7, 0, 0, false},  {5, 3, 0, 0, false},
        {5, 7, 11, 0, false},  {32, 9, 12, 0, true}, {0, 32, 0, 0, true},
        {0, 32, 0, 0, false},  {4, 2, 0, 32, false}, {0, 0, 32, 0, false},
    };
    for (int c = 0; c < 9; ++c) {
        const Expiry& it = cases[c];
        Own* own = own_of(given, given.rank, 13 + c);
        const ep::Group group = alone(given, 13 + c, kLong, 13 + c);
        if (lane == 0) own->stop = it.stopped ? 1 : 0;
        __syncwarp();
        const ep::u64 now = ep::clock_ns();
        const ep::u64 age = lane >= it.late ? kLong / 2 * 9 : kLong / 2 * 7;
        const ep::Watch watch{now - age, now - kLong * 2, lane < it.gone ? 0u : 1u, false};
        const int peer = lane >= it.peers ? lane : -1;
        const ep::Watch next = ep::look_for_peer(group, 500 + c, 4, site_of(peer), 800 + lane,
                                                 lane >= it.unready, watch);
        out[c * 60 + lane] = (next.absent ? 1 : 0) + (next.begun == 0 ? 2 : 0) +
                             (next.begun == watch.begun ? 4 : 0);
        __syncwarp();
        if (lane == 3) put(out + c * 60 + ep::kLanes, *own);
    }
}

/// Pulses of ranks that wait so long at most.
__device__ __forceinline__ void beats(const ep::Group& given, ep::i64* out) {
    const ep::u64 timeouts[7] = {0, 7, 8, 100, 1000, 4096, 60000};
    // Far more than a look takes.
    while (ep::clock_ns() < 200000) {
    }
    for (int c = 0; c < 7; ++c) {
        const ep::u64 timeout = timeouts[c], beat = timeout / 8 + 1;
        const ep::Group group = alone(given, 22 + c, timeout, 22 + c);
        const ep::u64* pulse = &own_of(given, given.rank, 22 + c)->all[kRank].pulse;
        ep::u64 last = 0;
        for (int turn = 0; turn < 3; ++turn) {
            const ep::u64 before = ep::clock_ns();
            ep::look_for_peer(group, 1, 0, site_of(3), 0, false, ep::Watch{0, 0, 0, false});
            __syncwarp();
            const ep::u64 own = ep::load_relaxed_sys(pulse), passed = ep::clock_ns() / beat;
            const bool is_new = timeout > 8 || own != last;
            const bool is_right = own >= before / beat && own <= passed && is_new;
            if (ep::lane_index() == 0) out[c * 3 + turn] = is_right ? 1 : 0;
            last = own;
        }
    }
}

/// A wait of one warp: when each lane is ready, whose peer it waits for, and what happens meanwhile.
struct Case {
    int first, each;  // lane i is ready from turn `first + i * each` on
    int peers;        // lanes from there on have a peer
    int stop;         // the turn in which the group is stopped
    ep::u64 timeout;
    bool missed;   // every other peer, before it begins
    bool stopped;  // before it begins
    bool moves;    // peers show a sign of life in every turn
    int once;      // a turn in which odd lanes are ready
};

/// Waits, how often each lane is asked, and whether it learns that its peer is absent.
__device__ __forceinline__ void polls(const ep::Group& given, const ep::Call& call, ep::i64* out) {
    const int lane = ep::lane_index();
    const Case cases[13] = {
        {1, 0, 0, 0, kNever, false, false, false, 0},
        {63, 0, 0, 0, kNever, false, false, false, 0},
        {65, 2, 0, 0, kNever, false, false, false, 0},
        {60, 1, 0, 0, 0, false, false, false, 0},
        {60, 1, 9, 0, 0, false, false, false, 0},
        {500, 0, 0, 0, 1, false, false, false, 0},
        {500, 0, 5, 70, kNever, false, false, false, 0},
        {1, 0, 0, 0, kNever, false, true, false, 0},
        {3, 0, 0, 0, kNever, true, false, false, 0},
        {500, 0, 0, 0, 1, false, false, true, 0},
        {128, 0, 0, 0, kNever, false, false, false, 0},
        {500, 0, 0, 0, 1, false, false, false, 64},
        {3, 1, 0, 0, kNever, true, false, false, 0},
    };
    for (int c = 0; c < 13; ++c) {
        const Case& it = cases[c];
        Own* own = own_of(given, given.rank, 29 + c);
        const ep::Group group = alone(given, 29 + c, it.timeout, 29 + c);
        if (lane == 0 && it.missed) own->all[kRank].absent = 0xaaaaaaaaull;
        __syncwarp();
        ep::Team team(group, call, 5);
        team.epoch = 1000 + c;
        team.stopped = it.stopped;
        const int peer = lane >= it.peers ? lane - it.peers : -1;
        ep::i64* mark = out + c * 120 + 110;
        int turns = 0;
        bool absent = lane == 4;
        const auto ready = [&](ep::u32& seen) {
            ++turns;
            if (lane == 0) mark[0] = turns;
            if (turns == it.stop && lane == 0) ep::store_relaxed_gpu(group.stop, 1u);
            if (it.moves) ep::store_relaxed_sys(&own->all[peer].pulse, ep::u64(turns));
            if (c != 4) seen = 800 + lane;
            const bool is_once = turns == it.once && lane % 2 == 1;
            return is_once || turns >= it.first + lane * it.each;
        };
        const bool done = c < 12 ? ep::wait_for_peer<true>(team, site_of(peer), absent, ready)
                                 : ep::wait_for_peer<false>(team, site_of(peer), absent, ready);
        // What lanes did before is seen by all.
        if (lane == 3 && turns > 0) mark[1] = mark[0] + 1;
        ep::i64* mine = out + c * 120;
        mine[lane] = turns;
        mine[32 + lane] = (done ? 4 : 0) + (team.stopped ? 2 : 0) + (absent ? 1 : 0);
        if (lane == 3) put(mine + 64, *own);
    }
}

/// Counters of peers that answer, are missed, do not answer, and of a team that is stopped.
__device__ __forceinline__ void counters(const ep::Group& given, const ep::Call& call, int block,
                                         ep::i64* out) {
    const int lane = ep::lane_index();
    if (block == 0) {
        ep::u32* there = own_of(given, 1 - given.rank, 42)->room;
        if (lane == 0) {
            there[0] = 30;
            ep::add_release_sys(there + 1, 5);
        }
        return;
    }
    Own* own = own_of(given, given.rank, 42);
    const ep::u32* here = own->room;
    const int peers[5] = {6, 7, 8, 9, 9};
    const ep::u32 wants[5] = {5, 6, 6, 4, 4};
    for (int c = 0; c < 5; ++c) {
        const ep::Group group = alone(given, 43 + c, c == 2 || c == 3 ? 0 : kNever, 42);
        if (c == 1 && lane == 2) ep::miss(group, 7);
        __syncwarp();
        ep::Team team(group, call, 1);
        team.stopped = c == 4;
        const ep::Site site{1, ep::Waiting::kCredit, -1, peers[c], wants[c]};
        const bool done = ep::wait_counter_of_peer(team, site, here + 1);
        out[c * 40 + lane] = done ? static_cast<ep::i64>(here[0]) + lane : team.stopped ? -1 : -2;
    }
    if (lane == 0) out[200] = static_cast<ep::i64>(ep::load_relaxed_sys(&own->all[kRank].absent));
}

/// Two ranks look for each other again and again, and one goes on without the other, which learns of it.
__device__ __forceinline__ void meet(const ep::Group& given, ep::i64* out) {
    const int lane = ep::lane_index(), self = static_cast<int>(given.rank), peer = 1 - self;
    const auto words = [&](int number) {
        return [&given, number](int rank) { return own_of(given, rank % 2, number)->all + rank; };
    };
    const ep::Group group = group_of(given, 48, self, 800, words(48));
    bool absent = false;
    for (int turn = 0; turn < 20; ++turn) {
        ep::Watch watch{0, 0, 0, false};
        watch = ep::look_for_peer(group, 1, 0, site_of(peer), 0, lane % 3 == 0, watch);
        absent = absent || watch.absent;
        if (turn == 10 && lane == 5) ep::miss(group, 7);
    }
    out[lane] = absent ? 1 : 0;
    const ep::Group last = group_of(given, 49, self, kNever, words(49));
    if (self == 0 && lane == 9) ep::miss(last, 1);
    ep::Watch watch{0, 0, 0, false};
    while (__ballot_sync(ep::kAllLanes, watch.absent) == 0) {
        watch = ep::look_for_peer(last, 1, 0, site_of(peer), 0, lane == 3, watch);
    }
    out[32 + lane] = watch.absent ? 1 : 0;
    __syncwarp();
    if (lane == 0) out[64] = ep::is_missed(group, 7) && ep::is_missed(last, peer) ? 1 : 0;
}

/// A block of this rank stops the group, and the other one leaves its wait for a peer.
__device__ __forceinline__ void stops(const ep::Group& given, const ep::Call& call, int block,
                                      ep::i64* out) {
    const int lane = ep::lane_index();
    Own* own = own_of(given, given.rank, 50);
    if (block == 1) {
        for (int i = 0; i < 40; ++i) __syncwarp();
        if (lane == 0) ep::store_relaxed_gpu(&own->stop, 1u);
        return;
    }
    const ep::Group group = alone(given, 50, kNever, 50);
    ep::Team team(group, call, 2);
    bool absent = true;
    const bool done =
        ep::wait_for_peer<true>(team, site_of(lane), absent, [&](ep::u32&) { return lane < 9; });
    out[lane] = (done ? 4 : 0) + (team.stopped ? 2 : 0) + (absent ? 1 : 0);
    if (lane == 3) put(out + ep::kLanes, *own);
}

}  // namespace presences

extern "C" __global__ void __launch_bounds__(presences::kWarps * 32)
    presences_of(const __grid_constant__ presences::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const int block = static_cast<int>(blockIdx.x);
    ep::i64* out = args.out;
    if (args.check == 0) presences::misses(args.group, block, warp);
    if (warp == 0) {
        switch (args.check) {
            case 6: presences::counters(args.group, call, block, out); break;
            case 8: presences::stops(args.group, call, block, out); break;
            default: break;
        }
    }
    if (warp == 0 && block == 0) {
        switch (args.check) {
            case 1: presences::missed(args.group, out); break;
            case 2: presences::looks(args.group, out); break;
            case 3: presences::expiries(args.group, out); break;
            case 4: presences::beats(args.group, out); break;
            case 5: presences::polls(args.group, call, out); break;
            case 7: presences::meet(args.group, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
