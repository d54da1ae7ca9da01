// Slots that hold one record of each source, to ranks of which some are on other machines: every rank fills
// that of every other one once a call, and waits for all of its own. A near rank is reached by stores into
// its window; for a far one the record is filled in the own data, at the place that it has among those of the
// receiver, and put.
//
//   NetSlotsOut  reserve -> slot -> publish
//   NetSlotsIn   await -> slot -> .. -> release
//
// `Slots` is the channel's Cfg struct. The places of `kEpochs` calls are kept apart. In a window,
//   kSlots     [epoch % kEpochs, near source]  kSlotBytes each
//   kCome      [near source]                   records that have come
//   kReleased  [near receiver]                 calls whose records it has read
//   kReaders                                   warps that are done, zero between calls
// in the data of a network,
//   kInbox, kOutbox  [epoch % kEpochs, far peer]  records that come and go
// and among its counters, of each source, from kCounters on, what has come, and what was read.
#pragma once

#include <ep/net_peers.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What both ends have.
template <class Slots>
class NetSlotsEnd : protected NetPeers<Slots> {
    using Peers = NetPeers<Slots>;

protected:
    using Peers::kNear, Peers::kFar, Peers::team_, Peers::net_, Peers::queue_, Peers::own;
    using Peers::is_near, Peers::near_of, Peers::far_of, Peers::rank_of, Peers::window_of;

    static constexpr int kPeers = Slots::kPeers;
    /// Numbers of counters.
    static constexpr int kComeNumber = 0;
    static constexpr int kReleasedNumber = 1;

    static_assert((Slots::kEpochs & (Slots::kEpochs - 1)) == 0, "epochs wrap where slots do");

    __device__ __forceinline__ NetSlotsEnd(Team& team, const Net* net) : Peers(team, net) {}

    /// Whether the channel joins this rank to a peer.
    __device__ __forceinline__ bool joins(int peer) const {
        return peer < kPeers && !(Slots::kSkipsOwn && peer == own());
    }

    /// The place of a record of this call, among `each` of a call.
    __device__ __forceinline__ u64 place(int peer, int each) const {
        const u64 set = team_.epoch % Slots::kEpochs;
        return (set * each + peer) * Slots::kSlotBytes;
    }

    /// What each lane's peer tells, as a word of the window or by a counter.
    __device__ __forceinline__ const u32* told(int peer, u64 words, int number) const {
        if (!is_near(peer)) return queue_.counter(rank_of(peer), Slots::kCounters + number);
        return reinterpret_cast<const u32*>(team_.group.window + words) + near_of(peer);
    }

    /// Tells each lane's peer of one more, if it `tells`. What the lane has done, and the warp before,
    /// comes first (M1, M4): the peer acquires.
    __device__ __forceinline__ void tell(int peer, u64 words, int number, bool tells) {
        if (tells && is_near(peer) && !team_.stopped) {
            add_release_sys(reinterpret_cast<u32*>(window_of(peer) + words) + near_of(own()), 1u);
        }
        const bool is_far = tells && !is_near(peer);
        queue_.signal(rank_of(peer), static_cast<u32>(Slots::kCounters + number), is_far ? 1 : 0);
    }
};

/// The sending end.
template <class Slots>
class NetSlotsOut : NetSlotsEnd<Slots> {
    using End = NetSlotsEnd<Slots>;
    using End::team_;

public:
    __device__ __forceinline__ NetSlotsOut(Team& team, const Net* net) : End(team, net) {}

    /// Waits until the slot of `peer` is free, and takes it. False: the team is stopped.
    __device__ __forceinline__ bool reserve(int peer, int) {
        peer_ = peer;
        const u32 want = team_.epoch - Slots::kEpochs;
        const Site site{Slots::kChannel, Waiting::kCredit, -1, End::rank_of(peer), want};
        const u32* released = End::told(peer, Slots::kReleased, End::kReleasedNumber);
        // M4: pairs with the release of the receiver's end; all lanes store after the barrier.
        wait_counter(team_, site, team_.leader() ? released : nullptr);
        return !team_.stopped;
    }

    /// The slot.
    __device__ __forceinline__ char* slot() const {
        if (!End::is_near(peer_)) {
            return End::net_->data + Slots::kOutbox +
                   End::place(End::far_of(peer_, End::own()), End::kFar);
        }
        return End::window_of(peer_) + Slots::kSlots +
               End::place(End::near_of(End::own()), End::kNear);
    }

    /// Publishes the slot, which all lanes have written.
    __device__ __forceinline__ void publish() {
        __syncwarp();
        const bool sends = team_.leader() && !End::is_near(peer_);
        const u64 to = Slots::kInbox + End::place(End::far_of(End::own(), peer_), End::kFar);
        const u64 from = Slots::kOutbox + End::place(End::far_of(peer_, End::own()), End::kFar);
        End::queue_.put(End::rank_of(peer_), to, from, sends ? Slots::kSlotBytes : 0);
        // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
        End::tell(peer_, Slots::kCome, End::kComeNumber, team_.leader());
        __syncwarp();
    }

private:
    int peer_ = 0;
};

/// The receiving end.
template <class Slots>
class NetSlotsIn : NetSlotsEnd<Slots> {
    using End = NetSlotsEnd<Slots>;
    using End::team_;

public:
    __device__ __forceinline__ NetSlotsIn(Team& team, const Net* net) : End(team, net) {}

    /// Waits until every slot of the call has come.
    __device__ __forceinline__ void await() {
        if (has_come_) return;
#pragma unroll 1
        for (int first = 0; first < End::kPeers; first += kLanes) {
            const int peer = first + team_.lane;
            const bool some = End::joins(peer);
            // Every source fills one a call.
            const Site site{Slots::kChannel, Waiting::kFlag, -1, some ? End::rank_of(peer) : -1,
                            team_.epoch};
            // M2: pairs with `publish`; all lanes load after the barrier.
            wait_counter(team_, site,
                         some ? End::told(peer, Slots::kCome, End::kComeNumber) : nullptr);
        }
        has_come_ = !team_.stopped;
    }

    /// The slot of a source.
    __device__ __forceinline__ const char* slot(int source, int) const {
        if (!End::is_near(source)) {
            return End::net_->data + Slots::kInbox +
                   End::place(End::far_of(source, End::own()), End::kFar);
        }
        return team_.group.window + Slots::kSlots + End::place(End::near_of(source), End::kNear);
    }

    /// Ends the reading of this warp; the last warp of the role tells all sources.
    __device__ __forceinline__ void release() {
        u32* readers = reinterpret_cast<u32*>(team_.group.window + Slots::kReaders);
        u32 before = 0;
        __syncwarp();
        if (team_.leader()) before = fetch_add_acq_rel_gpu(readers, 1);
        const bool is_last =
            __shfl_sync(kAllLanes, before, 0) + 1 == static_cast<u32>(team_.count());
        if (!is_last || team_.stopped) return;
        // No warp is left that counts; those of the next launch on this stream do.
        if (team_.leader()) store_relaxed_gpu(readers, 0u);
        __syncwarp();
#pragma unroll 1
        for (int first = 0; first < End::kPeers; first += kLanes) {
            const int peer = first + team_.lane;
            const bool some = End::joins(peer);
            // M4: every warp's loads have completed, through the counter; `reserve` acquires.
            End::tell(some ? peer : 0, Slots::kReleased, End::kReleasedNumber, some);
        }
    }

private:
    bool has_come_ = false;  // so that a warp with many units waits once
};

}  // namespace ep
