// The ends of all rings of one stripe, each carried by one warp that does its work in order: nothing
// is shared, so there is nothing to complete out of order. A lane for each ring keeps where it stands,
// in groups of 32. Between ranks that reach each other's memory the words and the slots are those of
// ring.cuh, so that either kind of end may be at the other side.
//
//   RingsOut  open -> [announce] -> position, reserve -> slot -> publish -> .. -> close
//   RingsIn   open -> [header]   -> arrived -> slot -> release -> ..           -> close
//
// Where a mover carries the rows, `publish_after` and `release_after` stand in place of `publish` and
// `release`: the peer is told once the mover has stored, or loaded, so many rows. `tell` says what is
// due by now, and `settle` all of it: before the warp waits for anyone, and before `close`.
//
// `Ring` is the channel's Cfg struct, and `Rings` says where the other ends are: a ring is named by its
// peer, among those of the channel, or by its part where a channel has several to each peer.
#pragma once

#include <ep/ends.cuh>
#include <ep/mover.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The sending ends.
template <class Ring, class Rings = WindowRings<Ring>>
class RingsOut : RingsEnd<Ring, Rings> {
    using End = RingsEnd<Ring, Rings>;
    using End::team_, End::start_, End::moved_;

public:
    __device__ __forceinline__ explicit RingsOut(Team& team) : End(team) {}
    __device__ __forceinline__ RingsOut(Team& team, const Net* net) : End(team, net) {}

    /// Begins a stripe for some rings: `of` one peer or part, where the role serves only that.
    __device__ __forceinline__ void open(int stripe, const Peers& kept, int of = 0) {
        // What was sent has been freed but for the depth of the ring.
        End::begin(stripe, kept, of, Ring::kSent, Ring::kDepth);
    }

    /// Tells the receiver one number of the stripe's header.
    __device__ __forceinline__ void announce(int ring, int word, int value) {
        send();
        Rings::announce(ring, word, value);
    }

    /// The position that the next message in `ring` gets.
    __device__ __forceinline__ int position(int ring) const {
        return static_cast<int>(End::of(moved_, ring));
    }

    /// Whether the next slot is free, so that `reserve` waits for nobody.
    __device__ __forceinline__ bool has_room(int ring) {
        return End::template has_come<HeadWord>(ring, wanted(ring));
    }

    /// Waits until the next slot is free. False: the team is stopped.
    __device__ __forceinline__ bool reserve(int ring) {
        // The receiver frees no slot of a message that it has not seen.
        if constexpr (Rings::kSends) {
            if (!has_room(ring)) send();
        }
        // M4: the receiver's loads, which it released, come before the stores into the slot.
        return End::template await<HeadWord>(ring, wanted(ring), Waiting::kCredit);
    }

    /// The next slot: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ char* slot(int ring) const {
        return Rings::slot_there(ring, End::next_at(ring));
    }

    /// Publishes the next message, which all lanes have written. Over a network, a whole chunk leaves at once, and
    /// the caller calls `send` before it waits for something else.
    __device__ __forceinline__ void publish(int ring) {
        __syncwarp();
        if constexpr (Rings::kSends) {
            End::count(ring);
            bool is_full = false;
#pragma unroll
            for (int g = 0; g < End::kGroups; ++g) {
                if (g == ring / kLanes && End::keeps(ring)) is_full = ++unsent_[g] == Ring::kChunk;
            }
            if (__ballot_sync(kAllLanes, is_full) != 0) send_from(Ring::kChunk);
        } else {
            // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
            Rings::template add<TailWord>(ring, team_.leader() ? 1 : 0);
            End::count(ring);
        }
        __syncwarp();
    }

    /// Sends all messages that were published, before the warp waits for anything: a peer may wait for them.
    __device__ __forceinline__ void send() {
        if constexpr (Rings::kSends) send_from(1);
    }

    /// Publishes the next message once `rows` rows of the mover are stored, by the lane of the ring.
    __device__ __forceinline__ void publish_after(int ring, u32 rows) { End::owe(ring, rows); }

    /// Tells receivers of messages whose rows are stored by now.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        End::template tell<TailWord>(mover.template rows_stored<Pieces<Role>::kRecent>());
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        send();
        End::keep(Ring::kSent);
        __syncwarp();
    }

private:
    /// Sends the messages of each ring that has at least so many.
    __device__ __forceinline__ void send_from(u32 least) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < End::kGroups; ++g) {
            const u32 count = unsent_[g] >= least ? unsent_[g] : 0;
            if (__ballot_sync(kAllLanes, count != 0) == 0) continue;
            // M1: comes after the stores of all lanes, by the barrier; the receiver acquires.
            Rings::send(End::ring(g), (start_[g] + moved_[g] - unsent_[g]) % Ring::kDepth, count);
            if (count != 0) unsent_[g] = 0;
        }
    }

    /// Where the head stands when the next slot is free.
    __device__ __forceinline__ u32 wanted(int ring) const {
        return End::of(start_, ring) + End::of(moved_, ring) + 1 - Ring::kDepth;
    }

    u32 unsent_[End::kGroups] = {};  // messages that were published and not sent
};

/// The receiving ends.
template <class Ring, class Rings = WindowRings<Ring>>
class RingsIn : RingsEnd<Ring, Rings> {
    using End = RingsEnd<Ring, Rings>;
    using End::team_, End::stripe_, End::start_, End::moved_;

public:
    using End::kGroups, End::kKept;

    __device__ __forceinline__ explicit RingsIn(Team& team) : End(team) {}
    __device__ __forceinline__ RingsIn(Team& team, const Net* net) : End(team, net) {}

    /// Begins a stripe for some rings: `of` one peer or part, where the role serves only that.
    __device__ __forceinline__ void open(int stripe, const Peers& kept, int of = 0) {
        // What was taken had arrived.
        End::begin(stripe, kept, of, Ring::kTaken, 0);
        last_ = -1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) read_[g] = 0;
    }

    /// One number of the header that the sender announces. Each is waited for and read once in a stripe.
    __device__ __forceinline__ int header(int ring, int word) {
        if ((End::of(read_, ring) >> word & 1) == 0) {
            const u32 found = __shfl_sync(kAllLanes, Rings::announced(ring, word), 0);
            if (team_.stopped) return 0;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (g != ring / kLanes || !End::keeps(ring)) continue;
                read_[g] |= 1u << word;
#pragma unroll
                for (int i = 0; i < kWords; ++i) {
                    if (i == word) header_[i][g] = found;
                }
            }
        }
        u32 value = 0;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            if (i == word) value = End::of(header_[i], ring);
        }
        return static_cast<int>(value);
    }

    /// How many messages of `ring` have been taken.
    __device__ __forceinline__ int taken(int ring) const {
        return static_cast<int>(End::of(moved_, ring));
    }

    /// Whether the next message of `ring` is there, so that `arrived` waits for nobody.
    __device__ __forceinline__ bool has_message(int ring) {
        return End::template has_come<TailWord>(ring, wanted(ring));
    }

    /// Waits until the next message of `ring` has arrived. False: the team is stopped.
    __device__ __forceinline__ bool arrived(int ring) {
        // M2: pairs with the sender's release; the other lanes read after the barrier.
        return End::template await<TailWord>(ring, wanted(ring), Waiting::kArrival);
    }

    /// The ring whose message is taken next, of those that have one: in turn. Negative: all messages have
    /// been taken, by the count in word `count` of their headers.
    __device__ __forceinline__ int next(int count) {
        for (;;) {
            bool open = false;
            for (int turn = 1; turn <= kKept; ++turn) {
                const int ring = (last_ + turn) % kKept;
                if (!serves(ring) || team_.stopped) continue;
                if (taken(ring) >= header(ring, count)) continue;
                open = true;
                if (!has_message(ring)) continue;
                last_ = ring;
                return ring;
            }
            if (!open || team_.stopped || !wait_for_any(count)) return -1;
        }
    }

    /// The slot of the next message: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ const char* slot(int ring) const {
        return Rings::slot_here(ring, End::next_at(ring));
    }

    /// Gives back the slot of a message that all lanes have read.
    __device__ __forceinline__ void release(int ring) {
        u32 before = 0;
        if constexpr (Rings::kInChunks) before = End::of(moved_, ring);
        __syncwarp();
        u32 free = 0;
        if (team_.leader() && !team_.stopped) free = Rings::given_back(ring, before, before + 1);
        // M4: the loads of all lanes come before it, by the barrier; the sender acquires.
        Rings::template add<HeadWord>(ring, free);
        End::count(ring);
        __syncwarp();
    }

    /// Gives it back once `rows` rows of the mover are loaded.
    __device__ __forceinline__ void release_after(int ring, u32 rows) { End::owe(ring, rows); }

    /// Tells senders of slots whose rows are loaded by now.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        End::template tell<HeadWord>(mover.rows_loaded());
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        End::keep(Ring::kTaken);
        __syncwarp();
        if constexpr (Rings::kInChunks) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const bool owes = End::used(g) && !team_.stopped;
                const u32 free = owes ? Rings::left_over(End::ring(g), moved_[g]) : 0;
                // M4: this lane has seen the loads of all lanes complete, by the barrier.
                Rings::template add<HeadWord>(End::ring(g), free);
            }
            __syncwarp();
        }
        if constexpr (Ring::kHeaderWords > 0) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) Rings::retire(End::ring(g), End::used(g));
            __syncwarp();
        }
    }

    // ---- Messages found by position, a lane for each ring: what `Parts` asks for ----

    /// Messages are waited for one by one.
    static constexpr bool kStays = false;
    __device__ __forceinline__ void wait_ready() const {}

    /// Waits until the messages at these positions (negative: none) have arrived.
    __device__ __forceinline__ bool arrived(const i32 (&positions)[kGroups], bool) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            // M2: pairs with the sender's release; all lanes read after the barrier.
            End::template await_each<TailWord>(g, is_asked(g, positions[g]), behind(g, positions[g]),
                                               Waiting::kArrival);
        }
        return !team_.stopped;
    }

    /// Whether they have arrived, so that `arrived` waits for nobody.
    __device__ __forceinline__ bool have_arrived(const i32 (&positions)[kGroups]) {
        bool all = true;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool asks = is_asked(g, positions[g]);
            all = End::template has_come_each<TailWord>(g, asks, behind(g, positions[g])) && all;
        }
        return all;
    }

    /// The row at a position of the lane's ring.
    __device__ __forceinline__ const char* row(int g, i32 position) const {
        const u32 at = (start_[g] + static_cast<u32>(position)) % Ring::kDepth;
        return Rings::slot_here(End::ring(g), at);
    }

    /// Its other fields.
    __device__ __forceinline__ const char* meta(int g, i32 position) const {
        return row(g, position) + Ring::kMeta;
    }

    /// Gives back the slots up to these positions.
    __device__ __forceinline__ void done(const i32 (&positions)[kGroups]) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const u32 through = static_cast<u32>(rows_through(positions[g]));
            const bool is_fresh = End::used(g) && !team_.stopped &&
                                  static_cast<i32>(through - moved_[g]) > 0;
            u32 free = 0;
            if (is_fresh) {
                free = Rings::given_back(End::ring(g), moved_[g], through);
                moved_[g] = through;
            }
            // M4: the loads of all lanes come before it, by the barrier; the sender acquires.
            Rings::template add<HeadWord>(End::ring(g), free);
        }
        __syncwarp();
    }

private:
    __device__ __forceinline__ const u32* tail(int ring) const {
        return Rings::template counter<TailWord>(ring);
    }

    /// Whether a message at this position is of this lane's ring, and where the tail stands when it has arrived.
    __device__ __forceinline__ bool is_asked(int g, i32 position) const {
        return End::used(g) && position >= 0;
    }
    __device__ __forceinline__ u32 behind(int g, i32 position) const {
        return start_[g] + static_cast<u32>(position) + 1;
    }

    /// Where the tail stands when the next message has arrived.
    __device__ __forceinline__ u32 wanted(int ring) const {
        return End::of(start_, ring) + End::of(moved_, ring) + 1;
    }

    __device__ __forceinline__ bool serves(int ring) const {
        const Peers& all = End::kept_;
        return ring >= all.begin && ring < all.end && ring != all.skip;
    }

    /// Waits until any ring that owes a message has brought it.
    __device__ __forceinline__ bool wait_for_any(int count) {
        u32 owing[kGroups] = {};
        for (int ring = 0; ring < kKept; ++ring) {
            if (!serves(ring)) continue;
            const bool owes = taken(ring) < header(ring, count);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (g == ring / kLanes && End::keeps(ring)) owing[g] = owes ? 1 : 0;
            }
        }
        const Site site{Ring::kChannel, Waiting::kArrival, stripe_, -1, 0};
        return wait_any(team_, site, [&](u32& seen) {
            bool come = false;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (owing[g] == 0) continue;
                seen = load_relaxed_sys(tail(End::ring(g)));
                come = come || reached(seen, start_[g] + moved_[g] + 1);
            }
            return come;
        });
    }

    static constexpr int kWords = Ring::kHeaderWords > 0 ? Ring::kHeaderWords : 1;

    int last_ = -1;  // the ring whose message was taken last, by `next`
    u32 header_[kWords][kGroups] = {};
    u32 read_[kGroups] = {};  // the words of the header that have been read
};

}  // namespace ep
