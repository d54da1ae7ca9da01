// Slots that hold rows, of a channel to ranks of which some are on other machines: where the ends of
// slot_rows.cuh find them. A near rank is reached by stores into its window. A slot for a far one is filled
// in the own data, at the place that it has among those of its receiver, and put; it may be filled anew
// once the receiver has read the call, since what was read there had landed.
//
// Nothing says of one slot that it has landed. Its sender closes behind all of them, with a signal: then
// each that was filled is there, and says so by a word behind it, unless the sender counts.
//
// `Slots` is the channel's Cfg struct, whose keys name their source. In a window,
//   kSlots, kFlags, kClosed, kReleased  as in slot_rows.cuh, of near peers
//   kClosedTold, kReleasedTold  [far peer]  the last call of which it was told
// in the data of a network,
//   kInbox, kOutbox        [epoch % kEpochs, far peer, key, arrival]  kFarBytes each: the slot, and behind
//                                          it {epoch, 1} unless the sender counts
//   kCountsIn, kCountsOut  [epoch % kEpochs, far peer, key]           what a sender that counts has sent
// and among its counters, of each source, from kCounters on, the last call that it has closed, and the last
// one that it has read.
#pragma once

#include <ep/net_peers.cuh>
#include <ep/ptx.cuh>
#include <ep/slot_rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Where the slots of this call are.
template <class Slots>
class NetSlotRows : public SlotKeys<Slots>, protected NetPeers<Slots> {
    using Keys = SlotKeys<Slots>;
    using Peers = NetPeers<Slots>;
    using Peers::kNear, Peers::kFar, Peers::net_, Peers::queue_, Peers::is_near, Peers::near_of;
    using Peers::far_of, Peers::window_of;

    /// Keys of one source.
    static constexpr int kEach = Slots::kKeys / Keys::kPeers;
    /// Numbers of counters.
    static constexpr int kClosedNumber = 0;
    static constexpr int kReleasedNumber = 1;

public:
    using Keys::kPeers;

protected:
    using Peers::team_, Peers::own, Peers::rank_of;

    __device__ __forceinline__ NetSlotRows(Team& team, const Net* net)
        : Peers(team, net), near_(team) {}

    __device__ __forceinline__ char* slot_there(int peer, int key, int arrival) const {
        if (is_near(peer)) return near_.place(window_of(peer), near_slot(key), arrival);
        return net_->data + Slots::kOutbox + far_slot(far_of(peer, own()), key, arrival);
    }

    __device__ __forceinline__ const char* slot_here(int key, int arrival) const {
        const int source = Keys::source_of(key);
        if (is_near(source)) return near_.place(team_.group.window, near_slot(key), arrival);
        return net_->data + Slots::kInbox + far_slot(far_of(source, own()), key, arrival);
    }

    /// Sends the slot of the first lane, which `sends` it and all lanes have written; `close` publishes it, or the flag
    /// of a near one.
    __device__ __forceinline__ void send(int peer, int key, int arrival, bool is_own) {
        const bool sends = is_own && !is_near(peer);
        const u64 from = Slots::kOutbox + far_slot(far_of(peer, own()), key, arrival);
        if constexpr (!Slots::kCounts) {
            if (sends && !team_.stopped) *word_behind(net_->data + from) = stamped(team_.epoch, 1);
            if (is_near(peer)) near_.tell_filled(window_of(peer), near_slot(key), is_own);
        }
        const u64 to = Slots::kInbox + far_slot(far_of(own(), peer), key, arrival);
        queue_.put(rank_of(peer), to, from, sends ? Slots::kFarBytes : 0);
    }

    __device__ __forceinline__ void tell_count(int peer, int key, u32 count) {
        if (is_near(peer)) {
            near_.tell_count(window_of(peer), near_closed(key), count);
        } else if constexpr (Slots::kCounts) {
            const u64 at = Slots::kCountsOut + counts(far_of(peer, own()));
            const int number = Keys::number_of(key, Keys::kStride);
            reinterpret_cast<u32*>(net_->data + at)[number] = count;
        }
    }

    /// Tells far peers that all keys are closed, and what came of each.
    template <class Joins>
    __device__ __forceinline__ void tell_closed(Joins joins) {
#pragma unroll 1
        for (int first = 0; first < (kFar == 0 ? 0 : kPeers); first += kLanes) {
            const int at = first + team_.lane;
            const bool some = at < kPeers && !is_near(at) && joins(at);
            const int peer = some ? at : 0;
            if constexpr (Slots::kCounts) {
                const u64 from = Slots::kCountsOut + counts(far_of(peer, own()));
                const u64 to = Slots::kCountsIn + counts(far_of(own(), peer));
                queue_.put(rank_of(peer), to, from, some ? 4 * Slots::kShared : 0);
            }
            // M1: every warp's puts come before it, through the counter; the receiver acquires.
            tell_call(peer, kClosedNumber, Slots::kClosedTold, some);
        }
    }

    __device__ __forceinline__ const u32* released(int peer) const {
        if (!is_near(peer)) return counter(peer, kReleasedNumber);
        return near_.released(near_of(peer));
    }

    __device__ __forceinline__ void tell_released(int peer, bool tells) {
        if (tells && is_near(peer)) near_.tell_released(window_of(peer), near_of(own()));
        tell_call(peer, kReleasedNumber, Slots::kReleasedTold, tells && !is_near(peer));
    }

    __device__ __forceinline__ bool looks_filled(int key, u32& seen) const {
        const int source = Keys::source_of(key);
        if (!is_near(source)) return has_told(source, seen);
        return near_.looks_filled(near_slot(key), seen);
    }

    __device__ __forceinline__ bool is_filled(int key) const {
        const int source = Keys::source_of(key);
        if (is_near(source)) return near_.is_filled(near_slot(key));
        // M2: pairs with the signal in `tell_closed`.
        if (!reached(load_acquire_sys(counter(source, kClosedNumber)), team_.epoch)) return false;
        const u64 at = Slots::kInbox + far_slot(far_of(source, own()), key, 0);
        return *word_behind(net_->data + at) == stamped(team_.epoch, 1);
    }

    __device__ __forceinline__ bool looks_closed(int key, u32& seen) const {
        const int source = Keys::closer_of(key);
        if (!is_near(source)) return has_told(source, seen);
        return near_.looks_closed(near_closed(key), seen);
    }

    __device__ __forceinline__ u32 through(int key) const {
        const int source = Keys::closer_of(key);
        if (is_near(source)) return near_.through(near_closed(key));
        // M2: pairs with the signal in `tell_closed`.
        load_acquire_sys(counter(source, kClosedNumber));
        if constexpr (Slots::kCounts) {
            const u64 at = Slots::kCountsIn + counts(far_of(source, own()));
            const int number = Keys::number_of(key, Keys::kStride);
            return reinterpret_cast<const u32*>(net_->data + at)[number] + 1;
        } else {
            return 1;
        }
    }

private:
    /// A key of a slot and a closed key among those of near sources.
    static __device__ __forceinline__ int near_slot(int key) {
        if constexpr (kFar == 0) return key;
        const int number = Keys::number_of(key, Slots::kSourceStride);
        return near_of(Keys::source_of(key)) * kEach + number;
    }
    static __device__ __forceinline__ int near_closed(int key) {
        if constexpr (kFar == 0) return key;
        const int number = Keys::number_of(key, Keys::kStride);
        return near_of(Keys::closer_of(key)) * Slots::kShared + number;
    }

    /// A slot among those of all far peers, of which it is that of `far`.
    __device__ __forceinline__ u64 far_slot(int far, int key, int arrival) const {
        const i64 own =
            (near_.set() * kFar + far) * kEach + Keys::number_of(key, Slots::kSourceStride);
        return static_cast<u64>(own * Slots::kArrivals + arrival) * Slots::kFarBytes;
    }

    static __device__ __forceinline__ u64* word_behind(char* slot) {
        return reinterpret_cast<u64*>(slot + Slots::kSlotBytes);
    }

    __device__ __forceinline__ u64 counts(int far) const {
        return 4 * static_cast<u64>((near_.set() * kFar + far) * Slots::kShared);
    }

    __device__ __forceinline__ const u32* counter(int source, int number) const {
        return queue_.counter(rank_of(source), Slots::kCounters + number);
    }

    /// Whether a far source has closed this call, as far as a look shows.
    __device__ __forceinline__ bool has_told(int source, u32& seen) const {
        seen = load_relaxed_sys(counter(source, kClosedNumber));
        return reached(seen, team_.epoch);
    }

    /// Brings a counter at each lane's peer to the number of this call, if it `tells`: some calls may have
    /// left the peer out.
    __device__ __forceinline__ void tell_call(int peer, int number, u64 words, bool tells) {
        u32 more = 0;
        if (tells) {
            u32* told =
                reinterpret_cast<u32*>(team_.group.window + words) + far_of(peer, own());
            more = team_.epoch - *told;
            *told = team_.epoch;
        }
        queue_.signal(rank_of(peer), static_cast<u32>(Slots::kCounters + number), more);
    }

    SlotWindow<Slots, kNear> near_;
};

}  // namespace ep
