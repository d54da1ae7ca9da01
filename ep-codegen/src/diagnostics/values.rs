//! Ranges of values: what an input may hold.

use super::Diagnostic;
use crate::ast::{Expr, Ident, TokenRange};

/// A range of something that the caller does not give.
pub(crate) fn of_no_input(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("only an input can have a range of values, and `{name}` is not an input"),
    )
    .help("remove the range")
}

/// A range of something else than whole numbers.
pub(crate) fn of_no_number(at: TokenRange, name: &Ident, elem: &str) -> Diagnostic {
    Diagnostic::new(at, format!("only whole numbers can have a range, and `{name}` is `{elem}`"))
        .help("remove the range")
}

/// A range that is empty for every legal shape.
pub(crate) fn empty(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("the range of `{name}` is empty")).help("in 0..ranks")
}

/// An end that a call does not know before it begins.
pub(crate) fn not_a_number(name: &Ident) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("the ends of a range are numbers of the shape, tunes and sizes, and `{name}` is not one \
        of them"),
    )
    .help("use the number that all values are less than")
}

/// Steps that never go up.
pub(crate) fn no_step(step: &Expr, name: &Ident) -> Diagnostic {
    Diagnostic::new(step.at, format!("the values of `{name}` cannot ascend in this range"))
        .help("by at most 1")
}
