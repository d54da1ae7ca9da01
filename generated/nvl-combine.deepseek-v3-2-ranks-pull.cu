// nvl-combine  via=pull
// gather_piece=2048 gather_stages=6 hidden=7168 ranks=2 reduce_warps=15 topk=8
// sm_90a: 512 threads and 188160 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Offer: 1 warp on blocks 0..1; composed
//   Reduce: 15 warps on all blocks; by the library: ep::Gather, ep::PullConsumer, ep::ClaimedTurns, ep::GatherRun
//
// Window, the same on every rank:
//   parts.ready      0x00000000         32 bytes  2 peers x 16; Offer writes, Reduce reads
//   parts.released   0x00000080          8 bytes  2 peers x 4; Reduce writes, Offer reads
//   parts.turns      0x00000100          8 bytes  2 words x 4; Reduce writes, Reduce reads
// Message Part: row of 14336 bytes, meta record of 32 bytes: weights[8] at 0
#include <ep/pull.cuh>
#include <ep/reduce.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_combine {

struct Cfg {
    static constexpr int kRanks = 2;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kThreads = 512;
    static constexpr int kSharedBytes = 188160;

    struct Part {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kWeights = 0;
        static constexpr int kWeightsCount = 8;
    };

    struct Parts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 2;
        static constexpr int kRowStride = 14336;
        static constexpr int kMetaStride = 128;
        static constexpr ep::u64 kReady = 0x0;
        static constexpr ep::u64 kReleased = 0x80;
        static constexpr ep::u64 kTurns = 0x100;
    };

    struct Offer {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 1;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 1;
        static constexpr int kWarps = 15;
        static constexpr bool kTma = true;
        static constexpr int kStages = 6;
        static constexpr int kPieceBytes = 2048;
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kSources = 2;
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
    const ep::i32* send_row;
};

struct Smem {
    ep::GatherSmem<Cfg::Reduce> reduce[Cfg::Reduce::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Offer on block 0, 1 warps
__device__ __forceinline__ void offer(const Args& args, ep::Team& team) {
    // +47  push parts { x: x, weights: weights }
    // W1: publishes ready of parts, for Reduce +50
    // W2: takes credit of parts, from Reduce +50
    ep::pull_offer<Cfg::Parts>(team, args.x_at, args.weights_at);
    ep::pull_wait_released<Cfg::Parts>(team);
}

/// role Reduce on all blocks, reduce_warps warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, Smem& smem, ep::Team& team) {
    ep::Gather<Cfg::Reduce> stages(smem.reduce[team.warp], team);
    ep::PullConsumer<Cfg::Parts> parts(team);
    // +50  for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in
    //     ranks
    // W1: takes ready of parts, from Offer +47
    // W2: publishes credit of parts, for Offer +47
    const auto position = [&](int token, int peer) {
        return args.send_row[ep::i64{token} * Cfg::kRanks + peer];
    };
    ep::ClaimedTurns<Cfg::Parts> turns(team, ep::rows_of(args.tokens, args.tokens_from));
    ep::GatherRun part(stages, parts, turns, position);
    part.run([&](int token) {
        // +51  store combined[token] = sum(part.x) + bias[token]
        part.store_row<2>(&args.combined[ep::i64{token} * Cfg::kHidden], args.bias_count,
            [&](int i) { return &args.bias[i][token * args.bias_stride]; });
        // +52  store combined_weights[token] = sum(part.weights)
        part.store_sum(&args.combined_weights[ep::i64{token} * Cfg::kTopk], Cfg::Part::kWeights,
            Cfg::Part::kWeightsCount);
    });
    parts.release();
    stages.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
nvl_combine(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (block == 0 && ep::is_between(warp, Cfg::Offer::kFirstWarp, Cfg::Offer::kWarps)) {
        ep::Team team(args.group, call, Cfg::Offer::kRole, 0, 1,
            warp - Cfg::Offer::kFirstWarp, Cfg::Offer::kWarps);
        offer(args, team);
    }
    if (ep::is_between(warp, Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps)) {
        ep::Team team(args.group, call, Cfg::Reduce::kRole, block, blocks,
            warp - Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps);
        reduce(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace nvl_combine
