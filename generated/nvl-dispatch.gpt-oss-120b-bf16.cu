// nvl-dispatch  payload=bf16  via=direct  mode=fresh
// experts=128 hidden=2880 piece=3584 ranks=4 send_warps=8 stages=3 stripes=64 topk=4 unit=112
// sm_90a: 384 threads and 95232 bytes of shared memory a block, at least 9 blocks
//
// Roles:
//   Send: 8 warps on blocks 0..remote_blocks; by the library: ep::Mover, ep::DirectUnits, ep::DirectProducer
//   Local: 8 warps on other blocks; by the library: ep::Mover, ep::DirectUnits, ep::DirectProducer
//   Unpack: 4 warps on all blocks; by the library
//
// Window, the same on every rank:
//   rows.ready       0x00000000        128 bytes  4 peers x 32; Unpack writes, Send, Local reads
//   rows.closed      0x00000080       4096 bytes  64 stripes x 4 peers x 16; Send, Local writes, Unpack reads
//   rows.stored      0x00001080       2048 bytes  64 stripes x 4 peers x 8; Send, Local writes, Send, Local reads
//   rows.claims      0x00001880         24 bytes  2 calls x 3 words x 4; Send, Local writes, Send, Local reads
// Message Token: row of 5760 bytes, meta record of 128 bytes: src[1] at 0, experts[4] at 4, weights[4] at 20
#include <ep/compute.cuh>
#include <ep/direct.cuh>
#include <ep/messages.cuh>
#include <ep/mover.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_dispatch {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kTopk = 4;
    static constexpr int kStripes = 64;
    static constexpr int kThreads = 384;
    static constexpr int kSharedBytes = 95232;

    struct Token {
        static constexpr int kRowBytes = 5760;
        static constexpr int kMetaBytes = 128;
        static constexpr int kSrc = 0;
        static constexpr int kSrcCount = 1;
        static constexpr int kExperts = 4;
        static constexpr int kExpertsCount = 4;
        static constexpr int kWeights = 20;
        static constexpr int kWeightsCount = 4;
    };

    struct Rows {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kStripes = 64;
        static constexpr int kRoles = 3;
        static constexpr int kUnitBytes = 114688;
        static constexpr int kRowStride = 5760;
        static constexpr int kMetaBytes = 128;
        static constexpr ep::u64 kReady = 0x0;
        static constexpr ep::u64 kClosed = 0x80;
        static constexpr ep::u64 kStored = 0x1080;
        static constexpr ep::u64 kClaims = 0x1880;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr bool kTma = true;
        static constexpr int kStages = 3;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 5760;
        static constexpr int kMetaBytes = 128;
    };

    struct Local {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr bool kTma = true;
        static constexpr int kStages = 3;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 5760;
        static constexpr int kMetaBytes = 128;
    };

    struct Unpack {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 4;
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
    // run-time args
    ep::i32 remote_blocks;
    // from the handle of Layout
    const bool* in_rank;
    const ep::i32* rank_prefix;
    const ep::i32* stripe_prefix;
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
    // output recv_x: payload[received, hidden] in window
    ep::bf16* recv_x;
    ep::i64 recv_x_stride;
    ep::u64 recv_x_at;
    // output recv_topk_idx: optional i64[received, topk] fill -1 beyond received
    ep::i64* recv_topk_idx;
    // output recv_topk_weights: optional f32[received, topk]
    float* recv_topk_weights;
    // table recv_src: i32[received]
    ep::i32* recv_src;
    // table send_row: i32[tokens, ranks]
    ep::i32* send_row;
    // where the meta records of channel `rows` are in the window
    ep::u64 rows_meta_at;
};

struct Smem {
    union {
        ep::MoverSmem<Cfg::Send> send[Cfg::Send::kWarps];
        ep::MoverSmem<Cfg::Send> local[Cfg::Local::kWarps];
    };
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Send on blocks 0..remote_blocks, send_warps warps, warps shared by token
/// role Local on other blocks, 8 warps, warps shared by token: the same for this rank
__device__ __forceinline__ void send(const Args& args, ep::MoverSmem<Cfg::Send>& own,
    ep::Team& team, const ep::Peers& peers) {
    const int me = args.group.rank;
    ep::Mover<Cfg::Send> mover(own, team);
    for (int base = 0; base < peers.count(); base += ep::kLanes) {
        ep::DirectUnits<Cfg::Rows> units(team, base, peers.at(base + team.lane),
            ep::rows_of(args.tokens, args.tokens_from));
        ep::DirectProducer<Cfg::Rows, Cfg::Send> rows(team, mover, units,
            peers.at(base + team.lane));
        // +72  for peer in others where in_rank[token, peer]
        const auto goes = [&](int token, int peer) {
            return args.in_rank[ep::i64{token} * Cfg::kRanks + peer];
        };
        // +71  for token in stripe
        // +92  for token in stripe where in_rank[token, me]
        while (units.take()) {
            const int stripe = units.stripe();
            rows.open(goes,
                [&](int peer) {
                    return static_cast<ep::i32>(ep::i64{args.rank_prefix[me * Cfg::kRanks + peer]}
                        + args.stripe_prefix[peer * Cfg::kStripes + stripe]);
                },
                [&](int peer) {
                    return args.rank_prefix[Cfg::kRanks * Cfg::kRanks + peer];
            });
            rows.for_tokens(
                // +73  push rows[peer] at rank_prefix[me, peer] + stripe_prefix[peer, stripe] { x:
                //     x[token], src: token, experts: topk_idx[token], weights: topk_weights[token]
                //     }
                // W1: takes credit of rows, from Unpack +108
                // W3: publishes messages of rows, for Unpack +108
                // +93  push rows[me] at rank_prefix[me, me] + stripe_prefix[me, stripe] { x:
                //     x[token], src: token, experts: topk_idx[token], weights: topk_weights[token]
                //     }
                // W2: takes credit of rows, from Unpack +108
                // W4: publishes messages of rows, for Unpack +108
                [&](int token, int position) {
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
                    mover.row(rows.row(position), &args.x[token * args.x_stride]);
                    char* meta = mover.meta();
                    src_field.put(meta + Cfg::Token::kSrc);
                    experts_field.put(meta + Cfg::Token::kExperts);
                    weights_field.put(meta + Cfg::Token::kWeights);
                    mover.send_meta(rows.meta(position));
                },
                [&](int token, int peer, bool match, int position) {
                    // +76  record send_row[token, peer] = rows[peer].position
                    args.send_row[ep::i64{token} * Cfg::kRanks + peer] =
                        ep::recorded(match, position);
            });
            rows.close();
        }
        // +73  push rows[peer]: what is left
        // +93  push rows[me]: what is left
        rows.finish();
    }
    mover.finish();
}

/// role Unpack on all blocks, 4 warps, warps shared by (source, stripe)
__device__ __forceinline__ void unpack(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    const auto mine = ep::experts_of(args.expert_begin, me);
    ep::direct_ready<Cfg::Rows>(team, args.recv_x_at, args.rows_meta_at, args.received_capacity);
    // recv_topk_idx: fill -1 beyond received
    ep::fill<ep::i64>(team, args.recv_topk_idx, args.recv_topk_idx != nullptr ? Cfg::kTopk : 0,
        args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me], args.received_capacity, -1LL);
    // +108  for message in rows[source]
    // W1: publishes credit of rows, for Send +73
    // W2: publishes credit of rows, for Local +93
    // W3: takes messages of rows, from Send +73
    // W4: takes messages of rows, from Local +93
    const char* records = args.group.window + args.rows_meta_at;
    ep::for_messages<Cfg::Rows>(team, records, [&](const ep::DirectMessages& message) {
        const auto src_field = message.ask<ep::i32, Cfg::Token::kSrcCount>(Cfg::Token::kSrc);
        const auto experts_field =
            message.ask<ep::i32, Cfg::Token::kExpertsCount>(Cfg::Token::kExperts);
        const auto weights_field =
            message.ask<float, Cfg::Token::kWeightsCount>(Cfg::Token::kWeights);
        // +109  store recv_x[message.row] = message.x
        // The sender has stored it in place.
        // +109  record recv_src[message.row] = message.src
        src_field.store(args.recv_src, 1, 1);
        // +109  store recv_topk_idx[message.row] = local(message.experts, me)
        experts_field.store(args.recv_topk_idx, Cfg::kTopk, 1,
            [&](ep::i32 experts) { return mine.local(experts); });
        // +109  store recv_topk_weights[message.row] = message.weights * (local(message.experts,
        //     me) >= 0) as f32
        weights_field.store(args.recv_topk_weights, Cfg::kTopk, 1,
            [&](float weights, ep::i32 experts) {
                return ep::product(weights, static_cast<float>(mine.local(experts) >= 0));
            },
            experts_field);
    });
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
nvl_dispatch(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const bool is_send = block < args.remote_blocks
        && ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
    const bool is_local = block >= args.remote_blocks
        && ep::is_between(warp, Cfg::Local::kFirstWarp, Cfg::Local::kWarps);
    if (is_send || is_local) {
        const int me = args.group.rank;
        ep::Team team(
            is_send ? ep::Team(args.group, call, Cfg::Send::kRole, block, args.remote_blocks,
                warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps)
            : ep::Team(args.group, call, Cfg::Local::kRole, block - args.remote_blocks,
                blocks - args.remote_blocks,
                warp - Cfg::Local::kFirstWarp, Cfg::Local::kWarps));
        send(args, is_send ? smem.send[team.warp] : smem.local[team.warp], team,
            is_local ? ep::one_peer(me)
            : args.remote_blocks < blocks ? ep::other_peers(Cfg::kRanks, me)
                : ep::all_peers(Cfg::kRanks));
    }
    if (ep::is_between(warp, Cfg::Unpack::kFirstWarp, Cfg::Unpack::kWarps)) {
        ep::Team team(args.group, call, Cfg::Unpack::kRole, block, blocks,
            warp - Cfg::Unpack::kFirstWarp, Cfg::Unpack::kWarps);
        unpack(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace nvl_dispatch
