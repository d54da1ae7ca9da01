//! Rule `sums`: a sum of whole numbers that every lane of a warp would add up for itself, the lanes share.
//!
//! The gain: a warp counts in a thirty-second of the turns. Whole numbers may be added in any order. Where the warp counts
//! rows that have an element of some kind, neighboring lanes read neighboring elements instead of one row each, so a load
//! touches as few cache lines as possible. Where each lane counts such rows for its own number, all lanes scan the rows
//! together, for all of the numbers.

use super::is_of_warp;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::library::{Entity, ep};
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::{Node, Term, counting};
use crate::schedule::uniform::is_of_any_lane;

/// Turns below which sharing gains nothing.
pub(super) const FEW: i64 = 8;

/// The steps of a warp with such sums shared.
pub(in crate::schedule) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for mut step in steps {
        if is_of_warp(&step)
            && let Some(inner) = step.inner_mut()
        {
            *inner = rewrite(role, std::mem::take(inner));
        }
        if let Step::Loop(repeat) = &step
            && let Some(Step::Variable { name, value, .. }) = out.last()
            && *value == nothing()
            && adds_up(repeat, name)
        {
            let total = name.clone();
            out.pop();
            match Search::of(repeat) {
                Some(search) => out.extend(rows_with(&search, &total)),
                None => out.extend(shared(role, repeat, &total)),
            }
            continue;
        }
        if let Step::Loop(repeat) = &step
            && let Some(searched) = searched_together(role, repeat)
        {
            step = searched;
        }
        out.push(step);
    }
    out
}

/// What a sum begins with.
fn nothing() -> Term {
    Term::int(0).converted(&Elem::I64)
}

/// Whether a loop does nothing but add whole numbers to `total`, of no order.
fn adds_up(repeat: &Loop, total: &str) -> bool {
    let is_total = |term: &Term| matches!(&term.node, Node::Name(name) if name == total);
    let Some((Step::Increase { place, value }, before)) = repeat.body.split_last() else {
        return false;
    };
    repeat.turns == Takers::Alone
        && repeat.to.range.is_none_or(|(_, most)| most > FEW)
        && is_total(place)
        && place.elem == Elem::I64
        && !value.mentions(total)
        && is_of_any_lane(value)
        && only_looks(before, &mut Vec::new())
        && !before.iter().any(|step| step.mentions(total))
}

/// Whether steps leave nothing but names; `own` are those that they make.
pub(super) fn only_looks(steps: &[Step], own: &mut Vec<String>) -> bool {
    steps.iter().all(|step| {
        let here = match step {
            Step::Let { name, .. }
            | Step::Made { name, .. }
            | Step::Variable { name, .. }
            | Step::Pointer { name, .. } => {
                own.push(name.clone());
                true
            }
            Step::Set { place, .. } | Step::Increase { place, .. } => {
                matches!(&place.node, Node::Name(name) if own.contains(name))
            }
            Step::Loop(inner) => matches!(inner.turns, Takers::Alone | Takers::Unrolled),
            Step::SkipUnless(_) | Step::If { .. } | Step::Says(_) | Step::Remark(_) => true,
            _ => false,
        };
        here && step.terms().into_iter().all(is_of_any_lane) && only_looks(step.inner(), own)
    })
}

/// The loop with its turns shared by the lanes, and what they have added up together under the name of the total.
fn shared(role: &mut RoleLowering<'_>, repeat: &Loop, total: &str) -> [Step; 3] {
    let name = role.names.fresh("own");
    let own = Term::name(&name, Elem::I64);
    let mut body = repeat.body.clone();
    if let Some(Step::Increase { place, .. }) = body.last_mut() {
        *place = own.clone();
    }
    let value = Term::call(ep::sum_of_lanes, vec![own], Elem::I64);
    [
        Step::Variable { name, elem: Elem::I64, value: nothing() },
        Step::Loop(Loop { turns: Takers::Lanes, body, ..repeat.clone() }),
        Step::Let { name: total.to_string(), value },
    ]
}

/// A loop that counts the rows of which some element is of a kind.
struct Search<'s> {
    /// Names that are the same for all rows.
    before: &'s [Step],
    rows: &'s Loop,
    elements: &'s Loop,
    width: &'s Constant,
    /// Whether an element is of the kind.
    holds: &'s Term,
}

impl<'s> Search<'s> {
    fn of(rows: &'s Loop) -> Option<Search<'s>> {
        let (before, asks) = rows.body.split_at_checked(rows.body.len().checked_sub(3)?)?;
        let [
            Step::Variable { name: found, elem: Elem::Bool, .. },
            Step::Loop(elements),
            Step::Increase { value: hit, .. },
        ] = asks
        else {
            return None;
        };
        let [Step::Let { name: here, value: holds }, Step::Set { value: either, .. }] =
            elements.body.as_slice()
        else {
            return None;
        };
        let Node::Constant(width) = &elements.to.node else { return None };
        let is_found = Term::name(found, Elem::Bool);
        let once = is_found.clone().converted(&Elem::I32).converted(&Elem::I64);
        let is_any = is_found.test(BinaryOp::Or, Term::name(here, Elem::Bool));
        let is_fixed =
            |step: &Step| matches!(step, Step::Let { .. }) && !step.mentions(&rows.binder);
        let fits = *hit == once && *either == is_any && before.iter().all(is_fixed);
        fits.then_some(Search { before, rows, elements, width, holds })
    }

    /// The number of rows by a function of the library, which gets a question and some numbers that it is about.
    fn count(&self, function: Entity, askers: Option<Term>, about: Vec<Term>) -> Term {
        let param = |name: &str, kind| Param { kind, name: name.to_string() };
        let row = param(&self.rows.binder, ParamType::Value(Elem::I64));
        let own = about
            .iter()
            .filter_map(|it| Some(param(it.root()?, ParamType::Value(it.elem.clone()))));
        let params = [row, param(&self.elements.binder, ParamType::Index)].into_iter().chain(own);
        let params = params.collect();
        let gives = Some(self.holds.clone());
        let holds = Term::lambda(Lambda { says: Vec::new(), params, body: Vec::new(), gives });
        let ends = [self.rows.from.clone().wide(), self.rows.to.clone().wide()];
        let args = ends.into_iter().chain(askers).chain([holds]).chain(about).collect();
        Term::call(function.of(self.width.clone()), args, Elem::I64)
    }
}

/// The number of rows of a search, counted by the warp.
fn rows_with(search: &Search<'_>, total: &str) -> Vec<Step> {
    let value = search.count(ep::rows_with, None, Vec::new());
    let count = Step::Let { name: total.to_string(), value };
    search.before.iter().cloned().chain([count]).collect()
}

/// A loop of which each lane takes turns, with its first search done by all lanes for the turns of 32 of them.
fn searched_together(role: &mut RoleLowering<'_>, turns: &Loop) -> Option<Step> {
    if turns.turns != Takers::Lanes || !turns.from.is(0) || turns.elem != Elem::I32 {
        return None;
    }
    let at = turns.body.iter().position(|step| matches!(step, Step::Variable { .. }))?;
    let (before, [Step::Variable { name: total, value, .. }, Step::Loop(rows), after @ ..]) =
        turns.body.split_at(at)
    else {
        return None;
    };
    let is_name = |step: &Step| match step {
        Step::Says(_) | Step::Remark(_) => true,
        Step::Let { value, .. } => is_of_any_lane(value),
        _ => false,
    };
    let search = Search::of(rows)?;
    if *value != nothing() || !adds_up(rows, total) || !before.iter().all(is_name) {
        return None;
    }
    let mut own = vec![Term::index(&turns.binder)];
    own.extend([before, search.before].concat().iter().filter_map(|step| match step {
        Step::Let { name, value } => Some(Term::name(name, value.elem.clone())),
        _ => None,
    }));
    let names = |term: &Term, own: &Term| own.root().is_some_and(|name| term.mentions(name));
    if own.iter().any(|own| names(&rows.from, own) || names(&rows.to, own)) {
        return None;
    }
    own.retain(|own| names(search.holds, own));
    if !own.iter().all(|own| matches!(own.elem, Elem::I32 | Elem::I64)) {
        return None;
    }
    let first = role.names.fresh("first");
    let turn = role.names.fresh("turn");
    let of_lane = counting(BinaryOp::Add, Term::index(&first), Term::name("team.lane", Elem::I32));
    // Lanes without a turn look up what the last one does.
    let last = counting(BinaryOp::Sub, turns.to.clone(), Term::int(1)).wide();
    let clamped = Term::call(ep::min, vec![Term::index(&turn).wide(), last], Elem::I64);
    let askers = counting(BinaryOp::Sub, turns.to.clone(), Term::index(&first));
    let count = search.count(ep::rows_with_each, Some(askers), own);
    let mut body = vec![
        Step::Let { name: turn.clone(), value: of_lane },
        Step::Let { name: turns.binder.clone(), value: clamped.converted(&Elem::I32) },
    ];
    body.extend([before, search.before].concat());
    body.push(Step::Let { name: total.clone(), value: count });
    let condition = Term::index(&turn).test(BinaryOp::Lt, turns.to.clone());
    body.push(Step::If { condition, body: after.to_vec() });
    Some(Step::Loop(Loop { binder: first, turns: Takers::Chunks, body, ..turns.clone() }))
}
