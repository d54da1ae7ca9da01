//! Options of a buffer.

mod check;
mod choices;
mod tunes;

use ep_codegen::ir::Transport;
use ep_codegen::plan::LINE_BYTES;

pub use tunes::BufferTunes;

use super::placement::Placement;
use super::standard::StandardPipeline;
use crate::tune::{Rates, Traffic, is_faster_in_one_launch, is_faster_pushed_back};

/// Format of a token row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// bf16 values.
    Bf16,
    /// e4m3 values and an f32 scale per block of 128.
    Fp8,
    /// e4m3 values and a power-of-two scale byte per block of 128.
    Fp8Packed,
}

impl Payload {
    /// Every payload.
    pub const ALL: [Payload; 3] = [Payload::Bf16, Payload::Fp8, Payload::Fp8Packed];

    /// The name for `--set payload=`.
    pub fn name(self) -> &'static str {
        match self {
            Payload::Bf16 => "bf16",
            Payload::Fp8 => "fp8",
            Payload::Fp8Packed => "fp8-packed",
        }
    }

    /// The payload with this name.
    pub fn from_name(name: &str) -> Option<Payload> {
        Payload::ALL.into_iter().find(|payload| payload.name() == name)
    }

    /// Bytes of one value of a row.
    pub fn value_bytes(self) -> u64 {
        match self {
            Payload::Bf16 => 2,
            Payload::Fp8 | Payload::Fp8Packed => 1,
        }
    }

    /// Bytes of one scale; 0 if the payload has none.
    pub fn scale_bytes(self) -> u64 {
        match self {
            Payload::Bf16 => 0,
            Payload::Fp8 => 4,
            Payload::Fp8Packed => 1,
        }
    }

    /// Number of scales in a row; the last block may be short.
    pub fn scales(self, hidden: usize) -> usize {
        match self {
            Payload::Bf16 => 0,
            Payload::Fp8 | Payload::Fp8Packed => hidden.div_ceil(128),
        }
    }
}

/// How rows reach their receiver, and how they return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The sender stores rows in the receiver's output; combine reads them from there.
    Direct,
    /// Rows pass through rings, in both directions.
    Ring,
}

impl Via {
    /// Every way.
    pub const ALL: [Via; 2] = [Via::Direct, Via::Ring];

    /// The name for `--set via=` of a dispatch.
    pub fn name(self) -> &'static str {
        match self {
            Via::Direct => "direct",
            Via::Ring => "ring",
        }
    }

    /// The way with this name.
    pub fn from_name(name: &str) -> Option<Via> {
        Via::ALL.into_iter().find(|via| via.name() == name)
    }
}

/// Options of a buffer: its shape, and how its calls work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferOptions {
    /// Values of a row.
    pub hidden: usize,
    /// Number of experts per token.
    pub topk: usize,
    /// Number of experts in the group.
    pub experts: usize,
    /// Upper limit of tokens of any rank in a call.
    pub tokens: usize,
    /// Number of nodes of the group, each with the same number of ranks.
    /// [`Buffer::new`](super::Buffer::new) takes it from the group.
    pub nodes: usize,
    /// What carries rows between nodes. [`Buffer::new`](super::Buffer::new) takes it from the group.
    pub carrier: Option<Transport>,
    /// Format of a row.
    pub payload: Payload,
    /// How rows travel. Between nodes they always pass through rings.
    pub via: Via,
    /// Rows that an output holds; `None`: the worst case, all tokens of all ranks.
    pub capacity: Option<usize>,
    /// Number of outputs, and of combine inputs, that may be in use at once.
    pub live: usize,
    /// Number of handles that may be in use at once. Handles are small, and a layer that runs its backward
    /// pass later keeps one. `None`: as many as `live`.
    pub handles: Option<usize>,
    /// Whether a combine input lies in the place of an output, which halves their memory: `live` counts both
    /// together. Applies where a combine pulls rows within a node.
    pub shared_rows: bool,
    /// Whether a graph keeps the handles, outputs and combine inputs of its calls for as long as it can run.
    /// If not, other graphs reuse the ones that you drop, and calls outside of graphs do not. Such graphs run one
    /// after another, each from its first to its last call, like graphs that share the memory of their results.
    pub graphs_keep: bool,
    /// Whether dispatch moves top-k weights and combine sums them.
    pub weights: bool,
    /// Number of biases that combine adds.
    pub biases: usize,
    /// Whether cached dispatches are compiled.
    pub cached: bool,
    /// Whether one kernel counts and sends, which suits few tokens. `None`: if that is faster.
    pub one_launch: Option<bool>,
    /// Whether a combine pushes rows to the ranks of their tokens, which otherwise pull them. A push suits
    /// few tokens and takes memory for two sets of slots, each for the tokens of all ranks. `None`: if the
    /// rates of the machine say that it is faster.
    pub push_combine: Option<bool>,
    /// Counts per expert are rounded up to a multiple of this number.
    pub alignment: i32,
    /// The rank of each expert; `None`: as even as possible.
    pub placement: Option<Placement>,
    /// Tunes that differ from their default.
    pub tunes: BufferTunes,
    /// Rates by which calls choose how many SMs they take, and a buffer how it combines.
    pub rates: Rates,
}

impl BufferOptions {
    /// Options for a BF16 buffer of worst-case capacity and one call at a time.
    pub fn new(tokens: usize, hidden: usize, topk: usize, experts: usize) -> BufferOptions {
        BufferOptions {
            hidden,
            topk,
            experts,
            tokens,
            nodes: 1,
            carrier: None,
            payload: Payload::Bf16,
            via: Via::Direct,
            capacity: None,
            live: 1,
            handles: None,
            shared_rows: false,
            graphs_keep: true,
            weights: true,
            biases: 0,
            cached: true,
            one_launch: None,
            push_combine: None,
            alignment: 1,
            placement: None,
            tunes: BufferTunes::default(),
            rates: Rates::H200,
        }
    }

    /// Rows that an output holds.
    pub fn capacity(&self, ranks: usize) -> usize {
        let worst = self.tokens.saturating_mul(ranks);
        self.capacity.map_or(worst, |capacity| capacity.min(worst))
    }

    /// Whether dispatches of a buffer with these options count and send in one launch.
    pub fn uses_one_launch(&self, ranks: usize) -> bool {
        let fits = self.one_launch_fits(ranks).is_ok();
        fits && self.one_launch.unwrap_or(is_faster_in_one_launch(self.tokens as u64))
    }

    /// Whether combines of a buffer with these options push rows to the ranks of their tokens.
    pub fn pushes_back(&self, ranks: usize) -> bool {
        let row = (self.hidden as u64).saturating_mul(Payload::Bf16.value_bytes());
        let is_faster = || is_faster_pushed_back(&self.rates, &self.traffic_of(ranks, row));
        self.push_fits().is_ok() && self.push_combine.unwrap_or_else(is_faster)
    }

    /// The pipeline of combines with these options.
    pub fn combine_pipeline(&self, ranks: usize) -> StandardPipeline {
        match self.pushes_back(ranks) {
            true => StandardPipeline::DecodeCombine,
            false if self.is_far() => StandardPipeline::NodeCombine,
            false => StandardPipeline::NvlCombine,
        }
    }

    /// Whether a place for rows is an output and a combine input.
    pub(in crate::buffer) fn shares_rows(&self, ranks: usize) -> bool {
        self.shared_rows && self.combine_pipeline(ranks) == StandardPipeline::NvlCombine
    }

    /// Whether rows go between nodes.
    pub(in crate::buffer) fn is_far(&self) -> bool {
        self.nodes > 1
    }

    /// Number of handles that may be in use at once.
    pub fn handles(&self) -> usize {
        self.handles.unwrap_or(self.live)
    }

    /// Values from the start of one output row to the next. If peers access the output, this is whole lines
    /// of 128 bytes.
    pub fn row_stride(&self) -> u64 {
        if self.is_far() {
            return self.hidden as u64;
        }
        let value_bytes = self.payload.value_bytes();
        line_aligned((self.hidden as u64).saturating_mul(value_bytes)) / value_bytes
    }

    /// bf16 values from the start of one row of a combine input to the next.
    pub fn combine_stride(&self) -> u64 {
        line_aligned((self.hidden as u64).saturating_mul(2)) / 2
    }

    /// f32 values from the start of one row of a combine input's weights to the next.
    pub fn weights_stride(&self) -> u64 {
        if self.is_far() {
            return self.topk as u64;
        }
        line_aligned((self.topk as u64).saturating_mul(4)) / 4
    }

    /// Largest number of experts of any rank; counts per expert are laid out for it.
    pub fn local_experts(&self, ranks: usize) -> usize {
        self.experts.div_ceil(ranks.max(1))
    }

    /// What a rank moves in a dispatch of `tokens` tokens per rank, routed evenly.
    pub fn traffic(&self, ranks: usize) -> Traffic {
        let row = (self.hidden as u64).saturating_mul(self.payload.value_bytes());
        let scales = self.payload.scales(self.hidden) as u64 * self.payload.scale_bytes();
        self.traffic_of(ranks, row.saturating_add(scales))
    }

    /// The traffic of rows of so many bytes.
    fn traffic_of(&self, ranks: usize, row: u64) -> Traffic {
        // No pipeline takes more choices than experts, nor more than 4096 of them.
        let topk = self.topk.min(4096);
        let [ranks, experts, topk, tokens, row] =
            [ranks as i64, self.experts as i64, topk as i64, self.tokens as i64, row as i64];
        Traffic::even(ranks, experts, topk, tokens, row)
    }

    /// The rank of each expert.
    pub fn placement(&self, ranks: usize) -> Placement {
        self.placement.clone().unwrap_or_else(|| Placement::even(self.experts, ranks))
    }
}

fn line_aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LINE_BYTES as u64).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before anything checks them.
    #[test]
    fn strides_of_absurd_shapes_are_numbers() {
        let options = BufferOptions::new(usize::MAX, usize::MAX, usize::MAX, usize::MAX);
        for payload in Payload::ALL {
            let options = BufferOptions { payload, ..options.clone() };
            assert!(options.row_stride() >= 1 << 60 && options.combine_stride() >= 1 << 60);
            assert!(options.weights_stride() >= 1 << 60);
            options.traffic(usize::MAX);
            assert_eq!(options.capacity(usize::MAX), usize::MAX);
        }
    }
}
