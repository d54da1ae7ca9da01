//! What a buffer of the typed calls takes on each rank, told before anything is allocated.

use ep_runtime::buffer::{BufferOptions, BuiltIn, MemoryUsage, StandardPipeline};
use ep_runtime::ir::Pipeline;
use ep_runtime::plan::Plan;

use crate::failure::Failure;
use crate::json::Object;
use crate::numbers::{count, positive};
use crate::problem::{MAX_TOKENS, memory_parts, reference_options, set, unfit};

/// The size of a buffer, of which a plan knows nothing.
#[derive(Debug, clap::Args)]
pub(super) struct Size {
    /// Maximum tokens of a rank. In a pipeline with max_tokens, short for --set max_tokens=N. In nvl-dispatch, the
    /// tokens of the buffer whose memory is shown
    #[arg(long, value_name = "N", value_parser = count)]
    tokens: Option<usize>,
    /// Number of handles, of outputs and of combine inputs of the buffer; 1 by default
    #[arg(long, value_name = "N", requires = "tokens", value_parser = positive)]
    live: Option<usize>,
    /// Rows per output of the buffer; the worst case by default
    #[arg(long, value_name = "ROWS", requires = "tokens", value_parser = count)]
    capacity: Option<usize>,
}

/// A buffer and what it takes.
pub(super) struct BufferMemory {
    options: BufferOptions,
    usage: MemoryUsage,
}

impl BufferMemory {
    /// None without `--tokens`, and where `--tokens` sets a shape number; `given` are the assignments of the command line, which are right.
    pub(super) fn of(
        size: &Size,
        ir: &Pipeline,
        plan: &Plan,
        given: &[(String, String)],
    ) -> Result<Option<BufferMemory>, Failure> {
        let Some(tokens) = size.tokens.filter(|_| !has_max_tokens(ir)) else { return Ok(None) };
        if ir.name != BuiltIn::entry(StandardPipeline::NvlDispatch).ir().name {
            let what = format!("{} has no buffer; `--tokens` belongs to nvl-dispatch", ir.name);
            return Err(Failure::WrongUse(what));
        }
        let live = size.live.unwrap_or(1);
        let mut options =
            BufferOptions { tokens, live, capacity: size.capacity, ..reference_options() };
        for (name, value) in given.iter().filter(|(name, _)| shapes_buffer(ir, name)) {
            set(&mut options, name, value)?;
        }
        let ranks = plan.numbers.get("ranks").and_then(|ranks| usize::try_from(*ranks).ok());
        let usage = MemoryUsage::of(&options, ranks.unwrap_or(1), plan.arch, &BuiltIn);
        Ok(Some(BufferMemory { options, usage: usage.map_err(unfit)? }))
    }

    /// `memory of a buffer for 4096 tokens a rank, 1 live: control 1 MiB, ..`
    pub(super) fn line(&self) -> String {
        let BufferOptions { tokens, live, .. } = self.options;
        format!("memory of a buffer for {tokens} tokens a rank, {live} live: {}", self.usage)
    }

    pub(super) fn object(&self) -> Object {
        let sizes = [("tokens", self.options.tokens as u64), ("live", self.options.live as u64)];
        let all = sizes.into_iter().chain(memory_parts(&self.usage));
        all.fold(Object::new(), |object, (name, value)| object.with(name, value))
    }
}

/// Whether the shape bounds the tokens of a rank.
fn has_max_tokens(ir: &Pipeline) -> bool {
    ir.dims.iter().any(|dim| dim.name == MAX_TOKENS)
}

impl Size {
    /// The shape number that `--tokens` sets, for a pipeline that has one.
    pub(super) fn max_tokens(&self, ir: &Pipeline) -> Option<(&'static str, String)> {
        let tokens = self.tokens.filter(|_| has_max_tokens(ir))?;
        Some((MAX_TOKENS, tokens.to_string()))
    }
}

/// Whether a buffer has the setting too: it brings both modes and all tensors itself.
fn shapes_buffer(ir: &Pipeline, name: &str) -> bool {
    let is_number = ir.dims.iter().any(|dim| dim.name == name && name != "ranks");
    let is_axis = ir.axes.iter().any(|axis| axis.name == name && name != "mode");
    is_number || is_axis || ir.tunes.iter().any(|tune| tune.name == name)
}
