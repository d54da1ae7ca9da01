// Slots that hold rows, between two nodes: slots that a sender counts, several of a key; slots that are announced one
// by one; and slots of messages that are filled once for both far ranks. The processor empties the queues, or the card
// does. The host knows what the kernel leaves in `out`; see net_slot_rows.rs.
#include <ep/net_slot_rows.cuh>

namespace net_slot_rows {

using namespace net_calls;

constexpr int kKeysEach = 3;  // of a source
constexpr int kMost = 2;      // rows of a key
constexpr int kNotes = 1 + kMost * kWords;
constexpr int kEach = kReaders * kCalls * kRanks * kKeysEach * kNotes;

/// A channel from `kAt` of a window on, and from there in the data.
template <ep::u64 kAt, int kFirst, bool kCounts_, int kOnce_, bool kIbgda_>
struct Channel {
    static constexpr int kChannel = 8;
    static constexpr bool kRail = false;
    static constexpr bool kIbgda = kIbgda_;
    static constexpr bool kCounts = kCounts_;
    static constexpr bool kSkipsOwn = false;
    static constexpr bool kSkipsAbsent = false;
    static constexpr int kPeers = kRanks;
    static constexpr int kNodeRanks = 2;
    static constexpr int kNear = kNodeRanks;
    static constexpr int kFar = kPeers - kNear;
    static constexpr int kEpochs = 2;
    static constexpr int kKeys = kPeers * kKeysEach;
    static constexpr int kShared = kCounts ? kKeysEach : 1;
    static constexpr int kSourceStride = kKeysEach;
    static constexpr int kArrivals = kCounts ? kMost : 1;
    static constexpr int kSlotBytes = kWords * 8;
    static constexpr int kMeta = kSlotBytes;
    static constexpr int kFarBytes = kSlotBytes + (kCounts ? 0 : 16);
    static constexpr int kRun = 1;
    static constexpr int kOnce = kOnce_;
    static constexpr ep::u64 kBegun = kAt;      // calls that this rank's sender has begun,
    static constexpr ep::u64 kMet = kBegun + 4;  // and that its readers have ended
    static constexpr int kSlices = 1;
    static constexpr int kFewTokens = 0;
    static constexpr ep::u64 kFlags = kMet + 4;
    static constexpr ep::u64 kClosed = kFlags + kEpochs * kNear * kKeysEach * 8;
    static constexpr ep::u64 kReleased = kClosed + kEpochs * kNear * kShared * 8;
    static constexpr ep::u64 kTaken = kReleased + kNear * 4;
    static constexpr ep::u64 kClosers = kTaken + kPeers * kShared * 4;
    static constexpr ep::u64 kReaders = kClosers + 4;
    static constexpr ep::u64 kClosedTold = kReaders + 4;
    static constexpr ep::u64 kReleasedTold = kClosedTold + kFar * 4;
    static constexpr ep::u64 kFilled = kReleasedTold + kFar * 4;
    static constexpr ep::u64 kSlots = (kFilled + kOnce * 4 + 15) / 16 * 16;
    static constexpr ep::u64 kInbox = kAt;
    static constexpr ep::u64 kOutbox = kInbox + kEpochs * kFar * kKeysEach * kArrivals * kFarBytes;
    static constexpr ep::u64 kCountsIn = 2 * kOutbox - kInbox;
    static constexpr ep::u64 kCountsOut = kCountsIn + kEpochs * kFar * kShared * 4;
    static constexpr int kCounters = kFirst;
};

/// How many rows a key has, in a call.
template <class Slots>
__device__ __forceinline__ int rows_of(int place, int number, ep::u32 call) {
    return Slots::kCounts ? (place + number + static_cast<int>(call)) % (kMost + 1) : 1;
}

template <class Slots>
inline __device__ __noinline__ void send(const Args& args, const ep::Call& call) {
    send_calls<Slots>(args, call, [&](ep::Team& team) {
        ep::SlotRowsOut<Slots, ep::NetSlotRows<Slots>> slots(team, args.net);
        for (int i = 0; i < kRanks * kKeysEach; ++i) {
            const int place = i % kRanks, number = i / kRanks, own = args.group.rank;
            const int key = own * kKeysEach + number;
            for (int row = 0; row < rows_of<Slots>(place, number, team.epoch); ++row) {
                const int message = number * kMost + row;
                const bool is_free = Slots::kOnce > 0 ? slots.reserve(own ^ place, key, message) : slots.reserve(own ^ place, key);
                if (!is_free) return;
                if (slots.fills()) {
                    ep::i64* words = reinterpret_cast<ep::i64*>(slots.slot());
                    const int lane = (team.lane + 3) % ep::kLanes;
                    const int to = Slots::kOnce > 0 ? 0 : place * 10;
                    if (lane < kWords) words[lane] = word_of(own, to + number * 3 + row, team.epoch, lane);
                }
                slots.publish();
            }
        }
        slots.close(1);
    });
}

template <class Slots>
inline __device__ __noinline__ void receive(const Args& args, const ep::Call& call, int reader, ep::i64* out) {
    read_calls<Slots>(args, call, reader, [&](ep::Team& team) {
        ep::SlotRowsIn<Slots, ep::NetSlotRows<Slots>> slots(team, args.net);
        if (team.epoch % 2 == 1) slots.await();
        for (int i = 0; i < kRanks * kKeysEach; ++i) {
            const int source = args.group.rank ^ (i % kRanks), key = source * kKeysEach + i / kRanks;
            int count = 1;
            if constexpr (Slots::kCounts) {
                count = slots.count(key);
            } else if (!slots.arrived(key)) {
                count = 0;
            }
            const int calls = reader * kCalls + static_cast<int>(team.epoch) - 1;
            ep::i64* notes = out + (calls * kRanks * kKeysEach + i) * kNotes;
            if (team.leader()) notes[0] = count;
            for (int row = 0; row < count; ++row) {
                const ep::i64* words = reinterpret_cast<const ep::i64*>(slots.slot(key, row));
                if (team.lane < kWords) {
                    notes[1 + row * kWords + team.lane] = words[team.lane] - word_of(source, 0, 0, 0);
                }
            }
        }
        slots.release();
    });
}

/// What the ends of this rank keep of calls, which other ranks have been told of.
template <class Slots>
inline __device__ __noinline__ void dump(const Args& args, ep::i64* out) {
    for (int place = 0; place < kRanks; ++place) {
        const int peer = args.group.rank ^ place;
        const ep::u32* near = word_at(args.group, Slots::kReleased) + peer % Slots::kNear;
        for (int number = 0; number < 2; ++number) {
            const ep::u32* far = ep::counter_of(args.net, peer, 0, Slots::kCounters + number);
            if (place >= Slots::kNear || number == 1) *out++ = last(place < Slots::kNear ? near : far, kCalls);
        }
    }
    for (int i = 0; i < Slots::kFar; ++i) {
        *out++ = word_at(args.group, Slots::kClosedTold)[i];
        *out++ = word_at(args.group, Slots::kReleasedTold)[i];
    }
    for (int i = 0; i < kRanks * Slots::kShared; ++i) *out++ = word_at(args.group, Slots::kTaken)[i];
    *out++ = *word_at(args.group, Slots::kClosers);
    *out++ = *word_at(args.group, Slots::kReaders);
    for (int i = 0; i < Slots::kOnce; ++i) *out++ = word_at(args.group, Slots::kFilled)[i];
}

template <class Slots>
__device__ __forceinline__ void serve(const Args& args, const ep::Call& call, ep::i64* out) {
    const int block = static_cast<int>(blockIdx.x);
    if (threadIdx.x >= ep::kLanes) {
        receive<Slots>(args, call, block, out);
    } else if (block == 0) {
        send<Slots>(args, call);
    }
}

/// All calls of the channels, one behind the other.
template <bool kIbgda>
__device__ __forceinline__ void run(const Args& args, ep::Call& call) {
    using Counted = Channel<64, 1, true, 0, kIbgda>;
    using Told = Channel<2048, 3, false, 0, kIbgda>;
    using Once = Channel<4096, 5, true, kMost * kKeysEach, kIbgda>;
    serve<Counted>(args, call, args.out);
    serve<Told>(args, call, args.out + kEach);
    serve<Once>(args, call, args.out + 2 * kEach);
    ep::all_blocks(args.group, call);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    dump<Counted>(args, args.out + 3 * kEach);
    dump<Told>(args, args.out + 3 * kEach + 100);
    dump<Once>(args, args.out + 3 * kEach + 200);
}

}  // namespace net_slot_rows

extern "C" __global__ void __launch_bounds__(2 * 32)
    net_slot_rows_of(const __grid_constant__ net_calls::Args args) {
    ep::Call call = ep::enter(args.group);
    if (args.net->pairs != nullptr) {
        net_slot_rows::run<true>(args, call);
    } else {
        net_slot_rows::run<false>(args, call);
    }
    ep::leave(args.group, call);
}
