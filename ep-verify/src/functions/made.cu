// What one warp does with rows that are cast, sent in pieces or as words, and copied to lists. The host knows what each
// check leaves in `out`; see made.rs, which has the checks in the same order.
namespace made {

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

constexpr int kValues = 2704;  // turns of a warp, some more blocks, and one that is short
constexpr int kWhole = 2560;   // whole words of scales
constexpr int kBlocks = 1152;  // one block more than those
constexpr int kRoom = 1 << 18;  // bytes that a check may leave
constexpr int kUnits = 449;    // of the memory in which the row is: batches of a warp, and one more

template <class Scale>
using Row = ep::CastRow<Scale, kValues, 8>;

/// A role that sends pieces of rows.
template <bool kTma_>
struct Role {
    static constexpr int kRowBytes = 1808;
    static constexpr int kPieceBytes = 512;
    static constexpr int kStages = 2;
    static constexpr int kMetaBytes = 528;
    static constexpr bool kTma = kTma_;
};

struct alignas(128) Bytes {
    char bytes[2176];
};

/// Parts of a row, each with its scales, at places of their own.
template <class Scale>
__device__ __forceinline__ void makes(const ep::bf16* from, char* out) {
    const auto row = ep::cast_from<Scale, kValues, 8>(from);
    const int begins[6] = {0, 128, 512, 2560, 384, 0}, ends[6] = {2704, 2704, 1024, 2704, 384, 2176};
    for (int c = 0; c < 6; ++c) row.make(out + c * 4096, out + c * 4096 + 2816, begins[c], ends[c]);
}

__device__ __forceinline__ void scaled(const ep::bf16* from, ep::i64* out) {
    const int lane = ep::lane_index();
    out[lane] = ep::scaled_by(Row<float>{from}, lane);
    out[32 + lane] = ep::scaled_by(Row<ep::ue8m0>{from}, lane);
    out[64 + lane] = ep::scaled_by(from, lane);
}

/// All parts of a row as words.
template <class Words, class From>
__device__ __forceinline__ void sends(const From& row, ep::i64* out) {
    ep::WordPair* to = reinterpret_cast<ep::WordPair*>(out);
    for (int part = 0; part < Words::kParts; ++part) ep::part_of<Words>(row, part).send(to, part, 7);
}

/// Pieces of a row to the rows of two lanes: one goes nowhere before the first, and one behind the last.
template <class R, class From>
__device__ __forceinline__ void moves(ep::Team& team, Bytes& shared, const From& row, char* out) {
    static_assert(sizeof(ep::MoverSmem<R>) <= sizeof(Bytes), "it has room");
    const int lane = team.lane;
    // Nothing is behind it.
    char* memory = shared.bytes + sizeof(Bytes) - sizeof(ep::MoverSmem<R>);
    ep::PieceMover<R> mover(*reinterpret_cast<ep::MoverSmem<R>*>(memory), team);
    for (int i = lane; i < 132; i += ep::kLanes) reinterpret_cast<ep::u32*>(mover.meta())[i] = 17 * i;
    char* to = lane == 1 ? out : lane == 30 ? out + 2048 : nullptr;
    for (int i = 0; i < R::kRowBytes / 8 && to != nullptr; ++i) reinterpret_cast<ep::i64*>(to)[i] = 1;
    __syncwarp();
    mover.fence_global();
    mover.begin(row, 2);
    Marks marks{reinterpret_cast<ep::i64*>(out + 8192)};
    const int pieces[4] = {3, 0, 2, 1};
    for (const int piece : pieces) {
        mover.begin(row, piece);
        marks.write();
        mover.store(to, row, piece);
        marks.read();
        // Whoever has stored may tell.
        const int last = piece == 3 ? R::kRowBytes - 8 : piece * 512 + 504;
        ep::i64* seen = reinterpret_cast<ep::i64*>(out + 16384) + piece * ep::kLanes + lane;
        if (to != nullptr) *seen = *reinterpret_cast<ep::i64*>(to + last);
    }
    mover.begin(row, 0);
    mover.finish();
    for (int i = (lane + 1) % ep::kLanes; i < 132; i += ep::kLanes) {
        reinterpret_cast<ep::u32*>(out + 4096)[i] = reinterpret_cast<ep::u32*>(mover.meta())[i];
    }
}

/// Tokens before one that list the values of lanes. Of others nobody asks, and what those that are not there list is not
/// looked at.
template <int kWidth>
__device__ __forceinline__ void lists(ep::i64* out) {
    const int lane = ep::lane_index();
    const int tokens[11] = {0, 1, 31, 32, 33, 64, 127, 128, 129, 160, 300};
    for (int c = 0; c < 11; ++c) {
        int faults = 0;
        const auto row = [&](int token, bool present) {
            faults += token < 0 || (present ? token >= tokens[c] : token != 0) ? 1 : 0;
            ep::Row<ep::i64, kWidth> listed{{}, present};
            for (int k = 0; k < kWidth; ++k) {
                const int own = token % 4 == 0 ? k % 5 : k;
                listed.values[k] = present ? (token * 7 + own * 11) % 26 - 3 : 0;
            }
            return listed;
        };
        const ep::i64 value = lane == 4 ? -3 : lane == 5 ? (1ll << 32) + 10 : lane * 2;
        out[c * 32 + lane] = ep::listed_before<kWidth>(tokens[c], value, row);
        out[400 + c * 32 + lane] = faults;
    }
}

/// Small values to the rows of three lanes, side by side and apart.
template <class T>
__device__ __forceinline__ void fields(const char* row, Bytes& shared, T* out) {
    const int lane = ep::lane_index();
    // Nothing is behind them.
    char* end = shared.bytes + sizeof(Bytes);
    for (int i = lane; i < 17; i += ep::kLanes) {
        reinterpret_cast<ep::Quad*>(end)[i - 17] = reinterpret_cast<const ep::Quad*>(row)[kUnits + i - 17];
    }
    __syncwarp();
    const bool match = lane == 0 || lane == 7 || lane == 31;
    Marks marks{reinterpret_cast<ep::i64*>(out) + 16384};
    const int counts[4] = {40, 32, 5, 65};
    for (int c = 0; c < 4; ++c) {
        marks.write();
        ep::copy_field<T>(match, out + c * 8192 + lane * 256, c == 3 ? 1 : 3, end - counts[c] * sizeof(T), counts[c]);
        marks.read();
    }
    ep::copy_field<T>(false, nullptr, 1, row, 40);
}

/// Slices of a row to the rows of three lanes, or of the first one.
__device__ __forceinline__ void slices(const char* row, char* out) {
    const int lane = ep::lane_index();
    // Nothing is behind it.
    char* from = out + kRoom - kUnits * 16;
    for (int i = lane; i < kUnits; i += ep::kLanes) {
        reinterpret_cast<ep::Quad*>(from)[i] = reinterpret_cast<const ep::Quad*>(row)[i];
    }
    __syncwarp();
    const int place = lane == 0 ? 0 : lane == 5 ? 1 : 2;
    Marks marks{reinterpret_cast<ep::i64*>(out) + 16384};
    const int numbers[4] = {0, 0, 1, 7}, all[4] = {1, 2, 2, 8};
    for (int c = 0; c < 4; ++c) {
        const bool match = lane == 0 || (c < 3 && (lane == 5 || lane == 31));
        marks.write();
        ep::copy_slice<kUnits * 16>(match, out + (c * 3 + place) * 8192, from, numbers[c], all[c]);
        marks.read();
    }
    ep::copy_slice<kUnits * 16>(false, nullptr, from, 0, 1);
}

/// Values of rows, each as often as it is named once.
__device__ __forceinline__ void once(ep::i64* out) {
    const int lane = ep::lane_index();
    const ep::Row<ep::i64, 4> row{{lane % 3, lane % 5, lane % 2, lane / 8}, lane != 9};
    ep::i64* own = out + lane * 8;
    for (int k = 0; k < 8; ++k) own[k] = 0;
    row.for_each_once([&](ep::i64 value) { ++own[value]; });
}

}  // namespace made

extern "C" __global__ void __launch_bounds__(32)
    made_of(const __grid_constant__ made::Args args) {
    using namespace made;
    EP_SHARED(Bytes, shared);
    const ep::Call call = ep::enter(args.group);
    ep::Team team(args.group, call, 0, 0, 1, 0, 1);
    ep::bf16* row = reinterpret_cast<ep::bf16*>(args.group.window + 64);
    const void* lying = row;
    ep::i64* out = args.out;
    char* bytes = reinterpret_cast<char*>(out);
    switch (args.check) {
        case 0: cast_rows::put(row, 0, kValues, kUnits * 8); break;
        case 1: makes<float>(row, bytes); break;
        case 2: makes<ep::ue8m0>(row, bytes); break;
        case 3: scaled(row, out); break;
        case 4: sends<ep::SentAs<kValues, Row<float>>::Words>(Row<float>{row}, out); break;
        case 5: sends<ep::WordRow<kWhole, 4>>(ep::cast_from<float, kWhole, 8>(row), out); break;
        case 6: sends<ep::SentAs<kValues, Row<ep::ue8m0>>::Words>(Row<ep::ue8m0>{row}, out); break;
        case 7: sends<ep::WordRow<kWhole, 4>>(ep::cast_from<ep::ue8m0, kWhole, 8>(row), out); break;
        case 8: sends<ep::SentAs<kValues, const void*>::Words>(lying, out); break;
        case 9: moves<Role<true>>(team, shared, lying, bytes); break;
        case 10: moves<Role<true>>(team, shared, ep::cast_from<float, 1808, 8>(row), bytes); break;
        case 11: moves<Role<false>>(team, shared, lying, bytes); break;
        case 12: moves<Role<false>>(team, shared, ep::cast_from<ep::ue8m0, 1808, 8>(row), bytes); break;
        case 13: lists<8>(out); break;
        case 14: lists<9>(out); break;
        case 15: fields<float>(reinterpret_cast<char*>(row), shared, reinterpret_cast<float*>(out)); break;
        case 16: fields<ep::ue8m0>(reinterpret_cast<char*>(row), shared, reinterpret_cast<ep::ue8m0*>(out)); break;
        case 17: slices(reinterpret_cast<char*>(row), bytes); break;
        case 18: once(out); break;
        case 19: sends<ep::WordRow<16, 1>>(ep::cast_from<ep::ue8m0, 16, 8>(row), out); break;
        case 20: sends<ep::WordRow<kBlocks, 1>>(ep::cast_from<ep::ue8m0, kBlocks, 8>(row), out); break;
        case 21: lists<40>(out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
