// The peers of a channel of which some are on other machines: who is reached by stores into its window, and
// where the rest has its place.
//
// `Channel` is the channel's Cfg struct. Peers `kNear` in a row reach each other's windows; on a rail, where
// a peer is a node, none but the rank itself does. `kIbgda`: the kernel speaks to the network card itself.
#pragma once

#include <ep/ibgda.cuh>
#include <ep/net.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The kind of queue.
template <bool kIbgda>
struct QueueKind {
    using Queue = NetQueue;
};

template <>
struct QueueKind<true> {
    using Queue = PairQueue;
};

/// One warp's view of them, and of the queue in which it speaks to those that are far.
template <class Channel>
class NetPeers {
protected:
    /// Peers whose words are in a window, and those that a network carries.
    static constexpr int kNear = Channel::kNear;
    static constexpr int kFar = Channel::kPeers - kNear;

    __device__ __forceinline__ NetPeers(Team& team, const Net* net)
        : team_(team), net_(net), queue_(team, net, 0) {}

    __device__ __forceinline__ int rank_of(int peer) const {
        const int on_rail = peer * Channel::kNodeRanks + team_.own(Channel::kNodeRanks);
        return Channel::kRail ? on_rail : peer;
    }

    /// This rank among the peers.
    __device__ __forceinline__ int own() const {
        return Channel::kRail ? team_.group.rank / Channel::kNodeRanks : team_.group.rank;
    }

    __device__ __forceinline__ bool is_near(int peer) const {
        return kFar == 0 || peer / kNear == own() / kNear;
    }

    /// The place of a near peer among the near peers.
    static __device__ __forceinline__ int near_of(int peer) { return peer % kNear; }

    /// The place of a peer among those that are far from `at`.
    static __device__ __forceinline__ int far_of(int peer, int at) {
        return peer < at ? peer : peer - kNear;
    }

    __device__ __forceinline__ char* window_of(int peer) const {
        return team_.group.windows[rank_of(peer)];
    }

    Team& team_;
    const Net* net_;
    typename QueueKind<Channel::kIbgda>::Queue queue_;
};

}  // namespace ep
