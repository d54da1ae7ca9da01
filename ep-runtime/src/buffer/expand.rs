//! The rows that a rank has received, sorted by expert, as a grouped GEMM reads them: the typed call of the
//! pipelines `ExpertLayout` and `Expand`.

use std::sync::Arc;

use super::handles::{Handle, Received};
use super::payload::PayloadRows;
use super::{Buffer, CallOptions, Shared};
use crate::args::Rows;
use crate::calls::{CallProgram, Loader, PrepareOptions, Room};
use crate::error::CallError;
use crate::pipeline::AnyPipeline;
use crate::pipelines::{Expand, ExpertLayout, expand, expert_layout};
use crate::tensor::DeviceTensor;

/// Options of an [`Expander`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpandOptions {
    /// Rows that fit into the caller's memory, including padding rows between experts.
    pub rows: usize,
    /// The rows of every expert begin at a multiple of this number.
    pub alignment: i32,
    /// Number of slices into which the received rows are divided among warps.
    pub stripes: usize,
}

impl ExpandOptions {
    /// Room for `rows` rows, without padding between experts.
    pub fn new(rows: usize) -> ExpandOptions {
        ExpandOptions { rows, alignment: 1, stripes: 64 }
    }
}

/// The caller's memory for expanded rows. Padding rows between experts stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpandedOutput {
    /// Device address of the payload's values, `[rows, hidden]`.
    pub x: u64,
    /// Scales, by row or by column; absent for BF16.
    pub scale: Rows,
    /// Device address of `i32[rows]`: the received row that each expanded row copies, -1 for padding rows.
    pub source: u64,
}

/// Expands the outputs of one buffer. Clones share one expander.
#[derive(Clone)]
pub struct Expander {
    inner: Arc<Inner>,
}

struct Inner {
    layout: expert_layout::Kernel,
    expand: expand::Kernel,
    /// For each local rank, the tables that `layout` writes and `expand` reads.
    tables: Vec<expert_layout::Handle>,
    options: ExpandOptions,
    shared: Arc<Shared>,
}

impl Expander {
    /// Compiles and loads the kernels. All processes of the group must make this call together.
    pub fn new(buffer: &Buffer, options: ExpandOptions) -> Result<Expander, CallError> {
        let shared = &buffer.shared;
        if options.alignment < 1 {
            let what = format!("rows cannot be aligned to {}", options.alignment);
            return Err(CallError::Mismatch { what });
        }
        let group = &shared.group;
        group.check_local()?;
        let [layout, expand] = programs(shared, &options)?;
        let usual_sms = shared.kernels.dispatch().usual_sms();
        let mut loader = Loader::new(group, &[&layout, &expand])?;
        let layout = expert_layout::Kernel { core: loader.load(layout, usual_sms)? };
        let expand = expand::Kernel { core: loader.load(expand, usual_sms)? };
        let tables = group.local().map(|rank| layout.tables(rank));
        let tables = tables.collect::<Result<Vec<_>, CallError>>()?;
        group.gather("make the first expansion", 0)?;
        let shared = Arc::clone(shared);
        let inner = Inner { layout, expand, tables, options, shared };
        Ok(Expander { inner: Arc::new(inner) })
    }

    /// Copies each row of a fresh dispatch's output once for each of its experts. If the caller's memory is
    /// too small, the group is stopped with [`CallError::OutputTooSmall`].
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
            let what =
                "the handle and the output have to belong to this buffer and to the same rank";
            return Err(CallError::Mismatch { what: what.to_string() });
        }
        shared.group.check(rank)?;
        let (layout, of) = (self.tables(rank)?, &shared.options);
        let rows = of.capacity(shared.group.ranks()) as u64;
        let routes = &handle.memory()?.tables.layout;
        let expert_idx = DeviceTensor::borrowed(received.topk_idx()?, [rows, of.topk as u64]);
        let came = PayloadRows::of(of, rows, received.x()?, received.scale()?);
        let (x, to) = (came.into(), inner.output(output));
        let listed = expert_layout::Inputs { expert_idx: expert_idx.clone() };
        let sent = expand::Inputs { x, expert_idx };
        let args = expert_layout::Args { alignment: inner.options.alignment };
        let expanded_src = DeviceTensor::borrowed(output.source, [inner.options.rows as u64]);
        let source = expand::Handle { expanded_src };
        // All that may be refused is refused before the first launch.
        let bound = [
            inner.layout.bind_into(rank, call, &listed, routes, &args, layout)?,
            inner.expand.bind_into(rank, call, &sent, &to, routes, layout, &source)?,
        ];
        let kept = || (handle.lease().kept(), received.lease().kept(), Arc::clone(inner));
        shared.group.launch(rank, call, &bound, || Box::new(kept()))
    }

    /// Device address of `i32[local experts + 1]`: the first row of each expert, and the end of the last
    /// one's rows. Valid until the next call of the rank.
    pub fn expert_first(&self, rank: usize) -> Result<u64, CallError> {
        Ok(self.tables(rank)?.expert_first.address())
    }

    /// Device address of `i32[local experts]`: the number of rows of each expert. Valid until the next call
    /// of the rank.
    pub fn rows_per_expert(&self, rank: usize) -> Result<u64, CallError> {
        Ok(self.tables(rank)?.rows_per_expert.address())
    }

    fn tables(&self, rank: usize) -> Result<&expert_layout::Handle, CallError> {
        Ok(&self.inner.tables[self.inner.shared.group.local_index(rank)?])
    }
}

impl Inner {
    fn output(&self, output: &ExpandedOutput) -> expand::Outputs {
        let (rows, of) = (self.options.rows as u64, &self.shared.options);
        let x = Rows::new(output.x, of.hidden as i64);
        expand::Outputs { expanded_x: PayloadRows::of(of, rows, x, output.scale).into() }
    }
}

/// The kernels in the order of their launches.
fn programs(shared: &Shared, options: &ExpandOptions) -> Result<[CallProgram; 2], CallError> {
    let of = &shared.options;
    let (hidden, topk, experts, stripes) = (of.hidden, of.topk, of.experts, options.stripes);
    let received = of.capacity(shared.group.ranks());
    let emit = |entry: AnyPipeline, tables: usize, chosen: &PrepareOptions<'_>| {
        CallProgram::emit(&shared.group, &entry, chosen, Room { tables, window: 0 })
    };
    let layout = expert_layout::Shape { topk, experts, stripes, received };
    let expanded = options.rows;
    let expand = expand::Shape { hidden, topk, experts, stripes, received, expanded };
    let arms = expand::Options { payload: of.payload.into(), ..expand::Options::default() };
    Ok([
        expert_layout::Kernel::chosen(&layout, &Default::default(), |chosen| {
            emit(AnyPipeline::of::<ExpertLayout>(), 1, chosen)
        })?,
        expand::Kernel::chosen(&expand, &arms, |chosen| {
            emit(AnyPipeline::of::<Expand>(), 0, chosen)
        })?,
    ])
}
