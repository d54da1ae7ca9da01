//! What a run of a form can be told.

use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::host::mutant::Mutant;
use ep_runtime::net::ModelOptions;

use super::Form;
use crate::usual;

impl Form {
    pub(in crate::forms) fn arm(mut self, axis: &str, arm: &str) -> Form {
        self.config.set(&self.ir, axis, arm).expect("there is such an arm");
        self
    }

    /// With a bug in the device library.
    pub(in crate::forms) fn planted(mut self, bug: &Mutant) -> Form {
        self.bug = Some(bug.clone());
        self.guarded()
    }

    /// Under so many schedules, where a call is drawn.
    pub(in crate::forms) fn under(mut self, schedules: u64) -> Form {
        self.schedules = schedules;
        self
    }

    /// In processes of their own, as what a bug makes of an address may end them.
    pub(in crate::forms) fn guarded(mut self) -> Form {
        self.guarded = true;
        self
    }

    /// In these texts alone.
    pub(in crate::forms) fn with_rules(mut self, rules: &[RuleSet]) -> Form {
        self.rules = rules.to_vec();
        self
    }

    /// Case number `turn` of a test that has several. A usual run takes one text of each, and of every third also that
    /// without TMA.
    pub(in crate::forms) fn turn(mut self, turn: usize) -> Form {
        self.turn = Some(turn);
        self
    }

    /// The texts that are looked at. A usual run takes the first one: drawn declarations compare the others in every run. A
    /// bug may be in any.
    pub(in crate::forms) fn rule_sets(&self) -> Vec<RuleSet> {
        let taken = if self.bug.is_some() || usual::is_full() { self.rules.len() } else { 1 };
        // Where no class carries a role, two of the texts are one.
        let is_same = |rules: &RuleSet| {
            *rules == RuleSet::Without(RoleRule::OneLaunch)
                && self.rules.contains(&RuleSet::All)
                && self.is_plain()
        };
        self.rules.iter().take(taken).filter(|rules| !is_same(rules)).copied().collect()
    }

    /// Over a network that behaves so.
    pub(in crate::forms) fn over(mut self, wire: &ModelOptions) -> Form {
        self.wire = wire.clone();
        self
    }

    /// Behind so many calls.
    pub(in crate::forms) fn behind(mut self, calls: u32) -> Form {
        self.before = calls;
        self
    }

    /// So many calls of every rank, of which all leave the same.
    pub(in crate::forms) fn calls(mut self, calls: usize) -> Form {
        self.calls = calls;
        self
    }

    pub(in crate::forms) fn apart(mut self) -> Form {
        self.apart = true;
        self
    }

    pub(in crate::forms) fn blocks(mut self, blocks: u32) -> Form {
        self.blocks = blocks;
        self
    }

    /// How many copies of an optional or `up to` tensor the caller brings.
    pub(in crate::forms) fn copies(mut self, tensor: &str, copies: i64) -> Form {
        self.config.copies.insert(tensor.to_string(), copies);
        self
    }
}
