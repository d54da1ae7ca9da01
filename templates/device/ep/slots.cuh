// Slots: a fixed place for each source, in each receiver's window, used anew in every call.
//
// Every 32 bits of a message travel as a word {epoch, bits} (M7), which says by itself that it has
// come: a message takes one way over the wire, with no fence, no flag behind it and no
// acknowledgement. The places of `kEpochs` calls, at least two, are kept apart. That is enough: who
// sends in call n + 2 has taken the messages of call n + 1 from all ranks, and each rank sent those
// after its call n.
//
// `Slots` is the channel's Cfg struct. In a window,
//   kSlots [epoch % kEpochs, source] kSlotBytes each     kWords words that the source wrote
#pragma once

#include <ep/compute.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The words of a message in its place, or of a field of it.
struct SlotWords {
    u64* words;
    u32 epoch;

    /// The field that starts `bytes` further.
    __device__ __forceinline__ SlotWords operator+(int bytes) const {
        return SlotWords{words + bytes / 8, epoch};
    }
};

/// The word of element `i` of a field whose elements are words.
__device__ __forceinline__ u64* word_of(const SlotWords& field, int i) {
    return field.words + i;
}

/// The bits of an element of at most four bytes, and back.
template <class T>
union SlotBits {
    u32 bits;
    T value;
};

/// Element `i` of a field of a received message.
template <class T>
__device__ __forceinline__ T get(const SlotWords& field, int i) {
    if constexpr (sizeof(T) == 8) {
        const u64 low = value_of(load_relaxed_sys(field.words + 2 * i));
        const u64 high = value_of(load_relaxed_sys(field.words + 2 * i + 1));
        return static_cast<T>(high << 32 | low);
    } else {
        SlotBits<T> element{value_of(load_relaxed_sys(field.words + i))};
        return element.value;
    }
}

/// Writes an element; one lane's own work.
template <class T>
__device__ __forceinline__ void set(const SlotWords& field, int i, T value) {
    if constexpr (sizeof(T) == 8) {
        const u64 bits = static_cast<u64>(value);
        store_relaxed_sys(field.words + 2 * i, stamped(field.epoch, static_cast<u32>(bits)));
        const u32 high = static_cast<u32>(bits >> 32);
        store_relaxed_sys(field.words + 2 * i + 1, stamped(field.epoch, high));
    } else {
        SlotBits<T> element{0};
        element.value = value;
        store_relaxed_sys(field.words + i, stamped(field.epoch, element.bits));
    }
}

/// Writes `count` elements `value(i)` of a field, a lane each; what they are made of is loaded
/// ahead of the first word.
template <class T, class Value>
__device__ __forceinline__ void put(const SlotWords& field, int count, Value value) {
    in_batches<4, T>(count, value, [&](int i, T element) { set<T>(field, i, element); });
}

/// One warp's view of a slots channel; all lanes call every method.
template <class Slots>
class SlotChannel {
public:
    __device__ __forceinline__ explicit SlotChannel(Team& team)
        : team_(team), set_(static_cast<int>(team.epoch % Slots::kEpochs)) {}

    /// This rank's place in the window of `peer`, all of whose words are written (M7: each is
    /// published by its epoch; `await` sees it).
    __device__ __forceinline__ SlotWords to(int peer) const {
        char* window = team_.group.windows[team_.rank_of(peer, Slots::kPeers)];
        return place(window, team_.own(Slots::kPeers));
    }

    /// What `source` wrote for this rank; after `await`.
    __device__ __forceinline__ SlotWords from(int source) const {
        return place(team_.group.window, source);
    }

    /// Waits for the words of all sources: the lanes share the sources, and look at several words
    /// at once.
    __device__ __forceinline__ void await() {
        constexpr int kAhead = 8;
        constexpr int kSharing = Slots::kPeers < kLanes ? kLanes / Slots::kPeers : 1;
        constexpr int kSources = kLanes / kSharing;
#pragma unroll 1
        for (int first = 0; first < Slots::kPeers; first += kSources) {
            const int source = first + team_.lane / kSharing;
            const bool skipped = Slots::kSkipsOwn && source == team_.group.rank;
            const bool used = source < Slots::kPeers && !skipped;
            const u64* words = from(used ? source : 0).words;
            int next = used ? team_.lane % kSharing : Slots::kWords;
            const Site site{Slots::kChannel, Waiting::kFlag, -1, used ? source : -1, team_.epoch};
            wait(team_, site, [&](u32& seen) {
                u64 ahead[kAhead];
#pragma unroll
                for (int k = 0; k < kAhead; ++k) {
                    const int at = next + k * kSharing;
                    ahead[k] = at < Slots::kWords ? load_relaxed_sys(words + at) : 0;
                }
                bool come = true;
#pragma unroll
                for (int k = 0; k < kAhead; ++k) {
                    if (!come) continue;
                    seen = epoch_of(ahead[k]);
                    come = seen == team_.epoch;
                    next += come ? kSharing : 0;
                }
                return next >= Slots::kWords;
            });
        }
    }

private:
    __device__ __forceinline__ SlotWords place(char* window, int source) const {
        const i64 at = static_cast<i64>(set_ * Slots::kPeers + source) * Slots::kSlotBytes;
        return SlotWords{reinterpret_cast<u64*>(window + Slots::kSlots + at), team_.epoch};
    }

    Team& team_;
    int set_;
};

}  // namespace ep
