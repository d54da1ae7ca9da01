// Ways back of few tokens: rows to slots of their tokens, and sums of these, among many ranks that one warp plays, and
// between two. The host knows what each check leaves in `out`; see ways_back.rs, which has the checks in the same order.

namespace ways_back {

// More peers than lanes, more rows of this rank than four warps have lanes, rows of several steps a quarter, and a channel
// between two ranks.
using Many = Slots<kMemory + sizeof(Memory), 0, kNode, 23, 2, 80, 5>;
using Few = Slots<Many::kEnd, 1, 3, 1, 136, 48, 0>;
using Long = Slots<Few::kEnd, 2, 3, 1, 4, kMostRow, kMostFloats>;
using Two = Slots<Long::kEnd, 3, 2, 0, 7, 1040, 4>;

/// How rows are cut, and which warp takes what of how many.
template <class Cut>
__device__ __forceinline__ void cuts(const ep::Group& given, ep::i64* out) {
    const int rows[6] = {0, 1, 3, 10, 17, 33};
    for (int i = ep::lane_index(); i <= ep::kQuarters; i += ep::kLanes) out[i] = Cut::first(i);
    for (int i = ep::lane_index(); i < 6 * 40; i += ep::kLanes) out[10 + i] = Cut::quarters(rows[i / 40], i % 40 + 1);
    for (int c = 0; c < 12; ++c) {
        const int count = rows[c / 2 % 6], warps = c % 2 == 0 ? 4 : 3;
        for_warps(group_of<Few>(given), kCall, warps, [&](ep::Team& team) {
            ep::for_quarters<Cut>(team, count, [&](int row, int quarter, int quarters) {
                const int place = 300 + c * 150 + row * ep::kQuarters + quarter;
                if (team.leader()) out[place] = team.warp * 100 + quarters;
                // The last case but one ends by itself, and the last one by a stop.
                team.stopped = c == 11 && row > 20;
                return !(c == 10 && row > 20);
            });
        });
    }
}

/// All warps say that they have read what came before, each as another rank; of two groups, of which one is stopped.
__device__ __forceinline__ void begin(const ep::Group& given) {
    ep::Group group = group_of<Many>(given), other = group_of<Few>(given);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    group.rank = other.rank = static_cast<int>(blockIdx.x) * kWarps + warp;
    other.windows = group.windows;
    other.rank += 2 * kWarps;
    // Another block may stop the team at the same time, or end its call.
    if (blockIdx.x == 1 && threadIdx.x == 0) {
        ep::store_relaxed_gpu(other.stop, 1u);
        ep::store_relaxed_gpu(&other.state->epoch, kCall);
    }
    ep::slots_are_read<Many>(group);
    ep::slots_are_read<Many>(other);
}

__device__ __forceinline__ void prepare_begin(const ep::Group& given) {
    fresh<Many>(given, 2);
    fresh<Few>(given, 2);
    if (ep::lane_index() != 0) return;
    own_of(given, Many::kGroup).state.epoch = own_of(given, Few::kGroup).state.epoch = kCall;
    own_of(given, Few::kGroup).stop = 1;
}

/// What they have said.
__device__ __forceinline__ void begun(const ep::Group& given, ep::i64* out) {
    const ep::Group group = group_of<Many>(given);
    for (int i = ep::lane_index(); i < kNode * kNode; i += ep::kLanes) {
        const auto* released = reinterpret_cast<const ep::u32*>(group.windows[i / kNode] + Many::kReleased);
        out[i] = released[i % kNode];
    }
}

template <class S, bool kLies>
__device__ __forceinline__ void adds(const ep::Group& given, ep::u32 call, int tokens, int warps, ep::i64* out) {
    back_slots::adds<S>(given, filled<S, kLies>(given, call), call, warps, out, add_all<S, kLies>(given, tokens));
}

/// Quarters that a warp has nothing to do with need not have come, and its own ones do; in call 0 words that nobody has
/// written are of no call.
__device__ __forceinline__ void waits(const ep::Group& given, ep::i64* out) {
    constexpr int kLast = (kNode - 1) * Many::kTokens;
    const ep::u64 before = ep::stamped(kCall - 2, 1), none = ep::stamped(kCall, 0);
    const Wait all[12] = {
        {kCall, 12, 6, kLast, 0b0100, before},
        {kCall, 12, 6, kLast, 0b1011, before},
        {kCall, 6, 3, kLast, 0b1100, before},
        {kCall, 6, 3, kLast, 0b0111, before},
        {kCall, 6, 2, kLast, 0b0001, before},
        {kCall, 3, 1, kLast, 0b0111, before},
        {kCall, 3, 1, kLast, 0b0111, none},
        {kCall, 3, 2, 20 * Many::kTokens + 1, 0b1011, before},
        {kCall, 3, 2, Many::kOwn * Many::kTokens + 1, 0b1110, before},
        {kCall, 3, 0, kLast, 0, before},
        {0, 3, 1, kLast, 0, 0},
        {0, 3, 1, kLast, 0, ep::stamped(~1u, 1)},
    };
    for (int c = 0; c < 12; ++c) {
        const ep::Group group = filled<Many, true>(given, all[c].call);
        wait<Many>(given, group, all[c], out + c * 1000, add_all<Many, true>(given, 3));
    }
}

/// Where fewer rows are left than are loaded at once, what stands for the others is no number, and is not added.
inline __device__ __noinline__ void adds_some(const ep::Group& given, ep::u32 lanes, ep::i64* out) {
    using Cut = ep::CutOfSome<Few>;
    float sum[Cut::kEach][8] = {};
    ep::add_rows<Cut>(sum, lanes, 0.5f, [&](int lane) { return reinterpret_cast<const char*>(row_of(given, lane)); }, 0,
                      Cut::kRowBytes);
    int faults = 0;
    for (int i = 0; i < Cut::kEach * 8; ++i) faults += sum[i / 8][i % 8] == sum[i / 8][i % 8] ? 0 : 1;
    out[ep::lane_index()] = faults;
}

}  // namespace ways_back

extern "C" __global__ void __launch_bounds__(back_slots::kWarps * 32)
    ways_back_of(const __grid_constant__ back_slots::Args args) {
    using namespace ways_back;
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    ep::i64* out = args.out;
    given_up::scribble(kNoNumber);
    if (args.check == 4) begin(group);
    if (args.check == 27) rounds<Two, false>(group, 20, out, [](ep::u32) { return Two::kTokens; });
    if (args.check == 28) rounds<Two, true>(group, 40, out, [](ep::u32) { return Two::kTokens; });
    if (threadIdx.x < ep::kLanes && blockIdx.x == 0) {
        switch (args.check) {
            case 0:
                fill_memory(group);
                place_windows<Many>(group);
                place_windows<Few>(group);
                place_windows<Long>(group);
                place_in_windows<Two>(group);
                break;
            case 1: cuts<ep::BackCut<Few, 4>>(group, out); break;
            case 2: cuts<ep::BackCut<Long, 7>>(group, out); break;
            case 3: prepare_begin(group); break;
            case 5: begun(group, out); break;
            case 6: sends<Many>(group, kCall, 1, out, send_all<Many, false>(group)); break;
            case 7: sends<Many>(group, kCall + 1, 4, out, send_all<Many, false>(group)); break;
            case 8: sends<Few>(group, kCall, 4, out, send_all<Few, false>(group)); break;
            case 9: sends<Long>(group, 0, 1, out, send_all<Long, false>(group)); break;
            case 10: sends<Long>(group, kCall, 3, out, send_all<Long, false>(group)); break;
            case 11: sends<Long>(group, kCall, 7, out, send_all<Long, false>(group)); break;
            case 12: sends<Many>(group, kCall, 1, out, send_all<Many, true>(group)); break;
            case 13: sends<Few>(group, kCall, 4, out, send_all<Few, true>(group)); break;
            case 14: sends<Long>(group, kCall, 3, out, send_all<Long, true>(group)); break;
            case 15: stops<Many>(group, Stop{0, 1, 11}, out, send_all<Many, false>(group)); break;
            case 16: stops<Few>(group, Stop{3, 4, 0}, out, send_all<Few, false>(group)); break;
            case 17: stops<Many>(group, Stop{0, 1, -1, 11}, out, send_all<Many, true>(group)); break;
            case 18: stops<Few>(group, Stop{3, 4, 0}, out, send_all<Few, true>(group)); break;
            case 19: stops<Few>(group, Stop{0, 1, -1, -1, true}, out, send_all<Few, false>(group)); break;
            case 20: adds<Many, true>(group, kCall, 8, 1, out); break;
            case 21: adds<Many, false>(group, kCall + 1, 8, 3, out); break;
            case 22: adds<Few, true>(group, kCall, 9, 4, out); break;
            case 23: adds<Long, true>(group, kCall, 5, 1, out); break;
            case 24: adds<Long, true>(group, 0, 5, 2, out); break;
            case 25: adds<Long, false>(group, kCall, 5, 3, out); break;
            case 26: waits(group, out); break;
            case 29:
                for (int c = 0; c < 4; ++c) given_up::scribble(kNoNumber), adds_some(group, 0x13bu >> 2 * c, out + c * ep::kLanes);
                break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
