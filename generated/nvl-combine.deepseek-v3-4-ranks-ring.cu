// nvl-combine  via=ring
// chunk=8 depth=64 hidden=7168 piece=3584 ranks=4 stages=3 stripes=12 topk=8
// sm_90a: 512 threads and 186624 bytes of shared memory a block, at least 2 blocks
//
// Roles:
//   Send: 16 warps on even blocks; by the library: ep::Mover, ep::RingProducer
//   Recv: 16 warps on odd blocks; by the library: ep::Gather, ep::RingGather, ep::GatherRun
//
// Window, the same on every rank:
//   ring.slots       0x00000000   44433408 bytes  12 stripes x 4 peers x 64 slots x 14464; Send writes, Recv reads
//   ring.tail        0x02a60000        192 bytes  12 stripes x 4 peers x 4; Send writes, Recv reads
//   ring.taken       0x02a60100        384 bytes  2 calls x 12 stripes x 4 peers x 4; Recv writes, Recv reads
//   ring.head        0x02a60280        192 bytes  12 stripes x 4 peers x 4; Recv writes, Send reads
//   ring.sent        0x02a60380        384 bytes  2 calls x 12 stripes x 4 peers x 4; Send writes, Send reads
// Message Part: row of 14336 bytes, meta record of 32 bytes: weights[8] at 0
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/reduce.cuh>
#include <ep/ring.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_combine {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 12;
    static constexpr int kThreads = 512;
    static constexpr int kSequences = 4;
    static constexpr int kSharedBytes = 186624;

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
        static constexpr bool kTma = true;
        static constexpr int kStages = 8;
        static constexpr int kPieceBytes = 1024;
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kSources = 4;
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
        ep::GatherSmem<Cfg::Recv> recv[Cfg::Recv::kWarps];
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
            // +26  for row in recv_first[peer, stripe]..recv_first[peer, stripe] + recv_count[peer,
            //     stripe]
            const int sent = ep::for_range(team,
                ep::span_of(args.recv_first[peer * Cfg::kStripes + stripe],
                    static_cast<ep::i32>(ep::i64{args.recv_first[peer * Cfg::kStripes + stripe]}
                        + args.recv_count[peer * Cfg::kStripes + stripe])),
                // +27  push ring[peer] { x: x[row], weights: weights[row] }
                // W1: publishes messages of ring, for Recv +31
                // W2: takes credit of ring, from Recv +31
                [&](int row, int position) {
                    ring.wait_credit(position);
                    const auto weights_field = ep::ask<float, Cfg::Part::kWeightsCount>([&](int i) {
                        return args.weights[row * args.weights_stride + i];
                    });
                    mover.row(ring.row(position), &args.x[row * args.x_stride]);
                    char* meta = mover.meta();
                    weights_field.put(meta + Cfg::Part::kWeights);
                    mover.send_meta(ring.meta(position));
                    ring.post();
            });
            // +27  push ring[peer]: what is left
            ring.finish(sent);
        }
    }
    mover.finish();
}

/// role Recv on odd blocks, warps shared by token
__device__ __forceinline__ void recv(const Args& args, Smem& smem, ep::Team& team) {
    ep::Gather<Cfg::Recv> stages(smem.recv[team.warp], team);
    ep::RingGather<Cfg::Ring, Cfg::Recv> ring(team, smem.sequences + Cfg::Recv::kFirstSequence);
    const auto position = [&](int token, int peer) {
        return args.send_head[ep::i64{token} * Cfg::kRanks + peer];
    };
    for (int stripe = team.block; stripe < Cfg::kStripes && !team.stopped; stripe += team.blocks) {
        ring.open(stripe);
        // +31  for token in stripe gather part from ring[peer] at send_head[token, peer] across
        //     peer in ranks
        // W1: takes messages of ring, from Send +27
        // W2: publishes credit of ring, for Send +27
        const ep::Span tokens(
            ep::stripe_span(ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes, stripe));
        ep::Turns turns(ep::turns_of(team, tokens));
        ep::GatherRun part(stages, ring, turns, position);
        part.run([&](int token) {
            // +32  store combined[token] = sum(part.x) + bias[token]
            part.store_row<2>(&args.combined[ep::i64{token} * Cfg::kHidden], args.bias_count,
                [&](int i) { return &args.bias[i][token * args.bias_stride]; });
            // +33  store combined_weights[token] = sum(part.weights)
            part.store_sum(&args.combined_weights[ep::i64{token} * Cfg::kTopk], Cfg::Part::kWeights,
                Cfg::Part::kWeightsCount);
        });
        // +31  for token in stripe gather part from ring[peer]: what is left
        ring.finish(tokens, position);
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
