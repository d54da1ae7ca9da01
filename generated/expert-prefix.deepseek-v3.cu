// expert-prefix
// experts=256 local_experts=32 ranks=8 stripes=1024
// sm_90a: 256 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Prefix: 8 warps on all blocks; by the library
#include <ep/compute.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace expert_prefix {

struct Cfg {
    static constexpr int kStripes = 1024;
    static constexpr int kLocalExperts = 32;
    static constexpr int kThreads = 256;

    struct Prefix {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // run-time args
    ep::i32 alignment;
    // from the handle of ExpertLayout
    const ep::i32* rows_per_expert;
    const ep::i32* stripe_rows;
    // table expert_first: i32[local_experts + 1]
    ep::i32* expert_first;
    // table stripe_first: i32[local_experts, stripes]
    ep::i32* stripe_first;
};

/// role Prefix on all blocks
__device__ __forceinline__ void prefix(const Args& args, ep::Team& team) {
    if (team.index() == 0) {
        // +12  record expert_first[expert] = prefix_sum(expert in local_experts:
        //     align(rows_per_expert[expert], alignment))
        ep::prefix_sum_and_total(Cfg::kLocalExperts,
            [&](int expert) {
                return static_cast<ep::i32>(
                    ep::align(ep::i64{args.rows_per_expert[expert]}, ep::i64{args.alignment}));
            },
            [&](int expert, ep::i32 sum) {
                args.expert_first[expert] = sum;
        });
    }
    // +13  for expert in local_experts
    for (int expert = team.index(); expert < Cfg::kLocalExperts && !team.stopped;
        expert += team.count()) {
        // +14  record stripe_first[expert, s] = prefix_sum(s in stripes: stripe_rows[s, expert])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s) {
                return args.stripe_rows[ep::i64{s} * Cfg::kLocalExperts + expert];
            },
            [&](int s, ep::i32 sum) {
                args.stripe_first[ep::i64{expert} * Cfg::kStripes + s] = sum;
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
expert_prefix(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps)) {
        ep::Team team(args.group, call, Cfg::Prefix::kRole, block, blocks,
            warp - Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps);
        prefix(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace expert_prefix
