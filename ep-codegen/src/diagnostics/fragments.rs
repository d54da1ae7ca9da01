//! Fragments, and the places that use them.

use super::Diagnostic;
use crate::ast::{Call, Ident, Param, TokenRange};
use crate::keywords::PARAM_KINDS;

/// The word of a parameter's kind, with its article.
fn kind_of(param: &Param) -> String {
    let word = PARAM_KINDS.iter().find(|(_, kind)| *kind == param.kind.value);
    word.map_or_else(String::new, |(word, _)| format!("a {word}"))
}

/// A fragment with the name of a statement or of a standard fragment.
pub(crate) fn name_taken(name: &Ident, by: &str) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is already {by}"))
        .help(format!("choose another name, for example `my_{name}`"))
}

/// A name in a fragment that nothing in it declares.
pub(crate) fn not_a_parameter(name: &Ident, fragment: &Ident) -> Diagnostic {
    let message =
        format!("the fragment `{fragment}` cannot use `{name}`, which is declared outside of it");
    Diagnostic::new(name, message).help(format!("make `{name}` a parameter of `{fragment}`"))
}

/// A parameter in a place that takes another kind.
pub(crate) fn parameter_elsewhere(name: &Ident, param: &Param, wanted: &str) -> Diagnostic {
    let kind = kind_of(param);
    Diagnostic::new(name, format!("`{name}` is {kind}, and this place needs {wanted}"))
        .also(&param.name, format!("the parameter `{name}` is declared here"))
}

/// A fragment that comes to itself.
pub(crate) fn recursion(name: &Ident, chain: &[String]) -> Diagnostic {
    let through: Vec<String> = chain.iter().map(|link| format!("`{link}`")).collect();
    let message = match through.as_slice() {
        [_] => format!("the fragment `{name}` uses itself"),
        _ => format!("the fragment `{name}` uses itself, through {}", through[1..].join(" and ")),
    };
    Diagnostic::new(name, message).help("write a loop")
}

/// `use` of statements, or a call of declarations.
pub(crate) fn other_sort(name: &Ident, is_items: bool) -> Diagnostic {
    let (of, help) = match is_items {
        true => ("declarations", format!("write `use {name};` beside the other declarations")),
        false => ("statements", format!("write `{name}(..);` in a role")),
    };
    Diagnostic::new(name, format!("`{name}` is a fragment of {of}")).help(help)
}

/// More or fewer arguments than parameters.
pub(crate) fn argument_count(call: &Call, params: &[Param]) -> Diagnostic {
    let names: Vec<String> = params.iter().map(|param| param.name.to_string()).collect();
    let (name, given) = (&call.name, call.args.len());
    let plural = if params.len() == 1 { "argument" } else { "arguments" };
    let are = if given == 1 { "is" } else { "are" };
    Diagnostic::new(
        call.at,
        format!("`{name}` takes {} {plural}, and {given} {are} given", params.len()),
    )
    .help(format!("{name}({});", names.join(", ")))
}

/// An argument of another kind than its parameter.
pub(crate) fn argument_kind(at: TokenRange, fragment: &Ident, param: &Param) -> Diagnostic {
    let (name, kind) = (&param.name, kind_of(param));
    Diagnostic::new(
        at,
        format!("`{fragment}` needs {kind} as `{name}`, and this is something else"),
    )
}

/// A binder around a use that hides a number of the fragment.
pub(crate) fn number_hidden(call: &Call, binder: &str) -> Diagnostic {
    let message =
        format!("`{}` uses the number `{binder}`, and a binder hides that number here", call.name);
    Diagnostic::new(call.at, message)
        .help(format!("choose another name, for example `each_{binder}`"))
}

/// Fragments whose parameters stand in one another again and again.
pub(crate) fn too_large(call: &Call) -> Diagnostic {
    Diagnostic::new(call.at, format!("the expansion of `{}` is too large", call.name))
        .help("give a long argument a name with `let`")
}
