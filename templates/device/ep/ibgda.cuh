// A network card that kernels speak to themselves: the promise of net.cuh by work-queue entries of mlx5.
//
// A rank has a queue pair for each peer and queue, joined to one of the peer's by a reliable connection. A
// put is an entry that writes rows, a signal one that adds to a counter at the peer. The card carries the
// entries of one queue pair out in order: it may place the bytes of neighboring writes in any order, but an
// atomic behind them finds all of them placed. That is the one rule of the network that the promise needs
// here, and why a signal is an atomic: what it adds to may be polled by a kernel, and lanes need not agree
// on a sum. Counters are registered without relaxed ordering, so that on the bus of the peer, too, nothing
// before an add comes after it. Nothing orders two queue pairs, as nothing orders two peers or queues.
//
// Lanes of many warps write to one queue pair. Each claims an entry, writes it as soon as its slot is free, and
// notes that in `written`. Whoever writes the first entry that the card was not told of tells the card of it and of
// all that are written behind it, until the next one is not. The other lanes go on: they do not wait for their turn.
// An order of three steps is what the card relies on, and each is a release of the ones before: the entry, the
// doorbell record, the doorbell. Whoever sees that another lane has claimed the next entry leaves the last two to
// that one.
//
// All completions of a queue pair overwrite one place (a collapsed queue, whose owner bit says nothing),
// which names the last entry that was carried out. Only waits for room and `drain` look at it. An entry that
// failed is no progress, nor is what the card says of those behind it: the wait runs out, and names the peer.
#pragma once

#include <ep/net.cuh>
#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// A queue pair, in device memory. Addresses are those by which the card knows memory.
struct alignas(128) QueuePair {
    Quad* entries;      // [slot] four each
    const u32* done;    // the last word of the completion: {kind and more, number of the entry}
    u32* record;        // entries that the card may carry out, for the card
    u64* doorbell;      // of the card
    u64 data;           // at the peer
    u64 counters;       // at the peer, those of this rank and queue
    u64 before;         // here: where the card leaves what a counter was before an add
    u64 written;        // low half: entries that lanes have told of; high half: for each of the next 32 entries a
                        // bit, at its number % 32, that is 1 once it is written
    u32 data_key;       // at the peer
    u32 counters_key;   // at the peer
    u32 own_data_key;
    u32 own_counters_key;  // that of `before`, too
    u32 number;            // of the queue pair
    u32 claimed;           // entries that lanes have claimed
};

/// One warp's view of the queue pairs of a queue; all lanes call every method. It does what `NetQueue` does.
class PairQueue {
public:
    __device__ __forceinline__ PairQueue(Team& team, const Net* net, int queue)
        : team_(team), net_(net), queue_(queue), has_posted_(false) {}

    /// As `NetQueue::put`.
    __device__ __forceinline__ bool put(int peer, u64 to, u64 from, u32 bytes) {
        return post(bytes != 0, NetDescriptor::kPut, peer, to, from, bytes);
    }

    /// As `NetQueue::signal`.
    __device__ __forceinline__ bool signal(int peer, u32 counter, u32 number) {
        return post(number != 0, NetDescriptor::kSignal, peer, counter, 0, number);
    }

    /// As `NetQueue::turn_to`.
    __device__ __forceinline__ void turn_to(int queue) {
        if (queue == queue_) return;
        queue_ = queue;
        has_posted_ = false;
    }

    /// As `NetQueue::drain`. Waits for what other warps have claimed, too.
    __device__ __forceinline__ bool drain() {
        const int ranks = has_posted_ ? static_cast<int>(net_->ranks) : 0;
#pragma unroll 1
        for (int first = 0; first < ranks; first += kLanes) {
            const int peer = first + team_.lane;
            const bool some = peer < ranks && peer != static_cast<int>(net_->rank);
            const QueuePair* pair = some ? pair_to(net_, queue_, peer) : nullptr;
            const u32 want = some ? load_relaxed_gpu(&pair->claimed) : 0;
            const Site site{queue_, Waiting::kDrained, -1, some ? peer : -1, want};
            wait(team_, site, [&](u32& seen) {
                if (!some) return true;
                seen = told(pair);
                if (!reached(seen, want)) return false;
                if (reached(done(pair, want), want)) return true;
                // Far more may have been done since: then the slots are in use again.
                return reached(told(pair), want + net_->slots);
            });
        }
        return !team_.stopped;
    }

    /// As `NetQueue::counter`.
    __device__ __forceinline__ const u32* counter(int source, int index) const {
        return counter_of(net_, source, queue_, index);
    }

private:
    /// Opcodes, with their modifier in the highest byte.
    static constexpr u32 kWrite = 0x08;
    static constexpr u32 kAddHalf = 0x08000015;  // masked fetch-and-add, of 4 bytes
    /// Of a control segment: the card shall say when it is done.
    static constexpr u32 kSaysDone = 0x08u << 24;
    /// Of a data segment: bytes follow, not where they are.
    static constexpr u32 kInline = 0x80000000u;
    static constexpr u32 kInlineBytes = 28;
    /// Kinds of completions.
    static constexpr u32 kCarriedOut = 0x0;
    static constexpr u32 kNone = 0xf;
    /// Entries of which one tells the card at least. Fewer than there are slots, so that nobody waits for
    /// room that only an entry behind its own could make.
    static constexpr u32 kTogether = 8;
    /// Entries from the first one on of which the card was not told that lanes may write: `written` has so many bits.
    static constexpr u32 kAhead = 32;

    /// The card's numbers have their highest byte first.
    static __device__ __forceinline__ u32 swapped(u32 word) {
        return word << 24 | (word & 0xff00u) << 8 | (word >> 8 & 0xff00u) | word >> 24;
    }

    /// What to do, which entry it is, and how many quads that takes.
    static __device__ __forceinline__ Quad control(u32 what, u32 own, u32 number, u32 units) {
        return Quad{swapped(what | (own & 0xffffu) << 8), swapped(number << 8 | units), kSaysDone, 0};
    }

    /// Memory of the peer.
    static __device__ __forceinline__ Quad there(u64 address, u32 key) {
        return Quad{swapped(static_cast<u32>(address >> 32)), swapped(static_cast<u32>(address)),
                    swapped(key), 0};
    }

    /// Memory of this rank.
    static __device__ __forceinline__ Quad here(u32 bytes, u32 key, u64 address) {
        return Quad{swapped(bytes), swapped(key), swapped(static_cast<u32>(address >> 32)),
                    swapped(static_cast<u32>(address))};
    }

    static __device__ __forceinline__ QueuePair* pair_to(const Net* net, int queue, int peer) {
        return net->pairs + static_cast<u64>(peer) * net->queues + static_cast<u64>(queue);
    }

    /// Writes the entry of a put of `number` bytes.
    static __device__ __forceinline__ void write_put(const Net* net, const QueuePair* pair, u32 own, u64 to, u64 from,
                                                     u32 number) {
        Quad* entry = entry_of(net, pair, own);
        const char* source = net->data + from;
        // What fits into the entry is not fetched by the card: a trip over the bus less.
        const bool fits = number <= kInlineBytes && ((from | number) & 3) == 0;
        const u32 units = fits && number > kInlineBytes - 16 ? 4 : 3;
        store_quad(entry, control(kWrite, own, pair->number, units));
        store_quad(entry + 1, there(pair->data + net->begin + to, pair->data_key));
        if (fits) {
            u32* words = reinterpret_cast<u32*>(entry + 2);
            words[0] = swapped(kInline | number);
            for (u32 i = 0; i < number / 4; ++i) {
                words[1 + i] = reinterpret_cast<const u32*>(source)[i];
            }
        } else {
            store_quad(entry + 2, here(number, pair->own_data_key, reinterpret_cast<u64>(source)));
        }
    }

    /// Writes the entry of a signal that adds `number` to a counter.
    static __device__ __forceinline__ void write_signal(const Net* net, const QueuePair* pair, u32 own, u64 counter,
                                                        u32 number) {
        Quad* entry = entry_of(net, pair, own);
        const u64 target = pair->counters + u64{4} * (net->first + counter);
        store_quad(entry, control(kAddHalf, own, pair->number, 4));
        store_quad(entry + 1, there(target, pair->counters_key));
        // No boundary: a carry goes through all 32 bits.
        store_quad(entry + 2, Quad{swapped(number), 0, 0, 0});
        store_quad(entry + 3, here(4, pair->own_counters_key, pair->before));
    }

    static __device__ __forceinline__ Quad* entry_of(const Net* net, const QueuePair* pair, u32 own) {
        return pair->entries + static_cast<u64>(own & (net->slots - 1)) * 4;
    }

    /// How many entries the card is done with, whose sources and slots it reads no more (M4). It tells the
    /// lowest 16 bits: `near` is a number that is not as far away as half of them count.
    static __device__ __forceinline__ u32 done(const QueuePair* pair, u32 near) {
        const u32 word = load_acquire_sys(pair->done);
        const u32 kind = word >> 28;
        if (kind == kNone) return 0;
        if (kind != kCarriedOut) return near - 1;
        const u32 count = (swapped(word) >> 16) + 1;
        return near + static_cast<u32>(static_cast<i32>((count - near) << 16) >> 16);
    }

    /// How many entries lanes have told of, and what they did before that.
    static __device__ __forceinline__ u32 told(const QueuePair* pair) {
        return value_of(load_acquire_gpu(&pair->written));
    }

    /// Writes an entry of each lane that asks for something. The card is told of it as soon as those before it are written.
    __device__ __forceinline__ bool post(bool asks, u32 kind, int peer, u64 to, u64 from, u32 number) {
        if (team_.stopped || __ballot_sync(kAllLanes, asks) == 0) return !team_.stopped;
        has_posted_ = true;
        team_.stopped =
            !post_all(team_.group, team_.epoch, team_.role, net_, queue_, asks, kind, peer, to, from, number);
        return !team_.stopped;
    }

    /// Out of line, as `NetQueue::post_all`. False: the team is stopped.
    static __device__ __noinline__ bool post_all(const Group& group, u32 epoch, int role, const Net* net, int queue,
                                                 bool asks, u32 kind, int peer, u64 to, u64 from, u32 number) {
        Team team(group, Call{epoch, false, false}, role);
        QueuePair* pair = asks ? pair_to(net, queue, peer) : nullptr;
        const u32 own = asks ? fetch_add_relaxed_gpu(&pair->claimed, 1) : 0;
        const Site site{queue, Waiting::kQueue, -1, asks ? peer : -1, own};
        bool is_written = !asks;
        const bool is_alone = __popc(__ballot_sync(kAllLanes, asks)) == 1;
        // Lanes go on one by one: each may hold up an entry that another warp waits for.
        wait(team, site, [&](u32& seen) {
            if (is_written) return true;
            u64 found = load_acquire_gpu(&pair->written);
            seen = value_of(found);
            if (!has_room(net, pair, own, seen)) return false;
            if (kind == NetDescriptor::kPut) {
                write_put(net, pair, own, to, from, number);
            } else {
                write_signal(net, pair, own, to, number);
            }
            is_written = true;
            if (is_alone && seen == own) {
                tell_from(pair, own, found, bit_of(own));
                return true;
            }
            // M1: releases the entry to the lane that tells of it.
            found = fetch_add_release_gpu(&pair->written, bit_of(own));
            // Together with what the other lanes of this warp have written.
            if (value_of(found) == own) tell_from(pair, own, load_acquire_gpu(&pair->written), 0);
            return true;
        });
        return !team.stopped;
    }

    /// Whether an entry has a bit in `written` and a free slot, when the card was told of so many.
    static __device__ __forceinline__ bool has_room(const Net* net, const QueuePair* pair, u32 own, u32 told) {
        if (!reached(told + kAhead - 1, own)) return false;
        const u32 want = own + 1 - net->slots;
        // What is told of had room itself: so the card's number is near.
        return reached(told, want) && reached(done(pair, want), want);
    }

    /// The bit of an entry in `written`.
    static __device__ __forceinline__ u64 bit_of(u32 own) { return u64{1} << (32 + own % kAhead); }

    /// Tells the card of the entries from `next` on, the first one that it was not told of, that are written in a row.
    /// `found` is in `written`; `more` are bits that are not noted there. Nobody else tells until the number there changes.
    static __device__ __forceinline__ void tell_from(QueuePair* pair, u32 next, u64 found, u64 more) {
        u64 all = found + more;
        while (true) {
            const u32 bits = static_cast<u32>(all >> 32);
            const u32 ahead = ~__funnelshift_r(bits, bits, next % kAhead);
            const u32 count = ahead == 0 ? kAhead : static_cast<u32>(__ffs(static_cast<int>(ahead))) - 1;
            const u32 taken = count == kAhead ? kAllLanes : (1u << count) - 1;
            const u64 rest = bits & ~__funnelshift_l(taken, taken, next % kAhead);
            const u32 first = next;
            next += count;
            const bool is_last = load_relaxed_gpu(&pair->claimed) == next;
            if (is_last || first / kTogether != next / kTogether) tell(pair, next);
            // Other lanes add bits alone, so the difference keeps theirs. M2: acquires the entries that they have written.
            const u64 wanted = rest << 32 | next;
            all = found = wanted + (fetch_add_acq_rel_gpu(&pair->written, wanted - found) - found);
            // Whoever has written the next one has left it to this lane.
            if ((found & bit_of(next)) == 0) return;
        }
    }

    /// Tells the card of all entries before `next`.
    static __device__ __forceinline__ void tell(const QueuePair* pair, u32 next) {
        const u32 head = next & 0xffffu;
        // M1: the card reads entries up to the record, as soon as it sees that.
        store_release_sys(pair->record, swapped(head));
        // M1: the card reads the record when it hears the doorbell, the head of an entry to come.
        store_release_sys(pair->doorbell, stamped(swapped(pair->number << 8), swapped(head << 8)));
    }

    Team& team_;
    const Net* net_;
    int queue_;
    bool has_posted_;
};

}  // namespace ep
