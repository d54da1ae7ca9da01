//! Tensors: who writes them, how often, and when they are read.

use super::Diagnostic;
use crate::ast::{Ident, Int, Span, TokenRange};

/// A word that only inputs have.
pub(crate) fn only_inputs(at: Span, word: &str, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("only an input can be `{word}`, and `{name}` is not an input"))
        .help(format!("remove `{word}`"))
}

/// A word that only outputs have.
pub(crate) fn only_outputs(at: Span, word: &str, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("only an output can be `{word}`, and `{name}` is not an output"))
        .help(format!("remove `{word}`"))
}

/// `up to 0`.
pub(crate) fn no_copies(up_to: &Int, name: &Ident) -> Diagnostic {
    Diagnostic::new(
        up_to,
        format!("`{name}` is given up to {} times, so it is never given", up_to.value),
    )
    .help("up to 1")
}

/// More copies than a kernel can be given.
pub(crate) fn too_many_copies(up_to: &Int, name: &Ident, most: i64) -> Diagnostic {
    let has = format!("the parameters of a kernel hold {most} addresses");
    Diagnostic::new(up_to, format!("`{name}` is given up to {} times, and {has}", up_to.value))
        .help(format!("up to {most}"))
}

/// Two places for one tensor.
pub(crate) fn window_and_host(at: Span, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` cannot be both in the window and on the host"))
        .help("keep one of the two")
}

/// A fill that starts at another size than the tensor's rows.
pub(crate) fn fill_beyond_another(
    beyond: &Ident,
    name: &Ident,
    first: TokenRange,
    extent: &str,
) -> Diagnostic {
    Diagnostic::new(beyond, format!("the rows of `{name}` are not counted by `{beyond}`"))
        .help(format!("beyond {extent}"))
        .also(first, format!("the rows of `{name}` are counted by `{extent}`"))
}

/// An extent that is 0 for every legal shape.
pub(crate) fn empty_extent(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{name}` has no elements, because this extent is never more than 0"),
    )
}

/// A statement that writes what a handle brings.
pub(crate) fn table_of_handle(name: &Ident, word: &str, pipeline: &Ident) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("`{word}` cannot change `{name}`, which belongs to a call of `{pipeline}`"),
    )
    .help("declare a table of your own")
    .also(pipeline, format!("the handle of `{pipeline}` is read-only"))
}

/// A statement that writes an input.
pub(crate) fn input_written(name: &Ident, word: &str, declared: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{word}` cannot change the input `{name}`"))
        .help(format!("declare `{name}` as `inout`"))
        .also(declared, format!("`{declared}` is an input"))
}

/// `store` into a table.
pub(crate) fn table_stored(keyword: Span, name: &Ident) -> Diagnostic {
    Diagnostic::new(keyword, format!("`{name}` is a table, and only `record` writes a table"))
        .help("record")
}

/// `record` into an output.
pub(crate) fn output_recorded(keyword: Span, name: &Ident) -> Diagnostic {
    Diagnostic::new(keyword, format!("`{name}` is an output, and only `store` writes an output"))
        .help("store")
}

/// Two statements that write the same elements.
pub(crate) fn written_twice(name: &Ident, word: &str, first: &Ident) -> Diagnostic {
    let done = if word == "record" { "recorded" } else { "stored" };
    Diagnostic::new(name, format!("`{name}` is {done} twice"))
        .help("keep one of the two statements")
        .also(first, format!("`{first}` is already {done} here"))
}

/// One element written in every turn of a loop.
pub(crate) fn written_in_each_turn(name: &Ident, word: &str, binder: &Ident) -> Diagnostic {
    let done = if word == "record" { "recorded" } else { "stored" };
    Diagnostic::new(
        name,
        format!("the same element of `{name}` is {done} in each turn of `for {binder}`"),
    )
    .help(format!("index the element by `{binder}`, or move the statement out of the loop"))
    .also(binder, format!("`for {binder}` repeats its block"))
}

/// A value that may be absent into a tensor that may not.
pub(crate) fn value_may_be_absent(
    at: TokenRange,
    tensor: &Ident,
    field: &Ident,
    with: &Ident,
) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{tensor}` is always present, and the field `{field}` may be absent"),
    )
    .help(format!("declare `{tensor}` as `optional`"))
    .also(field, format!("the field `{field}` depends on the optional `{with}`"))
}

/// An output that is read.
pub(crate) fn output_read(name: &Ident, declared: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("the output `{name}` cannot be read"))
        .help(format!("declare `{name}` as `inout`"))
        .also(declared, format!("`{declared}` is an output"))
}

/// A table that is read too early.
pub(crate) fn read_before_written(name: &Ident, written: &Ident, by: Option<&Ident>) -> Diagnostic {
    let (when, help) = match by {
        Some(role) => (
            format!("`{name}` is read while `{role}` is still writing it"),
            "send the value through a channel, or read the tensor in a later phase".to_string(),
        ),
        None => (
            format!("`{name}` is read before it is written"),
            "move this below the statement that writes it".to_string(),
        ),
    };
    Diagnostic::new(name, when).help(help).also(written, format!("`{written}` is written here"))
}

/// A size that the call needs before it has written what the size is read from.
pub(crate) fn size_of_own(name: &Ident, size: &Ident) -> Diagnostic {
    Diagnostic::new(
        name,
        format!("the call needs the size `{size}` before the phase that writes `{name}` has ended"),
    )
    .help(format!(
        "record `{name}` in an earlier phase, or let the caller give the size: size {size};"
    ))
}

/// A tensor outside the window that a peer has to reach.
pub(crate) fn not_in_window(
    name: &Ident,
    channel: &Ident,
    kind: &str,
    declared: &Ident,
    source: &str,
) -> Diagnostic {
    let reached = if kind == "pull" { "peers read it" } else { "peers store to it" };
    Diagnostic::new(
        name,
        format!("`{name}` is not in the window, and {reached} through `{channel}`"),
    )
    .help(format!("{source} in window"))
    .also(declared, format!("`{declared}` is in ordinary memory"))
}

/// An output that stays as it was.
pub(crate) fn never_stored(name: &Ident, when: &str) -> Diagnostic {
    Diagnostic::new(name, format!("no role stores the output `{name}`{when}"))
        .help(format!("store {name}[..] = ..;"))
}

/// A table that stays empty.
pub(crate) fn never_recorded(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("no role records the table `{name}`"))
        .help(format!("record {name}[..] = ..;"))
}
