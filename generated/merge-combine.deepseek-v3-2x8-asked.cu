// merge-combine  via=asked
// experts=256 hidden=7168 local_experts=16 local_ranks=8 max_rows=2048 max_tokens=128 nodes=2 peers=16 ranks=16 sends=128 shares=128 topk=8
// sm_90a: 512 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Ask: a warp for each of peers x sends = 2048 (2 warps on all blocks); composed: ep::SlotRowsOut
//   Send: 8 warps on all blocks; composed: ep::SlotRowsOut, ep::SlotRowsIn
//   Reduce: 6 warps on all blocks; composed: ep::SlotRowsIn, ep::SlotParts, ep::Parts
//
// Window, the same on every rank:
//   back.slots       0x00000000   29360128 bytes  2 epochs x 1024 slots x 14336; Send writes, Reduce reads
//   back.flags       0x01c00000      16384 bytes  2 epochs x 1024 slots x 8; Send writes, Reduce reads
//   back.closed      0x01c04000        128 bytes  2 epochs x 8 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x01c04080         32 bytes  8 peers x 4; Reduce writes, Send reads
//   back.taken       0x01c04100         64 bytes  16 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x01c04180          4 bytes  1 word x 4; Send writes, Send reads
//   back.closed_told 0x01c04200         32 bytes  8 peers x 4; Send writes, Send reads
//   back.released_told 0x01c04280         32 bytes  8 peers x 4; Reduce writes, Reduce reads
//   back.filled      0x01c04300        512 bytes  8 peers x 16 groups of 8 x 4; Send writes, Send reads
//   back.readers     0x01c04500          4 bytes  1 word x 4; Reduce writes, Reduce reads
//   asks.slots       0x01c04580     262144 bytes  2 epochs x 8 x 128 slots x 128; Ask writes, Send reads
//   asks.closed      0x01c44580        128 bytes  2 epochs x 8 peers x 1 x 8; Ask writes, Send reads
//   asks.released    0x01c44600         32 bytes  8 peers x 4; Send writes, Ask reads
//   asks.taken       0x01c44680         64 bytes  16 peers x 1 x 4; Ask writes, Ask reads
//   asks.closers     0x01c44700          4 bytes  1 word x 4; Ask writes, Ask reads
//   asks.closed_told 0x01c44780         32 bytes  8 peers x 4; Ask writes, Ask reads
//   asks.released_told 0x01c44800         32 bytes  8 peers x 4; Send writes, Send reads
//   asks.filled      0x01c44880        512 bytes  8 peers x 16 groups of 8 x 4; Ask writes, Ask reads
//   asks.readers     0x01c44a80          4 bytes  1 word x 4; Send writes, Send reads
//   Send.claims      0x01c44b00          8 bytes  2 calls x 1 words x 4; Send writes, Send reads
//   Reduce.claims    0x01c44b80          8 bytes  2 calls x 1 words x 4; Reduce writes, Reduce reads
//
// Network, the same on every rank:
//   back.inbox       0x00000000   29392896 bytes  2 epochs x 8 peers x 128 slots x 14352; Send writes, Reduce reads
//   back.outbox      0x01c08000   29392896 bytes  2 epochs x 8 peers x 128 slots x 14352; Send writes, Send reads
//   asks.inbox       0x03810000     262144 bytes  2 epochs x 8 peers x 128 slots x 128; Ask writes, Send reads
//   asks.outbox      0x03850000     262144 bytes  2 epochs x 8 peers x 128 slots x 128; Ask writes, Ask reads
//   asks.counts_in   0x03890000         64 bytes  2 epochs x 8 peers x 1 x 4; Ask writes, Send reads
//   asks.counts_out  0x03890080         64 bytes  2 epochs x 8 peers x 1 x 4; Ask writes, Ask reads
// Message Part: row of 14336 bytes, meta record of 0 bytes
// Message Request: meta record of 48 bytes: place[1] at 0, weights[8] at 4
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/net_slot_rows.cuh>
#include <ep/parts.cuh>
#include <ep/slot_rows.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace merge_combine {

struct Cfg {
    static constexpr int kRanks = 16;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kMaxTokens = 128;
    static constexpr int kSends = 128;
    static constexpr int kPeers = 16;
    static constexpr int kShares = 128;
    static constexpr int kThreads = 512;

    struct Request {
        static constexpr int kMetaBytes = 48;
        static constexpr int kPlace = 0;
        static constexpr int kPlaceCount = 1;
        static constexpr int kWeights = 4;
        static constexpr int kWeightsCount = 8;
    };

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 16;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 2048;
        static constexpr int kArrivals = 1;
        static constexpr int kSourceStride = 128;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = false;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 14336;
        static constexpr int kMeta = 14336;
        static constexpr int kSlices = 1;
        static constexpr int kFewTokens = 0;
        static constexpr int kFarBytes = 14352;
        static constexpr int kRun = 8;
        static constexpr int kOnce = 0;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 8;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0x1c00000;
        static constexpr ep::u64 kClosed = 0x1c04000;
        static constexpr ep::u64 kReleased = 0x1c04080;
        static constexpr ep::u64 kTaken = 0x1c04100;
        static constexpr ep::u64 kClosers = 0x1c04180;
        static constexpr ep::u64 kClosedTold = 0x1c04200;
        static constexpr ep::u64 kReleasedTold = 0x1c04280;
        static constexpr ep::u64 kFilled = 0x1c04300;
        static constexpr ep::u64 kReaders = 0x1c04500;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x1c08000;
        static constexpr int kCounters = 0;
    };

    struct Asks {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 16;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 16;
        static constexpr int kArrivals = 128;
        static constexpr int kSourceStride = 1;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = true;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 128;
        static constexpr int kMeta = 0;
        static constexpr int kSlices = 1;
        static constexpr int kFewTokens = 0;
        static constexpr int kFarBytes = 128;
        static constexpr int kRun = 8;
        static constexpr int kOnce = 0;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 8;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x1c04580;
        static constexpr ep::u64 kClosed = 0x1c44580;
        static constexpr ep::u64 kReleased = 0x1c44600;
        static constexpr ep::u64 kTaken = 0x1c44680;
        static constexpr ep::u64 kClosers = 0x1c44700;
        static constexpr ep::u64 kClosedTold = 0x1c44780;
        static constexpr ep::u64 kReleasedTold = 0x1c44800;
        static constexpr ep::u64 kFilled = 0x1c44880;
        static constexpr ep::u64 kReaders = 0x1c44a80;
        static constexpr ep::u64 kInbox = 0x3810000;
        static constexpr ep::u64 kOutbox = 0x3850000;
        static constexpr ep::u64 kCountsIn = 0x3890000;
        static constexpr ep::u64 kCountsOut = 0x3890080;
        static constexpr int kCounters = 2;
    };

    struct Ask {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 2;
    };

    struct Send {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 2;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1c44b00;
    };

    struct Reduce {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 10;
        static constexpr int kWarps = 6;
        static constexpr int kSlices = 32;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1c44b80;
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
    const ep::i32* came_first;
    const ep::i32* send_place;
    const ep::i32* packed_row;
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // the network of this rank
    const ep::Net* net;
};

/// role Ask on all blocks, 2 warps, warps shared by (peer, send)
__device__ __forceinline__ void ask(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Asks, ep::NetSlotRows<Cfg::Asks>> asks(team, args.net);
    for (ep::i64 unit = team.index(); unit < ep::i64{Cfg::kPeers} * Cfg::kSends && !team.stopped;
        unit += team.count()) {
        const int peer = static_cast<ep::i32>(unit % Cfg::kPeers);
        const int send = static_cast<ep::i32>(unit / Cfg::kPeers % Cfg::kSends);
        // +114  for token in send..min(send + 1, tokens) where send_place[send, peer] >= 0
        const ep::i64 token_end =
            ep::min(ep::i64{send + 1}, ep::i64{ep::rows_of(args.tokens, args.tokens_from)});
        for (ep::i64 token = send; token < token_end && !team.stopped; ++token) {
            if (!(args.send_place[ep::i64{send} * Cfg::kRanks + peer] >= 0)) continue;
            // +116  push asks[peer] { place: send_place[send, peer], weights: sum(entry in topk:
            //     topk_weights[send, entry] * (topk_idx[send, entry] == topk_idx[send]) as f32) }
            // W4: takes credit of asks, from Send +125
            if (asks.reserve(peer, me)) {
                char* slot = asks.slot();
                for (int i = team.lane; i < Cfg::Request::kPlaceCount; i += ep::kLanes) {
                    ep::set<ep::i32>(slot + Cfg::Asks::kMeta + Cfg::Request::kPlace, i,
                        args.send_place[ep::i64{send} * Cfg::kRanks + peer]);
                }
                for (int i_2 = team.lane; i_2 < Cfg::Request::kWeightsCount; i_2 += ep::kLanes) {
                    float sum = 0.0f;
                    for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                        sum += ep::product(
                            args.topk_weights[send * args.topk_weights_stride + entry],
                            static_cast<float>(
                                args.topk_idx[send * args.topk_idx_stride
                                    + entry] == args.topk_idx[send * args.topk_idx_stride + i_2]));
                    }
                    ep::set<float>(slot + Cfg::Asks::kMeta + Cfg::Request::kWeights, i_2, sum);
                }
                asks.publish();
            }
        }
    }
    // +122  close asks
    // W3: publishes messages of asks, for Send +125
    asks.close(team.count());
}

/// role Send on all blocks, 8 warps, warps shared by (source, share)
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Back, ep::NetSlotRows<Cfg::Back>> back(team, args.net);
    ep::SlotRowsIn<Cfg::Asks, ep::NetSlotRows<Cfg::Asks>> asks(team, args.net);
    ep::Units<Cfg::Send, 0> units(team, Cfg::kRanks * Cfg::kShares);
    for (int unit; (unit = units.take()) >= 0;) {
        const int source = unit % Cfg::kRanks;
        const int share = unit / Cfg::kRanks % Cfg::kShares;
        // +125  for request in asks[source] where request.index % shares == share
        // W3: takes messages of asks, from Ask +122
        // W4: publishes credit of asks, for Ask +116
        const int count = asks.count(source);
        for (int turn = 0; turn < ep::ceil(count - share, Cfg::kShares) && !team.stopped; ++turn) {
            const int row = share + turn * Cfg::kShares;
            const char* slot = asks.slot(source, share + turn * Cfg::kShares);
            // +126  let row = came_first[source] + request.place
            const ep::i64 row_2 = ep::i64{args.came_first[source]}
                + ep::get<ep::i32>(slot + Cfg::Asks::kMeta + Cfg::Request::kPlace, 0);
            // +127  push back[source] at request.place { x: sum(choice in topk: if packed_row[row,
            //     choice] >= 0 { request.weights[choice] * x[packed_row[row, choice]] as f32 } else
            //     { 0.0 }) as bf16 }
            // W2: takes credit of back, from Reduce +138
            const int key = me * Cfg::kMaxTokens
                + ep::get<ep::i32>(slot + Cfg::Asks::kMeta + Cfg::Request::kPlace, 0);
            if (back.reserve(source, key)) {
                char* slot_2 = back.slot();
                ep::sum_some_rows<ep::bf16, Cfg::kTopk, Cfg::kThreads>(0, Cfg::kHidden,
                    Cfg::kHidden,
                    [&](int choice) {
                        return ep::row_if(args.packed_row[row_2 * Cfg::kTopk + choice] >= 0,
                            &args.x[ep::i64{args.packed_row[row_2 * Cfg::kTopk
                                + choice]} * Cfg::kHidden]);
                    },
                    [&](ep::Wide<float>& sum, int choice, const ep::Wide<ep::bf16>& choice_row) {
                        sum += ep::product(
                            ep::get<float>(slot + Cfg::Asks::kMeta + Cfg::Request::kWeights,
                                choice), ep::to_float(choice_row));
                    },
                    [&](int i, const ep::Wide<float>& sum) {
                        ep::set_wide<ep::bf16>(slot_2, i, Cfg::kHidden, ep::to_bf16(sum));
                });
                back.publish();
            }
        }
    }
    // +133  close back
    // W1: publishes messages of back, for Reduce +138
    back.close(team.count());
    asks.release();
}

/// role Reduce on all blocks, 6 warps, one block a token
__device__ __forceinline__ void reduce(const Args& args, ep::Team& team) {
    ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>> back(team, args.net);
    // +138  for token in tokens gather part from back[peer] at send_place[token, peer] across peer
    //     in ranks
    // W1: takes messages of back, from Send +133
    // W2: publishes credit of back, for Send +127
    ep::SlotParts<ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>>, Cfg::kRanks> back_parts(
        team, back);
    ep::Parts<ep::SlotParts<ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>>,
        Cfg::kRanks>> parts(team, back_parts);
    const int rows = ep::rows_of(args.tokens, args.tokens_from);
    const int slices = ep::slices_of<Cfg::Reduce::kSlices>(team, rows);
    ep::Units<Cfg::Reduce, 0> units(team, rows * slices);
    for (int unit; (unit = units.take()) >= 0;) {
        const int token = ep::row_of_slice(unit, slices);
        const int slice = ep::slice_of_row(unit, slices);
        parts.clear();
        for (int peer = team.lane; peer < Cfg::kRanks; peer += ep::kLanes) {
            const int at = peer;
            const int at_2 = args.send_place[token * Cfg::kRanks + peer];
            if (!(at_2 >= 0)) continue;
            const int key = at * Cfg::kMaxTokens + at_2;
            parts.expect(peer, key);
        }
        if (parts.open()) {
            // +139  store combined[token] = sum(part.x)
            ep::for_wide_parts<ep::bf16, Cfg::kRanks>(parts,
                ep::slice_begin(slice, slices, Cfg::kHidden),
                ep::slice_begin(slice + 1, slices, Cfg::kHidden), Cfg::kHidden,
                [&](int i, const ep::WideParts<ep::bf16, Cfg::kRanks, decltype(parts)>& of_parts) {
                    ep::Wide<float> sum(0.0f);
                    of_parts.each([&](int, const ep::Wide<ep::bf16>& row) {
                        sum += ep::to_float(row);
                    });
                    ep::set_wide<ep::bf16>(&args.combined[ep::i64{token * Cfg::kHidden}], i,
                        Cfg::kHidden, ep::to_bf16(sum));
            });
            parts.close();
        }
    }
    back.release();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
merge_combine(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Ask::kFirstWarp, Cfg::Ask::kWarps)) {
        ep::Team team(args.group, call, Cfg::Ask::kRole, block, blocks,
            warp - Cfg::Ask::kFirstWarp, Cfg::Ask::kWarps);
        ask(args, team);
    }
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
