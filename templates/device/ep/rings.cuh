// The ends of all rings of one stripe, each carried by one warp that does its work in order: nothing
// is shared, so there is nothing to complete out of order. A lane for each peer keeps where its ring
// stands, in groups of 32. The words and the slots are those of ring.cuh, so that either kind of end
// may be at the other side.
//
//   RingsOut  open -> [announce] -> position, reserve -> slot -> publish -> .. -> close
//   RingsIn   open -> [header]   -> arrived -> slot -> release -> ..           -> close
//
// Where a mover carries the rows, `publish_after` and `release_after` stand in place of `publish` and
// `release`: the peer is told once the mover has stored, or loaded, so many rows. `tell` says what is
// due by now, and `settle` all of it: before the warp waits for anyone, and before `close`.
//
// `Ring` is the channel's Cfg struct. A peer of a channel `per local` is an index in the node.
#pragma once

#include <ep/ends.cuh>
#include <ep/mover.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The sending ends.
template <class Ring>
class RingsOut : RingsEnd<Ring> {
    using End = RingsEnd<Ring>;
    using End::team_, End::stripe_, End::start_, End::moved_;

public:
    __device__ __forceinline__ explicit RingsOut(Team& team) : End(team) {}

    /// Begins a stripe for some peers.
    __device__ __forceinline__ void open(int stripe, const Peers& peers) {
        // What was sent has been freed but for the depth of the ring.
        End::begin(stripe, peers, Ring::kSent, Ring::kDepth);
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

    /// Whether the next slot is free, so that `reserve` waits for nobody.
    __device__ __forceinline__ bool has_room(int peer) {
        return End::has_come(peer, Ring::kHead, wanted(peer));
    }

    /// Waits until the next slot is free. False: the team is stopped.
    __device__ __forceinline__ bool reserve(int peer) {
        // M4: the receiver's loads, which it released, come before the stores into the slot.
        return End::await(peer, Ring::kHead, wanted(peer), Waiting::kCredit);
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

    /// Publishes the next message once `rows` rows of the mover are stored, by the lane of the peer.
    __device__ __forceinline__ void publish_after(int peer, u32 rows) { End::owe(peer, rows); }

    /// Tells receivers of messages whose rows are stored by now.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        End::tell(Ring::kTail, mover.template rows_stored<Pieces<Role>::kRecent>());
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        End::keep(Ring::kSent);
        __syncwarp();
    }

private:
    /// Where the head stands when the next slot is free.
    __device__ __forceinline__ u32 wanted(int peer) const {
        return End::of(start_, peer) + End::of(moved_, peer) + 1 - Ring::kDepth;
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
        // What was taken had arrived.
        End::begin(stripe, peers, Ring::kTaken, 0);
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

    /// Whether the next message of `peer` is there, so that `arrived` waits for nobody.
    __device__ __forceinline__ bool has_message(int peer) {
        return End::has_come(peer, Ring::kTail, wanted(peer));
    }

    /// Waits until the next message of `peer` has arrived. False: the team is stopped.
    __device__ __forceinline__ bool arrived(int peer) {
        // M2: pairs with the sender's release; the other lanes read after the barrier.
        return End::await(peer, Ring::kTail, wanted(peer), Waiting::kArrival);
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

    /// Gives it back once `rows` rows of the mover are loaded.
    __device__ __forceinline__ void release_after(int peer, u32 rows) { End::owe(peer, rows); }

    /// Tells senders of slots whose rows are loaded by now.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        End::tell(Ring::kHead, mover.rows_loaded());
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
        return End::counter(Ring::kTail, peer);
    }

    /// Where the tail stands when the next message has arrived.
    __device__ __forceinline__ u32 wanted(int peer) const {
        return End::of(start_, peer) + End::of(moved_, peer) + 1;
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
