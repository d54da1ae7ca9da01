// Rows and tokens of a call, stripes of them, sets of peers, and what a table records of a position.
#pragma once

#include <ep/each_slot.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Rows of this call: `most`, unless the host does not know it, as when a graph replays. Then the
/// word at `from` holds the count, and `most` is what the tensors of the call have room for. The
/// word was written before the launch, so a plain load is right (M5).
__device__ __forceinline__ int rows_of(int most, const i32* from) {
    if (from == nullptr) return most;
    const i32 given = *from;
    const i32 rows = given > 0 ? given : 0;
    return rows < most ? rows : most;
}

/// A range of tokens.
struct Span {
    int begin, end;
};

/// The tokens from `begin` to `end`.
__device__ __forceinline__ Span span_of(int begin, int end) {
    return Span{begin, end};
}

/// The tokens of one stripe: contiguous, and no two stripes differ by more than one token.
__device__ __forceinline__ Span stripe_span(int tokens, int stripes, int stripe) {
    const int each = tokens / stripes;
    const int longer = tokens % stripes;
    const int begin = stripe * each + (stripe < longer ? stripe : longer);
    return Span{begin, begin + each + (stripe < longer ? 1 : 0)};
}

/// One of `parts` parts of a span.
__device__ __forceinline__ Span span_part(const Span& all, int parts, int part) {
    const Span own = stripe_span(all.end - all.begin, parts, part);
    return Span{all.begin + own.begin, all.begin + own.end};
}

/// The share of one of several warps in rows that are cut into `kSlices` slices each: neighboring slices, so that few rows
/// keep many warps busy.
template <int kSlices>
struct SlicedSpan {
    Span slices;     // of all rows,
    int rows;        // so many
    int begin, end;  // the rows of which the warp has slices

    __device__ __forceinline__ SlicedSpan(int rows, int shares, int share)
        : slices(shared(rows, shares, share)), rows(rows), begin(slices.begin / kSlices),
          end(slices.begin < slices.end ? (slices.end - 1) / kSlices + 1 : begin) {}

    /// The slices of one share: as many of a row together as may be, so that no share has more than it has to.
    static __device__ __forceinline__ Span shared(int rows, int shares, int share) {
        int each = kSlices, most = (rows + shares - 1) / shares * kSlices;
#pragma unroll
        for (int some = kSlices / 2; some > 0; some /= 2) {
            const int own = (rows * (kSlices / some) + shares - 1) / shares * some;
            if (own < most) each = some, most = own;
        }
        const Span units = stripe_span(rows * (kSlices / each), shares, share);
        return Span{units.begin * each, units.end * each};
    }

    /// The warp's slices of a row.
    __device__ __forceinline__ Span of(i64 row) const {
        const int first = static_cast<int>(row) * kSlices;
        return Span{slices.begin > first ? slices.begin - first : 0,
                    slices.end < first + kSlices ? slices.end - first : kSlices};
    }
};

/// What a table records for a token and a peer: the position of the row, or, when there is none,
/// -1 - the position that the next one would have had. So every entry says how far the peer is.
__device__ __forceinline__ i32 recorded(bool match, int position) {
    return match ? position : -1 - position;
}

/// The number of rows up to and with this recorded entry.
__device__ __forceinline__ int rows_through(i32 entry) {
    return entry >= 0 ? entry + 1 : -1 - entry;
}

/// How many units of 16 bytes a lane copies at once. A thread of a larger block has fewer registers.
template <int kThreads>
constexpr int kCopiedAtOnce = kThreads <= 512 ? 14 : 8;

/// Copies `count` neighbouring elements to a place, or to that in each slot; warp. By units of 16 bytes where both ends lie
/// so, `kBatch` on their way at once; no lane holds more than one element of a short row, which stays as it is.
template <class T, int kBatch = 8, class To>
__device__ __forceinline__ void copy_row(const Team& team, const To& to, const void* from, int count) {
    constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
    const bool whole = ((address_of(to) | reinterpret_cast<u64>(from)) & 15) == 0;
    const int units = whole && count > kLanes ? count / kUnit : 0;
    const char* in = static_cast<const char*>(from);
#pragma unroll 1
    for (int base = team.lane; base - team.lane < units; base += kBatch * kLanes) {
        Quad values[kBatch] = {};
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int at = base + i * kLanes;
            if (at < units) values[i] = load_quad(in + at * 16);
        }
        for_places(to, [&](char* out) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int at = base + i * kLanes;
                if (at < units) store_quad(out + at * 16, values[i]);
            }
        });
    }
#pragma unroll 1
    for (int base = units * kUnit; base < count; base += kLanes) {
        const int i = base + team.lane;
        const T value = i < count ? reinterpret_cast<const T*>(in)[i] : T{};
        for_places(to, [&](char* out) {
            if (i < count) reinterpret_cast<T*>(out)[i] = value;
        });
    }
}

/// The beginning of a row that a warp copies, as much as stays in registers: it is loaded ahead, before its place is known.
template <class T>
class AskedSlice {
    static constexpr int kAhead = 7;

public:
    __device__ __forceinline__ AskedSlice(const T* from, int count)
        : from_(reinterpret_cast<const char*>(from)), count_(count) {
        const bool whole = ((reinterpret_cast<u64>(from) | bytes()) & 15) == 0;
        units_ = !whole ? 0 : bytes() / 16 < kAhead * kLanes ? bytes() / 16 : kAhead * kLanes;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int at = i * kLanes + lane_index();
            if (at < units_) ahead_[i] = load_quad(from_ + at * 16);
        }
    }

    /// Copies all of it to a place of whole units.
    __device__ __forceinline__ void put(const Team& team, char* to) const {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int at = i * kLanes + lane_index();
            if (at < units_) store_quad(to + at * 16, ahead_[i]);
        }
        const int done = units_ * 16;
        if (done < bytes()) copy_row<T, 11>(team, to + done, from_ + done, count_ - done / static_cast<int>(sizeof(T)));
    }

    /// Copies all of it to a place that is more than an address.
    template <class Place>
    __device__ __forceinline__ void put(const Team& team, const Place& to) const {
        if (to.words == nullptr) return put(team, to.slot);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int at = i * kLanes + lane_index();
            if (at < units_) to.unit(at, ahead_[i]);
        }
        constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
#pragma unroll 1
        for (int at = units_ + lane_index(); at * kUnit < count_; at += kLanes) {
            Quad rest{0, 0, 0, 0};
            copy_unit(reinterpret_cast<T*>(&rest), at * kUnit);
            to.unit(at, rest);
        }
    }

private:
    __device__ __forceinline__ int bytes() const { return count_ * static_cast<int>(sizeof(T)); }

    /// Copies the values of a unit from `first` on, as far as there are any.
    __device__ __forceinline__ void copy_unit(T* to, int first) const {
#pragma unroll 1
        for (int k = 0; k < 16 / static_cast<int>(sizeof(T)) && first + k < count_; ++k) {
            to[k] = reinterpret_cast<const T*>(from_)[first + k];
        }
    }

    const char* from_;
    int count_, units_;
    Quad ahead_[kAhead] = {};
};

/// How many rows some turns of a loop send to each of `kPeers` peers: each lane has those of every 32nd peer.
template <int kPeers>
struct RowsAhead {
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

    int rows[kGroups];

    /// Adds what each lane has found for a turn of its own: a row or none, or how many.
    __device__ __forceinline__ void add(int peer, bool sends) {
        add_all(peer, __popc(__ballot_sync(kAllLanes, sends)));
    }
    __device__ __forceinline__ void add(int peer, i32 count) {
        add_all(peer, __reduce_add_sync(kAllLanes, count));
    }

private:
    __device__ __forceinline__ void add_all(int peer, int count) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && lane_index() == peer % kLanes) rows[g] += count;
        }
    }
};

/// How many rows the turns from `begin` to `end` send: `count(turn, peer)` is a row or none, or how many. A lane for
/// each turn.
template <int kPeers, class Count>
__device__ __forceinline__ RowsAhead<kPeers> rows_ahead(int begin, int end, Count count) {
    using Rows = decltype(count(0, 0));
    constexpr int kBatch = 8;
    RowsAhead<kPeers> all{};
#pragma unroll 1
    for (int first = begin; first < end; first += kLanes) {
        const int turn = first + lane_index();
#pragma unroll 1
        for (int base = 0; base < kPeers; base += kBatch) {
            Rows own[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const bool asks = turn < end && base + i < kPeers;
                own[i] = asks ? count(turn, base + i) : Rows{};
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (base + i < kPeers) all.add(base + i, own[i]);
            }
        }
    }
    return all;
}

/// The numbers from 0 up to `end` for which a condition holds, in order. Each lane of a warp looks at one of 32.
class Chosen {
public:
    __device__ __forceinline__ explicit Chosen(int end) : end_(end) {}

    /// The next number; -1: there is none, or the team has been stopped.
    template <class Holds>
    __device__ __forceinline__ int take(const Team& team, Holds holds) {
        while (left_ == 0 && next_ < end_ && !team.stopped) {
            const int number = next_ + team.lane;
            left_ = __ballot_sync(kAllLanes, number < end_ && holds(number));
            next_ += kLanes;
        }
        if (left_ == 0 || team.stopped) return -1;
        const int lane = __ffs(static_cast<int>(left_)) - 1;
        left_ &= left_ - 1;
        return next_ - kLanes + lane;
    }

private:
    int end_;
    int next_ = 0;  // the first number that no lane has looked at
    u32 left_ = 0;  // of the 32 before it, those that are still to be taken
};

/// The answers to a yes-or-no question about each turn of a loop and each of `kPeers` peers. The lanes of a warp look
/// up the answers of 32 turns at once.
template <int kPeers>
class Flags {
    // With more peers a lane would look up many that are not asked for.
    static constexpr bool kAhead = kPeers <= 64;
    static constexpr int kWords = kAhead ? (kPeers + 31) / 32 : 1;

public:
    /// `where(turn, peer)`; turns come in order, and end before `end`.
    template <class Where>
    __device__ __forceinline__ bool at(int turn, int end, int peer, Where where) {
        if constexpr (!kAhead) {
            return where(turn, peer);
        } else {
            if (turn - first_ >= kLanes) look<false>(turn, turn, end, where);
            u32 flags = words_[0];
#pragma unroll
            for (int word = 1; word < kWords; ++word) {
                if (peer / 32 == word) flags = words_[word];
            }
            return (__shfl_sync(kAllLanes, flags, turn - first_) >> peer % 32 & 1) != 0;
        }
    }

    /// Counts the turns from `begin` to `turn`, from which on turns are asked for, where the answer is yes. Their answers
    /// are looked up together with those of the next turns.
    template <class Where>
    __device__ __forceinline__ RowsAhead<kPeers> ahead(int begin, int turn, int end, Where where) {
        if constexpr (!kAhead) {
            return rows_ahead<kPeers>(begin, turn, where);
        } else {
            return look<true>(begin, turn, end, where);
        }
    }

private:
    /// Looks up the turns from `turn` on, a lane each, and counts those from `begin` to `turn` if it `kCounts`.
    template <bool kCounts, class Where>
    __device__ __forceinline__ RowsAhead<kPeers> look(int begin, int turn, int end, Where where) {
        constexpr int kBatch = 4;
        const int last = end - turn < kLanes ? end : turn + kLanes;
        first_ = last - kLanes;
        const int near = first_ + lane_index(), far = near - kLanes;
        RowsAhead<kPeers> all{};
        if constexpr (kCounts) all = rows_ahead<kPeers>(begin, first_ - kLanes, where);
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
            u32 flags = 0;
            const int peers = kPeers - word * 32 < 32 ? kPeers - word * 32 : 32;
#pragma unroll 1
            for (int base = 0; base < peers; base += kBatch) {
                bool nears[kBatch], fars[kBatch];
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const bool is_one = base + i < peers;
                    const int peer = word * 32 + base + i;
                    nears[i] = is_one && near >= begin && near < end && where(near, peer);
                    fars[i] = kCounts && is_one && far >= begin && where(far, peer);
                }
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    flags |= static_cast<u32>(nears[i]) << (base + i);
                    if constexpr (kCounts) {
                        if (base + i >= peers) continue;
                        all.add(word * 32 + base + i, near < turn && nears[i]);
                        all.add(word * 32 + base + i, fars[i]);
                    }
                }
            }
            words_[word] = flags;
        }
        __syncwarp();  // converges; orders nothing
        return all;
    }

    int first_ = -0x40000000;  // the turn of lane 0
    u32 words_[kWords] = {};
};

/// In the place of a peer.
constexpr int kNobody = -1;

/// A set of peers, walked 32 at a time with a lane each.
struct Peers {
    int begin, end;
    int skip;  // or nobody

    __device__ __forceinline__ int count() const { return end - begin; }

    /// How many there are without the one that is left out.
    __device__ __forceinline__ int size() const {
        return count() - (begin <= skip && skip < end ? 1 : 0);
    }

    /// The i-th peer; nobody past the end and for the one that is left out.
    __device__ __forceinline__ int at(int i) const {
        const int peer = begin + i;
        return peer < end && peer != skip ? peer : kNobody;
    }
};

/// Every rank.
__device__ __forceinline__ Peers all_peers(int ranks) {
    return Peers{0, ranks, kNobody};
}

/// Every rank but `rank`.
__device__ __forceinline__ Peers other_peers(int ranks, int rank) {
    return Peers{0, ranks, rank};
}

/// One rank.
__device__ __forceinline__ Peers one_peer(int rank) {
    return Peers{rank, rank + 1, kNobody};
}

/// The stripes of a block, cut into slices of up to 32 rows.
struct StripeSlices {
    int all, stripes, block, blocks;
    int each;   // of the longest stripe
    int count;  // those of all stripes of the block

    __device__ __forceinline__ StripeSlices(const Team& team, int rows, int stripes_)
        : all(rows), stripes(stripes_), block(team.block), blocks(team.blocks) {
        const int longest = (rows + stripes - 1) / stripes;
        each = (longest + kLanes - 1) / kLanes;
        count = each * ((stripes - block + blocks - 1) / blocks);
    }

    /// The stripe of a slice.
    __device__ __forceinline__ int stripe(int slice) const { return block + slice / each * blocks; }

    /// The rows of a slice; none, where the stripe has fewer slices than others.
    __device__ __forceinline__ Span span(int slice) const {
        const Span own = stripe_span(all, stripes, stripe(slice));
        const int begin = own.begin + slice % each * kLanes;
        const int end = own.end - begin < kLanes ? own.end : begin + kLanes;
        return Span{begin, end};
    }
};

/// `fill value beyond end`: rows `begin..end` of a dense tensor with `width` elements a row, shared
/// by all warps of a role.
template <class T>
__device__ __forceinline__ void fill(const Team& team, T* out, int width, int begin, int end,
                                     T value) {
    const i64 step = static_cast<i64>(team.count()) * kLanes;
    const i64 last = static_cast<i64>(end) * width;
    i64 at = static_cast<i64>(begin) * width + team.index() * kLanes + team.lane;
#pragma unroll 1
    for (; at < last; at += step) out[at] = value;
    __syncwarp();
}

}  // namespace ep
