// layout
// experts=256 local_experts=64 ranks=4 stripes=64 topk=8
// sm_90a: 256 threads and 1044 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; composed
//   Exchange: 4 warps on last block; composed: ep::SlotChannel
//   Stripes: 4 warps on last block; composed
//
// Window, the same on every rank:
//   counts.slots     0x00000000       5120 bytes  2 epochs x 4 slots x 640; Exchange writes, Exchange reads
//   counted.sums     0x00001400       1040 bytes  (256 tokens_per_expert + 4 tokens_per_rank) x 4; Count writes, Count reads
// Message Totals: meta record of 544 bytes: per_rank[4] at 0, per_expert[64] at 32
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/slots.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace layout {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kStripes = 64;
    static constexpr int kLocalExperts = 64;
    static constexpr int kThreads = 256;
    static constexpr int kSharedBytes = 1044;

    struct Totals {
        static constexpr int kMetaBytes = 544;
        static constexpr int kPerRank = 0;
        static constexpr int kPerRankCount = 4;
        static constexpr int kPerExpert = 32;
        static constexpr int kPerExpertCount = 64;
    };

    struct Counts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kEpochs = 2;
        static constexpr int kWords = 68;
        static constexpr bool kSkipsOwn = false;
        static constexpr int kSlotBytes = 640;
        static constexpr ep::u64 kSlots = 0x0;
    };

    struct Counted {
        static constexpr int kCount = 260;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x1400;
        static constexpr int kTokensPerExpert = 0;
        static constexpr int kTokensPerRank = 256;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Exchange {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 4;
    };

    struct Stripes {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 4;
        static constexpr int kWarps = 4;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // run-time args
    ep::i32 alignment;
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // table tokens_per_rank: i32[ranks]
    ep::i32* tokens_per_rank;
    // table tokens_per_expert: i32[experts]
    ep::i32* tokens_per_expert;
    // table in_rank: bool[tokens, ranks]
    bool* in_rank;
    // table stripe_tokens: i32[stripes, ranks]
    ep::i32* stripe_tokens;
    // table rank_prefix: i32[ranks + 1, ranks]
    ep::i32* rank_prefix;
    // table stripe_prefix: i32[ranks, stripes]
    ep::i32* stripe_prefix;
    // output received: i32[1] to host
    ep::i32* received;
    // output received_per_expert: i32[local_experts] to host
    ep::i32* received_per_expert;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    const ep::StripeSlices slices(team, ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes);
    // +17  for token in stripe
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
                // +18  for expert in topk_idx[token]
                #pragma unroll
                for (int k = 0; k < Cfg::kTopk; ++k) {
                    const ep::i64 expert = topk_idx_row.values[k];
                    if (!(expert >= 0 && expert < Cfg::kExperts)) continue;
                    // +19  count tokens_per_expert[expert]
                    counters.add(Cfg::Counted::kTokensPerExpert + static_cast<ep::i32>(expert), 1);
                }
                // +21  for peer in ranks
                // +22  record in_rank[token, peer] = routed(topk_idx[token], peer)
                ep::store_flags<Cfg::kRanks>(&args.in_rank[ep::i64{token} * Cfg::kRanks],
                    [&](int peer) { return topk_idx_ranks.has(peer); });
            }
            // +24  for peer in ranks where routed(topk_idx[token], peer)
            ep::for_hits(Cfg::kRanks,
                [&](int peer_2) { return present && topk_idx_ranks.has(peer_2); },
                [&](int peer_2, ep::i32 hits) {
                    // +25  count tokens_per_rank[peer]
                    counters.add(Cfg::Counted::kTokensPerRank + peer_2, hits);
                    // +26  count stripe_tokens[stripe, peer]
                    ep::add_count(&args.stripe_tokens[stripe * Cfg::kRanks + peer_2], hits);
            });
        }
    }
}

/// role Exchange on last block, 4 warps
__device__ __forceinline__ void exchange(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotChannel<Cfg::Counts> counts(team);
    // +31  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +32  push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert,
        //     peer) }
        // W1: publishes messages of counts, for Exchange +34
        const ep::SlotWords words(counts.to(peer));
        ep::put<ep::i32>(words + Cfg::Totals::kPerRank, Cfg::Totals::kPerRankCount,
            [&](int i) { return args.tokens_per_rank[i]; });
        ep::put<ep::i32>(words + Cfg::Totals::kPerExpert, Cfg::Totals::kPerExpertCount,
            [&](int i_2) {
                const int first_expert = args.expert_begin[peer];
                const ep::i64 expert = ep::i64{first_expert} + i_2;
                return expert < args.expert_begin[peer + 1] ? args.tokens_per_expert[expert] : 0;
        });
    }
    // +34  await counts
    // W1: takes messages of counts, from Exchange +32
    counts.await();
    // +35  for expert in local_experts
    for (int expert_2 = team.index() * ep::kLanes + team.lane;
        expert_2 < Cfg::kLocalExperts && !team.stopped; expert_2 += team.count() * ep::kLanes) {
        // +36  store received_per_expert[expert] = align(sum(source in ranks:
        //     counts[source].per_expert[expert]), alignment)
        ep::i64 sum = 0LL;
        for (int source = 0; source < Cfg::kRanks; ++source) {
            sum += ep::i64{ep::get<ep::i32>(counts.from(source) + Cfg::Totals::kPerExpert,
                expert_2)};
        }
        ep::store_host(&args.received_per_expert[expert_2],
            static_cast<ep::i32>(ep::align(sum, ep::i64{args.alignment})));
    }
    if (team.index() == team.count() - 1) {
        // +38  store received[0] = sum(source in ranks: counts[source].per_rank[me])
        ep::i64 sum_2 = 0LL;
        for (int source_2 = 0; source_2 < Cfg::kRanks; ++source_2) {
            sum_2 += ep::i64{ep::get<ep::i32>(counts.from(source_2) + Cfg::Totals::kPerRank, me)};
        }
        if (team.leader()) {
            ep::store_host(&args.received[0], static_cast<ep::i32>(sum_2));
        }
    }
    // +39  for dest in ranks
    for (int dest = team.index(); dest < Cfg::kRanks && !team.stopped; dest += team.count()) {
        // +40  record rank_prefix[source, dest] = prefix_sum(source in ranks:
        //     counts[source].per_rank[dest])
        ep::prefix_sum_and_total(Cfg::kRanks,
            [&](int source_3) {
                return ep::get<ep::i32>(counts.from(source_3) + Cfg::Totals::kPerRank, dest);
            },
            [&](int source_3, ep::i32 sum_3) {
                args.rank_prefix[source_3 * Cfg::kRanks + dest] = sum_3;
        });
    }
}

/// role Stripes on last block, 4 warps
__device__ __forceinline__ void stripes(const Args& args, ep::Team& team) {
    // +44  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +45  record stripe_prefix[peer, s] = prefix_sum(s in stripes: stripe_tokens[s, peer])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s) {
                return args.stripe_tokens[s * Cfg::kRanks + peer];
            },
            [&](int s, ep::i32 sum) {
                args.stripe_prefix[peer * Cfg::kStripes + s] = sum;
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
layout(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // Counters start at zero.
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
    // The last block to leave stores what all blocks have counted.
    const auto store = [&](int i, ep::i32 sum) {
        if (ep::is_between(i, Cfg::Counted::kTokensPerExpert, Cfg::kExperts)) {
            args.tokens_per_expert[i - Cfg::Counted::kTokensPerExpert] = sum;
        }
        if (ep::is_between(i, Cfg::Counted::kTokensPerRank, Cfg::kRanks)) {
            args.tokens_per_rank[i - Cfg::Counted::kTokensPerRank] = sum;
        }
    };
    // Then the roles on the last block.
    const auto last = [&] {
        if (ep::is_between(warp, Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps)) {
            ep::Team team(args.group, call, Cfg::Exchange::kRole, 0, 1,
                warp - Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps);
            exchange(args, team);
        }
        if (ep::is_between(warp, Cfg::Stripes::kFirstWarp, Cfg::Stripes::kWarps)) {
            ep::Team team(args.group, call, Cfg::Stripes::kRole, 0, 1,
                warp - Cfg::Stripes::kFirstWarp, Cfg::Stripes::kWarps);
            stripes(args, team);
        }
    };
    ep::leave_counted(args.group, call, smem.counters, store, last);
}
}  // namespace layout
