// Direct channels: the sender stores rows where the receiver wants them.
//
// The receiver announces where its output and its meta records are, and how many rows they hold.
// The warps of a sending role take the tokens of the stripes a few at a time, as they come free for
// them: peers and links are not equally fast, and a warp that stands still keeps nobody else. When
// all rows of a stripe have arrived, the sender says which one comes first and how many they are.
// `Rows` is the channel's Cfg struct; its words in a window are
//   kReady  [source of the announcement]  {rows at, meta at, capacity}, in the sender's window
//   kClosed [sender, stripe]              {first row, rows},
// each word with its epoch (M7), and for the sender's own warps
//   kStored [receiver, stripe]            {units, rows} that are stored, zero between calls
//   kClaims [call % 2, role, 32 peers]    units given out, after the first one of each warp
#pragma once

#include <ep/messages.cuh>
#include <ep/mover.cuh>
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
        // the word in DirectProducer::wait_ready. It comes first: a release waits until all stores
        // before it have been acknowledged.
        store_release_sys(&ready->rows, stamped(team.epoch, static_cast<u32>(rows_at / 128)));
        store_relaxed_sys(&ready->meta, stamped(team.epoch, static_cast<u32>(meta_at / 128)));
        store_relaxed_sys(&ready->capacity, stamped(team.epoch, static_cast<u32>(capacity)));
    }
    __syncwarp();
}

/// The stripes that are sent last: what is left to do with them is what a call waits for.
template <class Rows>
struct LastStripes {
    static constexpr int kCount = (Rows::kStripes + 3) / 4;
    static constexpr int kFirst = Rows::kStripes - kCount;
};

/// What the warps of a sending role take in turn: a few neighbouring tokens of one stripe, for 32
/// peers from `base` on, with rows of `kUnitBytes` together. A unit costs some time of its own, and
/// what a warp has left when the others are done is time lost: so those of the last stripes are a
/// quarter as large.
template <class Rows>
class DirectUnits {
    static constexpr int kFirst = LastStripes<Rows>::kFirst;
    // Words to claim from, of one role and of all.
    static constexpr int kGroups = (Rows::kPeers + kLanes - 1) / kLanes;
    static constexpr int kWords = Rows::kRoles * kGroups;
    // With many peers a token still goes to few of them.
    static constexpr int kMostTargets = 4;

public:
    /// `peer`: the lane's one.
    __device__ __forceinline__ DirectUnits(const Team& team, int base, int peer, int tokens)
        : team_(team), tokens_(tokens),
          claims_(team, words(team, team.epoch) + team.role * kGroups + base / kLanes) {
        const int peers = __popc(__ballot_sync(kAllLanes, peer >= 0));
        const int targets = peers < kMostTargets ? peers : kMostTargets;
        const int row = Rows::kRowStride * (targets == 0 ? 1 : targets);
        const int longest = (tokens + Rows::kStripes - 1) / Rows::kStripes;
        first_ = cut(longest, (Rows::kUnitBytes + row - 1) / row);
        last_ = first_.per_stripe == 1 ? first_ : cut(longest, (Rows::kUnitBytes / 4 + row - 1) / row);
        // Those of the next call: nobody looks at them now. Of all roles, since a call may do without
        // some of them.
        if (team.index() == 0 && base == 0) {
            u32* next = words(team, team.epoch + 1);
            for (int i = team.lane; i < kWords; i += kLanes) store_relaxed_gpu(next + i, 0u);
        }
        __syncwarp();
    }

    /// Goes on to the next unit; false: there is none.
    __device__ __forceinline__ bool take() {
        const int unit = claims_.take();
        const int large = kFirst * first_.per_stripe;
        const bool is_first = unit < large;
        const Cut now = is_first ? first_ : last_;
        const int at = is_first ? unit : unit - large;
        stripe_ = (is_first ? 0 : kFirst) + at / now.per_stripe;
        if (stripe_ >= Rows::kStripes || team_.stopped) return false;
        claims_.ask();
        all_ = stripe_span(tokens_, Rows::kStripes, stripe_);
        const int begin = all_.begin + at % now.per_stripe * now.each;
        const int end = begin + now.each;
        own_ = Span{begin < all_.end ? begin : all_.end, end < all_.end ? end : all_.end};
        return true;
    }

    __device__ __forceinline__ int stripe() const { return stripe_; }

    /// All tokens of the stripe.
    __device__ __forceinline__ Span all() const { return all_; }

    /// Those of the unit: at most 32.
    __device__ __forceinline__ Span tokens() const { return own_; }

    /// How many units a stripe has.
    __device__ __forceinline__ int per_stripe(int stripe) const {
        return stripe < kFirst ? first_.per_stripe : last_.per_stripe;
    }

private:
    /// How stripes are cut.
    struct Cut {
        int each;  // tokens of a unit
        int per_stripe;
    };

    /// The words of one call.
    static __device__ __forceinline__ u32* words(const Team& team, u32 epoch) {
        return reinterpret_cast<u32*>(team.group.window + Rows::kClaims) + epoch % 2 * kWords;
    }

    /// Cuts stripes of `longest` tokens into units of `wanted`, or into 32 units if they are long.
    static __device__ __forceinline__ Cut cut(int longest, int wanted) {
        int each = wanted < 16 ? wanted : 16;
        if (each * 32 < longest) each = longest < kLanes * 32 ? (longest + 31) / 32 : kLanes;
        return Cut{each, longest <= each ? 1 : (longest + each - 1) / each};
    }

    const Team& team_;
    int tokens_;
    Claims claims_;
    Cut first_, last_;
    int stripe_ = 0;
    Span all_ = {}, own_ = {};
};

/// Rows of one unit, from the lane's side.
struct DirectBatch {
    int stripe;
    int first;  // position of the stripe's first row
    int rows;   // of the unit
};

/// One warp's sending side, a lane per peer (`peer` < 0: an idle lane).
template <class Rows, class Role>
class DirectProducer {
    // Lanes that may have a peer.
    static constexpr int kWidth = Rows::kPeers < kLanes ? Rows::kPeers : kLanes;

public:
    __device__ __forceinline__ DirectProducer(Team& team, Mover<Role>& mover,
                                              const DirectUnits<Rows>& units, int peer)
        : team_(team), mover_(mover), units_(units), peer_(peer),
          window_(peer < 0 ? nullptr : team.group.windows[peer]), opened_(mover.rows_begun()) {}

    /// Begins a unit: the rows of its stripe for a peer start at position `first(peer)`, and those of
    /// the unit follow on the tokens before it for which `where(token, peer)` holds. Each peer gets
    /// `total(peer)` rows from all ranks.
    template <class Where, class First, class Total>
    __device__ __forceinline__ void open(Where where, First first, Total total) {
        now_ = DirectBatch{units_.stripe(), peer_ < 0 ? 0 : first(peer_), 0};
        next_ = now_.first;
        const int from = units_.all().begin;
        const Span tokens = units_.tokens();
        // Two tokens a lane, so that their flags travel together; those of the unit come first.
#pragma unroll 1
        for (int end = tokens.end; end > from; end -= 2 * kLanes) {
            const int near = end - kLanes + team_.lane;
            const TwoTokens two = look_at(near, near - kLanes, from, where);
            if (end == tokens.end) to_ = two.near;
#pragma unroll 1
            for (int lane = 0; lane < kWidth; ++lane) {
                const bool is_before = near < tokens.begin && (two.near >> lane & 1) != 0;
                const int rows = __popc(__ballot_sync(kAllLanes, is_before)) +
                                 __popc(__ballot_sync(kAllLanes, (two.far >> lane & 1) != 0));
                if (lane == team_.lane) next_ += rows;
            }
        }
        // Only a warp with a unit waits: without it receivers do not end this call, and announce the
        // next one.
        if (!ready_) wait_ready(total);
        ready_ = true;
    }

    /// Walks the tokens of the unit: `row(token, position)` in the whole warp when any peer gets the
    /// token (position -1: not this lane's), then `each(token, peer, match, position)` in the lane of
    /// every peer.
    template <class Row, class Each>
    __device__ __forceinline__ void for_tokens(Row row, Each each) {
        const Span tokens = units_.tokens();
#pragma unroll 1
        for (int token = tokens.begin; token < tokens.end && !team_.stopped; ++token) {
            const u32 lanes = __shfl_sync(kAllLanes, to_, token - (tokens.end - kLanes));
            const bool match = (lanes >> team_.lane & 1) != 0;
            if (lanes != 0) row(token, match ? next_ : -1);
            if (peer_ >= 0) each(token, peer_, match, next_);
            next_ += match ? 1 : 0;
            now_.rows += match ? 1 : 0;
        }
    }

    /// Where the lane's row goes; null when `position` is -1.
    __device__ __forceinline__ char* row(int position) const {
        return position < 0 ? nullptr : rows_ + static_cast<i64>(position) * Rows::kRowStride;
    }

    /// Where its meta record goes.
    __device__ __forceinline__ char* meta(int position) const {
        return position < 0 ? nullptr : meta_ + static_cast<i64>(position) * Rows::kMetaBytes;
    }

    /// Ends the unit. Its rows are counted once those of the next one are under way, and need not be
    /// waited for.
    __device__ __forceinline__ void close() {
        const u32 begun = mover_.rows_begun();
        const bool has_rows = begun != opened_;
        // One that waits was the last with rows: `opened_` still says up to which row of the mover it goes.
        if (has_rows && waiting_) mover_.complete(begun - opened_);
        const DirectBatch stored = has_rows ? before_ : now_;
        if (!has_rows || waiting_) count(stored);
        if (has_rows) before_ = now_;
        waiting_ = waiting_ || has_rows;
        opened_ = begun;
    }

    /// Ends the last unit: all rows are stored.
    __device__ __forceinline__ void finish() {
        mover_.flush();
        if (waiting_) count(before_);
        waiting_ = false;
        look();
    }

private:
    /// The lanes to whose peers two tokens go, a bit each.
    struct TwoTokens {
        u32 near, far;
    };

    /// Looks where two tokens go; those before `from` go nowhere.
    template <class Where>
    __device__ __forceinline__ TwoTokens look_at(int near, int far, int from, Where where) const {
        constexpr int kBatch = 4;
        TwoTokens to{0, 0};
#pragma unroll 1
        for (int base = 0; base < kWidth; base += kBatch) {
            u32 flags[kBatch][2];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int peer = __shfl_sync(kAllLanes, peer_, base + i);
                flags[i][0] = peer >= 0 && near >= from ? static_cast<u32>(where(near, peer)) : 0;
                flags[i][1] = peer >= 0 && far >= from ? static_cast<u32>(where(far, peer)) : 0;
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                to.near |= flags[i][0] << (base + i);
                to.far |= flags[i][1] << (base + i);
            }
        }
        return to;
    }

    /// Adds a unit to its stripe, for `look` to see what came of it.
    __device__ __forceinline__ void count(const DirectBatch& unit) {
        look();
        counted_ = unit;
        counting_ = peer_ >= 0 && !team_.stopped;
        // M1: this lane has waited for its own bulk stores; it releases them to the lane that tells.
        if (counting_ && units_.per_stripe(unit.stripe) > 1) {
            before_it_ = fetch_add_release_gpu(sum_of(unit), one(unit));
        }
        __syncwarp();
    }

    /// If the unit counted last completes its stripe, its lane tells the receiver. Not at once: the
    /// answer to the count takes its time.
    __device__ __forceinline__ void look() {
        if (counting_) {
            const u64 units = static_cast<u64>(units_.per_stripe(counted_.stripe));
            const u64 stored = one(counted_) + (units > 1 ? before_it_ : 0);
            if (stored >> 32 == units) {
                if (units > 1) {
                    // M1: acquires the rows of the other lanes that counted, to release them all.
                    load_acquire_gpu(sum_of(counted_));
                    // No lane is left that counts; those of the next launch on this stream do.
                    store_relaxed_sys(sum_of(counted_), u64{0});
                }
                tell(counted_, static_cast<u32>(stored));
            }
        }
        counting_ = false;
        __syncwarp();
    }

    /// A unit and its rows, as they are counted.
    static __device__ __forceinline__ u64 one(const DirectBatch& unit) {
        return u64{1} << 32 | static_cast<u32>(unit.rows);
    }

    /// Where the units of a stripe are counted for the lane's peer.
    __device__ __forceinline__ u64* sum_of(const DirectBatch& unit) const {
        u64* sums = reinterpret_cast<u64*>(team_.group.window + Rows::kStored);
        return sums + peer_ * Rows::kStripes + unit.stripe;
    }

    /// Tells the receiver of all rows of a stripe.
    __device__ __forceinline__ void tell(const DirectBatch& unit, u32 rows) {
        DirectClosed* closed = reinterpret_cast<DirectClosed*>(window_ + Rows::kClosed) +
                               team_.group.rank * Rows::kStripes + unit.stripe;
        // M1: comes after the bulk stores of all lanes that counted; for_messages acquires.
        store_release_sys(&closed->first, stamped(team_.epoch, static_cast<u32>(unit.first)));
        // Behind it, so that the release waits for no acknowledgement of this one.
        store_relaxed_sys(&closed->rows, stamped(team_.epoch, rows));
    }

    /// Waits until each peer is ready to take its `total(peer)` rows.
    template <class Total>
    __device__ __forceinline__ void wait_ready(Total total) {
        const DirectReady* ready = nullptr;
        if (peer_ >= 0) {
            ready = reinterpret_cast<const DirectReady*>(team_.group.window + Rows::kReady) + peer_;
        }
        const int rows = peer_ < 0 ? 0 : total(peer_);
        const Site site{Rows::kChannel, Waiting::kReady, -1, peer_, team_.epoch};
        u64 room = 0, meta = 0;
        const bool done = wait(team_, site, [&](u32& seen) {
            if (ready == nullptr) return true;
            meta = load_relaxed_sys(&ready->meta);
            room = load_relaxed_sys(&ready->capacity);
            seen = epoch_of(load_relaxed_sys(&ready->rows));
            return seen == team_.epoch && epoch_of(meta) == seen && epoch_of(room) == seen;
        });
        const u32 capacity = value_of(room);
        if (done && ready != nullptr) {
            // M4: pairs with the release in direct_ready.
            rows_ = window_ + static_cast<u64>(value_of(load_acquire_sys(&ready->rows))) * 128;
            meta_ = window_ + static_cast<u64>(value_of(meta)) * 128;
            // M4: this lane's bulk stores come after the receiver's own use of the memory.
            mover_.fence_global();
        }
        __syncwarp();
        if (done) check_capacity(rows, capacity);
    }

    /// No row moves when any receiver lacks the room.
    __device__ __forceinline__ void check_capacity(int rows, u32 capacity) {
        const bool small = peer_ >= 0 && rows > static_cast<int>(capacity);
        const u32 lanes = __ballot_sync(kAllLanes, small);
        if (lanes == 0) return;
        const Site site{Rows::kChannel, Waiting::kCapacity, -1, peer_, static_cast<u32>(rows)};
        const bool blame = team_.lane == __ffs(static_cast<int>(lanes)) - 1;
        give_up(team_.group, team_.epoch, team_.role, site, capacity, blame, true);
        team_.stopped = true;
    }

    Team& team_;
    Mover<Role>& mover_;
    const DirectUnits<Rows>& units_;
    int peer_;
    char* window_;  // the peer's
    char* rows_ = nullptr;
    char* meta_ = nullptr;
    bool ready_ = false;       // whether all peers are ready
    DirectBatch now_ = {};     // the unit
    int next_ = 0;             // position of its next row
    u32 to_ = 0;               // where the last tokens up to its end go, a lane each
    DirectBatch before_ = {};  // one that is stored, but for what is on its way,
    bool waiting_ = false;     // if there is one
    DirectBatch counted_ = {}; // one that was counted,
    bool counting_ = false;    // if its answer has not been looked at,
    u64 before_it_ = 0;        // and what was counted before
    u32 opened_;               // rows of the mover when the unit was opened
};

/// The receiving side: every warp of the role takes (sender, stripe) pairs in turn, a lane each, and
/// calls `body(messages)` with the rows of those that have arrived, until none is missing. The rows
/// themselves are in place by then. The last stripes are read in parts, by several warps each. `meta`:
/// this rank's meta records.
template <class Rows, class Body>
__device__ __forceinline__ void for_messages(Team& team, const char* meta, Body body) {
    constexpr int kLast = LastStripes<Rows>::kCount, kFirst = LastStripes<Rows>::kFirst;
    constexpr int kParts = 4, kWhole = Rows::kPeers * kFirst;
    constexpr int kShares = kWhole + Rows::kPeers * kLast * kParts;
    const DirectClosed* words =
        reinterpret_cast<const DirectClosed*>(team.group.window + Rows::kClosed);
    for (int base = team.index(); base < kShares; base += kLanes * team.count()) {
        const int share = base + team.lane * team.count();
        bool open = share < kShares;
        const bool whole = share < kWhole;
        const int late = share - kWhole;
        const int parts = whole ? 1 : kParts;
        const int part = whole ? 0 : late % kParts;
        // By peers, since there may be no other stripes than the last ones.
        const int source = whole ? share % Rows::kPeers : late / kParts % Rows::kPeers;
        const int stripe =
            whole ? share / Rows::kPeers : kFirst + late / kParts / Rows::kPeers;
        const DirectClosed* closed = words + source * Rows::kStripes + stripe;
        int looks = 0;
        while (__ballot_sync(kAllLanes, open) != 0 && !team.stopped) {
            const Site site{Rows::kChannel, Waiting::kClosed, stripe, open ? source : -1,
                            team.epoch};
            bool arrived = false;
            u64 first = 0, all = 0;
            const bool any = wait_any(team, site, [&](u32& seen) {
                // Few rows come soon, and all at once. Many come stripe by stripe: it is enough to look
                // for the first ones missing, and looks take from what an SM can send.
                const u32 before = __ballot_sync(kAllLanes, open) & ((1u << team.lane) - 1);
                const int most = looks < kEarlyLooks ? kLanes : whole ? 2 : 4;
                ++looks;
                if (!open || __popc(before) >= most) return false;
                all = load_relaxed_sys(&closed->rows);
                seen = epoch_of(all);
                if (seen != team.epoch) return false;
                // M2: pairs with the release in DirectProducer::tell; plain loads may follow.
                first = load_acquire_sys(&closed->first);
                arrived = epoch_of(first) == team.epoch;
                return arrived;
            });
            if (!any) return;
            int row = 0, rows = 0;
            if (arrived) {
                const Span own = stripe_span(static_cast<int>(value_of(all)), parts, part);
                row = static_cast<int>(value_of(first)) + own.begin;
                rows = own.end - own.begin;
                open = false;
            }
            __syncwarp();
            for_runs<Rows::kMetaBytes>(row, rows, meta, body);
        }
    }
}

}  // namespace ep
