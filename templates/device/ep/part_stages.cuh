// Rows of parts that bulk copies bring into shared memory, several pieces of them on their way at once.
//
// A warp reads the rows of a token's parts in pieces of `kPieceBytes`, each in a stage of its own: one piece of every
// part, then the next one of every part, as far ahead as there are stages. The lane that knows where a part is loads its
// pieces. `Role` is the role's Cfg struct.
//
// Without TMA (`kTma` false) the lanes load from where the rows are.
#pragma once

#include <ep/parts.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// The shared memory of one warp that reads parts.
template <class Role, bool kTma = Role::kTma>
struct PartSmem {
    alignas(128) char stage[Role::kStages][Role::kPieceBytes];
    u64 full[Role::kStages];
};

template <class Role>
struct PartSmem<Role, false> {
    alignas(16) char unused[16];
};

/// The stages of one warp, for as long as its role lasts. All methods are called by the whole warp.
template <class Role, int kParts>
class PartStages {
    static constexpr int kGroups = (kParts + kLanes - 1) / kLanes;

public:
    __device__ __forceinline__ PartStages(PartSmem<Role>& smem, Team& team) : smem_(smem) {
        static_assert(Role::kStages >= 2 && Role::kStages <= kLanes, "a bit says which phase a stage is in");
        if constexpr (Role::kTma) {
            if (team.leader()) {
#pragma unroll 1
                for (int i = 0; i < Role::kStages; ++i) mbarrier_init(&smem_.full[i], 1);
                fence_mbarrier_init();
            }
            __syncwarp();
        }
    }

    /// Begins a token, all parts of which have arrived: of their rows so many bytes are read, from `from` on. False: they
    /// are read where they are, since bulk copies cannot move them, or there are more parts than stages, or few bytes.
    template <class Parts>
    __device__ __forceinline__ bool begin(const Parts& parts, i64 from, i64 bytes) {
        bool fits = Role::kTma && (from | bytes) % 16 == 0 && bytes > Role::kPieceBytes;
        count_ = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            rows_[g] = parts.own_row(g);
            lanes_[g] = __ballot_sync(kAllLanes, rows_[g] != nullptr);
            fits = fits && reinterpret_cast<u64>(rows_[g]) % 16 == 0;
            count_ += __popc(lanes_[g]);
        }
        staged_ = __all_sync(kAllLanes, fits) && count_ <= Role::kStages;
        // M2: what the lanes have acquired, their bulk copies may read.
        if (staged_) fence_proxy_async_global();
        return staged_;
    }

    /// Whether the rows pass through the stages.
    __device__ __forceinline__ bool staged() const { return staged_; }

    /// Begins to load the next piece of every part, if there are stages for it: `bytes` from `at` on.
    __device__ __forceinline__ bool load(i64 at, u32 bytes) {
        if (busy_ + count_ > Role::kStages) return false;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (rows_[g] == nullptr) continue;
            const int stage = wrapped(next_ + behind(g, lane_index()));
            mbarrier_arrive_expect(&smem_.full[stage], bytes);
            tma_load(smem_.stage[stage], rows_[g] + at, bytes, &smem_.full[stage]);
        }
        next_ = wrapped(next_ + count_);
        busy_ += count_;
        return true;
    }

    /// Waits for the oldest piece of every part that has not been taken. The peers have released the rows: nothing that
    /// anyone does can hold the copies up, so this wait needs no bound.
    __device__ __forceinline__ void wait() {
#pragma unroll 1
        for (int i = 0; i < count_; ++i) {
            const int stage = wrapped(first_ + i);
            while (!mbarrier_try_wait(&smem_.full[stage], phases_ >> stage & 1)) {
            }
            phases_ ^= 1u << stage;
        }
    }

    /// Ends with the pieces that were waited for, which all lanes have read. Their stages become free when half of all
    /// have been taken, or when no other piece is under way: the fence waits for what the lanes have stored meanwhile.
    __device__ __forceinline__ void taken() {
        first_ = wrapped(first_ + count_);
        taken_ += count_;
        if (taken_ != busy_ && 2 * taken_ < Role::kStages) return;
        busy_ -= taken_;
        taken_ = 0;
        // M3: the lanes that load into the stages again come after the barrier.
        fence_proxy_async_shared();
        __syncwarp();
    }

    /// Whether a part is there.
    __device__ __forceinline__ bool has(int part) const {
        u32 lanes = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == part / kLanes) lanes = lanes_[g];
        }
        return (lanes >> part % kLanes & 1) != 0;
    }

    /// The piece of a part that was waited for.
    __device__ __forceinline__ const char* piece(int part) const {
        return smem_.stage[wrapped(first_ + behind(part / kLanes, part % kLanes))];
    }

    /// The row of a part; null: there is none.
    __device__ __forceinline__ const char* row(int part) const {
        u64 own = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == part / kLanes) own = reinterpret_cast<u64>(rows_[g]);
        }
        return reinterpret_cast<const char*>(__shfl_sync(kAllLanes, own, part % kLanes));
    }

private:
    /// How many parts there are before that of a lane in a group.
    __device__ __forceinline__ int behind(int group, int lane) const {
        int parts = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g < group) parts += __popc(lanes_[g]);
            if (g == group) parts += __popc(lanes_[g] & ((1u << lane) - 1));
        }
        return parts;
    }

    static __device__ __forceinline__ int wrapped(int stage) {
        return stage >= Role::kStages ? stage - Role::kStages : stage;
    }

    PartSmem<Role>& smem_;
    const char* rows_[kGroups] = {};  // where the parts are that the lane keeps; null: there is none
    u32 lanes_[kGroups] = {};         // the lanes that keep parts
    bool staged_ = false;
    int count_ = 0;                   // how many parts there are
    int first_ = 0;                   // the oldest stage that has not been taken
    int next_ = 0;                    // the next one to be loaded
    int busy_ = 0;                    // stages loaded or being loaded, and not yet free
    int taken_ = 0;                   // of these, those taken
    u32 phases_ = 0;                  // a bit for each stage: the parity it completes next
};

/// Eight neighbours of the row of every part that there is, from `i` on; the row has `count` values.
template <class T, class Role, int kParts>
struct StagedParts {
    const PartStages<Role, kParts>& stages;
    int i;
    int count;
    int at;  // of the first one, in a piece

    /// `each(part, values)`, in order.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        if (!Role::kTma || !stages.staged()) {
            const auto row = [&](int part) { return reinterpret_cast<const T*>(stages.row(part)); };
            for_some_rows<T, kParts>(row, i, count, each);
            return;
        }
        if constexpr (Role::kTma) {
            constexpr int kBatch = kParts < 4 ? kParts : 4;
#pragma unroll 1
            for (int first = 0; first < kParts; first += kBatch) {
                Wide<T> values[kBatch];
#pragma unroll
                for (int k = 0; k < kBatch; ++k) {
                    if (first + k < kParts && stages.has(first + k)) values[k] = load(first + k);
                }
#pragma unroll
                for (int k = 0; k < kBatch; ++k) {
                    if (first + k < kParts && stages.has(first + k)) each(first + k, values[k]);
                }
            }
        }
    }

    __device__ __forceinline__ Wide<T> load(int part) const {
        const T* from = reinterpret_cast<const T*>(stages.piece(part)) + at;
        return i < count ? *reinterpret_cast<const Wide<T>*>(from) : Wide<T>(T{});
    }
};

/// Calls `body(i, parts)` for all stretches of a row from `from` up to `to`, as `for_wide_parts` does, with pieces of the
/// rows brought into shared memory ahead; warp.
template <class T, int kParts, class Role, class Parts, class Body>
__device__ __forceinline__ void for_staged_parts(PartStages<Role, kParts>& stages, const Parts& parts, int from, int to,
                                                 int count, Body body) {
    constexpr int kTurn = kLanes * kWide, kPiece = Role::kPieceBytes / static_cast<int>(sizeof(T));
    static_assert(kPiece % kTurn == 0, "a piece is read in whole turns of a warp");
    constexpr i64 kBytes = sizeof(T);
    const bool staged = stages.begin(parts, from * kBytes, (to - from) * kBytes);
    int asked = from;
#pragma unroll 1
    for (int base = from; base < to; base += kPiece) {
        if constexpr (Role::kTma) {
#pragma unroll 1
            while (staged && asked < to) {
                const int values = to - asked < kPiece ? to - asked : kPiece;
                if (!stages.load(asked * kBytes, static_cast<u32>(values * kBytes))) break;
                asked += values;
            }
            if (staged) stages.wait();
        }
        const int end = base + kPiece < to ? base + kPiece : to;
#pragma unroll 2
        for (int at = base; at < end; at += kTurn) {
            const int i = at + lane_index() * kWide;
            body(i, StagedParts<T, Role, kParts>{stages, i, count, i - base});
        }
        if constexpr (Role::kTma) {
            if (staged) stages.taken();
        }
    }
}

}  // namespace ep
