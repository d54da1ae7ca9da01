// nvl-combine  via=ring
// chunk=8 depth=64 hidden=7168 piece=3584 ranks=4 stages=3 stripes=12 topk=8
// sm_90a: 512 threads and 231808 bytes of shared memory a block, at least 2 blocks
//
// Roles:
//   Send: 16 warps on even blocks, a block for each of stripes = 12; composed: ep::Mover, ep::RingsOut
//   Recv: 16 warps on odd blocks, a block for each of stripes = 12; composed: ep::PartStages, ep::RingsIn, ep::Parts
//
// Window, the same on every rank:
//   ring.slots       0x00000000   44433408 bytes  12 stripes x 4 peers x 64 slots x 14464; Send writes, Recv reads
//   ring.tail        0x02a60000        192 bytes  12 stripes x 4 peers x 4; Send writes, Recv reads
//   ring.taken       0x02a60100        384 bytes  2 calls x 12 stripes x 4 peers x 4; Recv writes, Recv reads
//   ring.head        0x02a60280        192 bytes  12 stripes x 4 peers x 4; Recv writes, Send reads
//   ring.sent        0x02a60380        384 bytes  2 calls x 12 stripes x 4 peers x 4; Send writes, Send reads
// Message Part: row of 14336 bytes, meta record of 32 bytes: weights[8] at 0
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/part_stages.cuh>
#include <ep/parts.cuh>
#include <ep/rings.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_combine {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 12;
    static constexpr int kThreads = 512;
    static constexpr int kSequences = 8;
    static constexpr int kSharedBytes = 231808;

    struct Part {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kWeights = 0;
        static constexpr int kWeightsCount = 8;
    };

    struct Ring {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kStripes = 12;
        static constexpr int kDepth = 64;
        static constexpr int kChunk = 8;
        static constexpr int kSlotBytes = 14464;
        static constexpr int kMeta = 14336;
        static constexpr int kHeaderWords = 0;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kTail = 0x2a60000;
        static constexpr ep::u64 kTaken = 0x2a60100;
        static constexpr ep::u64 kHead = 0x2a60280;
        static constexpr ep::u64 kSent = 0x2a60380;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 2;
        static constexpr bool kTma = true;
        static constexpr int kStages = 3;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
    };

    struct Recv {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kFirstSequence = 0;
        static constexpr int kSequences = 5;
        static constexpr bool kTma = true;
        static constexpr int kStages = 14;
        static constexpr int kPieceBytes = 1024;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // from the handle of Layout
    const ep::i32* rank_prefix;
    // input x: bf16[received, hidden] in window
    const ep::bf16* x;
    ep::i64 x_stride;
    ep::u64 x_at;
    // input weights: optional f32[received, topk] in window
    const float* weights;
    ep::i64 weights_stride;
    ep::u64 weights_at;
    // input bias: up to 2 bf16[tokens, hidden]
    int bias_count;
    const ep::bf16* bias[2];
    ep::i64 bias_stride;
    // output combined: bf16[tokens, hidden]
    ep::bf16* combined;
    // output combined_weights: optional f32[tokens, topk]
    float* combined_weights;
    // from the handle of NvlDispatch
    const ep::i32* send_head;
    const ep::i32* recv_first;
    const ep::i32* recv_count;
};

struct Smem {
    ep::Sequence sequences[Cfg::kSequences];
    union {
        ep::MoverSmem<Cfg::Send> send[Cfg::Send::kWarps];
        ep::PartSmem<Cfg::Recv> recv[Cfg::Recv::kWarps];
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
            // +26  for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer,
            //     stripe]
            const int row_begin = args.recv_first[peer * Cfg::kStripes + stripe];
            const int row_count = static_cast<ep::i32>(
                ep::i64{args.recv_first[peer * Cfg::kStripes + stripe]}
                    + args.recv_count[peer * Cfg::kStripes
                        + stripe] - args.recv_first[peer * Cfg::kStripes + stripe]);
            for (int turn; (turn = shares.next(row_count)) >= 0;) {
                const ep::i64 row = ep::i64{row_begin} + turn;
                ring.expect(peer, 1);
                ring.claim(shares.turn());
                // +27  push ring[peer] { x: x[row], weights: weights[row] }
                // W1: publishes messages of ring, for Recv +31
                // W2: takes credit of ring, from Recv +31
                if (!ring.has_room(peer)) {
                    ep::settle(mover, ring);
                }
                if (ring.reserve(peer)) {
                    char* slot = ring.slot(peer);
                    const auto weights_field = ep::ask_row<float, Cfg::Part::kWeightsCount>(
                        &args.weights[row * args.weights_stride]);
                    mover.fence_global();
                    mover.row(ep::at_lane_of(peer, slot), &args.x[row * args.x_stride]);
                    char* record = mover.meta();
                    weights_field.put(record + Cfg::Part::kWeights);
                    mover.send_meta(ep::at_lane_of(peer, slot + Cfg::Ring::kMeta));
                    ring.publish_after(peer, mover.rows_begun());
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

/// role Recv on odd blocks, 16 warps, warps shared by token
__device__ __forceinline__ void recv(const Args& args, Smem& smem, ep::Team& team) {
    ep::PartStages<Cfg::Recv, Cfg::kRanks> stages(smem.recv[team.warp], team);
    ep::Shares<Cfg::Recv> shares(team, smem.sequences, 1);
    ep::RingsIn<Cfg::Ring> ring(team, shares.take(Cfg::kRanks));
    for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped; stripe += team.blocks) {
        ring.open(stripe, ep::all_peers(Cfg::Ring::kPeers));
        // +31  for token in stripe gather part from ring[peer] at send_head[token, peer] across
        //     peer in ranks
        // W1: takes messages of ring, from Send +27
        // W2: publishes credit of ring, for Send +27
        ep::Parts<ep::RingsIn<Cfg::Ring>> parts(team, ring);
        const ep::Span rows(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        const int token_begin = rows.begin;
        const int token_count = rows.end - rows.begin;
        for (int turn; (turn = shares.next(token_count)) >= 0;) {
            const int token = static_cast<ep::i32>(ep::i64{token_begin} + turn);
            parts.clear();
            for (int peer = team.lane; peer < Cfg::kRanks; peer += ep::kLanes) {
                parts.expect(peer, args.send_head[ep::i64{token} * Cfg::kRanks + peer]);
            }
            if (parts.open()) {
                // +32  store combined[token] = sum(part.x) + bias[token]
                ep::for_staged_parts<ep::bf16, Cfg::kRanks, Cfg::Recv, Cfg::kThreads>(stages, parts,
                    0, Cfg::kHidden, Cfg::kHidden, [&](auto i, const auto& of_parts) {
                        ep::WideAt<float, decltype(i)> sum(0.0f);
                        of_parts.each([&](int, const auto& row) {
                            sum += ep::to_float(row);
                        });
                        ep::WideAt<float, decltype(i)> sum_2(sum);
                        for (int copy = 0; copy < args.bias_count; ++copy) {
                            sum_2 += ep::to_float(
                                ep::get_wide<ep::bf16>(&args.bias[copy][token * args.bias_stride],
                                    i, Cfg::kHidden));
                        }
                        ep::set_wide<ep::bf16>(&args.combined[ep::i64{token} * Cfg::kHidden], i,
                            Cfg::kHidden, ep::to_bf16(sum_2));
                });
                // +33  store combined_weights[token] = sum(part.weights)
                if (args.weights != nullptr && args.combined_weights != nullptr) {
                    for (int base_2 = 0; base_2 < Cfg::kTopk; base_2 += ep::kLanes * ep::kWide) {
                        const int i_2 = base_2 + team.lane * ep::kWide;
                        ep::Wide<float> sum_3(0.0f);
                        for (int peer_3 = 0; peer_3 < Cfg::kRanks; ++peer_3) {
                            const char* meta_2 = parts.meta(peer_3);
                            if (parts.has(peer_3)) {
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
        ring.close();
        shares.end();
    }
    stages.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
nvl_combine(const __grid_constant__ Args args) {
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
}  // namespace nvl_combine
