// notify
// experts=256 local_experts=128 ranks=2 stripes=64
// sm_90a: 256 threads and 0 bytes of shared memory a block, at least 2 blocks
//
// Window, the same on every rank:
//   counts.slots     0x00000000       4608 bytes  2 epochs x 2 slots x 1152; Exchange writes, Exchange reads
// Message Totals: meta record of 1040 bytes: per_rank[2] at 0, per_expert[128] at 16
#include <ep/compute.cuh>
#include <ep/slots.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace notify {

struct Cfg {
    static constexpr int kRanks = 2;
    static constexpr int kStripes = 64;
    static constexpr int kLocalExperts = 128;
    static constexpr int kThreads = 256;

    struct Totals {
        static constexpr int kMetaBytes = 1040;
        static constexpr int kPerRank = 0;
        static constexpr int kPerRankCount = 2;
        static constexpr int kPerExpert = 16;
        static constexpr int kPerExpertCount = 128;
    };

    struct Counts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 2;
        static constexpr int kEpochs = 2;
        static constexpr int kWords = 130;
        static constexpr int kSlotBytes = 1152;
        static constexpr ep::u64 kSlots = 0x0;
    };

    struct Exchange {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Stripes {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // run-time args
    ep::i32 alignment;
    // from the handle of Layout
    const ep::i32* stripe_tokens;
    // input tokens_per_rank: i32[ranks]
    const ep::i32* tokens_per_rank;
    // input tokens_per_expert: i32[experts]
    const ep::i32* tokens_per_expert;
    // input expert_begin: i32[ranks + 1]
    const ep::i32* expert_begin;
    // table rank_prefix: i32[ranks + 1, ranks]
    ep::i32* rank_prefix;
    // table stripe_prefix: i32[ranks, stripes]
    ep::i32* stripe_prefix;
    // output received: i32[1] to host
    ep::i32* received;
    // output received_per_expert: i32[local_experts] to host
    ep::i32* received_per_expert;
};

/// role Exchange on block 0
__device__ __forceinline__ void exchange(const Args& args, ep::Team& team) {
    const int me = args.group.rank;

    ep::SlotChannel<Cfg::Counts> counts(team);
    // +15  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +16  push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert,
        //     peer) }
        // W1: publishes messages of counts, for Exchange +18
        const ep::SlotWords meta = counts.to(peer);
        const ep::Experts theirs = ep::experts_of(args.expert_begin, peer);
        ep::put<ep::i32>(meta + Cfg::Totals::kPerRank, Cfg::Totals::kPerRankCount, [&](int i) {
            return args.tokens_per_rank[i];
        });
        ep::put<ep::i32>(meta + Cfg::Totals::kPerExpert, Cfg::Totals::kPerExpertCount, [&](int i) {
            return i < theirs.count ? args.tokens_per_expert[theirs.first + i] : 0;
        });
    }
    // +18  await counts
    // W1: takes messages of counts, from Exchange +16
    counts.await();
    // +19  for expert in local_experts
    ep::for_each(team, Cfg::kLocalExperts, [&](int expert) {
        // +20  store received_per_expert[expert] = align(sum(source in ranks:
        //     counts[source].per_expert[expert]), alignment)
        ep::store_host(&args.received_per_expert[expert],
            ep::align(ep::sum<ep::i32>(Cfg::kRanks, [&](int source) {
            return ep::get<ep::i32>(counts.from(source) + Cfg::Totals::kPerExpert, expert);
            }), args.alignment));
    });
    ep::in_last_warp(team, [&] {
        // +22  store received[0] = sum(source in ranks: counts[source].per_rank[me])
        ep::store_host(&args.received[0], ep::sum<ep::i32>(Cfg::kRanks, [&](int source) {
            return ep::get<ep::i32>(counts.from(source) + Cfg::Totals::kPerRank, me);
        }));
    });
    // +23  for dest in ranks
    for (int dest = team.index(); dest < Cfg::kRanks && !team.stopped; dest += team.count()) {
        // +24  record rank_prefix[source, dest] = prefix_sum(source in ranks:
        //     counts[source].per_rank[dest])
        ep::prefix_sum_and_total(
            Cfg::kRanks,
            [&](int source) { return ep::get<ep::i32>(counts.from(source) + Cfg::Totals::kPerRank,
                dest); },
            [&](int source, ep::i32 sum) { args.rank_prefix[source * Cfg::kRanks + dest] = sum; });
    }
}

/// role Stripes on other blocks
__device__ __forceinline__ void stripes(const Args& args, ep::Team& team) {
    // +28  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +29  record stripe_prefix[peer, s] = prefix_sum(s in stripes: stripe_tokens[s, peer])
        ep::prefix_sum(
            Cfg::kStripes,
            [&](int s) { return args.stripe_tokens[s * Cfg::kRanks + peer]; },
            [&](int s, ep::i32 sum) { args.stripe_prefix[peer * Cfg::kStripes + s] = sum; });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
notify(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (block == 0 && ep::is_between(warp, Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps)) {
        ep::Team team(args.group, call, Cfg::Exchange::kRole, 0, 1,
            warp - Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps);
        exchange(args, team);
    }
    if (block >= 1 && ep::is_between(warp, Cfg::Stripes::kFirstWarp, Cfg::Stripes::kWarps)) {
        ep::Team team(args.group, call, Cfg::Stripes::kRole, block - 1, blocks - 1,
            warp - Cfg::Stripes::kFirstWarp, Cfg::Stripes::kWarps);
        stripes(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace notify
