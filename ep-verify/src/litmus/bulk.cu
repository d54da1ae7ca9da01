// Messages that bulk copies carry, over and over: what plain stores wrote goes out by one, and what one
// has brought is read by plain loads, with a fence between at every turn.
#include <ep/sync.cuh>

namespace bulk {

constexpr int kWords = 256;  // of a message: whole lines

struct Args {
    ep::Group group;
    int ranks;
    int rounds;
    ep::u32* tally;  // [2] wrong words, and all that were compared
};

struct Inbox {
    alignas(128) ep::u32 words[kWords];
    ep::u64 flag;
    ep::u32 head;
    ep::u32 room;
};

struct Smem {
    alignas(128) ep::u32 words[2][kWords];
    ep::u64 full;
};

__device__ __forceinline__ ep::u32 word_of(int rank, int round, int i) {
    const ep::u32 mixed = static_cast<ep::u32>(rank * 7919 + round * 131 + i) * 0x9e3779b1u;
    return mixed ^ mixed >> 15;
}

__device__ __forceinline__ Inbox* inbox(const Args& args, int rank) {
    return reinterpret_cast<Inbox*>(args.group.windows[rank]);
}

__device__ void send(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    const int next = (me + 1) % args.ranks;
    Inbox* to = inbox(args, next);
    for (int round = 0; round < args.rounds && !team.stopped; ++round) {
        for (int i = team.lane; i < kWords; i += ep::kLanes) {
            smem.words[0][i] = word_of(me, round, i);
        }
        // M3: every writer, before the barrier that lets the copy read.
        ep::fence_proxy_async_shared();
        __syncwarp();
        const ep::Site site{0, ep::Waiting::kCredit, -1, next, static_cast<ep::u32>(round)};
        ep::wait_counter(team, site, team.leader() ? &inbox(args, me)->head : nullptr);
        if (team.stopped) return;
        if (team.leader()) {
            // M4: the copy may not overtake the credit that allows it.
            ep::fence_proxy_async_global();
            ep::tma_store(to->words, smem.words[0], sizeof(to->words));
            ep::tma_commit();
            // M1: written at its destination, not only read.
            ep::tma_wait_stored<0>();
            const ep::u32 number = static_cast<ep::u32>(round) + 1;
            ep::store_release_sys(&to->flag, ep::stamped(team.epoch, number));
        }
        __syncwarp();
    }
}

__device__ void receive(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    const int sender = (me + args.ranks - 1) % args.ranks;
    Inbox* own = inbox(args, me);
    ep::u32 wrong = 0, compared = 0;
    if (team.leader()) {
        ep::mbarrier_init(&smem.full, 1);
        ep::fence_mbarrier_init();
    }
    __syncwarp();
    for (int round = 0; round < args.rounds && !team.stopped; ++round) {
        const ep::u32 number = static_cast<ep::u32>(round) + 1;
        const ep::Site site{0, ep::Waiting::kFlag, -1, sender, number};
        ep::wait(team, site, [&](ep::u32&) {
            return !team.leader() ||
                   ep::load_relaxed_sys(&own->flag) == ep::stamped(team.epoch, number);
        });
        if (team.stopped) break;
        if (team.leader()) {
            ep::load_acquire_sys(&own->flag);
            // M2: the copy reads what the acquire has made visible.
            ep::fence_proxy_async_global();
            ep::mbarrier_arrive_expect(&smem.full, sizeof(own->words));
            ep::tma_load(smem.words[1], own->words, sizeof(own->words), &smem.full);
        }
        __syncwarp();
        const ep::u32 parity = static_cast<ep::u32>(round) & 1;
        // A copy that was begun ends: the wait needs no bound of its own.
        while (!ep::mbarrier_try_wait(&smem.full, parity)) {
        }
        for (int i = team.lane; i < kWords; i += ep::kLanes) {
            ++compared;
            if (smem.words[1][i] != word_of(sender, round, i)) ++wrong;
        }
        // M3: every reader, before the next copy may write.
        ep::fence_proxy_async_shared();
        __syncwarp();
        if (team.leader()) ep::store_release_sys(&inbox(args, sender)->head, number);
    }
    ep::fetch_add_relaxed_gpu(args.tally, wrong);
    ep::fetch_add_relaxed_gpu(args.tally + 1, compared);
}

}  // namespace bulk

extern "C" __global__ void __launch_bounds__(64)
    litmus_bulk(const __grid_constant__ bulk::Args args) {
    EP_SHARED(bulk::Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (blockIdx.x == 0) {
        ep::Team team(args.group, call, 0, 0, 1, warp, 2);
        if (warp == 0) bulk::send(args, smem, team);
        if (warp == 1) bulk::receive(args, smem, team);
    }
    ep::leave(args.group, call);
}
