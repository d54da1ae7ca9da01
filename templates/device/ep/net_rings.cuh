// Rings of a stripe to ranks of which some are on other machines: what `RingsOut` and `RingsIn` (rings.cuh)
// do over a network. A near rank is reached by stores into its window; a far one by net.cuh. There, a slot is
// filled in this rank's own data, at the place that it has among those of the ring, and put to the peer's;
// it may be filled anew once its credit has come back, since what was read there had landed. Slots in a row
// leave together, by one put and one signal.
//
// `Ring` is the channel's Cfg struct. In a window,
//   kSlots    [stripe, near peer, slot]   kSlotBytes each: the row, then its other fields
//   kTail     [stripe, near peer]         messages that the peer has published
//   kHead     [stripe, near peer]         slots that it has given back
//   kRetired  [stripe, near peer]         the last call whose header it has read
//   kHeader   [call % 2, stripe, near peer, word]  {epoch, number} of the header
//   kTaken, kSent  [call % 2, stripe, peer]        where the ring stands at this end
//   kPassed   [stripe, peer, chunk]       readers that have read a chunk, where there are several
// in the data of a network,
//   kInbox, kOutbox          [stripe, far peer, slot]          slots that come and go
//   kHeadersIn, kHeadersOut  [call % 2, stripe, far peer, word]  8 bytes: a number of the header
// and among its counters, of each source, from kCounters on,
//   [tail, head, retired, announced; stripe]  the same as above, and how many numbers of headers have come
#pragma once

#include <ep/ends.cuh>
#include <ep/net_peers.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The rings to all peers of a channel. A lane keeps each.
template <class Ring>
class NetRings : protected NetPeers<Ring> {
    using Peers = NetPeers<Ring>;
    using Peers::kNear, Peers::kFar, Peers::net_, Peers::queue_, Peers::own, Peers::is_near;
    using Peers::window_of;

    /// Numbers of counters, behind those of `TailWord` and `HeadWord`.
    static constexpr int kRetiredNumber = 2;
    static constexpr int kAnnouncedNumber = 3;
    /// Chunks of which readers may know at once, and the end of the stripe.
    static constexpr int kChunks = Ring::kDepth / Ring::kChunk + 1;

public:
    static constexpr int kKept = Ring::kPeers;
    static constexpr bool kSends = true;
    static constexpr bool kInChunks = true;

protected:
    using Peers::team_, Peers::rank_of;

    static constexpr int kStates = Ring::kStripes * Ring::kPeers;

    __device__ __forceinline__ NetRings(Team& team, const Net* net) : Peers(team, net) {}

    __device__ __forceinline__ void turn_to(int stripe, int) {
        stripe_ = stripe;
        // Where all are near there is no network.
        if constexpr (kFar > 0) {
            queue_.turn_to(static_cast<int>(static_cast<u32>(stripe) % net_->queues));
        }
    }

    __device__ __forceinline__ int state(int ring) const { return stripe_ * Ring::kPeers + ring; }

    template <class Word>
    __device__ __forceinline__ const u32* counter(int ring) const {
        if (!is_near(ring)) return queue_.counter(rank_of(ring), number(Word::kNumber));
        return reinterpret_cast<const u32*>(team_.group.window + Word::template at<Ring>()) +
               near(ring);
    }

    template <class Word>
    __device__ __forceinline__ void add(int ring, u32 count) {
        if (count != 0 && is_near(ring) && !team_.stopped) {
            u32* words = reinterpret_cast<u32*>(window_of(ring) + Word::template at<Ring>());
            add_release_sys(words + near(own()), count);
        }
        queue_.signal(rank_of(ring), number(Word::kNumber), is_near(ring) ? 0 : count);
    }

    __device__ __forceinline__ char* slot_there(int ring, u32 at) const {
        if (!is_near(ring)) return net_->data + Ring::kOutbox + slot_at(far(ring, own()), at);
        return window_of(ring) + Ring::kSlots + slot_at(near(own()), at);
    }

    __device__ __forceinline__ const char* slot_here(int ring, u32 at) const {
        if (!is_near(ring)) return net_->data + Ring::kInbox + slot_at(far(ring, own()), at);
        return team_.group.window + Ring::kSlots + slot_at(near(ring), at);
    }

    /// Sends `count` slots of each lane's ring, if that is not 0, from slot `at` on, and tells the peer of them. What
    /// the lane has done, and the warp before, comes first (M1): the peer acquires.
    __device__ __forceinline__ void send(int ring, u32 at, u32 count) {
        const u32 far_count = is_near(ring) ? 0 : count;
        const u32 left = Ring::kDepth - at, before = far_count < left ? far_count : left;
        put(ring, at, before);
        // The ring wraps.
        if (__ballot_sync(kAllLanes, far_count != before) != 0) put(ring, 0, far_count - before);
        add<TailWord>(ring, count);
    }

    __device__ __forceinline__ void announce(int ring, int word, int value) {
        const bool is_far = !is_near(ring);
        const u32* retired = reinterpret_cast<const u32*>(team_.group.window + Ring::kRetired);
        retired = is_far ? queue_.counter(rank_of(ring), number(kRetiredNumber))
                         : retired + near(ring);
        const Site site{Ring::kChannel, Waiting::kRetired, stripe_, rank_of(ring), team_.epoch - 2};
        // M4: pairs with `retire` of the receiver, two calls ago.
        wait_counter(team_, site, team_.leader() ? retired : nullptr);
        if (team_.stopped) return;
        const u32 told = static_cast<u32>(value);
        if (team_.leader()) {
            if (is_far) {
                char* header = net_->data + Ring::kHeadersOut + header_at(far(ring, own()), kFar, word);
                *reinterpret_cast<u32*>(header) = told;
            } else {
                char* header = window_of(ring) + Ring::kHeader + header_at(near(own()), kNear, word);
                store_relaxed_sys(reinterpret_cast<u64*>(header), stamped(team_.epoch, told));
            }
        }
        __syncwarp();
        const bool sends = is_far && team_.leader();
        queue_.put(rank_of(ring), Ring::kHeadersIn + header_at(far(own(), ring), kFar, word),
                   Ring::kHeadersOut + header_at(far(ring, own()), kFar, word), sends ? 8 : 0);
        queue_.signal(rank_of(ring), number(kAnnouncedNumber), sends ? 1 : 0);
    }

    __device__ __forceinline__ u32 announced(int ring, int word) {
        Site site{Ring::kChannel, Waiting::kHeader, stripe_, rank_of(ring), team_.epoch};
        if (is_near(ring)) {
            const char* header =
                team_.group.window + Ring::kHeader + header_at(near(ring), kNear, word);
            // The word carries all there is to know: it orders nothing.
            const u64* stamp = reinterpret_cast<const u64*>(header);
            return wait_stamped(team_, site, team_.leader() ? stamp : nullptr);
        }
        // Every call announces all words. One of the call behind may have been counted among them: then
        // those of this one have landed before it.
        site.want = team_.epoch * Ring::kHeaderWords;
        const u32* come = queue_.counter(rank_of(ring), number(kAnnouncedNumber));
        wait_counter(team_, site, team_.leader() ? come : nullptr);
        const char* header = net_->data + Ring::kHeadersIn + header_at(far(ring, own()), kFar, word);
        // M2: the leader has acquired it.
        return team_.leader() && !team_.stopped ? *reinterpret_cast<const u32*>(header) : 0;
    }

    __device__ __forceinline__ void retire(int ring, bool is_used) {
        const bool tells = is_used && !team_.stopped && is_last(ring, kChunks);
        if (tells && is_near(ring)) {
            u32* retired = reinterpret_cast<u32*>(window_of(ring) + Ring::kRetired);
            // M4: all readers have read the header; the sender acquires before the next but one.
            store_release_sys(retired + near(own()), team_.epoch);
        }
        const bool is_far = tells && !is_near(ring);
        queue_.signal(rank_of(ring), number(kRetiredNumber), is_far ? 1 : 0);
    }

    /// Of how many slots the sender may be told when those from `before` up to `now` have been read here: of chunks that
    /// all other readers have read, too.
    __device__ __forceinline__ u32 given_back(int ring, u32 before, u32 now) const {
        u32 free = 0;
        for (u32 chunk = before / Ring::kChunk; chunk < now / Ring::kChunk; ++chunk) {
            if (is_last(ring, chunk % kChunks)) free += Ring::kChunk;
        }
        return free;
    }

    /// Of how many more it is told at the end of a stripe of `now` messages.
    __device__ __forceinline__ u32 left_over(int ring, u32 now) const {
        const u32 rest = now % Ring::kChunk;
        return rest != 0 && is_last(ring, now / Ring::kChunk % kChunks) ? rest : 0;
    }

    int stripe_ = 0;

private:
    /// Puts `count` slots of each lane's ring, which lie in a row.
    __device__ __forceinline__ void put(int ring, u32 at, u32 count) {
        const u64 to = Ring::kInbox + slot_at(far(own(), ring), at);
        const u64 from = Ring::kOutbox + slot_at(far(ring, own()), at);
        queue_.put(rank_of(ring), to, from, count * static_cast<u32>(Ring::kSlotBytes));
    }

    /// The ring of a near peer.
    __device__ __forceinline__ int near(int peer) const {
        return stripe_ * kNear + Peers::near_of(peer);
    }

    /// The ring of a peer among those that are far from `at`.
    __device__ __forceinline__ int far(int peer, int at) const {
        return stripe_ * kFar + Peers::far_of(peer, at);
    }

    static __device__ __forceinline__ u64 slot_at(int ring, u32 at) {
        return (static_cast<u64>(ring) * Ring::kDepth + at) * Ring::kSlotBytes;
    }

    /// Where a word of the header of a ring is, of `each` in a stripe.
    __device__ __forceinline__ u64 header_at(int ring, int each, int word) const {
        const int call = static_cast<int>(team_.epoch & 1) * Ring::kStripes * each;
        return 8 * (static_cast<u64>(call + ring) * Ring::kHeaderWords + word);
    }

    /// A counter of this stripe.
    __device__ __forceinline__ u32 number(int word) const {
        return static_cast<u32>(Ring::kCounters + word * Ring::kStripes + stripe_);
    }

    /// Whether all other readers of a ring have said the same of a chunk: what they did is visible then.
    __device__ __forceinline__ bool is_last(int ring, int chunk) const {
        if constexpr (Ring::kReaders > 1) {
            u32* passed = reinterpret_cast<u32*>(team_.group.window + Ring::kPassed) +
                          state(ring) * (kChunks + 1) + chunk;
            if (fetch_add_acq_rel_gpu(passed, 1) + 1 != Ring::kReaders) return false;
            // Nobody comes here again before the sender has been told.
            store_relaxed_gpu(passed, 0u);
        }
        return true;
    }
};

}  // namespace ep
