//! Names that stand for nothing, for two things, or for something Rust or C++ keeps.

use super::{Diagnostic, listed};
use crate::ast::{Ident, Variant};
use crate::spelling::nearest;

/// The near miss, or what there is to choose from.
pub(super) fn suggest(diagnostic: Diagnostic, name: &Ident, known: &[String]) -> Diagnostic {
    match nearest(&name.to_string(), known.iter().map(String::as_str)) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None if known.is_empty() || known.len() > 9 => diagnostic,
        None => diagnostic.help(format!("write {}", listed(known, "or"))),
    }
}

/// A word that nothing declares.
pub(crate) fn unknown(name: &Ident, what: &str, known: Vec<String>) -> Diagnostic {
    suggest(Diagnostic::new(name, format!("unknown {what} `{name}`")), name, &known).unresolved()
}

/// An arm that its variant does not have.
pub(crate) fn unknown_arm(arm: &Ident, axis: &Variant, known: Vec<String>) -> Diagnostic {
    let message = format!("variant `{}` has no arm `{arm}`", axis.name);
    suggest(Diagnostic::new(arm, message), arm, &known)
        .also(&axis.name, format!("`{}` has the arms {}", axis.name, listed(&known, "and")))
        .unresolved()
}

/// A word that is declared for other arms than those that use it.
pub(crate) fn absent(name: &Ident, axis: &Ident, arms: &[Ident], declared: &Ident) -> Diagnostic {
    let arms: Vec<String> = arms.iter().map(Ident::to_string).collect();
    Diagnostic::new(name, format!("`{name}` exists only when `{axis}` is {}", listed(&arms, "or")))
        .help(format!("when {axis} is {} {{ .. }}", arms.join(" | ")))
        .also(declared, format!("`{declared}` is declared inside `when {axis} is ..`"))
        .unresolved()
}

/// One name for two things.
pub(crate) fn duplicate(name: &Ident, what: &str, first: &Ident) -> Diagnostic {
    let underscore = if name.to_string().starts_with(char::is_uppercase) { "" } else { "_" };
    Diagnostic::new(name, format!("the {what} `{name}` is declared twice"))
        .help(format!("choose another name, for example `{name}{underscore}2`"))
        .also(first, format!("`{first}` is first declared here"))
}

/// A binder with the name of something that can be seen where it stands.
pub(crate) fn hides(binder: &Ident, declared: &Ident) -> Diagnostic {
    Diagnostic::new(binder, format!("the binder `{binder}` hides another `{binder}`"))
        .help(format!("choose another name, for example `each_{binder}`"))
        .also(declared, format!("`{declared}` is declared here"))
}

/// A target that is a number, a channel or a binder.
pub(crate) fn not_a_tensor(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is not a tensor, so nothing can be written to it"))
        .unresolved()
}

/// A cast to an axis.
pub(crate) fn cast_to_axis(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is a variant, and a cast needs one element type"))
        .help("cast_e4m3(row, 128)")
}

/// A name that reads like another kind of name.
pub(crate) fn style(name: &Ident, what: &str, camel: bool, wanted: &str) -> Diagnostic {
    let case = if camel { "upper camel case" } else { "snake case" };
    Diagnostic::new(name, format!("the {what} `{name}` is not in {case}"))
        .help(format!("write `{wanted}`"))
}

/// A word of the language as a name.
pub(crate) fn reserved(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` has a meaning of its own and cannot be declared"))
        .help(format!("choose another name, for example `{name}_`"))
}

/// A name that becomes a word of C++ or Rust in what is generated.
pub(crate) fn word_of_cpp(name: &Ident, emitted: &str) -> Diagnostic {
    let (what, other) = if name == emitted {
        (format!("`{name}` is a reserved word of C++"), format!("{name}_"))
    } else {
        let what = format!("`{name}` becomes `{emitted}`, a reserved word of C++ or Rust");
        (what, format!("{name}Rows"))
    };
    Diagnostic::new(name, what).help(format!("choose another name, for example `{other}`"))
}

/// A name that the emitted functions use themselves.
pub(crate) fn word_of_emitted(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` already has a meaning in the emitted functions"))
        .help(format!("choose another name, for example `{name}_`"))
}

/// A name that the types of a pipeline's calls have already.
pub(crate) fn word_of_calls(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` already has a meaning in the calls of every pipeline"))
        .help(format!("choose another name, for example `{name}_`"))
}

/// Two declarations that become one function of the emitted text.
pub(crate) fn same_function(name: &Ident, kind: &str, emitted: &str, first: &Ident) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("the role `{name}` and the {kind} `{first}` are both `{emitted}` in CUDA"),
    )
    .help(format!("choose another name, for example `{name}Role`"))
    .also(first, format!("the {kind} `{first}` is `{emitted}` in CUDA"))
}

/// Two declarations that become one struct of the emitted text.
pub(crate) fn same_struct(
    name: &Ident,
    what: &str,
    emitted: &str,
    first: &Ident,
    kind: &str,
) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("the {what} `{name}` and the {kind} `{first}` are both `{emitted}` in CUDA"),
    )
    .help(format!(
        "choose another name, for example `{name}{}`",
        if kind == "channel" { "Role" } else { "_2" }
    ))
    .also(first, format!("the {kind} `{first}` is `{emitted}` in CUDA"))
}
