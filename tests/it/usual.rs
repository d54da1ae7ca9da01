//! Which cases a usual run takes: the same few every time. `xtask test --full` sets `EPFORGE_FULL`
//! and takes all.

/// Whether a usual run takes variant `variant` of item `item`, where each item has `of` variants: it takes one
/// variant of each item.
pub(crate) fn takes(item: usize, variant: usize, of: usize) -> bool {
    is_full() || (item + variant).is_multiple_of(of)
}

/// The seeds below `of` that a usual run takes of item `item`: another one for each item.
pub(crate) fn one(item: usize, of: usize) -> impl Iterator<Item = u64> {
    (0..of as u64).filter(move |seed| takes(item, *seed as usize, of))
}

/// Every `2 * of`-th of `all`, beginning with the first.
pub(crate) fn some<T>(all: impl IntoIterator<Item = T>, of: usize) -> impl Iterator<Item = T> {
    all.into_iter().step_by(if is_full() { 1 } else { 2 * of })
}

/// How many of `all` turns a usual run takes.
pub(crate) fn count(all: u64) -> u64 {
    if is_full() { all } else { all.div_ceil(8) }
}

pub(crate) fn is_full() -> bool {
    std::env::var_os("EPFORGE_FULL").is_some_and(|it| it == "1")
}
