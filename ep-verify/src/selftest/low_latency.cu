// Draws the inputs of low-latency calls by formulas, stands for their experts, and holds what calls leave against
// the same formulas: every rank knows what each other one sends, without a word from it.
#include <ep/cast.cuh>

namespace drawn {

/// What a call may get wrong.
enum Kind { kCounts, kRows, kSums, kKinds };

/// How many things were wrong, and where the first one was: {call, expert or token, source or column, row}.
struct Found {
    ep::u32 wrong[kKinds];
    ep::i32 first[kKinds][4];
};

struct Args {
    ep::bf16* x;              // [tokens, hidden]
    ep::i64* topk_idx;        // [tokens, topk]
    float* topk_weights;      // [tokens, topk]
    const void* packed_x;     // [local_experts, ranks * max_tokens, hidden]
    const void* packed_scale; // the same with a scale for each 128 values
    const ep::i32* packed_count;
    const ep::i32* src_info;
    const ep::i32* range_first;
    const ep::i32* range_count;
    ep::bf16* made;           // what the experts make of packed_x
    const ep::bf16* combined; // [tokens, hidden]
    Found* found;
    ep::u64 out;              // a bit for each rank that takes no part
    ep::i32 payload;          // 0: bf16, 1: e4m3 and a float, 2: e4m3 and a power of two
    ep::i32 call;
    ep::i32 rank;
    ep::i32 ranks;
    ep::i32 max_tokens;
    ep::i32 hidden;
    ep::i32 topk;
    ep::i32 experts;
    ep::i32 full;             // whether all ranks have the most tokens, with an expert in every place
};

constexpr int kMaxTopk = 32;

struct Smem {
    ep::i32 count;
    ep::i32 tokens;  // a sum of numbers that stand for tokens
    float weight[kMaxTopk];
    ep::u32 seed[kMaxTopk];
};

__device__ __forceinline__ ep::u32 mixed(ep::u32 value) {
    value = (value ^ value >> 16) * 0x7feb352du;
    value = (value ^ value >> 15) * 0x846ca68bu;
    return value ^ value >> 16;
}

/// A number for a place of a call.
__device__ __forceinline__ ep::u32 draw(const Args& args, int rank, int token, int what) {
    const ep::u32 place = static_cast<ep::u32>((rank * 2048 + token) * 8192 + what);
    return mixed(mixed(static_cast<ep::u32>(args.call)) + place);
}

/// Tokens of a rank: often none, often the most.
__device__ __forceinline__ int token_count(const Args& args, int rank) {
    if (args.full != 0) return args.max_tokens;
    const ep::u32 number = draw(args, rank, 0, 0);
    if (number % 8 == 0) return 0;
    return number % 8 == 1 ? args.max_tokens : static_cast<int>((number >> 8) % (args.max_tokens + 1));
}

/// An expert of a token, no two of them the same; -1: none.
__device__ __forceinline__ int expert_of(const Args& args, int rank, int token, int choice) {
    const ep::u32 number = draw(args, rank, token, 1);
    if (args.full == 0 && ((number >> 24) + choice) % 16 == 0) return -1;
    const ep::u32 step = args.experts / args.topk;
    return static_cast<int>(((number & 0xffffffu) + choice * step) % args.experts);
}

/// Eighths.
__device__ __forceinline__ float weight_of(const Args& args, int rank, int token, int choice) {
    return ((draw(args, rank, token, 2) >> choice % 24 & 7) + 1) / 8.0f;
}

/// Each block of 128 begins with the greatest e4m3, so that its scale is 1 and all values stay as they are.
__device__ __forceinline__ float value_of(ep::u32 seed, int column) {
    if (column % 128 == 0) return 448.0f;
    return static_cast<float>(static_cast<int>(mixed(seed + column) % 31) - 15);
}

/// What an expert makes of a row: so small that weighted sums are exact.
__device__ __forceinline__ float made_of(ep::u32 seed, int column) {
    return static_cast<float>(static_cast<int>(mixed(seed + column) % 17) - 8);
}

__device__ __forceinline__ ep::u32 row_seed(const Args& args, int rank, int token) {
    return draw(args, rank, token, 3);
}

__device__ __forceinline__ ep::u32 made_seed(const Args& args, int rank, int token, int expert) {
    return draw(args, rank, token, 4 + expert);
}

/// The first ranks have one more.
__device__ __forceinline__ int first_expert(const Args& args, int rank) {
    const int more = args.experts % args.ranks;
    return rank * (args.experts / args.ranks) + (rank < more ? rank : more);
}

__device__ __forceinline__ bool is_out(const Args& args, int rank) {
    return rank < 64 && (args.out >> rank & 1) != 0;
}

__device__ __forceinline__ void note(const Args& args, Kind kind, int a, int b, int c) {
    if (ep::fetch_add_relaxed_gpu(&args.found->wrong[kind], 1) != 0) return;
    ep::i32* first = args.found->first[kind];
    first[0] = args.call, first[1] = a, first[2] = b, first[3] = c;
}

/// A value that has arrived.
__device__ __forceinline__ float arrived(const Args& args, ep::i64 row, int column) {
    const ep::i64 at = row * args.hidden + column;
    if (args.payload == 0) return ep::to_float(static_cast<const ep::bf16*>(args.packed_x)[at]);
    const float value = ep::to_float(static_cast<const ep::e4m3*>(args.packed_x)[at]);
    const ep::i64 block = row * ((args.hidden + 127) / 128) + column / 128;
    if (args.payload == 1) return value * static_cast<const float*>(args.packed_scale)[block];
    return value * ep::to_float(static_cast<const ep::ue8m0*>(args.packed_scale)[block]);
}

/// Counts of what has to come to an expert from a source, by all threads of the block.
__device__ __forceinline__ void expect(const Args& args, Smem& smem, int expert, int source) {
    __syncthreads();
    if (threadIdx.x == 0) smem.count = 0, smem.tokens = 0;
    __syncthreads();
    const int tokens = is_out(args, source) ? 0 : token_count(args, source);
    for (int token = static_cast<int>(threadIdx.x); token < tokens; token += static_cast<int>(blockDim.x)) {
        for (int choice = 0; choice < args.topk; ++choice) {
            if (expert_of(args, source, token, choice) != expert) continue;
            ep::add_relaxed_shared(&smem.count, 1);
            ep::add_relaxed_shared(&smem.tokens, static_cast<ep::i32>(mixed(token)));
        }
    }
    __syncthreads();
}

/// Whether the tables say that of a local expert and a source; one thread.
__device__ __forceinline__ bool is_counted(const Args& args, const Smem& smem, int local, int source) {
    const ep::i32* counts = args.range_count + local * args.ranks;
    int first = 0;
    int all = 0;
    for (int from = 0; from < args.ranks; ++from) {
        if (from == source) first = all;
        all += counts[from];
    }
    if (counts[source] != smem.count || args.packed_count[local] != all) return false;
    if (args.range_first[local * args.ranks + source] != first) return false;
    const ep::i32* rows = args.src_info + ep::i64{local} * args.ranks * args.max_tokens + first;
    ep::u32 tokens = 0;
    for (int row = 0; row < smem.count; ++row) tokens += mixed(rows[row]);
    return tokens == static_cast<ep::u32>(smem.tokens);
}

}  // namespace drawn

extern "C" __global__ void drawn_inputs(const __grid_constant__ drawn::Args args) {
    const int tokens = drawn::token_count(args, args.rank);
    for (int token = static_cast<int>(blockIdx.x); token < tokens; token += static_cast<int>(gridDim.x)) {
        const ep::u32 seed = drawn::row_seed(args, args.rank, token);
        for (int i = static_cast<int>(threadIdx.x); i < args.hidden; i += static_cast<int>(blockDim.x)) {
            args.x[ep::i64{token} * args.hidden + i] = ep::to_bf16(drawn::value_of(seed, i));
        }
        for (int i = static_cast<int>(threadIdx.x); i < args.topk; i += static_cast<int>(blockDim.x)) {
            args.topk_idx[token * args.topk + i] = drawn::expert_of(args, args.rank, token, i);
            args.topk_weights[token * args.topk + i] = drawn::weight_of(args, args.rank, token, i);
        }
    }
}

/// Holds what a dispatch leaves, and makes what its experts give back.
extern "C" __global__ void drawn_rows(const __grid_constant__ drawn::Args args) {
    EP_SHARED(drawn::Smem, smem);
    const int begin = drawn::first_expert(args, args.rank);
    const int experts = drawn::first_expert(args, args.rank + 1) - begin;
    for (int pair = static_cast<int>(blockIdx.x); pair < experts * args.ranks; pair += static_cast<int>(gridDim.x)) {
        const int local = pair / args.ranks;
        const int source = pair % args.ranks;
        drawn::expect(args, smem, begin + local, source);
        if (!drawn::is_counted(args, smem, local, source)) {
            if (threadIdx.x == 0) drawn::note(args, drawn::kCounts, begin + local, source, smem.count);
            continue;
        }
        const int first = args.range_first[local * args.ranks + source];
        for (int row = first; row < first + smem.count; ++row) {
            const ep::i64 at = ep::i64{local} * args.ranks * args.max_tokens + row;
            const int token = args.src_info[at];
            const ep::u32 seed = drawn::row_seed(args, source, token);
            const ep::u32 made = drawn::made_seed(args, source, token, begin + local);
            for (int i = static_cast<int>(threadIdx.x); i < args.hidden; i += static_cast<int>(blockDim.x)) {
                if (drawn::arrived(args, at, i) != drawn::value_of(seed, i)) {
                    drawn::note(args, drawn::kRows, begin + local, source, row);
                }
                args.made[at * args.hidden + i] = ep::to_bf16(drawn::made_of(made, i));
            }
        }
    }
}

/// Holds what a combine leaves.
extern "C" __global__ void drawn_sums(const __grid_constant__ drawn::Args args) {
    EP_SHARED(drawn::Smem, smem);
    const int tokens = drawn::token_count(args, args.rank);
    for (int token = static_cast<int>(blockIdx.x); token < tokens; token += static_cast<int>(gridDim.x)) {
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < args.topk; i += static_cast<int>(blockDim.x)) {
            const int expert = drawn::expert_of(args, args.rank, token, i);
            int owner = 0;
            while (expert >= drawn::first_expert(args, owner + 1)) ++owner;
            const bool counts = expert >= 0 && !drawn::is_out(args, owner);
            smem.weight[i] = counts ? drawn::weight_of(args, args.rank, token, i) : 0.0f;
            smem.seed[i] = drawn::made_seed(args, args.rank, token, expert);
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < args.hidden; i += static_cast<int>(blockDim.x)) {
            float sum = 0.0f;
            for (int choice = 0; choice < args.topk; ++choice) {
                sum += smem.weight[choice] * drawn::made_of(smem.seed[choice], i);
            }
            const float got = ep::to_float(args.combined[ep::i64{token} * args.hidden + i]);
            if (got != ep::to_float(ep::to_bf16(sum))) drawn::note(args, drawn::kSums, token, i, 0);
        }
    }
}
