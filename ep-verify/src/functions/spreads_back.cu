// Ways back of few tokens with a slot for each choice of a token, among many ranks that one warp plays, and between two. The
// host knows what each check leaves in `out`; see spreads_back.rs, which has the checks in the same order.

namespace spreads_back {

using namespace back_slots;

/// A channel with slots for so many choices of each token.
template <ep::u64 kAt, int kGroup, int kPeers, int kOwn, int kTokens_, int kChoices_, int kRow>
struct Slots : Channel<kAt, kGroup, kPeers, kOwn, kTokens_ * kChoices_, 0, kRow, 0> {
    static constexpr int kTokens = kTokens_;
    static constexpr int kChoices = kChoices_;
};

// More peers than lanes, and choices than have lanes at once; more choices of rows of this rank than two warps have lanes;
// rows of several steps a quarter; and a channel between two ranks.
using Many = Slots<kMemory + sizeof(Memory), 0, kNode, 23, 3, 12, 80>;
using Few = Slots<Many::kEnd, 1, 3, 1, 34, 3, 48>;
using Long = Slots<Few::kEnd, 2, 3, 1, 4, 10, kMostRow>;
using Two = Slots<Long::kEnd, 3, 2, 0, 7, 5, 1040>;

/// A warp's share of rows that came: one goes back for each choice that has a part of it.
template <class S, class Rows, class Token>
__device__ __forceinline__ void send(ep::Team& team, const ep::Group& given, Rows rows, Token token) {
    ep::SpreadOut<S, S::kChoices> end(team);
    end.run(rows, token, part_of, [&](int at) { return row_of(given, at); });
}

/// The same of what came from many ranks.
template <class S>
__device__ __forceinline__ auto send_all(const ep::Group& given) {
    return [&given](ep::Team& team, int forgets) {
        send<S>(team, given, rows_of<S>, [&](int row) { return token_of<S>(team, row, forgets); });
    };
}

/// Which slot of its token a choice has, who fills it, and how often it counts: quarters of a whole.
template <class S>
__device__ __forceinline__ int place_of(int token, int choice) {
    const bool has = token > 0 && (token == 2 || (token + choice * choice) % 4 != 0);
    return has ? (choice * 7 + token) % S::kChoices : -1;
}
template <class S>
__device__ __forceinline__ int peer_of(int token, int choice) {
    return (token * 17 + choice) % S::kPeers;
}
__device__ __forceinline__ float factor_of(int token, int choice) {
    return static_cast<float>((choice * 2 + 1) * ((token + choice) % 2 == 0 ? 1 : -1)) * 0.25f;
}

/// A warp's share of sums. Only of choices that have a slot it is asked who fills it, and only of those that are filled how
/// often they count.
template <class S>
__device__ __forceinline__ auto add_all(const ep::Group& given, int tokens) {
    return [&given, tokens](ep::Team& team, ep::i64* out) {
        ep::SpreadIn<S, S::kChoices> end(team);
        const auto has = [](int token, int choice) { return choice < S::kChoices && place_of<S>(token, choice) >= 0; };
        const auto place = [&](int token, int choice) {
            if (choice >= S::kChoices) out[990] = choice;
            return place_of<S>(token, choice);
        };
        const auto peer = [&](int token, int choice) {
            if (!has(token, choice)) out[991] = choice;
            return peer_of<S>(token, choice);
        };
        const auto factor = [&](int token, int choice) {
            if (!has(token, choice) || !ep::is_alive(team.group, peer_of<S>(token, choice))) out[992] = choice;
            return factor_of(token, choice);
        };
        end.run(tokens, place, peer, [&](int at) { return row_of(given, at); }, factor,
                [&](int token) { end.store_row(reinterpret_cast<ep::bf16*>(out + token * 300)); });
    };
}

/// All slots of a call, with the words of rows that lie elsewhere, and none of ranks that take no part. What is in slots of
/// the first token, which has none, is no number.
template <class S>
__device__ __forceinline__ ep::Group filled(const ep::Group& given, ep::u32 call) {
    const ep::Group group = group_of<S>(given);
    fill<S>(group, given, call);
    const int lane = ep::lane_index(), first = static_cast<int>(call % S::kEpochs) * S::kKeys;
    ep::u32* slots = reinterpret_cast<ep::u32*>(group.window + S::kSlots + first * S::kSlotBytes);
    for (int i = lane; i < S::kChoices * S::kSlotBytes / 4; i += ep::kLanes) slots[i] = ~0u;
    for (int i = lane; i < S::kKeys; i += ep::kLanes) {
        const int token = i / S::kChoices, choice = i % S::kChoices, place = place_of<S>(token, choice);
        if (place < 0) continue;
        const int peer = peer_of<S>(token, choice), key = token * S::kChoices + place;
        ep::u64* words = words_of<S>(group, call, key);
        for (int q = 0; q < ep::kQuarters; ++q) {
            if (!ep::is_alive(group, peer)) words[q] = 0;
            if (peer == S::kOwn) words[q] = ep::stamped(call, static_cast<ep::u32>(own_row(key)) + 2);
        }
    }
    __syncwarp();
    return group;
}

template <class S>
__device__ __forceinline__ void adds(const ep::Group& given, ep::u32 call, int warps, ep::i64* out) {
    back_slots::adds<S>(given, filled<S>(given, call), call, warps, out, add_all<S>(given, S::kTokens));
}

/// Quarters that a warp has nothing to do with need not have come, and its own ones do; in call 0 words that nobody has
/// written are of no call.
__device__ __forceinline__ void waits(const ep::Group& given, ep::i64* out) {
    // Slots of the last of three tokens, of its fifth choice and of its tenth; and one of this rank, of the second token.
    constexpr int kToken = 2 * Many::kChoices;
    constexpr int kFifth = kToken + 6, kTenth = kToken + 5, kOwn = Many::kChoices + 7;
    const ep::u64 before = ep::stamped(kCall - 2, 1), none = ep::stamped(kCall, 0);
    const Wait all[11] = {
        {kCall, 12, 10, kTenth, 0b0100, before},
        {kCall, 12, 10, kTenth, 0b1011, before},
        {kCall, 6, 5, kTenth, 0b1100, before},
        {kCall, 6, 5, kTenth, 0b0111, before},
        {kCall, 6, 4, kFifth, 0b0001, before},
        {kCall, 3, 2, kFifth, 0b0111, before},
        {kCall, 3, 2, kFifth, 0b1110, none},
        {kCall, 3, 1, kOwn, 0b1101, before},
        {kCall, 3, 0, kFifth, 0, before},
        {0, 3, 2, kTenth, 0, 0},
        {0, 3, 2, kTenth, 0, ep::stamped(~1u, 1)},
    };
    for (int c = 0; c < 11; ++c) {
        const ep::Group group = filled<Many>(given, all[c].call);
        wait<Many>(given, group, all[c], out + c * 1000, add_all<Many>(given, Many::kTokens));
    }
}

/// Rows between two ranks.
__device__ __forceinline__ void rounds(const ep::Group& given, ep::u32 first, ep::i64* out) {
    back_slots::rounds<Two>(
        given, first, out, [](ep::u32) { return 0; },
        [&](ep::Team& team) {
            const auto rows = [&](int source) { return rows_between<Two>(team, source); };
            const auto token = [&](int row) { return other_way<Two>(team, row); };
            send<Two>(team, given, rows, token);
        },
        [&](ep::Team& team, ep::i64* out) {
            ep::SpreadIn<Two, Two::kChoices> end(team);
            const auto place = [&](int token, int choice) {
                return part_of(other_way<Two>(team, token), choice) < 0 ? -1 : choice;
            };
            end.run(Two::kTokens, place, [&](int, int) { return 1 - given.rank; },
                    [&](int at) { return row_of(given, at); }, factor_of,
                    [&](int token) { end.store_row(reinterpret_cast<ep::bf16*>(out + token * 200)); });
        });
}

}  // namespace spreads_back

extern "C" __global__ void __launch_bounds__(back_slots::kWarps * 32)
    spreads_back_of(const __grid_constant__ back_slots::Args args) {
    using namespace spreads_back;
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    ep::i64* out = args.out;
    if (args.check == 14) rounds(group, 20, out);
    if (threadIdx.x < ep::kLanes && blockIdx.x == 0) {
        switch (args.check) {
            case 0:
                fill_memory(group);
                place_windows<Many>(group);
                place_windows<Few>(group);
                place_windows<Long>(group);
                place_in_windows<Two>(group);
                break;
            case 1: sends<Many>(group, kCall, 1, out, send_all<Many>(group)); break;
            case 2: sends<Few>(group, kCall + 1, 2, out, send_all<Few>(group)); break;
            case 3: sends<Long>(group, 0, 1, out, send_all<Long>(group)); break;
            case 4: sends<Long>(group, kCall, 3, out, send_all<Long>(group)); break;
            case 5: stops<Many>(group, Stop{0, 1, 11}, out, send_all<Many>(group)); break;
            case 6: stops<Few>(group, Stop{3, 4, 0}, out, send_all<Few>(group)); break;
            case 7: stops<Many>(group, Stop{0, 1, -1, 11}, out, send_all<Many>(group)); break;
            case 8: stops<Few>(group, Stop{0, 1, -1, -1, true}, out, send_all<Few>(group)); break;
            case 9: adds<Many>(group, kCall, 1, out); break;
            case 10: adds<Few>(group, kCall, 3, out); break;
            case 11: adds<Long>(group, 0, 1, out); break;
            case 12: adds<Long>(group, kCall, 3, out); break;
            case 13: waits(group, out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
