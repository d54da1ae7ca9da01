// local-layout  across=nodes
// experts=256 local_experts=16 local_ranks=8 nodes=2 ranks=16 stripes=64 topk=8
// sm_90a: 256 threads and 1100 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; composed
//
// Window, the same on every rank:
//   counted.sums     0x00000000       1096 bytes  (256 per_expert + 16 per_rank + 2 per_node) x 4; Count writes, Count reads
//   Count.claims     0x00000480          8 bytes  2 calls x 1 words x 4; Count writes, Count reads
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace local_layout {

struct Cfg {
    static constexpr int kRanks = 16;
    static constexpr int kNodes = 2;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kStripes = 64;
    static constexpr int kLocalRanks = 8;
    static constexpr int kThreads = 256;
    static constexpr int kSharedBytes = 1100;

    struct Counted {
        static constexpr int kCount = 274;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x0;
        static constexpr int kPerExpert = 0;
        static constexpr int kPerRank = 256;
        static constexpr int kPerNode = 272;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x480;
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
    // output per_node: i32[nodes]
    ep::i32* per_node;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    ep::Units<Cfg::Count, 0> units(team, Cfg::kStripes);
    for (int stripe; (stripe = units.take()) >= 0;) {
        // +15  for token in stripe
        const ep::Span rows(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        for (int token = rows.begin + team.lane; token < rows.end; token += ep::kLanes) {
            // +16  for expert in topk_idx[token]
            for (int k = 0; k < Cfg::kTopk; ++k) {
                const ep::i64 expert = args.topk_idx[token * args.topk_idx_stride + k];
                if (!(expert >= 0 && expert < Cfg::kExperts)) continue;
                // +17  count per_expert[expert]
                counters.add(Cfg::Counted::kPerExpert + static_cast<ep::i32>(expert), 1);
            }
            // +19  for peer in ranks
            for (int peer = 0; peer < Cfg::kRanks; ++peer) {
                // +20  store in_rank[token, peer] = routed(topk_idx[token], peer)
                const int first_expert = args.expert_begin[peer];
                const int next_expert = args.expert_begin[peer + 1];
                bool found = false;
                for (int k_2 = 0; k_2 < Cfg::kTopk; ++k_2) {
                    const bool here = args.topk_idx[token * args.topk_idx_stride
                        + k_2] >= first_expert
                        && args.topk_idx[token * args.topk_idx_stride + k_2] < next_expert;
                    found = found || here;
                }
                args.in_rank[ep::i64{token} * Cfg::kRanks + peer] = found;
            }
            // +22  for peer in ranks where routed(topk_idx[token], peer)
            for (int peer_2 = 0; peer_2 < Cfg::kRanks; ++peer_2) {
                const int first_expert_2 = args.expert_begin[peer_2];
                const int next_expert_2 = args.expert_begin[peer_2 + 1];
                bool found_2 = false;
                for (int k_3 = 0; k_3 < Cfg::kTopk; ++k_3) {
                    const bool here_2 = args.topk_idx[token * args.topk_idx_stride
                        + k_3] >= first_expert_2
                        && args.topk_idx[token * args.topk_idx_stride + k_3] < next_expert_2;
                    found_2 = found_2 || here_2;
                }
                if (!found_2) continue;
                // +23  count per_rank[peer]
                counters.add(Cfg::Counted::kPerRank + peer_2, 1);
            }
            // +26  for node in nodes where routed_node(topk_idx[token], node)
            for (int node = 0; node < Cfg::kNodes; ++node) {
                const int first_expert_3 = args.expert_begin[ep::i64{node} * Cfg::kLocalRanks];
                const int next_expert_3 =
                    args.expert_begin[ep::i64{node} * Cfg::kLocalRanks + Cfg::kLocalRanks];
                bool found_3 = false;
                for (int k_4 = 0; k_4 < Cfg::kTopk; ++k_4) {
                    const bool here_3 = args.topk_idx[token * args.topk_idx_stride
                        + k_4] >= first_expert_3
                        && args.topk_idx[token * args.topk_idx_stride + k_4] < next_expert_3;
                    found_3 = found_3 || here_3;
                }
                if (!found_3) continue;
                // +27  count per_node[node]
                counters.add(Cfg::Counted::kPerNode + node, 1);
            }
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
        if (ep::is_between(i, Cfg::Counted::kPerNode, Cfg::kNodes)) {
            args.per_node[i - Cfg::Counted::kPerNode] = sum;
        }
    });
}
}  // namespace local_layout
