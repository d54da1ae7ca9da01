// Slots that hold rows, or several records of a source: the ends of such a channel, each carried by
// warps that do their work in order.
//
//   SlotRowsOut  reserve -> slot -> [publish] -> ..  -> [close]
//                reserve_few -> place -> publish_slices -> ..  -> tell_slices: as words to a peer with few tokens (few_slots.cuh)
//                reserve -> fills -> [slot] -> publish -> ..: the same bytes for each receiver of a message
//                want -> .. -> reserve_wanted -> each_slot -> next, slot_of_next -> .. -> publish_each -> ..
//   SlotRowsIn   count, arrived, await -> slot -> .. -> release
//
// A slot is named by a key, the indices that its sender gives and the sender's own, and by its arrival
// where the sender counts. Either every slot is published on its own, by a flag behind each of `kSlices` slices of its
// row, which several warps may send, or the sender counts what it sends for each key, and closes: {epoch, count} for every
// key of every peer, behind all rows. The places of `kEpochs` calls are kept apart, a power of two so that epochs may wrap;
// whoever fills those of a call waits until the receiver has read what was there `kEpochs` calls ago.
//
// `Slots` is the channel's Cfg struct. In a window,
//   kSlots    [epoch % kEpochs, key, arrival]  kSlotBytes each: the row, then its other fields
//   kFlags    [epoch % kEpochs, key, slice]    {epoch, 1} behind each slice of a slot; none if the sender counts
//   kClosed   [epoch % kEpochs, closed key]    {epoch, count + 1} that a sender wrote
//   kReleased [receiver]                       the last call whose slots it has read, at the sender
//   kTaken    [receiver, kShared]              slots that this rank has taken there, zero between calls
//   kAgreed   [closed key]                     {epoch, what came of it + 2; 1: nothing, its sender is absent},
//                                              if the sender counts and `kSkipsAbsent`
//   kClosers, kReaders                         warps that are done, zero between calls
//
// A closed key is a key if the sender counts, else the sender alone. With `kSkipsAbsent` waits for ranks that do
// not answer end (presence.cuh). `Places` says where all this is: in
// windows that all ranks reach (`WindowSlots`), or for some of them behind a network (net_slot_rows.cuh).
#pragma once

#include <ep/each_slot.cuh>
#include <ep/few_slots.cuh>
#include <ep/mover.cuh>
#include <ep/presence.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

struct Net;

/// How the slots of a channel are numbered.
template <class Slots>
class SlotKeys {
public:
    static constexpr int kPeers = Slots::kPeers;
    /// How far the closed keys of one source are from those of the next one.
    static constexpr int kStride = Slots::kCounts ? Slots::kSourceStride : 1;

    static_assert((Slots::kEpochs & (Slots::kEpochs - 1)) == 0, "epochs wrap where slots do");

    /// The closed key of `source` with this number among those that it shares with no other one.
    static __device__ __forceinline__ int key_of(int number, int source) {
        return (number / kStride * kPeers + source) * kStride + number % kStride;
    }

    /// The number of a key among those of its source, which are `stride` apart from those of the next one.
    static __device__ __forceinline__ int number_of(int key, int stride) {
        return key / (stride * kPeers) * stride + key % stride;
    }

    /// The source of a closed key.
    static __device__ __forceinline__ int closer_of(int key) { return key / kStride % kPeers; }

    /// The source of a slot, if its key names one; else -1.
    static __device__ __forceinline__ int source_of(int key) {
        constexpr int kApart = Slots::kSourceStride == 0 ? 1 : Slots::kSourceStride;
        return Slots::kSourceStride == 0 ? -1 : key / kApart % kPeers;
    }
};

/// Tells every rank that this one has read the slots of all calls before, if ranks of one node are the peers: the last warp
/// of the first block does, as it enters the kernel. Said at the end of a call it would take a fence. A rank with `tokens`
/// tokens says whether it takes words, too.
template <class Slots>
__device__ __forceinline__ void slots_are_read(const Group& group, int tokens = 0) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    if (blockIdx.x != 0 || warp != static_cast<int>(blockDim.x) / kLanes - 1) return;
    const u32 epoch = load_relaxed_gpu(&group.state->epoch);
    // The call before did not read them then.
    const bool halted = load_relaxed_gpu(group.stop) != 0;
#pragma unroll 1
    for (int peer = lane_index(); peer < Slots::kPeers; peer += kLanes) {
        if (halted || !is_alive(group, peer)) continue;
        if (Slots::kSkipsAbsent && is_missed(group, peer)) continue;
        // M4: what earlier kernels of this stream loaded is over; `reserve` acquires.
        store_entry_sys(reinterpret_cast<u32*>(group.windows[peer] + Slots::kReleased) + group.rank, epoch);
        if constexpr (Slots::kFewTokens > 0) {
            const bool takes = are_words<Slots>(epoch + 1, tokens);
            store_entry_sys(FewSlots<Slots>::takes(group.windows[peer], group.rank),
                            stamped(epoch + 1, takes ? kTakes : kTakesNot));
        }
    }
    __syncwarp();
}

/// The slots of this call in windows, of `kNear` peers that reach them.
template <class Slots, int kNear>
class SlotWindow {
    /// Keys and closed keys of a call.
    static constexpr int kKeys =
        kNear == Slots::kPeers ? Slots::kKeys : Slots::kKeys / Slots::kPeers * kNear;
    static constexpr int kClosedKeys = Slots::kShared * kNear;

public:
    __device__ __forceinline__ explicit SlotWindow(Team& team) : team_(team) {}

    __device__ __forceinline__ i64 set() const {
        return static_cast<i64>(team_.epoch % Slots::kEpochs);
    }

    __device__ __forceinline__ char* place(char* window, int key, int arrival) const {
        const i64 slot = (set() * kKeys + key) * Slots::kArrivals + arrival;
        return window + Slots::kSlots + slot * Slots::kSlotBytes;
    }

    /// Publishes a slice of a slot that all lanes have written, if the lane `tells`.
    __device__ __forceinline__ void tell_filled(char* window, int key, int slice, bool tells) const {
        // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
        if (tells && !team_.stopped) {
            store_release_sys(flag(window, key, slice), stamped(team_.epoch, 1));
        }
    }

    /// Says how much came of a closed key.
    __device__ __forceinline__ void tell_count(char* window, int key, u32 count) const {
        // M1: every warp's stores come before it, through the counter and `close`'s fence; the receiver acquires.
        store_relaxed_sys(closed(window, key), stamped(team_.epoch, count + 1));
    }

    /// Says to a sender that this call's slots are read, as `own` of its receivers.
    __device__ __forceinline__ void tell_released(char* window, int own) const {
        u32* released = reinterpret_cast<u32*>(window + Slots::kReleased);
        // M4: every warp's loads have completed, through the counter; `reserve` acquires.
        store_release_sys(released + own, team_.epoch);
    }

    /// The last call whose slots a peer has read.
    __device__ __forceinline__ const u32* released(int peer) const {
        return reinterpret_cast<const u32*>(team_.group.window + Slots::kReleased) + peer;
    }

    /// Whether a slice of a slot has come, as far as a look shows that orders nothing.
    __device__ __forceinline__ bool looks_filled(int key, int slice, u32& seen) const {
        const u64 found = load_relaxed_sys(flag(team_.group.window, key, slice));
        seen = epoch_of(found);
        return found == stamped(team_.epoch, 1);
    }

    /// Whether it has. M2: pairs with the release in `tell_filled`. A wait looks without acquiring before: looks that acquire
    /// empty the cache of a multiprocessor whose other warps send.
    __device__ __forceinline__ bool is_filled(int key, int slice) const {
        return load_acquire_sys(flag(team_.group.window, key, slice)) == stamped(team_.epoch, 1);
    }

    /// Whether a key is closed, as far as a look shows. The word is not 0 then, so that none that was never
    /// written looks closed when calls are counted from 0 on again.
    __device__ __forceinline__ bool looks_closed(int key, u32& seen) const {
        const u64 found = load_relaxed_sys(closed(team_.group.window, key));
        seen = epoch_of(found);
        return seen == team_.epoch && value_of(found) != 0;
    }

    /// How much came of a closed key, and 1 more. M2: pairs with the release in `tell_count`.
    __device__ __forceinline__ u32 through(int key) const {
        return value_of(load_acquire_sys(closed(team_.group.window, key)));
    }

    /// How much came of a key, and 1 more; 0 if the key is not closed yet. Acquires like `through`.
    __device__ __forceinline__ u32 through_by_now(int key) const {
        const u64 found = load_acquire_sys(closed(team_.group.window, key));
        return epoch_of(found) == team_.epoch ? value_of(found) : 0;
    }

private:
    /// The flag behind a slice of a slot.
    __device__ __forceinline__ u64* flag(char* window, int key, int slice) const {
        return reinterpret_cast<u64*>(window + Slots::kFlags) + (set() * kKeys + key) * Slots::kSlices + slice;
    }

    /// The count of a closed key.
    __device__ __forceinline__ u64* closed(char* window, int key) const {
        return reinterpret_cast<u64*>(window + Slots::kClosed) + set() * kClosedKeys + key;
    }

    Team& team_;
};

/// Where the slots are, among ranks that all reach each other's windows.
template <class Slots>
class WindowSlots : public SlotKeys<Slots>, protected SlotWindow<Slots, Slots::kPeers> {
    using Window = SlotWindow<Slots, Slots::kPeers>;

public:
    using SlotKeys<Slots>::kPeers;

protected:
    using Window::looks_filled, Window::is_filled, Window::looks_closed, Window::through, Window::through_by_now;
    using Window::released;

    /// Each peer has slots of its own, which are filled one by one.
    static constexpr bool kIsOnce = false;

    __device__ __forceinline__ explicit WindowSlots(Team& team) : Window(team), team_(team) {}

    __device__ __forceinline__ char* window_of(int peer) const {
        return team_.group.windows[rank_of(peer)];
    }

    __device__ __forceinline__ int rank_of(int peer) const { return team_.rank_of(peer, kPeers); }

    /// This rank among the peers.
    __device__ __forceinline__ int own() const { return team_.own(kPeers); }

    /// The slot of a peer, which this rank fills, and one that a peer has filled here.
    __device__ __forceinline__ char* slot_there(int peer, int key, int arrival) const {
        return Window::place(window_of(peer), key, arrival);
    }
    __device__ __forceinline__ const char* slot_here(int key, int arrival) const {
        return Window::place(team_.group.window, key, arrival);
    }

    /// Sends the slot of each lane that `sends`, which all lanes have written; unless the sender counts, the slice of it is
    /// published.
    __device__ __forceinline__ void send(int peer, int key, int, bool sends, int slice = 0) const {
        if constexpr (!Slots::kCounts) Window::tell_filled(window_of(peer), key, slice, sends);
    }

    __device__ __forceinline__ void tell_count(int peer, int key, u32 count) const {
        Window::tell_count(window_of(peer), key, count);
    }

    /// Sends to peers behind a network what has not been sent: of a key, and of all keys; then says to them that all
    /// keys are closed. `joins(peer)` says to whom.
    __device__ __forceinline__ void send_rest(int, int, u32, bool) const {}
    __device__ __forceinline__ void forget_messages() const {}
    template <class Joins>
    __device__ __forceinline__ void send_groups(Joins) const {}
    template <class Joins>
    __device__ __forceinline__ void tell_closed(Joins) const {}

    /// Says to each lane's peer that this call's slots are read, if it `tells`.
    __device__ __forceinline__ void tell_released(int peer, bool tells) const {
        if (tells) Window::tell_released(window_of(peer), own());
    }

    Team& team_;
};

/// What both ends do, wherever the slots are.
template <class Slots, class Places = WindowSlots<Slots>>
class SlotRowsEnd : protected Places {
public:
    using Places::kPeers;

protected:
    using Places::team_, Places::own, Places::rank_of;

    template <class... More>
    __device__ __forceinline__ explicit SlotRowsEnd(Team& team, const More&... more)
        : Places(team, more...) {}

    /// Whether a peer takes part in this call.
    __device__ __forceinline__ bool alive(int peer) const {
        return is_alive(team_.group, rank_of(peer));
    }

    /// Whether the channel joins this rank to a peer that takes part.
    __device__ __forceinline__ bool joins(int peer) const {
        return !(Slots::kSkipsOwn && peer == own()) && alive(peer);
    }

    /// Whether a peer has been found absent, in this call or an earlier one.
    __device__ __forceinline__ bool missed(int peer) const {
        if constexpr (Slots::kSkipsAbsent) return is_missed(team_.group, rank_of(peer));
        return false;
    }

    /// Says that this warp is done. True in the last of `count` warps: what all of them did is visible.
    __device__ __forceinline__ bool is_last(u64 word, u32 count) {
        u32* done = reinterpret_cast<u32*>(team_.group.window + word);
        u32 before = 0;
        __syncwarp();
        if (team_.leader()) before = fetch_add_acq_rel_gpu(done, 1);
        const bool last = __shfl_sync(kAllLanes, before, 0) + 1 == count;
        // No warp is left that counts; those of the next launch on this stream do.
        if (last && team_.leader()) store_relaxed_gpu(done, 0u);
        __syncwarp();
        return last;
    }
};

/// The sending end.
template <class Slots, class Places = WindowSlots<Slots>>
class SlotRowsOut : SlotRowsEnd<Slots, Places> {
    using End = SlotRowsEnd<Slots, Places>;
    using End::team_;

public:
    using End::kPeers;

    __device__ __forceinline__ explicit SlotRowsOut(Team& team) : End(team) {}
    __device__ __forceinline__ SlotRowsOut(Team& team, const Net* net) : End(team, net) {}

    /// Waits until a slot of `peer` is free, and takes it. False: it is not sent, since the peer takes
    /// no part in the call, is absent, or the team is stopped, by this warp if there are more arrivals than slots.
    __device__ __forceinline__ bool reserve(int peer, int key) {
        peer_ = peer, key_ = key, arrival_ = 0;
        if (team_.stopped || !End::alive(peer)) return false;
        if (!is_known_free(peer)) {
            const bool is_free = await_free(peer, team_.leader());
            if (__ballot_sync(kAllLanes, is_free) != kAllLanes) return false;
            if (peer < 64) free_ |= u64{1} << peer;
        }
        if constexpr (Slots::kCounts) arrival_ = __shfl_sync(kAllLanes, take(peer, team_.leader()), 0);
        return !team_.stopped;
    }

    /// Takes a slot of a peer that gets `rows` rows, or none if the message goes as words.
    __device__ __forceinline__ bool reserve_few(int peer, int key, int rows) {
        words_ = nullptr;
        if constexpr (Slots::kFewTokens > 0) {
            const int place = End::number_of(key, Slots::kSourceStride);
            const bool few = rows <= Slots::kFewTokens && place < Slots::kFewTokens;
            if (few && !team_.stopped && End::alive(peer) && takes_words(peer)) {
                peer_ = peer, key_ = key, arrival_ = 0;
                words_ = FewSlots<Slots>::at(End::window_of(peer), End::own(), place);
                return true;
            }
        }
        return reserve(peer, key);
    }

    /// Where the message goes.
    __device__ __forceinline__ SlotPlace<Slots> place() const {
        return SlotPlace<Slots>{slot(), words_, team_.epoch, 0};
    }

    /// Takes a slot as well, for the message with this number in the call: it has the same bytes for each receiver.
    __device__ __forceinline__ bool reserve(int peer, int key, int message) {
        End::turn_to(message);
        return reserve(peer, key);
    }

    /// Whether this warp fills the slot. Else another one does, of which `publish` sends it.
    __device__ __forceinline__ bool fills() {
        if constexpr (End::kIsOnce) {
            if (!End::is_near(peer_)) return fills_far();
        }
        return true;
    }

    /// Which of the slots of its key was taken.
    __device__ __forceinline__ int position() const { return arrival_; }

    /// The slot: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ char* slot() const {
        return End::slot_there(peer_, key_, arrival_);
    }

    /// Sends the slot, which all lanes have written.
    __device__ __forceinline__ void publish() {
        __syncwarp();
        if constexpr (End::kIsOnce) {
            if (!End::is_near(peer_)) End::await_filled(is_filler_);
        }
        End::send(peer_, key_, arrival_, team_.leader());
        __syncwarp();
    }

    /// Has `reserve_wanted` take a slot of a peer. This lane asks for the peers whose number it has modulo 32.
    __device__ __forceinline__ void want(int peer) {
        static_assert(kPeers <= kLanes * kLanes, "each lane has a bit for each of its peers");
        wanted_ |= 1u << peer / kLanes;
    }

    /// Takes a slot of the key for each of up to 32 peers that lanes want, as `reserve` does; false: none is left.
    __device__ __forceinline__ bool reserve_wanted(int key, int message) {
        End::turn_to(message);
        return reserve_wanted(key);
    }
    __device__ __forceinline__ bool reserve_wanted(int key) {
        key_ = key, each_peer_ = each_arrival_ = count_ = 0;
#pragma unroll
        for (int first = 0; first < kPeers; first += kLanes) {
            const int peer = first + team_.lane;
            const u32 bit = 1u << first / kLanes;
            bool wants = (wanted_ & bit) != 0 && !team_.stopped && End::alive(peer);
            const bool waits = wants && !is_known_free(peer);
            if (__ballot_sync(kAllLanes, waits) != 0) {
                wants = await_free(peer, waits) && wants;
                const u32 free = __ballot_sync(kAllLanes, wants);
                if (first < 64) free_ |= u64{free} << first % 64;
            }
            u32 left = __ballot_sync(kAllLanes, wants);
#pragma unroll 1
            for (; left != 0 && count_ < kLanes; left &= left - 1) {
                if (team_.lane == count_++) each_peer_ = first + __ffs(static_cast<int>(left)) - 1;
            }
            // The others are for the next time.
            if ((left >> team_.lane & 1) == 0) wanted_ &= ~bit;
        }
        if constexpr (Slots::kCounts) each_arrival_ = take(each_peer_, team_.lane < count_);
        each_slot_ = reinterpret_cast<u64>(End::slot_there(each_peer_, key_, each_arrival_));
        if (count_ == 0 || team_.stopped) return false;
        left_ = kAllLanes >> (kLanes - count_);
        if constexpr (End::kIsOnce) {
            const u32 far = __ballot_sync(kAllLanes, !End::is_near(each_peer_)) & left_;
            has_far_ = far != 0;
            // Their slots are one.
            left_ ^= far;
            if (has_far_ && fills_far()) left_ |= far & ~(far - 1);
        }
        return true;
    }

    /// Those of the slots that this warp fills, if there are any; before `next`.
    __device__ __forceinline__ EachSlot each_slot() const { return EachSlot{each_slot_, left_}; }

    /// The next of their peers, and its slot; negative: there is none.
    __device__ __forceinline__ int next() {
        return left_ == 0 ? -1 : __shfl_sync(kAllLanes, each_peer_, __ffs(static_cast<int>(left_)) - 1);
    }
    __device__ __forceinline__ char* slot_of_next() {
        const int lane = __ffs(static_cast<int>(left_)) - 1;
        left_ &= left_ - 1;
        return reinterpret_cast<char*>(__shfl_sync(kAllLanes, each_slot_, lane));
    }

    /// Sends all that were taken; those that it fills all lanes have written.
    __device__ __forceinline__ void publish_each() {
        __syncwarp();
        if constexpr (End::kIsOnce) {
            if (has_far_) End::await_filled(is_filler_);
        }
        End::send(each_peer_, key_, each_arrival_, team_.lane < count_);
        __syncwarp();
    }

    /// Whether `reserve` waits for nobody.
    __device__ __forceinline__ bool has_room(int peer, int) const {
        if (team_.stopped || !End::alive(peer) || is_known_free(peer)) return true;
        const u32 read = team_.leader() ? load_relaxed_sys(End::released(peer)) : 0;
        return reached(__shfl_sync(kAllLanes, read, 0), team_.epoch - Slots::kEpochs);
    }

    /// Publishes slices of the slot, which all lanes have written, no later than by `tell_slices`: the flags of several
    /// wait once for the stores before them. Words say by themselves that they have come.
    __device__ __forceinline__ void publish_slices(const Span& slices) {
        if (words_ != nullptr) return;
        const int count = slices.end - slices.begin;
        if (held_ + count > kLanes) tell_slices();
        const int behind = team_.lane - static_cast<int>(held_);
        if (behind >= 0 && behind < count) held_peer_ = peer_, held_key_ = key_, held_slice_ = slices.begin + behind;
        held_ += count;
    }

    /// Publishes the slices that are held.
    __device__ __forceinline__ void tell_slices() {
        __syncwarp();
        End::send(held_peer_, held_key_, 0, team_.lane < static_cast<int>(held_), held_slice_);
        held_ = 0;
        __syncwarp();
    }

    /// Sends the slot once `rows` rows of the mover are stored. The caller calls `tell` before the next slot.
    __device__ __forceinline__ void publish_after(u32 rows) {
        if constexpr (!Slots::kCounts) {
            if (team_.lane == static_cast<int>(held_ % kLanes)) held_peer_ = peer_, held_key_ = key_, due_ = rows;
            ++held_;
        }
    }

    /// Sends the slots whose rows are stored by now, a lane each.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        if constexpr (!Slots::kCounts) {
            constexpr u32 kRecent = Pieces<Role>::kRecent;
            static_assert(kRecent < kLanes, "a lane for each slot that is held");
            const u32 stored = mover.template rows_stored<kRecent>();
            const u32 behind = (team_.lane - sent_) % kLanes;
            const bool sends = behind < held_ - sent_ && reached(stored, due_);
            // M1: the rows are stored for the first lane, by the barrier for all; the receiver acquires.
            End::send(held_peer_, held_key_, 0, sends);
            sent_ += __popc(__ballot_sync(kAllLanes, sends));
            __syncwarp();
        }
    }

    /// Ends what one of `closers` warps sends in this call; the last one tells every peer how much came.
    __device__ __forceinline__ void close(int closers) {
        if (!End::is_last(Slots::kClosers, static_cast<u32>(closers))) return;
        u32* taken = reinterpret_cast<u32*>(team_.group.window + Slots::kTaken);
        // M1: a fence for all counts; a release for each would wait for the one before.
        __threadfence_system();
#pragma unroll 1
        for (int first = 0; first < kPeers * Slots::kShared; first += kLanes) {
            const int i = first + team_.lane;
            const bool some = i < kPeers * Slots::kShared;
            const int peer = some ? i / Slots::kShared : 0;
            const int key = End::key_of(i % Slots::kShared, End::own());
            const u32 count = some ? load_relaxed_gpu(taken + i) : 0;
            if (some) store_relaxed_gpu(taken + i, 0u);
            const bool drops = !some || team_.stopped || !End::joins(peer) || End::missed(peer);
            if (!drops) End::tell_count(peer, key, count);
            End::send_rest(peer, key, count, drops);
        }
        End::send_groups([&](int peer) { return End::joins(peer) && !End::missed(peer); });
        End::forget_messages();
        __syncwarp();
        End::tell_closed([&](int peer) { return End::joins(peer); });
    }

    /// Sends all slots, whose rows are stored.
    template <class Role>
    __device__ __forceinline__ void settle(Mover<Role>& mover) { tell(mover); }

private:
    /// Whether the slots of a peer have been found free: they are so until the end of the call.
    __device__ __forceinline__ bool is_known_free(int peer) const {
        if constexpr (End::kIsOnce) {
            if (far_are_free_ && !End::is_near(peer)) return true;
        }
        return peer < 64 && (free_ >> peer & 1) != 0;
    }

    /// Waits until the slots of each lane's `peer` are free, if the lane `waits` for them. False: the peer is absent, or the
    /// team is stopped.
    __device__ __forceinline__ bool await_free(int peer, bool waits) {
        const u32 want = team_.epoch - Slots::kEpochs;
        const Site site{Slots::kChannel, Waiting::kCredit, -1, waits ? End::rank_of(peer) : -1, want};
        // M4: pairs with the release of the receiver's end; all lanes store after the barrier.
        const u32* released = waits ? End::released(peer) : nullptr;
        if constexpr (Slots::kSkipsAbsent) {
            return wait_counter_of_peer(team_, site, released);
        } else {
            wait_counter(team_, site, released);
            return !team_.stopped;
        }
    }

    /// Whether a peer takes words in this call, once it has said so.
    __device__ __forceinline__ bool takes_words(int peer) {
        if (peer >= 64) return false;
        const u64 bit = u64{1} << peer;
        if ((heard_ & bit) == 0) {
            const u64* word = FewSlots<Slots>::takes(team_.group.window, peer);
            const Site site{Slots::kChannel, Waiting::kCredit, -1, End::rank_of(peer), team_.epoch};
            u64 said = 0;
            const bool done = wait(team_, site, [&](u32& seen) {
                // M4: the peer's kernels that read words before are over; all lanes store after they have heard. Each look
                // acquires: another one would cost a round trip.
                said = load_acquire_sys(word);
                seen = epoch_of(said);
                return value_of(said) != 0 && reached(seen, team_.epoch);
            });
            if (!done) return false;
            // A peer that is in a later call, as some lanes may hear, has all that it needs of this one.
            heard_ |= bit;
            if (__all_sync(kAllLanes, said == stamped(team_.epoch, kTakes))) takes_ |= bit;
        }
        return (takes_ & bit) != 0;
    }

    /// Whether this warp fills the one far slot of the message: it is the first to ask for it. Then all far slots are free.
    ///
    /// `kEpochs` calls ago the slot was put to some of the far peers. A far peer tells that it has read the slots of a call,
    /// so what was put to it had landed. It tells every rank that takes part in the call, and so every sender can wait for all
    /// of them. A peer that is left out of this call tells nothing, and is not waited for: if it still gets a row of that
    /// call, the row may be one of this call.
    __device__ __forceinline__ bool fills_far() {
        is_filler_ = End::is_first();
#pragma unroll 1
        for (int first = 0; is_filler_ && !far_are_free_ && first < kPeers; first += kLanes) {
            const int peer = first + team_.lane;
            await_free(peer, peer < kPeers && !End::is_near(peer) && End::joins(peer));
        }
        if (team_.stopped) is_filler_ = false;
        far_are_free_ = far_are_free_ || is_filler_;
        return is_filler_;
    }

    /// Takes the next slot of the key at each lane's `peer`, if the lane `takes` one, and gives its arrival. The team is
    /// stopped if there is none.
    __device__ __forceinline__ int take(int peer, bool takes) {
        const int number = End::number_of(key_, End::kStride);
        u32* taken = reinterpret_cast<u32*>(team_.group.window + Slots::kTaken);
        u32 before = 0;
        if (takes) before = fetch_add_relaxed_gpu(taken + peer * Slots::kShared + number, 1);
        const u32 over = __ballot_sync(kAllLanes, before >= static_cast<u32>(Slots::kArrivals));
        if (over != 0) {
            const bool blame = team_.lane == __ffs(static_cast<int>(over)) - 1;
            const Site site{Slots::kChannel, Waiting::kCapacity, -1, End::rank_of(peer), before + 1};
            give_up(team_.group, team_.epoch, team_.role, site, Slots::kArrivals, blame, true);
            team_.stopped = true;
        }
        return static_cast<int>(before);
    }

    u64 free_ = 0;  // a bit for each of the first 64 peers: its slots are known to be free
    int peer_ = 0;
    int key_ = 0;
    int arrival_ = 0;
    u32 wanted_ = 0;             // a bit for each peer that the lane asks for
    int count_ = 0;              // slots that were taken for some of them,
    u32 left_ = 0;               // the lanes whose slots this warp fills, but for those that `slot_of_next` has given
    bool has_far_ = false;       // some are far and one slot,
    bool is_filler_ = false;     // which this warp fills
    bool far_are_free_ = false;  // the far slots of all messages are known to be free
    int each_peer_ = 0, each_arrival_ = 0;  // the one that the lane has
    u64 each_slot_ = 0;
    u32 held_ = 0, sent_ = 0;           // slots that were held back until their rows are stored, and those sent since
    int held_peer_ = 0, held_key_ = 0;  // the one that the lane holds,
    int held_slice_ = 0;                // the slice of it,
    u32 due_ = 0;                       // and the rows behind which it is sent
    WordPair* words_ = nullptr;         // of the message; null: it goes to a slot
    u64 heard_ = 0, takes_ = 0;         // which of the first 64 peers have said whether they take words, and who does
};

/// Of waits that nobody times; `SlotTimes` (slot_times.cuh) has the same methods.
struct NoTimes {
    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ bool found(int, bool here) { return here; }
    __device__ __forceinline__ void add() const {}
};

/// The receiving end.
template <class Slots, class Places = WindowSlots<Slots>, class Times = NoTimes>
class SlotRowsIn : SlotRowsEnd<Slots, Places> {
    using End = SlotRowsEnd<Slots, Places>;
    using End::team_;

public:
    using End::kPeers;
    /// Where the other fields of a slot are, and how many slices of its row have flags.
    static constexpr int kMeta = Slots::kMeta, kSlices = Slots::kSlices;
    /// Whether messages may come as words, and how many words their other fields have then.
    static constexpr int kFewTokens = Slots::kFewTokens;
    static __device__ constexpr int field_words() { return Slots::kFieldWords; }

    __device__ __forceinline__ explicit SlotRowsIn(Team& team) : End(team) {}
    __device__ __forceinline__ SlotRowsIn(Team& team, const Net* net) : End(team, net) {}
    __device__ __forceinline__ SlotRowsIn(Team& team, i64* waited)
        : End(team), times_(team, waited) {}
    __device__ __forceinline__ SlotRowsIn(Team& team, const Net* net, i64* waited)
        : End(team, net), times_(team, waited) {}

    /// How many slots of a key its source has filled, once it has closed; none if it takes no part.
    __device__ __forceinline__ int count(int key) {
        // What was counted once stays as it is.
        if (key == counted_key_) return counted_;
        const int source = End::closer_of(key);
        if (!End::joins(source)) return 0;
        const Site site{Slots::kChannel, Waiting::kClosed, -1, End::rank_of(source), team_.epoch};
        const u32 through = wait_closed(site, team_.leader() ? key : -1);
        const u32 before = __shfl_sync(kAllLanes, through, 0);
        if (before == 0) return 0;
        counted_key_ = key, counted_ = static_cast<int>(before - 1);
        return counted_;
    }

    /// How many slots the sources before that of `key` have filled. Each lane waits for sources of its own. The lane behind
    /// them checks `key` itself without waiting.
    __device__ __forceinline__ int base(int key) {
        const int source = End::closer_of(key);
        int sum = 0;
#pragma unroll 1
        for (int first = 0; first < source; first += kLanes) {
            const int earlier = first + team_.lane;
            const bool used = earlier < source && End::joins(earlier);
            const Site site{Slots::kChannel, Waiting::kClosed, -1, used ? End::rank_of(earlier) : -1, team_.epoch};
            const int own = key - (source - earlier) * End::kStride;
            const u32 through = wait_closed(site, used ? own : -1, earlier == source ? key : -1);
            sum += through == 0 ? 0 : static_cast<int>(through - 1);
        }
        return __reduce_add_sync(kAllLanes, sum);
    }

    /// Waits until a slot has come. False: it never does, or the team is stopped.
    __device__ __forceinline__ bool arrived(int key) {
        return wait_for(team_.leader() ? key : -1) != 0;
    }

    /// Waits until every slot of the call has come, or every source has closed.
    __device__ __forceinline__ void await() {
        constexpr int kWords = Slots::kCounts ? Slots::kShared * kPeers : Slots::kKeys;
#pragma unroll 1
        for (int first = 0; first < kWords; first += kLanes) {
            const int key = first + team_.lane < kWords ? first + team_.lane : -1;
            if constexpr (Slots::kCounts) {
                const int source = key < 0 ? -1 : End::closer_of(key);
                const bool used = key >= 0 && End::joins(source);
                const Site site{Slots::kChannel, Waiting::kClosed, -1,
                                used ? End::rank_of(source) : -1, team_.epoch};
                wait_closed(site, used ? key : -1);
            } else {
                const int source = key < 0 ? -1 : End::source_of(key);
                wait_for(source < 0 || End::joins(source) ? key : -1);
            }
        }
    }

    /// A slot that has come: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ const char* slot(int key, int arrival) const {
        return End::slot_here(key, arrival);
    }

    /// Ends the reading of this warp; the last warp of the role tells all sources.
    __device__ __forceinline__ void release() {
        if (!End::is_last(Slots::kReaders, static_cast<u32>(team_.count())) || team_.stopped) return;
        times_.add();
#pragma unroll 1
        for (int first = 0; first < kPeers; first += kLanes) {
            const int peer = first + team_.lane;
            const bool some = peer < kPeers && End::alive(peer) && !End::missed(peer);
            End::tell_released(some ? peer : 0, some);
        }
        __syncwarp();
    }

    /// Each lane waits for the slot of its key (-1: none). The lanes whose slot has come: a slot that
    /// nobody who takes part has filled never comes.
    __device__ __forceinline__ u32 wait_for(int key) {
        u32 lanes = kAllLanes;
#pragma unroll
        for (int slice = 0; slice < Slots::kSlices; ++slice) lanes &= wait_for_slice(key, slice);
        return lanes;
    }

    /// Each lane waits for a slice of the slot of its key, as `wait_for` does for the slot.
    __device__ __forceinline__ u32 wait_for_slice(int key, int slice) {
        const int source = key < 0 ? -1 : End::source_of(key);
        const Site site{Slots::kChannel, Waiting::kFlag, -1, source < 0 ? -1 : End::rank_of(source),
                        team_.epoch};
        const bool all = everyone_is_alive(team_.group);
        bool absent = false;
        times_.begin();
        const bool done = wait_for_peer<Slots::kSkipsAbsent>(team_, site, absent, [&](u32& seen) {
            const bool here = key < 0 || End::looks_filled(key, slice, seen) || (!all && is_over(source));
            return times_.found(source, here);
        });
        if (absent) times_.found(source, true);
        // M2: all lanes load after the barrier.
        const bool here = done && key >= 0 && !absent && End::is_filled(key, slice);
        const u32 lanes = __ballot_sync(kAllLanes, here);
        __syncwarp();
        return lanes;
    }

    /// The words of the message of a key.
    __device__ __forceinline__ WordPair* words_of(int key) const {
        return FewSlots<Slots>::at(team_.group.window, End::source_of(key), End::number_of(key, Slots::kSourceStride));
    }

    /// Whether words may bring it.
    __device__ __forceinline__ bool may_be_words(int key) const {
        return End::number_of(key, Slots::kSourceStride) < Slots::kFewTokens;
    }

    /// Whether the message of a key has come to its slot.
    __device__ __forceinline__ bool is_in_slot(int key, u32& seen) const {
        bool all = true;
#pragma unroll 1
        for (int slice = 0; slice < kSlices; ++slice) {
            all = all && End::looks_filled(key, slice, seen) && End::is_filled(key, slice);
        }
        return all;
    }

    /// Whether rows come as words to a rank with so many tokens.
    __device__ __forceinline__ bool takes_words(int tokens) const { return are_words<Slots>(team_.epoch, tokens); }

    /// Whether the message of a key may come: its source takes part.
    __device__ __forceinline__ bool may_come(int key) const { return key >= 0 && End::alive(End::source_of(key)); }

    /// Waits for the neighbors at a place of the rows of messages (-1: none). The rows have `count` values.
    template <class T, int kBatch, int kCount>
    __device__ __forceinline__ void read_words(const i32 (&keys)[kBatch], Stretches<kCount, false> at, int count,
                                               Wide<T, kCount * kWide> (&values)[kBatch]) const {
        Site site{Slots::kChannel, Waiting::kFlag, -1, -1, team_.epoch};
        wait(team_, site, [&](u32& seen) {
            UnitWords found[kBatch][kCount];
            bool is_told[kBatch];
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const bool used = keys[k] >= 0 && at.has(0);
#pragma unroll
                for (int s = 0; s < kCount; ++s) {
                    if (!used || !at.has(s) || !may_be_words(keys[k])) continue;
                    found[k][s] = UnitWords::load(words_of(keys[k]), (at.first + s * kTurn) / kWide);
                }
                is_told[k] = used && End::looks_filled(keys[k], 0, seen);
            }
            bool come = true;
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if (keys[k] < 0 || !at.has(0)) continue;
                bool own = may_be_words(keys[k]);
#pragma unroll
                for (int s = 0; s < kCount; ++s) {
                    if (!own || !at.has(s)) continue;
                    own = found[k][s].are_of(team_.epoch, seen);
                    unit_of(stretch(values[k], s)) = found[k][s].value();
                }
                if (own) continue;
                if (is_told[k] && is_in_slot(keys[k], seen)) {
                    values[k] = get_wide<T>(slot(keys[k], 0), at, count);
                } else {
                    site.peer = End::rank_of(End::source_of(keys[k]));
                    come = false;
                }
            }
            return come;
        });
    }

    /// Waits for word `word` of the other fields of a message (-1: none), and brings it to the slot; each lane has a word of its
    /// own.
    __device__ __forceinline__ void bring_field(int key, int word) const {
        const Site site{Slots::kChannel, Waiting::kFlag, -1, key < 0 ? -1 : End::rank_of(End::source_of(key)), team_.epoch};
        const u64* from = FewSlots<Slots>::fields(words_of(key < 0 ? 0 : key)) + word;
        bool has_words = false;
        u64 found = 0;
        const bool done = wait(team_, site, [&](u32& seen) {
            if (key < 0 || has_words) return true;
            // The flag is loaded together with the word.
            const bool is_told = End::looks_filled(key, 0, seen);
            if (may_be_words(key)) found = load_relaxed_sys(from);
            seen = epoch_of(found);
            has_words = may_be_words(key) && seen == team_.epoch;
            return has_words || (is_told && is_in_slot(key, seen));
        });
        if (done && has_words) {
            reinterpret_cast<u32*>(End::slot_there(End::own(), key, 0) + kMeta)[word] = value_of(found);
        }
        __syncwarp();
    }

    /// Whether the slots of all lanes' keys (-1: none) have come.
    __device__ __forceinline__ bool have_come(int key) {
        // Whether a rank that takes no part fills its slots is for `wait_for` to say.
        if (!everyone_is_alive(team_.group)) return false;
        u32 seen = 0;
        bool here = true;
#pragma unroll
        for (int slice = 0; slice < Slots::kSlices; ++slice) {
            here = here && (key < 0 || (End::looks_filled(key, slice, seen) && End::is_filled(key, slice)));
        }
        // M2: all lanes load after the barrier.
        const bool all = __all_sync(kAllLanes, here);
        __syncwarp();
        return all;
    }

private:
    /// Each lane waits until its key is closed (-1: none). Returns how much came, and 1 more; 0 if
    /// stopped. A lane that waits for none may pass a key in `counts`: if that key is already closed, its count is kept.
    __device__ __forceinline__ u32 wait_closed(const Site& site, int key, int counts = -1) {
        // The first look acquires, so a count that is already there costs one round trip.
        u32 come = 0;
        if constexpr (!Slots::kSkipsAbsent) {
            const int asked = key >= 0 ? key : counts;
            if (asked >= 0 && !team_.stopped) come = End::through_by_now(asked);
            const u32 counted = __ballot_sync(kAllLanes, counts >= 0 && come != 0 && End::joins(End::closer_of(counts)));
            if (counted != 0) {
                const int lane = __ffs(static_cast<int>(counted)) - 1;
                counted_key_ = __shfl_sync(kAllLanes, counts, lane);
                counted_ = static_cast<int>(__shfl_sync(kAllLanes, come, lane) - 1);
            }
        }
        const int source = key < 0 ? -1 : End::closer_of(key);
        bool absent = false;
        times_.begin();
        const bool done = wait_for_peer<Slots::kSkipsAbsent>(team_, site, absent, [&](u32& seen) {
            return times_.found(source, key < 0 || come != 0 || End::looks_closed(key, seen));
        });
        if (absent) times_.found(source, true);
        // M2: all lanes load after the barrier.
        u32 value = done && key >= 0 && !absent ? (come != 0 ? come : End::through(key)) : 0;
        if constexpr (Slots::kSkipsAbsent && Slots::kCounts) {
            if (done && key >= 0) value = agreed(key, value);
        }
        __syncwarp();
        return value;
    }

    /// What all warps of this rank take for what came of a closed key, and 1 more: what the first of them has
    /// found, 0 if it has found the source absent. Others may see the source come after that.
    __device__ __forceinline__ u32 agreed(int key, u32 found) const {
        u64* word = reinterpret_cast<u64*>(team_.group.window + Slots::kAgreed) + key;
        const u64 own = stamped(team_.epoch, found + 1);
        u64 seen = load_acquire_sys(word);
        while (epoch_of(seen) != team_.epoch || value_of(seen) == 0) {
            // M2: whoever takes what another warp has found acquires what that one did.
            const u64 before = compare_swap_acq_rel_sys(word, seen, own);
            if (before == seen) return found;
            seen = before;
        }
        return value_of(seen) - 1;
    }

    /// Whether nobody fills slots of this call any more: one source, or all (-1).
    __device__ __forceinline__ bool is_over(int source) const {
        const int first = source < 0 ? 0 : source;
        const int end = source < 0 ? kPeers : source + 1;
        bool over = true;
        for (int peer = first; peer < end; ++peer) {
            u32 seen = 0;
            // M2: what a sender sent comes before it has closed.
            const bool has = End::looks_closed(peer, seen) && End::through(peer) != 0;
            over = over && (has || !End::joins(peer));
        }
        return over;
    }

    Times times_;
    int counted_key_ = -1;  // the last key that was counted, and how much of it there is
    int counted_ = 0;
};

/// Slots that the parts of a token are in, a lane for each of `kParts` parts: a source of `Parts`.
template <class Slots, int kParts>
class SlotParts {
public:
    static constexpr int kGroups = (kParts + kLanes - 1) / kLanes;

    __device__ __forceinline__ SlotParts(Team& team, Slots& slots) : team_(team), slots_(slots) {}

    static constexpr int kSlices = Slots::kSlices;
    static constexpr bool kInWords = Slots::kFewTokens > 0;
    static constexpr int kPartCount = kParts;
    /// Slots are waited for one by one.
    static constexpr bool kStays = false;
    __device__ __forceinline__ void wait_ready() const {}

    /// Waits until the slots with these keys (negative: none) have come; a key whose slot never comes
    /// becomes -1.
    __device__ __forceinline__ bool arrived(i32 (&keys)[kGroups], bool) {
        are_fields_here_ = false;
        if (in_words()) {
            // The reads wait for the words.
#pragma unroll
            for (int g = 0; g < kGroups; ++g) keys[g] = slots_.may_come(keys[g]) ? keys[g] : -1;
            return !team_.stopped;
        }
        // A lane for each slice, so that one look is for the slices of several slots.
        constexpr int kEach = kLanes / kSlices;
        constexpr u32 kAll = kLanes == kSlices ? kAllLanes : (1u << kSlices) - 1;
#pragma unroll
        for (int first = 0; first < kParts; first += kEach) {
            i32& own = keys[first / kLanes];
            const i32 key = __shfl_sync(kAllLanes, own, first % kLanes + team_.lane / kSlices);
            const u32 come = slots_.wait_for_slice(key, team_.lane % kSlices);
            const int behind = team_.lane - first % kLanes;
            const bool asked = behind >= 0 && behind < kEach;
            if (asked && (come >> behind * kSlices & kAll) != kAll) own = -1;
        }
        return !team_.stopped;
    }

    /// Whether they have come, so that `arrived` waits for nobody.
    __device__ __forceinline__ bool have_arrived(const i32 (&keys)[kGroups]) {
        bool all = !in_words();
#pragma unroll
        for (int g = 0; all && g < kGroups; ++g) all = slots_.have_come(keys[g]);
        return all;
    }

    /// Expects rows as words in this call if a rank with `tokens` tokens takes words.
    __device__ __forceinline__ void take_words(int tokens) { in_words_ = slots_.takes_words(tokens); }
    __device__ __forceinline__ bool in_words() const { return kInWords && in_words_; }

    /// Waits for the neighbors at a place of rows that come as words.
    template <class T, class At, int kBatch>
    __device__ __forceinline__ void read(const i32 (&keys)[kBatch], At at, int count,
                                         WideAt<T, At> (&values)[kBatch]) const {
        slots_.template read_words<T>(keys, at, count, values);
    }

    /// Brings the other fields of messages that come as words to their slots.
    __device__ __forceinline__ void bring_fields(const i32 (&keys)[kGroups]) {
        if (!in_words() || are_fields_here_) return;
        are_fields_here_ = true;
        constexpr int kWords = Slots::field_words();
#pragma unroll 1
        for (int first = 0; first < kParts * kWords; first += kLanes) {
            const int number = first + team_.lane, part = number / (kWords > 0 ? kWords : 1);
            i32 key = -1;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const i32 own = __shfl_sync(kAllLanes, keys[g], part % kLanes);
                if (g == part / kLanes && part < kParts) key = own;
            }
            slots_.bring_field(key, number - part * kWords);
        }
        __syncwarp();
    }

    /// The row of a slot.
    __device__ __forceinline__ const char* row(int, i32 key) const { return slots_.slot(key, 0); }

    /// Its other fields.
    __device__ __forceinline__ const char* meta(int, i32 key) const {
        return slots_.slot(key, 0) + Slots::kMeta;
    }

    /// Nothing is given back token by token.
    __device__ __forceinline__ void done(const i32 (&)[kGroups]) const {}

private:
    Team& team_;
    Slots& slots_;
    bool in_words_ = false;
    bool are_fields_here_ = false;  // of messages that come as words: whether they are in their slots
};

}  // namespace ep
