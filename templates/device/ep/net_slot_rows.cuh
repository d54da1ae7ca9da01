// Slots that hold rows, of a channel to ranks of which some are on other machines: where the ends of
// slot_rows.cuh find them. A near rank is reached by stores into its window. A slot for a far one is filled
// in the own data, at the place that it has among those of its receiver, and put; it may be filled anew
// once the receiver has read the call, since what was read there had landed.
//
// Nothing says of one slot that it has landed. Its sender closes behind all of them, with a signal: then
// each that was filled is there, and says so by a word behind it, unless the sender counts.
//
// Neighboring slots of a peer leave by one put. They are in lines: the arrivals of a key if the sender counts, else all
// slots of the peer. A line is cut into groups of `kRun` slots. The warp that fills the last slot of a group puts the
// group, and `close` puts the slots of all other groups.
//
// With `kOnce`, messages have numbers below it, and a message has the same bytes for all receivers: its far slots are one slot
// of the own data. The first warp that asks for the message fills it, and each warp puts from there to the place that its
// peer has for it. A slot leaves by itself then.
//
// `Slots` is the channel's Cfg struct, whose keys name their source. In a window,
//   kSlots, kFlags, kClosed, kReleased  as in slot_rows.cuh, of near peers
//   kClosedTold, kReleasedTold  [far peer]  the last call of which it was told
//   kFilled  [far peer, group]              a bit for each slot of a group that is filled and not sent; zero between
//                                           calls. With `kOnce`, [message]: how many warps have asked for it, and
//                                           `kIsFilled`
// in the data of a network,
//   kInbox, kOutbox        [epoch % kEpochs, far peer, key, arrival]  kFarBytes each: the slot, and behind
//                                          it {epoch, 1} unless the sender counts. With `kOnce`, kOutbox
//                                          [epoch % kEpochs, message]
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
    using Peers::kNear, Peers::kFar, Peers::net_, Peers::queue_, Peers::near_of;
    using Peers::far_of, Peers::window_of;

    /// Keys of one source.
    static constexpr int kEach = Slots::kKeys / Keys::kPeers;
    /// Numbers of counters.
    static constexpr int kClosedNumber = 0;
    static constexpr int kReleasedNumber = 1;
    /// Slots of a line and of a group, and groups of a line and of a peer.
    static constexpr int kLine = Slots::kCounts ? Slots::kArrivals : kEach;
    static constexpr int kRun = Slots::kRun;
    static constexpr int kLineGroups = (kLine + kRun - 1) / kRun;
    static constexpr int kGroups = (Slots::kCounts ? kEach : 1) * kLineGroups;
    /// In the word of a message: its slot is filled.
    static constexpr u32 kIsFilled = 1u << 31;

    static_assert(kRun <= 32, "a group has a word");
    static_assert(Slots::kOnce == 0 || (kRun == 1 && Slots::kCounts), "neighbors are at different places");

public:
    using Keys::kPeers;

protected:
    using Peers::team_, Peers::own, Peers::rank_of, Peers::is_near;

    /// Whether the far slots of a message are one.
    static constexpr bool kIsOnce = Slots::kOnce > 0 && kFar > 0;

    __device__ __forceinline__ NetSlotRows(Team& team, const Net* net)
        : Peers(team, net), near_(team) {}

    __device__ __forceinline__ char* slot_there(int peer, int key, int arrival) const {
        if (is_near(peer)) return near_.place(window_of(peer), near_slot(key), arrival);
        return net_->data + Slots::kOutbox + filled_place(far_slot(far_of(peer, own()), key, arrival));
    }

    /// Begins a message.
    __device__ __forceinline__ void turn_to(int message) { message_ = message; }

    /// Whether this warp is the first one that asks for the message: then it fills its far slot.
    __device__ __forceinline__ bool is_first() {
        const u32 before = team_.leader() ? fetch_add_relaxed_gpu(message_word(message_), 1) : 0;
        return __shfl_sync(kAllLanes, before, 0) == 0;
    }

    /// Returns when the far slot of the message is filled, which all lanes of this warp have done if it `is_filler`.
    __device__ __forceinline__ void await_filled(bool is_filler) {
        u32* word = message_word(message_);
        if (is_filler) {
            // M1: releases what the warp has written; the other warps that send it acquire it ahead of their puts.
            if (team_.leader()) add_release_gpu(word, kIsFilled);
            return;
        }
        const Site site{Slots::kChannel, Waiting::kSequence, -1, -1, static_cast<u32>(message_)};
        const bool is_filled = wait(team_, site, [&](u32& seen) {
            seen = team_.leader() ? load_relaxed_gpu(word) : kIsFilled;
            return (seen & kIsFilled) != 0;
        });
        // M2: pairs with the release of the filler.
        if (is_filled && team_.leader()) load_acquire_gpu(word);
        __syncwarp();
    }

    /// Leaves the words of all messages as the next call's warps begin them.
    __device__ __forceinline__ void forget_messages() const {
#pragma unroll 1
        for (int at = team_.lane; kIsOnce && at < Slots::kOnce; at += kLanes) store_relaxed_gpu(message_word(at), 0u);
    }

    __device__ __forceinline__ const char* slot_here(int key, int arrival) const {
        const int source = Keys::source_of(key);
        if (is_near(source)) return near_.place(team_.group.window, near_slot(key), arrival);
        return net_->data + Slots::kInbox + far_slot(far_of(source, own()), key, arrival);
    }

    /// Sends the slot of each lane that `sends`, which all lanes have written: a far one with its group. `close`
    /// publishes it, or the flag of a near one.
    __device__ __forceinline__ void send(int peer, int key, int arrival, bool sends) {
        const bool is_far = sends && !is_near(peer) && !team_.stopped;
        if constexpr (!Slots::kCounts) {
            const u64 slot = Slots::kOutbox + far_slot(far_of(peer, own()), key, arrival);
            if (is_far) *word_behind(net_->data + slot) = stamped(team_.epoch, 1);
            if (is_near(peer)) near_.tell_filled(window_of(peer), near_slot(key), 0, sends);
        }
        const int number = Keys::number_of(key, Slots::kSourceStride);
        const int line = Slots::kCounts ? number : 0;
        const int at = Slots::kCounts ? arrival : number;
        put_run(peer, line * kLine + at / kRun * kRun, is_far ? completed(peer, line, at) : 0);
    }

    /// Sends the slots of each lane's key that have not been sent, of the `count` that were filled, unless it `drops` them.
    /// Counting senders only.
    __device__ __forceinline__ void send_rest(int peer, int key, u32 count, bool drops) {
        if constexpr (Slots::kCounts && kRun > 1) {
            const u32 rest = is_near(peer) ? 0 : count % kRun;
            const int line = Keys::number_of(key, Slots::kSourceStride);
            const int first = static_cast<int>(count - rest);
            // A group that the end of the line cuts is sent when it is full. There may be more arrivals than slots.
            const bool some = rest != 0 && count < static_cast<u32>(kLine);
            // The next call's warps add to it.
            if (some) store_relaxed_gpu(filled(peer, line, first), 0u);
            put_run(peer, line * kLine + first, some && !drops ? rest : 0);
        }
    }

    /// Sends the slots of all groups that have not been sent. `joins(peer)`: whether it sends those of a peer. Senders
    /// that do not count only.
    template <class Joins>
    __device__ __forceinline__ void send_groups(Joins joins) {
        if constexpr (!Slots::kCounts && kRun > 1 && kFar > 0) {
#pragma unroll 1
            for (int first = 0; first < kPeers * kGroups; first += kLanes) {
                const int group = first + team_.lane;
                const int peer = group / kGroups;
                const bool some = peer < kPeers && !is_near(peer);
                const int begin = group % kGroups * kRun;
                u32* word = some ? filled(peer, 0, begin) : nullptr;
                u32 left = some ? load_relaxed_gpu(word) : 0;
                // The next call's warps add to it.
                if (left != 0) store_relaxed_gpu(word, 0u);
                if (!some || !joins(peer)) left = 0;
                while (__ballot_sync(kAllLanes, left != 0) != 0) {
                    const int skipped = left == 0 ? 0 : __ffs(static_cast<int>(left)) - 1;
                    const u32 run = static_cast<u32>(__ffs(static_cast<int>(~(left >> skipped))) - 1);
                    put_run(some ? peer : 0, begin + skipped, left == 0 ? 0 : run);
                    left &= left + (1u << skipped);
                }
            }
        }
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

    __device__ __forceinline__ bool looks_filled(int key, int slice, u32& seen) const {
        const int source = Keys::source_of(key);
        if (!is_near(source)) return has_told(source, seen);
        return near_.looks_filled(near_slot(key), slice, seen);
    }

    __device__ __forceinline__ bool is_filled(int key, int slice) const {
        const int source = Keys::source_of(key);
        if (is_near(source)) return near_.is_filled(near_slot(key), slice);
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

    __device__ __forceinline__ u32 through_by_now(int key) const {
        if (is_near(Keys::closer_of(key))) return near_.through_by_now(near_closed(key));
        u32 seen = 0;
        return looks_closed(key, seen) ? through(key) : 0;
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
        return far_place(far, Keys::number_of(key, Slots::kSourceStride) * Slots::kArrivals + arrival);
    }

    /// A slot of `far` by its number among all of that peer.
    __device__ __forceinline__ u64 far_place(int far, int number) const {
        const i64 before = (near_.set() * kFar + far) * (i64{kEach} * Slots::kArrivals);
        return static_cast<u64>(before + number) * Slots::kFarBytes;
    }

    /// Where a far slot is filled whose place among those of its receiver is `own`.
    __device__ __forceinline__ u64 filled_place(u64 own) const {
        if constexpr (Slots::kOnce == 0) return own;
        return static_cast<u64>(near_.set() * Slots::kOnce + message_) * Slots::kFarBytes;
    }

    __device__ __forceinline__ u32* message_word(int message) const {
        return reinterpret_cast<u32*>(team_.group.window + Slots::kFilled) + message;
    }

    /// The word of the group of a slot.
    __device__ __forceinline__ u32* filled(int peer, int line, int at) const {
        u32* words = reinterpret_cast<u32*>(team_.group.window + Slots::kFilled);
        return words + far_of(peer, own()) * kGroups + line * kLineGroups + at / kRun;
    }

    /// How many slots the group has that this slot completes; 0: it completes none.
    __device__ __forceinline__ u32 completed(int peer, int line, int at) const {
        if constexpr (kRun == 1) return 1;
        const int first = at / kRun * kRun;
        const u32 slots = static_cast<u32>(kLine - first < kRun ? kLine - first : kRun);
        u32* word = filled(peer, line, at);
        // M1: releases what the warp has written; whoever completes the group, or closes, acquires it ahead of its put.
        const u32 own = 1u << (at - first);
        const bool is_last = fetch_add_acq_rel_gpu(word, own) + own == ~0u >> (32 - slots);
        // No other warp fills a slot of the group; those of the next call do.
        if (is_last) store_relaxed_gpu(word, 0u);
        return is_last ? slots : 0;
    }

    /// Puts `count` slots of each lane's peer, if there are any, from `first` on among all of the peer.
    __device__ __forceinline__ void put_run(int peer, int first, u32 count) {
        const u64 from = Slots::kOutbox + filled_place(far_place(far_of(peer, own()), first));
        const u64 to = Slots::kInbox + far_place(far_of(own(), peer), first);
        queue_.put(rank_of(peer), to, from, count * Slots::kFarBytes);
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
    int message_ = 0;
};

}  // namespace ep
