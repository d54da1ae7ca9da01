// How long the receiving end of a channel of slots (slot_rows.cuh) waits for each source: in every call the
// longest wait of its warps, which does not depend on how many they are. Added to sums of the caller, which
// may be absent.
//
// `Slots` is the channel's Cfg struct. In this rank's window,
//   kWaited  [source]  the longest wait of this call in ns, zero between calls
#pragma once

#include <ep/count.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What one warp adds to it, each lane for the source that it waits for.
template <class Slots>
class SlotTimes {
public:
    __device__ __forceinline__ SlotTimes(const Team& team, i64* sums)
        : words_(reinterpret_cast<u64*>(team.group.window + Slots::kWaited)), sums_(sums) {}

    /// Begins a wait.
    __device__ __forceinline__ void begin() { begun_ = 0; }

    /// Notes whether a look has found what `source` owes this lane, and returns it. What is there at the
    /// first look was not waited for.
    __device__ __forceinline__ bool found(int source, bool here) {
        if (sums_ == nullptr || source < 0 || here == (begun_ == 0)) return here;
        const u64 now = clock_ns();
        if (here) raise_relaxed_gpu(words_ + source, now - begun_);
        begun_ = here ? 0 : now;
        return here;
    }

    /// Adds the times of this call up, in the warp that is the last to be done.
    __device__ __forceinline__ void add() const {
        if (sums_ == nullptr) return;
#pragma unroll 1
        for (int source = lane_index(); source < Slots::kPeers; source += kLanes) {
            add_count(sums_ + source, static_cast<i64>(take_relaxed_gpu(words_ + source)));
        }
        __syncwarp();
    }

private:
    u64* words_;
    i64* sums_;
    u64 begun_ = 0;  // when a look first found nothing; 0: none has, or what this lane waits for is there
};

}  // namespace ep
