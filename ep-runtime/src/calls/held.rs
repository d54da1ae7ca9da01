//! Tensors that stay the same from call to call, such as the tables of a handle. Such tensors are checked
//! once, and a call with them copies only their numbers.

use super::CallKernel;
use super::spec::{MOST_SIZES, Sizes};
use crate::error::CallError;
use crate::tensor::Given;

/// Most places of a declaration.
pub(super) const MOST_PLACES: usize = 64 * PLACE_WORDS;

const PLACE_WORDS: usize = 4;

/// Some places of a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PlaceSet([u64; PLACE_WORDS]);

impl PlaceSet {
    /// The places below [`MOST_PLACES`] that `wanted` says.
    pub(super) fn of(count: usize, wanted: impl Fn(usize) -> bool) -> PlaceSet {
        let mut set = PlaceSet::default();
        (0..count).filter(|place| wanted(*place)).for_each(|place| set.insert(place));
        set
    }

    pub(super) fn insert(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
    }

    pub(super) fn add(&mut self, other: &PlaceSet) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    /// The first of its places that is not in `other`.
    pub(super) fn beyond(&self, other: &PlaceSet) -> Option<usize> {
        let words = self.0.iter().zip(other.0).enumerate();
        let mut left = words.map(|(at, (word, other))| (at, word & !other));
        let (at, left) = left.find(|(_, left)| *left != 0)?;
        Some(64 * at + left.trailing_zeros() as usize)
    }
}

/// Tensors of the calls of one kernel on one rank, checked. Whoever brings them keeps their memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub(super) covered: PlaceSet,
    /// Where a word stands in the list of a call's numbers, and the word.
    pub(super) words: Vec<(usize, u64)>,
    /// Rows of the outputs of each size that the device finds; any number where there are none.
    pub(super) rows: Sizes,
}

impl Default for Held {
    /// Nothing.
    fn default() -> Held {
        let rows = [u64::MAX; MOST_SIZES];
        Held { covered: PlaceSet::default(), words: Vec::new(), rows }
    }
}

impl CallKernel {
    /// Checks tensors that many calls of a rank will bring. They are as large as the shape says, and
    /// those whose rows are as many as a call has tokens serve calls with fewer as well.
    pub(crate) fn hold(&self, rank: usize, given: &[Option<Given<'_>>]) -> Result<Held, CallError> {
        let inner = self.inner.as_ref();
        inner.spec.hold(given, inner.prepared.kernel().window(rank)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart_by_words() {
        let all = PlaceSet::of(MOST_PLACES, |_| true);
        assert_eq!(PlaceSet::default().beyond(&all), None);
        assert_eq!(all.beyond(&PlaceSet::default()), Some(0));
        let mut some = PlaceSet::of(MOST_PLACES, |place| place != 64 && place != 255);
        assert_eq!(all.beyond(&some), Some(64));
        some.insert(64);
        assert_eq!(all.beyond(&some), Some(255));
        let mut both = PlaceSet::of(MOST_PLACES, |place| place > 100);
        both.add(&some);
        assert_eq!((all.beyond(&both), both.beyond(&some)), (None, Some(255)));
    }
}
