// Rows of parts that bulk copies bring into shared memory, several pieces of them on their way at once.
//
// A warp reads the rows of a token's parts in pieces of `kPieceBytes`, each in a stage of its own: one piece of every
// part, then the next one of every part, then those of the next token (`PartsAhead`), as far ahead as there are stages.
// The lane that knows where a part is loads its pieces. `Role` is the role's Cfg struct.
//
// The stages of a piece become free as soon as all lanes have read it. Freed later, half of them at once, sums of rows
// over NVLink took 4 % longer on 16 SMs.
//
// Without TMA (`kTma` false) the lanes load from where the rows are.
#pragma once

#include <ep/few_slots.cuh>
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
            if (team.lane < Role::kStages) {
                mbarrier_init(&smem_.full[team.lane], 1);
                fence_mbarrier_init();
            }
            __syncwarp();
        }
    }

    /// Begins a unit, all parts of which have arrived: the bytes `from` to `to` of their rows are read.
    template <class Parts>
    __device__ __forceinline__ void begin(const Parts& parts, int from, int to) {
        if (!is_next_) list(parts, from, to);
        now_ = loaded_;
        is_next_ = false;
    }

    /// Begins to load the unit after this one, all of which is on its way.
    template <class Parts>
    __device__ __forceinline__ void begin_next(const Parts& parts, int from, int to) {
        list(parts, from, to);
        is_next_ = true;
    }

    /// Whether the unit after this one has been begun.
    __device__ __forceinline__ bool has_next() const { return is_next_; }

    /// Whether the rows pass through the stages.
    __device__ __forceinline__ bool staged() const { return now_.staged; }

    /// Loads pieces of every part while there are stages for them. True: all are on their way, and half of the stages
    /// are left over.
    __device__ __forceinline__ bool refill() {
#pragma unroll 1
        while (at_ < end_) {
            if (busy_ + loaded_.count > Role::kStages) return false;
            settle();
            const int bytes = end_ - at_ < Role::kPieceBytes ? end_ - at_ : Role::kPieceBytes;
            // One mbarrier for the pieces of all parts: that of the first one.
            const int head = wrapped(first_ + busy_);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (loaded_.rows[g] == nullptr) continue;
                const int own = behind(loaded_, g, lane_index());
                if (own == 0) mbarrier_arrive_expect(&smem_.full[head], static_cast<u32>(bytes * loaded_.count));
                tma_load(smem_.stage[wrapped(head + own)], loaded_.rows[g] + at_, static_cast<u32>(bytes),
                         &smem_.full[head]);
            }
            heads_ |= 1u << head;
            busy_ += loaded_.count;
            at_ += bytes;
        }
        return 2 * busy_ <= Role::kStages;
    }

    /// Waits for the oldest piece of every part. The peers have released the rows: nothing that anyone does can hold
    /// the copies up, so this wait needs no bound.
    __device__ __forceinline__ void wait() {
        while (!mbarrier_try_wait(&smem_.full[first_], phases_ >> first_ & 1)) {
        }
        phases_ ^= 1u << first_;
        heads_ ^= 1u << first_;
    }

    /// Ends with the pieces that were waited for, which all lanes have read.
    __device__ __forceinline__ void taken() {
        first_ = wrapped(first_ + now_.count);
        busy_ -= now_.count;
        was_read_ = true;
    }

    /// Where the pieces are that were waited for.
    __device__ __forceinline__ PartPieces<kParts> pieces() const {
        PartPieces<kParts> own;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) own.lanes[g] = now_.lanes[g];
        if constexpr (PartPieces<kParts>::kKept && Role::kTma) {
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
#pragma unroll 1
            while (busy_ > 0) {
                if ((heads_ >> first_ & 1) != 0) wait();
                first_ = wrapped(first_ + 1);
                --busy_;
            }
            is_next_ = false;
        }
    }

    /// Leaves no load and no mbarrier open (M6). The warp may have another role in the same memory.
    __device__ __forceinline__ void finish() {
        drop();
        if constexpr (Role::kTma) {
            settle();
            if (lane_index() < Role::kStages) mbarrier_end(&smem_.full[lane_index()]);
            __syncwarp();
        }
    }

    /// The stages themselves, as `PartsAhead` has them.
    __device__ __forceinline__ PartStages& stages() { return *this; }

private:
    /// Has the rows of parts that have arrived loaded. They are read where they are if bulk copies cannot move them, if
    /// there are more parts than stages, or few bytes.
    template <class Parts>
    __device__ __forceinline__ void list(const Parts& parts, int from, int to) {
        Rows& own = loaded_;
        bool fits = Role::kTma && (from | to) % 16 == 0 && to - from > Role::kPieceBytes;
        own.count = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            own.rows[g] = parts.own_row(g);
            own.lanes[g] = __ballot_sync(kAllLanes, own.rows[g] != nullptr);
            fits = fits && reinterpret_cast<u64>(own.rows[g]) % 16 == 0;
            own.count += __popc(own.lanes[g]);
        }
        own.staged = __all_sync(kAllLanes, fits) && own.count > 0 && own.count <= Role::kStages;
        at_ = from, end_ = own.staged ? to : from;
        // M2: what the lanes have acquired, their bulk copies may read.
        if (own.staged && !Parts::kStays) fence_proxy_async_global();
    }

    /// Ends the reads of stages that have been freed, before they are loaded into again. The fence waits for this lane's own
    /// stores as well, so it is left out where nothing more is loaded.
    __device__ __forceinline__ void settle() {
        if (!was_read_) return;
        was_read_ = false;
        // M3: the lanes that load come after the barrier.
        fence_proxy_async_shared();
        __syncwarp();
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

    static __device__ __forceinline__ int wrapped(int stage) {
        return stage >= Role::kStages ? stage - Role::kStages : stage;
    }

    PartSmem<Role>& smem_;
    Rows now_, loaded_;     // of the unit that is read, and of that which is loaded: this one,
    bool is_next_ = false;  // or the one after it
    int at_ = 0, end_ = 0;  // the bytes of each row that nobody has begun to load
    int first_ = 0;         // the oldest stage that is loaded or being loaded,
    int busy_ = 0;          // and how many are
    u32 heads_ = 0;         // a bit for each stage: whether its mbarrier is one that nobody has waited for,
    u32 phases_ = 0;        // and the parity that this one completes next
    bool was_read_ = false;  // whether stages were read since the last fence
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
#pragma unroll 1
        while (true) {
            const bool is_left = stages_.refill();
            // Where the next parts are is on its way while this unit's are read.
            look();
            if (!is_left || unit_ < 0 || stages_.has_next() || !next_.is_here()) return;
            stages_.begin_next(next_, bytes_.begin, bytes_.end);
        }
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

/// The values of a lane at a place of the rows of all parts, which are read where they are. The rows have `count` values.
template <class T, class Role, int kParts, class At>
struct PartsInPlace {
    const PartStages<Role, kParts>& stages;
    At i;
    int count;

    /// `each(part, values)`, in order, for every part that there is.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        const auto row = [&](int part) { return reinterpret_cast<const T*>(stages.row(part)); };
        // More rows at once would not stay in registers beside a role of two hops.
        constexpr int kMost = kParts > 4 || sizeof(WideAt<T, At>) > sizeof(Wide<T>) ? 2 : 4;
        for_some_rows<T, kParts, kMost>(row, i, count, each);
    }
};

/// The values of a lane at a place of pieces in stages: a stretch, which may be read where it is, or `Stretches`.
template <class T, class Role, int kParts, class At>
struct StagedParts {
    const PartStages<Role, kParts>& stages;
    const PartPieces<kParts>& pieces;
    At i;
    int count;
    At at;           // the place in a piece,
    int end;         // which has so many values
    bool is_staged;  // whether the pieces are in stages

    /// `each(part, values)`, in order, for every part that there is.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        if constexpr (sizeof(WideAt<T, At>) == sizeof(Wide<T>)) {
            if (!is_staged) return PartsInPlace<T, Role, kParts, At>{stages, i, count}.each(each);
        }
#pragma unroll(PartPieces<kParts>::kKept ? kParts : 1)
        for (int part = 0; part < kParts; ++part) {
            if ((pieces.lanes[part / kLanes] >> part % kLanes & 1) == 0) continue;
            const char* piece = PartPieces<kParts>::kKept ? pieces.from[part] : stages.piece(part);
            each(part, get_whole(reinterpret_cast<const T*>(piece), at, end));
        }
    }
};

/// Calls `body(i, parts)` for the pieces of rows from `from` up to `to` that are brought into shared memory ahead; warp.
/// `body` takes several stretches at once as long as they are whole.
template <class T, int kParts, class Role, class Ahead, class Body>
__device__ __forceinline__ void for_pieces(Ahead& ahead, int from, int to, int count, Body body) {
    constexpr int kPiece = Role::kPieceBytes / static_cast<int>(sizeof(T));
    // More would not stay in registers.
    constexpr int kMost = kPiece / kTurn < 4 ? kPiece / kTurn : 4;
    using Some = Stretches<kMost>;
    static_assert(kPiece % kTurn == 0, "a piece is read in whole turns of a warp");
    const int lane = lane_index() * kWide;
    PartStages<Role, kParts>& stages = ahead.stages();
#pragma unroll 1
    for (int base = from; base < to; base += kPiece) {
        ahead.refill();
        const bool staged = stages.staged();
        if (staged) stages.wait();
        const PartPieces<kParts> pieces = stages.pieces();
        const int end = base + kPiece < to ? kPiece : to - base;
        int turn = 0;
        // Both ways of several stretches in one role would take too many registers.
#pragma unroll 1
        for (; staged && turn + kMost * kTurn <= end; turn += kMost * kTurn) {
            const Some i{base + turn + lane}, at{turn + lane};
            body(i, StagedParts<T, Role, kParts, Some>{stages, pieces, i, count, at, end, staged});
        }
#pragma unroll 1
        for (; turn < end; turn += kTurn) {
            const int i = base + turn + lane, at = turn + lane;
            body(i, StagedParts<T, Role, kParts, int>{stages, pieces, i, count, at, end, staged});
        }
        if (staged) stages.taken();
    }
}

/// Calls `body(at)` for the stretches of a row from `from` up to `to`, of `kCount` at once; warp.
template <int kCount, class Body>
__device__ __forceinline__ void for_stretches(int from, int to, Body body) {
#pragma unroll 1
    for (int base = from; base < to; base += kCount * kTurn) {
        body(Stretches<kCount, false>{base + lane_index() * kWide, to});
    }
}

/// Calls `body(i, parts)` for all stretches of a row from `from` up to `to`, as `for_wide_parts` does, or for several of
/// them at once: what is not for a single value is done once for all of them; warp. `Ahead` is a `PartStages` or a
/// `PartsAhead`, `kThreads` the number of threads of the block.
template <class T, int kParts, class Role, int kThreads, class Ahead, class Parts, class Body>
__device__ __forceinline__ void for_staged_parts(Ahead& ahead, const Parts& parts, int from, int to, int count,
                                                 Body body) {
    if constexpr (Parts::kInWords) {
        if (parts.in_words()) {
            // The words of a value take twice its registers.
            for_stretches<kThreads <= 384 ? 2 : 1>(from, to, [&](auto i) {
                body(i, PartsAsWords<T, kParts, Parts, decltype(i)>{parts, i, count});
            });
            return;
        }
    }
    ahead.begin(parts, from * static_cast<int>(sizeof(T)), to * static_cast<int>(sizeof(T)));
    if constexpr (Role::kTma) {
        for_pieces<T, kParts, Role>(ahead, from, to, count, body);
    } else {
        // As many stretches as stay in registers; those of two rows are loaded at once.
        for_stretches<kThreads <= 384 ? 7 : kThreads <= 512 ? 5 : 4>(from, to, [&](auto i) {
            body(i, PartsInPlace<T, Role, kParts, decltype(i)>{ahead.stages(), i, count});
        });
    }
}

}  // namespace ep
