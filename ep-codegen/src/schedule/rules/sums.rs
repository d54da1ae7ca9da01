//! Rule `sums`: a sum of whole numbers that every lane of a warp would add up for itself, the lanes share.
//!
//! What it gains: a warp that counts does so in a thirty-second of the turns. Whole numbers may be added in any
//! order. Where it counts rows that have an element of some kind, neighbouring lanes look at neighbouring elements,
//! and not each at a row of its own: a load then takes as few lines of the cache as there are.

use crate::ir::{BinaryOp, Elem};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::term::{Node, Term};
use crate::schedule::uniform::is_of_any_lane;

/// Turns below which sharing gains nothing.
const FEW: i64 = 8;

/// The steps of a warp with such sums shared.
pub(in crate::schedule) fn rewrite(role: &mut RoleLowering<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for mut step in steps {
        // Loops of which lanes take turns, and what only some lanes come to, are no work of the warp.
        let is_of_warp = match &step {
            Step::Loop(repeat) => matches!(
                repeat.turns,
                Takers::Serial
                    | Takers::Warps
                    | Takers::Spread
                    | Takers::WarpsOfBlock
                    | Takers::Blocks
                    | Takers::Parts
            ),
            Step::Take { .. } | Step::Scope(_) => true,
            _ => false,
        };
        if let Some(inner) = step.inner_mut().filter(|_| is_of_warp) {
            *inner = rewrite(role, std::mem::take(inner));
        }
        if let Step::Loop(repeat) = &step
            && let Some(Step::Variable { name, value, .. }) = out.last()
            && *value == nothing()
            && adds_up(repeat, name)
        {
            let total = name.clone();
            out.pop();
            match rows_with(repeat, &total) {
                Some(steps) => out.extend(steps),
                None => out.extend(shared(role, repeat, &total)),
            }
            continue;
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
            Step::Let { name, .. } | Step::Variable { name, .. } | Step::Pointer { name, .. } => {
                own.push(name.clone());
                true
            }
            Step::Set { place, .. } | Step::Increase { place, .. } => {
                matches!(&place.node, Node::Name(name) if own.contains(name))
            }
            Step::Loop(inner) => inner.turns == Takers::Alone,
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

/// The number of turns of the loop in which some element of a row is of a kind, counted by the library.
fn rows_with(repeat: &Loop, total: &str) -> Option<Vec<Step>> {
    let (before, asks) = repeat.body.split_at_checked(repeat.body.len().checked_sub(3)?)?;
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
    let is_fixed = |step: &Step| matches!(step, Step::Let { .. }) && !step.mentions(&repeat.binder);
    if *hit != once || *either != is_any || !before.iter().all(is_fixed) {
        return None;
    }
    let param = |name: &String, kind| Param { kind, name: name.clone() };
    let row = param(&repeat.binder, ParamType::Value(Elem::I64));
    let params = vec![row, param(&elements.binder, ParamType::Index)];
    let gives = Some(holds.clone());
    let holds = Term::lambda(Lambda { says: Vec::new(), params, body: Vec::new(), gives });
    let args = vec![repeat.from.clone().wide(), repeat.to.clone().wide(), holds];
    let value = Term::call(ep::rows_with.of(width.clone()), args, Elem::I64);
    let count = Step::Let { name: total.to_string(), value };
    Some(before.iter().cloned().chain([count]).collect())
}
