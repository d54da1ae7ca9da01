//! A part of the rule `staged`: a row that a loop of a warp copies to several places of its own rank is loaded once, into
//! shared memory, and stored to its places from there (`ep::RowPlaces`).
//!
//! The gain: a row of a token that goes to four experts is read once instead of four times, and the warp does not wait for
//! it.

use super::copies::{copy_of, pointers};
use super::staged::{Carried, Staged};
use super::{declares, local_rows};
use crate::ir::naming::function_of;
use crate::ir::walk::{self, is_read, writers};
use crate::ir::{Action, Elem, Memory, Tensor, TensorKind};
use crate::schedule::cut::is_of_units;
use crate::schedule::library::ep;
use crate::schedule::step::{Copy, Loop, Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::{Node, Term};
use crate::schedule::{RoleLowering, RoleRule};

/// The steps of a role with such rows staged; `None`: it copies none.
pub(super) fn rewrite(role: &mut RoleLowering<'_>, steps: &[Step]) -> Option<(Vec<Step>, Staged)> {
    // A word is raised behind what its warp has stored, and the mover stores later.
    let raises =
        walk::any_stmt(&role.role.body, &mut |stmt| matches!(stmt.action, Action::Raise { .. }));
    if raises || !role.ends().is_empty() || is_shared(role, steps) {
        return None;
    }
    let mover = role.names.fresh("mover");
    let mut places = Places { pointers: pointers(steps), mover, rows: None };
    let mut rewritten = places.steps(role, steps.to_vec());
    let (elem, count) = places.rows?;
    let name = |name: String| Term::name(name, Elem::I32);
    let own = name(format!("smem.{}[team.warp]", function_of(&role.role.name)));
    let class = ep::Mover.of(Constant::of_role(role.role));
    let args = vec![own, name("team".to_string())];
    rewritten.insert(0, Step::Object { class, name: places.mover.clone(), args });
    let call = |method| Step::Do(Term::method(&places.mover, method, Vec::new(), Elem::I32));
    rewritten.extend([call("flush"), call("finish")]);
    Some((rewritten, Staged { carries: Carried::Rows { elem, count }, with_meta: false }))
}

/// Whether several warps share the work on a row, which is worth more.
fn is_shared(role: &mut RoleLowering<'_>, steps: &[Step]) -> bool {
    let names = role.names.clone();
    let (shared, _) = local_rows::rewrite(role, steps.to_vec());
    role.names = names;
    role.rules.has(RoleRule::Apart) && shared != steps
}

/// The rows of a role that go to several places.
struct Places {
    pointers: Vec<String>,
    mover: String,
    /// Element type and length of the rows. A mover carries rows of one kind only.
    rows: Option<(Elem, Constant)>,
}

impl Places {
    fn steps(&mut self, role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
        let mut out = Vec::new();
        for mut step in steps {
            let mut moved = Vec::new();
            if let Step::Loop(repeat) = &mut step
                && repeat.turns == Takers::Serial
            {
                let around = repeat.clone();
                self.copies(role, &around, &mut repeat.body, &mut moved);
            }
            if let Some(inner) = step.inner_mut() {
                *inner = self.steps(role, std::mem::take(inner));
            }
            let class = || ep::RowPlaces.into();
            let objects = moved.iter().map(|(name, _)| name.clone());
            out.extend(objects.map(|name| Step::Object { class: class(), name, args: Vec::new() }));
            out.push(step);
            for (name, from) in moved {
                let args = vec![Term::name(&self.mover, Elem::I32), from];
                out.push(Step::Do(Term::method(&name, "move", args, Elem::I32)));
            }
        }
        out
    }

    /// Puts a new place of a row where a turn of `around` copies the row. Gives the objects that know the places, each with
    /// its row.
    fn copies(
        &mut self,
        role: &mut RoleLowering<'_>,
        around: &Loop,
        steps: &mut [Step],
        moved: &mut Vec<(String, Term)>,
    ) {
        for step in steps {
            if let Step::If { body, .. } = step {
                self.copies(role, around, body, moved);
            }
            let Some(copy) = self.copied(role, around, step) else { continue };
            let name = role.names.fresh("row_places");
            let args = vec![Term::name(&self.mover, Elem::I32), copy.to, copy.from.clone()];
            *step = Step::Do(Term::method(&name, "add", args, Elem::I32));
            moved.push((name, copy.from));
        }
    }

    /// The copy that a step makes of a row which is the same in all turns of a loop: a whole row of an input, copied to a
    /// tensor that no other statement writes and no role reads.
    fn copied(&mut self, role: &RoleLowering<'_>, around: &Loop, step: &Step) -> Option<Copy> {
        let Step::Loop(repeat) = step else { return None };
        let copy = copy_of(repeat, &self.pointers)?;
        let is_of_turn = |name: &str| copy.from.mentions(name);
        if is_of_turn(&around.binder) || declares(&around.body, &is_of_turn) {
            return None;
        }
        let tensor = |address: &Term| -> Option<&Tensor> {
            let name = address.root()?.strip_prefix("args.")?;
            role.ir.tensors.iter().find(|tensor| tensor.name == name)
        };
        let (from, to) = (tensor(&copy.from)?, tensor(&copy.to)?);
        let is_still = from.kind == TensorKind::Input && writers(role.ir, from).is_empty();
        let is_left = to.kind != TensorKind::Inout
            && to.memory == Memory::Device
            && writers(role.ir, to).len() == 1
            && !is_read(role.ir, to);
        let width = from.dims.last()?;
        let is_whole = is_of_units(role.ir, width, &from.elem)
            && [from, to].iter().all(|it| it.dims.len() > 1 && it.dims.last() == Some(width));
        let Node::Constant(count) = &copy.count.node else { return None };
        let rows = (copy.elem.clone(), count.clone());
        let fits =
            is_still && is_left && is_whole && *self.rows.get_or_insert(rows.clone()) == rows;
        fits.then_some(copy)
    }
}
