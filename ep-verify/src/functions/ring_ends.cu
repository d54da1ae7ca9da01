// What both ends of rings do in a call, for the kernels of rings.cu and net_rings.cu, which it stands before.
#include <ep/net_rings.cuh>
#include <ep/rings.cuh>
#include <ep/sync.cuh>

namespace ring_ends {

constexpr int kStripes = 2;
constexpr int kCalls = 8;
constexpr int kAhead = 5;  // calls, before senders are let ahead
constexpr int kMost = 7;   // messages of a ring in a stripe
constexpr int kWords = 5;  // of a message: four of its row, and one beside it

/// The rings that an end serves: what it calls them, and who is at their other ends.
struct Served {
    ep::Peers kept;
    int of;
    int count;
    int rings[8];
    int peers[8];
    int own;
    ep::i64 more;     // what this end adds to each word that it sends,
    ep::i64 less[8];  // and what those at other ends do
};

/// How many messages one rank sends another in a stripe of a call: more than a ring holds, or none; in the last
/// calls as few as let it be two calls ahead.
__device__ __forceinline__ int messages(int from, int to, ep::u32 epoch, int stripe) {
    const int all = from * 5 + to * 3 + static_cast<int>(epoch) * 2 + stripe * 4;
    return epoch > kAhead ? all % 2 : all % kMost;
}

/// A word of a message.
__device__ __forceinline__ ep::i64 word_of(int from, int to, ep::u32 epoch, int stripe, int k, int i) {
    const ep::i64 ring = ((from * 64ll + to) * 8 + epoch) * kStripes + stripe;
    return (ring * 8 + k) * 8 + i;
}

/// The other number of a header, besides how many messages come.
__device__ __forceinline__ int told_of(int from, int to, ep::u32 epoch, int stripe) {
    return static_cast<int>(word_of(from, to, epoch, stripe, 0, 0) % 10007) - 5000;
}

/// Where the messages of a ring are noted, of the served one that is the i-th.
__device__ __forceinline__ ep::i64* noted(ep::i64* out, int i, ep::u32 epoch, int stripe) {
    const int call = static_cast<int>(epoch) - 1;
    return out + ((i * kCalls + call) * kStripes + stripe) * (kMost + 1) * kWords;
}

/// Tells each other end the two numbers of its header.
template <class Out>
__device__ __forceinline__ void announce(Out& rings, const ep::Team& team, const Served& it, int stripe) {
    for (int i = 0; i < it.count; ++i) {
        const int to = it.peers[i];
        rings.announce(it.rings[i], 0, messages(it.own, to, team.epoch, stripe));
        rings.announce(it.rings[i], 1, told_of(it.own, to, team.epoch, stripe));
    }
}

/// Sends message `k` of the i-th ring, whose slot is free.
template <class Ring, class Out>
__device__ __forceinline__ void push(Out& rings, const ep::Team& team, const Served& it, int i, int stripe,
                                     int k) {
    char* slot = rings.slot(it.rings[i]);
    const int word = (team.lane + 3) % ep::kLanes;
    const ep::i64 value =
        word_of(it.own, it.peers[i], team.epoch, stripe, k, word) + it.more;
    if (word < 4) reinterpret_cast<ep::i64*>(slot)[word] = value;
    if (word == 4) *reinterpret_cast<ep::i64*>(slot + Ring::kMeta) = value;
    rings.publish(it.rings[i]);
}

/// Sends all messages of a stripe; those of several rings in turn. In every other stripe it looks for room first,
/// and then needs not wait.
template <class Ring, class Out>
__device__ __forceinline__ void send(Out& rings, ep::Team& team, const Served& it, int stripe) {
    rings.open(stripe, it.kept, it.of);
    announce(rings, team, it, stripe);
    for (int k = 0; k < kMost; ++k) {
        for (int i = 0; i < it.count; ++i) {
            const int ring = it.rings[i];
            if (k >= messages(it.own, it.peers[i], team.epoch, stripe)) continue;
            if (stripe == 1) {
                while (!rings.has_room(ring)) rings.send();
            } else if (!rings.reserve(ring)) {
                return;
            }
            push<Ring>(rings, team, it, i, stripe, k);
        }
    }
    rings.close();
}

/// What a slot holds, read by other lanes than have written it.
__device__ __forceinline__ void look(const char* slot, const char* meta, int lane, ep::i64 less,
                                     ep::i64* out) {
    if (lane < 4) out[lane] = reinterpret_cast<const ep::i64*>(slot)[lane] - less;
    if (lane == 4) out[4] = *reinterpret_cast<const ep::i64*>(meta) - less;
}

/// Takes the messages of a stripe one by one, as they are awaited.
template <class Ring, class In>
__device__ __forceinline__ void take(In& rings, ep::Team& team, const Served& it, int stripe, ep::i64* out) {
    for (int k = 0; k < kMost; ++k) {
        for (int i = 0; i < it.count; ++i) {
            const int ring = it.rings[i];
            if (k >= rings.header(ring, 0)) continue;
            if (stripe == 1) {
                while (!rings.has_message(ring)) {
                }
            } else if (!rings.arrived(ring)) {
                return;
            }
            const char* slot = rings.slot(ring);
            look(slot, slot + Ring::kMeta, team.lane, it.less[i],
                 noted(out, i, team.epoch, stripe) + k * kWords);
            rings.release(ring);
        }
    }
}

/// Takes them as they come.
template <class Ring, class In>
__device__ __forceinline__ void take_any(In& rings, ep::Team& team, const Served& it, int stripe,
                                         ep::i64* out) {
    for (int ring; (ring = rings.next(0)) >= 0;) {
        int i = 0;
        while (it.rings[i] != ring) ++i;
        // What `next` has seen is acquired by whoever takes it.
        if (!rings.arrived(ring)) return;
        const char* slot = rings.slot(ring);
        const int k = rings.taken(ring);
        look(slot, slot + Ring::kMeta, team.lane, it.less[i],
             noted(out, i, team.epoch, stripe) + k * kWords);
        rings.release(ring);
    }
}

/// Finds them by their positions, those of all rings at once.
template <class Ring, class In>
__device__ __forceinline__ void find(In& rings, ep::Team& team, const Served& it, int stripe, ep::i64* out) {
    for (int k = 0; k < kMost; ++k) {
        ep::i32 positions[In::kGroups];
        bool has_any = false;
        for (int g = 0; g < In::kGroups; ++g) positions[g] = -1;
        for (int i = 0; i < it.count; ++i) {
            const int all = rings.header(it.rings[i], 0);
            has_any = has_any || k < all;
            for (int g = 0; g < In::kGroups; ++g) {
                if (g * ep::kLanes + team.lane != it.rings[i]) continue;
                positions[g] = k < all ? k : -1 - all;
            }
        }
        if (!has_any) break;
        if (!rings.arrived(positions, true)) return;
        for (int i = 0; i < it.count; ++i) {
            const int own = it.rings[i] % ep::kLanes, group = it.rings[i] / ep::kLanes;
            ep::u64 row = 0, meta = 0;
            int position = -1;
            for (int g = 0; g < In::kGroups; ++g) {
                if (g != group || team.lane != own || positions[g] < 0) continue;
                position = positions[g];
                row = reinterpret_cast<ep::u64>(rings.row(g, position));
                meta = reinterpret_cast<ep::u64>(rings.meta(g, position));
            }
            if (__shfl_sync(ep::kAllLanes, position, own) < 0) continue;
            row = __shfl_sync(ep::kAllLanes, row, own);
            meta = __shfl_sync(ep::kAllLanes, meta, own);
            look(reinterpret_cast<const char*>(row), reinterpret_cast<const char*>(meta), team.lane,
                 it.less[i], noted(out, i, team.epoch, stripe) + k * kWords);
        }
        rings.done(positions);
    }
}

/// Takes all messages of a stripe, in one of three ways, and notes what the headers say.
template <class Ring, class In>
__device__ __forceinline__ void receive(In& rings, ep::Team& team, const Served& it, int stripe, int way,
                                        ep::i64* out) {
    rings.open(stripe, it.kept, it.of);
    for (int i = 0; i < it.count; ++i) {
        const int count = rings.header(it.rings[i], 0), told = rings.header(it.rings[i], 1);
        ep::i64* header = noted(out, i, team.epoch, stripe) + kMost * kWords;
        if (team.lane == 3) header[0] = count;
        if (team.lane == 5) header[1] = told;
    }
    if (way == 0) {
        take<Ring>(rings, team, it, stripe, out);
    } else if (way == 1) {
        take_any<Ring>(rings, team, it, stripe, out);
    } else {
        find<Ring>(rings, team, it, stripe, out);
    }
    rings.close();
}

/// Lets time pass, more than others take to go on.
__device__ __forceinline__ void linger() {
    const ep::u64 first = ep::clock_ns();
    while (ep::clock_ns() - first < 4000) {
    }
}

/// Every call of one end, as soon as the other end lets it; `begun` says which.
template <class Ring, class Out>
__device__ __forceinline__ void send_all(Out& rings, ep::Team& team, const Served& it, ep::u32* begun) {
    for (team.epoch = 1; team.epoch <= kCalls; ++team.epoch) {
        if (team.leader()) ep::store_relaxed_gpu(begun, team.epoch);
        for (int stripe = 0; stripe < kStripes; ++stripe) send<Ring>(rings, team, it, stripe);
    }
}

/// Every call of one end that receives. After each call, `meet` waits for others of this rank, whose calls do not
/// overlap. Once, this end waits until the sending end has gone ahead; `begun` is the number of the last call it began.
template <class Ring, class In, class Meet>
__device__ __forceinline__ void receive_all(In& rings, ep::Team& team, const Served& it, ep::i64* out,
                                            const ep::u32* begun, Meet meet) {
    for (team.epoch = 1; team.epoch <= kCalls; ++team.epoch) {
        if (team.epoch == kAhead + 1) {
            // It has told of two calls, and waits before the third one.
            while (ep::load_relaxed_gpu(begun) < kCalls) {
            }
            linger();
        }
        for (int stripe = 0; stripe < kStripes; ++stripe) {
            const int way = static_cast<int>(team.epoch + stripe) % 3;
            receive<Ring>(rings, team, it, stripe, way, out);
        }
        meet();
    }
}

}  // namespace ring_ends
