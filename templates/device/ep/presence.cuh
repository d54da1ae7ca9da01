// Ranks that do not answer, where the group goes on without them: a wait for such a rank ends, and says so.
//
// Every wait that may end so tells the others by a pulse that its rank goes on, and looks whether the rank that
// it waits for does, which may itself wait for an absent one. What one wait has found all others of the
// kernel take at their next look, and as the kernel ends the rank is left out of later ones. Whoever waits for
// a rank that goes on without it does the same.
#pragma once

#include <ep/ptx.cuh>
#include <ep/sync.cuh>

namespace ep {

/// What a lane knows of the rank that it waits for.
struct Watch {
    u64 begun;    // when the wait looked around first; 0: it has not, or the group has been stopped
    u64 since;    // when the peer's pulse had changed last, as far as looks show
    u64 pulse;    // that pulse
    bool absent;  // the peer does not answer
};

/// Whether the running kernel has found a rank absent.
__device__ __forceinline__ bool is_missed(const Group& group, i64 rank) {
    if (group.presences == nullptr) return false;
    return is_among(load_relaxed_sys(&group.presences[group.rank]->found), rank);
}

/// Says so to all waits of this kernel.
__device__ __forceinline__ void miss(const Group& group, int rank) {
    u64* found = &group.presences[group.rank]->found;
    const u64 bit = u64{1} << rank;
    u64 seen = load_relaxed_sys(found);
    while ((seen & bit) == 0) {
        const u64 before = compare_swap_acq_rel_sys(found, seen, seen | bit);
        if (before == seen) return;
        seen = before;
    }
}

/// The same look where a peer may be absent: its pulse has not changed for the longest wait, or it goes on
/// without this rank. Who has a pulse may wait for an absent rank itself, and is waited for that long again;
/// but after `kPatience` times as long the group is stopped, since then ranks wait for one another.
inline __device__ __noinline__ Watch look_for_peer(const Group& group, u32 epoch, int role, Site site,
                                                   u32 seen, bool unready, Watch watch) {
    constexpr u64 kPatience = 4;
    constexpr u64 kBeats = 8;  // of a pulse in the longest wait
    const u64 now = clock_ns();
    Presence* own = group.presences[group.rank];
    const u64 beat = now / (group.timeout_ns / kBeats + 1);
    if (lane_index() == 0 && load_relaxed_sys(&own->pulse) != beat) store_relaxed_sys(&own->pulse, beat);
    const bool is_first = watch.begun == 0;
    if (is_first) watch.begun = watch.since = now;
    if (unready && site.peer >= 0) {
        const Presence* peer = group.presences[site.peer];
        const u64 pulse = load_relaxed_sys(&peer->pulse);
        if (is_first || pulse != watch.pulse) watch.since = now;
        const u64 without = load_relaxed_sys(&peer->out) | load_relaxed_sys(&peer->found);
        watch.absent = is_missed(group, site.peer) || is_among(without, group.rank) ||
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

/// Waits until every lane is ready, or knows that its peer is `absent`, where the group goes on without such.
template <class Ready>
__device__ __forceinline__ bool wait_for_peer(Team& team, const Site& site, bool& absent,
                                              Ready ready) {
    Watch watch{0, 0, 0, false};
    const auto done = [&](u32& seen) { return watch.absent || ready(seen); };
    const bool goes_on = poll<false>(team, site, done, [&](u32 seen, bool unready) {
        const Group& group = team.group;
        if (group.presences != nullptr) {
            watch = look_for_peer(group, team.epoch, team.role, site, seen, unready, watch);
        } else {
            watch.begun =
                look_around(group, team.epoch, team.role, site, seen, unready, watch.begun);
        }
        return watch.begun != 0;
    });
    absent = watch.absent;
    return goes_on;
}

}  // namespace ep
