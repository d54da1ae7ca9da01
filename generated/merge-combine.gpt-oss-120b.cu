// merge-combine  via=direct
// back_warps=8 experts=128 hidden=2880 local_experts=32 local_ranks=4 max_rows=512 max_tokens=128 nodes=1 peers=4 ranks=4 sends=128 topk=4 words=32
// sm_80: 384 threads and 64 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Send: 8 warps on all blocks; composed: ep::SlotRowsOut
//   Reduce: 4 warps on all blocks; composed: ep::PartStages, ep::SlotRowsIn, ep::SlotParts, ep::Parts, ep::PartsAhead
//
// Window, the same on every rank:
//   back.slots       0x00000000    5898240 bytes  2 epochs x 512 slots x 5760; Send writes, Reduce reads
//   back.flags       0x005a0000      65536 bytes  2 epochs x 512 slots x 8 x 8; Send writes, Reduce reads
//   back.closed      0x005b0000         64 bytes  2 epochs x 4 peers x 1 x 8; Send writes, Reduce reads
//   back.released    0x005b0080         16 bytes  4 peers x 4; Reduce writes, Send reads
//   back.takes_words 0x005b0100         32 bytes  4 peers x 8; Reduce writes, Send reads
//   back.as_words    0x005b0180     393216 bytes  4 peers x 8 rows x 12288; Send writes, Reduce reads
//   back.taken       0x00610180         16 bytes  4 peers x 1 x 4; Send writes, Send reads
//   back.closers     0x00610200          4 bytes  1 word x 4; Send writes, Send reads
//   Send.claims      0x00610280          8 bytes  2 calls x 1 words x 4; Send writes, Send reads
//   Reduce.claims    0x00610300          8 bytes  2 calls x 1 words x 4; Reduce writes, Reduce reads
// Message Part: row of 5760 bytes, meta record of 0 bytes
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
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 2880;
    static constexpr int kTopk = 4;
    static constexpr int kMaxTokens = 128;
    static constexpr int kThreads = 384;
    static constexpr int kSharedBytes = 64;

    struct Back {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 512;
        static constexpr int kArrivals = 1;
        static constexpr int kSourceStride = 128;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = false;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 5760;
        static constexpr int kMeta = 5760;
        static constexpr int kSlices = 8;
        static constexpr int kFewTokens = 8;
        static constexpr int kWordRowBytes = 12288;
        static constexpr int kFieldWords = 0;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kFlags = 0x5a0000;
        static constexpr ep::u64 kClosed = 0x5b0000;
        static constexpr ep::u64 kReleased = 0x5b0080;
        static constexpr ep::u64 kTakesWords = 0x5b0100;
        static constexpr ep::u64 kAsWords = 0x5b0180;
        static constexpr ep::u64 kTaken = 0x610180;
        static constexpr ep::u64 kClosers = 0x610200;
    };

    struct Send {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x610280;
    };

    struct Reduce {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 8;
        static constexpr int kWarps = 4;
        static constexpr bool kTma = false;
        static constexpr int kStages = 8;
        static constexpr int kPieceBytes = 2048;
        static constexpr int kSlices = 16;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x610300;
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
        // +30  for row in rank_prefix[source, me]..rank_prefix[source + 1, me]
        const int first = args.rank_prefix[source * Cfg::kRanks + me];
        ep::SlicedSpan<Cfg::Back::kSlices> turns(
            static_cast<ep::i32>(
                ep::max(ep::i64{args.rank_prefix[(source + 1) * Cfg::kRanks + me]} - first, 0LL)),
            shares, share);
        for (ep::i64 row = ep::i64{first} + turns.begin;
            row < ep::i64{first} + turns.end && !team.stopped; ++row) {
            const ep::Span slices(turns.of(row - ep::i64{first}));
            // +31  push back[source] at recv_src[row] { x: sum(at in packed_row[row]:
            //     packed_weight[at] * x[at] as f32) as bf16 }
            // W1: publishes messages of back, for Reduce +37
            // W2: takes credit of back, from Reduce +37
            const int key = me * Cfg::kMaxTokens + args.recv_src[row];
            const int begin = ep::slice_begin(slices.begin, Cfg::Back::kSlices, Cfg::kHidden);
            const int end = ep::slice_begin(slices.end, Cfg::Back::kSlices, Cfg::kHidden);
            const auto rows = ep::found_rows<Cfg::kTopk>([&](int k) {
                const ep::i64 at = ep::i64{args.packed_row[row * Cfg::kTopk + k]};
                return ep::row_if(at >= 0, &args.x[at * Cfg::kHidden]);
            });
            const auto of_row = ep::row_values<float, Cfg::kTopk>(rows, [&](int k) {
                const ep::i64 at = ep::i64{args.packed_row[row * Cfg::kTopk + k]};
                return args.packed_weight[at];
            });
            if (back.reserve_few(source, key, turns.rows)) {
                const auto slot = back.place();
                ep::sum_some_rows<ep::bf16, Cfg::kTopk, Cfg::kThreads>(begin, end, Cfg::kHidden,
                    rows,
                    [&](ep::Wide<float>& sum, int k, const ep::Wide<ep::bf16>& k_row) {
                        sum += ep::product(of_row.of(k), ep::to_float(k_row));
                    },
                    [&](int i, const ep::Wide<float>& sum) {
                        ep::set_wide<ep::bf16>(slot, i, Cfg::kHidden, ep::to_bf16(sum));
                });
                back.publish_slices(slices);
            }
        }
    }
    back.tell_slices();
}

/// role Reduce on all blocks, 4 warps, warps shared by token
__device__ __forceinline__ void reduce(const Args& args, Smem& smem, ep::Team& team) {
    ep::PartStages<Cfg::Reduce, Cfg::kRanks> stages(smem.reduce[team.warp], team);
    ep::SlotRowsIn<Cfg::Back> back(team);
    // +37  for token in tokens gather part from back[peer] at if send_row[token, peer] >= 0 { token
    //     } else { -1 } across peer in ranks
    // W1: takes messages of back, from Send +31
    // W2: publishes credit of back, for Send +31
    ep::SlotParts<ep::SlotRowsIn<Cfg::Back>, Cfg::kRanks> back_parts(team, back);
    ep::Parts<ep::SlotParts<ep::SlotRowsIn<Cfg::Back>, Cfg::kRanks>> parts(team, back_parts);
    parts.take_words(ep::rows_of(args.tokens, args.tokens_from));
    const int rows = ep::rows_of(args.tokens, args.tokens_from);
    const int slices = ep::slices_of<Cfg::Reduce::kSlices>(team, rows);
    ep::Units<Cfg::Reduce, 0> units(team, rows * slices);
    ep::Parts<ep::SlotParts<ep::SlotRowsIn<Cfg::Back>, Cfg::kRanks>> next_parts(team, back_parts);
    const auto expect = [&](int unit) {
        const int token = ep::row_of_slice(unit, slices);
        const int slice = ep::slice_of_row(unit, slices);
        next_parts.clear();
        for (int peer = team.lane; peer < Cfg::kRanks; peer += ep::kLanes) {
            const int at = peer;
            const int at_2 = args.send_row[token * Cfg::kRanks + peer] >= 0 ? token : -1;
            if (!(at_2 >= 0)) continue;
            const int key = at * Cfg::kMaxTokens + at_2;
            next_parts.expect(peer, key);
        }
        return ep::span_of(
            static_cast<ep::i32>(ep::i64{ep::slice_begin(slice, slices, Cfg::kHidden)} * 2),
            static_cast<ep::i32>(ep::i64{ep::slice_begin(slice + 1, slices, Cfg::kHidden)} * 2));
    };
    ep::PartsAhead ahead(stages, parts, next_parts, units, expect);
    for (int unit; (unit = ahead.take()) >= 0;) {
        const int token = ep::row_of_slice(unit, slices);
        const int slice = ep::slice_of_row(unit, slices);
        if (parts.open()) {
            // +40  store combined[token] = sum(part.x)
            ep::for_staged_parts<ep::bf16, Cfg::kRanks, Cfg::Reduce, Cfg::kThreads>(ahead, parts,
                ep::slice_begin(slice, slices, Cfg::kHidden),
                ep::slice_begin(slice + 1, slices, Cfg::kHidden), Cfg::kHidden,
                [&](auto i, const auto& of_parts) {
                    ep::WideAt<float, decltype(i)> sum(0.0f);
                    of_parts.each([&](int, const auto& row) {
                        sum += ep::to_float(row);
                    });
                    ep::set_wide<ep::bf16>(&args.combined[ep::i64{token * Cfg::kHidden}], i,
                        Cfg::kHidden, ep::to_bf16(sum));
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
        reduce(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace merge_combine
