// Messages in words between two ranks: fields as they were written, words that come late, a word that never comes,
// slots at the end of memory, and rows as words. One block reads and the other one brings what the other rank waits for. The host knows
// what each check leaves in `out`; see words.rs, which has the checks in the same order.
#include <ep/as_words.cuh>
#include <ep/ptx.cuh>
#include <ep/slots.cuh>
#include <ep/sync.cuh>

namespace words {

constexpr int kRanks = 2;
constexpr int kRoom = 1 << 15;  // numbers in `out`

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// Messages of so many words, `kAt` into the window, one behind the other.
template <int kPeers_, int kWords_, bool kSkipsOwn_, ep::u64 kAt, ep::i64 kBytes = kWords_ * 8>
struct Slots {
    static constexpr int kChannel = 4;
    static constexpr int kPeers = kPeers_;
    static constexpr int kEpochs = 2;
    static constexpr int kWords = kWords_;
    static constexpr ep::i64 kSlotBytes = kBytes;
    static constexpr ep::u64 kSlots = kAt;
    static constexpr bool kSkipsOwn = kSkipsOwn_;
};

// Lanes that share a source, with two words each or several; and more sources than lanes, with more words than a lane
// looks at in one turn.
using Two = Slots<2, 17, false, 1024>;
using Few = Slots<3, 35, true, 2048>;
using Many = Slots<33, 10, true, 4096>;
using Huge = Slots<9, 1, false, 4096, 1 << 28>;
using Last = Slots<2, 17, false, 0>;

/// Fields of 64, 32, again 32 and 16 bits, as words and as what was written; and those of many elements.
__device__ __forceinline__ void fields(ep::Team& team, ep::i64* out) {
    const int lane = team.lane, next = (lane + 1) % ep::kLanes;
    ep::u64* words = reinterpret_cast<ep::u64*>(team.group.window + 12288);
    const ep::SlotWords wide{words, 77}, narrow = wide + 8 * 64, real = narrow + 8 * 32;
    const ep::SlotWords half = real + 8 * 32;
    ep::set<ep::i64>(wide, lane, (lane % 2 == 0 ? 1ll : -1ll) * (lane + 1) * 0x123456789ll);
    ep::set<ep::i32>(narrow, lane, 9 - lane);
    ep::set<float>(real, lane, 0.25f * lane);
    ep::set<unsigned short>(half, lane, static_cast<unsigned short>(60000 + lane));
    __syncwarp();
    out[lane] = ep::get<ep::i64>(wide, next);
    out[32 + lane] = ep::get<ep::i32>(narrow, next);
    out[64 + lane] = static_cast<ep::i64>(ep::get<float>(real, next) * 4.0f);
    out[96 + lane] = ep::get<unsigned short>(half, next);
    for (int i = next; i < 160; i += ep::kLanes) {
        out[128 + i] = static_cast<ep::i64>(ep::load_relaxed_sys(words + i));
    }
    __syncwarp();
    const int counts[5] = {0, 1, 31, 33, 150};
    for (int c = 0; c < 5; ++c) {
        ep::i64* own = out + 300 + c * 500;
        for (int i = lane; i < 160; i += ep::kLanes) ep::store_relaxed_sys(words + i, ep::u64{0});
        __syncwarp();
        // It is asked for what is in the field alone.
        const auto value = [&](int i) {
            own[160 + i] = i;
            return 3 * i + c;
        };
        ep::put<ep::i32>(ep::SlotWords{words, 80u + c}, counts[c], value);
        __syncwarp();
        for (int i = next; i < 160; i += ep::kLanes) {
            own[i] = static_cast<ep::i64>(ep::load_relaxed_sys(words + i));
        }
        __syncwarp();
    }
}

/// Round 7 lets the last word come late that a lane looks at in one turn. Its call is the pattern
/// that g++ gives variables without a value: a word that is not loaded passes for one of this call.
constexpr ep::u32 kFirstRound = 0xfefefefeu - 7;

/// Words that come late, one in each round: every one of few sources, and one or two of each of many.
template <class Slots>
struct Late {
    static constexpr int kSkipped = Slots::kSkipsOwn ? 1 : 0;
    static constexpr int kSources = Slots::kPeers - kSkipped;
    static constexpr int kRounds = kSources * (kSources > 2 ? 2 : Slots::kWords);

    int source, word;

    __device__ __forceinline__ Late(int rank, int round)
        : source((rank + kSkipped + round % kSources) % Slots::kPeers),
          word((round / kSources + round % kSources) % Slots::kWords) {}
};

/// Fields of 64 and 32 bits from the other rank, each word by itself.
__device__ __forceinline__ void brought(const ep::Team& team, ep::i64* out) {
    constexpr ep::u64 kAt = 13568;  // behind the fields
    const int lane = team.lane;
    const auto wide = [&](char* window) {
        return ep::SlotWords{reinterpret_cast<ep::u64*>(window + kAt), 90};
    };
    const ep::SlotWords there = wide(team.group.windows[1 - team.group.rank]);
    ep::set<ep::i64>(there, lane, (lane + 1) * 0x123456789ll);
    ep::set<ep::i32>(there + 8 * 64, lane, 5 - lane);
    const ep::SlotWords here = wide(team.group.window);
    const int places[3] = {2 * lane, 2 * lane + 1, 64 + lane};
    for (int place : places) {
        while (ep::epoch_of(ep::load_relaxed_sys(here.words + place)) != 90) {
        }
    }
    out[lane] = ep::get<ep::i64>(here, lane);
    out[32 + lane] = ep::get<ep::i32>(here + 8 * 64, lane);
}

/// Calls `body` with every word that this lane has in the messages of others.
template <class Slots, class Body>
__device__ __forceinline__ void for_words(ep::Team& team, Body body) {
    ep::SlotChannel<Slots> slots(team);
    for (int source = 0; source < Slots::kPeers; ++source) {
        if (Slots::kSkipsOwn && source == team.group.rank) continue;
        for (int i = team.lane; i < Slots::kWords; i += ep::kLanes) {
            body(slots.from(source), source, i);
        }
    }
}

/// Writes all words but one, and waits for that one; what has come then is read without a look at who wrote it.
template <class Slots>
__device__ __forceinline__ void read(ep::Team& team, ep::u32* asked, ep::i64* out) {
    for (int round = 0; round < Late<Slots>::kRounds; ++round) {
        const Late<Slots> late(team.group.rank, round);
        team.epoch = kFirstRound + round;
        for_words<Slots>(team, [&](const ep::SlotWords& from, int source, int i) {
            if (source != late.source || i != late.word) ep::set<ep::i32>(from, i, round);
        });
        __syncwarp();
        if (team.leader()) ep::store_release_sys(asked, round + 1u);
        given_up::scribble(team.epoch);  // what is not loaded passes for a word of the call
        ep::SlotChannel<Slots>(team).await();
        bool come = true;
        for_words<Slots>(team, [&](const ep::SlotWords& from, int, int i) {
            come = come && ep::epoch_of(ep::load_relaxed_sys(from.words + i)) == team.epoch;
        });
        const ep::u32 lanes = __ballot_sync(ep::kAllLanes, come);
        if (team.leader()) out[round] = lanes == ep::kAllLanes ? 1 : 0;
    }
}

/// Brings the word that the other rank has left out, some time after that waits for it.
template <class Slots>
__device__ __forceinline__ void bring(ep::Team& team, const ep::u32* asked) {
    const int other = 1 - team.group.rank;
    char* window = team.group.windows[other];
    for (int round = 0; round < Late<Slots>::kRounds; ++round) {
        const Late<Slots> late(other, round);
        const ep::Site site{0, ep::Waiting::kFlag, -1, other, round + 1u};
        ep::wait_counter(team, site, asked);
        given_up::linger();
        team.epoch = kFirstRound + round;
        ep::SlotChannel<Slots> slots(team);
        ep::SlotWords to = slots.to(other);
        if (late.source != team.group.rank) {
            const char* from = reinterpret_cast<const char*>(slots.from(late.source).words);
            to.words = reinterpret_cast<ep::u64*>(window + (from - team.group.window));
        }
        if (team.lane == 5) ep::set<ep::i32>(to, late.word, round);
    }
}

/// Both, each by a block.
template <class Slots>
__device__ __forceinline__ void late(ep::Team& team, ep::u64 asked_at, ep::i64* out) {
    const int self = team.group.rank;
    if (team.block == 0) {
        read<Slots>(team, reinterpret_cast<ep::u32*>(team.group.window + asked_at), out);
    } else {
        char* window = team.group.windows[1 - self];
        bring<Slots>(team, reinterpret_cast<const ep::u32*>(window + asked_at));
    }
}

/// A group of one's own, as zero as its words in the window: for a stop that nobody else sees.
struct Own {
    ep::State state;
    ep::u32 stop;
    ep::u32 room[9];
    ep::Record records[2];
};

/// A word that never comes: what is recorded of the wait for it.
__device__ __forceinline__ void lacks(const ep::Team& given, ep::i64* out) {
    Own* own = reinterpret_cast<Own*>(given.group.window + 256);
    ep::Group group = given.group;
    group.state = &own->state;
    group.stop = &own->stop;
    group.records = own->records;
    group.record_capacity = 2;
    ep::Team team(group, ep::Call{500, false, true}, 6);
    const int source = (group.rank + 1) % Few::kPeers;
    for_words<Few>(team, [&](ep::SlotWords from, int of, int i) {
        if (of == source && i == 12) from.epoch = 77;
        ep::set<ep::i32>(from, i, 1);
    });
    __syncwarp();
    ep::SlotChannel<Few>(team).await();
    if (team.lane != 3) return;
    const ep::Record& it = own->records[0];
    const ep::i64 all[] = {team.stopped, own->stop, own->state.records, it.role,
                           it.channel,   it.stripe, it.peer == source,  it.want,
                           it.seen,      it.epoch,  it.kind == static_cast<ep::u32>(ep::Waiting::kFlag)};
    for (int i = 0; i < 11; ++i) out[i] = all[i];
}

/// Where slots are whose bytes need more than 32 bits, and slots of which nothing is behind.
__device__ __forceinline__ void places(const ep::Team& given, ep::i64* out) {
    for (ep::u32 epoch = 1; epoch < 3; ++epoch) {
        ep::Team team(given.group, ep::Call{epoch, false, true}, 0);
        const char* at = reinterpret_cast<const char*>(ep::SlotChannel<Huge>(team).from(8).words);
        if (team.leader()) out[epoch] = at - given.group.window;
    }
    ep::Group group = given.group;
    group.window = reinterpret_cast<char*>(out + kRoom) - 4 * Last::kSlotBytes;
    ep::Team team(group, ep::Call{1, false, true}, 0);
    for_words<Last>(team, [&](const ep::SlotWords& from, int source, int i) {
        ep::set<ep::i32>(from, i, source * 100 + i);
    });
    __syncwarp();
    ep::SlotChannel<Last>(team).await();
}

/// A row of 65 units, sent in parts of some units a lane and taken in parts of others, and what is behind it.
template <int kSent, int kTaken>
__device__ __forceinline__ void row(const ep::Team& team, ep::u32 epoch, ep::i64* out) {
    constexpr int kUnits = 65, kRow = kUnits * 4, kWords = 3 * 2 * 32 * 2;
    using Sent = ep::WordRow<kUnits * 16, kSent>;
    using Taken = ep::WordRow<kUnits * 16, kTaken>;
    ep::u32* from = reinterpret_cast<ep::u32*>(team.group.window + 16384);
    ep::u32* to = from + 512;
    ep::u64* words = reinterpret_cast<ep::u64*>(to + 512);
    ep::WordPair* pairs = reinterpret_cast<ep::WordPair*>(words);
    const int next = (team.lane + 1) % ep::kLanes;
    for (int i = team.lane; i < kWords; i += ep::kLanes) ep::store_relaxed_sys(words + i, ep::u64{0});
    for (int i = team.lane; i < kRow + 64; i += ep::kLanes) from[i] = 7 * i + epoch, to[i] = 4711;
    __syncwarp();
    for (int part = 0; part < Sent::kParts; ++part) {
        typename Sent::Units units;
        Sent::read(units, from, part);
        Sent::send(pairs, units, part, epoch);
    }
    __syncwarp();
    for (int i = next; i < kWords; i += ep::kLanes) {
        out[i] = static_cast<ep::i64>(ep::load_relaxed_sys(words + i));
    }
    ep::u32 seen = 99;
    int come = 0;
    for (int part = 0; part < Taken::kParts; ++part) {
        typename Taken::Units units;
        for (ep::Quad& unit : units) unit = ep::Quad{5, 5, 5, 5};
        come += Taken::look(units, pairs, part, epoch, seen) ? 1 : 0;
        Taken::write(to, units, part);
        // What the row has no unit for is zero.
        const ep::Quad& last = units[kTaken - 1];
        const ep::u32 zero = __ballot_sync(ep::kAllLanes, (last.x | last.y | last.z | last.w) == 0);
        if (team.leader()) out[440 + part] = zero;
    }
    out[400 + team.lane] = come * 100 + seen;
    __syncwarp();
    for (int i = next; i < kRow + 64; i += ep::kLanes) out[450 + i] = to[i];
    // One word of a unit is that of another call: its lane alone sees that.
    for (int word = 0; word < 4; ++word) {
        const int at = (word / 2 * ep::kLanes + 9) * 2 + word % 2;
        __syncwarp();
        if (team.leader()) ep::store_relaxed_sys(words + at, ep::stamped(epoch - 3, 1));
        __syncwarp();
        typename Taken::Units units;
        seen = 99;
        const bool all = Taken::look(units, pairs, 0, epoch, seen);
        out[800 + word * 32 + team.lane] = (all ? 1000 : 0) + seen;
        __syncwarp();
        if (team.leader()) ep::store_relaxed_sys(words + at, ep::stamped(epoch, 1));
    }
    typename Taken::Units none;
    Taken::read(none, nullptr, 0);
    out[930 + team.lane] = none[0].x + none[0].y + none[0].z + none[0].w;
    if (team.leader()) out[970] = Sent::numbers(pairs) - words, out[971] = Taken::numbers(pairs) - words;
    __syncwarp();
}

template <int kFew>
struct Takes {
    static constexpr int kFewTokens = kFew;
};

/// In parts of one unit a lane, and of two; and which calls have such rows.
__device__ __forceinline__ void rows(const ep::Team& team, ep::i64* out) {
    row<1, 2>(team, 40, out);
    row<2, 1>(team, 41, out + 1000);
    row<4, 4>(team, 42, out + 2000);
    // Numbers behind a row of whole turns of a warp.
    ep::WordPair* whole = reinterpret_cast<ep::WordPair*>(team.group.window);
    if (team.leader()) {
        out[3100] = ep::WordRow<64 * 16, 1>::numbers(whole) - reinterpret_cast<ep::u64*>(whole);
    }
    const int tokens = 8 + team.lane % 4;
    const ep::u32 epoch = team.lane / 4 % 4;
    out[3000 + team.lane] = ep::are_words<Takes<10>>(epoch, tokens) ? 1 : 0;
    out[3032 + team.lane] = ep::are_words<Takes<1>>(epoch, tokens - 8) ? 1 : 0;
    out[3064 + team.lane] = ep::are_words<Takes<0>>(epoch, tokens - 8) ? 1 : 0;
}

}  // namespace words

extern "C" __global__ void __launch_bounds__(32)
    words_of(const __grid_constant__ words::Args args) {
    const ep::Call call = ep::enter(args.group);
    ep::Team team(args.group, call, 0, static_cast<int>(blockIdx.x), 2, 0, 1);
    const bool is_first = blockIdx.x == 0;
    switch (args.check) {
        case 0: if (is_first) words::fields(team, args.out); break;
        case 1: if (is_first) words::brought(team, args.out); break;
        case 2: words::late<words::Two>(team, 16, args.out); break;
        case 3: words::late<words::Few>(team, 20, args.out); break;
        case 4: words::late<words::Many>(team, 24, args.out); break;
        case 5: if (is_first) words::lacks(team, args.out); break;
        case 6: if (is_first) words::places(team, args.out); break;
        case 7: if (is_first) words::rows(team, args.out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
