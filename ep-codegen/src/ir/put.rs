//! Putting an expression in place of a name.

use super::{Expr, change, walk};

/// Whether a part of an expression is a name, or something of what the name stands for.
pub fn is_made_of(part: &Expr, name: &str) -> bool {
    matches!(part, Expr::Name { name: own, .. }
        | Expr::Element { tensor: own, .. }
        | Expr::Field { of: own, .. } if own == name)
}

/// Whether a name stands in an expression.
pub fn mentions(whole: &Expr, name: &str) -> bool {
    walk::any_expr(whole, &mut |part| is_made_of(part, name))
}

/// Whether a fold in `whole` gives a name that stands in `value` another meaning.
pub fn hides(whole: &Expr, value: &Expr) -> bool {
    walk::any_expr(
        whole,
        &mut |part| matches!(part, Expr::Fold { binder, .. } if mentions(value, binder)),
    )
}

/// Puts `value` in place of every use of `name` in `whole`. The caller knows that no fold in `whole` has a binder of
/// that name.
pub fn put(whole: &mut Expr, name: &str, value: &Expr) {
    change::expr(whole, false, &mut |part, _| {
        if matches!(part, Expr::Name { name: own, .. } if own == name) {
            *part = value.clone();
        }
    });
}
