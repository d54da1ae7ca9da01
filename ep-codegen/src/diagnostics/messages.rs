//! Messages, what is pushed into them and what is announced.

use std::fmt::Display;

use super::{Diagnostic, listed};
use crate::ast::{Field, Ident, Message, Span, TokenRange};
use crate::spelling::nearest;

/// A message of nothing.
pub(crate) fn no_fields(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("the message `{name}` has no fields"))
        .help(format!("message {name} {{ row x: bf16[hidden] }}"))
}

/// Two bulk fields.
pub(crate) fn second_row(second: &Field, first: &Field) -> Diagnostic {
    let at = second.row.unwrap_or_else(|| second.name.span());
    Diagnostic::new(
        at,
        format!("`{}` is a second row, and a message can have only one", second.name),
    )
    .help("remove this `row`")
    .also(&first.name, format!("`{}` is already the row of the message", first.name))
}

/// A bulk field that is not one row.
pub(crate) fn row_rank(field: &Field) -> Diagnostic {
    let name = &field.name;
    Diagnostic::new(name, format!("the row `{name}` needs exactly one extent"))
        .help(format!("row {name}: bf16[hidden]"))
}

/// A bulk field that may be absent.
pub(crate) fn row_with(with: &Ident, field: &Field) -> Diagnostic {
    Diagnostic::new(
        with,
        format!("the row `{}` is always present, so it cannot depend on a tensor", field.name),
    )
    .help(format!("remove `with {with}`"))
}

/// A field with the name of a number that every message has.
pub(crate) fn reserved_field(name: &Ident) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("every message has a number `{name}`, so no field can have that name"),
    )
    .help(format!("choose another name, for example `{name}_`"))
}

/// A field that cannot be told from a number of its slot.
pub(crate) fn slot_number(name: &Ident, channel: &Ident) -> Diagnostic {
    let what =
        format!("every slot of `{channel}` has a number `{name}`, so no field can have that name");
    Diagnostic::new(name, what).help(format!("choose another name, for example `{name}_`"))
}

/// `with` a tensor that is always there.
pub(crate) fn with_not_optional(with: &Ident, tensor: &Ident) -> Diagnostic {
    Diagnostic::new(with, format!("`{with}` is always present, so `with` has no effect"))
        .help(format!("remove `with {with}`"))
        .also(tensor, format!("`{tensor}` is not `optional`"))
}

/// A field that a `push` leaves out.
pub(crate) fn field_not_pushed(keyword: Span, channel: &Ident, field: &Field) -> Diagnostic {
    let name = &field.name;
    Diagnostic::new(keyword, format!("this `push` to `{channel}` does not give the field `{name}`"))
        .help(format!("{name}: .."))
        .also(name, format!("the field `{name}` is declared here"))
}

/// A field that is given twice.
pub(crate) fn field_twice(name: &Ident, first: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` is given twice"))
        .help("keep one of the two")
        .also(first, format!("`{first}` is given here"))
}

/// A field that the message does not have.
pub(crate) fn field_not_in_message(name: &Ident, message: &Message) -> Diagnostic {
    let fields: Vec<String> = message.fields.iter().map(|field| field.name.to_string()).collect();
    let error = Diagnostic::new(name, format!("`{}` has no field `{name}`", message.name));
    let error = match nearest(&name.to_string(), fields.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help(format!("{name}: i32")),
    };
    error.also(
        &message.name,
        format!("`{}` has the fields {}", message.name, listed(&fields, "and")),
    )
}

/// `..rest` of something that is no message.
pub(crate) fn rest_not_a_message(rest: &Ident) -> Diagnostic {
    Diagnostic::new(rest, format!("`{rest}` is not a message, so its fields cannot be copied"))
        .help("name the binder of a loop over messages")
}

/// Something else than a tensor offered to be pulled.
pub(crate) fn pull_takes_tensors(
    at: TokenRange,
    channel: &Ident,
    found: &impl Display,
) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("a push to the pull channel `{channel}` offers whole tensors, and this is {found}"),
    )
    .help("name a tensor with one row per message")
}

/// A field that is always there, from a tensor that may not be.
pub(crate) fn field_may_be_absent(field: &Field, tensor: &Ident, at: TokenRange) -> Diagnostic {
    let name = &field.name;
    Diagnostic::new(
        at,
        format!("the field `{name}` is always present, and the tensor `{tensor}` may be absent"),
    )
    .help(format!("with {tensor}"))
    .also(name, format!("the field `{name}` is declared without `with`"))
}

/// `announce` on a channel without header.
pub(crate) fn announce_without_header(
    keyword: Span,
    channel: &Ident,
    names: &[String],
) -> Diagnostic {
    Diagnostic::new(keyword, format!("`{channel}` has no header to announce"))
        .help(format!("header: [{}]", names.join(", ")))
        .also(channel, format!("`{channel}` is declared without `header`"))
}

/// A number that the header does not have.
pub(crate) fn not_in_header(name: &Ident, channel: &Ident, header: &[Ident]) -> Diagnostic {
    let names: Vec<String> = header.iter().map(Ident::to_string).collect();
    let error = Diagnostic::new(name, format!("the header of `{channel}` has no `{name}`"));
    let error = match nearest(&name.to_string(), names.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help("remove it"),
    };
    error.also(channel, format!("the header of `{channel}` has {}", listed(&names, "and")))
}

/// A number of the header that is left out.
pub(crate) fn not_announced(keyword: Span, channel: &Ident, name: &Ident) -> Diagnostic {
    Diagnostic::new(keyword, format!("this `announce` on `{channel}` does not give `{name}`"))
        .help(format!("{name}: .."))
        .also(name, format!("`{name}` is a number of the header"))
}
