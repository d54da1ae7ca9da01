// Gathers the parts of each token from several peers and adds them, in rank order, in fp32.
//
// The parts of a row come in pieces of kPieceBytes, each into a stage of its own. Loads run ahead
// of the sum through all stages: over the peers of a piece, over the pieces of a row, and into the
// next token. Which token that is, and which rows make it up, is found out while this one is added.
//
// A source says where parts are: PullConsumer (pull.cuh). Without TMA (`kTma` false) the warp loads from the peers
// itself, a token at a time.
#pragma once

#include <ep/cast.cuh>
#include <ep/ptx.cuh>
#include <ep/rows.cuh>
#include <ep/sync.cuh>

namespace ep {

/// How a role's rows are cut for a gather; `Role` is its Cfg struct.
template <class Role>
struct GatherCut {
    static constexpr int kBytes =
        Role::kPieceBytes < Role::kRowBytes ? Role::kPieceBytes : Role::kRowBytes;
    static constexpr int kCount = (Role::kRowBytes + kBytes - 1) / kBytes;
    static constexpr int kLastBytes = Role::kRowBytes - (kCount - 1) * kBytes;
    // 16-byte units of a piece that one lane adds.
    static constexpr int kQuads = (kBytes + kLanes * 16 - 1) / (kLanes * 16);
    // The other fields of a message, all floats. They follow the pieces of the row in a stage of
    // their own when bulk copies can move them; dense records of any other size are read where they
    // are.
    static constexpr int kFloats = Role::kMetaBytes / 4;
    static constexpr bool kBulkMeta = Role::kTma && kFloats > 0 && Role::kMetaBytes % 16 == 0;
    static constexpr int kSteps = kCount + (kBulkMeta ? 1 : 0);
    static constexpr int kStageBytes =
        kBulkMeta && Role::kMetaBytes > kBytes ? Role::kMetaBytes : kBytes;

    // Floats of the other fields that one lane adds; at least one, for an array.
    static constexpr int kEach = kFloats > 0 ? (kFloats + kLanes - 1) / kLanes : 1;

    /// Bytes of a piece of the row.
    static __device__ __forceinline__ int bytes_of(int piece) {
        return piece == kCount - 1 ? kLastBytes : kBytes;
    }

    static_assert(Role::kRowBytes % 16 == 0 && kBytes % 16 == 0, "bulk copies move 16-byte units");
    static_assert(Role::kStages >= 2 && Role::kStages <= kLanes, "a lane fills each free stage");
};

/// Where the parts of a token are.
template <class Role>
struct GatherItem {
    const char* row[Role::kSources];
    const char* meta[Role::kSources];
};

/// The shared memory of one gathering warp.
template <class Role, bool kTma = Role::kTma>
struct GatherSmem {
    alignas(128) char stage[Role::kStages][GatherCut<Role>::kStageBytes];
    alignas(16) float sums[GatherCut<Role>::kFloats > 0 ? GatherCut<Role>::kFloats : 1];
    GatherItem<Role> items[2];
    u64 full[Role::kStages];
};

template <class Role>
struct GatherSmem<Role, false> {
    alignas(16) float sums[GatherCut<Role>::kFloats > 0 ? GatherCut<Role>::kFloats : 1];
    GatherItem<Role> items[2];
};

/// The stages of one gathering warp, for as long as its role lasts.
template <class Role>
class Gather {
public:
    __device__ __forceinline__ Gather(GatherSmem<Role>& smem, Team& team) : smem(smem), team(team) {
        if constexpr (Role::kTma) {
            if (team.leader()) {
#pragma unroll 1
                for (int i = 0; i < Role::kStages; ++i) mbarrier_init(&smem.full[i], 1);
                fence_mbarrier_init();
            }
            __syncwarp();
        }
    }

    /// Loads a piece into the lane's own free stage, `ahead` of the next one.
    __device__ __forceinline__ void load(int ahead, const char* from, u32 bytes) {
        const int stage = wrapped(load_stage_ + ahead);
        mbarrier_arrive_expect(&smem.full[stage], bytes);
        tma_load(smem.stage[stage], from, bytes, &smem.full[stage]);
    }

    /// Counts pieces that the lanes have begun to load.
    __device__ __forceinline__ void loaded(int pieces) {
        load_stage_ = wrapped(load_stage_ + pieces);
        busy_ += pieces;
    }

    /// The oldest piece, once it has been loaded: from a peer that has released it, so that nothing
    /// anyone does can hold it up and the wait needs no bound.
    __device__ __forceinline__ const char* take() {
        const int stage = take_stage_;
        while (!mbarrier_try_wait(&smem.full[stage], phases_ >> stage & 1)) {
        }
        phases_ ^= 1u << stage;
        take_stage_ = wrapped(stage + 1);
        ++taken_;
        return smem.stage[stage];
    }

    /// Frees the stages of all pieces taken.
    __device__ __forceinline__ void recycle() {
        // M3: every lane has read its part; the lanes that load again come after the barrier.
        fence_proxy_async_shared();
        __syncwarp();
        busy_ -= taken_;
        taken_ = 0;
    }

    /// Whether every piece that was begun has been taken.
    __device__ __forceinline__ bool empty() const { return busy_ == taken_; }

    /// How many stages are free.
    __device__ __forceinline__ int room() const { return Role::kStages - busy_; }

    /// Leaves no load open (M6).
    __device__ __forceinline__ void finish() {
        if constexpr (Role::kTma) {
            while (!empty()) take();
        }
        __syncwarp();
    }

    GatherSmem<Role>& smem;
    Team& team;

private:
    static __device__ __forceinline__ int wrapped(int stage) {
        return stage >= Role::kStages ? stage - Role::kStages : stage;
    }

    int load_stage_ = 0;
    int take_stage_ = 0;
    int busy_ = 0;    // stages loaded or being loaded, and not yet freed
    int taken_ = 0;   // of these, those taken
    u32 phases_ = 0;  // a bit for each stage: the parity it completes next
};

/// `for token gather part from source[peer] at at(token, peer)`: one walk over tokens. The body of
/// `run` calls `store_row` once, which takes all parts of the token, then `store_sum` for other
/// fields.
template <class Role, class Source, class Order, class At>
class GatherRun {
    using Cut = GatherCut<Role>;
    static constexpr int kGroups = Source::kGroups;

public:
    __device__ __forceinline__ GatherRun(Gather<Role>& stages, Source& source, Order turns, At at)
        : stages_(stages), team_(stages.team), source_(source), turns_(turns), at_(at) {}

    template <class Body>
    __device__ __forceinline__ void run(Body body) {
        // The places of the first token's parts travel while the producers get ready.
        look_ahead();
        source_.wait_ready();
        // M2: what this warp has acquired so far may be read by bulk loads of any lane.
        if constexpr (Role::kTma) fence_proxy_async_global();
        __syncwarp();
#pragma unroll 1
        while (opened_ != 0 || open(true)) {
            const int token = opened_token_;
            sources_ = load_sources_;
            i32 entries[kGroups];
#pragma unroll
            for (int g = 0; g < kGroups; ++g) entries[g] = opened_entries_[g];
            body(token);
            item_ ^= 1;
            --opened_;
            source_.done(entries);
            if (team_.stopped) return;
        }
    }

    /// `out = sum(part.x) + biases`, all in fp32 before the one rounding. The sums of the other
    /// fields follow, for `store_sum`.
    template <int kBiases, class Bias>
    __device__ __forceinline__ void store_row(bf16* out, int biases, Bias bias) {
        constexpr int kFieldSteps = Cut::kFloats > 0 ? 1 : 0;
#pragma unroll 1
        for (int piece = 0; piece < Cut::kCount + kFieldSteps; ++piece) {
            if (piece == 1 && !looked_) look_ahead();
            const bool row = piece < Cut::kCount;
            const int at = piece * Cut::kBytes;
            const int bytes = row ? Cut::bytes_of(piece) : 0;
            // Biases are asked for before the parts are waited for.
            Quad extra[kBiases + 1][Cut::kQuads];
#pragma unroll
            for (int b = 0; b < kBiases; ++b) {
                if (b < biases) read(extra[b], reinterpret_cast<const char*>(bias(b)) + at, bytes);
            }
            float sum[Cut::kQuads][8] = {};
            float fields[Cut::kEach] = {};
#pragma unroll 1
            for (int s = 0; s < sources_; ++s) {
                const char* from = part(s, piece);
                if (row) {
                    add_piece(sum, from, bytes);
                } else {
                    add_fields(fields, from);
                }
            }
#pragma unroll
            for (int b = 0; b < kBiases; ++b) {
                if (b < biases) add(sum, extra[b]);
            }
            write(reinterpret_cast<char*>(out) + at, sum, bytes);
            if (!row) write_fields(fields);
        }
    }

    /// `out = sum(part.x)`.
    __device__ __forceinline__ void store_row(bf16* out) {
        store_row<0>(out, 0, [](int) -> const bf16* { return nullptr; });
    }

    /// `out = sum(part.field)` for a field of floats.
    __device__ __forceinline__ void store_sum(float* out, int field, int count) const {
#pragma unroll 1
        for (int i = team_.lane; i < count; i += kLanes) out[i] = stages_.smem.sums[field / 4 + i];
    }

private:
    /// Takes the token that will be opened next, and asks for its rows.
    __device__ __forceinline__ void look_ahead() {
        next_ = turns_.take();
        looked_ = true;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int peer = g * kLanes + team_.lane;
            ahead_[g] = next_ < turns_.end && peer < Source::kPeers ? at_(next_, peer) : -1;
        }
    }

    /// Lists the parts of the next token, if there is one and they have arrived; waits for them when
    /// `block`.
    __device__ __forceinline__ bool open(bool block) {
        // A stopped team reads nothing: it may not even know where its peers' rows are.
        if (team_.stopped) return false;
        if (!looked_) look_ahead();
        if (next_ >= turns_.end) return false;
        if (!source_.arrived(ahead_, block) || team_.stopped) return false;
        __syncwarp();
        GatherItem<Role>& item = stages_.smem.items[(item_ + opened_) & 1];
        int count = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const i32 entry = ahead_[g];
            const u32 present = __ballot_sync(kAllLanes, entry >= 0);
            const int place = count + __popc(present & ((1u << team_.lane) - 1));
            if (entry >= 0 && place < Role::kSources) {
                item.row[place] = source_.row(g, entry);
                item.meta[place] = source_.meta(g, entry);
            }
            count += __popc(present);
            opened_entries_[g] = entry;
        }
        __syncwarp();
        load_sources_ = count < Role::kSources ? count : Role::kSources;
        load_piece_ = load_source_ = 0;
        opened_token_ = next_;
        ++opened_;
        looked_ = false;
        turns_.ask();
        return true;
    }

    /// Fills the free stages with what comes next: of this token, then of the one after it.
    __device__ __forceinline__ void refill() {
#pragma unroll 1
        while (stages_.room() > 0) {
            const int left = (Cut::kSteps - load_piece_) * load_sources_ - load_source_;
            if (left <= 0) {
                // Looking for rows that may not have come costs a round trip: not for one stage.
                const bool worth = stages_.room() * 2 >= Role::kStages;
                if (opened_ == 2 || !worth || !open(false)) return;
                continue;
            }
            const int count = left < stages_.room() ? left : stages_.room();
            if (team_.lane < count) load(team_.lane);
            stages_.loaded(count);
            load_source_ += count;
            while (load_source_ >= load_sources_) load_source_ -= load_sources_, ++load_piece_;
        }
    }

    /// Loads the lane's piece: of all sources in turn, before the next piece of any.
    __device__ __forceinline__ void load(int ahead) {
        int piece = load_piece_;
        int source = load_source_ + ahead;
        while (source >= load_sources_) source -= load_sources_, ++piece;
        const GatherItem<Role>& item = stages_.smem.items[(item_ + opened_ - 1) & 1];
        const bool row = piece < Cut::kCount;
        const char* from = row ? item.row[source] + piece * Cut::kBytes : item.meta[source];
        stages_.load(ahead, from, static_cast<u32>(row ? Cut::bytes_of(piece) : Role::kMetaBytes));
    }

    /// A piece of a part, the next one in order: in its stage, or where it is.
    __device__ __forceinline__ const char* part(int source, int piece) {
        if constexpr (Role::kTma) {
            if (piece < Cut::kSteps) {
                // The stages of the last piece are free again, and there may be more to load.
                if (source == 0 || stages_.empty()) {
                    stages_.recycle();
                    refill();
                }
                return stages_.take();
            }
        }
        const GatherItem<Role>& item = stages_.smem.items[item_];
        return piece < Cut::kCount ? item.row[source] + piece * Cut::kBytes : item.meta[source];
    }

    /// Adds a part's piece of the row.
    __device__ __forceinline__ void add_piece(float (&sum)[Cut::kQuads][8], const char* from,
                                              int bytes) const {
        Quad quads[Cut::kQuads];
        if constexpr (Role::kTma) {
            const Quad* stage = reinterpret_cast<const Quad*>(from);
#pragma unroll
            for (int q = 0; q < Cut::kQuads; ++q) {
                const int unit = q * kLanes + team_.lane;
                quads[q] = unit * 16 < bytes ? stage[unit] : Quad{0, 0, 0, 0};
            }
        } else {
            read(quads, from, bytes);
        }
        add(sum, quads);
    }

    /// Adds a part's other fields, all floats.
    __device__ __forceinline__ void add_fields(float (&sum)[Cut::kEach], const char* from) const {
#pragma unroll
        for (int i = 0; i < Cut::kEach; ++i) {
            const int at = i * kLanes + team_.lane;
            if (at < Cut::kFloats) sum[i] += reinterpret_cast<const float*>(from)[at];
        }
    }

    /// Leaves the sums of the other fields where `store_sum` finds them.
    __device__ __forceinline__ void write_fields(const float (&sum)[Cut::kEach]) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < Cut::kEach; ++i) {
            const int at = i * kLanes + team_.lane;
            if (at < Cut::kFloats) stages_.smem.sums[at] = sum[i];
        }
        __syncwarp();
    }

    __device__ __forceinline__ void read(Quad (&quads)[Cut::kQuads], const char* from,
                                         int bytes) const {
#pragma unroll
        for (int q = 0; q < Cut::kQuads; ++q) {
            const int unit = (q * kLanes + team_.lane) * 16;
            quads[q] = unit < bytes ? load_quad(from + unit) : Quad{0, 0, 0, 0};
        }
    }

    static __device__ __forceinline__ void add(float (&sum)[Cut::kQuads][8],
                                               const Quad (&quads)[Cut::kQuads]) {
#pragma unroll
        for (int q = 0; q < Cut::kQuads; ++q) add_bf16(sum[q], quads[q]);
    }

    __device__ __forceinline__ void write(char* to, const float (&sum)[Cut::kQuads][8],
                                          int bytes) const {
#pragma unroll
        for (int q = 0; q < Cut::kQuads; ++q) {
            const int unit = (q * kLanes + team_.lane) * 16;
            if (unit < bytes) store_quad(to + unit, pack_bf16(sum[q]));
        }
    }

    Gather<Role>& stages_;
    Team& team_;
    Source& source_;
    Order turns_;
    At at_;
    int next_ = 0;                 // the token to be opened next,
    bool looked_ = false;          // once it is known
    int opened_ = 0;               // tokens listed and not yet done: this one and perhaps the next
    int opened_token_ = 0;         // the last of them
    int item_ = 0;                 // the list of this token
    int sources_ = 0;              // parts of this token
    int load_sources_ = 0;         // parts of the token being loaded
    int load_piece_ = 0;           // the piece of it that is loaded next,
    int load_source_ = 0;          // and of which part
    i32 ahead_[kGroups];           // where the parts of `next_` are, as recorded
    i32 opened_entries_[kGroups];  // the same for the token opened last
};

}  // namespace ep
