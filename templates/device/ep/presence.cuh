// Ranks that do not answer, where kernels go on without them: a wait for such a rank ends, and says so.
//
// Every wait that may end so tells the others by a pulse that its rank goes on, and looks whether the rank that
// it waits for does, which may itself wait for an absent one. Whom one wait has found absent no other waits for,
// in this kernel or a later one. Whoever waits for a rank that goes on without it does the same.
//
// Only channels whose Cfg struct has `kSkipsAbsent` compile any of this.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What the ranks of a group know of one of them, in a window of the group: zero before its first launch.
struct Presence {
    u64 absent;  // a bit for each rank that its kernels have found absent
    u64 pulse;   // counts on as long as its waits look around
};

/// What a lane knows of the rank that it waits for.
struct Watch {
    u64 begun;    // when the wait looked around first; 0: it has not, or the group has been stopped
    u64 since;    // when the peer's pulse had changed last, as far as looks show
    u64 pulse;    // that pulse
    bool absent;  // the peer does not answer
};

__device__ __forceinline__ Presence* own_presence(const Group& group) {
    return group.state->presences[group.rank];
}

/// Whether a kernel of this rank has found a rank absent; none is -1.
__device__ __forceinline__ bool is_missed(const Group& group, int rank) {
    return rank >= 0 && (load_relaxed_sys(&own_presence(group)->absent) >> rank & 1) != 0;
}

/// Says to all waits of this rank, and to its peers, that it goes on without another one.
__device__ __forceinline__ void miss(const Group& group, int rank) {
    u64* absent = &own_presence(group)->absent;
    const u64 bit = u64{1} << rank;
    u64 seen = load_relaxed_sys(absent);
    while ((seen & bit) == 0) {
        const u64 before = compare_swap_acq_rel_sys(absent, seen, seen | bit);
        if (before == seen) return;
        seen = before;
    }
}

/// `look_around` where the peer may be absent: its pulse has not changed for the longest wait, or it goes on
/// without this rank. Who has a pulse may wait for an absent rank itself, and is waited for that long again;
/// but after `kPatience` times as long the group is stopped, since then ranks wait for one another.
inline __device__ __noinline__ Watch look_for_peer(const Group& group, u32 epoch, int role, Site site,
                                                   u32 seen, bool unready, Watch watch) {
    constexpr u64 kPatience = 4;
    constexpr u64 kBeats = 8;  // of a pulse in the longest wait
    const u64 now = clock_ns();
    Presence* own = own_presence(group);
    const u64 beat = now / (group.timeout_ns / kBeats + 1);
    if (lane_index() == 0 && load_relaxed_sys(&own->pulse) != beat) store_relaxed_sys(&own->pulse, beat);
    const bool is_first = watch.begun == 0;
    if (is_first) watch.begun = watch.since = now;
    if (unready && site.peer >= 0) {
        const Presence* peer = group.state->presences[site.peer];
        const u64 pulse = load_relaxed_sys(&peer->pulse);
        if (is_first || pulse != watch.pulse) watch.since = now;
        const bool is_without_us = (load_relaxed_sys(&peer->absent) >> group.rank & 1) != 0;
        watch.absent = is_missed(group, site.peer) || is_without_us ||
                       now - watch.since >= group.timeout_ns;
        watch.pulse = pulse;
        if (watch.absent) miss(group, site.peer);
    }
    const bool halted = __ballot_sync(kAllLanes, load_relaxed_gpu(group.stop) != 0) != 0;
    const bool waits = unready && !watch.absent;
    const u64 waited = (now - watch.begun) / kPatience;
    const u32 expired = __ballot_sync(kAllLanes, waits && waited >= group.timeout_ns);
    if (!halted && expired == 0) return watch;
    const u32 waiting = halted ? __ballot_sync(kAllLanes, unready) : expired;
    const bool blame = lane_index() == __ffs(static_cast<int>(waiting)) - 1;
    give_up(group, epoch, role, site, seen, blame, !halted);
    watch.begun = 0;
    return watch;
}

/// `poll` with that look, until every lane is ready or knows that its peer is absent, as `watch` says then. A loop of
/// its own: handed to `poll`, the look costs kernels registers that never take it.
template <class Ready>
__device__ __forceinline__ bool poll_peer(Team& team, const Site& site, Watch& watch, Ready ready) {
    if (team.stopped) return false;
    note_wait(team.group.pipeline, static_cast<u32>(team.role), static_cast<u32>(site.channel),
              static_cast<u32>(site.kind), site.stripe, site.peer, site.want, team.epoch);
#pragma unroll 1
    for (u32 turn = 1;; ++turn) {
        u32 seen = 0;
        const bool is_ready = watch.absent || ready(seen);
        if (__ballot_sync(kAllLanes, is_ready) == kAllLanes) break;
        // As rarely as `poll`.
        if (turn % 64 != 0) continue;
        watch = look_for_peer(team.group, team.epoch, team.role, site, seen, !is_ready, watch);
        if (watch.begun == 0) {
            team.stopped = true;
            return false;
        }
    }
    note_met();
    __syncwarp();
    return true;
}

/// Waits until every lane is ready, or with `kSkipsAbsent` knows that its peer is `absent`.
template <bool kSkipsAbsent, class Ready>
__device__ __forceinline__ bool wait_for_peer(Team& team, const Site& site, bool& absent,
                                              Ready ready) {
    if constexpr (kSkipsAbsent) {
        Watch watch{};
        watch.absent = is_missed(team.group, site.peer);
        const bool goes_on = poll_peer(team, site, watch, ready);
        absent = watch.absent;
        return goes_on;
    } else {
        return wait(team, site, ready);
    }
}

/// `wait_counter` for peers that may be absent. False in a lane: its peer is, or the team is stopped.
__device__ __forceinline__ bool wait_counter_of_peer(Team& team, const Site& site,
                                                     const u32* counter) {
    bool absent = false;
    const bool done = wait_for_peer<true>(team, site, absent, [&](u32& seen) {
        if (counter == nullptr) return true;
        seen = load_relaxed_sys(counter);
        return reached(seen, site.want);
    });
    const bool is_there = done && !absent;
    if (is_there && counter != nullptr) load_acquire_sys(counter);
    __syncwarp();
    return is_there;
}

}  // namespace ep
