//! In which ways roles are emitted faster than statement by statement.

use super::recipe::{Recipe, Routes};
use super::rules::{Rings, Staged, Uses};
use super::symbol::Constant;
use crate::ir::Pipeline;

/// A way to make roles faster. None changes what they leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleRule {
    /// Dispatches in one launch, whose blocks count for themselves so that no warps meet.
    OneLaunch,
    /// Rows copied by 16 bytes.
    Copies,
    /// Rows moved through shared memory.
    Staged,
    /// Units taken as warps come free.
    Claims,
    /// Rows computed by eight neighbours a lane.
    Wide,
    /// Whole numbers added up by all lanes of a warp.
    Sums,
    /// Messages of a token sent by several warps.
    Apart,
    /// Rows of numbers looked at once for all turns of a loop.
    Looks,
    /// Roles that are one team cut at their dependences, and dealt to all of their warps.
    Cut,
}

impl RoleRule {
    /// Every rule.
    pub const ALL: [RoleRule; 9] = [
        RoleRule::OneLaunch,
        RoleRule::Copies,
        RoleRule::Staged,
        RoleRule::Claims,
        RoleRule::Wide,
        RoleRule::Sums,
        RoleRule::Apart,
        RoleRule::Looks,
        RoleRule::Cut,
    ];
}

/// The rules that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleSet {
    /// All of them.
    #[default]
    All,
    /// None: every role is composed.
    None,
    /// One of them.
    Only(RoleRule),
    /// All but one.
    Without(RoleRule),
}

impl RuleSet {
    /// Whether a rule may be used.
    pub fn has(self, rule: RoleRule) -> bool {
        match self {
            RuleSet::All => true,
            RuleSet::None => false,
            RuleSet::Only(one) => one == rule,
            RuleSet::Without(one) => one != rule,
        }
    }
}

/// How each role of a selected pipeline is emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ways {
    /// The rules that may be used.
    pub rules: RuleSet,
    /// What they make of each role.
    pub recipe: Recipe,
}

impl Ways {
    /// What `rules` make of the roles.
    pub fn of(ir: &Pipeline, rules: RuleSet) -> Ways {
        Ways { rules, recipe: Recipe::of(ir, rules) }
    }

    /// The routes of the dispatch in one launch, if a role is one.
    pub fn routes(&self) -> Option<&Routes> {
        self.recipe.roles.iter().find_map(|role| role.routes.as_ref())
    }

    /// What the mover of a composed role carries, if it has one.
    pub fn staged(&self, role: &str) -> Option<&Staged> {
        self.uses(role)?.staged.as_ref()
    }

    /// How many parts the rows have at most that a composed role reads through shared memory, if it reads any.
    pub fn parts(&self, role: &str) -> Option<&Constant> {
        self.uses(role)?.parts.as_ref()
    }

    /// The rings at whose ends a composed role is, if it is at any.
    pub fn rings(&self, role: &str) -> Option<&Rings> {
        self.uses(role)?.rings.as_ref()
    }

    /// The words by which the warps of a composed role find each other: one for each loop whose units they claim,
    /// and for each place where all of them meet.
    pub fn words(&self, role: &str) -> usize {
        self.uses(role).map_or(0, |uses| uses.claims + uses.meets)
    }

    /// Whether all warps of some composed role meet.
    pub fn meet(&self) -> bool {
        self.recipe.roles.iter().any(|role| role.uses.meets > 0)
    }

    /// Whether several warps of a composed role share the row of a token.
    pub fn slices(&self, role: &str) -> bool {
        self.uses(role).is_some_and(|uses| uses.slices)
    }

    /// Whether a role reads the rows of all parts through stages.
    pub fn all_staged(&self, role: &str) -> bool {
        self.uses(role).is_some_and(|uses| uses.all_staged)
    }

    fn uses(&self, role: &str) -> Option<&Uses> {
        self.recipe.role(role).map(|role| &role.uses)
    }
}
