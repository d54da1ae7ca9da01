// weigh
// experts=256 local_experts=32 max_rows=1024 max_tokens=128 ranks=8 shares=32 topk=8
// sm_90a: 256 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Window, the same on every rank:
//   told.slots       0x00000000     262144 bytes  2 epochs x 8 x 128 slots x 128; Send writes, Take reads
//   told.closed      0x00040000        128 bytes  2 epochs x 8 peers x 1 x 8; Send writes, Take reads
//   told.released    0x00040080         32 bytes  8 peers x 4; Take writes, Send reads
//   told.taken       0x00040100         32 bytes  8 peers x 1 x 4; Send writes, Send reads
//   told.closers     0x00040180          4 bytes  1 word x 4; Send writes, Send reads
//   told.readers     0x00040200          4 bytes  1 word x 4; Take writes, Take reads
//   Send.claims      0x00040280          8 bytes  2 calls x 1 words x 4; Send writes, Send reads
//   Take.claims      0x00040300          8 bytes  2 calls x 1 words x 4; Take writes, Take reads
// Message Weights: meta record of 48 bytes: place[1] at 0, weights[8] at 4
#include <ep/compute.cuh>
#include <ep/slot_rows.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace weigh {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kTopk = 8;
    static constexpr int kShares = 32;
    static constexpr int kThreads = 256;

    struct Weights {
        static constexpr int kMetaBytes = 48;
        static constexpr int kPlace = 0;
        static constexpr int kPlaceCount = 1;
        static constexpr int kWeights = 4;
        static constexpr int kWeightsCount = 8;
    };

    struct Told {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 8;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 8;
        static constexpr int kArrivals = 128;
        static constexpr int kSourceStride = 1;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = true;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 128;
        static constexpr int kMeta = 0;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kClosed = 0x40000;
        static constexpr ep::u64 kReleased = 0x40080;
        static constexpr ep::u64 kTaken = 0x40100;
        static constexpr ep::u64 kClosers = 0x40180;
        static constexpr ep::u64 kReaders = 0x40200;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 4;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x40280;
    };

    struct Take {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 4;
        static constexpr int kWarps = 4;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x40300;
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
    const ep::i32* send_row;
    // from the handle of Pack
    const ep::i32* packed_row;
    // input topk_weights: f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // output weight: f32[local_experts * max_rows]
    float* weight;
};

/// role Send on all blocks, 4 warps, one block a token
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Told> told(team);
    // +21  for token in tokens
    ep::Units<Cfg::Send, 0> units(team, ep::rows_of(args.tokens, args.tokens_from) * Cfg::kRanks);
    for (int unit; (unit = units.take()) >= 0;) {
        const int token = unit / Cfg::kRanks;
        const int peer = unit % Cfg::kRanks;
        // +22  for peer in ranks where send_row[token, peer] >= 0
        if (!(args.send_row[token * Cfg::kRanks + peer] >= 0)) continue;
        // +23  push told[peer] { place: send_row[token, peer], weights: topk_weights[token] }
        // W2: takes credit of told, from Take +29
        if (told.reserve(peer, me)) {
            char* slot = told.slot();
            for (int i = team.lane; i < Cfg::Weights::kPlaceCount; i += ep::kLanes) {
                ep::set<ep::i32>(slot + Cfg::Told::kMeta + Cfg::Weights::kPlace, i,
                    args.send_row[token * Cfg::kRanks + peer]);
            }
            ep::copy_row<float>(team, slot + Cfg::Told::kMeta + Cfg::Weights::kWeights,
                &args.topk_weights[token * args.topk_weights_stride], Cfg::Weights::kWeightsCount);
            told.publish();
        }
    }
    // +26  close told
    // W1: publishes messages of told, for Take +29
    told.close(team.count());
}

/// role Take on all blocks, 4 warps, warps shared by (source, share)
__device__ __forceinline__ void take(const Args& args, ep::Team& team) {
    ep::SlotRowsIn<Cfg::Told> told(team);
    ep::Units<Cfg::Take, 0> units(team, Cfg::kRanks * Cfg::kShares);
    for (int unit; (unit = units.take()) >= 0;) {
        const int source = unit % Cfg::kRanks;
        const int share = unit / Cfg::kRanks % Cfg::kShares;
        // +29  for message in told[source] where message.index % shares == share
        // W1: takes messages of told, from Send +26
        // W2: publishes credit of told, for Send +23
        const int count = told.count(source);
        for (int index = 0; index < count && !team.stopped; ++index) {
            const int row = index;
            const char* slot = told.slot(source, index);
            const bool takes = index % Cfg::kShares == share;
            if (takes) {
                // +30  for choice in topk
                for (int choice = team.lane; choice < Cfg::kTopk; choice += ep::kLanes) {
                    // +31  let at = packed_row[message.place, choice]
                    const int at =
                        args.packed_row[ep::i64{ep::get<ep::i32>(slot + Cfg::Told::kMeta
                            + Cfg::Weights::kPlace, 0)} * Cfg::kTopk + choice];
                    // +32  for once in 0..1 where at >= 0
                    for (int once = 0; once < 1; ++once) {
                        if (!(at >= 0)) continue;
                        // +33  store weight[at] = message.weights[choice]
                        args.weight[at] = ep::get<float>(slot + Cfg::Told::kMeta
                            + Cfg::Weights::kWeights, choice);
                    }
                }
            }
        }
    }
    told.release();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
weigh(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps)) {
        ep::Team team(args.group, call, Cfg::Send::kRole, block, blocks,
            warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
        send(args, team);
    }
    if (ep::is_between(warp, Cfg::Take::kFirstWarp, Cfg::Take::kWarps)) {
        ep::Team team(args.group, call, Cfg::Take::kRole, block, blocks,
            warp - Cfg::Take::kFirstWarp, Cfg::Take::kWarps);
        take(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace weigh
