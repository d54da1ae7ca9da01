// A dispatch in one launch, of one rank among 34: what it finds out, offers, sends and takes, while some of its warps
// play all others and let it wait. The host knows what each check leaves in `out`; see once.rs, which has the checks in
// the same order.
#include <ep/one_launch.cuh>
#include <ep/sync.cuh>

namespace once {

constexpr int kRanks = 34;
constexpr int kSelf = 33;  // all others come before it
constexpr int kBlocks = 3;
constexpr int kWarps = 2;
constexpr int kWords = 34;    // of a record
constexpr int kMost = 11;     // warps that send
constexpr int kRow = 64;      // bytes

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

struct Rows {
    static constexpr int kChannel = 3;
    static constexpr int kPeers = kRanks;
    static constexpr int kSenders = kMost;
    static constexpr int kRowStride = kRow;
    static constexpr int kRecordWords = kWords;
    static constexpr ep::u64 kReady = 0;
    static constexpr ep::u64 kTold = 1088;
    static constexpr ep::u64 kRecords = 4992;
};

template <bool kEarly_>
struct Role {
    static constexpr int kRanks = once::kRanks;
    static constexpr int kTokenWords = 3;
    static constexpr int kExperts = 68;
    static constexpr int kCountWords = 9;
    static constexpr bool kEarly = kEarly_;
    static constexpr bool kTma = true;
    static constexpr int kStages = 2;
    static constexpr int kPieceBytes = kRow;
    static constexpr int kRowBytes = kRow;
    static constexpr int kMetaBytes = 144;
};

struct FewRanks {
    static constexpr int kRanks = 8;
};

/// What all sources have counted: a word more than two turns of a block's first warp have.
struct Counts {
    static constexpr int kChannel = 4;
    static constexpr int kPeers = 17;
    static constexpr int kEpochs = 2;
    static constexpr int kWords = 17;
    static constexpr bool kSkipsOwn = false;
    static constexpr int kSlotBytes = 144;
    static constexpr ep::u64 kSlots = 0;
};

/// A group of one's own, as zero as its words in the window: for a stop that nobody else sees.
struct Own {
    ep::State state;
    ep::u32 stop;
    ep::u32 room[7];
    ep::Record records[2];
};

constexpr int kWindow = 8320;

/// All of the window.
struct Memory {
    char peers[kRanks][kWindow];                // what this rank sends
    char offers[1152];                          // what it is offered
    char inbox[kWindow + 8192];                 // what it is sent
    ep::u64 counts[kRanks][kRanks];             // rows of each rank for each
    ep::u64 own_counts[kRanks];                 // and for this one
    ep::i64 data[240];                          // what comes before each word of an end
    alignas(16) ep::i64 x[70][kRow / 8];
    char* windows[kRanks];
    char* to_offers[kRanks];                    // one of them is `offers`
    ep::i32 expert_begin[kRanks + 2];
    ep::u32 looked, unused;
    ep::i64 read;
    alignas(64) Own own[8];
    alignas(64) char slots[4896];
    alignas(16) ep::u64 offered[kBlocks * kWarps][204];
    char* offered_at[kBlocks * kWarps][kRanks];
};

template <bool kEarly>
struct Smem {
    ep::RouteSmem<Role<kEarly>> routes;
    ep::MoverSmem<Role<kEarly>> movers[kWarps];
};

__device__ __forceinline__ int block() { return static_cast<int>(blockIdx.x); }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / ep::kLanes; }

/// A call of some tokens, that rows come to from the ranks before `sources`.
struct Case {
    ep::u32 epoch;
    int tokens, sources;

    /// Rows that a rank sends here.
    __device__ __forceinline__ int rows(int source) const {
        return source < sources ? source % 3 : 0;
    }
};

__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number) {
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    ep::Group group = given;
    group.state = &memory->own[number].state;
    group.windows = memory->windows;
    group.rank = kSelf;
    return group;
}

/// What stays the same.
__device__ __forceinline__ void prepare(Memory* memory) {
    const int lane = ep::lane_index();
    for (int i = lane; i < 70 * 8; i += ep::kLanes) memory->x[i / 8][i % 8] = i / 8 * 10 + i % 8 + 1;
    for (int rank = lane; rank < kRanks; rank += ep::kLanes) {
        memory->windows[rank] = memory->peers[rank];
        memory->to_offers[rank] = rank == 33 ? memory->offers : memory->peers[rank];
        memory->expert_begin[rank] = 2 * rank;
        for (int i = 0; i < kBlocks * kWarps; ++i) {
            memory->offered_at[i][rank] = reinterpret_cast<char*>(memory->offered[i] + 2 * rank);
        }
    }
    if (lane < 2) memory->expert_begin[kRanks + lane] = 68;
}

/// The experts of a token; some go nowhere.
__device__ __forceinline__ ep::Row<ep::i64, 2> experts_of(int token, bool present) {
    if (token % 5 == 1) return ep::Row<ep::i64, 2>{{-1, 68}, present};
    return ep::Row<ep::i64, 2>{{token * 7 % 68, (token * 11 + 3) % 68}, present};
}

/// Lets others look for some time.
__device__ __forceinline__ void linger() {
    for (int i = 0; i < 300; ++i) __syncwarp();
}

__device__ __forceinline__ void await_look(Memory* memory, const Case& it) {
    while (ep::load_relaxed_gpu(&memory->looked) != it.epoch) {
    }
    linger();
}

/// Offers of all ranks, each of which has read what it offers.
__device__ __forceinline__ void offer(const ep::Group& given, const Case& it) {
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    await_look(memory, it);
    ep::Group group = group_of(given, 0);
    if (ep::lane_index() == 0) group.state->epoch = it.epoch - 1;
    __syncwarp();
    for (int rank = 0; rank < kRanks; ++rank) {
        const int at = (32 + rank % 2) * 128;
        ep::i64 sum = 0;
        for (int i = 0; i < 96; ++i) {
            sum += reinterpret_cast<const ep::i64*>(memory->peers[rank] + at)[i];
        }
        // Lane 1 is the one that offers it.
        if (ep::lane_index() == 1) memory->read = sum;
        group.rank = rank;
        group.windows = memory->to_offers;
        __syncwarp();
        ep::once_offer<Rows>(group, at, it.tokens);
    }
}

/// What all ranks say and send.
__device__ __forceinline__ void play(const ep::Group& given, const Case& it) {
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    const int lane = ep::lane_index();
    await_look(memory, it);
    for (int i = kRanks * kRanks - 1 - lane; i >= 0; i -= ep::kLanes) {
        const int source = i / kRanks, peer = i % kRanks;
        const ep::u32 rows = (source + peer) % 16 == 0 ? 1 : 0;
        ep::store_relaxed_sys(&memory->counts[source][peer], ep::stamped(it.epoch, rows));
    }
    linger();
    int total = 0;
    for (int source = kRanks - 1; source >= 0; --source) {
        ep::OnceReady* ready = ep::once_ready<Rows>(memory->inbox, it.epoch, source);
        if (lane == 0) {
            const ep::u32 senders = source % kMost + 1;
            const ep::u32 rows = it.rows(source);
            ep::store_relaxed_sys(&ready->senders, ep::stamped(it.epoch, senders));
            ep::store_relaxed_sys(&memory->own_counts[source], ep::stamped(it.epoch, rows));
        }
        total += it.rows(source);
    }
    linger();
    for (int i = total * kWords - 1 - lane; i >= 0; i -= ep::kLanes) {
        const ep::u32 field = it.epoch * 100000 + i / kWords * 100 + i % kWords;
        ep::u64* record = ep::once_record<Rows>(memory->inbox, i / kWords);
        ep::store_relaxed_sys(record + i % kWords, ep::stamped(it.epoch, field));
    }
    linger();
    int word = 0;
    for (int source = 0; source < kRanks; ++source) {
        for (int sender = 0; sender <= source % kMost; ++sender, ++word) {
            if (lane != word % ep::kLanes) continue;
            memory->data[word] = it.epoch * 1000 + word;
            ep::u64* told = ep::once_told<Rows>(memory->inbox, source, sender);
            ep::store_release_sys(told, ep::stamped(it.epoch, 1));
        }
    }
    __syncwarp();
}

/// Finds out where tokens go.
template <class R>
__device__ __forceinline__ void routes_of(const ep::Group& group, ep::RouteSmem<R>& routes,
                                          const Case& it, ep::i64* out) {
    const Memory* memory = reinterpret_cast<const Memory*>(group.window);
    ep::u32* words = reinterpret_cast<ep::u32*>(&routes);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < static_cast<int>(sizeof routes / 4); i += threads) words[i] = 77;
    __syncthreads();
    ep::count_routes<R>(group_of(group, 0), routes, it.tokens, memory->expert_begin, experts_of);
    __syncthreads();
    out += 8000 + block() * 400;
    for (int i = thread; i < kRanks * 3; i += threads) out[i] = routes.to[i / 3][i % 3];
    for (int i = thread; i < 68; i += threads) out[110 + i] = routes.chosen[i];
    if (thread < kRanks) out[200 + thread] = routes.tokens_to(thread, it.tokens);
    if (thread != 0) return;
    out[180] = routes.counts[0];
    out[181] = routes.stopped;
    ep::i64 goes = 0;
    for (int token = 0; token < it.tokens; ++token) goes += routes.goes(token, 3) ? token + 1 : 0;
    out[182] = goes;
}

/// Takes this warp's share of what all ranks send.
template <class Out>
__device__ __forceinline__ void receive(ep::Team& team, Memory* memory, char* record, const Case& it,
                                        Out& rows_out, ep::i64* out) {
    const int next = (team.lane + 1) % ep::kLanes;
    ep::OnceIn<Rows> rows(team, record, it.tokens);
    rows.open([&](int source) { return &memory->own_counts[source]; });
    rows.for_messages([&](const ep::OnceMessage& message) {
        const ep::u32* fields = reinterpret_cast<const ep::u32*>(message.record[0]);
        ep::i64* own = out + 2400 + message.row[0] * 36;
        for (int i = next; i < kWords; i += ep::kLanes) own[i] = fields[i];
        if (team.leader()) own[34] = team.index() + 1;
    });
    rows_out.close();
    if (team.leader()) out[3800 + team.index()] = rows.total();
    rows.await();
    for (int word = team.lane * team.count() + ep::once_turn(team); word < 199;
         word += team.count() * ep::kLanes) {
        out[3600 + word] = memory->data[word];
    }
}

/// A whole call.
template <bool kEarly>
__device__ __forceinline__ void call_of(const ep::Group& given, Smem<kEarly>& smem, const Case& it,
                                        ep::i64* out) {
    using R = Role<kEarly>;
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    routes_of<R>(given, smem.routes, it, out);
    ep::Group sends = group_of(given, 1), takes = sends;
    sends.window = memory->offers;
    takes.window = memory->inbox;
    const ep::Call call{it.epoch, false, true};
    ep::Team team(sends, call, 2, block(), kBlocks, warp(), kWarps);
    ep::Mover<R> mover(smem.movers[warp()], team);
    if (block() == 0 && warp() == kWarps - 1) offer(given, it);
    if (block() == kBlocks - 1 && warp() == kWarps - 1) play(given, it);
    ep::OnceOut<Rows, R> rows(team, mover, smem.routes, it.tokens);
    rows.ask([&](int token) { return memory->x[token]; });
    rows.for_tokens(
        [&](int source, int peer) {
            ep::store_relaxed_gpu(&memory->looked, it.epoch);
            return &memory->counts[source][peer];
        },
        [&](int token, char* record) {
            ep::u32* fields = reinterpret_cast<ep::u32*>(record);
            for (int i = team.lane; i < kWords; i += ep::kLanes) {
                fields[i] = it.epoch * 10000 + token * 100 + i;
            }
            return memory->x[token];
        },
        [&](int token, int peer, bool match, int position) {
            out[token * kRanks + peer] = (match ? 1000 : 0) + position;
        });
    ep::Team taker(takes, call, 2, block(), kBlocks, warp(), kWarps);
    receive(taker, memory, mover.meta(), it, rows, out);
    mover.finish();
}

/// What all windows hold.
__device__ __forceinline__ void look(const Memory* memory, ep::i64* out) {
    const int thread = block() * kWarps * ep::kLanes + static_cast<int>(threadIdx.x);
    if (thread >= kRanks) return;
    const ep::u64* words = reinterpret_cast<const ep::u64*>(memory->peers[thread]);
    ep::u64 sum = 0;
    for (int i = 0; i < kWindow / 8; ++i) sum += words[i] * (2 * i + 1);
    out[thread] = static_cast<ep::i64>(sum);
}

/// Who offers, and to whom: each warp has words of its own.
__device__ __forceinline__ void offers(const ep::Group& given, ep::i64* out) {
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    const int index = block() * kWarps + warp(), lane = ep::lane_index();
    const int tokens[6] = {0, 1, 3, 4, 5, 50};
    ep::u64* words = memory->offered[index];
    for (int c = 0; c < 6; ++c) {
        ep::Group group = group_of(given, 2 + index);
        group.windows = memory->offered_at[index];
        if (lane == 0) group.state->epoch = 20 + c;
        __syncwarp();
        ep::once_offer<Rows>(group, 128 * (5 + c), tokens[c]);
        ep::u64 sum = 0;
        for (int i = 0; i < 204; ++i) sum += words[i] * (2 * i + 1);
        if (lane == 9) out[index * 6 + c] = static_cast<ep::i64>(sum);
        __syncwarp();
        for (int i = lane; i < 204; i += ep::kLanes) words[i] = 0;
        __syncwarp();
    }
}

/// Counts of all ranks, of which the words of some come late or one does not come; for a block.
__device__ __forceinline__ void counts(const ep::Group& given, const ep::Call& call, Smem<false>& smem,
                                       ep::u32 epoch, int missing, ep::i64* out) {
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    constexpr int kAll = Counts::kPeers * Counts::kWords;
    ep::Group group = group_of(given, missing < 0 ? 0 : 2);
    Own* own = &memory->own[2];
    group.window = memory->slots;
    if (missing >= 0) {
        group.stop = &own->stop;
        group.records = own->records;
        group.record_capacity = 1;
        group.timeout_ns = 0;
    }
    ep::Team team(group, call, 2, block(), kBlocks, warp(), kWarps);
    team.epoch = epoch;
    const ep::SlotChannel<Counts> slots(team);
    const int thread = static_cast<int>(threadIdx.x);
    const auto set = [&](int at) {
        ep::u64* word = slots.from(at / Counts::kWords).words + at % Counts::kWords;
        ep::store_relaxed_sys(word, ep::stamped(epoch, 5000u * (epoch % 8) + at));
    };
    if (block() == 1 && warp() == 0 && missing < 0) {
        linger();
        for (int at = kAll - 1 - thread; at >= 0; at -= ep::kLanes) set(at);
    }
    if (block() != 0) return;
    for (int at = thread; at < kAll && missing >= 0; at += kWarps * ep::kLanes) {
        if (at != missing) set(at);
    }
    for (int i = thread; i < 306; i += kWarps * ep::kLanes) smem.routes.counts[i] = 66;
    if (thread == 0) smem.routes.stopped = 0;
    __syncthreads();
    ep::Team block_team = ep::of_block(team);
    ep::RouteCounts<Counts, Role<false>> all(block_team, smem.routes);
    all.await();
    for (int i = thread; i < 306; i += kWarps * ep::kLanes) {
        out[i] = smem.routes.counts[(i + 33) % 306];
    }
    if (thread % ep::kLanes == 3) out[310 + warp()] = block_team.stopped ? 1 : 0;
    if (thread == 0) out[312] = smem.routes.stopped;
    if (thread < Counts::kPeers) out[320 + thread] = ep::get<ep::i32>(all.from(thread) + 16, 3);
    if (thread < Counts::kPeers) out[340 + thread] = ep::get<ep::i64>(all.from(thread), 3);
    if (missing < 0 || thread != 0) return;
    const ep::Record& it = own->records[0];
    const ep::i64 record[7] = {it.channel, it.kind, it.stripe, it.peer, it.want, it.seen, it.epoch};
    for (int i = 0; i < 7; ++i) out[360 + i] = record[i];
}

/// Numbers that need no memory.
__device__ __forceinline__ void numbers(const ep::Group& given, ep::i64* out) {
    const Memory* memory = reinterpret_cast<const Memory*>(given.window);
    const int lane = ep::lane_index();
    char* base = given.window;
    if (lane < 4) out[lane] = ep::once_blocks(lane + 1);
    for (int blocks = 1; blocks < 4; ++blocks) {
        const ep::Team team(given, ep::Call{1, false, true}, 0, lane % blocks, blocks, lane / blocks % 3, 3);
        out[blocks * 32 + lane] = ep::once_turn(team);
    }
    const int row = lane * 9000000;
    out[128 + lane] = reinterpret_cast<char*>(ep::once_record<Rows>(base, row)) - base;
    out[160 + lane] = reinterpret_cast<char*>(ep::once_told<Rows>(base, lane, lane % 7)) - base;
    out[192 + lane] = reinterpret_cast<char*>(ep::once_ready<Rows>(base, lane % 5, lane)) - base;
    const ep::Row<ep::i64, 2> row_of{{lane - 3, 3 * lane}, lane != 7};
    const ep::i32* begin = memory->expert_begin;
    out[224 + lane] = static_cast<ep::i64>(ep::route_of<FewRanks>(row_of, begin).bits);
    out[256 + lane] = static_cast<ep::i64>(ep::route_of<Role<false>>(row_of, begin).bits);
}

/// A warp alone whose waits run out. `late`: what does not come, of which others are there.
enum class Missing { kOffer, kCount, kFirstCount, kSenders, kRows, kRecord, kTold, kNothing };

__device__ __forceinline__ void fill(Memory* memory, ep::u32 epoch, Missing missing) {
    const int lane = ep::lane_index();
    for (int rank = lane; rank < kRanks; rank += ep::kLanes) {
        ep::OnceReady* ready = ep::once_ready<Rows>(memory->offers, epoch, rank);
        if (missing != Missing::kOffer || rank != 32) {
            ep::store_release_sys(&ready->rows, ep::stamped(epoch, 32));
        }
        for (int source = 0; source < kRanks; ++source) {
            if (missing == Missing::kCount && source == 31) continue;
            if (missing == Missing::kFirstCount && source == 0) continue;
            ep::store_relaxed_sys(&memory->counts[source][rank], ep::stamped(epoch, 0));
        }
        ready = ep::once_ready<Rows>(memory->inbox, epoch, rank);
        if (missing != Missing::kSenders || rank != 32) {
            ep::store_relaxed_sys(&ready->senders, ep::stamped(epoch, 1));
        }
        if (missing != Missing::kRows || rank != 5) {
            const ep::u32 rows = rank == 3 ? 2 : rank >= 32 ? 3 : 0;
            ep::store_relaxed_sys(&memory->own_counts[rank], ep::stamped(epoch, rows));
        }
        if (missing != Missing::kTold || rank != 33) {
            ep::store_release_sys(ep::once_told<Rows>(memory->inbox, rank, 0), ep::stamped(epoch, 1));
        }
    }
    for (int i = lane; i < 8 * kWords; i += ep::kLanes) {
        if (missing == Missing::kRecord && i == 5 * kWords + 33) continue;
        ep::u64* record = ep::once_record<Rows>(memory->inbox, i / kWords);
        ep::store_relaxed_sys(record + i % kWords, ep::stamped(epoch, i));
    }
    __syncwarp();
}

/// What becomes of a call of which something is missing.
__device__ __forceinline__ void lack(const ep::Group& given, Smem<false>& smem, int number,
                                     ep::i64* out) {
    using R = Role<false>;
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    const Missing missing = static_cast<Missing>(number);
    const ep::u32 epoch = 40 + number;
    Own* own = &memory->own[number];
    ep::Group group = group_of(given, number);
    group.stop = &own->stop;
    group.records = own->records;
    group.record_capacity = 1;
    group.timeout_ns = 0;
    fill(memory, epoch, missing);
    for (int i = ep::lane_index(); i < kRanks * 3; i += ep::kLanes) smem.routes.to[i / 3][i % 3] = i % 3 == 0 ? 3 : 0;
    for (int i = ep::lane_index(); i < kRanks; i += ep::kLanes) smem.routes.windows[i] = memory->peers[i];
    __syncwarp();
    if (ep::lane_index() == 0) {
        own->stop = own->state.records = own->records[0].written = 0;
        for (int i = 0; i < 8; ++i) own->records[0].seen = 0;
    }
    __syncwarp();
    ep::Group sends = group, takes = group;
    sends.window = memory->offers;
    takes.window = memory->inbox;
    ep::Team team(sends, ep::Call{epoch, false, true}, 2, 0, 1, 0, 1);
    ep::Mover<R> mover(smem.movers[0], team);
    ep::OnceOut<Rows, R> rows(team, mover, smem.routes, 2);
    rows.ask([&](int token) { return memory->x[token]; });
    int packed = 0;
    rows.for_tokens([&](int source, int peer) { return &memory->counts[source][peer]; },
                    [&](int token, char* record) {
                        ++packed;
                        ep::u32* fields = reinterpret_cast<ep::u32*>(record);
                        for (int i = team.lane; i < kWords; i += ep::kLanes) fields[i] = i;
                        return memory->x[token];
                    },
                    [&](int, int, bool, int) {});
    rows.close();
    ep::Team taker(takes, ep::Call{epoch, team.stopped, true}, 2, 0, 1, 0, 1);
    ep::OnceIn<Rows> in(taker, mover.meta(), 1);
    in.open([&](int source) { return &memory->own_counts[source]; });
    int taken = 0;
    in.for_messages([&](const ep::OnceMessage&) { ++taken; });
    in.await();
    mover.finish();
    if (team.lane != 0) return;
    const ep::u64* told = ep::once_told<Rows>(memory->peers[2], kSelf, 0);
    out[13] = ep::epoch_of(ep::load_relaxed_sys(told)) == epoch ? 1 : 0;
    const ep::u64* record = ep::once_record<Rows>(memory->peers[2], 0);
    out[14] = ep::epoch_of(ep::load_relaxed_sys(record)) == epoch ? 1 : 0;
    const ep::Record& it = own->records[0];
    const ep::i64 all[13] = {packed,    taken,     team.stopped, taker.stopped, own->stop,
                             it.written, it.channel, it.kind,      it.stripe,     it.peer,
                             it.want,   it.seen,   own->state.records};
    for (int i = 0; i < 13; ++i) out[i] = all[i];
}

}  // namespace once

extern "C" __global__ void __launch_bounds__(64) once_of(const __grid_constant__ once::Args args) {
    using namespace once;
    EP_SHARED(Smem<false>, smem);
    static_assert(sizeof(Smem<false>) == 4352 && sizeof(Memory) <= 376832, "the host knows");
    auto& early = reinterpret_cast<Smem<true>&>(smem);
    const ep::Call call = ep::enter(args.group);
    Memory* memory = reinterpret_cast<Memory*>(args.group.window);
    const bool is_first = block() == 0 && warp() == 0;
    ep::i64* out = args.out;
    switch (args.check) {
        case 0: if (is_first) prepare(memory); break;
        case 1: if (is_first) numbers(args.group, out); break;
        case 2: offers(args.group, out); break;
        case 3: call_of<false>(args.group, smem, Case{6, 70, 34}, out); break;
        case 4: look(memory, out); break;
        case 5: call_of<true>(args.group, early, Case{7, 70, 17}, out); break;
        case 6: look(memory, out); break;
        case 7: call_of<false>(args.group, smem, Case{8, 2, 17}, out); break;
        case 8: look(memory, out); break;
        case 9: call_of<true>(args.group, early, Case{9, 2, 34}, out); break;
        case 10: look(memory, out); break;
        case 11: counts(args.group, call, smem, 11, -1, out); break;
        case 12: counts(args.group, call, smem, 12, -1, out); break;
        case 13: counts(args.group, call, smem, 13, 33, out); break;
        case 22: look(memory, out); break;
        default: if (is_first) lack(args.group, smem, args.check - 14, out); break;
    }
    ep::leave(args.group, call);
}
