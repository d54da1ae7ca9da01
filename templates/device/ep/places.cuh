// Rows that are put in order by an index, such as the expert that they are for: each value of the index
// has places of its own, and every row that goes there takes the next one.
#pragma once

#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Places that each of `kCount` numbers deals out, one after the other; a lane keeps those of every
/// 32nd number, in registers, which have no index that is known late. `next` and `take` are for the warp.
template <int kCount>
class PlaceCounters {
    static constexpr int kGroups = (kCount + kLanes - 1) / kLanes;

public:
    /// The first place of a number, in the lane that keeps it.
    __device__ __forceinline__ void begin(int number, i64 first) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (number / kLanes == g) next_[g] = first;
        }
    }

    /// The place that the next turn of a number takes.
    __device__ __forceinline__ i64 next(int number) const {
        i64 own = next_[0];
#pragma unroll
        for (int g = 1; g < kGroups; ++g) {
            if (number / kLanes == g) own = next_[g];
        }
        return __shfl_sync(kAllLanes, own, number % kLanes);
    }

    /// Takes it.
    __device__ __forceinline__ i64 take(int number) {
        const i64 place = next(number);
        if (lane_index() == number % kLanes) begin(number, place + 1);
        __syncwarp();  // converges; orders nothing
        return place;
    }

private:
    i64 next_[kGroups] = {};
};

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
