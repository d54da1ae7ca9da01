// The ends of all rings of one stripe, as one of the warps sees them that share the stripe. Rows wait in slots of the
// receiver's window until it takes them. A lane for each ring keeps where the warp stands, in groups of 32.
//
// Between ranks that reach each other's memory there is a ring for each (stripe, sender, receiver), with
//   in the receiver's window, by (stripe, sender):
//     kSlots   kDepth slots of kSlotBytes, the row first, its meta record at kMeta
//     kTail    u32, rows that have arrived; senders add to it
//     kHeader  [epoch % 2] the numbers of the stripe's header, each with its epoch (M7)
//     kTaken   [epoch % 2] u32, where the receiver stood at the end of a call
//   in the sender's window, by (stripe, receiver):
//     kHead    u32, rows whose slots are free again; receivers add to it
//     kRetired u32, the last epoch whose header the receiver is done with
//     kSent    [epoch % 2] u32, where the sender stood at the end of a call
// Tails and heads are never cleared: they count for the life of the ring and wrap at 2^32 (M7). A position is counted
// from the start of the stripe in this call.
//
//   RingsOut  open -> [announce] -> [expect, claim] -> position, reserve -> slot -> publish -> .. -> close
//   RingsIn   open -> [header]   -> take or next -> arrived -> slot -> release -> ..             -> close
//
// Where several warps push, each says for every turn of a loop (`Shares`) how many messages go to each ring, and takes
// their positions behind those of the turns before.
//
// Where a mover carries the rows, `publish_after` and `release_after` stand in place of `publish` and
// `release`: the peer is told once the mover has stored, or loaded, so many rows. `tell` marks what is
// due by now, and `settle` all of it: before the warp waits for a peer, and before `close`.
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
    using End::team_, End::stripe_, End::start_, End::moved_;

public:
    __device__ __forceinline__ RingsOut(Team& team, Sequence* sequences) : End(team, sequences) {}
    __device__ __forceinline__ RingsOut(Team& team, const Net* net, Sequence* sequences)
        : End(team, net, sequences) {}

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

    /// Says how many messages the turn pushes to `ring`; takes effect in the lane that keeps the ring.
    __device__ __forceinline__ void expect(int ring, int count) {
#pragma unroll
        for (int g = 0; g < End::kGroups; ++g) {
            if (g == ring / kLanes && End::keeps(ring)) expected_[g] += static_cast<u32>(count);
        }
    }

    /// Takes the positions of all messages that turn `turn` of the stripe pushes, when the turns before have theirs.
    __device__ __forceinline__ void claim(u32 turn) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < End::kGroups; ++g) {
            claim_of(g, End::used(g), turn, expected_[g]);
            expected_[g] = 0;
        }
        __syncwarp();
    }

    /// Takes the positions of `count` messages in `ring`, when the turns before have theirs. A turn here is a message
    /// of another ring, which leads to these messages, and `turn` is its index in that ring.
    __device__ __forceinline__ void claim(int ring, u32 turn, int count) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < End::kGroups; ++g) {
            claim_of(g, g == ring / kLanes && End::keeps(ring), turn, static_cast<u32>(count));
        }
        __syncwarp();
    }

    /// The position that the next message in `ring` gets.
    __device__ __forceinline__ int position(int ring) const {
        return static_cast<int>(End::of(moved_, ring));
    }

    /// Whether the next slot is free, so that `reserve` waits for nobody.
    __device__ __forceinline__ bool has_room(int ring) {
        return !End::is_full(ring) && End::template has_come<HeadWord>(ring, wanted(ring));
    }

    /// Waits until the next slot is free. False: the team is stopped.
    __device__ __forceinline__ bool reserve(int ring) {
        // The receiver frees no slot of a message that it has not seen.
        if (!End::template has_come<HeadWord>(ring, wanted(ring))) send();
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
        End::template count<TailWord>(ring, !Rings::kSends);
    }

    /// Sends all messages that were published, before the warp waits for anything: a peer may wait for them.
    __device__ __forceinline__ void send() {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < End::kGroups; ++g) End::template tell_of<TailWord>(g, true, true);
        __syncwarp();
    }

    /// Publishes the next message once `rows` rows of the mover are stored, by the lane of the ring.
    __device__ __forceinline__ void publish_after(int ring, u32 rows) { End::owe(ring, rows); }

    /// Tells receivers of messages whose rows are stored by now, in chunks.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        End::template tell<TailWord>(mover.template rows_stored<Pieces<Role>::kRecent>());
    }

    /// Tells receivers of all messages; the mover has stored all rows.
    template <class Role>
    __device__ __forceinline__ void settle(Mover<Role>& mover) {
        End::template settle<TailWord>(mover.rows_begun());
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        End::template finish<TailWord>(Ring::kSent);
    }

private:
    /// Takes `count` positions in each lane's ring for a turn, if this lane `claims`.
    __device__ __forceinline__ void claim_of(int g, bool claims, u32 turn, u32 count) {
        u32 position = 0;
        End::share(g, claims, turn, [&] { return End::sequence(g).try_claim(turn, count, position); });
        if (claims) moved_[g] = position - End::offset(g);
    }

    /// Where the head stands when the next slot is free.
    __device__ __forceinline__ u32 wanted(int ring) const {
        return End::of(start_, ring) + End::of(moved_, ring) + 1 - Ring::kDepth;
    }

    u32 expected_[End::kGroups] = {};  // messages of the turn that have no positions yet
};

/// The receiving ends.
template <class Ring, class Rings = WindowRings<Ring>>
class RingsIn : RingsEnd<Ring, Rings> {
    using End = RingsEnd<Ring, Rings>;
    using End::team_, End::stripe_, End::start_, End::moved_;

public:
    using End::kGroups, End::kKept;

    __device__ __forceinline__ RingsIn(Team& team, Sequence* sequences) : End(team, sequences) {}
    __device__ __forceinline__ RingsIn(Team& team, const Net* net, Sequence* sequences)
        : End(team, net, sequences) {}

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

    /// Whether that number has been read, so that `header` waits for nobody.
    __device__ __forceinline__ bool has_header(int ring, int word) {
        return (End::of(read_, ring) >> word & 1) != 0;
    }

    /// Goes on with the message at `position` of `ring`.
    __device__ __forceinline__ void take(int ring, int position) {
        End::go_to(ring, static_cast<u32>(position));
    }

    /// The position of the message of `ring` that this warp has taken.
    __device__ __forceinline__ int taken(int ring) const {
        return static_cast<int>(End::of(moved_, ring));
    }

    /// Whether the message of `ring` is there, so that `arrived` waits for nobody.
    __device__ __forceinline__ bool has_message(int ring) {
        return !End::is_full(ring) && End::template has_come<TailWord>(ring, wanted(ring));
    }

    /// Waits until the next message of `ring` has arrived. False: the team is stopped.
    __device__ __forceinline__ bool arrived(int ring) {
        // M2: pairs with the sender's release; the other lanes read after the barrier.
        return End::template await<TailWord>(ring, wanted(ring), Waiting::kArrival);
    }

    /// Takes the next message of any ring, of those that have one in turn; its ring. Negative: all messages have been
    /// taken, by the count in word `count` of their headers. Before it waits, what is `pending` is settled: a mover, and
    /// the ends whose rows it carries.
    template <class... Pending>
    __device__ __forceinline__ int next(int count, Pending&... pending) {
        for (;;) {
            bool open = false, missed = false;
            for (int turn = 1; turn <= kKept; ++turn) {
                const int ring = (last_ + turn) % kKept;
                if (!serves(ring) || team_.stopped) continue;
                if constexpr (kAny<Pending...>) {
                    if (End::is_full(ring) || !has_header(ring, count)) ep::settle(pending...);
                }
                const int number = header(ring, count);
                const int position = static_cast<int>(upcoming(ring));
                if (position >= number) continue;
                open = true;
                take(ring, position);
                if (!End::template has_come<TailWord>(ring, wanted(ring))) continue;
                // Another warp may have been faster.
                missed = true;
                if (!try_take(ring)) continue;
                last_ = ring;
                return ring;
            }
            if (!open || team_.stopped) return -1;
            if (missed) continue;
            if constexpr (kAny<Pending...>) ep::settle(pending...);
            if (!wait_for_any(count)) return -1;
        }
    }

    /// The slot of the next message: the row first, its other fields at `kMeta`.
    __device__ __forceinline__ const char* slot(int ring) const {
        return Rings::slot_here(ring, End::next_at(ring));
    }

    /// Gives back the slot of a message that all lanes have read.
    __device__ __forceinline__ void release(int ring) {
        End::template count<HeadWord>(ring, false);
    }

    /// Gives it back once `rows` rows of the mover are loaded.
    __device__ __forceinline__ void release_after(int ring, u32 rows) { End::owe(ring, rows); }

    /// Tells senders of slots whose rows are loaded by now, in chunks.
    template <class Role>
    __device__ __forceinline__ void tell(Mover<Role>& mover) {
        End::template tell<HeadWord>(mover.rows_loaded());
    }

    /// Tells senders of all slots; the mover has loaded all rows.
    template <class Role>
    __device__ __forceinline__ void settle(Mover<Role>& mover) {
        End::template settle<HeadWord>(mover.rows_begun());
    }

    /// Ends the stripe.
    __device__ __forceinline__ void close() {
        End::template finish<HeadWord>(Ring::kTaken);
    }

    // ---- Messages found by position, a lane for each ring: what `Parts` asks for ----

    /// Messages are waited for one by one.
    static constexpr bool kStays = false, kInWords = false;
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

    /// Gives back the slots at these positions; a warp that takes all tokens in order also gives back those that no token
    /// has asked for.
    __device__ __forceinline__ void done(const i32 (&positions)[kGroups]) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const u32 through = static_cast<u32>(rows_through(positions[g]));
            if (team_.parts == 1) {
                for (; End::used(g) && static_cast<i32>(through - moved_[g]) > 0; ++moved_[g]) {
                    End::sequence(g).try_complete(End::offset(g) + moved_[g]);
                }
            }
            // M4: the loads of all lanes come before it, by the barrier; the sender acquires.
            const bool has = positions[g] >= 0 && team_.parts > 1;
            End::template complete<HeadWord>(g, has, through - 1, false);
            if (team_.parts == 1) End::template tell_of<HeadWord>(g, true, false);
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

    /// Where the tail stands when the message of `ring` has arrived.
    __device__ __forceinline__ u32 wanted(int ring) const {
        return End::of(start_, ring) + End::of(moved_, ring) + 1;
    }

    __device__ __forceinline__ bool serves(int ring) const {
        const Peers& all = End::kept_;
        return ring >= all.begin && ring < all.end && ring != all.skip;
    }

    /// The position of the message of `ring` that is taken next, by any warp.
    __device__ __forceinline__ u32 upcoming(int ring) const {
        u32 position = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == ring / kLanes && End::keeps(ring)) {
                position = End::sequence(g).next_position() - End::offset(g);
            }
        }
        return __shfl_sync(kAllLanes, position, ring % kLanes);
    }

    /// Takes the message of `ring` at the position that `take` named, unless another warp has.
    __device__ __forceinline__ bool try_take(int ring) {
        u32 taken = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == ring / kLanes && End::keeps(ring)) {
                taken = End::sequence(g).try_take(End::offset(g) + moved_[g]) ? 1 : 0;
            }
        }
        return __shfl_sync(kAllLanes, taken, ring % kLanes) != 0;
    }

    /// Waits until any ring that has messages left has brought one, or other warps have taken some.
    __device__ __forceinline__ bool wait_for_any(int count) {
        u32 at[kGroups] = {};
        bool owing[kGroups] = {};
        for (int ring = 0; ring < kKept; ++ring) {
            if (!serves(ring)) continue;
            const int number = header(ring, count);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (g != ring / kLanes || !End::keeps(ring)) continue;
                at[g] = End::sequence(g).next_position() - End::offset(g);
                owing[g] = static_cast<int>(at[g]) < number;
            }
        }
        const Site site{Ring::kChannel, Waiting::kArrival, stripe_, -1, 0};
        return wait_any(team_, site, [&](u32& seen) {
            bool come = true, any = false;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                if (!owing[g]) continue;
                any = true;
                seen = load_relaxed_sys(tail(End::ring(g)));
                come = reached(seen, start_[g] + at[g] + 1) ||
                       End::sequence(g).next_position() - End::offset(g) != at[g];
                if (come) break;
            }
            // Where no lane has a message to wait for, all of them are done.
            return __ballot_sync(kAllLanes, any) == 0 || (any && come);
        });
    }

    static constexpr int kWords = Ring::kHeaderWords > 0 ? Ring::kHeaderWords : 1;

    int last_ = -1;  // the ring whose message was taken last, by `next`
    u32 header_[kWords][kGroups] = {};
    u32 read_[kGroups] = {};  // the words of the header that have been read
};

}  // namespace ep
