// Rows that go in pieces to receivers that pack them: one warp plays all warps of a rank that sends, and all of one that
// takes, while nobody else does anything. The host knows what each check leaves in `out`; see packed.rs, which has the
// checks in the same order.
namespace packed {

constexpr int kMany = 34;
constexpr int kBlocks = 3;
constexpr int kWarps = 2;
constexpr int kTokens = 6;   // that a rank has at most
constexpr int kRows = 16;    // that a rank takes at most
constexpr int kWidth = 3;    // places of a row at most
constexpr int kValues = 1808;
constexpr int kTable = 1840;  // values from a row of the table to the next one

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

struct Own : given_up::Own {
    char* windows[kMany];
};

/// Rows of so many bytes in pieces of so many, with so many words of small fields.
template <int kPeers_, int kOwn_, int kFew, int kRow, int kPiece_, bool kTma_>
struct Rows {
    static constexpr int kOwn = kOwn_;
    static constexpr int kChannel = 3;
    static constexpr int kPeers = kPeers_;
    static constexpr int kSenders = kTokens;
    static constexpr int kRowStride = kRow + 32;
    static constexpr int kApart = kRowStride;  // from a row to the next one that is there
    static constexpr int kFirst = 0;           // the first row that is there
    static constexpr int kRecordWords = 40;
    static constexpr int kFewTokens = kFew;
    static constexpr int kWholeRowBytes = kRow;
    static constexpr int kPieces = (kRow + kPiece_ - 1) / kPiece_;
    static constexpr int kWordRowBytes = (kRow / 16 + 31) / 32 * 1024 + 320;
    static constexpr ep::u64 kReady = 0;
    static constexpr ep::u64 kTold = 2 * kPeers * 16;
    static constexpr ep::u64 kRecords = kTold + kPeers * kSenders * kPieces * 8;
    static constexpr ep::u64 kAsWords = (kRecords + kRows * kRecordWords * 8 + 127) / 128 * 128;
    static constexpr ep::u64 kOut = (kAsWords + 2ull * kPeers * kFew * kWordRowBytes + 127) / 128 * 128;
    static constexpr ep::u64 kWindow = (kOut + 128 + kRows * kApart + 127) / 128 * 128;

    struct Role {
        static constexpr int kRanks = kPeers_;
        static constexpr int kTokenWords = 1;
        static constexpr int kValues = 1;
        static constexpr int kCountWords = 1;
        static constexpr bool kEarly = false;
        static constexpr bool kTma = kTma_;
        static constexpr int kStages = 2;
        static constexpr int kPieceBytes = kPiece_;
        static constexpr int kRowBytes = kRow;
        static constexpr int kMetaBytes = 160;
    };
};

using Many = Rows<kMany, 33, 0, 80, 512, true>;
using Long = Rows<3, 2, 0, kValues, 512, true>;
using Vector = Rows<3, 2, 0, kValues, 1024, false>;  // more than a turn of a warp
using Few = Rows<3, 2, 5, kValues, 512, true>;
using Pieces = Rows<3, 0, 0, 560, 16, false>;  // more of them than lanes

/// Rows so far apart that the bytes to one take more than 32 bits; of those that are taken only the last one is there.
struct Far : Rows<3, 2, 0, 80, 80, true> {
    static constexpr int kRowStride = 1 << 30;
    static constexpr int kFirst = 4;

    struct Role : Rows::Role {};
};

}  // namespace packed

/// Tells where each row goes, at a place for its number.
template <>
class ep::PieceMover<packed::Far::Role, true> {
public:
    __device__ __forceinline__ PieceMover(MoverSmem<packed::Far::Role>& smem, Team& team) : smem_(smem), team_(team) {}

    __device__ __forceinline__ void fence_global() const {}
    __device__ __forceinline__ char* meta() { return smem_.meta[0]; }
    __device__ __forceinline__ void begin(const void*, int) {}
    __device__ __forceinline__ void store(char* to, const void*, int) {
        if (to == nullptr) return;
        char* window = team_.group.windows[team_.lane];
        const i64 at = to - window;
        reinterpret_cast<i64*>(window + packed::Far::kOut)[at / packed::Far::kRowStride] = at;
    }
    __device__ __forceinline__ void finish() {}

private:
    MoverSmem<packed::Far::Role>& smem_;
    Team& team_;
};

namespace packed {

/// A row that lies whole, or is cast with scales of so many words.
struct Lying {
    static constexpr int kScaleWords = 0;
    static __device__ __forceinline__ const void* from(const ep::bf16* row) { return row; }
};
template <class Scale, int kCount, int kWords>
struct Cast {
    static constexpr int kScaleWords = kWords;
    static __device__ __forceinline__ auto from(const ep::bf16* row) { return ep::cast_from<Scale, kCount, 8>(row); }
};

template <class R>
struct Smem {
    ep::RouteSmem<R> routes;
    ep::MoverSmem<R> movers[kBlocks * kWarps];
};

struct alignas(128) Bytes {
    char bytes[10880];
};

constexpr ep::u64 kRowsAt = 64 + 4 * sizeof(Own);
constexpr ep::u64 kCounts = kRowsAt + kTokens * kTable * 2;
constexpr ep::u64 kWindows = (kCounts + kMany * kMany * 8 + 127) / 128 * 128;

__device__ __forceinline__ ep::bf16* row_of(const ep::Group& given, int token) {
    return reinterpret_cast<ep::bf16*>(given.window + kRowsAt) + token * kTable;
}
__device__ __forceinline__ ep::u64* count_of(const ep::Group& given, int source, int list) {
    return reinterpret_cast<ep::u64*>(given.window + kCounts) + source * kMany + list;
}

/// As if no rank had sent anything.
template <class S>
__device__ __forceinline__ void clear(const ep::Group& given) {
    ep::Quad* quads = reinterpret_cast<ep::Quad*>(given.window + kWindows);
    for (ep::u64 i = ep::lane_index(); i < S::kPeers * S::kWindow / 16; i += ep::kLanes) quads[i] = ep::Quad{0, 0, 0, 0};
    __syncwarp();
}

/// A group as if nobody had waited in vain.
template <class S>
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, int number) {
    Own& own = reinterpret_cast<Own*>(given.window + 64)[number];
    if (ep::lane_index() == 0) own.stop = own.state.records = 0, own.records[0] = ep::Record{};
    for (int i = ep::lane_index(); i < S::kPeers; i += ep::kLanes) {
        own.windows[i] = given.window + kWindows + i * S::kWindow;
    }
    __syncwarp();
    return given_up::group_of(given, own, number, own.windows, S::kOwn);
}

/// Some words together, each by its place.
__device__ __forceinline__ ep::i64 digest(const char* begin, ep::u64 bytes) {
    const ep::u64* words = reinterpret_cast<const ep::u64*>(begin);
    ep::u64 sum = 0;
    for (ep::u64 i = 0; i < bytes / 8; ++i) sum = sum * 31 + words[i];
    return static_cast<ep::i64>(sum);
}

__device__ __forceinline__ bool goes(int token, int rank) {
    return token % 5 != 3 && (token * 9 + rank * rank * 3 + token * token % 13 * rank) % 7 < 3;
}

/// What the warps of a rank send: `stop`: a token behind whose small fields one is stopped; `missing`: a source whose count
/// has not come.
struct Sent {
    ep::u32 call;
    int tokens;
    bool stopped = false;
    int stop = -1;
    int missing = -1;
};

/// Counts of rows, offers, and where tokens go; what stands behind the bits of tokens is none.
template <class S>
__device__ __forceinline__ void begin(const ep::Group& given, const ep::Group& group,
                                      ep::RouteSmem<typename S::Role>& routes, const Sent& sent) {
    for (int i = ep::lane_index(); i < S::kPeers * S::kPeers; i += ep::kLanes) {
        const int source = i / S::kPeers, peer = i % S::kPeers;
        const ep::u32 call = source == sent.missing ? sent.call - 2 : sent.call;
        // Nobody looks at those behind this rank.
        const ep::u32 rows = (source * 3 + peer) % 4 == 1 ? 1 : 0;
        *count_of(given, source, peer) = source < S::kOwn ? ep::stamped(call, rows) : 0;
    }
    for (int peer = ep::lane_index(); peer < S::kPeers; peer += ep::kLanes) {
        ep::OnceReady* ready = ep::once_ready<S>(group.window, sent.call, peer);
        ready->rows = ep::stamped(sent.call, static_cast<ep::u32>(S::kOut / 128 + peer % 2));
        routes.windows[peer] = group.windows[peer];
        ep::u32 bits = 0;
        for (int token = 0; token < 32; ++token) bits |= token >= sent.tokens || goes(token, peer) ? 1u << token : 0;
        routes.to[peer][0] = bits;
    }
    __syncwarp();
}

/// What one warp sends.
template <class S, class Row>
__device__ __forceinline__ void send(const ep::Group& given, Smem<typename S::Role>& smem, ep::Team& team,
                                     const Sent& sent, ep::i64* out) {
    using R = typename S::Role;
    const int index = team.index();
    ep::PieceMover<R> mover(smem.movers[index], team);
    for (int i = team.lane; i < S::kRecordWords; i += ep::kLanes) reinterpret_cast<ep::u32*>(mover.meta())[i] = 0;
    __syncwarp();
    ep::PackedOut<S, R> rows(team, mover, smem.routes, sent.tokens);
    ep::i64 faults = 0;
    const auto from = [&](int token) {
        if (team.leader()) ++out[400 + index * 8 + token];
        return Row::from(row_of(given, token));
    };
    rows.ask(from);
    rows.for_tokens(
        [&](int source, int peer) {
            faults += source >= S::kOwn || peer >= S::kPeers ? 1 : 0;
            return count_of(given, source, peer);
        },
        from,
        [&](int token, char* record) {
            if (team.leader()) ++out[300 + token];
            // Each lane sends what another one has written.
            for (int i = (team.lane + 1) % ep::kLanes; i < S::kRecordWords; i += ep::kLanes) {
                const bool own = i < 2 || i >= 2 + Row::kScaleWords;
                if (own) reinterpret_cast<ep::u32*>(record)[i] = token * 100 + i;
            }
            team.stopped = team.stopped || token == sent.stop;
        },
        [&](int token, int peer, bool match, int position) {
            out[token * S::kPeers + peer] += (match ? 10000 : 0) + position + 1;
        });
    mover.finish();
    out[700 + index * 32 + team.lane] = faults;
    if (team.lane == 5) given_up::put(out + 500 + index * 20, team, *reinterpret_cast<Own*>(given.window + 64));
    __syncwarp();
}

template <class S, class Row>
inline __device__ __noinline__ void sends(const ep::Group& given, Bytes& bytes, const Sent& sent, ep::i64* out) {
    auto& smem = reinterpret_cast<Smem<typename S::Role>&>(bytes);
    static_assert(sizeof(smem) <= sizeof(Bytes), "it has room");
    for (int i = ep::lane_index(); i < 500; i += ep::kLanes) out[i] = 0;
    clear<S>(given);
    const ep::Group group = group_of<S>(given, 0);
    begin<S>(given, group, smem.routes, sent);
    for (int index = 0; index < kBlocks * kWarps; ++index) {
        ep::Team team(group, ep::Call{sent.call, sent.stopped, true}, 2, index / kWarps, kBlocks, index % kWarps, kWarps);
        send<S, Row>(given, smem, team, sent, out);
    }
    for (int peer = ep::lane_index(); peer < S::kPeers; peer += ep::kLanes) {
        const char* window = group.windows[peer];
        ep::i64* own = out + 1000 + peer * 4;
        own[0] = digest(window + S::kTold, S::kRecords - S::kTold);
        own[1] = digest(window + S::kRecords, S::kAsWords - S::kRecords);
        own[2] = digest(window + S::kAsWords, S::kOut - S::kAsWords);
        own[3] = digest(window + S::kOut, S::kWindow - S::kOut);
    }
    __syncwarp();
}

/// What of a call does not come.
enum class Missing { kNothing, kPiece, kField, kWord, kCount };

/// Rows of a call, of which those of some sources (a bit each) come as words; and what is missing of the row of a source, or
/// of its counts.
struct Taken {
    ep::u32 call;
    int rows;
    ep::u64 words;
    Missing missing = Missing::kNothing;
    int source = -1, at = 0;
};

/// How many rows a source sends: one sends 1 and all others none, or each one, or the first 3 and the last 2.
template <class S>
__device__ __forceinline__ int rows_of(const Taken& taken, int source) {
    if (taken.rows == 1) return source == 1 ? 1 : 0;
    if (taken.rows == 3) return source % 15 == 1 || source == S::kPeers - 1 ? 1 : 0;
    return source == 0 ? 3 : source == S::kPeers - 1 ? 2 : 0;
}

/// All that a rank is sent.
template <class S>
__device__ __forceinline__ void fill(const ep::Group& given, const ep::Group& group, const Taken& taken) {
    using R = typename S::Role;
    const int lane = ep::lane_index();
    const ep::u32 call = taken.call;
    int row = 0;
    for (int source = 0; source < S::kPeers; ++source) {
        const int count = rows_of<S>(taken, source);
        const bool words = (taken.words >> source & 1) != 0;
        if (lane == 0) {
            ep::once_ready<S>(group.window, call, source)->senders = ep::stamped(call, words ? 0 : 2);
            *count_of(given, source, 8) = ep::stamped(call, count);
        }
        const auto lost = [&](Missing what, int at) {
            return what == taken.missing && source == taken.source && at == taken.at ? call - 2 : call;
        };
        if (lane < 5) *count_of(given, source, lane) = ep::stamped(lost(Missing::kCount, lane), (source * 2 + lane) % 3);
        for (int number = 0; number < count; ++number, ++row) {
            ep::u64* fields = ep::once_record<S>(group.window, row);
            const auto value = [&](int i) { return static_cast<ep::u32>(row * 5000 + 3 * i + 1); };
            char* to = group.window + S::kOut + (row - S::kFirst) * S::kApart;
            if constexpr (S::kFewTokens > 0) {
                ep::WordPair* pairs = ep::OnceWords<S>::at(group.window, call, source, number);
                if (words) fields = ep::OnceWords<S>::numbers(pairs);
                for (int i = lane; i < S::kWholeRowBytes / 4 && words; i += ep::kLanes) {
                    const int place = i / 128 * 128 + i % 4 / 2 * 64 + i / 4 % 32 * 2 + i % 2;
                    reinterpret_cast<ep::u64*>(pairs)[place] = ep::stamped(lost(Missing::kWord, i), value(i));
                }
            }
            for (int i = lane; i < S::kWholeRowBytes / 4 && !words && row >= S::kFirst; i += ep::kLanes) {
                reinterpret_cast<ep::u32*>(to)[i] = value(i);
            }
            for (int i = lane; i < S::kPieces && !words; i += ep::kLanes) {
                *ep::piece_told<S, R>(group.window, source, number, i) = ep::stamped(lost(Missing::kPiece, i), 1);
            }
            for (int i = lane; i < S::kRecordWords; i += ep::kLanes) {
                fields[i] = ep::stamped(lost(Missing::kField, i), row * 100 + i + 5);
            }
        }
    }
    __syncwarp();
}

/// What one warp takes, and packs to three places.
template <class S>
__device__ __forceinline__ void take(const ep::Group& given, Bytes& bytes, ep::Team& team, ep::i64* out) {
    // Nothing is behind a record.
    char* record = bytes.bytes + sizeof(Bytes) - S::kRecordWords * 4;
    const ep::u64 rows_at = S::kOut - static_cast<ep::u64>(S::kFirst) * S::kRowStride;
    ep::PackedIn<S, typename S::Role> rows(team, record, 2, rows_at);
    rows.open([&](int source) { return count_of(given, source, 8); });
    ep::i64 faults = 0;
    rows.template for_places<kWidth>(
        [&](const ep::OnceMessage& message) {
            const ep::u32* fields = reinterpret_cast<const ep::u32*>(message.record);
            ep::i64* own = out + message.row * 64;
            for (int i = (team.lane + 1) % ep::kLanes; i < S::kRecordWords; i += ep::kLanes) own[i] = fields[i];
            if (team.leader()) own[48] += team.index() + 1;
        },
        [&](int row, int source, const char* record, int choice) {
            const ep::u32* fields = reinterpret_cast<const ep::u32*>(record);
            faults += fields[39 - choice] != static_cast<ep::u32>(row * 100 + 44 - choice) ? 1 : 0;
            return (row * 3 + choice) % 5;
        },
        [&](int source, int list) { return count_of(given, source, list); },
        [&](int row, int source, const char*, int choice, int ahead, bool used, bool once) {
            faults += used != (team.lane < kWidth) || choice != (used ? team.lane : 0) ? 1 : 0;
            ep::i64* own = out + 1100 + (row * kWidth + choice) * 2;
            if (used) own[0] += 1000 * source + ahead + 1, own[1] += once ? 100 : 1;
            const bool match = used && (row + choice) % 3 != 1 && row >= S::kFirst;
            rows.copy(match, out + 4096 + (row * kWidth + choice) * (S::kWholeRowBytes / 8));
        });
    const int index = team.index();
    out[1300 + index * 32 + team.lane] = faults;
    if (team.leader()) out[1500 + index] = rows.total();
    __syncwarp();
}

template <class S>
inline __device__ __noinline__ void takes(const ep::Group& given, Bytes& bytes, bool alone, const Taken& taken,
                                          ep::i64* out) {
    clear<S>(given);
    const ep::Group group = group_of<S>(given, 1);
    for (int i = ep::lane_index(); i < 1300; i += ep::kLanes) out[i] = 0;
    fill<S>(given, group, taken);
    const int blocks = alone ? 1 : kBlocks, warps = alone ? 1 : kWarps;
    for (int index = 0; index < blocks * warps; ++index) {
        ep::Team team(group, ep::Call{taken.call, false, true}, 2, index / warps, blocks, index % warps, warps);
        take<S>(given, bytes, team, out);
        Own* own = reinterpret_cast<Own*>(given.window + 64);
        if (team.lane == 5) given_up::put(out + 1600 + index * 20, team, own[1]);
        __syncwarp();
    }
    // Where all rows lie in the end.
    for (int i = ep::lane_index(); i < 8; i += ep::kLanes) {
        out[1800 + i] = digest(group.window + S::kOut + i * S::kApart, S::kApart);
    }
    __syncwarp();
}

using Floats = Cast<float, kValues, 15>;
using Powers = Cast<ep::ue8m0, kValues, 4>;

}  // namespace packed

extern "C" __global__ void __launch_bounds__(32)
    packed_of(const __grid_constant__ packed::Args args) {
    using namespace packed;
    EP_SHARED(Bytes, bytes);
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    ep::i64* out = args.out;
    switch (args.check) {
        case 0:
            for (int token = 0; token < kTokens; ++token) cast_rows::put(row_of(group, token), token, kValues, kTable);
            break;
        case 1: sends<Many, Lying>(group, bytes, Sent{7, 6}, out); break;
        case 2: sends<Many, Cast<float, 80, 1>>(group, bytes, Sent{8, 2}, out); break;
        case 3: sends<Long, Lying>(group, bytes, Sent{9, 5}, out); break;
        case 4: sends<Long, Floats>(group, bytes, Sent{10, 5}, out); break;
        case 5: sends<Long, Powers>(group, bytes, Sent{11, 1}, out); break;
        case 6: sends<Vector, Lying>(group, bytes, Sent{12, 5}, out); break;
        case 7: sends<Few, Floats>(group, bytes, Sent{13, 5}, out); break;
        case 8: sends<Few, Powers>(group, bytes, Sent{14, 5}, out); break;
        case 9: sends<Few, Powers>(group, bytes, Sent{15, 6}, out); break;
        case 10: sends<Long, Floats>(group, bytes, Sent{16, 5, true}, out); break;
        case 11: sends<Long, Floats>(group, bytes, Sent{17, 5, false, 1}, out); break;
        case 12: sends<Long, Lying>(group, bytes, Sent{18, 5, false, -1, 0}, out); break;
        case 13: takes<Many>(group, bytes, false, Taken{7, 3, 0}, out); break;
        case 14: takes<Long>(group, bytes, false, Taken{8, 1, 0}, out); break;
        case 15: takes<Long>(group, bytes, false, Taken{9, 5, 0}, out); break;
        case 16: takes<Few>(group, bytes, false, Taken{10, 5, 4}, out); break;
        case 17: takes<Few>(group, bytes, false, Taken{11, 5, 0}, out); break;
        case 18: takes<Pieces>(group, bytes, false, Taken{12, 3, 0}, out); break;
        case 19: takes<Pieces>(group, bytes, true, Taken{13, 3, 0, Missing::kPiece, 1, 34}, out); break;
        case 20: takes<Long>(group, bytes, true, Taken{14, 5, 0, Missing::kPiece, 2, 1}, out); break;
        case 21: takes<Long>(group, bytes, true, Taken{15, 5, 0, Missing::kField, 2, 39}, out); break;
        case 22: takes<Few>(group, bytes, true, Taken{16, 5, 4, Missing::kWord, 2, 451}, out); break;
        case 23: takes<Long>(group, bytes, true, Taken{17, 5, 0, Missing::kCount, 0, 4}, out); break;
        case 24: takes<Pieces>(group, bytes, true, Taken{18, 3, 0, Missing::kPiece, 1, 2}, out); break;
        case 25: takes<Long>(group, bytes, true, Taken{19, 5, 0, Missing::kField, 2, 3}, out); break;
        case 26: takes<Few>(group, bytes, true, Taken{20, 5, 4, Missing::kField, 2, 39}, out); break;
        case 27: sends<Far, Lying>(group, bytes, Sent{21, 6}, out); break;
        case 28: takes<Far>(group, bytes, false, Taken{22, 5, 0}, out); break;
        case 29: sends<Vector, Floats>(group, bytes, Sent{23, 5}, out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
