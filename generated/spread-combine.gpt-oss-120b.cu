// spread-combine
// experts=128 hidden=2880 local_experts=32 max_rows=512 max_tokens=128 ranks=4 sum_warps=8 topk=4
// sm_80: 384 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 4 warps on all blocks; by the library: ep::SpreadOut
//   Reduce: 8 warps on all blocks; by the library: ep::SpreadIn
//
// Window, the same on every rank:
//   back.slots       0x00000000    5898240 bytes  2 epochs x 512 slots x 5760; Send writes, Reduce reads
//   back.flags       0x005a0000      32768 bytes  2 epochs x 512 slots x 4 x 8; Send writes, Reduce reads
//   back.closed      0x005a8000         64 bytes  2 epochs x 4 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x005a8080         16 bytes  4 peers x 4; Reduce writes, Send reads
//   back.taken       0x005a8100         16 bytes  4 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x005a8180          4 bytes  1 word x 4; Send writes, Send reads
//   back.readers     0x005a8200          4 bytes  1 word x 4; Reduce writes, Reduce reads
// Message Part: row of 5760 bytes, meta record of 0 bytes
#include <ep/compute.cuh>
#include <ep/spread_back.cuh>
#include <ep/way_back.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace spread_combine {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 2880;
    static constexpr int kTopk = 4;
    static constexpr int kThreads = 384;

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 512;
        static constexpr int kArrivals = 1;
        static constexpr int kSourceStride = 0;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = false;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 5760;
        static constexpr int kMeta = 5760;
        static constexpr int kSlices = 4;
        static constexpr int kFewTokens = 0;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0x5a0000;
        static constexpr ep::u64 kClosed = 0x5a8000;
        static constexpr ep::u64 kReleased = 0x5a8080;
        static constexpr ep::u64 kTaken = 0x5a8100;
        static constexpr ep::u64 kClosers = 0x5a8180;
        static constexpr ep::u64 kReaders = 0x5a8200;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 4;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 4;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // from the handle of PackedDispatch
    const ep::i32* rank_prefix;
    const ep::i32* recv_src;
    const ep::i32* packed_row;
    // input x: bf16[local_experts * max_rows, hidden]
    const ep::bf16* x;
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // output combined: bf16[tokens, hidden]
    ep::bf16* combined;
};

/// role Send on all blocks, 4 warps, warps shared by source
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SpreadOut<Cfg::Back, Cfg::kTopk> back(team);
    // +25  for row in rank_prefix[source, me]..rank_prefix[source + 1, me]
    // +27  push back[source] at [recv_src[row], choice] { x: x[packed_row[row, choice]] }
    // W1: publishes messages of back, for Reduce +33
    // W2: takes credit of back, from Reduce +33
    back.run(
        [&](int source) {
            return ep::span_of(args.rank_prefix[source * Cfg::kRanks + me],
                args.rank_prefix[(source + 1) * Cfg::kRanks + me]);
        },
        [&](int row) { return args.recv_src[row]; },
        [&](int row, int choice) {
            return args.packed_row[ep::i64{row} * Cfg::kTopk + choice];
        },
        [&](int at) { return &args.x[ep::i64{at} * Cfg::kHidden]; });
}

/// role Reduce on all blocks, sum_warps warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, ep::Team& team) {
    ep::SpreadIn<Cfg::Back, Cfg::kTopk> part(team);
    // +33  for token in tokens gather part from back[owner(topk_idx[token, choice])] at [token,
    //     (choice + 1) * (topk_idx[token, choice] >= 0 && sum(earlier in 0..choice:
    //     (topk_idx[token, earlier] == topk_idx[token, choice]) as i32) == 0) as i32 - 1] across
    //     choice in topk
    // W1: takes messages of back, from Send +27
    // W2: publishes credit of back, for Send +27
    part.run(ep::rows_of(args.tokens, args.tokens_from),
        [&](int token, int choice) {
            bool holds = args.topk_idx[token * args.topk_idx_stride + choice] >= 0;
            if (holds) {
                ep::i64 sum = 0LL;
                for (int earlier = 0; earlier < choice; ++earlier) {
                    sum += ep::i64{static_cast<ep::i32>(
                        args.topk_idx[token * args.topk_idx_stride
                            + earlier] == args.topk_idx[token * args.topk_idx_stride + choice])};
                }
                holds = sum == 0;
            }
            return static_cast<ep::i32>((ep::i64{choice} + 1) * static_cast<ep::i32>(holds) - 1);
        },
        [&](int token, int choice) {
            return ep::owner<Cfg::kRanks>(args.topk_idx[token * args.topk_idx_stride + choice],
                args.expert_begin);
        },
        [&](int at) { return &args.x[ep::i64{at} * Cfg::kHidden]; },
        [&](int token, int choice) {
            float sum = 0.0f;
            for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                sum += ep::product(args.topk_weights[token * args.topk_weights_stride + entry],
                    static_cast<float>(
                        args.topk_idx[token * args.topk_idx_stride
                            + entry] == args.topk_idx[token * args.topk_idx_stride + choice]));
            }
            return sum;
        },
        [&](int token) {
            // +38  store combined[token] = sum(sum(entry in topk: topk_weights[token, entry] *
            //     (topk_idx[token, entry] == topk_idx[token, choice]) as f32) * part.x as f32) as
            //     bf16
            part.store_row(&args.combined[ep::i64{token} * Cfg::kHidden]);
    });
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
spread_combine(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group, [&] {
        ep::back_begin<Cfg::Back>(args.group);
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps)) {
        ep::Team team(args.group, call, Cfg::Send::kRole, block, blocks,
            warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
        send(args, team);
    }
    if (ep::is_between(warp, Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps)) {
        ep::Team team(args.group, call, Cfg::Reduce::kRole, block, blocks,
            warp - Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps);
        reduce(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace spread_combine
