//! Roles, their blocks and warps.

use super::Diagnostic;
use crate::ast::{Ident, Role, TokenRange};

/// A pipeline without work.
pub(crate) fn no_roles(pipeline: &Ident, when: &str) -> Diagnostic {
    Diagnostic::new(pipeline, format!("`{pipeline}` has no role{when}"))
        .help("role Copy on all blocks { .. }")
}

/// A range of blocks without blocks.
pub(crate) fn empty_blocks(at: TokenRange, low: &str, high: &str) -> Diagnostic {
    Diagnostic::new(at, format!("the range `{low}..{high}` contains no block"))
        .help(format!("blocks {high}..{low}"))
}

/// A role without warps.
pub(crate) fn no_warps(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("the role `{name}` has no warps")).help("1")
}

/// Two ways to deal out the work.
pub(crate) fn binder_and_share(at: TokenRange, binder: &Ident, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("the warps of `{name}[{binder}]` are already shared by `{binder}`"))
        .help(format!("role {name}[{binder}] on .. {{ .. }}"))
}

/// `token` beside other indices.
pub(crate) fn token_with_others(token: &Ident) -> Diagnostic {
    Diagnostic::new(token, "tokens can be shared only inside a stripe, without another index")
        .help("warps shared by token")
}

/// `stripe` in a role that has none.
pub(crate) fn no_stripe(at: &Ident, role: &Ident) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`stripe` has no value in `{role}`, because its warps do not share stripes"),
    )
    .help("warps shared by stripe")
}

/// Stripes of unknown number.
pub(crate) fn no_stripes(at: &Ident) -> Diagnostic {
    Diagnostic::new(at, "`stripe` needs the number `stripes`, which nothing declares")
        .help("tune { stripes: 12 in [4, 8, 12, 24] }")
        .unresolved()
}

/// A role that would run on the warps of another one.
pub(crate) fn same_warps(role: &Role, other: &Role) -> Diagnostic {
    let (name, beside) = (&role.name, &other.name);
    let what = format!(
        "`{name}` and `{beside}` run on the same warps: `{name}` does not say how many warps it has"
    );
    let said = Diagnostic::new(role.blocks_at, what).help(format!("role {name} on .., 8 warps"));
    match other.warps {
        Some(_) => said.also(other.blocks_at, format!("`{beside}` runs on these blocks")),
        // The same is said of it there.
        None => said,
    }
}

/// Blocks without a role.
pub(crate) fn blocks_not_covered(at: TokenRange, missing: &str) -> Diagnostic {
    Diagnostic::new(at, format!("no role runs on {missing}"))
        .help("role .. on other blocks { .. }, or write `all blocks` here")
}

/// `other blocks` without any named ones.
pub(crate) fn other_than_nothing(at: TokenRange, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` runs on `other blocks`, and no role names blocks"))
        .help("all blocks")
}
