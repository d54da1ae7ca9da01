//! Rule `apart`: what a warp sends for a token one after the other, several warps send, and what it adds up for one,
//! several add up, each a slice of the row.
//!
//! What it gains: few tokens keep many warps busy, and a token's messages are on their way at once. With slots
//! no order is lost by it: which warp sends what first is nobody's matter there, and who reads a slot gives nothing
//! back.

use super::local_rows::slices_of;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
#[cfg(any(test, feature = "sabotage"))]
use crate::schedule::sabotage::{self, Bug};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Root};
use crate::schedule::term::{Node, Term, arithmetic};
use crate::schedule::uniform::is_of_any_lane;

/// Slices of a row at most.
pub(super) const MOST_SLICES: i64 = 32;

/// The steps in which a turn of a loop over tokens is one message, or one slice; whether there are slices.
pub(in crate::schedule) fn rewrite(
    role: &mut RoleLowering<'_>,
    steps: Vec<Step>,
) -> (Vec<Step>, bool) {
    if role.ends().iter().any(|(channel, _)| !channel.kind.traits().is_indexed) {
        return (steps, false);
    }
    let mut slices = false;
    let one = |step: Step| {
        let Step::Loop(repeat) = &step else { return vec![step] };
        if let Some(messages) = messages(role, repeat) {
            return vec![Step::Loop(messages)];
        }
        let Some(sliced) = sliced(role, repeat) else { return vec![step] };
        slices = true;
        sliced
    };
    let steps = steps.into_iter().flat_map(one).collect();
    (steps, slices)
}

/// A loop over tokens, each of them `parts` times: what the turns are called then, which part it is, and how many
/// turns there are.
fn divided(
    role: &mut RoleLowering<'_>,
    tokens: &Loop,
    part: &str,
    parts: &Term,
) -> Option<(String, Vec<Step>, Term)> {
    let is_dealt = matches!(tokens.turns, Takers::Warps | Takers::Spread) && tokens.from.is(0);
    let all = tokens.to.clone().times(parts.clone());
    if !is_dealt || [&tokens.elem, &all.elem].iter().any(|elem| **elem != Elem::I32) {
        return None;
    }
    let unit = role.names.fresh("unit");
    let names = taken_apart(&Term::index(&unit), parts, [&tokens.binder, part], &Elem::I32);
    Some((unit, names.into(), all))
}

/// The steps that name the row of a unit and its part of it, where each row has so many.
pub(super) fn taken_apart(unit: &Term, parts: &Term, names: [&str; 2], elem: &Elem) -> [Step; 2] {
    let all = vec![unit.clone(), parts.clone()];
    let [row, part] = match parts.node {
        Node::Constant(_) => [BinaryOp::Div, BinaryOp::Rem]
            .map(|op| arithmetic(op, unit.clone(), parts.clone()).converted(elem)),
        // A power of two.
        _ => [
            Term::call(ep::row_of_slice, all.clone(), unit.elem.clone()).converted(elem),
            Term::call(ep::slice_of_row, all, Elem::I32),
        ],
    };
    let [own, other] = names.map(str::to_string);
    [Step::Let { name: own, value: row }, Step::Let { name: other, value: part }]
}

/// A gather whose turns are slices of a token's row, as many as there are warps for.
fn sliced(role: &mut RoleLowering<'_>, tokens: &Loop) -> Option<Vec<Step>> {
    let (Step::If { condition, body }, before) = tokens.body.split_last()? else { return None };
    let (Step::Do(close), rows) = body.split_last()? else { return None };
    let is_row = |step: &Step| matches!(step, Step::Loop(row) if row.turns == Takers::WideChunks && row.from.is(0));
    if !condition.is_method("open") || !close.is_method("close") || !rows.iter().any(is_row) {
        return None;
    }
    let (slices, found) = slices_of(role, &tokens.to);
    let (count, ahead) = found?;
    let slice = role.names.fresh("slice");
    let counted = Loop { to: count, ..tokens.clone() };
    let (binder, mut steps, to) = divided(role, &counted, &slice, &slices)?;
    let mut body = Vec::new();
    let mut rest = rows;
    while let Some((step, behind)) = rest.split_first() {
        if let Step::Loop(row) = step
            && is_row(step)
        {
            body.push(Step::Loop(sliced_row(row, &slice, &slices)));
            rest = behind;
            continue;
        }
        let others = rest.iter().take_while(|step| !is_row(step)).count();
        let (between, behind) = rest.split_at(others);
        body.extend(of_one_slice(between, behind, (&slice, &slices))?);
        rest = behind;
    }
    body.push(Step::Do(close.clone()));
    steps.extend(before.iter().cloned());
    steps.push(Step::If { condition: condition.clone(), body });
    let dealt = Step::Loop(Loop { binder, to, body: steps, ..tokens.clone() });
    Some(ahead.into_iter().chain([dealt]).collect())
}

/// Steps that are for a whole token, done by the warp of its last slice, which is the shortest one: nothing `behind` uses what
/// they name. Names that are used, every warp makes for itself; `None`: one of them is not the same for all.
fn of_one_slice(
    steps: &[Step],
    behind: &[Step],
    (slice, slices): (&str, &Term),
) -> Option<Vec<Step>> {
    let says = |step: &&Step| matches!(step, Step::Says(_) | Step::Remark(_));
    let last = steps.iter().rev().take_while(says).count();
    let (steps, last) = steps.split_at(steps.len() - last);
    let is_used = |step: &Step| {
        step.declared().is_some_and(|name| behind.iter().any(|later| later.mentions(name)))
    };
    let is_name = |step: &Step| match step {
        Step::Let { value, .. } | Step::Pointer { value, .. } => is_only_read(value),
        step => says(&step),
    };
    let own = if steps.iter().all(is_name) {
        steps.to_vec()
    } else if steps.iter().any(is_used) {
        return None;
    } else {
        let last = arithmetic(BinaryOp::Sub, slices.clone(), Term::int(1));
        let condition = Term::small(slice, 0, MOST_SLICES).test(BinaryOp::Eq, last);
        vec![Step::If { condition, body: steps.to_vec() }]
    };
    Some([&own, last].concat())
}

/// Whether a term reads elements, or asks the parts of a token where they are.
fn is_only_read(term: &Term) -> bool {
    let asks = matches!(&term.node, Node::Call(function, _)
        if ["first", "has", "row", "meta"].iter().any(|name| function.is_method(name)));
    (asks && term.inner().into_iter().all(is_of_any_lane)) || is_of_any_lane(term)
}

/// The most slices of a row.
pub(super) fn most_slices(role: &RoleLowering<'_>) -> Term {
    let most = Constant::of_role(role.role).at("kSlices");
    Term { range: Some((1, MOST_SLICES)), ..Term::constant(most) }
}

/// A loop over a row that keeps to one of its slices.
pub(super) fn sliced_row(row: &Loop, slice: &str, slices: &Term) -> Loop {
    let end = |behind| slice_end(slice, slices, behind, &row.to);
    Loop { from: end(0), to: end(1), ..row.clone() }
}

/// Where the slice so many behind one of a row of some width begins.
pub(super) fn slice_end(slice: &str, slices: &Term, behind: i64, width: &Term) -> Term {
    let number = Term::small(slice, 0, MOST_SLICES).plus(Term::int(behind));
    let args = vec![number, slices.clone(), width.clone()];
    let end = Term::call(ep::slice_begin, args, Elem::I32);
    Term { range: Some((0, i64::from(i32::MAX))), ..end }
}

/// A loop over tokens whose turns are those of the loop inside of it.
fn messages(role: &mut RoleLowering<'_>, tokens: &Loop) -> Option<Loop> {
    let (Step::Loop(inner), before) = tokens.body.split_last()? else { return None };
    if inner.turns != Takers::Serial
        || !inner.from.is(0)
        || inner.elem != Elem::I32
        || !matches!(inner.to.node, Node::Constant(_))
        || !are_messages(before, &inner.body)
    {
        return None;
    }
    let (binder, mut body, to) = divided(role, tokens, &inner.binder, &inner.to)?;
    body.extend(before.iter().cloned());
    body.extend(inner.body.iter().cloned());
    Some(Loop { binder, to, body, ..tokens.clone() })
}

/// Whether each turn of a loop is a message of its own, with names `before` it that any warp may find out.
fn are_messages(before: &[Step], turn: &[Step]) -> bool {
    #[cfg(any(test, feature = "sabotage"))]
    if sabotage::is(Bug::MoreThanSent) {
        return true;
    }
    let names = |step: &Step| matches!(step, Step::Says(_) | Step::Remark(_) | Step::Let { .. });
    before.iter().all(names) && only_sends(turn, &mut Vec::new())
}

/// Methods of a mover or of an end that send a message.
const SENDS: [&str; 5] = ["fence_global", "publish", "publish_after", "row", "send_meta"];

/// Whether steps leave nothing but what they write to a slot; `own` are names that they make.
pub(super) fn only_sends(steps: &[Step], own: &mut Vec<String>) -> bool {
    steps.iter().all(|step| {
        let here = match step {
            Step::Let { name, .. } | Step::Variable { name, .. } | Step::Pointer { name, .. } => {
                own.push(name.clone());
                true
            }
            Step::Made { name, value: Term { node: Node::Call(function, _), .. } }
                if function.is(ep::ask) || function.is(ep::ask_row) =>
            {
                own.push(name.clone());
                true
            }
            Step::Set { place: to, .. } | Step::Increase { place: to, .. } => is_own(to, own),
            Step::Copy(copy) => is_own(&copy.to, own),
            Step::Do(Term { node: Node::Call(function, args), .. }) => match &function.root {
                Root::Method(object, "put") => own.contains(object),
                Root::Method(_, method) => SENDS.contains(method),
                Root::Library(ep::tell | ep::settle) => true,
                Root::Library(entity) if [ep::set, ep::set_wide].contains(entity) => {
                    args.first().is_some_and(|to| is_own(to, own))
                }
                Root::Library(entity) if *entity == ep::cast_row => {
                    args[1..3].iter().all(|to| is_own(to, own))
                }
                _ => false,
            },
            Step::Says(_)
            | Step::Remark(_)
            | Step::SkipUnless(_)
            | Step::If { .. }
            | Step::Leader(_)
            | Step::Loop(_)
            | Step::Scope(_)
            | Step::Meet => true,
            _ => false,
        };
        here && only_sends(step.inner(), own)
    })
}

fn is_own(to: &Term, own: &[String]) -> bool {
    to.root().is_some_and(|name| own.iter().any(|known| known == name))
}
