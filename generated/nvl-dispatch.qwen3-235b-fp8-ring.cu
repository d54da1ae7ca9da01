// nvl-dispatch  payload=fp8  via=ring  mode=fresh
// chunk=8 depth=64 experts=128 hidden=4096 piece=3584 ranks=8 stages=2 stripes=12 topk=8
// sm_120a: 256 threads and 63872 bytes of shared memory a block, at least 2 blocks
//
// Roles:
//   Send: 8 warps on even blocks; by the library: ep::Mover, ep::RingProducer
//   Recv: 8 warps on odd blocks; by the library: ep::Mover, ep::RingConsumer, ep::RingMessage
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
#include <ep/messages.cuh>
#include <ep/mover.cuh>
#include <ep/places.cuh>
#include <ep/ring.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_dispatch {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 12;
    static constexpr int kThreads = 256;
    static constexpr int kSequences = 8;
    static constexpr int kSharedBytes = 63872;

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
        static constexpr int kWarps = 8;
        static constexpr int kFirstSequence = 0;
        static constexpr bool kTma = true;
        static constexpr int kStages = 2;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 4096;
        static constexpr int kMetaBytes = 208;
    };

    struct Recv {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kFirstSequence = 0;
        static constexpr bool kTma = true;
        static constexpr int kStages = 2;
        static constexpr int kPieceBytes = 3584;
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

/// role Send[peer] on even blocks
__device__ __forceinline__ void send(const Args& args, Smem& smem, ep::Team& team) {
    ep::Mover<Cfg::Send> mover(smem.send[team.warp], team);
    team.split_peers(Cfg::kRanks);
    for (int peer = team.peer; peer < Cfg::kRanks && !team.stopped; peer += team.peers) {
        ep::RingProducer<Cfg::Ring, Cfg::Send> ring(team, mover,
            smem.sequences + Cfg::Send::kFirstSequence, peer);
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            ring.open(stripe);
            // +40  announce ring[peer] { first: stripe_prefix[peer, stripe], count:
            //     stripe_tokens[stripe, peer] }
            // W1: publishes header of ring, for Recv +50
            ring.announce(args.stripe_prefix[peer * Cfg::kStripes + stripe],
                args.stripe_tokens[stripe * Cfg::kRanks + peer]);
            // +41  for token in stripe where in_rank[token, peer]
            const ep::Span tokens(
                ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
            const int sent = ep::for_rows(team, tokens,
                [&](int token) {
                    return args.in_rank[ep::i64{token} * Cfg::kRanks + peer];
                },
                // +42  push ring[peer] { x: x[token], src: token, experts: topk_idx[token],
                //     weights: topk_weights[token] }
                // W2: publishes messages of ring, for Recv +53
                // W3: takes credit of ring, from Recv +53
                [&](int token, int position) {
                    ring.wait_credit(position);
                    const auto x_scale_field = ep::ask<float, Cfg::Token::kXScaleCount>([&](int i) {
                        return args.x_scale[token * args.x_scale_stride
                            + i * args.x_scale_block_stride];
                    });
                    const auto src_field =
                        ep::ask<ep::i32, Cfg::Token::kSrcCount>([&](int) { return token; });
                    const auto experts_field =
                        ep::ask<ep::i32, Cfg::Token::kExpertsCount>([&](int i) {
                            return args.topk_idx[token * args.topk_idx_stride + i];
                        });
                    const auto weights_field =
                        ep::ask<float, Cfg::Token::kWeightsCount>([&](int i) {
                            return args.topk_weights[token * args.topk_weights_stride + i];
                        });
                    mover.row(ring.row(position), &args.x[token * args.x_stride]);
                    char* meta = mover.meta();
                    x_scale_field.put(meta + Cfg::Token::kXScale);
                    src_field.put(meta + Cfg::Token::kSrc);
                    experts_field.put(meta + Cfg::Token::kExperts);
                    weights_field.put(meta + Cfg::Token::kWeights);
                    mover.send_meta(ring.meta(position));
                    ring.post();
                },
                [&](int token, bool match, int position) {
                    // +44  record send_head[token, peer] = ring[peer].position
                    args.send_head[ep::i64{token} * Cfg::kRanks + peer] =
                        ep::recorded(match, position);
            });
            // +42  push ring[peer]: what is left
            ring.finish(sent);
        }
    }
    mover.finish();
}

/// role Recv[peer] on odd blocks
__device__ __forceinline__ void recv(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    const auto mine = ep::experts_of(args.expert_begin, me);
    ep::Mover<Cfg::Recv> mover(smem.recv[team.warp], team);
    ep::require_room(team, args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me],
        args.received_capacity);
    // recv_topk_idx: fill -1 beyond received
    ep::fill<ep::i64>(team, args.recv_topk_idx, args.recv_topk_idx != nullptr ? Cfg::kTopk : 0,
        args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me], args.received_capacity, -1LL);
    team.split_peers(Cfg::kRanks);
    for (int peer = team.peer; peer < Cfg::kRanks && !team.stopped; peer += team.peers) {
        ep::RingConsumer<Cfg::Ring, Cfg::Recv> ring(team, mover,
            smem.sequences + Cfg::Recv::kFirstSequence, peer);
        for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped;
            stripe += team.blocks) {
            ring.open(stripe);
            ep::once(team, [&] {
                // +50  record recv_first[peer, stripe] = rank_prefix[peer, me] + ring[peer].first
                // W1: takes header of ring, from Send +40
                args.recv_first[peer * Cfg::kStripes + stripe] = static_cast<ep::i32>(
                    ep::i64{args.rank_prefix[peer * Cfg::kRanks + me]} + ring.first());
                // +51  record recv_count[peer, stripe] = ring[peer].count
                args.recv_count[peer * Cfg::kStripes + stripe] = ring.count();
            });
            // +53  for message in ring[peer] at rank_prefix[peer, me] + ring[peer].first
            // W2: takes messages of ring, from Send +42
            // W3: publishes credit of ring, for Send +42
            const int first = static_cast<ep::i32>(
                ep::i64{args.rank_prefix[peer * Cfg::kRanks + me]} + ring.first());
            ep::for_messages(team, ring, [&](int position) {
                const int row = first + position;
                // +54  store recv_x[message.row] = message.x
                mover.row(ep::at_leader(&args.recv_x[row * args.recv_x_stride]),
                    ring.row(position));
                const ep::RingMessage message(ring.message(position, row));
                const auto x_scale_field =
                    message.ask<float, Cfg::Token::kXScaleCount>(Cfg::Token::kXScale);
                const auto src_field =
                    message.ask<ep::i32, Cfg::Token::kSrcCount>(Cfg::Token::kSrc);
                const auto experts_field =
                    message.ask<ep::i32, Cfg::Token::kExpertsCount>(Cfg::Token::kExperts);
                const auto weights_field =
                    message.ask<float, Cfg::Token::kWeightsCount>(Cfg::Token::kWeights);
                x_scale_field.store(args.recv_x_scale, args.recv_x_scale_stride,
                    args.recv_x_scale_block_stride);
                // +54  record recv_src[message.row] = message.src
                src_field.store(args.recv_src, 1, 1);
                // +54  store recv_topk_idx[message.row] = local(message.experts, me)
                experts_field.store(args.recv_topk_idx, Cfg::kTopk, 1,
                    [&](ep::i32 experts) { return mine.local(experts); });
                // +54  store recv_topk_weights[message.row] = message.weights *
                //     (local(message.experts, me) >= 0) as f32
                weights_field.store(args.recv_topk_weights, Cfg::kTopk, 1,
                    [&](float weights, ep::i32 experts) {
                        return ep::product(weights, static_cast<float>(mine.local(experts) >= 0));
                    },
                    experts_field);
            });
            // +53  for message in ring[peer]: what is left
            ring.finish();
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
