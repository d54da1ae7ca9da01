//! Words that are raised and awaited.

use super::Diagnostic;
use crate::ast::Ident;

/// `raise` or `await` of what is no word between kernels.
pub(crate) fn not_a_word(name: &Ident, word: &str, declared: &Ident) -> Diagnostic {
    let kind = if word == "raise" { "inout" } else { "input" };
    let message = format!("`{word}` needs an `{kind}` of `i32` in the memory of this GPU");
    Diagnostic::new(name, message)
        .help(format!("declare `{name}` as `{kind} {name}: i32[..]`"))
        .also(declared, format!("`{declared}` is declared here"))
}

/// Another use of a word that is raised or awaited.
pub(crate) fn word_used(name: &Ident, word: &str, first: &Ident) -> Diagnostic {
    let message =
        format!("`{name}` changes while the call runs, so only `raise` and `await` can use it");
    Diagnostic::new(name, message)
        .help("use another tensor")
        .also(first, format!("this `{word}` makes it such a word"))
}
