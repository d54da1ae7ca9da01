// Each rank sends rows to the next one through a ring of slots in that rank's window: the smallest
// kernel that needs every memory rule. Block 0 sends, block 1 receives, one warp each moves rows.
#include <ep/ptx.cuh>

constexpr int kRowBytes = 256;
constexpr int kWords = kRowBytes / 4;
constexpr int kDepth = 4;
constexpr int kStages = 2;

struct Args {
    const ep::u32* input;  // [rows, kWords]
    ep::u32* output;       // [rows, kWords]
    char* slots_there;     // next rank's ring
    char* slots_here;
    ep::u32* tail_there;   // rows published to the next rank
    ep::u32* tail_here;
    ep::u32* head_back;    // rows taken, in the memory of the rank before
    ep::u32* head_here;
    ep::u32 start;         // rows of earlier launches
    ep::u32 rows;
};

struct Smem {
    alignas(128) ep::u32 stage[kStages][kWords];
    ep::u64 loaded[kStages];
};

static __device__ __forceinline__ void prepare(Smem& smem) {
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) ep::mbarrier_init(&smem.loaded[stage], 1);
        ep::fence_mbarrier_init();
    }
    __syncthreads();
}

static __device__ __forceinline__ void load(Smem& smem, int stage, const void* from) {
    ep::mbarrier_arrive_expect(&smem.loaded[stage], kRowBytes);
    ep::tma_load(smem.stage[stage], from, kRowBytes, &smem.loaded[stage]);
}

static __device__ __forceinline__ void await(Smem& smem, int stage, ep::u32 parity) {
    while (!ep::mbarrier_try_wait(&smem.loaded[stage], parity)) {
    }
}

static __device__ void send(const Args& args, Smem& smem) {
    const int lane = ep::lane_index();
    for (ep::u32 row = 0; row < args.rows; ++row) {
        const int stage = row % kStages;
        const ep::u32 position = args.start + row;
        if (lane == 0) {
            ep::tma_wait_read<kStages - 1>();
            load(smem, stage, args.input + row * kWords);
        }
        await(smem, stage, row / kStages % 2);
        // Every lane edits the row: a generic write between two bulk copies.
        for (int word = lane; word < kWords; word += 32) smem.stage[stage][word] += 1;
        ep::fence_proxy_async_shared();  // M3: writer, before the store reads
        __syncwarp();
        if (lane == 0) {
            // +3  push ring[next] { x: x[row] }
            ep::note_wait(0, 0, 0, 0, 0, 0, position + 1 - kDepth, 1);
            while (position - ep::load_relaxed_sys(args.head_here) >= kDepth) {
            }
            ep::load_acquire_sys(args.head_here);
            ep::fence_proxy_async_global();  // M4: credit, before the store writes
            ep::tma_store(args.slots_there + position % kDepth * kRowBytes, smem.stage[stage],
                          kRowBytes);
            ep::tma_commit();
            ep::tma_wait_stored<0>();  // M1: written, not only read
            ep::store_release_sys(args.tail_there, position + 1);  // M1: publish
        }
        __syncwarp();
    }
}

static __device__ void receive(const Args& args, Smem& smem) {
    const int lane = ep::lane_index();
    for (ep::u32 row = 0; row < args.rows; ++row) {
        const int stage = row % kStages;
        const ep::u32 position = args.start + row;
        if (lane == 0) {
            // +7  for message in ring
            ep::note_wait(0, 1, 0, 1, 0, 0, position + 1, 1);
            while (static_cast<ep::i32>(ep::load_relaxed_sys(args.tail_here) - position) <= 0) {
            }
            ep::load_acquire_sys(args.tail_here);  // M2: arrival
            ep::fence_proxy_async_global();        // M2: arrival, before the load reads
            load(smem, stage, args.slots_here + position % kDepth * kRowBytes);
        }
        await(smem, stage, row / kStages % 2);
        // +8  store output[row] = message.x
        for (int word = lane; word < kWords; word += 32) {
            args.output[row * kWords + word] = smem.stage[stage][word];
        }
        ep::fence_proxy_async_shared();  // M3: reader, before the buffer is loaded again
        __syncwarp();
        if (lane == 0) ep::store_release_sys(args.head_back, position + 1);  // M4: credit back
    }
}

extern "C" __global__ void relay(const __grid_constant__ Args args) {
    EP_SHARED(Smem, smem);
    prepare(smem);
    if (threadIdx.x >= 32) return;
    if (blockIdx.x == 0) {
        send(args, smem);
    } else {
        receive(args, smem);
    }
}
