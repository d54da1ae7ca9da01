//! `cuda fn` declarations.

use super::Diagnostic;
use crate::ast::{Ident, Span};

/// A parameter or result that is no single element.
pub(crate) fn not_scalar(at: Span, elem: &str, what: &str) -> Diagnostic {
    Diagnostic::new(
        at,
        format!(
            "{what} of a `cuda fn` has to be one element, and `{elem}` is not an \
    element type"
        ),
    )
    .help("f32")
}

/// A function with the name of a helper.
pub(crate) fn hides_helper(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is already a helper of the language"))
        .help(format!("choose another name, for example `my_{name}`"))
}

/// A file that cannot be read.
pub(crate) fn cannot_read(at: Span, path: &str, reason: &str) -> Diagnostic {
    Diagnostic::new(at, format!("cannot read `{path}`: {reason}")).help(
        "name the file relative to the folder of the crate's Cargo.toml, or of the file that \
        `--declarations` names",
    )
}

/// A text without the function.
pub(crate) fn no_definition(
    at: Span,
    name: &str,
    near: Option<&str>,
    declared: &str,
) -> Diagnostic {
    let error = match near {
        Some(near) => format!("the C++ text defines no `{name}`, but it has `{near}`"),
        None => format!("the C++ text defines no `{name}`"),
    };
    Diagnostic::new(at, error).help(format!("{declared} {{ .. }}"))
}

/// What the C++ text says, for comparison with the declaration.
pub(crate) struct Text<'a> {
    /// Where the text stands.
    pub(crate) at: Span,
    /// The head it should have.
    pub(crate) declared: &'a str,
    /// The head it has.
    pub(crate) defined: &'a str,
}

impl Text<'_> {
    fn beside(&self, error: Diagnostic) -> Diagnostic {
        error
            .help(format!("{} {{ .. }}", self.declared))
            .also(self.at, format!("the C++ text defines `{}`", self.defined))
    }
}

/// A text with another number of parameters.
pub(crate) fn parameter_count(
    name: &Ident,
    declared: usize,
    defined: usize,
    text: &Text<'_>,
) -> Diagnostic {
    let counted = if declared == 1 { "1 parameter" } else { &format!("{declared} parameters") };
    let message = format!("`{name}` is declared with {counted}, and its C++ text takes {defined}");
    text.beside(Diagnostic::new(name, message))
}

/// A text with another parameter.
pub(crate) fn parameter_type(
    at: Span,
    param: &Ident,
    elem: &str,
    written: &str,
    text: &Text<'_>,
) -> Diagnostic {
    let message = format!("`{param}` is declared as `{elem}`, and the C++ text says `{written}`");
    text.beside(Diagnostic::new(at, message))
}

/// A text with another result.
pub(crate) fn result_type(
    at: Span,
    name: &Ident,
    elem: &str,
    written: &str,
    text: &Text<'_>,
) -> Diagnostic {
    let message =
        format!("`{name}` is declared to return `{elem}`, and the C++ text says `{written}`");
    text.beside(Diagnostic::new(at, message))
}
