// Reading the meta records of rows that have arrived, and what follows the last row.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

template <class Field, int kCount, int kEach, int kFlight>
class Arrived;

/// Messages that have arrived and been acquired (M2): `kEach` lanes share one, and each lane holds
/// `kFlight` of them, so that as many loads are under way at once.
template <int kEach, int kFlight>
struct Messages {
    int row[kFlight];             // where the row goes in the output
    const char* record[kFlight];  // its meta record; null: no message

    /// Asks for the `kCount` elements of the field at `field`.
    template <class Field, int kCount>
    __device__ __forceinline__ Arrived<Field, kCount, kEach, kFlight> ask(int field) const {
        return Arrived<Field, kCount, kEach, kFlight>(*this, field);
    }
};

/// A field of some messages. It is asked for here and stored later, so that all fields of a message
/// travel at once.
template <class Field, int kCount, int kEach, int kFlight>
class Arrived {
    static constexpr int kPerLane = (kCount + kEach - 1) / kEach;
    // More would not stay in registers.
    static constexpr bool kAhead = kPerLane * kFlight <= 32;

public:
    static constexpr int kElements = kCount;

    __device__ __forceinline__ Arrived(const Messages<kEach, kFlight>& of, int field)
        : of_(of), field_(field) {
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kPerLane; ++k) load(ahead_[k], k);
        }
    }

    /// `out[row, i] = convert(field[i], beside[i]..)` for every message. The fields `beside` it have
    /// as many elements; nothing is stored where one is absent, and has none. Strides count
    /// elements, so that either axis may be the dense one.
    template <class T, class Convert, class... Beside>
    __device__ __forceinline__ void store(T* out, i64 row_stride, i64 stride, Convert convert,
                                          const Beside&... beside) const {
        if constexpr (kAhead) {
#pragma unroll
            for (int k = 0; k < kPerLane; ++k) {
                put(out, row_stride, stride, k, ahead_[k], convert, beside...);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < kPerLane; ++k) {
                Field values[kFlight];
                load(values, k);
                put(out, row_stride, stride, k, values, convert, beside...);
            }
        }
    }

    /// `out[row, i] = field[i]` for every message.
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
            u64 bits = reinterpret_cast<u64>(out) | static_cast<u64>(row_stride) * sizeof(Field);
            bits |= static_cast<u64>(field_);
#pragma unroll
            for (int i = 0; i < kFlight; ++i) bits |= reinterpret_cast<u64>(of_.record[i]);
            const bool whole = stride == 1 && (bits & 15) == 0;
            const int lane = lane_index() % kEach;
#pragma unroll 1
            for (int base = lane; whole && base < kUnits; base += kBatch * kEach) {
                copy_units(out, row_stride, base, kUnits);
            }
#pragma unroll 1
            for (int at = (whole ? kUnits * kUnit : 0) + lane; at < kCount; at += kEach) {
#pragma unroll
                for (int i = 0; i < kFlight; ++i) {
                    if (of_.record[i] == nullptr) continue;
                    const Field* from = reinterpret_cast<const Field*>(of_.record[i] + field_);
                    out[of_.row[i] * row_stride + at * stride] = from[at];
                }
            }
        }
    }

    /// The `k`-th element of message `i` that is this lane's.
    __device__ __forceinline__ Field element(int k, int i) const {
        if constexpr (kAhead) {
            return ahead_[k][i];
        } else {
            return reinterpret_cast<const Field*>(of_.record[i] + field_)[index(k)];
        }
    }

private:
    // Units of a message that a lane copies at once.
    static constexpr int kBatch = 2;

    /// Copies the units `base` and `base + kEach` of every message, of so many.
    __device__ __forceinline__ void copy_units(Field* out, i64 row_stride, int base, int units) const {
        Quad values[kBatch][kFlight] = {};
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
#pragma unroll
            for (int i = 0; i < kFlight; ++i) {
                if (of_.record[i] == nullptr || base + k * kEach >= units) continue;
                values[k][i] = load_quad(of_.record[i] + field_ + (base + k * kEach) * 16);
            }
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
#pragma unroll
            for (int i = 0; i < kFlight; ++i) {
                if (of_.record[i] == nullptr || base + k * kEach >= units) continue;
                char* to = reinterpret_cast<char*>(out + of_.row[i] * row_stride);
                store_quad(to + (base + k * kEach) * 16, values[k][i]);
            }
        }
    }

    /// Which element of the field this lane's `k`-th one is.
    __device__ __forceinline__ static int index(int k) {
        return k * kEach + lane_index() % kEach;
    }

    /// Whether message `i` is there, and has a `k`-th element of this lane's.
    __device__ __forceinline__ bool has(int k, int i) const {
        return of_.record[i] != nullptr && index(k) < kCount;
    }

    __device__ __forceinline__ void load(Field (&values)[kFlight], int k) const {
#pragma unroll
        for (int i = 0; i < kFlight; ++i) {
            if (!has(k, i)) continue;
            values[i] = reinterpret_cast<const Field*>(of_.record[i] + field_)[index(k)];
        }
    }

    template <class T, class Convert, class... Beside>
    __device__ __forceinline__ void put(T* out, i64 row_stride, i64 stride, int k,
                                        const Field (&values)[kFlight], Convert convert,
                                        const Beside&... beside) const {
#pragma unroll
        for (int i = 0; i < kFlight; ++i) {
            if (!has(k, i)) continue;
            if (((Beside::kElements == 0) || ...)) continue;
            out[of_.row[i] * row_stride + index(k) * stride] =
                convert(values[i], beside.element(k, i)...);
        }
    }

    const Messages<kEach, kFlight>& of_;
    int field_;
    Field ahead_[kAhead && kPerLane > 0 ? kPerLane : 1][kFlight];
};

/// Messages of a direct channel: 16 at a time.
using DirectMessages = Messages<8, 4>;

/// Gathers runs of rows (a lane each: `rows` of them from `row` on, records at `meta` + row *
/// `kMetaBytes`) into full batches, and calls `body(messages)` for each; warp.
template <int kMetaBytes, class Body>
__device__ __forceinline__ void for_runs(int row, int rows, const char* meta, Body body) {
    constexpr int kEach = 8, kFlight = 4;
    const int lane = lane_index();
    int through = rows;
#pragma unroll 1
    for (int step = 1; step < kLanes; step *= 2) {
        const int left = __shfl_up_sync(kAllLanes, through, step);
        if (lane >= step) through += left;
    }
    const int total = __shfl_sync(kAllLanes, through, kLanes - 1);
    const int offset = row - (through - rows);
#pragma unroll 1
    for (int base = 0; base < total; base += kLanes / kEach * kFlight) {
        // Each lane finds the row of one message, by binary search for the first run that ends
        // after it; then the lanes that share a message ask for it.
        int run = 0;
#pragma unroll 1
        for (int step = kLanes / 2; step > 0; step /= 2) {
            if (__shfl_sync(kAllLanes, through, run + step - 1) <= base + lane) run += step;
        }
        const int found = base + lane + __shfl_sync(kAllLanes, offset, run);
        DirectMessages messages;
#pragma unroll
        for (int i = 0; i < kFlight; ++i) {
            const int message = i * (kLanes / kEach) + lane / kEach;
            messages.row[i] = __shfl_sync(kAllLanes, found, message);
            const char* record = meta + static_cast<i64>(messages.row[i]) * kMetaBytes;
            messages.record[i] = base + message < total ? record : nullptr;
        }
        body(messages);
    }
    __syncwarp();
}

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
