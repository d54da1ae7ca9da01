//! The kernels of a buffer: those of the standard pipelines, in one window, by the types that their
//! declarations give.

use ep_codegen::plan::Plan;

use super::far::FarKernels;
use super::programs::{Programs, kernel_sms};
use super::standard::StandardPipeline;
use crate::calls::{CallKernel, CallProgram, Loader};
use crate::error::CallError;
use crate::group::Group;
use crate::pipelines::{decode_combine, decode_dispatch, layout, nvl_combine, nvl_dispatch};

/// All of them.
pub(super) enum Kernels {
    /// Where every rank reaches the memory of all.
    Near(NearKernels),
    /// Where they are on several nodes.
    Far(FarKernels),
}

/// Those within a node.
pub(super) struct NearKernels {
    pub(super) layout: layout::Kernel,
    pub(super) dispatch: nvl_dispatch::Kernel,
    pub(super) cached: Option<nvl_dispatch::Kernel>,
    pub(super) combine: Combine,
    /// A whole dispatch, where few tokens go.
    pub(super) one_launch: Option<decode_dispatch::Kernel>,
}

/// How rows come back within a node.
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
        let (layout, dispatch) = (load(programs.layout)?, load(programs.dispatch)?);
        let way_back = loader.load(programs.combine, kernel_sms(group, combine, usual_sms))?;
        let mut load_if = |program: Option<CallProgram>| {
            program.map(|program| loader.load(program, usual_sms)).transpose()
        };
        let (cached, one_launch) = (load_if(programs.cached)?, load_if(programs.one_launch)?);
        if combine == StandardPipeline::NodeCombine {
            return Ok(Kernels::Far(FarKernels::new([layout, dispatch, way_back], cached)));
        }
        let near = NearKernels {
            layout: layout::Kernel { core: layout },
            dispatch: nvl_dispatch::Kernel { core: dispatch },
            cached: cached.map(|core| nvl_dispatch::Kernel { core }),
            combine: match combine {
                StandardPipeline::DecodeCombine => {
                    Combine::Stored(decode_combine::Kernel { core: way_back })
                }
                _ => Combine::Fetched(nvl_combine::Kernel { core: way_back }),
            },
            one_launch: one_launch.map(|core| decode_dispatch::Kernel { core }),
        };
        near.name_regions()?;
        Ok(Kernels::Near(near))
    }

    /// The kernel of a pipeline, if the buffer has it.
    pub(super) fn of(&self, pipeline: StandardPipeline) -> Option<&CallKernel> {
        match self {
            Kernels::Near(near) => near.of(pipeline),
            Kernels::Far(far) => far.of(pipeline),
        }
    }

    /// What moves the rows of a fresh dispatch.
    pub(super) fn dispatch(&self) -> &CallKernel {
        match self {
            Kernels::Near(near) => &near.dispatch.core,
            Kernels::Far(far) => &far.dispatch.core,
        }
    }

    /// A whole dispatch in one launch.
    pub(super) fn one_launch(&self) -> Option<&decode_dispatch::Kernel> {
        match self {
            Kernels::Near(near) => near.one_launch.as_ref(),
            Kernels::Far(_) => None,
        }
    }
}

impl NearKernels {
    fn of(&self, pipeline: StandardPipeline) -> Option<&CallKernel> {
        match (pipeline, &self.combine) {
            (StandardPipeline::Layout, _) => Some(&self.layout.core),
            (StandardPipeline::NvlDispatch, _) => Some(&self.dispatch.core),
            (StandardPipeline::NvlDispatchCached, _) => self.cached.as_ref().map(|it| &it.core),
            (StandardPipeline::NvlCombine, Combine::Fetched(kernel)) => Some(&kernel.core),
            (StandardPipeline::DecodeCombine, Combine::Stored(kernel)) => Some(&kernel.core),
            (StandardPipeline::DecodeDispatch, _) => self.one_launch.as_ref().map(|it| &it.core),
            _ => None,
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
            // What it reads may lie where outputs do.
            Combine::Fetched(kernel) => kernel.core.name_regions(&plans),
            Combine::Stored(_) => Ok(()),
        }
    }
}
