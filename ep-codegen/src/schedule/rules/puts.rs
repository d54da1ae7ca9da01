//! Rule `wide`, of records that travel in words: the lanes load what several elements of a field are made of before they
//! write the first one.
//!
//! The gain: behind a word that is written, the compiler does not load the next element ahead, so each element would take a
//! round trip.

use crate::ir::Elem;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::{Root, Symbol};
use crate::schedule::term::{Node, Term};
use crate::schedule::uniform::is_of_any_lane;

/// The steps with such fields put as a whole.
pub(super) fn rewrite(steps: Vec<Step>, words: &mut Vec<String>) -> Vec<Step> {
    let one = |mut step: Step| {
        if let Step::Object { class, name, .. } = &step
            && class.is(ep::SlotWords)
        {
            words.push(name.clone());
        }
        if let Step::Loop(repeat) = &step
            && let Some(put) = put(repeat, words)
        {
            return put;
        }
        if let Some(inner) = step.inner_mut() {
            *inner = rewrite(std::mem::take(inner), words);
        }
        step
    };
    steps.into_iter().map(one).collect()
}

/// A loop of the lanes that does nothing but set an element of a field in each turn.
fn put(repeat: &Loop, words: &[String]) -> Option<Step> {
    let (Step::Do(Term { node: Node::Call(function, args), .. }), before) =
        repeat.body.split_last()?
    else {
        return None;
    };
    let [field, index, value] = args.as_slice() else { return None };
    let is_number = matches!(&index.node, Node::Name(name) if *name == repeat.binder);
    let is_name = |step: &Step| matches!(step, Step::Let { value, .. } if is_of_any_lane(value));
    let fits = repeat.turns == Takers::Lanes
        && repeat.from.is(0)
        && repeat.elem == Elem::I32
        && function.is(ep::set)
        && field.root().is_some_and(|name| words.iter().any(|known| known == name))
        && is_number
        && is_of_any_lane(value)
        && before.iter().all(is_name);
    if !fits {
        return None;
    }
    let params = vec![Param { kind: ParamType::Index, name: repeat.binder.clone() }];
    let (body, gives) = (before.to_vec(), Some(value.clone()));
    let element = Term::lambda(Lambda { says: Vec::new(), params, body, gives });
    let put = Symbol { root: Root::Library(ep::put), ..function.clone() };
    let args = vec![field.clone(), repeat.to.clone(), element];
    Some(Step::Do(Term::call(put, args, Elem::I32)))
}
