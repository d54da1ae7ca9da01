// Functions of the device library that one lane calls, over the ranges of their arguments. The host knows
// what each gives; see values.rs, which has the checks in the same order.
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/one_launch.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace values {

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;  // what the functions give, one behind the other
};

/// Writes what functions give.
struct Out {
    ep::i64* next;

    __device__ __forceinline__ void put(ep::i64 value) { *next++ = value; }
};

/// The helpers of the language, with 32 bits and with 64.
__device__ __forceinline__ void helpers(Out& out) {
    for (int a = 0; a <= 12; ++a) {
        for (int b = 1; b <= 5; ++b) {
            out.put(ep::align(a, b));
            out.put(ep::ceil(a, b));
            out.put(ep::min(a, b));
            out.put(ep::max(a, b));
            const ep::i64 wide = (ep::i64{1} << 40) + a;
            out.put(ep::align(wide, ep::i64{b}));
            out.put(ep::ceil(wide, ep::i64{b}));
            out.put(ep::min(wide, (ep::i64{1} << 40) + b));
            out.put(ep::max(wide, (ep::i64{1} << 40) + b));
            out.put(ep::bit_xor(wide, b));
        }
    }
}

/// Sets of 64 bits, and indices beyond them.
__device__ __forceinline__ void bits(Out& out) {
    const ep::i64 sets[3] = {-1, 5, static_cast<ep::i64>(1ull << 63)};
    for (int s = 0; s < 3; ++s) {
        for (int index = -2; index <= 66; ++index) {
            out.put(ep::has(sets[s], index) ? 1 : 0);
            out.put(ep::with_bit(s, index, 64));
            out.put(ep::with_bit(sets[s], index, 7));
        }
    }
}

__device__ __forceinline__ void powers(Out& out) {
    for (int count = 1; count <= 70; ++count) out.put(ep::power_below(count));
}

/// Some ranks own no experts, others up to three.
template <int kRanks>
struct Table {
    ep::i32 begins[kRanks + 1];

    __device__ __forceinline__ Table() {
        begins[0] = 0;
        for (int r = 0; r < kRanks; ++r) begins[r + 1] = begins[r] + (r * 7 + 3) % 4;
    }

    __device__ __forceinline__ ep::i32 end() const { return begins[kRanks]; }
};

/// Expert `i` of those that are asked for: all that there are, and some that there are not.
__device__ __forceinline__ ep::i64 asked(int i, ep::i32 end) {
    if (i == end + 4) return (ep::i64{1} << 32) + 1;
    if (i == end + 5) return -(ep::i64{1} << 32);
    return i - 2;
}

template <int kRanks>
__device__ __forceinline__ void owners_of(Out& out) {
    const Table<kRanks> table;
    for (int i = 0; i < table.end() + 6; ++i) {
        const ep::i64 expert = asked(i, table.end());
        out.put(ep::owner<kRanks>(expert, table.begins));
        out.put(ep::local_expert(table.begins, i % kRanks, expert));
        const ep::i64 experts[3] = {expert, asked(i / 2, table.end()), -1};
        const ep::Row<ep::i64, 3> row = ep::row_of<3>(experts, i % 5 != 0);
        const auto set = ep::ranks_of<kRanks>(row, table.begins);
        out.put(static_cast<ep::i64>(set.words[i % ep::rank_words(kRanks)]));
        out.put(set.has(i % kRanks) ? 1 : 0);
        const int rest = kRanks - i % kRanks;
        out.put(set.bits(i % kRanks, ep::min(rest, 1 + i % 64)));
        out.put(set.has_any(i % kRanks, rest) ? 1 : 0);
    }
}

__device__ __forceinline__ void owners(Out& out) {
    owners_of<1>(out);
    owners_of<2>(out);
    owners_of<3>(out);
    owners_of<8>(out);
    owners_of<33>(out);
    owners_of<64>(out);
    owners_of<130>(out);
}

/// The flags of a set from every place of a word on, eight bytes to a number.
template <int kRanks>
__device__ __forceinline__ void flags_of(Out& out) {
    constexpr int kBytes = 144;
    for (int from = 0; from < 10; ++from) {
        alignas(8) ep::u8 bytes[kBytes];
        for (int i = 0; i < kBytes; ++i) bytes[i] = 7;
        ep::RankSet<ep::rank_words(kRanks)> set{};
        set.words[0] = 0x9d2c5680ca6b4e1dull << from;
        set.words[ep::rank_words(kRanks) - 1] |= 0x5ull << from;
        ep::store_flags<kRanks>(reinterpret_cast<bool*>(bytes + 4 + from), [&](int rank) { return set.has(rank); });
        for (int i = 0; i < kBytes; i += 8) {
            ep::u64 word = 0;
            for (int k = 0; k < 8; ++k) word |= static_cast<ep::u64>(bytes[i + k]) << 8 * k;
            out.put(static_cast<ep::i64>(word));
        }
    }
}

__device__ __forceinline__ void flags(Out& out) {
    flags_of<1>(out);
    flags_of<4>(out);
    flags_of<5>(out);
    flags_of<8>(out);
    flags_of<33>(out);
    flags_of<64>(out);
    flags_of<100>(out);
}

/// Rows of numbers, those of 32 bits and others, in a lane that has a row and in one that has none.
__device__ __forceinline__ void ids(Out& out) {
    const ep::i64 given[3] = {5, (ep::i64{1} << 32) + 5, -(ep::i64{1} << 31)};
    for (int present = 0; present < 2; ++present) {
        const ep::Row<ep::i64, 3> row = ep::row_of<3>(given, present != 0);
        ep::i64 sum = 0;
        row.for_each([&](ep::i64 value) { sum = sum * 3 + value; });
        out.put(sum);
        const ep::Ids<3> all = ep::ids_of(row);
        for (int k = 0; k < 3; ++k) out.put(all.ids[k]);
        for (int id = 4; id <= 6; ++id) out.put(all.has(id) ? 1 : 0);
    }
}

/// Sums in order, and rows of a call whose number stands in memory.
__device__ __forceinline__ void sums(Out& out) {
    for (int count = 0; count <= 4; ++count) {
        out.put(ep::sum<ep::i64>(count, [](int i) { return 10 + i; }));
        out.put(ep::sum<ep::i32>(3, 3 + count, [](int i) { return 10 + i; }));
    }
    for (int rows = -2; rows <= 9; ++rows) out.put(ep::rows_of(7, &rows));
    out.put(ep::rows_of(7, nullptr));
}

/// Stripes, and what tables record of rows.
__device__ __forceinline__ void spans(Out& out) {
    for (int tokens = 0; tokens <= 9; ++tokens) {
        for (int stripes = 1; stripes <= 4; ++stripes) {
            for (int stripe = 0; stripe < stripes; ++stripe) {
                const ep::Span span = ep::stripe_span(tokens, stripes, stripe);
                out.put(span.begin);
                out.put(span.end);
            }
        }
    }
    const ep::Span given = ep::span_of(4, 9);
    out.put(given.begin);
    out.put(given.end);
    for (int position = 0; position <= 3; ++position) {
        for (int match = 0; match < 2; ++match) {
            const ep::i32 entry = ep::recorded(match != 0, position);
            out.put(entry);
            out.put(ep::rows_through(entry));
        }
    }
}

/// Sets of peers, with and without one that is left out.
__device__ __forceinline__ void peers(Out& out) {
    const ep::Peers sets[4] = {ep::all_peers(5), ep::other_peers(5, 2), ep::one_peer(3),
                               ep::Peers{2, 4, 3}};
    for (int s = 0; s < 4; ++s) {
        out.put(sets[s].count());
        for (int i = 0; i <= 6; ++i) out.put(sets[s].at(i));
    }
}

/// Counters that wrap, and words of an epoch and a value.
__device__ __forceinline__ void words(Out& out) {
    for (int far = -2; far <= 2; ++far) {
        for (int base = -1; base <= 1; ++base) {
            const ep::u32 want = static_cast<ep::u32>(base) << 31;
            out.put(ep::reached(want + static_cast<ep::u32>(far), want) ? 1 : 0);
            const ep::u64 word = ep::stamped(static_cast<ep::u32>(base), static_cast<ep::u32>(far));
            out.put(static_cast<ep::i64>(word));
            out.put(ep::epoch_of(word));
            out.put(ep::value_of(word));
            out.put(ep::is_between(far, base, 2) ? 1 : 0);
        }
    }
}

/// Which ranks take part in calls.
__device__ __forceinline__ void alive(const ep::Group& given, Out& out) {
    ep::Group group = given;
    const ep::u64 sets[3] = {~0ull, 0x8000000000000005ull, 0};
    for (int s = 0; s < 3; ++s) {
        group.alive = sets[s];
        out.put(ep::everyone_is_alive(group) ? 1 : 0);
        for (int rank = -2; rank <= 66; ++rank) out.put(ep::is_alive(group, rank) ? 1 : 0);
    }
}

/// Who serves which peers, with fewer warps than peers and with more.
__device__ __forceinline__ void split(const ep::Group& group, Out& out) {
    for (int warps = 1; warps <= 7; ++warps) {
        for (int warp = 0; warp < warps; ++warp) {
            ep::Team team(group, ep::Call{3, false, true}, 2, 1, 3, warp, warps);
            const int first[] = {team.peer,  team.peers, team.part,  team.parts,
                                 team.index(), team.spread(), team.count(), team.stopped};
            for (int number : first) out.put(number);
            team.split_peers(3);
            const int then[] = {team.peer, team.peers, team.part, team.parts};
            for (int number : then) out.put(number);
        }
    }
}

/// Codes of eight bits, and floats from one power of two to beyond the next.
__device__ __forceinline__ void codes(Out& out) {
    for (int code = 0; code < 256; ++code) {
        const ep::u8 bits = static_cast<ep::u8>(code);
        out.put(ep::bits_of(ep::to_float(ep::e4m3{bits})));
        out.put(ep::bits_of(ep::to_float(ep::ue8m0{bits})));
        for (ep::u32 part = 0; part < 3; ++part) {
            const ep::u32 mantissa = part == 2 ? 0x7fffffu : part;
            out.put(ep::ceil_ue8m0(ep::float_of((code % 255u) << 23 | mantissa)).bits);
        }
    }
}

/// Floats to bf16 and back, one by one, and packed in pairs.
__device__ __forceinline__ void halves(Out& out) {
    for (ep::u32 n = 0; n < 8; ++n) {
        float given[8];
        for (ep::u32 k = 0; k < 8; ++k) {
            // Ties among them, to either side.
            given[k] = ep::float_of((n * 8 + k) * 0x02469000u + (k % 3) * 0x4000u);
            out.put(ep::to_bf16(given[k]).bits);
            out.put(ep::bits_of(ep::to_float(ep::to_bf16(given[k]))));
        }
        for (int k = 0; k < 8; k += 2) out.put(ep::pack_bf16(given[k], given[k + 1]));
    }
}

/// Scales of blocks, and the greater and the lesser of two magnitudes.
__device__ __forceinline__ void magnitudes(Out& out) {
    const float all[8] = {0.0f,   1e-10f, 1.5e-10f, 0x1p-126f, -0x1p-126f, 0x1p-127f, -448.0f, 3e38f};
    for (float value : all) {
        out.put(ep::bits_of(ep::scale_e4m3(value)));
        for (float other : all) {
            out.put(ep::bits_of(ep::greater_magnitude(value, other)));
            out.put(ep::bits_of(ep::lesser_magnitude(value, other)));
        }
    }
}

/// What codes of ten bits mean where logarithms begin far below those of floats, or end far above, and what
/// code a value has there.
__device__ __forceinline__ void powers_of_codes(Out& out) {
    const float lows[5] = {-200.0f, -126.0f, -3.5f, 100.0f, 3e9f};
    const float steps[5] = {0.7f, 0.5f, 0.01f, 0.25f, 1.0f};
    for (int c = 0; c < 5; ++c) {
        for (ep::u32 code = 0; code < 1024; code += 3) {
            const ep::i32 i = static_cast<ep::i32>(code % 8);
            // Among those of three others.
            const ep::i32 others = 0xff & ~(3 << 2 * (i % 4));
            const ep::i32 upper = ep::with_upper(others, static_cast<ep::i32>(code), i);
            const float value = ep::from_logfmt10(code & 0xff, upper, i, lows[c], steps[c]);
            out.put(ep::bits_of(value));
            out.put(upper);
            // A magnitude of any block, which may be outside of this one.
            const ep::u32 bits = code << 22 | code << 9;
            const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
            if (c < 4 && is_finite) {
                out.put(ep::to_logfmt10(ep::float_of(bits), lows[c], steps[c]));
            }
        }
    }
}

/// Elements of what a rank has counted, with 32 bits and with 64.
__device__ __forceinline__ void fields(Out& out) {
    ep::u32 words[12];
    for (ep::u32 i = 0; i < 12; ++i) words[i] = 0x80000001u * (i + 1);
    const ep::CountedField all{words};
    for (int i = 0; i < 4; ++i) {
        out.put(ep::get<ep::i64>(all + 16, i));
        out.put(ep::get<ep::i32>(all + 8, i));
        out.put(ep::bits_of(ep::get<float>(all + 8, i)));
    }
}

/// What eight neighbours give together.
__device__ __forceinline__ void neighbors(Out& out) {
    ep::Wide<float> a, b;
    for (int k = 0; k < ep::kWide; ++k) {
        a.values[k] = 3.0f + k;
        b.values[k] = 0.5f * (1 << k);
    }
    const ep::Wide<float> all[4] = {a + b, a - b, ep::product(a, b), a / b};
    for (const ep::Wide<float>& wide : all) {
        const ep::Wide<ep::e4m3> codes = ep::to_e4m3(wide);
        for (int k = 0; k < ep::kWide; ++k) {
            out.put(ep::bits_of(wide.values[k]));
            out.put(codes.get(k).bits);
        }
    }
}

/// Elements of a place, eight in a number.
template <class T>
__device__ __forceinline__ void put_elements(Out& out, const T* at, int count) {
    for (int i = 0; i < count; i += ep::kWide) {
        ep::i64 all = 0;
        for (int k = ep::kWide - 1; k >= 0; --k) all = all << 8 | static_cast<ep::i64>(at[i + k]);
        out.put(all);
    }
}

/// Eight neighbours of rows of any length, wherever these begin.
template <class T>
__device__ __forceinline__ void parts_of_rows(Out& out) {
    for (int begin = 0; begin < ep::kWide; ++begin) {
        for (int count = 0; count <= 17; ++count) {
            for (int i = 0; i <= 8; i += 4) {
                alignas(16) T row[32];
                for (int at = 0; at < 32; ++at) row[at] = static_cast<T>(at + 1);
                out.put(ep::is_whole(row + begin + i) ? 1 : 0);
                const ep::Wide<T> got = ep::get_wide<T>(row + begin, i, count);
                put_elements(out, got.values, ep::kWide);
                ep::Wide<T> all(static_cast<T>(100));
                all += got;
                ep::set_wide(row + begin, i, count, all);
                put_elements(out, row, 32);
            }
        }
    }
}

__device__ __forceinline__ void rows(Out& out) {
    parts_of_rows<ep::u32>(out);
    parts_of_rows<unsigned char>(out);
}

/// Where slices of rows begin and end, the last ones of them past the row.
template <int kSlices>
__device__ __forceinline__ void slices_of(Out& out) {
    for (int count = 0; count <= 4352; count += count < 512 ? 1 : 128) {
        for (int slice = 0; slice <= kSlices; ++slice) out.put(ep::slice_begin(slice, kSlices, count));
    }
}

__device__ __forceinline__ void slices(Out& out) {
    slices_of<1>(out);
    slices_of<8>(out);
    slices_of<3>(out);
    for (int shift = 0; shift < 6; ++shift) {
        for (int unit = 0; unit < 70; unit += 3) {
            const ep::i64 wide = (ep::i64{1} << 40) + unit;
            out.put(ep::row_of_slice(unit, 1 << shift));
            out.put(ep::slice_of_row(unit, 1 << shift));
            out.put(ep::row_of_slice(wide, 1 << shift));
            out.put(ep::slice_of_row(wide, 1 << shift));
        }
    }
    const ep::i64 row[2] = {7, 8};
    out.put(ep::row_if(true, row) == row);
    out.put(ep::row_if(false, row) == nullptr);
}

/// The greater and the lesser of two values, one by one and of eight neighbours, and what there is of none.
__device__ __forceinline__ void ends(Out& out) {
    const ep::u32 all[8] = {0xff800000u, 0xbf800000u, 0x80000000u, 0u,
                            0x3f800000u, 0x7f800000u, 0x7fc00001u, 0xffc00002u};
    ep::Wide<float> a, b;
    for (int i = 0; i < 8; ++i) {
        a.values[i] = ep::float_of(all[i]);
        b.values[i] = ep::float_of(all[(i * 3 + 1) % 8]);
        for (ep::u32 other : all) {
            out.put(ep::bits_of(ep::greater(ep::float_of(all[i]), ep::float_of(other))));
            out.put(ep::bits_of(ep::lesser(ep::float_of(all[i]), ep::float_of(other))));
        }
    }
    const ep::Wide<float> both[2] = {ep::greater(a, b), ep::lesser(a, b)};
    for (const ep::Wide<float>& wide : both) {
        for (float value : wide.values) out.put(ep::bits_of(value));
    }
    out.put(ep::least<ep::i64>());
    out.put(ep::greatest<ep::i64>());
    out.put(ep::lesser(ep::i64{3}, ep::i64{-7}));
    out.put(ep::greater(ep::i64{3}, ep::i64{-7}));
    out.put(ep::bits_of(ep::least<float>()));
    out.put(ep::bits_of(ep::greatest<float>()));
}

}  // namespace values

extern "C" __global__ void __launch_bounds__(32)
    values_of(const __grid_constant__ values::Args args) {
    const ep::Call call = ep::enter(args.group);
    if (threadIdx.x == 0) {
        values::Out out{args.out};
        switch (args.check) {
            case 0: values::helpers(out); break;
            case 1: values::bits(out); break;
            case 2: values::powers(out); break;
            case 3: values::owners(out); break;
            case 4: values::flags(out); break;
            case 5: values::ids(out); break;
            case 6: values::sums(out); break;
            case 7: values::spans(out); break;
            case 8: values::peers(out); break;
            case 9: values::words(out); break;
            case 10: values::alive(args.group, out); break;
            case 11: values::split(args.group, out); break;
            case 12: values::codes(out); break;
            case 13: values::neighbors(out); break;
            case 14: values::halves(out); break;
            case 15: values::magnitudes(out); break;
            case 16: values::powers_of_codes(out); break;
            case 17: values::fields(out); break;
            case 18: values::rows(out); break;
            case 19: values::slices(out); break;
            case 20: values::ends(out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
