// The least that a dispatch and a combine of few rows can be: a row for each token and rank, a flag for
// each row, at places that are known before. Nothing is counted, and no kernel comes before.
#include <ep/sync.cuh>

namespace floor_of {

constexpr int kMostWarps = 15;
constexpr int kAtOnce = 7;  // quads of a row that a lane has under way

/// Slot t of a source is its token t, the last one a message without a row: to ranks that it sends
/// nothing to, so that every rank hears of every other one in each call. Memory of calls with even and
/// odd numbers is apart: whoever is a call ahead has heard that the call before the last one is over.
struct Args {
    ep::Group group;
    int ranks;
    int slots;         // of each source: its tokens, and the one without a row
    int row_bytes;     // a multiple of 128
    int tokens;        // of this rank
    int parts;         // warps that add up a token
    const ep::u64* to;  // [ranks, slots]: a bit for each rank that a slot goes to
    const char* rows;   // what is sent: a row for each own token, or for each source and slot
    char* sums;         // a row for each own token
};

struct Smem {
    ep::u64 full[kMostWarps + 1];
};

/// The warps of the grid, neighbours on different blocks, and one row of shared memory for each.
struct Mover {
    const Args& args;
    ep::u32 epoch;
    int lane;
    char* stage;
    ep::u64* full;
    ep::u32 parity;

    __device__ __forceinline__ Mover(const Args& args_, Smem& smem)
        : args(args_), epoch(0), lane(ep::lane_index()), stage(), full(), parity(0) {
        const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
        stage = reinterpret_cast<char*>(&smem + 1) + warp * args.row_bytes;
        full = smem.full + warp;
        if (lane == 0) {
            ep::mbarrier_init(full, 1);
            ep::fence_mbarrier_init();
        }
        __syncwarp();
    }

    /// The number of this warp among those of the grid, neighbours on different blocks, and how many
    /// there are.
    __device__ __forceinline__ int first() const {
        return static_cast<int>(threadIdx.x) / ep::kLanes * static_cast<int>(gridDim.x) +
               static_cast<int>(blockIdx.x);
    }

    __device__ __forceinline__ int stride() const {
        return static_cast<int>(blockDim.x / ep::kLanes * gridDim.x);
    }

    __device__ __forceinline__ ep::i64 slot(int source, int index) const {
        return static_cast<ep::i64>(epoch & 1) * args.ranks * args.slots + source * args.slots + index;
    }

    /// The flags of a rank lie in front of its rows.
    __device__ __forceinline__ ep::u32* flag(char* window, int source, int index) const {
        return reinterpret_cast<ep::u32*>(window) + slot(source, index);
    }

    __device__ __forceinline__ char* row(char* window, int source, int index) const {
        const ep::i64 flags = (2 * 4 * static_cast<ep::i64>(args.ranks) * args.slots + 127) / 128 * 128;
        return window + flags + slot(source, index) * args.row_bytes;
    }

    /// Brings a row into shared memory; one lane. The row before it is on its way to its peers.
    __device__ __forceinline__ void load(const char* from) {
        ep::tma_wait_read<0>();
        const ep::u32 bytes = static_cast<ep::u32>(args.row_bytes);
        ep::mbarrier_arrive_expect(full, bytes);
        ep::tma_load(stage, from, bytes, full);
    }

    __device__ __forceinline__ void await_load() {
        while (!ep::mbarrier_try_wait(full, parity)) {}
        parity ^= 1;
    }

    /// Sends the row to a slot of this rank there.
    __device__ __forceinline__ void store(int peer, int index) const {
        char* to = row(args.group.windows[peer], args.group.rank, index);
        ep::tma_store(to, stage, static_cast<ep::u32>(args.row_bytes));
    }

    /// M1: lane 0 waits for its stores, the lanes publish them behind a barrier of the warp; the other end
    /// is `hear`.
    __device__ __forceinline__ void tell(ep::u64 peers, int index) const {
        if (lane == 0) ep::tma_wait_stored<0>();
        __syncwarp();
        for (int peer = lane; peer < args.ranks; peer += ep::kLanes) {
            if (peer == args.group.rank || (peers >> peer & 1) == 0) continue;
            ep::store_release_sys(flag(args.group.windows[peer], args.group.rank, index), epoch);
        }
        __syncwarp();
    }

    /// Each lane waits for the message of a source in a slot, if it wants one (M2).
    __device__ __forceinline__ void hear(ep::Team& team, bool wanted, int source, int index) const {
        const ep::Site site{0, ep::Waiting::kFlag, -1, wanted ? source : -1, epoch};
        ep::wait_counter(team, site, wanted ? flag(args.group.window, source, index) : nullptr);
    }

    /// Whether a slot of a source is for this rank.
    __device__ __forceinline__ bool is_mine(int source, int index) const {
        return (args.to[source * args.slots + index] >> args.group.rank & 1) != 0;
    }
};

__device__ __forceinline__ ep::Team team_of(const Args& args, const ep::Call& call) {
    const int warps = static_cast<int>(blockDim.x) / ep::kLanes;
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    return ep::Team(args.group, call, 0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                    warp, warps);
}

/// One part of the sum of a token's rows, in order of the ranks, in fp32, rounded once.
__device__ __forceinline__ void add_up(const Mover& mover, int token, int part) {
    const Args& args = mover.args;
    const ep::u64 from = args.to[args.group.rank * args.slots + token];
    const int quads = args.row_bytes / 16;
    const int first = quads * part / args.parts, end = quads * (part + 1) / args.parts;
    for (int base = first + mover.lane; base < end; base += ep::kLanes * kAtOnce) {
        float sums[kAtOnce][8] = {};
        for (int pair = 0; pair < args.ranks; pair += 2) {
            ep::Quad found[2][kAtOnce];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int peer = pair + i;
                const bool sends = peer < args.ranks && (from >> peer & 1) != 0;
                const ep::i64 own = static_cast<ep::i64>(peer) * args.slots + token;
                const char* row = peer == args.group.rank
                                      ? args.rows + own * args.row_bytes
                                      : mover.row(args.group.window, peer, token);
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    const int quad = base + j * ep::kLanes;
                    found[i][j] = sends && quad < end ? ep::load_quad(row + quad * 16) : ep::Quad{};
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    const ep::Quad& quad = found[i][j];
                    const ep::u32 words[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        sums[j][2 * k] += ep::float_of(words[k] << 16);
                        sums[j][2 * k + 1] += ep::float_of(words[k] & 0xffff0000u);
                    }
                }
            }
        }
        char* to = args.sums + static_cast<ep::i64>(token) * args.row_bytes;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            const int quad = base + j * ep::kLanes;
            if (quad >= end) continue;
            const float* sum = sums[j];
            ep::store_quad(to + quad * 16,
                           ep::Quad{ep::pack_bf16(sum[0], sum[1]), ep::pack_bf16(sum[2], sum[3]),
                                    ep::pack_bf16(sum[4], sum[5]), ep::pack_bf16(sum[6], sum[7])});
        }
    }
}

}  // namespace floor_of

/// Rows of the own tokens to each rank that they go to, this one too.
extern "C" __global__ void __launch_bounds__(floor_of::kMostWarps * 32, 1)
    floor_dispatch(const __grid_constant__ floor_of::Args args) {
    EP_SHARED(floor_of::Smem, smem);
    floor_of::Mover mover(args, smem);
    const int me = args.group.rank, last = args.slots - 1;
    // Where a slot goes; its row is on its way to shared memory.
    const auto bring = [&](int index) {
        const ep::u64 peers = index < args.slots ? args.to[me * args.slots + index] : 0;
        if (mover.lane == 0 && index < last && peers != 0) {
            mover.load(args.rows + static_cast<ep::i64>(index) * args.row_bytes);
        }
        return peers;
    };
    int index = mover.first();
    ep::u64 peers = 0;
    const ep::Call call = ep::enter(args.group, [&] { peers = bring(index); });
    mover.epoch = call.epoch;
    while (index < args.slots) {
        if (mover.lane == 0 && index < last && peers != 0) {
            mover.await_load();
            for (int away = 1; away <= args.ranks; ++away) {
                const int peer = (me + away) % args.ranks;
                if ((peers >> peer & 1) != 0) mover.store(peer, index);
            }
            ep::tma_commit();
        }
        const int next = index + mover.stride();
        const ep::u64 next_peers = bring(next);
        mover.tell(peers, index);
        index = next;
        peers = next_peers;
    }
    ep::Team team = floor_of::team_of(args, call);
    const int messages = args.ranks * args.slots;
    for (int base = team.index() * ep::kLanes; base < messages; base += team.count() * ep::kLanes) {
        const int source = (base + team.lane) / args.slots, slot = (base + team.lane) % args.slots;
        const bool wanted = source < args.ranks && source != me && mover.is_mine(source, slot);
        mover.hear(team, wanted, source, slot);
    }
    ep::leave(args.group, call);
}

/// Rows that came back to their sources, and the sums there.
extern "C" __global__ void __launch_bounds__(floor_of::kMostWarps * 32, 1)
    floor_combine(const __grid_constant__ floor_of::Args args) {
    EP_SHARED(floor_of::Smem, smem);
    floor_of::Mover mover(args, smem);
    const int me = args.group.rank, last = args.slots - 1;
    const int messages = (args.ranks - 1) * args.slots;
    // Whether a message came here and goes back; its row is on its way to shared memory.
    const auto bring = [&](int unit) {
        if (unit >= messages) return false;
        const int source = (me + 1 + unit / args.slots) % args.ranks, slot = unit % args.slots;
        const bool is_mine = mover.is_mine(source, slot);
        if (is_mine && mover.lane == 0 && slot < last) {
            const ep::i64 row = static_cast<ep::i64>(source) * args.slots + slot;
            mover.load(args.rows + row * args.row_bytes);
        }
        return is_mine;
    };
    int unit = mover.first();
    bool is_mine = false;
    const ep::Call call = ep::enter(args.group, [&] { is_mine = bring(unit); });
    mover.epoch = call.epoch;
    while (unit < messages) {
        const int source = (me + 1 + unit / args.slots) % args.ranks, slot = unit % args.slots;
        if (is_mine && mover.lane == 0 && slot < last) {
            mover.await_load();
            mover.store(source, slot);
            ep::tma_commit();
        }
        unit += mover.stride();
        const bool next_is_mine = bring(unit);
        if (is_mine) mover.tell(1ull << source, slot);
        is_mine = next_is_mine;
    }
    ep::Team team = floor_of::team_of(args, call);
    const int sums = args.tokens * args.parts;
    // The last one is the message without a row.
    for (int sum = team.spread(); sum <= sums; sum += team.count()) {
        const int token = sum < sums ? sum / args.parts : last;
        const ep::u64 from = args.to[me * args.slots + token];
        for (int base = 0; base < args.ranks; base += ep::kLanes) {
            const int peer = base + team.lane;
            const bool wanted = peer < args.ranks && peer != me && (from >> peer & 1) != 0;
            mover.hear(team, wanted, peer, token);
        }
        if (sum < sums) floor_of::add_up(mover, token, sum % args.parts);
    }
    ep::leave(args.group, call);
}
