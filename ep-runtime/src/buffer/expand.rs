//! The rows that a rank has received, sorted by expert, as a grouped GEMM reads them: the typed call of the
//! pipeline `Expand`.

use std::sync::Arc;

use super::handles::{Handle, Received};
use super::payload::PayloadRows;
use super::{Buffer, CallOptions, Shared};
use crate::args::Rows;
use crate::calls::{CallProgram, Loader, Room};
use crate::error::CallError;
use crate::pipeline::AnyPipeline;
use crate::pipelines::{Expand, expand};
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
    kernel: expand::Kernel,
    /// For each local rank, where the rows of each expert go.
    tables: Vec<expand::Handle>,
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
        let program = program(shared, &options)?;
        let usual_sms = shared.kernels.dispatch().usual_sms();
        let mut loader = Loader::new(group, &[&program])?;
        let kernel = expand::Kernel { core: loader.load(program, usual_sms)? };
        let tables = group.local().map(|rank| kernel.tables(rank));
        let tables = tables.collect::<Result<Vec<_>, CallError>>()?;
        group.gather("make the first expansion", 0)?;
        let shared = Arc::clone(shared);
        let inner = Inner { kernel, tables, options, shared };
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
        let of = &shared.options;
        let rows = of.capacity(shared.group.ranks()) as u64;
        let routes = &handle.memory()?.tables.layout;
        let expert_idx = DeviceTensor::borrowed(received.topk_idx()?, [rows, of.topk as u64]);
        let came = PayloadRows::of(of, rows, received.x()?, received.scale()?);
        let (inputs, to) = (expand::Inputs { x: came.into(), expert_idx }, inner.output(output));
        let args = expand::Args { alignment: inner.options.alignment };
        let tables = self.tables(rank)?;
        let bound = [inner.kernel.bind_into(rank, call, &inputs, &to, routes, &args, tables)?];
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

    fn tables(&self, rank: usize) -> Result<&expand::Handle, CallError> {
        Ok(&self.inner.tables[self.inner.shared.group.local_index(rank)?])
    }
}

impl Inner {
    fn output(&self, output: &ExpandedOutput) -> expand::Outputs {
        let (rows, of) = (self.options.rows as u64, &self.shared.options);
        let x = Rows::new(output.x, of.hidden as i64);
        expand::Outputs {
            expanded_x: PayloadRows::of(of, rows, x, output.scale).into(),
            expanded_src: DeviceTensor::borrowed(output.source, [rows]),
        }
    }
}

fn program(shared: &Shared, options: &ExpandOptions) -> Result<CallProgram, CallError> {
    let of = &shared.options;
    let (hidden, topk, experts, stripes) = (of.hidden, of.topk, of.experts, options.stripes);
    let received = of.capacity(shared.group.ranks());
    let expanded = options.rows;
    let shape = expand::Shape { hidden, topk, experts, stripes, received, expanded };
    let arms = expand::Options { payload: of.payload.into(), ..expand::Options::default() };
    expand::Kernel::chosen(&shape, &arms, |chosen| {
        let room = Room { tables: 1, window: 0 };
        CallProgram::emit(&shared.group, &AnyPipeline::of::<Expand>(), chosen, room)
    })
}
