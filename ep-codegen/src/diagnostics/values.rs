//! Ranges of values: what an input may hold.

use super::Diagnostic;
use crate::ast::{Expr, Ident, TokenRange};

/// A range of something that the caller does not give.
pub(crate) fn of_no_input(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("a range of values is for inputs, and `{name}` is none"))
        .help("remove the range")
}

/// A range of something else than whole numbers.
pub(crate) fn of_no_number(at: TokenRange, name: &Ident, elem: &str) -> Diagnostic {
    Diagnostic::new(at, format!("a range is of whole numbers, and `{name}` is `{elem}`"))
        .help("remove the range")
}

/// A range that is empty for every legal shape.
pub(crate) fn empty(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` may hold no value at all")).help("in 0..ranks")
}

/// An end that a call does not know before it begins.
pub(crate) fn not_a_number(name: &Ident) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("a range ends at numbers of the shape, tunes and sizes, and `{name}` is none"),
    )
    .help("name the number that the values stay below")
}

/// Steps that never go up.
pub(crate) fn no_step(step: &Expr, name: &Ident) -> Diagnostic {
    Diagnostic::new(step.at, format!("the values of `{name}` could not ascend"))
        .help("by at most 1")
}
