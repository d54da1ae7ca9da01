// decode-stripes
// ranks=8 stripes=64
// sm_90a: 256 threads and 8 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 8 warps on all blocks; by the library
//   Stripes: 4 warps on last block; by the library
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace decode_stripes {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kStripes = 64;
    static constexpr int kThreads = 256;
    static constexpr int kSharedBytes = 8;

    struct Counted {
        static constexpr int kCount = 0;
        static constexpr bool kInShared = true;
        static constexpr ep::u64 kSums = 0x0;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Stripes {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 4;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // from the handle of DecodeDispatch
    const ep::i32* send_row;
    // table in_rank: bool[tokens, ranks]
    bool* in_rank;
    // table stripe_tokens: i32[stripes, ranks]
    ep::i32* stripe_tokens;
    // table stripe_prefix: i32[ranks, stripes]
    ep::i32* stripe_prefix;
};

struct Smem {
    ep::CounterSmem<Cfg::Counted> counters;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Count on all blocks, warps shared by stripe
__device__ __forceinline__ void count(const Args& args, ep::Team& team) {
    // +8  for token in stripe
    ep::for_stripe_tokens(team, ep::rows_of(args.tokens, args.tokens_from), Cfg::kStripes,
        [&](int stripe, int token, bool present) {
            // +9  for peer in ranks
            if (present) {
                for (int peer = 0; peer < Cfg::kRanks; ++peer) {
                    // +10  record in_rank[token, peer] = send_row[token, peer] >= 0
                    args.in_rank[ep::i64{token} * Cfg::kRanks + peer] =
                        args.send_row[ep::i64{token} * Cfg::kRanks + peer] >= 0;
                }
            }
            // +12  for peer in ranks where send_row[token, peer] >= 0
            ep::for_hits(Cfg::kRanks,
                [&](int peer) {
                    return present && args.send_row[ep::i64{token} * Cfg::kRanks + peer] >= 0;
                },
                [&](int peer, ep::i32 hits) {
                    // +13  count stripe_tokens[stripe, peer]
                    ep::add_count(&args.stripe_tokens[stripe * Cfg::kRanks + peer], hits);
            });
    });
}

/// role Stripes on last block, 4 warps
__device__ __forceinline__ void stripes(const Args& args, ep::Team& team) {
    // +18  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +19  record stripe_prefix[peer, s] = prefix_sum(s in stripes: stripe_tokens[s, peer])
        ep::prefix_sum(Cfg::kStripes,
            [&](int s) {
                return args.stripe_tokens[s * Cfg::kRanks + peer];
            },
            [&](int s, ep::i32 sum) {
                args.stripe_prefix[peer * Cfg::kStripes + s] = sum;
        });
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
decode_stripes(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        // What is counted starts at zero.
        smem.counters.clear();
        ep::clear_stripes(args.stripe_tokens, Cfg::kStripes, Cfg::kRanks);
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, team);
    }
    // What all blocks have counted, stored by the last one out.
    const auto store = [&](int i, ep::i32 sum) {
    };
    // Then the roles on the last block.
    const auto last = [&] {
        if (ep::is_between(warp, Cfg::Stripes::kFirstWarp, Cfg::Stripes::kWarps)) {
            ep::Team team(args.group, call, Cfg::Stripes::kRole, 0, 1,
                warp - Cfg::Stripes::kFirstWarp, Cfg::Stripes::kWarps);
            stripes(args, team);
        }
    };
    ep::leave_counted(args.group, call, smem.counters, store, last);
}
}  // namespace decode_stripes
