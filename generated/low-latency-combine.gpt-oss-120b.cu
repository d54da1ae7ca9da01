// low-latency-combine  wire=bf16
// experts=128 hidden=2880 local_experts=32 local_ranks=4 max_tokens=128 nodes=1 ranks=4 shares=4 stages=3 tiles=8 topk=4
// sm_80: 256 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: a warp for each of local_experts x ranks x shares = 512 (8 warps on all blocks); composed: ep::SlotRowsOut
//   Reduce: 8 warps on all blocks; composed: ep::SlotRowsIn, ep::SlotParts, ep::Parts
//
// Window, the same on every rank:
//   back.slots       0x00000000  188743680 bytes  2 epochs x 16384 slots x 5760; Send writes, Reduce reads
//   back.flags       0x0b400000     262144 bytes  2 epochs x 16384 slots x 8; Send writes, Reduce reads
//   back.closed      0x0b440000         64 bytes  2 epochs x 4 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x0b440080         16 bytes  4 peers x 4; Reduce writes, Send reads
//   back.taken       0x0b440100         16 bytes  4 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x0b440180          4 bytes  1 word x 4; Send writes, Send reads
//   back.readers     0x0b440200          4 bytes  1 word x 4; Reduce writes, Reduce reads
//   back.waited      0x0b440280         32 bytes  4 peers x 8; Reduce writes, Reduce reads
//   Reduce.claims    0x0b440300          8 bytes  2 calls x 1 words x 4; Reduce writes, Reduce reads
// Message Part: row of 5760 bytes, meta record of 0 bytes
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/net_slot_rows.cuh>
#include <ep/parts.cuh>
#include <ep/slot_rows.cuh>
#include <ep/slot_times.cuh>
#include <ep/wide.cuh>
#include <ep/words.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace low_latency_combine {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 2880;
    static constexpr int kTopk = 4;
    static constexpr int kMaxTokens = 128;
    static constexpr int kLocalExperts = 32;
    static constexpr int kTiles = 8;
    static constexpr int kShares = 4;
    static constexpr int kThreads = 256;

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 16384;
        static constexpr int kArrivals = 1;
        static constexpr int kSourceStride = 128;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = false;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 5760;
        static constexpr int kMeta = 5760;
        static constexpr int kSlices = 1;
        static constexpr int kFewTokens = 0;
        static constexpr int kFarBytes = 5776;
        static constexpr int kRun = 1;
        static constexpr int kOnce = 0;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 4;
        static constexpr int kNear = 4;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0xb400000;
        static constexpr ep::u64 kClosed = 0xb440000;
        static constexpr ep::u64 kReleased = 0xb440080;
        static constexpr ep::u64 kTaken = 0xb440100;
        static constexpr ep::u64 kClosers = 0xb440180;
        static constexpr ep::u64 kClosedTold = 0xb440200;
        static constexpr ep::u64 kReleasedTold = 0xb440200;
        static constexpr ep::u64 kFilled = 0xb440200;
        static constexpr ep::u64 kReaders = 0xb440200;
        static constexpr ep::u64 kWaited = 0xb440280;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x0;
        static constexpr int kCounters = 0;
    };

    struct Words {
        static constexpr int kExpertDone = 0;
        static constexpr int kTileDone = 1;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kSlices = 16;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0xb440300;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // run-time args
    ep::i32 done_at;
    // from the handle of LowLatencyDispatch
    const ep::i32* src_info;
    const ep::i32* range_first;
    const ep::i32* range_count;
    // input x: bf16[local_experts, ranks * max_tokens, hidden]
    const ep::bf16* x;
    // input topk_idx: i64[tokens, topk] in -1..experts distinct
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // input expert_done: optional i32[local_experts]
    const ep::i32* expert_done;
    // input tile_done: optional i32[local_experts, tiles]
    const ep::i32* tile_done;
    // output combined: bf16[tokens, hidden]
    ep::bf16* combined;
    // inout wait_ns: optional i64[ranks]
    ep::i64* wait_ns;
    // the network of this rank
    const ep::Net* net;
};

/// role Send on all blocks, warps shared by (local_expert, source, share)
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Back, ep::NetSlotRows<Cfg::Back>> back(team, args.net);
    for (ep::i64 unit = team.index();
        unit < ep::i64{Cfg::kLocalExperts} * Cfg::kRanks * Cfg::kShares && !team.stopped;
        unit += team.count()) {
        const int local_expert = static_cast<ep::i32>(unit % Cfg::kLocalExperts);
        const int source = static_cast<ep::i32>(unit / Cfg::kLocalExperts % Cfg::kRanks);
        const int share =
            static_cast<ep::i32>(unit / Cfg::kLocalExperts / Cfg::kRanks % Cfg::kShares);
        // +43  await expert_done[local_expert] >= done_at
        if (args.expert_done == nullptr || ep::await_word(team, &args.expert_done[local_expert],
            args.done_at, Cfg::Words::kExpertDone)) {
            // +44  let first = range_first[local_expert, source]
            const int first = args.range_first[ep::i64{local_expert} * Cfg::kRanks + source];
            // +45  for row in first..first + range_count[local_expert, source] where row % shares
            //     == share
            const ep::i64 row_end =
                ep::i64{first} + args.range_count[ep::i64{local_expert} * Cfg::kRanks + source];
            for (ep::i64 row = first; row < row_end && !team.stopped; ++row) {
                if (!(row % Cfg::kShares == share)) continue;
                // +46  await tile_done[local_expert, row / 64] >= done_at
                if (args.tile_done == nullptr || ep::await_word(team,
                    &args.tile_done[ep::i64{local_expert} * Cfg::kTiles + row / 64], args.done_at,
                    Cfg::Words::kTileDone)) {
                    // +48  push back[source] at [local_expert, src_info[local_expert, row]] { x:
                    //     x[local_expert, row] }
                    // W2: takes credit of back, from Reduce +63
                    const int key = (local_expert * Cfg::kRanks + me) * Cfg::kMaxTokens
                        + args.src_info[ep::i64{local_expert} * (Cfg::kRanks * Cfg::kMaxTokens)
                            + row];
                    if (back.reserve(source, key)) {
                        char* slot = back.slot();
                        ep::copy_row<ep::bf16, ep::kCopiedAtOnce<Cfg::kThreads>>(team, slot,
                            &args.x[(ep::i64{local_expert} * (Cfg::kRanks * Cfg::kMaxTokens)
                                + row) * Cfg::kHidden], Cfg::kHidden);
                        back.publish();
                    }
                }
            }
            // +58  close back
            // W1: publishes messages of back, for Reduce +63
            back.close(
                static_cast<ep::i32>(ep::i64{Cfg::kLocalExperts} * Cfg::kRanks * Cfg::kShares));
        }
    }
}

/// role Reduce on all blocks, one block a token
__device__ __forceinline__ void reduce(const Args& args, ep::Team& team) {
    ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>, ep::SlotTimes<Cfg::Back>> back(team,
        args.net, args.wait_ns);
    // +63  for token in tokens gather part from back[owner(topk_idx[token, choice])] at
    //     [local(topk_idx[token, choice], owner(topk_idx[token, choice])), token] across choice in
    //     topk
    // W1: takes messages of back, from Send +58
    // W2: publishes credit of back, for Send +48
    ep::SlotParts<ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>, ep::SlotTimes<Cfg::Back>>,
        Cfg::kTopk> back_parts(team, back);
    ep::Parts<ep::SlotParts<ep::SlotRowsIn<Cfg::Back, ep::NetSlotRows<Cfg::Back>,
        ep::SlotTimes<Cfg::Back>>, Cfg::kTopk>> parts(team, back_parts);
    const int rows = ep::rows_of(args.tokens, args.tokens_from);
    const int slices = ep::slices_of<Cfg::Reduce::kSlices>(team, rows);
    ep::Units<Cfg::Reduce, 0> units(team, rows * slices);
    for (int unit; (unit = units.take()) >= 0;) {
        const int token = ep::row_of_slice(unit, slices);
        const int slice = ep::slice_of_row(unit, slices);
        parts.clear();
        for (int choice = team.lane; choice < Cfg::kTopk; choice += ep::kLanes) {
            const int at = ep::owner<Cfg::kRanks>(
                args.topk_idx[token * args.topk_idx_stride + choice], args.expert_begin);
            if (!(at >= 0)) continue;
            const int at_2 = ep::local_expert(args.expert_begin,
                ep::owner<Cfg::kRanks>(args.topk_idx[token * args.topk_idx_stride + choice],
                    args.expert_begin), args.topk_idx[token * args.topk_idx_stride + choice]);
            if (!(at_2 >= 0)) continue;
            const int at_3 = token;
            const int key = (at_2 * Cfg::kRanks + at) * Cfg::kMaxTokens + at_3;
            parts.expect(choice, key);
        }
        const auto of_part = ep::part_values<float, Cfg::kTopk>(parts, [&](int choice_2) {
            return args.topk_weights[token * args.topk_weights_stride + choice_2];
        });
        if (parts.open()) {
            // +64  store combined[token] = sum(topk_weights[token, choice] * part.x as f32) as bf16
            ep::for_wide_parts<ep::bf16, Cfg::kTopk>(parts,
                ep::slice_begin(slice, slices, Cfg::kHidden),
                ep::slice_begin(slice + 1, slices, Cfg::kHidden), Cfg::kHidden,
                [&](int i, const ep::WideParts<ep::bf16, Cfg::kTopk, decltype(parts)>& of_parts) {
                    ep::Wide<float> sum(0.0f);
                    of_parts.each([&](int choice_2, const ep::Wide<ep::bf16>& row) {
                        sum += ep::product(of_part.of(choice_2), ep::to_float(row));
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
low_latency_combine_send(const __grid_constant__ Args args) {
    ep::Call call = ep::enter(args.group);

    // The call goes on in the next phase.
    call.ends = false;

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps)) {
        ep::Team team(args.group, call, Cfg::Send::kRole, block, blocks,
            warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
        send(args, team);
    }
    ep::leave(args.group, call);
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
low_latency_combine_recv(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps)) {
        ep::Team team(args.group, call, Cfg::Reduce::kRole, block, blocks,
            warp - Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps);
        reduce(args, team);
    }
    ep::leave(args.group, call);
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
low_latency_combine(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    // Phase send.
    if (ep::is_between(warp, Cfg::Send::kFirstWarp, Cfg::Send::kWarps)) {
        ep::Team team(args.group, call, Cfg::Send::kRole, block, blocks,
            warp - Cfg::Send::kFirstWarp, Cfg::Send::kWarps);
        send(args, team);
    }

    // Phase recv.
    if (ep::is_between(warp, Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps)) {
        ep::Team team(args.group, call, Cfg::Reduce::kRole, block, blocks,
            warp - Cfg::Reduce::kFirstWarp, Cfg::Reduce::kWarps);
        reduce(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace low_latency_combine
