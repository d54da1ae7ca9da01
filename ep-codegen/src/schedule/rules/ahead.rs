//! Rule `wide`, of rows whose parts are elsewhere: the loads of several neighboring stretches of a row are under way at
//! once.
//!
//! What it gains: with two parts of a row a lane has two loads under way, and each stretch waits for the wire.

use crate::ir::Elem;
use crate::schedule::library::ep;
use crate::schedule::rules::loops_as;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Symbol;
use crate::schedule::term::{Node, Term};

/// What the parts of a stretch are called.
const PARTS: &str = "of_parts";

/// The steps with the loads of such loops ahead. They have been looked at: what the library calls is not looked at again.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>) -> Vec<Step> {
    loops_as(steps, &|repeat| ahead(repeat).map(Step::Do))
}

/// A loop over a row, by eight values a lane, that takes the parts of each stretch once.
fn ahead(repeat: &Loop) -> Option<Term> {
    let [Step::Let { name: i, .. }, body @ ..] = repeat.body.as_slice() else { return None };
    let plain = |step: &Step| !matches!(step, Step::SkipUnless(_)) && !step.mentions(PARTS);
    let takes = |step: &&Step| matches!(step, Step::Do(call) if parts_of(call).is_some());
    if repeat.turns != Takers::WideChunks
        || !body.iter().all(plain)
        || body.iter().filter(takes).count() != 1
        || body.iter().any(|step| step.mentions(&repeat.binder))
    {
        return None;
    }
    let mut call = None;
    let steps = body.iter().map(|step| {
        let Step::Do(taken) = step else { return step.clone() };
        let Some((all, each)) = parts_of(taken) else { return step.clone() };
        call = Some(all);
        Step::Do(Term::method(PARTS, "each", vec![each], Elem::I32))
    });
    let steps: Vec<Step> = steps.collect();
    let (function, parts, count) = call?;
    let mut class = Symbol::from(ep::WideParts);
    class.of = function.of.clone();
    let own = parts.root().map(|name| Symbol::text(format!("decltype({name})")))?;
    let params = vec![
        Param { kind: ParamType::Index, name: i.clone() },
        Param { kind: ParamType::Class(class.of(own)), name: PARTS.to_string() },
    ];
    let each = Term::lambda(Lambda { says: Vec::new(), params, body: steps, gives: None });
    let mut symbol = Symbol::from(ep::for_wide_parts);
    symbol.of = function.of;
    let args = vec![parts, repeat.from.clone(), repeat.to.clone(), count, each];
    Some(Term::call(symbol, args, Elem::I32))
}

/// The function, the parts and the number of values of such a call, and what it calls for each part.
fn parts_of(call: &Term) -> Option<((Symbol, Term, Term), Term)> {
    let Node::Call(function, args) = &call.node else { return None };
    let [parts, _, count, each] = args.as_slice() else { return None };
    let all = (function.clone(), parts.clone(), count.clone());
    function.is(ep::for_parts).then(|| (all, each.clone()))
}
