// The ranks of a dispatch in one launch: what they have, and the warps that play them, for the kernel of once.cu, which
// this stands before.
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
    static constexpr int kFewTokens = 0;
    static constexpr ep::u64 kReady = 0;
    static constexpr ep::u64 kTold = 1088;
    static constexpr ep::u64 kRecords = 4992;
};

/// A window whose memory is so far behind its begin, and a first row so far behind the others, that 32 bits reach
/// neither.
constexpr ep::u64 kFar = 1ull << 34;
constexpr ep::u64 kFarRow = 1ull << 25;

struct FarRows : Rows {
    static constexpr ep::u64 kTold = kFar + Rows::kTold;
    static constexpr ep::u64 kRecords = kFar + Rows::kRecords - kFarRow * kWords * 8;
    static constexpr ep::u64 kOffer = (kFar - kFarRow * kRow) / 128 + 32;
};

template <bool kEarly_>
struct Role {
    static constexpr int kRanks = once::kRanks;
    static constexpr int kTokenWords = 3;
    static constexpr int kValues = 68;
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

/// What all sources have counted: of 17 a word more than two turns of a block's first warp have.
template <int kPeers_>
struct Counts {
    static constexpr int kChannel = 4;
    static constexpr int kPeers = kPeers_;
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
    ep::u64 behind[8];
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
    if (token % 35 == 9) return ep::Row<ep::i64, 2>{{64, 67}, present};  // to the last ranks alone
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
        // Elsewhere a launch begins between the two.
        __threadfence_system();
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

}  // namespace once
