// Rows that travel as words.
//
// Every 32 bits of a row go as a word {epoch, bits} (M7), as those of slots do (slots.cuh): it says by itself
// that it has come, so that nobody fences, tells, or looks at a flag first. That takes twice the bytes. Where rows
// are few it takes less time: a fence between GPUs is 1.6 us on an H100.
//
// In call 0, which comes after 2^32 others, a word that was never written looks as if it had come: rows go another
// way then.
//
// A row is cut into parts, a warp each, so that all of one is on its way at once. Numbers that go with the row lie
// behind it, a word each.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Whether the rows of a rank with so many tokens may be words, where those of up to `kFewTokens` are.
template <class Channel>
__device__ __forceinline__ bool are_words(u32 epoch, int tokens) {
    return tokens <= Channel::kFewTokens && Channel::kFewTokens > 0 && epoch != 0;
}

/// Where the first half of unit `unit` of a row is among its words; the other one is a warp's halves further, so that lanes
/// that have neighboring units store side by side.
__device__ __forceinline__ int pair_of(int unit) { return unit / kLanes * 2 * kLanes + unit % kLanes; }

/// Sends a unit of a row as words of a call.
__device__ __forceinline__ void send_unit(WordPair* words, int unit, const Quad& it, u32 epoch) {
    WordPair* to = words + pair_of(unit);
    store_pair_relaxed_sys(to, WordPair{stamped(epoch, it.x), stamped(epoch, it.y)});
    store_pair_relaxed_sys(to + kLanes, WordPair{stamped(epoch, it.z), stamped(epoch, it.w)});
}

/// The words of a unit of a row.
struct UnitWords {
    WordPair halves[2];

    /// Asks for them.
    static __device__ __forceinline__ UnitWords load(const WordPair* words, int unit) {
        const WordPair* from = words + pair_of(unit);
        return UnitWords{{load_pair_relaxed_sys(from), load_pair_relaxed_sys(from + kLanes)}};
    }

    __device__ __forceinline__ Quad value() const {
        return Quad{value_of(halves[0].first), value_of(halves[0].second), value_of(halves[1].first),
                    value_of(halves[1].second)};
    }

    /// Whether all are those of a call. `seen`: the epoch of one that is not.
    __device__ __forceinline__ bool are_of(u32 epoch, u32& seen) const {
        bool come = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 own = epoch_of(i % 2 == 0 ? halves[i / 2].first : halves[i / 2].second);
            if (own == epoch) continue;
            seen = own;
            come = false;
        }
        return come;
    }
};

/// The words of numbers that lie behind those of a row of `kBytes`.
template <int kBytes>
__device__ __forceinline__ u64* words_behind(WordPair* row) {
    return reinterpret_cast<u64*>(row + (kBytes / 16 + kLanes - 1) / kLanes * 2 * kLanes);
}

/// A row of `kBytes`, a multiple of 16, as words; a lane has `kEach` units of a part. The words lie alike however
/// it is cut.
template <int kBytes, int kEach>
struct WordRow {
    static constexpr int kUnits = kBytes / 16;
    static constexpr int kLaneUnits = kEach;
    static constexpr int kParts = (kUnits + kEach * kLanes - 1) / (kEach * kLanes);

    static_assert(kBytes % 16 == 0, "rows are whole units");

    /// The lane's units of a part of a row.
    using Units = Quad[kEach];

    /// The number of the lane's unit `i` of a part.
    static __device__ __forceinline__ int unit(int part, int i) {
        return (part * kEach + i) * kLanes + lane_index();
    }

    /// Asks for them where the row lies whole; null: they are zero.
    static __device__ __forceinline__ void read(Units& units, const void* row, int part) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            units[i] = row != nullptr && is_in(part, i) ? load_quad(static_cast<const Quad*>(row) + unit(part, i))
                                      : Quad{0, 0, 0, 0};
        }
    }

    /// Writes them where the row is to lie whole.
    static __device__ __forceinline__ void write(void* row, const Units& units, int part) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (is_in(part, i)) store_quad(static_cast<Quad*>(row) + unit(part, i), units[i]);
        }
    }

    /// Sends them as words of a call.
    static __device__ __forceinline__ void send(WordPair* words, const Units& units, int part,
                                                u32 epoch) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (is_in(part, i)) send_unit(words, unit(part, i), units[i], epoch);
        }
    }

    /// Looks once for the lane's words of a part; whether all are those of the call. `seen`: the epoch of one
    /// that is not.
    static __device__ __forceinline__ bool look(Units& units, const WordPair* words, int part,
                                                u32 epoch, u32& seen) {
        UnitWords found[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (is_in(part, i)) found[i] = UnitWords::load(words, unit(part, i));
        }
        bool come = true;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            units[i] = Quad{0, 0, 0, 0};
            if (!is_in(part, i)) continue;
            units[i] = found[i].value();
            come = found[i].are_of(epoch, seen) && come;
        }
        return come;
    }

    /// The numbers behind a row.
    static __device__ __forceinline__ u64* numbers(WordPair* words) { return words_behind<kBytes>(words); }

private:
    /// Whether the row has the lane's unit `i` of a part.
    static __device__ __forceinline__ bool is_in(int part, int i) { return unit(part, i) < kUnits; }
};

}  // namespace ep
