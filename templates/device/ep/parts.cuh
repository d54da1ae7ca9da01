// The parts of one token, brought together from several peers by one warp, which reads them where they
// are.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// Where the parts of a token are. `Source` says whether they have arrived: RingsIn (rings.cuh) or
/// PullConsumer (pull.cuh). A lane for each peer, in groups of 32; every method is for the warp.
template <class Source>
class Parts {
    static constexpr int kGroups = Source::kGroups;

public:
    /// Whether all rows have been there, for bulk copies as well, since the first `open`.
    static constexpr bool kStays = Source::kStays;
    /// Whether rows may come as words.
    static constexpr bool kInWords = Source::kInWords;

    __device__ __forceinline__ Parts(Team& team, Source& source) : team_(team), source_(source) {}

    /// Begins a token: no peer has a part.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) entries_[g] = -1;
    }

    /// Says where the part of `peer` is, in the lane that keeps it; negative: nowhere.
    __device__ __forceinline__ void expect(int peer, i32 entry) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) entries_[g] = entry;
        }
    }

    /// Takes the parts of another token, as `other` has them.
    __device__ __forceinline__ void become(const Parts& other) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) entries_[g] = other.entries_[g];
    }

    /// Waits until all parts have arrived. False: the team is stopped.
    __device__ __forceinline__ bool open() {
        __syncwarp();
        source_.wait_ready();
        if (team_.stopped) return false;
        return source_.arrived(entries_, true);
    }

    /// Whether they have, so that `open` waits for nobody.
    __device__ __forceinline__ bool is_here() {
        __syncwarp();
        return source_.have_arrived(entries_);
    }

    /// The first peer that has a part; negative: none.
    __device__ __forceinline__ int first() const {
        int found = -1;
#pragma unroll
        for (int g = kGroups - 1; g >= 0; --g) {
            const u32 lanes = __ballot_sync(kAllLanes, entries_[g] >= 0);
            if (lanes != 0) found = g * kLanes + __ffs(static_cast<int>(lanes)) - 1;
        }
        return found;
    }

    /// Whether `peer` has a part.
    __device__ __forceinline__ bool has(int peer) const { return entry_of(peer) >= 0; }

    /// Whether there is the part that this lane keeps in a group.
    __device__ __forceinline__ bool keeps(int g) const { return entries_[g] >= 0; }

    /// The row of the part that this lane keeps in a group; null: there is none.
    __device__ __forceinline__ const char* own_row(int g) const {
        return keeps(g) ? source_.row(g, entries_[g]) : nullptr;
    }

    /// The row of a peer's part; null: it has none.
    __device__ __forceinline__ const char* row(int peer) const {
        const char* own = nullptr;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && entries_[g] >= 0) own = source_.row(g, entries_[g]);
        }
        return at_lane(own, peer);
    }

    /// Its other fields; null: it has none.
    __device__ __forceinline__ const char* meta(int peer) const {
        if constexpr (kInWords) source_.bring_fields(entries_);
        const char* own = nullptr;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && entries_[g] >= 0) own = source_.meta(g, entries_[g]);
        }
        return at_lane(own, peer);
    }

    /// Expects rows as words in this call if a rank with `tokens` tokens takes words.
    __device__ __forceinline__ void take_words(int tokens) { source_.take_words(tokens); }

    /// Whether rows are expected as words.
    __device__ __forceinline__ bool in_words() const { return source_.in_words(); }

    /// Reads the neighbors at a place of the rows of peers from `first` on, once they have come as words: a bit for each peer
    /// that has a part. The rows have `count` values.
    template <class T, class At, class Values, int kBatch>
    __device__ __forceinline__ u32 read(int first, At at, int count, Values (&values)[kBatch]) const {
        i32 keys[kBatch];
        u32 there = 0;
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            keys[k] = first + k < Source::kPartCount ? entry_of(first + k) : -1;
            if (keys[k] >= 0) there |= 1u << k;
        }
        source_.template read<T>(keys, at, count, values);
        return there;
    }

    /// Ends a token, whose parts all lanes have read.
    __device__ __forceinline__ void close() { source_.done(entries_); }

private:
    __device__ __forceinline__ i32 entry_of(int peer) const {
        i32 own = -1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) own = entries_[g];
        }
        return __shfl_sync(kAllLanes, own, peer % kLanes);
    }

    static __device__ __forceinline__ const char* at_lane(const char* own, int peer) {
        const u64 bits = __shfl_sync(kAllLanes, reinterpret_cast<u64>(own), peer % kLanes);
        return reinterpret_cast<const char*>(bits);
    }

    Team& team_;
    Source& source_;
    i32 entries_[kGroups] = {};
};

/// Computes `number(part)` for every part that there is; warp.
template <class T, int kParts, class Parts, class Number>
__device__ __forceinline__ LaneValues<T, kParts> part_values(const Parts& parts, Number number) {
    LaneValues<T, kParts> values = {};
#pragma unroll
    for (int g = 0; g < LaneValues<T, kParts>::kGroups; ++g) {
        if (parts.keeps(g)) values.own[g] = number(g * kLanes + lane_index());
    }
    __syncwarp();
    return values;
}

}  // namespace ep
