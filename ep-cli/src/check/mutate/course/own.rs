//! Courses with problems of their own: what is drawn at random does not come to.

use crate::kernels::Kernels;

/// Numbers and arms, by their names.
type Values = &'static [(&'static str, &'static str)];

/// The values of one problem, in parts that several problems share.
type Set = &'static [Values];

/// A problem of one pipeline.
pub(super) struct Own {
    /// What is special about it.
    pub(super) name: &'static str,
    pub(super) pipeline: &'static str,
    pub(super) ranks: u32,
    pub(super) nodes: Option<u32>,
    /// The most rows of a size.
    pub(super) rows: usize,
    /// How often each call is made.
    pub(super) rounds: usize,
    pub(super) set: Set,
    /// How it is emitted.
    pub(super) kernels: Kernels,
    /// Blocks beyond the fewest that run every role.
    pub(super) more_blocks: u32,
    /// Whether a rank says that its outputs hold less than comes to it.
    pub(super) short: bool,
    /// Whether floats are so far apart that sums depend on their order.
    pub(super) far_apart: bool,
}

/// Calls of a pipeline within one node, twice each, emitted by the rules.
const WITHIN_A_NODE: Own = Own {
    name: "",
    pipeline: "",
    ranks: 2,
    nodes: None,
    rows: 24,
    rounds: 2,
    set: &[],
    kernels: Kernels::Chosen,
    more_blocks: 1,
    short: false,
    far_apart: false,
};

/// Rows of more than one block of scales, all fields, and several blocks for each role.
const WIDE: Own = Own { name: "wide", more_blocks: 4, ..WITHIN_A_NODE };

/// Rows of more than one block of scales, all fields, and several blocks for each role, emitted statement by statement.
const WIDE_PLAIN: Own = Own { name: "wide plain", kernels: Kernels::Plain, ..WIDE };

/// With one row more than its outputs hold.
const SHORT: Own = Own { name: "short of room", short: true, ..WITHIN_A_NODE };
const SHORT_PLAIN: Own = Own { name: "short of room, plain", kernels: Kernels::Plain, ..SHORT };

/// With sums that depend on their order.
const ORDERED: Own = Own { name: "in order", far_apart: true, ..WITHIN_A_NODE };
const ORDERED_PLAIN: Own = Own { name: "in order, plain", kernels: Kernels::Plain, ..ORDERED };

/// With more rows of each warp than it has lanes.
const MANY_ROWS: Own =
    Own { name: "many rows of a warp", rows: 600, more_blocks: 0, ..WITHIN_A_NODE };

/// Among more ranks than a warp has lanes.
const MANY_RANKS: Own = Own { name: "more ranks than lanes", ranks: 34, rows: 4, ..WITHIN_A_NODE };

/// Between two nodes.
const BETWEEN: Own = Own { ranks: 4, nodes: Some(2), ..WIDE };
const BETWEEN_PLAIN: Own = Own { ranks: 4, nodes: Some(2), ..WIDE_PLAIN };

/// Rows of many blocks of scales, and some experts.
const FP8: Values = &[("payload", "fp8"), ("hidden", "2064"), ("topk", "3"), ("experts", "7")];
/// Rows of some blocks of packed scales.
const PACKED_SCALES: Values =
    &[("payload", "fp8-packed"), ("hidden", "272"), ("topk", "3"), ("experts", "7")];
/// The shortest rows.
const BF16: Values = &[("payload", "bf16"), ("hidden", "16"), ("topk", "3"), ("experts", "7")];
/// The shortest rows, of whatever they are.
const SMALL: Values = &[("hidden", "16"), ("topk", "3"), ("experts", "7")];
/// Choices and weights, which the receivers take.
const CHOSEN: Values =
    &[("topk_idx", "1"), ("topk_weights", "1"), ("recv_topk_idx", "1"), ("recv_topk_weights", "1")];
/// Weights without choices.
const UNCHOSEN: Values =
    &[("topk_idx", "0"), ("topk_weights", "1"), ("recv_topk_idx", "1"), ("recv_topk_weights", "1")];
/// Choices without weights.
const UNWEIGHED: Values =
    &[("topk_idx", "1"), ("topk_weights", "0"), ("recv_topk_idx", "1"), ("recv_topk_weights", "1")];
/// Choices and weights that no receiver takes.
const UNTAKEN: Values =
    &[("topk_idx", "1"), ("topk_weights", "1"), ("recv_topk_idx", "0"), ("recv_topk_weights", "0")];
/// The shortest rows of many tokens.
const MANY: Values = &[("hidden", "16"), ("topk", "2"), ("max_tokens", "600"), ("experts", "5")];
/// Rows on their way back.
const BACK: Values = &[("hidden", "80"), ("topk", "5")];
/// Weights, which are added up too, and all biases.
const WEIGHTED: Values = &[("weights", "1"), ("combined_weights", "1"), ("bias", "2")];
/// Sums of weights that nobody gives.
const UNWEIGHTED: Values = &[("weights", "0"), ("combined_weights", "1"), ("bias", "1")];
/// Weights whose sums nobody takes.
const UNSUMMED: Values = &[("weights", "1"), ("combined_weights", "0"), ("bias", "0")];

const DIRECT: Set = &[FP8, &[("via", "direct"), ("mode", "fresh")], CHOSEN];
const RING: Set = &[FP8, &[("via", "ring"), ("mode", "fresh"), ("stripes", "4")], CHOSEN];
const HOPS: Set = &[FP8, &[("mode", "fresh"), ("stripes", "4")], CHOSEN];
const PULLED: Set = &[BACK, &[("via", "pull")], WEIGHTED];
const RINGS_BACK: Set = &[BACK, &[("via", "ring"), ("stripes", "4")], WEIGHTED];
const HOPS_BACK: Set = &[BACK, &[("stripes", "4")], WEIGHTED];
/// Rows that a warp adds up in more than one turn.
const LONG_HOPS_BACK: Set = &[&[("hidden", "528"), ("topk", "5"), ("stripes", "4")], WEIGHTED];
const DECODED: Set = &[
    FP8,
    &[
        ("max_tokens", "24"),
        ("topk_weights", "1"),
        ("recv_topk_weights", "1"),
        ("received", "1"),
        ("received_per_expert", "1"),
    ],
];
const SLOTS: Set = &[FP8, &[("max_tokens", "24")]];
const PACKED_SLOTS: Set = &[PACKED_SCALES, &[("max_tokens", "24")]];
const LOGFMT: Set = &[&[
    ("wire", "logfmt"),
    ("hidden", "2064"),
    ("max_tokens", "24"),
    ("topk", "3"),
    ("experts", "7"),
]];
/// Rows of which several warps add up a slice each.
const SLICES: Set = &[&[
    ("wire", "bf16"),
    ("hidden", "2064"),
    ("max_tokens", "24"),
    ("topk", "3"),
    ("experts", "7"),
]];
const PACKED: Set =
    &[FP8, &[("max_tokens", "24"), ("topk_weights", "1"), ("statistics", "1")], VIA_DIRECT];
const RETURNED: Values = &[("hidden", "80"), ("max_tokens", "24"), ("topk", "3"), ("experts", "7")];
const MERGED: Set = &[RETURNED, VIA_DIRECT];
const VIA_DIRECT: Values = &[("via", "direct")];
const VIA_SPREAD: Values = &[("via", "spread")];
const VIA_SLOTS: Values = &[("via", "slots")];
const MOVED: Set = &[&[("payload", "fp8"), ("hidden", "2064"), ("topk", "3"), ("experts", "40")]];
/// More room between the rows of experts than a warp has lanes.
const PADDED: Set = &[SMALL, &[("payload", "bf16"), ("alignment", "100")]];
const STRIPES: Set = &[&[("stripes", "4")]];
/// The shortest rows of few tokens, as they are or as words.
const FEW: Values = &[("hidden", "16"), ("topk", "3"), ("experts", "40"), ("max_tokens", "4")];
const AS_ROWS: Values = &[("words", "0")];
const AS_WORDS: Values = &[("words", "256")];
const LEAST: Set = &[&[("hidden", "16")]];

/// All of them. The tight ones have rings that hold the least, to which more rows come than fit.
pub(super) const OWN: [Own; 109] = [
    Own {
        name: "tight",
        pipeline: "node-dispatch",
        nodes: Some(2),
        rows: 400,
        set: &[
            CHOSEN,
            &[
                ("payload", "fp8"),
                ("mode", "fresh"),
                ("hidden", "16"),
                ("topk", "2"),
                ("experts", "2"),
                ("stripes", "4"),
                ("rdma_depth", "32"),
                ("rdma_chunk", "4"),
                ("nvl_depth", "32"),
                ("nvl_chunk", "16"),
            ],
        ],
        ..WITHIN_A_NODE
    },
    Own {
        name: "tight",
        pipeline: "node-combine",
        nodes: Some(2),
        rows: 200,
        set: &[&[
            ("hidden", "16"),
            ("topk", "2"),
            ("stages", "2"),
            ("stripes", "4"),
            ("rdma_depth", "32"),
            ("rdma_chunk", "16"),
            ("nvl_depth", "32"),
            ("nvl_chunk", "4"),
            ("weights", "1"),
            ("combined_weights", "1"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "many nodes",
        pipeline: "node-layout",
        ranks: 34,
        nodes: Some(34),
        rows: 3,
        set: &[&[("stripes", "4")]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "many nodes",
        pipeline: "low-latency-combine",
        ranks: 36,
        nodes: Some(18),
        rows: 2,
        set: &[&[("hidden", "16"), ("topk", "2"), ("max_tokens", "2"), ("experts", "40")]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "tiles",
        pipeline: "low-latency-combine",
        ranks: 3,
        rows: 50,
        rounds: 1,
        set: &[&[
            ("hidden", "16"),
            ("topk", "3"),
            ("max_tokens", "50"),
            ("experts", "3"),
            ("expert_done", "0"),
            ("tile_done", "1"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "tiles of two experts",
        pipeline: "low-latency-combine",
        ranks: 3,
        rows: 90,
        rounds: 1,
        set: &[&[
            ("hidden", "16"),
            ("topk", "3"),
            ("max_tokens", "90"),
            ("experts", "6"),
            ("expert_done", "0"),
            ("tile_done", "1"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "experts that are done",
        pipeline: "low-latency-combine",
        ranks: 3,
        rows: 50,
        rounds: 1,
        set: &[&[
            ("hidden", "16"),
            ("topk", "3"),
            ("max_tokens", "50"),
            ("experts", "3"),
            ("expert_done", "1"),
            ("tile_done", "0"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "many calls",
        pipeline: "low-latency-combine",
        ranks: 4,
        nodes: Some(2),
        rows: 8,
        rounds: 4,
        set: &[&[("hidden", "16"), ("topk", "3"), ("max_tokens", "8"), ("experts", "7")]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "all fields",
        pipeline: "decode-combine",
        ranks: 4,
        rounds: 3,
        set: &[&[("hidden", "80"), ("topk", "32"), ("bias", "2"), ("weights", "1")]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "many tokens",
        pipeline: "decode-combine",
        rows: 90,
        rounds: 3,
        set: &[&[
            ("hidden", "16"),
            ("topk", "2"),
            ("max_tokens", "90"),
            ("bias", "1"),
            ("weights", "1"),
        ]],
        ..WITHIN_A_NODE
    },
    Own { pipeline: "decode-combine", set: &[MANY, WEIGHTED], ..MANY_ROWS },
    Own { pipeline: "merge-combine", set: &[MANY, VIA_DIRECT], ..MANY_ROWS },
    Own {
        name: "many rows apart",
        pipeline: "merge-combine",
        set: &[MANY, VIA_SPREAD],
        ..MANY_ROWS
    },
    Own { pipeline: "low-latency-combine", set: &[MANY], ..MANY_ROWS },
    Own { pipeline: "low-latency-dispatch", set: &[MANY], ..MANY_ROWS },
    Own {
        pipeline: "decode-dispatch",
        set: &[MANY, &[("topk_weights", "1"), ("recv_topk_weights", "1")]],
        ..MANY_ROWS
    },
    Own {
        pipeline: "packed-dispatch",
        set: &[MANY, VIA_DIRECT, &[("topk_weights", "1")]],
        ..MANY_ROWS
    },
    Own {
        name: "long rows",
        pipeline: "decode-combine",
        rows: 3,
        set: &[&[("hidden", "8208"), ("topk", "2"), ("bias", "1"), ("weights", "0")]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "many ranks",
        pipeline: "decode-combine",
        ranks: 12,
        rows: 4,
        rounds: 3,
        set: &[&[("hidden", "16"), ("topk", "5"), ("bias", "1"), ("weights", "1")]],
        ..WITHIN_A_NODE
    },
    Own {
        pipeline: "decode-combine",
        rows: 2,
        set: &[&[("hidden", "16"), ("topk", "3"), ("bias", "1"), ("weights", "0")]],
        ..MANY_RANKS
    },
    Own { pipeline: "decode-dispatch", set: &[FEW, AS_ROWS], ..MANY_RANKS },
    Own {
        name: "more ranks than lanes, as words",
        pipeline: "decode-dispatch",
        set: &[FEW, AS_WORDS],
        ..MANY_RANKS
    },
    Own { pipeline: "packed-dispatch", set: &[VIA_DIRECT, FEW, AS_ROWS], ..MANY_RANKS },
    Own {
        name: "more ranks than lanes, as words",
        pipeline: "packed-dispatch",
        set: &[VIA_DIRECT, FEW, AS_WORDS],
        ..MANY_RANKS
    },
    Own { pipeline: "low-latency-dispatch", set: &[FEW], ..MANY_RANKS },
    Own { pipeline: "low-latency-combine", set: &[FEW], ..MANY_RANKS },
    Own { pipeline: "merge-combine", set: &[FEW, VIA_DIRECT], ..MANY_RANKS },
    Own {
        name: "tiles",
        pipeline: "low-latency-dispatch",
        ranks: 3,
        rows: 90,
        rounds: 1,
        set: &[&[
            ("payload", "bf16"),
            ("hidden", "16"),
            ("topk", "3"),
            ("experts", "3"),
            ("max_tokens", "90"),
            ("arrived_rows", "1"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "tiles of two experts",
        pipeline: "low-latency-dispatch",
        ranks: 3,
        rows: 90,
        rounds: 1,
        set: &[&[
            ("payload", "bf16"),
            ("hidden", "16"),
            ("topk", "3"),
            ("experts", "6"),
            ("max_tokens", "90"),
            ("arrived_rows", "1"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "few of many",
        pipeline: "packed-dispatch",
        set: &[&[
            ("payload", "bf16"),
            ("via", "direct"),
            ("hidden", "16"),
            ("topk", "2"),
            ("experts", "5"),
            ("max_tokens", "120"),
        ]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "casts as words",
        pipeline: "packed-dispatch",
        set: &[&[("payload", "fp8"), ("hidden", "656"), ("topk", "3"), ("experts", "7")]],
        ..WITHIN_A_NODE
    },
    Own {
        name: "pieces",
        pipeline: "packed-dispatch",
        set: &[&[
            ("payload", "fp8-packed"),
            ("hidden", "1296"),
            ("topk", "3"),
            ("experts", "7"),
            ("words", "0"),
            ("piece", "1024"),
        ]],
        ..WITHIN_A_NODE
    },
    Own { pipeline: "nvl-dispatch", set: DIRECT, ..WIDE },
    Own { pipeline: "nvl-dispatch", set: DIRECT, ..WIDE_PLAIN },
    Own { pipeline: "nvl-dispatch", set: RING, ..WIDE },
    Own { pipeline: "nvl-dispatch", set: RING, ..WIDE_PLAIN },
    Own {
        name: "cached, plain",
        pipeline: "nvl-dispatch",
        set: &[PACKED_SCALES, &[("via", "direct"), ("mode", "cached")], CHOSEN],
        ..WIDE_PLAIN
    },
    Own {
        name: "cached ring, plain",
        pipeline: "nvl-dispatch",
        set: &[PACKED_SCALES, &[("via", "ring"), ("mode", "cached"), ("stripes", "4")], CHOSEN],
        ..WIDE_PLAIN
    },
    Own {
        name: "fresh rows, plain",
        pipeline: "nvl-dispatch",
        ranks: 3,
        set: &[BF16, &[("via", "ring"), ("mode", "fresh"), ("stripes", "4")], CHOSEN],
        ..WIDE_PLAIN
    },
    Own {
        name: "cached rows, plain",
        pipeline: "nvl-dispatch",
        ranks: 3,
        set: &[BF16, &[("via", "direct"), ("mode", "cached")], CHOSEN],
        ..WIDE_PLAIN
    },
    Own {
        name: "without choices",
        pipeline: "nvl-dispatch",
        set: &[SMALL, &[("via", "direct")], UNCHOSEN],
        ..WIDE_PLAIN
    },
    Own {
        name: "choices without weights",
        pipeline: "nvl-dispatch",
        set: &[SMALL, &[("via", "direct")], UNWEIGHED],
        ..WIDE_PLAIN
    },
    Own {
        name: "choices without weights",
        pipeline: "node-dispatch",
        set: &[SMALL, &[("stripes", "4")], UNWEIGHED],
        ..BETWEEN_PLAIN
    },
    Own {
        name: "choices that nobody takes",
        pipeline: "nvl-dispatch",
        set: &[SMALL, &[("via", "direct")], UNTAKEN],
        ..WIDE_PLAIN
    },
    Own { pipeline: "nvl-combine", set: PULLED, ..ORDERED },
    Own { pipeline: "nvl-combine", set: RINGS_BACK, ..ORDERED_PLAIN },
    Own { pipeline: "decode-combine", set: &[BACK, WEIGHTED], ..ORDERED },
    Own { pipeline: "merge-combine", set: MERGED, ..ORDERED },
    Own {
        name: "rows apart, in order",
        pipeline: "merge-combine",
        set: &[RETURNED, VIA_SPREAD],
        ..ORDERED
    },
    Own { pipeline: "low-latency-combine", set: SLICES, ..ORDERED },
    Own { pipeline: "node-combine", ranks: 4, nodes: Some(2), set: HOPS_BACK, ..ORDERED },
    Own { pipeline: "nvl-combine", set: PULLED, ..WIDE },
    Own { pipeline: "nvl-combine", set: PULLED, ..WIDE_PLAIN },
    Own { pipeline: "nvl-combine", set: RINGS_BACK, ..WIDE },
    Own { pipeline: "nvl-combine", set: RINGS_BACK, ..WIDE_PLAIN },
    Own {
        name: "without weights",
        pipeline: "nvl-combine",
        set: &[BACK, &[("via", "pull")], UNWEIGHTED],
        ..WIDE_PLAIN
    },
    Own {
        name: "weights that nobody takes",
        pipeline: "nvl-combine",
        set: &[BACK, &[("via", "pull")], UNSUMMED],
        ..WIDE_PLAIN
    },
    Own { pipeline: "decode-dispatch", set: DECODED, ..WIDE },
    Own { pipeline: "decode-dispatch", set: DECODED, ..WIDE_PLAIN },
    Own {
        name: "choices that nobody takes",
        pipeline: "decode-dispatch",
        set: &[
            SMALL,
            &[
                ("max_tokens", "24"),
                ("topk_weights", "1"),
                ("recv_topk_weights", "0"),
                ("received_per_expert", "0"),
            ],
        ],
        ..WIDE_PLAIN
    },
    Own {
        pipeline: "decode-combine",
        set: &[&[("hidden", "80"), ("max_tokens", "24"), ("topk", "32")], WEIGHTED],
        ..WIDE_PLAIN
    },
    Own {
        name: "few choices, plain",
        pipeline: "decode-combine",
        set: &[BACK, &[("max_tokens", "24")], WEIGHTED],
        ..WIDE_PLAIN
    },
    Own {
        name: "without weights",
        pipeline: "decode-combine",
        set: &[BACK, &[("max_tokens", "24")], UNWEIGHTED],
        ..WIDE_PLAIN
    },
    Own {
        name: "weights that nobody takes",
        pipeline: "decode-combine",
        set: &[BACK, &[("max_tokens", "24")], UNSUMMED],
        ..WIDE_PLAIN
    },
    Own { pipeline: "low-latency-dispatch", set: SLOTS, ..WIDE },
    Own { pipeline: "low-latency-dispatch", set: SLOTS, ..WIDE_PLAIN },
    Own {
        name: "wide, packed scales",
        pipeline: "low-latency-dispatch",
        set: PACKED_SLOTS,
        ..WIDE
    },
    Own {
        name: "wide plain, packed scales",
        pipeline: "low-latency-dispatch",
        set: PACKED_SLOTS,
        ..WIDE_PLAIN
    },
    Own { pipeline: "low-latency-combine", set: LOGFMT, ..WIDE },
    Own { pipeline: "low-latency-combine", set: LOGFMT, ..WIDE_PLAIN },
    Own { name: "slices", pipeline: "low-latency-combine", set: SLICES, ..WIDE },
    Own { name: "slices, plain", pipeline: "low-latency-combine", set: SLICES, ..WIDE_PLAIN },
    Own { pipeline: "packed-dispatch", set: PACKED, ..WIDE },
    Own { pipeline: "packed-dispatch", set: PACKED, ..WIDE_PLAIN },
    Own {
        name: "rows as they are",
        pipeline: "packed-dispatch",
        set: &[BF16, &[("max_tokens", "24"), ("words", "0")]],
        ..WIDE
    },
    Own { pipeline: "merge-combine", set: MERGED, ..WIDE },
    Own { pipeline: "merge-combine", set: MERGED, ..WIDE_PLAIN },
    Own { pipeline: "packed-dispatch", set: &[PACKED[0], PACKED[1], VIA_SLOTS], ..BETWEEN },
    Own { pipeline: "merge-combine", set: &[RETURNED, VIA_SLOTS], ..BETWEEN },
    Own {
        name: "rows apart, wide",
        pipeline: "merge-combine",
        set: &[RETURNED, VIA_SPREAD],
        ..WIDE
    },
    Own {
        name: "rows apart, wide plain",
        pipeline: "merge-combine",
        set: &[RETURNED, VIA_SPREAD],
        ..WIDE_PLAIN
    },
    Own { name: "much padding", pipeline: "expand", set: PADDED, ..WIDE },
    Own { pipeline: "expand", set: MOVED, ..WIDE },
    Own { pipeline: "expand", set: MOVED, ..WIDE_PLAIN },
    Own { pipeline: "node-layout", set: STRIPES, ..BETWEEN },
    Own { pipeline: "node-layout", set: STRIPES, ..BETWEEN_PLAIN },
    Own {
        name: "ten nodes",
        pipeline: "node-layout",
        ranks: 10,
        nodes: Some(10),
        rows: 3,
        set: STRIPES,
        ..WITHIN_A_NODE
    },
    Own { pipeline: "node-dispatch", set: HOPS, ..BETWEEN },
    Own {
        name: "more stripes than warps",
        pipeline: "node-dispatch",
        rows: 8,
        rounds: 1,
        set: &[SMALL, &[("stripes", "24")]],
        more_blocks: 3,
        ..BETWEEN
    },
    Own { pipeline: "node-dispatch", set: HOPS, ..BETWEEN_PLAIN },
    Own {
        name: "cached, plain",
        pipeline: "node-dispatch",
        set: &[PACKED_SCALES, &[("mode", "cached"), ("stripes", "4")], CHOSEN],
        ..BETWEEN_PLAIN
    },
    Own {
        name: "bf16, plain",
        pipeline: "node-dispatch",
        set: &[BF16, &[("mode", "fresh"), ("stripes", "4")], CHOSEN],
        ..BETWEEN_PLAIN
    },
    Own {
        name: "cached bf16, plain",
        pipeline: "node-dispatch",
        set: &[BF16, &[("mode", "cached"), ("stripes", "4")], CHOSEN],
        ..BETWEEN_PLAIN
    },
    Own {
        name: "without choices",
        pipeline: "node-dispatch",
        set: &[SMALL, &[("stripes", "4")], UNCHOSEN],
        ..BETWEEN_PLAIN
    },
    Own {
        name: "choices that nobody takes",
        pipeline: "node-dispatch",
        set: &[SMALL, &[("stripes", "4")], UNTAKEN],
        ..BETWEEN_PLAIN
    },
    Own { pipeline: "node-combine", set: HOPS_BACK, ..BETWEEN },
    Own { pipeline: "node-combine", set: HOPS_BACK, ..BETWEEN_PLAIN },
    Own { name: "long rows", pipeline: "node-combine", set: LONG_HOPS_BACK, ..BETWEEN },
    Own {
        name: "long rows, plain",
        pipeline: "node-combine",
        set: LONG_HOPS_BACK,
        ..BETWEEN_PLAIN
    },
    Own {
        name: "without weights",
        pipeline: "node-combine",
        set: &[BACK, &[("stripes", "4")], UNWEIGHTED],
        ..BETWEEN_PLAIN
    },
    Own {
        name: "weights that nobody takes",
        pipeline: "node-combine",
        set: &[BACK, &[("stripes", "4")], UNSUMMED],
        ..BETWEEN_PLAIN
    },
    Own { name: "short of room, direct", pipeline: "nvl-dispatch", set: DIRECT, ..SHORT },
    Own {
        name: "short of room, plain direct",
        pipeline: "nvl-dispatch",
        set: DIRECT,
        ..SHORT_PLAIN
    },
    Own { name: "short of room, ring", pipeline: "nvl-dispatch", set: RING, ..SHORT },
    Own { name: "short of room, plain ring", pipeline: "nvl-dispatch", set: RING, ..SHORT_PLAIN },
    Own { pipeline: "expand", set: LEAST, ..SHORT },
    Own { pipeline: "expand", set: LEAST, ..SHORT_PLAIN },
    Own { pipeline: "node-dispatch", ranks: 4, nodes: Some(2), set: HOPS, ..SHORT },
    Own { pipeline: "node-dispatch", ranks: 4, nodes: Some(2), set: HOPS, ..SHORT_PLAIN },
];
