// How warps wait, give up and say why, and what blocks and calls share, on words of its own in the window. The
// host knows what each check leaves in `out`; see waits.rs, which has the checks in the same order.
#include <ep/compute.cuh>
#include <ep/direct.cuh>
#include <ep/places.cuh>
#include <ep/sync.cuh>
#include <ep/words.cuh>

namespace waits {

constexpr int kWarps = 2;
constexpr int kRounds = 60;  // those of `sequences`, of 70
constexpr ep::u64 kNever = 1ull << 62;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

struct Smem {
    ep::Sequence sequences[70];
    alignas(16) ep::u32 row[4];
    ep::u64 full;
};

/// What a group has of its own in a check, zero at first.
struct Own {
    ep::State state;
    ep::u32 stop;
    ep::u32 room[7];
    ep::Record records[4];
};

/// The group of case `number`, and what is its own on `rank`.
__device__ __forceinline__ Own* own_of(const ep::Group& group, int rank, int number) {
    return reinterpret_cast<Own*>(group.windows[rank] + 64) + number;
}

__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number, ep::u64 timeout) {
    ep::Group group = given;
    Own* own = own_of(given, given.rank, number);
    group.state = &own->state;
    group.stop = &own->stop;
    group.records = own->records;
    group.timeout_ns = timeout;
    group.record_capacity = 3;
    group.pipeline = 70 + number;
    return group;
}

/// What a group has of its own, as numbers; one lane's own work.
__device__ __forceinline__ void put(ep::i64* out, const Own& own) {
    const ep::u32* words = reinterpret_cast<const ep::u32*>(&own);
    constexpr int kRecord = sizeof(ep::Record) / 4;
    for (int i = 0; i < 6; ++i) *out++ = words[i];
    *out++ = own.stop;
    for (int r = 0; r < 4; ++r) {
        for (int i = 0; i < 13; ++i) *out++ = words[16 + r * kRecord + i];
    }
}

/// A wait of one warp: when each lane is ready, whose peer it waits for, and when it is stopped.
struct Case {
    int first, each;  // lane i is ready from turn `first + i * each` on
    int peers;        // lanes from there on have a peer
    int stop;         // the turn in which the group is stopped
    ep::u64 timeout;
    bool any;
    bool stopped;  // before it begins
};

/// Waits, and how often each lane is asked.
__device__ __forceinline__ void polls(const ep::Group& given, const ep::Call& call, ep::i64* out) {
    const int lane = ep::lane_index();
    const Case cases[12] = {
        {1, 0, 0, 0, kNever, false, false},    {63, 0, 0, 0, kNever, false, false},
        {65, 2, 0, 0, kNever, false, false},   {3, 1, 0, 0, kNever, true, false},
        {60, 1, 9, 0, 0, false, false},        {60, 1, 32, 0, 0, false, false},
        {500, 0, 5, 70, kNever, false, false}, {500, 0, 0, 0, 1, false, false},
        {1, 0, 0, 0, kNever, false, true},     {1, 100, 0, 0, 0, true, false},
        {500, 1, 31, 64, 0, true, false},      {128, 0, 0, 0, kNever, false, false},
    };
    for (int c = 0; c < 12; ++c) {
        const Case& it = cases[c];
        const ep::Group group = group_of(given, c, it.timeout);
        ep::Team team(group, call, 5, 0, 1, 0, 1);
        team.epoch = 1000 + c;
        team.stopped = it.stopped;
        const int peer = lane >= it.peers ? lane - it.peers : -1;
        const ep::Site site{7, ep::Waiting::kFlag, 20 + lane, peer, 300u + lane};
        ep::i64* mark = out + c * 100 + 92;
        int turns = 0;
        const auto ready = [&](ep::u32& seen) {
            ++turns;
            if (lane == 0) mark[0] = turns;
            if (turns == it.stop && lane == 0) ep::store_relaxed_gpu(group.stop, 1u);
            if (c != 5) seen = 800 + lane;
            return turns >= it.first + lane * it.each;
        };
        const bool done =
            it.any ? ep::wait_any(team, site, ready) : ep::wait(team, site, ready);
        // What lanes did before is seen by all, as what is recorded is.
        if (lane == 3 && turns > 0) mark[1] = mark[0] + 1;
        ep::i64* own = out + c * 100;
        own[lane] = turns * 4 + (done ? 2 : 0) + (team.stopped ? 1 : 0);
        if (lane == 3) put(own + ep::kLanes, *own_of(given, given.rank, c));
    }
}

/// Records beyond the room for them, rows beyond an output's, and warps that are not to blame.
__device__ __forceinline__ void records(const ep::Group& given, const ep::Call& call,
                                        ep::i64* out) {
    const int lane = ep::lane_index();
    const ep::Group group = group_of(given, 12, kNever);
    if (lane == 0) {
        for (ep::u32 i = 0; i < 5; ++i) {
            const ep::Site site{static_cast<int>(i), ep::Waiting::kQueue, -1, 2, 9};
            ep::write_record(group, 50 + i, 6, site, i, i % 2 == 1);
        }
        put(out, *own_of(given, given.rank, 12));
    }
    __syncwarp();
    for (int c = 13; c < 19; ++c) {
        const ep::Group other = group_of(given, c, kNever);
        // The first warp of a role stops the group, once, and only where rows are too many.
        ep::Team team(other, call, 4, 0, 1, c == 16 ? 1 : 0, 2);
        team.epoch = 60;
        team.stopped = c == 15;
        ep::require_room(team, c == 13 ? 8 : c == 14 ? 7 : 9, 7);
        if (c == 18) ep::give_up(other, 61, 2, ep::Site{}, 5, lane == 4, false);
        if (lane == 2) {
            out[60 + c] = team.stopped ? 1 : 0;
            put(out + 100 + (c - 13) * 60, *own_of(given, given.rank, c));
        }
    }
}

/// A block gives up, and the other one of the rank leaves a wait that has no end of its own.
__device__ __forceinline__ void stops(const ep::Group& given, const ep::Call& call, int block,
                                      ep::i64* out) {
    const ep::Group group = group_of(given, 20, block == 0 ? 0 : kNever);
    ep::Team team(group, call, block, block, 2, 0, 1);
    const ep::Site site{1, ep::Waiting::kClosed, 2, 3, 4};
    const bool done = ep::wait(team, site, [&](ep::u32& seen) {
        seen = 5;
        return false;
    });
    Own* own = own_of(given, given.rank, 20);
    if (team.leader()) {
        while (ep::load_relaxed_gpu(&own->state.gave_up) != call.epoch) {
        }
        out[block] = done ? 1 : 0;
        if (block == 1) {
            // Either may have come first.
            for (int r = 0; r < 2; ++r) {
                const ep::u32* words = reinterpret_cast<const ep::u32*>(own->records + r);
                while (ep::load_relaxed_sys(words + 12) == 0) {
                }
                ep::load_acquire_sys(words + 12);
                const int first = own->records[r].block == 0 ? 10 : 30;
                for (int i = 0; i < 13; ++i) out[first + i] = words[i];
                }
        }
    }
    __syncwarp();
}

/// Words for other ranks: records, and a number that the host polls for.
__device__ __forceinline__ void told(const ep::Group& given, int block, ep::i64* out) {
    const ep::Group group = group_of(given, 21, 0);
    if (ep::lane_index() != 0) return;
    if (block == 0) {
        const ep::Site site{1, ep::Waiting::kHeader, 2, 6, 4};
        ep::write_record(group, 7, 3, site, 8, true);
        Own* peer = own_of(given, 1 - given.rank, 21);
        ep::store_host(reinterpret_cast<ep::i32*>(peer->room), -7);
        return;
    }
    const ep::u32* word = own_of(given, given.rank, 21)->room;
    while (ep::load_relaxed_sys(word) == 0) {
    }
    out[20] = static_cast<ep::i32>(ep::load_relaxed_sys(word));
    const Own* own = own_of(given, 1 - given.rank, 21);
    const ep::u32* words = reinterpret_cast<const ep::u32*>(own->records);
    while (ep::load_relaxed_sys(words + 12) == 0) {
    }
    ep::load_acquire_sys(words + 12);
    for (int i = 0; i < 13; ++i) out[i] = words[i];
}

/// Counters and stamped words of a peer, in some lanes, and what it wrote before.
__device__ __forceinline__ void words(const ep::Group& given, const ep::Call& call, int block,
                                      ep::i64* out) {
    const int lane = ep::lane_index();
    ep::u32* there = own_of(given, 1 - given.rank, 22)->room;
    ep::u64* wide = reinterpret_cast<ep::u64*>(own_of(given, 1 - given.rank, 23));
    if (block == 0) {
        if (lane < 2) {
            there[lane] = 30 + lane;
            ep::add_release_sys(there + 2 + lane, 5 + lane);
            there[4 + lane] = 60 + lane;
            ep::store_release_sys(wide + lane, ep::stamped(call.epoch, 90 + lane));
        }
        return;
    }
    const ep::u32* here = own_of(given, given.rank, 22)->room;
    const ep::u64* own = reinterpret_cast<const ep::u64*>(own_of(given, given.rank, 23));
    const ep::Group group = group_of(given, 24, kNever);
    ep::Team team(group, call, 1, 0, 1, 0, 1);
    const ep::Site site{1, ep::Waiting::kArrival, -1, -1, 4};
    out[lane] = ep::wait_counter(team, site, lane < 2 ? here + 2 + lane : nullptr);
    if (lane < 2) out[100 + lane] = here[lane];
    if (lane == 5) out[102] = here[0];
    out[32 + lane] = ep::wait_stamped(team, site, lane < 2 ? own + lane : nullptr);
    if (lane < 2) out[104 + lane] = here[4 + lane];
    if (lane == 5) out[106] = here[4];
    team.stopped = true;
    out[64 + lane] = ep::wait_counter(team, site, lane < 2 ? here + 2 + lane : nullptr) +
                     ep::wait_stamped(team, site, lane < 2 ? own + lane : nullptr);
}

/// Positions that are complete, told and signed off, by one lane and then by all warps.
__device__ __forceinline__ void sequences(Smem& smem, int warp, ep::i64* out) {
    if (ep::lane_index() != 0) return;
    ep::Sequence* own = smem.sequences + warp;
    const ep::u32 first = 0xfffffff0u;
    own->window = first;
    own->claimed = first;
    const int order[9] = {1, 2, 31, 32, 0, 3, 35, 36, 34};
    ep::i64* next = out + warp * 600;
    for (int position : order) {
        *next++ = own->try_complete(first + position) ? 1 : 0;
        *next++ = static_cast<ep::i64>(own->window);
        *next++ = own->base();
    }
    // Against the order, so that the last one closes 32.
    own->window = first;
    for (int position = 31; position >= 0; --position) {
        *next++ = own->try_complete(first + position) ? 1 : 0;
        *next++ = static_cast<ep::i64>(own->window);
    }
    const int upto[5] = {0, 3, 2, 3, 40};
    for (int number : upto) *next++ = own->claim(first + number);
    for (int i = 0; i < 3; ++i) {
        *next++ = own->sign_off();
        *next++ = own->sign_offs();
    }
    // Both warps complete every other one; who moves the base tells what is before it.
    ep::Sequence* all = smem.sequences + 2;
    ep::i64* written = out + 1400;
    for (int i = 0; i < 40; ++i) {
        const int position = 2 * i + warp;
        written[position] = 500 + position;
        while (!all->try_complete(static_cast<ep::u32>(position))) {
        }
        const ep::u32 upto = all->base();
        const ep::u32 fresh = all->claim(upto);
        for (ep::u32 at = upto - fresh; at < upto; ++at) out[1200 + at] += written[at];
        out[1300 + all->sign_off()] += 1;
    }
    // Who is the last to sign off, or waits for it, sees what both have done.
    const int mine = 1500 + warp;
    out[mine] = warp;
    if (all[1].sign_off() == 2) out[1510] = out[3001 - mine] + mine;
    while (all[1].sign_offs() != 2) {
    }
    out[1520 + warp] = out[3001 - mine];
    // The same at once, again and again: one of them finds that the other has come first.
    for (int round = 0; round < kRounds; ++round) {
        while (all[1 + round].sign_offs() != 2) {
        }
        ep::i64* both = out + 1600 + round * 2;
        both[warp] = round;
        if (all[2 + round].sign_off() == 2) out[1800 + round] = both[1 - warp];
    }
}

struct Role {
    static constexpr ep::u64 kClaims = 16;
    static constexpr int kLoops = 4;
};

/// Units of two loops that the warps of two blocks take, and of one that has a single warp, in several
/// calls.
__device__ __forceinline__ void units(ep::Team& team, ep::i64* out) {
    ep::Units<Role, 1> many(team, 37);
    ep::Units<Role, 0> few(team, 6);
    for (int unit = many.take(); unit >= 0; unit = many.take()) {
        if (team.leader()) out[unit] += 1;
    }
    for (int unit = few.take(); unit >= 0; unit = few.take()) {
        if (team.leader()) out[40 + unit] += 1;
    }
    team.stopped = true;
    ep::Units<Role, 2> none(team, 37);
    if (none.take() >= 0) out[50] = 1;
    if (team.index() != 0) return;
    ep::Team single(team.group, ep::Call{team.epoch, false, true}, 0, 0, 1, 0, 1);
    ep::Units<Role, 3> own(single, 4);
    for (int unit = own.take(); unit >= 0; unit = own.take()) {
        if (team.leader()) out[60 + unit] += 1;
    }
}

/// Blocks that wait for each other, and one that waits for nobody and gives up.
__device__ __forceinline__ void grids(const ep::Group& given, ep::Call call, int block,
                                      ep::i64* out) {
    const int thread = static_cast<int>(threadIdx.x), other = 1 - block;
    out[block * 64 + thread] = thread;
    const ep::Group group = group_of(given, 25, kNever);
    ep::all_blocks(group, call);
    out[128 + block * 64 + thread] = out[other * 64 + 63 - thread] + (call.stopped ? 100 : 0);
    const ep::Group alone = group_of(given, 26 + block, 0);
    ep::all_blocks(alone, call);
    if (thread < ep::kLanes) out[256 + block * 64 + thread] = (call.stopped ? 1 : 0) + (call.met ? 2 : 0);
    if (thread == 3) put(out + 400 + block * 60, *own_of(given, given.rank, 26 + block));
}

/// How a call begins and ends: in one kernel, in several, after a stop, and before all blocks are out.
__device__ __forceinline__ void ends(const ep::Group& given, ep::i64* out) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int c = 28; c < 32; ++c) {
        const ep::Group group = group_of(given, c, kNever);
        Own* own = own_of(given, given.rank, c);
        if (thread == 0) {
            own->state.epoch = 40 + c;
            own->stop = c == 30 ? 1 : 0;
        }
        __syncthreads();
        int prepared = 0;
        ep::Call call = ep::enter(group, [&] { ++prepared; });
        ep::i64* mine = out + (c - 28) * 400 + thread * 4;
        mine[0] = call.epoch;
        mine[1] = call.stopped ? 1 : 0;
        mine[2] = call.ends ? 1 : 0;
        mine[3] = prepared;
        if (thread == 0) {
            own->state.arrivals = 2;
            call.ends = c != 29;
            // As if the other block had come and gone, but for the last case.
            if (c != 31) {
                ep::fetch_add_relaxed_gpu(&own->state.blocks, ep::kBlockInside + 1);
                mine[300] = ep::is_last_out(group) ? 1 : 0;
            }
            if (ep::is_last_out(group)) ep::close(group, call);
            put(mine + 301, *own);
        }
    }
}

/// One of two blocks leaves: what the other one has done by then, and how this one takes the call.
struct Leaving {
    ep::u32 blocks;  // before it enters
    bool met, ends, stopped;
};

/// A block leaves a call beside one that is inside, is out, or has not come; then both leave one in turns of their own.
__device__ __forceinline__ void leaves(const ep::Group& given, ep::i64* out) {
    constexpr ep::u32 kInside = ep::kBlockInside;
    const Leaving cases[8] = {
        {kInside + 1, false, true, false}, {1, false, true, false},  {0, false, true, false},
        {1, false, false, false},          {1, false, true, true},   {kInside + 1, true, true, false},
        {1, true, true, false},            {1, true, true, true},
    };
    const bool is_first = threadIdx.x == 0;
    for (int c = 0; c < 8 && blockIdx.x == 0; ++c) {
        const ep::Group group = group_of(given, 35, kNever);
        ep::State* state = &own_of(given, given.rank, 35)->state;
        __syncthreads();
        if (is_first) {
            state->epoch = 6;
            state->blocks = cases[c].blocks;
            state->arrivals = 2;
        }
        __syncthreads();
        ep::Call call = ep::enter(group);
        call.met = cases[c].met;
        call.ends = cases[c].ends;
        call.stopped = cases[c].stopped;
        ep::leave(group, call);
        if (!is_first) continue;
        *out++ = state->epoch;
        *out++ = state->blocks;
        *out++ = state->arrivals;
        *state = ep::State{};
    }
    const ep::Group group = group_of(given, 32, kNever);
    const ep::Call call = ep::enter(group);
    ep::leave(group, call);
    const ep::State& state = own_of(given, given.rank, 32)->state;
    if (blockIdx.x != 0 || !is_first) return;
    while (ep::load_relaxed_gpu(&state.epoch) == 0 || ep::load_relaxed_gpu(&state.blocks) != 0) {
    }
    *out++ = ep::load_relaxed_gpu(&state.epoch);
}

/// The second warp of each block is late: until it has left, its block is inside.
__device__ __forceinline__ void late(const ep::Group& given, int warp, ep::i64* out) {
    const ep::Group group = group_of(given, 34, kNever);
    const ep::Call call = ep::enter(group);
    // The block has been counted, which its first warp does.
    __syncthreads();
    if (warp == 1) {
        for (int i = 0; i < 200; ++i) __syncwarp();
        const ep::u32 inside = ep::load_relaxed_gpu(&group.state->blocks) / ep::kBlockInside;
        out[blockIdx.x * 64 + threadIdx.x] = inside != 0 ? 1 : 0;
    }
    ep::leave(group, call);
}

/// A direct channel: its stripes, and bytes of a row and of a part.
template <int kStripes_, int kRow, int kUnit>
struct Direct {
    static constexpr int kStripes = kStripes_;
    static constexpr int kRowStride = kRow;
    static constexpr int kUnitBytes = kUnit;
};

/// The parts of all stripes, for three sets of peers: how many there are, and each one.
template <class Rows>
__device__ __forceinline__ ep::i64* cuts(const ep::Team& team, int longest, ep::i64* out) {
    const ep::Peers sets[3] = {{2, 5, ep::kNobody}, {0, 33, 7}, {1, 2, 1}};
    for (const ep::Peers& peers : sets) {
        const ep::StripeParts<Rows> parts(team, peers.skip < 0 ? 2 : 1, longest, peers);
        if (team.leader()) *out = parts.count();
        ++out;
        for (int i = 0; i < parts.count(); ++i) {
            const ep::StripePart part = parts.at(i);
            if (team.leader()) *out = (part.stripe * 1000ll + part.part) * 1000ll + part.parts;
            ++out;
        }
    }
    return out;
}

/// Parts for few and many warps, with rows that are large and small.
__device__ __forceinline__ void all_cuts(const ep::Group& group, const ep::Call& call, ep::i64* out) {
    const int counts[3] = {1, 5, 40}, tokens[5] = {0, 1, 7, 64, 300};
    for (int warps : counts) {
        const ep::Team team(group, call, 0, 0, warps, 0, 1);
        for (int longest : tokens) {
            out = cuts<Direct<1, 256, 4096>>(team, longest, out);
            out = cuts<Direct<6, 16, 1024>>(team, longest, out);
            out = cuts<Direct<9, 7168, 114688>>(team, longest, out);
        }
    }
}

/// A block begins a call that the other one sees, and that it stops meanwhile.
__device__ __forceinline__ void meet(const ep::Group& given, int block, ep::i64* out) {
    const ep::Group group = group_of(given, 33, kNever);
    if (block == 0) {
        out[threadIdx.x] = ep::enter(group).epoch;
    } else if (threadIdx.x == 0) {
        while (ep::load_relaxed_gpu(&group.state->entered) == 0) {
        }
        ep::store_relaxed_gpu(group.stop, 1u);
    }
}

/// Sequences that all threads of a block clear.
__device__ __forceinline__ void cleared(Smem& smem, ep::i64* out) {
    const int thread = static_cast<int>(threadIdx.x);
    ep::u64* words = reinterpret_cast<ep::u64*>(smem.sequences);
    for (int i = thread; i < 350; i += 64) words[i] = 7;
    __syncthreads();
    ep::clear(smem.sequences, 69);
    __syncthreads();
    for (int i = thread; i < 350; i += 64) out[i] = static_cast<ep::i64>(words[i]);
}

/// A kernel that hears of what another one writes while both run, and then waits for what nobody tells.
__device__ __forceinline__ void kernels(Smem& smem, const ep::Group& given, const ep::Call& call,
                                        int block, ep::i64* out) {
    const int lane = ep::lane_index();
    Own* own = own_of(given, given.rank, 19);
    ep::i32* word = reinterpret_cast<ep::i32*>(own->room);
    ep::u32* rows = own->room + 1;
    // Behind the records that the group has room for.
    ep::u32* whole = reinterpret_cast<ep::u32*>(own->records + 3);
    const ep::Group group = group_of(given, 19, kNever);
    ep::Team team(group, call, 3, 0, 1, 0, 1);
    if (block == 0) {
        for (int turn = 0; turn < 2; ++turn) {
            // Not before the first turn has been heard of.
            while (turn == 1 && ep::load_relaxed_gpu(whole + 4) == 0) {
            }
            if (lane < 3) rows[turn * 3 + lane] = 40 + turn * 10 + lane;
            if (lane < 2) whole[turn * 2 + lane] = 60 + turn * 10 + lane;
            ep::raise_word(team, word);
        }
        team.stopped = true;
        ep::raise_word(team, word);
        return;
    }
    for (int turn = 0; turn < 2; ++turn) {
        const bool there = ep::await_word(team, word, turn + 1, 6);
        out[turn * 32 + lane] = there ? rows[turn * 3 + (lane + 1) % 3] : 0;
        if (team.leader()) ep::store_relaxed_gpu(whole + 4, 1u);
    }
    // By a bulk copy, too.
    if (team.leader()) {
        ep::mbarrier_init(&smem.full, 1);
        ep::fence_mbarrier_init();
        ep::mbarrier_arrive_expect(&smem.full, sizeof(smem.row));
        ep::tma_load(smem.row, whole, sizeof(smem.row), &smem.full);
        while (!ep::mbarrier_try_wait(&smem.full, 0)) {
        }
        for (int i = 0; i < 4; ++i) out[192 + i] = smem.row[i];
    }
    __syncwarp();
    out[64 + lane] = ep::await_word(team, word, -1, 6) ? 1 : 0;
    const ep::Group hurried = group_of(given, 19, 0);
    ep::Team late(hurried, call, 3, 0, 1, 0, 1);
    out[96 + lane] = ep::await_word(late, word, 3, 6) ? 1 : 0;
    out[128 + lane] = late.stopped ? 1 : 0;
    out[160 + lane] = ep::await_word(late, word, 2, 6) ? 1 : 0;
    if (lane == 3) put(out + 200, *own);
}

}  // namespace waits

extern "C" __global__ void __launch_bounds__(waits::kWarps * 32)
    waits_of(const __grid_constant__ waits::Args args) {
    EP_SHARED(waits::Smem, smem);
    const ep::Call call =
        ep::enter(args.group, [&] { ep::clear(smem.sequences, 4 + waits::kRounds); });
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const int block = static_cast<int>(blockIdx.x);
    ep::Team team(args.group, call, 0, block, 2, warp, waits::kWarps);
    ep::i64* out = args.out;
    switch (args.check) {
        case 0:
        case 1:
        case 2: waits::units(team, out); break;
        case 3: waits::grids(args.group, call, block, out); break;
        case 4: if (block == 0) waits::ends(args.group, out); break;
        case 5: waits::leaves(args.group, out); break;
        case 6: if (block == 0) waits::cleared(smem, out); break;
        case 7: if (block == 0) waits::sequences(smem, warp, out); break;
        case 13: waits::meet(args.group, block, out); break;
        case 14: waits::late(args.group, warp, out); break;
        default: break;
    }
    if (warp == 0) {
        switch (args.check) {
            case 8: if (block == 0) waits::polls(args.group, call, out); break;
            case 9: if (block == 0) waits::records(args.group, call, out); break;
            case 10: waits::stops(args.group, call, block, out); break;
            case 11: waits::told(args.group, block, out); break;
            case 12: waits::words(args.group, call, block, out); break;
            case 15: if (block == 0) waits::all_cuts(args.group, call, out); break;
            case 16: waits::kernels(smem, args.group, call, block, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
