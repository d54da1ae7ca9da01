// Ends of rings that several warps share: an end for each peer, and one for all peers at once. Two ranks send each other rows
// in many calls of one launch, and one warp plays an end that waits in vain, or has many peers. The host knows what each
// check leaves in `out`; see shared_rings.rs, which has the checks in the same order.
#include <ep/ring.cuh>

namespace shared_rings {

using namespace played_rings;

constexpr int kRanks = 2;
constexpr int kParts = 2;  // warps that share a ring
constexpr int kWarps = kRanks * kParts;
constexpr int kReaders = 3;  // warps that share all rings
constexpr int kMost = 9;     // rows of a ring in a stripe, and tokens
constexpr int kNotes = kWords + kFields + 1;
constexpr int kCalls = 6;
constexpr ep::u32 kStart = 0xfffffff8;  // near which all counters begin, which then go through 0

struct Smem {
    ep::MoverSmem<Role<true>> movers[kWarps];
    ep::MoverSmem<Role<false>> copies[kWarps];
    ep::Sequence sequences[kMany];

    __device__ __forceinline__ ep::MoverSmem<Role<true>>& mover(Role<true>, int warp) { return movers[warp]; }
    __device__ __forceinline__ ep::MoverSmem<Role<false>>& mover(Role<false>, int warp) { return copies[warp]; }
};

using Two = Channel<64, kRanks>;
constexpr ep::u64 kRows = (Two::kEnd + 63) / 64 * 64;
constexpr ep::u64 kPlayed = (kRows + kRanks * kStripes * kMost * kWords * 8 + 63) / 64 * 64;

/// A word of a row. Ranks call one another by a place that is the same seen from either end.
__device__ __forceinline__ ep::i64 word_of(int place, int stripe, int k, int i) {
    return ((place * kStripes + stripe) * kMost + k) * 100ll + i;
}

/// The row that goes to a rank.
__device__ __forceinline__ ep::i64* row_of(const ep::Group& group, int place, int stripe, int k) {
    return reinterpret_cast<ep::i64*>(group.window + kRows) + ((place * kStripes + stripe) * kMost + k) * kWords;
}

/// Writes all rows, and where all counters begin: of where ends stand, in either copy.
__device__ __forceinline__ void prepare(const ep::Group& group) {
    const int lane = ep::lane_index();
    for (int i = lane; i < kRanks * kStripes * kMost * kWords; i += ep::kLanes) {
        const int k = i / kWords % kMost, stripe = i / kWords / kMost % kStripes, place = i / kWords / kMost / kStripes;
        row_of(group, place, stripe, k)[i % kWords] = word_of(place, stripe, k, i % kWords);
    }
    const auto words = [&](ep::u64 at) { return reinterpret_cast<ep::u32*>(group.window + at); };
    for (int i = lane; i < Two::kRings; i += ep::kLanes) {
        const ep::u32 start = kStart - 3 * static_cast<ep::u32>(i % kRanks ^ group.rank) - i / kRanks;
        words(Two::kTail)[i] = words(Two::kHead)[i] = start;
        words(Two::kTaken)[i] = words(Two::kTaken)[Two::kRings + i] = start;
        words(Two::kSent)[i] = words(Two::kSent)[Two::kRings + i] = start;
        words(Two::kRetired)[i] = 0;
    }
    for (int i = lane; i < 2 * Two::kRings * 4; i += ep::kLanes) words(Two::kHeader)[i] = 0;
}

/// How many rows go to a place in a stripe of a call: more than a ring holds, or none; in the last calls as few as let it be
/// two calls ahead.
__device__ __forceinline__ int rows_of(int place, int stripe, ep::u32 call) {
    const int all = place * 5 + stripe * 4 + static_cast<int>(call) * 2;
    return call > 4 ? all % 2 : all % (kMost + 1);
}

/// Sends rows of all stripes to each rank: `count(place, stripe)`. Where they are announced, the first one is so as well.
template <bool kAnnounces, class R, class Count>
__device__ __forceinline__ void send(Smem& smem, ep::Team& team, ep::Mover<R>& mover, Count count) {
    const ep::Group& group = team.group;
    for (int peer = team.peer; peer < kRanks && !team.stopped; peer += team.peers) {
        const int place = peer ^ group.rank;
        ep::RingProducer<Two, R> ring(team, mover, smem.sequences, peer);
        for (int stripe = 0; stripe < kStripes && !team.stopped; ++stripe) {
            ring.open(stripe);
            const int rows = count(place, stripe);
            if (kAnnounces) ring.announce(static_cast<int>(team.epoch) * 10 + place, rows);
            for (int k = team.part; k < rows && !team.stopped; k += team.parts) {
                ring.wait_credit(k);
                mover.row(ring.row(k), row_of(group, place, stripe, k));
                ep::i64* fields = reinterpret_cast<ep::i64*>(mover.meta());
                if (team.lane < kFields) fields[team.lane] = word_of(place, stripe, k, 50 + team.lane);
                mover.send_meta(ring.meta(k));
                ring.post();
            }
            ring.finish(rows);
        }
    }
}

/// Where a row is noted that came from a rank in a call.
__device__ __forceinline__ ep::i64* noted(ep::i64* out, ep::u32 call, int place, int stripe, int k) {
    return out + (((static_cast<int>(call - 1) * kRanks + place) * kStripes + stripe) * (kMost + 1) + k) * (kNotes + 1);
}

/// Takes the rows of all stripes from each rank, in order.
template <class R>
__device__ __forceinline__ void take(Smem& smem, ep::Team& team, ep::Mover<R>& mover, ep::i64* out) {
    for (int peer = team.peer; peer < kRanks && !team.stopped; peer += team.peers) {
        const int place = peer ^ team.group.rank;
        ep::RingConsumer<Two, R> ring(team, mover, smem.sequences, peer);
        for (int stripe = 0; stripe < kStripes && !team.stopped; ++stripe) {
            ring.open(stripe);
            if (team.lane == 4 && team.part == 0) {
                ep::i64* header = noted(out, team.epoch, place, stripe, kMost);
                header[0] = ring.first(), header[1] = ring.count();
            }
            ep::for_messages(team, ring, [&](int k) {
                ep::i64* to = noted(out, team.epoch, place, stripe, k);
                mover.row(ep::at_leader(to), ring.row(k));
                const ep::RingMessage message = ring.message(k, 700 + k);
                const auto* fields = reinterpret_cast<const ep::i64*>(message.record[0]);
                if (team.lane < kFields) to[kWords + team.lane] = fields[team.lane];
                if (team.lane == 9) to[kWords + kFields] = message.row[0];
            });
            ring.finish();
        }
    }
}

/// Whether a token of a stripe has a part from a rank, and what is recorded of it.
__device__ __forceinline__ bool has_part(int token, int place, int stripe, ep::u32 call) {
    const bool has = (token * 3 + place + stripe + token * token + static_cast<int>(call)) % 3 != 0;
    return call > 4 ? has && token % 4 == 1 : has;
}
__device__ __forceinline__ ep::i32 entry_of(int token, int place, int stripe, ep::u32 call) {
    int position = 0;
    for (int earlier = 0; earlier < token; ++earlier) position += has_part(earlier, place, stripe, call) ? 1 : 0;
    return ep::recorded(has_part(token, place, stripe, call), position);
}

/// How many tokens a stripe has: as many as there are, or one or none.
__device__ __forceinline__ int tokens_of(int stripe, ep::u32 call) {
    return stripe != 2 || call < 2 || call > 3 ? kMost : call == 2 ? 0 : 1;
}

/// Takes the parts of tokens from all ranks at once.
template <class R>
__device__ __forceinline__ void gather(Smem& smem, ep::Team& team, ep::Mover<R>& mover, ep::i64* out) {
    ep::RingGather<Two, R> ring(team, smem.sequences);
    for (int stripe = 0; stripe < kStripes && !team.stopped; ++stripe) {
        ring.open(stripe);
        const int tokens = tokens_of(stripe, team.epoch);
        const auto at = [&](int token, int peer) {
            return entry_of(token, peer ^ team.group.rank, stripe, team.epoch);
        };
        ring.wait_ready();
        for (int token = team.warp; token < tokens && !team.stopped; token += team.warps) {
            const ep::i32 entry = team.lane < kRanks ? at(token, team.lane) : -1;
            const ep::i32 entries[1] = {entry};
            if (!ring.arrived(entries, false)) ring.arrived(entries, true);
            const ep::u64 row = reinterpret_cast<ep::u64>(ring.row(0, entry));
            const ep::u64 meta = reinterpret_cast<ep::u64>(ring.meta(0, entry));
            // What lanes read themselves comes last.
            for (int i = 0; i < 2 * kRanks; ++i) {
                const int from = i % kRanks, position = __shfl_sync(ep::kAllLanes, entry, from);
                const auto* there = reinterpret_cast<const ep::i64*>(
                    __shfl_sync(ep::kAllLanes, i < kRanks ? row : meta, from));
                if (i == kRanks) mover.flush();
                if (position < 0) continue;
                ep::i64* to = noted(out, team.epoch, from ^ team.group.rank, stripe, position);
                if (i < kRanks) {
                    mover.row(ep::at_leader(to), there);
                    continue;
                }
                if (team.lane < kFields) to[kWords + team.lane] = there[team.lane];
                if (team.lane == 9) to[kWords + kFields] = token;
            }
            ring.done(entries);
        }
        ring.finish(ep::Span{0, tokens}, at);
    }
}

/// All calls, one behind the other: the first block sends, the second one takes rows, in order or not.
template <class R, bool kGathers>
inline __device__ __noinline__ void serve(const ep::Group& group, Smem& smem, ep::i64* out) {
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes, block = static_cast<int>(blockIdx.x);
    const bool is_gather = kGathers && block == 1;
    ep::Team team(group, ep::Call{0, false, true}, 3 + block, 0, 1, warp, is_gather ? kReaders : kWarps);
    ep::Mover<R> mover(smem.mover(R{}, warp), team);
    if (!is_gather) team.split_peers(kRanks);
    for (team.epoch = 1; team.epoch <= kCalls; ++team.epoch) {
        ep::clear(smem.sequences, kRanks);
        __syncthreads();
        if (block == 0) {
            send<!kGathers>(smem, team, mover, [&](int place, int stripe) {
                if (!kGathers) return rows_of(place, stripe, team.epoch);
                const int tokens = tokens_of(stripe, team.epoch);
                return tokens == 0 ? 0 : ep::rows_through(entry_of(tokens - 1, place, stripe, team.epoch));
            });
        } else if (!kGathers) {
            take(smem, team, mover, out);
        } else if (warp < kReaders) {
            gather(smem, team, mover, out);
        }
        __syncthreads();
    }
    mover.finish();
}

/// All words of this rank but slots, ring by ring.
__device__ __forceinline__ void dump(const ep::Group& group, ep::i64* out) {
    const auto words = [&](ep::u64 at) { return reinterpret_cast<const ep::u32*>(group.window + at); };
    for (int i = 0; i < Two::kRings && ep::lane_index() == 0; ++i) {
        const int ring = i ^ group.rank;
        *out++ = words(Two::kTail)[ring];
        *out++ = words(Two::kHead)[ring];
        *out++ = words(Two::kRetired)[ring];
        for (int call = 0; call < 2; ++call) {
            *out++ = words(Two::kTaken)[call * Two::kRings + ring];
            *out++ = words(Two::kSent)[call * Two::kRings + ring];
            for (int k = 0; k < 4; ++k) *out++ = words(Two::kHeader)[(call * Two::kRings + ring) * 4 + k];
        }
    }
}

/// What becomes of a team of that, and what it leaves of the ring of a peer: what that one is told, and what is kept.
__device__ __forceinline__ void leave(const ep::Team& team, Smem& smem, int peer, ep::i64* out) {
    const ep::Group& group = team.group;
    __syncwarp();
    if (team.lane != 7) return;
    given_up::put(out, team, *reinterpret_cast<const Own*>(group.state));
    out += 16;
    for (int stripe = 0; stripe < 2; ++stripe) {
        *out++ = word_at(group, peer, Many::kTail, stripe, kSelf);
        *out++ = word_at(group, peer, Many::kHead, stripe, kSelf);
        *out++ = word_at(group, peer, Many::kRetired, stripe, kSelf);
        *out++ = word_at(group, kSelf, Many::kTaken, kStripes + stripe, peer);
        *out++ = word_at(group, kSelf, Many::kSent, kStripes + stripe, peer);
    }
    for (int word = 0; word < 2; ++word) *out++ = static_cast<ep::i64>(header_of(group, kSelf, word));
    *out++ = smem.sequences[peer].base();
    *out++ = smem.sequences[peer].sign_offs();
}

/// A row that this rank sends itself, or that goes nowhere.
template <class R>
__device__ __forceinline__ void push(ep::RingProducer<Many, R>& ring, const ep::Group& given, ep::Mover<R>& mover, int k,
                                     bool stores = true) {
    ring.wait_credit(k);
    mover.row(stores ? ring.row(k) : nullptr, row_of(given, 0, 0, 0));
    mover.send_meta(stores ? ring.meta(k) : nullptr);
    ring.post();
}

/// What a sender does that waits in vain: for room, for the header of two calls before, for another warp's row, and for
/// another warp; or that is stopped.
enum class Sends { kNoRoom, kNoHeader, kFarAhead, kAlone, kStopped };

template <class R, Sends kHow>
inline __device__ __noinline__ void send_in_vain(const ep::Group& given, Smem& smem, ep::i64* out) {
    const ep::Group group = play(given, kPlayed);
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) smem.sequences[i] = ep::Sequence{};
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, kHow == Sends::kStopped, true}, 3);
    ep::Mover<R> mover(smem.mover(R{}, 0), team);
    if (kHow == Sends::kNoHeader && team.leader()) word_at(group, kSelf, Many::kRetired, kStripe, kSelf) = kCall - 3;
    const bool is_one_of_two = kHow == Sends::kFarAhead || kHow == Sends::kAlone;
    if (is_one_of_two && team.leader()) word_at(group, kSelf, Many::kHead, kStripe, kSelf) = kBase + 100;
    __syncwarp();
    ep::RingProducer<Many, R> ring(team, mover, smem.sequences, kSelf);
    // The stripe before, which one warp alone has.
    ring.open(0);
    for (int k = 0; k < 3; ++k) push(ring, given, mover, k);
    ring.finish(3);
    if (is_one_of_two) team.parts = 2;
    ring.open(kStripe);
    ring.announce(5, 50);
    const int count = is_one_of_two && kHow == Sends::kAlone ? 3 : 50;
    // There is room for more rows than there are slots.
    for (int k = team.part; k < count && !team.stopped; k += team.parts) {
        push(ring, given, mover, k, !is_one_of_two);
    }
    ring.finish(count);
    mover.finish();
    leave(team, smem, kSelf, out);
}

/// What a receiver does: no header has come, or half of one, or not all rows, or its other warp does not; or it is stopped.
enum class Takes { kNoFirst, kNoCount, kNoRow, kAlone, kStopped };

template <class R, Takes kHow>
inline __device__ __noinline__ void take_in_vain(const ep::Group& given, Smem& smem, ep::i64* out) {
    const ep::Group group = play(given, kPlayed);
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) smem.sequences[i] = ep::Sequence{};
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, kHow == Takes::kStopped, true}, 3);
    ep::Mover<R> mover(smem.mover(R{}, 0), team);
    const int missing = kHow == Takes::kNoFirst ? 0 : kHow == Takes::kNoCount ? 1 : -1;
    if (missing >= 0 && team.leader()) header_of(group, kSelf, missing) = ep::stamped(kCall - 2, 1);
    if (kHow == Takes::kAlone) {
        team.parts = 2;
        if (team.leader()) header_of(group, kSelf, 1) = ep::stamped(kCall, 3);
    }
    __syncwarp();
    ep::RingConsumer<Many, R> ring(team, mover, smem.sequences, kSelf);
    ring.open(kStripe);
    ep::for_messages(team, ring, [&](int k) {
        if (team.lane == 2) out[50 + k] = ring.row(k) - group.window;
        mover.row(nullptr, ring.row(k));
    });
    ring.finish();
    mover.finish();
    leave(team, smem, kSelf, out);
    if (team.lane == 2) out[60] = ring.first(), out[61] = ring.count();
}

/// What a warp gathers from many ranks: all of it; or a row does not come, one of another warp is missing before one of its
/// own, or another warp does; or it is stopped.
enum class Gathers { kAll, kNoRow, kNoRowOfFirst, kFarAhead, kAlone, kStopped };

template <class R, Gathers kHow>
inline __device__ __noinline__ void gather_of_many(const ep::Group& given, Smem& smem, ep::i64* out) {
    const ep::Group group = play(given, kPlayed);
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) smem.sequences[i] = ep::Sequence{};
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, kHow == Gathers::kStopped, true}, 3);
    if (kHow == Gathers::kAlone) team.warps = 2;
    // A row that comes, but not among those that are complete.
    constexpr int kLate = kHow == Gathers::kNoRowOfFirst ? 3 : 33, kFar = 40;
    const ep::u32 come = kHow == Gathers::kFarAhead ? 60 : 1;
    if (team.leader()) word_at(group, kSelf, Many::kTail, kStripe, kLate) = kBase + come;
    __syncwarp();
    ep::RingGather<Many, R> ring(team, smem.sequences);
    ring.open(kStripe);
    // Two rows of all ranks that have an odd number, one of the others.
    const auto entry = [&](int token, int peer) {
        if ((kHow == Gathers::kNoRow || kHow == Gathers::kNoRowOfFirst) && peer == kLate) return token;
        if (kHow == Gathers::kFarAhead && peer == kLate) return token == 0 ? 0 : kFar;
        return token == 0 ? 0 : peer % 2 == 1 && peer != kLate ? ep::recorded(true, 1) : ep::recorded(false, 1);
    };
    for (int token = 0; token < 2 && !team.stopped; ++token) {
        ep::i32 entries[2];
        for (int g = 0; g < 2; ++g) {
            const int peer = g * ep::kLanes + team.lane;
            entries[g] = peer < kMany ? entry(token, peer) : -1;
        }
        const bool has = ring.arrived(entries, false);
        if (team.lane == 2) out[50 + token] = has ? 1 : 0;
        if (!has) ring.arrived(entries, true);
        for (int g = 0; g < 2; ++g) {
            const int peer = g * ep::kLanes + team.lane;
            if (peer >= kMany || entries[g] < 0) continue;
            ep::i64* to = out + 100 + (token * kMany + peer) * 2;
            to[0] = ring.row(g, entries[g]) - group.window;
            to[1] = ring.meta(g, entries[g]) - group.window;
        }
        ring.done(entries);
    }
    // In the middle of a stripe only whole chunks are told of.
    for (int i = team.lane; i < kMany; i += ep::kLanes) out[300 + i] = word_at(group, i, Many::kHead, kStripe, kSelf);
    __syncwarp();
    ring.finish(ep::Span{0, 2}, entry);
    for (int i = team.lane; i < kMany; i += ep::kLanes) {
        out[340 + i] = word_at(group, i, Many::kHead, kStripe, kSelf);
        out[380 + i] = word_at(group, kSelf, Many::kTaken, kStripes + kStripe, i);
    }
    leave(team, smem, kLate, out);
}

}  // namespace shared_rings

extern "C" __global__ void __launch_bounds__(shared_rings::kWarps * 32)
    shared_rings_of(const __grid_constant__ played_rings::Args args) {
    using namespace shared_rings;
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const bool is_one = blockIdx.x == 0 && threadIdx.x < ep::kLanes;
    const auto& group = args.group;
    switch (args.check) {
        case 0:
        case 3:
        case 6:
        case 9:
            if (is_one) prepare(group);
            break;
        case 1: serve<Role<true>, false>(group, smem, args.out); break;
        case 4: serve<Role<false>, false>(group, smem, args.out); break;
        case 7: serve<Role<true>, true>(group, smem, args.out); break;
        case 10: serve<Role<false>, true>(group, smem, args.out); break;
        case 2:
        case 5:
        case 8:
        case 11:
            if (is_one) dump(group, args.out);
            break;
        default: break;
    }
    if (is_one) {
        using R = Role<true>;
        ep::i64* out = args.out;
        switch (args.check) {
            case 12: send_in_vain<R, Sends::kNoRoom>(group, smem, out); break;
            case 13: send_in_vain<R, Sends::kNoHeader>(group, smem, out); break;
            case 14: send_in_vain<R, Sends::kFarAhead>(group, smem, out); break;
            case 15: send_in_vain<R, Sends::kAlone>(group, smem, out); break;
            case 16: send_in_vain<R, Sends::kStopped>(group, smem, out); break;
            case 17: take_in_vain<R, Takes::kNoFirst>(group, smem, out); break;
            case 18: take_in_vain<R, Takes::kNoCount>(group, smem, out); break;
            case 19: take_in_vain<R, Takes::kNoRow>(group, smem, out); break;
            case 20: take_in_vain<R, Takes::kAlone>(group, smem, out); break;
            case 21: take_in_vain<R, Takes::kStopped>(group, smem, out); break;
            case 22: gather_of_many<R, Gathers::kAll>(group, smem, out); break;
            case 23: gather_of_many<R, Gathers::kNoRow>(group, smem, out); break;
            case 24: gather_of_many<R, Gathers::kNoRowOfFirst>(group, smem, out); break;
            case 25: gather_of_many<R, Gathers::kFarAhead>(group, smem, out); break;
            case 26: gather_of_many<R, Gathers::kAlone>(group, smem, out); break;
            case 27: gather_of_many<R, Gathers::kStopped>(group, smem, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
