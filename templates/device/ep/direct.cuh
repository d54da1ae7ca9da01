// Direct channels: the sender stores rows where the receiver wants them.
//
// The receiver announces where its output and its meta records are, and how many rows they hold. A sender stores the rows of
// a stripe; when all of them have arrived, it says which one comes first and how many they are. Each end is carried by one
// warp that does its work in order:
//
//   DirectOut  open -> next, reserve -> row, meta -> stored -> .. -> close
//              open -> begin -> next, ..            where the first positions are known at once
//              count .. meet -> open -> begin_run -> ..   of a run of pushes, which is a stripe
//              open_part -> begin -> behind -> next, .. -> close_part .. -> finish   of parts of stripes (StripeParts)
//   DirectIn   arrived -> first, rows, meta
//
// Several warps send a stripe in parts: each counts its part in kStored, and the lane that counts the last part tells the
// receiver. `Rows` is the channel's Cfg struct; its words in a window are
//   kReady  [source of the announcement]  {rows at, meta at, capacity}, in the sender's window
//   kClosed [sender, stripe]              {first row, rows},
// each word with its epoch (M7), and for the sender's own warps
//   kStored [receiver, stripe]            {parts, rows} that are stored, zero between calls
#pragma once

#include <ep/compute.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Announcement of a receiver: offsets in its window, in units of 128 bytes.
struct DirectReady {
    u64 rows, meta, capacity;
    u64 unused;
};

/// A stripe whose rows have all arrived.
struct DirectClosed {
    u64 first;
    u64 rows;
};

/// Tells every sender where its rows go; the first warp of the consuming role does it, at its
/// start.
template <class Rows>
__device__ __forceinline__ void direct_ready(Team& team, u64 rows_at, u64 meta_at, int capacity) {
    if (team.index() != 0 || team.stopped) return;
    for (int peer = team.lane; peer < Rows::kPeers; peer += kLanes) {
        DirectReady* ready =
            reinterpret_cast<DirectReady*>(
                team.group.windows[team.rank_of(peer, Rows::kPeers)] + Rows::kReady) +
            team.own(Rows::kPeers);
        // M4: whatever this device did with the memory it now offers is over; the sender acquires
        // the word in DirectOut::wait_ready. It comes first: a release waits until all stores
        // before it have been acknowledged.
        store_release_sys(&ready->rows, stamped(team.epoch, static_cast<u32>(rows_at / 128)));
        store_relaxed_sys(&ready->meta, stamped(team.epoch, static_cast<u32>(meta_at / 128)));
        store_relaxed_sys(&ready->capacity, stamped(team.epoch, static_cast<u32>(capacity)));
    }
    __syncwarp();
}

/// A part of a stripe, one of `parts`.
struct StripePart {
    int stripe, part, parts;
};

/// How the warps of a role cut stripes of up to `longest` tokens: into parts with rows of `kUnitBytes` together for
/// `peers`, which they take in turn, but into no fewer than there are warps. What a warp has left when the others are done
/// is time lost: parts become half as large as soon as fewer than two of them are left for each warp, again and again. A
/// part costs some time of its own, so that with few tokens they are halved only when less than one is left. `sets`: so
/// many times are all stripes sent, each time to other peers.
template <class Rows>
class StripeParts {
    // With many peers a token still goes to few of them.
    static constexpr int kMostTargets = 4;
    // Tokens of the largest part, which is halved up to four times.
    static constexpr int kMostTokens = 16, kSizes = 5;

public:
    __device__ __forceinline__ StripeParts(const Team& team, int sets, int longest, const Peers& peers) {
        const int targets = peers.size() < kMostTargets ? peers.size() : kMostTargets;
        const int bytes = Rows::kUnitBytes / (Rows::kRowStride * (targets == 0 ? 1 : targets));
        const int most = bytes < 1 ? 1 : bytes < kMostTokens ? bytes : kMostTokens;
        const int units = sets * Rows::kStripes, all = sets * (longest < 1 ? 1 : longest);
        const int least = (team.count() + units - 1) / units;
        const int each = all * Rows::kStripes < kMostTokens * team.count() ? 1 : 2;
        int begin = 0;
#pragma unroll
        for (int size = 0; size < kSizes; ++size) {
            const int tokens = most >> size < 1 ? 1 : most >> size;
            // With so many stripes left there are at most so many parts of this size for each warp.
            const int left = size + 1 < kSizes ? each * tokens * team.count() / all : 0;
            const int end = left < Rows::kStripes - begin ? Rows::kStripes - left : begin;
            stripes_[size] = end - begin;
            parts_[size] = cut(longest, least, tokens);
            begin = end;
        }
    }

    /// Parts of all stripes.
    __device__ __forceinline__ int count() const {
        int all = 0;
#pragma unroll
        for (int size = 0; size < kSizes; ++size) all += stripes_[size] * parts_[size];
        return all;
    }

    __device__ __forceinline__ StripePart at(int index) const {
        StripePart found{0, 0, 1};
        int stripe = 0;
#pragma unroll
        for (int size = 0; size < kSizes; ++size) {
            const int parts = stripes_[size] * parts_[size];
            if (0 <= index && index < parts) {
                found = StripePart{stripe + index / parts_[size], index % parts_[size], parts_[size]};
            }
            index -= parts;
            stripe += stripes_[size];
        }
        return found;
    }

private:
    static __device__ __forceinline__ int cut(int longest, int least, int tokens) {
        const int wanted = (longest + tokens - 1) / tokens;
        const int parts = wanted < least ? least : wanted;
        return parts < longest ? parts : longest < 1 ? 1 : longest;
    }

    int stripes_[kSizes], parts_[kSizes];  // stripes that have parts of each size, and how many each has
};

/// The sending ends of one stripe, a lane for each peer in groups of 32.
template <class Rows>
class DirectOut {
    static constexpr int kPeers = Rows::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

public:
    __device__ __forceinline__ explicit DirectOut(Team& team) : team_(team), peers_{0, 0, -1} {}

    /// Begins a stripe for some peers: waits until they take rows of this call, once for all stripes. Returns whether it
    /// has waited.
    __device__ __forceinline__ bool open(int stripe, const Peers& peers) {
        stripe_ = stripe;
        const bool same = peers.begin == peers_.begin && peers.end == peers_.end &&
                          peers.skip == peers_.skip;
        peers_ = peers;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            first_[g] = ahead_[g] = rows_[g] = 0;
            if (!same) wait_ready(g);
        }
        return !same;
    }

    /// Begins a part of a stripe. Returns whether it has waited.
    __device__ __forceinline__ bool open_part(const StripePart& part, const Peers& peers) {
        parts_ = part.parts;
        return open(part.stripe, peers);
    }

    /// The position of the stripe's first row for `peer`, in the lane that keeps the peer.
    __device__ __forceinline__ void begin(int peer, int first) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) first_[g] = first;
        }
    }

    /// The next rows follow these rows of the stripe.
    __device__ __forceinline__ void behind(const RowsAhead<kPeers>& ahead) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) ahead_[g] = ahead.rows[g] - rows_[g];
    }

    /// The next rows follow these rows as well.
    __device__ __forceinline__ void and_behind(const RowsAhead<kPeers>& ahead) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) ahead_[g] += ahead.rows[g];
    }

    /// `behind` and `and_behind` where all rows are for `peer`.
    __device__ __forceinline__ void behind(int peer, const RowsAhead<1>& ahead) {
        behind(spread(peer, ahead));
    }
    __device__ __forceinline__ void and_behind(int peer, const RowsAhead<1>& ahead) {
        and_behind(spread(peer, ahead));
    }

    /// The position of the first row for `peer` of a run of pushes: behind those of the runs before, the first of which
    /// begins at `first`. All runs have been counted, and all warps have met since.
    __device__ __forceinline__ void begin_run(int peer, int first) {
        const u32* counts = counted(peer);
        i64 before = 0;
#pragma unroll 1
        for (int run = team_.lane; run < stripe_; run += kLanes) before += counts[run];
        const int begins = first + static_cast<int>(sum_of_lanes(before));
        if (team_.lane == peer % kLanes) begin(peer, begins);
        __syncwarp();  // converges; orders nothing
    }

    /// Keeps how many rows a run pushes to `peer`.
    __device__ __forceinline__ void count(int peer, int run, int rows) {
        if (team_.leader()) counted(peer)[run] = static_cast<u32>(rows);
        __syncwarp();  // converges; orders nothing
    }

    /// The position of the next row for `peer`, which may be another one in each lane of a group.
    __device__ __forceinline__ int next(int peer) {
        u32 rows = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) rows = static_cast<u32>(first_[g] + ahead_[g] + rows_[g]);
        }
        return static_cast<int>(__shfl_sync(kAllLanes, rows, peer % kLanes));
    }

    /// The position of the next row for `peer`; those of a stripe begin at `first`.
    __device__ __forceinline__ int next(int peer, int first) {
        u32 rows = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g != peer / kLanes) continue;
            if (rows_[g] == 0) first_[g] = first;
            rows = static_cast<u32>(first_[g] + rows_[g]);
        }
        return static_cast<int>(__shfl_sync(kAllLanes, rows, peer % kLanes));
    }

    /// Whether there is room for a row at `position`. False: the team is stopped, by this warp if
    /// there is none.
    __device__ __forceinline__ bool reserve(int peer, int position) {
        const u32 capacity = capacity_of(peer);
        const bool fits = position >= 0 && static_cast<u32>(position) < capacity;
        if (!fits && !team_.stopped) refuse(peer, position, capacity, team_.leader());
        return !team_.stopped;
    }

    /// Whether there is room for the rows of all lanes that send one to a peer of their own. False: the team is stopped, or
    /// no lane sends one.
    __device__ __forceinline__ bool reserve_each(bool sends, int peer, int position) {
        const u32 capacity = capacity_of(peer);
        const bool fits = position >= 0 && static_cast<u32>(position) < capacity;
        const u32 lanes = __ballot_sync(kAllLanes, sends && !fits);
        const bool any = __ballot_sync(kAllLanes, sends) != 0;
        if (lanes != 0 && !team_.stopped) {
            refuse(peer, position, capacity, team_.lane == __ffs(static_cast<int>(lanes)) - 1);
        }
        return any && !team_.stopped;
    }

    /// Where the row at `position` goes.
    __device__ __forceinline__ char* row(int peer, int position) const {
        return at_lane(rows_at_, peer) + static_cast<i64>(position) * Rows::kRowStride;
    }

    /// Where its other fields go.
    __device__ __forceinline__ char* meta(int peer, int position) const {
        return at_lane(meta_at_, peer) + static_cast<i64>(position) * Rows::kMetaBytes;
    }

    /// Counts a row that all lanes have written.
    __device__ __forceinline__ void stored(int peer) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && team_.lane == peer % kLanes) ++rows_[g];
        }
    }

    /// Counts the row of each lane that sends one to a peer of its own.
    __device__ __forceinline__ void stored_each(bool sends, int peer) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes && sends) ++rows_[g];
        }
    }

    /// Ends the stripe: tells each receiver how many rows it got, and where the first one is.
    __device__ __forceinline__ void close() {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
            if (used(g) && !team_.stopped) tell(g, stripe_, first_[g], static_cast<u32>(rows_[g]));
        }
        __syncwarp();
    }

    /// Ends a part of a stripe whose rows are stored.
    __device__ __forceinline__ void close_part() { count(part()); }

    /// Ends a part whose rows `mover` carries: counts it once those of the next part are under way, and need not be
    /// waited for.
    template <class Mover>
    __device__ __forceinline__ void close_part_behind(Mover& mover) {
        const u32 begun = mover.rows_begun();
        const bool has_rows = begun != begun_;
        if (has_rows && waiting_) {
            mover.complete(begun - begun_);
            count(before_);
        }
        if (has_rows) {
            before_ = part();
        } else {
            count(part());
        }
        waiting_ = waiting_ || has_rows;
        begun_ = begun;
    }

    /// Ends the last part.
    __device__ __forceinline__ void finish() { look(); }

    /// Ends the last part whose rows `mover` carries.
    template <class Mover>
    __device__ __forceinline__ void finish_behind(Mover& mover) {
        mover.flush();
        if (waiting_) count(before_);
        waiting_ = false;
        look();
    }

private:
    /// A part of a stripe, from the lane's side.
    struct Part {
        int stripe;
        int parts;               // of the stripe
        bool used[kGroups];  // whether it goes to the lane's peer
        int first[kGroups];  // position of the stripe's first row
        u64 rows[kGroups];   // a part and its rows, or all that have been counted
    };

    /// The part that has just been sent.
    __device__ __forceinline__ Part part() const {
        Part own{stripe_, parts_, {}, {}, {}};
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            own.used[g] = used(g);
            own.first[g] = first_[g];
            own.rows[g] = u64{1} << 32 | static_cast<u32>(rows_[g]);
        }
        return own;
    }

    /// Adds a part to its stripe. `look` finds out later whether it was the last one: the answer takes its time.
    __device__ __forceinline__ void count(const Part& part) {
        look();
        counted_ = part;
        counting_ = !team_.stopped;
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (!counting_ || !part.used[g] || part.parts == 1) continue;
            // M1: comes after the stores of all lanes, by the barrier, and after this lane's bulk stores, which have
            // been waited for; released to the lane that tells.
            counted_.rows[g] += fetch_add_release_gpu(sum_of(g), part.rows[g]);
        }
        if (part.parts == 1) look();
        __syncwarp();
    }

    /// Tells the receivers of the stripe whose part was counted last, if that part completed it.
    __device__ __forceinline__ void look() {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool is_last = counted_.rows[g] >> 32 == static_cast<u64>(counted_.parts);
            if (!counting_ || !counted_.used[g] || !is_last) continue;
            if (counted_.parts > 1) {
                // M1: acquires the rows of the other lanes that counted, to release them all.
                load_acquire_gpu(sum_of(g));
                // No lane is left that counts; those of the next launch on this stream do.
                store_relaxed_sys(sum_of(g), u64{0});
            }
            tell(g, counted_.stripe, counted_.first[g], static_cast<u32>(counted_.rows[g]));
        }
        counting_ = false;
        __syncwarp();
    }

    /// Where the parts of a stripe are counted for a peer.
    __device__ __forceinline__ u64* sum_of(int g) const {
        u64* sums = reinterpret_cast<u64*>(team_.group.window + Rows::kStored);
        return sums + peer(g) * Rows::kStripes + counted_.stripe;
    }

    /// Tells a receiver how many rows of a stripe it got, and where the first one is.
    __device__ __forceinline__ void tell(int g, int stripe, int first, u32 rows) {
        DirectClosed* closed = reinterpret_cast<DirectClosed*>(window_of(peer(g)) + Rows::kClosed) +
                               team_.own(kPeers) * Rows::kStripes + stripe;
        // M1: releases what this lane has acquired or was ordered behind; DirectIn acquires.
        store_release_sys(&closed->first, stamped(team_.epoch, static_cast<u32>(first)));
        // Behind it, so that the release waits for no acknowledgement of this one.
        store_relaxed_sys(&closed->rows, stamped(team_.epoch, rows));
    }

    /// The rows of all runs for a peer.
    __device__ __forceinline__ u32* counted(int peer) const {
        return reinterpret_cast<u32*>(team_.group.window + Rows::kStored) + peer * Rows::kStripes;
    }

    /// The rows of all lanes, if all are for `peer`.
    __device__ __forceinline__ RowsAhead<kPeers> spread(int peer, const RowsAhead<1>& ahead) const {
        RowsAhead<kPeers> all{};
        all.add(peer, team_.leader() ? ahead.rows[0] : 0);
        return all;
    }

    __device__ __forceinline__ int peer(int g) const { return g * kLanes + team_.lane; }

    __device__ __forceinline__ char* window_of(int peer) const {
        return team_.group.windows[team_.rank_of(peer, kPeers)];
    }

    __device__ __forceinline__ bool used(int g) const {
        const int own = peer(g);
        return own >= peers_.begin && own < peers_.end && own != peers_.skip;
    }

    __device__ __forceinline__ u32 capacity_of(int peer) const {
        u32 capacity = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) capacity = capacity_[g];
        }
        return __shfl_sync(kAllLanes, capacity, peer % kLanes);
    }

    /// Stops the team: there is no room for a row.
    __device__ __forceinline__ void refuse(int peer, int position, u32 capacity, bool blames) {
        const Site site{Rows::kChannel, Waiting::kCapacity, stripe_, peer,
                        static_cast<u32>(position) + 1};
        give_up(team_.group, team_.epoch, team_.role, site, capacity, blames, true);
        team_.stopped = true;
    }

    /// Waits until the peers of a group take rows: what they did with the memory is over.
    __device__ __forceinline__ void wait_ready(int g) {
        const DirectReady* ready = nullptr;
        if (used(g)) {
            ready = reinterpret_cast<const DirectReady*>(team_.group.window + Rows::kReady) + peer(g);
        }
        const Site site{Rows::kChannel, Waiting::kReady, -1, used(g) ? peer(g) : -1, team_.epoch};
        u64 room = 0, meta = 0;
        const bool done = wait(team_, site, [&](u32& seen) {
            if (ready == nullptr) return true;
            meta = load_relaxed_sys(&ready->meta);
            room = load_relaxed_sys(&ready->capacity);
            seen = epoch_of(load_relaxed_sys(&ready->rows));
            return seen == team_.epoch && epoch_of(meta) == seen && epoch_of(room) == seen;
        });
        if (done && ready != nullptr) {
            char* window = window_of(peer(g));
            // M4: pairs with the release in direct_ready; the other lanes store after the barrier.
            const u32 rows = value_of(load_acquire_sys(&ready->rows));
            rows_at_[g] = window + static_cast<u64>(rows) * 128;
            meta_at_[g] = window + static_cast<u64>(value_of(meta)) * 128;
            capacity_[g] = value_of(room);
        }
        __syncwarp();
    }

    __device__ __forceinline__ char* at_lane(char* const (&places)[kGroups], int peer) const {
        u64 found = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == peer / kLanes) found = reinterpret_cast<u64>(places[g]);
        }
        return reinterpret_cast<char*>(__shfl_sync(kAllLanes, found, peer % kLanes));
    }

    Team& team_;
    Peers peers_;
    int stripe_ = 0;
    char* rows_at_[kGroups] = {};
    char* meta_at_[kGroups] = {};
    u32 capacity_[kGroups] = {};
    int first_[kGroups] = {};  // position of the stripe's first row
    int ahead_[kGroups] = {};  // rows of the stripe that other warps send before those of this part
    int rows_[kGroups] = {};   // rows of the stripe, or of the part
    int parts_ = 1;            // of each stripe
    Part before_ = {};         // a part that is stored, but for what is on its way,
    bool waiting_ = false;     // if there is one
    Part counted_ = {};        // the part that was counted last,
    bool counting_ = false;    // if nobody has looked since
    u32 begun_ = 0;            // rows of the mover when the part was opened
};

/// The receiving end: rows are in place, their other fields in records.
template <class Rows>
class DirectIn {
public:
    /// `meta_at`: where this rank's records are in its window.
    __device__ __forceinline__ DirectIn(Team& team, u64 meta_at)
        : team_(team), meta_(team.group.window + meta_at) {}

    /// Waits until all rows of a stripe have come from `source`. False: the team is stopped.
    __device__ __forceinline__ bool arrived(int source, int stripe) {
        const DirectClosed* closed =
            reinterpret_cast<const DirectClosed*>(team_.group.window + Rows::kClosed) +
            source * Rows::kStripes + stripe;
        const Site site{Rows::kChannel, Waiting::kClosed, stripe, source, team_.epoch};
        u64 first = 0, rows = 0;
        wait(team_, site, [&](u32& seen) {
            if (!team_.leader()) return true;
            rows = load_relaxed_sys(&closed->rows);
            seen = epoch_of(rows);
            if (seen != team_.epoch) return false;
            // M2: pairs with the release at the end of the stripe; plain loads may follow.
            first = load_acquire_sys(&closed->first);
            return epoch_of(first) == team_.epoch;
        });
        first_ = static_cast<int>(__shfl_sync(kAllLanes, value_of(first), 0));
        rows_ = static_cast<int>(__shfl_sync(kAllLanes, value_of(rows), 0));
        __syncwarp();
        return !team_.stopped;
    }

    /// The first row of what has arrived, and how many there are.
    __device__ __forceinline__ int first() const { return first_; }
    __device__ __forceinline__ int rows() const { return rows_; }

    /// The other fields of a row.
    __device__ __forceinline__ const char* meta(int row) const {
        return meta_ + static_cast<i64>(row) * Rows::kMetaBytes;
    }

private:
    Team& team_;
    const char* meta_;
    int first_ = 0;
    int rows_ = 0;
};

}  // namespace ep
