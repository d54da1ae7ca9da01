//! Clocks: what of every warp happens before a point.
//!
//! A warp counts epochs. Its lanes run in step most of the time, so an entry of a view holds one
//! epoch for the whole warp, and a few lanes apart that are further: the leaders that released
//! something by themselves.

use std::rc::Rc;

/// Bits of an epoch; the other five of a word name a lane.
const EPOCH_BITS: u32 = 27;
/// Epochs end here; a checker starts its count anew before.
pub(super) const EPOCH_LIMIT: u32 = 1 << EPOCH_BITS;
const EPOCH_MASK: u32 = EPOCH_LIMIT - 1;
/// Lanes that an entry keeps apart.
const APART: usize = 3;

/// What a view holds of one warp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// All lanes, up to and with this epoch.
    all: u32,
    /// Single lanes that are further: lane << 27 | epoch, 0 when unused.
    apart: [u32; APART],
}

impl Entry {
    /// Whether it holds what `lane` did at `epoch`.
    #[inline(always)]
    pub(super) fn has(&self, lane: u32, epoch: u32) -> bool {
        self.all >= epoch
            || self.apart.iter().any(|word| {
                *word >> EPOCH_BITS == lane && *word & EPOCH_MASK >= epoch && *word != 0
            })
    }

    /// Whether it holds what one of the lanes of `mask` did at `epoch`.
    pub(super) fn has_any(&self, mask: u32, epoch: u32) -> bool {
        self.all >= epoch
            || self.apart.iter().any(|word| {
                *word != 0 && mask >> (*word >> EPOCH_BITS) & 1 != 0 && *word & EPOCH_MASK >= epoch
            })
    }

    /// Adds all lanes up to `epoch`.
    pub(super) fn add_all(&mut self, epoch: u32) {
        if epoch > self.all {
            self.all = epoch;
            for word in &mut self.apart {
                if *word & EPOCH_MASK <= epoch {
                    *word = 0;
                }
            }
        }
    }

    /// Adds one lane up to `epoch`.
    pub(super) fn add_lane(&mut self, lane: u32, epoch: u32) {
        if self.has(lane, epoch) {
            return;
        }
        let new = lane << EPOCH_BITS | epoch;
        let same = self.apart.iter().position(|word| *word != 0 && *word >> EPOCH_BITS == lane);
        let free = || self.apart.iter().position(|word| *word == 0);
        if let Some(place) = same.or_else(free) {
            self.apart[place] = new;
            return;
        }
        // No room: the lane that is least far is rounded up to the whole warp. That can hide a
        // race, but never invents one.
        let epochs = self.apart.iter().map(|word| *word & EPOCH_MASK);
        let least = epochs.chain([epoch]).min().unwrap_or(epoch);
        self.add_all(least);
        if epoch > least {
            self.add_lane(lane, epoch);
        }
    }

    /// Adds all that `other` holds.
    #[inline(always)]
    pub(super) fn join(&mut self, other: &Self) {
        if *self == *other {
            return;
        }
        self.add_all(other.all);
        for word in other.apart {
            if word != 0 {
                self.add_lane(word >> EPOCH_BITS, word & EPOCH_MASK);
            }
        }
    }
}

/// An entry for every warp and actor.
pub(super) type View = Box<[Entry]>;

/// Adds all that `other` holds.
pub(super) fn join(view: &mut View, other: &View) {
    for (entry, more) in view.iter_mut().zip(other) {
        entry.join(more);
    }
}

/// Views that a lane has taken over and not yet joined: an acquire costs a pointer, and the lanes
/// of a warp that acquired the same are joined once, when they meet.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts(Vec<Rc<View>>);

/// Parts that a lane keeps before they are joined.
const PARTS: usize = 6;

impl Parts {
    /// Takes a view over.
    pub(super) fn take(&mut self, view: &Rc<View>, pool: &mut Pool) {
        if self.0.iter().any(|part| Rc::ptr_eq(part, view)) {
            return;
        }
        if self.0.len() == PARTS {
            let mut total = pool.copy(view);
            for part in self.0.drain(..) {
                join(&mut total, &part);
                pool.give(part);
            }
            self.0.push(Rc::new(total));
        } else {
            self.0.push(Rc::clone(view));
        }
    }

    /// Takes all of `other` over.
    pub(super) fn take_all(&mut self, other: &Self, pool: &mut Pool) {
        for view in &other.0 {
            self.take(view, pool);
        }
    }

    /// Joins all parts into `view`.
    pub(super) fn join_into(&self, view: &mut View) {
        for part in &self.0 {
            join(view, part);
        }
    }

    /// The parts; none are left.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Rc<View>> + '_ {
        self.0.drain(..)
    }

    /// Drops all parts.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for part in self.0.drain(..) {
            pool.give(part);
        }
    }

    /// Whether a part holds what one of the lanes of `mask` of `warp` did at `epoch`.
    #[inline(always)]
    pub(super) fn has_any(&self, warp: usize, mask: u32, epoch: u32) -> bool {
        self.0.iter().any(|part| part[warp].has_any(mask, epoch))
    }
}

/// Views to be used again: releases make and drop thousands.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Vec<View>,
    len: usize,
}

impl Pool {
    /// For views of `len` entries.
    pub(super) fn new(len: usize) -> Self {
        Self { free: Vec::new(), len }
    }

    /// A view that holds nothing.
    pub(super) fn empty(&mut self) -> View {
        match self.free.pop() {
            Some(mut view) => {
                view.fill(Entry::default());
                view
            }
            None => vec![Entry::default(); self.len].into_boxed_slice(),
        }
    }

    /// A copy of `view`.
    pub(super) fn copy(&mut self, view: &View) -> View {
        match self.free.pop() {
            Some(mut copy) => {
                copy.copy_from_slice(view);
                copy
            }
            None => view.clone(),
        }
    }

    /// Takes a view back, if nobody else holds it.
    pub(super) fn give(&mut self, view: Rc<View>) {
        self.free.extend(Rc::into_inner(view));
    }
}

#[cfg(test)]
mod tests {
    use super::Entry;

    #[test]
    fn a_lane_apart_is_not_its_warp() {
        let mut entry = Entry::default();
        entry.add_all(5);
        entry.add_lane(3, 9);
        assert!(entry.has(3, 9) && entry.has(7, 5));
        assert!(!entry.has(7, 6) && !entry.has(3, 10));
        assert!(entry.has_any(1 << 3 | 1 << 4, 8) && !entry.has_any(1 << 4, 8));
    }

    #[test]
    fn no_lane_is_ever_forgotten() {
        let mut entry = Entry::default();
        for lane in 0..32 {
            entry.add_lane(lane, 100 + lane);
        }
        assert!((0..32).all(|lane| entry.has(lane, 100 + lane)));
        assert!(!entry.has(31, 132));
    }

    #[test]
    fn joining_keeps_both() {
        let (mut left, mut right) = (Entry::default(), Entry::default());
        left.add_lane(0, 4);
        right.add_lane(1, 6);
        right.add_all(2);
        left.join(&right);
        assert!(left.has(0, 4) && left.has(1, 6) && left.has(9, 2) && !left.has(9, 3));
    }
}
