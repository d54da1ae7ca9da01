// node-combine
// hidden=7168 local_ranks=8 nodes=4 nvl_chunk=8 nvl_depth=32 ranks=32 rdma_chunk=16 rdma_depth=128 stages=3 stripes=12 topk=8
// sm_100a: 512 threads and 216960 bytes of shared memory a block, at least 2 blocks
//
// Roles:
//   NvlSend: 8 warps on even blocks, a block for each of stripes = 12; composed: ep::Mover, ep::RingsOut
//   Forward: 16 warps on odd blocks, a block for each of stripes = 12; composed: ep::PartStages, ep::RingsIn, ep::RingsOut, ep::Parts
//   RdmaReceive: 8 warps on even blocks, a block for each of stripes = 12; composed: ep::RingsIn, ep::Parts
//
// Window, the same on every rank:
//   inner.slots      0x00000000  177733632 bytes  12 stripes x 8 peers x 4 parts x 32 slots x 14464; NvlSend writes, Forward reads
//   inner.tail       0x0a980000       1536 bytes  12 stripes x 8 peers x 4 parts x 4; NvlSend writes, Forward reads
//   inner.taken      0x0a980600       3072 bytes  2 calls x 12 stripes x 8 peers x 4 parts x 4; Forward writes, Forward reads
//   inner.head       0x0a981200       1536 bytes  12 stripes x 8 peers x 4 parts x 4; Forward writes, NvlSend reads
//   inner.sent       0x0a981800       3072 bytes  2 calls x 12 stripes x 8 peers x 4 parts x 4; NvlSend writes, NvlSend reads
//   rail.slots       0x0a982400   22216704 bytes  12 stripes x 1 peers x 128 slots x 14464; Forward writes, RdmaReceive reads
//   rail.tail        0x0beb2400         48 bytes  12 stripes x 1 peers x 4; Forward writes, RdmaReceive reads
//   rail.taken       0x0beb2480        384 bytes  2 calls x 12 stripes x 4 peers x 4; RdmaReceive writes, RdmaReceive reads
//   rail.head        0x0beb2600         48 bytes  12 stripes x 1 peers x 4; RdmaReceive writes, Forward reads
//   rail.sent        0x0beb2680        384 bytes  2 calls x 12 stripes x 4 peers x 4; Forward writes, Forward reads
//
// Network, the same on every rank:
//   rail.inbox       0x00000000   66650112 bytes  12 stripes x 3 peers x 128 slots x 14464; Forward writes, RdmaReceive reads
//   rail.outbox      0x03f90000   66650112 bytes  12 stripes x 3 peers x 128 slots x 14464; Forward writes, Forward reads
// Message Part: row of 14336 bytes, meta record of 32 bytes: weights[8] at 0
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/net_rings.cuh>
#include <ep/part_stages.cuh>
#include <ep/parts.cuh>
#include <ep/rings.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace node_combine {

struct Cfg {
    static constexpr int kNodes = 4;
    static constexpr int kLocalRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 12;
    static constexpr int kThreads = 512;
    static constexpr int kSequences = 45;
    static constexpr int kSharedBytes = 216960;

    struct Part {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kWeights = 0;
        static constexpr int kWeightsCount = 8;
    };

    struct Inner {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 8;
        static constexpr int kStripes = 12;
        static constexpr int kDepth = 32;
        static constexpr int kChunk = 8;
        static constexpr int kSlotBytes = 14464;
        static constexpr int kMeta = 14336;
        static constexpr int kHeaderWords = 0;
        static constexpr int kParts = 4;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kTail = 0xa980000;
        static constexpr ep::u64 kTaken = 0xa980600;
        static constexpr ep::u64 kHead = 0xa981200;
        static constexpr ep::u64 kSent = 0xa981800;
    };

    struct Rail {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 4;
        static constexpr int kStripes = 12;
        static constexpr int kDepth = 128;
        static constexpr int kChunk = 16;
        static constexpr int kSlotBytes = 14464;
        static constexpr int kMeta = 14336;
        static constexpr int kHeaderWords = 0;
        static constexpr bool kRail = true;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 1;
        static constexpr bool kIbgda = false;
        static constexpr int kReaders = 1;
        static constexpr ep::u64 kSlots = 0xa982400;
        static constexpr ep::u64 kTail = 0xbeb2400;
        static constexpr ep::u64 kTaken = 0xbeb2480;
        static constexpr ep::u64 kHead = 0xbeb2600;
        static constexpr ep::u64 kSent = 0xbeb2680;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x3f90000;
        static constexpr int kCounters = 0;
    };

    struct NvlSend {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 5;
        static constexpr bool kTma = true;
        static constexpr int kStages = 6;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
    };

    struct Forward {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 10;
        static constexpr bool kTma = true;
        static constexpr int kStages = 13;
        static constexpr int kPieceBytes = 1024;
    };

    struct RdmaReceive {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 8;
        static constexpr int kFirstSequence = 40;
        static constexpr int kSequences = 5;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // from the handle of NodeLayout
    const ep::i32* rank_prefix;
    const ep::i32* rail_prefix;
    const ep::i32* rail_first;
    const ep::i32* rail_count;
    // from the handle of NodeDispatch
    const ep::i32* recv_first;
    const ep::i32* recv_count;
    const ep::i32* send_rail_head;
    const ep::i32* send_inner_head;
    // input x: bf16[received, hidden]
    const ep::bf16* x;
    ep::i64 x_stride;
    // input weights: optional f32[received, topk]
    const float* weights;
    ep::i64 weights_stride;
    // input bias: up to 2 bf16[tokens, hidden]
    int bias_count;
    const ep::bf16* bias[2];
    ep::i64 bias_stride;
    // output combined: bf16[tokens, hidden]
    ep::bf16* combined;
    // output combined_weights: optional f32[tokens, topk]
    float* combined_weights;
    // the network of this rank
    const ep::Net* net;
};

struct Smem {
    ep::Sequence sequences[Cfg::kSequences];
    union {
        ep::MoverSmem<Cfg::NvlSend> nvl_send[Cfg::NvlSend::kWarps];
        ep::PartSmem<Cfg::Forward> forward[Cfg::Forward::kWarps];
    };
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role NvlSend[peer] on even blocks, 8 warps
__device__ __forceinline__ void nvl_send(const Args& args, Smem& smem, ep::Team& team) {
    ep::Mover<Cfg::NvlSend> mover(smem.nvl_send[team.warp], team);
    ep::Shares<Cfg::NvlSend> shares(team, smem.sequences, Cfg::kLocalRanks);
    ep::RingsOut<Cfg::Inner, ep::WindowRings<Cfg::Inner, ep::Kept::kPartsOfPeer>> inner(team,
        shares.take(Cfg::kNodes));
    for (int peer = team.peer; peer < Cfg::kLocalRanks && !team.stopped; peer += team.peers) {
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            inner.open(stripe, ep::all_peers(Cfg::kNodes), peer);
            // +45  for turn in nodes
            for (int turn = 0; turn < Cfg::kNodes && !team.stopped; ++turn) {
                // +46  let node = (turn + stripe) % nodes
                const int node = (turn + stripe) % Cfg::kNodes;
                // +47  for row in recv_first[rank_at(node, peer), stripe]..recv_first[rank_at(node,
                //     peer), stripe] + recv_count[rank_at(node, peer), stripe]
                const int row_begin =
                    args.recv_first[(node * Cfg::kLocalRanks + peer) * Cfg::kStripes + stripe];
                const int row_count = static_cast<ep::i32>(
                    ep::i64{args.recv_first[(node * Cfg::kLocalRanks + peer) * Cfg::kStripes
                        + stripe]}
                        + args.recv_count[(node * Cfg::kLocalRanks + peer) * Cfg::kStripes
                            + stripe] - args.recv_first[(node * Cfg::kLocalRanks
                                + peer) * Cfg::kStripes + stripe]);
                for (int turn_2; (turn_2 = shares.next(row_count)) >= 0;) {
                    const ep::i64 row = ep::i64{row_begin} + turn_2;
                    for (int ring = team.lane; ring < Cfg::kNodes; ring += ep::kLanes) {
                        inner.expect(ring, static_cast<ep::i32>(node == ring));
                    }
                    inner.claim(shares.turn());
                    // +48  push inner[peer, node] { x: x[row], weights: weights[row] }
                    // W1: publishes messages of inner, for Forward +56
                    // W2: takes credit of inner, from Forward +56
                    if (!inner.has_room(node)) {
                        ep::settle(mover, inner);
                    }
                    if (inner.reserve(node)) {
                        char* slot = inner.slot(node);
                        const auto weights_field = ep::ask_row<float, Cfg::Part::kWeightsCount>(
                            &args.weights[row * args.weights_stride]);
                        mover.fence_global();
                        mover.row(ep::at_lane_of(node, slot), &args.x[row * args.x_stride]);
                        char* record = mover.meta();
                        weights_field.put(record + Cfg::Part::kWeights);
                        mover.send_meta(ep::at_lane_of(node, slot + Cfg::Inner::kMeta));
                        inner.publish_after(node, mover.rows_begun());
                        ep::tell(mover, inner);
                    }
                }
            }
            ep::settle(mover, inner);
            inner.close();
            shares.end();
        }
    }
    mover.finish();
}

/// role Forward on odd blocks, 16 warps, warps shared by (node, stripe)
__device__ __forceinline__ void forward(const Args& args, Smem& smem, ep::Team& team) {
    ep::PartStages<Cfg::Forward, Cfg::kLocalRanks> stages(smem.forward[team.warp], team);
    ep::Shares<Cfg::Forward> shares(team, smem.sequences, Cfg::kNodes);
    ep::RingsIn<Cfg::Inner, ep::WindowRings<Cfg::Inner, ep::Kept::kPeersOfPart>> inner(team,
        shares.take(Cfg::kLocalRanks));
    ep::RingsOut<Cfg::Rail, ep::NetRings<Cfg::Rail>> rail(team, args.net, shares.take(1));
    for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped; stripe += team.blocks) {
        for (int unit = team.peer; unit < Cfg::kNodes && !team.stopped; unit += team.peers) {
            const int node = unit % Cfg::kNodes;
            inner.open(stripe, ep::all_peers(Cfg::Inner::kPeers), (node + stripe) % Cfg::kNodes);
            rail.open(stripe, ep::one_peer((node + stripe) % Cfg::kNodes));
            // +55  let to = (node + stripe) % nodes
            const int to = (node + stripe) % Cfg::kNodes;
            // +56  for row in rail_prefix[to] + rail_first[to, stripe]..rail_prefix[to] +
            //     rail_first[to, stripe] + rail_count[to, stripe] gather part from inner[peer,
            //     (node + stripe) % nodes] at send_inner_head[row, peer] across peer in local
            // W1: takes messages of inner, from NvlSend +48
            // W2: publishes credit of inner, for NvlSend +48
            ep::Parts<ep::RingsIn<Cfg::Inner,
                ep::WindowRings<Cfg::Inner, ep::Kept::kPeersOfPart>>> parts(team, inner);
            const ep::i64 row_begin =
                ep::i64{args.rail_prefix[to]} + args.rail_first[to * Cfg::kStripes + stripe];
            const int row_count = static_cast<ep::i32>(ep::i64{args.rail_prefix[to]}
                + args.rail_first[to * Cfg::kStripes + stripe]
                + args.rail_count[to * Cfg::kStripes + stripe] - (ep::i64{args.rail_prefix[to]}
                    + args.rail_first[to * Cfg::kStripes + stripe]));
            for (int turn; (turn = shares.next(row_count)) >= 0;) {
                const ep::i64 row = row_begin + turn;
                rail.expect((node + stripe) % Cfg::kNodes, 1);
                rail.claim(shares.turn());
                parts.clear();
                for (int peer = team.lane; peer < Cfg::kLocalRanks; peer += ep::kLanes) {
                    parts.expect(peer, args.send_inner_head[row * Cfg::kLocalRanks + peer]);
                }
                if (!parts.is_here()) {
                    rail.send();
                }
                if (parts.open()) {
                    // +57  push rail[(node + stripe) % nodes] { x: sum(part.x), weights:
                    //     sum(part.weights) }
                    // W3: publishes messages of rail, for RdmaReceive +61
                    // W4: takes credit of rail, from RdmaReceive +61
                    if (rail.reserve((node + stripe) % Cfg::kNodes)) {
                        char* slot = rail.slot((node + stripe) % Cfg::kNodes);
                        ep::for_staged_parts<ep::bf16, Cfg::kLocalRanks, Cfg::Forward,
                            Cfg::kThreads>(stages, parts, 0, Cfg::kHidden, Cfg::kHidden,
                            [&](auto i, const auto& of_parts) {
                                ep::WideAt<float, decltype(i)> sum(0.0f);
                                of_parts.each([&](int, const auto& row_2) {
                                    sum += ep::to_float(row_2);
                                });
                                ep::set_wide<ep::bf16>(slot, i, Cfg::kHidden, ep::to_bf16(sum));
                            });
                        for (int base_2 = 0; base_2 < Cfg::Part::kWeightsCount;
                            base_2 += ep::kLanes * ep::kWide) {
                            const int i_2 = base_2 + team.lane * ep::kWide;
                            ep::Wide<float> sum_2(0.0f);
                            for (int peer_3 = 0; peer_3 < Cfg::kLocalRanks; ++peer_3) {
                                const char* meta_2 = parts.meta(peer_3);
                                if (parts.has(peer_3)) {
                                    sum_2 += ep::get_wide<float>(meta_2 + Cfg::Part::kWeights, i_2,
                                        Cfg::Part::kWeightsCount);
                                }
                            }
                            ep::set_wide<float>(slot + Cfg::Rail::kMeta + Cfg::Part::kWeights, i_2,
                                Cfg::Part::kWeightsCount, sum_2);
                        }
                        rail.publish((node + stripe) % Cfg::kNodes);
                    }
                    parts.close();
                }
            }
            inner.close();
            rail.close();
            shares.end();
        }
    }
    stages.finish();
}

/// role RdmaReceive on even blocks, 8 warps, warps shared by token
__device__ __forceinline__ void rdma_receive(const Args& args, Smem& smem, ep::Team& team) {
    ep::Shares<Cfg::RdmaReceive> shares(team, smem.sequences, 1);
    ep::RingsIn<Cfg::Rail, ep::NetRings<Cfg::Rail>> rail(team, args.net, shares.take(Cfg::kNodes));
    for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped; stripe += team.blocks) {
        rail.open(stripe, ep::all_peers(Cfg::Rail::kPeers));
        // +61  for token in stripe gather part from rail[node] at send_rail_head[token, node]
        //     across node in nodes
        // W3: takes messages of rail, from Forward +57
        // W4: publishes credit of rail, for Forward +57
        ep::Parts<ep::RingsIn<Cfg::Rail, ep::NetRings<Cfg::Rail>>> parts(team, rail);
        const ep::Span rows(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        const int token_begin = rows.begin;
        const int token_count = rows.end - rows.begin;
        for (int turn; (turn = shares.next(token_count)) >= 0;) {
            const int token = static_cast<ep::i32>(ep::i64{token_begin} + turn);
            parts.clear();
            for (int node = team.lane; node < Cfg::kNodes; node += ep::kLanes) {
                parts.expect(node, args.send_rail_head[ep::i64{token} * Cfg::kNodes + node]);
            }
            if (parts.open()) {
                // +62  store combined[token] = sum(part.x) + bias[token]
                ep::for_wide_parts<ep::bf16, Cfg::kNodes>(parts, 0, Cfg::kHidden, Cfg::kHidden,
                    [&](int i,
                        const ep::WideParts<ep::bf16, Cfg::kNodes, decltype(parts)>& of_parts) {
                            ep::Wide<float> sum(0.0f);
                            of_parts.each([&](int, const ep::Wide<ep::bf16>& row) {
                                sum += ep::to_float(row);
                            });
                            ep::Wide<float> sum_2(sum);
                            for (int copy = 0; copy < args.bias_count; ++copy) {
                                sum_2 += ep::to_float(
                                    ep::get_wide<ep::bf16>(
                                        &args.bias[copy][token * args.bias_stride], i,
                                        Cfg::kHidden));
                            }
                            ep::set_wide<ep::bf16>(&args.combined[ep::i64{token} * Cfg::kHidden], i,
                                Cfg::kHidden, ep::to_bf16(sum_2));
                });
                // +63  store combined_weights[token] = sum(part.weights)
                if (args.weights != nullptr && args.combined_weights != nullptr) {
                    for (int base_2 = 0; base_2 < Cfg::kTopk; base_2 += ep::kLanes * ep::kWide) {
                        const int i_2 = base_2 + team.lane * ep::kWide;
                        ep::Wide<float> sum_3(0.0f);
                        for (int node_3 = 0; node_3 < Cfg::kNodes; ++node_3) {
                            const char* meta_2 = parts.meta(node_3);
                            if (parts.has(node_3)) {
                                sum_3 += ep::get_wide<float>(meta_2 + Cfg::Part::kWeights, i_2,
                                    Cfg::kTopk);
                            }
                        }
                        ep::set_wide<float>(&args.combined_weights[ep::i64{token} * Cfg::kTopk],
                            i_2, Cfg::kTopk, sum_3);
                    }
                }
                parts.close();
            }
        }
        rail.close();
        shares.end();
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
node_combine(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        ep::clear(smem.sequences, Cfg::kSequences);
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (block % 2 == 0 && ep::is_between(warp, Cfg::NvlSend::kFirstWarp, Cfg::NvlSend::kWarps)) {
        ep::Team team(args.group, call, Cfg::NvlSend::kRole, block / 2, (blocks + 1) / 2,
            warp - Cfg::NvlSend::kFirstWarp, Cfg::NvlSend::kWarps);
        nvl_send(args, smem, team);
    }
    if (block % 2 == 1 && ep::is_between(warp, Cfg::Forward::kFirstWarp, Cfg::Forward::kWarps)) {
        ep::Team team(args.group, call, Cfg::Forward::kRole, block / 2, blocks / 2,
            warp - Cfg::Forward::kFirstWarp, Cfg::Forward::kWarps);
        forward(args, smem, team);
    }
    if (block % 2 == 0
        && ep::is_between(warp, Cfg::RdmaReceive::kFirstWarp, Cfg::RdmaReceive::kWarps)) {
        ep::Team team(args.group, call, Cfg::RdmaReceive::kRole, block / 2, (blocks + 1) / 2,
            warp - Cfg::RdmaReceive::kFirstWarp, Cfg::RdmaReceive::kWarps);
        rdma_receive(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace node_combine
