// Slots that hold one record of each source, between two nodes. The host knows what remains in `out`; see net_slots.rs.
#include <ep/net_slots.cuh>

namespace net_slots {

using namespace net_calls;

constexpr int kEach = kReaders * kCalls * kRanks * kWords;

/// A channel from `kAt` of a window on, and from there in the data.
template <ep::u64 kAt, int kFirst, bool kSkipsOwn_>
struct Channel {
    static constexpr int kChannel = 8;
    static constexpr bool kRail = false;
    static constexpr bool kIbgda = false;
    static constexpr bool kSkipsOwn = kSkipsOwn_;
    static constexpr int kPeers = kRanks;
    static constexpr int kNodeRanks = 2;
    static constexpr int kNear = kNodeRanks;
    static constexpr int kEpochs = 2;
    static constexpr int kSlotBytes = kWords * 8;
    static constexpr ep::u64 kBegun = kAt;      // calls that this rank's sender has begun,
    static constexpr ep::u64 kMet = kBegun + 4;  // and that its readers have ended
    static constexpr ep::u64 kCome = kMet + 4;
    static constexpr ep::u64 kReleased = kCome + kNear * 4;
    static constexpr ep::u64 kReaders = kReleased + kNear * 4;
    static constexpr ep::u64 kSlots = kReaders + 8;
    static constexpr ep::u64 kInbox = kAt;
    static constexpr ep::u64 kOutbox = kInbox + kEpochs * (kPeers - kNear) * kSlotBytes;
    static constexpr int kCounters = kFirst;
};

template <class Slots>
inline __device__ __noinline__ void send(const Args& args, const ep::Call& call) {
    send_calls<Slots>(args, call, [&](ep::Team& team) {
        ep::NetSlotsOut<Slots> slots(team, args.net);
        for (int place = Slots::kSkipsOwn ? 1 : 0; place < kRanks; ++place) {
            if (!slots.reserve(args.group.rank ^ place, 0)) return;
            ep::i64* record = reinterpret_cast<ep::i64*>(slots.slot());
            const int i = (team.lane + 3) % ep::kLanes;
            if (i < kWords) record[i] = word_of(args.group.rank, place, team.epoch, i);
            slots.publish();
        }
    });
}

template <class Slots>
inline __device__ __noinline__ void receive(const Args& args, const ep::Call& call, int reader, ep::i64* out) {
    read_calls<Slots>(args, call, reader, [&](ep::Team& team) {
        ep::NetSlotsIn<Slots> slots(team, args.net);
        slots.await();
        for (int place = Slots::kSkipsOwn ? 1 : 0; place < kRanks; ++place) {
            const int source = args.group.rank ^ place;
            const ep::i64* record = reinterpret_cast<const ep::i64*>(slots.slot(source, 0));
            const int call_place = (reader * kCalls + static_cast<int>(team.epoch) - 1) * kRanks + place;
            if (team.lane < kWords) {
                out[call_place * kWords + team.lane] = record[team.lane] - word_of(source, 0, 0, 0);
            }
        }
        slots.release();
    });
}

/// What each rank has told, and how many readers are under way.
template <class Slots>
inline __device__ __noinline__ void dump(const Args& args, ep::i64* out) {
    for (int place = 0; place < kRanks; ++place) {
        const int peer = args.group.rank ^ place;
        const ep::u32 value = Slots::kSkipsOwn && place == 0 ? 0 : kCalls;
        const ep::u64 told[2] = {Slots::kCome, Slots::kReleased};
        for (int number = 0; number < 2; ++number) {
            const ep::u32* near = word_at(args.group, told[number]) + peer % Slots::kNear;
            const ep::u32* far = ep::counter_of(args.net, peer, 0, Slots::kCounters + number);
            *out++ = last(place < Slots::kNear ? near : far, value);
        }
    }
    *out = *word_at(args.group, Slots::kReaders);
}

/// All calls of a channel, one behind the other.
template <class Slots>
__device__ __forceinline__ void serve(const Args& args, const ep::Call& call, ep::i64* out) {
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes, block = static_cast<int>(blockIdx.x);
    if (warp == 1) {
        receive<Slots>(args, call, block, out);
    } else if (block == 0) {
        send<Slots>(args, call);
    }
}

}  // namespace net_slots

extern "C" __global__ void __launch_bounds__(2 * 32)
    net_slots_of(const __grid_constant__ net_slots::Args args) {
    using All = net_slots::Channel<64, 1, false>;
    using Others = net_slots::Channel<1024, 3, true>;
    ep::Call call = ep::enter(args.group);
    net_slots::serve<All>(args, call, args.out);
    net_slots::serve<Others>(args, call, args.out + net_slots::kEach);
    ep::all_blocks(args.group, call);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        net_slots::dump<All>(args, args.out + 2 * net_slots::kEach);
        net_slots::dump<Others>(args, args.out + 2 * net_slots::kEach + 9);
    }
    ep::leave(args.group, call);
}
