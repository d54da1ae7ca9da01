// layout
// experts=256 ranks=8 stripes=64 topk=8
// sm_90a: 256 threads and 0 bytes of shared memory a block, at least 1 blocks
#include <ep/compute.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace layout {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kStripes = 64;
    static constexpr int kThreads = 256;

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

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, ep::Team& team) {
    for (int stripe = team.index(); stripe < Cfg::kStripes; stripe += team.count()) {
        // +8  for token in stripe
        const ep::Span span = ep::stripe_span(args.tokens, Cfg::kStripes, stripe);
        ep::for_tokens(team, span, [&](int token, bool present) {
            const ep::RankSet topk_idx_ranks = ep::ranks_of<Cfg::kRanks>(
                present ? args.topk_idx + token * args.topk_idx_stride : nullptr, Cfg::kTopk,
                    args.expert_begin);
            // +9  for expert in topk_idx[token]
            for (int i = 0; i < Cfg::kTopk && present; ++i) {
                const ep::i64 expert = args.topk_idx[token * args.topk_idx_stride + i];
                if (expert < 0 || expert >= Cfg::kExperts) continue;
                // +10  count tokens_per_expert[expert]
                ep::count(&args.tokens_per_expert[expert]);
            }
            // +12  for peer in ranks
            for (int peer = 0; peer < Cfg::kRanks && present; ++peer) {
                // +13  record in_rank[token, peer] = routed(topk_idx[token], peer)
                args.in_rank[token * Cfg::kRanks + peer] = topk_idx_ranks.has(peer);
            }
            // +15  for peer in ranks where routed(topk_idx[token], peer)
            for (int peer = 0; peer < Cfg::kRanks; ++peer) {
                const bool match = present && topk_idx_ranks.has(peer);
                // +16  count tokens_per_rank[peer]
                ep::count_warp(&args.tokens_per_rank[peer], match);
                // +17  count stripe_tokens[stripe, peer]
                ep::count_warp(&args.stripe_tokens[stripe * Cfg::kRanks + peer], match);
            }
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
layout(const __grid_constant__ Args args) {
    ep::Call call = ep::enter(args.group);

    // What is counted starts at zero.
    ep::clear(args.tokens_per_expert, Cfg::kExperts);
    ep::clear(args.tokens_per_rank, Cfg::kRanks);
    ep::clear(args.stripe_tokens, Cfg::kStripes * Cfg::kRanks);
    ep::all_blocks(args.group, call);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace layout
