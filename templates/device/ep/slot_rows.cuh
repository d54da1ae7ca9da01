// Slots that hold rows, or several records of a source: the ends of such a channel, each carried by
// warps that do their work in order.
//
//   SlotRowsOut  reserve -> slot -> [publish] -> ..  -> [close]
//   SlotRowsIn   count, arrived, await -> slot -> .. -> release
//
// A slot is named by a key, the indices that its sender gives and the sender's own, and by its arrival
// where the sender counts. Either every slot is published on its own, by a flag behind it, or the
// sender counts what it sends for each key, and closes: {epoch, count} for every key of every peer,
// behind all rows. The places of `kEpochs` calls are kept apart, a power of two so that epochs may wrap;
// whoever fills those of a call waits until the receiver has read what was there `kEpochs` calls ago.
//
// `Slots` is the channel's Cfg struct. In a window,
//   kSlots    [epoch % kEpochs, key, arrival]  kSlotBytes each: the row, then its other fields
//   kFlags    [epoch % kEpochs, key]           {epoch, 1} behind each slot; none if the sender counts
//   kClosed   [epoch % kEpochs, closed key]    {epoch, count + 1} that a sender wrote
//   kReleased [receiver]                       the last call whose slots it has read, at the sender
//   kTaken    [receiver, kShared]              slots that this rank has taken there, zero between calls
//   kClosers, kReaders                         warps that are done, zero between calls
//
// A closed key is a key if the sender counts, else the sender alone.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What both ends have: where the slots of this call are.
template <class Slots>
class SlotRowsEnd {
public:
    static constexpr int kPeers = Slots::kPeers;
    /// How far the closed keys of one source are from those of the next one.
    static constexpr int kStride = Slots::kCounts ? Slots::kSourceStride : 1;

    static_assert((Slots::kEpochs & (Slots::kEpochs - 1)) == 0, "epochs wrap where slots do");

protected:
    __device__ __forceinline__ explicit SlotRowsEnd(Team& team) : team_(team) {}

    __device__ __forceinline__ i64 set() const {
        return static_cast<i64>(team_.epoch % Slots::kEpochs);
    }

    __device__ __forceinline__ char* window_of(int peer) const {
        return team_.group.windows[team_.rank_of(peer, kPeers)];
    }

    /// Whether a peer takes part in this call.
    __device__ __forceinline__ bool alive(int peer) const {
        return is_alive(team_.group, team_.rank_of(peer, kPeers));
    }

    /// Whether the channel joins this rank to a peer that takes part.
    __device__ __forceinline__ bool joins(int peer) const {
        return !(Slots::kSkipsOwn && peer == team_.own(kPeers)) && alive(peer);
    }

    __device__ __forceinline__ char* place(char* window, int key, int arrival) const {
        const i64 slot = (set() * Slots::kKeys + key) * Slots::kArrivals + arrival;
        return window + Slots::kSlots + slot * Slots::kSlotBytes;
    }

    /// The flag behind a slot.
    __device__ __forceinline__ u64* flag(char* window, int key) const {
        return reinterpret_cast<u64*>(window + Slots::kFlags) + set() * Slots::kKeys + key;
    }

    /// The count of a closed key.
    __device__ __forceinline__ u64* closed(char* window, int key) const {
        constexpr int kClosedKeys = Slots::kShared * kPeers;
        return reinterpret_cast<u64*>(window + Slots::kClosed) + set() * kClosedKeys + key;
    }

    /// The closed key of `source` with this number among those that it shares with no other one.
    static __device__ __forceinline__ int key_of(int number, int source) {
        return (number / kStride * kPeers + source) * kStride + number % kStride;
    }

    /// The source of a closed key.
    static __device__ __forceinline__ int closer_of(int key) { return key / kStride % kPeers; }

    /// The source of a slot, if its key names one; else -1.
    static __device__ __forceinline__ int source_of(int key) {
        constexpr int kApart = Slots::kSourceStride == 0 ? 1 : Slots::kSourceStride;
        return Slots::kSourceStride == 0 ? -1 : key / kApart % kPeers;
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

    Team& team_;
};

/// The sending end.
template <class Slots>
class SlotRowsOut : SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    using End::team_;

public:
    using End::kPeers;

    __device__ __forceinline__ explicit SlotRowsOut(Team& team) : End(team) {}

    /// Waits until a slot of `peer` is free, and takes it. False: it is not sent, since the peer takes
    /// no part in the call or the team is stopped, by this warp if there are more arrivals than slots.
    __device__ __forceinline__ bool reserve(int peer, int key) {
        peer_ = peer, key_ = key, arrival_ = 0;
        if (team_.stopped || !End::alive(peer)) return false;
        const u32* released = reinterpret_cast<const u32*>(team_.group.window + Slots::kReleased);
        const u32 want = team_.epoch - Slots::kEpochs;
        const Site site{Slots::kChannel, Waiting::kCredit, -1, team_.rank_of(peer, kPeers), want};
        // M4: pairs with the release of the receiver's end; all lanes store after the barrier.
        wait_counter(team_, site, team_.leader() ? released + peer : nullptr);
        if (team_.stopped) return false;
        return Slots::kCounts ? take() : true;
    }

    /// Which of the slots of its key was taken.
    __device__ __forceinline__ int position() const { return arrival_; }

    /// The slot: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ char* slot() const {
        return End::place(End::window_of(peer_), key_, arrival_);
    }

    /// Publishes the slot, which all lanes have written, unless `close` does.
    __device__ __forceinline__ void publish() {
        __syncwarp();
        if constexpr (!Slots::kCounts) {
            // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
            if (team_.leader() && !team_.stopped) {
                store_release_sys(End::flag(End::window_of(peer_), key_), stamped(team_.epoch, 1));
            }
            __syncwarp();
        }
    }

    /// Ends what one of `closers` warps sends in this call; the last one tells every peer how much came.
    __device__ __forceinline__ void close(int closers) {
        if (!End::is_last(Slots::kClosers, static_cast<u32>(closers))) return;
        u32* taken = reinterpret_cast<u32*>(team_.group.window + Slots::kTaken);
#pragma unroll 1
        for (int i = team_.lane; i < kPeers * Slots::kShared; i += kLanes) {
            const int peer = i / Slots::kShared;
            const u32 count = load_relaxed_gpu(taken + i);
            store_relaxed_gpu(taken + i, 0u);
            if (team_.stopped || !End::joins(peer)) continue;
            const int key = End::key_of(i % Slots::kShared, team_.own(kPeers));
            // M1: every warp's stores come before it, through the counter; the receiver acquires.
            u64* closed = End::closed(End::window_of(peer), key);
            store_release_sys(closed, stamped(team_.epoch, count + 1));
        }
        __syncwarp();
    }

private:
    /// Takes the next slot of the key. False: there is none.
    __device__ __forceinline__ bool take() {
        constexpr int kStride = End::kStride;
        const int number = key_ / (kStride * kPeers) * kStride + key_ % kStride;
        u32* taken = reinterpret_cast<u32*>(team_.group.window + Slots::kTaken);
        u32 before = 0;
        if (team_.leader()) {
            before = fetch_add_relaxed_gpu(taken + peer_ * Slots::kShared + number, 1);
        }
        before = __shfl_sync(kAllLanes, before, 0);
        arrival_ = static_cast<int>(before);
        if (before < static_cast<u32>(Slots::kArrivals)) return true;
        const Site site{Slots::kChannel, Waiting::kCapacity, -1, team_.rank_of(peer_, kPeers),
                        before + 1};
        give_up(team_.group, team_.epoch, team_.role, site, Slots::kArrivals, team_.leader(), true);
        team_.stopped = true;
        return false;
    }

    int peer_ = 0;
    int key_ = 0;
    int arrival_ = 0;
};

/// The receiving end.
template <class Slots>
class SlotRowsIn : SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    using End::team_;

public:
    using End::kPeers;

    __device__ __forceinline__ explicit SlotRowsIn(Team& team) : End(team) {}

    /// How many slots of a key its source has filled, once it has closed; none if it takes no part.
    __device__ __forceinline__ int count(int key) {
        const int source = End::closer_of(key);
        if (!End::joins(source)) return 0;
        const Site site{Slots::kChannel, Waiting::kClosed, -1, team_.rank_of(source, kPeers),
                        team_.epoch};
        const u32 through = wait_closed(site, team_.leader() ? key : -1);
        const u32 before = __shfl_sync(kAllLanes, through, 0);
        return before == 0 ? 0 : static_cast<int>(before - 1);
    }

    /// How many slots the sources before that of `key` have filled.
    __device__ __forceinline__ int base(int key) {
        const int source = End::closer_of(key);
        int sum = 0;
#pragma unroll 1
        for (int earlier = 0; earlier < source; ++earlier) {
            sum += count(key - (source - earlier) * End::kStride);
        }
        return sum;
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
                                used ? team_.rank_of(source, kPeers) : -1, team_.epoch};
                wait_closed(site, used ? key : -1);
            } else {
                const int source = key < 0 ? -1 : End::source_of(key);
                wait_for(source < 0 || End::joins(source) ? key : -1);
            }
        }
    }

    /// A slot that has come: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ const char* slot(int key, int arrival) const {
        return End::place(team_.group.window, key, arrival);
    }

    /// Ends the reading of this warp; the last warp of the role tells all sources.
    __device__ __forceinline__ void release() {
        if (!End::is_last(Slots::kReaders, static_cast<u32>(team_.count())) || team_.stopped) return;
#pragma unroll 1
        for (int peer = team_.lane; peer < kPeers; peer += kLanes) {
            if (!End::alive(peer)) continue;
            u32* released = reinterpret_cast<u32*>(End::window_of(peer) + Slots::kReleased);
            // M4: every warp's loads have completed, through the counter; `reserve` acquires.
            store_release_sys(released + team_.own(kPeers), team_.epoch);
        }
        __syncwarp();
    }

    /// Each lane waits for the slot of its key (-1: none). The lanes whose slot has come: a slot that
    /// nobody who takes part has filled never comes.
    __device__ __forceinline__ u32 wait_for(int key) {
        const u64* word = key < 0 ? nullptr : End::flag(team_.group.window, key);
        const int source = key < 0 ? -1 : End::source_of(key);
        const Site site{Slots::kChannel, Waiting::kFlag, -1,
                        source < 0 ? -1 : team_.rank_of(source, kPeers), team_.epoch};
        const u64 come = stamped(team_.epoch, 1);
        const bool all = everyone_is_alive(team_.group);
        const bool done = wait(team_, site, [&](u32& seen) {
            if (word == nullptr) return true;
            const u64 found = load_relaxed_sys(word);
            seen = epoch_of(found);
            return found == come || (!all && is_over(source));
        });
        // M2: pairs with the release in `publish`; all lanes load after the barrier.
        const bool here = done && word != nullptr && load_acquire_sys(word) == come;
        const u32 lanes = __ballot_sync(kAllLanes, here);
        __syncwarp();
        return lanes;
    }

private:
    /// Each lane waits until its key is closed (-1: none). Returns the word's value: it is not 0, so that
    /// no word that was never written looks closed when calls are counted from 0 on again; 0 if stopped.
    __device__ __forceinline__ u32 wait_closed(const Site& site, int key) {
        const u64* word = key < 0 ? nullptr : End::closed(team_.group.window, key);
        const bool done = wait(team_, site, [&](u32& seen) {
            if (word == nullptr) return true;
            const u64 found = load_relaxed_sys(word);
            seen = epoch_of(found);
            return seen == team_.epoch && value_of(found) != 0;
        });
        // M2: pairs with the release in `close`; all lanes load after the barrier.
        const u32 value = done && word != nullptr ? value_of(load_acquire_sys(word)) : 0;
        __syncwarp();
        return value;
    }

    /// Whether nobody fills slots of this call any more: one source, or all (-1).
    __device__ __forceinline__ bool is_over(int source) const {
        const int first = source < 0 ? 0 : source;
        const int end = source < 0 ? kPeers : source + 1;
        bool over = true;
        for (int peer = first; peer < end; ++peer) {
            // M2: pairs with the release in `close`: what it sent comes before it.
            const u64 closed = load_acquire_sys(End::closed(team_.group.window, peer));
            const bool has = epoch_of(closed) == team_.epoch && value_of(closed) != 0;
            over = over && (has || !End::joins(peer));
        }
        return over;
    }
};

/// Slots that the parts of a token are in, a lane for each of `kParts` parts: a source of `Parts`.
template <class Slots, int kParts>
class SlotParts {
public:
    static constexpr int kGroups = (kParts + kLanes - 1) / kLanes;

    __device__ __forceinline__ SlotParts(Team& team, SlotRowsIn<Slots>& slots)
        : team_(team), slots_(slots) {}

    /// Slots are waited for one by one.
    __device__ __forceinline__ void wait_ready() const {}

    /// Waits until the slots with these keys (negative: none) have come; a key whose slot never comes
    /// becomes -1.
    __device__ __forceinline__ bool arrived(i32 (&keys)[kGroups], bool) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const u32 come = slots_.wait_for(keys[g]);
            if ((come >> team_.lane & 1) == 0) keys[g] = -1;
        }
        return !team_.stopped;
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
    SlotRowsIn<Slots>& slots_;
};

}  // namespace ep
