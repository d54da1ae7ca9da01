// merge
// experts=256 hidden=7168 local_experts=32 max_rows=1024 max_tokens=128 ranks=8 topk=8
// sm_90a: 512 threads and 0 bytes of shared memory a block, at least 1 blocks
#include <ep/cast.cuh>
#include <ep/places.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace merge {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kThreads = 512;

    struct Sum {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kSlices = 16;
    };
};

struct Args {
    ep::Group group;
    // rows that the outputs of `received` hold
    int received_capacity;
    // from the handle of DecodeDispatch
    const ep::i32* rank_prefix;
    // from the handle of Pack
    const ep::i32* packed_row;
    const float* packed_weight;
    // input x: bf16[local_experts * max_rows, hidden]
    const ep::bf16* x;
    // output merged: bf16[received, hidden]
    ep::bf16* merged;
};

/// role Sum on all blocks, 16 warps, one block a token
__device__ __forceinline__ void sum(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::require_room(team, args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me],
        args.received_capacity);
    // +14  for row in 0..received
    for (ep::i64 unit = team.index();
        unit < ep::i64{args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me]} * Cfg::Sum::kSlices
            && !team.stopped; unit += team.count()) {
        const int row = static_cast<ep::i32>(unit / Cfg::Sum::kSlices);
        const int slice = static_cast<ep::i32>(unit % Cfg::Sum::kSlices);
        // +15  store merged[row] = sum(at in packed_row[row]: packed_weight[at] * x[at] as f32) as
        //     bf16
        for (int i = ep::slice_begin<Cfg::Sum::kSlices>(slice, Cfg::kHidden)
            + team.lane * ep::kWide;
            i < ep::slice_begin<Cfg::Sum::kSlices>(slice + 1, Cfg::kHidden);
            i += ep::kLanes * ep::kWide) {
            ep::Wide<float> sum(0.0f);
            ep::for_some_rows<ep::bf16, Cfg::kTopk>(
                [&](int k) {
                    const ep::i64 at = ep::i64{args.packed_row[ep::i64{row} * Cfg::kTopk + k]};
                    return ep::row_if(at >= 0, &args.x[at * Cfg::kHidden]);
                },
                i, Cfg::kHidden,
                [&](int k, const ep::Wide<ep::bf16>& k_row) {
                    const ep::i64 at = ep::i64{args.packed_row[ep::i64{row} * Cfg::kTopk + k]};
                    sum += ep::product(args.packed_weight[at], ep::to_float(k_row));
            });
            ep::set_wide<ep::bf16>(&args.merged[ep::i64{row} * Cfg::kHidden], i, Cfg::kHidden,
                ep::to_bf16(sum));
        }
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
merge(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Sum::kFirstWarp, Cfg::Sum::kWarps)) {
        ep::Team team(args.group, call, Cfg::Sum::kRole, block, blocks,
            warp - Cfg::Sum::kFirstWarp, Cfg::Sum::kWarps);
        sum(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace merge
