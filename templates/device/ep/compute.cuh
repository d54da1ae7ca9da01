// The arithmetic of declarations: folds, counters and the helpers of the expression language.
//
// "Warp" functions are called by all lanes of a warp with the same arguments.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

// ---- Helpers of the language ----

/// The least multiple of `unit` that is not below `value`.
__device__ __forceinline__ i32 align(i32 value, i32 unit) {
    return (value + unit - 1) / unit * unit;
}

/// Division that rounds up.
__device__ __forceinline__ i32 ceil(i32 value, i32 unit) {
    return (value + unit - 1) / unit;
}

/// The lesser value.
__device__ __forceinline__ i32 min(i32 a, i32 b) {
    return a < b ? a : b;
}

/// The greater value.
__device__ __forceinline__ i32 max(i32 a, i32 b) {
    return a > b ? a : b;
}

/// The experts of one rank: `first`, and how many.
struct Experts {
    i32 first, count;

    /// Index of `expert` among them, or -1: `local(expert, rank)`.
    __device__ __forceinline__ i32 local(i64 expert) const {
        const i64 index = expert - first;
        return index >= 0 && index < count ? static_cast<i32>(index) : -1;
    }
};

/// The experts of `rank`, as placed by `expert_begin`.
__device__ __forceinline__ Experts experts_of(const i32* expert_begin, int rank) {
    return Experts{expert_begin[rank], expert_begin[rank + 1] - expert_begin[rank]};
}

/// The rank of an expert, `owner(expert)`; -1 for an absent or unknown one.
template <int kRanks>
__device__ __forceinline__ i32 owner(i64 expert, const i32* expert_begin) {
    if (expert < 0 || expert >= expert_begin[kRanks]) return -1;
    i32 rank = 0;
    // Binary search for the last rank that begins at or before the expert.
    for (i32 step = kRanks > 32 ? 32 : kRanks > 16 ? 16 : kRanks > 4 ? 8 : 2; step > 0; step /= 2) {
        if (rank + step < kRanks && expert_begin[rank + step] <= expert) rank += step;
    }
    return rank;
}

/// The ranks that a token goes to, a bit each.
struct RankSet {
    u64 bits;

    /// Whether the token goes to `rank`: `routed(ids, rank)`.
    __device__ __forceinline__ bool has(int rank) const { return (bits >> rank & 1) != 0; }
};

/// The ranks that own at least one of the experts `ids[0..count]`; none for a lane without a token,
/// whose `ids` are null. One lane's own work.
template <int kRanks>
__device__ __forceinline__ RankSet ranks_of(const i64* ids, int count, const i32* expert_begin) {
    RankSet set{0};
    if (ids == nullptr) return set;
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
        const i32 rank = owner<kRanks>(ids[k], expert_begin);
        if (rank >= 0) set.bits |= 1ull << rank;
    }
    return set;
}

/// A row of numbers, held by one lane.
template <int kCount>
struct Ids {
    i32 ids[kCount];

    /// Whether `id` is one of them: `listed(ids, id)`.
    __device__ __forceinline__ bool has(i32 id) const {
        bool found = false;
#pragma unroll
        for (int k = 0; k < kCount; ++k) found |= ids[k] == id;
        return found;
    }
};

/// The numbers `ids[0..kCount]`, -1 for those out of range; only -1 for a lane without a row, whose
/// `ids` are null. One lane's own work.
template <int kCount>
__device__ __forceinline__ Ids<kCount> ids_of(const i64* ids) {
    Ids<kCount> row;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        const i64 id = ids == nullptr ? -1 : ids[k];
        const i32 low = static_cast<i32>(id);
        row.ids[k] = low == id ? low : -1;
    }
    return row;
}

// ---- Counters ----

/// Adds one to a counter that only later kernels read; one lane's own work.
__device__ __forceinline__ void count(i32* counter) {
    add_relaxed_gpu(counter, 1);
}

/// Adds the number of lanes with `hit` to a counter; warp.
__device__ __forceinline__ void count_warp(i32* counter, bool hit) {
    const u32 hits = __ballot_sync(kAllLanes, hit);
    if (lane_index() == 0 && hits != 0) add_relaxed_gpu(counter, __popc(hits));
}

/// Zeroes a tensor that is counted into, by all threads of the grid; `all_blocks` comes after.
__device__ __forceinline__ void clear(i32* counters, int count) {
    const int threads = static_cast<int>(gridDim.x * blockDim.x);
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += threads) {
        counters[i] = 0;
    }
}

// ---- Loops and folds of a warp ----

/// `body()` once in the warps that share a peer or a stripe: in the leader of part 0.
template <class Body>
__device__ __forceinline__ void once(const Team& team, Body body) {
    if (team.part == 0 && team.leader() && !team.stopped) body();
    __syncwarp();
}

/// `body(i)` for every i below `count`, spread over the threads of the role.
template <class Body>
__device__ __forceinline__ void for_each(const Team& team, int count, Body body) {
    if (!team.stopped) {
#pragma unroll 1
        for (int i = team.index() * kLanes + team.lane; i < count; i += team.count() * kLanes)
            body(i);
    }
    __syncwarp();
}

/// `body(i)` for every i from `begin` to `end`, a lane each; warp.
template <class Body>
__device__ __forceinline__ void for_lanes(int begin, int end, Body body) {
#pragma unroll 1
    for (int i = begin + lane_index(); i < end; i += kLanes) body(i);
    __syncwarp();
}

/// Sum of `value(i)` for i below `count`, in order; one lane's own work.
template <class T, class Value>
__device__ __forceinline__ T sum(int count, Value value) {
    T total = 0;
    for (int i = 0; i < count; ++i) total += value(i);
    return total;
}

/// Calls `sink(i, sum of value(0..i))` for i below `count`, a lane each; warp. Returns the total.
template <class Value, class Sink>
__device__ __forceinline__ i32 prefix_sum(int count, Value value, Sink sink) {
    const int lane = lane_index();
    i32 before = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += kLanes) {
        const int i = base + lane;
        const i32 own = i < count ? value(i) : 0;
        i32 through = own;
        for (int step = 1; step < kLanes; step *= 2) {
            const i32 left = __shfl_up_sync(kAllLanes, through, step);
            if (lane >= step) through += left;
        }
        if (i < count) sink(i, before + through - own);
        before += __shfl_sync(kAllLanes, through, kLanes - 1);
    }
    __syncwarp();
    return before;
}

/// `prefix_sum`, and `sink(count, total)` for a table with one more entry.
template <class Value, class Sink>
__device__ __forceinline__ void prefix_sum_and_total(int count, Value value, Sink sink) {
    const i32 total = prefix_sum(count, value, sink);
    if (lane_index() == 0) sink(count, total);
    __syncwarp();
}

// ---- Fields of a message ----

/// Writes `count` elements `value(i)` of a field into a meta record, a lane each.
template <class T, class Value>
__device__ __forceinline__ void put(char* field, int count, Value value) {
#pragma unroll 1
    for (int i = lane_index(); i < count; i += kLanes) {
        reinterpret_cast<T*>(field)[i] = static_cast<T>(value(i));
    }
}

/// Element `i` of a field of a received message.
template <class T>
__device__ __forceinline__ T get(const char* field, int i) {
    return reinterpret_cast<const T*>(field)[i];
}

// ---- Words for the host ----

/// A result that the host polls for: the word carries its own validity, the host fills it with -1
/// before the launch.
__device__ __forceinline__ void store_host(i32* word, i32 value) {
    store_relaxed_sys(reinterpret_cast<u32*>(word), static_cast<u32>(value));
}

}  // namespace ep
