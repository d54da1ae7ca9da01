//! Rules: steps that are rewritten into faster ones.
//!
//! A rule leaves what it is not for as it is, so every role has steps without it, with the same results. `RuleSet::None`
//! turns all rules off.

pub(super) mod ahead;
mod alike;
mod apart;
mod asked;
pub(super) mod bools;
mod casts;
mod chosen;
mod claims;
mod copies;
pub(super) mod elements;
mod fanned;
mod flags;
mod hits;
mod local_rows;
mod message_fields;
pub(super) mod part_values;
mod parts_ahead;
mod puts;
mod row_places;
mod slot_slices;
mod staged;
pub(super) mod staged_parts;
pub(super) mod stretches;
mod sums;
mod wide;

pub(super) use casts::in_blocks;
pub(super) use message_fields::asked_first;
pub use staged::{Carried, Staged};

use super::step::{CopyBy, Loop, Step, Takers};
use super::symbol::Constant;
use super::{RoleLowering, RoleRule, RuleSet};

/// What the rules over steps need from the plan for a role.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uses {
    /// What its mover carries, if it has one.
    pub staged: Option<Staged>,
    /// How many parts a row has at most, if it reads them through shared memory.
    pub parts: Option<Constant>,
    /// Whether it reads all rows of parts so.
    pub all_staged: bool,
    /// In how many loops its warps claim units.
    pub claims: usize,
    /// How many times all of its warps meet.
    pub meets: usize,
    /// Whether several warps share the row of a token.
    pub slices: bool,
    /// Slices of the row of a slot that the role fills, which several warps share; 0: none do.
    pub slot_slices: i64,
    /// The rings whose ends its warps share.
    pub rings: Option<Rings>,
}

/// The rings at whose ends a role is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rings {
    /// How many of each channel a unit of the role's work keeps; `None`: one.
    pub kept: Vec<Option<Constant>>,
    /// How many units the warps of a block share, as a product; `None`: each warp has units of its own.
    pub units: Option<Vec<Constant>>,
}

/// The steps of a composed role as the rules over steps rewrite them, and what they need then.
pub(super) fn rewrite(
    role: &mut RoleLowering<'_>,
    mut steps: Vec<Step>,
    rules: RuleSet,
) -> (Vec<Step>, Uses) {
    let (mut uses, mut apart) = (Uses::default(), Vec::new());
    if rules.has(RoleRule::Apart)
        && let Some(sliced) = slot_slices::copies(role, &steps)
    {
        steps = sliced;
        uses.slot_slices = slot_slices::COPIED_SLICES;
    } else if rules.has(RoleRule::Staged)
        && let Some((rewritten, staged, records)) = staged::rewrite(role, &steps)
    {
        let asked = asked::rewrite(role, rewritten, &records);
        let looked_up = flags::rewrite(role, asked);
        steps = fanned::rewrite(role, looked_up);
        apart = records;
        uses.staged = Some(staged);
    } else if rules.has(RoleRule::Staged)
        && let Some((rewritten, staged)) = row_places::rewrite(role, &steps)
    {
        steps = rewritten;
        uses.staged = Some(staged);
    }
    if rules.has(RoleRule::Copies) {
        steps = copies::rewrite(steps, &apart);
        if role.shares_rings() {
            by_few(&mut steps);
        }
    }
    if rules.has(RoleRule::Wide) {
        steps = casts::rewrite(steps, &apart);
        steps = wide::rewrite(steps, &apart);
        steps = puts::rewrite(steps, &mut Vec::new());
    }
    if rules.has(RoleRule::Sums) {
        steps = sums::rewrite(role, steps);
        steps = hits::rewrite(role, steps);
    }
    if rules.has(RoleRule::Apart)
        && let Some(sliced) = slot_slices::sums(role, &steps)
    {
        steps = sliced;
        uses.slot_slices = slot_slices::COMPUTED_SLICES;
    }
    if rules.has(RoleRule::Apart) {
        let (of_tokens, of_rows);
        (steps, of_tokens) = apart::rewrite(role, steps);
        (steps, of_rows) = local_rows::rewrite(role, steps);
        uses.slices = of_tokens || of_rows;
    }
    if rules.has(RoleRule::Copies) {
        steps = alike::rewrite(role, steps);
    }
    if rules.has(RoleRule::Looks) {
        steps = chosen::rewrite(role, steps);
    }
    if rules.has(RoleRule::Claims) {
        (steps, uses.claims) = claims::rewrite(role, steps);
    }
    (steps, uses)
}

/// Has each warp copy few elements at once.
fn by_few(steps: &mut [Step]) {
    for step in steps {
        match step {
            Step::Copy(copy) if copy.by == CopyBy::Many => copy.by = CopyBy::Four,
            step => step.inner_mut().into_iter().for_each(|inner| by_few(inner)),
        }
    }
}

/// The steps with another one in place of each loop that `instead` knows one for.
fn loops_as(steps: Vec<Step>, instead: &dyn Fn(&Loop) -> Option<Step>) -> Vec<Step> {
    let one = |mut step: Step| {
        if let Step::Loop(repeat) = &step
            && let Some(other) = instead(repeat)
        {
            return other;
        }
        if let Some(inner) = step.inner_mut() {
            *inner = loops_as(std::mem::take(inner), instead);
        }
        step
    };
    steps.into_iter().map(one).collect()
}

/// Whether the warp comes by what is in a step as a whole: no loop of which lanes take turns, nothing that only some lanes
/// come to.
fn is_of_warp(step: &Step) -> bool {
    use Takers::{Blocks, Parts, Serial, Spread, Warps, WarpsOfBlock};
    match step {
        Step::Loop(repeat) => {
            matches!(repeat.turns, Serial | Warps | Spread | WarpsOfBlock | Blocks | Parts)
        }
        Step::Take { .. } | Step::Scope(_) => true,
        _ => false,
    }
}

/// Whether some of these steps declares a name that is asked about.
fn declares(steps: &[Step], is_own: &dyn Fn(&str) -> bool) -> bool {
    steps.iter().any(|step| step.declared().is_some_and(is_own) || declares(step.inner(), is_own))
}
