//! Courses with problems of their own: what is drawn at random does not come to.

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
    pub(super) set: &'static [(&'static str, &'static str)],
}

/// All of them. The tight one has rings that hold the least, to which more rows come than fit.
pub(super) const OWN: [Own; 9] = [
    Own {
        name: "tight",
        pipeline: "node-dispatch",
        ranks: 2,
        nodes: Some(2),
        rows: 200,
        rounds: 2,
        set: &[
            ("hidden", "16"),
            ("topk", "2"),
            ("experts", "2"),
            ("stripes", "4"),
            ("rdma_depth", "32"),
            ("rdma_chunk", "4"),
            ("nvl_depth", "32"),
            ("nvl_chunk", "16"),
        ],
    },
    Own {
        name: "many nodes",
        pipeline: "node-notify",
        ranks: 34,
        nodes: Some(34),
        rows: 3,
        rounds: 2,
        set: &[("stripes", "4")],
    },
    Own {
        name: "many nodes",
        pipeline: "low-latency-combine",
        ranks: 36,
        nodes: Some(18),
        rows: 2,
        rounds: 2,
        set: &[("hidden", "16"), ("topk", "2"), ("max_tokens", "2"), ("experts", "40")],
    },
    Own {
        name: "many calls",
        pipeline: "low-latency-combine",
        ranks: 4,
        nodes: Some(2),
        rows: 8,
        rounds: 4,
        set: &[("hidden", "16"), ("topk", "3"), ("max_tokens", "8"), ("experts", "7")],
    },
    Own {
        name: "all fields",
        pipeline: "decode-combine",
        ranks: 4,
        nodes: None,
        rows: 24,
        rounds: 3,
        set: &[("hidden", "80"), ("topk", "32"), ("bias", "2"), ("weights", "1")],
    },
    Own {
        name: "many tokens",
        pipeline: "decode-combine",
        ranks: 2,
        nodes: None,
        rows: 90,
        rounds: 3,
        set: &[
            ("hidden", "16"),
            ("topk", "2"),
            ("max_tokens", "90"),
            ("bias", "1"),
            ("weights", "1"),
        ],
    },
    Own {
        name: "long rows",
        pipeline: "decode-combine",
        ranks: 2,
        nodes: None,
        rows: 3,
        rounds: 2,
        set: &[("hidden", "8208"), ("topk", "2"), ("bias", "1"), ("weights", "0")],
    },
    Own {
        name: "many ranks",
        pipeline: "decode-combine",
        ranks: 12,
        nodes: None,
        rows: 4,
        rounds: 3,
        set: &[("hidden", "16"), ("topk", "5"), ("bias", "1"), ("weights", "1")],
    },
    Own {
        name: "more ranks than lanes",
        pipeline: "decode-combine",
        ranks: 34,
        nodes: None,
        rows: 2,
        rounds: 2,
        set: &[("hidden", "16"), ("topk", "3"), ("bias", "1"), ("weights", "0")],
    },
];
