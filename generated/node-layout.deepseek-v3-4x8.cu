// node-layout
// experts=256 local_experts=8 local_ranks=8 nodes=4 ranks=32 stripes=12 topk=8
// sm_100a: 512 threads and 2884 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; composed
//   Exchange: 8 warps on last block; composed: ep::NetSlotsOut, ep::NetSlotsIn
//   RailExchange: 4 warps on last block; composed: ep::NetSlotsOut, ep::NetSlotsIn
//   Prefix: 4 warps on last block; composed
//
// Window, the same on every rank:
//   counts.slots     0x00000000       4096 bytes  2 epochs x 8 slots x 256; Exchange writes, Exchange reads
//   counts.come      0x00001000         32 bytes  8 peers x 4; Exchange writes, Exchange reads
//   counts.released  0x00001080         32 bytes  8 peers x 4; Exchange writes, Exchange reads
//   counts.readers   0x00001100          4 bytes  1 word x 4; Exchange writes, Exchange reads
//   rails.slots      0x00001180       1024 bytes  2 epochs x 1 slots x 512; RailExchange writes, RailExchange reads
//   rails.come       0x00001580          4 bytes  1 peers x 4; RailExchange writes, RailExchange reads
//   rails.released   0x00001600          4 bytes  1 peers x 4; RailExchange writes, RailExchange reads
//   rails.readers    0x00001680          4 bytes  1 word x 4; RailExchange writes, RailExchange reads
//   counted.sums     0x00001700       2880 bytes  (256 tokens_per_expert + 48 node_stripes + 32 tokens_per_rank + 384 rank_stripes) x 4; Count writes, Count reads
//
// Network, the same on every rank:
//   counts.inbox     0x00000000      12288 bytes  2 epochs x 24 peers x 256; Exchange writes, Exchange reads
//   counts.outbox    0x00003000      12288 bytes  2 epochs x 24 peers x 256; Exchange writes, Exchange reads
//   rails.inbox      0x00006000       3072 bytes  2 epochs x 3 peers x 512; RailExchange writes, RailExchange reads
//   rails.outbox     0x00006c00       3072 bytes  2 epochs x 3 peers x 512; RailExchange writes, RailExchange reads
// Message Totals: meta record of 160 bytes: per_rank[32] at 0, per_expert[8] at 128
// Message Stripes: meta record of 432 bytes: to_node[12] at 0, to_rank[96] at 48
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/net_slots.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace node_layout {

struct Cfg {
    static constexpr int kNodes = 4;
    static constexpr int kLocalRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kStripes = 12;
    static constexpr int kRanks = 32;
    static constexpr int kLocalExperts = 8;
    static constexpr int kThreads = 512;
    static constexpr int kSharedBytes = 2884;

    struct Totals {
        static constexpr int kMetaBytes = 160;
        static constexpr int kPerRank = 0;
        static constexpr int kPerRankCount = 32;
        static constexpr int kPerExpert = 128;
        static constexpr int kPerExpertCount = 8;
    };

    struct Stripes {
        static constexpr int kMetaBytes = 432;
        static constexpr int kToNode = 0;
        static constexpr int kToNodeCount = 12;
        static constexpr int kToRank = 48;
        static constexpr int kToRankCount = 96;
    };

    struct Counts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 32;
        static constexpr int kEpochs = 2;
        static constexpr bool kSkipsOwn = false;
        static constexpr int kSlotBytes = 256;
        static constexpr int kMeta = 0;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 8;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kCome = 0x1000;
        static constexpr ep::u64 kReleased = 0x1080;
        static constexpr ep::u64 kReaders = 0x1100;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x3000;
        static constexpr int kCounters = 0;
    };

    struct Rails {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 4;
        static constexpr int kEpochs = 2;
        static constexpr bool kSkipsOwn = false;
        static constexpr int kSlotBytes = 512;
        static constexpr int kMeta = 0;
        static constexpr bool kRail = true;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 1;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x1180;
        static constexpr ep::u64 kCome = 0x1580;
        static constexpr ep::u64 kReleased = 0x1600;
        static constexpr ep::u64 kReaders = 0x1680;
        static constexpr ep::u64 kInbox = 0x6000;
        static constexpr ep::u64 kOutbox = 0x6c00;
        static constexpr int kCounters = 2;
    };

    struct Counted {
        static constexpr int kCount = 720;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x1700;
        static constexpr int kTokensPerExpert = 0;
        static constexpr int kNodeStripes = 256;
        static constexpr int kTokensPerRank = 304;
        static constexpr int kRankStripes = 336;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Exchange {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct RailExchange {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 4;
    };

    struct Prefix {
        static constexpr int kRole = 3;
        static constexpr int kFirstWarp = 12;
        static constexpr int kWarps = 4;
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
    // table tokens_per_rank: i32[ranks]
    ep::i32* tokens_per_rank;
    // table tokens_per_expert: i32[experts]
    ep::i32* tokens_per_expert;
    // table node_bits: bits[local_ranks][tokens, nodes]
    ep::i64* node_bits;
    // table node_tokens: i32[stripes, nodes]
    ep::i32* node_tokens;
    // table node_stripes: i32[nodes, stripes]
    ep::i32* node_stripes;
    // table rank_stripes: i32[nodes, local_ranks, stripes]
    ep::i32* rank_stripes;
    // table rank_prefix: i32[ranks + 1, ranks]
    ep::i32* rank_prefix;
    // table rail_prefix: i32[nodes + 1]
    ep::i32* rail_prefix;
    // table node_prefix: i32[nodes, stripes]
    ep::i32* node_prefix;
    // table rail_first: i32[nodes, stripes]
    ep::i32* rail_first;
    // table rail_count: i32[nodes, stripes]
    ep::i32* rail_count;
    // table forward_first: i32[nodes, stripes, local_ranks]
    ep::i32* forward_first;
    // table forward_count: i32[nodes, stripes, local_ranks]
    ep::i32* forward_count;
    // output received: i32[1] to host
    ep::i32* received;
    // output received_per_expert: i32[local_experts] to host
    ep::i32* received_per_expert;
    // the network of this rank
    const ep::Net* net;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    const ep::StripeSlices slices(team, ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes);
    // +34  for token in stripe
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
                // +35  for expert in topk_idx[token]
                #pragma unroll
                for (int k = 0; k < Cfg::kTopk; ++k) {
                    const ep::i64 expert = topk_idx_row.values[k];
                    if (!(expert >= 0 && expert < Cfg::kExperts)) continue;
                    // +36  count tokens_per_expert[expert]
                    counters.add(Cfg::Counted::kTokensPerExpert + static_cast<ep::i32>(expert), 1);
                }
                // +38  for node in nodes
                for (int node = 0; node < Cfg::kNodes; ++node) {
                    // +39  record node_bits[token, node] = routed_bits(topk_idx[token], node)
                    args.node_bits[ep::i64{token} * Cfg::kNodes + node] =
                        topk_idx_ranks.bits(node * Cfg::kLocalRanks, Cfg::kLocalRanks);
                }
            }
            // +41  for node in nodes where routed_node(topk_idx[token], node)
            ep::for_hits(Cfg::kNodes,
                [&](int node_2) {
                    return present
                        && topk_idx_ranks.has_any(node_2 * Cfg::kLocalRanks, Cfg::kLocalRanks);
                },
                [&](int node_2, ep::i32 hits) {
                    // +42  count node_tokens[stripe, node]
                    ep::add_count(&args.node_tokens[stripe * Cfg::kNodes + node_2], hits);
                    // +43  count node_stripes[node, stripe]
                    counters.add(Cfg::Counted::kNodeStripes + (node_2 * Cfg::kStripes + stripe),
                        hits);
            });
            // +45  for peer in ranks where routed(topk_idx[token], peer)
            ep::for_hits(Cfg::kRanks,
                [&](int peer) { return present && topk_idx_ranks.has(peer); },
                [&](int peer, ep::i32 hits) {
                    // +46  count tokens_per_rank[peer]
                    counters.add(Cfg::Counted::kTokensPerRank + peer, hits);
                    // +47  count rank_stripes[node(peer), local_rank(peer), stripe]
                    counters.add(Cfg::Counted::kRankStripes
                        + static_cast<ep::i32>(
                            (ep::i64{peer / Cfg::kLocalRanks} * Cfg::kLocalRanks
                                + peer % Cfg::kLocalRanks) * Cfg::kStripes + stripe), hits);
            });
        }
    }
}

/// role Exchange on last block, 8 warps
__device__ __forceinline__ void exchange(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::NetSlotsOut<Cfg::Counts> counts(team, args.net);
    ep::NetSlotsIn<Cfg::Counts> counts_in(team, args.net);
    // +52  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +52  push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert,
        //     peer) }
        // W1: publishes messages of counts, for Exchange +52
        // W2: takes credit of counts, from Exchange +52
        if (counts.reserve(peer, me)) {
            char* slot = counts.slot();
            ep::copy_row<ep::i32, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                slot + Cfg::Counts::kMeta + Cfg::Totals::kPerRank, args.tokens_per_rank,
                Cfg::Totals::kPerRankCount);
            for (int i_2 = team.lane; i_2 < Cfg::Totals::kPerExpertCount; i_2 += ep::kLanes) {
                const int first_expert = args.expert_begin[peer];
                const ep::i64 expert = ep::i64{first_expert} + i_2;
                ep::set<ep::i32>(slot + Cfg::Counts::kMeta + Cfg::Totals::kPerExpert, i_2,
                    expert < args.expert_begin[peer + 1] ? args.tokens_per_expert[expert] : 0);
            }
            counts.publish();
        }
    }
    // +52  await counts
    // W1: takes messages of counts, from Exchange +52
    // W2: publishes credit of counts, for Exchange +52
    counts_in.await();
    // +52  for dest in ranks
    for (int dest = team.index(); dest < Cfg::kRanks && !team.stopped; dest += team.count()) {
        // +52  record rank_prefix[source, dest] = prefix_sum(source in ranks:
        //     counts[source].per_rank[dest])
        ep::prefix_sum_and_total(Cfg::kRanks,
            [&](int source) {
                return ep::get<ep::i32>(counts_in.slot(source, 0) + Cfg::Counts::kMeta
                    + Cfg::Totals::kPerRank, dest);
            },
            [&](int source, ep::i32 sum) {
                args.rank_prefix[ep::i64{source} * Cfg::kRanks + dest] = sum;
        });
    }
    // +53  for expert in local_experts
    for (int expert_2 = team.index() * ep::kLanes + team.lane;
        expert_2 < Cfg::kLocalExperts && !team.stopped; expert_2 += team.count() * ep::kLanes) {
        // +54  store received_per_expert[expert] = sum(source in ranks:
        //     counts[source].per_expert[expert])
        ep::i64 sum_2 = 0LL;
        for (int source_2 = 0; source_2 < Cfg::kRanks; ++source_2) {
            sum_2 += ep::i64{ep::get<ep::i32>(counts_in.slot(source_2, 0) + Cfg::Counts::kMeta
                + Cfg::Totals::kPerExpert, expert_2)};
        }
        ep::store_host(&args.received_per_expert[expert_2], static_cast<ep::i32>(sum_2));
    }
    if (team.index() == team.count() - 1) {
        // +56  store received[0] = sum(source in ranks: counts[source].per_rank[me])
        ep::i64 sum_3 = 0LL;
        for (int source_3 = 0; source_3 < Cfg::kRanks; ++source_3) {
            sum_3 += ep::i64{ep::get<ep::i32>(counts_in.slot(source_3, 0) + Cfg::Counts::kMeta
                + Cfg::Totals::kPerRank, me)};
        }
        if (team.leader()) {
            ep::store_host(&args.received[0], static_cast<ep::i32>(sum_3));
        }
    }
    counts_in.release();
}

/// role RailExchange on last block, 4 warps
__device__ __forceinline__ void rail_exchange(const Args& args, ep::Team& team) {
    ep::NetSlotsOut<Cfg::Rails> rails(team, args.net);
    ep::NetSlotsIn<Cfg::Rails> rails_in(team, args.net);
    // +59  for node in nodes
    for (int node = team.index(); node < Cfg::kNodes && !team.stopped; node += team.count()) {
        // +60  push rails[node] { to_node: node_stripes[node], to_rank: rank_stripes[node] }
        // W3: publishes messages of rails, for RailExchange +62
        // W4: takes credit of rails, from RailExchange +62
        const int key = team.own(Cfg::Rails::kPeers);
        if (rails.reserve(node, key)) {
            char* slot = rails.slot();
            ep::copy_row<ep::i32, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                slot + Cfg::Rails::kMeta + Cfg::Stripes::kToNode,
                &args.node_stripes[ep::i64{node * Cfg::kStripes}], Cfg::Stripes::kToNodeCount);
            ep::copy_row<ep::i32, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                slot + Cfg::Rails::kMeta + Cfg::Stripes::kToRank,
                &args.rank_stripes[ep::i64{node * (Cfg::kLocalRanks * Cfg::kStripes)}],
                Cfg::Stripes::kToRankCount);
            rails.publish();
        }
    }
    // +62  await rails
    // W3: takes messages of rails, from RailExchange +60
    // W4: publishes credit of rails, for RailExchange +60
    rails_in.await();
    if (team.index() == team.count() - 1) {
        // +63  record rail_prefix[node] = prefix_sum(node in nodes: sum(s in stripes:
        //     rails[node].to_node[s]))
        ep::prefix_sum_and_total(Cfg::kNodes,
            [&](int node_2) {
                ep::i64 sum = 0LL;
                for (int s = 0; s < Cfg::kStripes; ++s) {
                    sum += ep::i64{ep::get<ep::i32>(rails_in.slot(node_2, 0) + Cfg::Rails::kMeta
                        + Cfg::Stripes::kToNode, s)};
                }
                return static_cast<ep::i32>(sum);
            },
            [&](int node_2, ep::i32 sum_2) {
                args.rail_prefix[node_2] = sum_2;
        });
    }
    // +64  for node in nodes
    for (int node_3 = team.index(); node_3 < Cfg::kNodes && !team.stopped; node_3 += team.count()) {
        // +65  record rail_first[node, s] = prefix_sum(s in stripes: rails[node].to_node[s])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s_2) {
                return ep::get<ep::i32>(rails_in.slot(node_3, 0) + Cfg::Rails::kMeta
                    + Cfg::Stripes::kToNode, s_2);
            },
            [&](int s_2, ep::i32 sum_3) {
                args.rail_first[node_3 * Cfg::kStripes + s_2] = sum_3;
        });
        // +66  for s in stripes
        for (int s_3 = team.lane; s_3 < Cfg::kStripes; s_3 += ep::kLanes) {
            // +67  record rail_count[node, s] = rails[node].to_node[s]
            args.rail_count[node_3 * Cfg::kStripes + s_3] = ep::get<ep::i32>(
                rails_in.slot(node_3, 0) + Cfg::Rails::kMeta + Cfg::Stripes::kToNode, s_3);
            // +68  for local in local_ranks
            for (int local = 0; local < Cfg::kLocalRanks; ++local) {
                // +69  record forward_count[node, s, local] = rails[node].to_rank[local, s]
                args.forward_count[(node_3 * Cfg::kStripes + s_3) * Cfg::kLocalRanks + local] =
                    ep::get<ep::i32>(rails_in.slot(node_3, 0) + Cfg::Rails::kMeta
                        + Cfg::Stripes::kToRank, local * Cfg::kStripes + s_3);
            }
        }
        // +72  for local in local_ranks
        for (int local_2 = 0; local_2 < Cfg::kLocalRanks && !team.stopped; ++local_2) {
            // +73  record forward_first[node, s, local] = prefix_sum(s in stripes:
            //     rails[node].to_rank[local, s])
            ep::prefix_sum(Cfg::kStripes,
                [&](int s_4) {
                    return ep::get<ep::i32>(rails_in.slot(node_3, 0) + Cfg::Rails::kMeta
                        + Cfg::Stripes::kToRank, local_2 * Cfg::kStripes + s_4);
                },
                [&](int s_4, ep::i32 sum_4) {
                    args.forward_first[(node_3 * Cfg::kStripes + s_4) * Cfg::kLocalRanks
                        + local_2] = sum_4;
            });
        }
    }
    rails_in.release();
}

/// role Prefix on last block, 4 warps
__device__ __forceinline__ void prefix(const Args& args, ep::Team& team) {
    // +78  for node in nodes
    for (int node = team.index(); node < Cfg::kNodes && !team.stopped; node += team.count()) {
        // +79  record node_prefix[node, s] = prefix_sum(s in stripes: node_tokens[s, node])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s) { return args.node_tokens[s * Cfg::kNodes + node]; },
            [&](int s, ep::i32 sum) {
                args.node_prefix[node * Cfg::kStripes + s] = sum;
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
node_layout(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // Counters start at zero.
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
    // The last block to leave stores what all blocks have counted.
    const auto store = [&](int i, ep::i32 sum) {
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
    };
    // Then the roles on the last block.
    const auto last = [&] {
        if (ep::is_between(warp, Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps)) {
            ep::Team team(args.group, call, Cfg::Exchange::kRole, 0, 1,
                warp - Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps);
            exchange(args, team);
        }
        if (ep::is_between(warp, Cfg::RailExchange::kFirstWarp, Cfg::RailExchange::kWarps)) {
            ep::Team team(args.group, call, Cfg::RailExchange::kRole, 0, 1,
                warp - Cfg::RailExchange::kFirstWarp, Cfg::RailExchange::kWarps);
            rail_exchange(args, team);
        }
        if (ep::is_between(warp, Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps)) {
            ep::Team team(args.group, call, Cfg::Prefix::kRole, 0, 1,
                warp - Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps);
            prefix(args, team);
        }
    };
    ep::leave_counted(args.group, call, smem.counters, store, last);
}
}  // namespace node_layout
