//! The option `--kernels`: run the kernels that the compiler chooses, or slower ones to compare with them.

use clap::ValueEnum;
use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::buffer::{BuiltIn, BuiltInBy, Emit};

/// How the roles of a pipeline are emitted; the results are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Kernels {
    /// As the compiler chooses.
    #[default]
    Chosen,
    /// Every role composed of its statements.
    Composed,
    /// Every role composed of its statements, without any rule that makes it faster.
    Plain,
}

impl Kernels {
    /// The help of `--kernels`.
    pub(crate) const HELP: &str = "How to emit roles: as the compiler chooses, composed statement by statement, or composed \
                                   without the rules that make roles fast. The results are the same";

    /// The rules that make roles fast.
    pub(crate) fn rules(self) -> RuleSet {
        match self {
            Kernels::Chosen => RuleSet::All,
            Kernels::Composed => RuleSet::Without(RoleRule::Roles),
            Kernels::Plain => RuleSet::None,
        }
    }

    /// Where the kernels of the standard pipelines come from.
    pub(crate) fn source(self) -> &'static dyn Emit {
        match self {
            Kernels::Chosen => &BuiltIn,
            Kernels::Composed => &BuiltInBy(RuleSet::Without(RoleRule::Roles)),
            Kernels::Plain => &BuiltInBy(RuleSet::None),
        }
    }

    /// ` --kernels plain`: the option as it stands on a command line, if it is needed.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Kernels::Chosen => "",
            Kernels::Composed => " --kernels composed",
            Kernels::Plain => " --kernels plain",
        }
    }
}
