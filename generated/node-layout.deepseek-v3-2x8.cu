// node-layout
// experts=256 local_ranks=8 nodes=2 ranks=16 stripes=12 topk=8
// sm_90a: 256 threads and 1956 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: a warp for each of stripes = 12 (8 warps on all blocks); composed
//
// Window, the same on every rank:
//   counted.sums     0x00000000       1952 bytes  (256 tokens_per_expert + 24 node_stripes + 16 tokens_per_rank + 192 rank_stripes) x 4; Count writes, Count reads
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace node_layout {

struct Cfg {
    static constexpr int kNodes = 2;
    static constexpr int kLocalRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kStripes = 12;
    static constexpr int kRanks = 16;
    static constexpr int kThreads = 256;
    static constexpr int kSharedBytes = 1956;

    struct Counted {
        static constexpr int kCount = 488;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x0;
        static constexpr int kTokensPerExpert = 0;
        static constexpr int kNodeStripes = 256;
        static constexpr int kTokensPerRank = 280;
        static constexpr int kRankStripes = 296;
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
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most ceil(experts, ranks)
    const ep::i32* expert_begin;
    // output tokens_per_rank: i32[ranks]
    ep::i32* tokens_per_rank;
    // output tokens_per_expert: i32[experts]
    ep::i32* tokens_per_expert;
    // table node_bits: bits[local_ranks][tokens, nodes]
    ep::i64* node_bits;
    // table node_tokens: i32[stripes, nodes]
    ep::i32* node_tokens;
    // table node_stripes: i32[nodes, stripes]
    ep::i32* node_stripes;
    // table rank_stripes: i32[nodes, local_ranks, stripes]
    ep::i32* rank_stripes;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    for (int stripe = team.spread(); stripe < Cfg::kStripes && !team.stopped;
        stripe += team.count()) {
        // +15  for token in stripe
        const ep::Span rows(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        for (int token = rows.begin + team.lane; token < rows.end; token += ep::kLanes) {
            // +16  for expert in topk_idx[token]
            for (int k = 0; k < Cfg::kTopk; ++k) {
                const ep::i64 expert = args.topk_idx[token * args.topk_idx_stride + k];
                if (!(expert >= 0 && expert < Cfg::kExperts)) continue;
                // +17  count tokens_per_expert[expert]
                counters.add(Cfg::Counted::kTokensPerExpert + static_cast<ep::i32>(expert), 1);
            }
            // +19  for node in nodes
            for (int node = 0; node < Cfg::kNodes; ++node) {
                // +20  record node_bits[token, node] = routed_bits(topk_idx[token], node)
                const int first_rank = node * Cfg::kLocalRanks;
                ep::i64 bits = 0LL;
                for (int k_2 = 0; k_2 < Cfg::kTopk; ++k_2) {
                    const int rank = ep::owner<Cfg::kRanks>(
                        args.topk_idx[token * args.topk_idx_stride + k_2], args.expert_begin);
                    bits =
                        ep::with_bit(bits, ep::i64{rank} - first_rank, ep::i64{Cfg::kLocalRanks});
                }
                args.node_bits[ep::i64{token} * Cfg::kNodes + node] = bits;
            }
            // +22  for node in nodes where routed_node(topk_idx[token], node)
            for (int node_2 = 0; node_2 < Cfg::kNodes; ++node_2) {
                const int first_expert = args.expert_begin[node_2 * Cfg::kLocalRanks];
                const int next_expert =
                    args.expert_begin[node_2 * Cfg::kLocalRanks + Cfg::kLocalRanks];
                bool found = false;
                for (int k_3 = 0; k_3 < Cfg::kTopk; ++k_3) {
                    const bool here = args.topk_idx[token * args.topk_idx_stride
                        + k_3] >= first_expert
                        && args.topk_idx[token * args.topk_idx_stride + k_3] < next_expert;
                    found = found || here;
                }
                if (!found) continue;
                // +23  count node_tokens[stripe, node]
                ep::add_count(&args.node_tokens[stripe * Cfg::kNodes + node_2], 1);
                // +24  count node_stripes[node, stripe]
                counters.add(Cfg::Counted::kNodeStripes + (node_2 * Cfg::kStripes + stripe), 1);
            }
            // +26  for peer in ranks where routed(topk_idx[token], peer)
            for (int peer = 0; peer < Cfg::kRanks; ++peer) {
                const int first_expert_2 = args.expert_begin[peer];
                const int next_expert_2 = args.expert_begin[peer + 1];
                bool found_2 = false;
                for (int k_4 = 0; k_4 < Cfg::kTopk; ++k_4) {
                    const bool here_2 = args.topk_idx[token * args.topk_idx_stride
                        + k_4] >= first_expert_2
                        && args.topk_idx[token * args.topk_idx_stride + k_4] < next_expert_2;
                    found_2 = found_2 || here_2;
                }
                if (!found_2) continue;
                // +27  count tokens_per_rank[peer]
                counters.add(Cfg::Counted::kTokensPerRank + peer, 1);
                // +28  count rank_stripes[node(peer), local_rank(peer), stripe]
                counters.add(Cfg::Counted::kRankStripes
                    + static_cast<ep::i32>(
                        (ep::i64{peer / Cfg::kLocalRanks} * Cfg::kLocalRanks
                            + peer % Cfg::kLocalRanks) * Cfg::kStripes + stripe), 1);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
node_layout(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // What is counted starts at zero.
        smem.counters.clear();
        ep::clear_stripes(args.node_tokens, Cfg::kStripes, Cfg::kNodes);
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
        if (ep::is_between(i, Cfg::Counted::kNodeStripes, Cfg::kNodes * Cfg::kStripes)) {
            args.node_stripes[i - Cfg::Counted::kNodeStripes] = sum;
        }
        if (ep::is_between(i, Cfg::Counted::kTokensPerRank, Cfg::kRanks)) {
            args.tokens_per_rank[i - Cfg::Counted::kTokensPerRank] = sum;
        }
        if (ep::is_between(i, Cfg::Counted::kRankStripes,
            Cfg::kNodes * Cfg::kLocalRanks * Cfg::kStripes)) {
            args.rank_stripes[i - Cfg::Counted::kRankStripes] = sum;
        }
    });
}
}  // namespace node_layout
