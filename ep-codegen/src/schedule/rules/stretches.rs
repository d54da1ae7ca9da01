//! Rule `wide`, of rows that are computed from other rows: a lane computes the elements of several stretches at once.
//!
//! The gain: the compiler does not move a load ahead of a store, so each stretch of a row would wait for memory. Here the
//! loads of all stretches are in flight before the first one is stored.

use super::loops_as;
use super::staged_parts::{takes_values, with_places};
use super::wide::loaded;
use crate::ir::Elem;
use crate::schedule::library::ep;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::{Symbol, THREADS};
use crate::schedule::term::Term;

/// The steps with such rows computed by several stretches.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>) -> Vec<Step> {
    loops_as(steps, &|repeat| at_once(repeat).map(Step::Do))
}

/// A loop over the elements of a row, by eight a lane, which loads some of them.
fn at_once(repeat: &Loop) -> Option<Term> {
    let i = &repeat.binder;
    let is_plain = |step: &Step| takes_values(step, i) && !matches!(step, Step::SkipUnless(_));
    let fits = repeat.turns == Takers::Wide
        && repeat.body.iter().any(loads)
        && repeat.body.iter().all(is_plain);
    if !fits {
        return None;
    }
    let at = Symbol::text(format!("decltype({i})"));
    let mut body = repeat.body.clone();
    body.iter_mut().for_each(|step| with_places(step, &at));
    let params = vec![Param { kind: ParamType::Place, name: i.clone() }];
    let each = Term::lambda(Lambda { says: Vec::new(), params, body, gives: None });
    let args = vec![repeat.from.clone(), repeat.to.clone(), each];
    Some(Term::call(Symbol::from(ep::for_wide).of(THREADS), args, Elem::I32))
}

/// Whether a step loads elements of a row.
fn loads(step: &Step) -> bool {
    step.terms().into_iter().any(|term| loaded(term).is_some()) || step.inner().iter().any(loads)
}
