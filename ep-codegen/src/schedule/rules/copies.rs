//! Rule `copies`: a row that lanes copy element by element they copy by 16 bytes each, several at a time.
//!
//! The gain: one eighth as many loads and stores for a row of bf16, with up to fourteen of them in flight instead
//! of one. docs/compiler.md has what each rule gains, measured.

use super::loops_as;
use crate::ir::{BinaryOp, Elem};
use crate::schedule::library::ep;
use crate::schedule::step::{Copy, CopyBy, Loop, Step, Takers};
use crate::schedule::term::{Node, Term};

/// The steps with every such loop as one copy. `records` are pointers to shared memory.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>, records: &[String]) -> Vec<Step> {
    let pointers = pointers(&steps);
    let is_record =
        |end: &Term| end.root().is_some_and(|name| records.iter().any(|record| record == name));
    let copied = |repeat: &Loop| {
        let copy = copy_of(repeat, &pointers);
        copy.filter(|copy| !is_record(&copy.from) && !is_record(&copy.to)).map(Step::Copy)
    };
    loops_as(steps, &copied)
}

/// Names of the pointers that steps make.
pub(super) fn pointers(steps: &[Step]) -> Vec<String> {
    let mut found = Vec::new();
    for step in steps {
        if let Step::Pointer { name, .. } = step {
            found.push(name.clone());
        }
        found.extend(pointers(step.inner()));
    }
    found
}

/// What a loop over lanes copies, if it does nothing else.
pub(super) fn copy_of(repeat: &Loop, pointers: &[String]) -> Option<Copy> {
    let [step] = repeat.body.as_slice() else { return None };
    if repeat.turns != Takers::Lanes || !repeat.from.is(0) || repeat.to.elem != Elem::I32 {
        return None;
    }
    let i = repeat.binder.as_str();
    let (to, elem, value) = stored(step, i, pointers)?;
    let from = row_of(value, i, pointers)?;
    let copy = Copy { elem: elem.clone(), to, from, count: repeat.to.clone(), by: CopyBy::Many };
    (value.elem == *elem).then_some(copy)
}

/// The first element of a row of which a step writes element `i`, the type of that, and what it writes.
pub(super) fn stored<'s>(
    step: &'s Step,
    i: &str,
    pointers: &[String],
) -> Option<(Term, &'s Elem, &'s Term)> {
    match step {
        Step::Set { place, value } => Some((first_of(place, i)?, &place.elem, value)),
        Step::Do(Term { node: Node::Call(set, args), elem, .. }) if *set == ep::set.of(elem) => {
            let [to, at, value] = args.as_slice() else { return None };
            Some((pointed(to, at, i, pointers)?, elem, value))
        }
        _ => None,
    }
}

/// The first element of a row of which a value is element `i`.
pub(super) fn row_of(value: &Term, i: &str, pointers: &[String]) -> Option<Term> {
    match &value.node {
        Node::Call(get, args) if *get == ep::get.of(&value.elem) => {
            let [from, at] = args.as_slice() else { return None };
            pointed(from, at, i, pointers)
        }
        _ => first_of(value, i),
    }
}

/// The address of the first of the elements that `place` names by `i`.
pub(super) fn first_of(place: &Term, i: &str) -> Option<Term> {
    let Node::Index(base, at) = &place.node else { return None };
    match &at.node {
        Node::Name(name) if name == i => Some((**base).clone()),
        Node::Binary(BinaryOp::Add, row, rest) if is_name(rest, i) && !row.mentions(i) => {
            Some((**base).clone().at((**row).clone(), place.elem.clone()).address())
        }
        _ => None,
    }
}

/// The bytes at `base`, if the element there is number `i`.
pub(super) fn pointed(base: &Term, at: &Term, i: &str, pointers: &[String]) -> Option<Term> {
    let known = base.root().is_some_and(|name| pointers.iter().any(|pointer| pointer == name));
    (known && is_name(at, i)).then(|| base.clone())
}

fn is_name(term: &Term, name: &str) -> bool {
    matches!(&term.node, Node::Name(own) if own == name)
}
