// Counters: how often each of a few numbers comes up in a call.
//
// A block counts in shared memory, and adds what it has counted to sums in the window, which are
// zero between calls; the last block out hands the sums to the outputs and zeroes them again. So no
// block waits for another one, whatever stops a call leaves the sums at zero, and a counter costs
// one global add per block.
//
// `Counted` is a Cfg struct: its counters follow one another from 0 to `kCount`, and the sums of all
// blocks lie at `kSums` in the window. Counters that are too many for shared memory (`kInShared` is
// false) are added to the sums one by one.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What a block has counted; zero at the start of the block.
template <class Counted>
struct CounterSmem {
    i32 counters[Counted::kInShared && Counted::kCount > 0 ? Counted::kCount : 1];
    u32 last;  // whether this block is the last one out

    /// Zeroes the counters, by all threads of the block; a barrier comes after.
    __device__ __forceinline__ void clear() {
        if constexpr (Counted::kInShared) {
#pragma unroll 1
            for (int i = static_cast<int>(threadIdx.x); i < Counted::kCount;
                 i += static_cast<int>(blockDim.x)) {
                counters[i] = 0;
            }
        }
    }
};

/// The counters of a call, as the lanes of one block see them.
template <class Counted>
struct Counters {
    CounterSmem<Counted>& own;
    i32* sums;

    __device__ __forceinline__ Counters(const Group& group, CounterSmem<Counted>& own_)
        : own(own_), sums(reinterpret_cast<i32*>(group.window + Counted::kSums)) {}

    /// Adds `more` to a counter; one lane's own work.
    __device__ __forceinline__ void add(int counter, i32 more) {
        if constexpr (Counted::kInShared) {
            add_relaxed_shared(own.counters + counter, more);
        } else {
            add_relaxed_gpu(sums + counter, more);
        }
    }
};

/// Adds to what only this device's warps add to, and later kernels read; one lane's own work.
__device__ __forceinline__ void add_count(i32* counter, i32 more) {
    add_relaxed_gpu(counter, more);
}

__device__ __forceinline__ void add_count(i64* sum, i64 more) {
    add_relaxed_gpu(sum, more);
}

__device__ __forceinline__ void add_count(float* sum, float more) {
    add_relaxed_gpu(sum, more);
}

/// `body(i, hits)` in one lane for each i below `count` for which `match(i)` holds in any lane:
/// in how many. Warp.
template <class Match, class Body>
__device__ __forceinline__ void for_hits(int count, Match match, Body body) {
    for (int base = 0; base < count; base += kLanes) {
        u32 own = 0;
        const int some = count - base < kLanes ? count - base : kLanes;
        for (int i = 0; i < some; ++i) {
            const u32 lanes = __ballot_sync(kAllLanes, match(base + i));
            if (i == lane_index()) own = lanes;
        }
        if (own != 0) body(base + lane_index(), __popc(own));
    }
}

/// Zeroes the `each` counters of every stripe of this block, a warp each; a barrier comes after.
__device__ __forceinline__ void clear_stripes(i32* counters, int stripes, int each) {
    const int blocks = static_cast<int>(gridDim.x);
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int warps = static_cast<int>(blockDim.x) / kLanes;
#pragma unroll 1
    for (int stripe = static_cast<int>(blockIdx.x) + warp * blocks; stripe < stripes;
         stripe += warps * blocks) {
#pragma unroll 1
        for (int i = lane_index(); i < each; i += kLanes) counters[stripe * each + i] = 0;
    }
}

/// Zeroes a tensor that is counted into or added to, by all threads of the grid; `all_blocks` comes after.
template <class Elem>
__device__ __forceinline__ void clear_tensor(Elem* elements, i64 count) {
    const i64 threads = static_cast<i64>(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
        elements[i] = Elem{};
    }
}

/// Last step of a kernel that counts, for all threads: adds up what the blocks have counted. In the
/// last block out, `sink(i, sum)` for every counter in one of its threads, and `last()`; then the call
/// ends.
template <class Counted, class Sink, class Last>
__device__ __forceinline__ void leave_counted(const Group& group, const Call& call,
                                              CounterSmem<Counted>& own, Sink sink, Last last) {
    constexpr int kBatch = 4;
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    i32* sums = reinterpret_cast<i32*>(group.window + Counted::kSums);
    __syncthreads();
    if constexpr (Counted::kInShared) {
#pragma unroll 1
        for (int i = thread; i < Counted::kCount; i += threads) {
            if (own.counters[i] != 0) add_relaxed_gpu(sums + i, own.counters[i]);
        }
        __syncthreads();
    }
    // Releases the adds of this block; the last one acquires those of all.
    if (thread == 0) own.last = is_last_out(group) ? 1 : 0;
    __syncthreads();
    if (own.last == 0) return;
#pragma unroll 1
    for (int base = thread; base < Counted::kCount; base += kBatch * threads) {
        i32 found[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = base + k * threads;
            found[k] = i < Counted::kCount ? sums[i] : 0;
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = base + k * threads;
            if (i >= Counted::kCount) break;
            sums[i] = 0;
            sink(i, found[k]);
        }
    }
    __syncthreads();
    last();
    // As in `leave`: the warps of this block may wait for others in `last`.
    __syncthreads();
    bring_next_kernel();
    if (thread == 0) close(group, call);
}

/// Last step of a kernel that counts, for all threads: adds up what the blocks have counted. In the
/// last block out, `sink(i, sum)` for every counter in one of its threads; then the call ends.
template <class Counted, class Sink>
__device__ __forceinline__ void leave_counted(const Group& group, const Call& call,
                                              CounterSmem<Counted>& own, Sink sink) {
    leave_counted(group, call, own, sink, [] {});
}

}  // namespace ep
