// The ends of all rings of one stripe, each carried by one warp that does its work in order: nothing
// is shared, so there is nothing to complete out of order. A lane for each peer keeps where its ring
// stands, in groups of 32. The words and the slots are those of ring.cuh, so that either kind of end
// may be at the other side.
//
//   RingsOut  open -> [announce] -> position, reserve -> slot -> publish -> .. -> close
//   RingsIn   open -> [header]   -> arrived -> slot -> release -> ..           -> close
//
// `Ring` is the channel's Cfg struct. A peer of a channel `per local` is an index in the node.
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

    /// Begins a stripe: the rings stand where the words at `words` say.
    __device__ __forceinline__ void begin(int stripe, const Peers& peers, u64 words) {
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
};

/// The sending ends.
template <class Ring>
class RingsOut : RingsEnd<Ring> {
    using End = RingsEnd<Ring>;
    using End::team_, End::stripe_, End::start_, End::moved_;

public:
    __device__ __forceinline__ explicit RingsOut(Team& team) : End(team) {}

    /// Begins a stripe for some peers.
    __device__ __forceinline__ void open(int stripe, const Peers& peers) {
        End::begin(stripe, peers, Ring::kSent);
    }

    /// Tells the receiver one number of the stripe's header.
    __device__ __forceinline__ void announce(int peer, int word, int value) {
        const u32* retired = reinterpret_cast<const u32*>(team_.group.window + Ring::kRetired);
        const Site site{Ring::kChannel, Waiting::kRetired, stripe_, End::rank_of(peer),
                        team_.epoch - 2};
        // M4: pairs with the release of the receiver's end, two calls ago.
        wait_counter(team_, site, team_.leader() ? retired + End::index(peer) : nullptr);
        if (team_.leader() && !team_.stopped) {
            u64* header = End::headers(End::window_of(peer)) +
                          (stripe_ * End::kPeers + End::own()) * Ring::kHeaderWords;
            store_relaxed_sys(header + word, stamped(team_.epoch, static_cast<u32>(value)));
        }
        __syncwarp();
    }

    /// The position that the next message to `peer` gets.
    __device__ __forceinline__ int position(int peer) const {
        return static_cast<int>(End::of(moved_, peer));
    }

    /// Waits until the next slot is free. False: the team is stopped.
    __device__ __forceinline__ bool reserve(int peer) {
        const u32 want = End::of(start_, peer) + End::of(moved_, peer) + 1 - Ring::kDepth;
        const u32* heads = reinterpret_cast<const u32*>(team_.group.window + Ring::kHead);
        const Site site{Ring::kChannel, Waiting::kCredit, stripe_, End::rank_of(peer), want};
        // M4: the receiver's loads, which it released, come before the stores into the slot.
        wait_counter(team_, site, team_.leader() ? heads + End::index(peer) : nullptr);
        return !team_.stopped;
    }

    /// The next slot: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ char* slot(int peer) const {
        const u32 at = (End::of(start_, peer) + End::of(moved_, peer)) % Ring::kDepth;
        const i64 ring = stripe_ * End::kPeers + End::own();
        return End::window_of(peer) + Ring::kSlots + (ring * Ring::kDepth + at) * Ring::kSlotBytes;
    }

    /// Publishes the next message, which all lanes have written.
    __device__ __forceinline__ void publish(int peer) {
        __syncwarp();
        if (team_.leader()) {
            u32* tails = reinterpret_cast<u32*>(End::window_of(peer) + Ring::kTail);
            // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
            add_release_sys(tails + stripe_ * End::kPeers + End::own(), 1u);
        }
        End::count(peer);
        __syncwarp();
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        End::keep(Ring::kSent);
        __syncwarp();
    }
};

/// The receiving ends.
template <class Ring>
class RingsIn : RingsEnd<Ring> {
    using End = RingsEnd<Ring>;
    using End::team_, End::stripe_, End::start_, End::moved_;

public:
    using End::kGroups, End::kPeers;

    __device__ __forceinline__ explicit RingsIn(Team& team) : End(team) {}

    /// Begins a stripe for some peers.
    __device__ __forceinline__ void open(int stripe, const Peers& peers) {
        End::begin(stripe, peers, Ring::kTaken);
        last_ = -1;
    }

    /// One number of the header that `peer` announces.
    __device__ __forceinline__ int header(int peer, int word) {
        const u64* header = End::headers(team_.group.window) + End::index(peer) * Ring::kHeaderWords;
        const Site site{Ring::kChannel, Waiting::kHeader, stripe_, End::rank_of(peer), team_.epoch};
        // The word carries all there is to know: it orders nothing.
        const u32 value = wait_stamped(team_, site, team_.leader() ? header + word : nullptr);
        return static_cast<int>(__shfl_sync(kAllLanes, value, 0));
    }

    /// How many messages of `peer` have been taken.
    __device__ __forceinline__ int taken(int peer) const {
        return static_cast<int>(End::of(moved_, peer));
    }

    /// Waits until the next message of `peer` has arrived. False: the team is stopped.
    __device__ __forceinline__ bool arrived(int peer) {
        const u32 want = End::of(start_, peer) + End::of(moved_, peer) + 1;
        const Site site{Ring::kChannel, Waiting::kArrival, stripe_, End::rank_of(peer), want};
        // M2: pairs with the sender's release; the other lanes read after the barrier.
        wait_counter(team_, site, team_.leader() ? tail(peer) : nullptr);
        return !team_.stopped;
    }

    /// The peer whose message is taken next, of those that have sent one: in turn. Negative: all
    /// messages have been taken, by the count in word `count` of their headers.
    __device__ __forceinline__ int next(int count) {
        for (;;) {
            bool open = false;
            for (int turn = 1; turn <= kPeers; ++turn) {
                const int peer = (last_ + turn) % kPeers;
                if (!serves(peer) || team_.stopped) continue;
                if (taken(peer) >= header(peer, count)) continue;
                open = true;
                u32 seen = 0;
                if (team_.leader()) seen = load_relaxed_sys(tail(peer));
                seen = __shfl_sync(kAllLanes, seen, 0);
                if (!reached(seen, End::of(start_, peer) + End::of(moved_, peer) + 1)) continue;
                last_ = peer;
                return peer;
            }
            if (!open || team_.stopped || !wait_for_any(count)) return -1;
        }
    }

    /// The slot of the next message: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ const char* slot(int peer) const {
        const u32 at = (End::of(start_, peer) + End::of(moved_, peer)) % Ring::kDepth;
        const i64 ring = End::index(peer);
        return team_.group.window + Ring::kSlots + (ring * Ring::kDepth + at) * Ring::kSlotBytes;
    }

    /// Gives back the slot of a message that all lanes have read.
    __device__ __forceinline__ void release(int peer) {
        give_back(peer, 1);
        End::count(peer);
        __syncwarp();
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        End::keep(Ring::kTaken);
        __syncwarp();
        if constexpr (Ring::kHeaderWords > 0) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (!End::used(g) || team_.stopped) continue;
                u32* retired =
                    reinterpret_cast<u32*>(End::window_of(End::peer(g)) + Ring::kRetired);
                // M4: this warp has read the header; the sender acquires before the next but one.
                store_release_sys(retired + stripe_ * kPeers + End::own(), team_.epoch);
            }
            __syncwarp();
        }
    }

    // ---- Messages found by position, a lane for each peer: what `Parts` asks for ----

    /// Messages are waited for one by one.
    __device__ __forceinline__ void wait_ready() const {}

    /// Waits until the messages at these positions (negative: none) have arrived.
    __device__ __forceinline__ bool arrived(const i32 (&positions)[kGroups], bool) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool some = End::used(g) && positions[g] >= 0;
            const u32 want = start_[g] + static_cast<u32>(positions[g]) + 1;
            const Site site{Ring::kChannel, Waiting::kArrival, stripe_,
                            some ? End::rank_of(End::peer(g)) : -1, want};
            // M2: pairs with the sender's release; all lanes read after the barrier.
            wait_counter(team_, site, some ? tail(End::peer(g)) : nullptr);
        }
        return !team_.stopped;
    }

    /// The row at a position of the lane's peer.
    __device__ __forceinline__ const char* row(int g, i32 position) const {
        const u32 at = (start_[g] + static_cast<u32>(position)) % Ring::kDepth;
        const i64 ring = End::index(End::peer(g));
        return team_.group.window + Ring::kSlots + (ring * Ring::kDepth + at) * Ring::kSlotBytes;
    }

    /// Its other fields.
    __device__ __forceinline__ const char* meta(int g, i32 position) const {
        return row(g, position) + Ring::kMeta;
    }

    /// Gives back the slots up to these positions.
    __device__ __forceinline__ void done(const i32 (&positions)[kGroups]) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (!End::used(g) || team_.stopped) continue;
            const u32 through = static_cast<u32>(rows_through(positions[g]));
            const u32 fresh = through - moved_[g];
            if (static_cast<i32>(fresh) <= 0) continue;
            u32* heads = reinterpret_cast<u32*>(End::window_of(End::peer(g)) + Ring::kHead);
            // M4: the loads of all lanes come before it, by the barrier; the sender acquires.
            add_release_sys(heads + stripe_ * kPeers + End::own(), fresh);
            moved_[g] = through;
        }
        __syncwarp();
    }

private:
    __device__ __forceinline__ const u32* tail(int peer) const {
        return reinterpret_cast<const u32*>(team_.group.window + Ring::kTail) + End::index(peer);
    }

    __device__ __forceinline__ bool serves(int peer) const {
        const Peers& all = End::peers_;
        return peer >= all.begin && peer < all.end && peer != all.skip;
    }

    __device__ __forceinline__ void give_back(int peer, u32 rows) {
        __syncwarp();
        if (team_.leader() && !team_.stopped) {
            u32* heads = reinterpret_cast<u32*>(End::window_of(peer) + Ring::kHead);
            // M4: the loads of all lanes come before it, by the barrier; the sender acquires.
            add_release_sys(heads + stripe_ * kPeers + End::own(), rows);
        }
    }

    /// Waits until any peer that owes a message has sent it.
    __device__ __forceinline__ bool wait_for_any(int count) {
        u32 owing[kGroups] = {};
        for (int peer = 0; peer < kPeers; ++peer) {
            if (!serves(peer)) continue;
            const bool owes = taken(peer) < header(peer, count);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (g == peer / kLanes && End::keeps(peer)) owing[g] = owes ? 1 : 0;
            }
        }
        const Site site{Ring::kChannel, Waiting::kArrival, stripe_, -1, 0};
        return wait_any(team_, site, [&](u32& seen) {
            bool come = false;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (owing[g] == 0) continue;
                seen = load_relaxed_sys(tail(End::peer(g)));
                come = come || reached(seen, start_[g] + moved_[g] + 1);
            }
            return come;
        });
    }

    int last_ = -1;  // the peer whose message was taken last, by `next`
};

}  // namespace ep
