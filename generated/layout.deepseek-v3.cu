// layout
// experts=256 ranks=8 stripes=64 topk=8
// sm_90a: 256 threads and 1060 bytes of shared memory a block, at least 1 blocks
//
// Window, the same on every rank:
//   counted.sums     0x00000000       1056 bytes  (256 tokens_per_expert + 8 tokens_per_rank) x 4; Count writes, Count reads
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace layout {

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
        static constexpr int kTokensPerExpert = 0;
        static constexpr int kTokensPerRank = 256;
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
    // input topk_idx: i64[tokens, topk]
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input expert_begin: i32[ranks + 1]
    const ep::i32* expert_begin;
    // output tokens_per_rank: i32[ranks]
    ep::i32* tokens_per_rank;
    // output tokens_per_expert: i32[experts]
    ep::i32* tokens_per_expert;
    // table in_rank: bool[tokens, ranks]
    bool* in_rank;
    // table stripe_tokens: i32[stripes, ranks]
    ep::i32* stripe_tokens;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);

    // +8  for token in stripe
    ep::for_stripe_tokens(team, ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes,
        [&](int stripe, int token, bool present) {
            const auto topk_idx_row = ep::row_of<Cfg::kTopk>(
                args.topk_idx + token * args.topk_idx_stride, present);
            const ep::RankSet topk_idx_ranks = ep::ranks_of<Cfg::kRanks>(topk_idx_row,
                args.expert_begin);
            // +9  for expert in topk_idx[token]
            topk_idx_row.for_each([&](ep::i64 expert) {
                if (expert < 0 || expert >= Cfg::kExperts) return;
                // +10  count tokens_per_expert[expert]
                counters.add(Cfg::Counted::kTokensPerExpert + expert, 1);
            });
            // +12  for peer in ranks
            // +13  record in_rank[token, peer] = routed(topk_idx[token], peer)
            if (present) {
                ep::store_flags<Cfg::kRanks>(args.in_rank + token * ep::i64{Cfg::kRanks},
                    topk_idx_ranks);
            }
            // +15  for peer in ranks where routed(topk_idx[token], peer)
            ep::for_hits(
                Cfg::kRanks,
                [&](int peer) { return present && topk_idx_ranks.has(peer); },
                [&](int peer, ep::i32 hits) {
                    // +16  count tokens_per_rank[peer]
                    counters.add(Cfg::Counted::kTokensPerRank + peer, hits);
                    // +17  count stripe_tokens[stripe, peer]
                    ep::add_count(&args.stripe_tokens[stripe * Cfg::kRanks + peer], hits);
            });
    });
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
layout(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // What is counted starts at zero.
        smem.counters.clear();
        ep::clear_stripes(args.stripe_tokens, Cfg::kStripes, Cfg::kRanks);
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, smem, team);
    }
    // What all blocks have counted, stored by the last one out.
    ep::leave_counted(args.group, call, smem.counters, [&](int i, ep::i32 sum) {
        if (ep::is_between(i, Cfg::Counted::kTokensPerExpert, Cfg::kExperts)) {
            args.tokens_per_expert[i - Cfg::Counted::kTokensPerExpert] = sum;
        }
        if (ep::is_between(i, Cfg::Counted::kTokensPerRank, Cfg::kRanks)) {
            args.tokens_per_rank[i - Cfg::Counted::kTokensPerRank] = sum;
        }
    });
}
}  // namespace layout
