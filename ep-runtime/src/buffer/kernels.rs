//! The kernels of a buffer: those of the standard pipelines, in one window, by the types that their
//! declarations give.

use ep_codegen::plan::Plan;

use super::programs::{Programs, kernel_sms};
use super::standard::StandardPipeline;
use crate::calls::{CallKernel, CallProgram, Loader};
use crate::error::CallError;
use crate::group::Group;
use crate::pipelines::{
    decode_combine, decode_dispatch, decode_stripes, layout, nvl_combine, nvl_dispatch,
};

/// All of them.
pub(super) struct Kernels {
    pub(super) layout: layout::Kernel,
    pub(super) dispatch: nvl_dispatch::Kernel,
    pub(super) cached: Option<nvl_dispatch::Kernel>,
    pub(super) combine: Combine,
    /// A whole dispatch, where few tokens go.
    pub(super) one_launch: Option<decode_dispatch::Kernel>,
    /// What it leaves out that cached dispatches read.
    pub(super) stripes: Option<decode_stripes::Kernel>,
}

/// How rows come back.
pub(super) enum Combine {
    /// They are fetched, or pass through rings.
    Fetched(nvl_combine::Kernel),
    /// They are stored where their tokens are.
    Stored(decode_combine::Kernel),
}

impl Kernels {
    /// Maps the window, compiles and loads on all local ranks.
    pub(super) fn load(
        group: &Group,
        programs: Programs,
        combine: StandardPipeline,
        usual_sms: u32,
    ) -> Result<Kernels, CallError> {
        let mut loader = Loader::new(group, &programs.all())?;
        let mut load = |program: CallProgram| loader.load(program, usual_sms);
        let layout = layout::Kernel { core: load(programs.layout)? };
        let dispatch = nvl_dispatch::Kernel { core: load(programs.dispatch)? };
        let core = loader.load(programs.combine, kernel_sms(group, combine, usual_sms))?;
        let combine = match combine {
            StandardPipeline::DecodeCombine => Combine::Stored(decode_combine::Kernel { core }),
            _ => Combine::Fetched(nvl_combine::Kernel { core }),
        };
        let mut load_if = |program: Option<CallProgram>| {
            program.map(|program| loader.load(program, usual_sms)).transpose()
        };
        let cached = load_if(programs.cached)?.map(|core| nvl_dispatch::Kernel { core });
        let one_launch = load_if(programs.one_launch)?.map(|core| decode_dispatch::Kernel { core });
        let stripes = load_if(programs.stripes)?.map(|core| decode_stripes::Kernel { core });
        let kernels = Kernels { layout, dispatch, cached, combine, one_launch, stripes };
        kernels.name_regions()?;
        Ok(kernels)
    }

    /// The kernel of a pipeline, if the buffer has it.
    pub(super) fn of(&self, pipeline: StandardPipeline) -> Option<&CallKernel> {
        match (pipeline, &self.combine) {
            (StandardPipeline::Layout, _) => Some(&self.layout.core),
            (StandardPipeline::NvlDispatch, _) => Some(&self.dispatch.core),
            (StandardPipeline::NvlDispatchCached, _) => self.cached.as_ref().map(|it| &it.core),
            (StandardPipeline::NvlCombine, Combine::Fetched(kernel)) => Some(&kernel.core),
            (StandardPipeline::DecodeCombine, Combine::Stored(kernel)) => Some(&kernel.core),
            (StandardPipeline::NvlCombine | StandardPipeline::DecodeCombine, _) => None,
            (StandardPipeline::DecodeDispatch, _) => self.one_launch.as_ref().map(|it| &it.core),
            (StandardPipeline::DecodeStripes, _) => self.stripes.as_ref().map(|it| &it.core),
        }
    }

    /// Says what lies where in the window, for reports. Rows come straight into an output, and are fetched
    /// from there or from a combine input.
    fn name_regions(&self) -> Result<(), CallError> {
        use StandardPipeline as Standard;
        let reach = [
            Standard::NvlDispatch,
            Standard::NvlDispatchCached,
            Standard::DecodeDispatch,
            Standard::NvlCombine,
            Standard::DecodeCombine,
        ];
        let plans: Vec<&Plan> =
            reach.into_iter().filter_map(|it| self.of(it)).map(CallKernel::plan).collect();
        self.dispatch.core.name_regions(&plans)?;
        match &self.combine {
            Combine::Fetched(kernel) => kernel.core.name_regions(&[kernel.core.plan()]),
            Combine::Stored(_) => Ok(()),
        }
    }
}
