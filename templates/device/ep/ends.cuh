// What the ends of rings in rings.cuh have in common: where each ring stands, what has been seen of the
// peer, and what the peer is yet to be told.
#pragma once

#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What both ends have: which peers they serve, and how far each ring has come.
template <class Ring>
class RingsEnd {
public:
    static constexpr int kPeers = Ring::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

    static_assert((Ring::kDepth & (Ring::kDepth - 1)) == 0, "counters wrap where slots do");
    static_assert(Ring::kDepth >= 2 * Ring::kChunk, "two chunks fit into their ring");

protected:
    __device__ __forceinline__ explicit RingsEnd(Team& team) : team_(team), peers_{0, 0, -1} {}

    /// Begins a stripe: the rings stand where the words at `words` say, and the peer's counter at most
    /// `behind` before that.
    __device__ __forceinline__ void begin(int stripe, const Peers& peers, u64 words, u32 behind) {
        stripe_ = stripe;
        peers_ = peers;
        const u32* word = reinterpret_cast<const u32*>(team_.group.window + words);
        const u32 last = (team_.epoch & 1) ^ 1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            moved_[g] = 0;
            if (used(g)) {
                start_[g] = load_relaxed_gpu(word + last * (Ring::kStripes * kPeers) + index(peer(g)));
            }
            seen_[g] = start_[g] - behind;
        }
        __syncwarp();
    }

    /// Keeps where the rings stand for the next call; the other copies may still be read.
    __device__ __forceinline__ void keep(u64 words) const {
        u32* word = reinterpret_cast<u32*>(team_.group.window + words);
        const u32 now = team_.epoch & 1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (!used(g) || team_.stopped) continue;
            store_relaxed_gpu(word + now * (Ring::kStripes * kPeers) + index(peer(g)),
                              start_[g] + moved_[g]);
        }
    }

    /// The peer of this lane in a group.
    __device__ __forceinline__ int peer(int g) const { return g * kLanes + team_.lane; }

    /// Whether this lane has a peer in a group.
    __device__ __forceinline__ bool used(int g) const {
        const int own = peer(g);
        return own >= peers_.begin && own < peers_.end && own != peers_.skip;
    }

    /// Whether this lane keeps the ring of `peer`.
    __device__ __forceinline__ bool keeps(int peer) const { return team_.lane == peer % kLanes; }

    /// What the lane of `peer` has in its group, for all lanes.
    __device__ __forceinline__ u32 of(const u32 (&values)[kGroups], int peer) const {
        u32 found = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) found = values[g];
        }
        return __shfl_sync(kAllLanes, found, peer % kLanes);
    }

    /// Counts one more message of `peer`.
    __device__ __forceinline__ void count(int peer) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && keeps(peer)) ++moved_[g];
        }
    }

    /// Counts one more message of `peer`, of which it is told once `rows` rows of the mover are done.
    __device__ __forceinline__ void owe(int peer, u32 rows) {
        // What the other lanes have read or stored themselves comes before what this lane tells.
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g != peer / kLanes || !keeps(peer)) continue;
            ++moved_[g];
            Due& due = due_[g].messages == 0 ? due_[g] : later_[g];
            ++due.messages;
            due.rows = rows;
        }
    }

    /// Tells peers, by adding to their `counters`, of all messages that are due after `rows` rows.
    __device__ __forceinline__ void tell(u64 counters, u32 rows) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            u32 fresh = 0;
            while (due_[g].messages != 0 && reached(rows, due_[g].rows)) {
                fresh += due_[g].messages;
                due_[g] = later_[g];
                later_[g].messages = 0;
            }
            if (fresh == 0 || team_.stopped) continue;
            u32* counter = reinterpret_cast<u32*>(window_of(peer(g)) + counters);
            // M1, M4: this lane has stored the rows itself, or all lanes have seen them loaded; the
            // peer acquires.
            add_release_sys(counter + stripe_ * kPeers + own(), fresh);
        }
        __syncwarp();
    }

    /// Whether the counter at `words` of this rank's window, of the ring of `peer`, has reached `want`;
    /// looks at it only if it had not. What it counts is acquired.
    __device__ __forceinline__ bool has_come(int peer, u64 words, u32 want) {
        if (reached(of(seen_, peer), want)) return true;
        u32 now = 0;
        if (team_.leader()) now = load_acquire_sys(counter(words, peer));
        now = __shfl_sync(kAllLanes, now, 0);
        see(peer, now);
        __syncwarp();
        return reached(now, want);
    }

    /// Waits until it has.
    __device__ __forceinline__ bool await(int peer, u64 words, u32 want, Waiting kind) {
        if (reached(of(seen_, peer), want)) return !team_.stopped;
        const Site site{Ring::kChannel, kind, stripe_, rank_of(peer), want};
        const u32 now = wait_counter(team_, site, team_.leader() ? counter(words, peer) : nullptr);
        see(peer, __shfl_sync(kAllLanes, now, 0));
        return !team_.stopped;
    }

    /// A counter of this rank's window, of the ring of `peer`.
    __device__ __forceinline__ const u32* counter(u64 words, int peer) const {
        return reinterpret_cast<const u32*>(team_.group.window + words) + index(peer);
    }

    /// Index of a word by (stripe, peer).
    __device__ __forceinline__ int index(int peer) const { return stripe_ * kPeers + peer; }

    /// The rank of a peer.
    __device__ __forceinline__ int rank_of(int peer) const {
        return team_.rank_of(peer, kPeers);
    }

    /// This rank among the peers of another one.
    __device__ __forceinline__ int own() const { return team_.own(kPeers); }

    /// Words in the window of a peer.
    __device__ __forceinline__ char* window_of(int peer) const {
        return team_.group.windows[rank_of(peer)];
    }

    /// The headers of this call, each of `kHeaderWords` words, by (stripe, peer).
    __device__ __forceinline__ u64* headers(char* window) const {
        const int call = static_cast<int>(team_.epoch & 1) * (Ring::kStripes * kPeers);
        return reinterpret_cast<u64*>(window + Ring::kHeader) + call * Ring::kHeaderWords;
    }

    Team& team_;
    Peers peers_;
    int stripe_ = 0;
    u32 start_[kGroups] = {};  // the rings' counters at the start of the stripe
    u32 moved_[kGroups] = {};  // messages of this stripe

private:
    /// Messages that the peer does not know of yet, and after how many rows of the mover it may.
    struct Due {
        u32 messages, rows;
    };

    /// Remembers how far the counter of `peer` was.
    __device__ __forceinline__ void see(int peer, u32 value) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && keeps(peer)) seen_[g] = value;
        }
    }

    u32 seen_[kGroups] = {};   // the peers' counters, as last seen
    Due due_[kGroups] = {};    // those that come first,
    Due later_[kGroups] = {};  // and all that came since
};

}  // namespace ep
