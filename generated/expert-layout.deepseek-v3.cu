// expert-layout
// experts=256 local_experts=32 ranks=8 stripes=1024 topk=8
// sm_90a: 256 threads and 132 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; by the library
//   Prefix: 8 warps on last block; by the library
//
// Window, the same on every rank:
//   counted.sums     0x00000000        128 bytes  (32 rows_per_expert) x 4; Count writes, Count reads
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace expert_layout {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 1024;
    static constexpr int kLocalExperts = 32;
    static constexpr int kThreads = 256;
    static constexpr int kSharedBytes = 132;

    struct Counted {
        static constexpr int kCount = 32;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x0;
        static constexpr int kRowsPerExpert = 0;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Prefix {
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
    const ep::i32* rank_prefix;
    // input expert_idx: i64[received, topk] in -1..local_experts
    const ep::i64* expert_idx;
    ep::i64 expert_idx_stride;
    // table rows_per_expert: i32[local_experts]
    ep::i32* rows_per_expert;
    // table stripe_rows: i32[stripes, local_experts]
    ep::i32* stripe_rows;
    // table expert_first: i32[local_experts + 1]
    ep::i32* expert_first;
    // table stripe_first: i32[local_experts, stripes]
    ep::i32* stripe_first;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    // +13  for row in stripe
    ep::for_stripe_tokens(team, args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me], Cfg::kStripes,
        [&](int stripe, int row, bool present) {
            const auto expert_idx_row =
                ep::row_of<Cfg::kTopk>(&args.expert_idx[row * args.expert_idx_stride], present);
            const auto expert_idx_ids = ep::ids_of(expert_idx_row);
            // +14  for expert in local_experts where listed(expert_idx[row], expert)
            ep::for_hits(Cfg::kLocalExperts,
                [&](int expert) { return present && expert_idx_ids.has(expert); },
                [&](int expert, ep::i32 hits) {
                    // +15  count rows_per_expert[expert]
                    counters.add(Cfg::Counted::kRowsPerExpert + expert, hits);
                    // +16  count stripe_rows[stripe, expert]
                    ep::add_count(&args.stripe_rows[ep::i64{stripe} * Cfg::kLocalExperts + expert],
                        hits);
            });
    });
}

/// role Prefix on last block, 8 warps
__device__ __forceinline__ void prefix(const Args& args, ep::Team& team) {
    if (team.index() == 0) {
        // +21  record expert_first[expert] = prefix_sum(expert in local_experts:
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
    // +22  for expert in local_experts
    for (int expert = team.index(); expert < Cfg::kLocalExperts && !team.stopped;
        expert += team.count()) {
        // +23  record stripe_first[expert, s] = prefix_sum(s in stripes: stripe_rows[s, expert])
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
expert_layout(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // What is counted starts at zero.
        smem.counters.clear();
        ep::clear_stripes(args.stripe_rows, Cfg::kStripes, Cfg::kLocalExperts);
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
    const auto store = [&](int i, ep::i32 sum) {
        if (ep::is_between(i, Cfg::Counted::kRowsPerExpert, Cfg::kLocalExperts)) {
            args.rows_per_expert[i - Cfg::Counted::kRowsPerExpert] = sum;
        }
    };
    // Then the roles on the last block.
    const auto last = [&] {
        if (ep::is_between(warp, Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps)) {
            ep::Team team(args.group, call, Cfg::Prefix::kRole, 0, 1,
                warp - Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps);
            prefix(args, team);
        }
    };
    ep::leave_counted(args.group, call, smem.counters, store, last);
}
}  // namespace expert_layout
