// Rows that are put in order by an index, such as the expert that they are for: each value of the index
// has places of its own, and every row that goes there takes the next one.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The places that one lane deals out: those of one value of the index. What `for_fanout` asks for.
struct Places {
    int index;  // -1: an idle lane
    int next;   // the place of the first row

    __device__ __forceinline__ int peer() const { return index; }
    __device__ __forceinline__ int first() const { return next; }
};

/// The places of value `index` of `count`, from `first(index)` on; none past the end.
template <class First>
__device__ __forceinline__ Places places_of(int index, int count, First first) {
    return index < count ? Places{index, first(index)} : Places{-1, 0};
}

/// Where the row at `position` is; null when that is -1. Strides count elements.
template <class T>
__device__ __forceinline__ char* row_at(T* rows, int position, i64 stride) {
    return position < 0 ? nullptr : reinterpret_cast<char*>(rows + position * stride);
}

/// Copies the `count` small values beside a row, its scales, to the row that each lane has a
/// position for (-1: none); warp. Strides count elements, so that either axis may be the dense one.
template <class T>
__device__ __forceinline__ void copy_beside(T* to, i64 to_row, i64 to_column, int position,
                                            const T* from, i64 from_column, int count) {
    const u32 lanes = __ballot_sync(kAllLanes, position >= 0);
#pragma unroll 1
    for (int base = 0; base < count; base += kLanes) {
        const int i = base + lane_index();
        T value;
        if (i < count) value = from[i * from_column];
#pragma unroll 1
        for (u32 left = lanes; left != 0; left &= left - 1) {
            const int there = __shfl_sync(kAllLanes, position, __ffs(static_cast<int>(left)) - 1);
            if (i < count) to[there * to_row + i * to_column] = value;
        }
    }
    __syncwarp();
}

/// Stops the group when an output holds fewer than the `rows` that this call puts there: before the
/// first of them, and with one record.
__device__ __forceinline__ void require_room(Team& team, int rows, int capacity) {
    if (rows <= capacity || team.stopped) return;
    const Site site{-1, Waiting::kCapacity, -1, -1, static_cast<u32>(rows)};
    const bool blame = team.index() == 0 && team.leader();
    give_up(team.group, team.epoch, team.role, site, static_cast<u32>(capacity), blame, true);
    team.stopped = true;
}

}  // namespace ep
