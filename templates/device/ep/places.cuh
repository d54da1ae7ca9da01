// Rows that are put in order by an index, such as the expert that they are for: each value of the index
// has places of its own, and every row that goes there takes the next one.
#pragma once

#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The places that one lane deals out: those of one value of the index.
struct Places {
    int index;  // -1: an idle lane
    int next;   // the place of the first row
};

/// The places of value `index` of `count`, from `first(index)` on; none past the end.
template <class First>
__device__ __forceinline__ Places places_of(int index, int count, First first) {
    return index < count ? Places{index, first(index)} : Places{-1, 0};
}

/// Walks a span of rows, a lane for each value of the index. Calls `move(row, position)` in the whole
/// warp when any of them has a place for the row (position -1: not this lane's), then `each(row,
/// index, match, position)` in the lane of every value.
template <class Where, class Move, class Each>
__device__ __forceinline__ void for_fanout(Team& team, Span span, const Places& places,
                                           Where where, Move move, Each each) {
    constexpr int kAhead = 4;
    const int index = places.index;
    int position = places.next;
    // Numbers, all looked at before the next ones are asked for: a truth the compiler would test where
    // it is loaded, and wait for it there.
    u32 ahead[kAhead] = {};
    // The first turn only asks for flags; from then on those of the next rows travel while these
    // are moved.
#pragma unroll 1
    for (int base = span.begin - kAhead; base < span.end && !team.stopped; base += kAhead) {
        u32 matches = 0;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) matches |= ahead[i] << i;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int row = base + kAhead + i;
            ahead[i] = index >= 0 && row < span.end ? static_cast<u32>(where(row, index)) : 0;
        }
        if (base < span.begin) continue;
        const int end = base + kAhead < span.end ? base + kAhead : span.end;
#pragma unroll 1
        for (int row = base; row < end && !team.stopped; ++row, matches >>= 1) {
            const bool match = (matches & 1) != 0;
            if (__ballot_sync(kAllLanes, match) != 0) move(row, match ? position : -1);
            if (index >= 0) each(row, index, match, position);
            position += match ? 1 : 0;
        }
    }
}

/// Places that each of `kCount` numbers deals out, one after the other; a lane keeps those of every
/// 32nd number. `next` and `take` are for the warp.
template <int kCount>
class PlaceCounters {
    static constexpr int kGroups = (kCount + kLanes - 1) / kLanes;

public:
    /// The first place of a number, in the lane that keeps it.
    __device__ __forceinline__ void begin(int number, i64 first) {
        next_[number / kLanes] = first;
    }

    /// The place that the next turn of a number takes.
    __device__ __forceinline__ i64 next(int number) const {
        return __shfl_sync(kAllLanes, next_[number / kLanes], number % kLanes);
    }

    /// Takes it.
    __device__ __forceinline__ i64 take(int number) {
        const i64 place = next(number);
        if (lane_index() == number % kLanes) next_[number / kLanes] = place + 1;
        __syncwarp();  // converges; orders nothing
        return place;
    }

private:
    i64 next_[kGroups] = {};
};

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
