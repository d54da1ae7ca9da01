// One place in several slots, which a warp writes alike: what it has loaded, or cast, goes to all of them.
#pragma once

#include <ep/ptx.cuh>

namespace ep {

/// A place in the slot of each lane that has one, at the same byte of all slots.
struct EachSlot {
    u64 own;    // the address in the slot of this lane
    u32 lanes;  // a bit for each lane that has a slot; none: nothing is written

    __device__ __forceinline__ EachSlot operator+(int bytes) const {
        return EachSlot{own + static_cast<u64>(bytes), lanes};
    }

    /// The address in the slot of the first of some lanes; warp.
    __device__ __forceinline__ u64 of(u32 some) const {
        return __shfl_sync(kAllLanes, own, __ffs(static_cast<int>(some)) - 1);
    }
};

/// Whether something is a place in several slots.
template <class To>
constexpr bool kIsEachSlot = false;
template <>
constexpr bool kIsEachSlot<EachSlot> = true;

/// The address of a place, of which the low bits are those of every slot.
__device__ __forceinline__ u64 address_of(const void* place) { return reinterpret_cast<u64>(place); }
__device__ __forceinline__ u64 address_of(const EachSlot& places) { return places.of(places.lanes); }

/// Calls `put(to)` for a place, or for the place in each slot in turn; warp.
template <class Put>
__device__ __forceinline__ void for_places(void* place, Put put) {
    put(static_cast<char*>(place));
}
template <class Put>
__device__ __forceinline__ void for_places(const EachSlot& places, Put put) {
#pragma unroll 1
    for (u32 left = places.lanes; left != 0; left &= left - 1) put(reinterpret_cast<char*>(places.of(left)));
}

}  // namespace ep
