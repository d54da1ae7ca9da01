//! Handles of other pipelines.

use super::Diagnostic;
use crate::ast::{Ident, Span, Tensor, Uses};
use crate::spelling::nearest;

/// A pipeline that this block does not declare.
pub(crate) fn unknown_pipeline(uses: &Uses, known: Vec<String>) -> Diagnostic {
    let name = &uses.name;
    let error = Diagnostic::new(name, format!("this block has no pipeline `{name}`"));
    let error = error.unresolved();
    match nearest(&name.to_string(), known.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help(format!("uses handle {name} {{ table: i32[tokens, ranks] }};")),
    }
}

/// A pipeline that leaves nothing.
pub(crate) fn no_tables(name: &Ident, declared: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("`{name}` leaves no table to read"))
        .help(format!("remove `uses handle {name};`"))
        .also(declared, format!("`{declared}` declares no table"))
}

/// A handle of which nothing is read.
pub(crate) fn empty_list(uses: &Uses) -> Diagnostic {
    let name = &uses.name;
    let path: Vec<String> = uses.path.iter().map(Ident::to_string).collect();
    Diagnostic::new(name, format!("no table of `{name}` is listed"))
        .help(format!("uses handle {} {{ table: i32[tokens, ranks] }};", path.join("::")))
}

/// A table that the pipeline does not leave.
pub(crate) fn unknown_table(table: &Ident, pipeline: &Ident, known: Vec<String>) -> Diagnostic {
    let error = Diagnostic::new(table, format!("`{pipeline}` leaves no table `{table}`"));
    match nearest(&table.to_string(), known.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help(format!("remove `{table}`")),
    }
}

/// A table that is declared in another way.
pub(crate) fn table_differs(
    table: &Tensor,
    declared: &Tensor,
    pipeline: &Ident,
    read: &str,
    recorded: &str,
) -> Diagnostic {
    let name = &table.name;
    Diagnostic::new(
        name,
        format!("`{name}` is read as `{read}`, and `{pipeline}` records `{recorded}`"),
    )
    .help(format!("{name}: {recorded}"))
    .also(&declared.name, format!("`{name}` is recorded as `{recorded}`"))
}

/// Something else than a type in the list of tables.
pub(crate) fn only_type(at: Span, table: &Ident) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{table}` is read through a handle, where only its type can be given"),
    )
    .help("remove this word")
}

/// One name for tables of two origins.
pub(crate) fn ambiguous_table(
    at: &Ident,
    table: &Ident,
    pipeline: &Ident,
    first: &Ident,
) -> Diagnostic {
    Diagnostic::new(at, format!("the handle of `{pipeline}` has a second table `{table}`"))
        .help("rename one of the two tables")
        .also(first, format!("`{first}` is declared here"))
}

/// An extent that the reading pipeline does not know.
pub(crate) fn undeclared_extent(table: &Ident, pipeline: &Ident, number: &Ident) -> Diagnostic {
    Diagnostic::new(
        table,
        format!("`{table}` has the extent `{number}`, which is not declared here"),
    )
    .help(format!("shape {{ {number}: 1..=64 }}"))
    .also(pipeline, format!("`{pipeline}` declares `{table}` over `{number}`"))
}

/// Pipelines that need each other's handle.
pub(crate) fn circle(name: &Ident, pipeline: &Ident) -> Diagnostic {
    let needs = if name == pipeline {
        "its own handle".to_string()
    } else {
        format!("the handle of `{name}`, which needs that of `{pipeline}`")
    };
    Diagnostic::new(name, format!("`{pipeline}` needs {needs}"))
        .help(format!("remove `uses handle {name}`"))
}
