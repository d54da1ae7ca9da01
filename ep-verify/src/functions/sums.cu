// Rows that one warp gathers and adds up, in pieces of many kinds. The host knows what each check leaves in `out`; see
// sums.rs, which has the checks in the same order.
#include <ep/reduce.cuh>
#include <ep/sync.cuh>

namespace sums {

constexpr int kPlaces = 19;   // of parts
constexpr int kPeers = 40;
constexpr int kTokens = 24;
constexpr int kMostBytes = 1120;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// A role that gathers rows: bytes of a row, of a piece and of the fields beside it.
template <int kRow, int kPiece, int kStages_, int kMeta, bool kTma_ = true>
struct Role {
    static constexpr int kRowBytes = kRow;
    static constexpr int kPieceBytes = kPiece;
    static constexpr int kStages = kStages_;
    static constexpr int kMetaBytes = kMeta;
    static constexpr int kSources = 12;
    static constexpr bool kTma = kTma_;
};

/// All of the window.
struct Memory {
    alignas(16) ep::bf16 parts[kPlaces][kMostBytes / 2];
    alignas(16) float fields[kPlaces][36];
    alignas(16) ep::bf16 biases[2][kMostBytes / 2];
};

/// A small number, which sums have no error of.
__device__ __forceinline__ float element(int row, int i) {
    return static_cast<float>((row * 5 + i * 3) % 17 - 8);
}

/// The two bytes of a whole number that is small.
__device__ __forceinline__ void put(ep::bf16* to, float value) {
    *reinterpret_cast<ep::u16*>(to) = static_cast<ep::u16>(__float_as_uint(value) >> 16);
}

/// Where the part of a token from a peer is, if it has one: of some tokens none, of some too many, and of some one less
/// than there may be.
__device__ __forceinline__ ep::i32 entry_of(int token, int peer) {
    if (token % 4 == 2) return -1;
    const int each = token % 4 == 3 ? 2 : token % 8 == 1 ? 4 : 8;
    const bool is_there = (peer + token) % each == 0 || (token % 8 == 1 && peer == 0);
    return is_there ? (token * 3 + peer) % 7 : -1;
}

/// Tokens, and how often somebody has asked for one.
struct Order {
    int next, end, step;
    ep::i64* asked;

    __device__ __forceinline__ int take() {
        const int turn = next;
        next += step;
        return turn;
    }
    __device__ __forceinline__ void ask() {
        if (ep::lane_index() == 0) ++*asked;
    }
};

/// Which token stops the team when it is looked for, and whether it has come then; and which one when it is added up.
struct Stop {
    int at = -1;
    bool comes = true;
    int within = -1;
};

/// Parts that are written only when a warp waits for them.
struct Source {
    static constexpr int kPeers = sums::kPeers;
    static constexpr int kGroups = 2;

    ep::Team& team;
    Memory* memory;
    ep::i64* out;  // what it is asked for
    Stop stop;
    int looks = 0, opened = 0, closed = 0;

    __device__ __forceinline__ void wait_ready() {
        constexpr int kEach = kMostBytes / 2;
        for (int i = team.lane; i < kPlaces * kEach; i += ep::kLanes) {
            put(&memory->parts[i / kEach][i % kEach], element(i / kEach, i % kEach));
        }
        for (int i = team.lane; i < kPlaces * 36; i += ep::kLanes) {
            memory->fields[i / 36][i % 36] = static_cast<float>((i / 36 * 7 + i % 36) % 29 - 14);
        }
    }

    /// Every third look that does not wait finds nothing.
    __device__ __forceinline__ bool arrived(const ep::i32 (&entries)[kGroups], bool waits) {
        // What a team that is stopped asks for.
        if (team.stopped && team.leader()) ++out[4994];
        if (opened == stop.at) {
            team.stopped = true;
            return stop.comes;
        }
        if (!waits && ++looks % 3 == 0) return false;
        for (int g = 0; g < kGroups; ++g) out[opened * 64 + g * 32 + team.lane] = entries[g];
        ++opened;
        return true;
    }

    __device__ __forceinline__ const char* row(int g, ep::i32 entry) const {
        return reinterpret_cast<const char*>(memory->parts[place(g, entry)]);
    }

    __device__ __forceinline__ const char* meta(int g, ep::i32 entry) const {
        return reinterpret_cast<const char*>(memory->fields[place(g, entry)]);
    }

    __device__ __forceinline__ void done(const ep::i32 (&entries)[kGroups]) {
        for (int g = 0; g < kGroups; ++g) {
            const bool is_same = out[closed * 64 + g * 32 + team.lane] == entries[g];
            out[2000 + closed * 64 + g * 32 + team.lane] = is_same ? 1 : 0;
        }
        ++closed;
    }

    __device__ __forceinline__ int place(int g, ep::i32 entry) const {
        return (entry + (g * ep::kLanes + team.lane) * 7) % kPlaces;
    }
};

/// Rows from `begin` on, every third one, with as many biases as there are, one or none.
template <class R>
__device__ __forceinline__ void add(ep::Team& team, ep::GatherSmem<R>& smem, int begin, Stop stop,
                                    ep::i64* out) {
    Memory* memory = reinterpret_cast<Memory*>(team.group.window);
    ep::u64* behind = reinterpret_cast<ep::u64*>(&smem.items[2]) + (R::kTma ? R::kStages : 0);
    if (team.leader()) {
        out[9990] = out[9994] = out[9995] = 0;
        *behind = 4711;
    }
    __syncwarp();
    ep::Gather<R> stages(smem, team);
    Source source{team, memory, out + 5000, stop};
    const auto at = [&](int token, int peer) {
        if (token >= kTokens || peer >= kPeers) out[9995] = 1;
        return entry_of(token, peer);
    };
    const Order order{begin, kTokens, 3, out + 9990};
    ep::GatherRun<R, Source, Order, decltype(at)> run(stages, source, order, at);
    run.run([&](int token) {
        ep::bf16* to = reinterpret_cast<ep::bf16*>(out + token * 142);
        if (token % 3 == 0) {
            run.store_row(to);
        } else {
            // Of others than these nobody asks.
            const int biases = token % 3 + token / 3 % 2 - 1;
            const auto bias = [&](int b) -> const ep::bf16* { return b < biases ? memory->biases[b] : nullptr; };
            run.template store_row<2>(to, biases, bias);
        }
        if (R::kMetaBytes > 0) {
            run.store_sum(reinterpret_cast<float*>(out + 3500 + token * 20), 4, 34);
        }
        if (source.closed == stop.within) team.stopped = true;
    });
    stages.finish();
    const bool is_empty = stages.empty();
    stages.recycle();
    if (team.lane != 7) return;
    out[9991] = source.opened * 100 + source.closed;
    out[9992] = is_empty ? 1 : 0;
    out[9993] = stages.room() == R::kStages ? 1 : 0;
    out[9996] = *behind;
}

__device__ __forceinline__ void prepare(Memory* memory) {
    for (int i = ep::lane_index(); i < kMostBytes / 2; i += ep::kLanes) {
        put(&memory->biases[0][i], static_cast<float>(i % 13));
        put(&memory->biases[1][i], static_cast<float>(20 - i % 7));
    }
}

/// All shared memory that there is.
struct alignas(128) Bytes {
    char bytes[5504];
};

template <class R>
__device__ __forceinline__ ep::GatherSmem<R>& memory(Bytes& shared) {
    static_assert(sizeof(ep::GatherSmem<R>) <= sizeof(Bytes), "it has room");
    return *reinterpret_cast<ep::GatherSmem<R>*>(&shared);
}

using Two = Role<1120, 640, 5, 144>;    // pieces of two units a lane, and fields that come with them
using Tight = Role<1120, 528, 2, 140>;  // fewer stages than parts, and fields that stay where they are
using Many = Role<1120, 112, 32, 0>;    // as many stages as lanes
using Short = Role<96, 512, 28, 144>;   // fields that are longer than a piece, and stages for more than a token
using Plain = Role<96, 512, 14, 0>;     // one piece
using Read = Role<1120, 640, 2, 140, false>;

}  // namespace sums

extern "C" __global__ void __launch_bounds__(32) sums_of(const __grid_constant__ sums::Args args) {
    using namespace sums;
    EP_SHARED(Bytes, shared);
    const ep::Call call = ep::enter(args.group);
    ep::Team team(args.group, call, 0, 0, 1, 0, 1);
    ep::i64* out = args.out;
    switch (args.check) {
        case 0: prepare(reinterpret_cast<Memory*>(args.group.window)); break;
        case 1: add<Two>(team, memory<Two>(shared), 0, Stop{}, out); break;
        case 2: add<Two>(team, memory<Two>(shared), 1, Stop{}, out); break;
        case 3: add<Tight>(team, memory<Tight>(shared), 2, Stop{}, out); break;
        case 4: add<Tight>(team, memory<Tight>(shared), 1, Stop{}, out); break;
        case 5: add<Many>(team, memory<Many>(shared), 1, Stop{}, out); break;
        case 6: add<Short>(team, memory<Short>(shared), 1, Stop{}, out); break;
        case 7: add<Short>(team, memory<Short>(shared), 2, Stop{}, out); break;
        case 8: add<Read>(team, memory<Read>(shared), 1, Stop{}, out); break;
        case 9: add<Two>(team, memory<Two>(shared), 1, Stop{5}, out); break;
        case 10: add<Short>(team, memory<Short>(shared), 1, Stop{5}, out); break;
        case 11: add<Short>(team, memory<Short>(shared), 2, Stop{3, false}, out); break;
        case 12: add<Read>(team, memory<Read>(shared), 2, Stop{0}, out); break;
        case 13: add<Two>(team, memory<Two>(shared), 30, Stop{}, out); break;
        case 14: add<Plain>(team, memory<Plain>(shared), 1, Stop{}, out); break;
        case 15: add<Short>(team, memory<Short>(shared), 0, Stop{-1, true, 0}, out); break;
        case 16:
            team.stopped = true;
            add<Two>(team, memory<Two>(shared), 1, Stop{}, out);
            break;
        default: break;
    }
    ep::leave(args.group, call);
}
