// A group of one's own, and what becomes of a team of it, for the kernels that one warp plays many ranks in; and what lets
// time pass and spoils a stack. This stands before slot_ends.cu, words.cu and others. See `state` in waits.rs.
#include <ep/sync.cuh>

namespace given_up {

/// What such a group has, zero at first.
struct Own {
    ep::State state;
    ep::u32 stop;
    ep::u32 room[7];
    ep::Record records[2];
};

/// Group `number`, of which this is a rank; it gives up waits at their first look around.
__device__ __forceinline__ ep::Group group_of(const ep::Group& given, Own& own, int number,
                                              char* const* windows, int rank) {
    ep::Group group = given;
    group.windows = windows;
    group.window = windows[rank];
    group.state = &own.state;
    group.stop = &own.stop;
    group.records = own.records;
    group.timeout_ns = 0;
    group.alive = ~0ull;
    group.record_capacity = 1;
    group.pipeline = 70 + number;
    group.rank = rank;
    return group;
}

/// What a team of one warp has come to; one lane's own work.
__device__ __forceinline__ void put(ep::i64* out, const ep::Team& team, const Own& own) {
    *out++ = team.stopped ? 1 : 0;
    *out++ = own.stop;
    *out++ = own.state.records;
    const ep::u32* words = reinterpret_cast<const ep::u32*>(own.records);
    for (int i = 0; i < 13; ++i) *out++ = words[i];
}

/// Lets time pass, far more than other warps take meanwhile.
__device__ __forceinline__ void linger() {
    const ep::u64 begun = ep::clock_ns();
    while (ep::clock_ns() - begun < 4000) {
    }
}

/// Leaves a word where functions that are called next have their variables: what they do not set holds it.
inline __device__ __noinline__ void scribble(ep::u32 word) {
    volatile ep::u32 all[4096];
    for (int i = 0; i < 4096; ++i) all[i] = word;
}

}  // namespace given_up

