// Messages in every way that the library orders accesses, over and over: whoever receives one compares
// all of its words. One kind a launch; each works with whatever warps it needs and leaves the others.
#include <ep/cast.cuh>
#include <ep/sync.cuh>

namespace litmus {

constexpr int kWarps = 4;
constexpr int kWords = 96;  // of a message, three for each lane

struct Args {
    ep::Group group;
    int ranks;
    int kind;
    int rounds;
    ep::u32* tally;        // [2] wrong words, and all that were compared
    ep::u32* words;        // [rounds * kWords], this rank's own
    ep::u32* flags;        // [8] counters of this rank, zero at first
    const ep::u32* given;  // [rounds] floats as their bits, for the conversions
    ep::u32* converted;    // [rounds, 6] what they give
};

/// What one rank has for the rank before it and the one behind it, in its window.
struct Inbox {
    ep::u32 words[kWords];
    ep::u64 whole[kWords];
    ep::u64 flag;
    ep::u32 tail;
    ep::u32 head;
    ep::u32 room;  // to the next 16 bytes
    ep::u32 more;
};

struct Smem {
    ep::Sequence sequence;
    ep::u64 word;
    ep::u32 words[kWarps][kWords];
};

/// Word `i` of message `round` from `rank`.
__device__ __forceinline__ ep::u32 word_of(int rank, int round, int i) {
    const ep::u32 mixed = static_cast<ep::u32>(rank * 7919 + round * 131 + i) * 0x9e3779b1u;
    return mixed ^ mixed >> 15;
}

/// One warp that sends or receives.
struct Actor {
    const Args& args;
    ep::Team& team;
    ep::u32 wrong = 0;
    ep::u32 compared = 0;

    __device__ __forceinline__ Actor(const Args& args_, ep::Team& team_)
        : args(args_), team(team_) {}

    __device__ __forceinline__ int next() const { return (args.group.rank + 1) % args.ranks; }
    __device__ __forceinline__ int previous() const {
        return (args.group.rank + args.ranks - 1) % args.ranks;
    }
    __device__ __forceinline__ Inbox* inbox(int rank) const {
        return reinterpret_cast<Inbox*>(args.group.windows[rank]);
    }

    /// Until `ready()` holds for the leader.
    template <class Ready>
    __device__ __forceinline__ void until(ep::Waiting kind, int peer, int round, Ready ready) {
        const ep::Site site{0, kind, -1, peer, static_cast<ep::u32>(round)};
        ep::wait(team, site, [&](ep::u32&) { return !team.leader() || ready(); });
    }

    /// Until the next rank has taken all messages before `round`; false: the team is stopped.
    __device__ __forceinline__ bool has_room(int round) {
        const ep::u32* head = &inbox(args.group.rank)->head;
        const ep::Site site{0, ep::Waiting::kCredit, -1, next(), static_cast<ep::u32>(round)};
        ep::wait_counter(team, site, team.leader() ? head : nullptr);
        return !team.stopped;
    }

    __device__ __forceinline__ void put(ep::u32* at, int round, int first, int stride) {
        for (int i = first + team.lane; i < kWords; i += stride) {
            at[i] = word_of(args.group.rank, round, i);
        }
    }

    __device__ __forceinline__ void look(ep::u32 found, int sender, int round, int i) {
        ++compared;
        if (found != word_of(sender, round, i)) ++wrong;
    }

    __device__ __forceinline__ void take(const ep::u32* at, int sender, int round) {
        for (int i = team.lane; i < kWords; i += ep::kLanes) look(at[i], sender, round, i);
    }

    /// Adds what this warp has found to what all have.
    __device__ __forceinline__ void report() {
        ep::fetch_add_relaxed_gpu(args.tally, wrong);
        ep::fetch_add_relaxed_gpu(args.tally + 1, compared);
    }
};

/// Lanes of a warp through shared memory, ordered by the warp's own barrier.
__device__ void lanes(Actor& actor, Smem& smem) {
    ep::u32* words = smem.words[actor.team.warp];
    for (int round = 0; round < actor.args.rounds; ++round) {
        actor.put(words, round, 0, ep::kLanes);
        __syncwarp();
        for (int i = actor.team.lane; i < kWords; i += ep::kLanes) {
            const int other = kWords - 1 - i;
            actor.look(words[other], actor.args.group.rank, round, other);
        }
        __syncwarp();
    }
}

/// Two warps of a block: release and acquire of a word in shared memory, at block scope. What it
/// orders lies in shared and in global memory.
__device__ void warps(Actor& actor, Smem& smem, int block) {
    const Args& args = actor.args;
    const int me = args.group.rank;
    ep::u32* words = args.words + block * kWords;
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        const ep::u64 turn = 2 * static_cast<ep::u64>(round);
        const bool sends = actor.team.warp == 0;
        actor.until(ep::Waiting::kSequence, -1, round, [&] {
            return ep::load_acquire_shared(&smem.word) == turn + (sends ? 0 : 1);
        });
        if (actor.team.stopped) return;
        if (sends) {
            actor.put(smem.words[0], round, 0, ep::kLanes);
            actor.put(words, round, 0, ep::kLanes);
        } else {
            actor.take(smem.words[0], me, round);
            actor.take(words, me, round);
        }
        __syncwarp();
        const ep::u64 before = turn + (sends ? 0 : 1);
        if (actor.team.leader()) ep::compare_swap_shared(&smem.word, before, before + 1);
        __syncwarp();
    }
}

/// Block 0 to block 1: release and acquire of a counter at device scope, and back.
__device__ void blocks(Actor& actor, int block) {
    const Args& args = actor.args;
    ep::u32* mine = args.flags + block;
    ep::u32* other = args.flags + 1 - block;
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        const ep::u32 want = static_cast<ep::u32>(round + block);
        actor.until(ep::Waiting::kArrival, -1, round, [&] {
            return ep::reached(ep::load_relaxed_gpu(other), want);
        });
        if (actor.team.stopped) return;
        if (actor.team.leader()) ep::load_acquire_gpu(other);
        __syncwarp();
        if (block == 0) {
            actor.put(args.words, round, 0, ep::kLanes);
        } else {
            actor.take(args.words, args.group.rank, round);
        }
        __syncwarp();
        if (actor.team.leader()) ep::fetch_add_acq_rel_gpu(mine, 1);
    }
}

/// Rank to rank: data, then a flag with a release at system scope; the receiver's head comes back.
__device__ void send_flagged(Actor& actor) {
    const Args& args = actor.args;
    Inbox* to = actor.inbox(actor.next());
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        if (!actor.has_room(round)) return;
        actor.put(to->words, round, 0, ep::kLanes);
        __syncwarp();
        if (actor.team.leader()) {
            const ep::u32 number = static_cast<ep::u32>(round) + 1;
            ep::store_release_sys(&to->flag, ep::stamped(actor.team.epoch, number));
        }
    }
}

__device__ void receive_flagged(Actor& actor) {
    const Args& args = actor.args;
    const int sender = actor.previous();
    Inbox* own = actor.inbox(args.group.rank);
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        const ep::u32 number = static_cast<ep::u32>(round) + 1;
        actor.until(ep::Waiting::kFlag, sender, round, [&] {
            return ep::load_relaxed_sys(&own->flag) == ep::stamped(actor.team.epoch, number);
        });
        if (actor.team.stopped) return;
        if (actor.team.leader()) ep::load_acquire_sys(&own->flag);
        __syncwarp();
        actor.take(own->words, sender, round);
        __syncwarp();
        if (actor.team.leader()) ep::store_release_sys(&actor.inbox(sender)->head, number);
    }
}

/// Rank to rank: four warps write a quarter each and add to one tail; one head comes back.
__device__ void send_parts(Actor& actor) {
    const Args& args = actor.args;
    Inbox* to = actor.inbox(actor.next());
    const int part = actor.team.warp;
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        if (!actor.has_room(round)) return;
        for (int i = actor.team.lane; i < kWords / kWarps; i += ep::kLanes) {
            const int at = part * (kWords / kWarps) + i;
            to->words[at] = word_of(args.group.rank, round, at);
        }
        __syncwarp();
        if (actor.team.leader()) ep::add_release_sys(&to->tail, 1);
    }
}

__device__ void receive_parts(Actor& actor) {
    const Args& args = actor.args;
    const int sender = actor.previous();
    Inbox* own = actor.inbox(args.group.rank);
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        const ep::u32 want = static_cast<ep::u32>(round + 1) * kWarps;
        const ep::Site site{0, ep::Waiting::kArrival, -1, sender, want};
        ep::wait_counter(actor.team, site, actor.team.leader() ? &own->tail : nullptr);
        if (actor.team.stopped) return;
        actor.take(own->words, sender, round);
        __syncwarp();
        if (actor.team.leader()) ep::add_release_sys(&actor.inbox(sender)->head, 1);
    }
}

/// Rank to rank: words that carry the number of their message (M7), with no order between them.
__device__ void send_whole(Actor& actor) {
    const Args& args = actor.args;
    Inbox* to = actor.inbox(actor.next());
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        if (!actor.has_room(round)) return;
        for (int i = actor.team.lane; i < kWords; i += ep::kLanes) {
            const ep::u32 value = word_of(args.group.rank, round, i);
            const ep::u32 number = static_cast<ep::u32>(round) + 1;
            ep::store_relaxed_sys(to->whole + i, ep::stamped(number, value));
        }
    }
}

__device__ void receive_whole(Actor& actor) {
    const Args& args = actor.args;
    const int sender = actor.previous();
    Inbox* own = actor.inbox(args.group.rank);
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        const ep::u32 number = static_cast<ep::u32>(round) + 1;
        const ep::Site site{0, ep::Waiting::kFlag, -1, sender, number};
        for (int i = actor.team.lane; i < kWords; i += ep::kLanes) {
            ep::u64 found = 0;
            ep::wait(actor.team, site, [&](ep::u32& seen) {
                found = ep::load_relaxed_sys(own->whole + i);
                seen = ep::epoch_of(found);
                return seen == number;
            });
            if (actor.team.stopped) return;
            actor.look(ep::value_of(found), sender, round, i);
        }
        __syncwarp();
        if (actor.team.leader()) ep::store_release_sys(&actor.inbox(sender)->head, number);
    }
}

/// Four warps of block 0 complete messages in an order of their own, whoever closes a gap tells; the
/// leader of block 1 may then read all that is told.
__device__ void complete(Actor& actor, Smem& smem) {
    const Args& args = actor.args;
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        // Neighbouring messages belong to different warps, and each warp runs ahead of the others.
        if ((round * 3 + round / 8) % kWarps != actor.team.warp) continue;
        const ep::u32 position = static_cast<ep::u32>(round);
        actor.until(ep::Waiting::kSequence, -1, round, [&] {
            return static_cast<ep::i32>(position - smem.sequence.base()) < 32;
        });
        if (actor.team.stopped) return;
        actor.put(args.words + round * kWords, round, 0, ep::kLanes);
        __syncwarp();
        if (actor.team.leader()) {
            const bool done = smem.sequence.try_complete(position);
            if (!done) ++actor.wrong;
            const ep::u32 fresh = smem.sequence.claim(smem.sequence.base());
            if (fresh > 0) ep::add_release_sys(args.flags, fresh);
        }
        __syncwarp();
    }
}

__device__ void follow(Actor& actor) {
    const Args& args = actor.args;
    ep::u32 told = 0;
    for (int round = 0; round < args.rounds && !actor.team.stopped; ++round) {
        const ep::u32 want = static_cast<ep::u32>(round) + 1;
        if (!ep::reached(told, want)) {
            const ep::Site site{0, ep::Waiting::kArrival, -1, -1, want};
            told = ep::wait_counter(actor.team, site, actor.team.leader() ? args.flags : nullptr);
            told = __shfl_sync(ep::kAllLanes, told, 0);
        }
        if (actor.team.stopped) return;
        actor.take(args.words + round * kWords, args.group.rank, round);
    }
}

/// Every conversion of `ep/cast.cuh` that is exact.
__device__ void convert(const Args& args) {
    const int threads = static_cast<int>(gridDim.x * blockDim.x);
    const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = first; i < args.rounds; i += threads) {
        const ep::u32 bits = args.given[i];
        const float value = ep::float_of(bits);
        ep::u32* to = args.converted + 6 * static_cast<ep::i64>(i);
        to[0] = ep::pack_bf16(value, 1.0f);
        to[1] = ep::pack_bf16(1.0f, value);
        to[2] = ep::to_e4m3(value).bits;
        to[3] = ep::bits_of(ep::to_float(ep::e4m3{static_cast<ep::u8>(bits)}));
        to[4] = ep::bits_of(ep::to_float(ep::bf16{static_cast<ep::u16>(bits)}));
        to[5] = static_cast<ep::u32>(ep::ceil_ue8m0(ep::float_of(bits & 0x7fffffffu)).bits) << 24 |
                ep::bits_of(ep::to_float(ep::ue8m0{static_cast<ep::u8>(bits)})) >> 8;
    }
}

/// The part of one warp in a kind of message.
__device__ void act(const Args& args, Smem& smem, ep::Team& team, int block) {
    Actor actor(args, team);
    const int warp = team.warp;
    switch (args.kind) {
        case 0: lanes(actor, smem); break;
        case 1:
            if (warp < 2) warps(actor, smem, block);
            break;
        case 2:
            if (warp == 0 && block < 2) blocks(actor, block);
            break;
        case 3:
            if (block == 0 && warp == 0) send_flagged(actor);
            if (block == 1 && warp == 0) receive_flagged(actor);
            break;
        case 4:
            if (block == 0) send_parts(actor);
            if (block == 1 && warp == 0) receive_parts(actor);
            break;
        case 5:
            if (block == 0 && warp == 0) send_whole(actor);
            if (block == 1 && warp == 0) receive_whole(actor);
            break;
        case 6:
            if (block == 0) complete(actor, smem);
            if (block == 1 && warp == 0) follow(actor);
            break;
        default: break;
    }
    actor.report();
}

}  // namespace litmus

extern "C" __global__ void __launch_bounds__(litmus::kWarps * 32)
    litmus_run(const __grid_constant__ litmus::Args args) {
    EP_SHARED(litmus::Smem, smem);
    if (threadIdx.x == 0) {
        smem.sequence = ep::Sequence{};
        smem.word = 0;
    }
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const int block = static_cast<int>(blockIdx.x);
    ep::Team team(args.group, call, 0, block, static_cast<int>(gridDim.x), warp, litmus::kWarps);
    if (args.kind == 7) {
        litmus::convert(args);
    } else {
        litmus::act(args, smem, team, block);
    }
    ep::leave(args.group, call);
}
