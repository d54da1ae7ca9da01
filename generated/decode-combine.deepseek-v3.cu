// decode-combine
// back_warps=4 hidden=7168 max_rows=1024 max_tokens=128 ranks=8 sum_warps=12 topk=8 words=32
// sm_90a: 512 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 4 warps on all blocks; by the library: ep::BackOut
//   Reduce: 12 warps on all blocks; by the library: ep::BackIn
//
// Window, the same on every rank:
//   back.slots       0x00000000   29622272 bytes  2 epochs x 1024 slots x 14464; Send writes, Reduce reads
//   back.flags       0x01c40000      65536 bytes  2 epochs x 1024 slots x 4 x 8; Send writes, Reduce reads
//   back.closed      0x01c50000        128 bytes  2 epochs x 8 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x01c50080         32 bytes  8 peers x 4; Reduce writes, Send reads
//   back.takes_words 0x01c50100         64 bytes  8 peers x 8; Reduce writes, Send reads
//   back.as_words    0x01c50180     921600 bytes  8 peers x 4 rows x 28800; Send writes, Reduce reads
//   back.taken       0x01d31180         32 bytes  8 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x01d31200          4 bytes  1 word x 4; Send writes, Send reads
// Message Part: row of 14336 bytes, meta record of 32 bytes: weights[8] at 0
#include <ep/slot_rows.cuh>
#include <ep/way_back.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace decode_combine {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kThreads = 512;

    struct Part {
        static constexpr int kRowBytes = 14336;
        static constexpr int kMetaBytes = 32;
        static constexpr int kWeights = 0;
        static constexpr int kWeightsCount = 8;
    };

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 8;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 1024;
        static constexpr int kArrivals = 1;
        static constexpr int kSourceStride = 128;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = false;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 14464;
        static constexpr int kMeta = 14336;
        static constexpr int kSlices = 4;
        static constexpr int kFewTokens = 4;
        static constexpr int kWordRowBytes = 28800;
        static constexpr int kFieldWords = 8;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0x1c40000;
        static constexpr ep::u64 kClosed = 0x1c50000;
        static constexpr ep::u64 kReleased = 0x1c50080;
        static constexpr ep::u64 kTakesWords = 0x1c50100;
        static constexpr ep::u64 kAsWords = 0x1c50180;
        static constexpr ep::u64 kTaken = 0x1d31180;
        static constexpr ep::u64 kClosers = 0x1d31200;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 4;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 4;
        static constexpr int kWarps = 12;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // from the handle of DecodeDispatch
    const ep::i32* rank_prefix;
    const ep::i32* recv_src;
    const ep::i32* send_row;
    // input x: bf16[received, hidden]
    const ep::bf16* x;
    ep::i64 x_stride;
    // input weights: optional f32[received, topk]
    const float* weights;
    ep::i64 weights_stride;
    // input bias: up to 2 bf16[tokens, hidden]
    int bias_count;
    const ep::bf16* bias[2];
    ep::i64 bias_stride;
    // output combined: bf16[tokens, hidden]
    ep::bf16* combined;
    // output combined_weights: optional f32[tokens, topk]
    float* combined_weights;
};

/// role Send on all blocks, back_warps warps, warps shared by source
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::BackOut<Cfg::Back> back(team);
    // +28  for row in rank_prefix[source, me]..rank_prefix[source + 1, me]
    // +29  push back[source] at recv_src[row] { x: x[row], weights: weights[row] }
    // W1: publishes messages of back, for Reduce +33
    // W2: takes credit of back, from Reduce +33
    back.run<Cfg::Part::kWeightsCount>(
        [&](int source) {
            return ep::span_of(args.rank_prefix[source * Cfg::kRanks + me],
                args.rank_prefix[(source + 1) * Cfg::kRanks + me]);
        },
        [&](int row) { return args.recv_src[row]; },
        [&](int row) { return &args.x[row * args.x_stride]; },
        [&](int row) { return &args.weights[row * args.weights_stride]; });
}

/// role Reduce on all blocks, sum_warps warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, ep::Team& team) {
    ep::BackIn<Cfg::Back> part(team);
    // +33  for token in tokens gather part from back[peer] at if send_row[token, peer] >= 0 { token
    //     } else { -1 } across peer in ranks
    // W1: takes messages of back, from Send +29
    // W2: publishes credit of back, for Send +29
    part.run(ep::rows_of(args.tokens, args.tokens_from),
        [&](int token, int peer) {
            return args.send_row[ep::i64{token} * Cfg::kRanks + peer] >= 0 ? token : -1;
        },
        [&](int row) { return &args.x[row * args.x_stride]; },
        [&](int row) { return &args.weights[row * args.weights_stride]; },
        [&](int token) {
            // +36  store combined[token] = sum(part.x) + bias[token]
            part.store_row<2>(&args.combined[ep::i64{token} * Cfg::kHidden], args.bias_count,
                [&](int i) { return &args.bias[i][token * args.bias_stride]; });
            // +37  store combined_weights[token] = sum(part.weights)
            part.store_sum(&args.combined_weights[ep::i64{token} * Cfg::kTopk], Cfg::Part::kWeights,
                Cfg::Part::kWeightsCount);
    });
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
decode_combine(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group, [&] {
        ep::slots_are_read<Cfg::Back>(args.group, ep::rows_of(args.tokens, args.tokens_from));
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
}  // namespace decode_combine
