// Rows of parts that bulk copies bring into shared memory, several pieces of them on their way at once.
//
// A warp reads the rows of a token's parts in pieces of `kPieceBytes`, each in a stage of its own: one piece of every
// part, then the next one of every part, then those of the next token (`PartsAhead`), as far ahead as there are stages.
// The lane that knows where a part is loads its pieces. `Role` is the role's Cfg struct.
//
// Without TMA (`kTma` false) the lanes load from where the rows are.
#pragma once

#include <ep/parts.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
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

/// The rows of a unit's parts: one lane knows where a part is.
template <int kParts>
struct PartRows {
    static constexpr int kGroups = (kParts + kLanes - 1) / kLanes;

    const char* rows[kGroups] = {};  // where the parts are that the lane keeps; null: there is none
    u32 lanes[kGroups] = {};         // the lanes that keep parts
    int count = 0;                   // how many parts there are
    bool staged = false;             // whether their rows pass through the stages
    int at = 0, end = 0;             // the bytes of each row that nobody has begun to load
};

/// Where the oldest piece of each part is; none of them changes from turn to turn.
template <int kParts>
struct PartPieces {
    static constexpr bool kKept = kParts <= 16;

    u32 lanes[PartRows<kParts>::kGroups];  // the parts that there are
    const char* from[kKept ? kParts : 1];
};

/// The stages of one warp, for as long as its role lasts. All methods are called by the whole warp.
template <class Role, int kParts>
class PartStages {
    using Rows = PartRows<kParts>;
    static constexpr int kGroups = Rows::kGroups;

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

    /// Begins a unit, all parts of which have arrived: the bytes `from` to `to` of their rows are read.
    template <class Parts>
    __device__ __forceinline__ void begin(const Parts& parts, int from, int to) {
        now_ = is_next_ ? next_ : listed(parts, from, to);
        is_next_ = false;
    }

    /// Begins to load the unit after this one as soon as all of this one is on its way.
    template <class Parts>
    __device__ __forceinline__ void begin_next(const Parts& parts, int from, int to) {
        next_ = listed(parts, from, to);
        is_next_ = true;
    }

    /// Whether the unit after this one has been begun.
    __device__ __forceinline__ bool has_next() const { return is_next_; }

    /// Whether the rows pass through the stages.
    __device__ __forceinline__ bool staged() const { return now_.staged; }

    /// Loads pieces ahead while there are stages for them. True: all of this unit and half of the stages are left over.
    __device__ __forceinline__ bool refill() {
        if (!load(now_)) return false;
        if (is_next_) load(next_);
        return 2 * busy_ <= Role::kStages;
    }

    /// Waits for the oldest piece of every part that has not been taken.
    __device__ __forceinline__ void wait() { wait(now_.count); }

    /// Ends with the pieces that were waited for, which all lanes have read. Their stages become free when half of all
    /// have been taken, or when no other piece is under way: the fence waits for what the lanes have stored meanwhile.
    __device__ __forceinline__ void taken() {
        first_ = wrapped(first_ + now_.count);
        taken_ += now_.count;
        if (taken_ != busy_ && taken_ < Role::kStages / 2) return;
        busy_ -= taken_;
        taken_ = 0;
        // M3: the lanes that load into the stages again come after the barrier.
        fence_proxy_async_shared();
        __syncwarp();
    }

    /// Where the pieces are that were waited for.
    __device__ __forceinline__ PartPieces<kParts> pieces() const {
        PartPieces<kParts> own;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) own.lanes[g] = now_.lanes[g];
        if constexpr (PartPieces<kParts>::kKept) {
            int stage = first_;
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                own.from[part] = smem_.stage[stage];
                if ((now_.lanes[0] >> part & 1) != 0) stage = wrapped(stage + 1);
            }
        }
        return own;
    }

    /// The piece of a part that was waited for.
    __device__ __forceinline__ const char* piece(int part) const {
        return smem_.stage[wrapped(first_ + behind(now_, part / kLanes, part % kLanes))];
    }

    /// The row of a part; null: there is none.
    __device__ __forceinline__ const char* row(int part) const {
        u64 own = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == part / kLanes) own = reinterpret_cast<u64>(now_.rows[g]);
        }
        return reinterpret_cast<const char*>(__shfl_sync(kAllLanes, own, part % kLanes));
    }

    /// Waits for all loads, and frees the stages.
    __device__ __forceinline__ void drop() {
        if constexpr (Role::kTma) {
            wait(busy_ - taken_);
            first_ = next_stage();
            busy_ = taken_ = 0;
            is_next_ = false;
            // M3: the lanes that load into the stages again come after the barrier.
            fence_proxy_async_shared();
            __syncwarp();
        }
    }

    /// Leaves no load and no mbarrier open (M6). The warp may have another role in the same memory.
    __device__ __forceinline__ void finish() {
        drop();
        if constexpr (Role::kTma) {
            if (lane_index() == 0) {
#pragma unroll 1
                for (int i = 0; i < Role::kStages; ++i) mbarrier_end(&smem_.full[i]);
            }
            __syncwarp();
        }
    }

    /// The stages themselves, as `PartsAhead` has them.
    __device__ __forceinline__ PartStages& stages() { return *this; }

private:
    /// The rows of parts that have arrived. They are read where they are if bulk copies cannot move them, if there are
    /// more parts than stages, or few bytes.
    template <class Parts>
    __device__ __forceinline__ Rows listed(const Parts& parts, int from, int to) {
        Rows own;
        bool fits = Role::kTma && (from | to) % 16 == 0 && to - from > Role::kPieceBytes;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            own.rows[g] = parts.own_row(g);
            own.lanes[g] = __ballot_sync(kAllLanes, own.rows[g] != nullptr);
            fits = fits && reinterpret_cast<u64>(own.rows[g]) % 16 == 0;
            own.count += __popc(own.lanes[g]);
        }
        own.staged = __all_sync(kAllLanes, fits) && own.count <= Role::kStages;
        own.at = from, own.end = own.staged && own.count > 0 ? to : from;
        // M2: what the lanes have acquired, their bulk copies may read.
        if (own.staged && !Parts::kStays) fence_proxy_async_global();
        return own;
    }

    /// Begins to load pieces of every part while there are stages for them; whether all are on their way.
    __device__ __forceinline__ bool load(Rows& own) {
#pragma unroll 1
        while (own.at < own.end) {
            if (busy_ + own.count > Role::kStages) return false;
            const int bytes = own.end - own.at < Role::kPieceBytes ? own.end - own.at : Role::kPieceBytes;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (own.rows[g] == nullptr) continue;
                const int stage = wrapped(next_stage() + behind(own, g, lane_index()));
                mbarrier_arrive_expect(&smem_.full[stage], static_cast<u32>(bytes));
                tma_load(smem_.stage[stage], own.rows[g] + own.at, static_cast<u32>(bytes), &smem_.full[stage]);
            }
            busy_ += own.count;
            own.at += bytes;
        }
        return true;
    }

    /// Waits for the oldest pieces that have not been taken. The peers have released the rows: nothing that anyone does
    /// can hold the copies up, so this wait needs no bound.
    __device__ __forceinline__ void wait(int pieces) {
#pragma unroll 1
        for (int i = 0; i < pieces; ++i) {
            const int stage = wrapped(first_ + i);
            while (!mbarrier_try_wait(&smem_.full[stage], phases_ >> stage & 1)) {
            }
            phases_ ^= 1u << stage;
        }
    }

    /// How many parts there are before that of a lane in a group.
    static __device__ __forceinline__ int behind(const Rows& own, int group, int lane) {
        int parts = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g < group) parts += __popc(own.lanes[g]);
            if (g == group) parts += __popc(own.lanes[g] & ((1u << lane) - 1));
        }
        return parts;
    }

    /// The stage that is loaded next.
    __device__ __forceinline__ int next_stage() const { return wrapped(first_ + busy_ - taken_); }

    static __device__ __forceinline__ int wrapped(int stage) {
        return stage >= Role::kStages ? stage - Role::kStages : stage;
    }

    PartSmem<Role>& smem_;
    Rows now_, next_;       // of the unit that is read, and of the one after it,
    bool is_next_ = false;  // once that one has been begun
    int first_ = 0;         // the oldest stage that has not been taken
    int busy_ = 0;          // stages loaded or being loaded, and not yet free
    int taken_ = 0;         // of these, those taken
    u32 phases_ = 0;        // a bit for each stage: the parity it completes next
};

/// Units of work that each read the parts of one token: the rows of the next unit are loaded while those of this one are
/// read. `expect(unit)` says where the parts of a unit are, in `next`, and gives the bytes of their rows that the unit
/// reads. All methods are called by the whole warp.
template <class Role, int kParts, class Parts, class Units, class Expect>
class PartsAhead {
public:
    __device__ __forceinline__ PartsAhead(PartStages<Role, kParts>& stages, Parts& parts, Parts& next, Units& units,
                                          Expect expect)
        : stages_(stages), parts_(parts), next_(next), units_(units), expect_(expect) {}

    /// The next unit, whose parts `parts` has then; negative: there is none, or the team is stopped.
    __device__ __forceinline__ int take() {
        // A unit whose rows were begun and that did not read them.
        if (!begun_ && stages_.has_next()) stages_.drop();
        look();
        is_known_ = begun_ = false;
        parts_.become(next_);
        return unit_;
    }

    /// Begins to read the rows of this unit, which have arrived.
    __device__ __forceinline__ void begin(const Parts& parts, int from, int to) {
        stages_.begin(parts, from, to);
        begun_ = true;
    }

    /// Loads pieces ahead: of this unit, then of the next one, if its parts have arrived.
    __device__ __forceinline__ void refill() {
        const bool is_left = stages_.refill();
        // Where the next parts are is on its way while this unit's are read.
        look();
        if (!is_left || unit_ < 0 || stages_.has_next() || !next_.is_here()) return;
        stages_.begin_next(next_, bytes_.begin, bytes_.end);
        stages_.refill();
    }

    /// The stages that the pieces are in.
    __device__ __forceinline__ PartStages<Role, kParts>& stages() { return stages_; }

private:
    /// Takes the unit after this one, once.
    __device__ __forceinline__ void look() {
        if (is_known_) return;
        is_known_ = true;
        unit_ = units_.take();
        if (unit_ >= 0) bytes_ = expect_(unit_);
    }

    PartStages<Role, kParts>& stages_;
    Parts& parts_;
    Parts& next_;
    Units& units_;
    Expect expect_;
    int unit_ = -1;          // the unit after this one, and what it reads of the rows,
    Span bytes_{0, 0};
    bool is_known_ = false;  // once it is known
    bool begun_ = false;     // whether this one has read its rows
};

/// Eight neighbours of the row of every part that there is, from `i` on; the row has `count` values.
template <class T, class Role, int kParts>
struct StagedParts {
    const PartStages<Role, kParts>& stages;
    const PartPieces<kParts>& pieces;
    int i;
    int count;
    int at;          // of the first one, in a piece
    bool is_staged;  // whether the pieces are in stages
    const Wide<T>* values;  // of all parts, if they have been loaded

    /// `each(part, values)`, in order.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        if (!is_staged) {
            const auto row = [&](int part) { return reinterpret_cast<const T*>(stages.row(part)); };
            for_some_rows<T, kParts>(row, i, count, each);
            return;
        }
        if constexpr (Role::kTma) {
            constexpr int kBatch = kParts < 4 ? kParts : 4;
#pragma unroll(PartPieces<kParts>::kKept ? kParts : 1)
            for (int first = 0; first < kParts; first += kBatch) {
                Wide<T> own[kBatch] = {};
#pragma unroll
                for (int k = 0; k < kBatch; ++k) {
                    if (values != nullptr && first + k < kParts) own[k] = values[first + k];
                    if (values == nullptr && has(first + k)) own[k] = load(first + k);
                }
#pragma unroll
                for (int k = 0; k < kBatch; ++k) {
                    if (has(first + k)) each(first + k, own[k]);
                }
            }
        }
    }

    /// Loads those of all parts.
    __device__ __forceinline__ void load_all(Wide<T> (&all)[kParts]) const {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            if (has(part)) all[part] = load(part);
        }
    }

private:
    __device__ __forceinline__ bool has(int part) const {
        return part < kParts && (pieces.lanes[part / kLanes] >> part % kLanes & 1) != 0;
    }

    __device__ __forceinline__ Wide<T> load(int part) const {
        const char* piece = PartPieces<kParts>::kKept ? pieces.from[part] : stages.piece(part);
        const T* from = reinterpret_cast<const T*>(piece) + at;
        return i < count ? *reinterpret_cast<const Wide<T>*>(from) : Wide<T>(T{});
    }
};

/// Calls `body(i, parts)` for all stretches of a row from `from` up to `to`, as `for_wide_parts` does, with pieces of the
/// rows brought into shared memory ahead; warp. `Ahead` is a `PartStages` or a `PartsAhead`.
template <class T, int kParts, class Role, class Ahead, class Parts, class Body>
__device__ __forceinline__ void for_staged_parts(Ahead& ahead, const Parts& parts, int from, int to, int count,
                                                 Body body) {
    using Read = StagedParts<T, Role, kParts>;
    constexpr int kTurn = kLanes * kWide, kBytes = sizeof(T), kPiece = Role::kPieceBytes / kBytes;
    // Whether the lanes hold a piece of every part at once.
    constexpr int kTurns = kPiece / kTurn;
    constexpr bool kInRegisters = Role::kTma && kParts * kTurns * sizeof(Wide<T>) <= 128;
    const int lane = lane_index() * kWide;
    static_assert(kPiece % kTurn == 0, "a piece is read in whole turns of a warp");
    ahead.begin(parts, from * kBytes, to * kBytes);
    PartStages<Role, kParts>& stages = ahead.stages();
#pragma unroll 1
    for (int base = from; base < to; base += kPiece) {
        if constexpr (Role::kTma) {
            ahead.refill();
            if (stages.staged()) stages.wait();
        }
        const int end = base + kPiece < to ? base + kPiece : to;
        const bool staged = Role::kTma && stages.staged();
        PartPieces<kParts> pieces;
        if constexpr (Role::kTma) pieces = stages.pieces();
        if constexpr (kInRegisters) {
            if (staged && end - base == kPiece) {
                // The stages are free before anything is stored, since the fence waits for what the lanes have stored.
                Wide<T> values[kTurns][kParts] = {};
#pragma unroll
                for (int turn = 0; turn < kTurns; ++turn) {
                    Read{stages, pieces, 0, kPiece, turn * kTurn + lane, true, nullptr}.load_all(values[turn]);
                }
                stages.taken();
                ahead.refill();
#pragma unroll
                for (int turn = 0; turn < kTurns; ++turn) {
                    const int at = turn * kTurn + lane;
                    body(base + at, Read{stages, pieces, base + at, count, at, true, values[turn]});
                }
                continue;
            }
        }
#pragma unroll 1
        for (int turn = 0; turn < end - base; turn += kTurn) {
            const int at = turn + lane;
            body(base + at, Read{stages, pieces, base + at, count, at, staged, nullptr});
        }
        if constexpr (Role::kTma) {
            if (staged) stages.taken();
        }
    }
}

}  // namespace ep
