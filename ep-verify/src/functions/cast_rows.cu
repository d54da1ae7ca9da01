// Rows of bf16 whose scales are powers of two and whose codes are known: this stands before made.cu and packed.cu. See
// `code` in made.rs.
#include <ep/packed.cuh>

namespace cast_rows {

/// The code of value `i` of a row; the greatest one of a block is at a place of its own.
__device__ __forceinline__ ep::u32 code_of(int row, int i) {
    const int block = i / 128;
    const ep::u32 sign = (i * i + row) % 7 < 3 ? 0x80 : 0;
    return (i % 128 == (block * 37 + 5) % 128 ? 0x7e : (i * 5 + row * 3 + block) % 0x7d + 1) | sign;
}

/// Writes a row of `count` values, and large ones up to `end`; warp.
__device__ __forceinline__ void put(ep::bf16* to, int row, int count, int end) {
    for (int i = ep::lane_index(); i < end; i += ep::kLanes) {
        const float code = ep::to_float(ep::e4m3{static_cast<ep::u8>(code_of(row, i))});
        const float scale = ep::float_of(static_cast<ep::u32>(125 + (i / 128 + row) % 5) << 23);
        to[i] = ep::to_bf16(i < count ? code * scale : 30000.0f);
    }
    __syncwarp();
}

}  // namespace cast_rows
