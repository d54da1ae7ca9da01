// nvl-dispatch  payload=fp8  via=ring  mode=fresh
// chunk=8 depth=64 experts=128 hidden=4096 piece=3584 ranks=8 stages=3 stripes=12 topk=8
// sm_120a: 512 threads and 86656 bytes of shared memory a block, at least 2 blocks
//
// Roles:
//   Send: 16 warps on even blocks, a block for each of stripes = 12; composed: ep::Mover, ep::RingsOut
//   Recv: 16 warps on odd blocks, a block for each of stripes = 12; composed: ep::Mover, ep::RingsIn
//
// Window, the same on every rank:
//   ring.slots       0x00000000   26738688 bytes  12 stripes x 8 peers x 64 slots x 4352; Send writes, Recv reads
//   ring.tail        0x01980000        384 bytes  12 stripes x 8 peers x 4; Send writes, Recv reads
//   ring.header      0x01980180       3072 bytes  2 calls x 12 stripes x 8 peers x 16; Send writes, Recv reads
//   ring.taken       0x01980d80        768 bytes  2 calls x 12 stripes x 8 peers x 4; Recv writes, Recv reads
//   ring.head        0x01981080        384 bytes  12 stripes x 8 peers x 4; Recv writes, Send reads
//   ring.retired     0x01981200        384 bytes  12 stripes x 8 peers x 4; Recv writes, Send reads
//   ring.sent        0x01981380        768 bytes  2 calls x 12 stripes x 8 peers x 4; Send writes, Send reads
// Message Token: row of 4096 bytes, meta record of 208 bytes: x_scale[32] at 0, src[1] at 128, experts[8] at 132, weights[8] at 164
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/places.cuh>
#include <ep/rings.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_dispatch {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 4096;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 12;
    static constexpr int kThreads = 512;
    static constexpr int kSequences = 16;
    static constexpr int kSharedBytes = 86656;

    struct Token {
        static constexpr int kRowBytes = 4096;
        static constexpr int kMetaBytes = 208;
        static constexpr int kXScale = 0;
        static constexpr int kXScaleCount = 32;
        static constexpr int kSrc = 128;
        static constexpr int kSrcCount = 1;
        static constexpr int kExperts = 132;
        static constexpr int kExpertsCount = 8;
        static constexpr int kWeights = 164;
        static constexpr int kWeightsCount = 8;
    };

    struct Ring {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 8;
        static constexpr int kStripes = 12;
        static constexpr int kDepth = 64;
        static constexpr int kChunk = 8;
        static constexpr int kSlotBytes = 4352;
        static constexpr int kMeta = 4096;
        static constexpr int kHeaderWords = 2;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kTail = 0x1980000;
        static constexpr ep::u64 kHeader = 0x1980180;
        static constexpr ep::u64 kTaken = 0x1980d80;
        static constexpr ep::u64 kHead = 0x1981080;
        static constexpr ep::u64 kRetired = 0x1981200;
        static constexpr ep::u64 kSent = 0x1981380;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 2;
        static constexpr bool kTma = true;
        static constexpr int kStages = 4;
        static constexpr int kPieceBytes = 1024;
        static constexpr int kRowBytes = 4096;
        static constexpr int kMetaBytes = 208;
    };

    struct Recv {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 2;
        static constexpr bool kTma = true;
        static constexpr int kStages = 4;
        static constexpr int kPieceBytes = 1024;
        static constexpr int kRowBytes = 4096;
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
    // from the handle of Layout
    const bool* in_rank;
    const ep::i32* stripe_tokens;
    const ep::i32* rank_prefix;
    const ep::i32* stripe_prefix;
    // input x: payload[tokens, hidden]
    const ep::e4m3* x;
    ep::i64 x_stride;
    const float* x_scale;
    ep::i64 x_scale_stride;
    ep::i64 x_scale_block_stride;
    // input topk_idx: optional i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: optional f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending
    const ep::i32* expert_begin;
    // output recv_x: payload[received, hidden] in window
    ep::e4m3* recv_x;
    ep::i64 recv_x_stride;
    float* recv_x_scale;
    ep::i64 recv_x_scale_stride;
    ep::i64 recv_x_scale_block_stride;
    ep::u64 recv_x_at;
    // output recv_topk_idx: optional i64[received, topk] fill -1 beyond received
    ep::i64* recv_topk_idx;
    // output recv_topk_weights: optional f32[received, topk]
    float* recv_topk_weights;
    // table recv_src: i32[received]
    ep::i32* recv_src;
    // table send_head: i32[tokens, ranks]
    ep::i32* send_head;
    // table recv_first: i32[ranks, stripes]
    ep::i32* recv_first;
    // table recv_count: i32[ranks, stripes]
    ep::i32* recv_count;
};

struct Smem {
    ep::Sequence sequences[Cfg::kSequences];
    union {
        ep::MoverSmem<Cfg::Send> send[Cfg::Send::kWarps];
        ep::MoverSmem<Cfg::Recv> recv[Cfg::Recv::kWarps];
    };
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Send[peer] on even blocks, 16 warps
__device__ __forceinline__ void send(const Args& args, Smem& smem, ep::Team& team) {
    ep::Mover<Cfg::Send> mover(smem.send[team.warp], team);
    ep::Shares<Cfg::Send> shares(team, smem.sequences, Cfg::kRanks);
    ep::RingsOut<Cfg::Ring> ring(team, shares.take(1));
    for (int peer = team.peer; peer < Cfg::kRanks && !team.stopped; peer += team.peers) {
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            ring.open(stripe, ep::one_peer(peer));
            if (team.part == 0) {
                // +41  announce ring[peer] { first: stripe_prefix[peer, stripe], count:
                //     stripe_tokens[stripe, peer] }
                // W1: publishes header of ring, for Recv +51
                ring.announce(peer, 0, args.stripe_prefix[peer * Cfg::kStripes + stripe]);
                ring.announce(peer, 1, args.stripe_tokens[stripe * Cfg::kRanks + peer]);
            }
            // +42  for token in stripe where in_rank[token, peer]
            const ep::Span rows(
                ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
            const int token_begin = rows.begin;
            const int token_count = rows.end - rows.begin;
            for (int turn; (turn = shares.next(token_count)) >= 0;) {
                const int token = static_cast<ep::i32>(ep::i64{token_begin} + turn);
                ring.expect(peer,
                    static_cast<ep::i32>(args.in_rank[ep::i64{token} * Cfg::kRanks + peer]));
                ring.claim(shares.turn());
                const bool goes = args.in_rank[ep::i64{token} * Cfg::kRanks + peer];
                if (!goes) {
                    const int next = ring.position(peer);
                    // +45  record send_head[token, peer] = ring[peer].position
                    if (team.leader()) {
                        args.send_head[ep::i64{token} * Cfg::kRanks + peer] =
                            static_cast<ep::i32>(-1LL - next);
                    }
                }
                if (!goes) continue;
                // +43  push ring[peer] { x: x[token], src: token, experts: topk_idx[token],
                //     weights: topk_weights[token] }
                // W2: publishes messages of ring, for Recv +54
                // W3: takes credit of ring, from Recv +54
                const int ring_position = ring.position(peer);
                if (!ring.has_room(peer)) {
                    ep::settle(mover, ring);
                }
                if (ring.reserve(peer)) {
                    char* slot = ring.slot(peer);
                    const auto x_scale_field =
                        ep::ask<float, Cfg::Token::kXScaleCount>([&](int i_2) {
                            return args.x_scale[token * args.x_scale_stride
                                + i_2 * args.x_scale_block_stride];
                        });
                    const auto src_field =
                        ep::ask<ep::i32, Cfg::Token::kSrcCount>([&](int) { return token; });
                    const auto experts_field =
                        ep::ask<ep::i32, Cfg::Token::kExpertsCount>([&](int i_4) {
                            return static_cast<ep::i32>(
                                args.topk_idx[token * args.topk_idx_stride + i_4]);
                        });
                    const auto weights_field = ep::ask_row<float, Cfg::Token::kWeightsCount>(
                        &args.topk_weights[token * args.topk_weights_stride]);
                    mover.fence_global();
                    mover.row(ep::at_lane_of(peer, slot), &args.x[token * args.x_stride]);
                    char* record = mover.meta();
                    x_scale_field.put(record + Cfg::Token::kXScale);
                    src_field.put(record + Cfg::Token::kSrc);
                    experts_field.put(record + Cfg::Token::kExperts);
                    weights_field.put(record + Cfg::Token::kWeights);
                    mover.send_meta(ep::at_lane_of(peer, slot + Cfg::Ring::kMeta));
                    ring.publish_after(peer, mover.rows_begun());
                    ep::tell(mover, ring);
                }
                // +45  record send_head[token, peer] = ring[peer].position
                if (team.leader()) {
                    args.send_head[ep::i64{token} * Cfg::kRanks + peer] = ring_position;
                }
            }
            ep::settle(mover, ring);
            ring.close();
            shares.end();
        }
    }
    mover.finish();
}

/// role Recv[peer] on odd blocks, 16 warps
__device__ __forceinline__ void recv(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    const auto mine = ep::experts_of(args.expert_begin, me);
    ep::require_room(team, args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me],
        args.received_capacity);
    // recv_topk_idx: fill -1 beyond received
    ep::fill<ep::i64>(team, args.recv_topk_idx, args.recv_topk_idx != nullptr ? Cfg::kTopk : 0,
        args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me], args.received_capacity, -1LL);
    ep::Mover<Cfg::Recv> mover(smem.recv[team.warp], team);
    ep::Shares<Cfg::Recv> shares(team, smem.sequences, Cfg::kRanks);
    ep::RingsIn<Cfg::Ring> ring(team, shares.take(1));
    for (int peer = team.peer; peer < Cfg::kRanks && !team.stopped; peer += team.peers) {
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            ring.open(stripe, ep::one_peer(peer));
            if (team.part == 0) {
                // +51  record recv_first[peer, stripe] = rank_prefix[peer, me] + ring[peer].first
                // W1: takes header of ring, from Send +41
                const int first = ring.header(peer, 0);
                if (team.leader()) {
                    args.recv_first[peer * Cfg::kStripes + stripe] = static_cast<ep::i32>(
                        ep::i64{args.rank_prefix[peer * Cfg::kRanks + me]} + first);
                }
                // +52  record recv_count[peer, stripe] = ring[peer].count
                const int count = ring.header(peer, 1);
                if (team.leader()) {
                    args.recv_count[peer * Cfg::kStripes + stripe] = count;
                }
            }
            // +54  for message in ring[peer] at rank_prefix[peer, me] + ring[peer].first
            // W2: takes messages of ring, from Send +43
            // W3: publishes credit of ring, for Send +43
            const int count_2 = ring.header(peer, 1);
            const int first_2 = ring.header(peer, 0);
            const int first_3 =
                static_cast<ep::i32>(ep::i64{args.rank_prefix[peer * Cfg::kRanks + me]} + first_2);
            const int index_count = count_2;
            for (int turn; (turn = shares.next(index_count)) >= 0;) {
                const int index = turn;
                ring.take(peer, index);
                if (!ring.has_message(peer)) {
                    ep::settle(mover, ring);
                }
                if (ring.arrived(peer)) {
                    const char* slot = ring.slot(peer);
                    const int row = static_cast<ep::i32>(ep::i64{first_3} + index);
                    // +55  store recv_x[message.row] = message.x
                    mover.fence_global();
                    mover.row(ep::at_leader(&args.recv_x[row * args.recv_x_stride]), slot);
                    for (int i_2 = team.lane; i_2 < ep::ceil(Cfg::kHidden, 128);
                        i_2 += ep::kLanes) {
                        args.recv_x_scale[row * args.recv_x_scale_stride
                            + i_2 * args.recv_x_scale_block_stride] =
                            ep::get<float>(slot + Cfg::Ring::kMeta + Cfg::Token::kXScale, i_2);
                    }
                    // +55  record recv_src[message.row] = message.src
                    if (team.leader()) {
                        args.recv_src[row] =
                            ep::get<ep::i32>(slot + Cfg::Ring::kMeta + Cfg::Token::kSrc, 0);
                    }
                    // +55  store recv_topk_idx[message.row] = local(message.experts, me)
                    if (args.topk_idx != nullptr && args.recv_topk_idx != nullptr) {
                        for (int i_3 = team.lane; i_3 < Cfg::kTopk; i_3 += ep::kLanes) {
                            args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + i_3] =
                                ep::i64{mine.local(
                                    ep::get<ep::i32>(slot + Cfg::Ring::kMeta + Cfg::Token::kExperts,
                                        i_3))};
                        }
                    }
                    // +55  store recv_topk_weights[message.row] = message.weights *
                    //     (local(message.experts, me) >= 0) as f32
                    if (args.topk_idx != nullptr && args.topk_weights != nullptr
                        && args.recv_topk_weights != nullptr) {
                        for (int i_4 = team.lane; i_4 < Cfg::kTopk; i_4 += ep::kLanes) {
                            args.recv_topk_weights[ep::i64{row} * Cfg::kTopk + i_4] = ep::product(
                                ep::get<float>(slot + Cfg::Ring::kMeta + Cfg::Token::kWeights, i_4),
                                static_cast<float>(
                                    mine.local(
                                        ep::get<ep::i32>(slot + Cfg::Ring::kMeta
                                            + Cfg::Token::kExperts, i_4)) >= 0));
                        }
                    }
                    ring.release_after(peer, mover.rows_begun());
                    ep::tell(mover, ring);
                }
            }
            ep::settle(mover, ring);
            ring.close();
            shares.end();
        }
    }
    mover.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
nvl_dispatch(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        ep::clear(smem.sequences, Cfg::kSequences);
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (block % 2 == 0 && ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps)) {
        ep::Team team(args.group, call, Cfg::Send::kRole, block / 2, (blocks + 1) / 2,
            warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
        send(args, smem, team);
    }
    if (block % 2 == 1 && ep::is_between(warp, Cfg::Recv::kFirstWarp, Cfg::Recv::kWarps)) {
        ep::Team team(args.group, call, Cfg::Recv::kRole, block / 2, blocks / 2,
            warp - Cfg::Recv::kFirstWarp, Cfg::Recv::kWarps);
        recv(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace nvl_dispatch
