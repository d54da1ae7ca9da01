// Ends of direct channels, and of rows that are pulled, among many ranks: one warp writes the words of all of them itself,
// and looks at each word that an end leaves, and at what it records where a word is missing. The host knows what each
// check leaves in `out`; see direct_ends.rs, which has the checks in the same order.
#include <ep/direct.cuh>
#include <ep/pull.cuh>
#include <ep/sync.cuh>

namespace direct_ends {

constexpr int kPeers = 70;  // of a node, of which this is the second one
constexpr int kOwn = 20;
constexpr int kStripes = 3;
constexpr int kGroups = 12;
constexpr ep::u32 kEpoch = 7;
constexpr int kFar = 1 << 29;                // a row so far that its bytes take more than 32 bits
constexpr ep::u64 kLowest = 1ull << 38;  // below any memory, and beyond what is added to null

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a group has of its own.
struct Own : given_up::Own {
    char* windows[2 * kPeers];
    ep::u64 unused[4];
};

struct Rows {
    static constexpr int kChannel = 5;
    static constexpr int kPeers = direct_ends::kPeers;
    static constexpr int kStripes = direct_ends::kStripes;
    static constexpr int kRowStride = 32;
    static constexpr int kMetaBytes = 16;
    static constexpr ep::u64 kReady = 64;
    static constexpr ep::u64 kClosed = kReady + kPeers * sizeof(ep::DirectReady);
    static constexpr ep::u64 kRow = kClosed + kPeers * kStripes * sizeof(ep::DirectClosed);
    static constexpr ep::u64 kSize = kRow + 192;
};

__device__ __forceinline__ Own* own_of(const ep::Group& given, int number) {
    return reinterpret_cast<Own*>(given.window + 64) + number;
}

/// Group `number`, of the second node.
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number) {
    Own* own = own_of(given, number);
    char* windows = given.window + 64 + kGroups * sizeof(Own);
    for (int i = ep::lane_index(); i < kPeers; i += ep::kLanes) {
        own->windows[kPeers + i] = windows + i * Rows::kSize;
    }
    __syncwarp();
    return given_up::group_of(given, *own, number, own->windows, kPeers + kOwn);
}

/// What all peers announce; turns differ.
__device__ __forceinline__ void announce(const ep::Group& group, ep::u32 turn, ep::u32 epoch) {
    ep::DirectReady* ready = reinterpret_cast<ep::DirectReady*>(group.window + Rows::kReady);
    for (int peer = ep::lane_index(); peer < kPeers; peer += ep::kLanes) {
        const ep::u32 number = turn * 1000 + static_cast<ep::u32>(peer);
        // Further than 32 bits reach.
        ready[peer].rows = ep::stamped(epoch, (1u << 25) + number);
        ready[peer].meta = ep::stamped(epoch, (1u << 26) + number * 2);
        ready[peer].capacity = ep::stamped(epoch, number + 3);
    }
    __syncwarp();
}

/// How many closed words there are in all windows, and those of a stripe, peer by peer.
__device__ __forceinline__ void dump(const ep::Group& group, int stripe, ep::i64* out) {
    __syncwarp();
    if (ep::lane_index() != 0) return;
    out[0] = 0;
    for (int peer = 0; peer < kPeers; ++peer) {
        const ep::u64* words =
            reinterpret_cast<const ep::u64*>(group.windows[kPeers + peer] + Rows::kClosed);
        for (int i = 0; i < 2 * kPeers * kStripes; ++i) out[0] += words[i] != 0 ? 1 : 0;
        out[1 + 2 * peer] = static_cast<ep::i64>(words[2 * (kOwn * kStripes + stripe)]);
        out[2 + 2 * peer] = static_cast<ep::i64>(words[2 * (kOwn * kStripes + stripe) + 1]);
    }
}

/// Where rows of some peers go, in the order of calls that differ in their peers, or in nothing.
__device__ __forceinline__ void opens(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of(given, 0);
    ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
    ep::DirectOut<Rows> end(team);
    const ep::Peers all[6] = {{3, 68, 9}, {3, 68, 9}, {2, 68, 9}, {2, 67, 9}, {2, 67, 10}, {2, 67, 10}};
    for (int turn = 0; turn < 6; ++turn) {
        announce(group, static_cast<ep::u32>(turn) + 1, kEpoch);
        end.open(turn % kStripes, all[turn]);
        for (int peer = 0; peer < kPeers; ++peer) {
            const ep::u64 row = reinterpret_cast<ep::u64>(end.row(peer, kFar + 5));
            const ep::u64 meta = reinterpret_cast<ep::u64>(end.meta(peer, kFar + 5));
            const ep::u64 window = reinterpret_cast<ep::u64>(group.windows[kPeers + peer]);
            if (team.lane != 3) continue;
            // Those of nobody are at null.
            ep::i64* own = out + turn * 200 + peer * 2;
            own[0] = static_cast<ep::i64>(row < kLowest ? row : row - window);
            own[1] = static_cast<ep::i64>(meta < kLowest ? meta : meta - window);
        }
    }
    if (team.lane == 3) given_up::put(out + 1300, team, *own_of(given, 0));
    ep::DirectOut<Rows> first(team);
    first.open(0, ep::Peers{0, 1, -1});
    const char* row = first.row(0, 0);
    if (team.lane == 3) out[1400] = row - group.windows[kPeers];
}

/// Rows of a stripe, and of the next one.
__device__ __forceinline__ void stores(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of(given, 1);
    ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
    announce(group, 1, kEpoch);
    ep::DirectOut<Rows> end(team);
    const ep::Peers peers{3, 68, 9};
    for (int stripe = 1; stripe < 3; ++stripe) {
        end.open(stripe, peers);
        for (int i = 0; i < 40; ++i) {
            // The second one has fewer rows.
            const int peer = 3 + i * 7 * stripe % 65;
            const int position = end.next(peer, 100 * stripe + i);
            if (team.lane == 8) out[stripe * 40 + i] = position;
            end.stored(peer);
        }
        end.close();
        dump(group, stripe, out + stripe * 200);
    }
    // One that is stopped tells nothing.
    end.open(0, peers);
    team.stopped = true;
    end.close();
    dump(group, 0, out + 600);
    if (team.lane == 8) given_up::put(out + 800, team, *own_of(given, 1));
}

/// Room for rows, and too many of them.
__device__ __forceinline__ void reserves(const ep::Group& given, ep::i64* out) {
    const int peers[5] = {5, 40, 66, 5, 40}, positions[5] = {1007, 1042, 1068, 1008, -1};
    for (int c = 0; c < 5; ++c) {
        const ep::Group group = group_of(given, 2 + c);
        ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
        announce(group, 1, kEpoch);
        ep::DirectOut<Rows> end(team);
        end.open(2, ep::Peers{3, 68, 9});
        const bool has = end.reserve(peers[c], positions[c]);
        const bool still = end.reserve(peers[c], 0);
        if (team.lane != 1) continue;
        out[c * 40] = (has ? 2 : 0) + (still ? 1 : 0);
        given_up::put(out + c * 40 + 1, team, *own_of(given, 2 + c));
    }
}

/// Peers that have not announced all, or of which none is asked.
__device__ __forceinline__ void waits(const ep::Group& given, ep::i64* out) {
    for (int c = 0; c < 4; ++c) {
        const ep::Group group = group_of(given, 7 + c);
        ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
        announce(group, 1, kEpoch);
        ep::DirectReady* ready = reinterpret_cast<ep::DirectReady*>(group.window + Rows::kReady) + 40;
        if (team.lane == 0 && c == 0) ready->rows = ep::stamped(kEpoch - 2, 1);
        if (team.lane == 0 && c == 1) ready->meta = ep::stamped(kEpoch - 2, 1);
        if (team.lane == 0 && c == 2) ready->capacity = ep::stamped(kEpoch - 2, 1);
        if (team.lane == 0 && c == 3) ready[-31].rows = ready[-38].rows = ready[28].rows = 0;
        __syncwarp();
        ep::DirectOut<Rows> end(team);
        end.open(1, ep::Peers{3, 68, 9});
        const char* row = end.row(41, 1);
        const bool is_there = row > group.window - kOwn * Rows::kSize;
        if (team.lane != 1) continue;
        out[c * 40] = is_there ? 1 : 0;
        given_up::put(out + c * 40 + 1, team, *own_of(given, 7 + c));
    }
}

/// Stripes that have come, in part, or not; and one of a team that is stopped.
__device__ __forceinline__ void arrives(const ep::Group& given, ep::i64* out) {
    for (int c = 0; c < 5; ++c) {
        const ep::Group group = group_of(given, c == 0 ? 0 : 10 - c);
        Own* own = own_of(given, 11);
        ep::Group mine = group;
        mine.stop = own->room + c;
        mine.state = &own->state;
        mine.records = own->records;
        // In call 0 a word that has not been looked at would be one of it.
        const ep::u32 epoch = c == 4 ? 0 : kEpoch, before = epoch - 3;
        ep::Team team(mine, ep::Call{epoch, false, true}, 3);
        team.stopped = c == 3;
        ep::DirectClosed* closed =
            reinterpret_cast<ep::DirectClosed*>(group.window + Rows::kClosed) + 33 * kStripes + 2;
        if (team.leader()) {
            closed->first = ep::stamped(c == 1 ? before : epoch, 500);
            closed->rows = ep::stamped(c == 2 || c == 4 ? before : epoch, 60);
            own->state.records = 0;
        }
        __syncwarp();
        ep::DirectIn<Rows> end(team, 640);
        const bool has = end.arrived(33, 2);
        if (team.lane == 5) {
            ep::i64* one = out + c * 40;
            one[0] = has ? 1 : 0;
            one[1] = end.first();
            one[2] = end.rows();
            one[3] = end.meta(kFar + 9) - group.window;
            given_up::put(one + 4, team, *own);
            one[5] = own->room[c];
        }
        __syncwarp();
    }
}

/// Peers that are all in one group of lanes, behind whose wait none comes that would order more.
struct Few : Rows {
    static constexpr int kPeers = 21;
};

/// What one of three warps has of a group whose waits do not run out.
__device__ __forceinline__ ep::Group group_of_warp(const ep::Group& given, int warp) {
    const int number = warp == 0 ? 0 : 6 + warp;
    ep::Group group = group_of(given, number);
    group.timeout_ns = 1ull << 62;
    group.stop = own_of(given, 11)->room + 6;
    group.rank = kOwn;
    group.windows = own_of(given, number)->windows + kPeers;
    return group;
}

/// A row that all lanes of a warp write, once another warp is done with what was there; that one reads it.
__device__ __forceinline__ void passes(const ep::Group& given, int warp, ep::i64* out) {
    const ep::Group group = group_of_warp(given, warp);
    // Behind calls of other checks.
    constexpr ep::u32 kCall = 20;
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    if (warp == 0) {
        ep::DirectOut<Few> end(team);
        end.open(1, ep::Peers{kOwn, kOwn + 1, -1});
        ep::u32* row = reinterpret_cast<ep::u32*>(end.row(kOwn, 0) + Rows::kRow);
        row[team.lane] = 70u + static_cast<ep::u32>(team.lane);
        end.next(kOwn, 0);
        end.stored(kOwn);
        end.close();
    } else {
        // What is there before is read, and given up then.
        const ep::u32* before = reinterpret_cast<const ep::u32*>(group.window + Rows::kRow);
        out[32 + team.lane] = before[team.lane];
        __syncwarp();
        ep::direct_ready<Few>(team, 0, 0, 1);
        ep::DirectIn<Few> end(team, Rows::kRow);
        if (!end.arrived(kOwn, 1)) return;
        out[team.lane] = reinterpret_cast<const ep::u32*>(end.meta(0))[(team.lane + 1) % ep::kLanes];
    }
}

/// Rows that peers pull, whose words are where those of closed stripes were.
template <int kPeers_>
struct Parts {
    static constexpr int kChannel = 5;
    static constexpr int kPeers = kPeers_;
    static constexpr int kRowStride = 32;
    static constexpr int kMetaStride = 16;
    static constexpr ep::u64 kReady = Rows::kClosed;
    static constexpr ep::u64 kReleased = kReady + kPeers * sizeof(ep::PullReady);
    static constexpr ep::u64 kDone = kReleased + kPeers * 4;
};
using Pulled = Parts<kPeers>;

__device__ __forceinline__ void clear_pulls(const ep::Group& group) {
    for (int peer = 0; peer < kPeers; ++peer) {
        ep::u64* words = reinterpret_cast<ep::u64*>(group.windows[kPeers + peer] + Pulled::kReady);
        for (int i = ep::lane_index(); i < 2 * kPeers * kStripes; i += ep::kLanes) words[i] = 0;
    }
    __syncwarp();
}

/// What all peers are offered, and how many words that is; first by a team that is stopped.
__device__ __forceinline__ void offers(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of(given, 1);
    ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
    clear_pulls(group);
    for (int turn = 0; turn < 2; ++turn) {
        team.stopped = turn == 0;
        // Further than 32 bits reach.
        ep::pull_offer<Pulled>(team, 128 * ((1ull << 25) + 5), 128 * ((1ull << 26) + 9));
        __syncwarp();
        if (team.leader()) out[turn] = 0;
        for (int peer = 0; peer < kPeers && team.leader(); ++peer) {
            const auto* words = reinterpret_cast<const ep::PullReady*>(group.windows[kPeers + peer] + Pulled::kReady);
            for (int i = 0; i < 100; ++i) out[turn] += (words[i].rows != 0 ? 1 : 0) + (words[i].meta != 0 ? 1 : 0);
            out[2 + 2 * peer] = static_cast<ep::i64>(words[kOwn].rows);
            out[3 + 2 * peer] = static_cast<ep::i64>(words[kOwn].meta);
        }
        __syncwarp();
    }
}

/// Where rows of all peers are, or of which one has not offered any.
__device__ __forceinline__ void pulls(const ep::Group& given, ep::i64* out) {
    for (int c = 0; c < 2; ++c) {
        const ep::Group group = group_of(given, c == 0 ? 1 : 10);
        Own* own = own_of(given, c == 0 ? 1 : 10);
        ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
        clear_pulls(group);
        auto* words = reinterpret_cast<ep::PullReady*>(group.window + Pulled::kReady);
        if (team.leader()) own->stop = own->state.records = 0;
        ep::PullConsumer<Pulled> end(team);
        for (ep::u32 turn = 1; turn < 3; ++turn) {
            for (ep::u32 peer = team.lane; peer < kPeers; peer += ep::kLanes) {
                const bool late = c == 1 && peer == 40;
                words[peer].rows = ep::stamped(late ? kEpoch - 2 : kEpoch, turn * (1u << 25) + peer);
                words[peer].meta = ep::stamped(kEpoch, turn * (1u << 24) + peer * 2);
            }
            __syncwarp();
            end.wait_ready();
        }
        const ep::i32 none[3] = {};
        const bool has = end.arrived(none, false);
        end.done(none);
        for (int g = 0; g < 3; ++g) {
            const int peer = g * ep::kLanes + team.lane;
            const ep::u64 window = peer < kPeers ? reinterpret_cast<ep::u64>(group.windows[kPeers + peer]) : 0;
            const ep::u64 row = reinterpret_cast<ep::u64>(end.row(g, kFar)), meta = reinterpret_cast<ep::u64>(end.meta(g, kFar));
            ep::i64* at = out + c * 300 + 20 + 2 * peer;
            at[0] = static_cast<ep::i64>(row < kLowest ? row : row - window);
            at[1] = static_cast<ep::i64>(meta < kLowest ? meta : meta - window);
        }
        if (team.lane == 3) out[c * 300] = has ? 1 : 0;
        if (team.lane == 3) given_up::put(out + c * 300 + 1, team, *own);
        __syncwarp();
    }
}

/// What peers are told when the last of two warps has read, and when its team is stopped.
__device__ __forceinline__ void releases(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of(given, 1);
    clear_pulls(group);
    const auto* done = reinterpret_cast<const ep::u32*>(group.window + Pulled::kDone);
    ep::Team team(group, ep::Call{kEpoch, false, true}, 3, 1, 2, 0, 1);
    for (int turn = 0; turn < 4; ++turn) {
        team.stopped = turn < 2;
        ep::PullConsumer<Pulled> end(team);
        end.release();
        __syncwarp();
        if (team.leader()) {
            ep::i64* at = out + 10 + turn * 80;
            at[0] = *done;
            for (int peer = 0; peer < kPeers; ++peer) {
                const auto* words = reinterpret_cast<const ep::u32*>(group.windows[kPeers + peer] + Pulled::kReleased);
                at[1 + peer] = words[kOwn];
            }
        }
        __syncwarp();
    }
}

/// Consumers that have read, or of which one has not.
template <class P>
__device__ __forceinline__ void awaits(const ep::Group& given, int number, int late, ep::i64* out) {
    const ep::Group group = group_of(given, number);
    Own* own = own_of(given, number);
    if (ep::lane_index() == 0) own->stop = own->state.records = 0;
    ep::u32* released = reinterpret_cast<ep::u32*>(group.window + P::kReleased);
    for (int peer = ep::lane_index(); peer < P::kPeers; peer += ep::kLanes) {
        released[peer] = peer == late ? kEpoch - 2 : kEpoch;
    }
    __syncwarp();
    ep::Team team(group, ep::Call{kEpoch, false, true}, 3);
    ep::pull_wait_released<P>(team);
    if (team.lane == 5) given_up::put(out, team, *own);
    __syncwarp();
}

/// Consumers that are all in one group of lanes.
using One = Parts<21>;

/// A row that two other warps pull, and that changes when both have read it.
__device__ __forceinline__ void pull_once(const ep::Group& given, int warp, ep::i64* out) {
    const ep::Group group = group_of_warp(given, warp);
    constexpr ep::u32 kCall = 21;
    ep::Team team(group, ep::Call{kCall, false, true}, 3, 0, 1, warp == 0 ? 0 : warp - 1, 2);
    ep::u32* row = reinterpret_cast<ep::u32*>(group.window + Rows::kRow);
    if (warp == 0) {
        // Lane kOwn stores the row, as it is the lane that publishes it. Words of the other peers are set here.
        for (int i = 0; i < ep::kLanes && team.lane == kOwn; ++i) row[i] = 77;
        for (int peer = team.lane; peer < 20; peer += ep::kLanes) {
            auto* ready = reinterpret_cast<ep::PullReady*>(group.window + One::kReady) + peer;
            ep::store_release_sys(&ready->rows, ep::stamped(kCall, 1));
            ep::store_release_sys(reinterpret_cast<ep::u32*>(group.window + One::kReleased) + peer, kCall);
        }
        ep::pull_offer<One>(team, 0, 0);
        ep::pull_wait_released<One>(team);
        row[team.lane] = 5;
    } else {
        ep::PullConsumer<One> end(team);
        end.wait_ready();
        // Each warp has a half of its own, of which the checker keeps the reads.
        out[team.index() * ep::kLanes + team.lane] = row[team.index() * 16 + team.lane % 16];
        end.release();
    }
}

/// Whoever sees where rows of a call are sees where their other fields are: two warps look at all words of 16 calls, a lane
/// at those of a consumer.
__device__ __forceinline__ void watch(const ep::Group& given, int warp, ep::i64* out) {
    const ep::Group group = group_of_warp(given, warp);
    constexpr ep::u32 kFirst = 30, kLast = 45;
    for (ep::u32 call = kFirst; call <= kLast && warp == 0; ++call) {
        ep::Team team(group, ep::Call{call, false, true}, 3);
        ep::pull_offer<One>(team, 0, 128);
    }
    const int lane = ep::lane_index();
    if (warp == 0 || lane >= One::kPeers) return;
    const auto* words = reinterpret_cast<const ep::PullReady*>(group.windows[lane] + One::kReady) + kOwn;
    ep::i64 behind = 0;
    for (ep::u32 seen = 0; seen != kLast;) {
        seen = ep::epoch_of(ep::load_acquire_sys(&words->rows));
        behind += ep::epoch_of(ep::load_relaxed_sys(&words->meta)) < seen ? 1 : 0;
    }
    out[(warp - 1) * ep::kLanes + lane] = behind;
}

}  // namespace direct_ends

extern "C" __global__ void __launch_bounds__(3 * 32)
    direct_ends_of(const __grid_constant__ direct_ends::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    using namespace direct_ends;
    if (args.check == 5 && warp < 2) passes(args.group, warp, args.out);
    if (args.check == 10) pull_once(args.group, warp, args.out);
    if (args.check == 11) watch(args.group, warp, args.out);
    if (warp == 0) {
        switch (args.check) {
            case 0: opens(args.group, args.out); break;
            case 1: stores(args.group, args.out); break;
            case 2: reserves(args.group, args.out); break;
            case 3: waits(args.group, args.out); break;
            case 4: arrives(args.group, args.out); break;
            case 6: offers(args.group, args.out); break;
            case 7: pulls(args.group, args.out); break;
            case 8: releases(args.group, args.out); break;
            case 9:
                awaits<Pulled>(args.group, 1, -1, args.out);
                awaits<Pulled>(args.group, 10, 69, args.out + 20);
                awaits<Pulled>(args.group, 10, 0, args.out + 40);
                awaits<Parts<65>>(args.group, 10, 64, args.out + 60);
                break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
