//! Rule `staged`, of rows whose parts are elsewhere: bulk copies bring the pieces of all parts into shared memory, while
//! earlier ones are read.
//!
//! The gain: a warp keeps as many bytes in flight as its stages hold, instead of six loads per lane. A lane adds up the
//! parts of several stretches at once (`ep::Stretches`), and tests once per part whether the part exists.

use crate::ir::naming::function_of;
use crate::ir::network::over_network;
use crate::ir::{Action, Elem, walk};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::rules::parts_ahead;
use crate::schedule::step::{Lambda, ParamType, Step};
use crate::schedule::symbol::{Constant, Of, Root, Symbol, THREADS};
use crate::schedule::term::{Node, Term};

/// The steps with the parts of rows read through shared memory, and how many parts a row has at most, if any are.
pub(in crate::schedule) fn rewrite(
    role: &mut RoleLowering<'_>,
    mut steps: Vec<Step>,
) -> (Vec<Step>, Option<Constant>) {
    let Some(parts) = steps.iter().find_map(first) else { return (steps, None) };
    // Rows that came over a network may lie in memory of the host.
    let mut far = false;
    walk::stmts(&role.role.body, &mut |stmt| {
        if let Action::Gather { channel, .. } = &stmt.action {
            far |= role.ir.channels.iter().any(|own| own.name == *channel && over_network(own));
        }
    });
    if far {
        return (steps, None);
    }
    let name = role.names.fresh("stages");
    let cfg = Constant::of_role(role.role);
    for step in &mut steps {
        stage(step, &parts, &cfg, &name);
    }
    let of = |text: String| Term::name(text, Elem::I32);
    let own = of(format!("smem.{}[team.warp]", function_of(&role.role.name)));
    let class = ep::PartStages.of(cfg).of(parts.clone());
    let args = vec![own, of("team".to_string())];
    let at = steps.iter().position(|step| matches!(step, Step::Object { .. })).unwrap_or(0);
    steps.insert(at, Step::Object { class, name: name.clone(), args });
    if parts_ahead::may_look(role) {
        steps = parts_ahead::rewrite(role, &name, steps);
    }
    steps.push(Step::Do(Term::method(&name, "finish", Vec::new(), Elem::I32)));
    (steps, Some(parts))
}

/// Whether some of these steps reads the row of a part, or of anything else, otherwise.
pub(in crate::schedule) fn reads_others(steps: &[Step]) -> bool {
    steps.iter().any(|step| step.terms().into_iter().any(is_other) || reads_others(step.inner()))
}

fn is_other(term: &Term) -> bool {
    let here = match &term.node {
        Node::Call(function, _) => {
            [ep::for_parts, ep::for_wide_parts].iter().any(|it| function.is(*it))
                || function.is_method("row")
        }
        Node::Lambda(own) => reads_others(&own.body) || own.gives.as_ref().is_some_and(is_other),
        _ => false,
    };
    here || term.inner().into_iter().any(is_other)
}

/// The number of parts of the first loop over rows of parts.
fn first(step: &Step) -> Option<Constant> {
    let own = match step {
        Step::Do(call) => parts_of(call),
        _ => None,
    };
    own.or_else(|| step.inner().iter().find_map(first))
}

/// Gives such loops over so many parts the stages.
fn stage(step: &mut Step, parts: &Constant, role: &Constant, stages: &str) {
    if let Step::Do(call) = step
        && parts_of(call).as_ref() == Some(parts)
        && let Node::Call(function, args) = &mut call.node
        && let Some(Of::Elem(elem)) = function.of.first().cloned()
    {
        *function = ep::for_staged_parts.of(&elem).of(parts.clone()).of(role.clone()).of(THREADS);
        args.insert(0, Term::name(stages, Elem::I32));
        if let Some(Term { node: Node::Lambda(body), .. }) = args.last_mut() {
            of_places(body);
        }
    }
    for inner in step.inner_mut().into_iter().flatten() {
        stage(inner, parts, role, stages);
    }
}

/// The number of parts of the rows that a call reads, if its function needs to know of the place in a row only which
/// values to load and to store there.
fn parts_of(call: &Term) -> Option<Constant> {
    let Node::Call(function, args) = &call.node else { return None };
    let (true, [_, Of::Constant(parts)], Some(Term { node: Node::Lambda(body), .. })) =
        (function.is(ep::for_wide_parts), function.of.as_slice(), args.last())
    else {
        return None;
    };
    let i = &body.params.first()?.name;
    body.body.iter().all(|step| takes_values(step, i)).then(|| parts.clone())
}

/// Whether the number `i` says nothing but where values are loaded or stored.
pub(super) fn takes_values(step: &Step, i: &str) -> bool {
    step.terms().into_iter().all(|term| has_values(term, i))
        && step.inner().iter().all(|inner| takes_values(inner, i))
}

/// `takes_values` of a term.
fn has_values(term: &Term, i: &str) -> bool {
    match &term.node {
        Node::Call(function, args) if function.is(ep::get_wide) || function.is(ep::set_wide) => {
            args.iter().enumerate().all(|(number, arg)| number == 1 || has_values(arg, i))
        }
        Node::Lambda(own) => own.body.iter().all(|step| takes_values(step, i)),
        Node::Name(name) => name != i,
        _ => term.inner().into_iter().all(|inner| has_values(inner, i)),
    }
}

/// Has a function of a stretch and its parts take several stretches as well.
fn of_places(body: &mut Lambda) {
    let [i, parts] = body.params.as_mut_slice() else { return };
    i.kind = ParamType::Place;
    parts.kind = ParamType::Class(Symbol::text("auto"));
    let at = Symbol::text(format!("decltype({})", i.name));
    for step in &mut body.body {
        with_places(step, &at);
    }
}

/// Makes the values of a stretch those of a place.
pub(super) fn with_places(step: &mut Step, at: &Symbol) {
    if let Step::Object { class, .. } = step
        && class.is(ep::Wide)
    {
        class.root = Root::Library(ep::WideAt);
        class.of.push(Of::Class(at.clone()));
    }
    for term in step.terms_mut() {
        if let Node::Call(_, args) = &mut term.node {
            for arg in args {
                let Node::Lambda(each) = &mut arg.node else { continue };
                for param in &mut each.params {
                    if matches!(param.kind, ParamType::Wide(_)) {
                        param.kind = ParamType::Class(Symbol::text("auto"));
                    }
                }
                each.body.iter_mut().for_each(|inner| with_places(inner, at));
            }
        }
    }
    for inner in step.inner_mut().into_iter().flatten() {
        with_places(inner, at);
    }
}
