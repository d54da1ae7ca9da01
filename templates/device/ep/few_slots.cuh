// Rows of slots as words (as_words.cuh), to a receiver with few tokens.
//
// A receiver says to every rank, as its role begins, whether it takes words: it does with at most `kFewTokens` tokens. A
// sender with as few rows for it waits to hear that. Then a row that goes to one of the first `kFewTokens` slots of a source
// goes as words, and no flag follows it, but one that says that the other fields are in the slot. The receiver looks for
// either, so nobody has to know what the other one found.
//
// `Slots` is the channel's Cfg struct, with, in a window,
//   kTakesWords  [receiver]       {epoch, 1} if it takes words, {epoch, 2} if not, at the sender
//   kAsWords     [source, place]  kWordRowBytes each; kFewTokens places. Calls need none of their own: who sends has heard
//                                 that the receiver is in this one
#pragma once

#include <ep/as_words.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// What a rank says that it takes.
constexpr u32 kTakes = 1, kTakesNot = 2;

/// Where the rows that a rank takes as words are.
template <class Slots>
struct FewSlots {
    static __device__ __forceinline__ WordPair* at(char* window, int source, int place) {
        const i64 row = static_cast<i64>(source) * Slots::kFewTokens + place;
        return reinterpret_cast<WordPair*>(window + Slots::kAsWords + row * Slots::kWordRowBytes);
    }

    /// What a rank takes, at the sender.
    static __device__ __forceinline__ u64* takes(char* window, int receiver) {
        return reinterpret_cast<u64*>(window + Slots::kTakesWords) + receiver;
    }
};

/// A place in the row of a slot.
struct RowPlace {
    char* bytes;
    WordPair* words;  // of the row; null: it goes as bytes
    u32 epoch;
    int unit;  // of the row, where the place begins

    __device__ __forceinline__ RowPlace operator+(int more) const {
        return RowPlace{bytes + more, words, epoch, unit + more / 16};
    }

    /// Copies a slice of the row to this place; warp.
    template <class T>
    __device__ __forceinline__ void take(const Team& team, const AskedSlice<T>& slice) const {
        if (words == nullptr) return slice.put(team, bytes);
        slice.for_units([&](int number, const Quad& it) { send_unit(words, unit + number, it, epoch); });
    }
};

/// Eight neighbors of a row with values of two bytes, which are a unit.
template <class T>
__device__ __forceinline__ Quad& unit_of(Wide<T>& values) {
    static_assert(sizeof(Wide<T>) == sizeof(Quad), "a unit has eight values");
    return reinterpret_cast<Quad&>(values);
}

/// Writes those that the row has.
template <class T>
__device__ __forceinline__ void set_wide(const RowPlace& row, int i, int count, Wide<T> all) {
    if (row.words == nullptr) return set_wide<T>(row.bytes, i, count, all);
    if (i < count) send_unit(row.words, row.unit + i / kWide, unit_of(all), row.epoch);
}

/// The values of a lane at a place of the rows of all parts, which come as words.
template <class T, int kParts, class Parts>
struct PartsAsWords {
    const Parts& parts;
    int i, count;

    /// `each(part, values)`, in order, for every part that there is.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        constexpr int kBatch = kParts < 4 ? kParts : 4;
#pragma unroll 1
        for (int first = 0; first < kParts; first += kBatch) {
            Wide<T> values[kBatch] = {};
            const u32 there = parts.template read<T>(first, i, count, values);
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if ((there >> k & 1) != 0) each(first + k, values[k]);
            }
        }
    }
};

}  // namespace ep
