// Ways back of so few tokens that rows go as words: what ranks say of how they take rows, what is sent to each, and what is
// added up of words, among many ranks that one warp plays, and between two. The host knows what each check leaves in `out`;
// see words_back.rs, which has the checks in the same order.

namespace words_back {

using namespace back_slots;
using namespace ways_back;

/// A channel on which ranks with at most so many tokens take words; with a window of each rank, or one that stands for all.
template <class Base, int kFew, int kWindows_ = Base::kPeers>
struct Few : Base {
    static constexpr int kWindows = kWindows_;
    static constexpr int kFewTokens = kFew;
    static constexpr int kPlaces = kFew;
    static constexpr int kUnits = Base::kMeta / 16;
    static constexpr int kWordRowBytes = (kUnits + 31) / 32 * 1024 + (Base::kFloats * 8 + 15) / 16 * 16;
    static constexpr ep::u64 kTakesWords = Base::kSize;
    static constexpr ep::u64 kAsWords = (kTakesWords + Base::kPeers * 8 + 63) / 64 * 64;
    static constexpr ep::u64 kSize = (kAsWords + Base::kPeers * kFew * kWordRowBytes + 63) / 64 * 64;
    static constexpr ep::u64 kEnd = Base::kAt + kWindows * kSize;
};

constexpr ep::u32 kLate = 0xfffffff1u;  // a call shortly before 2^32

// To more peers than lanes, with rows of several parts however they are cut, and to ranks of one token; from the first two.
// Then a channel between two ranks.
using ToMany = Few<Slots<kMemory + sizeof(Memory), 0, kNode, 24, 3, 80, 5>, 2>;
using ToFew = Few<Slots<ToMany::kEnd, 1, 3, 1, 4, kMostRow, kMostFloats>, 2>;
using ToOne = Few<Slots<ToFew::kEnd, 5, 3, 1, 4, 48, 0>, 1>;
using FromMany = Few<Slots<ToOne::kEnd, 2, kNode, 23, 6, 80, 5>, 4, 1>;
using FromFew = Few<Slots<FromMany::kEnd, 3, 3, 1, 6, kMostRow, kMostFloats>, 4, 1>;
using Two = Few<Slots<FromFew::kEnd, 4, 2, 0, 7, 1040, 4>, 7>;

__device__ __forceinline__ ep::u64* takes_of(char* window, ep::u64 at) {
    return reinterpret_cast<ep::u64*>(window + at);
}

/// The row of a token from a source as words, in a window.
template <class S>
__device__ __forceinline__ ep::u64* row_words(char* window, int source, int token) {
    return reinterpret_cast<ep::u64*>(window + S::kAsWords + (source * S::kPlaces + token) * S::kWordRowBytes);
}

/// Ranks say how many tokens they have, each in a call of its own: few, none, one too many, and few in call 0.
__device__ __forceinline__ void begin(const ep::Group& given) {
    ep::Group group = group_of<ToMany>(given);
    const bool speaks = blockIdx.x == 0 && static_cast<int>(threadIdx.x) / ep::kLanes == kWarps - 1;
    for (int i = 0; i < 4; ++i) {
        if (speaks && ep::lane_index() == 0) group.state->epoch = i == 3 ? ~0u : kCall + i;
        if (speaks) __syncwarp();
        group.rank = i * 11;
        ep::slots_are_read<ToMany>(group, i == 2 ? 3 : i == 1 ? 0 : 2);
    }
}

/// What they have said.
__device__ __forceinline__ void begun(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of<ToMany>(given);
    for (int i = ep::lane_index(); i < kNode * kNode; i += ep::kLanes) {
        out[i] = takes_of(group.windows[i / kNode], ToMany::kTakesWords)[i % kNode];
    }
}

/// The rows that came from a rank, of some none, or fewer, and of some more than go as words.
template <class S>
__device__ __forceinline__ ep::Span rows_of(int source) {
    const int begin = source * S::kTokens + 1;
    return ep::Span{begin, begin + (S::kPeers == kNode ? (source * 3 + 1) % 5 - 1 : source + 1)};
}

template <class S>
__device__ __forceinline__ bool has_few(int source) {
    const ep::Span rows = rows_of<S>(source);
    return rows.end > rows.begin && rows.end - rows.begin <= S::kFewTokens;
}

/// The token of a row.
template <class S>
__device__ __forceinline__ int token_of(int row) {
    return row * 5 % (has_few<S>((row - 1) / S::kTokens) ? S::kFewTokens : S::kTokens);
}

/// What a rank with few rows says: that it takes words, that it does not, or that it is in a call behind this one.
__device__ __forceinline__ ep::u64 says(int source, ep::u32 call) {
    const int how = static_cast<int>((source / 5 + source % 5 + call) % 4);
    return how < 2 ? ep::stamped(call, how + 1) : ep::stamped(call + how - 1, how - 1);
}

/// What is sent to all ranks by all warps of a role, or by one of them that may be stopped.
struct Sent {
    ep::u32 call;
    int warps;
    int warp = -1;  // negative: all
    bool stopped = false;
    int stops_at = -1;  // a row whose token is asked for
    int late = -1;      // a rank that has not said what it takes,
    ep::u64 says = 0;   // but this
};

template <class S>
__device__ __forceinline__ ep::Group said(const ep::Group& given, const Sent& sent) {
    const ep::Group group = fresh<S>(given, sent.call);
    ep::u64* takes = takes_of(group.window, S::kTakesWords);
    for (int source = ep::lane_index(); source < S::kPeers; source += ep::kLanes) {
        // Nobody has to hear from others.
        if (has_few<S>(source) && ep::is_alive(group, source)) takes[source] = says(source, sent.call);
        if (source == sent.late) takes[source] = sent.says;
    }
    __syncwarp();
    return group;
}

/// All rows as words in the windows of all ranks.
template <class S>
__device__ __forceinline__ void dump_words(const ep::Group& group, ep::i64* out) {
    constexpr int kRows = S::kPeers * S::kPlaces;
    for (int i = ep::lane_index(); i < S::kPeers * kRows; i += ep::kLanes) {
        const ep::u64* row = row_words<S>(group.windows[i / kRows], i % kRows / S::kPlaces, i % S::kPlaces);
        out[i] = digest(reinterpret_cast<const char*>(row), S::kWordRowBytes / 16);
    }
    __syncwarp();
}

template <class S, bool kSums>
inline __device__ __noinline__ void sends(const ep::Group& given, const Sent& sent, ep::i64* out) {
    const ep::Group group = said<S>(given, sent);
    const int first = sent.warp < 0 ? 0 : sent.warp, end = sent.warp < 0 ? sent.warps : first + 1;
    for (int warp = first; warp < end; ++warp) {
        ep::Team team(group, ep::Call{sent.call, sent.stopped, true}, 3, 0, 1, warp, sent.warps);
        int faults = 0;
        ways_back::send<S, kSums>(team, given, rows_of<S>, [&](int row) {
            // Nobody asks for one that there is not.
            const ep::Span rows = rows_of<S>((row - 1) / S::kTokens);
            faults += row < rows.begin || row >= rows.end ? 1 : 0;
            team.stopped = team.stopped || row == sent.stops_at;
            return token_of<S>(row);
        });
        out[20500 + warp * 32 + team.lane] = faults;
        if (team.lane == 5) given_up::put(out + 20000 + warp * 20, team, own_of(given, S::kGroup));
        __syncwarp();
    }
    dump<S>(group, out);
    dump_words<S>(group, out + 21000);
}

/// All rows of a call as words, each that behind its number, but for those of ranks that take no part; with those of this rank
/// where they lie, or as words too.
template <class S, bool kLies>
inline __device__ __noinline__ ep::Group filled(const ep::Group& given, ep::u32 call) {
    const ep::Group group = fresh<S>(given, call);
    for (int i = 0; i < S::kPeers * S::kPlaces; ++i) {
        const int source = i / S::kPlaces, lane = ep::lane_index();
        const bool lies = kLies && source == S::kOwn;
        if (lies && lane == 0) {
            const int key = source * S::kTokens + i % S::kPlaces;
            // One word tells of all of a row then.
            *words_of<S>(group, call, key) = ep::stamped(call, static_cast<ep::u32>(own_row(i)) + 2);
        }
        if (lies || !ep::is_alive(group, source)) continue;
        ep::u64* words = row_words<S>(group.window, source, i % S::kPlaces);
        const auto* row = reinterpret_cast<const ep::Quad*>(row_of(given, i + 1));
        for (int unit = lane; unit < S::kUnits; unit += ep::kLanes) {
            ep::u64* to = words + unit / 32 * 128 + unit % 32 * 2;
            to[0] = ep::stamped(call, row[unit].x), to[1] = ep::stamped(call, row[unit].y);
            to[64] = ep::stamped(call, row[unit].z), to[65] = ep::stamped(call, row[unit].w);
        }
        ep::u64* numbers = words + (S::kUnits + 31) / 32 * 128;
        for (int k = lane; k < S::kFloats; k += ep::kLanes) {
            numbers[k] = ep::stamped(call, ep::bits_of(numbers_of(given, i + 1)[k]));
        }
    }
    __syncwarp();
    return group;
}

template <class S, bool kLies>
inline __device__ __noinline__ void adds(const ep::Group& given, ep::u32 call, int tokens, int warps, ep::i64* out) {
    back_slots::adds<S>(given, filled<S, kLies>(given, call), call, warps, out, add_all<S, kLies>(given, tokens));
}

/// The same where rows lie in slots: of call 0, and of a rank with more tokens.
template <class S, bool kLies>
inline __device__ __noinline__ void adds_slots(const ep::Group& given, ep::u32 call, int tokens, ep::i64* out) {
    const ep::Group group = fresh<S>(given, call);
    ways_back::filled<S, kLies>(given, call);
    back_slots::adds<S>(given, group, call, 3, out, add_all<S, kLies>(given, tokens));
}

/// A word that has not come of the row of a source for a token, or of the numbers behind it, and what it is.
struct Lack {
    int source;
    int word;
    ep::u64 is = ep::stamped(kCall - 3, 5);
};

/// What one of some warps leaves of a call in which some words have not come.
template <class S, bool kLies, int kLacks>
inline __device__ __noinline__ void lacks(const ep::Group& given, int warp, int warps, const Lack (&all)[kLacks],
                                      ep::i64* out) {
    const ep::Group group = filled<S, kLies>(given, kCall);
    for (const Lack& it : all) {
        // The part of the third token from each source is in the last place.
        const int place = S::kPlaces - 1;
        ep::u64* word = it.word >= 0 ? row_words<S>(group.window, it.source, place) + it.word
                                     : words_of<S>(group, kCall, it.source * S::kTokens + place);
        if (ep::lane_index() == 0) *word = it.is;
    }
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3, 0, 1, warp, warps);
    add_all<S, kLies>(given, 4)(team, out);
    if (team.lane == 5) given_up::put(out + 1200, team, own_of(given, S::kGroup));
    __syncwarp();
}

/// Words that have not come: of a unit, of which a lane has one of four, in one part or another, or of a number; those that
/// a warp has nothing to do with; those of some sources, of which one is told of; and that of a row that lies here.
__device__ __forceinline__ void waits(const ep::Group& given, ep::i64* out) {
    // A token of few sources has five parts and its numbers, and one of many a part and its numbers: a warp each.
    const auto few = [&](int part, auto... words) {
        const Lack all[] = {words...};
        lacks<FromFew, true>(given, part < 0 ? 0 : 2 * 6 + part, part < 0 ? 1 : 24, all, out);
        out += 1300;
    };
    const auto many = [&](int part, auto... words) {
        const Lack all[] = {words...};
        lacks<FromMany, false>(given, 2 * 2 + part, 8, all, out);
        out += 1300;
    };
    const ep::u64 before = ep::stamped(kCall - 1, 4), after = ep::stamped(kCall + 1, 4);
    for (int k = 0; k < 4; ++k) few(1, Lack{2, 128 + 7 * 2 + k / 2 * 64 + k % 2});
    few(1, Lack{2, 14}, Lack{0, 256 + 14}, Lack{1, 128 + 14});
    few(4, Lack{0, 4 * 128 + 10 * 2}, Lack{2, 4 * 128 + 10 * 2, before});
    few(4, Lack{0, 4 * 128 + 11 * 2});
    few(5, Lack{2, 5 * 128 + 33});
    few(5, Lack{0, 5 * 128 + 3, before}, Lack{2, 5 * 128 + 3});
    few(5, Lack{2, 5 * 128}, Lack{1, 5 * 128 + 4});
    few(0, Lack{1, -1});
    few(0, Lack{1, -1, ep::stamped(kCall, 0)});
    few(5, Lack{1, -1, before});
    few(-1, Lack{2, 128});
    many(0, Lack{34, 8}, Lack{3, 8, before});
    many(0, Lack{23, 9, after});
    many(0, Lack{34, 10}, Lack{2, 0}, Lack{23, -1});
    many(1, Lack{31, 129}, Lack{30, 132, before});
    many(1, Lack{34, 128}, Lack{3, 0});
}

/// How many tokens a rank has in a call between two: in turn as many as go as words, and more.
__device__ __forceinline__ int tokens_in(ep::u32 call) { return Two::kFewTokens + (call % 3 == 0 ? 1 : 0); }

}  // namespace words_back

extern "C" __global__ void __launch_bounds__(back_slots::kWarps * 32)
    words_back_of(const __grid_constant__ back_slots::Args args) {
    using namespace words_back;
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    ep::i64* out = args.out;
    given_up::scribble(kNoNumber);
    if (args.check == 2) begin(group);
    if (args.check == 26) rounds<Two, false>(group, 20, out, tokens_in);
    if (args.check == 27) rounds<Two, true>(group, 40, out, tokens_in);
    if (threadIdx.x < ep::kLanes && blockIdx.x == 0) {
        switch (args.check) {
            case 0:
                fill_memory(group);
                place_windows<ToMany>(group);
                place_windows<ToFew>(group);
                place_windows<ToOne>(group);
                place_windows<FromMany>(group);
                place_windows<FromFew>(group);
                place_in_windows<Two>(group);
                break;
            case 1: fresh<ToMany>(group, 2); break;
            case 3: begun(group, out); break;
            case 4: sends<ToMany, false>(group, Sent{kCall, 1}, out); break;
            case 5: sends<ToMany, true>(group, Sent{kCall + 1, 4}, out); break;
            case 6: sends<ToFew, false>(group, Sent{kCall + 1, 7}, out); break;
            case 7: sends<ToFew, false>(group, Sent{kCall + 2, 7}, out); break;
            case 8: sends<ToFew, true>(group, Sent{kCall, 3}, out); break;
            case 9: sends<ToFew, true>(group, Sent{kCall + 1, 11}, out); break;
            case 10: sends<ToMany, false>(group, Sent{kCall, 2, 1, false, -1, 34, ep::stamped(kCall - 1, 1)}, out); break;
            case 11: sends<ToMany, false>(group, Sent{0, 1, 0, false, -1, 34, 0}, out); break;
            case 12: sends<ToMany, true>(group, Sent{kLate, 1, 0, false, -1, 34, ep::stamped(kLate - 1, 1)}, out); break;
            case 13: sends<ToOne, false>(group, Sent{kCall + 1, 2}, out); break;
            case 28: sends<ToOne, true>(group, Sent{kCall + 2, 5}, out); break;
            case 14: sends<ToFew, true>(group, Sent{kCall, 3, 1, false, -1, 0, ep::stamped(kCall - 2, 2)}, out); break;
            case 15: sends<ToFew, false>(group, Sent{kCall + 1, 2, 0, true}, out); break;
            case 16: sends<ToFew, true>(group, Sent{kCall + 1, 2, 0, true}, out); break;
            case 17: sends<ToMany, false>(group, Sent{kCall, 1, 0, false, 29 * 3 + 1}, out); break;
            case 18: sends<ToMany, true>(group, Sent{kCall, 1, 0, false, 29 * 3 + 2}, out); break;
            case 19: adds<FromMany, true>(group, kCall, 4, 1, out); break;
            case 20: adds<FromMany, false>(group, kCall + 1, 3, 5, out); break;
            case 21: adds<FromFew, true>(group, kCall + 1, 4, 4, out); break;
            case 22: adds<FromFew, false>(group, kCall, 4, 7, out); break;
            case 23: adds_slots<FromMany, true>(group, 0, 4, out); break;
            case 24: adds_slots<FromFew, false>(group, kCall, 5, out); break;
            case 25: waits(group, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
