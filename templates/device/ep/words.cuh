// Words by which kernels of one rank tell each other while they run how far they are. One raises a word behind
// what it has done, and the other waits until it has come so far.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// Adds one to a word. Whoever acquires it sees what all lanes of the warp did before. A stopped team has left
/// something out, and raises nothing.
__device__ __forceinline__ void raise_word(const Team& team, i32* word) {
    __syncwarp();
    if (team.leader() && !team.stopped) add_release_gpu(reinterpret_cast<u32*>(word), 1u);
}

/// Whether a word has come to `least`, as far as a look shows that orders nothing; warp.
__device__ __forceinline__ bool has_come(const i32* word, i32 least) {
    const u32 seen = load_relaxed_gpu(reinterpret_cast<const u32*>(word));
    return __all_sync(kAllLanes, static_cast<i32>(seen) >= least);
}

/// Waits until a word has come to `least`: what was done before it was raised so far is there then, for bulk
/// copies, too. `number` is what records call its tensor. False: the team is stopped.
__device__ __forceinline__ bool await_word(Team& team, const i32* word, i32 least, int number) {
    const u32* at = reinterpret_cast<const u32*>(word);
    const Site site{number, Waiting::kWord, -1, -1, static_cast<u32>(least)};
    const bool done = wait(team, site, [&](u32& seen) {
        seen = load_relaxed_gpu(at);
        return static_cast<i32>(seen) >= least;
    });
    if (!done) return false;
    // Every lane reads what was told of.
    load_acquire_gpu(at);
    fence_proxy_async_global();
    return true;
}

}  // namespace ep
