// Rows that are computed element by element, eight neighbours a lane: what one element takes, eight take
// at once, each with the same operations in the same order.
#pragma once

#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/each_slot.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// How many neighbours a lane has.
constexpr int kWide = 8;
/// How many neighbours the lanes of a warp have together.
constexpr int kTurn = kLanes * kWide;

/// Whether neighbours of a type are kept as packed words, each of which a register holds whole.
template <class T>
constexpr bool kPacked = false;
template <>
constexpr bool kPacked<bf16> = true;
template <>
constexpr bool kPacked<e4m3> = true;

/// Values of neighbors in a row, or of neighbors in each of several stretches of it.
template <class T, int kCount = kWide, bool kIsPacked = kPacked<T>>
struct alignas(kWide * sizeof(T) < 16 ? kWide * sizeof(T) : 16) Wide {
    T values[kCount];

    Wide() = default;

    /// Gives every element `value`.
    __device__ __forceinline__ Wide(T value) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) values[k] = value;
    }

    __device__ __forceinline__ T get(int k) const { return values[k]; }
    __device__ __forceinline__ void set(int k, T value) { values[k] = value; }

    __device__ __forceinline__ Wide& operator+=(const Wide& other) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) values[k] += other.values[k];
        return *this;
    }
};

template <class T, int kCount>
struct alignas(kWide * sizeof(T)) Wide<T, kCount, true> {
    static constexpr int kOfWord = 4 / sizeof(T), kBits = 8 * sizeof(T);

    u32 words[kCount / kOfWord];

    Wide() = default;

    __device__ __forceinline__ Wide(T value) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) set(k, value);
    }

    __device__ __forceinline__ T get(int k) const {
        return T{static_cast<decltype(T::bits)>(words[k / kOfWord] >> k % kOfWord * kBits)};
    }

    /// In order: a word begins with its first value.
    __device__ __forceinline__ void set(int k, T value) {
        const u32 bits = static_cast<u32>(value.bits) << k % kOfWord * kBits;
        u32& word = words[k / kOfWord];
        word = k % kOfWord == 0 ? bits : word | bits;
    }
};

/// `result(k)` for each element.
template <class T, int kCount = kWide, class Result>
__device__ __forceinline__ Wide<T, kCount> wide_of(Result result) {
    Wide<T, kCount> all;
#pragma unroll
    for (int k = 0; k < kCount; ++k) all.set(k, result(k));
    return all;
}

/// How many floats an operand has; 0: a single one, for all elements of the other operand.
template <class T>
constexpr int kFloats = 0;
template <int kCount>
constexpr int kFloats<Wide<float, kCount>> = kCount;

/// The result of operands of which one at least has several floats; no type otherwise.
template <int kCount>
struct WideResult {
    using Type = Wide<float, kCount>;
};
template <>
struct WideResult<0> {};
template <class A, class B>
using WideOf = typename WideResult<(kFloats<A> > kFloats<B> ? kFloats<A> : kFloats<B>)>::Type;

/// Element `k` of an operand.
__device__ __forceinline__ float element(float value, int) { return value; }
template <int kCount>
__device__ __forceinline__ float element(const Wide<float, kCount>& all, int k) {
    return all.values[k];
}

/// `result(a, b)` for the elements of two operands.
template <class A, class B, class Result>
__device__ __forceinline__ WideOf<A, B> by_element(const A& a, const B& b, Result result) {
    WideOf<A, B> all;
#pragma unroll
    for (int k = 0; k < kFloats<WideOf<A, B>>; ++k) all.values[k] = result(element(a, k), element(b, k));
    return all;
}

template <class A, class B>
__device__ __forceinline__ WideOf<A, B> operator+(const A& a, const B& b) {
    return by_element(a, b, [](float x, float y) { return x + y; });
}

template <class A, class B>
__device__ __forceinline__ WideOf<A, B> operator-(const A& a, const B& b) {
    return by_element(a, b, [](float x, float y) { return x - y; });
}

template <class A, class B>
__device__ __forceinline__ WideOf<A, B> product(const A& a, const B& b) {
    return by_element(a, b, [](float x, float y) { return product(x, y); });
}

template <class A, class B>
__device__ __forceinline__ WideOf<A, B> greater(const A& a, const B& b) {
    return by_element(a, b, [](float x, float y) { return greater(x, y); });
}
// Of two of one type: C++ prefers the function for single values to the one above.
template <int kCount>
__device__ __forceinline__ Wide<float, kCount> greater(const Wide<float, kCount>& a, const Wide<float, kCount>& b) {
    return by_element(a, b, [](float x, float y) { return greater(x, y); });
}

template <class A, class B>
__device__ __forceinline__ WideOf<A, B> lesser(const A& a, const B& b) {
    return by_element(a, b, [](float x, float y) { return lesser(x, y); });
}
template <int kCount>
__device__ __forceinline__ Wide<float, kCount> lesser(const Wide<float, kCount>& a, const Wide<float, kCount>& b) {
    return by_element(a, b, [](float x, float y) { return lesser(x, y); });
}

template <class A, class B>
__device__ __forceinline__ WideOf<A, B> operator/(const A& a, const B& b) {
    return by_element(a, b, [](float x, float y) { return x / y; });
}

template <class T, int kCount>
__device__ __forceinline__ Wide<float, kCount> to_float(const Wide<T, kCount>& all) {
    return wide_of<float, kCount>([&](int k) { return to_float(all.get(k)); });
}

template <int kCount>
__device__ __forceinline__ Wide<bf16, kCount> to_bf16(const Wide<float, kCount>& all) {
    Wide<bf16, kCount> packed;
#pragma unroll
    for (int k = 0; k < kCount; k += 2) packed.words[k / 2] = pack_bf16(all.values[k], all.values[k + 1]);
    return packed;
}

template <int kCount>
__device__ __forceinline__ Wide<e4m3, kCount> to_e4m3(const Wide<float, kCount>& all) {
    Wide<e4m3, kCount> packed;
#pragma unroll
    for (int k = 0; k < kCount; k += 4) {
        const u32 low = pack_e4m3(all.values[k], all.values[k + 1]);
        packed.words[k / 4] = low | pack_e4m3(all.values[k + 2], all.values[k + 3]) << 16;
    }
    return packed;
}

/// Whether eight elements from `at` on can be moved by units of 16 bytes, or by one of 8.
template <class T>
__device__ __forceinline__ bool is_whole(const T* at) {
    return reinterpret_cast<u64>(at) % alignof(Wide<T>) == 0;
}

/// Writes eight elements at once.
template <class T>
__device__ __forceinline__ void put_whole(T* at, const Wide<T>& all) {
    if constexpr (kPacked<T> && sizeof(Wide<T>) == sizeof(Quad)) {
        store_units(at, Quad{all.words[0], all.words[1], all.words[2], all.words[3]});
    } else {
        *reinterpret_cast<Wide<T>*>(at) = all;
    }
}

/// Elements `i` and following of a row of `count`, in global memory; zero past its end.
template <class T>
__device__ __forceinline__ Wide<T> get_wide(const void* row, int i, int count) {
    const T* at = static_cast<const T*>(row) + i;
    if (i + kWide <= count && is_whole(at)) return *reinterpret_cast<const Wide<T>*>(at);
    Wide<T> all;
#pragma unroll
    for (int k = 0; k < kWide; ++k) all.set(k, i + k < count ? at[k] : T{});
    return all;
}

/// Writes those that the row has.
template <class T>
__device__ __forceinline__ void set_wide(void* row, int i, int count, const Wide<T>& all) {
    T* at = static_cast<T*>(row) + i;
    if (i + kWide <= count && is_whole(at)) {
        put_whole(at, all);
        return;
    }
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
        if (i + k < count) at[k] = all.get(k);
    }
}

/// Neighbours of a lane in several stretches of a row, a turn of the warp apart: whole ones, or those before `end`.
template <int kCount, bool kAreWhole = true>
struct Stretches {
    int first;

    __device__ __forceinline__ bool has(int) const { return true; }
    __device__ __forceinline__ bool are_whole() const { return true; }
};
template <int kCount>
struct Stretches<kCount, false> {
    int first, end;

    /// Whether the lane has some of stretch `k`.
    __device__ __forceinline__ bool has(int k) const { return first + k * kTurn < end; }
    /// Whether it has all of each that it has.
    __device__ __forceinline__ bool are_whole() const { return end % kWide == 0; }
};

/// Whole stretches of rows that can be loaded and stored by 16 bytes.
template <int kCount>
struct WholeStretches {
    int first;
};
/// A check instead of a place: loads and stores there move nothing and note whether each row can be moved by 16 bytes.
struct Alignment {
    bool& whole;
};

/// The values of a lane at a place of a row: those of a stretch, or of several.
template <class T, class At>
struct WideAtPlace {
    using Type = Wide<T>;
};
template <class T, int kCount, bool kAreWhole>
struct WideAtPlace<T, Stretches<kCount, kAreWhole>> {
    using Type = Wide<T, kCount * kWide>;
};
template <class T, int kCount>
struct WideAtPlace<T, WholeStretches<kCount>> {
    using Type = Wide<T, kCount * kWide>;
};
template <class T, class At>
using WideAt = typename WideAtPlace<T, At>::Type;

/// The first value of a lane at a place, and whether all of them are in a row of `count` values.
__device__ __forceinline__ int first_of(int i) { return i; }
__device__ __forceinline__ bool is_inside(int i, int count) { return i + kWide <= count; }
template <int kCount, bool kAreWhole>
__device__ __forceinline__ int first_of(Stretches<kCount, kAreWhole> at) { return at.first; }
template <int kCount, bool kAreWhole>
__device__ __forceinline__ bool is_inside(Stretches<kCount, kAreWhole> at, int) { return at.are_whole(); }

/// The elements of one of the stretches.
template <class T, int kCount>
__device__ __forceinline__ Wide<T>& stretch(Wide<T, kCount>& all, int k) {
    return reinterpret_cast<Wide<T>*>(&all)[k];
}

/// The values at a place of a row that can be loaded by 16 bytes; zeros past its end.
template <class T>
__device__ __forceinline__ Wide<T> get_whole(const T* row, int i, int count) {
    return i < count ? *reinterpret_cast<const Wide<T>*>(row + i) : Wide<T>(T{});
}

template <class T, int kCount, bool kAreWhole>
__device__ __forceinline__ Wide<T, kCount * kWide> get_whole(const T* row, Stretches<kCount, kAreWhole> at, int) {
    Wide<T, kCount * kWide> all;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        const T* own = row + at.first + k * kTurn;
        stretch(all, k) = at.has(k) ? *reinterpret_cast<const Wide<T>*>(own) : Wide<T>(T{});
    }
    return all;
}

template <class T, int kCount, bool kAreWhole>
__device__ __forceinline__ Wide<T, kCount * kWide> get_wide(const void* row, Stretches<kCount, kAreWhole> at,
                                                            int count) {
    const T* own = static_cast<const T*>(row);
    // One branch around all loads: with one around each, the next load would wait for it.
    if (at.are_whole() && is_whole(own + at.first)) return get_whole(own, at, count);
    Wide<T, kCount * kWide> all;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        stretch(all, k) = at.has(k) ? get_wide<T>(row, at.first + k * kTurn, count) : Wide<T>(T{});
    }
    return all;
}

template <class T, int kCount>
__device__ __forceinline__ Wide<T, kCount * kWide> get_wide(const void* row, WholeStretches<kCount> at, int count) {
    return get_whole(static_cast<const T*>(row), Stretches<kCount>{at.first}, count);
}
template <class T, int kCount>
__device__ __forceinline__ void set_wide(void* row, WholeStretches<kCount> at, int, Wide<T, kCount * kWide> all) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) put_whole(static_cast<T*>(row) + at.first + k * kTurn, stretch(all, k));
}

template <class T>
__device__ __forceinline__ Wide<T> get_wide(const void* row, Alignment at, int) {
    at.whole = at.whole && is_whole(static_cast<const T*>(row));
    return Wide<T>(T{});
}
template <class T>
__device__ __forceinline__ void set_wide(void* row, Alignment at, int, const Wide<T>&) {
    at.whole = at.whole && is_whole(static_cast<const T*>(row));
}

template <class T, int kCount, bool kAreWhole>
__device__ __forceinline__ void set_wide(void* row, Stretches<kCount, kAreWhole> at, int count,
                                         Wide<T, kCount * kWide> all) {
    T* own = static_cast<T*>(row) + at.first;
    if (at.are_whole() && is_whole(own)) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            if (at.has(k)) put_whole(own + k * kTurn, stretch(all, k));
        }
    } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            if (at.has(k)) set_wide<T>(row, at.first + k * kTurn, count, stretch(all, k));
        }
    }
}

/// How many stretches of a row a lane computes at once. A thread of a larger block has fewer registers.
template <int kThreads>
constexpr int kStretchesAtOnce = kThreads <= 384 ? 4 : kThreads <= 512 ? 2 : 1;

/// Calls `body(at)`, which loads and stores values at `at`, for the elements of a row from `from` up to `to`; warp. While
/// enough of the row remains and all rows can be moved by 16 bytes, a call is for several stretches, otherwise for eight
/// neighbors of each lane.
template <int kThreads, class Body>
__device__ __forceinline__ void for_wide(int from, int to, Body body) {
    constexpr int kStretches = kStretchesAtOnce<kThreads>;
    int base = from;
    if constexpr (kStretches > 1) {
        bool whole = true;
        body(Alignment{whole});
#pragma unroll 1
        for (; whole && base + kStretches * kTurn <= to; base += kStretches * kTurn) {
            body(WholeStretches<kStretches>{base + lane_index() * kWide});
        }
    }
#pragma unroll 1
    for (int i = base + lane_index() * kWide; i < to; i += kTurn) body(i);
}

/// A row, or null where there is none.
template <class T>
__device__ __forceinline__ const T* row_if(bool is_there, const T* row) {
    return is_there ? row : nullptr;
}

/// Calls `each(k, values)` for each of `kRows` rows that there is, in order, with eight neighbours of it: `row(k)` is its
/// first value, null if there is none. The loads of up to `kMost` rows are under way at once.
template <class T, int kRows, int kMost = 8, class Row, class At, class Each>
__device__ __forceinline__ void for_some_rows(Row row, At i, int count, Each each) {
    constexpr int kBatch = kRows < kMost ? kRows : kMost;
#pragma unroll 1
    for (int first = 0; first < kRows; first += kBatch) {
        const T* rows[kBatch];
        WideAt<T, At> values[kBatch] = {};
        bool whole = is_inside(i, count);
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            rows[k] = first + k < kRows ? row(first + k) : nullptr;
            whole = whole && is_whole(rows[k] + first_of(i));
        }
        // One branch for all of them: where the ways of a single load meet, it would have to be there.
        if (whole) {
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if (rows[k] != nullptr) values[k] = get_whole(rows[k], i, count);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if (rows[k] != nullptr) values[k] = get_wide<T>(rows[k], i, count);
            }
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            if (rows[k] != nullptr) each(first + k, values[k]);
        }
    }
}

/// Values of which each lane has every 32nd.
template <class T, int kCount>
struct LaneValues {
    static constexpr int kGroups = (kCount + kLanes - 1) / kLanes;

    T own[kGroups];

    /// One of them; warp.
    __device__ __forceinline__ T of(int number) const {
        T value = own[0];
#pragma unroll
        for (int g = 1; g < kGroups; ++g) {
            if (g == number / kLanes) value = own[g];
        }
        return __shfl_sync(kAllLanes, value, number % kLanes);
    }
};

/// Where up to `kRows` rows are; 0: there is no such row.
template <int kRows>
using FoundRows = LaneValues<u64, kRows>;

/// Finds rows, one in each lane, so that no row waits for the loads that find another one; warp. `row(k)` is null if there is
/// no row k.
template <int kRows, class Row>
__device__ __forceinline__ FoundRows<kRows> found_rows(Row row) {
    FoundRows<kRows> rows = {};
#pragma unroll
    for (int g = 0; g < FoundRows<kRows>::kGroups; ++g) {
        const int k = g * kLanes + lane_index();
        if (k < kRows) rows.own[g] = reinterpret_cast<u64>(row(k));
    }
    return rows;
}
template <int kRows>
__device__ __forceinline__ FoundRows<kRows> found_rows(const FoundRows<kRows>& rows) {
    return rows;
}

/// Computes `number(k)` for every row that has been found; warp.
template <class T, int kRows, class Number>
__device__ __forceinline__ LaneValues<T, kRows> row_values(const FoundRows<kRows>& rows, Number number) {
    LaneValues<T, kRows> values = {};
#pragma unroll
    for (int g = 0; g < LaneValues<T, kRows>::kGroups; ++g) {
        if (rows.own[g] != 0) values.own[g] = number(g * kLanes + lane_index());
    }
    __syncwarp();
    return values;
}

/// Adds up the elements from `begin` to `end` of up to `kRows` rows, eight neighbors a lane; warp. `row` is what
/// `found_rows` takes, or what it has found. `add(sum, k, values)` adds row k to a sum, in order of k and in all lanes, and `set(i, sum)` takes the sum
/// of the neighbors from `i` on. A lane loads several stretches of a row at once, fewer in a block of many threads, which have
/// fewer registers each.
template <class T, int kRows, int kThreads, class Row, class Add, class Set>
__device__ __forceinline__ void sum_some_rows(int begin, int end, int count, Row row, Add add,
                                              Set set) {
    constexpr int kMost = kSpareRegisters ? 7 : 6;
    constexpr int kAtOnce = kThreads <= 384 ? 4 : 1, kStretches = kAtOnce == 1 && kThreads <= 512 ? kMost : 4;
    constexpr int kGroups = (kRows + kLanes - 1) / kLanes;
    const FoundRows<kRows> rows = found_rows<kRows>(row);
    u32 there[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) there[g] = __ballot_sync(kAllLanes, rows.own[g] != 0);
#pragma unroll 1
    for (int base = begin; base < end; base += kStretches * kTurn) {
        const int first = base + lane_index() * kWide;
        Wide<float> sums[kStretches];
#pragma unroll
        for (int s = 0; s < kStretches; ++s) sums[s] = Wide<float>(0.0f);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
#pragma unroll 1
            for (u32 left = there[g]; left != 0;) {
                const T* own[kAtOnce];
                int numbers[kAtOnce];
                bool whole = end % kWide == 0 && end <= count;
#pragma unroll
                for (int n = 0; n < kAtOnce; ++n) {
                    numbers[n] = left == 0 ? -1 : g * kLanes + __ffs(static_cast<int>(left)) - 1;
                    own[n] = numbers[n] < 0 ? nullptr : reinterpret_cast<const T*>(rows.of(numbers[n]));
                    whole = whole && is_whole(own[n] + first);
                    left &= left - 1;
                }
                Wide<T> values[kAtOnce][kStretches] = {};
                const auto load = [&](auto get) {
#pragma unroll
                    for (int n = 0; n < kAtOnce; ++n) {
                        const int last = numbers[n] < 0 ? 0 : end;
#pragma unroll
                        for (int s = 0; s < kStretches; ++s) {
                            const int i = first + s * kTurn;
                            if (i < last) values[n][s] = get(own[n], i);
                        }
                    }
                };
                // One branch around all loads: with one around each, the next load would wait for it.
                if (whole) {
                    load([](const T* row, int i) { return *reinterpret_cast<const Wide<T>*>(row + i); });
                } else {
                    load([&](const T* row, int i) { return get_wide<T>(row, i, count); });
                }
                // By all lanes, since `add` may be for the warp.
#pragma unroll
                for (int n = 0; n < kAtOnce; ++n) {
                    if (numbers[n] < 0) continue;
#pragma unroll
                    for (int s = 0; s < kStretches; ++s) add(sums[s], numbers[n], values[n][s]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kStretches; ++s) {
            const int i = first + s * kTurn;
            if (i < end) set(i, sums[s]);
        }
    }
}

/// `for_some_rows` with the rows of every part of a token that there is; warp.
template <class T, int kParts, class Parts, class Each>
__device__ __forceinline__ void for_parts(const Parts& parts, int i, int count, Each each) {
    const auto row = [&](int part) { return reinterpret_cast<const T*>(parts.row(part)); };
    for_some_rows<T, kParts>(row, i, count, each);
}

/// Loads of eight neighbours that are under way together.
constexpr int kPartsAhead = 6;

/// `set(i, value(i))` for `count` elements, of which several are made before the first is set; one lane's own work.
template <class T, class Value, class Set>
__device__ __forceinline__ void for_elements(int count, Value value, Set set) {
    constexpr int kAhead = 8;
    int first = 0;
#pragma unroll 1
    for (; first + kAhead <= count; first += kAhead) {
        T values[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) values[k] = static_cast<T>(value(first + k));
#pragma unroll
        for (int k = 0; k < kAhead; ++k) set(first + k, values[k]);
    }
#pragma unroll 1
    for (; first < count; ++first) set(first, static_cast<T>(value(first)));
}

/// How the lanes of a warp share small rows: so many have a row together, and so many rows at once.
constexpr int kLanesOfRow = 8, kRowsOfLane = 4;
constexpr int kRowsAtOnce = kLanes / kLanesOfRow * kRowsOfLane;

/// Small rows: `count` elements of each, which `set(row, i, element)` writes and of which one is `value(row, i)`; all of
/// them are there or none.
template <class T, class Value, class Set>
struct RowElements {
    // Of a row and a lane: more would not stay in registers.
    static constexpr int kAhead = sizeof(T) > 4 ? 4 : 8;

    bool there;
    int count;
    Value value;
    Set set;
    T values[kRowsOfLane][kAhead];

    __device__ __forceinline__ void look(int, int) {}

    /// In how many steps the elements of a row are moved.
    __device__ __forceinline__ int steps() const {
        constexpr int kStep = kAhead * kLanesOfRow;
        return there ? (count + kStep - 1) / kStep : 0;
    }

    /// Makes the elements of a step for the rows of this lane, which begin at `row`.
    __device__ __forceinline__ void make(int step, int row, int end) {
        each(step, row, end, [&](int i, int k, int own, int at) { values[i][k] = static_cast<T>(value(own, at)); });
    }

    /// Writes them.
    __device__ __forceinline__ void write(int step, int row, int end) {
        each(step, row, end, [&](int i, int k, int own, int at) { set(own, at, values[i][k]); });
    }

private:
    template <class Each>
    __device__ __forceinline__ void each(int step, int row, int end, Each each) const {
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i) {
            const int own = row + i * (kLanes / kLanesOfRow);
            if (!there || own >= end) continue;
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                const int at = (step * kAhead + k) * kLanesOfRow + lane_index() % kLanesOfRow;
                if (at < count) each(i, k, own, at);
            }
        }
    }
};

template <class T, class Value, class Set>
__device__ __forceinline__ RowElements<T, Value, Set> row_elements(bool there, int count, Value value, Set set) {
    return RowElements<T, Value, Set>{there, count, value, set, {}};
}

/// The type by which a row of `T` is copied: units of 16 bytes if it consists of whole ones, otherwise single elements.
template <class T, bool kWhole>
struct UnitOf {
    using Type = T;
};
template <class T>
struct UnitOf<T, true> {
    using Type = Quad;
};
template <class T>
__device__ __forceinline__ T load_unit(const T* from) {
    return *from;
}
__device__ __forceinline__ Quad load_unit(const Quad* from) { return load_quad(from); }
template <class T>
__device__ __forceinline__ void store_unit(T* to, T unit) {
    *to = unit;
}
__device__ __forceinline__ void store_unit(Quad* to, Quad unit) { store_quad(to, unit); }

/// Small rows of `kCount` elements, which are copied from the address `from(row)` to `to(row)`.
template <class T, int kCount, class From, class To>
struct RowUnits {
    static constexpr int kAhead = 8;
    static constexpr bool kWhole = kCount * sizeof(T) % 16 == 0;
    using Unit = typename UnitOf<T, kWhole>::Type;
    static constexpr int kUnits = kCount * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(Unit));

    bool there;
    From from;
    To to;
    bool aligned;
    Unit values[kAhead];

    /// In how many steps the rows that move together do.
    __device__ __forceinline__ int steps() const { return there ? ceil(kRowsAtOnce * kUnits, kAhead * kLanes) : 0; }

    /// Checks whether all units of the rows from this lane's on begin at multiples of their size.
    __device__ __forceinline__ void look(int row, int end) {
        const int own = first_of(row) + lane_index();
        aligned = true;
        if (kWhole && there && lane_index() < kRowsAtOnce && own < end) {
            aligned = (address_of(from(own)) | address_of(to(own))) % sizeof(Unit) == 0;
        }
        aligned = __all_sync(kAllLanes, aligned);
    }

    __device__ __forceinline__ void make(int step, int row, int end) {
        each(step, row, end, [&](int k, int own, int at) {
            values[k] = load_unit(reinterpret_cast<const Unit*>(from(own)) + at);
        });
    }

    __device__ __forceinline__ void write(int step, int row, int end) const {
        each(step, row, end, [&](int k, int own, int at) {
            store_unit(reinterpret_cast<Unit*>(to(own)) + at, values[k]);
        });
        if (aligned || !there || step > 0) return;
        const int first = first_of(row), rows = lesser(end - first, kRowsAtOnce);
#pragma unroll 1
        for (int i = lane_index(); i < rows * kCount; i += kLanes) {
            to(first + i / kCount)[i % kCount] = reinterpret_cast<const T*>(from(first + i / kCount))[i % kCount];
        }
    }

private:
    /// The first of the rows that move together, of which the lane has this one.
    static __device__ __forceinline__ int first_of(int row) { return row - lane_index() / kLanesOfRow; }

    /// Calls `each(k, row, at)` for the units that a lane moves in a step; neighboring lanes have neighboring units.
    template <class Each>
    __device__ __forceinline__ void each(int step, int row, int end, Each each) const {
        const int first = first_of(row), rows = lesser(end - first, kRowsAtOnce);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
            const int part = (step * kAhead + k) * kLanes + lane_index();
            if (there && aligned && part < rows * kUnits) each(k, first + part / kUnits, part % kUnits);
        }
    }
};

template <class T, int kCount, class From, class To>
__device__ __forceinline__ RowUnits<T, kCount, From, To> row_units(bool there, From from, To to) {
    return RowUnits<T, kCount, From, To>{there, from, to, true, {}};
}

/// Moves small rows of each kind, those from `begin` to `end`; warp. Several elements of every kind are made before the
/// first is written.
template <class... Kinds>
__device__ __forceinline__ void for_row_elements(int begin, int end, Kinds... kinds) {
    int steps = 0;
    ((steps = greater(steps, kinds.steps())), ...);
#pragma unroll 1
    for (int row = begin + lane_index() / kLanesOfRow; row - lane_index() / kLanesOfRow < end; row += kRowsAtOnce) {
        (kinds.look(row, end), ...);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            (kinds.make(step, row, end), ...);
            (kinds.write(step, row, end), ...);
        }
    }
}

/// Eight neighbours of the row of every part that there is: loaded, unless there are so many parts that the loads of one
/// stretch are enough.
template <class T, int kParts, class Parts>
struct WideParts {
    static constexpr bool kMany = 2 * kParts > kPartsAhead;

    const Parts& parts;
    int i;
    int count;
    const T* const* rows;  // null: there is no part
    Wide<T> values[kMany ? 1 : kParts];

    /// `each(part, values)`, in order.
    template <class Each>
    __device__ __forceinline__ void each(Each each) const {
        if constexpr (kMany) {
            for_parts<T, kParts>(parts, i, count, each);
        } else {
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                if (rows[part] != nullptr) each(part, values[part]);
            }
        }
    }
};

/// `body(i, parts)` for `kAhead` stretches of a row from `base` on, whose loads are all under way at once; warp.
template <int kAhead, class Stretch, class T, int kParts, class Parts, class Body>
__device__ __forceinline__ void for_stretches(const Parts& parts, const T* const (&rows)[kParts], int base, int count,
                                              Body body) {
    const int first = base + lane_index() * kWide;
    Wide<T> values[kAhead][kParts] = {};
    bool whole = first + (kAhead - 1) * kTurn + kWide <= count;
#pragma unroll
    for (int part = 0; part < kParts; ++part) whole = whole && is_whole(rows[part] + first);
    // One branch for all of them, as above.
    if (whole) {
#pragma unroll
        for (int k = 0; k < kAhead * kParts; ++k) {
            const T* row = rows[k % kParts];
            if (row == nullptr) continue;
            const T* at = row + first + k / kParts * kTurn;
            values[k / kParts][k % kParts] = *reinterpret_cast<const Wide<T>*>(at);
        }
    } else {
#pragma unroll
        for (int k = 0; k < kAhead * kParts; ++k) {
            const T* row = rows[k % kParts];
            if (row == nullptr) continue;
            values[k / kParts][k % kParts] = get_wide<T>(row, first + k / kParts * kTurn, count);
        }
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
        Stretch stretch{parts, first + a * kTurn, count, rows, {}};
#pragma unroll
        for (int part = 0; part < kParts; ++part) stretch.values[part] = values[a][part];
        body(stretch.i, stretch);
    }
}

/// Calls `body(i, parts)` for all stretches of a row from `from` up to `to`, eight values a lane from `i` on; the row has
/// `count`. Up to `kPartsAhead` loads of a lane are under way at once; warp.
template <class T, int kParts, class Parts, class Body>
__device__ __forceinline__ void for_wide_parts(const Parts& parts, int from, int to, int count, Body body) {
    using Stretch = WideParts<T, kParts, Parts>;
    if constexpr (Stretch::kMany) {
        const int lane = lane_index() * kWide;
#pragma unroll 1
        for (int base = from; base < to; base += kTurn) {
            body(base + lane, Stretch{parts, base + lane, count, nullptr, {}});
        }
    } else {
        constexpr int kMost = kPartsAhead / kParts, kSome = kMost > 2 ? 2 : 1;
        const T* rows[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) rows[part] = reinterpret_cast<const T*>(parts.row(part));
        int base = from;
#pragma unroll 1
        for (; base + (kMost - 1) * kTurn < to; base += kMost * kTurn) {
            for_stretches<kMost, Stretch>(parts, rows, base, count, body);
        }
#pragma unroll 1
        for (; base + (kSome - 1) * kTurn < to; base += kSome * kTurn) {
            for_stretches<kSome, Stretch>(parts, rows, base, count, body);
        }
#pragma unroll 1
        for (; base < to; base += kTurn) for_stretches<1, Stretch>(parts, rows, base, count, body);
    }
}

/// How many slices each of so many rows is cut into, as far as there are warps for them: a power of two, which divides
/// without a division.
template <int kMost>
__device__ __forceinline__ int slices_of(int warps, i64 rows) {
    int slices = 1;
#pragma unroll 1
    while (2 * slices <= kMost && rows > 0 && 2 * slices * rows <= warps) slices *= 2;
    return slices;
}

/// How many slices each of so many rows is cut into, as far as the role has warps for them: a power of two.
template <int kMost>
__device__ __forceinline__ int slices_of(const Team& team, i64 rows) {
    return slices_of<kMost>(team.count(), rows);
}

/// The row of a slice, where each has so many.
template <class Unit>
__device__ __forceinline__ Unit row_of_slice(Unit unit, int slices) {
    return unit >> (__ffs(slices) - 1);
}

/// The number of a slice among those of its row.
template <class Unit>
__device__ __forceinline__ int slice_of_row(Unit unit, int slices) {
    return static_cast<int>(unit & (slices - 1));
}

/// Where one of the slices of a row of `count` values begins, each of whole turns of a warp.
__device__ __forceinline__ int slice_begin(int slice, int slices, int count) {
    const int turns = (count + kTurn - 1) / kTurn;
    const int begin = slice * ((turns + slices - 1) / slices) * kTurn;
    return begin < count ? begin : count;
}

/// What the codes of a block are divided by, as its scale says it.
__device__ __forceinline__ float kept_scale(float exact, float& kept) { return kept = exact; }
__device__ __forceinline__ float kept_scale(float exact, ue8m0& kept) {
    kept = ceil_ue8m0(exact);
    return to_float(kept);
}

/// Eight values by one of at most 1e37, or infinite, each as a division rounds it: the remainder of a first quotient
/// mends it, for a fifth of what divisions take. No remainder of a quotient that is not cast to zero is too small for
/// a float.
__device__ __forceinline__ Wide<float> quotients(const Wide<float>& all, float by) {
    const float inverse = 1.0f / by;
    return wide_of<float>([&](int k) {
        const float first = all.values[k] * inverse;
        // By infinity there is none.
        return by > 1e37f ? first : fused(fused(-first, by, all.values[k]), inverse, first);
    });
}

/// Casts eight values of a lane, of a block that neighboring lanes have, and gives its scale; warp.
template <int kBlock, class Scale>
__device__ __forceinline__ Wide<e4m3> cast_turn(const Wide<bf16>& row, Scale& kept) {
    static_assert(kBlock % kWide == 0 && kTurn % kBlock == 0, "the lanes of a warp have whole blocks");
    const Wide<float> values = to_float(row);
    float peak = 0.0f;
#pragma unroll
    for (int k = 0; k < kWide; ++k) peak = greater_magnitude(peak, values.values[k]);
#pragma unroll
    for (int step = kBlock / kWide / 2; step > 0; step /= 2) {
        const u32 other = __shfl_xor_sync(kAllLanes, bits_of(peak), step);
        peak = greater_magnitude(peak, float_of(other));
    }
    return to_e4m3(quotients(values, kept_scale(scale_e4m3(peak), kept)));
}

/// Casts values `base` and following of a row that ends at `end`, those of several turns; warp. `scales` are those of the
/// row.
template <class Scale, int kBlock, int kTurns, class To, class Scales>
__device__ __forceinline__ void cast_turns(const Wide<bf16> (&turns)[kTurns], const To& to, const Scales& scales,
                                           i64 apart, int base, int end) {
    const int first = base + lane_index() * kWide;
    Wide<e4m3> codes[kTurns] = {};
    Scale kept[kTurns] = {};
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
        if (base + k * kTurn < end) codes[k] = cast_turn<kBlock>(turns[k], kept[k]);
    }
    for_places(to, [&](char* row) {
#pragma unroll
        for (int k = 0; k < kTurns; ++k) {
            const int i = first + k * kTurn;
            if (i < end) set_wide<e4m3>(row, i, end, codes[k]);
        }
    });
    for_places(scales, [&](char* all) {
#pragma unroll
        for (int k = 0; k < kTurns; ++k) {
            const int i = first + k * kTurn;
            if (i < end && i % kBlock == 0) reinterpret_cast<Scale*>(all)[i / kBlock * apart] = kept[k];
        }
    });
}

/// Casts a slice of a row of bf16 to e4m3, with a scale for each `kBlock` of them, so far `apart` in memory; warp. It
/// begins with a block. The codes go to a place, or to that in each slot, and so do the scales.
template <class Scale, int kBlock = 128, class To, class Scales>
__device__ __forceinline__ void cast_slice(const Team& team, const To& to, const Scales& scales, i64 apart,
                                           const void* from, int begin, int end) {
    // What goes to several slots stays in registers until all of them have it.
    constexpr int kBatch = kIsEachSlot<To> ? 4 : 7;
    const bf16* row = static_cast<const bf16*>(from);
    const int lane = team.lane * kWide;
    int base = begin;
    // Several loads are under way at once where none has to look at what is left of the row.
#pragma unroll 1
    for (; base < end && end % kWide == 0 && is_whole(row); base += kBatch * kTurn) {
        Wide<bf16> turns[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = base + k * kTurn + lane;
            turns[k] = i < end ? *reinterpret_cast<const Wide<bf16>*>(row + i) : Wide<bf16>{};
        }
        cast_turns<Scale, kBlock>(turns, to, scales, apart, base, end);
    }
#pragma unroll 1
    for (; base < end; base += kTurn) {
        const Wide<bf16> turns[1] = {get_wide<bf16>(from, base + lane, end)};
        cast_turns<Scale, kBlock>(turns, to, scales, apart, base, end);
    }
}

/// Casts a row of `count`.
template <class Scale, int kBlock = 128, class To, class Scales>
__device__ __forceinline__ void cast_row(const Team& team, const To& to, const Scales& scales, i64 apart,
                                         const void* from, int count) {
    cast_slice<Scale, kBlock>(team, to, scales, apart, from, 0, count);
}

}  // namespace ep
