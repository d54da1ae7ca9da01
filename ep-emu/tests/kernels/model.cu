// Runs litmus tests: what each party does is a list of operations in memory. The parties are warps of
// a block, blocks of a rank, or ranks; lane 0 of each acts.
#include <ep/ptx.cuh>

using ep::u32;

enum Kind : u32 {
    kEnd, kPut, kLook, kRelease, kAcquire, kAdd, kAddAcqRel, kFence, kWrite, kRead, kLeaveIfZero
};

struct Op {
    u32 kind, place, value;
};

constexpr u32 kOps = 4, kPlaces = 2, kMostRounds = 64;

struct Args {
    u32* places;     // [kPlaces, kMostRounds]
    u32* turn;
    u32* seen;       // [kMostRounds, parties, kOps]
    const Op* ops;   // [parties, kOps]
    u32 scope;
    u32 placed;      // the scope that holds all parties
    u32 parties;
    u32 rounds;
    u32 rank;
};

extern "C" __global__ void model(const __grid_constant__ Args args) {
    if (ep::lane_index() != 0) return;
    const u32 warp = threadIdx.x / 32;
    const u32 party = args.placed == EMU_CTA ? warp : args.placed == EMU_GPU ? blockIdx.x : args.rank;
    const u32 scope = args.scope << 4;
    for (u32 round = 0; round < args.rounds; ++round) {
        // All begin at about the same time, and nothing is ordered by that.
        emu_atomic(EMU_ATOMIC_ADD, args.turn, 1, 0, 4, EMU_RELAXED | EMU_SYS << 4);
        while (emu_load(args.turn, 4, EMU_RELAXED | EMU_SYS << 4) < (round + 1) * args.parties) {
        }
        for (u32 step = 0; step < kOps; ++step) {
            const Op op = args.ops[party * kOps + step];
            u32* at = args.places + op.place * kMostRounds + round;
            u32* seen = args.seen + (round * args.parties + party) * kOps + step;
            if (op.kind == kPut) emu_store(at, op.value, 4, EMU_RELAXED | scope);
            if (op.kind == kRelease) emu_store(at, op.value, 4, EMU_RELEASE | scope);
            if (op.kind == kLook) *seen = (u32)emu_load(at, 4, EMU_RELAXED | scope);
            if (op.kind == kAcquire) *seen = (u32)emu_load(at, 4, EMU_ACQUIRE | scope);
            if (op.kind == kAdd || op.kind == kAddAcqRel) {
                const u32 order = op.kind == kAdd ? EMU_RELAXED : EMU_ACQ_REL;
                *seen = (u32)emu_atomic(EMU_ATOMIC_ADD, at, op.value, 0, 4, order | scope);
            }
            if (op.kind == kFence) emu_fence(args.scope);
            if (op.kind == kWrite) *at = op.value;
            if (op.kind == kRead) *seen = *at;
            if (op.kind == kLeaveIfZero && seen[-1] == 0) break;
        }
    }
}

struct ProxyArgs {
    u32* data;
    u32* flag;
    u32* result;
};

struct Smem {
    alignas(128) u32 words[32];
};

/// Block 0 stores a row by the async proxy and tells when it has waited; block 1 reads the row.
extern "C" __global__ void told_after_a_wait(const __grid_constant__ ProxyArgs args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        smem.words[0] = 1;
        ep::fence_proxy_async_shared();
        ep::tma_store(args.data, smem.words, 16);
        ep::tma_commit();
        ep::tma_wait_stored<0>();
        ep::fetch_add_acq_rel_gpu(args.flag, 1);
        /* last */
    } else {
        while (ep::load_relaxed_gpu(args.flag) == 0) {
        }
        ep::load_acquire_gpu(args.flag);
        args.result[0] = 2 + args.data[0];
    }
}

/// Two copies of one lane to the same place: nothing orders the async proxy's own writes.
extern "C" __global__ void two_copies(const __grid_constant__ ProxyArgs args) {
    EP_SHARED(Smem, smem);
    if (threadIdx.x != 0) return;
    smem.words[0] = 1;
    smem.words[4] = 2;
    ep::fence_proxy_async_shared();
    ep::tma_store(args.data, smem.words, 16);
    ep::tma_commit();
    /* mended */
    ep::tma_store(args.data, smem.words + 4, 16);
    ep::tma_commit();
    ep::tma_wait_stored<0>();
    args.result[0] = args.data[0];
}
