// Pull channels: the consumer reads rows where the producer has them.
//
// The producer announces where its tensors are in its window; every consumer says when its last
// read is over. `Parts` is the channel's Cfg struct; its words in a window are
//   kReady    [producer]  {rows at, meta at}, each with its epoch (M7), in units of 128 bytes
//   kReleased [consumer]  u32, the last epoch it is done with, in the producer's window
//   kDone                 how many of the consumer's own warps read no more, zero between calls
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Where a producer has its rows and the other fields of their messages.
struct PullReady {
    u64 rows, meta;
};

/// Tells every consumer where this rank's rows are; warp. `meta_at`: of the other fields, or 0.
template <class Parts>
__device__ __forceinline__ void pull_offer(Team& team, u64 rows_at, u64 meta_at) {
    if (team.stopped) return;
    for (int peer = team.lane; peer < Parts::kPeers; peer += kLanes) {
        char* window = team.group.windows[team.rank_of(peer, Parts::kPeers)];
        PullReady* ready =
            reinterpret_cast<PullReady*>(window + Parts::kReady) + team.own(Parts::kPeers);
        store_relaxed_sys(&ready->meta, stamped(team.epoch, static_cast<u32>(meta_at / 128)));
        // M1: the rows were written by earlier kernels of this stream; PullConsumer::wait_ready
        // acquires.
        store_release_sys(&ready->rows, stamped(team.epoch, static_cast<u32>(rows_at / 128)));
    }
    __syncwarp();
}

/// Returns when every consumer has read what it needs: the tensors may then change; warp.
template <class Parts>
__device__ __forceinline__ void pull_wait_released(Team& team) {
    const u32* released = reinterpret_cast<const u32*>(team.group.window + Parts::kReleased);
    for (int base = 0; base < Parts::kPeers; base += kLanes) {
        const int peer = base + team.lane;
        const bool used = peer < Parts::kPeers;
        const Site site{Parts::kChannel, Waiting::kReleased, -1, used ? peer : -1, team.epoch};
        // M4: pairs with the release in PullConsumer::release.
        wait_counter(team, site, used ? released + peer : nullptr);
    }
}

/// One warp's reading side, a lane per producer in groups of 32: a source of `Parts`.
template <class Parts>
class PullConsumer {
public:
    static constexpr int kPeers = Parts::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

    __device__ __forceinline__ explicit PullConsumer(Team& team) : team_(team) {}

    /// Waits until every producer has said where its rows are; once.
    __device__ __forceinline__ void wait_ready() {
        if (ready_) return;
        ready_ = true;
        const PullReady* words =
            reinterpret_cast<const PullReady*>(team_.group.window + Parts::kReady);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int peer = g * kLanes + team_.lane;
            const bool used = peer < kPeers;
            const char* window = used ? team_.group.windows[team_.rank_of(peer, kPeers)] : nullptr;
            const Site site{Parts::kChannel, Waiting::kReady, -1, used ? peer : -1, team_.epoch};
            // M2: pairs with the release in pull_offer.
            const u32 rows = wait_stamped(team_, site, used ? &words[peer].rows : nullptr);
            if (!used || team_.stopped) continue;
            const u32 meta = value_of(load_relaxed_sys(&words[peer].meta));
            rows_[g] = window + static_cast<u64>(rows) * 128;
            meta_[g] = window + static_cast<u64>(meta) * 128;
        }
        // M2: bulk copies of any lane may read the rows from now on.
        fence_proxy_async_global();
        __syncwarp();
    }

    /// All rows have been there since `wait_ready`.
    static constexpr bool kStays = true, kInWords = false;
    __device__ __forceinline__ bool have_arrived(const i32 (&)[kGroups]) const { return true; }
    __device__ __forceinline__ bool arrived(const i32 (&)[kGroups], bool) const { return true; }

    /// Row `entry` of the lane's producer in group `g`.
    __device__ __forceinline__ const char* row(int g, i32 entry) const {
        return rows_[g] + static_cast<i64>(entry) * Parts::kRowStride;
    }

    /// The other fields of its message.
    __device__ __forceinline__ const char* meta(int g, i32 entry) const {
        return meta_[g] + static_cast<i64>(entry) * Parts::kMetaStride;
    }

    /// Nothing is given back token by token.
    __device__ __forceinline__ void done(const i32 (&)[kGroups]) const {}

    /// Ends the reading of this warp; the last warp of the grid's role tells all producers.
    __device__ __forceinline__ void release() {
        u32* done = reinterpret_cast<u32*>(team_.group.window + Parts::kDone);
        __syncwarp();
        u32 before = 0;
        if (team_.leader()) before = fetch_add_acq_rel_gpu(done, 1);
        before = __shfl_sync(kAllLanes, before, 0);
        __syncwarp();
        if (before + 1 != static_cast<u32>(team_.count())) return;
        // No warp is left that counts; those of the next launch on this stream do.
        if (team_.leader()) store_relaxed_gpu(done, 0u);
        __syncwarp();
        if (team_.stopped) return;
        for (int peer = team_.lane; peer < kPeers; peer += kLanes) {
            char* window = team_.group.windows[team_.rank_of(peer, kPeers)];
            u32* released = reinterpret_cast<u32*>(window + Parts::kReleased);
            // M4: every warp's loads have completed, through the counter; pull_wait_released
            // acquires.
            store_release_sys(released + team_.own(kPeers), team_.epoch);
        }
        __syncwarp();
    }

private:
    Team& team_;
    bool ready_ = false;
    const char* rows_[kGroups] = {};
    const char* meta_[kGroups] = {};
};

}  // namespace ep
