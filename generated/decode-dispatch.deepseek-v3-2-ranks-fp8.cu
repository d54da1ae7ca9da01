// decode-dispatch  payload=fp8
// early=0 experts=256 hidden=7168 local_experts=128 max_rows=1024 max_tokens=512 piece=7168 ranks=2 stages=2 topk=8 words=64
// sm_90a: 384 threads and 191232 bytes of shared memory a block, at least 1 blocks
//
// Roles:
//   Dispatch: 12 warps on all blocks; composed: ep::Mover, ep::SlotChannel, ep::OnceOut, ep::OnceIn
//
// Window, the same on every rank:
//   counts.slots     0x00000000       4608 bytes  2 epochs x 2 slots x 1152; Dispatch writes, Dispatch reads
//   rows.ready       0x00001200         64 bytes  2 calls x 2 peers x 16; Dispatch writes, Dispatch reads
//   rows.records     0x00001280     598016 bytes  1024 rows x 73 x 8; Dispatch writes, Dispatch reads
//   rows.told        0x00093280       8192 bytes  2 peers x 512 x 8; Dispatch writes, Dispatch reads
//   rows.as_words    0x00095280    1916928 bytes  2 calls x 2 peers x 32 rows x 14976; Dispatch writes, Dispatch reads
// Message Totals: meta record of 1040 bytes: per_rank[2] at 0, per_expert[128] at 16
// Message Token: row of 7168 bytes, meta record of 384 bytes: x_scale[56] at 0, src[1] at 224, experts[8] at 228, weights[8] at 260
#include <ep/compute.cuh>
#include <ep/mover.cuh>
#include <ep/one_launch.cuh>
#include <ep/slots.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace decode_dispatch {

struct Cfg {
    static constexpr int kRanks = 2;
    static constexpr int kHidden = 7168;
    static constexpr int kTopk = 8;
    static constexpr int kExperts = 256;
    static constexpr int kLocalExperts = 128;
    static constexpr int kMaxRows = 1024;
    static constexpr int kThreads = 384;
    static constexpr int kSharedBytes = 191232;

    struct Totals {
        static constexpr int kMetaBytes = 1040;
        static constexpr int kPerRank = 0;
        static constexpr int kPerRankCount = 2;
        static constexpr int kPerExpert = 16;
        static constexpr int kPerExpertCount = 128;
    };

    struct Token {
        static constexpr int kRowBytes = 7168;
        static constexpr int kMetaBytes = 384;
        static constexpr int kXScale = 0;
        static constexpr int kXScaleCount = 56;
        static constexpr int kSrc = 224;
        static constexpr int kSrcCount = 1;
        static constexpr int kExperts = 228;
        static constexpr int kExpertsCount = 8;
        static constexpr int kWeights = 260;
        static constexpr int kWeightsCount = 8;
    };

    struct Counts {
        static constexpr int kChannel = 0;
        static constexpr int kPeers = 2;
        static constexpr int kEpochs = 2;
        static constexpr int kWords = 130;
        static constexpr bool kSkipsOwn = false;
        static constexpr int kSlotBytes = 1152;
        static constexpr ep::u64 kSlots = 0x0;
    };

    struct Rows {
        static constexpr int kChannel = 1;
        static constexpr int kPeers = 2;
        static constexpr int kSenders = 512;
        static constexpr int kRowStride = 7168;
        static constexpr int kRecordWords = 73;
        static constexpr int kFewTokens = 32;
        static constexpr int kWholeRowBytes = 7168;
        static constexpr int kWordRowBytes = 14976;
        static constexpr ep::u64 kReady = 0x1200;
        static constexpr ep::u64 kRecords = 0x1280;
        static constexpr ep::u64 kTold = 0x93280;
        static constexpr ep::u64 kAsWords = 0x95280;
    };

    struct Dispatch {
        static constexpr int kRole = 0;
        static constexpr int kFirstWarp = 0;
        static constexpr int kWarps = 12;
        static constexpr int kRanks = 2;
        static constexpr int kTokenWords = 16;
        static constexpr int kValues = 256;
        static constexpr int kCountWords = 130;
        static constexpr bool kEarly = false;
        static constexpr bool kTma = true;
        static constexpr int kStages = 2;
        static constexpr int kPieceBytes = 7168;
        static constexpr int kRowBytes = 7168;
        static constexpr int kMetaBytes = 384;
    };
};

struct Args {
    ep::Group group;
    // run-time sizes
    int tokens;
    // if not null, holds tokens, and the above is its bound
    const ep::i32* tokens_from;
    // run-time args
    ep::i32 alignment;
    // input x: payload[tokens, hidden]
    const ep::e4m3* x;
    ep::i64 x_stride;
    const float* x_scale;
    ep::i64 x_scale_stride;
    ep::i64 x_scale_block_stride;
    // input topk_idx: i64[tokens, topk] in -1..experts
    const ep::i64* topk_idx;
    ep::i64 topk_idx_stride;
    // input topk_weights: optional f32[tokens, topk]
    const float* topk_weights;
    ep::i64 topk_weights_stride;
    // input expert_begin: i32[ranks + 1] in 0..=experts ascending by at most local_experts
    const ep::i32* expert_begin;
    // output recv_x: payload[max_rows, hidden] in window
    ep::e4m3* recv_x;
    ep::i64 recv_x_stride;
    float* recv_x_scale;
    ep::i64 recv_x_scale_stride;
    ep::i64 recv_x_scale_block_stride;
    ep::u64 recv_x_at;
    // output recv_topk_idx: i64[max_rows, topk]
    ep::i64* recv_topk_idx;
    // output recv_topk_weights: optional f32[max_rows, topk]
    float* recv_topk_weights;
    // output received: optional i32[1] to host
    ep::i32* received;
    // output received_per_expert: optional i32[local_experts] to host
    ep::i32* received_per_expert;
    // table recv_per_expert: i32[local_experts]
    ep::i32* recv_per_expert;
    // table tokens_per_rank: i32[ranks]
    ep::i32* tokens_per_rank;
    // table tokens_per_expert: i32[experts]
    ep::i32* tokens_per_expert;
    // table rank_prefix: i32[ranks + 1, ranks]
    ep::i32* rank_prefix;
    // table recv_src: i32[max_rows]
    ep::i32* recv_src;
    // table send_row: i32[tokens, ranks]
    ep::i32* send_row;
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
    const int me = args.group.rank;
    const int tokens = ep::rows_of(args.tokens, args.tokens_from);
    ep::RouteCounts<Cfg::Counts, Cfg::Dispatch> counts(team, smem.routes);
    // +43  for peer in ranks
    // +43  record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer) as
    //     i32)
    for (int i = team.index() * ep::kLanes + team.lane; i < Cfg::kRanks && !team.stopped;
        i += team.count() * ep::kLanes) {
        args.tokens_per_rank[i] = smem.routes.tokens_to(i, tokens);
    }
    // +43  for expert in experts
    // +43  record tokens_per_expert[expert] = sum(token in tokens: sum(choice in topk:
    //     (topk_idx[token, choice] == expert) as i32))
    for (int i = team.index() * ep::kLanes + team.lane; i < Cfg::kExperts && !team.stopped;
        i += team.count() * ep::kLanes) {
        args.tokens_per_expert[i] = smem.routes.chosen[i];
    }
    // +43  await counts
    // W1: takes messages of counts, from Dispatch +43
    counts.await();
    // +43  for dest in ranks
    for (int dest = team.index(); dest < Cfg::kRanks && !team.stopped; dest += team.count()) {
        // +43  record rank_prefix[source, dest] = prefix_sum(source in ranks:
        //     counts[source].per_rank[dest])
        ep::prefix_sum_and_total(Cfg::kRanks,
            [&](int source) {
                return ep::get<ep::i32>(counts.from(source) + Cfg::Totals::kPerRank, dest);
            },
            [&](int source, ep::i32 sum) {
                args.rank_prefix[source * Cfg::kRanks + dest] = sum;
        });
    }
    // +47  for expert in local_experts
    for (int expert = team.index() * ep::kLanes + team.lane;
        expert < Cfg::kLocalExperts && !team.stopped; expert += team.count() * ep::kLanes) {
        // +48  record recv_per_expert[expert] = align(sum(source in ranks:
        //     counts[source].per_expert[expert]), alignment)
        ep::i64 sum_2 = 0LL;
        for (int source_2 = 0; source_2 < Cfg::kRanks; ++source_2) {
            sum_2 += ep::i64{ep::get<ep::i32>(counts.from(source_2) + Cfg::Totals::kPerExpert,
                expert)};
        }
        args.recv_per_expert[expert] =
            static_cast<ep::i32>(ep::align(sum_2, ep::i64{args.alignment}));
        // +49  store received_per_expert[expert] = align(sum(source in ranks:
        //     counts[source].per_expert[expert]), alignment)
        if (args.received_per_expert != nullptr) {
            ep::i64 sum_3 = 0LL;
            for (int source_3 = 0; source_3 < Cfg::kRanks; ++source_3) {
                sum_3 += ep::i64{ep::get<ep::i32>(counts.from(source_3) + Cfg::Totals::kPerExpert,
                    expert)};
            }
            ep::store_host(&args.received_per_expert[expert],
                static_cast<ep::i32>(ep::align(sum_3, ep::i64{args.alignment})));
        }
    }
    if (team.index() == team.count() - 1) {
        // +51  store received[0] = sum(source in ranks: counts[source].per_rank[me])
        if (args.received != nullptr) {
            ep::i64 sum_4 = 0LL;
            for (int source_4 = 0; source_4 < Cfg::kRanks; ++source_4) {
                sum_4 += ep::i64{ep::get<ep::i32>(counts.from(source_4) + Cfg::Totals::kPerRank,
                    me)};
            }
            if (team.leader()) {
                ep::store_host(&args.received[0], static_cast<ep::i32>(sum_4));
            }
        }
    }
}

/// role Dispatch on all blocks
__device__ __forceinline__ void dispatch(const Args& args, Smem& smem, ep::Team& team) {
    const int me = args.group.rank;
    const auto mine = ep::experts_of(args.expert_begin, me);
    const int tokens = ep::rows_of(args.tokens, args.tokens_from);
    ep::Mover<Cfg::Dispatch> mover(smem.dispatch[team.warp], team);
    ep::SlotChannel<Cfg::Counts> counts(team);
    ep::OnceOut<Cfg::Rows, Cfg::Dispatch> rows(team, mover, smem.routes, tokens);
    // +43  for peer in ranks (2)
    // +43  push counts[peer] { per_rank: tokens_per_rank, per_expert: owned(tokens_per_expert,
    //     peer) }
    // W1: publishes messages of counts, for Dispatch +43
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
    // +52  for token in tokens
    // +53  for peer in ranks where routed(topk_idx[token], peer)
    rows.for_tokens(
        // +43  await counts
        // W1: takes messages of counts, from Dispatch +43
        [&](int source, int peer) {
            return ep::word_of(counts.from(source) + Cfg::Totals::kPerRank, peer);
        },
        [&](int token) { return &args.x[token * args.x_stride]; },
        [&](int token, char* record) {
            // +54  push rows[peer] at rank_prefix[me, peer] { x: x[token], src: token, experts:
            //     topk_idx[token], weights: topk_weights[token] }
            // W2: takes credit of rows, from Dispatch +65
            // W3: publishes messages of rows, for Dispatch +65
            const auto x_scale_field = ep::ask<float, Cfg::Token::kXScaleCount>([&](int i) {
                return args.x_scale[token * args.x_scale_stride + i * args.x_scale_block_stride];
            });
            const auto src_field =
                ep::ask<ep::i32, Cfg::Token::kSrcCount>([&](int) { return token; });
            const auto experts_field = ep::ask<ep::i32, Cfg::Token::kExpertsCount>([&](int i) {
                return args.topk_idx[token * args.topk_idx_stride + i];
            });
            const auto weights_field = ep::ask<float, Cfg::Token::kWeightsCount>([&](int i) {
                return args.topk_weights[token * args.topk_weights_stride + i];
            });
            x_scale_field.put(record + Cfg::Token::kXScale);
            src_field.put(record + Cfg::Token::kSrc);
            experts_field.put(record + Cfg::Token::kExperts);
            weights_field.put(record + Cfg::Token::kWeights);
        },
        [&](int token, int peer, bool match, int position) {
            // +57  record send_row[token, peer] = rows[peer].position
            args.send_row[ep::i64{token} * Cfg::kRanks + peer] = ep::recorded(match, position);
    });
    // The last block sends no rows, if it is not the only one.
    if (team.block == team.blocks - 1) {
        ep::Team last(ep::of_block(team));
        dispatch_tables(args, smem, last);
        team.stopped = last.stopped;
    }
    ep::OnceIn<Cfg::Rows> rows_in(team, mover.meta(), tokens, args.recv_x_at);
    rows_in.open([&](int source) {
        return ep::word_of(counts.from(source) + Cfg::Totals::kPerRank, me);
    });
    // +65  for message in rows
    // W2: publishes credit of rows, for Dispatch +54
    // W3: takes messages of rows, from Dispatch +54
    rows_in.for_messages([&](const ep::OnceMessage& message) {
        const auto recv_x_scale_field = ep::ask<float, ep::ceil(Cfg::kHidden, 128)>([&](int i) {
            return ep::get<float>(message.record + Cfg::Token::kXScale, i);
        });
        const auto recv_src_field = ep::ask<ep::i32, 1>([&](int) {
            return ep::get<ep::i32>(message.record + Cfg::Token::kSrc, 0);
        });
        const auto recv_topk_idx_field = ep::ask<ep::i64, Cfg::kTopk>([&](int i_2) {
            return ep::i64{mine.local(
                ep::get<ep::i32>(message.record + Cfg::Token::kExperts, i_2))};
        });
        // +66  store recv_x[message.row] = message.x
        // The sender has stored it in place.
        recv_x_scale_field.each([&](int i, float element) {
            args.recv_x_scale[message.row * args.recv_x_scale_stride
                + i * args.recv_x_scale_block_stride] = element;
        });
        // +66  record recv_src[message.row] = message.src
        recv_src_field.each([&](int, ep::i32 element) {
            args.recv_src[message.row] = element;
        });
        // +66  store recv_topk_idx[message.row] = local(message.experts, me)
        recv_topk_idx_field.each([&](int i_2, ep::i64 element) {
            args.recv_topk_idx[ep::i64{message.row} * Cfg::kTopk + i_2] = element;
        });
        // +66  store recv_topk_weights[message.row] = message.weights * (local(message.experts, me)
        //     >= 0) as f32
        if (args.topk_weights != nullptr && args.recv_topk_weights != nullptr) {
            for (int i_3 = team.lane; i_3 < Cfg::kTopk; i_3 += ep::kLanes) {
                args.recv_topk_weights[ep::i64{message.row} * Cfg::kTopk + i_3] = ep::product(
                    ep::get<float>(message.record + Cfg::Token::kWeights, i_3),
                    static_cast<float>(
                        mine.local(
                            ep::get<ep::i32>(message.record + Cfg::Token::kExperts, i_3)) >= 0));
            }
        }
    });
    // +54  push rows[peer]: what is left
    rows.close();
    // +60  for row in rank_prefix[ranks, me]..max_rows
    for (int row = rows_in.total() + team.index() * ep::kLanes + team.lane;
        row < Cfg::kMaxRows && !team.stopped; row += team.count() * ep::kLanes) {
        // +61  for choice in topk
        for (int choice = 0; choice < Cfg::kTopk; ++choice) {
            // +62  store recv_topk_idx[row, choice] = -1
            args.recv_topk_idx[ep::i64{row} * Cfg::kTopk + choice] = -1LL;
        }
    }
    // All rows are there.
    rows_in.await();
    mover.finish();
}

extern "C" __global__ void __launch_bounds__(Cfg::kThreads, 1)
decode_dispatch(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group, [&] {
        const int tokens = ep::rows_of(args.tokens, args.tokens_from);
        ep::once_offer<Cfg::Rows>(args.group, args.recv_x_at, tokens);
        // +43  for peer in ranks
        // +43  record tokens_per_rank[peer] = sum(token in tokens: routed(topk_idx[token], peer) as
        //     i32)
        // +43  for expert in experts
        // +43  record tokens_per_expert[expert] = sum(token in tokens: sum(choice in topk:
        //     (topk_idx[token, choice] == expert) as i32))
        ep::count_routes(args.group, smem.routes, tokens,
            [&](int token, bool present) {
                return ep::route_of<Cfg::Dispatch>(
                    ep::row_of<Cfg::kTopk>(&args.topk_idx[token * args.topk_idx_stride], present),
                    args.expert_begin);
            },
            ep::values_of<false>(smem.routes, [&](int token, bool present) {
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
}  // namespace decode_dispatch
