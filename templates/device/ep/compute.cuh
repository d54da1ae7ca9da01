// The arithmetic of declarations: folds, counters and the helpers of the expression language.
//
// "Warp" functions are called by all lanes of a warp with the same arguments.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

// ---- Helpers of the language ----

/// The least multiple of `unit` that is not below `value`.
__device__ __forceinline__ i32 align(i32 value, i32 unit) {
    return (value + unit - 1) / unit * unit;
}

/// Division that rounds up.
__device__ __forceinline__ constexpr i32 ceil(i32 value, i32 unit) {
    return (value + unit - 1) / unit;
}

/// The lesser value.
__device__ __forceinline__ i32 min(i32 a, i32 b) {
    return a < b ? a : b;
}

/// The greater value.
__device__ __forceinline__ i32 max(i32 a, i32 b) {
    return a > b ? a : b;
}

/// The least 64-bit multiple of `unit` that is not below `value`. Whole numbers of the language have 64 bits.
__device__ __forceinline__ i64 align(i64 value, i64 unit) {
    return (value + unit - 1) / unit * unit;
}

/// Division of 64-bit numbers that rounds up.
__device__ __forceinline__ i64 ceil(i64 value, i64 unit) {
    return (value + unit - 1) / unit;
}

/// The lesser 64-bit value.
__device__ __forceinline__ i64 min(i64 a, i64 b) {
    return a < b ? a : b;
}

/// The greater 64-bit value.
__device__ __forceinline__ i64 max(i64 a, i64 b) {
    return a > b ? a : b;
}

/// The bits that are set in exactly one of two numbers.
__device__ __forceinline__ i64 bit_xor(i64 a, i64 b) { return a ^ b; }

/// What a maximum over nothing is: no value is less.
template <class T>
__device__ __forceinline__ T least();
template <>
__device__ __forceinline__ float least<float>() {
    return __uint_as_float(0xff800000u);
}
template <>
__device__ __forceinline__ i64 least<i64>() {
    return -0x7fffffffffffffff - 1;
}

/// What a minimum over nothing is.
template <class T>
__device__ __forceinline__ T greatest();
template <>
__device__ __forceinline__ float greatest<float>() {
    return __uint_as_float(0x7f800000u);
}
template <>
__device__ __forceinline__ i64 greatest<i64>() {
    return 0x7fffffffffffffff;
}

/// The greater value, as a maximum is folded: the first of equal ones, and the first NaN.
template <class T>
__device__ __forceinline__ T greater(T a, T b) {
    return a >= b || a != a ? a : b;
}

/// The lesser value, as a minimum is folded.
template <class T>
__device__ __forceinline__ T lesser(T a, T b) {
    return a <= b || a != a ? a : b;
}

/// Whether the bit of `index` is set.
__device__ __forceinline__ bool has(i64 bits, i64 index) {
    return index >= 0 && index < 64 && (bits >> index & 1) != 0;
}

/// `bits` with the bit of `index`, if that is one of the first `count`.
__device__ __forceinline__ i64 with_bit(i64 bits, i64 index, i64 count) {
    return index >= 0 && index < count ? bits | static_cast<i64>(1ull << index) : bits;
}

/// The experts of one rank: `first`, and how many.
struct Experts {
    i32 first, count;

    /// Index of `expert` among them, or -1: `local(expert, rank)`.
    __device__ __forceinline__ i32 local(i64 expert) const {
        const i64 index = expert - first;
        return index >= 0 && index < count ? static_cast<i32>(index) : -1;
    }
};

/// The experts of `rank`, as placed by `expert_begin`.
__device__ __forceinline__ Experts experts_of(const i32* expert_begin, int rank) {
    return Experts{expert_begin[rank], expert_begin[rank + 1] - expert_begin[rank]};
}

/// Index of `expert` among those of `rank`, or -1: `local(expert, rank)`.
__device__ __forceinline__ i32 local_expert(const i32* expert_begin, int rank, i64 expert) {
    return experts_of(expert_begin, rank).local(expert);
}

/// The greatest power of two below `count`; 0 for 1.
__device__ constexpr int power_below(int count) {
    int power = 1;
    while (power * 2 < count) power *= 2;
    return power < count ? power : 0;
}

/// The ranks of some experts, -1 for an absent or unknown one; one lane's own work.
template <int kRanks, int kCount>
__device__ __forceinline__ void find_owners(const i64 (&experts)[kCount], const i32* expert_begin,
                                            i32 (&ranks)[kCount]) {
    const i32 end = expert_begin[kRanks];
    i32 ids[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        ids[k] = static_cast<u64>(experts[k]) < static_cast<u64>(end) ? experts[k] : -1;
        ranks[k] = 0;
    }
    // Halves the ranks; the loads of a step travel together. Behind the last rank lies the end of
    // all experts, which none reaches.
#pragma unroll
    for (i32 step = power_below(kRanks); step > 0; step /= 2) {
        i32 begins[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k) begins[k] = expert_begin[min(ranks[k] + step, kRanks)];
#pragma unroll
        for (int k = 0; k < kCount; ++k) ranks[k] += begins[k] <= ids[k] ? step : 0;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) ranks[k] = ids[k] >= 0 ? ranks[k] : -1;
}

/// The rank of an expert, `owner(expert)`; -1 for an absent or unknown one.
template <int kRanks>
__device__ __forceinline__ i32 owner(i64 expert, const i32* expert_begin) {
    const i64 experts[1] = {expert};
    i32 ranks[1];
    find_owners<kRanks>(experts, expert_begin, ranks);
    return ranks[0];
}

/// A row of a tensor, held by one lane.
template <class T, int kCount>
struct Row {
    T values[kCount];
    bool present;  // false: this lane has no row, and the values mean nothing

    /// `body(value)` for every value; none in a lane without a row.
    template <class Body>
    __device__ __forceinline__ void for_each(Body body) const {
        if (!present) return;
#pragma unroll
        for (int k = 0; k < kCount; ++k) body(values[k]);
    }

    /// `body(value)` for every value that is not among those before it; none in a lane without a row.
    template <class Body>
    __device__ __forceinline__ void for_each_once(Body body) const {
        if (!present) return;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            bool again = false;
#pragma unroll
            for (int earlier = 0; earlier < k; ++earlier) again = again || values[earlier] == values[k];
            if (!again) body(values[k]);
        }
    }
};

/// The row at `values`, whose loads travel together.
template <int kCount, class T>
__device__ __forceinline__ Row<T, kCount> row_of(const T* values, bool present = true) {
    Row<T, kCount> row;
    row.present = present;
#pragma unroll
    for (int k = 0; k < kCount; ++k) row.values[k] = values[k];
    return row;
}

/// A set of ranks, such as those that a token goes to: a word for each 64.
template <int kWords>
struct RankSet {
    u64 words[kWords];

    /// Whether `rank` is one of them: `routed(ids, rank)`.
    __device__ __forceinline__ bool has(int rank) const {
        // Two words stay in registers.
        const u64 word = kWords > 2 ? words[rank >> 6] : rank < 64 ? words[0] : words[kWords - 1];
        return (word >> (rank & 63) & 1) != 0;
    }

    __device__ __forceinline__ void add(int rank) { words[kWords == 1 ? 0 : rank >> 6] |= u64{1} << (rank & 63); }

    /// Whether there is any.
    __device__ __forceinline__ bool any() const {
        u64 all = 0;
#pragma unroll
        for (int word = 0; word < kWords; ++word) all |= words[word];
        return all != 0;
    }

    /// A bit for each of at most 64 ranks from `first` on: `routed_bits(ids, node)`.
    __device__ __forceinline__ i64 bits(int first, int count) const {
        const int word = kWords == 1 ? 0 : first >> 6;
        const int shift = first & 63;
        u64 bits = words[word] >> shift;
        if (kWords > 1 && shift > 0 && word + 1 < kWords) bits |= words[word + 1] << (64 - shift);
        return static_cast<i64>(count < 64 ? bits & ((1ull << count) - 1) : bits);
    }

    /// Whether one of `count` ranks from `first` on is one of them: `routed_node(ids, node)`.
    __device__ __forceinline__ bool has_any(int first, int count) const {
        bool any = false;
#pragma unroll 1
        for (int i = 0; i < count; i += 64) any |= bits(first + i, min(count - i, 64)) != 0;
        return any;
    }
};

/// Words of a set of so many ranks.
__device__ __forceinline__ constexpr int rank_words(int ranks) { return (ranks + 63) / 64; }

/// The ranks that own at least one of the experts of a row; none for a lane without one.
template <int kRanks, int kCount>
__device__ __forceinline__ RankSet<rank_words(kRanks)> ranks_of(const Row<i64, kCount>& row,
                                                               const i32* expert_begin) {
    i32 ranks[kCount];
    find_owners<kRanks>(row.values, expert_begin, ranks);
    RankSet<rank_words(kRanks)> set{};
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        // The shift of 32 bits is enough for most groups, and cheaper.
        const u64 bit = kRanks <= 32 ? u64{1u << (ranks[k] & 31)} : 1ull << (ranks[k] & 63);
#pragma unroll
        for (int word = 0; word < rank_words(kRanks); ++word) {
            const bool is_here = kRanks <= 64 || ranks[k] >> 6 == word;
            set.words[word] |= ranks[k] >= 0 && row.present && is_here ? bit : 0;
        }
    }
    return set;
}

/// Writes a row of truths `flag(i)`, four of them at once where they lie in whole words; one lane's own work.
template <int kCount, class Flag>
__device__ __forceinline__ void store_flags(bool* flags, Flag flag) {
    constexpr int kWords = kCount / 4;
    if (kCount % 4 == 0 && reinterpret_cast<u64>(flags) % 4 == 0) {
#pragma unroll(kWords <= 16 ? kWords : 1)
        for (int word = 0; word < kWords; ++word) {
            u32 four = 0;
#pragma unroll
            for (int k = 0; k < 4; ++k) four |= (flag(4 * word + k) ? 1u : 0u) << 8 * k;
            reinterpret_cast<u32*>(flags)[word] = four;
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < kCount; ++i) flags[i] = flag(i);
    }
}

/// The numbers of a row in 32 bits, held by one lane.
template <int kCount>
struct Ids {
    i32 ids[kCount];

    /// Whether `id` is one of them: `listed(ids, id)`.
    __device__ __forceinline__ bool has(i32 id) const {
        bool found = false;
#pragma unroll
        for (int k = 0; k < kCount; ++k) found |= ids[k] == id;
        return found;
    }
};

/// The numbers of a row, -1 for those out of range and for a lane without a row.
template <int kCount>
__device__ __forceinline__ Ids<kCount> ids_of(const Row<i64, kCount>& row) {
    Ids<kCount> all;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        const i32 low = static_cast<i32>(row.values[k]);
        all.ids[k] = low == row.values[k] && row.present ? low : -1;
    }
    return all;
}

// ---- Loops and folds of a warp ----

/// `body(i)` for every i from `begin` to `end`, a lane each; warp.
template <class Body>
__device__ __forceinline__ void for_lanes(int begin, int end, Body body) {
#pragma unroll 1
    for (int i = begin + lane_index(); i < end; i += kLanes) body(i);
    __syncwarp();
}

/// Sum of `value(i)` for i below `count`, in order; one lane's own work.
template <class T, class Value>
__device__ __forceinline__ T sum(int count, Value value) {
    T total = 0;
    for (int i = 0; i < count; ++i) total += value(i);
    return total;
}

/// Sum of `value(i)` for i from `begin` to `end`, in order; one lane's own work.
template <class T, class Value>
__device__ __forceinline__ T sum(int begin, int end, Value value) {
    return sum<T>(end - begin, [&](int i) { return value(begin + i); });
}

/// The sum of the values of all lanes up to and with this one.
__device__ __forceinline__ i32 lanes_through(i32 value) {
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
        const i32 left = __shfl_up_sync(kAllLanes, value, step);
        if (lane_index() >= step) value += left;
    }
    return value;
}

/// The sum of the values of all lanes, in all of them; warp.
__device__ __forceinline__ i64 sum_of_lanes(i64 value) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, step);
    }
    return value;
}

/// The bits that any lane has set; warp.
__device__ __forceinline__ u32 any_of_lanes(u32 bits) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        bits |= __shfl_xor_sync(kAllLanes, bits, step);
    }
    return bits;
}

/// How many rows from `from` up to `to` have an element of which `holds(row, k)` is true, where each has `kWidth`;
/// warp. The lanes look at neighbouring elements of a row for each lane.
template <int kWidth, class Holds>
__device__ __forceinline__ i64 rows_with(i64 from, i64 to, Holds holds) {
    constexpr int kAtOnce = kSpareRegisters ? kWidth : 2;
    const int lane = lane_index();
    i64 rows = 0;
#pragma unroll 1
    for (i64 first = from; first < to; first += kLanes) {
        const int elements = static_cast<int>(min(to - first, i64{kLanes})) * kWidth;
        u32 found = 0;  // a bit for each row
#pragma unroll kAtOnce
        for (int k = 0; k < kWidth; ++k) {
            // Without a branch, so that all looks travel together: those past the end are at the first row.
            const int i = k * kLanes + lane;
            const bool is_in = i < elements;
            const bool hit = holds(is_in ? first + i / kWidth : first, i % kWidth);
            found |= (is_in && hit ? 1u : 0u) << (i / kWidth);
        }
        rows += __popc(any_of_lanes(found));
    }
    return rows;
}

/// How many rows hold what each of the first `askers` lanes asks for: `holds(row, k, asked..)` with the numbers of that lane;
/// warp. With many rows, each lane looks at a row for all of these lanes.
template <int kWidth, class Holds, class... Asked>
__device__ __forceinline__ i64 rows_with_each(i64 from, i64 to, int askers, Holds holds, Asked... asked) {
    constexpr int kFew = 8;
    const auto is_hit = [&](i64 row, Asked... of) {
        bool hit = false;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) hit |= holds(row, k, of...);
        return hit;
    };
    i64 rows = 0;
    if (to - from <= kFew) {
#pragma unroll 1
        for (i64 row = from; row < to; ++row) rows += is_hit(row, asked...) ? 1 : 0;
        return rows;
    }
#pragma unroll 1
    for (i64 first = from; first < to; first += kLanes) {
        const bool is_in = first + lane_index() < to;
        const i64 row = is_in ? first + lane_index() : first;
#pragma unroll 1
        for (int asker = 0; asker < kLanes && asker < askers; ++asker) {
            const bool hit = is_hit(row, __shfl_sync(kAllLanes, asked, asker)...);
            const u32 hits = __ballot_sync(kAllLanes, is_in && hit);
            if (lane_index() == asker) rows += __popc(hits);
        }
    }
    return rows;
}

/// How many of `kCount` running totals, which the lanes hold in groups, are at most `number`; warp.
template <int kCount, int kGroups>
__device__ __forceinline__ int totals_upto(const i32 (&totals)[kGroups], i32 number) {
    int found = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        const bool is_upto = g * kLanes + lane_index() < kCount && totals[g] <= number;
        found += __popc(__ballot_sync(kAllLanes, is_upto));
    }
    return found;
}

/// A whole number as bits, which sums of any size keep the lowest of.
__device__ __forceinline__ u32 bits_of(i32 value) { return static_cast<u32>(value); }
__device__ __forceinline__ u64 bits_of(i64 value) { return static_cast<u64>(value); }

/// Calls `sink(i, sum of value(0..i))` for i below `count`, a lane each; warp. Returns the total. Sums have the type of the
/// values, i32 or i64. What the values are made of is loaded ahead of the first sum.
template <class Value, class Sink>
__device__ __forceinline__ auto prefix_sum(int count, Value value, Sink sink) {
    using T = decltype(value(0));
    using Bits = decltype(bits_of(T{}));
    constexpr int kAhead = 4;
    const int lane = lane_index();
    Bits before = 0;
#pragma unroll 1
    for (int base = lane; base - lane < count; base += kAhead * kLanes) {
        Bits ahead[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
            const int i = base + k * kLanes;
            ahead[k] = i < count ? bits_of(value(i)) : 0;
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
            const int i = base + k * kLanes;
            if (i - lane >= count) break;
            Bits through = ahead[k];
#pragma unroll 1
            for (int step = 1; step < kLanes; step *= 2) {
                const Bits left = __shfl_up_sync(kAllLanes, through, step);
                if (lane >= step) through += left;
            }
            if (i < count) sink(i, static_cast<T>(before + through - ahead[k]));
            before += __shfl_sync(kAllLanes, through, kLanes - 1);
        }
    }
    __syncwarp();
    return static_cast<T>(before);
}

/// `prefix_sum`, and `sink(count, total)` for a table with one more entry.
template <class Value, class Sink>
__device__ __forceinline__ void prefix_sum_and_total(int count, Value value, Sink sink) {
    const auto total = prefix_sum(count, value, sink);
    if (lane_index() == 0) sink(count, total);
    __syncwarp();
}

// ---- Fields of a message ----

/// Element `i` of a field of a received message.
template <class T>
__device__ __forceinline__ T get(const char* field, int i) {
    return reinterpret_cast<const T*>(field)[i];
}

/// Writes element `i` of a field of a message that is being made.
template <class T>
__device__ __forceinline__ void set(char* field, int i, T value) {
    reinterpret_cast<T*>(field)[i] = value;
}

/// Calls `store(i, load(i))` for each of `count` elements, a lane each; several of a lane are loaded ahead of the first
/// store.
template <int kBatch, class T, class Load, class Store>
__device__ __forceinline__ void in_batches(int count, Load load, Store store) {
#pragma unroll 1
    for (int base = lane_index(); base < count; base += kBatch * kLanes) {
        T elements[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = base + k * kLanes;
            if (i < count) elements[k] = static_cast<T>(load(i));
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = base + k * kLanes;
            if (i < count) store(i, elements[k]);
        }
    }
}

/// Elements or units of a field that a lane asks for at once, if it cannot hold all of its own.
constexpr int kAskedAtOnce = 8;

/// The elements of a field of a meta record, a lane each. They are asked for here and written later, so that all fields of a
/// row travel at once, and while the row does.
template <class T, int kCount, class Value>
class Asked {
    static constexpr int kEach = (kCount + kLanes - 1) / kLanes;
    // More would not stay in registers.
    static constexpr bool kAhead = kEach <= kAskedAtOnce;

public:
    __device__ __forceinline__ explicit Asked(Value value) : value_(value) {
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const int i = k * kLanes + lane_index();
                if (i < kCount) ahead_[k] = static_cast<T>(value(i));
            }
        }
    }

    /// Writes the field where it is in the record.
    template <class Place>
    __device__ __forceinline__ void put(const Place& field) const {
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const int i = k * kLanes + lane_index();
                if (i < kCount) set<T>(field, i, ahead_[k]);
            }
        } else {
            in_batches<kAskedAtOnce, T>(kCount, value_, [&](int i, T element) { set<T>(field, i, element); });
        }
    }

    /// `store(i, element)` for each element, in its lane.
    template <class Store>
    __device__ __forceinline__ void each(Store store) const {
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const int i = k * kLanes + lane_index();
                if (i < kCount) store(i, ahead_[k]);
            }
        } else {
            in_batches<kAskedAtOnce, T>(kCount, value_, store);
        }
    }

private:
    Value value_;
    T ahead_[kAhead && kEach > 0 ? kEach : 1] = {};
};

/// Asks for the `kCount` elements `value(i)` of a field.
template <class T, int kCount, class Value>
__device__ __forceinline__ Asked<T, kCount, Value> ask(Value value) {
    return Asked<T, kCount, Value>(value);
}

/// A wide field whose elements lie side by side where they come from. Lanes load units of 16 bytes when the field is
/// asked for.
template <class T, int kCount>
class AskedUnits {
    static constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
    static constexpr int kUnits = kCount / kUnit;
    static constexpr int kEach = (kUnits + kLanes - 1) / kLanes;
    // More would not stay in registers.
    static constexpr bool kAhead = kEach <= 4;

public:
    __device__ __forceinline__ explicit AskedUnits(const T* from)
        : from_(from), whole_((reinterpret_cast<u64>(from) & 15) == 0) {
#pragma unroll
        for (int k = 0; k < kEach && kAhead; ++k) {
            const int at = k * kLanes + lane_index();
            if (whole_ && at < kUnits) ahead_[k] = unit(at);
        }
    }

    /// Writes the field to a place that is more than an address.
    template <class Place>
    __device__ __forceinline__ void put(const Place& field) const {
        if (field.words == nullptr) return put(field.slot);
#pragma unroll 1
        for (int i = lane_index(); i < kCount; i += kLanes) set<T>(field, i, from_[i]);
    }

    /// Writes the field where it is in the record.
    __device__ __forceinline__ void put(char* field) const {
        const bool whole = whole_ && (reinterpret_cast<u64>(field) & 15) == 0;
#pragma unroll
        for (int k = 0; k < kEach && kAhead; ++k) {
            const int at = k * kLanes + lane_index();
            if (whole && at < kUnits) store_units(field + at * 16, ahead_[k]);
        }
        if (!kAhead && whole) {
            in_batches<kAskedAtOnce, Quad>(kUnits, [&](int at) { return unit(at); },
                                           [&](int at, const Quad& it) { store_units(field + at * 16, it); });
        }
#pragma unroll 1
        for (int at = (whole ? kUnits * kUnit : 0) + lane_index(); at < kCount; at += kLanes) {
            reinterpret_cast<T*>(field)[at] = from_[at];
        }
    }

private:
    __device__ __forceinline__ Quad unit(int at) const {
        return load_quad(reinterpret_cast<const char*>(from_) + at * 16);
    }

    const T* from_;
    bool whole_;
    // Zeros: a lane keeps what it does not load, so that registers would be held for it from the start of the role on.
    Quad ahead_[kAhead ? kEach : 1] = {};
};

/// Asks for the `kCount` elements of a field from `from` on.
template <class T, int kCount>
__device__ __forceinline__ auto ask_row(const T* from) {
    if constexpr (kCount > kLanes) {
        return AskedUnits<T, kCount>(from);
    } else {
        return ask<T, kCount>([from](int i) { return from[i]; });
    }
}

// ---- Words for the host ----

/// A result that the host polls for: the word carries its own validity, the host fills it with -1
/// before the launch.
__device__ __forceinline__ void store_host(i32* word, i32 value) {
    store_relaxed_sys(reinterpret_cast<u32*>(word), static_cast<u32>(value));
}

}  // namespace ep
