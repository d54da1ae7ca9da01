// Ring channels: rows wait in slots of the receiver's window until it takes them.
//
// `Ring` is the channel's Cfg struct. There is a ring for each (stripe, sender, receiver), with
//   in the receiver's window, by (stripe, sender):
//     kSlots   kDepth slots of kSlotBytes, the row first, its meta record at kMeta
//     kTail    u32, rows that have arrived; senders add to it
//     kHeader  [epoch % 2] {first, count} of the stripe, each with its epoch (M7)
//     kTaken   [epoch % 2] u32, where the receiver stood at the end of a call
//   in the sender's window, by (stripe, receiver):
//     kHead    u32, rows whose slots are free again; receivers add to it
//     kRetired u32, the last epoch whose header the receiver is done with
//     kSent    [epoch % 2] u32, where the sender stood at the end of a call
// Tails and heads are never cleared: they count for the life of the ring and wrap at 2^32 (M7). A
// position is counted from the start of the stripe in this call.
//
// Several warps fill or empty one ring: warp `part` moves the positions p with p % parts == part. A
// `Sequence` says up to where all are complete; whoever closes a gap tells the peer, at chunk
// boundaries. A warp that must wait tells everything first, so that nobody waits for what it holds.
#pragma once

#include <ep/messages.cuh>
#include <ep/mover.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Tells the peer, by adding to its `counter`, about the positions of a sequence before `upto`; one
/// lane's own work.
__device__ __forceinline__ void tell_peer(Sequence& sequence, u32* counter, u32 upto) {
    const u32 fresh = sequence.claim(upto);
    // M1 for a tail, M4 for a head: each warp has completed its own bulk copies before it marked its
    // positions, and the caller's `base` has acquired them all. The peer acquires the counter in
    // RingConsumer::wait_arrival, RingGather::arrived or RingProducer::wait_credit.
    if (fresh != 0) add_release_sys(counter, fresh);
}

/// What is left to do for one warp at one end of a ring, before it may wait or go.
struct RingRest {
    Sequence* sequence;
    u32* counter;   // the peer's
    u32 offset;     // positions of the stripes before this one
    u32 position;   // the first that the warp has not marked complete
    u32 step;       // how far its next one is
    u32 rows;       // how many of them it has to mark
    u32 sign_offs;  // with how many, its own among them, the stripe is over; 0: it goes on
};

/// Does the rest: marks positions, tells the peer about all that are complete, and ends a stripe.
/// Returns whether the group has been stopped. The rare part of the ends, out of line and by value
/// like `look_around`; `site` is that of any wait for other warps.
inline __device__ __noinline__ bool ring_rest(const Group& group, u32 epoch, int role, Site site,
                                              RingRest rest) {
    Team team(group, Call{epoch, false}, role, 0, 1, 0, 1);
    Sequence& sequence = *rest.sequence;
#pragma unroll 1
    for (; rest.rows > 0 && !team.stopped; --rest.rows, rest.position += rest.step) {
        site.want = rest.position;
        wait(team, site, [&](u32& seen) {
            if (!team.leader()) return true;
            seen = sequence.base() - rest.offset;
            return sequence.try_complete(rest.offset + rest.position);
        });
    }
    if (team.leader() && !team.stopped) {
        tell_peer(sequence, rest.counter, sequence.base());
        if (rest.sign_offs != 0) sequence.sign_off();
    }
    site.want = rest.sign_offs;
    wait(team, site, [&](u32& seen) {
        if (!team.leader() || rest.sign_offs == 0) return true;
        seen = sequence.sign_offs();
        return reached(seen, rest.sign_offs);
    });
    return team.stopped;
}

/// What both ends of a ring do: complete positions in any order, tell the peer in order.
template <class Ring>
class RingEnd {
    static_assert((Ring::kDepth & (Ring::kDepth - 1)) == 0, "counters wrap where slots do");
    static_assert(Ring::kDepth >= 2 * Ring::kChunk, "two chunks fit into their ring");

protected:
    __device__ __forceinline__ RingEnd(Team& team, Sequence* sequences, int peer)
        : team_(team), sequence_(sequences[peer]), peer_(peer) {}

    /// Where this end stood at the end of the last call.
    __device__ __forceinline__ u32 standing(u64 words) const {
        const u32* word = reinterpret_cast<const u32*>(team_.group.window + words);
        const u32 last = (team_.epoch & 1) ^ 1;
        return load_relaxed_gpu(word + last * (Ring::kStripes * Ring::kPeers) + index(peer_));
    }

    /// Keeps where this end stands for the next call; the other copy may still be read.
    __device__ __forceinline__ void keep(u64 words, u32 value) const {
        u32* word = reinterpret_cast<u32*>(team_.group.window + words);
        const u32 now = team_.epoch & 1;
        store_relaxed_gpu(word + now * (Ring::kStripes * Ring::kPeers) + index(peer_), value);
    }

    /// Index of a word by (stripe, peer).
    __device__ __forceinline__ int index(int peer) const { return stripe_ * Ring::kPeers + peer; }

    /// Begins a stripe; `counter` is the peer's word that `tell` adds to.
    __device__ __forceinline__ void begin(int stripe, u64 counter) {
        stripe_ = stripe;
        completed_ = 0;
        u32* counters = reinterpret_cast<u32*>(team_.group.windows[peer_] + counter);
        counter_ = counters + index(team_.group.rank);
    }

    /// Marks this warp's first `rows` rows of the stripe complete. The leader's work is released
    /// with them, and so is what the lanes did before the last barrier.
    __device__ __forceinline__ void complete(u32 rows) {
        while (completed_ < rows && !team_.stopped) {
            const bool marked = !team_.leader() || sequence_.try_complete(offset_ + position());
            // Too far ahead of the others: now the rest has to wait.
            if (__ballot_sync(kAllLanes, marked) != kAllLanes) return settle(rows);
            ++completed_;
        }
    }

    /// Marks this warp's first `rows` rows of the stripe complete, and tells the peer about all that
    /// are: before a warp waits for a peer that may be waiting for them.
    __device__ __forceinline__ void settle(u32 rows) { settle(rows, 0); }

    /// Tells the peer about completed positions up to the last chunk boundary.
    __device__ __forceinline__ void tell() {
        if (team_.leader() && !team_.stopped) {
            const u32 base = sequence_.base() - offset_;
            tell_peer(sequence_, counter_, offset_ + (base - base % Ring::kChunk));
        }
        __syncwarp();
    }

    /// Ends a stripe of `count` rows, `rows` of them this warp's: returns when all warps that share
    /// the peer have come here.
    __device__ __forceinline__ void sign_off(u32 rows, u32 count) {
        signed_ += static_cast<u32>(team_.parts);
        settle(rows, signed_);
        offset_ += count;
    }

    /// Whether this warp speaks for all that share the peer.
    __device__ __forceinline__ bool spokesman() const {
        return team_.part == 0 && team_.leader() && !team_.stopped;
    }

    /// The lane-0 value of a word of the peer's, acquired, for all lanes.
    __device__ __forceinline__ u32 refresh(const u32* counter) const {
        u32 value = 0;
        if (team_.leader()) value = load_acquire_sys(counter);
        return __shfl_sync(kAllLanes, value, 0);
    }

private:
    /// The next position that this warp completes.
    __device__ __forceinline__ u32 position() const {
        return completed_ * static_cast<u32>(team_.parts) + static_cast<u32>(team_.part);
    }

    __device__ __forceinline__ void settle(u32 rows, u32 sign_offs) {
        if (team_.stopped) return;
        const Site site{Ring::kChannel, Waiting::kSequence, stripe_, peer_, 0};
        const RingRest rest{&sequence_, counter_, offset_, position(),
                            static_cast<u32>(team_.parts), rows - completed_, sign_offs};
        team_.stopped = ring_rest(team_.group, team_.epoch, team_.role, site, rest);
        completed_ = rows;
    }

protected:
    Team& team_;
    Sequence& sequence_;
    int peer_;
    int stripe_ = 0;
    u32 start_ = 0;      // the ring's counter at the start of the stripe
    u32 offset_ = 0;     // positions of the stripes before this one, in the sequence
    u32 signed_ = 0;     // sign-offs expected so far
    u32 completed_ = 0;  // rows of this warp, in this stripe
    u32* counter_ = nullptr;
};

/// The sending end for one peer.
template <class Ring, class Role>
class RingProducer : RingEnd<Ring> {
    using End = RingEnd<Ring>;
    using End::team_, End::peer_, End::stripe_, End::start_;

public:
    __device__ __forceinline__ RingProducer(Team& team, Mover<Role>& mover, Sequence* sequences,
                                            int peer)
        : End(team, sequences, peer), mover_(mover) {}

    /// Begins a stripe.
    __device__ __forceinline__ void open(int stripe) {
        End::begin(stripe, Ring::kTail);
        start_ = End::standing(Ring::kSent);
        // A free slot is looked for when the first row needs one.
        head_ = start_ - Ring::kDepth;
        rows_before_ = mover_.rows_begun();
    }

    /// Tells the receiver where the stripe's rows go and how many there are.
    __device__ __forceinline__ void announce(int first, int count) {
        if (team_.part != 0) return;
        const u32* retired = reinterpret_cast<const u32*>(team_.group.window + Ring::kRetired);
        const Site site{Ring::kChannel, Waiting::kRetired, stripe_, peer_, team_.epoch - 2};
        // M4: pairs with the release in RingConsumer::finish, two calls ago.
        wait_counter(team_, site, team_.leader() ? retired + End::index(peer_) : nullptr);
        if (team_.leader() && !team_.stopped) {
            u64* headers = reinterpret_cast<u64*>(team_.group.windows[peer_] + Ring::kHeader);
            const int call = static_cast<int>(team_.epoch & 1) * (Ring::kStripes * Ring::kPeers);
            u64* header = headers + (call + End::index(team_.group.rank)) * 2;
            store_relaxed_sys(header, stamped(team_.epoch, static_cast<u32>(first)));
            store_relaxed_sys(header + 1, stamped(team_.epoch, static_cast<u32>(count)));
        }
        __syncwarp();
    }

    /// Waits until the slot of `position` is free.
    __device__ __forceinline__ void wait_credit(int position) {
        const u32 want = start_ + static_cast<u32>(position) + 1 - Ring::kDepth;
        if (reached(head_, want) || team_.stopped) return;
        const u32* heads = reinterpret_cast<const u32*>(team_.group.window + Ring::kHead);
        const u32* head = heads + End::index(peer_);
        head_ = End::refresh(head);
        if (!reached(head_, want)) {
            // The receiver may be waiting for rows that this warp still holds.
            mover_.flush();
            End::settle(mover_.rows_begun() - rows_before_);
            const Site site{Ring::kChannel, Waiting::kCredit, stripe_, peer_, want};
            head_ = __shfl_sync(kAllLanes,
                                wait_counter(team_, site, team_.leader() ? head : nullptr), 0);
        }
        // M4: the receiver's loads, which `tell` released, come before the stores into the slot.
        mover_.fence_global();
        __syncwarp();
    }

    /// Where the row goes, in the lane that stores and later tells; null in the others.
    __device__ __forceinline__ char* row(int position) const {
        if (!team_.leader()) return nullptr;
        char* slots = team_.group.windows[peer_] + Ring::kSlots;
        const u32 slot = (start_ + static_cast<u32>(position)) % Ring::kDepth;
        const int ring = End::index(team_.group.rank);
        return slots + (static_cast<i64>(ring) * Ring::kDepth + slot) * Ring::kSlotBytes;
    }

    /// Where its meta record goes.
    __device__ __forceinline__ char* meta(int position) const {
        return team_.leader() ? row(position) + Ring::kMeta : nullptr;
    }

    /// Tells about rows that have had the time to complete.
    __device__ __forceinline__ void post() {
        End::complete(mover_.template rows_stored<Pieces<Role>::kRecent>() - rows_before_);
        End::tell();
    }

    /// Ends a stripe of `count` rows.
    __device__ __forceinline__ void finish(int count) {
        mover_.flush();
        End::sign_off(mover_.rows_begun() - rows_before_, static_cast<u32>(count));
        if (End::spokesman()) End::keep(Ring::kSent, start_ + static_cast<u32>(count));
    }

private:
    Mover<Role>& mover_;
    u32 head_ = 0;         // slots freed, as last seen
    u32 rows_before_ = 0;  // the mover's count at the start of the stripe
};

/// The receiving end for one peer, rows in order.
template <class Ring, class Role>
class RingConsumer : RingEnd<Ring> {
    using End = RingEnd<Ring>;
    using End::team_, End::peer_, End::stripe_, End::start_;

public:
    __device__ __forceinline__ RingConsumer(Team& team, Mover<Role>& mover, Sequence* sequences,
                                            int peer)
        : End(team, sequences, peer), mover_(mover) {}

    /// Begins a stripe: waits for the sender's header.
    __device__ __forceinline__ void open(int stripe) {
        End::begin(stripe, Ring::kHead);
        start_ = tail_ = End::standing(Ring::kTaken);
        rows_before_ = mover_.rows_begun();
        const u64* headers = reinterpret_cast<const u64*>(team_.group.window + Ring::kHeader);
        const int call = static_cast<int>(team_.epoch & 1) * (Ring::kStripes * Ring::kPeers);
        const u64* header = headers + (call + End::index(peer_)) * 2;
        const Site site{Ring::kChannel, Waiting::kHeader, stripe_, peer_, team_.epoch};
        // The words of RingProducer::announce carry all there is to know: they order nothing.
        const u32 word = wait_stamped(team_, site, team_.lane < 2 ? header + team_.lane : nullptr);
        first_ = static_cast<int>(__shfl_sync(kAllLanes, word, 0));
        count_ = static_cast<int>(__shfl_sync(kAllLanes, word, 1));
    }

    /// The header: position of the first row at the receiver, and how many rows there are.
    __device__ __forceinline__ int first() const { return first_; }
    __device__ __forceinline__ int count() const { return count_; }

    /// Waits until the row at `position` has arrived.
    __device__ __forceinline__ void wait_arrival(int position) {
        const u32 want = start_ + static_cast<u32>(position) + 1;
        if (reached(tail_, want) || team_.stopped) return;
        const u32* tails = reinterpret_cast<const u32*>(team_.group.window + Ring::kTail);
        const u32* tail = tails + End::index(peer_);
        tail_ = End::refresh(tail);
        if (!reached(tail_, want)) {
            // The sender may be waiting for slots that this warp still holds.
            mover_.flush();
            End::settle(mover_.rows_begun() - rows_before_);
            const Site site{Ring::kChannel, Waiting::kArrival, stripe_, peer_, want};
            tail_ = __shfl_sync(kAllLanes,
                                wait_counter(team_, site, team_.leader() ? tail : nullptr), 0);
        }
        // M2: the rows whose stores `tell` released are loaded by this warp's lane 0; the other
        // lanes read their meta records after the barrier.
        mover_.fence_global();
        __syncwarp();
    }

    /// The row, in its slot.
    __device__ __forceinline__ const char* row(int position) const {
        const char* slots = team_.group.window + Ring::kSlots;
        const u32 slot = (start_ + static_cast<u32>(position)) % Ring::kDepth;
        return slots +
               (static_cast<i64>(End::index(peer_)) * Ring::kDepth + slot) * Ring::kSlotBytes;
    }

    /// Its other fields, to be unpacked for output row `out`.
    __device__ __forceinline__ RingMessage message(int position, int out) const {
        return RingMessage{{out}, {row(position) + Ring::kMeta}};
    }

    /// Gives back the slots of rows that have been read.
    __device__ __forceinline__ void release() {
        __syncwarp();
        End::complete(mover_.rows_loaded() - rows_before_);
        End::tell();
    }

    /// Ends the stripe.
    __device__ __forceinline__ void finish() {
        mover_.flush();
        End::sign_off(mover_.rows_begun() - rows_before_, static_cast<u32>(count_));
        if (!End::spokesman()) return;
        End::keep(Ring::kTaken, start_ + static_cast<u32>(count_));
        u32* retired = reinterpret_cast<u32*>(team_.group.windows[peer_] + Ring::kRetired);
        // M4: every warp has read the header, through the sign-off; RingProducer::announce
        // acquires.
        store_release_sys(retired + End::index(team_.group.rank), team_.epoch);
    }

private:
    Mover<Role>& mover_;
    u32 tail_ = 0;         // rows arrived, as last seen
    u32 rows_before_ = 0;  // the mover's count at the start of the stripe
    int first_ = 0;
    int count_ = 0;
};

/// `body(position)` for the rows of this part, in order of arrival.
template <class Ring, class Role, class Body>
__device__ __forceinline__ void for_messages(Team& team, RingConsumer<Ring, Role>& ring,
                                             Body body) {
#pragma unroll 1
    for (int position = team.part; position < ring.count() && !team.stopped;
         position += team.parts) {
        ring.wait_arrival(position);
        if (team.stopped) return;
        body(position);
        ring.release();
    }
}

/// The receiving end for all peers at once, rows looked up by position: a source of `GatherRun`. A
/// lane per peer, in groups of 32; the warps of the block take tokens in turn and share one
/// sequence a peer.
template <class Ring, class Role>
class RingGather {
public:
    static constexpr int kPeers = Ring::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

    __device__ __forceinline__ RingGather(Team& team, Sequence* sequences)
        : team_(team), sequences_(sequences) {}

    /// Begins a stripe.
    __device__ __forceinline__ void open(int stripe) {
        stripe_ = stripe;
        const u32 last = (team_.epoch & 1) ^ 1;
        const u32* words = reinterpret_cast<const u32*>(team_.group.window + Ring::kTaken) +
                           last * (Ring::kStripes * kPeers);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (used(g)) start_[g] = tail_[g] = load_relaxed_gpu(words + index(peer(g)));
        }
    }

    /// Rows are waited for one by one.
    __device__ __forceinline__ void wait_ready() const {}

    /// Whether the rows at these positions (negative: none) have arrived; waits for them when
    /// `block`.
    __device__ __forceinline__ bool arrived(const i32 (&positions)[kGroups], bool block) {
        if (missing(positions) == 0) return true;
        const u32* tails = reinterpret_cast<const u32*>(team_.group.window + Ring::kTail);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (lacks(g, positions[g])) tail_[g] = load_acquire_sys(tails + index(peer(g)));
        }
        if (missing(positions) != 0) {
            if (!block) return false;
            // A sender may be waiting for slots that this block has not given back.
            tell(true);
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const bool lacking = lacks(g, positions[g]);
                const u32 want = start_[g] + static_cast<u32>(positions[g]) + 1;
                const Site site{Ring::kChannel, Waiting::kArrival, stripe_, lacking ? peer(g) : -1,
                                want};
                const u32 tail =
                    wait_counter(team_, site, lacking ? tails + index(peer(g)) : nullptr);
                if (lacking) tail_[g] = tail;
            }
        }
        // M2: the rows whose stores RingEnd::tell released may be loaded by any lane.
        __syncwarp();
        if constexpr (Role::kTma) fence_proxy_async_global();
        return true;
    }

    /// The row at a position, in its slot.
    __device__ __forceinline__ const char* row(int g, i32 position) const {
        const char* slots = team_.group.window + Ring::kSlots;
        const u32 slot = (start_[g] + static_cast<u32>(position)) % Ring::kDepth;
        return slots + (static_cast<i64>(index(peer(g))) * Ring::kDepth + slot) * Ring::kSlotBytes;
    }

    /// Its other fields.
    __device__ __forceinline__ const char* meta(int g, i32 position) const {
        return row(g, position) + Ring::kMeta;
    }

    /// Gives back the slots of a token whose parts have been read.
    __device__ __forceinline__ void done(const i32 (&positions)[kGroups]) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const u32 position = offset_[g] + static_cast<u32>(positions[g]);
            bool completed = positions[g] < 0;
            const Site site{Ring::kChannel, Waiting::kSequence, stripe_, completed ? -1 : peer(g),
                            position};
            wait(team_, site, [&](u32& seen) {
                if (completed) return true;
                seen = sequences_[peer(g)].base();
                completed = sequences_[peer(g)].try_complete(position);
                return completed;
            });
        }
        tell(false);
    }

    /// Ends a stripe: returns when all warps of the block have come here. `at(token, peer)` is what
    /// was recorded: that of the last token says how many rows came from the peer.
    template <class At>
    __device__ __forceinline__ void finish(Span tokens, At at) {
        tell(true);
        signed_ += static_cast<u32>(team_.warps);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool mine = used(g);
            if (mine && !team_.stopped) sequences_[peer(g)].sign_off();
            const Site site{Ring::kChannel, Waiting::kSequence, stripe_, mine ? peer(g) : -1,
                            signed_};
            wait(team_, site, [&](u32& seen) {
                if (!mine) return true;
                seen = sequences_[peer(g)].sign_offs();
                return reached(seen, signed_);
            });
            if (!mine || team_.stopped) continue;
            const int count =
                tokens.begin < tokens.end ? rows_through(at(tokens.end - 1, peer(g))) : 0;
            offset_[g] += static_cast<u32>(count);
            if (team_.warp == 0) keep(peer(g), start_[g] + static_cast<u32>(count));
        }
        __syncwarp();
    }

private:
    __device__ __forceinline__ int peer(int g) const { return g * kLanes + team_.lane; }

    __device__ __forceinline__ bool used(int g) const { return peer(g) < kPeers; }

    __device__ __forceinline__ int index(int peer) const { return stripe_ * kPeers + peer; }

    __device__ __forceinline__ bool lacks(int g, i32 position) const {
        return position >= 0 && !reached(tail_[g], start_[g] + static_cast<u32>(position) + 1);
    }

    __device__ __forceinline__ u32 missing(const i32 (&positions)[kGroups]) const {
        bool lacking = false;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) lacking = lacking || lacks(g, positions[g]);
        return __ballot_sync(kAllLanes, lacking);
    }

    /// Tells each sender about completed positions: up to the last chunk boundary, or all.
    __device__ __forceinline__ void tell(bool all) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (!used(g) || team_.stopped) continue;
            Sequence& sequence = sequences_[peer(g)];
            const u32 base = sequence.base() - offset_[g];
            const u32 fresh =
                sequence.claim(offset_[g] + (all ? base : base - base % Ring::kChunk));
            u32* heads = reinterpret_cast<u32*>(team_.group.windows[peer(g)] + Ring::kHead);
            // M4: each warp's loads had completed when it marked its positions, and `base` has
            // acquired the marks; RingProducer::wait_credit acquires.
            if (fresh != 0) add_release_sys(heads + index(team_.group.rank), fresh);
        }
        __syncwarp();
    }

    /// Keeps where the block stands for the next call; the other copy may still be read.
    __device__ __forceinline__ void keep(int peer, u32 value) const {
        u32* words = reinterpret_cast<u32*>(team_.group.window + Ring::kTaken);
        store_relaxed_gpu(words + (team_.epoch & 1) * (Ring::kStripes * kPeers) + index(peer),
                          value);
    }

    Team& team_;
    Sequence* sequences_;
    int stripe_ = 0;
    u32 signed_ = 0;            // sign-offs expected so far
    u32 start_[kGroups] = {};   // the rings' counters at the start of the stripe
    u32 tail_[kGroups] = {};    // rows arrived, as last seen
    u32 offset_[kGroups] = {};  // positions of the stripes before this one, in the sequences
};

}  // namespace ep
