//! The rows that a rank has received, one expert's after another's, as a grouped product reads them:
//! the typed call of the pipelines `ExpertLayout`, `ExpertPrefix` and `Expand`.

use std::sync::Arc;

use ep_codegen::plan::{Config, Param, ParamKind};

use super::handles::{Handle, Received};
use super::memory::{Blocks, table_blocks};
use super::{Buffer, CallOptions, Shared};
use crate::args::{Operand, Rows};
use crate::emit::{EmitError, Emitted};
use crate::error::CallError;
use crate::group::{GroupKernel, compile_all, place_control};
use crate::launch::Prepared;
use crate::memory::{DeviceMemory, Window};
use crate::pipeline::AnyPipeline;
use crate::pipelines;

/// What expanded rows are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpandOptions {
    /// Rows that fit into the memory of the caller, with those between the experts.
    pub rows: usize,
    /// The rows of every expert begin at a multiple of this.
    pub alignment: i32,
    /// Slices of the received rows that are dealt out to the warps.
    pub stripes: usize,
}

impl ExpandOptions {
    /// Room for `rows` rows, without any between the experts.
    pub fn new(rows: usize) -> ExpandOptions {
        ExpandOptions { rows, alignment: 1, stripes: 64 }
    }
}

/// Memory of the caller for expanded rows; rows between the experts stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpandedOutput {
    /// Device address of the payload's values, `[rows, hidden]`.
    pub x: u64,
    /// Their scales, by rows or by columns; absent for BF16.
    pub scale: Rows,
    /// Device address of `i32[rows]`: the received row that each is a copy of, -1 between the experts.
    pub source: u64,
}

/// The numbers that differ from call to call.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
enum CallValue {
    Tables,
    RankPrefix,
    ExpertIdx,
    X,
    XStride,
    Scale,
    ScaleStride,
    ToX,
    ToScale,
    ToScaleStride,
    ToScaleColumnStride,
    Source,
}

const VALUES: usize = CallValue::Source as usize + 1;

/// Expands the outputs of one buffer. Clones share one.
#[derive(Clone)]
pub struct Expander {
    inner: Arc<Inner>,
}

struct Inner {
    // Dropped in this order: kernels before the memory whose addresses they were given.
    kernels: Vec<Prepared>,
    /// Tables of each local rank.
    tables: Vec<DeviceMemory>,
    blocks: Blocks,
    /// Rows that fit into the memory of the caller.
    rows: usize,
    shared: Arc<Shared>,
}

impl Expander {
    /// Compiles and loads the kernels. All processes of the group do it together.
    pub fn new(buffer: &Buffer, options: ExpandOptions) -> Result<Expander, CallError> {
        let shared = &buffer.shared;
        if options.alignment < 1 {
            let what = format!("rows cannot be aligned to {}", options.alignment);
            return Err(CallError::Mismatch { what });
        }
        let group = &shared.group;
        group.check_local()?;
        let emitted = emit(shared, &options)?;
        let plans = || emitted.iter().map(|emitted| &emitted.plan);
        let (starts, bytes) = place_control(plans());
        let window = Arc::new(Window::new(group.backend(), bytes)?);
        let blocks = table_blocks(plans());
        let images = compile_all(group, &emitted.iter().collect::<Vec<_>>())?;
        let mut kernels = Vec::new();
        for ((emitted, start), image) in emitted.iter().zip(starts).zip(&images) {
            let kernel = GroupKernel::load(group, &window, start, &emitted.plan, image)?;
            let operand = |param: &Param| operand(param, shared, &options, &blocks);
            let usual_sms = shared.dispatch.usual_sms();
            kernels.push(Prepared::new(kernel, usual_sms, false, operand)?);
        }
        let tables =
            group.local().map(|rank| DeviceMemory::zeroed(group.backend(), rank, blocks.bytes()));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        group.backend().gather("make the first expansion", 0)?;
        let shared = Arc::clone(shared);
        Ok(Expander {
            inner: Arc::new(Inner { kernels, tables, blocks, rows: options.rows, shared }),
        })
    }

    /// Copies each row of a fresh dispatch's output to the place that it has for each of its experts.
    /// If there is no room for all of them, the group is stopped with [`CallError::OutputTooSmall`].
    pub fn expand(
        &self,
        handle: &Handle,
        received: &Received,
        output: &ExpandedOutput,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let (inner, shared, rank) = (&self.inner, &self.inner.shared, handle.rank());
        let own = |of: &Arc<Shared>| Arc::ptr_eq(of, shared);
        if !own(&handle.lease().shared) || !own(&received.lease().shared) || received.rank() != rank
        {
            let what = "the handle and the output belong to another buffer, or to two ranks";
            return Err(CallError::Mismatch { what: what.to_string() });
        }
        if inner.rows > 0 {
            output.check(&shared.options)?;
        }
        let index = shared.group.local_index(rank)?;
        shared.group.check(rank)?;
        let values = inner.values(index, handle, received, output)?;
        let kept = || (handle.lease().clone(), received.lease().clone(), Arc::clone(inner));
        let turn = shared.group.begin(rank, call, || Box::new(kept()))?;
        for prepared in &inner.kernels {
            prepared.launch(&turn, call, &values)?;
        }
        shared.group.end(turn, call)
    }

    /// Device address of `i32[local experts + 1]`: where the rows of each expert begin, and where the
    /// last one's end; until the next call of the rank.
    pub fn expert_first(&self, rank: usize) -> Result<u64, CallError> {
        self.table(rank, "expert_first")
    }

    /// Device address of `i32[local experts]`: how many rows each expert has; until the next call of
    /// the rank.
    pub fn rows_per_expert(&self, rank: usize) -> Result<u64, CallError> {
        self.table(rank, "rows_per_expert")
    }

    fn table(&self, rank: usize, name: &str) -> Result<u64, CallError> {
        let tables = &self.inner.tables[self.inner.shared.group.local_index(rank)?];
        Ok(tables.address() + self.inner.blocks.at(name).unwrap_or(0))
    }
}

impl Inner {
    fn values(
        &self,
        index: usize,
        handle: &Handle,
        received: &Received,
        output: &ExpandedOutput,
    ) -> Result<[u64; VALUES], CallError> {
        let (x, scale) = (received.x()?, received.scale()?);
        let mut values = [0; VALUES];
        for (which, value) in [
            (CallValue::Tables, self.tables[index].address()),
            (CallValue::RankPrefix, handle.rank_prefix()?),
            (CallValue::ExpertIdx, received.topk_idx()?),
            (CallValue::X, x.address),
            (CallValue::XStride, x.row_stride as u64),
            (CallValue::Scale, scale.address),
            (CallValue::ScaleStride, scale.row_stride as u64),
            (CallValue::ToX, output.x),
            (CallValue::ToScale, output.scale.address),
            (CallValue::ToScaleStride, output.scale.row_stride as u64),
            (CallValue::ToScaleColumnStride, output.scale.column_stride as u64),
            (CallValue::Source, output.source),
        ] {
            values[which as usize] = value;
        }
        Ok(values)
    }
}

/// The three kernels in the order of their launches.
fn emit(shared: &Shared, options: &ExpandOptions) -> Result<Vec<Emitted>, CallError> {
    let of = &shared.options;
    let numbers = [
        ("ranks", shared.group.ranks()),
        ("experts", of.experts),
        ("topk", of.topk),
        ("hidden", of.hidden),
        ("stripes", options.stripes),
    ];
    let entries = [
        AnyPipeline::of::<pipelines::ExpertLayout>(),
        AnyPipeline::of::<pipelines::ExpertPrefix>(),
        AnyPipeline::of::<pipelines::Expand>(),
    ];
    let emit = |entry: AnyPipeline| {
        let ir = (entry.ir)();
        let mut config = Config::new(&ir, shared.group.backend().arch());
        for (name, value) in numbers {
            if ir.dims.iter().any(|dim| dim.name == name) {
                config.set(&ir, name, &value.to_string())?;
            }
        }
        if ir.axes.iter().any(|axis| axis.name == "payload") {
            config.set(&ir, "payload", of.payload.name())?;
        }
        entry.emit(&config).map_err(|error| match error {
            EmitError::Plan(error) => CallError::Plan(error),
            EmitError::NoText(_) => {
                CallError::Emit { pipeline: entry.name.to_string(), reason: error.to_string() }
            }
        })
    };
    entries.into_iter().map(emit).collect()
}

/// Which number of a call a member of `struct Args` takes.
fn operand(
    param: &Param,
    shared: &Shared,
    options: &ExpandOptions,
    blocks: &Blocks,
) -> Option<Operand> {
    let per_call = |value: CallValue| Some(Operand::PerCall(value as usize, 0));
    match &param.kind {
        ParamKind::Arg { .. } if param.name == "alignment" => {
            Some(Operand::Fixed(options.alignment as u64))
        }
        ParamKind::Capacity { size } if size == "expanded" => {
            Some(Operand::Fixed(options.rows as u64))
        }
        ParamKind::Pointer { tensor, part, .. } => match (tensor.as_str(), *part) {
            ("rank_prefix", 0) => per_call(CallValue::RankPrefix),
            ("expert_idx", 0) => per_call(CallValue::ExpertIdx),
            ("x", 0) => per_call(CallValue::X),
            ("x", 1) => per_call(CallValue::Scale),
            ("expanded_x", 0) => per_call(CallValue::ToX),
            ("expanded_x", 1) => per_call(CallValue::ToScale),
            ("expanded_src", 0) => per_call(CallValue::Source),
            (table, 0) => Some(Operand::PerCall(CallValue::Tables as usize, blocks.at(table)?)),
            _ => None,
        },
        ParamKind::RowStride { tensor, part } => match (tensor.as_str(), *part) {
            ("x", 0) => per_call(CallValue::XStride),
            ("x", 1) => per_call(CallValue::ScaleStride),
            ("expanded_x", 1) => per_call(CallValue::ToScaleStride),
            ("expert_idx", 0) => Some(Operand::Fixed(shared.options.topk as u64)),
            _ => None,
        },
        ParamKind::ColumnStride { tensor, .. } => match tensor.as_str() {
            "x" => Some(Operand::Fixed(1)),
            "expanded_x" => per_call(CallValue::ToScaleColumnStride),
            _ => None,
        },
        _ => None,
    }
}
