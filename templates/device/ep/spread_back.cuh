// Rows back to their tokens, for few tokens, with a slot for each choice of a token: a rank stores there what it has
// made for that choice, as it lies, and the token's rank adds the slots up, each times a factor.
//
// Quarters, words and credits are those of way_back.cuh; a slot is named by its token and choice, since one rank fills
// it. The word of a row of this rank says which row it is.
#pragma once

#include <ep/way_back.cuh>

namespace ep {

/// The sending end of one warp. A row that came goes back as up to `kChoices` others.
template <class Slots, int kChoices>
class SpreadOut : BackOut<Slots> {
    using Out = BackOut<Slots>;
    using Cut = CutOfSome<Slots>;
    using Out::team_;
    static_assert(kChoices <= kLanes, "a lane for each choice");

public:
    __device__ __forceinline__ explicit SpreadOut(Team& team) : Out(team) {}

    /// Sends this warp's share. `rows(source)`: the rows that came from a rank; `token(row)`: the token of one there;
    /// `list(row, k)`: the number of the row that goes back for a choice (negative: none); `from(at)`: that row.
    template <class Rows, class Token, class List, class From>
    __device__ __forceinline__ void run(Rows rows, Token token, List list, From from) {
        const auto send = [&](int source, int row, int quarter, int quarters) {
            const int at = team_.lane < kChoices ? list(row, team_.lane) : -1;
            const u32 choices = __ballot_sync(kAllLanes, at >= 0);
            const int key = token(row) * kChoices;
            const int end = Cut::first(quarter + quarters);
#pragma unroll 1
            for (int base = Cut::first(quarter); base < end; base += Cut::kStep) {
                const auto taken = [&](int lane) {
                    return reinterpret_cast<const char*>(from(__shfl_sync(kAllLanes, at, lane)));
                };
                if (!copy(source, key, choices, taken, base, end)) return false;
            }
            if (!Out::is_free(source)) return false;
#pragma unroll 1
            for (u32 left = choices; left != 0; left &= left - 1) {
                const int choice = __ffs(static_cast<int>(left)) - 1;
                Out::owe(source, key + choice, quarter, quarters);
            }
            return true;
        };
        Out::template count<false>(rows);
        Out::for_units(send);
        tell_own(rows(Out::own()), token, list);
    }

private:
    /// Copies the lane's units of rows to the slots of their choices. False: the team is stopped.
    template <class Row>
    __device__ __forceinline__ bool copy(int source, int key, u32 choices, Row row, int base,
                                         int end) {
#pragma unroll 1
        for (u32 left = choices; left != 0;) {
            Quad quads[kRowsAtOnce][Cut::kEach];
            const u32 before = left;
            left = load_some<Cut>(quads, left, row, base, end, [](int, int) {});
            // They travel while the slots of the call before the last are looked at.
            if (!Out::is_free(source)) return false;
            u32 took = before & ~left;
#pragma unroll
            for (int n = 0; n < kRowsAtOnce; ++n) {
                if (took == 0) continue;
                const int choice = __ffs(static_cast<int>(took)) - 1;
                took &= took - 1;
                Cut::write(Out::slot_of(source, key + choice), quads[n], base, end);
            }
        }
        return true;
    }

    /// Says of the rows of this rank which ones they are. Nobody writes them in this kernel.
    template <class Token, class List>
    __device__ __forceinline__ void tell_own(const Span& span, Token token, List list) {
        if (team_.stopped) return;
        const int end = span.end * kChoices, all = kLanes * team_.count();
#pragma unroll 1
        for (int i = span.begin * kChoices + team_.lane * team_.count() + team_.spread(); i < end;
             i += all) {
            const int row = i / kChoices, choice = i % kChoices;
            const int at = list(row, choice);
            if (at >= 0) Out::tell_as_it_lies(token(row) * kChoices + choice, at);
        }
        __syncwarp();
    }
};

/// The receiving end of one warp.
template <class Slots, int kChoices>
class SpreadIn : SlotRowsEnd<Slots> {
    using End = SlotRowsEnd<Slots>;
    using End::team_;
    // A lane for each quarter of a choice.
    static constexpr int kAtOnce = kLanes / kQuarters;
    static constexpr int kGroups = (kChoices + kAtOnce - 1) / kAtOnce;
    // More choices than have lanes at once take registers that 4 units a lane need.
    using Cut = BackCut<Slots, (kGroups == 1 ? 4 : 3)>;

public:
    __device__ __forceinline__ explicit SpreadIn(Team& team) : End(team) {}

    /// Takes this warp's share of `tokens` tokens, once what comes for it is there: `body(token)` stores the sum.
    /// `place(token, k)`: the slot of a choice among those of its token; negative: it has none; `peer(token, k)`: who
    /// fills it; `from(at)`: a row of this rank; `factor(token, k)`: how often the choice counts.
    template <class Place, class Peer, class From, class Factor, class Body>
    __device__ __forceinline__ void run(int tokens, Place place, Peer peer, From from,
                                        Factor factor, Body body) {
        for_quarters<Cut>(team_, tokens, [&](int token, int quarter, int quarters) {
            quarter_ = quarter, quarters_ = quarters;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const int choice = g * kAtOnce + team_.lane / kQuarters;
                const int at = choice < kChoices ? place(token, choice) : -1;
                const int source = at < 0 ? -1 : peer(token, choice);
                const bool used = at >= 0 && End::alive(source);
                const int key = token * kChoices + (used ? at : 0);
                factors_[g] = used ? factor(token, choice) : 0.0f;
                rows_[g] = await(used, source, key, from);
            }
            if (team_.stopped) return false;
            body(token);
            __syncwarp();
            return true;
        });
    }

    /// `out = sum(factor * part.x)`, in order of choice and in fp32 before the one rounding: this warp's quarters.
    __device__ __forceinline__ void store_row(bf16* out) const {
        const int end = Cut::first(quarter_ + quarters_);
#pragma unroll 1
        for (int base = Cut::first(quarter_); base < end; base += Cut::kStep) {
            float sum[Cut::kEach][8] = {};
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const auto row = [&](int lane) {
                    const u64 address = reinterpret_cast<u64>(rows_[g]);
                    return reinterpret_cast<const char*>(__shfl_sync(kAllLanes, address, lane));
                };
                const bool has = team_.lane % kQuarters == 0 && rows_[g] != nullptr;
                const u32 lanes = __ballot_sync(kAllLanes, has);
                add_rows<Cut>(sum, lanes, factors_[g], row, base, end);
            }
            write_sums<Cut>(reinterpret_cast<char*>(out), sum, base, end);
        }
    }

private:
    /// Each lane waits for its quarter of a slot that is `used`. Returns the row, null for none.
    template <class From>
    __device__ __forceinline__ const char* await(bool used, int source, int key, From from) {
        const int quarter = team_.lane % kQuarters;
        const bool waits = used && quarter < quarters_;
        const u64* word = back_words<Slots>(team_.group.window, End::set(), waits ? key : 0) +
                          quarter_ + (waits ? quarter : 0);
        const Site site{Slots::kChannel, Waiting::kFlag, -1, waits ? End::rank_of(source) : -1,
                        team_.epoch};
        u64 found = 0;
        const bool done = wait(team_, site, [&](u32& seen) {
            if (!waits) return true;
            // M2: pairs with the release of the sender; all lanes load after the barrier.
            found = load_acquire_sys(word);
            seen = epoch_of(found);
            // A word that was never written is that of no call.
            return seen == team_.epoch && value_of(found) != 0;
        });
        if (!done || !waits) return nullptr;
        const int own = static_cast<int>(value_of(found)) - 2;
        return own >= 0 ? reinterpret_cast<const char*>(from(own))
                        : End::place(team_.group.window, key, 0);
    }

    int quarter_ = 0;   // the first of the unit
    int quarters_ = 0;  // how many it has
    const char* rows_[kGroups] = {};
    float factors_[kGroups] = {};
};

}  // namespace ep
