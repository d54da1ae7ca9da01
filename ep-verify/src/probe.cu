// Every rank writes one word to every rank whose window it can store to, and waits for theirs: windows, the
// control words of a plan, waits and their records, with nothing else around them. In a process of its own, a
// rank has no window of other nodes.
#include <ep/sync.cuh>

namespace probe {

struct Args {
    ep::Group group;
    int ranks;
    int absent;      // the rank that writes nothing; -1: none
    ep::u32* heard;  // what came from each rank
};

}  // namespace probe

extern "C" __global__ void probe_exchange(const __grid_constant__ probe::Args args) {
    ep::Call call = ep::enter(args.group);
    ep::all_blocks(args.group, call);
    if (blockIdx.x == 0 && threadIdx.x < ep::kLanes) {
        ep::Team team(args.group, call, 0, 0, 1, 0, 1);
        for (int base = 0; base < args.ranks; base += ep::kLanes) {
            const int peer = base + team.lane;
            const bool real = peer < args.ranks && args.group.windows[peer] != 0;
            if (!real || args.group.rank == args.absent) continue;
            ep::u64* words = reinterpret_cast<ep::u64*>(args.group.windows[peer]);
            const ep::u32 value = static_cast<ep::u32>(args.group.rank) + 1;
            ep::store_release_sys(words + args.group.rank, ep::stamped(call.epoch, value));
        }
        __syncwarp();
        const ep::u64* words = reinterpret_cast<const ep::u64*>(args.group.window);
        for (int base = 0; base < args.ranks; base += ep::kLanes) {
            const int peer = base + team.lane;
            const bool real = peer < args.ranks && args.group.windows[peer] != 0;
            const ep::Site site{0, ep::Waiting::kFlag, -1, real ? peer : -1, team.epoch};
            const ep::u32 value = ep::wait_stamped(team, site, real ? words + peer : nullptr);
            if (real) args.heard[peer] = value;
        }
    }
    ep::leave(args.group, call);
}
