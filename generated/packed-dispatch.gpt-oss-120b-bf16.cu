// packed-dispatch  payload=bf16  via=direct
// choices=4 experts=128 hidden=2880 local_experts=32 local_ranks=4 max_rows=512 max_tokens=128 nodes=1 piece=3584 ranks=4 sends=128 topk=4 words=64
// sm_80: 384 threads and 2736 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Dispatch: 12 warps on all blocks; composed: ep::PieceMover, ep::SlotChannel, ep::PackedOut, ep::PackedIn
//
// Window, the same on every rank:
//   counts.slots     0x00000000       3072 bytes  2 epochs x 4 slots x 384; Dispatch writes, Dispatch reads
//   rows.ready       0x00000c00        128 bytes  2 calls x 4 peers x 16; Dispatch writes, Dispatch reads
//   rows.records     0x00000c80      53248 bytes  512 rows x 13 x 8; Dispatch writes, Dispatch reads
//   rows.told        0x0000dc80       4096 bytes  4 peers x 128 rows x 1 pieces x 8; Dispatch writes, Dispatch reads
//   rows.as_words    0x0000ec80    1589248 bytes  2 calls x 4 peers x 16 rows x 12416; Dispatch writes, Dispatch reads
// Message Totals: meta record of 288 bytes: per_rank[4] at 0, per_expert[32] at 32
// Message Token: row of 5760 bytes, meta record of 128 bytes: src[1] at 0, experts[4] at 4, turns[4] at 20, weights[4] at 36
#include <ep/compute.cuh>
#include <ep/made.cuh>
#include <ep/mover.cuh>
#include <ep/one_launch.cuh>
#include <ep/packed.cuh>
#include <ep/slots.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace packed_dispatch {

struct Cfg {
    static constexpr int kRanks = 4;
    static constexpr int kHidden = 2880;
    static constexpr int kTopk = 4;
    static constexpr int kExperts = 128;
    static constexpr int kLocalExperts = 32;
    static constexpr int kMaxRows = 512;
    static constexpr int kThreads = 384;
    static constexpr int kSharedBytes = 2736;

    struct Totals {
        static constexpr int kMetaBytes = 288;
        static constexpr int kPerRank = 0;
        static constexpr int kPerRankCount = 4;
        static constexpr int kPerExpert = 32;
        static constexpr int kPerExpertCount = 32;
    };

    struct Token {
        static constexpr int kRowBytes = 5760;
        static constexpr int kMetaBytes = 128;
        static constexpr int kSrc = 0;
        static constexpr int kSrcCount = 1;
        static constexpr int kExperts = 4;
        static constexpr int kExpertsCount = 4;
        static constexpr int kTurns_ = 20;
        static constexpr int kWeights = 36;
        static constexpr int kWeightsCount = 4;
    };

    struct Counts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 4;
        static constexpr int kEpochs = 2;
        static constexpr int kWords = 36;
        static constexpr bool kSkipsOwn = false;
        static constexpr int kSlotBytes = 384;
        static constexpr ep::u64 kSlots = 0x0;
    };

    struct Rows {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 4;
        static constexpr int kSenders = 128;
        static constexpr int kRowStride = 5760;
        static constexpr int kRecordWords = 13;
        static constexpr int kFewTokens = 16;
        static constexpr int kWholeRowBytes = 5760;
        static constexpr int kWordRowBytes = 12416;
        static constexpr ep::u64 kReady = 0xc00;
        static constexpr ep::u64 kRecords = 0xc80;
        static constexpr ep::u64 kTold = 0xdc80;
        static constexpr ep::u64 kAsWords = 0xec80;
    };

    struct Dispatch {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 12;
        static constexpr int kRanks = 4;
        static constexpr int kTokenWords = 4;
        static constexpr int kValues = 128;
        static constexpr int kCountWords = 36;
        static constexpr bool kEarly = false;
        static constexpr bool kTma = false;
        static constexpr int kStages = 1;
        static constexpr int kPieceBytes = 7168;
        static constexpr int kRowBytes = 5760;
        static constexpr int kMetaBytes = 128;
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
    ep::bf16* packed_x;
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
    // output came: payload[max_rows, hidden] in window
    ep::bf16* came;
    ep::i64 came_stride;
    ep::u64 came_at;
    // table rank_prefix: i32[ranks + 1, ranks]
    ep::i32* rank_prefix;
    // table recv_src: i32[max_rows]
    ep::i32* recv_src;
    // table send_row: i32[tokens, ranks]
    ep::i32* send_row;
    // table send_turn: i32[tokens, topk]
    ep::i32* send_turn;
    // where the meta records of channel `rows` are in the window
    ep::u64 rows_meta_at;
};

struct Smem {
    ep::RouteSmem<Cfg::Dispatch> routes;
    ep::MoverSmem<Cfg::Dispatch> dispatch[Cfg::Dispatch::kWarps];
};
static_assert(sizeof(Smem) == Cfg::kSharedBytes, "the plan counts the same bytes");

/// What the last block of Dispatch records
__device__ __forceinline__ void dispatch_tables(const Args& args, Smem& smem, ep::Team& team) {
    const int tokens = ep::rows_of(args.tokens, args.tokens_from);
    ep::RouteCounts<Cfg::Counts, Cfg::Dispatch> counts(team, smem.routes);
    // +52  for peer in ranks
    // +52  record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer) as
    //     i32)
    for (int i = team.index() * ep::kLanes + team.lane; i < Cfg::kRanks && !team.stopped;
        i += team.count() * ep::kLanes) {
        args.tokens_per_rank[i] = smem.routes.tokens_to(i, tokens);
    }
    // +52  for expert in experts
    // +52  record tokens_per_expert[expert] = sum(token in tokens: listed(topk_idx[token], expert)
    //     as i32)
    for (int i = team.index() * ep::kLanes + team.lane; i < Cfg::kExperts && !team.stopped;
        i += team.count() * ep::kLanes) {
        args.tokens_per_expert[i] = smem.routes.chosen[i];
    }
    // +52  await counts
    // W1: takes messages of counts, from Dispatch +52
    counts.await();
    // +52  for dest in ranks
    for (int dest = team.index(); dest < Cfg::kRanks && !team.stopped; dest += team.count()) {
        // +52  record rank_prefix[source, dest] = prefix_sum(source in ranks:
        //     counts[source].per_rank[dest])
        ep::prefix_sum_and_total(Cfg::kRanks,
            [&](int source) {
                return ep::get<ep::i32>(counts.from(source) + Cfg::Totals::kPerRank, dest);
            },
            [&](int source, ep::i32 sum) {
                args.rank_prefix[source * Cfg::kRanks + dest] = sum;
        });
    }
    // +56  for expert in local_experts
    for (int expert = team.index() * ep::kLanes + team.lane;
        expert < Cfg::kLocalExperts && !team.stopped; expert += team.count() * ep::kLanes) {
        // +57  store packed_count[expert] = sum(source in ranks: counts[source].per_expert[expert])
        ep::i64 sum_2 = 0LL;
        for (int source_2 = 0; source_2 < Cfg::kRanks; ++source_2) {
            sum_2 += ep::i64{ep::get<ep::i32>(counts.from(source_2) + Cfg::Totals::kPerExpert,
                expert)};
        }
        args.packed_count[expert] = static_cast<ep::i32>(sum_2);
        // +58  add statistics[expert] = sum(source in ranks: counts[source].per_expert[expert])
        if (args.statistics != nullptr) {
            ep::i64 sum_3 = 0LL;
            for (int source_3 = 0; source_3 < Cfg::kRanks; ++source_3) {
                sum_3 += ep::i64{ep::get<ep::i32>(counts.from(source_3) + Cfg::Totals::kPerExpert,
                    expert)};
            }
            args.statistics[expert] = static_cast<ep::i32>(args.statistics[expert] + sum_3);
        }
        // +59  for source in ranks
        for (int source_4 = 0; source_4 < Cfg::kRanks; ++source_4) {
            // +60  record range_first[expert, source] = sum(earlier in 0..source:
            //     counts[earlier].per_expert[expert])
            ep::i64 sum_4 = 0LL;
            for (int earlier = 0; earlier < source_4; ++earlier) {
                sum_4 += ep::i64{ep::get<ep::i32>(counts.from(earlier) + Cfg::Totals::kPerExpert,
                    expert)};
            }
            args.range_first[ep::i64{expert} * Cfg::kRanks + source_4] =
                static_cast<ep::i32>(sum_4);
            // +61  record range_count[expert, source] = counts[source].per_expert[expert]
            args.range_count[ep::i64{expert} * Cfg::kRanks + source_4] =
                ep::get<ep::i32>(counts.from(source_4) + Cfg::Totals::kPerExpert, expert);
        }
    }
}

/// role Dispatch on all blocks, 12 warps
__device__ __forceinline__ void dispatch(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    const auto mine = ep::experts_of(args.expert_begin, me);
    const int tokens = ep::rows_of(args.tokens, args.tokens_from);
    ep::PieceMover<Cfg::Dispatch> mover(smem.dispatch[team.warp], team);
    ep::SlotChannel<Cfg::Counts> counts(team);
    ep::PackedOut<Cfg::Rows, Cfg::Dispatch> rows(team, mover, smem.routes, tokens);
    // +52  for peer in ranks (2)
    // +52  push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert,
    //     peer) }
    // W1: publishes messages of counts, for Dispatch +52
    if (team.block == 0) {
        for (int peer = team.warp; peer < Cfg::kRanks && !team.stopped; peer += team.warps) {
            ep::put<ep::i32>(counts.to(peer) + Cfg::Totals::kPerRank, Cfg::Totals::kPerRankCount,
                [&](int i) { return smem.routes.tokens_to(i, tokens); });
        }
    }
    if (team.block == team.blocks - 1) {
        for (int peer = team.warp; peer < Cfg::kRanks && !team.stopped; peer += team.warps) {
            const auto theirs = ep::experts_of(args.expert_begin, peer);
            ep::put<ep::i32>(counts.to(peer) + Cfg::Totals::kPerExpert,
                Cfg::Totals::kPerExpertCount,
                [&](int i) {
                    return i < theirs.count ? smem.routes.chosen[theirs.first + i] : 0;
            });
        }
    }
    // The first row is loaded while the counts travel.
    rows.ask([&](int token) { return &args.x[token * args.x_stride]; });
    // +64  for token in tokens
    // +71  for peer in ranks where routed(topk_idx[token], peer)
    rows.for_tokens(
        // +52  await counts
        // W1: takes messages of counts, from Dispatch +52
        [&](int source, int peer) {
            return ep::word_of(counts.from(source) + Cfg::Totals::kPerRank, peer);
        },
        [&](int token) { return &args.x[token * args.x_stride]; },
        [&](int token, char* record) {
            // +66  for choice in topk
            const int choice = team.lane < Cfg::kTopk ? team.lane : 0;
            // +67  let expert = topk_idx[token, choice]
            const ep::i64 expert = args.topk_idx[token * args.topk_idx_stride + choice];
            // +68  record send_turn[token, choice] = sum(earlier in 0..token:
            //     listed(topk_idx[earlier], expert) as i32) * (expert >= 0) as i32
            const int before =
                ep::listed_before<Cfg::kTopk>(token, expert, [&](int earlier, bool present) {
                    return ep::row_of<Cfg::kTopk>(&args.topk_idx[earlier * args.topk_idx_stride],
                        present);
                });
            const int turn =
                static_cast<ep::i32>(ep::i64{before} * static_cast<ep::i32>(expert >= 0));
            if (team.lane < Cfg::kTopk) {
                args.send_turn[ep::i64{token} * Cfg::kTopk + choice] = turn;
                ep::set<ep::i32>(record + Cfg::Token::kTurns_, choice, turn);
            }
            // +73  push rows[peer] at rank_prefix[me, peer] { x: x[token], src: token, experts:
            //     topk_idx[token], turns: send_turn[token], weights: topk_weights[token] }
            // W2: takes credit of rows, from Dispatch +87
            // W3: publishes messages of rows, for Dispatch +87
            const auto src_field =
                ep::ask<ep::i32, Cfg::Token::kSrcCount>([&](int) { return token; });
            const auto experts_field = ep::ask<ep::i32, Cfg::Token::kExpertsCount>([&](int i) {
                return args.topk_idx[token * args.topk_idx_stride + i];
            });
            const auto weights_field = ep::ask<float, Cfg::Token::kWeightsCount>([&](int i) {
                return args.topk_weights[token * args.topk_weights_stride + i];
            });
            src_field.put(record + Cfg::Token::kSrc);
            experts_field.put(record + Cfg::Token::kExperts);
            weights_field.put(record + Cfg::Token::kWeights);
        },
        [&](int token, int peer, bool match, int position) {
            // +84  record send_row[token, peer] = rows[peer].position
            args.send_row[ep::i64{token} * Cfg::kRanks + peer] = ep::recorded(match, position);
    });
    // The last block sends no rows, if it is not the only one.
    if (team.block == team.blocks - 1) {
        ep::Team last(ep::of_block(team));
        dispatch_tables(args, smem, last);
        team.stopped = last.stopped;
    }
    ep::PackedIn<Cfg::Rows, Cfg::Dispatch> rows_in(team, mover.meta(), tokens, args.came_at);
    rows_in.open([&](int source) {
        return ep::word_of(counts.from(source) + Cfg::Totals::kPerRank, me);
    });
    // +87  for message in rows
    // W2: publishes credit of rows, for Dispatch +73
    // W3: takes messages of rows, from Dispatch +73
    rows_in.for_places<Cfg::kTopk>(
        [&](const ep::OnceMessage& message) {
            const auto recv_src_field = ep::ask<ep::i32, 1>([&](int) {
                return ep::get<ep::i32>(message.record + Cfg::Token::kSrc, 0);
            });
            // +88  store came[message.row] = message.x
            // The sender has stored it in place.
            // +89  record recv_src[message.row] = message.src
            recv_src_field.each([&](int, ep::i32 element) {
                args.recv_src[message.row] = element;
            });
        },
        // +90  for choice in topk
        // +96  let place = sum(earlier in 0..message.source: counts[earlier].per_expert[expert *
        //     has]) + message.turns[choice]
        [&](int, int, char* record, int choice) {
            // +91  let expert = local(message.experts[choice], me)
            const int expert = mine.local(ep::get<ep::i32>(record + Cfg::Token::kExperts, choice));
            // +93  let again = sum(earlier in topk: (earlier < choice && message.experts[earlier]
            //     == message.experts[choice]) as i32)
            ep::i64 sum = 0LL;
            for (int earlier = 0; earlier < Cfg::kTopk; ++earlier) {
                sum += ep::i64{static_cast<ep::i32>(earlier < choice
                    && ep::get<ep::i32>(record + Cfg::Token::kExperts,
                        earlier) == ep::get<ep::i32>(record + Cfg::Token::kExperts, choice))};
            }
            const ep::i64 again = sum;
            // +95  let has = (expert >= 0 && again == 0) as i32
            const int has = static_cast<ep::i32>(expert >= 0 && again == 0);
            return static_cast<ep::i32>(ep::i64{expert} * has);
        },
        // +52  await counts
        // W1: takes messages of counts, from Dispatch +52
        [&](int source, int list) {
            return ep::word_of(counts.from(source) + Cfg::Totals::kPerExpert, list);
        },
        [&](int row, int, char* record, int choice, int ahead, bool used, bool once) {
            // +91  let expert = local(message.experts[choice], me)
            const int expert = mine.local(ep::get<ep::i32>(record + Cfg::Token::kExperts, choice));
            // +93  let again = sum(earlier in topk: (earlier < choice && message.experts[earlier]
            //     == message.experts[choice]) as i32)
            ep::i64 sum = 0LL;
            for (int earlier = 0; earlier < Cfg::kTopk; ++earlier) {
                sum += ep::i64{static_cast<ep::i32>(earlier < choice
                    && ep::get<ep::i32>(record + Cfg::Token::kExperts,
                        earlier) == ep::get<ep::i32>(record + Cfg::Token::kExperts, choice))};
            }
            const ep::i64 again = sum;
            // +95  let has = (expert >= 0 && again == 0) as i32
            const int has = static_cast<ep::i32>(expert >= 0 && again == 0);
            // +96  let place = sum(earlier in 0..message.source: counts[earlier].per_expert[expert
            //     * has]) + message.turns[choice]
            const int place = static_cast<ep::i32>(ep::i64{ahead}
                + ep::get<ep::i32>(record + Cfg::Token::kTurns_, choice));
            // +99  if expert >= 0 && again == 0
            const bool match = used && (expert >= 0 && again == 0);
            // +103  store packed_x[expert, place] = message.x
            rows_in.copy(match,
                &args.packed_x[(ep::i64{expert} * Cfg::kMaxRows + place) * Cfg::kHidden]);
            if (once) {
                if (used) {
                    // +98  record packed_row[message.row, choice] = (expert * max_rows + place + 1)
                    //     * has - 1
                    args.packed_row[ep::i64{row} * Cfg::kTopk + choice] = static_cast<ep::i32>(
                        (ep::i64{expert} * Cfg::kMaxRows + place + 1) * has - 1);
                }
                if (match) {
                    // +100  record src_info[expert, place] = message.src
                    args.src_info[ep::i64{expert} * Cfg::kMaxRows + place] =
                        ep::get<ep::i32>(record + Cfg::Token::kSrc, 0);
                    // +101  record packed_weight[expert * max_rows + place] = sum(entry in topk:
                    //     message.weights[entry] * (message.experts[entry] ==
                    //     message.experts[choice]) as f32)
                    if (args.topk_weights != nullptr) {
                        float sum_2 = 0.0f;
                        for (int entry = 0; entry < Cfg::kTopk; ++entry) {
                            sum_2 += ep::product(
                                ep::get<float>(record + Cfg::Token::kWeights, entry),
                                static_cast<float>(
                                    ep::get<ep::i32>(record + Cfg::Token::kExperts,
                                        entry) == ep::get<ep::i32>(record + Cfg::Token::kExperts,
                                        choice)));
                        }
                        args.packed_weight[ep::i64{expert} * Cfg::kMaxRows + place] = sum_2;
                    }
                }
            }
    });
    mover.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
packed_dispatch(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        const int tokens = ep::rows_of(args.tokens, args.tokens_from);
        ep::once_offer<Cfg::Rows>(args.group, args.came_at, tokens);
        // +52  for peer in ranks
        // +52  record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer) as
        //     i32)
        // +52  for expert in experts
        // +52  record tokens_per_expert[expert] = sum(token in tokens: listed(topk_idx[token],
        //     expert) as i32)
        ep::count_routes(args.group, smem.routes, tokens,
            [&](int token, bool present) {
                return ep::route_of<Cfg::Dispatch>(
                    ep::row_of<Cfg::kTopk>(&args.topk_idx[token * args.topk_idx_stride], present),
                    args.expert_begin);
            },
            ep::values_of<true>(smem.routes, [&](int token, bool present) {
                return ep::row_of<Cfg::kTopk>(&args.topk_idx[token * args.topk_idx_stride],
                    present);
        }));
    });

    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::is_between(warp, Cfg::Dispatch::kFirstWarp, Cfg::Dispatch::kWarps)) {
        ep::Team team(args.group, call, Cfg::Dispatch::kRole, block, blocks,
            warp - Cfg::Dispatch::kFirstWarp, Cfg::Dispatch::kWarps);
        dispatch(args, smem, team);
    }
    ep::leave(args.group, call);
}
}  // namespace packed_dispatch
