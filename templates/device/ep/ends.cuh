// What the ends of rings in rings.cuh have in common: where each ring stands, what has been seen of its
// other end, and what that is yet to be told.
#pragma once

#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// The words by which the ends of a ring tell one another how far they are: where each lies in a window, and
/// its number among the counters of a network.
struct TailWord {
    static constexpr int kNumber = 0;
    template <class Ring>
    static __device__ __forceinline__ constexpr u64 at() {
        return Ring::kTail;
    }
};
struct HeadWord {
    static constexpr int kNumber = 1;
    template <class Ring>
    static __device__ __forceinline__ constexpr u64 at() {
        return Ring::kHead;
    }
};

struct Net;

/// What the lanes of an end stand for: the peers of a channel, or, where it has several parts to each peer,
/// all parts of one peer, or one part of all peers.
enum class Kept { kPeers, kPartsOfPeer, kPeersOfPart };

/// The rings of a stripe as its ends see them, in the windows of ranks that reach each other's memory. A lane
/// keeps each ring. `NetRings` (net_rings.cuh) has the same methods for other machines.
template <class Ring, Kept kKind = Kept::kPeers>
class WindowRings {
    static __device__ __forceinline__ constexpr int parts() {
        if constexpr (kKind == Kept::kPeers) {
            return 1;
        } else {
            return Ring::kParts;
        }
    }
    static constexpr int kParts = parts();

public:
    /// Rings of a stripe that lanes keep.
    static constexpr int kKept = kKind == Kept::kPartsOfPeer ? kParts : Ring::kPeers;
    /// Whether a slot is sent when it has been filled; else it is where it belongs.
    static constexpr bool kSends = false;
    /// Whether slots are given back by whole chunks.
    static constexpr bool kInChunks = false;

protected:
    __device__ __forceinline__ explicit WindowRings(Team& team) : team_(team) {}

    /// Begins a stripe, of the one peer or part `of`.
    __device__ __forceinline__ void turn_to(int stripe, int of) {
        stripe_ = stripe;
        of_ = of;
    }

    /// The rank at the other end of a ring.
    __device__ __forceinline__ int rank_of(int ring) const {
        return team_.rank_of(peer_of(ring), Ring::kPeers);
    }

    /// Where this rank keeps how far a ring is, among as many words for each of two calls.
    __device__ __forceinline__ int state(int ring) const { return place(peer_of(ring), ring); }
    static constexpr int kStates = Ring::kStripes * Ring::kPeers * kParts;

    /// What the other end tells of a ring.
    template <class Word>
    __device__ __forceinline__ const u32* counter(int ring) const {
        return reinterpret_cast<const u32*>(team_.group.window + Word::template at<Ring>()) +
               state(ring);
    }

    /// Adds what each lane has to tell the other end of a ring, if that is not 0. What the lane has done,
    /// and the warp before, comes first (M1, M4): the other end acquires.
    template <class Word>
    __device__ __forceinline__ void add(int ring, u32 number) {
        if (number == 0 || team_.stopped) return;
        u32* words = reinterpret_cast<u32*>(window_of(ring) + Word::template at<Ring>());
        add_release_sys(words + there(ring), number);
    }

    /// A slot of a ring at its other end, to be filled.
    __device__ __forceinline__ char* slot_there(int ring, u32 at) const {
        const i64 own = there(ring);
        return window_of(ring) + Ring::kSlots + (own * Ring::kDepth + at) * Ring::kSlotBytes;
    }

    /// A slot of a ring at this end.
    __device__ __forceinline__ const char* slot_here(int ring, u32 at) const {
        const i64 own = state(ring);
        return team_.group.window + Ring::kSlots + (own * Ring::kDepth + at) * Ring::kSlotBytes;
    }

    /// Tells one number of the header; warp.
    __device__ __forceinline__ void announce(int ring, int word, int value) {
        const u32* retired = reinterpret_cast<const u32*>(team_.group.window + Ring::kRetired);
        const Site site{Ring::kChannel, Waiting::kRetired, stripe_, rank_of(ring), team_.epoch - 2};
        // M4: pairs with the release of the receiver's end, two calls ago.
        wait_counter(team_, site, team_.leader() ? retired + state(ring) : nullptr);
        if (team_.leader() && !team_.stopped) {
            u64* header = headers(window_of(ring)) + there(ring) * Ring::kHeaderWords;
            store_relaxed_sys(header + word, stamped(team_.epoch, static_cast<u32>(value)));
        }
        __syncwarp();
    }

    /// One number of the header, in the leader; warp.
    __device__ __forceinline__ u32 announced(int ring, int word) {
        const u64* header = headers(team_.group.window) + state(ring) * Ring::kHeaderWords;
        const Site site{Ring::kChannel, Waiting::kHeader, stripe_, rank_of(ring), team_.epoch};
        // The word carries all there is to know: it orders nothing.
        return wait_stamped(team_, site, team_.leader() ? header + word : nullptr);
    }

    /// Says that this warp has read the header of each lane's ring that `is_used`.
    __device__ __forceinline__ void retire(int ring, bool is_used) {
        if (!is_used || team_.stopped) return;
        u32* retired = reinterpret_cast<u32*>(window_of(ring) + Ring::kRetired);
        // M4: this warp has read the header; the sender acquires before the next but one.
        store_release_sys(retired + there(ring), team_.epoch);
    }

    /// Of how many slots the sender may be told when those from `before` up to `now` have been read.
    __device__ __forceinline__ u32 given_back(int, u32 before, u32 now) const {
        return now - before;
    }

    /// Of how many more it is told at the end of a stripe of so many messages.
    __device__ __forceinline__ u32 left_over(int, u32) const { return 0; }

    Team& team_;
    int stripe_ = 0;

private:
    __device__ __forceinline__ int peer_of(int ring) const {
        return kKind == Kept::kPartsOfPeer ? of_ : ring;
    }

    /// The place of a ring among all of them, at the end where its other one is `peer`.
    __device__ __forceinline__ int place(int peer, int ring) const {
        const int part = kKind == Kept::kPartsOfPeer ? ring : of_;
        const int first = (stripe_ * Ring::kPeers + peer) * kParts;
        return kKind == Kept::kPeers ? first : first + part;
    }

    /// Its place at the other end.
    __device__ __forceinline__ int there(int ring) const {
        return place(team_.own(Ring::kPeers), ring);
    }

    __device__ __forceinline__ char* window_of(int ring) const {
        return team_.group.windows[rank_of(ring)];
    }

    /// The headers of this call, each of `kHeaderWords` words.
    __device__ __forceinline__ u64* headers(char* window) const {
        const int call = static_cast<int>(team_.epoch & 1) * kStates;
        return reinterpret_cast<u64*>(window + Ring::kHeader) + call * Ring::kHeaderWords;
    }

    int of_ = 0;
};

/// Waits until a unit is over, in the lanes that have a `sequence`. Returns whether the group has been stopped. Out of
/// line and by value, like `look_around`.
inline __device__ __noinline__ bool wait_for_end(const Group& group, u32 epoch, int role, Site site,
                                                 Sequence* sequence) {
    Team team(group, Call{epoch, false}, role, 0, 1, 0, 1);
    wait(team, site, [&](u32& seen) {
        if (sequence == nullptr) return true;
        seen = epoch_of(load_acquire_shared(&sequence->ended));
        return reached(seen, site.want);
    });
    return team.stopped;
}

/// What both ends have: which rings of a stripe they serve, and how far each has come. `Rings` says where
/// the other ends are.
///
/// Several warps may share the rings (`team.parts`, see `Shares`). Each moves some of the messages, and marks their
/// positions complete in any order in a `Sequence` of the ring; the warp that closes a gap tells the other end, at chunk
/// boundaries, and before it waits for a peer. A lane keeps the position of the message that its warp moves.
template <class Ring, class Rings>
class RingsEnd : protected Rings {
public:
    static constexpr int kKept = Rings::kKept;
    static constexpr int kGroups = (kKept + kLanes - 1) / kLanes;

    static_assert((Ring::kDepth & (Ring::kDepth - 1)) == 0, "counters wrap where slots do");
    static_assert(Ring::kDepth >= 2 * Ring::kChunk, "two chunks fit into their ring");

protected:
    using Rings::team_, Rings::stripe_;

    __device__ __forceinline__ RingsEnd(Team& team, Sequence* sequences)
        : Rings(team), kept_{0, 0, -1}, sequences_(sequences) {}
    __device__ __forceinline__ RingsEnd(Team& team, const Net* net, Sequence* sequences)
        : Rings(team, net), kept_{0, 0, -1}, sequences_(sequences) {}

    /// Begins a stripe, in which the rings `kept` are served: they stand where the words at `words` say, and
    /// the other end's counter at most `behind` before that. `of` chooses the rings, where the role serves
    /// those of one peer or part.
    __device__ __forceinline__ void begin(int stripe, const Peers& kept, int of, u64 words,
                                          u32 behind) {
        Rings::turn_to(stripe, of);
        kept_ = kept;
        const u32* word = reinterpret_cast<const u32*>(team_.group.window + words);
        const u32 last = (team_.epoch & 1) ^ 1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            moved_[g] = 0;
            if (used(g)) {
                start_[g] = load_relaxed_gpu(word + last * Rings::kStates + Rings::state(ring(g)));
            }
            seen_[g] = start_[g] - behind;
        }
        __syncwarp();
    }

    /// Ends the stripe, all messages of which this warp has marked: returns when all warps that share the rings have
    /// come here. The last one tells the other ends of the rest, keeps where the rings stand for the next call (the other
    /// copies may still be read) and gives the header back.
    template <class Word>
    __device__ __forceinline__ void finish(u64 words) {
        constexpr bool kTakes = Word::kNumber == HeadWord::kNumber;
        __syncwarp();
        u32* word = reinterpret_cast<u32*>(team_.group.window + words);
        const u32 now = team_.epoch & 1;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool own = used(g) && !team_.stopped;
            const u32 unit = own ? epoch_of(load_acquire_shared(&sequence(g).ended)) + 1 : 0;
            const bool is_last = own && sequence(g).sign_off() % static_cast<u32>(team_.parts) == 0;
            tell_of<Word>(g, is_last, true);
            const u32 total = is_last ? sequence(g).base() - offset(g) : 0;
            if constexpr (kTakes) {
                // M4: the last warp has seen what all of them have read.
                Rings::template add<Word>(ring(g), is_last ? Rings::left_over(ring(g), total) : 0);
            }
            if (is_last && !team_.stopped) {
                store_relaxed_gpu(word + now * Rings::kStates + Rings::state(ring(g)),
                                  start_[g] + total);
            }
            if constexpr (kTakes && Ring::kHeaderWords > 0) Rings::retire(ring(g), is_last);
            if (is_last && !team_.stopped) sequence(g).end_unit(unit);
            const Site site{Ring::kChannel, Waiting::kSequence, stripe_,
                            own ? Rings::rank_of(ring(g)) : -1, unit};
            if (team_.stopped) continue;
            team_.stopped = wait_for_end(team_.group, team_.epoch, team_.role, site,
                                         own ? &sequence(g) : nullptr);
        }
    }

    /// Waits until `done()` holds in every lane that `waits` for other warps of the team.
    template <class Done>
    __device__ __forceinline__ void share(int g, bool waits, u32 want, Done done) {
        bool ready = !waits;
        const Site site{Ring::kChannel, Waiting::kSequence, stripe_,
                        ready ? -1 : Rings::rank_of(ring(g)), want};
        wait(team_, site, [&](u32&) {
            ready = ready || done();
            return ready;
        });
    }

    /// The ring of this lane in a group.
    __device__ __forceinline__ int ring(int g) const { return g * kLanes + team_.lane; }

    /// Whether this lane has a ring in a group.
    __device__ __forceinline__ bool used(int g) const {
        const int own = ring(g);
        return own >= kept_.begin && own < kept_.end && own != kept_.skip;
    }

    /// The sequence of a ring that it has.
    __device__ __forceinline__ Sequence& sequence(int g) const {
        return sequences_[ring(g) - kept_.begin];
    }

    /// Positions of the stripes before this one, in a sequence. They stay until all warps are done with the stripe.
    __device__ __forceinline__ u32 offset(int g) const {
        return value_of(load_acquire_shared(&sequence(g).ended));
    }

    /// Whether this lane keeps `ring`.
    __device__ __forceinline__ bool keeps(int ring) const { return team_.lane == ring % kLanes; }

    /// What the lane of `ring` has in its group, for all lanes.
    __device__ __forceinline__ u32 of(const u32 (&values)[kGroups], int ring) const {
        u32 found = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == ring / kLanes) found = values[g];
        }
        return __shfl_sync(kAllLanes, found, ring % kLanes);
    }

    /// The slot of a ring for the message that this warp moves.
    __device__ __forceinline__ u32 next_at(int ring) const {
        return (of(start_, ring) + of(moved_, ring)) % Ring::kDepth;
    }

    /// Goes on with the message at `position` of `ring`.
    __device__ __forceinline__ void go_to(int ring, u32 position) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == ring / kLanes && keeps(ring)) moved_[g] = position;
        }
    }

    /// Marks the message of `ring` complete, which all lanes have moved, and goes on to the next position.
    template <class Word>
    __device__ __forceinline__ void count(int ring, bool all) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g != ring / kLanes) continue;
            const bool own = keeps(ring);
            complete<Word>(g, own, moved_[g], all);
            if (own) ++moved_[g];
        }
        __syncwarp();
    }

    /// Marks a position of each lane's ring complete, where it `has` one, and tells the other end: in chunks, or of `all`.
    template <class Word>
    __device__ __forceinline__ void complete(int g, bool has, u32 position, bool all) {
        has = has && used(g) && !team_.stopped;
        for (bool marked = !has;;) {
            marked = marked || sequence(g).try_complete(offset(g) + position);
            // Where it is too far ahead of the others, these may wait for a peer that has not been told of all.
            tell_of<Word>(g, has, all || !marked);
            if (__ballot_sync(kAllLanes, marked) == kAllLanes || team_.stopped) break;
            share(g, !marked, position, [&] { return sequence(g).try_complete(offset(g) + position); });
            marked = true;
        }
    }

    /// Tells the other end of each lane's ring, if this lane `tells`, about complete positions: up to the last chunk
    /// boundary, or `all`.
    template <class Word>
    __device__ __forceinline__ void tell_of(int g, bool tells, bool all) {
        tells = tells && used(g) && !team_.stopped;
        if constexpr (Rings::kSends && Word::kNumber == TailWord::kNumber) {
            for (;;) {
                const u32 upto = tells ? complete_upto(g, all) : 0;
                const u32 count = tells ? sequence(g).begin_telling(offset(g) + upto, all) : 0;
                if (__ballot_sync(kAllLanes, count != 0) == 0) break;
                // M1: `base` has acquired what the warps had stored before they marked it; the receiver acquires.
                Rings::send(ring(g), (start_[g] + upto - count) % Ring::kDepth, count);
                tells = count != 0 && sequence(g).end_telling(offset(g) + upto, all);
            }
        } else {
            u32 fresh = 0;
            if (tells) {
                const u32 now = complete_upto(g, all && !Rings::kInChunks);
                const u32 before = now - sequence(g).claim(offset(g) + now);
                fresh = before == now ? 0 : now - before;
                if constexpr (Word::kNumber == HeadWord::kNumber) {
                    if (fresh != 0) fresh = Rings::given_back(ring(g), before, now);
                }
            }
            // M1, M4: `base` has acquired what the warps had stored, or seen loaded, before they marked it; the other
            // end acquires.
            Rings::template add<Word>(ring(g), fresh);
        }
    }

    /// Remembers that the message of `ring` is complete once `rows` rows of the mover are done, and goes on to the next
    /// position.
    __device__ __forceinline__ void owe(int ring, u32 rows) {
        // What the other lanes have read or stored themselves comes before what this lane tells.
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g != ring / kLanes || !keeps(ring)) continue;
            if (due_[g].messages == 0) {
                due_[g] = Due{1, moved_[g], rows};
            } else {
                const u32 first = later_[g].messages == 0 ? moved_[g] : later_[g].first;
                later_[g] = Due{later_[g].messages | 1u << (moved_[g] - first) % kLanes, first, rows};
            }
            ++moved_[g];
        }
    }

    /// Whether there is no place to remember one more message of `ring`.
    __device__ __forceinline__ bool is_full(int ring) const {
        u32 full = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g != ring / kLanes) continue;
            full = later_[g].messages != 0 && moved_[g] - later_[g].first >= kLanes ? 1 : 0;
        }
        return __shfl_sync(kAllLanes, full, ring % kLanes) != 0;
    }

    /// Tells the other ends of messages that are due after `rows` rows, in chunks.
    template <class Word>
    __device__ __forceinline__ void tell(u32 rows) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const bool marks = due_[g].messages != 0 && mark(g, rows);
            tell_of<Word>(g, marks, false);
        }
        __syncwarp();
    }

    /// Tells the other ends of all messages; all rows, `rows`, are done.
    template <class Word>
    __device__ __forceinline__ void settle(u32 rows) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            for (;;) {
                mark(g, rows);
                tell_of<Word>(g, true, true);
                // Too far ahead of the others, which all know of the rest.
                const bool waits = due_[g].messages != 0;
                if (__ballot_sync(kAllLanes, waits) == 0 || team_.stopped) break;
                share(g, waits, due_[g].first, [&] { return mark(g, rows); });
            }
        }
        __syncwarp();
    }

    /// Whether what the other end tells of `ring` has reached `want`; looks at it only if it had not. What
    /// it counts is acquired.
    template <class Word>
    __device__ __forceinline__ bool has_come(int ring, u32 want) {
        if (reached(of(seen_, ring), want)) return true;
        u32 now = 0;
        if (team_.leader()) now = load_acquire_sys(Rings::template counter<Word>(ring));
        now = __shfl_sync(kAllLanes, now, 0);
        see(ring, now);
        __syncwarp();
        return reached(now, want);
    }

    /// Waits until it has.
    template <class Word>
    __device__ __forceinline__ bool await(int ring, u32 want, Waiting kind) {
        if (reached(of(seen_, ring), want)) return !team_.stopped;
        const Site site{Ring::kChannel, kind, stripe_, Rings::rank_of(ring), want};
        const u32* counter = Rings::template counter<Word>(ring);
        const u32 now = wait_counter(team_, site, team_.leader() ? counter : nullptr);
        see(ring, __shfl_sync(kAllLanes, now, 0));
        return !team_.stopped;
    }

    /// Whether what the other end publishes has reached `want`, in every lane whose ring `asks`. `await_each` waits until it
    /// has.
    template <class Word>
    __device__ __forceinline__ bool has_come_each(int g, bool asks, u32 want) {
        const bool looks = asks && !reached(seen_[g], want);
        if (looks) seen_[g] = load_acquire_sys(Rings::template counter<Word>(ring(g)));
        return __ballot_sync(kAllLanes, asks && !reached(seen_[g], want)) == 0;
    }
    template <class Word>
    __device__ __forceinline__ void await_each(int g, bool asks, u32 want, Waiting kind) {
        const bool looks = asks && !reached(seen_[g], want);
        if (__ballot_sync(kAllLanes, looks) == 0) return;
        const Site site{Ring::kChannel, kind, stripe_, looks ? Rings::rank_of(ring(g)) : -1, want};
        const u32 now =
            wait_counter(team_, site, looks ? Rings::template counter<Word>(ring(g)) : nullptr);
        if (looks) seen_[g] = now;
    }

    Peers kept_;
    u32 start_[kGroups] = {};   // the rings' counters at the start of the stripe
    u32 moved_[kGroups] = {};   // the position of the message that this warp moves

private:
    /// Messages that are not marked yet, a bit for each position from the first on, and after how many rows of the mover
    /// they may be.
    struct Due {
        u32 messages, first, rows;
    };

    /// Marks what is due after `rows` rows, as far as it is not too far ahead of other warps. Whether it has marked any.
    __device__ __forceinline__ bool mark(int g, u32 rows) {
        bool marks = false;
        while (due_[g].messages != 0 && reached(rows, due_[g].rows)) {
            if (!sequence(g).try_complete(offset(g) + oldest(g))) break;
            marks = true;
            forget_oldest(g);
        }
        return marks;
    }

    /// The position of the oldest message that is not marked.
    __device__ __forceinline__ u32 oldest(int g) const {
        return due_[g].first + static_cast<u32>(__ffs(static_cast<int>(due_[g].messages)) - 1);
    }

    __device__ __forceinline__ void forget_oldest(int g) {
        due_[g].messages &= due_[g].messages - 1;
        if (due_[g].messages != 0) return;
        due_[g] = later_[g];
        later_[g].messages = 0;
    }

    /// The positions that are complete, or those before the last chunk boundary.
    __device__ __forceinline__ u32 complete_upto(int g, bool all) const {
        const u32 base = sequence(g).base() - offset(g);
        return all ? base : base - base % Ring::kChunk;
    }

    /// Remembers how far the other end of `ring` was.
    __device__ __forceinline__ void see(int ring, u32 value) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (g == ring / kLanes && keeps(ring)) seen_[g] = value;
        }
    }

    Sequence* sequences_;      // of the rings that are kept, in shared memory
    u32 seen_[kGroups] = {};    // what the other ends told, as last seen
    Due due_[kGroups] = {};    // those that come first,
    Due later_[kGroups] = {};  // and all that came since
};

}  // namespace ep
