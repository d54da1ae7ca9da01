// node-notify
// experts=256 local_experts=8 local_ranks=8 nodes=4 ranks=32 stripes=12
// sm_100a: 256 threads and 0 bytes of shared memory a block, at least 3 blocks
//
// Roles:
//   Exchange: 8 warps on blocks 0..1; composed: ep::NetSlotsOut, ep::NetSlotsIn
//   RailExchange: 8 warps on blocks 1..2; composed: ep::NetSlotsOut, ep::NetSlotsIn
//   Prefix: 8 warps on other blocks; by the library
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
//   Exchange.claims  0x00001700          8 bytes  2 calls x 1 words x 4; Exchange writes, Exchange reads
//   RailExchange.claims 0x00001780          8 bytes  2 calls x 1 words x 4; RailExchange writes, RailExchange reads
//
// Network, the same on every rank:
//   counts.inbox     0x00000000      12288 bytes  2 epochs x 24 peers x 256; Exchange writes, Exchange reads
//   counts.outbox    0x00003000      12288 bytes  2 epochs x 24 peers x 256; Exchange writes, Exchange reads
//   rails.inbox      0x00006000       3072 bytes  2 epochs x 3 peers x 512; RailExchange writes, RailExchange reads
//   rails.outbox     0x00006c00       3072 bytes  2 epochs x 3 peers x 512; RailExchange writes, RailExchange reads
// Message Totals: meta record of 160 bytes: per_rank[32] at 0, per_expert[8] at 128
// Message Stripes: meta record of 432 bytes: to_node[12] at 0, to_rank[96] at 48
#include <ep/compute.cuh>
#include <ep/net_slots.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace node_notify {

struct Cfg {
    static constexpr int kNodes = 4;
    static constexpr int kLocalRanks = 8;
    static constexpr int kStripes = 12;
    static constexpr int kRanks = 32;
    static constexpr int kLocalExperts = 8;
    static constexpr int kThreads = 256;

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

    struct Exchange {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1700;
    };

    struct RailExchange {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1780;
    };

    struct Prefix {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // from the handle of NodeLayout
    const ep::i32* node_tokens;
    const ep::i32* node_stripes;
    const ep::i32* rank_stripes;
    // input tokens_per_rank: i32[ranks]
    const ep::i32* tokens_per_rank;
    // input tokens_per_expert: i32[experts]
    const ep::i32* tokens_per_expert;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
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

/// role Exchange on block 0
__device__ __forceinline__ void exchange(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::NetSlotsOut<Cfg::Counts> counts(team, args.net);
    ep::NetSlotsIn<Cfg::Counts> counts_in(team, args.net);
    // +28  for peer in ranks
    ep::Units<Cfg::Exchange, 0> units(team, Cfg::kRanks);
    for (int peer; (peer = units.take()) >= 0;) {
        // +28  push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert,
        //     peer) }
        // W1: publishes messages of counts, for Exchange +28
        // W2: takes credit of counts, from Exchange +28
        if (counts.reserve(peer, me)) {
            char* slot = counts.slot();
            ep::copy_row<ep::i32>(team, slot + Cfg::Counts::kMeta + Cfg::Totals::kPerRank,
                args.tokens_per_rank, Cfg::Totals::kPerRankCount);
            for (int i_2 = team.lane; i_2 < Cfg::Totals::kPerExpertCount; i_2 += ep::kLanes) {
                const int first_expert = args.expert_begin[peer];
                const ep::i64 expert = ep::i64{first_expert} + i_2;
                ep::set<ep::i32>(slot + Cfg::Counts::kMeta + Cfg::Totals::kPerExpert, i_2,
                    expert < args.expert_begin[peer + 1] ? args.tokens_per_expert[expert] : 0);
            }
            counts.publish();
        }
    }
    // +28  await counts
    // W1: takes messages of counts, from Exchange +28
    // W2: publishes credit of counts, for Exchange +28
    counts_in.await();
    // +28  for dest in ranks
    for (int dest = team.index() * ep::kLanes + team.lane; dest < Cfg::kRanks && !team.stopped;
        dest += team.count() * ep::kLanes) {
        // +28  record rank_prefix[source, dest] = prefix_sum(source in ranks:
        //     counts[source].per_rank[dest])
        ep::i64 sum = 0LL;
        for (int source = 0; source < Cfg::kRanks; ++source) {
            args.rank_prefix[ep::i64{source} * Cfg::kRanks + dest] = static_cast<ep::i32>(sum);
            sum += ep::i64{ep::get<ep::i32>(counts_in.slot(source, 0) + Cfg::Counts::kMeta
                + Cfg::Totals::kPerRank, dest)};
        }
        args.rank_prefix[ep::i64{Cfg::kRanks} * Cfg::kRanks + dest] = static_cast<ep::i32>(sum);
    }
    // +29  for expert in local_experts
    for (int expert_2 = team.index() * ep::kLanes + team.lane;
        expert_2 < Cfg::kLocalExperts && !team.stopped; expert_2 += team.count() * ep::kLanes) {
        // +30  store received_per_expert[expert] = sum(source in ranks:
        //     counts[source].per_expert[expert])
        ep::i64 sum_2 = 0LL;
        for (int source_2 = 0; source_2 < Cfg::kRanks; ++source_2) {
            sum_2 += ep::i64{ep::get<ep::i32>(counts_in.slot(source_2, 0) + Cfg::Counts::kMeta
                + Cfg::Totals::kPerExpert, expert_2)};
        }
        ep::store_host(&args.received_per_expert[expert_2], static_cast<ep::i32>(sum_2));
    }
    if (team.index() == 0) {
        // +32  store received[0] = sum(source in ranks: counts[source].per_rank[me])
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

/// role RailExchange on block 1
__device__ __forceinline__ void rail_exchange(const Args& args, ep::Team& team) {
    ep::NetSlotsOut<Cfg::Rails> rails(team, args.net);
    ep::NetSlotsIn<Cfg::Rails> rails_in(team, args.net);
    // +35  for node in nodes
    ep::Units<Cfg::RailExchange, 0> units(team, Cfg::kNodes);
    for (int node; (node = units.take()) >= 0;) {
        // +36  push rails[node] { to_node: node_stripes[node], to_rank: rank_stripes[node] }
        // W3: publishes messages of rails, for RailExchange +38
        // W4: takes credit of rails, from RailExchange +38
        const int key = team.own(Cfg::Rails::kPeers);
        if (rails.reserve(node, key)) {
            char* slot = rails.slot();
            ep::copy_row<ep::i32>(team, slot + Cfg::Rails::kMeta + Cfg::Stripes::kToNode,
                &args.node_stripes[ep::i64{node * Cfg::kStripes}], Cfg::Stripes::kToNodeCount);
            ep::copy_row<ep::i32>(team, slot + Cfg::Rails::kMeta + Cfg::Stripes::kToRank,
                &args.rank_stripes[ep::i64{node * (Cfg::kLocalRanks * Cfg::kStripes)}],
                Cfg::Stripes::kToRankCount);
            rails.publish();
        }
    }
    // +38  await rails
    // W3: takes messages of rails, from RailExchange +36
    // W4: publishes credit of rails, for RailExchange +36
    rails_in.await();
    if (team.index() == 0) {
        // +39  record rail_prefix[node] = prefix_sum(node in nodes: sum(s in stripes:
        //     rails[node].to_node[s]))
        if (team.leader()) {
            ep::i64 sum_2 = 0LL;
            for (int node_2 = 0; node_2 < Cfg::kNodes; ++node_2) {
                ep::i64 sum = 0LL;
                for (int s = 0; s < Cfg::kStripes; ++s) {
                    sum += ep::i64{ep::get<ep::i32>(rails_in.slot(node_2, 0) + Cfg::Rails::kMeta
                        + Cfg::Stripes::kToNode, s)};
                }
                args.rail_prefix[node_2] = static_cast<ep::i32>(sum_2);
                sum_2 += sum;
            }
            args.rail_prefix[Cfg::kNodes] = static_cast<ep::i32>(sum_2);
        }
    }
    // +40  for node in nodes
    for (int node_3 = team.index() * ep::kLanes + team.lane; node_3 < Cfg::kNodes && !team.stopped;
        node_3 += team.count() * ep::kLanes) {
        // +41  record rail_first[node, s] = prefix_sum(s in stripes: rails[node].to_node[s])
        ep::i64 sum_3 = 0LL;
        for (int s_2 = 0; s_2 < Cfg::kStripes; ++s_2) {
            args.rail_first[node_3 * Cfg::kStripes + s_2] = static_cast<ep::i32>(sum_3);
            sum_3 += ep::i64{ep::get<ep::i32>(rails_in.slot(node_3, 0) + Cfg::Rails::kMeta
                + Cfg::Stripes::kToNode, s_2)};
        }
        // +42  for s in stripes
        for (int s_3 = 0; s_3 < Cfg::kStripes; ++s_3) {
            // +43  record rail_count[node, s] = rails[node].to_node[s]
            args.rail_count[node_3 * Cfg::kStripes + s_3] = ep::get<ep::i32>(
                rails_in.slot(node_3, 0) + Cfg::Rails::kMeta + Cfg::Stripes::kToNode, s_3);
            // +44  for local in local_ranks
            for (int local = 0; local < Cfg::kLocalRanks; ++local) {
                // +45  record forward_count[node, s, local] = rails[node].to_rank[local, s]
                args.forward_count[(node_3 * Cfg::kStripes + s_3) * Cfg::kLocalRanks + local] =
                    ep::get<ep::i32>(rails_in.slot(node_3, 0) + Cfg::Rails::kMeta
                        + Cfg::Stripes::kToRank, local * Cfg::kStripes + s_3);
            }
        }
        // +48  for local in local_ranks
        for (int local_2 = 0; local_2 < Cfg::kLocalRanks; ++local_2) {
            // +49  record forward_first[node, s, local] = prefix_sum(s in stripes:
            //     rails[node].to_rank[local, s])
            ep::i64 sum_4 = 0LL;
            for (int s_4 = 0; s_4 < Cfg::kStripes; ++s_4) {
                args.forward_first[(node_3 * Cfg::kStripes + s_4) * Cfg::kLocalRanks + local_2] =
                    static_cast<ep::i32>(sum_4);
                sum_4 += ep::i64{ep::get<ep::i32>(rails_in.slot(node_3, 0) + Cfg::Rails::kMeta
                    + Cfg::Stripes::kToRank, local_2 * Cfg::kStripes + s_4)};
            }
        }
    }
    rails_in.release();
}

/// role Prefix on other blocks
__device__ __forceinline__ void prefix(const Args& args, ep::Team& team) {
    // +54  for node in nodes
    for (int node = team.index(); node < Cfg::kNodes && !team.stopped; node += team.count()) {
        // +55  record node_prefix[node, s] = prefix_sum(s in stripes: node_tokens[s, node])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s) { return args.node_tokens[s * Cfg::kNodes + node]; },
            [&](int s, ep::i32 sum) {
                args.node_prefix[node * Cfg::kStripes + s] = sum;
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
node_notify(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (block == 0 && ep::is_between(warp, Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps)) {
        ep::Team team(args.group, call, Cfg::Exchange::kRole, 0, 1,
            warp - Cfg::Exchange::kFirstWarp, Cfg::Exchange::kWarps);
        exchange(args, team);
    }
    if (block == 1
        && ep::is_between(warp, Cfg::RailExchange::kFirstWarp, Cfg::RailExchange::kWarps)) {
        ep::Team team(args.group, call, Cfg::RailExchange::kRole, 0, 1,
            warp - Cfg::RailExchange::kFirstWarp, Cfg::RailExchange::kWarps);
        rail_exchange(args, team);
    }
    if (block >= 2 && ep::is_between(warp, Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps)) {
        ep::Team team(args.group, call, Cfg::Prefix::kRole, block - 2, blocks - 2,
            warp - Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps);
        prefix(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace node_notify
