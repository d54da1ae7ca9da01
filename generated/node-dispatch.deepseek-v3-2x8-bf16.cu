// node-dispatch  payload=bf16  mode=fresh
// experts=256 hidden=7168 local_ranks=8 nodes=2 nvl_chunk=8 nvl_depth=32 ranks=16 rdma_chunk=16 rdma_depth=128 stages=3 stripes=12 topk=8
// sm_90a: 512 threads and 187008 bytes of shared memory a block, at least 2 blocks
//
// Roles:
//   RdmaSend: 8 warps on even blocks, a block for each of stripes = 12; composed: ep::RingsOut
//   Forward: 16 warps on odd blocks, a block for each of stripes = 12; composed: ep::RingsIn, ep::RingsOut
//   NvlReceive: 8 warps on even blocks, a block for each of stripes = 12; composed: ep::Mover, ep::RingsIn
//
// Window, the same on every rank:
//   rail.slots       0x00000000   22216704 bytes  12 stripes x 1 peers x 128 slots x 14464; RdmaSend writes, Forward reads
//   rail.tail        0x01530000         48 bytes  12 stripes x 1 peers x 4; RdmaSend writes, Forward reads
//   rail.header      0x01530080        384 bytes  2 calls x 12 stripes x 1 peers x 16; RdmaSend writes, Forward reads
//   rail.taken       0x01530200        192 bytes  2 calls x 12 stripes x 2 peers x 4; Forward writes, Forward reads
//   rail.head        0x01530300         48 bytes  12 stripes x 1 peers x 4; Forward writes, RdmaSend reads
//   rail.retired     0x01530380         48 bytes  12 stripes x 1 peers x 4; Forward writes, RdmaSend reads
//   rail.sent        0x01530400        192 bytes  2 calls x 12 stripes x 2 peers x 4; RdmaSend writes, RdmaSend reads
//   rail.passed      0x01530500        960 bytes  12 stripes x 2 peers x 10 x 4; Forward writes, Forward reads
//   inner.slots      0x01530900   88866816 bytes  12 stripes x 8 peers x 2 parts x 32 slots x 14464; Forward writes, NvlReceive reads
//   inner.tail       0x069f0900        768 bytes  12 stripes x 8 peers x 2 parts x 4; Forward writes, NvlReceive reads
//   inner.header     0x069f0c00       6144 bytes  2 calls x 12 stripes x 8 peers x 2 parts x 16; Forward writes, NvlReceive reads
//   inner.taken      0x069f2400       1536 bytes  2 calls x 12 stripes x 8 peers x 2 parts x 4; NvlReceive writes, NvlReceive reads
//   inner.head       0x069f2a00        768 bytes  12 stripes x 8 peers x 2 parts x 4; NvlReceive writes, Forward reads
//   inner.retired    0x069f2d00        768 bytes  12 stripes x 8 peers x 2 parts x 4; NvlReceive writes, Forward reads
//   inner.sent       0x069f3000       1536 bytes  2 calls x 12 stripes x 8 peers x 2 parts x 4; Forward writes, Forward reads
//
// Network, the same on every rank:
//   rail.inbox       0x00000000   22216704 bytes  12 stripes x 1 peers x 128 slots x 14464; RdmaSend writes, Forward reads
//   rail.outbox      0x01530000   22216704 bytes  12 stripes x 1 peers x 128 slots x 14464; RdmaSend writes, RdmaSend reads
//   rail.headers_in  0x02a60000        384 bytes  2 calls x 12 stripes x 1 peers x 2 x 8; RdmaSend writes, Forward reads
//   rail.headers_out 0x02a60180        384 bytes  2 calls x 12 stripes x 1 peers x 2 x 8; RdmaSend writes, RdmaSend reads
// Message Hop: row of 14336 bytes, meta record of 80 bytes: src[1] at 0, local[1] at 8, experts[8] at 16, weights[8] at 48
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/net_rings.cuh>
#include <ep/places.cuh>
#include <ep/rings.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace node_dispatch {

struct Cfg {
    static constexpr int kNodes = 2;
    static constexpr int kLocalRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kRanks = 16;
    static constexpr int kStripes = 12;
    static constexpr int kThreads = 512;
    static constexpr int kSequences = 40;
    static constexpr int kSharedBytes = 187008;

    struct Hop {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 80;
        static constexpr int kSrc = 0;
        static constexpr int kSrcCount = 1;
        static constexpr int kLocal = 8;
        static constexpr int kLocalCount = 1;
        static constexpr int kExperts = 16;
        static constexpr int kExpertsCount = 8;
        static constexpr int kWeights = 48;
        static constexpr int kWeightsCount = 8;
    };

    struct Rail {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 2;
        static constexpr int kStripes = 12;
        static constexpr int kDepth = 128;
        static constexpr int kChunk = 16;
        static constexpr int kSlotBytes = 14464;
        static constexpr int kMeta = 14336;
        static constexpr int kHeaderWords = 2;
        static constexpr bool kRail = true;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 1;
        static constexpr bool kIbgda = false;
        static constexpr int kReaders = 8;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kTail = 0x1530000;
        static constexpr ep::u64 kHeader = 0x1530080;
        static constexpr ep::u64 kTaken = 0x1530200;
        static constexpr ep::u64 kHead = 0x1530300;
        static constexpr ep::u64 kRetired = 0x1530380;
        static constexpr ep::u64 kSent = 0x1530400;
        static constexpr ep::u64 kPassed = 0x1530500;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x1530000;
        static constexpr ep::u64 kHeadersIn = 0x2a60000;
        static constexpr ep::u64 kHeadersOut = 0x2a60180;
        static constexpr int kCounters = 0;
    };

    struct Inner {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 8;
        static constexpr int kStripes = 12;
        static constexpr int kDepth = 32;
        static constexpr int kChunk = 8;
        static constexpr int kSlotBytes = 14464;
        static constexpr int kMeta = 14336;
        static constexpr int kHeaderWords = 2;
        static constexpr int kParts = 2;
        static constexpr ep::u64 kSlots = 0x1530900;
        static constexpr ep::u64 kTail = 0x69f0900;
        static constexpr ep::u64 kHeader = 0x69f0c00;
        static constexpr ep::u64 kTaken = 0x69f2400;
        static constexpr ep::u64 kHead = 0x69f2a00;
        static constexpr ep::u64 kRetired = 0x69f2d00;
        static constexpr ep::u64 kSent = 0x69f3000;
    };

    struct RdmaSend {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 3;
    };

    struct Forward {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 5;
    };

    struct NvlReceive {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 8;
        static constexpr int kFirstSequence = 3;
        static constexpr int kSequences = 3;
        static constexpr bool kTma = true;
        static constexpr int kStages = 6;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 0;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // rows that the outputs of `received` hold
    int received_capacity;
    // from the handle of NodeLayout
    const ep::i64* node_bits;
    const ep::i32* node_tokens;
    const ep::i32* rank_prefix;
    const ep::i32* rail_prefix;
    const ep::i32* node_prefix;
    const ep::i32* forward_first;
    const ep::i32* forward_count;
    // input x: payload[tokens, hidden]
    const ep::bf16* x;
    ep::i64 x_stride;
    // input topk_idx: optional i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: optional f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending
    const ep::i32* expert_begin;
    // output recv_x: payload[received, hidden]
    ep::bf16* recv_x;
    // output recv_topk_idx: optional i64[received, topk] fill -1 beyond received
    ep::i64* recv_topk_idx;
    // output recv_topk_weights: optional f32[received, topk]
    float* recv_topk_weights;
    // table recv_src: i32[received]
    ep::i32* recv_src;
    // table recv_first: i32[ranks, stripes]
    ep::i32* recv_first;
    // table recv_count: i32[ranks, stripes]
    ep::i32* recv_count;
    // table send_rail_head: i32[tokens, nodes]
    ep::i32* send_rail_head;
    // table send_inner_head: i32[relayed, local_ranks]
    ep::i32* send_inner_head;
    // the network of this rank
    const ep::Net* net;
};

struct Smem {
    ep::Sequence sequences[Cfg::kSequences];
    ep::MoverSmem<Cfg::NvlReceive> nvl_receive[Cfg::NvlReceive::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role RdmaSend on even blocks, 8 warps, warps shared by token
__device__ __forceinline__ void rdma_send(const Args& args, Smem& smem, ep::Team& team) {
    ep::Shares<Cfg::RdmaSend> shares(team, smem.sequences, 1);
    ep::RingsOut<Cfg::Rail, ep::NetRings<Cfg::Rail>> rail(team, args.net, shares.take(Cfg::kNodes));
    for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped; stripe += team.blocks) {
        rail.open(stripe, ep::all_peers(Cfg::Rail::kPeers));
        if (team.part == 0) {
            // +64  for node in nodes
            for (int node = 0; node < Cfg::kNodes && !team.stopped; ++node) {
                // +65  announce rail[node] { first: node_prefix[node, stripe], count:
                //     node_tokens[stripe, node] }
                // W1: publishes header of rail, for Forward +86
                rail.announce(node, 0, args.node_prefix[node * Cfg::kStripes + stripe]);
                rail.announce(node, 1, args.node_tokens[stripe * Cfg::kNodes + node]);
            }
        }
        // +67  for token in stripe
        const ep::Span rows(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        const int token_begin = rows.begin;
        const int token_count = rows.end - rows.begin;
        for (int turn; (turn = shares.next(token_count)) >= 0;) {
            const int token = static_cast<ep::i32>(ep::i64{token_begin} + turn);
            for (int ring = team.lane; ring < Cfg::kNodes; ring += ep::kLanes) {
                rail.expect(ring,
                    static_cast<ep::i32>(args.node_bits[ep::i64{token} * Cfg::kNodes + ring] != 0));
            }
            rail.claim(shares.turn());
            // +68  for node in nodes where any(node_bits[token, node])
            for (int node_2 = 0; node_2 < Cfg::kNodes && !team.stopped; ++node_2) {
                const bool goes = args.node_bits[ep::i64{token} * Cfg::kNodes + node_2] != 0;
                if (!goes) {
                    const int next = rail.position(node_2);
                    // +74  record send_rail_head[token, node] = rail[node].position
                    if (team.leader()) {
                        args.send_rail_head[ep::i64{token} * Cfg::kNodes + node_2] =
                            static_cast<ep::i32>(-1LL - next);
                    }
                }
                if (!goes) continue;
                // +69  push rail[node] { x: x[token], src: token, local: node_bits[token, node],
                //     experts: topk_idx[token], weights: topk_weights[token] }
                // W2: publishes messages of rail, for Forward +86
                // W3: takes credit of rail, from Forward +86
                const int rail_position = rail.position(node_2);
                if (rail.reserve(node_2)) {
                    char* slot = rail.slot(node_2);
                    ep::copy_row<ep::bf16, 4>(team, slot, &args.x[token * args.x_stride],
                        Cfg::kHidden);
                    for (int i_2 = team.lane; i_2 < Cfg::Hop::kSrcCount; i_2 += ep::kLanes) {
                        ep::set<ep::i32>(slot + Cfg::Rail::kMeta + Cfg::Hop::kSrc, i_2, token);
                    }
                    for (int i_3 = team.lane; i_3 < Cfg::Hop::kLocalCount; i_3 += ep::kLanes) {
                        ep::set<ep::i64>(slot + Cfg::Rail::kMeta + Cfg::Hop::kLocal, i_3,
                            args.node_bits[ep::i64{token} * Cfg::kNodes + node_2]);
                    }
                    for (int i_4 = team.lane; i_4 < Cfg::Hop::kExpertsCount; i_4 += ep::kLanes) {
                        ep::set<ep::i32>(slot + Cfg::Rail::kMeta + Cfg::Hop::kExperts, i_4,
                            static_cast<ep::i32>(
                                args.topk_idx[token * args.topk_idx_stride + i_4]));
                    }
                    ep::copy_row<float, 4>(team, slot + Cfg::Rail::kMeta + Cfg::Hop::kWeights,
                        &args.topk_weights[token * args.topk_weights_stride],
                        Cfg::Hop::kWeightsCount);
                    rail.publish(node_2);
                }
                // +74  record send_rail_head[token, node] = rail[node].position
                if (team.leader()) {
                    args.send_rail_head[ep::i64{token} * Cfg::kNodes + node_2] = rail_position;
                }
            }
        }
        rail.close();
        shares.end();
    }
}

/// role Forward[peer] on odd blocks
__device__ __forceinline__ void forward(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::Shares<Cfg::Forward> shares(team, smem.sequences, Cfg::kLocalRanks);
    ep::RingsIn<Cfg::Rail, ep::NetRings<Cfg::Rail>> rail(team, args.net, shares.take(Cfg::kNodes));
    ep::RingsOut<Cfg::Inner, ep::WindowRings<Cfg::Inner, ep::Kept::kPartsOfPeer>> inner(team,
        shares.take(Cfg::kNodes));
    for (int peer = team.peer; peer < Cfg::kLocalRanks && !team.stopped; peer += team.peers) {
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            rail.open(stripe, ep::all_peers(Cfg::Rail::kPeers));
            inner.open(stripe, ep::all_peers(Cfg::kNodes), peer);
            if (team.part == 0) {
                // +80  for node in nodes
                for (int node = 0; node < Cfg::kNodes && !team.stopped; ++node) {
                    // +81  announce inner[peer, node] { first: forward_first[node, stripe, peer],
                    //     count: forward_count[node, stripe, peer] }
                    // W4: publishes header of inner, for NvlReceive +96
                    inner.announce(node, 0,
                        args.forward_first[(node * Cfg::kStripes + stripe) * Cfg::kLocalRanks
                            + peer]);
                    inner.announce(node, 1,
                        args.forward_count[(node * Cfg::kStripes + stripe) * Cfg::kLocalRanks
                            + peer]);
                }
            }
            // +86  for message in rail at rail_prefix[message.source] + rail[message.source].first
            //     where has(message.local, peer)
            // W1: takes header of rail, from RdmaSend +65
            // W2: takes messages of rail, from RdmaSend +69
            // W3: publishes credit of rail, for RdmaSend +69
            for (int source; (source = rail.next(1)) >= 0;) {
                const int index = rail.taken(source);
                const int first = rail.header(source, 0);
                const int first_2 = static_cast<ep::i32>(ep::i64{args.rail_prefix[source]} + first);
                if (rail.arrived(source)) {
                    const char* slot = rail.slot(source);
                    const int row = static_cast<ep::i32>(ep::i64{first_2} + index);
                    const bool takes = ep::has(
                        ep::get<ep::i64>(slot + Cfg::Rail::kMeta + Cfg::Hop::kLocal, 0),
                        ep::i64{peer});
                    inner.claim(source, index, takes ? 1 : 0);
                    if (!takes) {
                        const int next = inner.position(source);
                        // +89  record send_inner_head[message.row, peer] = inner[peer,
                        //     message.source].position
                        if (team.leader()) {
                            args.send_inner_head[ep::i64{row} * Cfg::kLocalRanks + peer] =
                                static_cast<ep::i32>(-1LL - next);
                        }
                    }
                    if (takes) {
                        // +87  push inner[peer, message.source] { ..message, experts:
                        //     local(message.experts, rank_at(node(me), peer)) }
                        // W5: publishes messages of inner, for NvlReceive +100
                        // W6: takes credit of inner, from NvlReceive +100
                        const int inner_position = inner.position(source);
                        if (inner.reserve(source)) {
                            char* slot_2 = inner.slot(source);
                            ep::copy_row<ep::bf16, 4>(team, slot_2, slot, Cfg::kHidden);
                            for (int i_2 = team.lane; i_2 < Cfg::Hop::kSrcCount;
                                i_2 += ep::kLanes) {
                                ep::set<ep::i32>(slot_2 + Cfg::Inner::kMeta + Cfg::Hop::kSrc, i_2,
                                    ep::get<ep::i32>(slot + Cfg::Rail::kMeta + Cfg::Hop::kSrc, 0));
                            }
                            for (int i_3 = team.lane; i_3 < Cfg::Hop::kLocalCount;
                                i_3 += ep::kLanes) {
                                ep::set<ep::i64>(slot_2 + Cfg::Inner::kMeta + Cfg::Hop::kLocal, i_3,
                                    ep::get<ep::i64>(slot + Cfg::Rail::kMeta + Cfg::Hop::kLocal,
                                        0));
                            }
                            for (int i_4 = team.lane; i_4 < Cfg::Hop::kExpertsCount;
                                i_4 += ep::kLanes) {
                                ep::set<ep::i32>(slot_2 + Cfg::Inner::kMeta + Cfg::Hop::kExperts,
                                    i_4,
                                    ep::local_expert(args.expert_begin,
                                        ep::i64{me / Cfg::kLocalRanks} * Cfg::kLocalRanks + peer,
                                        ep::get<ep::i32>(slot + Cfg::Rail::kMeta
                                            + Cfg::Hop::kExperts, i_4)));
                            }
                            ep::copy_row<float, 4>(team,
                                slot_2 + Cfg::Inner::kMeta + Cfg::Hop::kWeights,
                                slot + Cfg::Rail::kMeta + Cfg::Hop::kWeights,
                                Cfg::Hop::kWeightsCount);
                            inner.publish(source);
                        }
                        // +89  record send_inner_head[message.row, peer] = inner[peer,
                        //     message.source].position
                        if (team.leader()) {
                            args.send_inner_head[ep::i64{row} * Cfg::kLocalRanks + peer] =
                                inner_position;
                        }
                    }
                    rail.release(source);
                }
            }
            rail.close();
            inner.close();
            shares.end();
        }
    }
}

/// role NvlReceive[peer] on even blocks, 8 warps
__device__ __forceinline__ void nvl_receive(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::require_room(team, args.rank_prefix[ep::i64{Cfg::kRanks} * Cfg::kRanks + me],
        args.received_capacity);
    // recv_topk_idx: fill -1 beyond received
    ep::fill<ep::i64>(team, args.recv_topk_idx, args.recv_topk_idx != nullptr ? Cfg::kTopk : 0,
        args.rank_prefix[ep::i64{Cfg::kRanks} * Cfg::kRanks + me], args.received_capacity, -1LL);
    ep::Mover<Cfg::NvlReceive> mover(smem.nvl_receive[team.warp], team);
    ep::Shares<Cfg::NvlReceive> shares(team, smem.sequences, Cfg::kLocalRanks);
    ep::RingsIn<Cfg::Inner, ep::WindowRings<Cfg::Inner, ep::Kept::kPartsOfPeer>> inner(team,
        shares.take(Cfg::kNodes));
    for (int peer = team.peer; peer < Cfg::kLocalRanks && !team.stopped; peer += team.peers) {
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            inner.open(stripe, ep::all_peers(Cfg::kNodes), peer);
            if (team.part == 0) {
                // +95  for node in nodes
                for (int node = 0; node < Cfg::kNodes && !team.stopped; ++node) {
                    // +96  record recv_first[rank_at(node, peer), stripe] =
                    //     rank_prefix[rank_at(node, peer), me] + inner[peer, node].first
                    // W4: takes header of inner, from Forward +81
                    const int first = inner.header(node, 0);
                    if (team.leader()) {
                        args.recv_first[(node * Cfg::kLocalRanks + peer) * Cfg::kStripes + stripe] =
                            static_cast<ep::i32>(
                                ep::i64{args.rank_prefix[ep::i64{node * Cfg::kLocalRanks
                                    + peer} * Cfg::kRanks + me]} + first);
                    }
                    // +97  record recv_count[rank_at(node, peer), stripe] = inner[peer, node].count
                    const int count = inner.header(node, 1);
                    if (team.leader()) {
                        args.recv_count[(node * Cfg::kLocalRanks + peer) * Cfg::kStripes + stripe] =
                            count;
                    }
                }
            }
            // +100  for message in inner[peer] at rank_prefix[rank_at(message.part, peer), me] +
            //     inner[peer, message.part].first
            // W5: takes messages of inner, from Forward +87
            // W6: publishes credit of inner, for Forward +87
            for (int part; (part = inner.next(1, mover, inner)) >= 0;) {
                const int index = inner.taken(part);
                if (!inner.has_header(part, 0)) {
                    ep::settle(mover, inner);
                }
                const int first_2 = inner.header(part, 0);
                const int first_3 = static_cast<ep::i32>(
                    ep::i64{args.rank_prefix[(ep::i64{part} * Cfg::kLocalRanks + peer) * Cfg::kRanks
                        + me]} + first_2);
                if (!inner.has_message(part)) {
                    ep::settle(mover, inner);
                }
                if (inner.arrived(part)) {
                    const char* slot = inner.slot(part);
                    const int row = static_cast<ep::i32>(ep::i64{first_3} + index);
                    // +101  store recv_x[message.row] = message.x
                    mover.fence_global();
                    mover.row(ep::at_leader(&args.recv_x[ep::i64{row} * Cfg::kHidden]), slot);
                    // +101  record recv_src[message.row] = message.src
                    if (team.leader()) {
                        args.recv_src[row] =
                            ep::get<ep::i32>(slot + Cfg::Inner::kMeta + Cfg::Hop::kSrc, 0);
                    }
                    // +101  store recv_topk_idx[message.row] = message.experts
                    if (args.topk_idx != nullptr && args.recv_topk_idx != nullptr) {
                        for (int i_2 = team.lane; i_2 < Cfg::kTopk; i_2 += ep::kLanes) {
                            args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + i_2] =
                                ep::i64{ep::get<ep::i32>(slot + Cfg::Inner::kMeta
                                    + Cfg::Hop::kExperts, i_2)};
                        }
                    }
                    // +101  store recv_topk_weights[message.row] = message.weights *
                    //     (message.experts >= 0) as f32
                    if (args.topk_idx != nullptr && args.topk_weights != nullptr
                        && args.recv_topk_weights != nullptr) {
                        for (int i_3 = team.lane; i_3 < Cfg::kTopk; i_3 += ep::kLanes) {
                            args.recv_topk_weights[ep::i64{row} * Cfg::kTopk + i_3] = ep::product(
                                ep::get<float>(slot + Cfg::Inner::kMeta + Cfg::Hop::kWeights, i_3),
                                static_cast<float>(
                                    ep::get<ep::i32>(slot + Cfg::Inner::kMeta + Cfg::Hop::kExperts,
                                        i_3) >= 0));
                        }
                    }
                    inner.release_after(part, mover.rows_begun());
                    ep::tell(mover, inner);
                }
            }
            ep::settle(mover, inner);
            inner.close();
            shares.end();
        }
    }
    mover.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
node_dispatch(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        ep::clear(smem.sequences, Cfg::kSequences);
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (block % 2 == 0 && ep::is_between(warp, Cfg::RdmaSend::kFirstWarp, Cfg::RdmaSend::kWarps)) {
        ep::Team team(args.group, call, Cfg::RdmaSend::kRole, block / 2, (blocks + 1) / 2,
            warp - Cfg::RdmaSend::kFirstWarp, Cfg::RdmaSend::kWarps);
        rdma_send(args, smem, team);
    }
    if (block % 2 == 1 && ep::is_between(warp, Cfg::Forward::kFirstWarp, Cfg::Forward::kWarps)) {
        ep::Team team(args.group, call, Cfg::Forward::kRole, block / 2, blocks / 2,
            warp - Cfg::Forward::kFirstWarp, Cfg::Forward::kWarps);
        forward(args, smem, team);
    }
    if (block % 2 == 0
        && ep::is_between(warp, Cfg::NvlReceive::kFirstWarp, Cfg::NvlReceive::kWarps)) {
        ep::Team team(args.group, call, Cfg::NvlReceive::kRole, block / 2, (blocks + 1) / 2,
            warp - Cfg::NvlReceive::kFirstWarp, Cfg::NvlReceive::kWarps);
        nvl_receive(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace node_dispatch
