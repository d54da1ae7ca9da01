// Rows that their receiver packs as they come: copied to a place for each of the values that they list, such as experts.
//
// A place is behind the rows of the ranks before, which the receiver has heard, and behind those before it of its own
// rank, which the sender counts (`listed_before`). Several warps share a row where rows are few. A row that comes as
// words goes from registers to its places; another one is sent in pieces, and read again where it lies.
//
//   PackedOut  ask, for_tokens
//   PackedIn   open -> total, for_places
//
// They take the places of OnceOut and OnceIn (one_launch.cuh).
#pragma once

#include <ep/made.cuh>
#include <ep/one_launch.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>
#include <ep/wide.cuh>

namespace ep {

/// How many tokens before this one list the value of each lane; warp. Only the first `kWidth` lanes have values.
/// `row(token, present)`: the `kWidth` values that a token lists, of 32 bits each.
template <int kWidth, class Row>
__device__ __forceinline__ i32 listed_before(int token, i64 value, Row row) {
    constexpr int kAsked = kWidth < kLanes ? kWidth : kLanes;
    // Tokens of a lane that are looked at together, where their values stay in registers.
    constexpr int kAhead = kWidth <= 8 ? 4 : 1;
    const i32 own = static_cast<i32>(value);
    i32 tokens = 0;
#pragma unroll 1
    for (int base = 0; base < token; base += kAhead * kLanes) {
        i32 listed[kAhead][kWidth];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            const int at = base + n * kLanes + lane_index();
            const auto values = row(at < token ? at : 0, at < token);
#pragma unroll
            for (int k = 0; k < kWidth; ++k) listed[n][k] = static_cast<i32>(values.values[k]);
        }
#pragma unroll 1
        for (int k = 0; k < kAsked; ++k) {
            const i32 wanted = __shfl_sync(kAllLanes, own, k);
            i32 found = 0;
#pragma unroll
            for (int n = 0; n < kAhead; ++n) {
                bool lists = false;
#pragma unroll
                for (int other = 0; other < kWidth; ++other) lists = lists || listed[n][other] == wanted;
                lists = lists && base + n * kLanes + lane_index() < token;
                found += __popc(__ballot_sync(kAllLanes, lists));
            }
            if (lane_index() == k) tokens += found;
        }
    }
    return value == own ? tokens : 0;
}

/// Copies a field of `count` small values, such as scales, to a row of each lane that has a `match`, where they lie
/// `column` values apart; warp.
template <class T>
__device__ __forceinline__ void copy_field(bool match, T* to, i64 column, const char* field, int count) {
    const u32 lanes = __ballot_sync(kAllLanes, match);
#pragma unroll 1
    for (int base = 0; base < count; base += kLanes) {
        const int i = base + lane_index();
        T value;
        if (i < count) value = reinterpret_cast<const T*>(field)[i];
#pragma unroll 1
        for (u32 left = lanes; left != 0; left &= left - 1) {
            const u64 row = __shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(static_cast<int>(left)) - 1);
            if (i < count) reinterpret_cast<T*>(row)[i * column] = value;
        }
    }
    __syncwarp();
}

/// Copies one of the slices of a row of `kBytes`, whole units of 16 bytes, to the row of each lane that has a `match`;
/// warp.
template <int kBytes>
__device__ __forceinline__ void copy_slice(bool match, char* to, const char* from, int slice, int slices) {
    constexpr int kBatch = 7, kUnits = kBytes / 16;
    const u32 lanes = __ballot_sync(kAllLanes, match);
    const int apart = slices * kLanes;
#pragma unroll 1
    for (int base = slice * kLanes; base < kUnits && lanes != 0; base += kBatch * apart) {
        const int first = base + lane_index();
        Quad values[kBatch] = {};
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
            const int i = first + k * apart;
            if (i < kUnits) values[k] = load_quad(reinterpret_cast<const Quad*>(from) + i);
        }
#pragma unroll 1
        for (u32 left = lanes; left != 0; left &= left - 1) {
            const u64 row = __shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(static_cast<int>(left)) - 1);
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const int i = first + k * apart;
                if (i < kUnits) store_quad(reinterpret_cast<Quad*>(row) + i, values[k]);
            }
        }
    }
    __syncwarp();
}

/// The word of a piece of a row of `rank` in a window.
template <class Rows, class Role>
__device__ __forceinline__ u64* piece_told(char* window, int rank, int number, int piece) {
    const int row = rank * Rows::kSenders + number;
    return reinterpret_cast<u64*>(window + Rows::kTold) + row * Pieces<Role>::kCount + piece;
}

/// One warp's sending side: pieces of rows, each told of when it is there.
template <class Rows, class Role>
class PackedOut : public OnceOut<Rows, Role, PieceMover<Role>> {
    using Out = OnceOut<Rows, Role, PieceMover<Role>>;
    using Cut = Pieces<Role>;
    using Out::as_words_;
    using Out::kGroups;
    using Out::kPeers;
    using Out::mover_;
    using Out::rows_at_;
    using Out::senders_;
    using Out::team_;
    using Out::tokens_;

    static_assert(Cut::kCount == 1 || Cut::kBytes % 512 == 0, "scales of a piece share no word with those of others");

public:
    using Out::Out;

    /// Begins to load or to make the first piece, before anything is known of its receivers.
    template <class From>
    __device__ __forceinline__ void ask(From from) {
        const int unit = once_turn(team_);
        if (as_words_ || unit >= this->units_of(Cut::kCount) || team_.stopped) return;
        mover_.begin(from(unit % tokens_), unit / tokens_);
        asked_ = true;
    }

    /// As that of OnceOut.
    template <class Count, class From, class Pack, class Each>
    __device__ __forceinline__ void for_tokens(Count count, From from, Pack pack, Each each) {
        if constexpr (Rows::kFewTokens > 0) {
            if (as_words_) {
                this->template send_words<true>(from, pack);
                this->record_places(count, each);
                return;
            }
        }
        const int end = this->units_of(Cut::kCount);
        bool opened = false;
#pragma unroll 1
        for (int unit = once_turn(team_); unit < end && !team_.stopped; unit += senders_) {
            const int token = unit % tokens_, piece = unit / tokens_;
            if (piece == 0) pack(token, mover_.meta());
            if (!asked_) mover_.begin(from(token), piece);
            asked_ = false;
            __syncwarp();
            if (!opened) this->template open<true>(count);
            opened = true;
            send_piece(token, piece, from(token), each);
        }
    }

private:
    /// Sends a piece that has begun, and what of the record goes with it.
    template <class Row, class Each>
    __device__ __forceinline__ void send_piece(int token, int piece, const Row& row, Each each) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (team_.stopped) return;
            const int peer = g * kLanes + team_.lane;
            const bool match = this->goes(g, token);
            const int number = peer < kPeers ? this->ahead_of(g, token) : 0;
            const int position = this->first_[g] + number;
            if (piece == 0 && peer < kPeers) each(token, peer, match, position);
            if (__ballot_sync(kAllLanes, match) == 0) continue;
            const i64 at = static_cast<i64>(position) * Rows::kRowStride;
            mover_.store(match ? rows_at_[g] + at : nullptr, row, piece);
            // Behind the piece, whose scales may only be made as it is stored.
            this->send_record(g, match, position, mover_.meta(), [&](int i) {
                const int value = scaled_by(row, i);
                return (value < 0 ? 0 : value / Cut::kBytes) == piece;
            });
            if (match) {
                // M1: this lane has waited for its own bulk store; PackedIn::arrive acquires.
                u64* told = piece_told<Rows, Role>(this->routes_.windows[peer], team_.group.rank, number, piece);
                store_release_sys(told, this->word(1));
            }
            __syncwarp();
        }
    }

    bool asked_ = false;
};

/// A part of a row that has come: one of its slices where it lies,
template <class Rows, bool kWords = (Rows::kFewTokens > 0)>
struct PackedPart {
    static constexpr int kMost = 8;

    char* row;
    int part, parts;

    /// Copies it to the row of each lane that has a `match`; warp.
    __device__ __forceinline__ void copy(bool match, char* to) const {
        copy_slice<Rows::kWholeRowBytes>(match, to, row, part, parts);
    }
};

/// or units that have come as words.
template <class Rows>
struct PackedPart<Rows, true> : PackedPart<Rows, false> {
    using Words = OnceWords<Rows>;

    typename Words::Units units;
    bool as_words;

    __device__ __forceinline__ void copy(bool match, char* to) const {
        if (!as_words) {
            PackedPart<Rows, false>::copy(match, to);
            return;
        }
#pragma unroll 1
        for (u32 left = __ballot_sync(kAllLanes, match); left != 0; left &= left - 1) {
            const u64 place = __shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(static_cast<int>(left)) - 1);
            Words::write(reinterpret_cast<void*>(place), units, this->part);
        }
        __syncwarp();
    }
};

/// One warp's receiving side.
template <class Rows, class Role>
class PackedIn : public OnceIn<Rows> {
    using In = OnceIn<Rows>;
    using In::as_words_;
    using In::kEach;
    using In::record_;
    using In::rows_at_;
    using In::team_;
    using In::total_;
    using In::turn_;

public:
    using In::In;

    /// Calls for each part of a row of this warp, when it has come, `take(message)` if it is the first one, and
    /// `each(row, source, record, choice, ahead, used, once)` in all lanes for every 32 choices: lanes that are `used`
    /// have a choice of the row, and `ahead` rows of the ranks before go to the list `list(row, source, record, choice)`;
    /// the others have choice 0. `once` holds in one warp for each row. `count(source, list)`: the word that holds how
    /// many rows of a source go to a list.
    template <int kWidth, class Take, class List, class Count, class Each>
    __device__ __forceinline__ void for_places(Take take, List list, Count count, Each each) {
        const int parts = parts_of_rows();
#pragma unroll 1
        for (int unit = turn_; unit < total_ * parts && !team_.stopped; unit += team_.count()) {
            const int row = unit / parts, source = this->source_of(row);
            part_.row = team_.group.window + rows_at_ + static_cast<i64>(row) * Rows::kRowStride;
            part_.part = unit % parts;
            part_.parts = parts;
            if (!arrive(row, source)) return;
            const bool once = part_.part == 0;
            OnceMessage message;
            message.row = row;
            message.record = record_;
            if (once) take(message);
#pragma unroll 1
            for (int first = 0; first < kWidth; first += kLanes) {
                const bool used = first + team_.lane < kWidth;
                const int choice = used ? first + team_.lane : 0;
                int ahead = 0;
                if (!add_up(source, list(row, source, record_, choice), count, ahead)) return;
                each(row, source, record_, choice, ahead, used, once);
                __syncwarp();
            }
        }
    }

    /// Copies the part to the row of each lane that has a `match`; in `each`, by the whole warp.
    template <class T>
    __device__ __forceinline__ void copy(bool match, T* to) const {
        part_.copy(match, reinterpret_cast<char*>(to));
    }

private:
    /// Into how many parts each row is cut: those that come as words have their own.
    __device__ __forceinline__ int parts_of_rows() const {
        if constexpr (Rows::kFewTokens > 0) {
            if (as_words_.any()) return OnceWords<Rows>::kParts;
        }
        return slices_of<PackedPart<Rows>::kMost>(team_, total_);
    }

    /// Waits for a part of a row and its small fields, and takes what comes as words to where the row is to lie.
    __device__ __forceinline__ bool arrive(int row, int source) {
        bool as_words = false;
        if constexpr (Rows::kFewTokens > 0) as_words = part_.as_words = this->comes_as_words(source);
        const u64* words = this->record_of(row);
        const int number = row - this->rows_before(source);
        const u64* told = piece_told<Rows, Role>(team_.group.window, source, number, 0);
        u64 found[kEach];
        const Site site{Rows::kChannel, Waiting::kClosed, -1, source, team_.epoch};
        const bool done = wait(team_, site, [&](u32& seen) {
            bool come = true;
            // M1: pairs with the release in PackedOut::send_piece; the lanes meet behind it, and read the row.
            for (int piece = team_.lane; piece < Pieces<Role>::kCount && !as_words; piece += kLanes) {
                seen = epoch_of(load_acquire_sys(told + piece));
                come = come && seen == team_.epoch;
            }
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                const int i = k * kLanes + team_.lane;
                found[k] = i < Rows::kRecordWords ? load_relaxed_sys(words + i) : stamped(team_.epoch, 0);
            }
#pragma unroll
            for (int k = 0; k < kEach; ++k) {
                if (!come) continue;
                seen = epoch_of(found[k]);
                come = seen == team_.epoch;
            }
            if constexpr (Rows::kFewTokens > 0) {
                using Words = OnceWords<Rows>;
                const WordPair* pairs = this->words_of(source, row);
                if (as_words && come) come = Words::look(part_.units, pairs, part_.part, team_.epoch, seen);
            }
            return come;
        });
        if (!done) return false;
        u32* fields = reinterpret_cast<u32*>(record_);
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const int i = k * kLanes + team_.lane;
            if (i < Rows::kRecordWords) fields[i] = value_of(found[k]);
        }
        __syncwarp();
        if constexpr (Rows::kFewTokens > 0) {
            if (as_words) part_.copy(team_.leader(), part_.row);
        }
        return true;
    }

    /// Adds up, for each lane, how many rows of the ranks before `source` go to a list.
    template <class Count>
    __device__ __forceinline__ bool add_up(int source, int list, Count count, int& ahead) {
        const Site site{Rows::kChannel, Waiting::kFlag, -1, source, team_.epoch};
        return wait(team_, site, [&](u32& seen) {
            ahead = 0;
            seen = team_.epoch;
            for (int earlier = 0; earlier < source; ++earlier) {
                const u64 found = load_relaxed_sys(count(earlier, list));
                if (epoch_of(found) != team_.epoch) seen = epoch_of(found);
                ahead += static_cast<int>(value_of(found));
            }
            return seen == team_.epoch;
        });
    }

    PackedPart<Rows> part_;
};

}  // namespace ep
