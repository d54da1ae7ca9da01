// A dispatch in one launch, of one rank among 34: what it finds out, offers, sends and takes, while some of its warps
// play all others and let it wait. The host knows what each check leaves in `out`; see once.rs, which has the checks in
// the same order.
namespace once {

/// Finds out where tokens go.
template <class R>
__device__ __forceinline__ void routes_of(const ep::Group& group, ep::RouteSmem<R>& routes,
                                          const Case& it, ep::i64* out) {
    const Memory* memory = reinterpret_cast<const Memory*>(group.window);
    ep::u32* words = reinterpret_cast<ep::u32*>(&routes);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < static_cast<int>(sizeof routes / 4); i += threads) words[i] = 77;
    __syncthreads();
    const auto row = [&](int token, bool present) {
        // Of others than these nobody asks.
        if (token < 0 || token >= it.tokens) out[7990] = 1;
        return experts_of(token, present);
    };
    const auto ranks = [&](int token, bool present) {
        return ep::route_of<R>(row(token, present), memory->expert_begin);
    };
    ep::count_routes(group_of(group, 0), routes, it.tokens, ranks, ep::values_of<false>(routes, row));
    __syncthreads();
    out += 8000 + block() * 400;
    for (int i = thread; i < kRanks * 3; i += threads) out[i] = routes.to[i / 3][i % 3];
    for (int i = thread; i < 68; i += threads) out[110 + i] = routes.chosen[i];
    if (thread < kRanks) {
        // So many as fill whole words, and one more than that.
        const int whole = it.tokens / 32 * 32;
        out[200 + thread] = routes.tokens_to(thread, it.tokens);
        out[240 + thread] = routes.tokens_to(thread, whole);
        out[280 + thread] = routes.tokens_to(thread, whole > 0 ? whole - 31 : 1);
    }
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
    ep::OnceIn<Rows> rows(team, record, it.tokens, 0);
    rows.open([&](int source) { return &memory->own_counts[source]; });
    rows.for_messages([&](const ep::OnceMessage& message) {
        const ep::u32* fields = reinterpret_cast<const ep::u32*>(message.record);
        ep::i64* own = out + 2400 + message.row * 36;
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

/// Whoever is told of the rows of a warp finds them: a lane for each rank. Returns how many words are none of theirs.
template <class R>
__device__ __forceinline__ ep::i64 find(const Memory* memory, const ep::RouteSmem<R>& routes, const Case& it, int sender) {
    constexpr int kSenders = (kBlocks - 1) * kWarps;
    ep::i64 wrong = 0;
    for (int peer = ep::lane_index(); peer < kRanks && sender < it.tokens && sender < kSenders; peer += ep::kLanes) {
        char* window = memory->windows[peer];
        while (ep::epoch_of(ep::load_acquire_sys(ep::once_told<Rows>(window, kSelf, sender))) != it.epoch) {
        }
        int position = 0;
        for (int source = 0; source < kSelf; ++source) position += (source + peer) % 16 == 0 ? 1 : 0;
        for (int token = 0; token < it.tokens; ++token) {
            if (!routes.goes(token, peer)) continue;
            const auto* row = reinterpret_cast<const ep::i64*>(window + (32 + peer % 2) * 128 + position * kRow);
            for (int i = 0; i < kRow / 8 && token % kSenders == sender; ++i) wrong += row[i] != token * 10 + i + 1 ? 1 : 0;
            ++position;
        }
    }
    return wrong;
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
            if (peer >= kRanks) out[7991] = 1;  // nobody is there
            ep::store_relaxed_gpu(&memory->looked, it.epoch);
            return &memory->counts[source][peer];
        },
        [&](int token) { return memory->x[token]; },
        [&](int token, char* record) {
            if (token % 5 == 1) out[7992] = 1;  // it goes nowhere
            ep::u32* fields = reinterpret_cast<ep::u32*>(record);
            // Each lane sends what another one has written.
            for (int i = (team.lane + 1) % ep::kLanes; i < kWords; i += ep::kLanes) {
                fields[i] = it.epoch * 10000 + token * 100 + i;
            }
            return memory->x[token];
        },
        [&](int token, int peer, bool match, int position) {
            out[token * kRanks + peer] = (match ? 1000 : 0) + position;
        });
    ep::Team taker(takes, call, 2, block(), kBlocks, warp(), kWarps);
    receive(taker, memory, mover.meta(), it, rows, out);
    const int index = team.index();
    out[7000 + index * ep::kLanes + team.lane] = find(memory, smem.routes, it, (index + 1) % (kBlocks * kWarps));
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

/// Counts of all ranks, of which the words of some come late or one does not come; for the last block.
template <class Counts>
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
        // What lies behind is nobody's to look at.
        if (thread < 8) memory->behind[thread] = epoch;
        linger();
        // The last one is that of a lane's first look, or of its last.
        const int last = epoch % 2 == 0 && kAll > 200 ? 200 : 0;
        for (int i = thread; i < kAll; i += ep::kLanes) {
            if (i / ep::kLanes == 7) linger();
            set((last + kAll - 1 - i) % kAll);
        }
    }
    if (block() != kBlocks - 1) return;
    if (thread == 0) own->stop = own->state.records = 0;
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
    out[224 + lane] = static_cast<ep::i64>(ep::route_of<FewRanks>(row_of, begin).words[0]);
    out[256 + lane] = static_cast<ep::i64>(ep::route_of<Role<false>>(row_of, begin).words[0]);
}

/// A warp alone whose waits run out. `late`: what does not come, of which others are there.
enum class Missing { kOffer, kCount, kFirstCount, kSenders, kRows, kRecord, kTold, kNothing, kFirstTold };

__device__ __forceinline__ void fill(Memory* memory, ep::u32 epoch, Missing missing) {
    const int lane = ep::lane_index();
    for (int rank = lane; rank < kRanks; rank += ep::kLanes) {
        ep::OnceReady* ready = ep::once_ready<Rows>(memory->offers, epoch, rank);
        if (missing != Missing::kOffer || rank != 32) {
            ep::store_release_sys(&ready->rows, ep::stamped(epoch, FarRows::kOffer));
        }
        for (int source = 0; source < kRanks; ++source) {
            if (missing == Missing::kCount && source == 31) continue;
            // Both are missing then, of which the offer is named.
            if (missing == Missing::kOffer && rank == 32 && source == 31) continue;
            if (missing == Missing::kFirstCount && source == 0 && rank >= 5) continue;
            const ep::u32 rows = source == 0 ? kFarRow : 0;
            ep::store_relaxed_sys(&memory->counts[source][rank], ep::stamped(epoch, rows));
        }
        ready = ep::once_ready<Rows>(memory->inbox, epoch, rank);
        if (missing != Missing::kSenders || rank != 32) {
            // Rank 0 has no warp that sends, unless it is to be waited for.
            const ep::u32 senders = rank == 0 && missing != Missing::kFirstTold ? 0 : 1;
            ep::store_relaxed_sys(&ready->senders, ep::stamped(epoch, senders));
        }
        if (missing != Missing::kRows || rank != 5) {
            const ep::u32 rows = rank == 3 ? 2 : rank >= 32 ? 3 : 0;
            ep::store_relaxed_sys(&memory->own_counts[rank], ep::stamped(epoch, rows));
        }
        if (rank != 0 && (missing != Missing::kTold || rank != 33)) {
            ep::store_release_sys(ep::once_told<Rows>(memory->inbox, rank, 0), ep::stamped(epoch, 1));
        }
    }
    for (int i = lane; i < 8 * kWords; i += ep::kLanes) {
        if (missing == Missing::kRecord && i == 7 * kWords + 33) continue;
        ep::u64* record = ep::once_record<Rows>(memory->inbox, i / kWords);
        ep::store_relaxed_sys(record + i % kWords, ep::stamped(epoch, i));
    }
    __syncwarp();
}

/// What becomes of a call of which something is missing.
__device__ __forceinline__ void lack(const ep::Group& given, Smem<false>& smem, Missing missing,
                                     ep::u32 epoch, ep::i64* out) {
    using R = Role<false>;
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    const int number = static_cast<int>(missing) % 8;
    Own* own = &memory->own[number];
    ep::Group group = group_of(given, number);
    group.stop = &own->stop;
    group.records = own->records;
    group.record_capacity = 1;
    group.timeout_ns = 0;
    fill(memory, epoch, missing);
    for (int i = ep::lane_index(); i < kRanks * 3; i += ep::kLanes) smem.routes.to[i / 3][i % 3] = i % 3 == 0 ? 3 : 0;
    for (int i = ep::lane_index(); i < kRanks; i += ep::kLanes) smem.routes.windows[i] = memory->peers[i] - kFar;
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
    ep::OnceOut<FarRows, R> rows(team, mover, smem.routes, 2);
    rows.ask([&](int token) { return memory->x[token]; });
    int packed = 0;
    rows.for_tokens([&](int source, int peer) { return &memory->counts[source][peer]; },
                    [&](int token) { return memory->x[token]; },
                    [&](int token, char* record) {
                        ++packed;
                        ep::u32* fields = reinterpret_cast<ep::u32*>(record);
                        for (int i = team.lane; i < kWords; i += ep::kLanes) fields[i] = i;
                        return memory->x[token];
                    },
                    [&](int, int, bool, int) {});
    rows.close();
    ep::Team taker(takes, ep::Call{epoch, team.stopped, true}, 2, 0, 1, 0, 1);
    ep::OnceIn<Rows> in(taker, mover.meta(), 1, 0);
    in.open([&](int source) { return &memory->own_counts[source]; });
    int taken = 0;
    // Behind the record of a message.
    ep::u32* behind = reinterpret_cast<ep::u32*>(mover.meta()) + kWords;
    if (team.leader()) *behind = 4711;
    __syncwarp();
    in.for_messages([&](const ep::OnceMessage&) { ++taken; });
    in.await();
    mover.finish();
    if (team.lane != 0) return;
    const ep::u64* told = ep::once_told<Rows>(memory->peers[2], kSelf, 0);
    out[13] = ep::epoch_of(ep::load_relaxed_sys(told)) == epoch ? 1 : 0;
    const ep::u64* record = ep::once_record<Rows>(memory->peers[2], 0);
    out[14] = ep::epoch_of(ep::load_relaxed_sys(record)) == epoch ? 1 : 0;
    out[15] = *behind;
    const ep::Record& it = own->records[0];
    const ep::i64 all[13] = {packed,    taken,     team.stopped, taker.stopped, own->stop,
                             it.written, it.channel, it.kind,      it.stripe,     it.peer,
                             it.want,   it.seen,   own->state.records};
    for (int i = 0; i < 13; ++i) out[i] = all[i];
}

/// A warp asks for the first row that goes anywhere, if there is one; what stands behind the bits of its tokens is
/// none.
__device__ __forceinline__ void asks(const ep::Group& given, Smem<false>& smem, ep::i64* out) {
    using R = Role<false>;
    Memory* memory = reinterpret_cast<Memory*>(given.window);
    const ep::Group group = group_of(given, 0);
    ep::Team team(group, ep::Call{50, false, true}, 2, 0, 1, 0, 1);
    ep::Mover<R> mover(smem.movers[0], team);
    for (int c = 0; c < 2; ++c) {
        for (int i = team.lane; i < kRanks * 3; i += ep::kLanes) {
            smem.routes.to[i / 3][i % 3] = i % 3 == 1 ? 1 : c == 0 ? 0 : 1u << 31;
        }
        __syncwarp();
        ep::OnceOut<Rows, R> rows(team, mover, smem.routes, 32);
        int asked = 0;
        rows.ask([&](int token) {
            asked += token + 1;
            return memory->x[token];
        });
        if (team.leader()) out[c] = asked;
        __syncwarp();
    }
    mover.finish();
}

}  // namespace once

extern "C" __global__ void __launch_bounds__(64) once_of(const __grid_constant__ once::Args args) {
    using namespace once;
    EP_SHARED(Smem<false>, smem);
    static_assert(sizeof(Smem<false>) == 4352 && sizeof(Memory) <= 377088, "the host knows");
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
        case 5: call_of<true>(args.group, early, Case{7, 70, 28}, out); break;
        case 6: look(memory, out); break;
        case 7: call_of<false>(args.group, smem, Case{8, 2, 17}, out); break;
        case 8: look(memory, out); break;
        case 9: call_of<true>(args.group, early, Case{9, 2, 34}, out); break;
        case 10: look(memory, out); break;
        case 11: counts<Counts<17>>(args.group, call, smem, 11, -1, out); break;
        case 12: counts<Counts<17>>(args.group, call, smem, 12, -1, out); break;
        case 13: counts<Counts<17>>(args.group, call, smem, 13, 33, out); break;
        case 22: look(memory, out); break;
        case 23: routes_of<Role<false>>(args.group, smem.routes, Case{0, 96, 0}, out); break;
        case 24: routes_of<Role<false>>(args.group, smem.routes, Case{0, 65, 0}, out); break;
        case 25: routes_of<Role<false>>(args.group, smem.routes, Case{0, 1, 0}, out); break;
        case 26: counts<Counts<17>>(args.group, call, smem, 14, 288, out); break;
        case 27: counts<Counts<5>>(args.group, call, smem, 15, -1, out); break;
        case 28: if (is_first) asks(args.group, smem, out); break;
        case 29: if (is_first) lack(args.group, smem, Missing::kFirstTold, 48, out); break;
        case 30: if (is_first) lack(args.group, smem, Missing::kSenders, 0, out); break;
        default: {
            const int number = args.check - 14;
            if (is_first) lack(args.group, smem, static_cast<Missing>(number), 40 + number, out);
            break;
        }
    }
    ep::leave(args.group, call);
}
