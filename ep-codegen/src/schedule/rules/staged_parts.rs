//! Rule `staged`, of rows whose parts are elsewhere: bulk copies bring the pieces of all parts into shared memory, while
//! earlier ones are read.
//!
//! What it gains: a warp keeps as many bytes in flight as its stages hold, instead of six loads per lane.

use crate::ir::naming::function_of;
use crate::ir::network::over_network;
use crate::ir::{Action, Elem, walk};
use crate::schedule::RoleLowering;
use crate::schedule::library::ep;
use crate::schedule::rules::parts_ahead;
use crate::schedule::step::{ParamType, Step};
use crate::schedule::symbol::{Constant, Of, Symbol};
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

/// The number of parts of the first loop over rows of parts.
fn first(step: &Step) -> Option<Constant> {
    let own = match step {
        Step::Do(Term { node: Node::Call(function, _), .. }) => parts_of(function),
        _ => None,
    };
    own.or_else(|| step.inner().iter().find_map(first))
}

/// Gives such loops over so many parts the stages.
fn stage(step: &mut Step, parts: &Constant, role: &Constant, stages: &str) {
    if let Step::Do(Term { node: Node::Call(function, args), .. }) = step
        && parts_of(function).as_ref() == Some(parts)
        && let Some(Of::Elem(elem)) = function.of.first().cloned()
    {
        *function = ep::for_staged_parts.of(&elem).of(parts.clone()).of(role.clone());
        args.insert(0, Term::name(stages, Elem::I32));
        if let Some(Term { node: Node::Lambda(body), .. }) = args.last_mut()
            && let Some(of_parts) = body.params.last_mut()
        {
            let class = ep::StagedParts.of(&elem).of(role.clone()).of(parts.clone());
            of_parts.kind = ParamType::Class(class);
        }
    }
    for inner in step.inner_mut().into_iter().flatten() {
        stage(inner, parts, role, stages);
    }
}

/// The number of parts of the rows that a function reads.
fn parts_of(function: &Symbol) -> Option<Constant> {
    let parts = match function.of.as_slice() {
        [_, Of::Constant(parts)] => Some(parts.clone()),
        _ => None,
    };
    parts.filter(|_| function.is(ep::for_wide_parts))
}
