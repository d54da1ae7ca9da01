//! Which number of a call each member of a standard pipeline's `struct Args` takes.

use ep_codegen::plan::{Param, ParamKind};

use super::memory::MemoryLayout;
use super::options::BufferOptions;
use super::standard::StandardPipeline;
use crate::args::Operand;

/// The numbers that differ from call to call. Of blocks these are the addresses; where something lies
/// inside one is a constant that is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum CallValue {
    /// Tokens of this rank.
    Tokens,
    /// Where the device finds how many they are, or 0.
    TokensFrom,
    /// Blocks that send remote rows.
    RemoteBlocks,
    /// `expert_begin` of this rank.
    Placement,
    /// Tables of the handle.
    Tables,
    /// Counts of the handle, in host memory.
    Counts,
    /// Unpacked part of the output.
    Unpacked,
    /// Received region: its address, and its place in the window.
    Received,
    ReceivedAt,
    /// Input rows: address, stride; and their place in the window, for a combine.
    X,
    XStride,
    XAt,
    /// Scales of the input: address and strides.
    Scale,
    ScaleStride,
    ScaleColumnStride,
    /// Top-k indices of the input.
    TopkIdx,
    /// Top-k weights of the input; for a combine also their place in the window.
    Weights,
    WeightsAt,
    /// Biases, and the stride of both.
    Bias0,
    Bias1,
    BiasStride,
    /// Output of a combine.
    Combined,
    CombinedWeights,
}

/// All of them.
pub(super) struct CallValues([u64; CallValue::CombinedWeights as usize + 1]);

impl CallValues {
    pub(super) fn new() -> CallValues {
        CallValues([0; CallValue::CombinedWeights as usize + 1])
    }

    pub(super) fn set(&mut self, which: CallValue, value: u64) -> &mut CallValues {
        self.0[which as usize] = value;
        self
    }

    pub(super) fn values(&self) -> &[u64] {
        &self.0
    }
}

/// Resolves the members of one pipeline's `struct Args`.
pub(super) struct Names<'a> {
    pub(super) pipeline: StandardPipeline,
    pub(super) control_at: u64,
    pub(super) options: &'a BufferOptions,
    pub(super) ranks: usize,
    pub(super) layout: &'a MemoryLayout,
}

fn per_call(value: CallValue) -> Option<Operand> {
    Some(Operand::PerCall(value as usize, 0))
}

impl Names<'_> {
    pub(super) fn operand(&self, param: &Param) -> Option<Operand> {
        match &param.kind {
            ParamKind::Group | ParamKind::Net => None,
            ParamKind::Size | ParamKind::Arg { .. } => self.number(&param.name),
            ParamKind::SizeFrom { size } if size == "tokens" => per_call(CallValue::TokensFrom),
            ParamKind::Capacity { size } if size == "received" => {
                Some(Operand::Fixed(self.options.capacity(self.ranks) as u64))
            }
            ParamKind::Copies { tensor } if tensor == "bias" => {
                Some(Operand::Fixed(self.options.biases as u64))
            }
            ParamKind::SizeFrom { .. } | ParamKind::Capacity { .. } | ParamKind::Copies { .. } => {
                None
            }
            ParamKind::Pointer { tensor, part, copy, .. } => self.pointer(tensor, *part, *copy),
            ParamKind::RowStride { tensor, part } => self.row_stride(tensor, *part),
            ParamKind::ColumnStride { tensor, .. } => match tensor.as_str() {
                "x" => per_call(CallValue::ScaleColumnStride),
                "recv_x" => Some(Operand::Fixed(1)),
                _ => None,
            },
            ParamKind::WindowOffset { tensor } => match tensor.as_str() {
                "recv_x" => self.in_window(CallValue::ReceivedAt, self.layout.received.at("rows")?),
                "x" => self.in_window(CallValue::XAt, 0),
                "weights" => self.in_window(CallValue::WeightsAt, 0),
                _ => None,
            },
            ParamKind::MetaOffset { .. } => {
                self.in_window(CallValue::ReceivedAt, self.layout.received.at("meta")?)
            }
        }
    }

    /// Kernels count window offsets from their own control memory.
    fn in_window(&self, at: CallValue, plus: u64) -> Option<Operand> {
        Some(Operand::PerCall(at as usize, plus.wrapping_sub(self.control_at)))
    }

    fn number(&self, name: &str) -> Option<Operand> {
        match name {
            "tokens" => per_call(CallValue::Tokens),
            "remote_blocks" => per_call(CallValue::RemoteBlocks),
            "alignment" => Some(Operand::Fixed(self.options.alignment as u64)),
            _ => None,
        }
    }

    fn pointer(&self, tensor: &str, part: usize, copy: i64) -> Option<Operand> {
        let within =
            |block: CallValue, at: Option<u64>| Some(Operand::PerCall(block as usize, at?));
        let combine = self.pipeline == self.options.combine_pipeline(self.ranks);
        // A message without weights has no place for them, whatever a call brings.
        let is_weights = matches!(tensor, "topk_weights" | "weights" | "combined_weights");
        if is_weights && !self.options.weights {
            return Some(Operand::Fixed(0));
        }
        match (tensor, part) {
            ("x", 0) => per_call(CallValue::X),
            ("x", 1) => per_call(CallValue::Scale),
            ("topk_idx", 0) => per_call(CallValue::TopkIdx),
            ("topk_weights", 0) => per_call(CallValue::Weights),
            ("weights", 0) if combine => per_call(CallValue::Weights),
            ("bias", 0) => per_call(if copy == 0 { CallValue::Bias0 } else { CallValue::Bias1 }),
            ("combined", 0) => per_call(CallValue::Combined),
            ("combined_weights", 0) => per_call(CallValue::CombinedWeights),
            ("expert_begin", 0) => per_call(CallValue::Placement),
            ("recv_x", 0) => within(CallValue::Received, self.layout.received.at("rows")),
            ("recv_x", 1) => within(CallValue::Unpacked, self.layout.unpacked.at("scale")),
            ("recv_topk_idx" | "recv_topk_weights", 0) => {
                within(CallValue::Unpacked, self.layout.unpacked.at(tensor))
            }
            ("received" | "received_per_expert", 0) => {
                within(CallValue::Counts, self.layout.counts.at(tensor))
            }
            (table, 0) => within(CallValue::Tables, self.layout.tables.at(table)),
            _ => None,
        }
    }

    fn row_stride(&self, tensor: &str, part: usize) -> Option<Operand> {
        let scales = || self.options.payload.scales(self.options.hidden) as u64;
        match (tensor, part) {
            ("x", 0) => per_call(CallValue::XStride),
            ("x", 1) => per_call(CallValue::ScaleStride),
            ("bias", 0) => per_call(CallValue::BiasStride),
            ("combined", 0) => Some(Operand::Fixed(self.options.hidden as u64)),
            ("recv_x", 0) => Some(Operand::Fixed(self.options.row_stride())),
            ("recv_x", 1) => Some(Operand::Fixed(scales())),
            ("weights", 0) => Some(Operand::Fixed(self.options.weights_stride())),
            // All other indices and weights are dense.
            (
                "topk_idx" | "topk_weights" | "recv_topk_idx" | "recv_topk_weights"
                | "combined_weights",
                0,
            ) => Some(Operand::Fixed(self.options.topk as u64)),
            _ => None,
        }
    }
}
