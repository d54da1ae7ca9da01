// Rows that one warp moves through shared memory, cut and ahead of one another in many ways. The host knows
// what each check leaves in `out`; see moves.rs, which has the checks in the same order.
#include <ep/mover.cuh>
#include <ep/sync.cuh>

namespace moves {

struct Args {
    ep::Group group;
    int check;
    ep::i64* out;
};

/// A role that moves rows: bytes of a row, of a piece and of the record beside it.
template <int kRow, int kPiece, int kStages_, int kMeta, bool kTma_ = true>
struct Role {
    static constexpr int kRowBytes = kRow;
    static constexpr int kPieceBytes = kPiece;
    static constexpr int kStages = kStages_;
    static constexpr int kMetaBytes = kMeta;
    static constexpr bool kTma = kTma_;
};

constexpr int kRows = 9;
constexpr int kCopy = 4700;  // words from the rows of a lane to those of another

/// Rows in `out`, with `kRowBytes` each, and then records; lanes 1 and 30 store them.
template <class R>
struct Sheet {
    ep::i64* out;

    static constexpr int kRow = R::kRowBytes / 8;
    static constexpr int kMeta = R::kMetaBytes / 8;

    __device__ __forceinline__ ep::i64* from(int row) const { return out + row * kRow; }

    /// Where this lane stores a row, if it does: lane 1 each, lane 30 every other.
    __device__ __forceinline__ ep::i64* to(int row) const {
        const int lane = ep::lane_index();
        if (lane != 1 && (lane != 30 || row % 2 == 0)) return nullptr;
        return out + (lane == 1 ? 1 : 2) * kCopy + row * kRow;
    }

    /// Where this lane stores the record of a row, if it does: lane 1 stores each record, lane 30 every other one.
    __device__ __forceinline__ ep::i64* meta(int row) const {
        ep::i64* there = to(row);
        return there == nullptr ? nullptr : there + kRows * kRow - row * (kRow - kMeta);
    }

    /// What this lane finds of a row that is said to be there: its last word and that of its record.
    __device__ __forceinline__ void look(int row, ep::i64* found) const {
        if (row < 0 || to(row) == nullptr) return;
        found[0] = to(row)[kRow - 1];
        if (kMeta > 0) found[1] = meta(row)[kMeta - 1];
    }
};

/// Moves a row and a record of it.
template <class R>
__device__ __forceinline__ void move(ep::Mover<R>& mover, const Sheet<R>& sheet, int row) {
    mover.row(reinterpret_cast<char*>(sheet.to(row)), sheet.from(row));
    ep::i64* record = reinterpret_cast<ep::i64*>(mover.meta());
    for (int i = ep::lane_index(); i < Sheet<R>::kMeta; i += ep::kLanes) {
        record[i] = 7000 + row * 100 + i;
    }
    mover.send_meta(reinterpret_cast<char*>(sheet.meta(row)));
}

/// Tells a peer nothing, and notes how many rows it could have been told of.
struct End {
    ep::i64* told;

    template <class R>
    __device__ __forceinline__ void tell(ep::Mover<R>& mover) {
        if (ep::lane_index() == 0) *told = mover.rows_begun();
    }

    template <class M>
    __device__ __forceinline__ void settle(M& mover) {
        tell(mover);
    }
};

template <class R>
__device__ __forceinline__ Sheet<R> begin(ep::i64* out) {
    for (int i = ep::lane_index(); i < kRows * Sheet<R>::kRow; i += ep::kLanes) out[i] = 100 + i;
    __syncwarp();
    return Sheet<R>{out};
}

/// Rows one behind the other; after each, as many are complete as the mover is sure of.
template <class R, int kRecent>
__device__ __forceinline__ void stream(ep::Team& team, ep::MoverSmem<R>& smem, ep::i64* out) {
    const Sheet<R> sheet = begin<R>(out);
    ep::Mover<R> mover(smem, team);
    mover.fence_global();
    ep::i64* notes = out + 3 * kCopy + team.lane;
    for (int row = 0; row < kRows; ++row) {
        if (row == 0) mover.ask(sheet.from(0));
        move(mover, sheet, row);
        const int sure = static_cast<int>(mover.template rows_stored<kRecent>());
        notes[row * 96] = sure * 10000 + mover.rows_loaded() * 100 + mover.rows_begun();
        sheet.look(sure - 1, notes + row * 96 + 32);
    }
    Marks marks{out + 3 * kCopy + 1200};
    marks.write();
    mover.template rows_stored<kRecent>();
    marks.read();
    End end{out + 3 * kCopy + 1000};
    ep::tell(mover, end);
    end.told += 1;
    marks.write();
    ep::settle(mover, end);
    marks.read();
    notes[900] = mover.template rows_stored<kRecent>();
    sheet.look(kRows - 1, out + 3 * kCopy + 1100 + team.lane * 2);
    marks.write();
    mover.finish();
    marks.read();
}

/// Rows of which all but some recent ones are completed: of nine, all but eight at first, then fewer.
template <class R>
__device__ __forceinline__ void complete(ep::Team& team, ep::MoverSmem<R>& smem, ep::i64* out) {
    const Sheet<R> sheet = begin<R>(out);
    ep::Mover<R> mover(smem, team);
    ep::i64* notes = out + 3 * kCopy + team.lane * 2;
    Marks marks{out + 3 * kCopy + 1200};
    for (int pass = 0; pass < kRows; ++pass) {
        mover.fence_global();
        for (int row = 0; row < kRows; ++row) move(mover, sheet, row);
        if (pass == 4) mover.store_all();
        if (team.leader()) out[3 * kCopy + 900 + pass] = mover.rows_loaded();
        marks.write();
        mover.complete(kRows - 1 - pass);
        marks.read();
        sheet.look(pass, notes + pass * 64);
        mover.complete(0);
    }
    mover.finish();
}

/// A team that stops behind some rows: what has begun ends, and nothing begins. Records join the piece
/// behind them, so that rows that have some end before a wait.
template <class R>
__device__ __forceinline__ void stop(ep::Team& team, ep::MoverSmem<R>& smem, int rows,
                                     ep::i64* out) {
    const Sheet<R> sheet = begin<R>(out);
    ep::Mover<R> mover(smem, team);
    mover.fence_global();
    if (rows == 0) mover.ask(sheet.from(0));
    for (int row = 0; row < rows; ++row) move(mover, sheet, row);
    team.stopped = true;
    if (rows != 0) mover.ask(sheet.from(rows));
    mover.row(reinterpret_cast<char*>(sheet.to(rows)), sheet.from(rows));
    mover.send_meta(reinterpret_cast<char*>(sheet.meta(rows)));
    out[3 * kCopy + team.lane] = mover.rows_begun();
    mover.finish();
}

/// Rows that go to more places than a warp has lanes, to two, and to none.
template <class R>
__device__ __forceinline__ void spread(ep::Team& team, ep::MoverSmem<R>& smem, ep::i64* out) {
    const Sheet<R> sheet = begin<R>(out);
    ep::Mover<R> mover(smem, team);
    mover.fence_global();
    const int counts[3] = {34, 2, 0};
    ep::i64* to = out + kCopy;
    for (int row = 0; row < 3; ++row) {
        ep::RowPlaces places;
        for (int i = 0; i < counts[row]; ++i, to += Sheet<R>::kRow) {
            places.add(mover, to, sheet.from(row));
        }
        places.move(mover, sheet.from(row));
        if (team.leader()) out[3 * kCopy + row] = mover.rows_begun();
    }
    mover.flush();
    mover.finish();
}

/// Which lanes have a destination.
__device__ __forceinline__ void places(ep::i64* out) {
    const int lane = ep::lane_index();
    char* base = reinterpret_cast<char*>(out);
    for (int peer = 30; peer < 35; ++peer) {
        const char* there = ep::at_lane_of(peer, base + 8);
        out[(peer - 30) * 32 + lane] = there == nullptr ? -1 : there - base;
    }
    const char* there = ep::at_leader(out + 1);
    out[160 + lane] = there == nullptr ? -1 : there - base;
}

/// All shared memory that there is.
struct Bytes {
    char bytes[4736];
};

template <class R>
__device__ __forceinline__ ep::MoverSmem<R>& memory(Bytes& shared) {
    static_assert(sizeof(ep::MoverSmem<R>) <= sizeof(Bytes), "it has room");
    return *reinterpret_cast<ep::MoverSmem<R>*>(&shared);
}

using Three = Role<80, 32, 4, 48>;       // pieces, of which the last is short
using Five = Role<80, 16, 2, 0>;         // more pieces than stages
using Whole = Role<96, 512, 5, 16>;      // a piece, shorter than it might be
using Full = Role<16, 16, 16, 16>;       // memory that ends where the last mbarrier does
using Bare = Role<16, 16, 16, 0>;
using Vector = Role<1040, 512, 2, 528, false>;
using Small = Role<32, 32, 2, 0, false>;
using Turns = Role<4096, 512, 2, 0, false>;  // whole turns of a warp

}  // namespace moves

extern "C" __global__ void __launch_bounds__(32)
    moves_of(const __grid_constant__ moves::Args args) {
    using namespace moves;
    EP_SHARED(Bytes, shared);
    const ep::Call call = ep::enter(args.group);
    ep::Team team(args.group, call, 0, 0, 1, 0, 1);
    ep::i64* out = args.out;
    switch (args.check) {
        case 0: stream<Three, 2>(team, memory<Three>(shared), out); break;
        case 1: stream<Five, 1>(team, memory<Five>(shared), out); break;
        case 2: stream<Whole, 3>(team, memory<Whole>(shared), out); break;
        case 3: stream<Full, 9>(team, memory<Full>(shared), out); break;
        case 4: stream<Vector, 1>(team, memory<Vector>(shared), out); break;
        case 5: stream<Small, 1>(team, memory<Small>(shared), out); break;
        case 6: complete<Three>(team, memory<Three>(shared), out); break;
        case 7: complete<Whole>(team, memory<Whole>(shared), out); break;
        case 8: complete<Full>(team, memory<Full>(shared), out); break;
        case 9: complete<Vector>(team, memory<Vector>(shared), out); break;
        case 10: stop<Three>(team, memory<Three>(shared), 0, out); break;
        case 11: stop<Five>(team, memory<Five>(shared), 2, out); break;
        case 12: stop<Bare>(team, memory<Bare>(shared), 3, out); break;
        case 13: stop<Vector>(team, memory<Vector>(shared), 2, out); break;
        case 14: places(out); break;
        case 15: stream<Turns, 1>(team, memory<Turns>(shared), out); break;
        case 16: spread<Three>(team, memory<Three>(shared), out); break;
        case 17: spread<Small>(team, memory<Small>(shared), out); break;
        default: break;
    }
    ep::leave(args.group, call);
}
