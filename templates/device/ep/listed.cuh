// Rows that go behind the rows before them that list the same value, such as those of an expert.
//
// Blocks take spans of neighbouring rows. As it enters, each one counts for every value the rows ahead of its own
// that list it, so that no block waits for another one; a warp counts the few between for itself. The last block, if
// it is not the only one, takes no rows: it counts for every value the rows of each source.
//
//   count_listed -> for_listed         in the warps that take rows
//                   for_listed_counts  in those of the last block that tell the counts
#pragma once

#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// What a block has counted: rows that list each of `kValues` values.
template <int kValues, int kSources>
struct ListedSmem {
    i32 begins[kSources + 1];          // where the rows of each source begin, and where the last ones end
    i32 ahead[kValues];                // ahead of the block's own rows
    i32 of[(kSources + 1) * kValues];  // ahead of all sources, and of each one; in the last block
};

/// The rows that a block takes.
__device__ __forceinline__ Span listed_span(int rows, int block, int blocks) {
    const int takers = blocks > 1 ? blocks - 1 : 1;
    return block < takers ? stripe_span(rows, takers, block) : Span{rows, rows};
}

/// How a warp looks at rows that list `kWidth` of `kValues` values: a lane at each one of a few rows.
template <int kWidth, int kValues>
struct ListedLanes {
    static_assert(kWidth <= kLanes, "a lane has each value of a row");
    static constexpr int kRows = kLanes / kWidth;  // in a turn

    int row = lane_index() / kWidth;
    int k = lane_index() % kWidth;

    /// The value of the lane in the turn that begins with row `first`, up to row `end`; -1: it has none.
    /// `entry(row, k)`: a value of a row.
    template <class Entry>
    __device__ __forceinline__ i32 ask(Entry entry, int first, int end) const {
        return row < kRows && first + row < end ? known(entry(first + row, k)) : -1;
    }

    /// A value, if it is one of them.
    static __device__ __forceinline__ i32 known(i64 value) {
        return value >= 0 && value < kValues ? static_cast<i32>(value) : -1;
    }

    /// The same, if no earlier lane of the row has it too.
    __device__ __forceinline__ i32 once(i32 value) const {
        bool again = false;
#pragma unroll
        for (int back = 1; back < kWidth; ++back) {
            const i32 other = __shfl_up_sync(kAllLanes, value, back);
            again = again || (back <= k && other == value);
        }
        return again ? -1 : value;
    }
};

/// Counts, by all threads of the block; a barrier comes after. `begin(source)`: where its rows begin;
/// `entry(row, k)`: a value that a row lists. There is memory for `kMost` rows.
template <int kWidth, int kMost, int kValues, int kSources, class Begin, class Entry>
__device__ __forceinline__ void count_listed(ListedSmem<kValues, kSources>& smem, Begin begin, Entry entry) {
    constexpr int kAhead = 2;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const bool tells = block == blocks - 1;
    const ListedLanes<kWidth, kValues> lanes;
    const int step = threads / kLanes * lanes.kRows, first = thread / kLanes * lanes.kRows;
    // The first rows are asked for before it is known how many there are.
    i32 found[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) found[i] = lanes.ask(entry, first + i * step, kMost);
#pragma unroll 1
    for (int i = thread; i <= kSources; i += threads) smem.begins[i] = begin(i);
#pragma unroll 1
    for (int i = thread; i < kValues; i += threads) smem.ahead[i] = 0;
#pragma unroll 1
    for (int i = thread; tells && i < (kSources + 1) * kValues; i += threads) smem.of[i] = 0;
    __syncthreads();
    const int rows = smem.begins[kSources];
    const Span own = listed_span(rows, block, blocks);
    const int end = tells ? rows : own.begin;
#pragma unroll 1
    for (int base = first; base < end; base += kAhead * step) {
#pragma unroll
        for (int i = 0; base != first && i < kAhead; ++i) found[i] = lanes.ask(entry, base + i * step, end);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int at = base + i * step + lanes.row;
            const i32 value = lanes.once(found[i]);
            if (value < 0 || at >= end) continue;
            if (at < own.begin) add_relaxed_shared(smem.ahead + value, 1);
            if (!tells) continue;
            int begun = 0;
#pragma unroll 1
            for (int source = 0; source < kSources; ++source) begun += smem.begins[source] <= at ? 1 : 0;
            add_relaxed_shared(smem.of + begun * kValues + value, 1);
        }
    }
}

/// How many rows from `first` up to `end` list the value of each lane, of the first `kWidth` lanes. Warp.
template <int kWidth, int kValues, class Entry>
__device__ __forceinline__ int listed_between(int first, int end, i32 value, Entry entry) {
    const ListedLanes<kWidth, kValues> lanes;
    int rows = 0;
#pragma unroll 1
    for (; first < end; first += lanes.kRows) {
        const i32 own = lanes.once(lanes.ask(entry, first, end));
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const u32 list = __ballot_sync(kAllLanes, own == __shfl_sync(kAllLanes, value, k));
            if (lane_index() == k) rows += __popc(list);
        }
    }
    return rows;
}

/// Calls, for each slice of a row of this warp, `each(row, choice, value, place, used, slice, slices, once)` in all lanes:
/// those that are `used` have a choice of the row, the value of it, and how many earlier rows list that; the others
/// have the first choice. A value that is none has place 0. What is to be done `once` for a row is no slice, where
/// there are several. `entry(row, choice)`: the value.
template <int kWidth, int kValues, int kSources, class Entry, class Each>
__device__ __forceinline__ void for_listed(Team& team, const ListedSmem<kValues, kSources>& smem, Entry entry,
                                           Each each) {
    const bool used = team.lane < kWidth;
    const int choice = used ? team.lane : 0;
    const Span own = listed_span(smem.begins[kSources], team.block, team.blocks);
    // A warp of each row does what is done once.
    const int rows = own.end - own.begin, slices = slices_of<8>(team.warps - rows, rows);
    const int parts = slices > 1 ? slices + 1 : 1;
#pragma unroll 1
    for (int unit = team.warp; unit < rows * parts && !team.stopped; unit += team.warps) {
        const int row = own.begin + unit / parts, slice = unit % parts;
        const i32 value = ListedLanes<kWidth, kValues>::known(entry(row, choice));
        const int between = listed_between<kWidth, kValues>(own.begin, row, value, entry);
        const int place = value >= 0 && used ? smem.ahead[value] + between : 0;
        each(row, choice, value, place, used, slice, slices, slice + 1 == parts);
        __syncwarp();
    }
}

/// Copies the `count` small values beside a row, its scales, to a row of each lane that has a `match`; warp. Strides
/// count elements.
template <class T>
__device__ __forceinline__ void copy_matched(bool match, T* to, i64 to_column, const T* from, i64 from_column, int count) {
    const u32 lanes = __ballot_sync(kAllLanes, match);
#pragma unroll 1
    for (int base = 0; base < count; base += kLanes) {
        const int i = base + lane_index();
        T value;
        if (i < count) value = from[i * from_column];
#pragma unroll 1
        for (u32 left = lanes; left != 0; left &= left - 1) {
            const u64 row = __shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(static_cast<int>(left)) - 1);
            if (i < count) reinterpret_cast<T*>(row)[i * to_column] = value;
        }
    }
    __syncwarp();
}

/// Copies one of the slices of a row of `count` elements, which are whole units of 16 bytes, to the row of each lane that
/// has a `match`; nothing past the last slice. Warp.
template <class T>
__device__ __forceinline__ void copy_slice(bool match, T* to, const T* from, int count, int slice, int slices) {
    constexpr int kBatch = 7;
    const u32 lanes = __ballot_sync(kAllLanes, match);
    const int units = lanes == 0 || slice >= slices ? 0 : count * static_cast<int>(sizeof(T)) / 16;
    const int apart = slices * kLanes;
#pragma unroll 1
    for (int base = slice * kLanes; base < units; base += kBatch * apart) {
        const int first = base + lane_index();
        Quad values[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = first + k * apart;
            if (i < units) values[k] = load_quad(reinterpret_cast<const Quad*>(from) + i);
        }
#pragma unroll 1
        for (u32 left = lanes; left != 0; left &= left - 1) {
            const u64 row = __shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(static_cast<int>(left)) - 1);
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const int i = first + k * apart;
                if (i < units) store_quad(reinterpret_cast<Quad*>(row) + i, values[k]);
            }
        }
    }
    __syncwarp();
}

/// Calls `each(value, source, first, count)` for every value and source, in one lane of the last block, in order of
/// the sources of a value: rows that list it of the sources before, and of this one.
template <int kValues, int kSources, class Each>
__device__ __forceinline__ void for_listed_counts(Team& team, const ListedSmem<kValues, kSources>& smem, Each each) {
    if (team.block != team.blocks - 1) return;
#pragma unroll 1
    for (int value = team.warp * kLanes + team.lane; value < kValues && !team.stopped;
         value += team.warps * kLanes) {
        i32 first = smem.of[value];
#pragma unroll 1
        for (int source = 0; source < kSources; ++source) {
            const i32 count = smem.of[(source + 1) * kValues + value];
            each(value, source, first, count);
            first += count;
        }
    }
    __syncwarp();
}

}  // namespace ep
