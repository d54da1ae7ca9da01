// What the kernels of only.cu and only_scopes.cu share.
#pragma once
#include <ep/ptx.cuh>

using ep::u32;
using ep::u64;

struct Args {
    u32* data;
    u32* flag;
    u64* pair;
    u32* local;  // rank 1's own memory
    u32* result;
    u32 rank;
    u32 blocks;
};

struct Smem {
    alignas(128) u32 words[128];
    u64 barrier;
};

static __device__ __forceinline__ u32 look(const u32* at, EmuScope scope) {
    return static_cast<u32>(emu_load(at, 4, EMU_RELAXED | scope << 4));
}

static __device__ __forceinline__ u32 acquire(const u32* at, EmuScope scope) {
    return static_cast<u32>(emu_load(at, 4, EMU_ACQUIRE | scope << 4));
}

static __device__ __forceinline__ void put(u32* at, u32 value, EmuScope scope) {
    emu_store(at, value, 4, EMU_RELAXED | scope << 4);
}

static __device__ __forceinline__ void release(u32* at, u32 value, EmuScope scope) {
    emu_store(at, value, 4, EMU_RELEASE | scope << 4);
}

static __device__ __forceinline__ void add(u32* at, EmuOrder order, EmuScope scope) {
    emu_atomic(EMU_ATOMIC_ADD, at, 1, 0, 4, order | scope << 4);
}

static __device__ __forceinline__ void say(const Args& args, u32 word) {
    put(args.flag + 32 + word, 1, EMU_SYS);
}

static __device__ __forceinline__ void hear(const Args& args, u32 word) {
    while (look(args.flag + 32 + word, EMU_SYS) == 0) {
    }
}
