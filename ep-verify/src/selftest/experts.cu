// Experts that change nothing: each received row is read and written again into the combine input,
// by plain accesses of a kernel of its own, between a dispatch and its combine.
#include <ep/sync.cuh>

namespace experts {

struct Args {
    ep::Group group;
    int ranks;
    int quads;                     // of a row
    const ep::Quad* x;
    ep::Quad* made;
    const ep::i32* rank_prefix;    // whose last row says how many rows each rank has
    ep::i64 x_stride;              // quads
    ep::i64 made_stride;
};

}  // namespace experts

extern "C" __global__ void experts_copy(const __grid_constant__ experts::Args args) {
    const int rows = args.rank_prefix[args.ranks * args.ranks + args.group.rank];
    for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
        const ep::Quad* from = args.x + row * args.x_stride;
        ep::Quad* to = args.made + row * args.made_stride;
        for (int i = static_cast<int>(threadIdx.x); i < args.quads; i += static_cast<int>(blockDim.x)) {
            to[i] = from[i];
        }
    }
}
