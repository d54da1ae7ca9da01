// Queues of a network that nobody empties: those of the processor, and those of a card, of which each lane has some to peers
// of its own. The host knows what each check leaves in `out`; see net_queues.rs, which has the checks in the same order.
#include <ep/ibgda.cuh>

namespace net_queues {

using namespace lone_net;

constexpr int kRank = 20;
constexpr int kFew = 8;  // slots
constexpr int kPairs = kPeers * kQueues;
constexpr int kPair = 4 * kQueues + 1;  // that of queue 1 to rank 4

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// What a card has of queue pairs.
struct Cards {
    ep::QueuePair pairs[kPairs];
    ep::Quad entries[kPairs][kFew * 4];
    ep::u64 doorbells[kPairs];
    ep::u32 records[kPairs];
    ep::u32 done[kPairs];
};

struct Memory {
    Own own;
    Cards cards;
};

/// The word of a completion, of the last of `count` entries.
__device__ __forceinline__ ep::u32 completed(ep::u32 count) {
    const ep::u32 last = count - 1;
    return (last & 0xff) << 8 | (last >> 8 & 0xff);
}
constexpr ep::u32 kNone = 0xfu << 28;
constexpr ep::u32 kError = 0xdu << 28;

__device__ __forceinline__ ep::Group begin(const ep::Group& given, Memory& memory, int number) {
    const ep::Group group = play(given, memory.own, number, kRank);
    if (ep::lane_index() == 0) memory.own.net.slots = kFew;
    __syncwarp();
    return group;
}

/// Begins group `number`, and makes queue pairs, each of which has told a card of `count` entries. The card has carried
/// out the entries of all pairs but those to this rank.
__device__ __forceinline__ ep::Group begin_cards(const ep::Group& given, Memory& memory, int number, ep::u32 count) {
    const ep::Group group = begin(given, memory, number);
    Cards& cards = memory.cards;
    clear(cards);
    for (int i = ep::lane_index(); i < kPairs; i += ep::kLanes) {
        const ep::u32 own = static_cast<ep::u32>(i);
        ep::QueuePair& pair = cards.pairs[i];
        pair.entries = cards.entries[i];
        pair.done = cards.done + i;
        pair.record = cards.records + i;
        pair.doorbell = cards.doorbells + i;
        pair.data = 0x1122334400000000 + (ep::u64{own} << 20);
        pair.data_key = 0xa1b2c300 + own;
        pair.own_data_key = 0x0a0b0c0d;
        pair.number = 0x123400 + own;
        pair.claimed = count, pair.written = count;
        cards.records[i] = 0x77;
        cards.done[i] = i / kQueues == kRank ? kNone : completed(count);
    }
    if (ep::lane_index() == 0) memory.own.net.pairs = cards.pairs;
    __syncwarp();
    return group;
}

/// A queue of the processor in which some are claimed and some taken: lanes ask for one more each.
__device__ __forceinline__ void room(const ep::Group& given, Memory& memory, int number, ep::u32 claimed,
                                     ep::u32 taken, ep::u32 lanes, ep::i64* out) {
    const ep::Group group = begin(given, memory, number);
    Own& own = memory.own;
    if (ep::lane_index() == 0) own.claimed[1] = claimed, own.progress[1].taken = taken;
    __syncwarp();
    ep::Team team(group, ep::Call{7, false, true}, 3);
    ep::NetQueue queue(team, &own.net, 1);
    const ep::u32 lane = static_cast<ep::u32>(team.lane);
    const bool put = queue.put(team.lane + 1, lane * 16, lane * 32, (lanes >> lane & 1) != 0 ? 8 + lane : 0);
    if (team.lane == 7) out[0] = put ? 1 : 0, given_up::put(out + 1, team, own);
    dump(own, 1, out + 20);
}

inline __device__ __noinline__ void rooms(const ep::Group& given, Memory& memory, ep::i64* out) {
    const ep::u32 claimed[6] = {8, 8, 8, 8, 0xc0000000, 0xc0000000};
    const ep::u32 taken[6] = {1, 0, 1, 2, 0xbffffff8, 0xbffffff9}, lanes[6] = {16, 16, 24, 3, 16, 16};
    for (int i = 0; i < 6; ++i) room(given, memory, i, claimed[i], taken[i], lanes[i], out + i * 600);
}

/// Whether a warp is done with a queue of which it has asked for something, or not, and what was done of that.
inline __device__ __noinline__ void drains(const ep::Group& given, Memory& memory, ep::i64* out) {
    Own& own = memory.own;
    const ep::u32 done[5] = {0x80000005, 4, 3, 0, 0};
    for (int i = 0; i < 5; ++i) {
        const ep::Group group = begin(given, memory, i);
        if (ep::lane_index() == 0) {
            own.claimed[0] = own.claimed[1] = 3;
            own.progress[1].done = done[i];
        }
        __syncwarp();
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::NetQueue queue(team, &own.net, i == 3 ? 0 : 1);
        team.stopped = i == 4;
        const bool put = i > 0 && queue.put(2, 0, 0, team.leader() ? 8 : 0);
        queue.turn_to(1);
        const bool drained = queue.drain();
        if (team.lane == 7) out[i * 600] = (put ? 2 : 0) + (drained ? 1 : 0), given_up::put(out + i * 600 + 1, team, own);
        dump(own, 1, out + i * 600 + 20);
    }
}

__device__ __forceinline__ ep::u32 swapped(ep::u32 word) {
    return word << 24 | (word & 0xff00) << 8 | (word >> 8 & 0xff00) | word >> 24;
}

/// An entry; where it names bytes of this rank, these count from the data on.
__device__ __forceinline__ void dump_entry(const ep::u32* words, const Own& own, ep::i64* out) {
    for (int i = 0; i < 16; ++i) out[i] = words[i];
    const bool holds = (words[8] & 0x80) != 0;
    if (words[0] == 0 || holds) return;
    const ep::u64 address = ep::stamped(swapped(words[10]), swapped(words[11]));
    out[10] = static_cast<ep::i64>(address - reinterpret_cast<ep::u64>(own.data));
    out[11] = 0;
}

/// What a card knows of a queue pair, and the entries of it.
__device__ __forceinline__ void dump_pair(const Memory& memory, int peer, int queue, ep::i64* out) {
    __syncwarp();
    const int pair = peer * kQueues + queue, lane = ep::lane_index();
    const Cards& cards = memory.cards;
    const ep::u32* words = reinterpret_cast<const ep::u32*>(cards.entries[pair]);
    if (lane < kFew) dump_entry(words + lane * 16, memory.own, out + 4 + lane * 16);
    if (lane == 3) {
        out[0] = cards.pairs[pair].claimed;
        out[1] = static_cast<ep::i64>(cards.pairs[pair].written);
        out[2] = cards.records[pair];
        out[3] = static_cast<ep::i64>(cards.doorbells[pair]);
    }
    __syncwarp();
}

/// Puts of as many bytes as an entry holds, or fewer or more, from where it may hold them or not.
inline __device__ __noinline__ void card_puts(const ep::Group& given, Memory& memory, ep::i64* out) {
    const ep::Group group = begin_cards(given, memory, 0, 0);
    const ep::u32 bytes[10] = {4, 12, 16, 28, 32, 6, 30, 8, 24, 13};
    ep::u32* data = reinterpret_cast<ep::u32*>(memory.own.data);
    for (int i = ep::lane_index(); i < 256; i += ep::kLanes) data[i] = static_cast<ep::u32>(i) * 0x01020301;
    __syncwarp();
    ep::Team team(group, ep::Call{7, false, true}, 3);
    ep::PairQueue queue(team, &memory.own.net, 1);
    const ep::u64 lane = static_cast<ep::u64>(team.lane);
    const ep::u64 to = lane * 4096 + 4, from = lane * 64 + (lane == 7 ? 2 : 0);
    const bool put = queue.put(team.lane, to, from, lane < 10 ? bytes[lane] : 0);
    if (team.lane == 7) out[0] = put ? 1 : 0, given_up::put(out + 1, team, memory.own);
    for (int i = 0; i < 10; ++i) dump_pair(memory, i, 1, out + 20 + i * 140);
}

/// Entries for which a card has room or not.
inline __device__ __noinline__ void card_rooms(const ep::Group& given, Memory& memory, ep::i64* out) {
    const ep::u32 counts[5] = {8, 8, 8, 0x1ffff, 40000};
    const ep::u32 done[5] = {kNone, completed(1), kError | completed(1), completed(0x1fff8), completed(1)};
    for (int i = 0; i < 5; ++i) {
        const ep::Group group = begin_cards(given, memory, i, counts[i]);
        if (ep::lane_index() == 0) {
            memory.cards.done[kPair] = done[i];
            if (i == 4) memory.cards.pairs[kPair].written = 0;
        }
        __syncwarp();
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::PairQueue queue(team, &memory.own.net, 1);
        const bool put = queue.put(4, 0, 0, team.lane == 2 ? 32 : 0);
        ep::i64* one = out + i * 200;
        if (team.lane == 7) one[0] = put ? 1 : 0, given_up::put(one + 1, team, memory.own);
        dump_pair(memory, 4, 1, one + 20);
    }
}

/// What a warp does before it looks whether a card is done.
enum class Before { kPut, kNothing, kEmptyPut, kSameQueue, kOtherQueue, kStop };

/// Whether a card is done with what was claimed of a queue pair, of which it was told and has said so much.
struct Drain {
    Before before;
    int peer;
    ep::u32 claimed, told, done;
};

inline __device__ __noinline__ void card_drains(const ep::Group& given, Memory& memory, ep::i64* out) {
    const Drain drains[14] = {
        {Before::kPut, 1, 5, 5, completed(5)},
        {Before::kPut, 32, 5, 5, completed(4)},
        {Before::kPut, 0, 5, 4, completed(4)},
        {Before::kPut, 32, 5, 20005, completed(20005)},
        {Before::kPut, 32, 50, 58, completed(40050)},
        {Before::kPut, 32, 50, 57, completed(49)},
        {Before::kPut, 31, 5, 5, kError | completed(5)},
        {Before::kNothing, 0, 5, 5, completed(4)},
        {Before::kEmptyPut, 3, 5, 5, completed(4)},
        {Before::kSameQueue, 3, 5, 5, completed(4)},
        {Before::kOtherQueue, 3, 5, 5, completed(4)},
        {Before::kStop, 3, 5, 5, completed(5)},
        {Before::kPut, 32, 5, 5, completed(5)},
        // More than 16 bits tell apart have been claimed by warps that wait for room.
        {Before::kPut, 32, 40000, 5, completed(5)},
    };
    for (int i = 0; i < 14; ++i) {
        const Drain& it = drains[i];
        const ep::Group group = begin_cards(given, memory, i, 2);
        Cards& cards = memory.cards;
        if (ep::lane_index() == 0) {
            ep::QueuePair& pair = cards.pairs[it.peer * kQueues + 1];
            pair.claimed = it.claimed, pair.written = it.told;
            cards.done[it.peer * kQueues + 1] = it.done;
            cards.pairs[kRank * kQueues + 1].claimed = 9;
            // What is put is done at once.
            cards.done[2 * kQueues] = cards.done[2 * kQueues + 1] = completed(3);
        }
        __syncwarp();
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::PairQueue queue(team, &memory.own.net, it.before == Before::kOtherQueue ? 0 : 1);
        team.stopped = it.before == Before::kStop;
        const ep::u32 bytes = it.before == Before::kEmptyPut ? 0 : 8;
        const bool put = it.before != Before::kNothing && queue.put(2, 0, 0, team.lane == 5 ? bytes : 0);
        if (it.before == Before::kSameQueue || it.before == Before::kOtherQueue) queue.turn_to(1);
        const bool drained = queue.drain();
        ep::i64* one = out + i * 200;
        if (team.lane == 7) one[0] = (put ? 2 : 0) + (drained ? 1 : 0), given_up::put(one + 1, team, memory.own);
        dump_pair(memory, 2, 1, one + 20);
    }
}

/// The state in which other lanes have left a queue pair, and how many lanes put one entry each.
struct Others {
    ep::u32 claimed, told;
    ep::u64 more;  // in `written`
    ep::u32 slots, lanes;
};

/// Entries that are not the first one of which the card was not told, those behind which others are written, and those of
/// several lanes; at last an entry for which `written` has no bit.
inline __device__ __noinline__ void card_runs(const ep::Group& given, Memory& memory, ep::i64* out) {
    const Others others[6] = {
        {13, 12, 0, kFew, 1}, {15, 15, ep::u64{1} << (32 + 16), kFew, 1}, {63, 63, ep::u64{1} << 32, kFew, 1},
        {12, 12, 0, kFew, 3}, {64, 33, 0, 64, 1}, {64, 32, 0, 64, 1},
    };
    for (int i = 0; i < 6; ++i) {
        const Others& it = others[i];
        const ep::Group group = begin_cards(given, memory, i, it.claimed);
        if (ep::lane_index() == 0) {
            memory.own.net.slots = it.slots;
            memory.cards.pairs[kPair].written = it.told + it.more;
        }
        __syncwarp();
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::PairQueue queue(team, &memory.own.net, 1);
        const bool put = queue.put(4, 0, 0, static_cast<ep::u32>(team.lane) < it.lanes ? 32 : 0);
        ep::i64* one = out + i * 200;
        if (team.lane == 7) one[0] = put ? 1 : 0, given_up::put(one + 1, team, memory.own);
        dump_pair(memory, 4, 1, one + 20);
    }
}

/// Whose turn it is, of two warps: in a word of the one that says so.
__device__ __forceinline__ ep::u32* turn_of(const ep::Group& given, int warp) {
    return reinterpret_cast<ep::u32*>(given.window) + warp;
}

__device__ __forceinline__ void wait_turn(const ep::Group& given, ep::u32 turn, int warp = 0) {
    while (__shfl_sync(ep::kAllLanes, ep::load_acquire_gpu(turn_of(given, warp)), 0) != turn) {
    }
    __syncwarp();
}

__device__ __forceinline__ void set_turn(const ep::Group& given, ep::u32 turn, int warp = 0) {
    __syncwarp();
    if (ep::lane_index() == 0) ep::store_release_sys(turn_of(given, warp), turn);
}

/// A source is written again when far more has been done since it was put: the other warp has read it in the place of the
/// card, and told of all entries that came since.
inline __device__ __noinline__ void card_goes_on(const ep::Group& given, Memory& memory, int warp, ep::i64* out) {
    ep::u32* source = reinterpret_cast<ep::u32*>(memory.own.data);
    for (ep::u32 turn = 1; turn <= 24; ++turn) {
        ep::i64* one = out + turn * 2;
        if (warp == 1) {
            wait_turn(given, turn);
            if (ep::lane_index() == 0) {
                one[1] = source[0];
                ep::fetch_add_acq_rel_gpu(&memory.cards.pairs[kPair].written, 20);
            }
            set_turn(given, turn, 1);
            continue;
        }
        ep::Group group = begin_cards(given, memory, 0, 2);
        group.timeout_ns = ~0ull;
        if (ep::lane_index() == 0) source[0] = 5;
        __syncwarp();
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::PairQueue queue(team, &memory.own.net, 1);
        queue.put(4, 0, 0, team.leader() ? 32 : 0);
        set_turn(given, turn);
        const bool drained = queue.drain();
        if (team.leader()) source[0] = 6, one[0] = drained ? 1 : 0;
        wait_turn(given, turn, 1);
    }
    if (warp == 0) set_turn(given, 0), set_turn(given, 0, 1);
}

/// An entry behind which the other warp has claimed the next one before the card has room.
inline __device__ __noinline__ void card_is_told(const ep::Group& given, Memory& memory, int warp, ep::i64* out) {
    const ep::u32 entries[2] = {13, 15};
    ep::QueuePair& pair = memory.cards.pairs[kPair];
    for (ep::u32 i = 0; i < 2; ++i) {
        if (warp == 1) {
            wait_turn(given, i + 1);
            if (ep::lane_index() != 0) continue;
            while (ep::load_relaxed_gpu(&pair.claimed) != entries[i] + 1) {
            }
            ep::fetch_add_relaxed_gpu(&pair.claimed, 1);
            ep::store_release_sys(memory.cards.done + kPair, completed(entries[i]));
            continue;
        }
        ep::Group group = begin_cards(given, memory, 0, entries[i]);
        group.timeout_ns = ~0ull;
        if (ep::lane_index() == 0) memory.cards.done[kPair] = completed(entries[i] - kFew);
        set_turn(given, i + 1);
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::PairQueue queue(team, &memory.own.net, 1);
        queue.put(4, 0, 0, team.leader() ? 32 : 0);
        dump_pair(memory, 4, 1, out + i * 200);
    }
    if (warp == 0) set_turn(given, 0);
}

/// The other warp reports that the card is almost done. Then it adds so many entries to `written` that an older report
/// would pass for one of more entries. Last, it reports that there is room, or that all is done.
inline __device__ __noinline__ void card_is_late(const ep::Group& given, Memory& memory, int warp, ep::i64* out) {
    constexpr ep::u32 kClaimed = 40000;
    constexpr int kRounds = 24;
    ep::u32* source = reinterpret_cast<ep::u32*>(memory.own.data);
    ep::QueuePair& pair = memory.cards.pairs[kPair];
    for (int i = 0; i < kRounds; ++i) {
        const ep::u32 turn = static_cast<ep::u32>(i) + 1;
        const bool puts = i % 2 == 0;
        if (warp == 1) {
            wait_turn(given, turn);
            if (ep::lane_index() == 0) {
                const ep::u32 wanted = puts ? kClaimed - kFew + 1 : kClaimed;
                ep::store_release_sys(memory.cards.done + kPair, completed(wanted - 1));
                ep::fetch_add_acq_rel_gpu(&pair.written, kClaimed - 5);
                // Until the other warp waits again.
                for (int look = 0; look < 3000; ++look) ep::load_relaxed_sys(memory.cards.records + kPair);
                out[i] = puts ? memory.cards.entries[kPair][0].x : source[0];
                ep::store_release_sys(memory.cards.done + kPair, completed(wanted));
            }
            set_turn(given, turn, 1);
            continue;
        }
        ep::Group group = begin_cards(given, memory, 0, 5);
        group.timeout_ns = ~0ull;
        if (ep::lane_index() == 0) {
            pair.claimed = kClaimed, source[0] = 5;
            memory.cards.done[2 * kQueues + 1] = completed(6);
        }
        set_turn(given, turn);
        ep::Team team(group, ep::Call{7, false, true}, 3);
        ep::PairQueue queue(team, &memory.own.net, 1);
        const bool is_done = queue.put(puts ? 4 : 2, 0, 0, team.leader() ? 32 : 0) && (puts || queue.drain());
        if (team.leader()) source[0] = 6, out[100 + i] = is_done ? 1 : 0;
        wait_turn(given, turn, 1);
    }
    if (warp == 0) set_turn(given, 0), set_turn(given, 0, 1);
}

}  // namespace net_queues

extern "C" __global__ void __launch_bounds__(2 * 32)
    net_queues_of(const __grid_constant__ net_queues::Args args) {
    using namespace net_queues;
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    const auto& group = args.group;
    Memory& memory = *reinterpret_cast<Memory*>(group.window + 128);
    if (warp == 0 || args.check >= 6) {
        switch (args.check) {
            case 0: rooms(group, memory, args.out); break;
            case 1: drains(group, memory, args.out); break;
            case 2: card_puts(group, memory, args.out); break;
            case 3: card_rooms(group, memory, args.out); break;
            case 4: card_drains(group, memory, args.out); break;
            case 5: card_runs(group, memory, args.out); break;
            case 6: card_goes_on(group, memory, warp, args.out); break;
            case 7: card_is_told(group, memory, warp, args.out); break;
            case 8: card_is_late(group, memory, warp, args.out); break;
            default: break;
        }
    }
    ep::leave(args.group, call);
}
