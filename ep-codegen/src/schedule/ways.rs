//! Which roles are emitted in a faster way than statement by statement.

use super::rules;
use crate::ir::{Pipeline, Role};

/// The rules that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleSet {
    /// All of them.
    #[default]
    All,
    /// None: every role is composed.
    None,
}

/// How each role of a selected pipeline is emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ways {
    composed: Vec<String>,
}

impl Ways {
    /// What `rules` make of the roles.
    pub fn of(ir: &Pipeline, rules: RuleSet) -> Ways {
        let is_composed = |role: &&Role| rules == RuleSet::None || rules::check(ir, role).is_err();
        let composed = ir.roles.iter().filter(is_composed).map(|role| role.name.clone());
        Ways { composed: composed.collect() }
    }

    /// Whether the role is composed statement by statement.
    pub fn is_composed(&self, role: &str) -> bool {
        self.composed.iter().any(|name| name == role)
    }
}
