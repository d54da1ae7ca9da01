// A network card that is a kernel. It reads the work-queue entries, doorbells and doorbell records of mlx5
// that ep/ibgda.cuh writes, and moves the bytes to the memory of the peer by stores. One launch plays the
// cards of all ranks of a GPU, for the queue pairs of several networks.
//
// Warps have four kinds of work. A front listens to queue pairs, reads their entries in order and decides
// when each of them leaves. A mover copies the bytes of puts, in tickets of at most `kTicketBytes`. A back
// adds to counters once all puts before the add have landed, and writes completions. The warden reads the
// stop word of the host.
//
// The card keeps the promise of ep/net.cuh and no more: puts of a queue pair land in any order, also before
// an add that stands in front of them; an add comes after all puts in front of it. With a seed, puts are
// late at random. The rate and the latency are those of a link: entries leave one after another, at
// `ps_per_byte`, and a signal is seen `latency_ns` after its entry has left.
//
// All state is in memory, so the host can stop the kernel at any time and start it again. Words between the
// warps of a card have gpu scope; the kernels that post are on the same GPU. What peers see has system scope.
#include <ep/ptx.cuh>

namespace card {

using namespace ep;

constexpr int kLanes = 32;
constexpr u32 kTicketBytes = 16384;
constexpr u32 kAddBytes = 4;
/// Words of an entry, and of a completion.
constexpr int kWords = 16;
constexpr int kPortsMax = 64;
/// Places for tickets, more than there are movers. A front waits for a free place.
constexpr u32 kTickets = 1u << 16;
/// Ticks of the link's clock in a ns, as a power of two.
constexpr int kTickBits = 20;
/// How often a warp looks at its own work between two looks at whether all work is over.
constexpr u32 kLooks = 16;
/// A late put begins up to so much later, a power of two.
constexpr u64 kLateNs = 4096;

/// Why an entry failed, as a completion says it.
enum Syndrome : u32 {
    kGood = 0,
    kOperation = 0x02,
    kProtection = 0x04,
    kFlushed = 0x05,
    kRemoteAccess = 0x13,
    kRetries = 0x15,
};

/// What an entry asks for.
enum Kind : u32 {
    kNothing,
    kWrite,   // of bytes in memory
    kInline,  // of bytes in the entry
    kAdd,
    kFailed,  // the entry is not carried out
};

/// Memory that a key gives the right to.
struct Region {
    u64 begin, end;
    u32 key, unused;
};

/// How far the card is with a queue pair.
struct alignas(128) State {
    // The front writes these,
    u64 rung;
    u32 recorded;
    u32 known;      // entries that it was told of
    u32 read;       // entries that it has read
    u32 told;       // entries that it has told the back of
    u32 has_failed;
    u32 entries;    // counts
    u32 doorbells;
    u64 bytes;
    // and the back these.
    u32 settled;    // entries that have landed
    u32 completed;  // entries that a completion may name
    u32 is_broken;  // whether an entry has failed
    u32 flushed;    // entries that are over since then
    u32 word;       // the last word of the completion
};

/// What the card knows of an entry that it works on.
struct alignas(64) Work {
    u64 to, from;      // of an add: the counter, and where its old value goes
    u64 leaves, lands;  // ns
    u32 kind;
    u32 bytes;   // of an add: the number
    u32 tickets;
    u32 moved;     // tickets that have landed
    u32 says_done;  // a failed entry: the syndrome
};

/// One queue pair, as the host describes it.
struct alignas(256) Pair {
    const Quad* entries;
    u32* completion;
    const u32* record;
    const u64* doorbell;
    Region own[2];    // data and counters of this rank
    Region there[2];  // data and counters of the peer
    u64 sums_begin;   // at the peer: the counters that this queue pair alone adds to
    u32* sums;        // here: what they hold
    State* state;
    Work* works;      // [slot]
    u32 sums_count;
    u32 number;
    u32 slots;
    u32 port;  // the card, among those of the GPU
    u32 has_fault;
    u32 fault_at;  // the entry that fails, if `has_fault`
    u32 id;        // no other queue pair of the GPU has it, nor will have it
};

/// Words that are zero when the kernel starts.
struct Control {
    u32 stop;
    u32 fronts_gone;
    u32 faults;
    u32 has_nonsense;  // an entry or a doorbell makes no sense: its queue pair never becomes idle
};

/// The first entry that fails, or doorbell that makes no sense, in host memory.
struct Fault {
    u32 written;
    u32 pair;           // its id
    u32 number;
    u32 is_told;        // whether the doorbell or the record is wrong, and not the entry
    u32 words[kWords];  // of the entry
    u64 doorbell;
    u64 rung;      // before it
    u32 record;
    u32 known;     // before it
    u32 recorded;  // before it
    u32 read;
};

struct Args {
    const Pair* pairs;
    u64* tickets;  // a ring of `kTickets`; 0: empty
    Control* control;
    Fault* fault;
    const u32* stop;  // in host memory
    u64 ticks_per_byte;
    u64 latency_ns;
    u32 seed;         // 0: no put is late
    u32 pair_count;
    u32 fronts, backs;
    u32 until_idle;  // stop when nothing is left to do
    u32 start;       // the number of this start: the kernel ends when the stop word has reached it
};

/// What the fronts of a block share.
struct Shared {
    u64 free[kPortsMax];  // when the link of a card is free, in ticks from `origin_ns` on
    u64 origin_ns;
    u64 tail;             // tickets that were written
};

/// The card's numbers have their highest byte first.
__device__ __forceinline__ u32 swapped(u32 word) {
    return word << 24 | (word & 0xff00u) << 8 | (word >> 8 & 0xff00u) | word >> 24;
}

__device__ __forceinline__ u64 wide(u32 high, u32 low) {
    return static_cast<u64>(swapped(high)) << 32 | swapped(low);
}

/// How far a number of 16 bits is ahead of another one.
__device__ __forceinline__ i32 ahead(u32 number, u32 of) {
    return static_cast<i32>((number - of) << 16) >> 16;
}

/// The number that the next entry will have, of a doorbell record.
__device__ __forceinline__ u32 recorded_of(u32 record) {
    return swapped(record) & 0xffffu;
}

/// An entry as the card reads it.
struct Entry {
    u64 to, from;
    u32 to_key, from_key;
    u32 kind;
    u32 bytes;
    u32 number;
    bool says_done;
    u32 syndrome;
};

/// Reads entry `number` of the queue pair `pair` from its words.
__device__ __forceinline__ Entry read_entry(const u32* words, u32 pair, u32 number) {
    Entry entry{};
    const u32 head = swapped(words[0]), size = swapped(words[1]);
    const u32 quads = size & 0xffu, what = head & 0xff0000ffu;
    entry.syndrome = kOperation;
    entry.says_done = (swapped(words[2]) & 0x08u) != 0;
    const bool is_own = (head >> 8 & 0xffffu) == (number & 0xffffu) && size >> 8 == pair;
    if (!is_own || swapped(words[2]) >> 8 != 0 || words[3] != 0 || words[7] != 0) return entry;
    entry.to = wide(words[4], words[5]);
    entry.to_key = swapped(words[6]);
    if (what == 0x08u) {
        const u32 first = swapped(words[8]);
        entry.bytes = first & 0x7fffffffu;
        const bool is_inline = first >> 31 != 0;
        entry.kind = is_inline ? kInline : kWrite;
        if (is_inline) {
            if (entry.bytes > 28 || quads != 2 + (4 + entry.bytes + 15) / 16) return entry;
        } else {
            if (quads != 3) return entry;
            entry.from_key = swapped(words[9]);
            entry.from = wide(words[10], words[11]);
        }
    } else if (what == 0x08000015u) {
        const bool is_plain = words[9] == 0 && (words[10] | words[11]) == 0;
        if (quads != 4 || !is_plain || swapped(words[12]) != kAddBytes) return entry;
        entry.kind = kAdd;
        entry.bytes = kAddBytes;
        entry.number = swapped(words[8]);
        entry.from_key = swapped(words[13]);
        entry.from = wide(words[14], words[15]);
    } else {
        return entry;
    }
    entry.syndrome = kGood;
    return entry;
}

__device__ __forceinline__ bool is_inside(const Region* regions, u64 at, u32 bytes, u32 key) {
    for (int i = 0; i < 2; ++i) {
        const Region& region = regions[i];
        if (region.key != key) continue;
        return region.begin <= at && at <= region.end && bytes <= region.end - at;
    }
    return false;
}

/// Whether an entry may touch what it names.
__device__ __forceinline__ u32 check_entry(const Pair& pair, const Entry& entry) {
    if (entry.kind != kInline && !is_inside(pair.own, entry.from, entry.bytes, entry.from_key)) {
        return kProtection;
    }
    if (!is_inside(pair.there, entry.to, entry.bytes, entry.to_key)) return kRemoteAccess;
    return entry.kind == kAdd && entry.to % kAddBytes != 0 ? kOperation : kGood;
}

/// What a queue pair has said.
struct Heard {
    u64 rung;
    u32 recorded;
    u32 known;
};

/// Takes note of a doorbell and a record that were read in this order.
__device__ __forceinline__ u32 hear(Heard& heard, u64 doorbell, u32 record, u32 read, u32 pair,
                                    u32 slots) {
    const u32 before = heard.recorded;
    heard.recorded = recorded_of(record);
    if (heard.rung != 0 && ahead(heard.recorded, before) < 0) return kOperation;
    if (doorbell == heard.rung) {
        const i32 more = ahead(heard.recorded, heard.known);
        if (heard.rung != 0 && more > 0) heard.known += static_cast<u32>(more);
        return kGood;
    }
    heard.rung = doorbell;
    const u32 rung = swapped(static_cast<u32>(doorbell)) >> 8 & 0xffffu;
    const u32 next = heard.known + static_cast<u32>(ahead(rung, heard.known));
    const bool is_in_reach = static_cast<i32>(next - read) <= static_cast<i32>(slots);
    if (swapped(static_cast<u32>(doorbell >> 32)) >> 8 != pair || !is_in_reach) return kOperation;
    if (ahead(heard.recorded, next) < 0) return kOperation;
    if (ahead(rung, heard.known) > 0) heard.known = next;
    return kGood;
}

__device__ __forceinline__ Work* work_of(const Pair& pair, u32 number) {
    return pair.works + (number & (pair.slots - 1));
}

/// What is the same in all warps of a card.
struct Card {
    const Args& args;
    Shared& shared;
    int lane;

    __device__ __forceinline__ bool leads() const { return lane == 0; }

    /// Whether the card is to stop. All lanes get the same answer.
    __device__ __forceinline__ bool is_stopped() const {
        return __ballot_sync(kAllLanes, load_relaxed_gpu(&args.control->stop) != 0) != 0;
    }
};

/// The clock. A read of its two halves may fall between their changes, and then be far too late.
__device__ __forceinline__ u64 now_ns() {
    const u64 first = clock_ns(), second = clock_ns();
    return first < second ? first : second;
}

/// Numbers that look random.
__device__ __forceinline__ u32 mixed(u32 a, u32 b, u32 c) {
    u32 mix = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca77u ^ (c + 0x165667b1u) * 0xc2b2ae3du;
    mix ^= mix >> 15;
    mix *= 0x2c1b3c6du;
    return mix ^ mix >> 13;
}

// ---- Fronts ----

/// Whether this lane is the first one that has found a fault. If so, it tells the host of it.
__device__ __forceinline__ bool is_first_fault(const Card& card) {
    const bool is_first = fetch_add_relaxed_gpu(&card.args.control->faults, 1) == 0;
    return is_first && load_relaxed_sys(&card.args.fault->written) == 0;
}

__device__ __forceinline__ void report_entry(const Card& card, u32 pair, u32 number,
                                             const u32* words) {
    Fault* fault = card.args.fault;
    if (!is_first_fault(card)) return;
    fault->pair = pair;
    fault->number = number;
#pragma unroll
    for (int i = 0; i < kWords; ++i) fault->words[i] = words[i];
    store_release_sys(&fault->written, 1u);
}

__device__ __forceinline__ void report_told(const Card& card, u32 pair, u64 doorbell, u32 record,
                                            Heard before, u32 read) {
    Fault* fault = card.args.fault;
    store_relaxed_gpu(&card.args.control->has_nonsense, 1u);
    if (!is_first_fault(card)) return;
    fault->pair = pair;
    fault->is_told = 1;
    fault->doorbell = doorbell;
    fault->rung = before.rung;
    fault->record = record;
    fault->known = before.known;
    fault->recorded = before.recorded;
    fault->read = read;
    store_release_sys(&fault->written, 1u);
}

/// Keeps the link of a card busy for so many ticks; when that begins.
__device__ __forceinline__ u64 book(u64* free, u64 now, u64 took) {
    u64 seen = load_acquire_shared(free);
    for (;;) {
        const u64 begin = seen > now ? seen : now;
        const u64 found = compare_swap_shared(free, seen, begin + took);
        if (found == seen) return begin;
        seen = found;
    }
}

/// Takes so many numbers in a row.
__device__ __forceinline__ u64 reserve(u64* tail, u64 count) {
    u64 seen = load_acquire_shared(tail);
    for (;;) {
        const u64 found = compare_swap_shared(tail, seen, seen + count);
        if (found == seen) return seen;
        seen = found;
    }
}

template <class T>
__device__ __forceinline__ T sum_up_to(int lane, T value) {
    for (int step = 1; step < kLanes; step *= 2) {
        const T other = __shfl_up_sync(kAllLanes, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

/// Stores the bytes that an entry holds.
__device__ __forceinline__ void store_held(const u32* words, u64 to, u32 bytes) {
    const bool is_whole = ((to | bytes) & 3) == 0;
#pragma unroll
    for (u32 i = 0; i < 7; ++i) {
        const u32 word = words[9 + i];
        if (is_whole && 4 * i < bytes) reinterpret_cast<u32*>(to)[i] = word;
        for (u32 j = 4 * i; !is_whole && j < bytes && j < 4 * i + 4; ++j) {
            reinterpret_cast<u8*>(to)[j] = static_cast<u8>(word >> j % 4 * 8);
        }
    }
}

/// Reads up to 32 entries of a queue pair from `first` on, and puts them on their way. How many were read;
/// `failed`: the last one of them has failed.
__device__ __forceinline__ u32 take(const Card& card, u32 index, u32 first, u32 count,
                                    bool& failed) {
    const Args& args = card.args;
    const Pair& pair = args.pairs[index];
    const int lane = card.lane;
    const u32 number = first + static_cast<u32>(lane);
    const bool is_there = static_cast<u32>(lane) < count;
    u32 words[kWords] = {};
    Entry entry{};
    if (is_there) {
        const Quad* from = pair.entries + static_cast<u64>(number & (pair.slots - 1)) * 4;
        for (int i = 0; i < 4; ++i) {
            const Quad quad = load_quad(from + i);
            words[4 * i] = quad.x;
            words[4 * i + 1] = quad.y;
            words[4 * i + 2] = quad.z;
            words[4 * i + 3] = quad.w;
        }
        entry = read_entry(words, pair.number, number);
        if (entry.syndrome == kGood) entry.syndrome = check_entry(pair, entry);
    }
    const bool is_broken = is_there && pair.has_fault != 0 && number == pair.fault_at;
    if (is_broken && entry.syndrome == kGood) entry.syndrome = kRetries;
    const u32 bad = __ballot_sync(kAllLanes, is_there && entry.syndrome != kGood);
    failed = bad != 0;
    const u32 good = bad != 0 ? static_cast<u32>(__ffs(static_cast<int>(bad))) - 1 : count;
    const u32 taken = bad != 0 ? good + 1 : count;
    if (bad != 0 && static_cast<u32>(lane) == good) {
        if (entry.syndrome != kRetries) store_relaxed_gpu(&args.control->has_nonsense, 1u);
        report_entry(card, pair.id, number, words);
    }
    const bool goes = static_cast<u32>(lane) < good;

    const u64 took = goes ? entry.bytes * args.ticks_per_byte : 0, origin = card.shared.origin_ns;
    const u64 until = sum_up_to(lane, took);
    u64 begin = 0;
    if (lane == kLanes - 1) {
        const u64 now = (now_ns() - origin) << kTickBits;
        begin = book(&card.shared.free[pair.port], now, until);
    }
    begin = __shfl_sync(kAllLanes, begin, kLanes - 1);

    const bool moves = goes && entry.kind == kWrite;
    const u32 tickets = moves ? (entry.bytes + kTicketBytes - 1) / kTicketBytes : 0;
    if (static_cast<u32>(lane) < taken) {
        Work* work = work_of(pair, number);
        work->to = entry.to;
        work->from = entry.from;
        work->leaves = origin + ((begin + until - took) >> kTickBits);
        work->lands = origin + ((begin + until) >> kTickBits) + args.latency_ns;
        work->kind = goes ? entry.kind : kFailed;
        work->bytes = entry.kind == kAdd ? entry.number : entry.bytes;
        work->tickets = tickets;
        work->moved = 0;
        work->says_done = goes ? (entry.says_done ? 1 : 0) : entry.syndrome;
    }
    if (goes && entry.kind == kInline) store_held(words, entry.to, entry.bytes);
    const u32 upto = sum_up_to(lane, tickets);
    u64 base = 0;
    if (lane == kLanes - 1 && upto != 0) base = reserve(&card.shared.tail, upto);
    base = __shfl_sync(kAllLanes, base, kLanes - 1) + upto - tickets;
    for (u32 i = 0; i < tickets; ++i) {
        u64* slot = args.tickets + (base + i) % kTickets;
        // A mover has taken the ticket that was here.
        while (load_acquire_gpu(slot) != 0) {}
        const u64 ticket = static_cast<u64>(index + 1) << 52 | static_cast<u64>(i) << 32 | number;
        fetch_add_release_gpu(slot, ticket);
    }
    __syncwarp();
    State* state = pair.state;
    if (card.leads()) add_release_gpu(&state->told, taken);
    const u64 bytes = sum_up_to(lane, goes ? static_cast<u64>(entry.bytes) : 0);
    if (lane == kLanes - 1) {
        state->entries += taken;
        state->bytes += bytes;
        state->read = number - static_cast<u32>(lane) + taken;
    }
    __syncwarp();
    return taken;
}

/// Listens to every `fronts`-th queue pair, a lane to each.
__device__ __forceinline__ void run_front(const Card& card, u32 own) {
    const Args& args = card.args;
    const u32 index = own + args.fronts * static_cast<u32>(card.lane);
    const bool has_one = index < args.pair_count;
    const Pair* pair = has_one ? args.pairs + index : nullptr;
    State* state = has_one ? pair->state : nullptr;
    Heard heard{};
    u32 read = 0, doorbells = 0;
    bool failed = false;
    if (has_one) {
        heard = Heard{state->rung, state->recorded, state->known};
        read = state->read;
        doorbells = state->doorbells;
        failed = state->has_failed != 0;
    }
    while (!card.is_stopped()) {
        if (has_one) {
            u64 doorbell = load_relaxed_sys(pair->doorbell);
            u32 record = load_relaxed_sys(pair->record);
            if (doorbell != heard.rung || recorded_of(record) != heard.recorded) {
                // What was written before the doorbell and the record is seen behind these.
                doorbell = load_acquire_sys(pair->doorbell);
                record = load_acquire_sys(pair->record);
                doorbells += doorbell != heard.rung ? 1 : 0;
                const Heard before = heard;
                const u32 wrong = hear(heard, doorbell, record, read, pair->number, pair->slots);
                if (wrong != kGood && !failed) {
                    report_told(card, pair->id, doorbell, record, before, read);
                }
                if (failed) read = heard.known;
                store_relaxed_gpu(&state->known, heard.known);
                store_relaxed_gpu(&state->doorbells, doorbells);
            }
        }
        __syncwarp();
        const bool has_more = has_one && !failed && read != heard.known;
        for (u32 rest = __ballot_sync(kAllLanes, has_more); rest != 0; rest &= rest - 1) {
            const int owner = __ffs(static_cast<int>(rest)) - 1;
            const u32 first = __shfl_sync(kAllLanes, read, owner);
            const u32 known = __shfl_sync(kAllLanes, heard.known, owner);
            const u32 count = known - first < kLanes ? known - first : kLanes;
            const u32 which = own + args.fronts * static_cast<u32>(owner);
            bool fails = false;
            const u32 taken = take(card, which, first, count, fails);
            if (card.lane == owner) {
                read = fails ? heard.known : read + taken;
                failed = fails;
            }
        }
        __syncwarp();
    }
    if (has_one) {
        state->rung = heard.rung;
        state->recorded = heard.recorded;
        state->read = read;
        state->has_failed = failed ? 1 : 0;
    }
    __syncwarp();
    if (card.leads()) add_release_gpu(&args.control->fronts_gone, 1);
}

// ---- Movers ----

/// Copies `bytes` by all lanes of a warp, from byte `turn` on and then those before it.
template <class Unit>
__device__ __forceinline__ void copy(u64 to, u64 from, u32 bytes, u32 turn, int lane) {
    constexpr u32 kAtOnce = 8;
    const u32 count = bytes / sizeof(Unit), skip = turn / sizeof(Unit);
    for (u32 at = static_cast<u32>(lane); at < count; at += kLanes * kAtOnce) {
        Unit units[kAtOnce];
        u32 places[kAtOnce];
#pragma unroll
        for (u32 i = 0; i < kAtOnce; ++i) {
            const u32 place = at + i * kLanes;
            if (place >= count) continue;
            places[i] = place + skip < count ? place + skip : place + skip - count;
            units[i] = reinterpret_cast<const Unit*>(from)[places[i]];
        }
#pragma unroll
        for (u32 i = 0; i < kAtOnce; ++i) {
            if (at + i * kLanes < count) reinterpret_cast<Unit*>(to)[places[i]] = units[i];
        }
    }
}

/// Carries out the tickets from `own` on, of which there are as many movers in between.
__device__ __forceinline__ void run_mover(const Card& card, u32 own, u32 movers) {
    const Args& args = card.args;
    for (u32 at = own;; at += movers) {
        u64* slot = args.tickets + at % kTickets;
        u64 ticket = 0;
        for (u32 look = 1; card.leads() && (ticket = load_acquire_gpu(slot)) == 0; ++look) {
            if (look % kLooks != 0) continue;
            const bool is_last = load_acquire_gpu(&args.control->fronts_gone) == args.fronts;
            if (is_last && (ticket = load_acquire_gpu(slot)) == 0) break;
        }
        __syncwarp();
        ticket = __shfl_sync(kAllLanes, ticket, 0);
        if (ticket == 0) return;
        if (card.leads()) take_relaxed_gpu(slot);
        const u32 index = static_cast<u32>(ticket >> 52) - 1, number = static_cast<u32>(ticket);
        const u32 begin = (static_cast<u32>(ticket >> 32) & 0xfffffu) * kTicketBytes;
        Work* work = work_of(args.pairs[index], number);
        const u32 left = work->bytes - begin, bytes = left < kTicketBytes ? left : kTicketBytes;
        const u64 to = work->to + begin, from = work->from + begin;
        const u32 random = mixed(args.seed, index, number);
        // Every other put is late.
        const bool is_late = args.seed != 0 && (random & 1) != 0;
        const u64 leaves = work->leaves + (is_late ? random >> 1 & (kLateNs - 1) : 0);
        while (card.leads() && now_ns() < leaves) {}
        __syncwarp();
        const u32 turn = is_late ? (random >> 8) % bytes : 0;
        const u64 low = to | from | bytes;
        if ((low & 15) == 0) {
            copy<Quad>(to, from, bytes, turn, card.lane);
        } else if ((low & 3) == 0) {
            copy<u32>(to, from, bytes, turn, card.lane);
        } else {
            copy<u8>(to, from, bytes, turn, card.lane);
        }
        __syncwarp();
        // The back adds for what lies behind.
        if (card.leads()) add_release_gpu(&work->moved, 1);
    }
}

// ---- Backs ----

/// Writes a completion over the one before, whose last word was `word`; the new last word.
__device__ __forceinline__ u32 complete(const Card& card, const Pair& pair, u32 number,
                                        u32 syndrome, u32 word) {
    constexpr int kSyndromeAt = 13, kNumberAt = 14, kLast = kWords - 1;
    const u32 swept = card.lane == kSyndromeAt ? syndrome << 24 : 0;
    const u32 told = card.lane == kNumberAt ? swapped(pair.number) : swept;
    if (card.lane < kLast) pair.completion[card.lane] = told;
    const u32 kind = syndrome == kGood ? 0 : 0xdu;
    const u32 last = (number >> 8 & 0xffu) | (number & 0xffu) << 8 | kind << 28;
    __syncwarp();
    // Slots and sources may be written again. A sum, as there is no store that releases to this GPU.
    if (card.leads()) add_release_gpu(pair.completion + kLast, last - word);
    return last;
}

/// Adds for the lanes of `adds`, in the order of the lanes.
__device__ __forceinline__ void add(const Card& card, const Pair& pair, u32 adds,
                                    const Work& work) {
    const bool is_one = (adds >> card.lane & 1) != 0;
    u32* to = reinterpret_cast<u32*>(work.to);
    const u64 place = (work.to - pair.sums_begin) / kAddBytes;
    const bool is_known = is_one && work.to >= pair.sums_begin && place < pair.sums_count;
    u32 old = 0;
    if (is_one) old = is_known ? load_relaxed_gpu(pair.sums + place) : load_relaxed_sys(to);
    __syncwarp();
    // M1: whoever sees the sum sees all that has landed before it.
    if (is_one) add_release_sys(to, work.bytes);
    if (is_known) add_relaxed_gpu(pair.sums + place, work.bytes);
    bool is_overwritten = false;
    for (u32 rest = adds; rest != 0; rest &= rest - 1) {
        const int other = __ffs(static_cast<int>(rest)) - 1;
        const u64 other_to = __shfl_sync(kAllLanes, work.to, other);
        const u64 other_from = __shfl_sync(kAllLanes, work.from, other);
        const u32 number = __shfl_sync(kAllLanes, work.bytes, other);
        if (other < card.lane && other_to == work.to) old += number;
        if (other > card.lane && other_from == work.from) is_overwritten = true;
    }
    if (is_one && !is_overwritten) {
        for (u32 i = 0; i < kAddBytes; ++i) {
            reinterpret_cast<u8*>(work.from)[i] = static_cast<u8>(old >> i * 8);
        }
    }
    __syncwarp();
}

/// How far a back is with a queue pair.
struct Behind {
    u32 settled, completed, word;
    bool is_broken;
};

/// Settles up to 32 entries of those before `told`, and completes what has been answered.
__device__ __forceinline__ void settle(const Card& card, const Pair& pair, u32 told, Behind& at) {
    const u32 lane = static_cast<u32>(card.lane);
    const u64 now = now_ns();
    Work work{};
    bool is_ready = false;
    if (lane < told - at.settled) {
        Work* own = work_of(pair, at.settled + lane);
        work.to = own->to;
        work.from = own->from;
        work.lands = own->lands;
        work.kind = own->kind;
        work.bytes = own->bytes;
        const bool is_over = work.kind != kWrite || load_acquire_gpu(&own->moved) == own->tickets;
        is_ready = is_over && work.kind != kFailed && (work.kind != kAdd || now >= work.lands);
    }
    const u32 unready = __ballot_sync(kAllLanes, !is_ready);
    const u32 count = unready != 0 ? static_cast<u32>(__ffs(static_cast<int>(unready))) - 1 : kLanes;
    const u32 adds = __ballot_sync(kAllLanes, lane < count && work.kind == kAdd);
    if (adds != 0) add(card, pair, adds, work);
    at.settled += count;

    bool is_answered = false;
    u32 says_done = 0;
    if (lane < at.settled - at.completed) {
        const Work* own = work_of(pair, at.completed + lane);
        is_answered = now >= own->lands + card.args.latency_ns;
        says_done = own->says_done;
    }
    const u32 open = __ballot_sync(kAllLanes, !is_answered);
    const u32 over = open != 0 ? static_cast<u32>(__ffs(static_cast<int>(open))) - 1 : kLanes;
    const u32 said = __ballot_sync(kAllLanes, lane < over && says_done != 0);
    if (said != 0) {
        const u32 last = kLanes - 1 - static_cast<u32>(__clz(static_cast<int>(said)));
        at.word = complete(card, pair, at.completed + last, kGood, at.word);
    }
    at.completed += over;
    if (at.completed == at.settled && at.settled != told) {
        const Work* own = work_of(pair, at.settled);
        if (own->kind == kFailed) {
            at.word = complete(card, pair, at.settled, own->says_done, at.word);
            at.is_broken = true;
        }
    }
    __syncwarp();
}

/// Ends the entries of every `backs`-th queue pair, a lane to each.
__device__ __forceinline__ void run_back(const Card& card, u32 own) {
    const Args& args = card.args;
    const u32 index = own + args.backs * static_cast<u32>(card.lane);
    const bool has_one = index < args.pair_count;
    State* state = has_one ? args.pairs[index].state : nullptr;
    Behind at{};
    u32 flushed = 0;
    if (has_one) {
        at = Behind{state->settled, state->completed, state->word, state->is_broken != 0};
        flushed = state->flushed;
    }
    while (!card.is_stopped()) {
        const u32 told = has_one ? load_acquire_gpu(&state->told) : at.completed;
        const u32 known = has_one && at.is_broken ? load_acquire_gpu(&state->known) : flushed;
        __syncwarp();
        const bool is_busy = at.is_broken ? known != flushed : told != at.completed;
        for (u32 rest = __ballot_sync(kAllLanes, is_busy); rest != 0; rest &= rest - 1) {
            const int owner = __ffs(static_cast<int>(rest)) - 1;
            const u32 which = own + args.backs * static_cast<u32>(owner);
            Behind now{__shfl_sync(kAllLanes, at.settled, owner),
                       __shfl_sync(kAllLanes, at.completed, owner),
                       __shfl_sync(kAllLanes, at.word, owner),
                       __shfl_sync(kAllLanes, at.is_broken ? 1 : 0, owner) != 0};
            const u32 until = __shfl_sync(kAllLanes, told, owner);
            const u32 end = __shfl_sync(kAllLanes, known, owner);
            const bool flushes = now.is_broken;
            if (flushes) {
                now.word = complete(card, args.pairs[which], end - 1, kFlushed, now.word);
            } else {
                settle(card, args.pairs[which], until, now);
            }
            if (card.lane != owner) continue;
            at = now;
            if (at.is_broken) flushed = flushes ? end : at.settled + 1;
            state->settled = at.settled;
            state->word = at.word;
            store_relaxed_gpu(&state->completed, at.completed);
            store_relaxed_gpu(&state->flushed, flushed);
            store_relaxed_gpu(&state->is_broken, at.is_broken ? 1u : 0u);
        }
        __syncwarp();
    }
}

/// Whether a queue pair has nothing left to do.
__device__ __forceinline__ bool is_idle(const Pair& pair) {
    const State* state = pair.state;
    const u32 record = recorded_of(load_relaxed_sys(pair.record));
    const bool is_broken = load_relaxed_gpu(&state->is_broken) != 0;
    const u32 ended = load_relaxed_gpu(is_broken ? &state->flushed : &state->completed);
    return record == (ended & 0xffffu);
}

/// Stops the card when the host says so, or at once, when it has nothing left to do: ranks of other processes may wait for
/// entries that no kernel here waits for.
__device__ __forceinline__ void run_warden(const Card& card) {
    const Args& args = card.args;
    for (bool is_over = false; !is_over;) {
        const bool is_told = static_cast<i32>(load_acquire_sys(args.stop) - args.start) >= 0;
        if (args.until_idle != 0 || __ballot_sync(kAllLanes, is_told) != 0) {
            bool is_quiet = true;
            for (u32 at = static_cast<u32>(card.lane); at < args.pair_count; at += kLanes) {
                is_quiet = is_quiet && is_idle(args.pairs[at]);
            }
            is_over = __ballot_sync(kAllLanes, !is_quiet) == 0;
            is_over = is_over || load_relaxed_gpu(&args.control->has_nonsense) != 0;
        }
        is_over = __ballot_sync(kAllLanes, is_over) != 0;
    }
    if (card.leads()) store_relaxed_gpu(&args.control->stop, 1u);
    __syncwarp();
}

}  // namespace card

extern "C" __global__ void __launch_bounds__(768, 1) card_run(const __grid_constant__ card::Args args) {
    EP_SHARED(card::Shared, shared);
    for (int i = static_cast<int>(threadIdx.x); i < card::kPortsMax; i += static_cast<int>(blockDim.x)) {
        shared.free[i] = 0;
    }
    if (threadIdx.x == 0) {
        shared.origin_ns = card::now_ns();
        shared.tail = 0;
    }
    __syncthreads();
    const card::Card card{args, shared, ep::lane_index()};
    const ep::u32 warps = blockDim.x / card::kLanes;
    const ep::u32 own = blockIdx.x * warps + threadIdx.x / card::kLanes;
    const ep::u32 others = 1 + args.fronts + args.backs;
    if (own == 0) {
        card::run_warden(card);
    } else if (own <= args.fronts) {
        card::run_front(card, own - 1);
    } else if (own < others) {
        card::run_back(card, own - 1 - args.fronts);
    } else {
        card::run_mover(card, own - others, gridDim.x * warps - others);
    }
}
