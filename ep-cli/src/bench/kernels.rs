//! Which kernels are timed.

use clap::ValueEnum;
use ep_codegen::render;
use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::buffer::{BuiltIn, BuiltInPlain, Emit, StandardPipeline};
use ep_runtime::error::CallError;
use ep_runtime::plan::{Config, plan};
use ep_runtime::{EmitError, Emitted};

/// The kernels that are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernels {
    /// As the compiler chooses.
    Chosen,
    /// Every role composed of its statements.
    Composed,
    /// Every role composed of its statements, without any rule that makes it faster.
    Plain,
}

impl Kernels {
    /// Where the kernels come from.
    pub(crate) fn source(self) -> &'static dyn Emit {
        match self {
            Kernels::Chosen => &BuiltIn,
            Kernels::Composed => &Composed,
            Kernels::Plain => &BuiltInPlain,
        }
    }
}

/// The standard pipelines with every role composed of its statements, of which no text is kept.
struct Composed;

impl Emit for Composed {
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
        let rules = RuleSet::Without(RoleRule::Roles);
        let config = Config { rules, ..config.clone() };
        let entry = BuiltIn::entry(pipeline);
        let ir = entry.ir();
        let plan = plan(&ir, &config).map_err(EmitError::Plan)?;
        let body = render::body_with(&ir.select(&config.choice), rules);
        let body = body.map_err(|_| EmitError::NoText(entry.name))?;
        Ok(Emitted { cuda: plan.cuda(&body), plan })
    }
}
