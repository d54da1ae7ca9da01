// What ways back of few tokens send and add up, for the kernels of ways_back.cu and words_back.cu, which this stands before.

namespace ways_back {

using namespace back_slots;

/// A channel with slots for so many tokens of each source.
template <ep::u64 kAt, int kGroup, int kPeers, int kOwn, int kTokens_, int kRow, int kFloats>
struct Slots : Channel<kAt, kGroup, kPeers, kOwn, kPeers * kTokens_, kTokens_, kRow, kFloats> {
    static constexpr int kTokens = kTokens_;
    static constexpr int kPlaces = kTokens;  // of a source, that tokens have
};

/// How often rows count that parts are made of. In front of the first one and behind the last one there is nothing.
struct Factors {
    float values[8];

    __device__ __forceinline__ Factors() {
        for (int at = 0; at < 8; ++at) values[at] = static_cast<float>(at % 5 * 2 + 1) * 0.25f;
    }
};

/// Of all that is not set, so that sums of it are no numbers.
constexpr ep::u32 kNoNumber = ~0u;

/// A row that nobody asks for: outside of all memory.
__device__ __forceinline__ const ep::bf16* no_row(const ep::Group& given) {
    return reinterpret_cast<const ep::bf16*>(given.window - 256);
}

/// A warp's share of rows that came, or of sums that are made of them. Behind the numbers of a row there is nothing.
template <class S, bool kSums, class Rows, class Token>
__device__ __forceinline__ void send(ep::Team& team, const ep::Group& given, Rows rows, Token token) {
    ep::BackOut<S> end(team);
    if constexpr (kSums) {
        const Factors factors;
        end.template run_sums<9>(
            rows, token, [](int row, int k) { return ep::i64{part_of(row, k)}; },
            [&](ep::i64 at) { return at < 0 ? no_row(given) : row_of(given, at); },
            [&](ep::i64 at) { return factors.values[at]; });
    } else {
        float numbers[S::kFloats > 0 ? S::kFloats : 1];
        const auto fields = [&](int row) {
            for (int i = 0; i < S::kFloats; ++i) numbers[i] = numbers_of(given, row)[i];
            return static_cast<const float*>(numbers);
        };
        end.template run<S::kFloats>(rows, token, [&](int row) { return row_of(given, row); }, fields);
    }
}

/// The same of what came from many ranks.
template <class S, bool kSums>
__device__ __forceinline__ auto send_all(const ep::Group& given) {
    return [&given](ep::Team& team, int forgets) {
        send<S, kSums>(team, given, rows_of<S>, [&](int row) { return token_of<S>(team, row, forgets); });
    };
}

/// Where the part of a token from a peer is: of the first token there is none, of the second one one, and of the third
/// one all.
template <class S>
__device__ __forceinline__ int place_of(int token, int peer) {
    const int some = (token + peer * peer) % 3 - 1;
    const int place = token == 0 ? -1 : token == 1 ? (peer == S::kPeers - 1 ? 1 : -1) : token == 2 ? 1 : some;
    return place < 0 ? -1 : (token * 7 + place) % S::kPlaces;
}

/// A warp's share of sums, with rows of this rank as they lie or in slots. Behind the numbers of these rows there is nothing.
template <class S, bool kLies>
__device__ __forceinline__ auto add_all(const ep::Group& given, int tokens) {
    return [&given, tokens](ep::Team& team, ep::i64* out) {
        constexpr int kField = S::kFloats > 0 ? 4 : 0, kCount = S::kFloats > 0 ? S::kFloats - 1 : 0;
        ep::BackIn<S> end(team);
        const auto body = [&](int token) {
            ep::i64* to = out + token * 300;
            ep::bf16* row = reinterpret_cast<ep::bf16*>(to);
            if (token % 4 == 3) {
                end.store_row(row);
            } else {
                const int biases = token % 3;
                end.template store_row<2>(row, biases, [&](int b) {
                    return b < biases ? row_of(given, 600 + b) : no_row(given);
                });
            }
            end.store_sum(reinterpret_cast<float*>(to + 280), kField, kCount);
        };
        if constexpr (kLies) {
            float numbers[kCount > 0 ? kCount : 1];
            const auto fields = [&](int row) {
                for (int i = 0; i < kCount; ++i) numbers[i] = numbers_of(given, row + 1)[i];
                return static_cast<const float*>(numbers);
            };
            end.run(tokens, place_of<S>, [&](int row) { return row_of(given, row); }, fields, body);
        } else {
            end.run(tokens, place_of<S>, body);
        }
    };
}

/// All slots of a call, with the words of rows that lie elsewhere, and none of ranks that take no part.
template <class S, bool kLies>
__device__ __forceinline__ ep::Group filled(const ep::Group& given, ep::u32 call) {
    const ep::Group group = group_of<S>(given);
    fill<S>(group, given, call);
    for (int key = ep::lane_index(); key < S::kKeys; key += ep::kLanes) {
        const int source = key / S::kTokens;
        ep::u64* words = words_of<S>(group, call, key);
        for (int i = 0; i < ep::kQuarters; ++i) {
            if (!ep::is_alive(group, source)) words[i] = 0;
            if (kLies && source == S::kOwn) words[i] = ep::stamped(call, static_cast<ep::u32>(own_row(key)) + 2);
        }
    }
    __syncwarp();
    return group;
}

/// Rows, or sums, between two ranks; `tokens(call)`: how many a rank says that it has, of which those past the channel's get
/// no part.
template <class S, bool kSums, class Tokens>
inline __device__ __noinline__ void rounds(const ep::Group& given, ep::u32 first, ep::i64* out, Tokens tokens) {
    back_slots::rounds<S>(
        given, first, out, tokens,
        [&](ep::Team& team) {
            const auto rows = [&](int source) { return rows_between<S>(team, source); };
            send<S, kSums>(team, given, rows, [&](int row) { return other_way<S>(team, row); });
        },
        [&](ep::Team& team, ep::i64* out) {
            ep::BackIn<S> end(team);
            const auto place = [&](int token, int peer) {
                return peer == given.rank || token >= S::kTokens ? -1 : token;
            };
            end.run(tokens(team.epoch), place, [&](int token) {
                ep::i64* to = out + token * 200;
                if (token >= S::kTokens) return;
                end.store_row(reinterpret_cast<ep::bf16*>(to));
                // No numbers go with sums.
                end.store_sum(reinterpret_cast<float*>(to + 150), 0, kSums ? 0 : S::kFloats);
            });
        });
}

}  // namespace ways_back

