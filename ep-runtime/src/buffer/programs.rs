//! What a buffer is made of before anything is compiled: which kernels, and what lies where for them.

use ep_codegen::plan::{Arch, Plan};

use super::memory::{MemoryLayout, MemoryUsage};
use super::options::BufferOptions;
use super::standard::{Emit, StandardPipeline};
use crate::backend::Backend;
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, place_control, positive};
use crate::tune::PUSHED_BACK_SMS;

/// The emitted kernels of a buffer.
pub(super) struct Programs {
    pub(super) layout: Emitted,
    pub(super) dispatch: Emitted,
    pub(super) cached: Option<Emitted>,
    pub(super) combine: Emitted,
    pub(super) one_launch: Option<Emitted>,
    pub(super) stripes: Option<Emitted>,
}

impl Programs {
    pub(super) fn emit(
        emit: &dyn Emit,
        ranks: usize,
        arch: Arch,
        options: &BufferOptions,
    ) -> Result<Programs, CallError> {
        use StandardPipeline as Standard;
        let make = |pipeline: StandardPipeline, stripes: Option<i64>| {
            emit.emit(pipeline, arch, &options.settings_of(pipeline, ranks, stripes))
        };
        let dispatch = make(Standard::NvlDispatch, None)?;
        // Counts are made per stripe of the dispatch that reads them.
        let stripes = dispatch.plan.numbers.get("stripes").copied();
        let one_launch = options.uses_one_launch(ranks);
        let make_if = |wanted: bool, pipeline: StandardPipeline| {
            wanted.then(|| make(pipeline, stripes)).transpose()
        };
        Ok(Programs {
            layout: make(Standard::Layout, stripes)?,
            cached: make_if(options.cached, Standard::NvlDispatchCached)?,
            combine: make(options.combine_pipeline(ranks), stripes)?,
            one_launch: make_if(one_launch, Standard::DecodeDispatch)?,
            stripes: make_if(one_launch, Standard::DecodeStripes)?,
            dispatch,
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Emitted> {
        let fixed = [&self.layout, &self.dispatch, &self.combine];
        fixed.into_iter().chain(&self.cached).chain(&self.one_launch).chain(&self.stripes)
    }

    pub(super) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.all().map(|program| &program.plan)
    }

    /// What lies where in a buffer of them.
    pub(super) fn layout(&self, options: &BufferOptions, ranks: usize) -> MemoryLayout {
        let (_, control_bytes) = place_control(self.plans());
        MemoryLayout::new(options, ranks, self.plans(), control_bytes, self.meta_bytes())
    }

    /// Bytes of the meta record that a direct channel brings with each row.
    fn meta_bytes(&self) -> u64 {
        let dispatches = [Some(&self.dispatch), self.cached.as_ref()].into_iter().flatten();
        let messages = dispatches.flat_map(|program| &program.plan.messages);
        messages.map(|message| positive(message.meta_bytes)).max().unwrap_or(0)
    }
}

impl MemoryUsage {
    /// What a buffer would take on each of `ranks` ranks, before anything is allocated.
    pub fn of(
        options: &BufferOptions,
        ranks: usize,
        arch: Arch,
        emit: &dyn Emit,
    ) -> Result<MemoryUsage, CallError> {
        options.check(ranks)?;
        Ok(Programs::emit(emit, ranks, arch, options)?.layout(options, ranks).usage())
    }
}

/// Leaves nothing to the rates: processes may have measured others, and all ranks have to do the same.
pub(super) fn choose(
    options: &mut BufferOptions,
    backend: &dyn Backend,
    ranks: usize,
) -> Result<(), CallError> {
    let launches = u64::from(options.uses_one_launch(ranks));
    let says = launches | u64::from(options.pushes_back(ranks)) << 1;
    let all = backend.gather("choose how a buffer dispatches and combines", says)?;
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
