//! Whose kernels are timed.

use clap::ValueEnum;
use ep_codegen::render;
use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::buffer::{BuiltIn, Emit, StandardPipeline};
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
            Kernels::Composed => &Rendered(RuleSet::Without(RoleRule::Roles)),
            Kernels::Plain => &Rendered(RuleSet::None),
        }
    }
}

/// The standard pipelines, rendered with some rules.
struct Rendered(RuleSet);

impl Emit for Rendered {
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
        let config = Config { rules: self.0, ..config.clone() };
        let entry = BuiltIn::entry(pipeline);
        let ir = entry.ir();
        let plan = plan(&ir, &config).map_err(EmitError::Plan)?;
        let body = render::body_with(&ir.select(&config.choice), self.0);
        let body = body.map_err(|_| EmitError::NoText(entry.name))?;
        Ok(Emitted { cuda: plan.cuda(&body), plan })
    }
}
