// Rows back to their tokens, for few tokens: each rank stores what it has made of a token into a slot of
// that token, and the token's rank adds the slots up.
//
// A row goes in quarters, and each is told by a word of its own: where rows are few, several warps carry
// one, and several add up a token. Which warp carries what neither end needs to know of the other. A row
// that goes to its own rank is not copied: its words say which row it is, and the sums read it there. One that
// is a sum itself is made on the way, and takes a slot there as well.
//
// Whoever enters a call has read all slots of the calls before, since they were kernels of the same
// stream; it says so at once, and nobody waits for it before the call after the next one.
//
// A rank with at most `kFewTokens` tokens takes rows as words (as_words.cuh), and says so when it enters a call:
// to it nobody tells of quarters, but of its own rows that are not copied. A rank that exchanges nothing with it
// may be calls behind.
//
// `Slots` is the channel's Cfg struct, with the words of slot_rows.cuh but for
//   kFlags       [epoch % kEpochs, source, token, quarter]  {epoch, 1} behind each quarter; {epoch, row + 2}
//                for a row of this rank (M7)
//   kTakesWords  [receiver]                                 {epoch, 1} if it takes words, {epoch, 2} if not, at
//                the sender
//   kAsWords     [source, token]                            kWordRowBytes each: a row as words, then its numbers;
//                kFewTokens tokens
#pragma once

#include <ep/as_words.cuh>
#include <ep/cast.cuh>
#include <ep/compute.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/slot_rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// How many parts a row has.
constexpr int kQuarters = 4;

/// How a row is cut; `kMost`: units that a lane has on their way at most.
template <class Slots, int kMost>
struct BackCut {
    static constexpr int kRowBytes = Slots::kMeta;
    // Whole units of 16 bytes; the last quarters of a short row are empty.
    static constexpr int kUnits = (kRowBytes / 16 + kQuarters - 1) / kQuarters;
    // Units that a lane has on their way at once.
    static constexpr int kEach =
        kUnits >= kMost * kLanes ? kMost : (kUnits + kLanes - 1) / kLanes;
    static constexpr int kStep = kEach * kLanes * 16;

    static_assert(kRowBytes % 16 == 0, "rows are whole units");

    /// The first byte of a quarter.
    static __device__ __forceinline__ int first(int quarter) {
        return min(quarter * kUnits * 16, kRowBytes);
    }

    /// How many quarters a warp takes at a time, so that none of `warps` has much more than the others.
    static __device__ __forceinline__ int quarters(int rows, int warps) {
        int best = kQuarters, most = (rows + warps - 1) / warps * kQuarters;
#pragma unroll
        for (int each = kQuarters / 2; each > 0; each /= 2) {
            const int own = (rows * (kQuarters / each) + warps - 1) / warps * each;
            if (own < most) best = each, most = own;
        }
        return best;
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
    return reinterpret_cast<u64*>(window + Slots::kFlags) + slot * kQuarters;
}

/// Rows of a channel as words. Calls need no places of their own: a sender has heard that the receiver is in this one.
template <class Slots, int kEach>
struct BackWords : WordRow<Slots::kMeta, kEach>, FewSlots<Slots> {};

/// Calls `each(row, quarter, quarters)` for this warp's share of `rows` rows: so many quarters of a row, from
/// that one on. False from it ends that, and so does a stop.
template <class Cut, class Each>
__device__ __forceinline__ void for_quarters(const Team& team, int rows, Each each) {
    const int quarters = Cut::quarters(rows, team.count());
    const int parts = kQuarters / quarters;
#pragma unroll 1
    for (int unit = team.spread(); unit < rows * parts && !team.stopped; unit += team.count()) {
        if (!each(unit / parts, unit % parts * quarters, quarters)) return;
    }
}

/// How rows are cut of which several are loaded at once, and how many.
template <class Slots>
using CutOfSome = BackCut<Slots, 4>;
constexpr int kRowsAtOnce = 4;

/// Loads the lane's units from `base` on of the rows that lanes of `left` have, as many as are loaded at once:
/// `row(lane)`. Returns the lanes that are left; `took(n, lane)` is called for each row.
template <class Cut, class Row, class Took>
__device__ __forceinline__ u32 load_some(Quad (&quads)[kRowsAtOnce][Cut::kEach], u32 left, Row row,
                                         int base, int end, Took took) {
    const char* rows[kRowsAtOnce];
#pragma unroll
    for (int n = 0; n < kRowsAtOnce; ++n) {
        rows[n] = nullptr;
        if (left == 0) continue;
        const int lane = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        took(n, lane);
        rows[n] = row(lane);
    }
    // Behind all shuffles and without a branch: between the loads, the compiler would let each of these wait for
    // those before it.
#pragma unroll
    for (int n = 0; n < kRowsAtOnce; ++n) Cut::read(quads[n], rows[n], base, rows[n] != nullptr ? end : 0);
    return left;
}

/// Adds the lane's units from `base` on of rows to sums, in order of the lanes that have them, each times that
/// lane's factor.
template <class Cut, class Row>
__device__ __forceinline__ void add_rows(float (&sum)[Cut::kEach][8], u32 lanes, float factor,
                                         Row row, int base, int end) {
#pragma unroll 1
    for (u32 left = lanes; left != 0;) {
        Quad quads[kRowsAtOnce][Cut::kEach];
        float factors[kRowsAtOnce];
        const int some = min(__popc(left), kRowsAtOnce);
        left = load_some<Cut>(quads, left, row, base, end, [&](int n, int lane) {
            factors[n] = __shfl_sync(kAllLanes, factor, lane);
        });
#pragma unroll
        for (int n = 0; n < kRowsAtOnce; ++n) {
            if (n >= some) continue;
#pragma unroll
            for (int i = 0; i < Cut::kEach; ++i) add_products(sum[i], factors[n], quads[n][i]);
        }
    }
}

/// Writes the lane's units of a sum.
template <class Cut>
__device__ __forceinline__ void write_sums(char* row, const float (&sum)[Cut::kEach][8], int base,
                                           int end) {
    Quad sums[Cut::kEach];
#pragma unroll
    for (int i = 0; i < Cut::kEach; ++i) sums[i] = pack_bf16(sum[i]);
    Cut::write(row, sums, base, end);
}

/// The sending end of one warp.
template <class Slots>
class BackOut : protected SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    using Cut = BackCut<Slots, 7>;
    using Words = BackWords<Slots, 4>;
    static constexpr int kPeers = End::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

protected:
    using End::team_;

public:
    __device__ __forceinline__ explicit BackOut(Team& team) : End(team) {}

    /// Sends this warp's share of all rows. `rows(source)`: those that came from a rank; `token(row)`: the
    /// token of a row there; `from(row)`, `fields(row)`: the row, and `kFloats` numbers beside it.
    template <int kFloats, class Rows, class Token, class From, class Fields>
    __device__ __forceinline__ void run(Rows rows, Token token, From from, Fields fields) {
        count<false>(rows);
        if constexpr (Slots::kFewTokens > 0) send_words<kFloats>(token, from, fields);
        for_units([&](int source, int row, int quarter, int quarters) {
            if (!takes_rows(source)) return true;
            const int key = End::own() * Slots::kSourceStride + token(row);
            char* out = slot_of(source, key);
            constexpr int kHeld = (kFloats + kLanes - 1) / kLanes;
            float held[kHeld > 0 ? kHeld : 1];
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                const int at = i * kLanes + team_.lane;
                held[i] = quarter == 0 && at < kFloats ? fields(row)[at] : 0.0f;
            }
            const char* in = reinterpret_cast<const char*>(from(row));
            const int end = Cut::first(quarter + quarters);
#pragma unroll 1
            for (int base = Cut::first(quarter); base < end; base += Cut::kStep) {
                Quad quads[Cut::kEach];
                Cut::read(quads, in, base, end);
                // The first units travel while the slots of the call before the last are looked at.
                if (!is_free(source)) return false;
                Cut::write(out, quads, base, end);
            }
            if (!is_free(source)) return false;
            float* numbers = reinterpret_cast<float*>(out + Slots::kMeta);
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                const int at = i * kLanes + team_.lane;
                if (quarter == 0 && at < kFloats) numbers[at] = held[i];
            }
            owe(source, key, quarter, quarters);
            return true;
        });
        tell_own(rows(End::own()), token);
    }

    /// The same of rows that are sums: of those with the numbers `list(row, k)` (negative: none), in order
    /// of k below `kParts` and in fp32 before the one rounding; `from(at)` is such a row, `factor(at)` how
    /// often it counts.
    template <int kParts, class Rows, class Token, class List, class From, class Factor>
    __device__ __forceinline__ void run_sums(Rows rows, Token token, List list, From from,
                                             Factor factor) {
        static_assert(kParts <= kLanes, "a lane for each part");
        using Cut = CutOfSome<Slots>;
        const auto listed = [&](int row) {
            const i64 at = team_.lane < kParts ? list(row, team_.lane) : -1;
            return Listed{at, at >= 0 ? factor(at) : 0.0f, __ballot_sync(kAllLanes, at >= 0)};
        };
        count<true>(rows);
        if constexpr (Slots::kFewTokens > 0) send_sums_as_words(token, listed, from);
        for_units([&](int source, int row, int quarter, int quarters) {
            if (!takes_rows(source)) return true;
            const int key = End::own() * Slots::kSourceStride + token(row);
            char* out = slot_of(source, key);
            const Listed added = listed(row);
            const int end = Cut::first(quarter + quarters);
#pragma unroll 1
            for (int base = Cut::first(quarter); base < end; base += Cut::kStep) {
                float sum[Cut::kEach][8] = {};
                add_listed<Cut>(sum, added, from, base, end);
                if (!is_free(source)) return false;
                write_sums<Cut>(out, sum, base, end);
            }
            if (!is_free(source)) return false;
            owe(source, key, quarter, quarters);
            return true;
        });
    }

protected:
    /// Sends this warp's share of the rows of ranks that take words.
    template <int kFloats, class Token, class From, class Fields>
    __device__ __forceinline__ void send_words(Token token, From from, Fields fields) {
        constexpr int kParts = Words::kParts + (kFloats > 0 ? 1 : 0);  // the last one are the numbers
        const int total = count_few();
#pragma unroll 1
        for (int unit = team_.spread(); unit < total * kParts && !team_.stopped;
             unit += team_.count()) {
            const int number = unit / kParts, part = unit % kParts;
            const int source = source_of(number), row = number + first_of(source);
            const int to = token(row);
            typename Words::Units units;
            if (part < Words::kParts) Words::read(units, from(row), part);
            // The first units travel while the others say what they take.
            if (!takes_words(source)) continue;
            WordPair* words = Words::at(End::window_of(source), End::own(), to);
            if (part < Words::kParts) {
                Words::send(words, units, part, team_.epoch);
                continue;
            }
            const float* numbers = fields(row);
#pragma unroll 1
            for (int i = team_.lane; i < kFloats; i += kLanes) {
                store_relaxed_sys(Words::numbers(words) + i,
                                  stamped(team_.epoch, bits_of(numbers[i])));
            }
        }
        if (few_ != 0 && !heard_) hear_few();
        __syncwarp();
    }

    /// The rows that make up a sum: which one each lane has, how often it counts, and which lanes have any.
    struct Listed {
        i64 at;
        float factor;
        u32 lanes;
    };

    /// Adds up the lane's units from `base` on of the rows of a sum.
    template <class Cut, class From>
    static __device__ __forceinline__ void add_listed(float (&sum)[Cut::kEach][8], const Listed& added,
                                                      From from, int base, int end) {
        const auto row = [&](int lane) {
            return reinterpret_cast<const char*>(from(__shfl_sync(kAllLanes, added.at, lane)));
        };
        add_rows<Cut>(sum, added.lanes, added.factor, row, base, end);
    }

    /// Sends this warp's share of the sums of ranks that take words, be it this one.
    template <class Token, class List, class From>
    __device__ __forceinline__ void send_sums_as_words(Token token, List listed, From from) {
        using Cut = BackCut<Slots, 2>;
        using Parts = BackWords<Slots, Cut::kEach>;
        const int total = count_few();
#pragma unroll 1
        for (int unit = team_.spread(); unit < total * Parts::kParts && !team_.stopped;
             unit += team_.count()) {
            const int number = unit / Parts::kParts, part = unit % Parts::kParts;
            const int source = source_of(number), row = number + first_of(source);
            const int to = token(row);
            float sum[Cut::kEach][8] = {};
            add_listed<Cut>(sum, listed(row), from, part * Cut::kStep, Slots::kMeta);
            // The first units are added up while the others say what they take.
            if (!takes_words(source)) continue;
            typename Parts::Units units;
#pragma unroll
            for (int i = 0; i < Cut::kEach; ++i) units[i] = pack_bf16(sum[i]);
            Parts::send(Parts::at(End::window_of(source), End::own(), to), units, part, team_.epoch);
        }
        if (few_ != 0 && !heard_) hear_few();
        __syncwarp();
    }

    /// Numbers the rows of ranks that may take words. Returns how many they are.
    __device__ __forceinline__ int count_few() {
        ask_few();
        return number([&](int source, int count) {
            return source < kPeers && (few_ >> source & 1) != 0 ? count : 0;
        });
    }

    /// Notes who gets few rows: they have to say how they take them.
    __device__ __forceinline__ void ask_few() {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int source = g * kLanes + team_.lane;
            const bool few = count_[g] > 0 && count_[g] <= Slots::kFewTokens && End::alive(source);
            few_ |= static_cast<u64>(__ballot_sync(kAllLanes, few)) << g * kLanes;
        }
    }

    /// Waits until all who have to say how they take rows have done so.
    __device__ __forceinline__ void hear_few() {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int source = g * kLanes + team_.lane;
            const bool used = source < kPeers && (few_ >> source & 1) != 0;
            const u64* said = Words::takes(team_.group.window, used ? source : 0);
            const Site site{Slots::kChannel, Waiting::kCredit, -1,
                            used ? End::rank_of(source) : -1, team_.epoch};
            u64 found = 0;
            wait(team_, site, [&](u32& seen) {
                if (!used) return true;
                // M4: pairs with the store in slots_are_read; all lanes store after the ballot. Each look acquires:
                // another one would cost a round trip.
                found = load_acquire_sys(said);
                seen = epoch_of(found);
                return value_of(found) != 0 && reached(seen, team_.epoch);
            });
            // A rank that is calls ahead has what it wanted from this warp: nothing.
            const bool now = used && epoch_of(found) == team_.epoch;
            words_ |= static_cast<u64>(__ballot_sync(kAllLanes, now && value_of(found) == kTakes)) << g * kLanes;
            rows_ |= static_cast<u64>(__ballot_sync(kAllLanes, now && value_of(found) != kTakes)) << g * kLanes;
        }
        __syncwarp();
        heard_ = true;
    }

    /// Whether a rank still takes rows of this warp's as words; it has few from this one.
    __device__ __forceinline__ bool takes_words(int source) {
        if (!heard_) hear_few();
        return !team_.stopped && (words_ >> source & 1) != 0;
    }

    /// Whether it takes them as they lie; behind what went as words.
    __device__ __forceinline__ bool takes_rows(int source) const {
        return Slots::kFewTokens == 0 || ((~few_ | rows_) >> source & 1) != 0;
    }

    /// Calls `send(source, row, quarter, quarters)` for each of this warp's units, which writes those quarters
    /// and owes their words, and then tells what is left. False from it: the team is stopped. The rows have been
    /// counted.
    template <class Send>
    __device__ __forceinline__ void for_units(Send send) {
        const int rows = number([](int, int count) { return count; });
        for_quarters<Cut>(team_, rows, [&](int number, int quarter, int quarters) {
            const int source = source_of(number);
            if (!End::alive(source)) return true;
            return send(source, number + first_of(source), quarter, quarters);
        });
        tell();
    }

    /// Counts the rows of each other rank, or of each.
    template <bool kOwn, class Rows>
    __device__ __forceinline__ void count(Rows rows) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int source = g * kLanes + team_.lane;
            const bool used = source < kPeers && (kOwn || source != End::own());
            const Span span = used ? rows(source) : Span{0, 0};
            begin_[g] = span.begin;
            count_[g] = span.end > span.begin ? span.end - span.begin : 0;
        }
    }

    /// Numbers the rows of all ranks of which `some(source, count)` counts any. Returns how many they are.
    template <class Some>
    __device__ __forceinline__ int number(Some some) {
        int total = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int own = some(g * kLanes + team_.lane, count_[g]);
            through_[g] = total + lanes_through(own);
            first_[g] = begin_[g] - (through_[g] - own);
            total = __shfl_sync(kAllLanes, through_[g], kLanes - 1);
        }
        return total;
    }

    /// Notes that the words of quarters are to be stored: one a lane, so that the warp waits once for the
    /// stores before them.
    __device__ __forceinline__ void owe(int source, int key, int quarter, int quarters) {
        u64* words = back_words<Slots>(End::window_of(source), End::set(), key) + quarter;
        if (team_.lane / quarters == owed_) word_ = words + team_.lane % quarters;
        if (++owed_ * quarters == kLanes) tell();
    }

    /// Stores the words of all units since the last time.
    __device__ __forceinline__ void tell() {
        __syncwarp();
        // M1: comes after the stores of all lanes, by the barrier; BackIn acquires.
        if (word_ != nullptr && !team_.stopped) store_release_sys(word_, stamped(team_.epoch, 1));
        word_ = nullptr, owed_ = 0;
        __syncwarp();
    }

    /// Says of the rows of this rank which ones they are. Nobody writes them in this kernel.
    template <class Token>
    __device__ __forceinline__ void tell_own(const Span& span, Token token) {
        if (team_.stopped) return;
#pragma unroll 1
        for (int row = span.begin + team_.lane * team_.count() + team_.spread(); row < span.end;
             row += kLanes * team_.count()) {
            tell_as_it_lies(End::own() * Slots::kSourceStride + token(row), row);
        }
        __syncwarp();
    }

    /// Says that a slot of this rank is a row that lies elsewhere; one lane's own work.
    __device__ __forceinline__ void tell_as_it_lies(int key, int row) const {
        u64* words = back_words<Slots>(team_.group.window, End::set(), key);
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) {
            store_relaxed_sys(words + i, stamped(team_.epoch, static_cast<u32>(row) + 2));
        }
    }

    /// A slot in the window of a rank.
    __device__ __forceinline__ char* slot_of(int source, int key) const {
        return End::place(End::window_of(source), key, 0);
    }

    /// Waits until the slots of a peer are free. False: the team is stopped.
    __device__ __forceinline__ bool is_free(int peer) {
        if ((free_ >> peer & 1) != 0) return true;
        const u32 want = team_.epoch - Slots::kEpochs;
        const Site site{Slots::kChannel, Waiting::kCredit, -1, End::rank_of(peer), want};
        wait(team_, site, [&](u32& seen) {
            if (!team_.leader()) return true;
            // M4: pairs with the release in slots_are_read; all lanes store after the barrier. Each look
            // acquires: another one would cost a round trip.
            seen = load_acquire_sys(End::released(peer));
            return reached(seen, want);
        });
        free_ |= u64{1} << peer;
        return !team_.stopped;
    }

    /// The rank that the row with a number among all rows came from.
    __device__ __forceinline__ int source_of(int number) const {
        return totals_upto<kPeers>(through_, number);
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

    u64 few_ = 0;    // peers that get so few rows that they may take words,
    u64 words_ = 0;  // that do,
    u64 rows_ = 0;   // and that do not
    bool heard_ = false;
    u64 free_ = 0;  // peers whose slots are known to be free
    u64* word_ = nullptr;  // that the lane is to store
    int owed_ = 0;         // units whose words are to be stored
    int begin_[kGroups] = {};  // the first row of the lane's rank,
    int count_[kGroups] = {};  // and how many it has
    int through_[kGroups] = {};
    int first_[kGroups] = {};
};

/// The receiving end of one warp.
template <class Slots>
class BackIn : SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    // Other numbers of peers take registers that 7 units a lane need.
    using Cut = BackCut<Slots, (Slots::kPeers == 2 ? 7 : 4)>;
    using End::team_;
    static constexpr int kPeers = End::kPeers;
    // A lane for each quarter of a peer's part.
    static constexpr int kAtOnce = kLanes / kQuarters;
    static constexpr int kGroups = (kPeers + kAtOnce - 1) / kAtOnce;

    using Words = BackWords<Slots, 1>;
    // Ranks whose words are looked at together.
    static constexpr int kTogether = kPeers < 4 ? kPeers : 4;

    /// The row of a part, and the numbers beside it.
    struct Part {
        const char* row;
        const float* numbers;
    };

public:
    __device__ __forceinline__ explicit BackIn(Team& team) : End(team) {}

    /// Takes this warp's share of `tokens` tokens, once what comes for it is there: `body(token)` stores
    /// the sums. `at(token, peer)`: the place of a peer's part; negative: it has none. `from(row)`,
    /// `fields(row)`: a row of this rank, and the numbers beside it.
    template <class At, class From, class Fields, class Body>
    __device__ __forceinline__ void run(int tokens, At at, From from, Fields fields, Body body) {
        const auto own = [&](int row) {
            return row < 0 ? Part{nullptr, nullptr}
                           : Part{reinterpret_cast<const char*>(from(row)), fields(row)};
        };
        own_elsewhere_ = true;
        take(tokens, at, own, body);
    }

    /// The same where the parts of this rank are in slots as well.
    template <class At, class Body>
    __device__ __forceinline__ void run(int tokens, At at, Body body) {
        take(tokens, at, [](int) { return Part{nullptr, nullptr}; }, body);
    }

    /// `out = sum(part.x) + biases`, in order of rank and in fp32 before the one rounding: this warp's
    /// quarters.
    template <int kBiases, class Bias>
    __device__ __forceinline__ void store_row(bf16* out, int biases, Bias bias) const {
        if constexpr (Slots::kFewTokens > 0) {
            if (part_ == Words::kParts) return;
            if (part_ >= 0) return store_part<kBiases>(out, biases, bias);
        }
        const int end = Cut::first(quarter_ + quarters_);
#pragma unroll 1
        for (int base = Cut::first(quarter_); base < end; base += Cut::kStep) {
            Quad first[Cut::kEach], second[Cut::kEach];
            read(first, part(0), base, end);
            read(second, part(1), base, end);
            float sum[Cut::kEach][8];
#pragma unroll
            for (int i = 0; i < Cut::kEach; ++i) {
#pragma unroll
                for (int k = 0; k < 8; ++k) sum[i][k] = 0.0f;
                add_bf16(sum[i], first[i]);
                add_bf16(sum[i], second[i]);
            }
#pragma unroll 1
            for (int n = 2; n < parts_; ++n) {
                read(first, part(n), base, end);
                add(sum, first);
            }
#pragma unroll
            for (int i = 0; i < kBiases; ++i) {
                if (i >= biases) continue;
                Cut::read(first, reinterpret_cast<const char*>(bias(i)), base, end);
                add(sum, first);
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

    /// `out = sum(part.field)` for the field of floats; the warp that has the first quarter does it.
    __device__ __forceinline__ void store_sum(float* out, int field, int count) const {
        if constexpr (Slots::kFewTokens > 0) {
            if (part_ == Words::kParts) return store_sum_of_words(out, field, count);
        }
        if (quarter_ != 0 || part_ >= 0) return;
#pragma unroll 1
        for (int base = 0; base < count; base += kLanes) {
            const int i = base + team_.lane;
            float sum = 0.0f;
#pragma unroll 1
            for (int n = 0; n < parts_; ++n) {
                const Part added = part(n, field);
                if (i < count) sum += added.numbers[i];
            }
            if (i < count) out[i] = sum;
        }
    }

private:
    /// The same, as the rows come; `own(row)`: a part of this rank that is no slot.
    template <class At, class Own, class Body>
    __device__ __forceinline__ void take(int tokens, At at, Own own, Body body) {
        // Apart, so that the many registers of one do not meet the other.
        if (are_words<Slots>(team_.epoch, tokens)) {
            for_units<true>(tokens, at, own, body);
        } else {
            for_units<false>(tokens, at, own, body);
        }
    }

    /// Calls `body(token)` for each of this warp's units: quarters of tokens, or where rows come as words
    /// (`kWords`) parts, behind which are the numbers.
    template <bool kWords, class At, class Own, class Body>
    __device__ __forceinline__ void for_units(int tokens, At at, Own own, Body body) {
        const int quarters = kWords ? 1 : Cut::quarters(tokens, team_.count());
        const int parts = kWords ? Words::kParts + 1 : kQuarters / quarters;
#pragma unroll 1
        for (int unit = team_.spread(); unit < tokens * parts; unit += team_.count()) {
            const int token = unit / parts, part = unit % parts;
            part_ = kWords ? part : -1;
            quarter_ = kWords ? 0 : part * quarters, quarters_ = quarters;
            const int row = await(token, at);
            if (team_.stopped) return;
            parts_ = 0;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                parts_ += __popc(__ballot_sync(kAllLanes, keys_[g] >= 0)) / kQuarters;
            }
            own_ = own(row);
            body(token);
            __syncwarp();
        }
    }

    /// Waits for the quarters of a token from all peers that have a part of it. Returns the row of this
    /// rank's own part, -1 for none, or if it is in a slot.
    template <class At>
    __device__ __forceinline__ int await(int token, At at) {
        const int quarter = team_.lane % kQuarters;
        int row = -1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int peer = g * kAtOnce + team_.lane / kQuarters;
            const int place = peer < kPeers && End::alive(peer) ? at(token, peer) : -1;
            keys_[g] = place < 0 ? -1 : peer * Slots::kSourceStride + place;
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int key = keys_[g];
            const int number = g * kAtOnce + team_.lane / kQuarters;
            const bool is_told = part_ < 0 || (own_elsewhere_ && number == End::own());
            const bool used = key >= 0 && quarter < quarters_ && is_told;
            const u64* word = back_words<Slots>(team_.group.window, End::set(), used ? key : 0) +
                              quarter_ + quarter;
            const Site site{Slots::kChannel, Waiting::kFlag, -1,
                            used ? End::rank_of(number) : -1, team_.epoch};
            u64 found = 0;
            wait(team_, site, [&](u32& seen) {
                if (!used) return true;
                // M2: pairs with the release in BackOut; all lanes load after the barrier. Each look
                // acquires: another one would cost a round trip.
                found = load_acquire_sys(word);
                seen = epoch_of(found);
                // A word that was never written is that of no call.
                return seen == team_.epoch && value_of(found) != 0;
            });
            const bool own = used && quarter == 0 && number == End::own();
            const u32 lanes = __ballot_sync(kAllLanes, own);
            const int value = __shfl_sync(kAllLanes, static_cast<int>(value_of(found)),
                                          lanes == 0 ? 0 : __ffs(static_cast<int>(lanes)) - 1);
            if (lanes != 0) row = value - 2;
        }
        return row;
    }

    /// The part with a number, in order of rank, with the numbers of a field; its row is null behind the last
    /// one.
    __device__ __forceinline__ Part part(int number, int field = 0) const {
        constexpr u32 kFirstOfEach = 0x11111111;
        Part found{nullptr, nullptr};
        int before = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            u32 lanes = __ballot_sync(kAllLanes, keys_[g] >= 0) & kFirstOfEach;
            const int count = __popc(lanes);
            if (number >= before && number < before + count) {
                for (int n = before; n < number; ++n) lanes &= lanes - 1;
                const int lane = __ffs(static_cast<int>(lanes)) - 1;
                const int key = __shfl_sync(kAllLanes, keys_[g], lane);
                const char* slot = End::place(team_.group.window, key, 0);
                const bool own =
                    g * kAtOnce + lane / kQuarters == End::own() && own_.row != nullptr;
                const char* numbers = slot + Slots::kMeta + field;
                found = own ? own_ : Part{slot, reinterpret_cast<const float*>(numbers)};
            }
            before += count;
        }
        return found;
    }

    /// Calls `each(keys)` for the slots from which the token gets parts, in order of rank and up to `kTogether` at
    /// a time; -1: there are no more.
    template <class Each>
    __device__ __forceinline__ void for_keys(Each each) const {
        constexpr u32 kFirstOfEach = 0x11111111;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            u32 lanes = __ballot_sync(kAllLanes, keys_[g] >= 0) & kFirstOfEach;
#pragma unroll 1
            while (lanes != 0) {
                int keys[kTogether];
#pragma unroll
                for (int n = 0; n < kTogether; ++n) {
                    const int lane = lanes == 0 ? 0 : __ffs(static_cast<int>(lanes)) - 1;
                    const int key = __shfl_sync(kAllLanes, keys_[g], lane);
                    keys[n] = lanes == 0 ? -1 : key;
                    lanes &= lanes - 1;
                }
                each(keys);
            }
        }
    }

    static __device__ __forceinline__ int source_of(int key) { return key / Slots::kSourceStride; }

    /// Whether a part is that of this rank, which lies elsewhere.
    __device__ __forceinline__ bool is_own(int key) const {
        return source_of(key) == End::own() && own_.row != nullptr;
    }

    __device__ __forceinline__ WordPair* words_of(int key) const {
        return Words::at(team_.group.window, source_of(key), key % Slots::kSourceStride);
    }

    /// The sum of one part of a row whose parts come as words. Each look adds up anew: nothing is kept across
    /// the rare look around of the wait.
    template <int kBiases, class Bias>
    __device__ __forceinline__ void store_part(bf16* out, int biases, Bias bias) const {
        float sum[Words::kLaneUnits][8];
        const auto add_units = [&](const typename Words::Units& units) {
#pragma unroll
            for (int k = 0; k < Words::kLaneUnits; ++k) add_bf16(sum[k], units[k]);
        };
        Site site{Slots::kChannel, Waiting::kFlag, -1, -1, team_.epoch};
        const bool done = wait(team_, site, [&](u32& seen) {
            bool come = true;
#pragma unroll
            for (int k = 0; k < 8 * Words::kLaneUnits; ++k) sum[k / 8][k % 8] = 0.0f;
            for_keys([&](const int (&keys)[kTogether]) {
                typename Words::Units units[kTogether];
#pragma unroll
                for (int n = 0; n < kTogether; ++n) {
                    if (keys[n] < 0 || is_own(keys[n])) {
                        Words::read(units[n], keys[n] < 0 ? nullptr : own_.row, part_);
                    } else if (!Words::look(units[n], words_of(keys[n]), part_, team_.epoch, seen)) {
                        site.peer = End::rank_of(source_of(keys[n]));
                        come = false;
                    }
                }
#pragma unroll
                for (int n = 0; n < kTogether; ++n) add_units(units[n]);
            });
            return come;
        });
        if (!done) return;
        typename Words::Units units;
#pragma unroll
        for (int i = 0; i < kBiases; ++i) {
            if (i >= biases) continue;
            Words::read(units, bias(i), part_);
            add_units(units);
        }
#pragma unroll
        for (int k = 0; k < Words::kLaneUnits; ++k) units[k] = pack_bf16(sum[k]);
        Words::write(out, units, part_);
    }

    /// The sum of the field of floats, where numbers come as words.
    __device__ __forceinline__ void store_sum_of_words(float* out, int field, int count) const {
#pragma unroll 1
        for (int i = team_.lane; i - team_.lane < count; i += kLanes) {
            float sum;
            Site site{Slots::kChannel, Waiting::kFlag, -1, -1, team_.epoch};
            const bool done = wait(team_, site, [&](u32& seen) {
                bool come = true;
                sum = 0.0f;
                for_keys([&](const int (&keys)[kTogether]) {
#pragma unroll
                    for (int n = 0; n < kTogether; ++n) {
                        if (keys[n] < 0 || i >= count) continue;
                        if (is_own(keys[n])) {
                            sum += own_.numbers[i];
                            continue;
                        }
                        const u64* numbers = Words::numbers(words_of(keys[n]));
                        const u64 found = load_relaxed_sys(numbers + field / 4 + i);
                        sum += float_of(value_of(found));
                        if (epoch_of(found) == team_.epoch) continue;
                        seen = epoch_of(found);
                        site.peer = End::rank_of(source_of(keys[n]));
                        come = false;
                    }
                });
                return come;
            });
            if (!done) return;
            if (i < count) out[i] = sum;
        }
    }

    static __device__ __forceinline__ void read(Quad (&quads)[Cut::kEach], const Part& part, int base,
                                                int end) {
        Cut::read(quads, part.row, base, part.row == nullptr ? 0 : end);
    }

    static __device__ __forceinline__ void add(float (&sum)[Cut::kEach][8],
                                               const Quad (&quads)[Cut::kEach]) {
#pragma unroll
        for (int i = 0; i < Cut::kEach; ++i) add_bf16(sum[i], quads[i]);
    }

    int keys_[kGroups] = {};  // of the token's slots, -1 for none
    Part own_{nullptr, nullptr};
    bool own_elsewhere_ = false;  // whether parts of this rank lie elsewhere
    int part_ = -1;  // of rows that come as words; negative: they do not
    int parts_ = 0;
    int quarter_ = 0;
    int quarters_ = 0;
};

}  // namespace ep
