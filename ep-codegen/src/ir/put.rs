//! Putting an expression in place of a name.

use super::{Domain, Expr, walk};

/// Whether a part of an expression is a name, or something of what the name stands for.
pub fn is_made_of(part: &Expr, name: &str) -> bool {
    matches!(part, Expr::Name { name: own, .. }
        | Expr::Element { tensor: own, .. }
        | Expr::Field { of: own, .. } if own == name)
}

/// Whether a name stands in an expression.
pub fn mentions(whole: &Expr, name: &str) -> bool {
    let mut found = false;
    walk::expr(whole, &mut |part| found |= is_made_of(part, name));
    found
}

/// Whether a fold in `whole` gives a name that stands in `value` another meaning.
pub fn hides(whole: &Expr, value: &Expr) -> bool {
    let mut found = false;
    walk::expr(whole, &mut |part| {
        found |= matches!(part, Expr::Fold { binder, .. } if mentions(value, binder));
    });
    found
}

/// Puts `value` in place of every use of `name` in `whole`. The caller knows that no fold in `whole` has a binder of
/// that name.
pub fn put(whole: &mut Expr, name: &str, value: &Expr) {
    let each = |list: &mut Vec<Expr>| list.iter_mut().for_each(|part| put(part, name, value));
    match whole {
        Expr::Name { name: own, .. } if own == name => *whole = value.clone(),
        Expr::Int { .. } | Expr::Real { .. } | Expr::Bool { .. } | Expr::Name { .. } => {}
        Expr::Element { indices, .. } | Expr::Field { indices, .. } => each(indices),
        Expr::OfChannel { index, indices, .. } => {
            each(index);
            each(indices);
        }
        Expr::Call { args, .. } => each(args),
        Expr::Fold { domain, body, .. } => {
            match &mut **domain {
                Domain::Row { row: part } | Domain::ReceivedFrom { peer: part } => {
                    put(part, name, value);
                }
                Domain::Range { low, high } => {
                    put(low, name, value);
                    put(high, name, value);
                }
                Domain::Once
                | Domain::Tokens
                | Domain::Stripe
                | Domain::Dim { .. }
                | Domain::Peers { .. } => {}
            }
            put(body, name, value);
        }
        Expr::Cast { value: inner, .. } | Expr::Not { value: inner } => put(inner, name, value),
        Expr::If { condition, yes, no } => {
            put(condition, name, value);
            put(yes, name, value);
            put(no, name, value);
        }
        Expr::Binary { left, right, .. } => {
            put(left, name, value);
            put(right, name, value);
        }
    }
}
