// merge-combine  via=direct
// back_warps=8 experts=256 hidden=7168 local_experts=32 local_ranks=8 max_rows=1024 max_tokens=128 nodes=1 peers=8 ranks=8 sends=128 topk=8 words=32
// sm_90a: 384 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 8 warps on all blocks; by the library: ep::BackOut
//   Reduce: 4 warps on all blocks; by the library: ep::BackIn
//
// Window, the same on every rank:
//   back.slots       0x00000000   29360128 bytes  2 epochs x 1024 slots x 14336; Send writes, Reduce reads
//   back.flags       0x01c00000      65536 bytes  2 epochs x 1024 slots x 4 x 8; Send writes, Reduce reads
//   back.closed      0x01c10000        128 bytes  2 epochs x 8 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x01c10080         32 bytes  8 peers x 4; Reduce writes, Send reads
//   back.takes_words 0x01c10100         64 bytes  8 peers x 8; Reduce writes, Send reads
//   back.as_words    0x01c10180     917504 bytes  8 peers x 4 rows x 28672; Send writes, Reduce reads
//   back.taken       0x01cf0180         32 bytes  8 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x01cf0200          4 bytes  1 word x 4; Send writes, Send reads
// Message Part: row of 14336 bytes, meta record of 0 bytes
#include <ep/slot_rows.cuh>
#include <ep/way_back.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace merge_combine {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kThreads = 384;

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
        static constexpr int kSlotBytes = 14336;
        static constexpr int kMeta = 14336;
        static constexpr int kSlices = 4;
        static constexpr int kFewTokens = 4;
        static constexpr int kWordRowBytes = 28672;
        static constexpr int kFieldWords = 0;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0x1c00000;
        static constexpr ep::u64 kClosed = 0x1c10000;
        static constexpr ep::u64 kReleased = 0x1c10080;
        static constexpr ep::u64 kTakesWords = 0x1c10100;
        static constexpr ep::u64 kAsWords = 0x1c10180;
        static constexpr ep::u64 kTaken = 0x1cf0180;
        static constexpr ep::u64 kClosers = 0x1cf0200;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 4;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // input x: bf16[local_experts * max_rows, hidden]
    const ep::bf16* x;
    // output combined: bf16[tokens, hidden]
    ep::bf16* combined;
    // from the handle of PackedDispatch
    const ep::i32* rank_prefix;
    const ep::i32* recv_src;
    const ep::i32* send_row;
    const ep::i32* packed_row;
    const float* packed_weight;
};

/// role Send on all blocks, back_warps warps, warps shared by source
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::BackOut<Cfg::Back> back(team);
    // +30  for row in rank_prefix[source, me]..rank_prefix[source + 1, me]
    // +31  push back[source] at recv_src[row] { x: sum(at in packed_row[row]: packed_weight[at] *
    //     x[at] as f32) as bf16 }
    // W1: publishes messages of back, for Reduce +37
    // W2: takes credit of back, from Reduce +37
    back.run_sums<Cfg::kTopk>(
        [&](int source) {
            return ep::span_of(args.rank_prefix[source * Cfg::kRanks + me],
                args.rank_prefix[(source + 1) * Cfg::kRanks + me]);
        },
        [&](int row) { return args.recv_src[row]; },
        [&](int row, int k) {
            return ep::i64{args.packed_row[ep::i64{row} * Cfg::kTopk + k]};
        },
        [&](ep::i64 at) { return &args.x[at * Cfg::kHidden]; },
        [&](ep::i64 at) { return args.packed_weight[at]; });
}

/// role Reduce on all blocks, 4 warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, ep::Team& team) {
    ep::BackIn<Cfg::Back> part(team);
    // +37  for token in tokens gather part from back[peer] at if send_row[token, peer] >= 0 { token
    //     } else { -1 } across peer in ranks
    // W1: takes messages of back, from Send +31
    // W2: publishes credit of back, for Send +31
    part.run(ep::rows_of(args.tokens, args.tokens_from),
        [&](int token, int peer) {
            return args.send_row[ep::i64{token} * Cfg::kRanks + peer] >= 0 ? token : -1;
        },
        [&](int token) {
            // +40  store combined[token] = sum(part.x)
            part.store_row(&args.combined[ep::i64{token} * Cfg::kHidden]);
    });
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
merge_combine(const __grid_constant__ Args args) {
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
}  // namespace merge_combine
