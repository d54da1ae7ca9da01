//! What a run leaves to those of other commits.

/// Whether this run takes one of `of` variants of the item with some number. A run whose commit `xtask test`
/// names takes one of them in turn, so that those of other commits take the others; any other run takes all.
pub(crate) fn takes(item: usize, variant: usize, of: usize) -> bool {
    commit().is_none_or(|commit| (commit % of + item + variant).is_multiple_of(of))
}

/// Of cases that are much alike one of `of` in turn, and one at least, for such a run; all for any other.
pub(crate) fn some<T>(all: impl IntoIterator<Item = T>, of: usize) -> impl Iterator<Item = T> {
    let all = Vec::from_iter(all);
    let of = of.clamp(1, all.len().max(1));
    let (first, step) = commit().map_or((0, 1), |commit| (commit % of, of));
    all.into_iter().skip(first).step_by(step)
}

/// How many of so many turns such a run takes; all of them any other.
pub(crate) fn count(all: u64) -> u64 {
    if commit().is_some() { all / 2 } else { all }
}

fn commit() -> Option<usize> {
    std::env::var("EPFORGE_COMMIT").ok().and_then(|it| it.parse().ok())
}
