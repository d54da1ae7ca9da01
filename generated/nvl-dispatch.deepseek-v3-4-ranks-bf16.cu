// nvl-dispatch  payload=bf16  via=direct  mode=fresh
// experts=256 hidden=7168 piece=3584 ranks=4 send_warps=8 stages=4 stripes=64 topk=8 unit=112
// sm_90a: 384 threads and 124928 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 8 warps on all blocks; composed: ep::Mover, ep::DirectOut, ep::Flags
//   Unpack: 4 warps on all blocks; composed: ep::DirectIn
//
// Window, the same on every rank:
//   rows.ready       0x00000000        128 bytes  4 peers x 32; Unpack writes, Send reads
//   rows.closed      0x00000080       4096 bytes  64 stripes x 4 peers x 16; Send writes, Unpack reads
//   rows.stored      0x00001080       2048 bytes  64 stripes x 4 peers x 8; Send writes, Send reads
//   Send.claims      0x00001880          8 bytes  2 calls x 1 words x 4; Send writes, Send reads
//   Unpack.claims    0x00001900          8 bytes  2 calls x 1 words x 4; Unpack writes, Unpack reads
// Message Token: row of 14336 bytes, meta record of 128 bytes: src[1] at 0, experts[8] at 4, weights[8] at 36
#include <ep/compute.cuh>
#include <ep/direct.cuh>
#include <ep/mover.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_dispatch {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 64;
    static constexpr int kThreads = 384;
    static constexpr int kSharedBytes = 124928;

    struct Token {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 128;
        static constexpr int kSrc = 0;
        static constexpr int kSrcCount = 1;
        static constexpr int kExperts = 4;
        static constexpr int kExpertsCount = 8;
        static constexpr int kWeights = 36;
        static constexpr int kWeightsCount = 8;
    };

    struct Rows {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kStripes = 64;
        static constexpr int kUnitBytes = 114688;
        static constexpr int kRowStride = 14336;
        static constexpr int kMetaBytes = 128;
        static constexpr ep::u64 kReady = 0x0;
        static constexpr ep::u64 kClosed = 0x80;
        static constexpr ep::u64 kStored = 0x1080;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr bool kTma = true;
        static constexpr int kStages = 4;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 128;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1880;
    };

    struct Unpack {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 4;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1900;
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
    ep::MoverSmem<Cfg::Send> send[Cfg::Send::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Send on all blocks, send_warps warps, warps shared by token
__device__ __forceinline__ void send(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::Mover<Cfg::Send> mover(smem.send[team.warp], team);
    ep::DirectOut<Cfg::Rows> rows(team);
    const ep::StripeParts<Cfg::Rows> parts(team, 1,
        ep::ceil(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes),
        ep::all_peers(Cfg::Rows::kPeers));
    ep::Units<Cfg::Send, 0> units(team, parts.count());
    for (int unit; (unit = units.take()) >= 0;) {
        const ep::StripePart part(parts.at(unit));
        const int stripe = part.stripe;
        const ep::Span rows_2(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        const ep::Span turns(ep::span_part(rows_2, part.parts, part.part));
        if (rows.open_part(part, ep::all_peers(Cfg::Rows::kPeers))) {
            mover.fence_global();
        }
        for (int peer = team.lane; peer < Cfg::kRanks; peer += ep::kLanes) {
            rows.begin(peer,
                static_cast<ep::i32>(ep::i64{args.rank_prefix[me * Cfg::kRanks + peer]}
                    + args.stripe_prefix[peer * Cfg::kStripes + stripe]));
        }
        ep::Flags<Cfg::kRanks> flags;
        rows.behind(flags.ahead(rows_2.begin, turns.begin, turns.end, [&](int turn, int peer_2) {
            return args.in_rank[ep::i64{turn} * Cfg::kRanks + peer_2];
        }));
        // +72  for token in stripe
        for (int token = turns.begin; token < turns.end && !team.stopped; ++token) {
            // +73  for peer in ranks where in_rank[token, peer]
            for (int group = 0; group < ep::ceil(Cfg::kRanks, ep::kLanes) && !team.stopped;
                ++group) {
                const int number = static_cast<ep::i32>(ep::i64{group} * ep::kLanes + team.lane);
                const bool is_peer = number < Cfg::kRanks;
                const int peer_3 = ep::lesser(number, Cfg::kRanks - 1);
                const bool goes = flags.at(token, turns.end, peer_3, [&](int turn_2, int peer_4) {
                    return args.in_rank[ep::i64{turn_2} * Cfg::kRanks + peer_4];
                });
                const int next = rows.next(peer_3);
                // +77  record send_row[token, peer] = rows[peer].position
                if (is_peer && !goes) {
                    args.send_row[ep::i64{token} * Cfg::kRanks + peer_3] =
                        static_cast<ep::i32>(-1LL - next);
                }
                const bool sends = goes && is_peer;
                // +74  push rows[peer] at rank_prefix[me, peer] + stripe_prefix[peer, stripe] { x:
                //     x[token], src: token, experts: topk_idx[token], weights: topk_weights[token]
                //     }
                // W1: takes credit of rows, from Unpack +92
                // W2: publishes messages of rows, for Unpack +92
                const int rows_position = rows.next(peer_3);
                if (rows.reserve_each(sends, peer_3, rows_position)) {
                    char* row = rows.row(peer_3, rows_position);
                    char* meta = rows.meta(peer_3, rows_position);
                    const auto src_field =
                        ep::ask<ep::i32, Cfg::Token::kSrcCount>([&](int) { return token; });
                    const auto experts_field =
                        ep::ask<ep::i32, Cfg::Token::kExpertsCount>([&](int i_3) {
                            return static_cast<ep::i32>(
                                args.topk_idx[token * args.topk_idx_stride + i_3]);
                        });
                    const auto weights_field = ep::ask_row<float, Cfg::Token::kWeightsCount>(
                        &args.topk_weights[token * args.topk_weights_stride]);
                    mover.row(ep::at_each(sends, row), &args.x[token * args.x_stride]);
                    char* record = mover.meta();
                    src_field.put(record + Cfg::Token::kSrc);
                    experts_field.put(record + Cfg::Token::kExperts);
                    weights_field.put(record + Cfg::Token::kWeights);
                    mover.send_meta(ep::at_each(sends, meta));
                    rows.stored_each(sends, peer_3);
                }
                // +77  record send_row[token, peer] = rows[peer].position
                if (sends) {
                    args.send_row[ep::i64{token} * Cfg::kRanks + peer_3] = rows_position;
                }
            }
        }
        rows.close_part_behind(mover);
    }
    rows.finish_behind(mover);
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
    ep::DirectIn<Cfg::Rows> rows(team, args.rows_meta_at);
    const int shares = ep::shares_of(team, Cfg::kRanks * Cfg::kStripes);
    ep::Units<Cfg::Unpack, 0> units(team, Cfg::kRanks * Cfg::kStripes * shares);
    for (int unit; (unit = units.take()) >= 0;) {
        const int share = unit % shares;
        const int own_unit = unit / shares;
        const int source = own_unit % Cfg::kRanks;
        const int stripe = own_unit / Cfg::kRanks % Cfg::kStripes;
        // +92  for message in rows[source]
        // W1: publishes credit of rows, for Send +74
        // W2: takes messages of rows, from Send +74
        if (rows.arrived(source, stripe)) {
            const ep::Span own(ep::stripe_span(rows.rows(), shares, share));
            {
                // +93  store recv_x[message.row] = message.x
                // The sender has stored it in place.
                // +93  record recv_src[message.row] = message.src
                const auto recv_src_elements = ep::row_elements<ep::i32>(true, 1,
                    [&](int index, int) {
                        const int row = static_cast<ep::i32>(ep::i64{rows.first()} + index);
                        const char* meta = rows.meta(row);
                        return ep::get<ep::i32>(meta + Cfg::Token::kSrc, 0);
                    },
                    [&](int index, int, ep::i32 element) {
                        const int row = static_cast<ep::i32>(ep::i64{rows.first()} + index);
                        args.recv_src[row] = element;
                });
                // +93  store recv_topk_idx[message.row] = local(message.experts, me)
                const auto recv_topk_idx_elements = ep::row_elements<ep::i64>(
                    args.topk_idx != nullptr && args.recv_topk_idx != nullptr, Cfg::kTopk,
                    [&](int index, int i) {
                        const int row = static_cast<ep::i32>(ep::i64{rows.first()} + index);
                        const char* meta = rows.meta(row);
                        return ep::i64{mine.local(
                            ep::get<ep::i32>(meta + Cfg::Token::kExperts, i))};
                    },
                    [&](int index, int i, ep::i64 element) {
                        const int row = static_cast<ep::i32>(ep::i64{rows.first()} + index);
                        args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + i] = element;
                });
                // +93  store recv_topk_weights[message.row] = message.weights *
                //     (local(message.experts, me) >= 0) as f32
                const auto recv_topk_weights_elements = ep::row_elements<float>(
                    args.topk_idx != nullptr && args.topk_weights != nullptr
                        && args.recv_topk_weights != nullptr, Cfg::kTopk,
                    [&](int index, int i_2) {
                        const int row = static_cast<ep::i32>(ep::i64{rows.first()} + index);
                        const char* meta = rows.meta(row);
                        return ep::product(ep::get<float>(meta + Cfg::Token::kWeights, i_2),
                            static_cast<float>(
                                mine.local(
                                    ep::get<ep::i32>(meta + Cfg::Token::kExperts, i_2)) >= 0));
                    },
                    [&](int index, int i_2, float element) {
                        const int row = static_cast<ep::i32>(ep::i64{rows.first()} + index);
                        args.recv_topk_weights[ep::i64{row} * Cfg::kTopk + i_2] = element;
                });
                ep::for_row_elements(own.begin, own.end, recv_src_elements, recv_topk_idx_elements,
                    recv_topk_weights_elements);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
nvl_dispatch(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps)) {
        ep::Team team(args.group, call, Cfg::Send::kRole, block, blocks,
            warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
        send(args, smem, team);
    }
    if (ep::is_between(warp, Cfg::Unpack::kFirstWarp, Cfg::Unpack::kWarps)) {
        ep::Team team(args.group, call, Cfg::Unpack::kRole, block, blocks,
            warp - Cfg::Unpack::kFirstWarp, Cfg::Unpack::kWarps);
        unpack(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace nvl_dispatch
