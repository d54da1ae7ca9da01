// An end of rings among many ranks that one warp plays, for the kernels of shared_rings.cu and lone_rings.cu, which this stands
// before.
#include <ep/mover.cuh>
#include <ep/sync.cuh>

namespace played_rings {

constexpr int kStripes = 3;
constexpr int kWords = 8;   // of a row
constexpr int kFields = 2;  // beside it
constexpr int kMany = 36;  // ranks,
constexpr int kSelf = 35;  // of which this is one
constexpr int kStripe = 1;
constexpr ep::u32 kCall = 7;
constexpr ep::u32 kBase = 102;  // where all counters begin

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// A channel from `kAt` of a window on.
template <ep::u64 kAt, int kPeers_>
struct Channel {
    static constexpr int kChannel = 6;
    static constexpr int kPeers = kPeers_;
    static constexpr int kStripes = played_rings::kStripes;
    static constexpr int kHeaderWords = 2;
    static constexpr int kDepth = 4;
    static constexpr int kChunk = 2;
    static constexpr int kSlotBytes = 96;
    static constexpr int kMeta = kWords * 8;
    static constexpr int kRings = kStripes * kPeers;
    static constexpr ep::u64 kTail = kAt;
    static constexpr ep::u64 kHead = kTail + kRings * 4;
    static constexpr ep::u64 kRetired = kHead + kRings * 4;
    static constexpr ep::u64 kTaken = kRetired + kRings * 4;
    static constexpr ep::u64 kSent = kTaken + 2 * kRings * 4;
    static constexpr ep::u64 kHeader = (kSent + 2 * kRings * 4 + 7) / 8 * 8;
    static constexpr ep::u64 kSlots = (kHeader + 2 * kRings * 2 * 8 + 63) / 64 * 64;
    static constexpr ep::u64 kEnd = kSlots + kRings * kDepth * kSlotBytes;
};

/// A role that moves rows.
template <bool kTma_>
struct Role {
    static constexpr int kRowBytes = kWords * 8;
    static constexpr int kPieceBytes = 32;
    static constexpr int kStages = 3;
    static constexpr int kMetaBytes = kFields * 8;
    static constexpr bool kTma = kTma_;
};

/// What its group has of its own.
struct Own : given_up::Own {
    char* windows[kMany];
};

/// Windows of many ranks share bytes but for their words: there are slots behind the last one alone, which is this rank's.
using Many = Channel<0, kMany>;

/// A word of a ring in the window of a rank, by the number of its other end.
__device__ __forceinline__ ep::u32& word_at(const ep::Group& group, int rank, ep::u64 at, int stripe, int peer) {
    return reinterpret_cast<ep::u32*>(group.windows[rank] + at)[stripe * kMany + peer];
}
__device__ __forceinline__ ep::u64& header_of(const ep::Group& group, int peer, int word) {
    const int ring = static_cast<int>(kCall & 1) * Many::kRings + kStripe * kMany + peer;
    return reinterpret_cast<ep::u64*>(group.window + Many::kHeader)[ring * 2 + word];
}

/// One of many ranks, from `at` of a window on: each of its rings has three rows for it, and room for three of its own.
__device__ __forceinline__ ep::Group play(const ep::Group& given, ep::u64 at) {
    Own& own = *reinterpret_cast<Own*>(given.window + at);
    char* windows = given.window + at + sizeof(Own);
    const int lane = ep::lane_index();
    for (int i = lane; i < kMany; i += ep::kLanes) {
        own.windows[i] = windows + i * Many::kSlots;
    }
    if (lane == 0) own.stop = own.state.records = 0, own.records[0] = ep::Record{};
    auto* words = reinterpret_cast<ep::u64*>(windows);
    for (ep::u64 i = lane; i < kMany * Many::kSlots / 8; i += ep::kLanes) words[i] = 0;
    __syncwarp();
    const ep::Group group = given_up::group_of(given, own, 0, own.windows, kSelf);
    for (int i = lane; i < Many::kRings; i += ep::kLanes) {
        const int stripe = i / kMany, peer = i % kMany;
        word_at(group, kSelf, Many::kTail, stripe, peer) = kBase + 3;
        word_at(group, kSelf, Many::kHead, stripe, peer) = kBase - 1;
        word_at(group, kSelf, Many::kRetired, stripe, peer) = kCall - 2;
        for (int copy = 0; copy < 2; ++copy) {
            word_at(group, kSelf, Many::kTaken, copy * kStripes + stripe, peer) = kBase;
            word_at(group, kSelf, Many::kSent, copy * kStripes + stripe, peer) = kBase;
        }
    }
    for (int peer = lane; peer < kMany; peer += ep::kLanes) {
        header_of(group, peer, 0) = ep::stamped(kCall, 40);
        header_of(group, peer, 1) = ep::stamped(kCall, 6);
    }
    __syncwarp();
    return group;
}

}  // namespace played_rings

