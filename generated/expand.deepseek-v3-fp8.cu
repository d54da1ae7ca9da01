// expand  payload=fp8
// experts=256 hidden=7168 local_experts=32 move_warps=8 piece=3584 ranks=8 stages=3 stripes=1024 topk=8
// sm_90a: 512 threads and 93440 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; composed
//   Prefix: 16 warps on last block; composed
//   Move: 8 warps on all blocks; composed: ep::Mover, ep::PlaceCounters, ep::RowPlaces, ep::Chosen
//   Pad: 1 warp on all blocks; composed
//
// Window, the same on every rank:
//   counted.sums     0x00000000        128 bytes  (32 rows_per_expert) x 4; Count writes, Count reads
//   Move.claims      0x00000080          8 bytes  2 calls x 1 words x 4; Move writes, Move reads
#include <ep/compute.cuh>
#include <ep/count.cuh>
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
    static constexpr int kThreads = 512;
    static constexpr int kSharedBytes = 93440;

    struct Counted {
        static constexpr int kCount = 32;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x0;
        static constexpr int kRowsPerExpert = 0;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Prefix {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
    };

    struct Move {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr bool kTma = true;
        static constexpr int kStages = 3;
        static constexpr int kPieceBytes = 3584;
        static constexpr int kRowBytes = 7168;
        static constexpr int kMetaBytes = 0;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x80;
    };

    struct Pad {
        static constexpr int kRole = 3;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 1;
    };
};

struct Args {
    ep::Group group;
    // rows that the outputs of `expanded` hold
    int expanded_capacity;
    // run-time args
    ep::i32 alignment;
    // from the handle of Layout
    const ep::i32* rank_prefix;
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
    // output expanded_src: i32[expanded]
    ep::i32* expanded_src;
    // table rows_per_expert: i32[local_experts]
    ep::i32* rows_per_expert;
    // table stripe_rows: i32[stripes, local_experts]
    ep::i32* stripe_rows;
    // table expert_first: i32[local_experts + 1]
    ep::i32* expert_first;
    // table stripe_first: i32[local_experts, stripes]
    ep::i32* stripe_first;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
    ep::MoverSmem<Cfg::Move> move[Cfg::Move::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, 8 warps, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::Counters<Cfg::Counted> counters(args.group, smem.counters);
    const ep::StripeSlices slices(team, args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me],
        Cfg::kStripes);
    // +22  for row in stripe
    for (int slice = team.warp; slice < slices.count && !team.stopped; slice += team.warps) {
        const int stripe = slices.stripe(slice);
        const ep::Span rows(slices.span(slice));
        for (int first = rows.begin; first < rows.end; first += ep::kLanes) {
            const int turn = first + team.lane;
            const bool present = turn < rows.end;
            const int row = present ? turn : rows.end - 1;
            const auto expert_idx_row =
                ep::row_of<Cfg::kTopk>(&args.expert_idx[row * args.expert_idx_stride]);
            const auto expert_idx_ids = ep::ids_of(expert_idx_row);
            // +23  for expert in local_experts where listed(expert_idx[row], expert)
            ep::for_hits(Cfg::kLocalExperts,
                [&](int expert) { return present && expert_idx_ids.has(expert); },
                [&](int expert, ep::i32 hits) {
                    // +24  count rows_per_expert[expert]
                    counters.add(Cfg::Counted::kRowsPerExpert + expert, hits);
                    // +25  count stripe_rows[stripe, expert]
                    ep::add_count(&args.stripe_rows[ep::i64{stripe} * Cfg::kLocalExperts + expert],
                        hits);
            });
        }
    }
}

/// role Prefix on last block, 16 warps
__device__ __forceinline__ void prefix(const Args& args, ep::Team& team) {
    if (team.index() == team.count() - 1) {
        // +30  record expert_first[expert] = prefix_sum(expert in local_experts:
        //     align(rows_per_expert[expert], alignment))
        ep::prefix_sum_and_total(Cfg::kLocalExperts,
            [&](int expert) {
                return static_cast<ep::i32>(
                    ep::align(ep::i64{args.rows_per_expert[expert]}, ep::i64{args.alignment}));
            },
            [&](int expert, ep::i32 sum) {
                args.expert_first[expert] = sum;
        });
    }
    // +31  for expert in local_experts
    for (int expert_2 = team.index(); expert_2 < Cfg::kLocalExperts && !team.stopped;
        expert_2 += team.count()) {
        // +32  record stripe_first[expert, s] = prefix_sum(s in stripes: stripe_rows[s, expert])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s) {
                return args.stripe_rows[ep::i64{s} * Cfg::kLocalExperts + expert_2];
            },
            [&](int s, ep::i32 sum_2) {
                args.stripe_first[ep::i64{expert_2} * Cfg::kStripes + s] = sum_2;
        });
    }
}

/// role Move on all blocks, move_warps warps, warps shared by stripe
__device__ __forceinline__ void move(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::Mover<Cfg::Move> mover(smem.move[team.warp], team);
    ep::require_room(team, args.expert_first[Cfg::kLocalExperts], args.expanded_capacity);
    ep::Units<Cfg::Move, 0> units(team, Cfg::kStripes);
    for (int stripe; (stripe = units.take()) >= 0;) {
        // +38  for row in stripe
        ep::PlaceCounters<Cfg::kLocalExperts> expert_places;
        for (int expert = team.lane; expert < Cfg::kLocalExperts; expert += ep::kLanes) {
            expert_places.begin(expert,
                ep::i64{args.expert_first[expert]}
                    + args.stripe_first[ep::i64{expert} * Cfg::kStripes + stripe]);
        }
        const ep::Span rows(
            ep::stripe_span(args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me], Cfg::kStripes,
                stripe));
        for (int row = rows.begin; row < rows.end && !team.stopped; ++row) {
            // +39  for expert in local_experts at expert_first[expert] + stripe_first[expert,
            //     stripe] where listed(expert_idx[row], expert)
            const auto expert_idx_ids =
                ep::ids_of(ep::row_of<Cfg::kTopk>(&args.expert_idx[row * args.expert_idx_stride]));
            ep::RowPlaces row_places;
            ep::Chosen chosen(Cfg::kLocalExperts);
            for (int expert_2;
                (expert_2 = chosen.take(team,
                    [&](int turn) { return expert_idx_ids.has(turn); })) >= 0;) {
                const ep::i64 expert_position = expert_places.take(expert_2);
                // +42  store expanded_x[expert.position] = x[row]
                row_places.add(mover, &args.expanded_x[expert_position * Cfg::kHidden],
                    &args.x[row * args.x_stride]);
                for (int i_2 = team.lane; i_2 < ep::ceil(Cfg::kHidden, 128); i_2 += ep::kLanes) {
                    args.expanded_x_scale[expert_position * args.expanded_x_scale_stride
                        + i_2 * args.expanded_x_scale_block_stride] =
                        args.x_scale[row * args.x_scale_stride + i_2 * args.x_scale_block_stride];
                }
                // +43  store expanded_src[expert.position] = row
                if (team.leader()) {
                    args.expanded_src[expert_position] = row;
                }
            }
            row_places.move(mover, &args.x[row * args.x_stride]);
        }
    }
    mover.flush();
    mover.finish();
}

/// role Pad on all blocks, 1 warps
__device__ __forceinline__ void pad(const Args& args, ep::Team& team) {
    ep::require_room(team, args.expert_first[Cfg::kLocalExperts], args.expanded_capacity);
    // +48  for expert in local_experts
    for (int expert = team.index() * ep::kLanes + team.lane;
        expert < Cfg::kLocalExperts && !team.stopped; expert += team.count() * ep::kLanes) {
        // +49  for place in expert_first[expert] + rows_per_expert[expert]..expert_first[expert +
        //     1]
        const int place_end = args.expert_first[expert + 1];
        for (ep::i64 place = ep::i64{args.expert_first[expert]} + args.rows_per_expert[expert];
            place < place_end; ++place) {
            // +50  store expanded_src[place] = -1
            args.expanded_src[place] = -1;
        }
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
expand_count(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    ep::Call call = ep::enter(args.group, [&] {
        // Counters start at zero.
        smem.counters.clear();
        ep::clear_stripes(args.stripe_rows, Cfg::kStripes, Cfg::kLocalExperts);
    });

    // The call goes on in the next phase.
    call.ends = false;

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, smem, team);
    }
    // The last block to leave stores what all blocks have counted.
    const auto store = [&](int i, ep::i32 sum) {
        if (ep::is_between(i, Cfg::Counted::kRowsPerExpert, Cfg::kLocalExperts)) {
            args.rows_per_expert[i - Cfg::Counted::kRowsPerExpert] = sum;
        }
    };
    // Then the roles on the last block.
    const auto last = [&] {
        if (ep::is_between(warp, Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps)) {
            ep::Team team(args.group, call, Cfg::Prefix::kRole, 0, 1,
                warp - Cfg::Prefix::kFirstWarp, Cfg::Prefix::kWarps);
            prefix(args, team);
        }
    };
    ep::leave_counted(args.group, call, smem.counters, store, last);
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
expand_copy(const __grid_constant__ Args args) {
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
