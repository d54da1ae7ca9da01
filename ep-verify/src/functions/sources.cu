// What a warp keeps of several sources: the parts of a token, and how long it has waited for each. The host knows what
// each check leaves in `out`; see sources.rs, which has the checks in the same order.
#include <ep/parts.cuh>
#include <ep/ptx.cuh>
#include <ep/slot_times.cuh>
#include <ep/sync.cuh>

namespace sources {

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// A kind of place, which says by itself where it is.
__device__ __forceinline__ const char* place_of(int kind, int lane, int group, ep::i32 entry) {
    return reinterpret_cast<const char*>(kind * 1000000ull + lane * 10000 + group * 1000 + entry);
}

/// Parts of 64 peers, which nobody has sent.
struct Source {
    static constexpr bool kInWords = false;
    static constexpr int kGroups = 2;

    ep::Team& team;
    const ep::i64* told;    // what each lane says before
    bool comes, stops;      // what becomes of a token
    ep::i64 heard = 0;      // what the next lane has said
    int looks = 0;          // for parts
    ep::i32 expected[kGroups] = {};
    ep::i32 done_with[kGroups] = {};

    __device__ __forceinline__ void wait_ready() {
        heard = told[(team.lane + 1) % ep::kLanes];
        if (stops) team.stopped = true;
    }

    __device__ __forceinline__ bool arrived(const ep::i32 (&entries)[kGroups], bool waits) {
        for (int g = 0; g < kGroups; ++g) expected[g] = entries[g];
        ++looks;
        return waits && comes;
    }

    __device__ __forceinline__ const char* row(int g, ep::i32 entry) const {
        return place_of(1, team.lane, g, entry);
    }

    __device__ __forceinline__ const char* meta(int g, ep::i32 entry) const {
        return place_of(2, team.lane, g, entry);
    }

    __device__ __forceinline__ void done(const ep::i32 (&entries)[kGroups]) {
        for (int g = 0; g < kGroups; ++g) done_with[g] = entries[g];
    }
};

/// Tokens of which most peers have a part, few of them, or which do not come.
__device__ __forceinline__ void parts(ep::Team& team, ep::i64* told, ep::i64* out) {
    Source source{team, told, true, false};
    ep::Parts<Source> parts(team, source);
    for (int turn = 0; turn < 4; ++turn, out += 500) {
        source.comes = turn != 2;
        source.stops = turn == 3;
        parts.clear();
        for (int g = 0; g < Source::kGroups; ++g) {
            const int peer = g * ep::kLanes + team.lane;
            const ep::i32 entry = peer % 3 == 0 ? -1 : peer * 7 % 90;
            if (turn == 0 || peer % 5 == 1) parts.expect(peer, entry);
        }
        told[team.lane] = turn * 100 + team.lane;
        out[team.lane] = parts.open() ? 1 : 0;
        out[32 + team.lane] = source.heard;
        out[64 + team.lane] = source.looks;
        for (int peer = 0; peer < 64; ++peer) {
            const bool has = parts.has(peer);
            const char* row = parts.row(peer);
            const char* meta = parts.meta(peer);
            if (team.lane != (peer * 5 + 1) % ep::kLanes) continue;
            out[96 + peer * 3] = has ? 1 : 0;
            out[97 + peer * 3] = static_cast<ep::i64>(reinterpret_cast<ep::u64>(row));
            out[98 + peer * 3] = static_cast<ep::i64>(reinterpret_cast<ep::u64>(meta));
        }
        parts.close();
        for (int g = 0; g < Source::kGroups; ++g) {
            out[300 + g * 32 + team.lane] = source.expected[g];
            out[364 + g * 32 + team.lane] = source.done_with[g];
        }
        __syncwarp();
    }
}

/// More sources than lanes.
struct Timed {
    static constexpr int kPeers = 40;
    static constexpr ep::u64 kWaited = 256;
};

using Times = ep::SlotTimes<Timed>;

/// Lets time pass, far more than other lanes take meanwhile.
__device__ __forceinline__ void linger() {
    const ep::u64 begun = ep::clock_ns();
    while (ep::clock_ns() - begun < 4000) {
    }
}

/// Each lane waits for a source of its own, one for none.
__device__ __forceinline__ void times(const ep::Team& team, ep::i64* out) {
    const int lane = team.lane, source = lane == 3 ? -1 : lane;
    ep::u64* words = reinterpret_cast<ep::u64*>(team.group.window + Timed::kWaited);
    const auto noted = [&] { return ep::load_relaxed_sys(words + lane); };
    Times nobodys(team, nullptr);
    nobodys.begin();
    out[lane] = nobodys.found(source, false) ? 1 : 0;
    linger();
    out[32 + lane] = nobodys.found(source, true) ? 1 : 0;
    Times all(team, reinterpret_cast<ep::i64*>(team.group.window + 1024));
    // What is there at the first look was not waited for.
    out[64 + lane] = all.found(source, true) ? 1 : 0;
    out[96 + lane] = static_cast<ep::i64>(noted());
    all.begin();
    const ep::u64 before = ep::clock_ns();
    const bool first = all.found(source, false);
    const ep::u64 begun = ep::clock_ns();
    linger();
    const bool second = all.found(source, false);
    const ep::u64 least = ep::clock_ns() - begun;
    const bool third = all.found(source, true);
    const ep::u64 most = ep::clock_ns() - before, longest = noted();
    const bool is_right = source < 0 ? longest == 0 : longest >= least && longest <= most;
    out[128 + lane] = (first ? 1 : 0) + (second ? 2 : 0) + (third ? 4 : 0) + (is_right ? 8 : 0);
    // What has come is not waited for; a shorter wait changes nothing, nor does one that another begins behind.
    linger();
    linger();
    all.found(source, true);
    all.begin();
    all.found(source, false);
    all.found(source, true);
    out[160 + lane] = noted() == longest ? 1 : 0;
    all.found(source, false);
    linger();
    linger();
    all.begin();
    all.found(source, true);
    out[192 + lane] = noted() == longest ? 1 : 0;
    out[224 + lane] = ep::take_relaxed_gpu(words + lane) == longest ? 1 : 0;
    // Nothing before the words, and nothing of sources that nobody waits for.
    if (lane < 9) out[256 + lane] = static_cast<ep::i64>(words[lane == 0 ? -1 : 31 + lane]);
}

/// The times of a call, added to sums once.
__device__ __forceinline__ void sums(const ep::Team& team, ep::i64* out) {
    const int lane = team.lane, next = (lane + 1) % ep::kLanes;
    ep::u64* words = reinterpret_cast<ep::u64*>(team.group.window + Timed::kWaited);
    ep::i64* sums = reinterpret_cast<ep::i64*>(team.group.window + 1024);
    for (int i = lane; i < Timed::kPeers; i += ep::kLanes) {
        words[i] = 7 * i + 1;
        sums[i] = 1000 + i;
    }
    __syncwarp();
    Times(team, nullptr).add();
    out[lane] = static_cast<ep::i64>(words[next]);
    __syncwarp();
    Times(team, sums).add();
    for (int i = next; i < Timed::kPeers; i += ep::kLanes) {
        out[32 + i] = sums[i];
        out[72 + i] = static_cast<ep::i64>(words[i]);
    }
}

}  // namespace sources

extern "C" __global__ void __launch_bounds__(32)
    sources_of(const __grid_constant__ sources::Args args) {
    const ep::Call call = ep::enter(args.group);
    ep::Team team(args.group, call, 0);
    ep::i64* told = reinterpret_cast<ep::i64*>(args.group.window + 2048);
    switch (args.check) {
        case 0: sources::parts(team, told, args.out); break;
        case 1: sources::times(team, args.out); break;
        case 2: sources::sums(team, args.out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
