//! Where loops end, looked up once ahead of each: behind what a turn stores, the compiler would load it again.

use super::library::ep;
use super::scope::Names;
use super::step::{Loop, Step};
use super::term::{Node, Term};

/// The steps with a name for every end of a loop that is loaded.
pub(super) fn named(names: &mut Names, steps: Vec<Step>) -> Vec<Step> {
    let mut out = Vec::new();
    for mut step in steps {
        if let Some(inner) = step.inner_mut() {
            *inner = named(names, std::mem::take(inner));
        }
        if let Step::Loop(Loop { binder, to, .. }) = &mut step
            && is_loaded(to)
        {
            let name = names.fresh(&format!("{binder}_end"));
            let end = Term { range: to.range, ..Term::name(&name, to.elem.clone()) };
            out.push(Step::Let { name, value: std::mem::replace(to, end) });
        }
        out.push(step);
    }
    out
}

fn is_loaded(term: &Term) -> bool {
    let here = match &term.node {
        Node::Index(..) => true,
        Node::Call(function, _) => function.is(ep::rows_of),
        _ => false,
    };
    here || term.inner().into_iter().any(is_loaded)
}
