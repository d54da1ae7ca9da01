// Every rank pushes as much as it can, with no flags and no order: to all other ranks, for what the wire
// gives, or to all ranks, for what an SM stores.
#include <ep/sync.cuh>

namespace wire {

constexpr int kWarps = 8;
constexpr int kStages = 4;
constexpr int kAhead = 2;  // loads run this far ahead, so that two stores are under way as well
constexpr int kPieceBytes = 4096;

struct Args {
    ep::Group group;
    int ranks;
    int first;  // how far the first peer is away: 1, or 0 for the rank itself
    int peers;
    const char* from;
    ep::i64 bytes;  // to each peer
};

struct Smem {
    alignas(128) char pieces[kWarps][kStages][kPieceBytes];
    ep::u64 full[kWarps][kStages];
};

/// One lane's share: every `stride`-th piece, the peers in turn.
struct Share {
    const Args& args;
    char (*pieces)[kPieceBytes];
    ep::u64* full;
    int first, stride;

    __device__ __forceinline__ ep::i64 item(int i) const {
        return first + static_cast<ep::i64>(i) * stride;
    }

    __device__ __forceinline__ ep::i64 at(int i) const {
        return item(i) / args.peers * kPieceBytes;
    }

    __device__ __forceinline__ void load(int i) {
        const int stage = i % kStages;
        ep::mbarrier_arrive_expect(full + stage, kPieceBytes);
        ep::tma_load(pieces[stage], args.from + at(i), kPieceBytes, full + stage);
    }

    __device__ __forceinline__ void store(int i) {
        const int stage = i % kStages;
        const ep::u32 parity = static_cast<ep::u32>(i / kStages) & 1;
        while (!ep::mbarrier_try_wait(full + stage, parity)) {}
        const int away = static_cast<int>(item(i) % args.peers) + args.first;
        const int peer = (args.group.rank + away) % args.ranks;
        char* region = args.group.windows[peer] + args.group.rank * args.bytes;
        ep::tma_store(region + at(i), pieces[stage], kPieceBytes);
        ep::tma_commit();
    }
};

}  // namespace wire

extern "C" __global__ void __launch_bounds__(wire::kWarps * 32, 1)
    wire_push(const __grid_constant__ wire::Args args) {
    EP_SHARED(wire::Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (ep::lane_index() == 0) {
        for (int stage = 0; stage < wire::kStages; ++stage) {
            ep::mbarrier_init(&smem.full[warp][stage], 1);
        }
        ep::fence_mbarrier_init();
        const ep::i64 items = args.bytes / wire::kPieceBytes * args.peers;
        const int first = static_cast<int>(blockIdx.x) * wire::kWarps + warp;
        const int stride = static_cast<int>(gridDim.x) * wire::kWarps;
        const int count = static_cast<int>(items > first ? (items - first - 1) / stride + 1 : 0);
        wire::Share share{args, smem.pieces[warp], smem.full[warp], first, stride};
        for (int i = 0; i < wire::kAhead && i < count; ++i) share.load(i);
        for (int i = 0; i < count; ++i) {
            // The next load overwrites what store i - 2 reads: all but the last store have been read.
            ep::tma_wait_read<1>();
            if (i + wire::kAhead < count) share.load(i + wire::kAhead);
            share.store(i);
        }
        ep::tma_wait_stored<0>();
    }
    ep::leave(args.group, call);
}
