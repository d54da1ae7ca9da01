// expand  payload=fp8
// experts=256 hidden=7168 local_experts=32 move_warps=8 piece=3584 ranks=8 stages=3 stripes=1024 topk=8
// sm_90a: 288 threads and 93184 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Move: 8 warps on all blocks; by the library: ep::Mover
//   Pad: 1 warp on all blocks; by the library
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/places.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace expand {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kStripes = 1024;
    static constexpr int kLocalExperts = 32;
    static constexpr int kThreads = 288;
    static constexpr int kSharedBytes = 93184;

    struct Move {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr bool kTma = true;
        static constexpr int kStages = 3;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 7168;
        static constexpr int kMetaBytes = 0;
    };

    struct Pad {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 1;
    };
};

struct Args {
    ep::Group group;
    // rows that the outputs of `expanded` hold
    int expanded_capacity;
    // from the handle of Layout
    const ep::i32* rank_prefix;
    // from the handle of ExpertLayout
    const ep::i32* rows_per_expert;
    const ep::i32* expert_first;
    const ep::i32* stripe_first;
    // input x: payload[received, hidden]
    const ep::e4m3* x;
    ep::i64 x_stride;
    const float* x_scale;
    ep::i64 x_scale_stride;
    ep::i64 x_scale_block_stride;
    // input expert_idx: i64[received, topk] in -1..local_experts
    const ep::i64* expert_idx;
    ep::i64 expert_idx_stride;
    // output expanded_x: payload[expanded, hidden]
    ep::e4m3* expanded_x;
    float* expanded_x_scale;
    ep::i64 expanded_x_scale_stride;
    ep::i64 expanded_x_scale_block_stride;
    // table expanded_src: i32[expanded]
    ep::i32* expanded_src;
};

struct Smem {
    ep::MoverSmem<Cfg::Move> move[Cfg::Move::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Move on all blocks, move_warps warps, warps shared by stripe
__device__ __forceinline__ void move(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::Mover<Cfg::Move> mover(smem.move[team.warp], team);
    ep::require_room(team, args.expert_first[Cfg::kLocalExperts], args.expanded_capacity);
    for (int stripe = team.index(); stripe < Cfg::kStripes && !team.stopped;
        stripe += team.count()) {
        // +23  for row in stripe
        const ep::Span span(
            ep::stripe_span(args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me], Cfg::kStripes,
                stripe));
        // +24  for expert in local_experts at expert_first[expert] + stripe_first[expert, stripe]
        //     where listed(expert_idx[row], expert)
        for (int base = 0; base < Cfg::kLocalExperts; base += ep::kLanes) {
            const auto places =
                ep::places_of(base + team.lane, Cfg::kLocalExperts, [&](int expert) {
                    return static_cast<ep::i32>(ep::i64{args.expert_first[expert]}
                        + args.stripe_first[ep::i64{expert} * Cfg::kStripes + stripe]);
                });
            ep::for_fanout(team, span, places,
                [&](int row, int expert) {
                    const auto expert_idx_row =
                        ep::row_of<Cfg::kTopk>(&args.expert_idx[row * args.expert_idx_stride]);
                    const auto expert_idx_ids = ep::ids_of(expert_idx_row);
                    return expert_idx_ids.has(expert);
                },
                [&](int row, int position) {
                    // +27  store expanded_x[expert.position] = x[row]
                    mover.row(ep::row_at(args.expanded_x, position, Cfg::kHidden),
                        &args.x[row * args.x_stride]);
                    ep::copy_beside(args.expanded_x_scale, args.expanded_x_scale_stride,
                        args.expanded_x_scale_block_stride, position,
                        &args.x_scale[row * args.x_scale_stride], args.x_scale_block_stride,
                        ep::ceil(Cfg::kHidden, 128));
                },
                [&](int row, int, bool match, int position) {
                    if (match) {
                        // +28  record expanded_src[expert.position] = row
                        args.expanded_src[position] = row;
                    }
            });
        }
    }
    mover.flush();
    mover.finish();
}

/// role Pad on all blocks, 1 warps
__device__ __forceinline__ void pad(const Args& args, ep::Team& team) {
    ep::require_room(team, args.expert_first[Cfg::kLocalExperts], args.expanded_capacity);
    // +33  for expert in local_experts
    for (int expert = team.index(); expert < Cfg::kLocalExperts && !team.stopped;
        expert += team.count()) {
        // +34  for place in expert_first[expert] + rows_per_expert[expert]..expert_first[expert +
        //     1]
        for (int place = static_cast<ep::i32>(ep::i64{args.expert_first[expert]}
            + args.rows_per_expert[expert]) + team.lane; place < args.expert_first[expert + 1];
            place += ep::kLanes) {
            // +35  record expanded_src[place] = -1
            args.expanded_src[place] = -1;
        }
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
expand(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Move::kFirstWarp, Cfg::Move::kWarps)) {
        ep::Team team(args.group, call, Cfg::Move::kRole, block, blocks,
            warp - Cfg::Move::kFirstWarp, Cfg::Move::kWarps);
        move(args, smem, team);
    }
    if (ep::is_between(warp, Cfg::Pad::kFirstWarp, Cfg::Pad::kWarps)) {
        ep::Team team(args.group, call, Cfg::Pad::kRole, block, blocks,
            warp - Cfg::Pad::kFirstWarp, Cfg::Pad::kWarps);
        pad(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace expand
