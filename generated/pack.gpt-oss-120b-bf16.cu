// pack  payload=bf16
// experts=128 hidden=2880 local_experts=32 max_rows=512 max_tokens=128 ranks=4 topk=4
// sm_80: 640 threads and 0 bytes of shared memory a block, at least 1 blocks
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace pack {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 2880;
    static constexpr int kTopk = 4;
    static constexpr int kLocalExperts = 32;
    static constexpr int kMaxRows = 512;
    static constexpr int kThreads = 640;

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
    const ep::bf16* x;
    ep::i64 x_stride;
    // input recv_topk_idx: i64[max_rows, topk] in -1..local_experts
    const ep::i64* recv_topk_idx;
    // input recv_topk_weights: optional f32[max_rows, topk]
    const float* recv_topk_weights;
    // output packed_x: payload[local_experts, max_rows, hidden]
    ep::bf16* packed_x;
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

/// role Move on all blocks, 16 warps, one block a token
__device__ __forceinline__ void move(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    // +29  for row in 0..received
    const ep::i64 unit_end = ep::i64{args.rank_prefix[Cfg::kRanks * Cfg::kRanks + me]} * Cfg::kTopk;
    for (ep::i64 unit = team.spread(); unit < unit_end && !team.stopped; unit += team.count()) {
        const int row = static_cast<ep::i32>(unit / Cfg::kTopk);
        const int choice = static_cast<ep::i32>(unit % Cfg::kTopk);
        // +30  for choice in topk
        // +31  let expert = recv_topk_idx[row, choice]
        const ep::i64 expert = args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + choice];
        // +32  let src = recv_src[row]
        const int src = args.recv_src[row];
        // +34  let again = sum(earlier in 0..choice: (recv_topk_idx[row, earlier] == expert) as
        //     i32)
        ep::i64 own = 0LL;
        for (int earlier = team.lane; earlier < choice; earlier += ep::kLanes) {
            own += ep::i64{static_cast<ep::i32>(
                args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + earlier] == expert)};
        }
        const ep::i64 sum = ep::sum_of_lanes(own);
        const ep::i64 again = sum;
        // +35  let has = (expert >= 0 && again == 0) as i32
        const int has = static_cast<ep::i32>(expert >= 0 && again == 0);
        // +37  let before = row * has
        const ep::i64 before = ep::i64{row} * has;
        // +38  let place = sum(earlier in 0..before: listed(recv_topk_idx[earlier], expert) as i32)
        const ep::i64 sum_2 = ep::rows_with<Cfg::kTopk>(0LL, before, [&](ep::i64 earlier_2, int k) {
            return args.recv_topk_idx[earlier_2 * Cfg::kTopk + k] == expert;
        });
        const ep::i64 place = sum_2;
        // +39  record packed_row[row, choice] = (expert * max_rows + place + 1) * has - 1
        if (team.leader()) {
            args.packed_row[ep::i64{row} * Cfg::kTopk + choice] =
                static_cast<ep::i32>((expert * Cfg::kMaxRows + place + 1) * has - 1);
        }
        // +40  for once in 0..has
        for (int once = 0; once < has && !team.stopped; ++once) {
            // +41  record src_info[expert, place] = src
            if (team.leader()) {
                args.src_info[expert * Cfg::kMaxRows + place] = src;
            }
            // +42  record packed_weight[expert * max_rows + place] = sum(entry in topk:
            //     recv_topk_weights[row, entry] * (recv_topk_idx[row, entry] == expert) as f32)
            if (args.recv_topk_weights != nullptr) {
                float sum_3 = 0.0f;
                for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                    sum_3 += ep::product(args.recv_topk_weights[ep::i64{row} * Cfg::kTopk + entry],
                        static_cast<float>(
                            args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + entry] == expert));
                }
                if (team.leader()) {
                    args.packed_weight[expert * Cfg::kMaxRows + place] = sum_3;
                }
            }
            // +44  store packed_x[expert, place] = x[row]
            ep::copy_row<ep::bf16>(team,
                &args.packed_x[(expert * Cfg::kMaxRows + place) * Cfg::kHidden],
                &args.x[row * args.x_stride], Cfg::kHidden);
        }
    }
}

/// role Count on all blocks, 4 warps, warps shared by (local_expert, source)
__device__ __forceinline__ void count(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    for (ep::i64 unit = team.index();
        unit < ep::i64{Cfg::kLocalExperts} * Cfg::kRanks && !team.stopped; unit += team.count()) {
        const int local_expert = static_cast<ep::i32>(unit % Cfg::kLocalExperts);
        const int source = static_cast<ep::i32>(unit / Cfg::kLocalExperts % Cfg::kRanks);
        // +50  let first = sum(row in 0..rank_prefix[source, me]: listed(recv_topk_idx[row],
        //     local_expert) as i32)
        const ep::i64 sum =
            ep::rows_with<Cfg::kTopk>(0LL, ep::i64{args.rank_prefix[source * Cfg::kRanks + me]},
            [&](ep::i64 row, int k) {
                return args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + k] == local_expert;
        });
        const ep::i64 first = sum;
        // +51  let count = sum(row in rank_prefix[source, me]..rank_prefix[source + 1, me]:
        //     listed(recv_topk_idx[row], local_expert) as i32)
        const ep::i64 sum_2 = ep::rows_with<Cfg::kTopk>(
            ep::i64{args.rank_prefix[source * Cfg::kRanks + me]},
            ep::i64{args.rank_prefix[(source + 1) * Cfg::kRanks + me]},
            [&](ep::i64 row_2, int k_2) {
                return args.recv_topk_idx[row_2 * Cfg::kTopk + k_2] == local_expert;
        });
        const ep::i64 count = sum_2;
        // +52  record range_first[local_expert, source] = first
        if (team.leader()) {
            args.range_first[ep::i64{local_expert} * Cfg::kRanks + source] =
                static_cast<ep::i32>(first);
        }
        // +53  record range_count[local_expert, source] = count
        if (team.leader()) {
            args.range_count[ep::i64{local_expert} * Cfg::kRanks + source] =
                static_cast<ep::i32>(count);
        }
        // +54  add statistics[local_expert] = count
        if (args.statistics != nullptr) {
            if (team.leader()) {
                ep::add_count(&args.statistics[local_expert], static_cast<ep::i32>(count));
            }
        }
        // +55  for once in 0..1 where source == ranks - 1
        for (int once = team.lane; once < 1; once += ep::kLanes) {
            if (!(source == Cfg::kRanks - 1)) continue;
            // +56  store packed_count[local_expert] = first + count
            args.packed_count[local_expert] = static_cast<ep::i32>(first + count);
        }
    }
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
pack(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Move::kFirstWarp, Cfg::Move::kWarps)) {
        ep::Team team(args.group, call, Cfg::Move::kRole, block, blocks,
            warp - Cfg::Move::kFirstWarp, Cfg::Move::kWarps);
        move(args, team);
    }
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace pack
