//! What a run leaves to those of other commits.

/// Whether this run takes one of `of` variants of the item with some number. A run whose commit `xtask test`
/// names takes one of them in turn, so that those of other commits take the others; any other run takes all.
pub(crate) fn takes(item: usize, variant: usize, of: usize) -> bool {
    let commit = std::env::var("EPFORGE_COMMIT").ok().and_then(|it| it.parse::<usize>().ok());
    commit.is_none_or(|commit| (commit % of + item + variant).is_multiple_of(of))
}
