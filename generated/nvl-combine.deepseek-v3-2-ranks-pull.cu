// nvl-combine  via=pull
// hidden=7168 ranks=2 reduce_warps=15 topk=8
// sm_90a: 512 threads and 216960 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Offer: 1 warp on blocks 0..1; composed
//   Reduce: 15 warps on all blocks; composed: ep::PartStages, ep::PullConsumer, ep::Parts, ep::PartsAhead
//
// Window, the same on every rank:
//   parts.ready      0x00000000         32 bytes  2 peers x 16; Offer writes, Reduce reads
//   parts.released   0x00000080          8 bytes  2 peers x 4; Reduce writes, Offer reads
//   parts.done       0x00000100          4 bytes  1 word x 4; Reduce writes, Reduce reads
//   Reduce.claims    0x00000180          8 bytes  2 calls x 1 words x 4; Reduce writes, Reduce reads
// Message Part: row of 14336 bytes, meta record of 32 bytes: weights[8] at 0
#include <ep/cast.cuh>
#include <ep/part_stages.cuh>
#include <ep/parts.cuh>
#include <ep/pull.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace nvl_combine {

struct Cfg {
    static constexpr int kRanks = 2;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kThreads = 512;
    static constexpr int kSharedBytes = 216960;

    struct Part {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kWeights = 0;
    };

    struct Parts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 2;
        static constexpr int kRowStride = 14336;
        static constexpr int kMetaStride = 128;
        static constexpr ep::u64 kReady = 0x0;
        static constexpr ep::u64 kReleased = 0x80;
        static constexpr ep::u64 kDone = 0x100;
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
        static constexpr int kStages = 7;
        static constexpr int kPieceBytes = 2048;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x180;
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
    ep::PartSmem<Cfg::Reduce> reduce[Cfg::Reduce::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Offer on block 0, 1 warps
__device__ __forceinline__ void offer(const Args& args, ep::Team& team) {
    // +43  push parts { x: x, weights: weights }
    // W1: publishes ready of parts, for Reduce +46
    // W2: takes credit of parts, from Reduce +46
    ep::pull_offer<Cfg::Parts>(team, args.x_at, args.weights_at);
    ep::pull_wait_released<Cfg::Parts>(team);
}

/// role Reduce on all blocks, reduce_warps warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, Smem& smem, ep::Team& team) {
    ep::PartStages<Cfg::Reduce, Cfg::kRanks> stages(smem.reduce[team.warp], team);
    ep::PullConsumer<Cfg::Parts> parts(team);
    // +46  for token in tokens gather part from parts[peer] at send_row[token, peer] across peer in
    //     ranks
    // W1: takes ready of parts, from Offer +43
    // W2: publishes credit of parts, for Offer +43
    ep::Parts<ep::PullConsumer<Cfg::Parts>> parts_2(team, parts);
    ep::Units<Cfg::Reduce, 0> units(team, ep::rows_of(args.tokens, args.tokens_from));
    ep::Parts<ep::PullConsumer<Cfg::Parts>> next_parts_2(team, parts);
    const auto expect = [&](int token) {
        next_parts_2.clear();
        for (int peer = team.lane; peer < Cfg::kRanks; peer += ep::kLanes) {
            next_parts_2.expect(peer, args.send_row[ep::i64{token} * Cfg::kRanks + peer]);
        }
        return ep::span_of(0, Cfg::kHidden * 2);
    };
    ep::PartsAhead ahead(stages, parts_2, next_parts_2, units, expect);
    for (int token; (token = ahead.take()) >= 0;) {
        if (parts_2.open()) {
            // +47  store combined[token] = sum(part.x) + bias[token]
            ep::for_staged_parts<ep::bf16, Cfg::kRanks, Cfg::Reduce, Cfg::kThreads>(ahead, parts_2,
                0, Cfg::kHidden, Cfg::kHidden, [&](auto i, const auto& of_parts) {
                    ep::WideAt<float, decltype(i)> sum(0.0f);
                    of_parts.each([&](int, const auto& row) {
                        sum += ep::to_float(row);
                    });
                    ep::WideAt<float, decltype(i)> sum_2(sum);
                    for (int copy = 0; copy < args.bias_count; ++copy) {
                        sum_2 += ep::to_float(
                            ep::get_wide<ep::bf16>(&args.bias[copy][token * args.bias_stride], i,
                                Cfg::kHidden));
                    }
                    ep::set_wide<ep::bf16>(&args.combined[ep::i64{token} * Cfg::kHidden], i,
                        Cfg::kHidden, ep::to_bf16(sum_2));
            });
            // +48  store combined_weights[token] = sum(part.weights)
            if (args.weights != nullptr && args.combined_weights != nullptr) {
                for (int base_2 = 0; base_2 < Cfg::kTopk; base_2 += ep::kLanes * ep::kWide) {
                    const int i_2 = base_2 + team.lane * ep::kWide;
                    ep::Wide<float> sum_3(0.0f);
                    for (int peer_3 = 0; peer_3 < Cfg::kRanks; ++peer_3) {
                        const char* meta_2 = parts_2.meta(peer_3);
                        if (parts_2.has(peer_3)) {
                            sum_3 += ep::get_wide<float>(meta_2 + Cfg::Part::kWeights, i_2,
                                Cfg::kTopk);
                        }
                    }
                    ep::set_wide<float>(&args.combined_weights[ep::i64{token} * Cfg::kTopk], i_2,
                        Cfg::kTopk, sum_3);
                }
            }
            parts_2.close();
        }
    }
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
