// As only.cu, for rules of scopes.
#include "only.cuh"

/// Rank 0 releases to everybody, rank 1's first block passes it on, its second one acquires the word
/// for its own device only.
extern "C" __global__ void narrow_acquire(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0) {
        if (blockIdx.x != 0) return;
        args.data[0] = 7;
        add(args.flag, EMU_RELEASE, EMU_SYS);
        say(args, 0);
    } else if (blockIdx.x == 0) {
        hear(args, 0);
        add(args.flag, EMU_RELAXED, EMU_SYS);
        say(args, 1);
    } else {
        hear(args, 1);
        acquire(args.flag, EMU_GPU);
        args.result[0] = args.data[0];
    }
}

/// Rank 0's first block releases to its own device, its second one passes that on to everybody.
extern "C" __global__ void narrow_release(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0 && blockIdx.x == 0) {
        args.data[0] = 7;
        add(args.flag, EMU_RELEASE, EMU_GPU);
        say(args, 0);
    } else if (args.rank == 0) {
        hear(args, 0);
        add(args.flag, EMU_RELAXED, EMU_SYS);
        say(args, 1);
    } else if (blockIdx.x == 0) {
        hear(args, 1);
        acquire(args.flag, EMU_SYS);
        args.result[0] = args.data[0];
    }
}

static __device__ __forceinline__ void by_fences(const Args& args, EmuScope writer,
                                                 EmuScope reader) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        args.data[0] = 7;
        emu_fence(writer);
        put(args.flag, 1, EMU_GPU);
    } else {
        while (look(args.flag, EMU_GPU) == 0) {
        }
        emu_fence(reader);
        args.result[0] = args.data[0];
    }
}

extern "C" __global__ void narrow_fence_of_the_writer(const __grid_constant__ Args args) {
    by_fences(args, EMU_CTA /* writer */, EMU_GPU);
}

extern "C" __global__ void narrow_fence_of_the_reader(const __grid_constant__ Args args) {
    by_fences(args, EMU_GPU, EMU_CTA /* reader */);
}

/// The look is of the widest scope, the acquire behind it is not.
extern "C" __global__ void narrow_acquire_after_a_look(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0) {
        if (blockIdx.x != 0) return;
        args.data[0] = 7;
        add(args.flag, EMU_RELEASE, EMU_SYS);
        say(args, 0);
    } else if (blockIdx.x == 0) {
        hear(args, 1);
        put(args.flag, 2, EMU_SYS);
        say(args, 2);
    } else {
        hear(args, 0);
        look(args.flag, EMU_SYS);
        say(args, 1);
        hear(args, 2);
        acquire(args.flag, EMU_GPU);
        args.result[0] = args.data[0];
    }
}

/// Clean: of a fence and the store behind it, the fence's scope counts.
extern "C" __global__ void wide_fence_before_a_store(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0 && blockIdx.x == 0) {
        args.data[0] = 7;
        emu_fence(EMU_SYS);
        put(args.flag, 1, EMU_GPU);
        say(args, 0);
    } else if (args.rank == 0) {
        hear(args, 0);
        add(args.flag, EMU_RELAXED, EMU_SYS);
        say(args, 1);
    } else if (blockIdx.x == 0) {
        hear(args, 1);
        acquire(args.flag, EMU_SYS);
        args.result[0] = args.data[0];
    }
}

/// Clean: of a look and the fence behind it, too.
extern "C" __global__ void wide_fence_behind_a_look(const __grid_constant__ Args args) {
    if (threadIdx.x != 0) return;
    if (args.rank == 0) {
        if (blockIdx.x != 0) return;
        args.data[0] = 7;
        add(args.flag, EMU_RELEASE, EMU_SYS);
        say(args, 0);
    } else if (blockIdx.x == 0) {
        hear(args, 0);
        add(args.flag, EMU_RELAXED, EMU_SYS);
        say(args, 1);
    } else {
        hear(args, 1);
        look(args.flag, EMU_GPU);
        emu_fence(EMU_SYS);
        args.result[0] = args.data[0];
    }
}
