//! `cuda fn` declarations.

use proc_macro2::{Ident, Span};

use super::Diagnostic;

/// A parameter or result that is no single element.
pub(crate) fn not_scalar(at: Span, elem: &str, what: &str) -> Diagnostic {
    Diagnostic::new(at, format!("{what} of a `cuda fn` is one element, and `{elem}` is none"))
        .help("f32")
}

/// A function with the name of a helper.
pub(crate) fn hides_helper(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is already a helper of the language"))
        .help(format!("choose another name, for example `my_{name}`"))
}
