// Rows as words in a dispatch of one launch: one warp plays all warps of a rank that sends to 34, or to 3 with rows of several
// parts, and all of a rank that takes rows, of which some come as words. The host knows what each check leaves in `out`; see
// once_words.rs, which has the checks in the same order.
#include <ep/one_launch.cuh>
#include <ep/sync.cuh>

namespace once_words {

constexpr int kMany = 34;
constexpr int kBlocks = 3;
constexpr int kWarps = 2;
constexpr int kGroups = 8;
constexpr int kRows = 20;       // that a rank takes at most
constexpr ep::u64 kLines = 40;  // of 1 KiB, each the row of a token

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a group has of its own.
struct Own : given_up::Own {
    char* windows[kMany];
};

/// Rows of so many bytes, with so many words of small fields.
template <int kPeers_, int kOwn_, int kFew, int kRow, int kWords, int kStride = kRow + 32>
struct Rows {
    static constexpr int kOwn = kOwn_;
    static constexpr int kChannel = 3;
    static constexpr int kPeers = kPeers_;
    static constexpr int kSenders = 4;
    static constexpr int kRowStride = kStride;
    static constexpr int kRecordWords = kWords;
    static constexpr int kFewTokens = kFew;
    static constexpr int kWholeRowBytes = kRow;
    static constexpr int kWordRowBytes = (kRow / 16 + 31) / 32 * 1024 + (kWords * 8 + 63) / 64 * 64;
    static constexpr ep::u64 kReady = 0;
    static constexpr ep::u64 kTold = 2 * kPeers * 16;
    static constexpr ep::u64 kRecords = (kTold + kPeers * kSenders * 8 + 63) / 64 * 64;
    static constexpr ep::u64 kAsWords = (kRecords + kRows * kWords * 8 + 63) / 64 * 64;
    static constexpr ep::u64 kOut = kAsWords + 2ull * kPeers * kFew * kWordRowBytes;
    // What one rank sends in a call: windows lie so far behind one another, since nobody else writes to them.
    static constexpr ep::u64 kBlock = 1ull * kFew * kWordRowBytes;
};

using ToMany = Rows<kMany, 33, 36, 80, 34>;
using ToFew = Rows<3, 1, 6, 1040, 34>;
using ToOne = Rows<3, 2, 1, 80, 5>;
/// A call whose rows lie whole sends them somewhere: each rank has a window of its own.
struct ToWindows : ToFew {
    static constexpr ep::u64 kRowsAt = (kOut + 127) / 128 * 128;
    static constexpr ep::u64 kBlock = kRowsAt + (kRows * kRowStride + 127) / 128 * 128;
};
using FromMany = Rows<kMany, 33, 6, 80, 34>;
using FromFew = Rows<3, 1, 6, 1040, 34>;
using FromOne = Rows<kMany, 33, 1, 80, 34>;
using NoWords = Rows<kMany, 33, 0, 80, 34>;
// A row so far behind the first one that 32 bits do not reach it.
using Far = Rows<3, 1, 6, 80, 34, 1 << 28>;

template <int kRanks_, int kRow>
struct Role {
    static constexpr int kRanks = kRanks_;
    static constexpr int kTokenWords = 2;
    static constexpr int kValues = 1;
    static constexpr int kCountWords = 1;
    static constexpr bool kEarly = false;
    static constexpr bool kTma = false;
    static constexpr int kStages = 2;
    static constexpr int kPieceBytes = kRow;
    static constexpr int kRowBytes = kRow;
    static constexpr int kMetaBytes = 144;
};

template <class R>
struct Smem {
    ep::RouteSmem<R> routes;
    ep::MoverSmem<R> mover;
};

struct Bytes {
    char bytes[1536];
};

constexpr ep::u64 kTable = 64 + kGroups * sizeof(Own);
constexpr ep::u64 kCounts = kTable + kLines * 1024 + 1040;
constexpr ep::u64 kWindows = (kCounts + kMany * kMany * 8 + 63) / 64 * 64;
constexpr ep::u64 kBytes = 102 * ToMany::kBlock + ToMany::kAsWords;  // of all windows

__device__ __forceinline__ Own& own_of(const ep::Group& given, int number) {
    return reinterpret_cast<Own*>(given.window + 64)[number];
}

/// The row of a token, or the word that says how many rows a source sends to a rank.
__device__ __forceinline__ const ep::u32* row_of(const ep::Group& given, int token) {
    return reinterpret_cast<const ep::u32*>(given.window + kTable + token * 1024);
}
__device__ __forceinline__ ep::u64* count_of(const ep::Group& given, int source, int peer) {
    return reinterpret_cast<ep::u64*>(given.window + kCounts) + source * kMany + peer;
}

inline __device__ __noinline__ void prepare(const ep::Group& given) {
    ep::u32* table = reinterpret_cast<ep::u32*>(given.window + kTable);
    for (int i = ep::lane_index(); i < static_cast<int>(kLines * 256 + 260); i += ep::kLanes) table[i] = 3 * i + 1;
    __syncwarp();
}

/// As if no rank had sent anything.
inline __device__ __noinline__ void clear(const ep::Group& given) {
    ep::Quad* quads = reinterpret_cast<ep::Quad*>(given.window + kWindows);
    for (ep::u64 i = ep::lane_index(); i < kBytes / 16; i += ep::kLanes) quads[i] = ep::Quad{0, 0, 0, 0};
    __syncwarp();
}

/// A group as if nobody had waited in vain.
template <class S>
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number) {
    Own& own = own_of(given, number);
    if (ep::lane_index() == 0) own.stop = own.state.records = 0, own.records[0] = ep::Record{};
    for (int i = ep::lane_index(); i < S::kPeers; i += ep::kLanes) {
        own.windows[i] = given.window + kWindows + i * S::kBlock;
    }
    __syncwarp();
    return given_up::group_of(given, own, number, own.windows, S::kOwn);
}

/// Whether a token goes to a rank; some go nowhere.
__device__ __forceinline__ bool goes(int token, int rank) {
    return token % 5 != 3 && (token * 9 + rank * rank * 3 + token * token % 13 * rank) % 7 < 3;
}

/// What the warps of a rank send, or one of them: `stop`: a token behind whose small fields it is stopped, `missing`: a source
/// whose count has not come.
struct Sent {
    ep::u32 call;
    int tokens;
    int only = -1;
    bool stopped = false;
    int stop = -1;
    int missing = -1;
};

/// Counts of rows, and where tokens go; what stands behind the bits of tokens is none.
template <class S, class R>
__device__ __forceinline__ void begin(const ep::Group& given, ep::RouteSmem<R>& routes, const Sent& sent) {
    const ep::Group group = group_of<S>(given, 0);
    for (int i = ep::lane_index(); i < S::kPeers * S::kPeers; i += ep::kLanes) {
        const int source = i / S::kPeers, peer = i % S::kPeers;
        const ep::u32 call = source == sent.missing && peer == 2 ? sent.call - 2 : sent.call;
        // Nobody looks at those behind this rank.
        *count_of(given, source, peer) = source < S::kOwn ? ep::stamped(call, (source * 3 + peer) % 4) : 0;
    }
    for (int rank = ep::lane_index(); rank < S::kPeers; rank += ep::kLanes) {
        routes.windows[rank] = group.windows[rank];
        for (int word = 0; word < R::kTokenWords; ++word) {
            ep::u32 bits = 0;
            for (int bit = 0; bit < 32; ++bit) {
                const int token = word * 32 + bit;
                bits |= token >= sent.tokens || goes(token, rank) ? 1u << bit : 0;
            }
            routes.to[rank][word] = bits;
        }
    }
    __syncwarp();
}

/// What one warp sends. Lanes count what they are asked for.
template <class S, class R>
__device__ __forceinline__ void send(const ep::Group& given, Smem<R>& smem, ep::Team& team, const Sent& sent,
                                     ep::i64* out) {
    ep::Mover<R> mover(smem.mover, team);
    ep::OnceOut<S, R> rows(team, mover, smem.routes, sent.tokens);
    ep::i64 faults = 0;
    const auto asks = [&](int token, ep::i64 kind) {
        bool is_sent = false;
        for (int rank = 0; rank < S::kPeers; ++rank) is_sent = is_sent || goes(token, rank);
        is_sent = is_sent && token >= 0 && token < sent.tokens;
        faults += is_sent ? 0 : 1;
        if (team.leader() && is_sent) out[2000 + token] += kind;
    };
    rows.ask([&](int token) {
        faults += sent.call != 0 ? 1 : 0;  // words are loaded when they are sent
        return row_of(given, token);
    });
    rows.for_tokens(
        [&](int source, int peer) {
            faults += source >= S::kOwn || peer >= S::kPeers ? 1 : 0;
            return count_of(given, source, peer);
        },
        [&](int token) { return asks(token, 1), row_of(given, token); },
        [&](int token, char* record) {
            asks(token, 100);
            // Each lane sends what another one has written.
            for (int i = (team.lane + 1) % ep::kLanes; i < S::kRecordWords; i += ep::kLanes) {
                reinterpret_cast<ep::u32*>(record)[i] = token * 100 + i;
            }
            team.stopped = team.stopped || token == sent.stop;
            return row_of(given, token);
        },
        [&](int token, int peer, bool match, int position) {
            out[token * S::kPeers + peer] += (match ? 10000 : 0) + position + 1;
        });
    rows.close();
    mover.finish();
    const int index = team.index();
    out[3000 + index * 32 + team.lane] = faults;
    if (team.lane == 5) given_up::put(out + 2100 + index * 20, team, own_of(given, 0));
    __syncwarp();
}

/// A sum over words that tells their places.
template <class Word>
__device__ __forceinline__ ep::i64 digest(const Word* words, int count) {
    ep::u64 sum = 0;
    for (int i = 0; i < count; ++i) sum = sum * 31 + words[i];
    return static_cast<ep::i64>(sum);
}

template <class S>
__device__ __forceinline__ void sends_to(const ep::Group& given, Bytes& bytes, const Sent& sent, ep::i64* out) {
    using R = Role<S::kPeers, S::kWholeRowBytes>;
    static_assert(sizeof(Smem<R>) <= sizeof(Bytes), "it has room");
    auto& smem = reinterpret_cast<Smem<R>&>(bytes);
    begin<S>(given, smem.routes, sent);
    for (int i = ep::lane_index(); i < 2036; i += ep::kLanes) out[i] = 0;
    __syncwarp();
    const ep::Group group = group_of<S>(given, 0);
    for (int index = 0; index < kBlocks * kWarps; ++index) {
        if (sent.only >= 0 && index != sent.only) continue;
        const ep::Call call{sent.call, sent.stopped, true};
        ep::Team team(group, call, 2, index / kWarps, kBlocks, index % kWarps, kWarps);
        send<S, R>(given, smem, team, sent, out);
    }
    // Rows that are sent as words, and the words that publish other rows.
    for (int i = ep::lane_index(); i < S::kPeers * S::kFewTokens; i += ep::kLanes) {
        ep::WordPair* row = ep::OnceWords<S>::at(group.windows[i / S::kFewTokens], sent.call, S::kOwn, i % S::kFewTokens);
        out[4000 + i] = digest(reinterpret_cast<const ep::u64*>(row), S::kWordRowBytes / 8);
    }
    for (int i = ep::lane_index(); i < S::kPeers; i += ep::kLanes) {
        const ep::u64* told = ep::once_told<S>(group.windows[i], S::kOwn, 0);
        out[6000 + i] = digest(told, S::kSenders);
    }
    __syncwarp();
}

template <class S>
inline __device__ __noinline__ void sends(const ep::Group& given, Bytes& bytes, const Sent& sent, ep::i64* out) {
    clear(given);
    sends_to<S>(given, bytes, sent, out);
}

/// A call without words for few tokens: what it offers, and what it sends to ranks that take rows.
inline __device__ __noinline__ void sends_whole(const ep::Group& given, Bytes& bytes, const Sent& sent, ep::i64* out) {
    using S = ToWindows;
    const ep::Group group = group_of<S>(given, 0);
    const int lane = ep::lane_index();
    clear(given);
    if (lane == 0) group.state->epoch = sent.call - 1;
    __syncwarp();
    ep::once_offer<S>(group, S::kRowsAt, sent.tokens);
    if (lane < S::kPeers) {
        const ep::OnceReady* ready = ep::once_ready<S>(group.windows[lane], sent.call, S::kOwn);
        out[6100 + lane] = static_cast<ep::i64>(ready->rows);
        out[6200 + lane] = static_cast<ep::i64>(ready->senders);
        ep::once_ready<S>(group.window, sent.call, lane)->rows = ep::stamped(sent.call, S::kRowsAt / 128);
    }
    __syncwarp();
    sends_to<S>(given, bytes, sent, out);
    for (int i = lane; i < S::kPeers * kRows; i += ep::kLanes) {
        char* window = group.windows[i / kRows];
        const char* row = window + S::kRowsAt + i % kRows * S::kRowStride;
        out[6300 + i] = digest(reinterpret_cast<const ep::u32*>(row), S::kRowStride / 4);
        out[6400 + i] = digest(ep::once_record<S>(window, i % kRows), S::kRecordWords);
    }
    __syncwarp();
}

/// How many rows a source sends.
enum class Many { kHalf, kSome, kFirst, kFew, kFar };

__device__ __forceinline__ int rows_of(Many many, int source) {
    switch (many) {
        case Many::kHalf: return source % 2;
        case Many::kSome: return source % 4 == 1 || source == 32 ? 1 : 0;
        case Many::kFirst: return source == 0 ? 3 : 0;
        case Many::kFew: return source == 0 ? 2 : source == 1 ? 1 : 3;
        default: return source == 0 ? 8 : source == 1 ? 1 : 0;
    }
}

/// Rows of a call, of which those of some sources (a bit each) come as words; and a word of one that does not come: that of a
/// row, or of a field behind it.
struct Taken {
    ep::u32 call;
    int tokens;
    Many many;
    ep::u64 words;
    int source = -1, number = 0, word = 0;
};

/// All that a rank is sent.
template <class S>
__device__ __forceinline__ void fill(const ep::Group& given, const ep::Group& group, const Taken& taken) {
    const int lane = ep::lane_index();
    int row = 0;
    for (int source = 0; source < S::kPeers; ++source) {
        const int count = rows_of(taken.many, source);
        const bool words = (taken.words >> source & 1) != 0;
        ep::OnceReady* ready = ep::once_ready<S>(group.window, taken.call, source);
        // Who has no warps sends nothing where there are no words.
        const int senders = words || (S::kFewTokens == 0 && source == 3) ? 0 : source % 3 + 1;
        if (lane == 0) {
            ready->senders = ep::stamped(taken.call, senders);
            *count_of(given, source, 0) = ep::stamped(taken.call, count);
            for (int i = 0; i < senders; ++i) *ep::once_told<S>(group.window, source, i) = ep::stamped(taken.call, 1);
        }
        for (int number = 0; number < count; ++number, ++row) {
            ep::u64* fields = ep::once_record<S>(group.window, row);
            if constexpr (S::kFewTokens > 0) {
                ep::WordPair* pairs = ep::OnceWords<S>::at(group.window, taken.call, source, number);
                if (words) fields = ep::OnceWords<S>::numbers(pairs);
                for (int unit = lane; unit < S::kWholeRowBytes / 16 && words; unit += ep::kLanes) {
                    const auto word = [&](int k) { return ep::stamped(taken.call, row * 1000 + unit * 4 + k); };
                    pairs[unit / 32 * 64 + unit % 32] = ep::WordPair{word(0), word(1)};
                    pairs[unit / 32 * 64 + unit % 32 + 32] = ep::WordPair{word(2), word(3)};
                }
                __syncwarp();
                ep::u64* all = reinterpret_cast<ep::u64*>(pairs);
                if (source == taken.source && number == taken.number && lane == 0) {
                    all[taken.word] = ep::stamped(taken.call - 2, 1);
                }
            }
            for (int i = lane; i < S::kRecordWords; i += ep::kLanes) {
                fields[i] = ep::stamped(taken.call, row * 100 + i + 5);
            }
        }
    }
    __syncwarp();
}

/// What the warps of a rank take, or one warp that is alone. `kRowsAt`: where the first row is to lie.
template <class S, ep::u64 kRowsAt = S::kOut>
inline __device__ __noinline__ void takes(const ep::Group& given, Bytes& bytes, int number, bool alone, const Taken& taken,
                                          ep::i64* out) {
    clear(given);
    const ep::Group group = group_of<S>(given, number);
    fill<S>(given, group, taken);
    for (int index = 0; index < (alone ? 1 : kBlocks * kWarps); ++index) {
        const ep::Call call{taken.call, false, true};
        const int blocks = alone ? 1 : kBlocks, warps = alone ? 1 : kWarps;
        ep::Team team(group, call, 2, index / warps, blocks, index % warps, warps);
        ep::OnceIn<S> rows(team, bytes.bytes, taken.tokens, kRowsAt);
        rows.open([&](int source) { return count_of(given, source, 0); });
        rows.for_messages([&](const ep::OnceMessage& message) {
            const ep::u32* fields = reinterpret_cast<const ep::u32*>(message.record);
            ep::i64* own = out + message.row * 40;
            for (int i = (team.lane + 1) % ep::kLanes; i < S::kRecordWords; i += ep::kLanes) own[i] = fields[i];
            if (team.leader()) own[36] = index + 1;
        });
        rows.await();
        if (team.leader()) out[900 + index] = rows.total();
        if (team.lane == 5) given_up::put(out + 1000 + index * 20, team, own_of(given, number));
        __syncwarp();
    }
    for (int i = ep::lane_index(); i < kRows; i += ep::kLanes) {
        const ep::u64 at = kRowsAt + static_cast<ep::u64>(i) * S::kRowStride;
        if (S::kRowStride == 1 << 28 && i != 8) continue;
        const auto* row = reinterpret_cast<const ep::u32*>(group.window + at);
        const int words = S::kRowStride == 1 << 28 ? 20 : ep::min(S::kRowStride / 4, 268);
        out[1200 + i] = digest(row, words);
    }
    __syncwarp();
}

constexpr ep::u64 kHalfOfAll = 0x2aaaaaaaaull;
constexpr ep::u64 kSomeOfSome = 1ull << 5 | 1ull << 13 | 1ull << 29 | 1ull << 32 | 1ull << 33;

}  // namespace once_words

extern "C" __global__ void __launch_bounds__(32)
    once_words_of(const __grid_constant__ once_words::Args args) {
    using namespace once_words;
    EP_SHARED(Bytes, bytes);
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    ep::i64* out = args.out;
    constexpr ep::u64 kFarAt = Far::kOut - (8ull << 28);
    switch (args.check) {
        case 0: prepare(group); break;
        case 1: sends<ToMany>(group, bytes, Sent{7, 36}, out); break;
        case 2: sends<ToMany>(group, bytes, Sent{8, 2}, out); break;
        case 3: sends<ToFew>(group, bytes, Sent{9, 5}, out); break;
        case 4: sends<ToOne>(group, bytes, Sent{10, 1}, out); break;
        case 5: sends<ToFew>(group, bytes, Sent{11, 5, -1, false, 0}, out); break;
        case 6: sends<ToFew>(group, bytes, Sent{13, 2, 0, false, -1, 0}, out); break;
        case 7: sends<ToFew>(group, bytes, Sent{15, 2, 1, false, -1, 0}, out); break;
        case 8: sends<ToFew>(group, bytes, Sent{17, 5, 1, true}, out); break;
        case 9: takes<FromMany>(group, bytes, 1, false, Taken{7, 2, Many::kHalf, 0}, out); break;
        case 10: takes<FromMany>(group, bytes, 1, false, Taken{8, 2, Many::kSome, 0}, out); break;
        case 11: takes<FromMany>(group, bytes, 1, false, Taken{9, 2, Many::kSome, kSomeOfSome}, out); break;
        case 12: takes<FromMany>(group, bytes, 1, false, Taken{10, 2, Many::kHalf, kHalfOfAll}, out); break;
        case 13: takes<FromMany>(group, bytes, 1, false, Taken{11, 2, Many::kFirst, 1}, out); break;
        case 14: takes<NoWords>(group, bytes, 1, false, Taken{12, 2, Many::kSome, 0}, out); break;
        case 15: takes<FromOne>(group, bytes, 1, false, Taken{13, 2, Many::kSome, kSomeOfSome}, out); break;
        case 16: takes<FromFew>(group, bytes, 1, false, Taken{14, 2, Many::kFew, 5}, out); break;
        case 17: takes<Far, kFarAt>(group, bytes, 1, true, Taken{15, 2, Many::kFar, 2}, out); break;
        case 18: takes<FromFew>(group, bytes, 2, true, Taken{16, 2, Many::kFew, 5, 2, 1, 2 * 128 + 1}, out); break;
        case 19: takes<FromFew>(group, bytes, 3, true, Taken{17, 2, Many::kFew, 5, 2, 0, 128 + 3 * 2}, out); break;
        case 20: sends<ToFew>(group, bytes, Sent{~0u, 5}, out); break;
        case 21: sends_whole(group, bytes, Sent{0, 5}, out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
