// pack  payload=fp8
// experts=256 hidden=7168 local_experts=32 max_rows=1024 max_tokens=128 move_warps=16 ranks=8 topk=8
// sm_90a: 640 threads and 1316 bytes of shared memory a block, at least 1 blocks
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/listed.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace pack {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kLocalExperts = 32;
    static constexpr int kMaxRows = 1024;
    static constexpr int kThreads = 640;
    static constexpr int kSharedBytes = 1316;

    struct Move {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 16;
    };

    struct Count {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 16;
        static constexpr int kWarps = 4;
    };
};

struct Args {
    ep::Group group;
    // from the handle of DecodeDispatch
    const ep::i32* rank_prefix;
    const ep::i32* recv_src;
    // input x: payload[received, hidden]
    const ep::e4m3* x;
    ep::i64 x_stride;
    const float* x_scale;
    ep::i64 x_scale_stride;
    ep::i64 x_scale_block_stride;
    // input recv_topk_idx: i64[max_rows, topk] in -1..local_experts
    const ep::i64* recv_topk_idx;
    // input recv_topk_weights: optional f32[max_rows, topk]
    const float* recv_topk_weights;
    // output packed_x: payload[local_experts, max_rows, hidden]
    ep::e4m3* packed_x;
    float* packed_x_scale;
    ep::i64 packed_x_scale_stride;
    ep::i64 packed_x_scale_block_stride;
    // output packed_count: i32[local_experts]
    ep::i32* packed_count;
    // inout statistics: optional i32[local_experts]
    ep::i32* statistics;
    // table src_info: i32[local_experts, max_rows]
    ep::i32* src_info;
    // table range_first: i32[local_experts, ranks]
    ep::i32* range_first;
    // table range_count: i32[local_experts, ranks]
    ep::i32* range_count;
    // table packed_row: i32[received, topk]
    ep::i32* packed_row;
    // table packed_weight: f32[local_experts * max_rows]
    float* packed_weight;
};

struct Smem {
    ep::ListedSmem<Cfg::kLocalExperts, Cfg::kRanks> listed;
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Move on all blocks, move_warps warps, one block a token
__device__ __forceinline__ void move(const Args& args, Smem& smem, ep::Team& team) {
    // +30  for row in 0..received
    // +31  for choice in topk
    ep::for_listed<Cfg::kTopk>(team, smem.listed,
        // +32  let expert = recv_topk_idx[row, choice]
        [&](int row, int choice) {
            return args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + choice];
        },
        [&](int row, int choice, int expert, int place, bool used, int slice, int slices,
            bool once) {
            // +33  let there = (expert >= 0) as i32
            const int there = static_cast<ep::i32>(expert >= 0);
            // +36  let again = sum(earlier in topk: (earlier < choice && recv_topk_idx[row,
            //     earlier] == expert) as i32)
            ep::i64 sum = 0LL;
            for (int earlier = 0; earlier < Cfg::kTopk; ++earlier) {
                sum += ep::i64{static_cast<ep::i32>(earlier < choice
                    && args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + earlier] == expert)};
            }
            const ep::i64 again = sum;
            // +38  let has = (expert >= 0 && again == 0) as i32
            const int has = static_cast<ep::i32>(expert >= 0 && again == 0);
            // +40  for once in 0..1 where expert >= 0 && again == 0
            const bool match = used && (expert >= 0 && again == 0);
            // +44  store packed_x[expert, place] = x[row]
            ep::copy_slice(match,
                &args.packed_x[(ep::i64{expert} * Cfg::kMaxRows + place) * Cfg::kHidden],
                &args.x[row * args.x_stride], Cfg::kHidden, slice, slices);
            if (once) {
                ep::copy_matched(match,
                    &args.packed_x_scale[(ep::i64{expert} * Cfg::kMaxRows
                        + place) * args.packed_x_scale_stride], args.packed_x_scale_block_stride,
                    &args.x_scale[row * args.x_scale_stride], args.x_scale_block_stride,
                    ep::ceil(Cfg::kHidden, 128));
                if (used) {
                    // +39  record packed_row[row, choice] = (expert * max_rows + place + 1) * has -
                    //     1
                    args.packed_row[ep::i64{row} * Cfg::kTopk + choice] = static_cast<ep::i32>(
                        (ep::i64{expert} * Cfg::kMaxRows + place + 1) * has - 1);
                }
                if (match) {
                    // +41  record src_info[expert, place] = recv_src[row]
                    args.src_info[ep::i64{expert} * Cfg::kMaxRows + place] = args.recv_src[row];
                    // +42  record packed_weight[expert * max_rows + place] = sum(entry in topk:
                    //     recv_topk_weights[row, entry] * (recv_topk_idx[row, entry] == expert) as
                    //     f32)
                    if (args.recv_topk_weights != nullptr) {
                        float sum_2 = 0.0f;
                        for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                            sum_2 += ep::product(
                                args.recv_topk_weights[ep::i64{row} * Cfg::kTopk + entry],
                                static_cast<float>(
                                    args.recv_topk_idx[ep::i64{row} * Cfg::kTopk
                                        + entry] == expert));
                        }
                        args.packed_weight[ep::i64{expert} * Cfg::kMaxRows + place] = sum_2;
                    }
                }
            }
    });
}

/// role Count on all blocks, 4 warps, warps shared by (local_expert, source)
__device__ __forceinline__ void count(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    ep::for_listed_counts(team, smem.listed,
        [&](int local_expert, int source, int first, int count) {
            // +53  record range_first[local_expert, source] = first
            args.range_first[ep::i64{local_expert} * Cfg::kRanks + source] = first;
            // +54  record range_count[local_expert, source] = count
            args.range_count[ep::i64{local_expert} * Cfg::kRanks + source] = count;
            // +55  add statistics[local_expert] = count
            if (args.statistics != nullptr) {
                ep::add_count(&args.statistics[local_expert], count);
            }
            // +56  for once in 0..1 where source == ranks - 1
            for (int once = 0; once < 1; ++once) {
                if (!(source == Cfg::kRanks - 1)) continue;
                // +57  store packed_count[local_expert] = first + count
                args.packed_count[local_expert] = static_cast<ep::i32>(ep::i64{first} + count);
            }
    });
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
pack(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        const int me = args.group.rank;
        // +34  let place = sum(earlier in 0..row: listed(recv_topk_idx[earlier], expert) as i32) *
        //     there
        // +50  let first = sum(row in 0..rank_prefix[source, me]: listed(recv_topk_idx[row],
        //     local_expert) as i32)
        // +51  let count = sum(row in rank_prefix[source, me]..rank_prefix[source + 1, me]:
        //     listed(recv_topk_idx[row], local_expert) as i32)
        ep::count_listed<Cfg::kTopk, Cfg::kMaxRows>(smem.listed,
            [&](int source) {
                return args.rank_prefix[source * Cfg::kRanks + me];
            },
            // +32  let expert = recv_topk_idx[row, choice]
            [&](int row, int choice) {
                return args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + choice];
        });
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Move::kFirstWarp, Cfg::Move::kWarps)) {
        ep::Team team(args.group, call, Cfg::Move::kRole, block, blocks,
            warp - Cfg::Move::kFirstWarp, Cfg::Move::kWarps);
        move(args, smem, team);
    }
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace pack
