// A whole dispatch in one launch, for few tokens: nothing has been counted before.
//
// Every block finds out for itself where all tokens go, so that none waits for another one. What each
// rank sends to each other one travels as slots (slots.cuh); meanwhile the first rows are being loaded.
// Positions follow from the counts of the ranks before, and from the bits of the tokens before. A warp
// that sends tells every receiver once, when all its rows have arrived: when it has taken its share of
// what others sent, or before (`kEarly`), with its last row ahead of the small fields. Where the receiver packs rows
// as they come (packed.cuh), warps send pieces of rows, and tell of each one.
//
// A rank with at most `kFewTokens` tokens sends rows as words (as_words.cuh): it waits for nobody, and tells
// nobody. Which of its rows one is says where it lies; the receiver takes it to its place.
//
//   count_routes -> OnceOut  offer, ask, open, for_tokens, close
//                   OnceIn   open -> total, for_messages
//
// `Rows` is the Cfg struct of the direct channel, `Role` that of the role; words in a window:
//   kReady    [epoch % 2, rank]       {rows at, senders}   the announcement of a rank; without senders its rows
//                                                          come as words
//   kTold     [rank, sender]          u64                  a warp of it, all of whose rows are there
//             [rank, row, piece]      u64                  or a piece of a row of it
//   kAsWords  [epoch % 2, rank, row]  kWordRowBytes each   a row of it as words, then its small fields;
//                                                          kFewTokens rows
// each word with its epoch (M7). Announcements and rows as words need two places, since a receiver may be a call
// ahead of a sender's own receiving warps, and who sends words waits for no announcement: it has heard the counts
// of the call before from all, who sent them behind the call before that. The other words need one: who tells has
// seen the announcement of this call, and a receiver announces the next one when all have told.
#pragma once

#include <ep/as_words.cuh>
#include <ep/compute.cuh>
#include <ep/made.cuh>
#include <ep/mover.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/slots.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Announcement of a rank: offsets in its window in units of 128 bytes, and how many of its warps
/// send.
struct OnceReady {
    u64 rows, senders;
};

/// The announcement of `rank` in a window.
template <class Rows>
__device__ __forceinline__ OnceReady* once_ready(char* window, u32 epoch, int rank) {
    return reinterpret_cast<OnceReady*>(window + Rows::kReady) + epoch % 2 * Rows::kPeers + rank;
}

/// Where the tokens of a call go, as every block knows it.
template <class Role>
struct RouteSmem {
    char* windows[Role::kRanks];
    u32 to[Role::kRanks][Role::kTokenWords];  // for each rank a bit for each token
    i32 chosen[Role::kValues];                // how often each value is listed, or by how many tokens; in the last block
    u32 counts[Role::kRanks * Role::kCountWords];  // what every rank has counted; in the last block
    i32 stopped;  // warps of the last block that gave up while they waited for that

    /// Whether `token` goes to `rank`.
    __device__ __forceinline__ bool goes(int token, int rank) const {
        return (to[rank][token / kLanes] >> token % kLanes & 1) != 0;
    }

    /// How many of `tokens` tokens go to `rank`; one lane's own work.
    __device__ __forceinline__ i32 tokens_to(int rank, int tokens) const {
        i32 sum = 0;
#pragma unroll 1
        for (int word = 0; word * kLanes < tokens; ++word) sum += __popc(to[rank][word]);
        return sum;
    }
};

/// A set of the ranks of a role.
template <class Role>
using RoleRanks = RankSet<rank_words(Role::kRanks)>;

/// What `ranks_of` gives. Where the ranks are few, all begins are loaded at once, beside the row.
template <class Role, int kCount>
__device__ __forceinline__ RoleRanks<Role> route_of(const Row<i64, kCount>& row, const i32* expert_begin) {
    constexpr int kFew = 8;
    if constexpr (Role::kRanks > kFew) {
        return ranks_of<Role::kRanks>(row, expert_begin);
    } else {
        i32 begins[Role::kRanks + 1];
#pragma unroll
        for (int rank = 0; rank <= Role::kRanks; ++rank) begins[rank] = expert_begin[rank];
        RoleRanks<Role> set{};
#pragma unroll
        for (int rank = 0; rank < Role::kRanks; ++rank) {
            bool found = false;
#pragma unroll
            for (int k = 0; k < kCount; ++k) {
                found = found || (row.values[k] >= begins[rank] && row.values[k] < begins[rank + 1]);
            }
            set.words[0] |= found && row.present ? u64{1} << rank : 0;
        }
        return set;
    }
}

/// Rows of a channel as words.
template <class Rows>
struct OnceWords : WordRow<Rows::kWholeRowBytes, 2> {
    /// A row of a rank, among those that it sends to the owner of a window.
    static __device__ __forceinline__ WordPair* at(char* window, u32 epoch, int rank, int number) {
        const i64 row = (static_cast<i64>(epoch % 2) * Rows::kPeers + rank) * Rows::kFewTokens + number;
        return reinterpret_cast<WordPair*>(window + Rows::kAsWords + row * Rows::kWordRowBytes);
    }
};

/// How many blocks send: all but the last one, which counts and records meanwhile.
__device__ __forceinline__ int once_blocks(int blocks) {
    return blocks > 1 ? blocks - 1 : 1;
}

/// Tells every rank where its rows go: the warp of the first block does it that counts least.
template <class Rows>
__device__ __forceinline__ void once_offer(const Group& group, u64 rows_at, int tokens) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int warps = static_cast<int>(blockDim.x) / kLanes;
    if (blockIdx.x != 0 || warp != warps - 1) return;
    const u32 epoch = load_relaxed_gpu(&group.state->epoch) + 1;
    const int all = once_blocks(static_cast<int>(gridDim.x)) * warps;
    const int senders = are_words<Rows>(epoch, tokens) ? 0 : tokens < all ? tokens : all;
#pragma unroll 1
    for (int peer = lane_index(); peer < Rows::kPeers; peer += kLanes) {
        OnceReady* ready = once_ready<Rows>(group.windows[peer], epoch, group.rank);
        // M4: whatever this device did with the memory it now offers was done by earlier kernels; the sender
        // acquires the word in OnceOut::open.
        store_entry_sys(&ready->rows, stamped(epoch, static_cast<u32>(rows_at / 128)));
        store_relaxed_sys(&ready->senders, stamped(epoch, static_cast<u32>(senders)));
    }
    __syncwarp();
}

/// The ranks for which `holds(rank)`.
template <class Role, class Holds>
__device__ __forceinline__ RoleRanks<Role> ranks_where(Holds holds) {
    RoleRanks<Role> set{};
#pragma unroll 1
    for (int rank = 0; rank < Role::kRanks; ++rank) {
        if (holds(rank)) set.add(rank);
    }
    return set;
}

/// The values of tokens, of which nobody asks how often each comes up.
struct NoValues {
    __device__ __forceinline__ void clear() const {}
    __device__ __forceinline__ void count(int, bool) const {}
};

/// How often each value is in the rows of all tokens, or in how many rows it is (`kOnce`), in the last block. `row(token,
/// present)`: the values of a token.
template <bool kOnce, class Role, class Row>
struct CountedValues {
    RouteSmem<Role>& routes;
    Row row;

    __device__ __forceinline__ void clear() const {
        if (blockIdx.x != gridDim.x - 1) return;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < Role::kValues; i += static_cast<int>(blockDim.x)) {
            routes.chosen[i] = 0;
        }
        __syncthreads();
    }

    __device__ __forceinline__ void count(int token, bool present) const {
        if (blockIdx.x != gridDim.x - 1) return;
        const auto add = [&](i64 value) {
            if (value >= 0 && value < Role::kValues) add_relaxed_shared(routes.chosen + value, 1);
        };
        const auto values = row(token, present);
        if constexpr (kOnce) {
            values.for_each_once(add);
        } else {
            values.for_each(add);
        }
    }
};

template <bool kOnce, class Role, class Row>
__device__ __forceinline__ CountedValues<kOnce, Role, Row> values_of(RouteSmem<Role>& routes, Row row) {
    return CountedValues<kOnce, Role, Row>{routes, row};
}

/// Finds out where all tokens go, by all threads of the block; a barrier comes after. `goes(token, present)`: the ranks to
/// which a token goes, none of one that is not there.
template <class Role, class Goes, class Values = NoValues>
__device__ __forceinline__ void count_routes(const Group& group, RouteSmem<Role>& routes, int tokens, Goes goes,
                                             Values values = {}) {
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    // Fetched beside everything else: each is a round trip for whoever needs it later.
    if (thread < Role::kRanks) routes.windows[thread] = group.windows[thread];
    if (thread == 0) routes.stopped = 0;
    values.clear();
#pragma unroll 1
    for (int base = thread / kLanes * kLanes; base < tokens; base += threads) {
        const int token = base + lane_index();
        const bool present = token < tokens;
        const int there = present ? token : tokens - 1;
        const RoleRanks<Role> ranks = goes(there, present);
        // Beside it, since both may read one row.
        values.count(there, present);
#pragma unroll 1
        for (int rank = 0; rank < Role::kRanks; ++rank) {
            const u32 lanes = __ballot_sync(kAllLanes, ranks.has(rank));
            if (lane_index() == 0) routes.to[rank][base / kLanes] = lanes;
        }
    }
}

/// The warps of one block as a team of their own.
__device__ __forceinline__ Team of_block(const Team& team) {
    Team own = team;
    own.block = 0;
    own.blocks = 1;
    return own;
}

/// A field of what a rank has counted, in shared memory.
struct CountedField {
    const u32* words;

    /// The field that starts `bytes` further, as the slot has it.
    __device__ __forceinline__ CountedField operator+(int bytes) const {
        return CountedField{words + bytes / 8};
    }
};

/// Element `i` of such a field.
template <class T>
__device__ __forceinline__ T get(const CountedField& field, int i) {
    if constexpr (sizeof(T) == 8) {
        const u64 high = field.words[2 * i + 1];
        return static_cast<T>(high << 32 | field.words[2 * i]);
    } else {
        SlotBits<T> element{field.words[i]};
        return element.value;
    }
}

/// What all ranks have counted, as the last block knows it: its threads share the looking, since each
/// look is a round trip.
template <class Slots, class Role>
class RouteCounts {
    static constexpr int kWords = Slots::kPeers * Slots::kWords;
    static constexpr int kAhead = 4;

public:
    __device__ __forceinline__ RouteCounts(Team& team, RouteSmem<Role>& routes)
        : team_(team), routes_(routes) {}

    /// Waits for the words of all sources; for all threads of the block.
    __device__ __forceinline__ void await() {
        const SlotChannel<Slots> slots(team_);
        const int step = team_.count() * kLanes;
#pragma unroll 1
        for (int base = team_.index() * kLanes; base < kWords && !team_.stopped;
             base += kAhead * step) {
            const int first = base + team_.lane;
            u64 found[kAhead];
            const int source = first < kWords ? first / Slots::kWords : -1;
            const Site site{Slots::kChannel, Waiting::kFlag, -1, source, team_.epoch};
            const bool done = wait(team_, site, [&](u32& seen) {
                bool come = true;
#pragma unroll
                for (int k = 0; k < kAhead; ++k) {
                    const int at = first + k * step;
                    if (at >= kWords) continue;
                    found[k] = load_relaxed_sys(slots.from(at / Slots::kWords).words +
                                                at % Slots::kWords);
                }
#pragma unroll
                for (int k = 0; k < kAhead; ++k) {
                    if (first + k * step >= kWords || !come) continue;
                    seen = epoch_of(found[k]);
                    if (seen != team_.epoch) come = false;
                }
                return come;
            });
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                const int at = first + k * step;
                if (done && at < kWords) routes_.counts[at] = value_of(found[k]);
            }
        }
        // One answer for the whole block.
        if (team_.stopped && team_.leader()) add_relaxed_shared(&routes_.stopped, 1);
        __syncthreads();
        team_.stopped = routes_.stopped != 0;
    }

    /// Where this rank publishes to `peer`.
    __device__ __forceinline__ auto to(int peer) const {
        return SlotChannel<Slots>(team_).to(peer);
    }

    /// What `source` has counted; after `await`.
    __device__ __forceinline__ CountedField from(int source) const {
        return CountedField{routes_.counts + source * Slots::kWords};
    }

private:
    Team& team_;
    RouteSmem<Role>& routes_;
};

/// A message whose small fields have come.
struct OnceMessage {
    int row;             // where its row goes
    const char* record;  // its small fields
};

/// The record of a row in a window.
template <class Rows>
__device__ __forceinline__ u64* once_record(char* window, int row) {
    return reinterpret_cast<u64*>(window + Rows::kRecords) +
           static_cast<i64>(row) * Rows::kRecordWords;
}

/// The word of a sending warp of `rank` in a window.
template <class Rows>
__device__ __forceinline__ u64* once_told(char* window, int rank, int sender) {
    return reinterpret_cast<u64*>(window + Rows::kTold) + rank * Rows::kSenders + sender;
}

/// The turn of a warp: neighbours are on different blocks, and the last block comes last.
__device__ __forceinline__ int once_turn(const Team& team) {
    const int others = once_blocks(team.blocks);
    return team.block < others ? team.warp * others + team.block : team.warps * others + team.warp;
}

/// One warp's sending side: a lane for each rank, in groups of 32.
template <class Rows, class Role, class Mover = Mover<Role>>
class OnceOut {
protected:
    static constexpr int kPeers = Rows::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

public:
    __device__ __forceinline__ OnceOut(Team& team, Mover& mover,
                                       const RouteSmem<Role>& routes, int tokens)
        : team_(team), mover_(mover), routes_(routes), tokens_(tokens),
          senders_(once_blocks(team.blocks) * team.warps), turn_(once_turn(team)),
          as_words_(are_words<Rows>(team.epoch, tokens)) {
        if (turn_ >= senders_) turn_ = tokens;
    }

    /// Begins to load the first row that goes anywhere, before anything is known of its receivers.
    /// `from(token)`: the row of a token.
    template <class From>
    __device__ __forceinline__ void ask(From from) {
        if (as_words_) return;
#pragma unroll 1
        for (int token = turn_; token < tokens_; token += senders_) {
            if (!goes_anywhere(token)) continue;
            mover_.ask(from(token));
            break;
        }
    }

    /// Sends the tokens of this warp: `pack(token, record)` in the whole warp writes the small fields of a
    /// token; then `each(token, peer, match, position)` in the lane of every rank. `count(source, peer)`: the
    /// word that holds how many rows `source` sends to `peer`; `from(token)`: the row of a token.
    template <class Count, class From, class Pack, class Each>
    __device__ __forceinline__ void for_tokens(Count count, From from, Pack pack, Each each) {
        if constexpr (Rows::kFewTokens > 0) {
            if (as_words_) {
                send_words<false>(from, pack);
                record_places(count, each);
                return;
            }
        }
        bool opened = false;
#pragma unroll 1
        for (int token = turn_; token < tokens_ && !team_.stopped; token += senders_) {
            char* record = mover_.meta();
            if (goes_anywhere(token)) pack(token, record);
            __syncwarp();
            if (!opened) open<true>(count);
            opened = true;
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const int peer = g * kLanes + team_.lane;
                const bool match = goes(g, token);
                const int position = peer < kPeers ? before(g, token) : -1;
                if (__ballot_sync(kAllLanes, match) != 0) {
                    if constexpr (!Role::kEarly) send_record(g, match, position, record);
                    const i64 at = static_cast<i64>(position) * Rows::kRowStride;
                    mover_.row(match ? rows_at_[g] + at : nullptr, from(token));
                    if constexpr (Role::kEarly) {
                        // No row comes behind it whose load could run ahead.
                        if (token + senders_ >= tokens_) mover_.store_all();
                        send_record(g, match, position, record);
                    }
                }
                if (peer < kPeers) each(token, peer, match, position);
                sent_[g] += match ? 1 : 0;
            }
        }
        mover_.store_all();
        if constexpr (Role::kEarly) tell();
    }

    /// Tells every rank that all rows of this warp are there, be it none, unless that has been told
    /// before it took any.
    __device__ __forceinline__ void close() {
        if constexpr (!Role::kEarly) tell();
    }

protected:
    /// Sends this warp's parts of rows as words; the last part of a token are its small fields, which are those of
    /// tokens that go nowhere too (`kAll`) or are not.
    template <bool kAll, class From, class Pack>
    __device__ __forceinline__ void send_words(From from, Pack pack) {
        using Row = decltype(from(0));
        using Words = typename SentAs<Rows::kWholeRowBytes, Row>::Words;
        const int end = units_of(Words::kParts + 1);
#pragma unroll 1
        for (int unit = once_turn(team_); unit < end && !team_.stopped; unit += senders_) {
            const int token = unit % tokens_, part = unit / tokens_;
            if (!(kAll && part == Words::kParts) && !goes_anywhere(token)) continue;
            if (part < Words::kParts) {
                const auto own = part_of<Words>(from(token), part);
                for_receivers(token, [&](WordPair* to) { own.send(to, part, team_.epoch); });
            } else {
                char* record = mover_.meta();
                pack(token, record);
                __syncwarp();
                for_receivers(token, [&](WordPair* to) {
                    send_fields(Words::numbers(to), record, [](int i) { return scaled_by(Row{}, i) < 0; });
                });
            }
            __syncwarp();
        }
    }

    /// The end of the units that this warp sends, where each token has so many: those of one are on different blocks.
    __device__ __forceinline__ int units_of(int each) const {
        return once_turn(team_) < senders_ ? tokens_ * each : 0;
    }

    /// Calls `body(to)` with the place of a token's row among those that go as words, at each rank that gets it.
    template <class Body>
    __device__ __forceinline__ void for_receivers(int token, Body body) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int number = numbered(g, token);
            for (u32 left = __ballot_sync(kAllLanes, number >= 0); left != 0; left &= left - 1) {
                const int lane = __ffs(static_cast<int>(left)) - 1;
                body(OnceWords<Rows>::at(routes_.windows[g * kLanes + lane], team_.epoch, team_.group.rank,
                                         __shfl_sync(kAllLanes, number, lane)));
            }
        }
    }

    /// Calls `each` for the tokens of this warp, when it is known where their rows lie at their receivers.
    template <class Count, class Each>
    __device__ __forceinline__ void record_places(Count count, Each each) {
        if (turn_ < tokens_) open<false>(count);
#pragma unroll 1
        for (int token = turn_; token < tokens_ && !team_.stopped; token += senders_) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const int peer = g * kLanes + team_.lane;
                if (peer >= kPeers) continue;
                const bool match = goes(g, token);
                each(token, peer, match, before(g, token));
            }
        }
        __syncwarp();
    }

    /// The number of a token's row among those for the lane's rank of a group; -1: it does not go there.
    __device__ __forceinline__ int numbered(int g, int token) const {
        return goes(g, token) ? ahead_of(g, token) : -1;
    }

    /// How many tokens before this one go to the lane's rank of a group, one of those that there are.
    __device__ __forceinline__ int ahead_of(int g, int token) const {
        const u32* words = routes_.to[g * kLanes + team_.lane];
        int number = __popc(words[token / kLanes] & ((1u << token % kLanes) - 1));
#pragma unroll 1
        for (int word = 0; word < token / kLanes; ++word) number += __popc(words[word]);
        return number;
    }

    __device__ __forceinline__ void tell() {
        if (turn_ >= tokens_ || as_words_) return;
        mover_.flush();
        if (team_.stopped) return;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int peer = g * kLanes + team_.lane;
            if (peer >= kPeers) continue;
            // M1: this lane has waited for its own bulk stores; OnceIn::await acquires.
            store_release_sys(
                once_told<Rows>(routes_.windows[peer], team_.group.rank, turn_),
                word(static_cast<u32>(sent_[g])));
        }
        __syncwarp();
    }

    __device__ __forceinline__ u64 word(u32 value) const { return stamped(team_.epoch, value); }

    /// Waits until those before this one have said how many rows they send, and every rank takes rows
    /// (`kRows`).
    template <bool kRows, class Count>
    __device__ __forceinline__ void open(Count count) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int peer = g * kLanes + team_.lane;
            const bool used = peer < kPeers;
            const OnceReady* ready =
                once_ready<Rows>(team_.group.window, team_.epoch, used ? peer : 0);
            Site site{Rows::kChannel, Waiting::kReady, -1, used ? peer : -1, team_.epoch};
            int first = 0;
            u64 rows = 0;
            const bool done = wait(team_, site, [&](u32& seen) {
                if (!used) return true;
                // M4: pairs with the release in once_offer. Each look acquires: another one would cost
                // a round trip.
                rows = kRows ? load_acquire_sys(&ready->rows) : stamped(team_.epoch, 0);
                int missing = -1;
                first = 0;
                for (int source = 0; source < team_.group.rank; ++source) {
                    const u64 found = load_relaxed_sys(count(source, peer));
                    if (epoch_of(found) != team_.epoch) missing = source;
                    first += static_cast<int>(value_of(found));
                }
                seen = epoch_of(rows);
                const bool is_ready = seen == team_.epoch;
                site.peer = is_ready && missing >= 0 ? missing : peer;
                return is_ready && missing < 0;
            });
            if (done && used && !kRows) first_[g] = first;
            if (done && used && kRows) {
                rows_at_[g] = routes_.windows[peer] + static_cast<u64>(value_of(rows)) * 128;
                first_[g] = first;
                // M4: this lane's bulk stores come after the receiver's own use of the memory.
                mover_.fence_global();
            }
            __syncwarp();
        }
    }

    /// Writes the record of a row, word by word (M7), to the ranks of a group that get it.
    __device__ __forceinline__ void send_record(int g, bool match, int position,
                                                const char* record) {
        send_record(g, match, position, record, [](int) { return true; });
    }

    /// Writes those words of a record that `goes(i)`.
    template <class Goes>
    __device__ __forceinline__ void send_record(int g, bool match, int position, const char* record, Goes goes) {
        if (team_.stopped) return;
        for (u32 left = __ballot_sync(kAllLanes, match); left != 0; left &= left - 1) {
            const int lane = __ffs(static_cast<int>(left)) - 1;
            const int row = __shfl_sync(kAllLanes, position, lane);
            u64* words = once_record<Rows>(routes_.windows[g * kLanes + lane], row);
            send_fields(words, record, goes);
        }
        __syncwarp();
    }

    /// Sends the words of a record that `goes(i)`.
    template <class Goes>
    __device__ __forceinline__ void send_fields(u64* words, const char* record, Goes goes) const {
        const u32* fields = reinterpret_cast<const u32*>(record);
#pragma unroll 4
        for (int i = team_.lane; i < Rows::kRecordWords; i += kLanes) {
            if (goes(i)) store_relaxed_sys(words + i, word(fields[i]));
        }
    }

    /// Whether any rank gets the token.
    __device__ __forceinline__ bool goes_anywhere(int token) const {
        bool found = false;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) found = found || goes(g, token);
        return __ballot_sync(kAllLanes, found) != 0;
    }

    /// Whether the lane's rank of a group gets the token.
    __device__ __forceinline__ bool goes(int g, int token) const {
        const int peer = g * kLanes + team_.lane;
        return peer < kPeers && routes_.goes(token, peer);
    }

    /// The position of a token's row for the lane's rank, or of the next one. Tokens come in order.
    __device__ __forceinline__ int before(int g, int token) {
        const u32* words = routes_.to[g * kLanes + team_.lane];
        const int last = token / kLanes;
#pragma unroll 1
        for (int word = words_[g]; word < last; ++word) first_[g] += __popc(words[word]);
        words_[g] = last;
        return first_[g] + __popc(words[last] & ((1u << token % kLanes) - 1));
    }

    Team& team_;
    Mover& mover_;
    const RouteSmem<Role>& routes_;
    int tokens_;
    int senders_;  // warps that send
    int turn_;     // this one's number among them
    bool as_words_;
    char* rows_at_[kGroups] = {};
    int first_[kGroups] = {};  // position of the first row behind `words_`
    int words_[kGroups] = {};  // words of bits that are added up
    int sent_[kGroups] = {};
};

/// One warp's receiving side.
template <class Rows>
class OnceIn {
    static constexpr int kPeers = Rows::kPeers;
    static constexpr int kGroups = (kPeers + kLanes - 1) / kLanes;

public:
    /// `record`: room for the small fields of a message in shared memory; `rows_at`: where the first row lies
    /// in the end, as `once_offer` has said.
    __device__ __forceinline__ OnceIn(Team& team, char* record, int tokens, u64 rows_at)
        : team_(team), record_(record), tokens_(tokens), turn_(once_turn(team)), rows_at_(rows_at) {}

    /// Waits until every rank has said how many rows it sends here: in the word `count(source)`.
    template <class Count>
    __device__ __forceinline__ void open(Count count) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int source = g * kLanes + team_.lane;
            const bool used = source < kPeers;
            const OnceReady* ready =
                once_ready<Rows>(team_.group.window, team_.epoch, used ? source : 0);
            const Site site{Rows::kChannel, Waiting::kReady, -1, used ? source : -1, team_.epoch};
            u64 rows = 0, senders = 0;
            const bool done = wait(team_, site, [&](u32& seen) {
                if (!used) return true;
                rows = load_relaxed_sys(count(source));
                senders = load_relaxed_sys(&ready->senders);
                seen = epoch_of(senders);
                return seen == team_.epoch && epoch_of(rows) == seen;
            });
            senders_[g] = lanes_through(done && used ? static_cast<int>(value_of(senders)) : 0);
            through_[g] = total_ + lanes_through(done && used ? static_cast<int>(value_of(rows)) : 0);
            total_ = __shfl_sync(kAllLanes, through_[g], kLanes - 1);
            const bool words = Rows::kFewTokens > 0 && done && used && value_of(senders) == 0;
            as_words_.words[g / 2] |= static_cast<u64>(__ballot_sync(kAllLanes, words)) << g % 2 * kLanes;
        }
    }

    /// Rows of all ranks.
    __device__ __forceinline__ int total() const { return total_; }

    /// The rank that a row comes from.
    __device__ __forceinline__ int source_of(int row) const {
        return totals_upto<kPeers>(through_, row);
    }

    /// Calls `body(message)` for this warp's share of the rows, as their small fields come. Several
    /// records are looked at together.
    template <class Body>
    __device__ __forceinline__ void for_messages(Body body) {
        if constexpr (Rows::kFewTokens > 0) take_words();
        u32* fields = reinterpret_cast<u32*>(record_);
        // Warps that send leave it to the others, if those can look at all of it together. The one that has
        // least to send begins, and the last block, which records meanwhile, ends.
        const int senders = once_blocks(team_.blocks) * team_.warps;
        const bool all = as_words_.any() || (team_.count() - tokens_) * kFlight < total_;
        const int busy = all ? 0 : tokens_;
        const int step = team_.count() - busy;
        const int own = turn_ < senders ? senders - 1 - turn_ : turn_ - busy;
#pragma unroll 1
        for (int first = turn_ < busy ? total_ : own; first < total_ && !team_.stopped;
             first += kFlight * step) {
            Site site{Rows::kChannel, Waiting::kClosed, -1, source_of(first), team_.epoch};
#pragma unroll 1
            for (int base = 0; base < Rows::kRecordWords; base += kPart * kLanes) {
                u64 found[kFlight][kPart];
                const bool done = wait(team_, site, [&](u32& seen) {
#pragma unroll
                    for (int n = 0; n < kFlight; ++n) {
                        const int row = first + n * step;
                        const u64* words = record_of(row);
#pragma unroll
                        for (int k = 0; k < kPart; ++k) {
                            const int i = base + k * kLanes + team_.lane;
                            const bool used = row < total_ && i < Rows::kRecordWords;
                            found[n][k] =
                                used ? load_relaxed_sys(words + i) : stamped(team_.epoch, 0);
                        }
                    }
                    bool come = true;
#pragma unroll
                    for (int i = 0; i < kFlight * kPart; ++i) {
                        if (!come) continue;
                        seen = epoch_of(found[i / kPart][i % kPart]);
                        come = seen == team_.epoch;
                    }
                    return come;
                });
                if (!done) return;
#pragma unroll
                for (int n = 0; n < kFlight; ++n) {
                    if (first + n * step >= total_) break;
#pragma unroll
                    for (int k = 0; k < kPart; ++k) {
                        const int i = base + k * kLanes + team_.lane;
                        if (i < Rows::kRecordWords) fields[i] = value_of(found[n][k]);
                    }
                    if (base + kPart * kLanes < Rows::kRecordWords) continue;
                    __syncwarp();
                    OnceMessage message;
                    message.row = first + n * step;
                    message.record = record_;
                    body(message);
                    __syncwarp();
                }
            }
        }
    }

    /// Waits until all rows are there: the words of all warps that send are spread over all lanes.
    __device__ __forceinline__ void await() {
        const int lanes = team_.count() * kLanes;
        const int all = senders_before(kPeers);
#pragma unroll 1
        for (int word = team_.lane * team_.count() + turn_;
             word - team_.lane * team_.count() < all && !team_.stopped; word += lanes) {
            int source = -1, sender = 0;
#pragma unroll 1
            for (int peer = 0; peer < kPeers; ++peer) {
                const int before = senders_before(peer);
                if (word >= before && word < all) source = peer, sender = word - before;
            }
            const u64* told =
                once_told<Rows>(team_.group.window, source < 0 ? 0 : source, sender);
            const Site site{Rows::kChannel, Waiting::kClosed, -1, source, team_.epoch};
            wait(team_, site, [&](u32& seen) {
                if (source < 0) return true;
                // M2: pairs with the release in OnceOut::close; later kernels of this stream read the
                // rows. Nothing else of this kernel is left, so that each look may acquire.
                seen = epoch_of(load_acquire_sys(told));
                return seen == team_.epoch;
            });
        }
    }

protected:
    /// Takes this warp's parts of rows that come as words to their places.
    __device__ __forceinline__ void take_words() {
        using Words = OnceWords<Rows>;
        const int end = as_words_.any() ? total_ * Words::kParts : 0;
#pragma unroll 1
        for (int unit = turn_; unit < end && !team_.stopped; unit += team_.count()) {
            const int row = unit / Words::kParts, part = unit % Words::kParts;
            const int source = source_of(row);
            if (!comes_as_words(source)) continue;
            const WordPair* words = words_of(source, row);
            typename Words::Units units;
            const Site site{Rows::kChannel, Waiting::kClosed, -1, source, team_.epoch};
            const bool done = wait(team_, site, [&](u32& seen) {
                return Words::look(units, words, part, team_.epoch, seen);
            });
            const i64 at = static_cast<i64>(row) * Rows::kRowStride;
            if (done) Words::write(team_.group.window + rows_at_ + at, units, part);
        }
    }

    /// A row that comes as words.
    __device__ __forceinline__ WordPair* words_of(int source, int row) const {
        return OnceWords<Rows>::at(team_.group.window, team_.epoch, source,
                                   row - rows_before(source));
    }

    __device__ __forceinline__ bool comes_as_words(int source) const {
        return as_words_.has(source);
    }

    /// Where the small fields of a row come.
    __device__ __forceinline__ const u64* record_of(int row) const {
        if constexpr (Rows::kFewTokens > 0) {
            const int source = as_words_.any() && row < total_ ? source_of(row) : -1;
            if (source >= 0 && comes_as_words(source)) {
                return OnceWords<Rows>::numbers(words_of(source, row));
            }
        }
        return once_record<Rows>(team_.group.window, row);
    }

    /// Rows of the ranks before `source`.
    __device__ __forceinline__ int rows_before(int source) const {
        int rows = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int through = __shfl_sync(kAllLanes, through_[g], (source + kLanes - 1) % kLanes);
            if (source > 0 && g == (source - 1) / kLanes) rows = through;
        }
        return rows;
    }

    // Words of a record that a lane takes.
    static constexpr int kEach = (Rows::kRecordWords + kLanes - 1) / kLanes;
    // Those that it looks at together, of so many records: they stay in registers.
    static constexpr int kPart = kEach < 8 ? kEach : 8;
    static constexpr int kFlight = kEach > 8 ? 1 : kEach > 4 ? 2 : 4;
    static_assert(kEach > 0, "a message has more than its row");

    /// Sending warps of the ranks before `peer`.
    __device__ __forceinline__ int senders_before(int peer) const {
        int senders = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int upto = peer - g * kLanes < kLanes ? peer - g * kLanes : kLanes;
            if (upto > 0) senders += __shfl_sync(kAllLanes, senders_[g], upto - 1);
        }
        return senders;
    }

    Team& team_;
    char* record_;
    int tokens_;
    int turn_;
    u64 rows_at_;
    int through_[kGroups] = {};  // rows up to and with those of the lane's rank
    int senders_[kGroups] = {};  // sending warps of the group up to and with those of the lane's rank
    int total_ = 0;
    RankSet<rank_words(kPeers)> as_words_{};  // ranks whose rows come as words
};

}  // namespace ep
