// Reading the meta record of a row that has arrived, and what follows the last row.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

template <class Field, int kCount>
class Arrived;

/// A message that has arrived and been acquired (M2).
struct OnceMessage {
    int row;             // where the row goes in the output
    const char* record;  // its meta record

    /// Asks for the `kCount` elements of the field at `field`.
    template <class Field, int kCount>
    __device__ __forceinline__ Arrived<Field, kCount> ask(int field) const {
        return Arrived<Field, kCount>(*this, field);
    }
};

/// A field of a message. It is asked for here and stored later, so that all fields of the message travel at once.
template <class Field, int kCount>
class Arrived {
    static constexpr int kPerLane = (kCount + kLanes - 1) / kLanes;
    // More would not stay in registers.
    static constexpr bool kAhead = kPerLane <= 32;

public:
    static constexpr int kElements = kCount;

    __device__ __forceinline__ Arrived(const OnceMessage& of, int field) : of_(of), field_(field) {
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kPerLane; ++k) {
                if (index(k) < kCount) ahead_[k] = load(k);
            }
        }
    }

    /// `out[row, i] = convert(field[i], beside[i]..)`. The fields `beside` it have as many elements; nothing is stored
    /// where one is absent, and has none. Strides count elements, so that either axis may be the dense one.
    template <class T, class Convert, class... Beside>
    __device__ __forceinline__ void store(T* out, i64 row_stride, i64 stride, Convert convert,
                                          const Beside&... beside) const {
        if (((Beside::kElements == 0) || ...)) return;
        const auto put = [&](int k) {
            if (index(k) >= kCount) return;
            out[of_.row * row_stride + index(k) * stride] = convert(element(k), beside.element(k)...);
        };
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kPerLane; ++k) put(k);
        } else {
#pragma unroll 1
            for (int k = 0; k < kPerLane; ++k) put(k);
        }
    }

    /// `out[row, i] = field[i]`.
    template <class T>
    __device__ __forceinline__ void store(T* out, i64 row_stride, i64 stride) const {
        store(out, row_stride, stride, [](Field value) { return value; });
    }

    /// As above, to elements of the same type. Of a field that does not stay in registers, lanes copy units of 16
    /// bytes where these lie side by side.
    __device__ __forceinline__ void store(Field* out, i64 row_stride, i64 stride) const {
        if constexpr (kAhead) {
            store<Field>(out, row_stride, stride);
        } else {
            constexpr int kUnit = 16 / static_cast<int>(sizeof(Field)), kUnits = kCount / kUnit;
            const Field* from = reinterpret_cast<const Field*>(of_.record + field_);
            Field* to = out + of_.row * row_stride;
            const u64 bits = reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from);
            const bool whole = stride == 1 && (bits & 15) == 0;
#pragma unroll 1
            for (int base = lane_index(); whole && base < kUnits; base += kBatch * kLanes) {
                copy_units(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), base, kUnits);
            }
#pragma unroll 1
            for (int at = (whole ? kUnits * kUnit : 0) + lane_index(); at < kCount; at += kLanes) {
                to[at * stride] = from[at];
            }
        }
    }

    /// The `k`-th element that is this lane's.
    __device__ __forceinline__ Field element(int k) const {
        if constexpr (kAhead) {
            return ahead_[k];
        } else {
            return load(k);
        }
    }

private:
    // Units that a lane copies at once.
    static constexpr int kBatch = 2;

    /// Copies the units `base` and `base + kLanes` of so many.
    static __device__ __forceinline__ void copy_units(char* to, const char* from, int base, int units) {
        Quad values[kBatch] = {};
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            if (base + k * kLanes < units) values[k] = load_quad(from + (base + k * kLanes) * 16);
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            if (base + k * kLanes < units) store_quad(to + (base + k * kLanes) * 16, values[k]);
        }
    }

    /// Which element of the field this lane's `k`-th one is.
    static __device__ __forceinline__ int index(int k) { return k * kLanes + lane_index(); }

    __device__ __forceinline__ Field load(int k) const {
        return reinterpret_cast<const Field*>(of_.record + field_)[index(k)];
    }

    const OnceMessage& of_;
    int field_;
    Field ahead_[kAhead && kPerLane > 0 ? kPerLane : 1];
};

/// `fill value beyond end`: rows `begin..end` of a dense tensor with `width` elements a row, shared
/// by all warps of a role.
template <class T>
__device__ __forceinline__ void fill(const Team& team, T* out, int width, int begin, int end,
                                     T value) {
    const i64 step = static_cast<i64>(team.count()) * kLanes;
    const i64 last = static_cast<i64>(end) * width;
    i64 at = static_cast<i64>(begin) * width + team.index() * kLanes + team.lane;
#pragma unroll 1
    for (; at < last; at += step) out[at] = value;
    __syncwarp();
}

}  // namespace ep
