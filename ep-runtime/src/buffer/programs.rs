//! What a buffer is made of before anything is compiled: which kernels, and what memory they need.

use ep_codegen::plan::Arch;

use super::memory::MemoryUsage;
use super::options::BufferOptions;
use super::standard::{BuiltIn, Emit, StandardPipeline};
use crate::calls::{CallProgram, Room};
use crate::error::CallError;
use crate::group::{Group, positive};
use crate::memory::align_up;
use crate::tune::PUSHED_BACK_SMS;

/// The emitted kernels of a buffer.
pub(super) struct Programs {
    pub(super) layout: CallProgram,
    pub(super) dispatch: CallProgram,
    pub(super) cached: Option<CallProgram>,
    pub(super) combine: CallProgram,
    pub(super) one_launch: Option<CallProgram>,
}

impl Programs {
    pub(super) fn emit(
        emit: &dyn Emit,
        ranks: usize,
        arch: Arch,
        options: &BufferOptions,
    ) -> Result<Programs, CallError> {
        use StandardPipeline as Standard;
        let make = |pipeline: StandardPipeline, stripes: Option<i64>, room: Room| {
            let config = options.config_of(pipeline, ranks, arch, stripes)?;
            let (emitted, ir) = (emit.emit(pipeline, &config)?, BuiltIn::entry(pipeline).ir());
            options.chosen(pipeline, ranks, stripes, |chosen| {
                CallProgram::new((&ir, &config), emitted, chosen, room)
            })
        };
        let (tables, window) = (options.handles(), options.live);
        let (layout, dispatch, cached) = match options.is_far() {
            true => (Standard::NodeLayout, Standard::NodeDispatch, Standard::NodeDispatchCached),
            false => (Standard::Layout, Standard::NvlDispatch, Standard::NvlDispatchCached),
        };
        let mut dispatch = make(dispatch, None, Room { tables, window })?;
        // Counts are made per stripe of the dispatch that reads them.
        let stripes = dispatch.emitted().plan.numbers.get("stripes").copied();
        let one_launch = options.uses_one_launch(ranks);
        // These write what the others have.
        let make_if = |wanted: bool, pipeline: StandardPipeline| {
            wanted.then(|| make(pipeline, stripes, Room::default())).transpose()
        };
        let combine = options.combine_pipeline(ranks);
        let mut combine = make(combine, stripes, Room { tables: 0, window })?;
        if options.shares_rows(ranks) {
            combine.put_over(&mut dispatch);
        }
        Ok(Programs {
            layout: make(layout, stripes, Room { tables, window: 0 })?,
            cached: make_if(options.cached, cached)?,
            combine,
            one_launch: make_if(one_launch, Standard::DecodeDispatch)?,
            dispatch,
        })
    }

    /// In the order in which they are loaded: a combine may have the places of the dispatch before it.
    pub(super) fn all(&self) -> Vec<&CallProgram> {
        let fixed = [&self.layout, &self.dispatch, &self.combine];
        let others = [&self.cached, &self.one_launch];
        fixed.into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// Bytes of the rows that pass through a network.
    pub(super) fn network_bytes(&self) -> u64 {
        let plans = self.all().into_iter().map(|it| &it.emitted().plan);
        plans.map(|plan| align_up(positive(plan.network_bytes))).sum()
    }
}

impl MemoryUsage {
    /// Memory that a buffer would take on each of `ranks` ranks, before anything is allocated.
    pub fn of(
        options: &BufferOptions,
        ranks: usize,
        arch: Arch,
        emit: &dyn Emit,
    ) -> Result<MemoryUsage, CallError> {
        options.check(ranks)?;
        Ok(MemoryUsage::of_programs(options, ranks, &Programs::emit(emit, ranks, arch, options)?))
    }

    /// Bytes on each of `ranks` ranks of the rows of a buffer that would pass through a network, in device or host memory.
    pub fn of_network(
        options: &BufferOptions,
        ranks: usize,
        arch: Arch,
        emit: &dyn Emit,
    ) -> Result<u64, CallError> {
        options.check(ranks)?;
        Ok(Programs::emit(emit, ranks, arch, options)?.network_bytes())
    }
}

/// Leaves nothing open: processes may have measured other rates, and all ranks have to do the same.
pub(super) fn choose(options: &mut BufferOptions, group: &Group) -> Result<(), CallError> {
    let ranks = group.ranks();
    let launches = u64::from(options.uses_one_launch(ranks));
    let says = launches | u64::from(options.pushes_back(ranks)) << 1;
    let all = group.gather("choose how a buffer dispatches and combines", says)?;
    options.one_launch = Some(all.iter().all(|says| says & 1 != 0));
    options.push_combine = Some(all.iter().all(|says| says & 2 != 0));
    Ok(())
}

/// SMs of a kernel, if a call names none.
pub(super) fn kernel_sms(group: &Group, pipeline: StandardPipeline, usual: u32) -> u32 {
    match pipeline {
        StandardPipeline::DecodeCombine => group.sms_of(usual.max(PUSHED_BACK_SMS)),
        _ => usual,
    }
}
