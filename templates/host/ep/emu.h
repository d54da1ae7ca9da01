// The border between a kernel compiled for the host and the runtime that schedules its lanes.
//
// A kernel calls the `emu_` functions; `shim.cpp` passes each call, with the address it came from,
// through a table that the runtime binds. The table's order and types are those of `abi.rs`.
#pragma once

extern "C" {

struct EmuIndex {
    unsigned x, y, z;
};

/// What the lanes of one block share.
struct EmuBlock {
    EmuIndex index, size, grid;
    unsigned shared_bytes;
    char* shared;
};

/// What a lane knows of itself. The runtime's own record of the lane begins with it.
struct EmuLane {
    EmuIndex thread;
    unsigned lane;
    EmuBlock* block;
};

/// The running lane; the runtime sets it at every switch.
extern EmuLane* emu_lane;

// EMU_ENTRY: a store that releases what was over when its launch began, and nothing of the launch.
enum EmuOrder { EMU_RELAXED = 0, EMU_ACQUIRE = 1, EMU_RELEASE = 2, EMU_ACQ_REL = 3, EMU_ENTRY = 4 };
enum EmuScope { EMU_CTA = 0, EMU_GPU = 1, EMU_SYS = 2 };
enum EmuProxy { EMU_PROXY_GLOBAL = 1, EMU_PROXY_SHARED = 2, EMU_PROXY_MBARRIER = 4 };

enum EmuWarpOp {
    EMU_SYNC, EMU_SHFL, EMU_SHFL_UP, EMU_SHFL_DOWN, EMU_SHFL_XOR, EMU_BALLOT, EMU_ANY, EMU_ALL,
    EMU_ADD, EMU_MAX, EMU_MIN, EMU_UMAX, EMU_UMIN, EMU_OR, EMU_AND, EMU_XOR, EMU_MATCH
};

enum EmuAtomicOp {
    EMU_ATOMIC_ADD, EMU_ATOMIC_MAX, EMU_ATOMIC_MIN, EMU_ATOMIC_OR, EMU_ATOMIC_AND, EMU_ATOMIC_XOR,
    EMU_ATOMIC_EXCHANGE, EMU_ATOMIC_CAS
};

// Collectives and barriers.
unsigned long long emu_warp(unsigned op, unsigned mask, unsigned long long value, int argument,
                            int width);
void emu_barrier(int id, int threads, int waits);

// Strong accesses: `bytes` is 4 or 8, `qualifiers` is order | scope << 4.
unsigned long long emu_load(const void* at, unsigned bytes, unsigned qualifiers);
void emu_store(void* at, unsigned long long value, unsigned bytes, unsigned qualifiers);
unsigned long long emu_atomic(unsigned op, void* at, unsigned long long value,
                              unsigned long long expected, unsigned bytes, unsigned qualifiers);
void emu_fence(unsigned scope);
void emu_fence_proxy(unsigned proxies);
void emu_read_only(const void* at, unsigned bytes);

// mbarriers and bulk copies.
void emu_mbarrier_init(void* barrier, unsigned arrivals);
void emu_mbarrier_arrive(void* barrier, unsigned expect_bytes);
int emu_mbarrier_test(void* barrier, unsigned parity);
void emu_bulk_load(void* shared, const void* global, unsigned bytes, void* barrier);
void emu_bulk_store(void* global, const void* shared, unsigned bytes);
void emu_bulk_commit();
void emu_bulk_wait(unsigned open, int read_only);

// The rest.
char* emu_shared(unsigned bytes);
void emu_last_kernel();
void emu_next_kernel();
unsigned long long emu_clock();
void emu_note_wait(unsigned pipeline, unsigned role, unsigned channel, unsigned kind, int stripe, int peer,
                   unsigned want, unsigned epoch);
void emu_note_met();
void emu_trap(const char* message);

}  // extern "C"

/// Calls `kernel` with arguments laid out as CUDA lays out kernel parameters.
namespace emu {

template <class First, class... Rest>
struct Arguments {
    static constexpr unsigned long first(unsigned long end) {
        return (end + alignof(First) - 1) / alignof(First) * alignof(First);
    }

    template <class Kernel, class... Before>
    static void call(Kernel kernel, const char* bytes, unsigned long end, const Before&... before) {
        const First& value = *reinterpret_cast<const First*>(bytes + first(end));
        if constexpr (sizeof...(Rest) == 0) {
            kernel(before..., value);
        } else {
            Arguments<Rest...>::call(kernel, bytes, first(end) + sizeof(First), before..., value);
        }
    }

    static constexpr unsigned long bytes(unsigned long end) {
        if constexpr (sizeof...(Rest) == 0) {
            return first(end) + sizeof(First);
        } else {
            return Arguments<Rest...>::bytes(first(end) + sizeof(First));
        }
    }
};

template <class... Parameters>
inline void call(void (*kernel)(Parameters...), const char* bytes) {
    if constexpr (sizeof...(Parameters) == 0) {
        kernel();
    } else {
        Arguments<Parameters...>::call(kernel, bytes, 0);
    }
}

template <class... Parameters>
constexpr unsigned long argument_bytes(void (*)(Parameters...)) {
    if constexpr (sizeof...(Parameters) == 0) {
        return 0;
    } else {
        return Arguments<Parameters...>::bytes(0);
    }
}

}  // namespace emu

/// Exports `kernel` (qualified) under names that the runtime looks up.
#define EMU_KERNEL(kernel, name)                                                              \
    extern "C" __attribute__((visibility("default"))) void emu_run_##name(const char* bytes) { \
        emu::call(&kernel, bytes);                                                             \
    }                                                                                          \
    extern "C" __attribute__((visibility("default"))) const unsigned long emu_bytes_##name =   \
        emu::argument_bytes(&kernel);
