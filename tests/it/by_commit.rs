//! What a run leaves to those of other commits.

use std::ops::Range;

/// Whether this run takes one of `of` variants of the item with some number. A run whose commit `xtask test`
/// names takes one of them in turn, so that those of other commits take the others; any other run takes all.
pub(crate) fn takes(item: usize, variant: usize, of: usize) -> bool {
    commit().is_none_or(|commit| (commit % of + item + variant).is_multiple_of(of))
}

/// Of seeds one of `of` in turn, and one at least, for such a run; all for any other.
pub(crate) fn seeds(all: Range<u64>, of: usize) -> impl Iterator<Item = u64> {
    let of = of.min(all.end.saturating_sub(all.start) as usize).max(1);
    let (first, step) = commit().map_or((0, 1), |commit| (commit % of, of));
    all.skip(first).step_by(step)
}

fn commit() -> Option<usize> {
    std::env::var("EPFORGE_COMMIT").ok().and_then(|it| it.parse().ok())
}
