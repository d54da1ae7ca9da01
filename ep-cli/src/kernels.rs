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
    /// No dispatch in one launch: teams are cut where their warps need one another.
    Cut,
    /// Without any rule that makes roles faster.
    Plain,
}

impl Kernels {
    /// The help of `--kernels`.
    pub(crate) const HELP: &str = "How to emit roles: as the compiler chooses, with teams that are cut instead of dispatches in \
                                   one launch, or without the rules that make roles fast. The results are the same";

    /// The rules that make roles fast.
    pub(crate) fn rules(self) -> RuleSet {
        match self {
            Kernels::Chosen => RuleSet::All,
            Kernels::Cut => RuleSet::Without(RoleRule::OneLaunch),
            Kernels::Plain => RuleSet::None,
        }
    }

    /// Where the kernels of the standard pipelines come from.
    pub(crate) fn source(self) -> &'static dyn Emit {
        match self {
            Kernels::Chosen => &BuiltIn,
            Kernels::Cut => &BuiltInBy(RuleSet::Without(RoleRule::OneLaunch)),
            Kernels::Plain => &BuiltInBy(RuleSet::None),
        }
    }

    /// ` --kernels plain`: the option as it stands on a command line, if it is needed.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Kernels::Chosen => "",
            Kernels::Cut => " --kernels cut",
            Kernels::Plain => " --kernels plain",
        }
    }
}
