//! One form for statements that mean the same, so that no later stage sees a difference:
//!
//! - `x + 0`, `x * 1` and `!!c` are `x`, `x` and `c`, and `a as i32 * b as i32` of two conditions is `(a && b) as i32`;
//! - a literal stands to the right of what it is compared with, added to or multiplied by, a name to the right of an element
//!   that it is compared with, an element to the right of a sum that it is added to, and the stripe to the right of an index;
//! - a `let` that only gives a name another name is gone;
//! - an `if` that is all of a loop, or of another `if`, is its `where`;
//! - `for t in 0..tokens` is `for t in tokens`, and two loops that do the same for two parts of a range are one.

use super::put::{is_made_of, put};
use super::typed::{elem_of, first_part};
use super::{
    Action, BinaryOp, CONDITION, Domain, Elem, Expr, NameKind, Pipeline, Stmt, WellKnown, change,
    walk,
};

/// Brings all roles of a selected pipeline into this form.
pub(super) fn simplify(ir: &mut Pipeline) {
    let mut roles = std::mem::take(&mut ir.roles);
    for role in &mut roles {
        without_aliases(&mut role.body);
        change::stmts(&mut role.body, &mut |stmt| {
            change::roots(stmt, &mut |root, is_number| {
                change::expr(root, is_number, &mut |part, is_number| simple(ir, part, is_number));
            });
            with_condition(stmt);
            change::nested(stmt).into_iter().for_each(joined);
        });
        joined(&mut role.body);
    }
    ir.roles = roles;
}

/// Brings one expression, whose parts are in this form, into it.
fn simple(ir: &Pipeline, whole: &mut Expr, is_number: bool) {
    if let Expr::Not { value } = whole
        && let Expr::Not { value } = value.as_mut()
    {
        *whole = std::mem::replace(value, Expr::Bool { value: false });
        return;
    }
    let Expr::Binary { op, left, right } = whole else { return };
    if let Some(other) = exchanged(op)
        && belongs_right(op, left, right)
    {
        *op = other;
        std::mem::swap(left, right);
    }
    if *op == BinaryOp::Mul
        && let (Expr::Cast { value: first, elem }, Expr::Cast { value: second, elem: other }) =
            (left.as_ref(), right.as_ref())
        && elem == other
        && matches!(elem, Elem::I32 | Elem::I64)
        && [first, second].iter().all(|it| elem_of(ir, it) == Elem::Bool)
    {
        let (left, right) = (first.clone(), second.clone());
        let both = Expr::Binary { op: BinaryOp::And, left, right };
        *whole = Expr::Cast { value: Box::new(both), elem: elem.clone() };
        return;
    }
    let says_nothing = match (&op, right.as_ref()) {
        (BinaryOp::Add | BinaryOp::Sub, Expr::Int { value: 0 }) => is_number || is_whole(ir, left),
        (BinaryOp::Mul | BinaryOp::Div, Expr::Int { value: 1 }) => !is_truth(ir, left),
        _ => false,
    };
    if says_nothing {
        *whole = std::mem::replace(left, Expr::Bool { value: false });
    }
}

/// The operation that gives the same with its sides exchanged.
fn exchanged(op: &BinaryOp) -> Option<BinaryOp> {
    Some(match op {
        BinaryOp::Add | BinaryOp::Mul | BinaryOp::Eq | BinaryOp::Ne => *op,
        BinaryOp::Lt => BinaryOp::Gt,
        BinaryOp::Le => BinaryOp::Ge,
        BinaryOp::Gt => BinaryOp::Lt,
        BinaryOp::Ge => BinaryOp::Le,
        BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem | BinaryOp::And | BinaryOp::Or => {
            return None;
        }
    })
}

/// Whether the left side of an operation belongs to its right.
fn belongs_right(op: &BinaryOp, left: &Expr, right: &Expr) -> bool {
    let is_literal =
        |side| matches!(side, &Expr::Int { .. } | &Expr::Real { .. } | &Expr::Bool { .. });
    let is_element =
        matches!(right, Expr::Element { .. } | Expr::Field { .. } | Expr::OfChannel { .. });
    let is_test = matches!(op, BinaryOp::Eq | BinaryOp::Ne);
    let is_added = *op == BinaryOp::Add
        && match (left, right) {
            (Expr::Element { .. }, Expr::Call { helper, .. }) => helper == "sum",
            (Expr::Name { kind, .. }, Expr::Name { kind: other, .. }) => {
                *kind == NameKind::Stripe && *other != NameKind::Stripe
            }
            _ => false,
        };
    (is_literal(left) && !is_literal(right))
        || (is_test && is_element && matches!(left, Expr::Name { .. }))
        || is_added
}

/// Whether a value is known to be an integer of at least 32 bits.
fn is_whole(ir: &Pipeline, value: &Expr) -> bool {
    use super::NameKind::{Dim, Me, Size, Stripe};
    match value {
        Expr::Int { .. } => true,
        Expr::Name { kind, .. } => matches!(kind, Dim | Me | Size | Stripe),
        Expr::Element { tensor, .. } => {
            matches!(elem_of_tensor(ir, tensor), Some(Elem::I32 | Elem::I64))
        }
        Expr::Cast { elem, .. } => matches!(elem, Elem::I32 | Elem::I64),
        Expr::Fold { body, .. } => is_whole(ir, body),
        Expr::Binary { op, left, right } => {
            op.is_arithmetic() && is_whole(ir, left) && is_whole(ir, right)
        }
        _ => false,
    }
}

/// Whether a value may be a `bool`: its product with 1 is an `i32`.
fn is_truth(ir: &Pipeline, value: &Expr) -> bool {
    match value {
        Expr::Element { tensor, .. } => {
            elem_of_tensor(ir, tensor).is_none_or(|elem| elem == Elem::Bool)
        }
        Expr::Cast { elem, .. } => *elem == Elem::Bool,
        Expr::Int { .. } | Expr::Real { .. } => false,
        Expr::Name { kind, .. } => *kind == super::NameKind::Binder,
        Expr::Fold { .. } => false,
        Expr::Binary { op, .. } => !op.is_arithmetic(),
        _ => true,
    }
}

/// The type of the elements of a tensor.
fn elem_of_tensor(ir: &Pipeline, tensor: &str) -> Option<Elem> {
    ir.tensors.iter().find(|own| own.name == tensor).map(|own| first_part(ir, &own.elem))
}

/// Moves the condition of an `if` that is the whole body of a loop, or of another `if`, to that loop.
fn with_condition(stmt: &mut Stmt) {
    let Action::For { position: None, filter, body, .. } = &mut stmt.action else { return };
    let [
        Stmt {
            action: Action::For { domain: Domain::Once, filter: inner, body: within, .. }, ..
        },
    ] = body.as_mut_slice()
    else {
        return;
    };
    let Some(condition) = inner.take() else { return };
    *filter = Some(match filter.take() {
        None => condition,
        Some(outer) => {
            Expr::Binary { op: BinaryOp::And, left: Box::new(outer), right: Box::new(condition) }
        }
    });
    *body = std::mem::take(within);
}

/// Makes one loop of neighbors that do the same for the two parts of a range.
fn joined(body: &mut Vec<Stmt>) {
    let mut at = 0;
    while at + 1 < body.len() {
        match one_of(&body[at], &body[at + 1]) {
            Some(domain) => {
                body.remove(at + 1);
                if let Action::For { domain: own, .. } = &mut body[at].action {
                    *own = domain;
                }
            }
            None => at += 1,
        }
    }
    for stmt in body {
        if let Action::For { domain, .. } = &mut stmt.action
            && let Domain::Range { low: Expr::Int { value: 0 }, high } = &*domain
            && *high
                == (Expr::Name { name: WellKnown::Tokens.name().to_string(), kind: NameKind::Size })
        {
            *domain = Domain::Tokens;
        }
    }
}

/// The range of one loop that does what two loops do, if they do the same for its parts.
fn one_of(first: &Stmt, second: &Stmt) -> Option<Domain> {
    let range = |stmt: &Stmt| match &stmt.action {
        Action::For { domain: Domain::Range { low, high }, position: None, .. } => {
            Some((low.clone(), high.clone()))
        }
        _ => None,
    };
    let ((low, middle), (next, high)) = (range(first)?, range(second)?);
    // Neither part ends behind the range.
    let is_inside = matches!((&low, &middle), (
        Expr::Int { value: 0 },
        Expr::Binary { op: BinaryOp::Div, left, right },
    ) if **left == high
        && matches!(**left, Expr::Name { kind: NameKind::Size | NameKind::Dim, .. })
        && matches!(**right, Expr::Int { value: 1.. }));
    let bare = |stmt: &Stmt| {
        let mut own = vec![stmt.clone()];
        change::stmts(&mut own, &mut |inner| {
            inner.at = crate::ir::Source { line: 0, text: String::new() };
        });
        if let Action::For { domain, .. } = &mut own[0].action {
            *domain = Domain::Once;
        }
        own
    };
    let same = middle == next && is_inside && bare(first) == bare(second);
    same.then_some(Domain::Range { low, high })
}

/// Removes each `let` that only gives a name another name, and uses the other name.
fn without_aliases(body: &mut Vec<Stmt>) {
    let mut at = 0;
    while at < body.len() {
        let alias = match &body[at].action {
            Action::Let { name, value: Expr::Name { name: other, kind } } if name != CONDITION => {
                Some((
                    name.clone(),
                    Expr::Name { name: other.clone(), kind: kind.clone() },
                    other.clone(),
                ))
            }
            _ => None,
        };
        if let Some((name, value, other)) = alias
            && can_replace(&body[at + 1..], &name, &other)
        {
            body.remove(at);
            change::stmts(&mut body[at..], &mut |stmt| {
                change::roots(stmt, &mut |root, _| put(root, &name, &value));
            });
            continue;
        }
        if let Some(inner) = change::nested(&mut body[at]) {
            without_aliases(inner);
        }
        at += 1;
    }
}

/// Whether `other` can replace `name` in some statements: no statement binds either name again, and `name` is no message.
fn can_replace(body: &[Stmt], name: &str, other: &str) -> bool {
    let mut fits = true;
    let is_own = |binder: &String| binder == name || binder == other;
    walk::stmts(body, &mut |stmt| {
        fits &= match &stmt.action {
            Action::For { binder, .. } | Action::Receive { binder, .. } => !is_own(binder),
            Action::Gather { binder, part, across, .. } => {
                ![binder, part, across].into_iter().any(is_own)
            }
            Action::Let { name, .. } => !is_own(name),
            _ => true,
        };
        walk::exprs(stmt, &mut |part| {
            fits &= match part {
                Expr::Fold { binder, .. } => !is_own(binder),
                Expr::Name { .. } => true,
                part => !is_made_of(part, name),
            };
        });
    });
    fits
}
