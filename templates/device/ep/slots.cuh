// Slots: a fixed place for each source, in each receiver's window, used anew in every call.
//
// `Slots` is the channel's Cfg struct. The places of `kEpochs` calls are kept apart, so that a
// source that is a call ahead does not meet a receiver that still reads; the receiver's
// acknowledgement says when a place may be used again. In a window,
//   kSlots [epoch % kEpochs, source] kSlotBytes each     what the source wrote
//   kFlags [epoch % kEpochs, source] {epoch, 0}          that it is complete
//   kAcks  [epoch % kEpochs, receiver] u32               the last epoch the receiver is done with
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// One warp's view of a slots channel; all lanes call every method.
template <class Slots>
class SlotChannel {
public:
    /// `readers`: a sequence of the block that counts the warps which have finished reading.
    __device__ __forceinline__ SlotChannel(Team& team, Sequence& readers)
        : team_(team), readers_(readers), set_(static_cast<int>(team.epoch % Slots::kEpochs)) {}

    /// This rank's place in the window of `peer`, once its last content has been read there.
    __device__ __forceinline__ char* open(int peer) {
        const u32* ack =
            reinterpret_cast<const u32*>(team_.group.window + Slots::kAcks) + index(peer);
        const Site site{Slots::kChannel, Waiting::kAck, -1, peer, team_.epoch - Slots::kEpochs};
        // M4: pairs with the release in `acknowledge`.
        wait_counter(team_, site, team_.leader() ? ack : nullptr);
        return slot(peer, team_.group.rank);
    }

    /// Says that this rank's place at `peer` is complete.
    __device__ __forceinline__ void publish(int peer) {
        __syncwarp();
        if (team_.leader() && !team_.stopped) {
            u64* flags = reinterpret_cast<u64*>(team_.group.windows[peer] + Slots::kFlags);
            // M1: covers what all lanes wrote, by the barrier; `await` acquires.
            store_release_sys(flags + index(team_.group.rank), stamped(team_.epoch, 0));
        }
    }

    /// Waits for the places of all sources.
    __device__ __forceinline__ void await() {
        const u64* flags = reinterpret_cast<const u64*>(team_.group.window + Slots::kFlags);
        for (int base = 0; base < Slots::kPeers; base += kLanes) {
            const int source = base + team_.lane;
            const bool used = source < Slots::kPeers;
            const Site site{Slots::kChannel, Waiting::kFlag, -1, used ? source : -1, team_.epoch};
            // M2: pairs with the release in `publish`; plain loads by all lanes may follow.
            wait_stamped(team_, site, used ? flags + index(source) : nullptr);
        }
    }

    /// What `source` wrote for this rank; after `await`.
    __device__ __forceinline__ const char* from(int source) const {
        return slot(team_.group.rank, source);
    }

    /// Ends the reading of this warp; the last warp of the block tells all sources.
    __device__ __forceinline__ void acknowledge() {
        __syncwarp();
        u32 done = 0;
        if (team_.leader()) done = readers_.sign_off();
        done = __shfl_sync(kAllLanes, done, 0);
        if (done != static_cast<u32>(team_.warps) || team_.stopped) return;
        for (int source = team_.lane; source < Slots::kPeers; source += kLanes) {
            u32* acks = reinterpret_cast<u32*>(team_.group.windows[source] + Slots::kAcks);
            // M4: every warp's reads come before, through the sign-off; `open` acquires.
            store_release_sys(acks + index(team_.group.rank), team_.epoch);
        }
        __syncwarp();
    }

private:
    __device__ __forceinline__ int index(int peer) const { return set_ * Slots::kPeers + peer; }

    __device__ __forceinline__ char* slot(int receiver, int source) const {
        char* slots = team_.group.windows[receiver] + Slots::kSlots;
        return slots + static_cast<i64>(index(source)) * Slots::kSlotBytes;
    }

    Team& team_;
    Sequence& readers_;
    int set_;
};

}  // namespace ep
