// cast  payload=fp8
// hidden=7168
// sm_90a: 512 threads and 0 bytes of shared memory a block, at least 1 blocks
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace cast {

struct Cfg {
    static constexpr int kHidden = 7168;
    static constexpr int kThreads = 512;

    struct Rows {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
        static constexpr int kSlices = 16;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // input x: bf16[tokens, hidden]
    const ep::bf16* x;
    ep::i64 x_stride;
    // output made: payload[tokens, hidden]
    ep::e4m3* made;
    float* made_scale;
    ep::i64 made_scale_stride;
    ep::i64 made_scale_block_stride;
};

/// role Rows on all blocks, 16 warps, one block a token
__device__ __forceinline__ void rows(const Args& args, ep::Team& team) {
    // +11  for token in tokens
    const int rows = ep::rows_of(args.tokens, args.tokens_from);
    const int slices = ep::slices_of<Cfg::Rows::kSlices>(team, rows);
    for (ep::i64 unit = team.spread(); unit < ep::i64{rows} * slices && !team.stopped;
        unit += team.count()) {
        const int token = static_cast<ep::i32>(ep::row_of_slice(unit, slices));
        const int slice = ep::slice_of_row(unit, slices);
        // +12  store made[token] = cast_e4m3(x[token], 128)
        ep::cast_slice<float>(team, &args.made[ep::i64{token} * Cfg::kHidden],
            &args.made_scale[token * args.made_scale_stride], args.made_scale_block_stride,
            &args.x[token * args.x_stride], ep::slice_begin(slice, slices, Cfg::kHidden),
            ep::slice_begin(slice + 1, slices, Cfg::kHidden));
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
cast(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Rows::kFirstWarp, Cfg::Rows::kWarps)) {
        ep::Team team(args.group, call, Cfg::Rows::kRole, block, blocks,
            warp - Cfg::Rows::kFirstWarp, Cfg::Rows::kWarps);
        rows(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace cast
