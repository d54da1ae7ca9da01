// local-layout  across=ranks
// experts=256 local_experts=32 local_ranks=8 nodes=1 ranks=8 stripes=64 topk=8
// sm_90a: 256 threads and 1060 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; composed
//
// Window, the same on every rank:
//   counted.sums     0x00000000       1056 bytes  (256 per_expert + 8 per_rank) x 4; Count writes, Count reads
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace local_layout {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kStripes = 64;
    static constexpr int kThreads = 256;
    static constexpr int kSharedBytes = 1060;

    struct Counted {
        static constexpr int kCount = 264;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x0;
        static constexpr int kPerExpert = 0;
        static constexpr int kPerRank = 256;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // output per_rank: i32[ranks]
    ep::i32* per_rank;
    // output per_expert: i32[experts]
    ep::i32* per_expert;
    // output in_rank: bool[tokens, ranks]
    bool* in_rank;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    const ep::StripeSlices slices(team, ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes);
    // +15  for token in stripe
    for (int slice = team.warp; slice < slices.count && !team.stopped; slice += team.warps) {
        const int stripe = slices.stripe(slice);
        const ep::Span rows(slices.span(slice));
        for (int first = rows.begin; first < rows.end; first += ep::kLanes) {
            const int turn = first + team.lane;
            const bool present = turn < rows.end;
            const int token = present ? turn : rows.end - 1;
            const auto topk_idx_row =
                ep::row_of<Cfg::kTopk>(&args.topk_idx[token * args.topk_idx_stride]);
            const auto topk_idx_ranks = ep::ranks_of<Cfg::kRanks>(topk_idx_row, args.expert_begin);
            if (present) {
                // +16  for expert in topk_idx[token]
                #pragma unroll
                for (int k = 0; k < Cfg::kTopk; ++k) {
                    const ep::i64 expert = topk_idx_row.values[k];
                    if (!(expert >= 0 && expert < Cfg::kExperts)) continue;
                    // +17  count per_expert[expert]
                    counters.add(Cfg::Counted::kPerExpert + static_cast<ep::i32>(expert), 1);
                }
                // +19  for peer in ranks
                // +20  store in_rank[token, peer] = routed(topk_idx[token], peer)
                ep::store_flags<Cfg::kRanks>(&args.in_rank[ep::i64{token} * Cfg::kRanks],
                    [&](int peer) { return topk_idx_ranks.has(peer); });
            }
            // +22  for peer in ranks where routed(topk_idx[token], peer)
            ep::for_hits(Cfg::kRanks,
                [&](int peer_2) { return present && topk_idx_ranks.has(peer_2); },
                [&](int peer_2, ep::i32 hits) {
                    // +23  count per_rank[peer]
                    counters.add(Cfg::Counted::kPerRank + peer_2, hits);
            });
        }
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
local_layout(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // Counters start at zero.
        smem.counters.clear();
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, smem, team);
    }
    // The last block to leave stores what all blocks have counted.
    ep::leave_counted(args.group, call, smem.counters, [&](int i, ep::i32 sum) {
        if (ep::is_between(i, Cfg::Counted::kPerExpert, Cfg::kExperts)) {
            args.per_expert[i - Cfg::Counted::kPerExpert] = sum;
        }
        if (ep::is_between(i, Cfg::Counted::kPerRank, Cfg::kRanks)) {
            args.per_rank[i - Cfg::Counted::kPerRank] = sum;
        }
    });
}
}  // namespace local_layout
