// What becomes of a team whose group is its own, for the kernels of slot_ends.cu and direct_ends.cu, which it stands
// before; see `state` in waits.rs.
#include <ep/sync.cuh>

namespace given_up {

/// What a team of one warp has come to; one lane's own work.
template <class Own>
__device__ __forceinline__ void put(ep::i64* out, const ep::Team& team, const Own& own) {
    *out++ = team.stopped ? 1 : 0;
    *out++ = own.stop;
    *out++ = own.state.records;
    const ep::u32* words = reinterpret_cast<const ep::u32*>(own.records);
    for (int i = 0; i < 13; ++i) *out++ = words[i];
}

}  // namespace given_up

