// Rows of slots as words (as_words.cuh), to a receiver with few tokens.
//
// A receiver says to every rank, as it enters a call, whether it takes words: it does with at most `kFewTokens` tokens. A
// sender with as few rows for it waits to hear that. Then a message that goes to one of the first `kFewTokens` slots of a
// source goes as words: it needs no slot, and no flag follows it. A sender that has more rows for such a receiver fills
// slots, so the receiver looks at the first flag as well.
//
// `Slots` is the channel's Cfg struct, with, in a window,
//   kTakesWords  [receiver]       {epoch, 1} if it takes words, {epoch, 2} if not, at the sender
//   kAsWords     [source, place]  kWordRowBytes each; kFewTokens places. Calls need no places of their own: a sender has
//                                 heard that the receiver is in this one
#pragma once

#include <ep/as_words.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// The answers of a receiver: send words, or fill slots.
constexpr u32 kTakes = 1, kTakesNot = 2;

/// Where the messages that a rank takes as words are.
template <class Slots>
struct FewSlots {
    /// The row of a message; behind it are the words of its other fields.
    static __device__ __forceinline__ WordPair* at(char* window, int source, int place) {
        const i64 row = static_cast<i64>(source) * Slots::kFewTokens + place;
        return reinterpret_cast<WordPair*>(window + Slots::kAsWords + row * Slots::kWordRowBytes);
    }

    /// The words of its other fields.
    static __device__ __forceinline__ u64* fields(WordPair* row) { return words_behind<Slots::kMeta>(row); }

    /// The word in the sender's window that holds the receiver's answer.
    static __device__ __forceinline__ u64* takes(char* window, int receiver) {
        return reinterpret_cast<u64*>(window + Slots::kTakesWords) + receiver;
    }
};

/// Eight neighbors of a row with values of two bytes, which are a unit.
template <class T>
__device__ __forceinline__ Quad& unit_of(Wide<T>& values) {
    static_assert(sizeof(Wide<T>) == sizeof(Quad), "a unit has eight values");
    return reinterpret_cast<Quad&>(values);
}

/// A place in a message that goes to a slot, or as words.
template <class Slots>
struct SlotPlace {
    char* slot;
    WordPair* words;  // of its row; null: it goes to the slot
    u32 epoch;
    int at;  // bytes from the begin of the slot

    __device__ __forceinline__ SlotPlace operator+(int more) const {
        return SlotPlace{slot + more, words, epoch, at + more};
    }

    /// Puts a unit of 16 bytes of the row, the number of which counts from this place.
    __device__ __forceinline__ void unit(int number, const Quad& it) const {
        send_unit(words, at / 16 + number, it, epoch);
    }

    /// Puts element `i` from this place on, of the other fields.
    template <class T>
    __device__ __forceinline__ void element(int i, T value) const {
        static_assert(sizeof(T) == 4, "fields beside a row as words have elements of 32 bits");
        store_relaxed_sys(FewSlots<Slots>::fields(words) + (at - Slots::kMeta) / 4 + i, stamped(epoch, bits_of(value)));
    }
};

/// Writes element `i` of a field of a message.
template <class T, class Slots>
__device__ __forceinline__ void set(const SlotPlace<Slots>& field, int i, T value) {
    if (field.words == nullptr) return set<T>(field.slot, i, value);
    field.element(i, value);
}

/// Copies a field of a message; warp.
template <class T, int kBatch = 8, class Slots>
__device__ __forceinline__ void copy_row(const Team& team, const SlotPlace<Slots>& field, const void* from, int count) {
    if (field.words == nullptr) return copy_row<T, kBatch>(team, field.slot, from, count);
#pragma unroll 1
    for (int i = team.lane; i < count; i += kLanes) field.element(i, static_cast<const T*>(from)[i]);
}

/// Writes eight neighbors that the row, or the field, has.
template <class T, class Slots>
__device__ __forceinline__ void set_wide(const SlotPlace<Slots>& row, int i, int count, Wide<T> all) {
    if (row.words == nullptr) return set_wide<T>(row.slot, i, count, all);
    if constexpr (sizeof(T) == 2) {
        if (i < count) row.unit(i / kWide, unit_of(all));
    } else {
#pragma unroll
        for (int k = 0; k < kWide; ++k) {
            if (i + k < count) row.element(i + k, all.get(k));
        }
    }
}

/// Writes several stretches to a slot. A message that goes as words takes eight neighbors at a time, so the check of alignment
/// says no for it.
template <class T, class Slots, int kCount>
__device__ __forceinline__ void set_wide(const SlotPlace<Slots>& row, WholeStretches<kCount> at, int count,
                                         const Wide<T, kCount * kWide>& all) {
    set_wide<T>(row.slot, at, count, all);
}
template <class T, class Slots>
__device__ __forceinline__ void set_wide(const SlotPlace<Slots>& row, Alignment at, int count, const Wide<T>& all) {
    set_wide<T>(row.slot, at, count, all);
    at.whole = at.whole && row.words == nullptr;
}

/// The values of a lane at a place of the rows of all parts, which come as words.
template <class T, int kParts, class Parts, class At>
struct PartsAsWords {
    const Parts& parts;
    At i;
    int count;

    /// `each(part, values)`, in order, for every part that there is.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        constexpr int kBatch = kParts < 2 ? kParts : 2;
#pragma unroll 1
        for (int first = 0; first < kParts; first += kBatch) {
            WideAt<T, At> values[kBatch] = {};
            const u32 there = parts.template read<T>(first, i, count, values);
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if ((there >> k & 1) != 0) each(first + k, values[k]);
            }
        }
    }
};

}  // namespace ep
