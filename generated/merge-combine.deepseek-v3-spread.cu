// merge-combine  via=spread
// back_warps=8 experts=256 hidden=7168 local_experts=32 local_ranks=8 max_rows=1024 max_tokens=128 nodes=1 peers=8 ranks=8 sends=128 sum_warps=8 topk=8
// sm_90a: 512 threads and 132096 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 8 warps on all blocks; composed: ep::SlotRowsOut, ep::Chosen, ep::AskedSlice
//   Reduce: 8 warps on all blocks; composed: ep::PartStages, ep::SlotRowsIn, ep::SlotParts, ep::Parts, ep::PartsAhead
//
// Window, the same on every rank:
//   back.slots       0x00000000   29360128 bytes  2 epochs x 1024 slots x 14336; Send writes, Reduce reads
//   back.flags       0x01c00000      65536 bytes  2 epochs x 1024 slots x 4 x 8; Send writes, Reduce reads
//   back.closed      0x01c10000        128 bytes  2 epochs x 8 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x01c10080         32 bytes  8 peers x 4; Reduce writes, Send reads
//   back.taken       0x01c10100         32 bytes  8 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x01c10180          4 bytes  1 word x 4; Send writes, Send reads
//   Send.claims      0x01c10200          8 bytes  2 calls x 1 words x 4; Send writes, Send reads
//   Reduce.claims    0x01c10280          8 bytes  2 calls x 1 words x 4; Reduce writes, Reduce reads
// Message Part: row of 14336 bytes, meta record of 0 bytes
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/part_stages.cuh>
#include <ep/parts.cuh>
#include <ep/slot_rows.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace merge_combine {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kThreads = 512;
    static constexpr int kSharedBytes = 132096;

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 8;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 1024;
        static constexpr int kArrivals = 1;
        static constexpr int kSourceStride = 0;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = false;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 14336;
        static constexpr int kMeta = 14336;
        static constexpr int kSlices = 4;
        static constexpr int kFewTokens = 0;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0x1c00000;
        static constexpr ep::u64 kClosed = 0x1c10000;
        static constexpr ep::u64 kReleased = 0x1c10080;
        static constexpr ep::u64 kTaken = 0x1c10100;
        static constexpr ep::u64 kClosers = 0x1c10180;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1c10200;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 8;
        static constexpr bool kTma = true;
        static constexpr int kStages = 16;
        static constexpr int kPieceBytes = 1024;
        static constexpr int kSlices = 32;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1c10280;
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
    const ep::i32* packed_row;
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
};

struct Smem {
    ep::PartSmem<Cfg::Reduce> reduce[Cfg::Reduce::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// role Send on all blocks, back_warps warps, warps shared by source
__device__ __forceinline__ void send(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Back> back(team);
    const int shares = ep::shares_of(team, Cfg::kRanks);
    ep::Units<Cfg::Send, 0> units(team, Cfg::kRanks * shares);
    for (int unit; (unit = units.take()) >= 0;) {
        const int share = unit % shares;
        const int own_unit = unit / shares;
        const int source = own_unit % Cfg::kRanks;
        // +59  for row in rank_prefix[source, me]..rank_prefix[source + 1, me]
        const int first = args.rank_prefix[source * Cfg::kRanks + me];
        ep::SlicedSpan<Cfg::Back::kSlices> turns(
            static_cast<ep::i32>(
                ep::max(ep::i64{args.rank_prefix[(source + 1) * Cfg::kRanks + me]} - first, 0LL)),
            shares, share);
        for (ep::i64 row = ep::i64{first} + turns.begin;
            row < ep::i64{first} + turns.end && !team.stopped; ++row) {
            const ep::Span slices(turns.of(row - ep::i64{first}));
            // +60  for choice in topk where packed_row[row, choice] >= 0
            ep::Chosen chosen(Cfg::kTopk);
            for (int choice; (choice = chosen.take(team, [&](int turn) {
                return args.packed_row[row * Cfg::kTopk + turn] >= 0;
                })) >= 0;) {
                // +61  push back[source] at [recv_src[row], choice] { x: x[packed_row[row, choice]]
                //     }
                // W1: publishes messages of back, for Reduce +67
                // W2: takes credit of back, from Reduce +67
                const int key = args.recv_src[row] * Cfg::kTopk + choice;
                const int begin = ep::slice_begin(slices.begin, Cfg::Back::kSlices, Cfg::kHidden);
                const int end = ep::slice_begin(slices.end, Cfg::Back::kSlices, Cfg::kHidden);
                ep::AskedSlice<ep::bf16> asked(
                    &args.x[ep::i64{args.packed_row[row * Cfg::kTopk + choice]} * Cfg::kHidden
                        + begin], end - begin);
                if (back.reserve(source, key)) {
                    char* slot = back.slot();
                    asked.put(team, slot + begin * 2);
                    back.publish_slices(slices);
                }
            }
        }
    }
    back.tell_slices();
}

/// role Reduce on all blocks, sum_warps warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, Smem& smem, ep::Team& team) {
    ep::PartStages<Cfg::Reduce, Cfg::kTopk> stages(smem.reduce[team.warp], team);
    ep::SlotRowsIn<Cfg::Back> back(team);
    // +67  for token in tokens gather part from back[owner(topk_idx[token, choice])] at [token,
    //     (choice + 1) * (topk_idx[token, choice] >= 0 && sum(earlier in 0..choice:
    //     (topk_idx[token, earlier] == topk_idx[token, choice]) as i32) == 0) as i32 - 1] across
    //     choice in topk
    // W1: takes messages of back, from Send +61
    // W2: publishes credit of back, for Send +61
    ep::SlotParts<ep::SlotRowsIn<Cfg::Back>, Cfg::kTopk> back_parts(team, back);
    ep::Parts<ep::SlotParts<ep::SlotRowsIn<Cfg::Back>, Cfg::kTopk>> parts(team, back_parts);
    const int rows = ep::rows_of(args.tokens, args.tokens_from);
    const int slices = ep::slices_of<Cfg::Reduce::kSlices>(team, rows);
    ep::Units<Cfg::Reduce, 0> units(team, rows * slices);
    ep::Parts<ep::SlotParts<ep::SlotRowsIn<Cfg::Back>, Cfg::kTopk>> next_parts(team, back_parts);
    const auto expect = [&](int unit) {
        const int token = ep::row_of_slice(unit, slices);
        const int slice = ep::slice_of_row(unit, slices);
        next_parts.clear();
        for (int choice = team.lane; choice < Cfg::kTopk; choice += ep::kLanes) {
            const int at = token;
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
            const ep::i64 at_2 = ep::i64{choice + 1} * static_cast<ep::i32>(holds) - 1;
            if (!(at_2 >= 0)) continue;
            const int at_3 = ep::owner<Cfg::kRanks>(
                args.topk_idx[token * args.topk_idx_stride + choice], args.expert_begin);
            if (!(at_3 >= 0)) continue;
            if (!ep::is_alive(args.group, ep::i64{at_3})) continue;
            const int key = at * Cfg::kTopk + static_cast<ep::i32>(at_2);
            next_parts.expect(choice, key);
        }
        return ep::span_of(
            static_cast<ep::i32>(ep::i64{ep::slice_begin(slice, slices, Cfg::kHidden)} * 2),
            static_cast<ep::i32>(ep::i64{ep::slice_begin(slice + 1, slices, Cfg::kHidden)} * 2));
    };
    ep::PartsAhead ahead(stages, parts, next_parts, units, expect);
    for (int unit; (unit = ahead.take()) >= 0;) {
        const int token = ep::row_of_slice(unit, slices);
        const int slice = ep::slice_of_row(unit, slices);
        const auto of_part = ep::part_values<float, Cfg::kTopk>(parts, [&](int choice_2) {
            float sum_2 = 0.0f;
            for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                sum_2 += ep::product(args.topk_weights[token * args.topk_weights_stride + entry],
                    static_cast<float>(
                        args.topk_idx[token * args.topk_idx_stride
                            + entry] == args.topk_idx[token * args.topk_idx_stride + choice_2]));
            }
            return sum_2;
        });
        if (parts.open()) {
            // +72  store combined[token] = sum(sum(entry in topk: topk_weights[token, entry] *
            //     (topk_idx[token, entry] == topk_idx[token, choice]) as f32) * part.x as f32) as
            //     bf16
            ep::for_staged_parts<ep::bf16, Cfg::kTopk, Cfg::Reduce, Cfg::kThreads>(ahead, parts,
                ep::slice_begin(slice, slices, Cfg::kHidden),
                ep::slice_begin(slice + 1, slices, Cfg::kHidden), Cfg::kHidden,
                [&](auto i, const auto& of_parts) {
                    ep::WideAt<float, decltype(i)> sum_3(0.0f);
                    of_parts.each([&](int choice_2, const auto& row) {
                        sum_3 += ep::product(of_part.of(choice_2), ep::to_float(row));
                    });
                    ep::set_wide<ep::bf16>(&args.combined[ep::i64{token * Cfg::kHidden}], i,
                        Cfg::kHidden, ep::to_bf16(sum_3));
            });
            parts.close();
        }
    }
    stages.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
merge_combine(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        ep::slots_are_read<Cfg::Back>(args.group);
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
        reduce(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace merge_combine
