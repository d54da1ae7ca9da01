//! Elements that need not be read: where a role records a table whose elements are short sums of what every warp
//! knows, a warp that reads one computes it, and waits for no other warp to record it.

use super::{read, written};
use crate::ir::put::{hides, put};
use crate::ir::{
    Action, Domain, Elem, ElemType, Expr, Fold, NameKind, Pipeline, Stmt, WellKnown, change, walk,
};

/// Numbers of ranks or nodes: a sum over one of them is short.
const SHORT: [WellKnown; 3] = [WellKnown::Ranks, WellKnown::Nodes, WellKnown::LocalRanks];

/// A table of such a role.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::schedule) struct Forward {
    pub(in crate::schedule) tensor: String,
    /// The value of an element, as an expression of its indices `index_name(0)`, `index_name(1)` and so on.
    value: Expr,
    axes: usize,
}

/// An index of an element, as no declaration can name it.
fn index_name(axis: usize) -> String {
    format!("index {axis}")
}

fn index(axis: usize) -> Expr {
    super::runs::own_name(&index_name(axis))
}

impl Forward {
    /// The element with these indices.
    pub(in crate::schedule) fn at(&self, indices: &[Expr]) -> Option<Expr> {
        if indices.len() != self.axes || indices.iter().any(|own| hides(&self.value, own)) {
            return None;
        }
        let mut value = self.value.clone();
        for (axis, own) in indices.iter().enumerate() {
            put(&mut value, &index_name(axis), own);
        }
        Some(value)
    }
}

/// Replaces elements of these tables with the expressions that compute them.
pub(in crate::schedule) fn computed(whole: &Expr, known: &[Forward]) -> Expr {
    let mut whole = whole.clone();
    change::expr(&mut whole, false, &mut |part, _| {
        let Expr::Element { tensor, indices } = &part else { return };
        let own = known.iter().find(|own| own.tensor == *tensor);
        if let Some(value) = own.and_then(|own| own.at(indices)) {
            *part = value;
        }
    });
    whole
}

/// The tables of a role that is cut whose elements are computed where they are read.
pub(in crate::schedule) fn forwards(ir: &Pipeline, body: &[Stmt]) -> Vec<Forward> {
    let all = written(body);
    let mut found = Vec::new();
    for (at, stmt) in body.iter().enumerate() {
        let Some(forward) = forward_of(ir, stmt) else { continue };
        let is_awaited = |channel: &str| {
            let awaits = |stmt: &Stmt| matches!(&stmt.action, Action::Await { channel: own } if own == channel);
            body[..at].iter().any(awaits)
        };
        let is_known = |part: &Expr| match part {
            Expr::Element { tensor, .. } => !all.contains(tensor),
            // A message stays in its slot until the call ends.
            Expr::OfChannel { channel, .. } => is_awaited(channel),
            _ => true,
        };
        let mut fits = !read(&body[..at]).contains(&forward.tensor);
        walk::expr(&forward.value, &mut |part| fits &= is_known(part));
        if fits {
            found.push(forward);
        }
    }
    found
}

/// The table that a statement fills, if the statement is a loop, or nested loops, that records every element.
fn forward_of(ir: &Pipeline, stmt: &Stmt) -> Option<Forward> {
    let mut binders = Vec::new();
    let mut inner = stmt;
    while let Action::For {
        binder,
        domain: Domain::Dim { .. },
        position: None,
        filter: None,
        body,
    } = &inner.action
    {
        let [only] = body.as_slice() else { return None };
        binders.push(binder);
        inner = only;
    }
    let Action::Record { target, value } = &inner.action else { return None };
    let tensor = ir.tensors.iter().find(|tensor| tensor.name == target.tensor)?;
    let ElemType::Scalar { elem: elem @ (Elem::I32 | Elem::I64) } = &tensor.elem else {
        return None;
    };
    if tensor.optional {
        return None;
    }
    let names: Vec<&String> = target.indices.iter().map(name_of).collect::<Option<_>>()?;
    let axis_of = |binder: &String| names.iter().position(|name| *name == binder);
    let (mut value, axes) = match value {
        Expr::Fold { fold: Fold::PrefixSum, binder, domain, body }
            if matches!(**domain, Domain::Dim { .. }) =>
        {
            let (low, high) = (Expr::Int { value: 0 }, index(axis_of(binder)?));
            let before = Box::new(Domain::Range { low, high });
            let (fold, binder, body) = (Fold::Sum, binder.clone(), body.clone());
            (Expr::Fold { fold, binder, domain: before, body }, binders.len() + 1)
        }
        value => (value.clone(), binders.len()),
    };
    if names.len() != axes {
        return None;
    }
    for binder in binders {
        let axis = axis_of(binder)?;
        if hides(&value, &super::runs::own_name(binder)) {
            return None;
        }
        put(&mut value, binder, &index(axis));
    }
    (is_short(&value, &names)).then(|| Forward {
        tensor: target.tensor.clone(),
        value: Expr::Cast { value: Box::new(value), elem: elem.clone() },
        axes: names.len(),
    })
}

fn name_of(index: &Expr) -> Option<&String> {
    match index {
        Expr::Name { name, .. } => Some(name),
        _ => None,
    }
}

/// Whether a value is one sum over ranks or nodes at most, of what every warp has wherever it reads the element.
fn is_short(value: &Expr, names: &[&String]) -> bool {
    let (mut folds, mut fits) = (0, true);
    let mut own: Vec<String> = (0..names.len()).map(index_name).collect();
    walk::expr(value, &mut |part| {
        fits &= match part {
            Expr::Fold { fold: Fold::PrefixSum, .. } | Expr::Field { .. } => false,
            Expr::Name { kind: NameKind::Size | NameKind::Stripe, .. } => false,
            // A `let` may stand for more than a number.
            Expr::Name { name, kind: NameKind::Binder } => own.contains(name),
            Expr::Fold { binder, domain, .. } => {
                folds += 1;
                own.push(binder.clone());
                match &**domain {
                    Domain::Dim { name } => SHORT.iter().any(|short| short.is(name)),
                    // That of a prefix sum.
                    Domain::Range { high, .. } => (0..names.len()).any(|axis| *high == index(axis)),
                    _ => false,
                }
            }
            _ => true,
        };
    });
    fits && folds <= 1
}
