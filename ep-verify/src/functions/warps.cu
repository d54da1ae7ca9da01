// Functions of the device library that the lanes of a warp, or the warps of a role, call together: loops,
// folds and copies. The host knows what each leaves in `out`; see warps.rs, which has the checks in the
// same order. Where lanes may read afterwards what others have written, they do.
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/count.cuh>
#include <ep/places.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace warps {

constexpr int kWarps = 4;

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// The lane after this one.
__device__ __forceinline__ int next_lane() {
    return (ep::lane_index() + 1) % ep::kLanes;
}

/// Rows that have an element that is asked for; whether others are looked at.
template <int kWidth>
__device__ __forceinline__ void rows_of(ep::i64* out) {
    const int lane = ep::lane_index();
    const int ranges[5][2] = {{0, 0}, {0, 1}, {3, 35}, {40, 7}, {5, 205}};
    for (int r = 0; r < 5; ++r) {
        const int from = ranges[r][0], to = ranges[r][1];
        int beyond = 0;
        const ep::i64 rows = ep::rows_with<kWidth>(from, to, [&](ep::i64 row, int k) {
            if (row < from || row >= to || k < 0 || k >= kWidth) ++beyond;
            const ep::i64 at = row * kWidth + k;
            return at % 7 == 2 || at % 5 == 1;
        });
        out[r * ep::kLanes + lane] = rows * 1000 + beyond;
        // Lanes ask for numbers of their own, and some for none.
        const int askers = kWidth == 8 ? 11 : 50;
        const ep::i64 own = ep::rows_with_each<kWidth>(from, to, askers, [&](ep::i64 row, int k, int by, int rest) {
            if (row < from || row >= to) ++beyond;
            return (row * kWidth + k) % by == rest;
        }, 3 + lane, lane % 3);
        if (lane < askers) out[800 + r * ep::kLanes + lane] = own * 1000 + beyond;
    }
}

/// Sums and counts over the lanes of a warp.
__device__ __forceinline__ void folds(ep::i64* out) {
    const int lane = ep::lane_index();
    out[lane] = ep::lanes_through(lane * 3 - 7);
    // Of the second group, those past the 40th are none.
    const ep::i32 totals[2] = {lane * 2, lane < 8 ? 64 + lane * 2 : 0};
    const int numbers[6] = {-1, 0, 5, 77, 78, 200};
    for (int n = 0; n < 6; ++n) {
        const int upto = ep::totals_upto<40>(totals, numbers[n]);
        out[40 + n * 32 + lane] = upto;
    }
    const int ends[3] = {3, 4, 43};
    for (int e = 0; e < 3; ++e) {
        ep::i64* own = out + 300 + e * 50;
        ep::for_lanes(3, ends[e], [&](int i) { own[i] = i; });
        if (e == 2) out[460 + lane] = own[3 + next_lane()];
    }
    // Each lane's part shows in the sum.
    out[500 + lane] = ep::sum_of_lanes(1ll << lane * 2 % 61);
    rows_of<1>(out + 540);
    rows_of<3>(out + 740);
    rows_of<8>(out + 940);
    rows_of<32>(out + 1140);
}

/// Running totals of tables of any length.
__device__ __forceinline__ void prefixes(ep::i64* out) {
    const int lane = ep::lane_index();
    const int counts[10] = {0, 1, 31, 32, 33, 96, 97, 128, 129, 300};
    for (int c = 0; c < 10; ++c) {
        ep::i64* own = out + c * 320;
        const ep::i32 total = ep::prefix_sum(
            counts[c], [](int i) { return i % 5 + 1; }, [&](int i, ep::i32 sum) { own[i] = sum; });
        if (lane == 7) own[310] = total;
        if (lane == 8 && counts[c] > 9) own[311] = own[9];
    }
    ep::i64* own = out + 3200;
    ep::prefix_sum_and_total(
        40, [](int i) { return i + 1; }, [&](int i, ep::i32 sum) { own[i] = sum; });
    if (lane == 9) own[50] = own[40];
    // Sums of 64 bits, and the low 32 bits of sums that have more.
    const ep::i64 wide = ep::prefix_sum(
        35, [](int i) { return ep::i64{i} << 33; }, [&](int i, ep::i64 sum) { own[60 + i] = sum; });
    const ep::i32 low = ep::prefix_sum(
        6, [](int) { return 1 << 30; }, [&](int i, ep::i32 sum) { own[100 + i] = sum; });
    if (lane == 0) own[110] = wide, own[111] = low;
}

/// Fields of a message: few elements, more than lanes, and more than stay in registers.
template <int kCount>
__device__ __forceinline__ void field_of(ep::i64* out) {
    int asked = 0;
    const auto field = ep::ask<ep::i64, kCount>([&](int i) {
        ++asked;
        return i * 3 + 1;
    });
    out[500 + ep::lane_index()] = asked;
    field.put(reinterpret_cast<char*>(out));
}

__device__ __forceinline__ void fields(ep::i64* out) {
    field_of<3>(out);
    field_of<40>(out + 600);
    field_of<256>(out + 1200);
    field_of<300>(out + 1800);
    if (ep::lane_index() == 0) {
        char* field = reinterpret_cast<char*>(out + 2400);
        for (int i = 0; i < 3; ++i) ep::set<ep::i64>(field, i, 70 + i);
        for (int i = 0; i < 3; ++i) out[2410 + i] = ep::get<ep::i64>(field, i);
        ep::store_host(reinterpret_cast<ep::i32*>(out + 2420), -2);
    }
}

/// Looks up flags of 100 turns, with 40 peers (two words of flags) and with 65 (no lookup ahead).
__device__ __forceinline__ void flags_of_turns(ep::i64* out) {
    const auto where = [&](int turn, int peer) {
        if (turn >= 105) out[408] = turn;
        return (turn * 7 + peer * 3) % 5 < 2;
    };
    ep::Flags<40> flags;
    ep::Flags<65> many;
    for (int turn = 5; turn < 105; ++turn) {
        for (int k = 0; k < 4; ++k) {
            const bool holds = flags.at(turn, 105, k % 2 * 31 + k / 2 * 4, where);
            if (ep::lane_index() == 0) out[(turn - 5) * 4 + k] = holds ? 1 : 0;
        }
        const bool last = flags.at(turn, 105, 32 + turn % 8, where);
        const bool far = many.at(turn, 105, 64, where);
        if (ep::lane_index() == 0) out[410 + turn] = (last ? 1 : 0) + (far ? 2 : 0);
    }
}

/// Asks for a row of so many elements, and says how many of them arrive, and whether nothing else does.
template <int kCount>
__device__ __forceinline__ void asked_row(const ep::u16* from, ep::u16* to, ep::i64* found) {
    for (int offset = 0; offset < 2; ++offset) {
        ep::for_lanes(0, kCount + 8, [&](int i) { to[i] = 0xabcd; });
        const auto row = ep::ask_row<ep::u16, kCount>(from + offset);
        row.put(reinterpret_cast<char*>(to));
        __syncwarp();
        int same = 0;
        while (same < kCount && to[same] == from[same + offset]) ++same;
        if (ep::lane_index() == 0) found[offset] = same + (to[kCount] == 0xabcd ? 10000 : 0);
        __syncwarp();
    }
}

__device__ __forceinline__ void ahead(ep::i64* out) {
    flags_of_turns(out);
    ep::u16* from = reinterpret_cast<ep::u16*>(out + 600);
    ep::u16* to = reinterpret_cast<ep::u16*>(out + 1000);
    ep::for_lanes(0, 1108, [&](int i) { from[i] = static_cast<ep::u16>(i * 31 + 7); });
    asked_row<8>(from, to, out + 520);
    asked_row<40>(from, to, out + 522);
    asked_row<267>(from, to, out + 524);
    asked_row<1100>(from, to, out + 526);
    ep::for_lanes(600, 1280, [&](int i) { out[i] = 0; });
}

constexpr int kCopy = 1040;  // numbers of a row

/// Copies of rows that lie in whole units of 16 bytes, and of others.
template <class T>
__device__ __forceinline__ ep::i64* copies_of(const ep::Team& team, ep::i64* to, const ep::i64* from,
                                              int count) {
    for (int offset = 0; offset < 4; ++offset) {
        T* there = reinterpret_cast<T*>(to) + offset % 2;
        ep::copy_row<T>(team, there, reinterpret_cast<const T*>(from) + offset / 2, count);
        to += kCopy;
    }
    return to;
}

__device__ __forceinline__ void copies(const ep::Team& team, ep::i64* out) {
    ep::for_lanes(0, kCopy, [&](int i) {
        out[i] = static_cast<ep::i64>(static_cast<ep::u64>(i) * 0x0102030405060708ull);
    });
    ep::i64* to = out + kCopy;
    to = copies_of<ep::u16>(team, to, out, 5);
    to = copies_of<ep::u16>(team, to, out, 32);
    to = copies_of<ep::u16>(team, to, out, 33);
    to = copies_of<ep::u16>(team, to, out, 1035);
    to = copies_of<ep::u16>(team, to, out, 4107);
    to = copies_of<ep::u8>(team, to, out, 100);
    copies_of<ep::i64>(team, to, out, 259);
}

/// The tokens of stripes, each to one lane.
__device__ __forceinline__ void stripes(ep::Team& team, ep::i64* out) {
    // Of the last ones one stripe has a slice more than the others.
    const int tokens[7] = {0, 1, 5, 70, 200, 64, 97};
    const int counts[7] = {3, 1, 2, 3, 5, 4, 3};
    for (int c = 0; c < 7; ++c) {
        const int all = tokens[c];
        ep::i64* own = out + c * 220;
        const ep::StripeSlices slices(team, all, counts[c]);
        for (int slice = team.warp; slice < slices.count; slice += team.warps) {
            const ep::Span rows = slices.span(slice);
            if (rows.end - rows.begin > ep::kLanes) own[211] = slice;
            for (int token = rows.begin + team.lane; token < rows.end; token += ep::kLanes) {
                own[token] += slices.stripe(slice) + 1;
            }
        }
    }
}

/// Places that numbers deal out, more of them than lanes.
__device__ __forceinline__ void counters(ep::i64* out) {
    const int lane = ep::lane_index();
    ep::PlaceCounters<40> counters;
    for (int number = lane; number < 40; number += ep::kLanes) counters.begin(number, 100 * number);
    const int turns[6] = {0, 39, 39, 7, 0, 39};
    for (int t = 0; t < 6; ++t) {
        const ep::i64 next = counters.next(turns[t]);
        const ep::i64 taken = counters.take(turns[t]);
        out[t * 64 + lane] = next;
        out[t * 64 + 32 + lane] = taken;
    }
}

/// Numbers for which a condition holds: none of the second 32. A team stops behind three of them.
__device__ __forceinline__ void chosen(ep::Team& team, ep::i64* out) {
    const int ends[6] = {0, 1, 32, 33, 100, 20};
    for (int c = 0; c < 6; ++c) {
        ep::i64* own = out + c * 60;
        const auto holds = [&](int number) {
            if (number < 0 || number >= ends[c]) out[400] = number;
            return number % 7 < 3 && number / 32 != 1;
        };
        ep::Chosen numbers(ends[c]);
        int turn = 0;
        for (int number; (number = numbers.take(team, holds)) >= 0; ++turn) {
            if (team.lane == turn % ep::kLanes) own[turn] = number;
            team.stopped = c == 5 && turn == 2;
        }
        if (team.lane < 20) own[40 + team.lane] = turn;
    }
}

/// Rows of a tensor of more than 2^32 elements, of which these are there.
__device__ __forceinline__ void filled(const ep::Team& team, ep::i64* out) {
    constexpr int kWidth = 1027, kFirst = 1 << 22;
    ep::i64* all = out - static_cast<ep::i64>(kFirst) * kWidth;
    ep::fill(team, all, kWidth, kFirst, kFirst + 3, ep::i64{77});
    const int beside = team.index() * ep::kLanes + next_lane();
    out[3200 + beside] = out[beside] + 1;
    ep::fill(team, out + 3600, 5, 2, 2, ep::i64{78});
}

/// How many lanes each number comes up in, more of them than lanes.
__device__ __forceinline__ void hits(ep::i64* out) {
    const int counts[5] = {0, 7, 45, 31, 33};
    for (int c = 0; c < 5; ++c) {
        ep::i64* own = out + c * 60;
        ep::for_hits(
            counts[c], [](int i) { return i != 5 && ep::lane_index() <= i; },
            [&](int i, int found) { own[i] += found * 100 + ep::lane_index(); });
    }
}

/// Counters of stripes and of a whole tensor, cleared by all threads of the grid.
__device__ __forceinline__ void clears(ep::i64* out) {
    ep::clear_stripes(reinterpret_cast<ep::i32*>(out), 11, 6);
    ep::clear_stripes(reinterpret_cast<ep::i32*>(out + 40), 2, 70);
    ep::clear_tensor(reinterpret_cast<ep::i32*>(out + 200), 600);
}

/// Small rows of several kinds, one of them absent: some of a lane, more than all lanes take at once, and none. Rows that are
/// copied begin at a multiple of 16 bytes or not.
__device__ __forceinline__ void kinds(ep::i64* out) {
    const int ends[4] = {3, 17, 50, 2};
    for (int c = 0; c < 4; ++c) {
        ep::i64* own = out + c * 8000;
        for (int i = ep::lane_index(); i < 202; i += ep::kLanes) own[7100 + i] = i * 7;
        __syncwarp();
        ep::for_row_elements(
            2, ends[c],
            ep::row_units<ep::i64, 4>(
                true, [&](int row) { return own + 7100 + row * 4 + c % 2; },
                [&](int row) { return own + 7320 + row * 4; }),
            ep::row_units<ep::i64, 3>(
                c != 0, [&](int row) { return own + 7100 + row * 4; }, [&](int row) { return own + 7540 + row * 3; }),
            ep::row_elements<ep::i64>(
                true, 37, [&](int row, int i) { return row * 100ll + i; },
                [&](int row, int i, ep::i64 value) { own[row * 37 + i] = value; }),
            ep::row_elements<ep::i32>(
                true, 70, [&](int row, int i) { return row * 300 + i; },
                [&](int row, int i, ep::i32 value) { own[2000 + row * 70 + i] = value; }),
            ep::row_elements<ep::i32>(
                c == 1, 1, [&](int row, int) { return row; },
                [&](int row, int i, ep::i32 value) { own[7000 + row + i] = value; }));
    }
}

/// Value `i` of a block: magnitudes of so many octaves from some power of two on.
__device__ __forceinline__ float block_value(int block, int i) {
    const ep::u32 first[8] = {0, 0, 127, 120, 90, 1, 215, 254};
    const ep::u32 octaves[8] = {1, 3, 1, 16, 60, 40, 39, 1};
    if (block >= 8) {
        // Nothing; the least magnitudes, and one below; nearly all octaves, and somewhat more.
        const float last[4][3] = {{0.0f, -0.0f, 0.0f},
                                  {0x1p-126f, -0x1p-126f, 0x1p-127f},
                                  {0x1p-27f, -0x1.8p4f, 1.0f},
                                  {0x1.e9p-29f, 0x1p4f, -0x1p-40f}};
        return last[block - 8][i % 3];
    }
    const ep::u32 mixed = static_cast<ep::u32>(block * 64 + i + 1) * 2654435761u;
    const ep::u32 exponent = first[block] + (mixed >> 7) % octaves[block];
    return ep::float_of((mixed & 0x80000000u) | exponent << 23 | (mixed & 0x7fffffu));
}

/// Blocks of values, of which each lane has two: their scales, and codes of ten bits.
__device__ __forceinline__ void blocks(ep::i64* out) {
    const int lane = ep::lane_index();
    for (int b = 0; b < 12; ++b) {
        ep::i64* own = out + b * 140;
        float peak = 0.0f, least = 0.0f;
        for (int i = lane; i < 64; i += ep::kLanes) {
            peak = ep::greater_magnitude(peak, block_value(b, i));
            least = ep::lesser_magnitude(least, block_value(b, i));
        }
        const float scale = ep::block_scale(peak);
        peak = ep::block_peak(peak), least = ep::block_least(least);
        const float low = ep::log_low(least, peak), step = ep::log_step(low, peak);
        if (lane == b) {
            own[0] = ep::bits_of(scale);
            own[1] = ep::bits_of(low);
            own[2] = ep::bits_of(step);
        }
        for (int i = lane; i < 64; i += ep::kLanes) {
            own[3 + i] = ep::to_logfmt10(block_value(b, i), low, step);
        }
    }
}

/// Elements that rows are cast from: blocks of small ones, of large ones and of none, and one that is infinite.
__device__ __forceinline__ ep::bf16 cast_value(int i) {
    if (i == 900) return {0x7f80};
    const ep::u32 mixed = static_cast<ep::u32>(i + 1) * 2654435761u, block = static_cast<ep::u32>(i / 128);
    const ep::u32 exponent = 90 + block * 5 + (mixed >> 7) % 12;
    const bool is_zero = block % 5 == 3;
    return {static_cast<ep::u16>(is_zero ? 0 : (mixed >> 31) << 15 | exponent << 7 | (mixed & 0x7f))};
}

/// Rows that are cast with scales that lie apart: less than a block, whole ones, and more than a warp has at a time.
template <class Scale, int kBlock>
__device__ __forceinline__ ep::i64* casts_of(const ep::Team& team, const ep::bf16* row, ep::i64* to) {
    const int counts[9] = {1, 5, 127, 128, 129, 256, 1024, 1037, 2176};
    for (int count : counts) {
        ep::cast_row<Scale, kBlock>(team, to, to + 280, 2, row, count);
        to += 300;
    }
    return to;
}

__device__ __forceinline__ void casts(const ep::Team& team, ep::i64* out) {
    ep::bf16* row = reinterpret_cast<ep::bf16*>(out);
    ep::for_lanes(0, 2400, [&](int i) { row[i] = cast_value(i); });
    ep::i64* to = casts_of<float, 128>(team, row, out + 600);
    to = casts_of<ep::ue8m0, 128>(team, row, to);
    // No vector begins where this row does.
    to = casts_of<float, 128>(team, row + 1, to);
    to = casts_of<float, 256>(team, row, to);
    casts_of<ep::ue8m0, 32>(team, row, to);
}

/// How many slices rows are cut into, and quotients by the largest number that is divided by.
__device__ __forceinline__ void slices(ep::i64* out) {
    const int warps = ep::lane_index();
    for (int rows = 0; rows < 10; ++rows) out[rows * ep::kLanes + warps] = ep::slices_of<8>(warps, ep::i64{rows});
    const auto all = ep::wide_of<float>([&](int k) {
        return ep::float_of(0x7d000000u + static_cast<ep::u32>(warps * 8 + k) * 77777u);
    });
    const ep::Wide<float> found = ep::quotients(all, 1e37f);
    for (int k = 0; k < ep::kWide; ++k) out[320 + warps * 8 + k] = ep::bits_of(found.values[k]);
}

/// Rows of the parts of a token, of which every third is missing.
struct TokenParts {
    const ep::u16* rows;
    int shift;

    __device__ __forceinline__ const char* row(int part) const {
        if (part % 3 == 1) return nullptr;
        return reinterpret_cast<const char*>(rows + part * 208 + (part == shift ? 1 : 0));
    }
};

/// Eight neighbours of each part, and in which order these come: as a whole, and where one row, or all of them, begin
/// where none can be read so.
template <int kParts>
__device__ __forceinline__ ep::i64* parts_of(const ep::u16* rows, ep::i64* to) {
    for (int begin = 0; begin < 3; ++begin) {
        int turn = 0;
        const TokenParts parts{rows, begin == 1 ? 2 : -1};
        const int first = ep::lane_index() * ep::kWide + begin / 2;
        ep::for_parts<ep::u16, kParts>(
            parts, first, 203, [&](int part, const ep::Wide<ep::u16>& values) {
                ep::i64* own = to + (part * ep::kLanes + ep::lane_index()) * 2;
                own[0] = ++turn;
                own[1] = 0;
                for (int k = 0; k < ep::kWide; ++k) own[1] |= static_cast<ep::i64>(values.values[k]) << 8 * k;
            });
        to += kParts * ep::kLanes * 2;
    }
    return to;
}

__device__ __forceinline__ void token_parts(ep::i64* out) {
    ep::u16* rows = reinterpret_cast<ep::u16*>(out);
    ep::for_lanes(0, 20 * 208, [&](int i) { rows[i] = static_cast<ep::u16>(i * 7 % 251 + 1); });
    ep::i64* to = parts_of<1>(rows, out + 1040);
    to = parts_of<7>(rows, to);
    to = parts_of<8>(rows, to);
    to = parts_of<9>(rows, to);
    parts_of<20>(rows, to);
}

constexpr int kAdded = 5;     // rows that are added up
constexpr int kSumCount = 1300;  // elements of one, neither whole stretches nor whole turns

/// Sums of those of `kRows` rows that there are, whose first values are `stride` apart; behind them, how often one was set.
template <int kRows, int kThreads>
__device__ __forceinline__ ep::i64* row_sums_of(const ep::bf16* rows, int stride, int begin, int end,
                                                ep::i64* to) {
    int sets = 0;
    ep::sum_some_rows<ep::bf16, kRows, kThreads>(
        begin, end, kSumCount,
        [&](int k) { return ep::row_if(k % 3 != 1, rows + k % kAdded * stride); },
        [&](ep::Wide<float>& sum, int k, const ep::Wide<ep::bf16>& row) {
            // In order, or it would be another sum.
            sum += ep::product(ep::Wide<float>(static_cast<float>(k + 1)), ep::to_float(row));
            for (int i = 0; i < ep::kWide; ++i) sum.values[i] = -sum.values[i];
        },
        [&](int i, const ep::Wide<float>& sum) {
            ++sets;
            ep::i64 own = 0;
            for (int k = 0; k < ep::kWide; ++k) own += (k + 1) * static_cast<ep::i64>(sum.values[k]);
            to[i / ep::kWide] = own;
        });
    to[kSumCount / ep::kWide + 1 + ep::lane_index()] = sets;
    return to + kSumCount / ep::kWide + 1 + ep::kLanes;
}

__device__ __forceinline__ void row_sums(ep::i64* out) {
    ep::bf16* rows = reinterpret_cast<ep::bf16*>(out);
    ep::i64* to = out + kAdded * 1304 / 4;
    for (int stride = 1304; stride >= 1301; stride -= 3) {
        __syncwarp();
        for (int row = 0; row < kAdded; ++row) {
            ep::for_lanes(0, kSumCount, [&](int i) {
                rows[row * stride + i] = ep::to_bf16(static_cast<float>((row * 37 + i * 11) % 31 - 15));
            });
        }
        __syncwarp();
        to = row_sums_of<1, 512>(rows, stride, 0, kSumCount, to);
        to = row_sums_of<5, 1024>(rows, stride, 256, 1280, to);
        to = row_sums_of<34, 512>(rows, stride, 0, kSumCount, to);
    }
    __syncwarp();
    // Where the rows lay.
    ep::for_lanes(0, kAdded * 1304 / 4, [&](int i) { out[i] = 0; });
}

}  // namespace warps

extern "C" __global__ void __launch_bounds__(warps::kWarps * 32)
    warps_of(const __grid_constant__ warps::Args args) {
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    ep::Team team(args.group, call, 0, block, blocks, warp, warps::kWarps);
    ep::i64* out = args.out;
    switch (args.check) {
        case 0: warps::stripes(team, out); break;
        case 1: warps::filled(team, out); break;
        case 2: warps::clears(out); break;
        default: break;
    }
    if (team.index() == 0) {
        switch (args.check) {
            case 3: warps::folds(out); break;
            case 4: warps::prefixes(out); break;
            case 5: warps::fields(out); break;
            case 6: warps::copies(team, out); break;
            case 7: warps::counters(out); break;
            case 8: warps::chosen(team, out); break;
            case 9: warps::hits(out); break;
            case 10: warps::blocks(out); break;
            case 11: warps::casts(team, out); break;
            case 12: warps::token_parts(out); break;
            case 13: warps::kinds(out); break;
            case 14: warps::slices(out); break;
            case 15: warps::ahead(out); break;
            case 16: warps::row_sums(out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
