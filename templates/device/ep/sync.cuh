// Who works on what, and every wait of the library.
//
// A wait is bounded. When it expires, the warp writes a record to memory that the host reads and
// raises the group's stop word; every other warp sees that word at its next look. From then on each
// wait of a stopped team returns false at once, movers move nothing and only complete what they
// began (M6), and all warps leave the kernel by its one exit: no trap, the context lives.
#pragma once

#include <ep/ptx.cuh>

namespace ep {

constexpr int kLanes = 32;

/// What a warp waits for, as the host names it in a report.
enum class Waiting : u16 {
    kCredit,    // room in a ring
    kArrival,   // a row of a ring
    kHeader,    // first and count of a ring's stripe
    kRetired,   // the consumer's end of the call before the last one
    kReady,     // a peer's announcement of its tensor
    kClosed,    // rows of a direct channel
    kFlag,      // a slot
    kReleased,  // the last reader of an offered tensor
    kSequence,  // other warps of the same team
    kBlocks,    // the other blocks of the grid
    kCapacity,  // never waited for: the output holds fewer rows than arrive
    kQueue,     // room in a queue of the network
    kDrained,   // the network has read what a queue sends
    kWord,      // a word that another kernel raises
};

/// What one warp was waiting for when it gave up; in host memory.
struct alignas(64) Record {
    u32 pipeline;
    u32 role;
    u32 channel;
    u32 kind;     // Waiting
    u32 expired;  // 1: this wait ran out; 0: it was cut short by the stop of another one
    i32 stripe;
    i32 peer;
    u32 want;
    u32 seen;
    u32 epoch;
    u32 block;
    u32 warp;
    u32 written;  // 1 once all the others are valid
    u32 unused[3];
};

struct Presence;

/// Words of one pipeline in the rank's own window, where the hosts of all ranks look after a wait has
/// run out; zero before the first launch, but for the last one.
struct State {
    u32 epoch;     // calls completed, but for what blocks that are inside still do
    u32 blocks;    // of this launch; low half: how many have entered, high half: how many are inside
    u32 arrivals;  // blocks that have reached `all_blocks`
    u32 records;   // records taken
    u32 entered;   // calls begun; none is begun once the group is stopped
    u32 gave_up;   // the call in which a wait ran out
    Presence* const* presences;  // those of all ranks, as mapped here; only for kernels that look (presence.cuh)
};

/// One rank's view of the group, an argument of every kernel.
struct Group {
    char* const* windows;  // the window of every rank, as mapped here
    char* window;          // this rank's own
    State* state;
    u32* stop;  // in local device memory, since every long wait looks at it
    Record* records;
    u64 timeout_ns;
    u64 alive;  // a bit for each of the first 64 ranks: whether it takes part in calls
    u32 record_capacity;
    u32 pipeline;  // what the host calls this pipeline in reports
    i32 rank;
};

/// What `enter` found: the number of this call, and whether the group was already stopped.
struct Call {
    u32 epoch;
    bool stopped;
    bool ends;   // with this kernel; otherwise the kernel of the next phase goes on with it
    u32 before;  // in thread 0: `State::blocks` before this block entered
    bool met;    // with all blocks
};

/// Whether a rank takes part in calls.
__device__ __forceinline__ bool is_alive(const Group& group, i64 rank) {
    return rank >= 0 && (rank >= 64 || (group.alive >> rank & 1) != 0);
}

/// Whether all ranks do.
__device__ __forceinline__ bool everyone_is_alive(const Group& group) {
    return ~group.alive == 0;
}

/// Whether `value` is one of the `count` numbers from `first` on.
__device__ __forceinline__ bool is_between(int value, int first, int count) {
    return value >= first && value < first + count;
}

/// The warps that carry one role, as one of them sees it.
struct Team {
    const Group& group;
    u32 epoch;
    int role;
    int block, blocks;  // among the blocks of the role
    int warp, warps;    // among the warps of the role in this block
    int lane;
    int peer,
        peers;  // after `split_peers`: the first peer of this warp, and how far its next one is
    int part, parts;  // after `split_peers`: this warp among those that share a peer
    bool stopped;     // the same in every lane

    __device__ __forceinline__ Team(const Group& group_, const Call& call, int role_, int block_,
                                    int blocks_, int warp_, int warps_)
        : group(group_), epoch(call.epoch), role(role_), block(block_), blocks(blocks_),
          warp(warp_), warps(warps_), lane(lane_index()), peer(0), peers(1), part(0), parts(1),
          stopped(call.stopped) {}

    /// A warp that carries a role alone.
    __device__ __forceinline__ Team(const Group& group_, const Call& call, int role_)
        : Team(group_, call, role_, 0, 1, 0, 1) {}

    /// Number of this warp among all warps of the role.
    __device__ __forceinline__ int index() const { return block * warps + warp; }

    /// Number of this warp in the role, with neighbors on different blocks: all blocks share even a little work.
    __device__ __forceinline__ int spread() const { return warp * blocks + block; }

    /// How many warps the role has.
    __device__ __forceinline__ int count() const { return blocks * warps; }

    /// The lane that speaks for its warp.
    __device__ __forceinline__ bool leader() const { return lane == 0; }

    /// The rank of a peer, of `peers` in a row: all ranks, or those of this rank's node.
    __device__ __forceinline__ int rank_of(int other, int of) const {
        return group.rank - group.rank % of + other;
    }

    /// This rank among `of` peers.
    __device__ __forceinline__ int own(int of) const { return group.rank % of; }

    /// Divides the block's warps over `count` peers; with fewer warps than peers each takes
    /// several.
    __device__ __forceinline__ void split_peers(int count) {
        parts = warps < count ? 1 : warps / count;
        peers = warps < count ? warps : count;
        peer = warp / parts < peers ? warp / parts : count;
        part = warp % parts;
    }
};

/// Into how many shares a role cuts each of `units` units of its work, so that all warps have some. Few units have two
/// shares: what a warp does with the last unit is time in which the others have nothing to do.
__device__ __forceinline__ int shares_of(const Team& team, int units) {
    constexpr int kFew = 2;
    if (units <= 0) return 1;
    const int least = team.count() / units;
    const int wanted = units <= kFew * team.count() ? 2 : 1;
    return least > wanted ? least : wanted;
}

/// Numbers from 0 on that the warps of a role take as they come free for them: peers and links are
/// not equally fast, and a warp that is done sooner takes more. `given`: how many are given out,
/// after the first one of each warp.
class Claims {
public:
    __device__ __forceinline__ Claims(const Team& team, u32* given)
        : team_(team), given_(given), claim_(static_cast<u32>(team.spread() - team.count())) {}

    /// The next number. The first one is the warp's own.
    __device__ __forceinline__ int take() const {
        return team_.count() + static_cast<int>(__shfl_sync(kAllLanes, claim_, 0));
    }

    /// Claims the number that `take` gives then, so that nobody waits for the answer.
    __device__ __forceinline__ void ask() {
        if (team_.leader()) claim_ = fetch_next_relaxed_gpu(given_);
        __syncwarp();  // converges; orders nothing
    }

    /// Takes no more numbers.
    __device__ __forceinline__ void end() { claim_ = 0x7fffffffu - static_cast<u32>(team_.count()); }

private:
    const Team& team_;
    u32* given_;
    u32 claim_;
};

/// The units of a role's work, `end` of them, as its warps come free. `Role` is its Cfg struct; its words in
/// this rank's window are
///   kClaims  [call % 2][loop]  units given out, after the first one of each warp
template <class Role, int kLoop>
class Units {
public:
    __device__ __forceinline__ Units(const Team& team, int end)
        : team_(team), end_(end), claims_(team, word(team, team.epoch)) {
        // That of the next call: nobody looks at it now.
        if (team.index() == 0 && team.leader()) {
            store_relaxed_gpu(word(team, team.epoch + 1), 0u);
        }
        __syncwarp();  // converges; orders nothing
    }

    /// The next unit; negative: there is none, or the team is stopped.
    __device__ __forceinline__ int take() {
        const int unit = claims_.take();
        if (unit >= end_ || team_.stopped) return -1;
        // Where every warp has at most one unit, none waits to hear that there is no other.
        if (end_ > team_.count()) {
            claims_.ask();
        } else {
            claims_.end();
        }
        return unit;
    }

private:
    static __device__ __forceinline__ u32* word(const Team& team, u32 epoch) {
        u32* words = reinterpret_cast<u32*>(team.group.window + Role::kClaims);
        return words + epoch % 2 * Role::kLoops + kLoop;
    }

    const Team& team_;
    int end_;
    Claims claims_;
};

/// Where a warp waits. `stripe` and `peer` may differ by lane; -1: none.
struct Site {
    int channel;
    Waiting kind;
    int stripe;
    int peer;
    u32 want;
};

/// Writes what this lane waited for, if there is room for one more record.
__device__ __forceinline__ void write_record(const Group& group, u32 epoch, int role,
                                             const Site& site, u32 seen, bool expired) {
    const u32 slot = fetch_add_relaxed_gpu(&group.state->records, 1);
    if (slot >= group.record_capacity) return;
    Record* record = group.records + slot;
    Quad* quads = reinterpret_cast<Quad*>(record);
    store_quad(quads, Quad{group.pipeline, static_cast<u32>(role), static_cast<u32>(site.channel),
                           static_cast<u32>(site.kind)});
    store_quad(quads + 1, Quad{expired ? 1u : 0u, static_cast<u32>(site.stripe),
                               static_cast<u32>(site.peer), site.want});
    store_quad(quads + 2, Quad{seen, epoch, blockIdx.x, threadIdx.x / kLanes});
    // The host polls `written` and then reads the words above it.
    store_release_sys(&record->written, 1u);
}

/// Stops the group: the warp of the caller gives up, and the lane with `blame` says why.
inline __device__ __noinline__ void give_up(const Group& group, u32 epoch, int role, Site site,
                                            u32 seen, bool blame, bool expired) {
    if (blame) {
        if (expired) {
            store_relaxed_gpu(group.stop, 1u);
            store_relaxed_gpu(&group.state->gave_up, epoch);
        }
        write_record(group, epoch, role, site, seen, expired);
    }
    __syncwarp();
}

/// The rare look of a wait at the stop word and the clock. `begun` is when it looked first, 0
/// before that. Returns it; 0: the group has been stopped, and the warp gives up. Out of line, by
/// value: the many waits of a kernel share one copy, and the caller's variables stay in registers.
inline __device__ __noinline__ u64 look_around(const Group& group, u32 epoch, int role, Site site,
                                               u32 seen, bool unready, u64 begun) {
    const u64 now = clock_ns();
    if (begun == 0) begun = now;
    const bool halted = __ballot_sync(kAllLanes, load_relaxed_gpu(group.stop) != 0) != 0;
    const bool expired = __ballot_sync(kAllLanes, now - begun >= group.timeout_ns) != 0;
    if (!halted && !expired) return begun;
    // Lanes without a peer only wait along with the others.
    const u32 peers = __ballot_sync(kAllLanes, unready && site.peer >= 0);
    const u32 waiting = peers != 0 ? peers : __ballot_sync(kAllLanes, unready);
    const bool blame = lane_index() == __ffs(static_cast<int>(waiting)) - 1;
    give_up(group, epoch, role, site, seen, blame, !halted);
    return 0;
}

/// Polls until `ready(seen)` holds in every lane, or in any one (`kAny`). `seen` goes to the
/// record. All lanes call it. False: the team is stopped. Orders nothing but the lanes of the warp.
template <bool kAny, class Ready>
__device__ __forceinline__ bool poll(Team& team, const Site& site, Ready ready) {
    if (team.stopped) return false;
    note_wait(team.group.pipeline, static_cast<u32>(team.role), static_cast<u32>(site.channel),
              static_cast<u32>(site.kind), site.stripe, site.peer, site.want, team.epoch);
    u64 begun = 0;
#pragma unroll 1
    for (u32 turn = 1;; ++turn) {
        u32 seen = 0;
        const bool is_ready = ready(seen);
        const u32 lanes = __ballot_sync(kAllLanes, is_ready);
        if (kAny ? lanes != 0 : lanes == kAllLanes) break;
        // The stop word and the clock cost a round trip each: every 64th turn is soon enough.
        if (turn % 64 != 0) continue;
        begun = look_around(team.group, team.epoch, team.role, site, seen, !is_ready, begun);
        if (begun == 0) {
            team.stopped = true;
            return false;
        }
    }
    note_met();
    __syncwarp();
    return true;
}

/// Waits until every lane is ready; see `poll`.
template <class Ready>
__device__ __forceinline__ bool wait(Team& team, const Site& site, Ready ready) {
    return poll<false>(team, site, ready);
}

/// Waits until at least one lane is ready; see `poll`.
template <class Ready>
__device__ __forceinline__ bool wait_any(Team& team, const Site& site, Ready ready) {
    return poll<true>(team, site, ready);
}

/// Whether counter `value` has reached `want`; right across the wrap at 2^32 (M7).
__device__ __forceinline__ bool reached(u32 value, u32 want) {
    return static_cast<i32>(value - want) >= 0;
}

/// An {epoch, value} word (M7).
__device__ __forceinline__ u64 stamped(u32 epoch, u32 value) {
    return static_cast<u64>(epoch) << 32 | value;
}

/// The value of an {epoch, value} word.
__device__ __forceinline__ u32 value_of(u64 word) {
    return static_cast<u32>(word);
}

/// The epoch of an {epoch, value} word.
__device__ __forceinline__ u32 epoch_of(u64 word) {
    return static_cast<u32>(word >> 32);
}

/// All warps of a role meet: what each of them did before is visible to all behind it. `Role` is its Cfg struct; the
/// warps that have come are counted in a word of the role, `kClaims  [call % 2][kPlace]`, like units (Units).
template <class Role, int kPlace>
__device__ __forceinline__ void meet(Team& team) {
    u32* words = reinterpret_cast<u32*>(team.group.window + Role::kClaims) + kPlace;
    u32* come = words + team.epoch % 2 * Role::kLoops;
    // Where the role has the whole block, one warp comes for all of them.
    const bool is_whole = team.warps * kLanes == static_cast<int>(blockDim.x);
    if (is_whole) __syncthreads();
    __syncwarp();
    if (team.leader() && (!is_whole || team.warp == 0)) {
        // That of the next call: nobody looks at it now.
        if (team.index() == 0) store_relaxed_gpu(words + (team.epoch + 1) % 2 * Role::kLoops, 0u);
        // M1: releases what the threads did before the barrier above; acquired below.
        fetch_add_acq_rel_gpu(come, 1);
    }
    const u32 all = static_cast<u32>(is_whole ? team.blocks : team.count());
    const Site site{0, Waiting::kBlocks, -1, -1, all};
    wait(team, site, [&](u32& seen) {
        if (!team.leader()) return true;
        seen = load_relaxed_gpu(come);
        return seen >= all;
    });
    // M2: what all warps released; the other lanes go on behind the barrier.
    if (team.leader()) load_acquire_gpu(come);
    __syncwarp();
}

/// All warps of the only role on a block meet: what each of them did before is visible to all behind it.
__device__ __forceinline__ void meet_block() {
    __syncthreads();
}

/// Each lane waits until its counter has reached `site.want`, and acquires it once (M2, M4: the
/// caller names the other end). Null: this lane waits for nothing. Returns the counter; 0 if
/// stopped.
__device__ __forceinline__ u32 wait_counter(Team& team, const Site& site, const u32* counter) {
    const bool done = wait(team, site, [&](u32& seen) {
        if (counter == nullptr) return true;
        seen = load_relaxed_sys(counter);
        return reached(seen, site.want);
    });
    const u32 value = done && counter != nullptr ? load_acquire_sys(counter) : 0;
    __syncwarp();
    return value;
}

/// Each lane waits until its word carries this call's epoch, and acquires it once (M2, M7: the
/// caller names the other end). Null: nothing to wait for. Returns the value; 0 if stopped.
__device__ __forceinline__ u32 wait_stamped(Team& team, const Site& site, const u64* word) {
    const bool done = wait(team, site, [&](u32& seen) {
        if (word == nullptr) return true;
        const u64 found = load_relaxed_sys(word);
        seen = epoch_of(found);
        return seen == team.epoch;
    });
    const u32 value = done && word != nullptr ? value_of(load_acquire_sys(word)) : 0;
    __syncwarp();
    return value;
}

/// Positions that the warps of a team complete in any order, at most 32 ahead of the first gap.
/// Lives in shared memory, zero at the start of the block. Every method is for one lane.
struct Sequence {
    u64 window;      // low half: all positions before this one are complete; high half: a bit for
                     // each of the next 32
    u64 claimed;     // how far the peer has been told; high half: whether a warp tells it right now
    u64 signed_off;  // how many times a warp has signed off
    u64 next;        // low half: the position that is given out next; high half: to which turn
    u64 ended;       // low half: the positions of all units that are over; high half: how many units

    /// All positions before this one are complete, and what their warps did is visible.
    __device__ __forceinline__ u32 base() const {
        return static_cast<u32>(load_acquire_shared(&window));
    }

    /// Marks `position` complete, and moves the base if that closes the gap. False: too far ahead.
    __device__ __forceinline__ bool try_complete(u32 position) {
        u64 found = load_acquire_shared(&window);
        for (;;) {
            const u32 base = static_cast<u32>(found);
            if (position - base >= 32) return false;
            const u32 bits = static_cast<u32>(found >> 32) | 1u << (position - base);
            const int closed = bits == kAllLanes ? 32 : __ffs(static_cast<int>(~bits)) - 1;
            const u32 left = closed == 32 ? 0 : bits >> closed;
            const u64 moved = stamped(left, base + static_cast<u32>(closed));
            // Releases this warp's work to whoever closes the gap, and acquires the others' (M1,
            // M4: the sys-scope release of the one that tells the peer covers them all).
            const u64 before = compare_swap_shared(&window, found, moved);
            if (before == found) return true;
            found = before;
        }
    }

    /// Takes the duty to tell the peer about all positions before `upto`. Returns how many are new;
    /// two warps never tell the same ones, so that each adds its share to the peer's counter.
    __device__ __forceinline__ u32 claim(u32 upto) {
        u64 found = load_acquire_shared(&claimed);
        for (;;) {
            const u32 fresh = upto - static_cast<u32>(found);
            if (static_cast<i32>(fresh) <= 0) return 0;
            const u64 before = compare_swap_shared(&claimed, found, upto);
            if (before == found) return fresh;
            found = before;
        }
    }

    /// Says that one more warp is done with its share; returns how many have said so.
    __device__ __forceinline__ u32 sign_off() {
        u64 found = load_acquire_shared(&signed_off);
        for (;;) {
            const u64 before = compare_swap_shared(&signed_off, found, found + 1);
            if (before == found) return static_cast<u32>(found) + 1;
            found = before;
        }
    }

    /// How many times a warp has signed off.
    __device__ __forceinline__ u32 sign_offs() const {
        return static_cast<u32>(load_acquire_shared(&signed_off));
    }

    /// Gives the next `count` positions to a turn, if all turns before it have theirs. False: they have not.
    __device__ __forceinline__ bool try_claim(u32 turn, u32 count, u32& position) {
        const u64 found = load_acquire_shared(&next);
        if (epoch_of(found) != turn) return false;
        position = value_of(found);
        // No other turn changes it.
        compare_swap_shared(&next, found, stamped(turn + 1, position + count));
        return true;
    }

    /// The position that is given out next.
    __device__ __forceinline__ u32 next_position() const { return value_of(load_acquire_shared(&next)); }

    /// Takes `position`, if it is the next one.
    __device__ __forceinline__ bool try_take(u32 position) {
        return compare_swap_shared(&next, position, stamped(0, position + 1)) == position;
    }

    /// Takes the next position.
    __device__ __forceinline__ u32 take() {
        u32 position = next_position();
        while (!try_take(position)) position = next_position();
        return position;
    }

    /// Takes the duty to tell the peer about all positions before `upto`, in order: another warp that comes meanwhile
    /// leaves its positions to this one. Returns how many are new; 0: none, or another warp looks after them.
    __device__ __forceinline__ u32 begin_telling(u32 upto, bool all) {
        u64 found = load_acquire_shared(&claimed);
        for (;;) {
            const u32 fresh = upto - value_of(found);
            if (static_cast<i32>(fresh) <= 0) return 0;
            const u32 telling = epoch_of(found);
            const u32 now = telling == 0 ? kTells : telling | (all ? kAgainAll : kAgain);
            const u64 before = compare_swap_shared(&claimed, found, stamped(now, value_of(found)));
            if (before == found) return telling == 0 ? fresh : 0;
            found = before;
        }
    }

    /// The peer has been told about all positions before `upto`. Returns whether others have come meanwhile, and whether
    /// they want it to be told about all positions.
    __device__ __forceinline__ bool end_telling(u32 upto, bool& all) {
        u64 found = load_acquire_shared(&claimed);
        for (;;) {
            const u64 before = compare_swap_shared(&claimed, found, u64{upto});
            if (before == found) break;
            found = before;
        }
        all = (epoch_of(found) & kAgainAll) != 0;
        return epoch_of(found) != kTells;
    }

    /// Ends a unit, the number of which is `unit`, for the warp that has signed off last.
    __device__ __forceinline__ void end_unit(u32 unit) {
        const u32 positions = base();
        replace(&next, positions);
        replace(&ended, stamped(unit, positions));
    }

private:
    static constexpr u32 kTells = 1, kAgain = 2, kAgainAll = 4;

    /// No other warp writes the word.
    static __device__ __forceinline__ void replace(u64* word, u64 value) {
        compare_swap_shared(word, load_acquire_shared(word), value);
    }
};

/// One block inside, in `State::blocks`.
constexpr u32 kBlockInside = 1u << 16;

/// First step of every kernel: reads the number of this call, and has `prepare()` ready what the
/// block shares, while that travels.
template <class Prepare>
__device__ __forceinline__ Call enter(const Group& group, Prepare prepare) {
    after_last_kernel();
    const u32 epoch = load_relaxed_gpu(&group.state->epoch) + 1;
    const bool looks_stopped = load_relaxed_gpu(group.stop) != 0;
    prepare();
    // One answer for the whole warp: lanes may have read the stop word at different times. All warps have the number
    // of the call when they come to the barrier: the block that enters last replaces it.
    const bool stopped = __ballot_sync(kAllLanes, looks_stopped) != 0;
    const u32 own = __shfl_sync(kAllLanes, epoch, 0);
    __syncthreads();
    u32 before = 0;
    if (threadIdx.x == 0) {
        // The answer has come when the block leaves.
        before = fetch_add_relaxed_gpu(&group.state->blocks, kBlockInside + 1);
        if (!stopped && blockIdx.x == 0) store_relaxed_gpu(&group.state->entered, own);
    }
    return Call{own, stopped, true, before, false};
}

/// First step of a kernel whose blocks share nothing.
__device__ __forceinline__ Call enter(const Group& group) {
    return enter(group, [] {});
}

/// Zeroes the block's sequences, by all its threads; a barrier comes after.
__device__ __forceinline__ void clear(Sequence* sequences, int count) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
        sequences[i] = Sequence{0, 0, 0, 0, 0};
    }
}

/// The warps of a block that share each unit of a role's work, and their sequences in shared memory: `Role::kSequences`
/// for every `team.parts` warps, from `kFirstSequence` on. The first one deals out the turns of the unit's loops.
template <class Role>
class Shares {
public:
    /// Each warp has units of its own.
    __device__ __forceinline__ Shares(Team& team, Sequence* all)
        : team_(team), own_(all + Role::kFirstSequence + team.warp / team.parts * Role::kSequences),
          taken_(1) {}

    /// All warps of the block share `units` units at a time.
    __device__ __forceinline__ Shares(Team& team, Sequence* all, int units)
        : Shares(split(team, units), all) {}

    /// The sequences of `count` rings, which are those of one end of a channel.
    __device__ __forceinline__ Sequence* take(int count) {
        taken_ += count;
        return own_ + taken_ - count;
    }

    /// The next turn of this warp of a loop of `count` turns; negative: there is none, and the next call is for the next
    /// loop of the unit. Warps take turns as they come free.
    __device__ __forceinline__ int next(int count) {
        if (team_.stopped) return -1;
        if (!holds_) {
            u32 turn = team_.leader() ? own_->take() : 0;
            turn_ = __shfl_sync(kAllLanes, turn, 0);
            holds_ = true;
        }
        const u32 turn = turn_ - begun_;
        if (static_cast<int>(turn) < count) {
            holds_ = false;
            return static_cast<int>(turn);
        }
        begun_ += static_cast<u32>(count > 0 ? count : 0);
        return -1;
    }

    /// Which turn of the unit that is.
    __device__ __forceinline__ u32 turn() const { return turn_ - first_; }

    /// Ends a unit. Each warp has taken one turn more than there are.
    __device__ __forceinline__ void end() {
        if (holds_) begun_ += static_cast<u32>(team_.parts);
        holds_ = false;
        first_ = begun_;
    }

private:
    static __device__ __forceinline__ Team& split(Team& team, int units) {
        team.split_peers(units);
        return team;
    }

    Team& team_;
    Sequence* own_;
    int taken_;
    u32 turn_ = 0;   // of all units
    u32 begun_ = 0;  // turns of the loops before this one
    u32 first_ = 0;  // turns of the units before this one
    bool holds_ = false;
};

/// Until every block of the grid has come here, so that what they wrote before is visible; at most
/// once a kernel, before its roles. Needs a cooperative launch (M8). If that is given up, the first warp
/// of the block is stopped, and the others see the stop word at their next wait.
__device__ __forceinline__ void all_blocks(const Group& group, Call& call) {
    __syncthreads();
    if (threadIdx.x < kLanes) {
        Team team(group, call, 0);
        u32* arrivals = &group.state->arrivals;
        if (team.leader()) fetch_add_acq_rel_gpu(arrivals, 1);
        const Site site{0, Waiting::kBlocks, -1, -1, gridDim.x};
        wait(team, site, [&](u32& seen) {
            if (!team.leader()) return true;
            seen = load_relaxed_gpu(arrivals);
            return seen >= gridDim.x;
        });
        if (team.leader()) load_acquire_gpu(arrivals);
        call.stopped = team.stopped;
    }
    call.met = true;
    __syncthreads();
}

/// Whether this block is the last one out: what all blocks did before is visible to it. One thread
/// of each block asks, once a kernel.
__device__ __forceinline__ bool is_last_out(const Group& group) {
    return fetch_add_acq_rel_gpu(&group.state->blocks, 0u - kBlockInside) == kBlockInside + gridDim.x;
}

/// Ends the call, with its last phase.
__device__ __forceinline__ void end_call(const Group& group, const Call& call) {
    if (!call.stopped && call.ends) store_relaxed_gpu(&group.state->epoch, call.epoch);
}

/// What one thread of the last block out does: no block is left that reads these words; the next launch on this
/// stream does.
__device__ __forceinline__ void close(const Group& group, const Call& call) {
    store_relaxed_gpu(&group.state->blocks, 0u);
    store_relaxed_gpu(&group.state->arrivals, 0u);
    end_call(group, call);
}

/// Last step of every kernel, for all threads. The block that entered last ends the call, since all have its number
/// then, and none waits to hear whether it is the last one out.
__device__ __forceinline__ void leave(const Group& group, const Call& call) {
    // Not before the last warp is done: until then the next kernel would hold SMs that others can use, among them
    // blocks of a rank on the same device, for which this one waits.
    __syncthreads();
    bring_next_kernel();
    if (threadIdx.x != 0) return;
    if (call.met || !kSpareRegisters) {
        // Others may still look how many have come, or nobody has kept how many had entered before.
        if (is_last_out(group)) close(group, call);
        return;
    }
    const bool entered_last = call.before % kBlockInside + 1 == gridDim.x;
    add_relaxed_gpu(&group.state->blocks, 0u - kBlockInside - (entered_last ? gridDim.x : 0));
    if (entered_last) end_call(group, call);
}

}  // namespace ep
