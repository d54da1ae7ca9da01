//! Rule `wide`, of truths: where a lane writes a row of them, each found out for itself, it stores four at once.
//!
//! The gain: rows of neighboring lanes are in different places, so every store of a byte is one of its own for each lane.

use crate::ir::{BinaryOp, Elem};
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::term::{Node, Term};

/// The steps with such rows stored by words.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>) -> Vec<Step> {
    let one = |mut step: Step| {
        if let Step::Loop(repeat) = &step
            && let Some(stored) = by_words(repeat)
        {
            return stored;
        }
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(std::mem::take(inner));
        }
        vec![step]
    };
    steps.into_iter().flat_map(one).collect()
}

/// A loop of one lane that does nothing but write a truth in each turn, as many as the compiler knows.
fn by_words(repeat: &Loop) -> Option<Vec<Step>> {
    let (Step::Set { place, value }, says) = repeat.body.split_last()? else { return None };
    let Node::Index(tensor, at) = &place.node else { return None };
    let Node::Binary(BinaryOp::Add, row, own) = &at.node else { return None };
    let is_number = |term: &Term| matches!(&term.node, Node::Name(name) if *name == repeat.binder);
    let fits = repeat.turns == Takers::Alone
        && repeat.from.is(0)
        && repeat.elem == Elem::I32
        && place.elem == Elem::Bool
        && value.elem == Elem::Bool
        && is_number(own)
        && !row.mentions(&repeat.binder)
        && !tensor.root().is_some_and(|tensor| value.mentions(tensor))
        && says.iter().all(|step| matches!(step, Step::Says(_) | Step::Remark(_)));
    let count = repeat.to.as_constant().filter(|_| fits)?;
    let first = tensor.as_ref().clone().at(row.as_ref().clone(), Elem::Bool).address();
    let params = vec![Param { kind: ParamType::Index, name: repeat.binder.clone() }];
    let gives = Some(value.clone());
    let flag = Term::lambda(Lambda { says: Vec::new(), params, body: Vec::new(), gives });
    let store = Term::call(ep::store_flags.of(count), vec![first, flag], Elem::I32);
    Some(says.iter().cloned().chain([Step::Do(store)]).collect())
}
