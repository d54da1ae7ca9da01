//! A part of the rule `staged`: a sender loads the fields of a message before it moves the row, and writes them to the
//! record afterwards.
//!
//! The gain: a message waits once for the loads of all its fields, not once per field.

use super::copies::copy_of;
use crate::ir::Elem;
use crate::ir::naming::snake;
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Symbol;
use crate::schedule::term::{Node, Term};

/// The steps with the fields of each of these records asked for ahead of its row.
pub(super) fn rewrite(
    role: &mut RoleLowering<'_>,
    steps: Vec<Step>,
    records: &[String],
) -> Vec<Step> {
    let mut steps: Vec<Step> = steps
        .into_iter()
        .map(|mut step| {
            if let Some(inner) = step.inner_mut() {
                *inner = rewrite(role, std::mem::take(inner), records);
            }
            step
        })
        .collect();
    let made = |step: &Step| matches!(step, Step::Pointer { name, .. } if records.contains(name));
    let Some(at) = steps.iter().position(made) else { return steps };
    let Step::Pointer { name: record, .. } = steps[at].clone() else { return steps };
    let begun = steps[..at].iter().rposition(|step| !matches!(step, Step::Do(_)));
    let mut asks = Vec::new();
    for step in &mut steps[at..] {
        let Step::Loop(repeat) = &*step else { continue };
        let Some((value, to)) = asked(repeat, &record) else { continue };
        let object = role.names.fresh(&name_of(&repeat.to));
        *step = Step::Do(Term::method(&object, "put", vec![to], Elem::I32));
        asks.push(Step::Made { name: object, value });
    }
    let begun = begun.map_or(0, |last| last + 1);
    steps.splice(begun..begun, asks);
    steps
}

/// A name for the field that has so many elements: `weights_field` of `kWeightsCount`.
pub(super) fn name_of(count: &Term) -> String {
    let count = count.as_constant().map(|it| it.member.into_owned()).unwrap_or_default();
    format!("{}_field", snake(count.trim_start_matches('k').trim_end_matches("Count")))
}

/// For a loop of lanes that fills a field of a record: the call that asks for the field, and where the field goes.
pub(super) fn asked(repeat: &Loop, record: &str) -> Option<(Term, Term)> {
    let [before @ .., Step::Do(Term { node: Node::Call(set, args), elem, .. })] =
        repeat.body.as_slice()
    else {
        return None;
    };
    let [to, at, value] = args.as_slice() else { return None };
    let count = repeat.to.as_constant()?;
    let is_field = repeat.turns == Takers::Lanes
        && repeat.from.is(0)
        && *set == ep::set.of(elem)
        && to.root() == Some(record)
        && matches!(&at.node, Node::Name(name) if *name == repeat.binder)
        && before.iter().all(|step| matches!(step, Step::Let { .. }));
    if !is_field {
        return None;
    }
    if let Some(copy) = copy_of(repeat, &[record.to_string()]) {
        let ask: Symbol = ep::ask_row.of(elem).of(count);
        return Some((Term::call(ask, vec![copy.from], Elem::I32), to.clone()));
    }
    let params = vec![Param { kind: ParamType::Index, name: repeat.binder.clone() }];
    let gives = Some(value.clone());
    let each = Term::lambda(Lambda { says: Vec::new(), params, body: before.to_vec(), gives });
    Some((Term::call(ep::ask.of(elem).of(count), vec![each], Elem::I32), to.clone()))
}
