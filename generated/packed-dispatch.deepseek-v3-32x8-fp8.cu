// packed-dispatch  payload=fp8  via=slots
// choices=8 experts=256 hidden=7168 local_experts=1 local_ranks=8 max_rows=32768 max_tokens=128 nodes=32 once=32 ranks=256 sends=128 shares=8 topk=8
// sm_90a: 640 threads and 0 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Count: 2 warps on all blocks; composed: ep::NetSlotsOut
//   Cast: 8 warps on all blocks; composed: ep::SlotRowsOut
//   Pack: a warp for each of choices x shares x ranks = 16384 (10 warps on all blocks); composed: ep::NetSlotsIn, ep::SlotRowsIn
//
// Window, the same on every rank:
//   counts.slots     0x00000000       2048 bytes  2 epochs x 8 slots x 128; Count writes, Pack reads
//   counts.come      0x00000800         32 bytes  8 peers x 4; Count writes, Pack reads
//   counts.released  0x00000880         32 bytes  8 peers x 4; Pack writes, Count reads
//   counts.readers   0x00000900          4 bytes  1 word x 4; Pack writes, Pack reads
//   rows.slots       0x00000980   15466496 bytes  2 epochs x 8 x 128 slots x 7552; Cast writes, Pack reads
//   rows.closed      0x00ec0980        128 bytes  2 epochs x 8 peers x 1 x 8; Cast writes, Pack reads
//   rows.released    0x00ec0a00         32 bytes  8 peers x 4; Pack writes, Cast reads
//   rows.taken       0x00ec0a80       1024 bytes  256 peers x 1 x 4; Cast writes, Cast reads
//   rows.closers     0x00ec0e80          4 bytes  1 word x 4; Cast writes, Cast reads
//   rows.closed_told 0x00ec0f00        992 bytes  248 peers x 4; Cast writes, Cast reads
//   rows.released_told 0x00ec1300        992 bytes  248 peers x 4; Pack writes, Pack reads
//   rows.filled      0x00ec1700        512 bytes  128 messages x 4; Cast writes, Cast reads
//   rows.readers     0x00ec1900          4 bytes  1 word x 4; Pack writes, Pack reads
//   Count.claims     0x00ec1980         16 bytes  2 calls x 2 words x 4; Count writes, Count reads
//   Cast.claims      0x00ec1a00          8 bytes  2 calls x 1 words x 4; Cast writes, Cast reads
//
// Network, the same on every rank:
//   counts.inbox     0x00000000      63488 bytes  2 epochs x 248 peers x 128; Count writes, Pack reads
//   counts.outbox    0x0000f800      63488 bytes  2 epochs x 248 peers x 128; Count writes, Count reads
//   rows.inbox       0x0001f000  479461376 bytes  2 epochs x 248 peers x 128 slots x 7552; Cast writes, Pack reads
//   rows.outbox      0x1c95f000    1933312 bytes  2 epochs x 128 messages x 7552; Cast writes, Cast reads
//   rows.counts_in   0x1cb37000       1984 bytes  2 epochs x 248 peers x 1 x 4; Cast writes, Pack reads
//   rows.counts_out  0x1cb37800       1984 bytes  2 epochs x 248 peers x 1 x 4; Cast writes, Cast reads
// Message Totals: meta record of 16 bytes: rows[1] at 0, per_expert[1] at 4
// Message Token: row of 7168 bytes, meta record of 368 bytes: x_scale[56] at 0, src[1] at 224, experts[8] at 228, places[8] at 260, turns[8] at 292, weights[8] at 324
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/net_slot_rows.cuh>
#include <ep/net_slots.cuh>
#include <ep/slot_rows.cuh>
#include <ep/wide.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace packed_dispatch {

struct Cfg {
    static constexpr int kRanks = 256;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kLocalExperts = 1;
    static constexpr int kMaxRows = 32768;
    static constexpr int kSends = 128;
    static constexpr int kChoices = 8;
    static constexpr int kShares = 8;
    static constexpr int kThreads = 640;

    struct Totals {
        static constexpr int kMetaBytes = 16;
        static constexpr int kRows = 0;
        static constexpr int kRowsCount = 1;
        static constexpr int kPerExpert = 4;
        static constexpr int kPerExpertCount = 1;
    };

    struct Token {
        static constexpr int kRowBytes = 7168;
        static constexpr int kMetaBytes = 368;
        static constexpr int kXScale = 0;
        static constexpr int kSrc = 224;
        static constexpr int kSrcCount = 1;
        static constexpr int kExperts = 228;
        static constexpr int kExpertsCount = 8;
        static constexpr int kPlaces = 260;
        static constexpr int kPlacesCount = 8;
        static constexpr int kTurns_ = 292;
        static constexpr int kTurns_Count = 8;
        static constexpr int kWeights = 324;
        static constexpr int kWeightsCount = 8;
    };

    struct Counts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 256;
        static constexpr int kEpochs = 2;
        static constexpr bool kSkipsOwn = false;
        static constexpr int kSlotBytes = 128;
        static constexpr int kMeta = 0;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 8;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x0;
        static constexpr ep::u64 kCome = 0x800;
        static constexpr ep::u64 kReleased = 0x880;
        static constexpr ep::u64 kReaders = 0x900;
        static constexpr ep::u64 kInbox = 0x0;
        static constexpr ep::u64 kOutbox = 0xf800;
        static constexpr int kCounters = 0;
    };

    struct Rows {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 256;
        static constexpr int kEpochs = 2;
        static constexpr int kKeys = 256;
        static constexpr int kArrivals = 128;
        static constexpr int kSourceStride = 1;
        static constexpr int kShared = 1;
        static constexpr bool kCounts = true;
        static constexpr bool kSkipsOwn = false;
        static constexpr bool kSkipsAbsent = false;
        static constexpr int kSlotBytes = 7552;
        static constexpr int kMeta = 7168;
        static constexpr int kSlices = 1;
        static constexpr int kFewTokens = 0;
        static constexpr int kFarBytes = 7552;
        static constexpr int kRun = 1;
        static constexpr int kOnce = 128;
        static constexpr bool kRail = false;
        static constexpr int kNodeRanks = 8;
        static constexpr int kNear = 8;
        static constexpr bool kIbgda = false;
        static constexpr ep::u64 kSlots = 0x980;
        static constexpr ep::u64 kClosed = 0xec0980;
        static constexpr ep::u64 kReleased = 0xec0a00;
        static constexpr ep::u64 kTaken = 0xec0a80;
        static constexpr ep::u64 kClosers = 0xec0e80;
        static constexpr ep::u64 kClosedTold = 0xec0f00;
        static constexpr ep::u64 kReleasedTold = 0xec1300;
        static constexpr ep::u64 kFilled = 0xec1700;
        static constexpr ep::u64 kReaders = 0xec1900;
        static constexpr ep::u64 kInbox = 0x1f000;
        static constexpr ep::u64 kOutbox = 0x1c95f000;
        static constexpr ep::u64 kCountsIn = 0x1cb37000;
        static constexpr ep::u64 kCountsOut = 0x1cb37800;
        static constexpr int kCounters = 2;
    };

    struct Count {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 2;
        static constexpr int kLoops = 2;
        static constexpr ep::u64 kClaims = 0xec1980;
    };

    struct Cast {
        static constexpr int kRole = 1;
        static constexpr int kFirstWarp = 2;
        static constexpr int kWarps = 8;
        static constexpr int kLoops = 1;
        static constexpr ep::u64 kClaims = 0xec1a00;
    };

    struct Pack {
        static constexpr int kRole = 2;
        static constexpr int kFirstWarp = 10;
        static constexpr int kWarps = 10;
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
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: optional f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // output packed_x: payload[local_experts, max_rows, hidden]
    ep::e4m3* packed_x;
    float* packed_x_scale;
    ep::i64 packed_x_scale_stride;
    ep::i64 packed_x_scale_block_stride;
    // output packed_count: i32[local_experts]
    ep::i32* packed_count;
    // inout statistics: optional i32[local_experts]
    ep::i32* statistics;
    // table src_info: i32[local_experts, max_rows]
    ep::i32* src_info;
    // table range_first: i32[local_experts, ranks]
    ep::i32* range_first;
    // table range_count: i32[local_experts, ranks]
    ep::i32* range_count;
    // table tokens_per_rank: i32[ranks]
    ep::i32* tokens_per_rank;
    // table tokens_per_expert: i32[experts]
    ep::i32* tokens_per_expert;
    // table packed_row: i32[max_rows, topk]
    ep::i32* packed_row;
    // table packed_weight: f32[local_experts * max_rows]
    float* packed_weight;
    // table came_first: i32[ranks + 1]
    ep::i32* came_first;
    // table send_place: i32[tokens, ranks]
    ep::i32* send_place;
    // table places: i32[tokens, topk]
    ep::i32* places;
    // table turns: i32[tokens, topk]
    ep::i32* turns;
    // the network of this rank
    const ep::Net* net;
};

/// role Count on all blocks, 2 warps
__device__ __forceinline__ void count(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::NetSlotsOut<Cfg::Counts> counts(team, args.net);
    // +138  for peer in ranks
    for (int peer = team.index(); peer < Cfg::kRanks && !team.stopped; peer += team.count()) {
        // +139  record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer)
        //     as i32)
        __syncwarp();
        const int first_expert = args.expert_begin[peer];
        const int next_expert = args.expert_begin[peer + 1];
        const ep::i64 sum =
            ep::rows_with<Cfg::kTopk>(0LL, ep::i64{ep::rows_of(args.tokens, args.tokens_from)},
            [&](ep::i64 token, int k) {
                return args.topk_idx[token * args.topk_idx_stride + k] >= first_expert
                    && args.topk_idx[token * args.topk_idx_stride + k] < next_expert;
        });
        if (team.leader()) {
            args.tokens_per_rank[peer] = static_cast<ep::i32>(sum);
        }
        __syncwarp();
    }
    // +141  for expert in experts
    for (int expert = team.index(); expert < Cfg::kExperts && !team.stopped;
        expert += team.count()) {
        // +142  record tokens_per_expert[expert] = sum(token in tokens: listed(topk_idx[token],
        //     expert) as i32)
        __syncwarp();
        const ep::i64 sum_2 =
            ep::rows_with<Cfg::kTopk>(0LL, ep::i64{ep::rows_of(args.tokens, args.tokens_from)},
            [&](ep::i64 token_2, int k_2) {
                return args.topk_idx[token_2 * args.topk_idx_stride + k_2] == expert;
        });
        if (team.leader()) {
            args.tokens_per_expert[expert] = static_cast<ep::i32>(sum_2);
        }
        __syncwarp();
    }
    ep::meet<Cfg::Count, 0>(team);
    // +144  for peer in ranks
    ep::Units<Cfg::Count, 1> units(team, Cfg::kRanks);
    for (int peer_2; (peer_2 = units.take()) >= 0;) {
        // +145  push counts[peer] { rows: tokens_per_rank[peer], per_expert:
        //     owned(tokens_per_expert, peer) }
        // W1: publishes messages of counts, for Pack +179
        // W2: takes credit of counts, from Pack +179
        if (counts.reserve(peer_2, me)) {
            char* slot = counts.slot();
            for (int i = team.lane; i < Cfg::Totals::kRowsCount; i += ep::kLanes) {
                ep::set<ep::i32>(slot + Cfg::Counts::kMeta + Cfg::Totals::kRows, i,
                    args.tokens_per_rank[peer_2]);
            }
            for (int i_2 = team.lane; i_2 < Cfg::Totals::kPerExpertCount; i_2 += ep::kLanes) {
                const int first_expert_2 = args.expert_begin[peer_2];
                const ep::i64 expert_2 = ep::i64{first_expert_2} + i_2;
                ep::set<ep::i32>(slot + Cfg::Counts::kMeta + Cfg::Totals::kPerExpert, i_2,
                    expert_2 < args.expert_begin[peer_2 + 1] ? args.tokens_per_expert[expert_2]
                        : 0);
            }
            counts.publish();
        }
    }
}

/// role Cast on all blocks, 8 warps, warps shared by send
__device__ __forceinline__ void cast(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    ep::SlotRowsOut<Cfg::Rows, ep::NetSlotRows<Cfg::Rows>> rows(team, args.net);
    ep::Units<Cfg::Cast, 0> units(team, Cfg::kSends);
    for (int unit; (unit = units.take()) >= 0;) {
        const int send = static_cast<ep::i32>(ep::i64{unit} % Cfg::kSends);
        // +150  for token in send..min(send + 1, tokens)
        const ep::i64 token_end =
            ep::min(ep::i64{send + 1}, ep::i64{ep::rows_of(args.tokens, args.tokens_from)});
        for (ep::i64 token = send; token < token_end && !team.stopped; ++token) {
            // +151  for peer in ranks
            for (int first_2 = 0; first_2 < Cfg::kRanks; first_2 += ep::kLanes) {
                const int turn = first_2 + team.lane;
                const int peer =
                    static_cast<ep::i32>(ep::min(ep::i64{turn}, ep::i64{Cfg::kRanks - 1}));
                // +152  let place = sum(earlier in 0..send: routed(topk_idx[earlier], peer) as i32)
                const int first_expert = args.expert_begin[peer];
                const int next_expert = args.expert_begin[peer + 1];
                const ep::i64 sum =
                    ep::rows_with_each<Cfg::kTopk>(0LL, ep::i64{send}, Cfg::kRanks - first_2,
                    [&](ep::i64 earlier, int k, ep::i32 first_expert, ep::i32 next_expert) {
                        return args.topk_idx[earlier * args.topk_idx_stride + k] >= first_expert
                            && args.topk_idx[earlier * args.topk_idx_stride + k] < next_expert;
                    },
                    first_expert, next_expert);
                if (turn < Cfg::kRanks) {
                    const ep::i64 place = sum;
                    // +153  record send_place[send, peer] = if routed(topk_idx[send], peer) { place
                    //     } else { -1 }
                    const int first_expert_2 = args.expert_begin[peer];
                    const int next_expert_2 = args.expert_begin[peer + 1];
                    bool found_2 = false;
                    for (int k_2 = 0; k_2 < Cfg::kTopk; ++k_2) {
                        const bool here_2 = args.topk_idx[send * args.topk_idx_stride
                            + k_2] >= first_expert_2
                            && args.topk_idx[send * args.topk_idx_stride + k_2] < next_expert_2;
                        found_2 = found_2 || here_2;
                    }
                    args.send_place[ep::i64{send} * Cfg::kRanks + peer] =
                        static_cast<ep::i32>(found_2 ? place : -1LL);
                }
            }
            __syncwarp();
            // +155  for choice in topk
            for (int first_3 = 0; first_3 < Cfg::kTopk; first_3 += ep::kLanes) {
                const int turn_2 = first_3 + team.lane;
                const int choice =
                    static_cast<ep::i32>(ep::min(ep::i64{turn_2}, ep::i64{Cfg::kTopk - 1}));
                // +156  let expert = topk_idx[send, choice]
                const ep::i64 expert = args.topk_idx[send * args.topk_idx_stride + choice];
                // +157  record turns[send, choice] = sum(earlier in 0..send:
                //     listed(topk_idx[earlier], expert) as i32) * (expert >= 0) as i32
                const ep::i64 sum_2 =
                    ep::rows_with_each<Cfg::kTopk>(0LL, ep::i64{send}, Cfg::kTopk - first_3,
                    [&](ep::i64 earlier_2, int k_3, ep::i64 expert) {
                        return args.topk_idx[earlier_2 * args.topk_idx_stride + k_3] == expert;
                    },
                    expert);
                if (turn_2 < Cfg::kTopk) {
                    args.turns[ep::i64{send} * Cfg::kTopk + choice] =
                        static_cast<ep::i32>(sum_2 * static_cast<ep::i32>(expert >= 0));
                    // +159  record places[send, choice] = if expert >= 0 { send_place[send,
                    //     owner(expert)] } else { -1 }
                    args.places[ep::i64{send} * Cfg::kTopk + choice] = expert >= 0
                        ? args.send_place[ep::i64{send} * Cfg::kRanks
                            + ep::owner<Cfg::kRanks>(expert, args.expert_begin)] : -1;
                }
            }
            __syncwarp();
            // +161  for peer in ranks where routed(topk_idx[send], peer)
            for (int wanted = team.lane; wanted < Cfg::kRanks; wanted += ep::kLanes) {
                const int first_expert_3 = args.expert_begin[wanted];
                const int next_expert_3 = args.expert_begin[wanted + 1];
                bool found_4 = false;
                for (int k_4 = 0; k_4 < Cfg::kTopk; ++k_4) {
                    const bool here_4 = args.topk_idx[send * args.topk_idx_stride
                        + k_4] >= first_expert_3
                        && args.topk_idx[send * args.topk_idx_stride + k_4] < next_expert_3;
                    found_4 = found_4 || here_4;
                }
                if (!found_4) continue;
                rows.want(wanted);
            }
            // +169  push rows[peer] { x: cast_e4m3(x[send], 128), src: send, experts:
            //     topk_idx[send], places: places[send], turns: turns[send], weights:
            //     topk_weights[send] }
            // W4: takes credit of rows, from Pack +195
            while (rows.reserve_wanted(me, send)) {
                const auto slots = rows.each_slot();
                ep::cast_row<float>(team, slots, slots + Cfg::Rows::kMeta + Cfg::Token::kXScale, 1,
                    &args.x[send * args.x_stride], Cfg::kHidden);
                ep::copy_row<ep::i32, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                    slots + Cfg::Rows::kMeta + Cfg::Token::kPlaces,
                    &args.places[ep::i64{send} * Cfg::kTopk], Cfg::Token::kPlacesCount);
                ep::copy_row<ep::i32, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                    slots + Cfg::Rows::kMeta + Cfg::Token::kTurns_,
                    &args.turns[ep::i64{send} * Cfg::kTopk], Cfg::Token::kTurns_Count);
                ep::copy_row<float, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                    slots + Cfg::Rows::kMeta + Cfg::Token::kWeights,
                    &args.topk_weights[send * args.topk_weights_stride], Cfg::Token::kWeightsCount);
                for (int peer_2; (peer_2 = rows.next()) >= 0;) {
                    char* slot = rows.slot_of_next();
                    for (int i_3 = team.lane; i_3 < Cfg::Token::kSrcCount; i_3 += ep::kLanes) {
                        ep::set<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kSrc, i_3, send);
                    }
                    for (int i_4 = team.lane; i_4 < Cfg::Token::kExpertsCount; i_4 += ep::kLanes) {
                        ep::set<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kExperts, i_4,
                            static_cast<ep::i32>(args.topk_idx[send * args.topk_idx_stride + i_4]));
                    }
                }
                rows.publish_each();
            }
        }
    }
    // +176  close rows
    // W3: publishes messages of rows, for Pack +195
    rows.close(team.count());
}

/// role Pack on all blocks, 10 warps, warps shared by (choice, share, source)
__device__ __forceinline__ void pack(const Args& args, ep::Team& team) {
    const int me = args.group.rank;
    const auto mine = ep::experts_of(args.expert_begin, me);
    ep::NetSlotsIn<Cfg::Counts> counts(team, args.net);
    ep::SlotRowsIn<Cfg::Rows, ep::NetSlotRows<Cfg::Rows>> rows(team, args.net);
    for (ep::i64 unit = team.index();
        unit < ep::i64{Cfg::kChoices} * Cfg::kShares * Cfg::kRanks && !team.stopped;
        unit += team.count()) {
        const int choice = static_cast<ep::i32>(unit % Cfg::kChoices);
        const int share = static_cast<ep::i32>(unit / Cfg::kChoices % Cfg::kShares);
        const int source = static_cast<ep::i32>(unit / Cfg::kChoices / Cfg::kShares % Cfg::kRanks);
        // +179  await counts
        // W1: takes messages of counts, from Count +145
        // W2: publishes credit of counts, for Count +145
        counts.await();
        // +180  if choice == 0 && share == 0
        if (choice == 0 && share == 0) {
            // +181  if source == 0
            if (source == 0) {
                // +182  for bound in 0..ranks + 1
                for (int bound = team.lane; bound < Cfg::kRanks + 1; bound += ep::kLanes) {
                    // +183  record came_first[bound] = sum(earlier in 0..bound:
                    //     counts[earlier].rows)
                    ep::i64 sum = 0LL;
                    for (int earlier = 0; earlier < bound; ++earlier) {
                        sum += ep::i64{ep::get<ep::i32>(counts.slot(earlier, 0) + Cfg::Counts::kMeta
                            + Cfg::Totals::kRows, 0)};
                    }
                    args.came_first[bound] = static_cast<ep::i32>(sum);
                }
            }
            // +186  for expert in local_experts
            for (int expert = team.lane; expert < Cfg::kLocalExperts; expert += ep::kLanes) {
                // +187  record range_first[expert, source] = sum(earlier in 0..source:
                //     counts[earlier].per_expert[expert])
                ep::i64 sum_2 = 0LL;
                for (int earlier_2 = 0; earlier_2 < source; ++earlier_2) {
                    sum_2 += ep::i64{ep::get<ep::i32>(counts.slot(earlier_2, 0) + Cfg::Counts::kMeta
                        + Cfg::Totals::kPerExpert, expert)};
                }
                args.range_first[ep::i64{expert} * Cfg::kRanks + source] =
                    static_cast<ep::i32>(sum_2);
                // +188  record range_count[expert, source] = counts[source].per_expert[expert]
                args.range_count[ep::i64{expert} * Cfg::kRanks + source] = ep::get<ep::i32>(
                    counts.slot(source, 0) + Cfg::Counts::kMeta + Cfg::Totals::kPerExpert, expert);
                // +189  add statistics[expert] = counts[source].per_expert[expert]
                if (args.statistics != nullptr) {
                    ep::add_count(&args.statistics[expert],
                        ep::get<ep::i32>(counts.slot(source, 0) + Cfg::Counts::kMeta
                            + Cfg::Totals::kPerExpert, expert));
                }
                // +190  if source == ranks - 1
                if (source == Cfg::kRanks - 1) {
                    // +191  store packed_count[expert] = sum(earlier in ranks:
                    //     counts[earlier].per_expert[expert])
                    ep::i64 sum_3 = 0LL;
                    for (int earlier_3 = 0; earlier_3 < Cfg::kRanks; ++earlier_3) {
                        sum_3 += ep::i64{ep::get<ep::i32>(counts.slot(earlier_3, 0)
                            + Cfg::Counts::kMeta + Cfg::Totals::kPerExpert, expert)};
                    }
                    args.packed_count[expert] = static_cast<ep::i32>(sum_3);
                }
            }
        }
        // +195  for message in rows[source] where message.index % shares == share
        // W3: takes messages of rows, from Cast +176
        // W4: publishes credit of rows, for Cast +169
        const int count = rows.count(source);
        for (int turn = 0; turn < ep::ceil(count - share, Cfg::kShares) && !team.stopped; ++turn) {
            const int row = share + turn * Cfg::kShares;
            const char* slot = rows.slot(source, share + turn * Cfg::kShares);
            // +197  let own = max(entry in topk: message.places[entry] *
            //     (local(message.experts[entry], me) >= 0) as i32)
            ep::i64 greatest = ep::least<ep::i64>();
            for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                greatest = ep::greater(greatest,
                    ep::i64{ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kPlaces,
                        entry)} * static_cast<ep::i32>(
                        mine.local(
                            ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kExperts,
                                entry)) >= 0));
            }
            const ep::i64 own = greatest;
            // +199  let row = sum(earlier in 0..source: counts[earlier].rows) + own
            ep::i64 sum_4 = 0LL;
            for (int earlier_4 = 0; earlier_4 < source; ++earlier_4) {
                sum_4 += ep::i64{ep::get<ep::i32>(counts.slot(earlier_4, 0) + Cfg::Counts::kMeta
                    + Cfg::Totals::kRows, 0)};
            }
            const ep::i64 row_2 = sum_4 + own;
            // +200  let expert = local(message.experts[choice], me)
            const int expert_2 = mine.local(
                ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kExperts, choice));
            // +202  let again = sum(earlier in topk: (earlier < choice && message.experts[earlier]
            //     == message.experts[choice]) as i32)
            ep::i64 own_2 = 0LL;
            for (int earlier_5 = team.lane; earlier_5 < Cfg::kTopk; earlier_5 += ep::kLanes) {
                own_2 += ep::i64{static_cast<ep::i32>(earlier_5 < choice
                    && ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kExperts,
                        earlier_5) == ep::get<ep::i32>(slot + Cfg::Rows::kMeta
                            + Cfg::Token::kExperts, choice))};
            }
            const ep::i64 sum_5 = ep::sum_of_lanes(own_2);
            const ep::i64 again = sum_5;
            // +204  let has = (expert >= 0 && again == 0) as i32
            const int has = static_cast<ep::i32>(expert_2 >= 0 && again == 0);
            // +205  let place = sum(earlier in 0..source: counts[earlier].per_expert[expert * has])
            //     + message.turns[choice]
            ep::i64 sum_6 = 0LL;
            for (int earlier_6 = 0; earlier_6 < source; ++earlier_6) {
                sum_6 += ep::i64{ep::get<ep::i32>(counts.slot(earlier_6, 0) + Cfg::Counts::kMeta
                    + Cfg::Totals::kPerExpert, ep::i64{expert_2} * has)};
            }
            const ep::i64 place =
                sum_6 + ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kTurns_, choice);
            // +207  record packed_row[row, choice] = (expert * max_rows + place + 1) * has - 1
            if (team.leader()) {
                args.packed_row[row_2 * Cfg::kTopk + choice] = static_cast<ep::i32>(
                    (ep::i64{expert_2} * Cfg::kMaxRows + place + 1) * has - 1);
            }
            // +208  if expert >= 0 && again == 0
            if (expert_2 >= 0 && again == 0) {
                // +209  record src_info[expert, place] = message.src
                if (team.leader()) {
                    args.src_info[ep::i64{expert_2} * Cfg::kMaxRows + place] =
                        ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kSrc, 0);
                }
                // +210  record packed_weight[expert * max_rows + place] = sum(entry in topk:
                //     message.weights[entry] * (message.experts[entry] == message.experts[choice])
                //     as f32)
                if (args.topk_weights != nullptr) {
                    float sum_7 = 0.0f;
                    for (int entry_2 = 0; entry_2 < Cfg::kTopk; ++entry_2) {
                        sum_7 += ep::product(
                            ep::get<float>(slot + Cfg::Rows::kMeta + Cfg::Token::kWeights, entry_2),
                            static_cast<float>(
                                ep::get<ep::i32>(slot + Cfg::Rows::kMeta + Cfg::Token::kExperts,
                                    entry_2) == ep::get<ep::i32>(slot + Cfg::Rows::kMeta
                                        + Cfg::Token::kExperts, choice)));
                    }
                    if (team.leader()) {
                        args.packed_weight[ep::i64{expert_2} * Cfg::kMaxRows + place] = sum_7;
                    }
                }
                // +212  store packed_x[expert, place] = message.x
                ep::copy_row<ep::e4m3, ep::kCopiedAtOnce<Cfg::kThreads>>(team,
                    &args.packed_x[(ep::i64{expert_2} * Cfg::kMaxRows + place) * Cfg::kHidden],
                    slot, Cfg::kHidden);
                for (int i_2 = team.lane; i_2 < ep::ceil(Cfg::kHidden, 128); i_2 += ep::kLanes) {
                    args.packed_x_scale[expert_2 * (ep::i64{Cfg::kMaxRows} * ep::ceil(Cfg::kHidden,
                        128)) + place * args.packed_x_scale_stride
                        + i_2 * args.packed_x_scale_block_stride] =
                        ep::get<float>(slot + Cfg::Rows::kMeta + Cfg::Token::kXScale, i_2);
                }
            }
        }
    }
    counts.release();
    rows.release();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
packed_dispatch(const __grid_constant__ Args args) {
    const ep::Call call = ep::enter(args.group);

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Count::kFirstWarp, Cfg::Count::kWarps)) {
        ep::Team team(args.group, call, Cfg::Count::kRole, block, blocks,
            warp - Cfg::Count::kFirstWarp, Cfg::Count::kWarps);
        count(args, team);
    }
    if (ep::is_between(warp, Cfg::Cast::kFirstWarp, Cfg::Cast::kWarps)) {
        ep::Team team(args.group, call, Cfg::Cast::kRole, block, blocks,
            warp - Cfg::Cast::kFirstWarp, Cfg::Cast::kWarps);
        cast(args, team);
    }
    if (ep::is_between(warp, Cfg::Pack::kFirstWarp, Cfg::Pack::kWarps)) {
        ep::Team team(args.group, call, Cfg::Pack::kRole, block, blocks,
            warp - Cfg::Pack::kFirstWarp, Cfg::Pack::kWarps);
        pack(args, team);
    }
    ep::leave(args.group, call);
}
}  // namespace packed_dispatch
