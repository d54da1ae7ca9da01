//! Limits of the hardware that no legal shape keeps.

use super::{Diagnostic, listed};
use crate::ast::{Ident, TokenRange};

/// More warps than a block has.
pub(crate) fn too_many_warps(at: TokenRange, warps: i128) -> Diagnostic {
    Diagnostic::new(at, format!("a block has at most 32 warps, and this is at least {warps}"))
        .help("32")
}

/// More warps than a block has, in several roles.
pub(crate) fn no_room_for_warps(
    at: TokenRange,
    role: &Ident,
    others: &[&Ident],
    total: i128,
) -> Diagnostic {
    let names: Vec<String> = [role].iter().chain(others).map(|role| role.to_string()).collect();
    let mut error = Diagnostic::new(
        at,
        format!("{} need {total} warps in one block, which has 32", listed(&names, "and")),
    )
    .help("give them fewer warps, or separate blocks");
    for other in others {
        error = error.also(*other, format!("`{other}` runs on the same blocks as `{role}`"));
    }
    error
}

/// A message whose small fields fill more than the shared memory of a block.
pub(crate) fn meta_too_large(
    at: &Ident,
    message: &Ident,
    need: i128,
    have: i128,
    channel: &Ident,
) -> Diagnostic {
    let what = format!(
        "the fields of `{message}` besides its row take at least {need} bytes, and a block has {have} \
        bytes of shared memory"
    );
    Diagnostic::new(at, what)
        .help(format!("row {at}: .."))
        .also(channel, format!("`{channel}` carries `{message}` through shared memory"))
}

/// A statement that exceeds a limit for the least shape.
pub(crate) fn never_fits(
    at: TokenRange,
    statement: &str,
    (need, have): (i64, i64),
    what: &str,
    help: &str,
) -> Diagnostic {
    let message =
        format!("`{statement}` needs {need} {what} even for the smallest shape, and {have} exist");
    Diagnostic::new(at, message).help(help)
}

/// More bits than a word has.
pub(crate) fn too_many_bits(at: TokenRange, bits: i128) -> Diagnostic {
    Diagnostic::new(at, format!("`bits` holds at most 64 bits, and this is at least {bits}"))
}
