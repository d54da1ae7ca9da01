//! Phases in the wrong place, and what does not belong into one.

use super::Diagnostic;
use crate::ast::{Ident, Span};

/// A phase inside a phase.
pub(crate) fn phase_in_phase(keyword: Span, inner: &Ident, outer: &Ident) -> Diagnostic {
    Diagnostic::new(keyword, format!("the phase `{inner}` is inside the phase `{outer}`"))
        .help(format!("move `phase {inner} {{ .. }}` below `phase {outer} {{ .. }}`"))
        .also(outer, format!("the phase `{outer}` can contain only roles"))
}

/// A phase that would depend on an arm.
pub(crate) fn phase_in_when(keyword: Span, name: &Ident) -> Diagnostic {
    Diagnostic::new(
        keyword,
        format!("the phase `{name}` is inside a `when`, and launches cannot depend on an arm"),
    )
    .help(format!("phase {name} {{ when .. {{ role .. }} }}"))
}

/// A declaration that is no role inside a phase.
pub(crate) fn not_a_role(at: Span, what: &str, phase: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("the phase `{phase}` can contain only roles, and this is {what}"))
        .help("move it out of the phase")
}

/// A role that belongs to no launch.
pub(crate) fn role_outside(role: &Ident, first: &Ident) -> Diagnostic {
    Diagnostic::new(role, format!("the role `{role}` is outside of all phases"))
        .help(format!("phase {first} {{ role {role} .. }}"))
        .also(first, format!("the pipeline is launched in phases, `{first}` first"))
}
