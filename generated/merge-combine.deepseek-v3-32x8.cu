// merge-combine  via=slots
// experts=256 hidden=7168 local_experts=1 local_ranks=8 max_rows=32768 max_tokens=128 nodes=32 peers=256 ranks=256 sends=128 shares=8 topk=8
// sm_90a: 512 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 10 warps on all blocks; composed: ep::SlotRowsOut
//   Reduce: 6 warps on all blocks; composed: ep::SlotRowsIn, ep::SlotParts, ep::Parts
//
// Window, the same on every rank:
//   back.slots       0x00000000   29360128 bytes  2 epochs x 1024 slots x 14336; Send writes, Reduce reads
//   back.flags       0x01c00000      16384 bytes  2 epochs x 1024 slots x 8; Send writes, Reduce reads
//   back.closed      0x01c04000        128 bytes  2 epochs x 8 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x01c04080         32 bytes  8 peers x 4; Reduce writes, Send reads
//   back.taken       0x01c04100       1024 bytes  256 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x01c04500          4 bytes  1 word x 4; Send writes, Send reads
//   back.closed_told 0x01c04580        992 bytes  248 peers x 4; Send writes, Send reads
//   back.released_told 0x01c04980        992 bytes  248 peers x 4; Reduce writes, Reduce reads
//   back.filled      0x01c04d80      15872 bytes  248 peers x 16 groups of 8 x 4; Send writes, Send reads
//   back.readers     0x01c08b80          4 bytes  1 word x 4; Reduce writes, Reduce reads
//   Send.claims      0x01c08c00          8 bytes  2 calls x 1 words x 4; Send writes, Send reads
//   Reduce.claims    0x01c08c80          8 bytes  2 calls x 1 words x 4; Reduce writes, Reduce reads
//
// Network, the same on every rank:
//   back.inbox       0x00000000  911179776 bytes  2 epochs x 248 peers x 128 slots x 14352; Send writes, Reduce reads
//   back.outbox      0x364f8000  911179776 bytes  2 epochs x 248 peers x 128 slots x 14352; Send writes, Send reads
// Message Part: row of 14336 bytes, meta record of 0 bytes
#include <ep/cast.cuh>
#include <ep/net_slot_rows.cuh>
#include <ep/parts.cuh>
#include <ep/slot_rows.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace merge_combine {

struct Cfg {
    static constexpr int kRanks = 256;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kMaxTokens = 128;
    static constexpr int kShares = 8;
    static constexpr int kThreads = 512;

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 256;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 32768;
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
        static constexpr ep::u64 kClosers = 0x1c04500;
        static constexpr ep::u64 kClosedTold = 0x1c04580;
        static constexpr ep::u64 kReleasedTold = 0x1c04980;
        static constexpr ep::u64 kFilled = 0x1c04d80;
        static constexpr ep::u64 kReaders = 0x1c08b80;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x364f8000;
        static constexpr int kCounters = 0;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 10;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1c08c00;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 10;
        static constexpr int kWarps = 6;
        static constexpr int kSlices = 32;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1c08c80;
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
    const float* packed_weight;
    // the network of this rank
    const ep::Net* net;
};

/// role Send on all blocks, 10 warps, warps shared by (source, share)
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Back, ep::NetSlotRows<Cfg::Back>> back(team, args.net);
    ep::Units<Cfg::Send, 0> units(team, Cfg::kRanks * Cfg::kShares);
    for (int unit; (unit = units.take()) >= 0;) {
        const int source = unit % Cfg::kRanks;
        const int share = unit / Cfg::kRanks % Cfg::kShares;
        // +94  for row in came_first[source]..came_first[source + 1] where row % shares == share
        const int row_end = args.came_first[source + 1];
        for (ep::i64 row = args.came_first[source]; row < row_end && !team.stopped; ++row) {
            if (!(row % Cfg::kShares == share)) continue;
            // +95  push back[source] at row - came_first[source] { x: sum(at in packed_row[row]:
            //     packed_weight[at] * x[at] as f32) as bf16 }
            // W2: takes credit of back, from Reduce +138
            const int key =
                me * Cfg::kMaxTokens + static_cast<ep::i32>(row - args.came_first[source]);
            const auto rows = ep::found_rows<Cfg::kTopk>([&](int k) {
                const ep::i64 at = ep::i64{args.packed_row[row * Cfg::kTopk + k]};
                return ep::row_if(at >= 0, &args.x[at * Cfg::kHidden]);
            });
            const auto of_row = ep::row_values<float, Cfg::kTopk>(rows, [&](int k) {
                const ep::i64 at = ep::i64{args.packed_row[row * Cfg::kTopk + k]};
                return args.packed_weight[at];
            });
            if (back.reserve(source, key)) {
                char* slot = back.slot();
                ep::sum_some_rows<ep::bf16, Cfg::kTopk, Cfg::kThreads>(0, Cfg::kHidden,
                    Cfg::kHidden, rows,
                    [&](ep::Wide<float>& sum, int k, const ep::Wide<ep::bf16>& k_row) {
                        sum += ep::product(of_row.of(k), ep::to_float(k_row));
                    },
                    [&](int i, const ep::Wide<float>& sum) {
                        ep::set_wide<ep::bf16>(slot, i, Cfg::kHidden, ep::to_bf16(sum));
                });
                back.publish();
            }
        }
    }
    // +99  close back
    // W1: publishes messages of back, for Reduce +138
    back.close(team.count());
}

/// role Reduce on all blocks, 6 warps, one block a token
__device__ __forceinline__ void reduce(const Args& args, ep::Team& team) {
    ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>> back(team, args.net);
    // +138  for token in tokens gather part from back[peer] at send_place[token, peer] across peer
    //     in ranks
    // W1: takes messages of back, from Send +99
    // W2: publishes credit of back, for Send +95
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
