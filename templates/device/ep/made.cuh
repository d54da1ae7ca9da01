// Rows that are sent piece by piece, each by a warp: as they lie, or cast from bf16 as they leave.
//
// What sends rows takes either a pointer to a row that lies whole, or a `CastRow`. A piece goes through the shared memory
// of its warp, or through registers, as words:
//
//   PieceMover  begin, store
//   part_of     -> send
#pragma once

#include <ep/as_words.cuh>
#include <ep/cast.cuh>
#include <ep/mover.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// Values of a lane that are cast together: a unit of codes, of a block that neighboring lanes share.
struct CastUnit {
    static constexpr int kValues = 16;

    Wide<bf16> halves[2];

    /// Values `i` and following of a row that ends at `end`; zero past it.
    __device__ __forceinline__ void read(const bf16* row, int i, int end) {
        halves[0] = get_wide<bf16>(row, i, end);
        halves[1] = get_wide<bf16>(row, i + kWide, end);
    }

    __device__ __forceinline__ float peak() const {
        float peak = 0.0f;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Wide<float> values = to_float(halves[h]);
#pragma unroll
            for (int k = 0; k < kWide; ++k) peak = greater_magnitude(peak, values.values[k]);
        }
        return peak;
    }

    /// Four codes, from `k` on.
    static __device__ __forceinline__ u32 word_of(const Wide<float>& values, int k) {
        const u32 low = pack_e4m3(values.values[k], values.values[k + 1]);
        return low | static_cast<u32>(pack_e4m3(values.values[k + 2], values.values[k + 3])) << 16;
    }

    __device__ __forceinline__ Quad codes(float scale) const {
        const Wide<float> low = quotients(to_float(halves[0]), scale);
        const Wide<float> high = quotients(to_float(halves[1]), scale);
        return Quad{word_of(low, 0), word_of(low, 4), word_of(high, 0), word_of(high, 4)};
    }
};

/// Casts several units of each lane, and gives the scale of the block of each, which so many lanes share; warp.
template <int kLanesOfBlock, int kUnits, class Scale>
__device__ __forceinline__ void cast_units(const CastUnit (&units)[kUnits], Quad (&codes)[kUnits],
                                           Scale (&scales)[kUnits]) {
    float peaks[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) peaks[i] = units[i].peak();
#pragma unroll
    for (int step = kLanesOfBlock / 2; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            peaks[i] = greater_magnitude(peaks[i], float_of(__shfl_xor_sync(kAllLanes, bits_of(peaks[i]), step)));
        }
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) codes[i] = units[i].codes(kept_scale(scale_e4m3(peaks[i]), scales[i]));
}

/// A row of `kCount` bf16 that is cast to e4m3 as it leaves; its scales, one for each `kBlock` of them, lie at byte
/// `kScales` of its record.
template <class Scale, int kCount, int kScales, int kBlock = 128>
struct CastRow {
    static constexpr int kEnd = kCount;
    static constexpr int kLanesOfBlock = kBlock / CastUnit::kValues;
    static constexpr int kBlocks = (kCount + kBlock - 1) / kBlock;
    static constexpr int kBlocksOfWord = 4 / static_cast<int>(sizeof(Scale));
    static constexpr int kFirstWord = kScales / 4;
    static constexpr int kEndWord = kFirstWord + (kBlocks + kBlocksOfWord - 1) / kBlocksOfWord;

    static_assert(kCount % CastUnit::kValues == 0, "codes are whole units");
    static_assert(kScales % 4 == 0, "scales begin with a word of the record");
    static_assert(kBlock % CastUnit::kValues == 0 && kBlocksOfWord * kLanesOfBlock <= kLanes,
                  "the lanes of a warp have all blocks of a word");

    const bf16* from;

    /// Makes codes `begin` to `end` at `to`, and their scales in the record; warp. They begin with a block.
    __device__ __forceinline__ void make(char* to, char* record, int begin, int end) const {
        constexpr int kBatch = 4, kTurn = kLanes * CastUnit::kValues;
#pragma unroll 1
        for (int base = begin + lane_index() * CastUnit::kValues; base - lane_index() * CastUnit::kValues < end;
             base += kBatch * kTurn) {
            CastUnit units[kBatch];
#pragma unroll
            for (int k = 0; k < kBatch; ++k) units[k].read(from, base + k * kTurn, end);
            Quad codes[kBatch];
            Scale scales[kBatch];
            cast_units<kLanesOfBlock>(units, codes, scales);
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const int i = base + k * kTurn;
                if (i >= end) continue;
                *reinterpret_cast<Quad*>(to + (i - begin)) = codes[k];
                if (i % kBlock == 0) reinterpret_cast<Scale*>(record + kScales)[i / kBlock] = scales[k];
            }
        }
    }
};

template <class Scale, int kCount, int kScales, int kBlock = 128>
__device__ __forceinline__ CastRow<Scale, kCount, kScales, kBlock> cast_from(const bf16* row) {
    return CastRow<Scale, kCount, kScales, kBlock>{row};
}

/// The value of a row at which the scales in a word of its record begin; -1: there are none.
__device__ __forceinline__ int scaled_by(const void*, int) {
    return -1;
}
template <class Scale, int kCount, int kScales, int kBlock>
__device__ __forceinline__ int scaled_by(const CastRow<Scale, kCount, kScales, kBlock>&, int word) {
    using Row = CastRow<Scale, kCount, kScales, kBlock>;
    const bool has = word >= Row::kFirstWord && word < Row::kEndWord;
    return has ? (word - Row::kFirstWord) * Row::kBlocksOfWord * kBlock : -1;
}

// ---- Through shared memory ----

/// Sends pieces of rows one by one: each is complete at its destinations before the next one begins.
template <class Role, bool kTma = Role::kTma>
class PieceMover;

template <class Role>
class PieceMover<Role, true> {
    using Cut = Pieces<Role>;

public:
    __device__ __forceinline__ PieceMover(MoverSmem<Role>& smem, Team& team) : smem_(smem), team_(team) {
        if (team_.leader()) {
            mbarrier_init(&smem_.full[0], 1);
            fence_mbarrier_init();
        }
        __syncwarp();  // converges; each load has a barrier of its own
    }

    /// Makes what this lane has just acquired ready to be overwritten by its stores (M4).
    __device__ __forceinline__ void fence_global() const { fence_proxy_async_global(); }

    /// Where the lanes write the record that goes with a piece.
    __device__ __forceinline__ char* meta() { return smem_.meta[0]; }

    /// Begins to load a piece of a row,
    __device__ __forceinline__ void begin(const void* row, int piece) {
        await();  // the piece before may have gone nowhere
        __syncwarp();  // each lane has seen its phase end before another one begins
        if (team_.leader()) {
            const u32 bytes = static_cast<u32>(bytes_of(piece));
            mbarrier_arrive_expect(&smem_.full[0], bytes);
            tma_load(smem_.stage[0], static_cast<const char*>(row) + piece * Cut::kBytes, bytes, &smem_.full[0]);
        }
        loading_ = true;
    }

    /// or makes it, and the part of the record that goes with it.
    template <class Scale, int kCount, int kScales, int kBlock>
    __device__ __forceinline__ void begin(const CastRow<Scale, kCount, kScales, kBlock>& row, int piece) {
        const int first = piece * Cut::kBytes;
        row.make(smem_.stage[0], meta(), first, first + bytes_of(piece));
        // M3: each lane has written its part; the lanes that store read all of it.
        fence_proxy_async_shared();
        __syncwarp();
    }

    /// Stores the piece in the row of each lane (null: it has none), and completes it for that lane (M1).
    template <class Row>
    __device__ __forceinline__ void store(char* to, const Row&, int piece) {
        await();
        if (to != nullptr) tma_store(to + piece * Cut::kBytes, smem_.stage[0], static_cast<u32>(bytes_of(piece)));
        tma_commit();
        tma_wait_stored<0>();
        __syncwarp();
    }

    /// Leaves no mbarrier open (M6).
    __device__ __forceinline__ void finish() { await(); }

private:
    static __device__ __forceinline__ int bytes_of(int piece) {
        return piece == Cut::kCount - 1 ? Cut::kLastBytes : Cut::kBytes;
    }

    /// Waits for the load, if there is one: it is local, so that nothing that anyone does can hold it up.
    __device__ __forceinline__ void await() {
        if (!loading_) return;
        while (!mbarrier_try_wait(&smem_.full[0], phase_)) {
        }
        phase_ ^= 1;
        loading_ = false;
    }

    MoverSmem<Role>& smem_;
    Team& team_;
    bool loading_ = false;
    u32 phase_ = 0;
};

/// That of devices without TMA: each piece is copied, or made, where it goes.
template <class Role>
class PieceMover<Role, false> {
    using Cut = Pieces<Role>;

public:
    __device__ __forceinline__ PieceMover(MoverSmem<Role>& smem, Team&) : smem_(smem) {}

    __device__ __forceinline__ void fence_global() const {}

    __device__ __forceinline__ char* meta() { return smem_.meta[0]; }

    template <class Row>
    __device__ __forceinline__ void begin(const Row&, int) {}

    /// Stores of all lanes come before the release of any one, by the barrier (M1).
    template <class Row>
    __device__ __forceinline__ void store(char* to, const Row& row, int piece) {
        const int first = piece * Cut::kBytes;
        const int end = piece == Cut::kCount - 1 ? Role::kRowBytes : first + Cut::kBytes;
        for (u32 left = __ballot_sync(kAllLanes, to != nullptr); left != 0; left &= left - 1) {
            const u64 there = __shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(static_cast<int>(left)) - 1);
            put(reinterpret_cast<char*>(there), row, first, end);
        }
        __syncwarp();
    }

    __device__ __forceinline__ void finish() {}

private:
    __device__ __forceinline__ void put(char* to, const void* row, int first, int end) {
        for (int i = first + lane_index() * 16; i < end; i += kLanes * 16) {
            store_quad(to + i, load_quad(static_cast<const char*>(row) + i));
        }
    }

    template <class Scale, int kCount, int kScales, int kBlock>
    __device__ __forceinline__ void put(char* to, const CastRow<Scale, kCount, kScales, kBlock>& row, int first,
                                        int end) {
        row.make(to + first, meta(), first, end);
    }

    MoverSmem<Role>& smem_;
};

// ---- As words ----

/// How a row of `kBytes` is cut into words. Casts take longer than what is asked for: more warps share them.
template <int kBytes, class Row>
struct SentAs {
    using Words = WordRow<kBytes, 2>;
};
template <int kBytes, class Scale, int kCount, int kScales, int kBlock>
struct SentAs<kBytes, CastRow<Scale, kCount, kScales, kBlock>> {
    using Words = WordRow<kBytes, 1>;
};

/// The lane's units of a part of a row that lies whole.
template <class Words>
class LyingPart {
public:
    __device__ __forceinline__ LyingPart(const void* row, int part) { Words::read(units_, row, part); }

    __device__ __forceinline__ void send(WordPair* to, int part, u32 epoch) const {
        Words::send(to, units_, part, epoch);
    }

private:
    typename Words::Units units_;
};

template <class Words>
__device__ __forceinline__ LyingPart<Words> part_of(const void* row, int part) {
    return LyingPart<Words>(row, part);
}

/// The lane's units of a part of a row that is cast, with the scales of its blocks.
template <class Words, class Row, class Scale>
class CastPart {
    static constexpr int kLanesOfBlock = Row::kLanesOfBlock;

public:
    __device__ __forceinline__ CastPart(const Row& row, int part) {
        CastUnit units[Words::kLaneUnits];
#pragma unroll
        for (int i = 0; i < Words::kLaneUnits; ++i) {
            units[i].read(row.from, Words::unit(part, i) * CastUnit::kValues, Row::kEnd);
        }
        cast_units<kLanesOfBlock>(units, codes_, scales_);
    }

    __device__ __forceinline__ void send(WordPair* to, int part, u32 epoch) const {
        Words::send(to, codes_, part, epoch);
        u64* record = Words::numbers(to) + Row::kFirstWord;
#pragma unroll
        for (int i = 0; i < Words::kLaneUnits; ++i) send_scales(record, Words::unit(part, i), scales_[i], epoch);
    }

private:
    /// Sends scales that are floats: the first lane of each block sends one, as a word.
    static __device__ __forceinline__ void send_scales(u64* record, int unit, float scale, u32 epoch) {
        const bool begins = unit % kLanesOfBlock == 0 && unit < Words::kUnits;
        if (begins) store_relaxed_sys(record + unit / kLanesOfBlock, stamped(epoch, bits_of(scale)));
    }

    /// Sends scales that are bytes: four blocks share a word, which the first of their lanes sends.
    static __device__ __forceinline__ void send_scales(u64* record, int unit, ue8m0 scale, u32 epoch) {
        constexpr int kLanesOfWord = 4 * kLanesOfBlock;
        const u32 own = unit < Words::kUnits ? scale.bits : 0;
        const int first = lane_index() / kLanesOfWord * kLanesOfWord;
        u32 word = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            word |= __shfl_sync(kAllLanes, own, first + kLanesOfBlock * k) << 8 * k;
        }
        const bool begins = lane_index() == first && unit < Words::kUnits;
        if (begins) store_relaxed_sys(record + unit / kLanesOfWord, stamped(epoch, word));
    }

    typename Words::Units codes_;
    Scale scales_[Words::kLaneUnits];
};

template <class Words, class Scale, int kCount, int kScales, int kBlock>
__device__ __forceinline__ auto part_of(const CastRow<Scale, kCount, kScales, kBlock>& row, int part) {
    return CastPart<Words, CastRow<Scale, kCount, kScales, kBlock>, Scale>(row, part);
}

}  // namespace ep
