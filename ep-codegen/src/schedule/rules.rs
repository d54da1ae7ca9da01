//! Rules: steps that are rewritten into faster ones, and roles that the device library carries out across their statements.
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
mod fanout;
mod flags;
mod forms;
mod hits;
mod local_rows;
mod message_fields;
mod one_launch;
mod packed;
pub(super) mod part_values;
mod parts_ahead;
mod puts;
mod row_places;
mod sending;
mod slot_slices;
mod staged;
pub(super) mod staged_parts;
pub(super) mod stretches;
mod sums;
mod wide;

pub use fanout::Fanout;
pub(super) use message_fields::asked_first;
pub(crate) use one_launch::{Counts, OneLaunch};
pub(crate) use packed::{AHEAD, BEFORE, Packs, Turns, row_cast};
pub(crate) use sending::is_position;
pub use staged::{Carried, Staged};

pub(super) use sums::rewrite as shared_sums;

use super::step::{CopyBy, Loop, Step, Takers};
use super::symbol::Constant;
use super::{RoleLowering, RoleRule, RuleSet};

use crate::ir::{Channel, Message, Pipeline, Role, Source, Stmt, Tensor};

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

/// Why no rule is for a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// The first statement that no rule is for, or the role or channel.
    pub at: Source,
    /// The reason.
    pub why: String,
}

impl Unfit {
    pub(super) fn new(at: &Source, why: &str) -> Unfit {
        Unfit { at: at.clone(), why: why.to_string() }
    }

    /// What it means for the role.
    pub fn sentence(&self) -> String {
        format!("no class of the library does the whole role: {}", self.why)
    }
}

type Checked = Result<(), Unfit>;

/// Whether a rule is for `role`; `None`: no rule is for roles of its kind.
pub fn check(ir: &Pipeline, role: &Role) -> Option<Result<(), Unfit>> {
    one_launch::is_candidate(ir, role).then(|| Forms { ir }.one_launch(role).map(drop))
}

/// A pipeline whose roles are looked at.
pub(super) struct Forms<'a> {
    ir: &'a Pipeline,
}

impl<'a> Forms<'a> {
    /// A reason at the place with this source.
    fn refuse<T>(&self, at: &Source, why: &str) -> Result<T, Unfit> {
        Err(Unfit::new(at, why))
    }

    /// A statement that no rule is for.
    fn no_form(&self, stmt: &Stmt) -> Unfit {
        Unfit::new(&stmt.at, "no class has a form of this statement")
    }

    fn lacks(&self, what: &str, name: &str) -> Unfit {
        let at = Source { line: 0, text: self.ir.name.clone() };
        Unfit { at, why: format!("no {what} `{name}`") }
    }

    fn tensor(&self, name: &str) -> Result<&'a Tensor, Unfit> {
        let found = self.ir.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| self.lacks("tensor", name))
    }

    fn message(&self, channel: &Channel) -> Result<&'a Message, Unfit> {
        let found = self.ir.messages.iter().find(|message| message.name == channel.message);
        found.ok_or_else(|| self.lacks("message", &channel.message))
    }
}
