//! Rule `looks`, of conditions: where a warp takes the turns of a loop one after the other and a condition skips some, its
//! lanes look at the condition for 32 turns at once (`ep::Chosen`).
//!
//! The gain: a warp no longer waits for what each condition reads, one turn after the other, and takes only the turns for
//! which the condition holds. The turns stay in order.

use super::declares;
use super::flags::{is_input, rename};
use super::sums::{FEW, only_looks};
use crate::ir::Elem;
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
#[cfg(any(test, feature = "sabotage"))]
use crate::schedule::sabotage::{self, Bug};
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::term::{Node, Term};
use crate::schedule::uniform::is_of_lane_by;

/// The steps with such conditions looked at by all lanes.
pub(super) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut rows = Vec::new();
    kept_rows(&steps, &mut rows);
    in_steps(role, steps, &rows)
}

fn in_steps(role: &mut RoleLowering<'_>, steps: Vec<Step>, rows: &[String]) -> Vec<Step> {
    let mut out = Vec::new();
    for mut step in steps {
        if let Some(inner) = step.inner_mut() {
            *inner = in_steps(role, std::mem::take(inner), rows);
        }
        match &step {
            Step::Loop(repeat) => match chosen(role, repeat, rows) {
                Some(instead) => out.extend(instead),
                None => out.push(step),
            },
            _ => out.push(step),
        }
    }
    out
}

/// The objects that hold numbers of a row.
fn kept_rows(steps: &[Step], found: &mut Vec<String>) {
    for step in steps {
        if let Step::Made { name, value: Term { node: Node::Call(function, _), .. } } = step
            && function.is(ep::ids_of)
        {
            found.push(name.clone());
        }
        kept_rows(step.inner(), found);
    }
}

/// The loop as one over the turns for which its condition holds.
fn chosen(role: &mut RoleLowering<'_>, repeat: &Loop, rows: &[String]) -> Option<[Step; 2]> {
    let many = repeat.to.range.is_none_or(|(_, most)| most > FEW);
    let is_number = |term: &Term| term.elem == Elem::I32;
    if repeat.turns != Takers::Serial || !many || !repeat.from.is(0) || !is_number(&repeat.to) {
        return None;
    }
    let is_skip = |step: &Step| matches!(step, Step::SkipUnless(_));
    let (looks, rest) = repeat.body.split_at(repeat.body.iter().position(is_skip)?);
    let (skips, rest) = rest.split_at(rest.iter().position(|step| !is_skip(step))?);
    let is_row = |object: &str| rows.iter().any(|row| row == object);
    let mut own = Vec::new();
    let fits = only_looks(looks, &mut own)
        && all_still(role, looks)
        && all_still(role, skips)
        && all_terms(skips).all(|term| is_of_lane_by(term, &is_row))
        && !own.iter().any(|name| rest.iter().any(|step| step.mentions(name)))
        && !changes(rest, &|name| looks.iter().chain(skips).any(|step| step.mentions(name)))
        && !declares(looks, &|name| name == repeat.binder);
    if !fits {
        return None;
    }
    let [object, number] = ["chosen", "turn"].map(|wanted| role.names.fresh(wanted));
    let mut body = looks.to_vec();
    let conditions = skips.iter().flat_map(Step::terms).cloned();
    let mut gives = conditions.reduce(Term::and)?;
    of_steps(&mut body, &mut |term| rename(term, &repeat.binder, &number));
    rename(&mut gives, &repeat.binder, &number);
    let params = vec![Param { kind: ParamType::Index, name: number }];
    let holds = Term::lambda(Lambda { says: Vec::new(), params, body, gives: Some(gives) });
    let team = Term::name("team", Elem::I32);
    let next = Term::method(&object, "take", vec![team, holds], Elem::I32);
    let args = vec![repeat.to.clone()];
    Some([
        Step::Object { class: ep::Chosen.into(), name: object, args },
        Step::Take { name: repeat.binder.clone(), next, body: rest.to_vec() },
    ])
}

/// Whether what a term says is the same ahead of its turn: it reads numbers and inputs alone.
pub(super) fn is_still(role: &RoleLowering<'_>, term: &Term) -> bool {
    #[cfg(any(test, feature = "sabotage"))]
    if sabotage::is(Bug::AskedTooEarly) {
        return true;
    }
    let here = match &term.node {
        Node::Index(base, _) => is_input(role, base),
        Node::Call(function, _) => {
            ![ep::get, ep::has_come, ep::is_alive].iter().any(|read| function.is(*read))
        }
        Node::Lambda(_) | Node::Address(_) => false,
        _ => true,
    };
    here && term.inner().into_iter().all(|inner| is_still(role, inner))
}

/// Whether [`is_still`] holds for every term of some steps.
pub(super) fn all_still(role: &RoleLowering<'_>, steps: &[Step]) -> bool {
    all_terms(steps).all(|term| is_still(role, term))
}

/// Whether steps change a name that is asked about.
fn changes(steps: &[Step], is_asked: &dyn Fn(&str) -> bool) -> bool {
    steps.iter().any(|step| {
        let here = match step {
            Step::Set { place, .. } | Step::Increase { place, .. } => {
                matches!(&place.node, Node::Name(name) if is_asked(name))
            }
            _ => false,
        };
        here || changes(step.inner(), is_asked)
    })
}

/// The terms of some steps and of those inside of them.
fn all_terms(steps: &[Step]) -> Box<dyn Iterator<Item = &Term> + '_> {
    Box::new(steps.iter().flat_map(|step| step.terms().into_iter().chain(all_terms(step.inner()))))
}

/// Changes the terms of some steps and of those inside of them.
fn of_steps(steps: &mut [Step], change: &mut dyn FnMut(&mut Term)) {
    for step in steps {
        step.terms_mut().into_iter().for_each(&mut *change);
        step.inner_mut().into_iter().for_each(|inner| of_steps(inner, change));
    }
}
