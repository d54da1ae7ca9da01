// Ends of rings that one warp has alone; the warp plays many ranks. The checks dump what the warp publishes to each peer
// and stores about its ring, and which waits end or time out. lone_rings.rs computes the expected `out` of each check, in
// the same order.
#include <ep/rings.cuh>

namespace lone_rings {

using namespace played_rings;

using R = Role<true>;

struct Smem {
    ep::MoverSmem<R> mover;
    ep::MoverSmem<Role<false>> copies;
    ep::Sequence sequences[kMany];
};

/// Sequences of rings that nobody has used.
__device__ __forceinline__ ep::Sequence* fresh(ep::Sequence* all, int count) {
    for (int i = ep::lane_index(); i < count; i += ep::kLanes) all[i] = ep::Sequence{};
    __syncwarp();
    return all;
}

/// The rings that are served: of all ranks but two.
constexpr ep::Peers kServed{1, kMany, 20};

/// How many messages a ring has.
__device__ __forceinline__ int messages(int peer) {
    return peer >= kServed.begin && peer != kServed.skip ? peer % 4 : 0;
}

/// What each peer is told, in a word of its own, and what is kept of its ring.
__device__ __forceinline__ void dump(const ep::Group& group, ep::u64 told, ep::u64 kept, ep::i64* out) {
    __syncwarp();
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) {
        out[i] = word_at(group, i, told, kStripe, kSelf);
        out[40 + i] = word_at(group, kSelf, kept, kStripes + kStripe, i);
        out[80 + i] = word_at(group, i, Many::kRetired, kStripe, kSelf);
    }
    __syncwarp();
}

/// What becomes of a team.
__device__ __forceinline__ void end(const ep::Team& team, ep::i64* out) {
    if (team.lane == 7) given_up::put(out, team, *reinterpret_cast<const Own*>(team.group.state));
}

/// The header of a ring at its other end.
__device__ __forceinline__ const ep::u64* told_to(const ep::Group& group, int peer) {
    const int ring = static_cast<int>(kCall & 1) * Many::kRings + kStripe * kMany + kSelf;
    return reinterpret_cast<const ep::u64*>(group.windows[peer] + Many::kHeader) + ring * 2;
}

/// Sends messages of all rings, in turn: each is told of at once, or when the mover has stored its row.
inline __device__ __noinline__ void sends(const ep::Group& given, Smem& smem, bool moves, ep::i64* out) {
    const ep::Group group = play(given, 64);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::Mover<R> mover(smem.mover, team);
    mover.fence_global();
    ep::RingsOut<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    rings.announce(2, 0, 70), rings.announce(34, 1, 71);
    for (int turn = 0; turn < 3; ++turn) {
        for (int peer = 0; peer < kMany; ++peer) {
            if (turn >= messages(peer)) continue;
            const bool has_room = rings.has_room(peer), is_free = rings.reserve(peer);
            const int position = rings.position(peer);
            const ep::i64 at = rings.slot(peer) - group.windows[peer];
            ep::i64* one = out + 400 + (turn * kMany + peer) * 2;
            if (team.lane == 3) one[0] = position * 4 + (has_room ? 2 : 0) + (is_free ? 1 : 0), one[1] = at;
            if (moves) {
                mover.row(nullptr, group.windows[0]);
                rings.publish_after(peer, mover.rows_begun());
            } else {
                rings.publish(peer);
            }
        }
        rings.tell(mover);
        dump(group, Many::kTail, Many::kSent, out + turn * 120);
    }
    ep::settle(mover, rings);
    rings.close();
    mover.finish();
    dump(group, Many::kTail, Many::kSent, out + 1000);
    end(team, out + 1200);
    if (team.lane != 3) return;
    for (int i = 0; i < 2; ++i) {
        out[1220 + i] = static_cast<ep::i64>(told_to(group, 2)[i]);
        out[1222 + i] = static_cast<ep::i64>(told_to(group, 34)[i]);
        out[1224 + i] = static_cast<ep::i64>(told_to(group, 3)[i]);
    }
}

/// Takes them: each is given back at once, or when the mover has loaded its row.
inline __device__ __noinline__ void takes(const ep::Group& given, Smem& smem, bool moves, ep::i64* out) {
    const ep::Group group = play(given, 64);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::Mover<R> mover(smem.mover, team);
    mover.fence_global();
    ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    for (int turn = 0; turn < 3; ++turn) {
        for (int peer = 0; peer < kMany; ++peer) {
            if (turn >= messages(peer)) continue;
            const bool has_message = rings.has_message(peer), is_there = rings.arrived(peer);
            const int position = rings.taken(peer);
            const ep::i64 at = rings.slot(peer) - group.window;
            ep::i64* one = out + 400 + (turn * kMany + peer) * 2;
            if (team.lane == 3) one[0] = position * 4 + (has_message ? 2 : 0) + (is_there ? 1 : 0), one[1] = at;
            if (moves) {
                mover.row(nullptr, group.windows[0]);
                rings.release_after(peer, mover.rows_begun());
            } else {
                rings.release(peer);
            }
        }
        rings.tell(mover);
        dump(group, Many::kHead, Many::kTaken, out + turn * 120);
    }
    ep::settle(mover, rings);
    rings.close();
    mover.finish();
    dump(group, Many::kHead, Many::kTaken, out + 1000);
    end(team, out + 1200);
}

/// Takes them in turn, as many as headers say.
inline __device__ __noinline__ void takes_in_turn(const ep::Group& given, Smem& smem, ep::i64* out) {
    const ep::Group group = play(given, 64);
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) {
        header_of(group, i, 1) = ep::stamped(kCall, static_cast<ep::u32>(messages(i)));
    }
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    int count = 0;
    for (int ring; (ring = rings.next(1)) >= 0; ++count) {
        if (team.lane == 3) out[200 + count] = ring;
        rings.release(ring);
    }
    rings.close();
    dump(group, Many::kHead, Many::kTaken, out);
    if (team.lane == 3) out[180] = count;
    end(team, out + 160);
}

/// Takes them by their positions: two messages of each ring that has as many, one of others.
inline __device__ __noinline__ void finds(const ep::Group& given, Smem& smem, ep::i64* out) {
    const ep::Group group = play(given, 64);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    rings.wait_ready();
    for (int turn = 0; turn < 3; ++turn) {
        ep::i32 positions[2];
        for (int g = 0; g < 2; ++g) {
            const int peer = g * ep::kLanes + team.lane, all = peer < kMany ? messages(peer) : 0;
            positions[g] = turn < all ? turn : -1 - all;
        }
        const bool are_there = rings.arrived(positions, true);
        for (int g = 0; g < 2; ++g) {
            const int peer = g * ep::kLanes + team.lane;
            if (peer >= kMany || positions[g] < 0) continue;
            ep::i64* one = out + 400 + (turn * kMany + peer) * 2;
            one[0] = rings.row(g, positions[g]) - group.window;
            one[1] = rings.meta(g, positions[g]) - group.window + (are_there ? 0 : 1);
        }
        rings.done(positions);
        dump(group, Many::kHead, Many::kTaken, out + turn * 120);
    }
    // What has been given back stays so, whatever is said of fewer.
    for (int all = 0; all < 2; ++all) {
        ep::i32 fewer[2];
        for (int g = 0; g < 2; ++g) {
            const int peer = g * ep::kLanes + team.lane;
            fewer[g] = peer < kMany && messages(peer) > 1 ? -1 - all : -1;
        }
        rings.done(fewer);
    }
    rings.close();
    dump(group, Many::kHead, Many::kTaken, out + 1000);
    end(team, out + 1200);
}

/// What is waited for in vain, of one ring or of all.
enum class Vain { kAnnounce, kRoom, kHeader, kMessage, kPosition, kAny };

template <Vain kWhat>
inline __device__ __noinline__ void waits(const ep::Group& given, Smem& smem, ep::i64* out) {
    constexpr int kLate = 34;
    const ep::Group group = play(given, 64);
    if (ep::lane_index() == 0) {
        if (kWhat == Vain::kAnnounce) word_at(group, kSelf, Many::kRetired, kStripe, kLate) = kCall - 3;
        if (kWhat == Vain::kHeader) header_of(group, kLate, 1) = ep::stamped(kCall - 2, 1);
        if (kWhat == Vain::kPosition) word_at(group, kSelf, Many::kTail, kStripe, kLate) = kBase + 1;
        for (int i = 0; i < kMany && kWhat == Vain::kAny; ++i) word_at(group, kSelf, Many::kTail, kStripe, i) = kBase;
    }
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    int found = 0;
    if constexpr (kWhat == Vain::kAnnounce || kWhat == Vain::kRoom) {
        ep::RingsOut<Many> rings(team, fresh(smem.sequences, kMany));
        rings.open(kStripe, kServed);
        if (kWhat == Vain::kAnnounce) rings.announce(kLate, 1, 5);
        for (int i = 0; i < 4 && kWhat == Vain::kRoom; ++i) {
            const bool has_room = rings.has_room(kLate);
            found = found * 4 + (has_room ? 2 : 0) + (rings.reserve(kLate) ? 1 : 0);
            rings.publish(kLate);
        }
        rings.close();
        dump(group, Many::kTail, Many::kSent, out + 40);
        if (team.lane == 7) out[39] = static_cast<ep::i64>(told_to(group, kLate)[1]);
    } else {
        ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
        rings.open(kStripe, kServed);
        if (kWhat == Vain::kHeader) found = rings.header(kLate, 1);
        for (int i = 0; i < 4 && kWhat == Vain::kMessage; ++i) {
            const bool has_message = rings.has_message(kLate);
            found = found * 4 + (has_message ? 2 : 0) + (rings.arrived(kLate) ? 1 : 0);
            rings.release(kLate);
        }
        const ep::i32 positions[2] = {-1, team.lane == 2 ? 1 : -1};
        if (kWhat == Vain::kPosition) {
            found = rings.arrived(positions, true) ? 1 : 0;
            rings.done(positions);
        }
        if (kWhat == Vain::kAny) found = rings.next(1);
        rings.close();
        dump(group, Many::kHead, Many::kTaken, out + 40);
    }
    if (team.lane == 7) out[20] = found;
    end(team, out);
}

/// Whether a message of one ring passes for that of another one: whose lane is the same, or whose lane has its number.
inline __device__ __noinline__ void sees(const ep::Group& given, Smem& smem, ep::i64* out) {
    const ep::Group group = play(given, 64);
    if (ep::lane_index() < 2) word_at(group, kSelf, Many::kTail, kStripe, 33 + ep::lane_index()) = kBase;
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    for (int i = 0; i < 2; ++i) {
        const int found[4] = {rings.has_message(2), rings.has_message(34), rings.has_message(1), rings.has_message(33)};
        for (int k = 0; k < 4 && team.lane == 3; ++k) out[i * 4 + k] = found[k];
    }
    rings.close();
}

/// Clears the slots of all rings.
inline __device__ __noinline__ void clear_slots(const ep::Group& given) {
    const ep::Group group = play(given, 64);
    ep::u32* words = reinterpret_cast<ep::u32*>(group.window + Many::kSlots);
    for (int i = ep::lane_index(); i < Many::kRings * Many::kDepth * Many::kSlotBytes / 4; i += ep::kLanes) words[i] = 0;
}

/// A warp waits for any of two rings whose lane is the same, and another one brings a message of each.
inline __device__ __noinline__ void takes_late(const ep::Group& given, Smem& smem, int warp, ep::i64* out) {
    Own& own = *reinterpret_cast<Own*>(given.window + 64);
    ep::u32* turn = own.room;
    constexpr int kLate[2] = {2, 34};
    if (warp == 1) {
        for (ep::u32 i = 0; i < 2; ++i) {
            while (__shfl_sync(ep::kAllLanes, ep::load_acquire_gpu(turn), 0) != i + 1) {
            }
            __syncwarp();
            given_up::linger();
            auto* tail = reinterpret_cast<ep::u32*>(own.windows[kSelf] + Many::kTail) + kStripe * kMany + kLate[i];
            if (ep::lane_index() == 0) ep::store_release_sys(tail, kBase + 1);
        }
        return;
    }
    ep::Group group = play(given, 64);
    group.timeout_ns = 1ull << 62;
    for (int i = ep::lane_index(); i < kMany; i += ep::kLanes) {
        const bool late = i == kLate[0] || i == kLate[1];
        header_of(group, i, 1) = ep::stamped(kCall, late ? 1 : 0);
        word_at(group, kSelf, Many::kTail, kStripe, i) = kBase;
    }
    __syncwarp();
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    for (ep::u32 i = 0; i < 3; ++i) {
        if (team.leader() && i < 2) ep::fetch_add_acq_rel_gpu(turn, 1u);
        const int ring = rings.next(1);
        if (ring >= 0) rings.release(ring);
        if (team.lane == 3) out[i] = ring;
    }
    rings.close();
    end(team, out + 20);
}

/// All lanes read a slot that is given back once its row has been copied; another warp fills it then.
inline __device__ __noinline__ void gives_back(const ep::Group& given, Smem& smem, int warp, ep::i64* out) {
    Own& own = *reinterpret_cast<Own*>(given.window + 64);
    ep::u32* turn = own.room + 1;
    const int lane = ep::lane_index();
    constexpr int kPeer = 2, kSlotWords = Many::kSlotBytes / 4;
    if (warp == 1) {
        while (__shfl_sync(ep::kAllLanes, ep::load_acquire_gpu(turn), 0) != 1) {
        }
        __syncwarp();
        const auto* head = reinterpret_cast<const ep::u32*>(own.windows[kPeer] + Many::kHead) + kStripe * kMany + kSelf;
        while (ep::load_relaxed_sys(head) != 1) {
        }
        ep::load_acquire_sys(head);
        __syncwarp();
        ep::u32* slot = reinterpret_cast<ep::u32*>(own.windows[kSelf] + Many::kSlots) +
                        ((kStripe * kMany + kPeer) * Many::kDepth + kBase % Many::kDepth) * kSlotWords;
        if (lane < kSlotWords) slot[(lane + 1) % kSlotWords] = 5;
        return;
    }
    const ep::Group group = play(given, 64);
    ep::Team team(group, ep::Call{kCall, false, true}, 3);
    ep::Mover<Role<false>> mover(smem.copies, team);
    ep::RingsIn<Many> rings(team, fresh(smem.sequences, kMany));
    rings.open(kStripe, kServed);
    if (team.leader()) ep::fetch_add_acq_rel_gpu(turn, 1u);
    rings.arrived(kPeer);
    mover.row(nullptr, rings.slot(kPeer));
    const auto* slot = reinterpret_cast<const ep::u32*>(rings.slot(kPeer));
    const ep::u32 word = lane < kSlotWords ? slot[lane] : 0;
    rings.release_after(kPeer, mover.rows_begun());
    rings.tell(mover);
    out[lane] = word;
    rings.close();
}

}  // namespace lone_rings

extern "C" __global__ void __launch_bounds__(64) lone_rings_of(const __grid_constant__ played_rings::Args args) {
    using namespace lone_rings;
    EP_SHARED(Smem, smem);
    const ep::Call call = ep::enter(args.group);
    const auto& group = args.group;
    ep::i64* out = args.out;
    const int warp = static_cast<int>(threadIdx.x) / ep::kLanes;
    if (args.check == 13) takes_late(group, smem, warp, out);
    if (args.check == 15) gives_back(group, smem, warp, out);
    // The other one has nothing else to do.
    switch (warp == 0 ? args.check : -1) {
        case 0: sends(group, smem, false, out); break;
        case 1: sends(group, smem, true, out); break;
        case 2: takes(group, smem, false, out); break;
        case 3: takes(group, smem, true, out); break;
        case 4: takes_in_turn(group, smem, out); break;
        case 5: finds(group, smem, out); break;
        case 6: waits<Vain::kAnnounce>(group, smem, out); break;
        case 7: waits<Vain::kRoom>(group, smem, out); break;
        case 8: waits<Vain::kHeader>(group, smem, out); break;
        case 9: waits<Vain::kMessage>(group, smem, out); break;
        case 10: waits<Vain::kPosition>(group, smem, out); break;
        case 11: waits<Vain::kAny>(group, smem, out); break;
        case 12: sees(group, smem, out); break;
        case 14: clear_slots(group); break;
        default: break;
    }
    ep::leave(args.group, call);
}
