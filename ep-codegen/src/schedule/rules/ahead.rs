//! Rule `wide`, of rows whose parts are elsewhere: the loads of several elements are under way at once.
//!
//! The gain: without it, a lane that adds two parts of a row has only two loads in flight, and every stretch waits for NVLink.

use crate::ir::Elem;
use crate::schedule::library::ep;
use crate::schedule::rules::loops_as;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::{Symbol, THREADS};
use crate::schedule::term::{Node, Term};

/// What the parts of a stretch are called.
const PARTS: &str = "of_parts";

/// The steps with the loads of such loops ahead. They have been looked at: what the library calls is not looked at again.
pub(in crate::schedule) fn rewrite(steps: Vec<Step>) -> Vec<Step> {
    loops_as(steps, &|repeat| ahead(repeat).or_else(|| row_sums(repeat)).map(Step::Do))
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

/// A loop over a row, by eight values a lane, that adds up those of some rows and then uses the sum.
fn row_sums(repeat: &Loop) -> Option<Term> {
    let [Step::Object { class, name: sum, args }, Step::Do(added), rest @ ..] =
        repeat.body.as_slice()
    else {
        return None;
    };
    let Node::Call(function, parts) = &added.node else { return None };
    let [row, _, count, each] = parts.as_slice() else { return None };
    let Node::Lambda(each) = &each.node else { return None };
    let begins_at_zero =
        matches!(args.as_slice(), [first] if *first == Term::int(0).converted(&Elem::F32));
    let uses = |step: &Step| matches!(step, Step::Says(_) | Step::Remark(_) | Step::Do(_));
    if repeat.turns != Takers::Wide
        || *class != ep::Wide.of(&Elem::F32)
        || !function.is(ep::for_some_rows)
        || !begins_at_zero
        || each.mentions(&repeat.binder)
        // The lanes look together at which rows there are.
        || [repeat.binder.as_str(), "team.lane"].iter().any(|own| row.mentions(own))
        || !rest.iter().all(uses)
    {
        return None;
    }
    let param = |kind, name: &str| Param { kind, name: name.to_string() };
    let mut add = Lambda::clone(each);
    add.params.insert(0, param(ParamType::WideSum, sum));
    let params =
        vec![param(ParamType::Index, &repeat.binder), param(ParamType::Wide(Elem::F32), sum)];
    let set = Lambda { says: Vec::new(), params, body: rest.to_vec(), gives: None };
    let mut symbol = Symbol::from(ep::sum_some_rows);
    symbol.of = function.of.clone();
    let symbol = symbol.of(THREADS);
    let ends = vec![repeat.from.clone(), repeat.to.clone(), count.clone()];
    let lambdas = vec![row.clone(), Term::lambda(add), Term::lambda(set)];
    Some(Term::call(symbol, [ends, lambdas].concat(), Elem::I32))
}

/// The function, the parts and the number of values of such a call, and what it calls for each part.
fn parts_of(call: &Term) -> Option<((Symbol, Term, Term), Term)> {
    let Node::Call(function, args) = &call.node else { return None };
    let [parts, _, count, each] = args.as_slice() else { return None };
    let all = (function.clone(), parts.clone(), count.clone());
    function.is(ep::for_parts).then(|| (all, each.clone()))
}
