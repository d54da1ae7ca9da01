// low-latency-dispatch  payload=fp8
// experts=256 hidden=7168 local_experts=32 local_ranks=8 max_tokens=128 nodes=1 once=32 ranks=8 shares=4 stages=3 tiles=16 topk=8
// sm_90a: 256 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Cast: 8 warps on all blocks; composed: ep::SlotRowsOut
//   Pack: a warp for each of local_experts x ranks x shares = 1024 (8 warps on all blocks); composed: ep::SlotRowsIn
//
// Window, the same on every rank:
//   rows.slots       0x00000000  486539264 bytes  2 epochs x 256 x 128 slots x 7424; Cast writes, Pack reads
//   rows.closed      0x1d000000       4096 bytes  2 epochs x 8 peers x 32 x 8; Cast writes, Pack reads
//   rows.released    0x1d001000         32 bytes  8 peers x 4; Pack writes, Cast reads
//   rows.taken       0x1d001080       1024 bytes  8 peers x 32 x 4; Cast writes, Cast reads
//   rows.closers     0x1d001480          4 bytes  1 word x 4; Cast writes, Cast reads
//   rows.readers     0x1d001500          4 bytes  1 word x 4; Pack writes, Pack reads
//   rows.waited      0x1d001580         64 bytes  8 peers x 8; Pack writes, Pack reads
//   Cast.claims      0x1d001600          8 bytes  2 calls x 1 words x 4; Cast writes, Cast reads
// Message Row: row of 7168 bytes, meta record of 240 bytes: x_scale[56] at 0, src[1] at 224
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/net_slot_rows.cuh>
#include <ep/slot_rows.cuh>
#include <ep/slot_times.cuh>
#include <ep/wide.cuh>
#include <ep/words.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace low_latency_dispatch {

struct Cfg {
    static constexpr int kRanks = 8;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kMaxTokens = 128;
    static constexpr int kLocalExperts = 32;
    static constexpr int kTiles = 16;
    static constexpr int kShares = 4;
    static constexpr int kThreads = 256;

    struct Row {
        static constexpr int kRowBytes = 7168;
        static constexpr int kMetaBytes = 240;
        static constexpr int kXScale = 0;
        static constexpr int kSrc = 224;
        static constexpr int kSrcCount = 1;
    };

    struct Rows {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 8;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 256;
        static constexpr int kArrivals = 128;
        static constexpr int kSourceStride = 1;
        static constexpr int kShared = 32;
        static constexpr bool kCounts = true;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 7424;
        static constexpr int kMeta = 7168;
        static constexpr int kSlices = 1;
        static constexpr int kFewTokens = 0;
        static constexpr int kFarBytes = 7424;
        static constexpr int kRun = 8;
        static constexpr int kOnce = 0;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 8;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kClosed = 0x1d000000;
        static constexpr ep::u64 kReleased = 0x1d001000;
        static constexpr ep::u64 kTaken = 0x1d001080;
        static constexpr ep::u64 kClosers = 0x1d001480;
        static constexpr ep::u64 kClosedTold = 0x1d001500;
        static constexpr ep::u64 kReleasedTold = 0x1d001500;
        static constexpr ep::u64 kFilled = 0x1d001500;
        static constexpr ep::u64 kReaders = 0x1d001500;
        static constexpr ep::u64 kWaited = 0x1d001580;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0x0;
        static constexpr ep::u64 kCountsIn = 0x0;
        static constexpr ep::u64 kCountsOut = 0x0;
        static constexpr int kCounters = 0;
    };

    struct Cast {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0x1d001600;
    };

    struct Pack {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 8;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // input x: bf16[tokens, hidden]
    const ep::bf16* x;
    ep::i64 x_stride;
    // input topk_idx: i64[tokens, topk] in -1..experts distinct
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // output packed_x: payload[local_experts, ranks * max_tokens, hidden]
    ep::e4m3* packed_x;
    float* packed_x_scale;
    ep::i64 packed_x_scale_stride;
    ep::i64 packed_x_scale_block_stride;
    // output packed_count: i32[local_experts]
    ep::i32* packed_count;
    // inout statistics: optional i32[local_experts]
    ep::i32* statistics;
    // inout wait_ns: optional i64[ranks]
    ep::i64* wait_ns;
    // inout arrived_rows: optional i32[local_experts, tiles]
    ep::i32* arrived_rows;
    // inout arrived_parts: optional i32[local_experts]
    ep::i32* arrived_parts;
    // table src_info: i32[local_experts, ranks * max_tokens]
    ep::i32* src_info;
    // table range_first: i32[local_experts, ranks]
    ep::i32* range_first;
    // table range_count: i32[local_experts, ranks]
    ep::i32* range_count;
    // the network of this rank
    const ep::Net* net;
};

/// role Cast on all blocks, one block a token
__device__ __forceinline__ void cast(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Rows, ep::NetSlotRows<Cfg::Rows>> rows(team, args.net);
    // +39  for token in tokens
    ep::Units<Cfg::Cast, 0> units(team, ep::rows_of(args.tokens, args.tokens_from) * Cfg::kTopk);
    for (int unit; (unit = units.take()) >= 0;) {
        const int token = unit / Cfg::kTopk;
        const int k = unit % Cfg::kTopk;
        // +46  let row = cast_e4m3(x[token], 128)
        // +47  for expert in topk_idx[token] where alive(owner(expert))
        const ep::i64 expert = args.topk_idx[token * args.topk_idx_stride + k];
        if (!(expert >= 0)) continue;
        if (!ep::is_alive(args.group,
            ep::i64{ep::owner<Cfg::kRanks>(expert, args.expert_begin)})) continue;
        // +48  push rows[owner(expert)] at local(expert, owner(expert)) { x: row, src: token }
        // W2: takes credit of rows, from Pack +68
        const int to = ep::owner<Cfg::kRanks>(expert, args.expert_begin);
        const int key = ep::local_expert(args.expert_begin,
            ep::owner<Cfg::kRanks>(expert, args.expert_begin), expert) * Cfg::kRanks + me;
        if (rows.reserve(to, key, token)) {
            if (rows.fills()) {
                char* slot = rows.slot();
                ep::cast_row<float>(team, slot, slot + Cfg::Rows::kMeta + Cfg::Row::kXScale, 1,
                    &args.x[token * args.x_stride], Cfg::kHidden);
                for (int i_3 = team.lane; i_3 < Cfg::Row::kSrcCount; i_3 += ep::kLanes) {
                    ep::set<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Row::kSrc, i_3, token);
                }
            }
            rows.publish();
        }
    }
    // +52  close rows
    // W1: publishes messages of rows, for Pack +68
    rows.close(team.count());
}

/// role Pack on all blocks, warps shared by (expert, source, share)
__device__ __forceinline__ void pack(const Args& args, ep::Team& team) {
    ep::SlotRowsIn<Cfg::Rows, ep::NetSlotRows<Cfg::Rows>, ep::SlotTimes<Cfg::Rows>> rows(team,
        args.net, args.wait_ns);
    for (ep::i64 unit = team.index();
        unit < ep::i64{Cfg::kLocalExperts} * Cfg::kRanks * Cfg::kShares && !team.stopped;
        unit += team.count()) {
        const int expert = static_cast<ep::i32>(unit % Cfg::kLocalExperts);
        const int source = static_cast<ep::i32>(unit / Cfg::kLocalExperts % Cfg::kRanks);
        const int share =
            static_cast<ep::i32>(unit / Cfg::kLocalExperts / Cfg::kRanks % Cfg::kShares);
        // +58  let first = rows[expert, source].base
        const int key = expert * Cfg::kRanks + source;
        const int base = rows.base(key);
        const int first = base;
        // +59  let count = rows[expert, source].count
        const int key_2 = expert * Cfg::kRanks + source;
        const int count = rows.count(key_2);
        const int count_2 = count;
        // +60  if share == 0
        if (share == 0) {
            // +61  record range_first[expert, source] = first
            if (team.leader()) {
                args.range_first[ep::i64{expert} * Cfg::kRanks + source] = first;
            }
            // +62  record range_count[expert, source] = count
            if (team.leader()) {
                args.range_count[ep::i64{expert} * Cfg::kRanks + source] = count_2;
            }
            // +63  add statistics[expert] = count
            if (args.statistics != nullptr) {
                if (team.leader()) {
                    ep::add_count(&args.statistics[expert], count_2);
                }
            }
        }
        // +65  if share == 0 && source == ranks - 1
        if (share == 0 && source == Cfg::kRanks - 1) {
            // +66  store packed_count[expert] = first + count
            if (team.leader()) {
                args.packed_count[expert] = static_cast<ep::i32>(ep::i64{first} + count_2);
            }
        }
        // +68  for message in rows[expert, source] at first where message.index % shares == share
        // W1: takes messages of rows, from Cast +52
        // W2: publishes credit of rows, for Cast +48
        const int key_3 = expert * Cfg::kRanks + source;
        const int count_3 = rows.count(key_3);
        const int first_2 = first;
        for (int turn = 0; turn < ep::ceil(count_3 - share, Cfg::kShares) && !team.stopped;
            ++turn) {
            const int row = static_cast<ep::i32>(ep::i64{first_2} + (share + turn * Cfg::kShares));
            const char* slot = rows.slot(key_3, share + turn * Cfg::kShares);
            // +69  store packed_x[expert, message.row] = message.x
            ep::copy_row<ep::e4m3, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                &args.packed_x[(ep::i64{expert} * (Cfg::kRanks * Cfg::kMaxTokens)
                    + row) * Cfg::kHidden], slot, Cfg::kHidden);
            for (int i_2 = team.lane; i_2 < ep::ceil(Cfg::kHidden, 128); i_2 += ep::kLanes) {
                args.packed_x_scale[expert * (ep::i64{Cfg::kRanks * Cfg::kMaxTokens} * ep::ceil(
                    Cfg::kHidden, 128)) + row * args.packed_x_scale_stride
                    + i_2 * args.packed_x_scale_block_stride] =
                    ep::get<float>(slot + Cfg::Rows::kMeta + Cfg::Row::kXScale, i_2);
            }
            // +70  record src_info[expert, message.row] = message.src
            if (team.leader()) {
                args.src_info[ep::i64{expert} * (Cfg::kRanks * Cfg::kMaxTokens) + row] =
                    ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Row::kSrc, 0);
            }
            // +71  raise arrived_rows[expert, message.row / 64]
            if (args.arrived_rows != nullptr) {
                ep::raise_word(team,
                    &args.arrived_rows[ep::i64{expert} * Cfg::kTiles + ep::i64{row} / 64]);
            }
        }
        // +73  raise arrived_parts[expert]
        if (args.arrived_parts != nullptr) {
            ep::raise_word(team, &args.arrived_parts[expert]);
        }
    }
    rows.release();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
low_latency_dispatch_send(const __grid_constant__ Args args) {
    ep::Call call = ep::enter(args.group);

    // The call goes on in the next phase.
    call.ends = false;

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Cast::kFirstWarp, Cfg::Cast::kWarps)) {
        ep::Team team(args.group, call, Cfg::Cast::kRole, block, blocks,
            warp - Cfg::Cast::kFirstWarp, Cfg::Cast::kWarps);
        cast(args, team);
    }
    ep::leave(args.group, call);
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
low_latency_dispatch_recv(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Pack::kFirstWarp, Cfg::Pack::kWarps)) {
        ep::Team team(args.group, call, Cfg::Pack::kRole, block, blocks,
            warp - Cfg::Pack::kFirstWarp, Cfg::Pack::kWarps);
        pack(args, team);
    }
    ep::leave(args.group, call);
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
low_latency_dispatch(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    // Phase send.
    if (ep::is_between(warp, Cfg::Cast::kFirstWarp, Cfg::Cast::kWarps)) {
        ep::Team team(args.group, call, Cfg::Cast::kRole, block, blocks,
            warp - Cfg::Cast::kFirstWarp, Cfg::Cast::kWarps);
        cast(args, team);
    }

    // Phase recv.
    if (ep::is_between(warp, Cfg::Pack::kFirstWarp, Cfg::Pack::kWarps)) {
        ep::Team team(args.group, call, Cfg::Pack::kRole, block, blocks,
            warp - Cfg::Pack::kFirstWarp, Cfg::Pack::kWarps);
        pack(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace low_latency_dispatch
