// Rows back to their tokens, for few tokens: each rank stores what it has made of a token into a slot of
// that token, and the token's rank adds the slots up.
//
// A row goes in quarters, and each is told by a word of its own: where rows are few, several warps carry
// one, and several add up a token. Which warp carries what neither end needs to know of the other.
//
// `Slots` is the channel's Cfg struct, with the words of slot_rows.cuh but for
//   kFlags  [epoch % kEpochs, source, token, quarter]  {epoch, 1} behind each quarter (M7)
#pragma once

#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/slot_rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// How a row is cut.
template <class Slots>
struct BackCut {
    static constexpr int kQuarters = 4;
    static constexpr int kRowBytes = Slots::kMeta;
    // Whole units of 16 bytes; the last quarters of a short row are empty.
    static constexpr int kUnits = (kRowBytes / 16 + kQuarters - 1) / kQuarters;
    // Units that a lane has on their way at once.
    static constexpr int kMost = 4;
    static constexpr int kEach =
        kUnits >= kMost * kLanes ? kMost : (kUnits + kLanes - 1) / kLanes;
    static constexpr int kStep = kEach * kLanes * 16;

    static_assert(kRowBytes % 16 == 0, "rows are whole units");

    /// The first byte of a quarter.
    static __device__ __forceinline__ int first(int quarter) {
        return min(quarter * kUnits * 16, kRowBytes);
    }

    /// How many quarters a warp takes at a time, so that all of `warps` have work.
    static __device__ __forceinline__ int quarters(int rows, int warps) {
        int each = kQuarters;
        while (each > 1 && rows * (kQuarters / each) < warps) each /= 2;
        return each;
    }

    /// Asks for the lane's units of a row from `base` on, and before `end`.
    static __device__ __forceinline__ void read(Quad (&quads)[kEach], const char* row, int base,
                                                int end) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int at = base + (i * kLanes + lane_index()) * 16;
            quads[i] = at < end ? load_quad(row + at) : Quad{0, 0, 0, 0};
        }
    }

    /// Writes them.
    static __device__ __forceinline__ void write(char* row, const Quad (&quads)[kEach], int base,
                                                 int end) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int at = base + (i * kLanes + lane_index()) * 16;
            if (at < end) store_quad(row + at, quads[i]);
        }
    }
};

/// The words that tell of the quarters of a slot, in a window; `set`: of which calls.
template <class Slots>
__device__ __forceinline__ u64* back_words(char* window, i64 set, int key) {
    const i64 slot = set * Slots::kKeys + key;
    return reinterpret_cast<u64*>(window + Slots::kFlags) + slot * BackCut<Slots>::kQuarters;
}

/// The sending end of one warp.
template <class Slots>
class BackOut : SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    using Cut = BackCut<Slots>;
    using End::team_;
    static constexpr int kPeers = End::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

public:
    __device__ __forceinline__ explicit BackOut(Team& team) : End(team) {}

    /// Sends this warp's share of all rows. `rows(source)`: those that came from a rank; `token(row)`: the
    /// token of a row there; `from(row)`, `fields(row)`: the row, and `kFloats` numbers beside it.
    template <int kFloats, class Rows, class Token, class From, class Fields>
    __device__ __forceinline__ void run(Rows rows, Token token, From from, Fields fields) {
        int total = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int source = g * kLanes + team_.lane;
            const Span span = source < kPeers ? rows(source) : Span{0, 0};
            const int count = span.end > span.begin ? span.end - span.begin : 0;
            through_[g] = total + lanes_through(count);
            first_[g] = span.begin - (through_[g] - count);
            total = __shfl_sync(kAllLanes, through_[g], kLanes - 1);
        }
        const int quarters = Cut::quarters(total, team_.count());
        const int parts = Cut::kQuarters / quarters;
#pragma unroll 1
        for (int unit = team_.spread(); unit < total * parts && !team_.stopped;
             unit += team_.count()) {
            const int source = source_of(unit / parts);
            const int row = unit / parts + first_of(source);
            const int quarter = unit % parts * quarters;
            if (!End::alive(source)) continue;
            const int key = team_.own(kPeers) * Slots::kSourceStride + token(row);
            const char* in = reinterpret_cast<const char*>(from(row));
            char* out = End::place(End::window_of(source), key, 0);
            const int end = Cut::first(quarter + quarters);
#pragma unroll 1
            for (int base = Cut::first(quarter); base < end; base += Cut::kStep) {
                Quad quads[Cut::kEach];
                Cut::read(quads, in, base, end);
                // The first units travel while the slots of the call before the last are looked at.
                if (!is_free(source)) return;
                Cut::write(out, quads, base, end);
            }
            if (!is_free(source)) return;
            if constexpr (kFloats > 0) {
                const float* numbers = fields(row);
                float* to = reinterpret_cast<float*>(out + Slots::kMeta);
#pragma unroll 1
                for (int i = team_.lane; quarter == 0 && i < kFloats; i += kLanes) to[i] = numbers[i];
            }
            __syncwarp();
            if (team_.lane < quarters) {
                u64* words = back_words<Slots>(End::window_of(source), End::set(), key);
                // M1: comes after the stores of all lanes, by the barrier; BackIn acquires.
                store_release_sys(words + quarter + team_.lane, stamped(team_.epoch, 1));
            }
            __syncwarp();
        }
    }

private:
    /// Waits until the slots of a peer are free. False: the team is stopped.
    __device__ __forceinline__ bool is_free(int peer) {
        if ((free_ >> peer & 1) != 0) return true;
        const u32* released = reinterpret_cast<const u32*>(team_.group.window + Slots::kReleased);
        const u32 want = team_.epoch - Slots::kEpochs;
        const Site site{Slots::kChannel, Waiting::kCredit, -1, team_.rank_of(peer, kPeers), want};
        // M4: pairs with the release of the receiver's end; all lanes store after the barrier.
        wait_counter(team_, site, team_.leader() ? released + peer : nullptr);
        free_ |= u64{1} << peer;
        return !team_.stopped;
    }

    /// The rank that the row with a number among all rows came from.
    __device__ __forceinline__ int source_of(int number) const {
        int source = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool before = g * kLanes + team_.lane < kPeers && through_[g] <= number;
            source += __popc(__ballot_sync(kAllLanes, before));
        }
        return source;
    }

    /// What makes that number the row's own.
    __device__ __forceinline__ int first_of(int source) const {
        int first = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int own = __shfl_sync(kAllLanes, first_[g], source % kLanes);
            if (g == source / kLanes) first = own;
        }
        return first;
    }

    u64 free_ = 0;  // peers whose slots are known to be free
    int through_[kGroups] = {};
    int first_[kGroups] = {};
};

/// The receiving end of one warp.
template <class Slots>
class BackIn : SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    using Cut = BackCut<Slots>;
    using End::team_;
    static constexpr int kPeers = End::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

public:
    __device__ __forceinline__ explicit BackIn(Team& team) : End(team) {}

    /// Takes this warp's share of `tokens` tokens, once what comes for it is there: `body(token)` stores
    /// the sums. `at(token, peer)`: the place of a peer's part; negative: it has none.
    template <class At, class Body>
    __device__ __forceinline__ void run(int tokens, At at, Body body) {
        quarters_ = Cut::quarters(tokens, team_.count());
        const int parts = Cut::kQuarters / quarters_;
#pragma unroll 1
        for (int unit = team_.spread(); unit < tokens * parts && !team_.stopped;
             unit += team_.count()) {
            quarter_ = unit % parts * quarters_;
            await(unit / parts, at);
            if (team_.stopped) return;
            body(unit / parts);
            __syncwarp();
        }
    }

    /// `out = sum(part.x) + biases`, in order of rank and in fp32 before the one rounding: this warp's
    /// quarters.
    template <int kBiases, class Bias>
    __device__ __forceinline__ void store_row(bf16* out, int biases, Bias bias) const {
        const int end = Cut::first(quarter_ + quarters_);
#pragma unroll 1
        for (int base = Cut::first(quarter_); base < end; base += Cut::kStep) {
            float sum[Cut::kEach][8] = {};
            for_two([&](const char* a, const char* b) {
                Quad first[Cut::kEach], second[Cut::kEach];
                Cut::read(first, a, base, end);
                Cut::read(second, b, base, b == nullptr ? 0 : end);
                add(sum, first);
                add(sum, second);
            });
#pragma unroll
            for (int i = 0; i < kBiases; ++i) {
                if (i >= biases) continue;
                Quad extra[Cut::kEach];
                Cut::read(extra, reinterpret_cast<const char*>(bias(i)), base, end);
                add(sum, extra);
            }
            Quad sums[Cut::kEach];
#pragma unroll
            for (int i = 0; i < Cut::kEach; ++i) sums[i] = pack_bf16(sum[i]);
            Cut::write(reinterpret_cast<char*>(out), sums, base, end);
        }
    }

    /// `out = sum(part.x)`.
    __device__ __forceinline__ void store_row(bf16* out) const {
        store_row<0>(out, 0, [](int) -> const bf16* { return nullptr; });
    }

    /// `out = sum(part.field)` for a field of floats; the warp that has the first quarter does it.
    __device__ __forceinline__ void store_sum(float* out, int field, int count) const {
        if (quarter_ != 0) return;
#pragma unroll 1
        for (int base = 0; base < count; base += kLanes) {
            const int i = base + team_.lane;
            float sum = 0.0f;
            for_two([&](const char* a, const char* b) {
                if (i >= count) return;
                const auto number = [&](const char* slot) {
                    return reinterpret_cast<const float*>(slot + Slots::kMeta + field)[i];
                };
                sum += number(a);
                if (b != nullptr) sum += number(b);
            });
            if (i < count) out[i] = sum;
        }
    }

    /// Ends the reading of this warp; the last warp of the role tells all sources.
    __device__ __forceinline__ void release() { SlotRowsIn<Slots>(team_).release(); }

private:
    /// Waits for the quarters of a token from all peers that have a part of it.
    template <class At>
    __device__ __forceinline__ void await(int token, At at) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int peer = g * kLanes + team_.lane;
            const int place = peer < kPeers && End::alive(peer) ? at(token, peer) : -1;
            keys_[g] = place < 0 ? -1 : peer * Slots::kSourceStride + place;
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int key = keys_[g];
            const u64* words =
                back_words<Slots>(team_.group.window, End::set(), key < 0 ? 0 : key) + quarter_;
            const int peer = key < 0 ? -1 : team_.rank_of(g * kLanes + team_.lane, kPeers);
            const Site site{Slots::kChannel, Waiting::kFlag, -1, peer, team_.epoch};
            const bool done = wait(team_, site, [&](u32& seen) {
                bool come = true;
#pragma unroll 1
                for (int i = 0; key >= 0 && i < quarters_; ++i) {
                    const u64 found = load_relaxed_sys(words + i);
                    seen = epoch_of(found);
                    // All of it: a word that was never written is that of no call.
                    come = come && found == stamped(team_.epoch, 1);
                }
                return come;
            });
            // M2: pairs with the release in BackOut; all lanes load after the barrier.
#pragma unroll 1
            for (int i = 0; done && key >= 0 && i < quarters_; ++i) load_acquire_sys(words + i);
            __syncwarp();
        }
    }

    /// Calls `body(a, b)` for all parts of the token in order of rank, two at a time; the last one may be
    /// alone, and `b` null.
    template <class Body>
    __device__ __forceinline__ void for_two(Body body) const {
        const char* held = nullptr;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
#pragma unroll 1
            for (u32 left = __ballot_sync(kAllLanes, keys_[g] >= 0); left != 0; left &= left - 1) {
                const int lane = __ffs(static_cast<int>(left)) - 1;
                const int key = __shfl_sync(kAllLanes, keys_[g], lane);
                const char* slot = End::place(team_.group.window, key, 0);
                if (held == nullptr) {
                    held = slot;
                } else {
                    body(held, slot);
                    held = nullptr;
                }
            }
        }
        if (held != nullptr) body(held, nullptr);
    }

    static __device__ __forceinline__ void add(float (&sum)[Cut::kEach][8],
                                               const Quad (&quads)[Cut::kEach]) {
#pragma unroll
        for (int i = 0; i < Cut::kEach; ++i) add_bf16(sum[i], quads[i]);
    }

    int keys_[kGroups] = {};  // of the token's slots, -1 for none
    int quarter_ = 0;
    int quarters_ = 0;
};

}  // namespace ep
