// Rows that are computed element by element, eight neighbours a lane: what one element takes, eight take
// at once, each with the same operations in the same order.
#pragma once

#include <ep/cast.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// How many neighbours a lane has.
constexpr int kWide = 8;

/// A value for each of them.
template <class T>
struct alignas(kWide * sizeof(T) < 16 ? kWide * sizeof(T) : 16) Wide {
    T values[kWide];

    Wide() = default;

    /// The same for all.
    __device__ __forceinline__ Wide(T value) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) values[k] = value;
    }

    __device__ __forceinline__ Wide& operator+=(const Wide& other) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) values[k] += other.values[k];
        return *this;
    }
};

/// `result(k)` for each of eight elements.
template <class T, class Result>
__device__ __forceinline__ Wide<T> wide_of(Result result) {
    Wide<T> all;
#pragma unroll
    for (int k = 0; k < kWide; ++k) all.values[k] = result(k);
    return all;
}

__device__ __forceinline__ Wide<float> operator+(const Wide<float>& a, const Wide<float>& b) {
    return wide_of<float>([&](int k) { return a.values[k] + b.values[k]; });
}

__device__ __forceinline__ Wide<float> operator-(const Wide<float>& a, const Wide<float>& b) {
    return wide_of<float>([&](int k) { return a.values[k] - b.values[k]; });
}

__device__ __forceinline__ Wide<float> product(const Wide<float>& a, const Wide<float>& b) {
    return wide_of<float>([&](int k) { return product(a.values[k], b.values[k]); });
}

__device__ __forceinline__ Wide<float> operator/(const Wide<float>& a, const Wide<float>& b) {
    return wide_of<float>([&](int k) { return a.values[k] / b.values[k]; });
}

template <class T>
__device__ __forceinline__ Wide<float> to_float(const Wide<T>& all) {
    return wide_of<float>([&](int k) { return to_float(all.values[k]); });
}

__device__ __forceinline__ Wide<bf16> to_bf16(const Wide<float>& all) {
    return wide_of<bf16>([&](int k) { return to_bf16(all.values[k]); });
}

__device__ __forceinline__ Wide<e4m3> to_e4m3(const Wide<float>& all) {
    return wide_of<e4m3>([&](int k) { return to_e4m3(all.values[k]); });
}

/// Whether eight elements from `at` on can be moved by units of 16 bytes, or by one of 8.
template <class T>
__device__ __forceinline__ bool is_whole(const T* at) {
    return reinterpret_cast<u64>(at) % alignof(Wide<T>) == 0;
}

/// Elements `i` and following of a row of `count`, in global memory; zero past its end.
template <class T>
__device__ __forceinline__ Wide<T> get_wide(const void* row, int i, int count) {
    const T* at = static_cast<const T*>(row) + i;
    if (i + kWide <= count && is_whole(at)) return *reinterpret_cast<const Wide<T>*>(at);
    Wide<T> all;
#pragma unroll
    for (int k = 0; k < kWide; ++k) all.values[k] = i + k < count ? at[k] : T{};
    return all;
}

/// Writes those that the row has.
template <class T>
__device__ __forceinline__ void set_wide(void* row, int i, int count, const Wide<T>& all) {
    T* at = static_cast<T*>(row) + i;
    if (i + kWide <= count && is_whole(at)) {
        *reinterpret_cast<Wide<T>*>(at) = all;
        return;
    }
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
        if (i + k < count) at[k] = all.values[k];
    }
}

}  // namespace ep
