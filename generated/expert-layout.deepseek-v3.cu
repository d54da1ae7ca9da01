// expert-layout
// experts=256 local_experts=32 ranks=8 stripes=1024 topk=8
// sm_90a: 256 threads and 0 bytes of shared memory a block, at least 1 blocks
#include <ep/compute.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace expert_layout {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 1024;
    static constexpr int kLocalExperts = 32;
    static constexpr int kThreads = 256;

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // from the handle of Notify
    const ep::i32* rank_prefix;
    // input expert_idx: i64[received, topk]
    const ep::i64* expert_idx;
    ep::i64 expert_idx_stride;
    // table rows_per_expert: i32[local_experts]
    ep::i32* rows_per_expert;
    // table stripe_rows: i32[stripes, local_experts]
    ep::i32* stripe_rows;
};

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, ep::Team& team) {
    const int me = args.group.rank;

    for (int stripe = team.index(); stripe < Cfg::kStripes; stripe += team.count()) {
        // +11  for row in stripe
        const ep::Span span = ep::stripe_span(args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me],
            Cfg::kStripes, stripe);
        ep::for_tokens(team, span, [&](int row, bool present) {
            const ep::Ids<Cfg::kTopk> expert_idx_ids = ep::ids_of<Cfg::kTopk>(
                present ? args.expert_idx + row * args.expert_idx_stride : nullptr);
            // +12  for expert in local_experts where listed(expert_idx[row], expert)
            for (int expert = 0; expert < Cfg::kLocalExperts; ++expert) {
                const bool match = present && expert_idx_ids.has(expert);
                // +13  count rows_per_expert[expert]
                ep::count_warp(&args.rows_per_expert[expert], match);
                // +14  count stripe_rows[stripe, expert]
                ep::count_warp(&args.stripe_rows[stripe * Cfg::kLocalExperts + expert], match);
            }
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
expert_layout(const __grid_constant__ Args args) {
    ep::Call call = ep::enter(args.group);

    // What is counted starts at zero.
    ep::clear(args.rows_per_expert, Cfg::kLocalExperts);
    ep::clear(args.stripe_rows, Cfg::kStripes * Cfg::kLocalExperts);
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
}  // namespace expert_layout
