// Moves whole rows through shared memory, a warp at a time, with loads running ahead of stores.
//
// A row is cut into pieces. Lane 0 loads each piece once into a stage; every lane with a
// destination stores it from there in a bulk group of its own, so that the lane that stored may
// also release (M1). Up to `kAhead` pieces are being loaded while earlier ones leave; this goes on
// across rows. A small record of other fields (the meta record) travels with each row.
//
// Without TMA (`kTma` false) the warp copies with vector loads and stores, behind the same calls.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// How a role's rows are cut; `Role` is its Cfg struct.
template <class Role>
struct Pieces {
    static constexpr int kBytes =
        Role::kPieceBytes < Role::kRowBytes ? Role::kPieceBytes : Role::kRowBytes;
    static constexpr int kCount = (Role::kRowBytes + kBytes - 1) / kBytes;
    static constexpr int kLastBytes = Role::kRowBytes - (kCount - 1) * kBytes;
    // Loads under way when a piece is stored; the other stages hold pieces on their way out.
    static constexpr int kAhead = Role::kStages / 2;
    static constexpr int kLeaving = Role::kStages - 1 - kAhead;
    // Rows that may be incomplete at their destination without anyone waiting: two pieces more than
    // those still being loaded, about what the wire holds of one warp.
    static constexpr int kRecent = (kAhead + 2 + kCount - 1) / kCount;
    // Meta records alive at once: one may be filled when no store of it can be unread.
    static constexpr int kMetas = (Role::kStages + kCount - 1) / kCount;

    static_assert(kBytes % 16 == 0 && Role::kRowBytes % 16 == 0, "bulk copies move 16-byte units");
};

/// The shared memory of one moving warp.
template <class Role, bool kTma = Role::kTma>
struct MoverSmem {
    alignas(128) char stage[Role::kStages][Pieces<Role>::kBytes];
    alignas(16) char meta[Pieces<Role>::kMetas][Role::kMetaBytes > 0 ? Role::kMetaBytes : 16];
    char* target[Role::kStages][kLanes];
    u64 full[Role::kStages];
};

template <class Role>
struct MoverSmem<Role, false> {
    alignas(16) char meta[1][Role::kMetaBytes > 0 ? Role::kMetaBytes : 16];
};

template <class Role, bool kTma = Role::kTma>
class Mover;

/// The TMA mover. All methods are called by the whole warp.
template <class Role>
class Mover<Role, true> {
    using Cut = Pieces<Role>;

    static_assert(Role::kStages >= 2, "a mover needs two stages");

public:
    __device__ __forceinline__ Mover(MoverSmem<Role>& smem, Team& team) : smem_(smem), team_(team) {
        if (team_.leader()) {
#pragma unroll 1
            for (int i = 0; i < Role::kStages; ++i) mbarrier_init(&smem_.full[i], 1);
            fence_mbarrier_init();
        }
        __syncwarp();  // converges; each load has a barrier of its own
    }

    /// Makes what this warp has just acquired ready to be moved, or overwritten, by `row` (M2, M4).
    __device__ __forceinline__ void fence_global() const { fence_proxy_async_global(); }

    /// Begins to load the row that is moved first, as far as there are stages, before its destinations
    /// are known.
    __device__ __forceinline__ void ask(const void* from) {
        if (team_.stopped) return;  // `row` loads what is not asked for
#pragma unroll 1
        for (int piece = 0; piece < Cut::kCount && piece < Role::kStages; ++piece) {
            load(nullptr, static_cast<const char*>(from) + piece * Cut::kBytes, bytes_of(piece));
            ++asked_;
        }
    }

    /// Begins to move one row: `from` is the same in every lane, `to` is the lane's own destination
    /// (null: none). Source and destination memory are ready: acquired by lane 0 and by this
    /// lane, then `fence_global`.
    __device__ __forceinline__ void row(char* to, const void* from) {
        if (team_.stopped) return;
#pragma unroll 1
        for (int piece = 0; piece < Cut::kCount; ++piece) {
            const u32 at = static_cast<u32>(piece * Cut::kBytes);
            char* there = to == nullptr ? nullptr : to + at;
            if (piece < asked_) {
                smem_.target[piece][team_.lane] = there;
            } else {
                load(there, static_cast<const char*>(from) + at, bytes_of(piece));
            }
            if (loading_ > Cut::kAhead) store_oldest();
        }
        asked_ = 0;
        ++rows_;
    }

    /// Where the lanes write the meta record of the row just begun.
    __device__ __forceinline__ char* meta() { return smem_.meta[rows_ % Cut::kMetas]; }

    /// Sends the meta record to each lane's destination; it is stored when the row is.
    __device__ __forceinline__ void send_meta(char* to) {
        if (team_.stopped || Role::kMetaBytes == 0) return;
        // M3: each lane has written its part; the lanes that store read all of it.
        fence_proxy_async_shared();
        __syncwarp();
        // Left uncommitted: it joins the next piece, and a piece of this row is still to come.
        if (to != nullptr) tma_store(to, meta(), Role::kMetaBytes);
    }

    /// How many rows have been begun.
    __device__ __forceinline__ u32 rows_begun() const { return rows_; }

    /// How many rows have been read from their source.
    __device__ __forceinline__ u32 rows_loaded() const { return loaded_; }

    /// How many rows are complete at their destination, for the lane that asks (M1), when all but
    /// the last `kRecent` are sure to be: waits only for older pieces.
    template <int kRecent>
    __device__ __forceinline__ u32 rows_stored() {
        static_assert(kRecent * Cut::kCount >= Cut::kAhead,
                      "rows still being loaded are not stored");
        constexpr int kOpen = kRecent * Cut::kCount - Cut::kAhead;
        // The hardware counts open groups in a few bits; a smaller number only waits for more.
        tma_wait_stored<(kOpen < 32 ? kOpen : 32)>();
        __syncwarp();
        const u32 sure = rows_ - kRecent;
        return static_cast<i32>(sure - flushed_) > 0 ? sure : flushed_;
    }

    /// Completes all rows but the last `recent` ones, at their destination, for the lane that asks
    /// (M1).
    __device__ __forceinline__ void complete(u32 recent) {
        const int pieces = static_cast<int>(recent) * Cut::kCount;
#pragma unroll 1
        while (loading_ > pieces) store_oldest();
        const int open = pieces - loading_;
        // The number is part of the instruction; a smaller one only waits for more.
        if (open >= 6) {
            tma_wait_stored<6>();
        } else if (open >= 3) {
            tma_wait_stored<3>();
        } else if (open >= 1) {
            tma_wait_stored<1>();
        } else {
            tma_wait_stored<0>();
        }
        __syncwarp();
    }

    /// Begins to store all that is being loaded, when no row comes behind it soon.
    __device__ __forceinline__ void store_all() {
#pragma unroll 1
        while (loading_ > 0) store_oldest();
    }

    /// Completes all rows begun, at their destination: before a warp waits for a peer that may be
    /// waiting for them.
    __device__ __forceinline__ void flush() {
        store_all();
        tma_wait_stored<0>();
        __syncwarp();
        flushed_ = rows_;
    }

    /// Leaves no bulk group and no mbarrier open (M6); pieces of a stopped team go nowhere. The warp may have another
    /// role in the same memory.
    __device__ __forceinline__ void finish() {
#pragma unroll 1
        for (; loading_ > 0; --loading_) await_oldest();
        tma_wait_stored<0>();  // whoever was told of rows has waited for them
        __syncwarp();
        if (team_.leader()) {
#pragma unroll 1
            for (int i = 0; i < Role::kStages; ++i) mbarrier_end(&smem_.full[i]);
        }
        fence_proxy_async_shared();
        __syncwarp();
    }

private:
    static __device__ __forceinline__ u32 bytes_of(int piece) {
        return static_cast<u32>(piece == Cut::kCount - 1 ? Cut::kLastBytes : Cut::kBytes);
    }

    /// Loads a piece into the next stage, whose last store has been read by then.
    __device__ __forceinline__ void load(char* to, const char* from, u32 bytes) {
        tma_wait_read<Cut::kLeaving>();
        __syncwarp();
        if (team_.leader()) {
            mbarrier_arrive_expect(&smem_.full[load_stage_], bytes);
            tma_load(smem_.stage[load_stage_], from, bytes, &smem_.full[load_stage_]);
        }
        smem_.target[load_stage_][team_.lane] = to;
        load_stage_ = load_stage_ + 1 == Role::kStages ? 0 : load_stage_ + 1;
        ++loading_;
    }

    /// Waits for the oldest load. It is local, or from a peer that has released the row: nothing
    /// that anyone does can hold it up, so this wait needs no bound.
    __device__ __forceinline__ void await_oldest() {
        while (!mbarrier_try_wait(&smem_.full[store_stage_], phases_ >> store_stage_ & 1)) {
        }
        phases_ ^= 1u << store_stage_;
        store_stage_ = store_stage_ + 1 == Role::kStages ? 0 : store_stage_ + 1;
    }

    /// Stores the oldest piece, in each lane that has a destination for it.
    __device__ __forceinline__ void store_oldest() {
        const int stage = store_stage_;
        await_oldest();
        char* to = smem_.target[stage][team_.lane];
        if (to != nullptr) tma_store(to, smem_.stage[stage], bytes_of(store_piece_));
        // Every lane closes a group for every piece, so that counts of groups mean pieces.
        tma_commit();
        --loading_;
        if (++store_piece_ == Cut::kCount) store_piece_ = 0, ++loaded_;
    }

    MoverSmem<Role>& smem_;
    Team& team_;
    int load_stage_ = 0;
    int store_stage_ = 0;
    int store_piece_ = 0;
    int loading_ = 0;  // pieces loaded or being loaded, and not yet stored
    int asked_ = 0;    // pieces of the first row that are loading without a destination
    u32 phases_ = 0;   // a bit for each stage: the parity it completes next
    u32 rows_ = 0;     // begun
    u32 loaded_ = 0;   // read from their source
    u32 flushed_ = 0;  // complete at their destination, at least
};

/// The mover of devices without TMA: each row is copied when it is begun.
template <class Role>
class Mover<Role, false> {
public:
    __device__ __forceinline__ Mover(MoverSmem<Role>& smem, Team& team)
        : smem_(smem), team_(team) {}

    __device__ __forceinline__ void fence_global() const {}

    __device__ __forceinline__ void ask(const void*) {}

    __device__ __forceinline__ void row(char* to, const void* from) {
        if (team_.stopped) return;
        copy(to, static_cast<const char*>(from), Role::kRowBytes);
        ++rows_;
    }

    __device__ __forceinline__ char* meta() { return smem_.meta[0]; }

    __device__ __forceinline__ void send_meta(char* to) {
        if (team_.stopped || Role::kMetaBytes == 0) return;
        __syncwarp();
        const u32 lanes = __ballot_sync(kAllLanes, to != nullptr);
        for (u32 left = lanes; left != 0; left &= left - 1) {
            char* there = at_lane(to, __ffs(static_cast<int>(left)) - 1);
            for (int i = team_.lane * 16; i < Role::kMetaBytes; i += kLanes * 16) {
                const Quad piece = *reinterpret_cast<const Quad*>(smem_.meta[0] + i);
                store_quad(there + i, piece);
            }
        }
        __syncwarp();  // converges; the next row has a barrier of its own
    }

    __device__ __forceinline__ u32 rows_begun() const { return rows_; }

    __device__ __forceinline__ u32 rows_loaded() const { return rows_; }

    /// Stores of all lanes come before the release of any one, by the barrier (M1).
    template <int kRecent>
    __device__ __forceinline__ u32 rows_stored() {
        __syncwarp();
        return rows_;
    }

    __device__ __forceinline__ void complete(u32) { __syncwarp(); }

    __device__ __forceinline__ void store_all() {}

    __device__ __forceinline__ void flush() { __syncwarp(); }

    __device__ __forceinline__ void finish() { __syncwarp(); }

private:
    static __device__ __forceinline__ char* at_lane(char* pointer, int lane) {
        return reinterpret_cast<char*>(
            __shfl_sync(kAllLanes, reinterpret_cast<u64>(pointer), lane));
    }

    /// Four loads a lane at a time, each value stored to all destinations.
    __device__ __forceinline__ void copy(char* to, const char* from, int bytes) {
        constexpr int kBatch = 4, kStride = kLanes * 16;
        const u32 lanes = __ballot_sync(kAllLanes, to != nullptr);
        for (int base = team_.lane * 16; base - team_.lane * 16 < bytes; base += kBatch * kStride) {
            Quad values[kBatch] = {};
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (base + i * kStride < bytes) values[i] = load_quad(from + base + i * kStride);
            }
            for (u32 left = lanes; left != 0; left &= left - 1) {
                char* there = at_lane(to, __ffs(static_cast<int>(left)) - 1);
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    if (base + i * kStride < bytes)
                        store_quad(there + base + i * kStride, values[i]);
                }
            }
        }
        __syncwarp();  // converges; what tells of rows has a barrier of its own
    }

    MoverSmem<Role>& smem_;
    Team& team_;
    u32 rows_ = 0;
};

/// A destination that only lane 0 stores to: `to` there, null in the other lanes.
template <class T>
__device__ __forceinline__ char* at_leader(T* to) {
    return lane_index() == 0 ? reinterpret_cast<char*>(to) : nullptr;
}

/// A destination that the lane of a peer stores to, and that this lane then tells the peer of.
__device__ __forceinline__ char* at_lane_of(int peer, char* to) {
    return lane_index() == peer % kLanes ? to : nullptr;
}

/// A destination of each lane that `sends`.
__device__ __forceinline__ char* at_each(bool sends, char* to) {
    return sends ? to : nullptr;
}

/// Where a row goes that is moved to several places: a lane has each place, so that the row is loaded once for up to 32.
class RowPlaces {
public:
    /// One more place for the row at `from`; warp.
    template <class Role>
    __device__ __forceinline__ void add(Mover<Role>& mover, void* to, const void* from) {
        if (lane_index() == count_) to_ = static_cast<char*>(to);
        if (++count_ == kLanes) move(mover, from);
    }

    /// Begins to move the row to those of its places to which it does not move yet; warp.
    template <class Role>
    __device__ __forceinline__ void move(Mover<Role>& mover, const void* from) {
        if (count_ == 0) return;
        mover.row(at_each(lane_index() < count_, to_), from);
        count_ = 0;
    }

private:
    char* to_ = nullptr;
    int count_ = 0;
};

/// Whether there are any classes.
template <class... All>
constexpr bool kAny = false;
template <class First, class... More>
constexpr bool kAny<First, More...> = true;

/// Tells peers what they may know by now of rows that `mover` carries, in chunks.
template <class Role, class... Ends>
__device__ __forceinline__ void tell(Mover<Role>& mover, Ends&... ends) {
    (ends.tell(mover), ...);
}

/// Completes all rows of `mover`, and tells peers of them.
template <class Role, class... Ends>
__device__ __forceinline__ void settle(Mover<Role>& mover, Ends&... ends) {
    mover.flush();
    (ends.settle(mover), ...);
}

}  // namespace ep
