// Direct channels: the sender stores rows where the receiver wants them.
//
// The receiver announces where its output and its meta records are, and how many rows they hold.
// For each stripe the sender says which row comes first and, while it goes on, how many have
// arrived. `Rows` is the channel's Cfg struct; its words in a window are
//   kReady  [source of the announcement]    {rows at, meta at, capacity}, in the sender's window
//   kClosed [sender, stripe]                {first row, rows so far and whether these are all},
// each word with its epoch (M7).
#pragma once

#include <ep/messages.cuh>
#include <ep/mover.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Announcement of a receiver: offsets in its window, in units of 128 bytes.
struct DirectReady {
    u64 rows, meta, capacity;
    u64 unused;
};

/// How far a stripe has come.
struct DirectClosed {
    u64 first;
    u64 progress;  // twice the number of rows, plus one when there are no more
};

/// Tells every sender where its rows go; the first warp of the consuming role does it, at its
/// start.
template <class Rows>
__device__ __forceinline__ void direct_ready(Team& team, u64 rows_at, u64 meta_at, int capacity) {
    if (team.index() != 0 || team.stopped) return;
    for (int peer = team.lane; peer < Rows::kPeers; peer += kLanes) {
        DirectReady* ready =
            reinterpret_cast<DirectReady*>(team.group.windows[peer] + Rows::kReady) +
            team.group.rank;
        store_relaxed_sys(&ready->rows, stamped(team.epoch, static_cast<u32>(rows_at / 128)));
        store_relaxed_sys(&ready->meta, stamped(team.epoch, static_cast<u32>(meta_at / 128)));
        // M4: whatever this device did with the memory it now offers is over; the sender acquires
        // the word in DirectProducer::wait_ready.
        store_release_sys(&ready->capacity, stamped(team.epoch, static_cast<u32>(capacity)));
    }
    __syncwarp();
}

/// One warp's sending side, a lane per peer (`peer` < 0: an idle lane).
template <class Rows, class Role>
class DirectProducer {
public:
    __device__ __forceinline__ DirectProducer(Team& team, Mover<Role>& mover, int peer)
        : team_(team), mover_(mover), peer_(peer),
          window_(peer < 0 ? nullptr : team.group.windows[peer]) {}

    /// The lane's peer; -1: an idle lane.
    __device__ __forceinline__ int peer() const { return peer_; }

    /// Position of the stripe's first row for the lane's peer.
    __device__ __forceinline__ int first() const { return first_; }

    /// Waits until each peer is ready to take the `total(peer)` rows that all ranks send it.
    template <class Total>
    __device__ __forceinline__ void wait_ready(Total total) {
        // A warp without a stripe closes nothing, so that receivers may end this call, and announce
        // the next one, before it looks.
        if (team_.index() >= Rows::kStripes) return;
        const DirectReady* ready = nullptr;
        if (peer_ >= 0) {
            ready = reinterpret_cast<const DirectReady*>(team_.group.window + Rows::kReady) + peer_;
        }
        const int rows = peer_ < 0 ? 0 : total(peer_);
        const Site site{Rows::kChannel, Waiting::kReady, -1, peer_, team_.epoch};
        const bool done = wait(team_, site, [&](u32& seen) {
            if (ready == nullptr) return true;
            seen = epoch_of(load_relaxed_sys(&ready->capacity));
            return seen == team_.epoch;
        });
        u32 capacity = 0;
        if (done && ready != nullptr) {
            // M4: pairs with the release in direct_ready, which comes after the two other words.
            capacity = value_of(load_acquire_sys(&ready->capacity));
            rows_ = window_ + static_cast<u64>(value_of(load_relaxed_sys(&ready->rows))) * 128;
            meta_ = window_ + static_cast<u64>(value_of(load_relaxed_sys(&ready->meta))) * 128;
            // M4: this lane's bulk stores come after the receiver's own use of the memory.
            mover_.fence_global();
        }
        __syncwarp();
        if (done) check_capacity(rows, capacity);
    }

    /// Begins a stripe; its rows for a peer start at position `first(peer)`.
    template <class First>
    __device__ __forceinline__ void open(int stripe, First first) {
        first_ = peer_ < 0 ? 0 : first(peer_);
        sent_ = settled_ = told_ = 0;
        recent_ = 0;
        if (peer_ < 0 || team_.stopped) return;
        DirectClosed* closed = reinterpret_cast<DirectClosed*>(window_ + Rows::kClosed);
        closed_ = closed + team_.group.rank * Rows::kStripes + stripe;
        // Read after `progress` has been acquired.
        store_relaxed_sys(&closed_->first, stamped(team_.epoch, static_cast<u32>(first_)));
    }

    /// Where the lane's row goes; null when `position` is -1.
    __device__ __forceinline__ char* row(int position) const {
        return position < 0 ? nullptr : rows_ + static_cast<i64>(position) * Rows::kRowStride;
    }

    /// Where its meta record goes.
    __device__ __forceinline__ char* meta(int position) const {
        return position < 0 ? nullptr : meta_ + static_cast<i64>(position) * Rows::kMetaBytes;
    }

    /// Counts the row just begun; every `kChunk` rows the receivers hear about those of the chunk
    /// before, whose stores have had the time of a chunk to complete.
    __device__ __forceinline__ void post(int position) {
        if (position >= 0) sent_ = position + 1 - first_;
        if (++recent_ < Rows::kChunk) return;
        recent_ = 0;
        mover_.template rows_stored<Rows::kChunk>();
        tell(settled_, false);
        settled_ = sent_;
    }

    /// Ends the stripe: all its rows are stored, and the receivers know.
    __device__ __forceinline__ void close() {
        mover_.flush();
        tell(sent_, true);
    }

private:
    /// Tells the receiver of the first `rows` rows, from the lane that stored them.
    __device__ __forceinline__ void tell(int rows, bool all) {
        if (peer_ >= 0 && !team_.stopped && (all || rows != told_)) {
            // M1: this lane has waited for its own bulk stores; for_messages acquires.
            store_release_sys(&closed_->progress,
                              stamped(team_.epoch, static_cast<u32>(rows) << 1 | (all ? 1u : 0u)));
            told_ = rows;
        }
        __syncwarp();
    }

    /// No row moves when any receiver lacks the room.
    __device__ __forceinline__ void check_capacity(int rows, u32 capacity) {
        const bool small = peer_ >= 0 && rows > static_cast<int>(capacity);
        const u32 lanes = __ballot_sync(kAllLanes, small);
        if (lanes == 0) return;
        const Site site{Rows::kChannel, Waiting::kCapacity, -1, peer_, static_cast<u32>(rows)};
        const bool blame = team_.lane == __ffs(static_cast<int>(lanes)) - 1;
        give_up(team_.group, team_.epoch, team_.role, site, capacity, blame, true);
        team_.stopped = true;
    }

    Team& team_;
    Mover<Role>& mover_;
    int peer_;
    char* window_;  // the peer's
    char* rows_ = nullptr;
    char* meta_ = nullptr;
    DirectClosed* closed_ = nullptr;
    int first_ = 0;    // position of the stripe's first row
    int sent_ = 0;     // rows begun for this peer
    int settled_ = 0;  // rows begun when the current chunk began
    int told_ = 0;     // rows the receiver knows of
    int recent_ = 0;   // rows of the warp in the current chunk
};

/// The receiving side: every warp of the role takes (sender, stripe) pairs in turn, a lane each,
/// and calls `body(messages)` with whatever has arrived for any of them, until all stripes are
/// closed. The rows themselves are in place by then. `meta`: this rank's meta records.
template <class Rows, class Body>
__device__ __forceinline__ void for_messages(Team& team, const char* meta, Body body) {
    constexpr int kPairs = Rows::kPeers * Rows::kStripes;
    const DirectClosed* words =
        reinterpret_cast<const DirectClosed*>(team.group.window + Rows::kClosed);
    for (int base = team.index(); base < kPairs; base += kLanes * team.count()) {
        const int pair = base + team.lane * team.count();
        const DirectClosed* closed = words + pair;
        bool open = pair < kPairs;
        u32 taken = 0;
        while (__ballot_sync(kAllLanes, open) != 0 && !team.stopped) {
            const Site site{Rows::kChannel, Waiting::kClosed, pair % Rows::kStripes,
                            open ? pair / Rows::kStripes : -1, taken + 1};
            bool news = false;
            const bool any = wait_any(team, site, [&](u32& seen) {
                if (!open) return false;
                const u64 found = load_relaxed_sys(&closed->progress);
                seen = value_of(found) >> 1;
                news = epoch_of(found) == team.epoch && value_of(found) != taken << 1;
                return news;
            });
            if (!any) return;
            int row = 0, rows = 0;
            if (news) {
                // M2: pairs with the release in DirectProducer::tell; plain loads may follow.
                const u32 progress = value_of(load_acquire_sys(&closed->progress));
                row = static_cast<int>(value_of(load_relaxed_sys(&closed->first)) + taken);
                rows = static_cast<int>((progress >> 1) - taken);
                taken = progress >> 1;
                open = (progress & 1) == 0;
            }
            __syncwarp();
            for_runs<Rows::kMetaBytes>(row, rows, meta, body);
        }
    }
}

}  // namespace ep
