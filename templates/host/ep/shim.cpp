// Linked into every kernel library: passes its calls on to the runtime, with the caller's address.
//
// This file is compiled without instrumentation. It also answers the calls that the compiler makes
// for each plain access under -fsanitize=thread; the sanitizer's own library is never linked.
#include "emu.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
#define EXPORTED __attribute__((visibility("default")))
#define HERE __builtin_return_address(0)

typedef unsigned long long u64;

/// The runtime's functions, in the order of `abi.rs`.
struct EmuTable {
    u64 (*warp)(unsigned, unsigned, u64, int, int, void*);
    void (*barrier)(int, int, int, void*);
    u64 (*load)(const void*, unsigned, unsigned, void*);
    void (*store)(void*, u64, unsigned, unsigned, void*);
    u64 (*atomic)(unsigned, void*, u64, u64, unsigned, unsigned, void*);
    void (*fence)(unsigned, void*);
    void (*fence_proxy)(unsigned, void*);
    void (*read_only)(const void*, unsigned, void*);
    void (*mbarrier_init)(void*, unsigned, void*);
    void (*mbarrier_arrive)(void*, unsigned, void*);
    int (*mbarrier_test)(void*, unsigned, void*);
    void (*bulk_load)(void*, const void*, unsigned, void*, void*);
    void (*bulk_store)(void*, const void*, unsigned, void*);
    void (*bulk_commit)(void*);
    void (*bulk_wait)(unsigned, int, void*);
    char* (*shared)(unsigned, void*);
    void (*last_kernel)();
    void (*next_kernel)();
    u64 (*clock)();
    void (*note_wait)(unsigned, unsigned, unsigned, unsigned, int, int, unsigned, unsigned);
    void (*note_met)();
    void (*trap)(const char*, void*);
    void (*plain)(const void*, u64, int, void*);
    void (*sanitizer)(const char*, const void*, u64, int, void*);
};

extern "C" {
EmuLane* emu_lane;
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
}

/// The mutation that holds, and those that a run has come to; see `mutation.h`.
extern "C" {
EXPORTED unsigned emu_mutation;
EXPORTED unsigned char emu_reached[1 << 16];

bool emu_reach(unsigned number) {
    emu_reached[number] = 1;
    return false;
}
}

static EmuTable table;
static u64 watched_from, watched_bytes;

#ifdef EMU_ADDRESS_SANITIZER
static void silence();
#else
static void silence() {}
#endif

/// Binds the runtime's functions and the memory to watch; returns where to put the running lane.
EXPORT EmuLane** emu_bind(const EmuTable* functions, u64 from, u64 bytes) {
    table = *functions;
    watched_from = from;
    watched_bytes = bytes;
    silence();
    return &emu_lane;
}

/// Where the library lies, for the debug information.
EXPORT const void* emu_base() { return __ehdr_start; }

extern "C" {

u64 emu_warp(unsigned op, unsigned mask, u64 value, int argument, int width) {
    return table.warp(op, mask, value, argument, width, HERE);
}
void emu_barrier(int id, int threads, int waits) { table.barrier(id, threads, waits, HERE); }
u64 emu_load(const void* at, unsigned bytes, unsigned qualifiers) {
    return table.load(at, bytes, qualifiers, HERE);
}
void emu_store(void* at, u64 value, unsigned bytes, unsigned qualifiers) {
    table.store(at, value, bytes, qualifiers, HERE);
}
u64 emu_atomic(unsigned op, void* at, u64 value, u64 expected, unsigned bytes,
               unsigned qualifiers) {
    return table.atomic(op, at, value, expected, bytes, qualifiers, HERE);
}
void emu_fence(unsigned scope) { table.fence(scope, HERE); }
void emu_fence_proxy(unsigned proxies) { table.fence_proxy(proxies, HERE); }
void emu_read_only(const void* at, unsigned bytes) { table.read_only(at, bytes, HERE); }
void emu_mbarrier_init(void* barrier, unsigned arrivals) {
    table.mbarrier_init(barrier, arrivals, HERE);
}
void emu_mbarrier_arrive(void* barrier, unsigned expect_bytes) {
    table.mbarrier_arrive(barrier, expect_bytes, HERE);
}
int emu_mbarrier_test(void* barrier, unsigned parity) {
    return table.mbarrier_test(barrier, parity, HERE);
}
void emu_bulk_load(void* shared, const void* global, unsigned bytes, void* barrier) {
    table.bulk_load(shared, global, bytes, barrier, HERE);
}
void emu_bulk_store(void* global, const void* shared, unsigned bytes) {
    table.bulk_store(global, shared, bytes, HERE);
}
void emu_bulk_commit() { table.bulk_commit(HERE); }
void emu_bulk_wait(unsigned open, int read_only) { table.bulk_wait(open, read_only, HERE); }
char* emu_shared(unsigned bytes) { return table.shared(bytes, HERE); }
void emu_last_kernel() { table.last_kernel(); }
void emu_next_kernel() { table.next_kernel(); }
u64 emu_clock() { return table.clock(); }
void emu_note_wait(unsigned pipeline, unsigned role, unsigned channel, unsigned kind, int stripe, int peer,
                   unsigned want, unsigned epoch) {
    table.note_wait(pipeline, role, channel, kind, stripe, peer, want, epoch);
}
void emu_note_met() {
    table.note_met();
}
void emu_trap(const char* message) { table.trap(message, HERE); }

// ---- What -fsanitize=thread calls. Accesses outside the runtime's memory (stacks, constants) are
// private to a lane and end here.

#define PLAIN(at, bytes, writes)                                                \
    if ((u64)(at) - watched_from < watched_bytes) table.plain(at, bytes, writes, HERE)

#define ACCESS(bytes)                                                      \
    void __tsan_read##bytes(void* at) { PLAIN(at, bytes, 0); }             \
    void __tsan_write##bytes(void* at) { PLAIN(at, bytes, 1); }            \
    void __tsan_unaligned_read##bytes(void* at) { PLAIN(at, bytes, 0); }   \
    void __tsan_unaligned_write##bytes(void* at) { PLAIN(at, bytes, 1); }  \
    void __tsan_volatile_read##bytes(void* at) { PLAIN(at, bytes, 0); }    \
    void __tsan_volatile_write##bytes(void* at) { PLAIN(at, bytes, 1); }   \
    void __tsan_read_write##bytes(void* at) { PLAIN(at, bytes, 1); }       \
    void __tsan_unaligned_read_write##bytes(void* at) { PLAIN(at, bytes, 1); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* at, u64 bytes) { PLAIN(at, bytes, 0); }
void __tsan_write_range(void* at, u64 bytes) { PLAIN(at, bytes, 1); }

static void copy(char* to, const char* from, u64 bytes) {
    for (u64 i = 0; i < bytes; ++i) to[i] = from[i];
}
void* __tsan_memcpy(void* to, const void* from, u64 bytes) {
    PLAIN(from, bytes, 0);
    PLAIN(to, bytes, 1);
    copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    return to;
}
void* __tsan_memset(void* to, int value, u64 bytes) {
    PLAIN(to, bytes, 1);
    for (u64 i = 0; i < bytes; ++i) static_cast<char*>(to)[i] = static_cast<char>(value);
    return to;
}
void* __tsan_memmove(void* to, const void* from, u64 bytes) {
    PLAIN(from, bytes, 0);
    PLAIN(to, bytes, 1);
    return __builtin_memmove(to, from, bytes);
}

}  // extern "C"

#ifdef EMU_ADDRESS_SANITIZER
// ---- The address sanitizer's reports become failures of the run; it must not print or end the
// process by itself. Its library calls these two names.

extern "C" {
int __asan_get_report_access_type();
u64 __asan_get_report_access_size();
void* __asan_get_report_address();
void* __asan_get_report_pc();
const char* __asan_get_report_description();
void __asan_poison_memory_region(const void* at, u64 bytes);
void __asan_unpoison_memory_region(const void* at, u64 bytes);
void __sanitizer_set_report_fd(void* descriptor);
int open(const char* path, int flags, ...);
}

/// Its own text goes nowhere: the run's failure says what happened.
static void silence() { __sanitizer_set_report_fd((void*)(long)open("/dev/null", 1)); }

EXPORT const char* __asan_default_options() {
    return "verify_asan_link_order=0:detect_leaks=0:detect_stack_use_after_return=0:handle_segv=0:"
           "handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0";
}

EXPORT void __asan_on_error() {
    table.sanitizer(__asan_get_report_description(), __asan_get_report_address(),
                    __asan_get_report_access_size(), __asan_get_report_access_type(),
                    __asan_get_report_pc());
}

EXPORT void emu_poison(const void* at, u64 bytes, int on) {
    if (on) {
        __asan_poison_memory_region(at, bytes);
    } else {
        __asan_unpoison_memory_region(at, bytes);
    }
}
#endif
