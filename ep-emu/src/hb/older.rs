//! What words held before they were written last. A look that nothing orders behind the write may still find that: two
//! relaxed words are seen in an order of their own, and a look may miss what another lane has stored before its own store.
//!
//! Only what the PTX model allows is shown, and not all of it: one value back, never behind a fence of anyone, which is
//! taken for one that all fences are in order with, and never for an atomic.

use std::collections::HashMap;

use super::words::Word;
use super::{Checker, Party};
use crate::abi::{Pc, Qualifiers};
use crate::rng::Rng;
use crate::state::Idx;

/// How many of 1024 looks that may find the older value do.
const SHOWN: u32 = 256;

/// Looks at the newer value that are kept of a word.
const LOOKS: usize = 8;

/// Something that a lane of a warp, or an actor, has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) warp: Idx,
    pub(super) mask: u32,
    pub(super) epoch: u32,
}

/// A word before the last write.
#[derive(Debug)]
struct Older {
    bytes: u32,
    value: u64,
    /// What has been written since; anything else has been stored by other means.
    newer: u64,
    written: Moment,
    /// Who has seen the newer value.
    looks: Vec<Moment>,
    /// What had been released into the word.
    word: Word,
}

/// The words that have an older value, by offset.
#[derive(Debug)]
pub(super) struct OlderWords {
    words: HashMap<usize, Older>,
    rng: Rng,
}

impl OlderWords {
    pub(super) fn new(seed: u64) -> Self {
        Self { words: HashMap::new(), rng: Rng::new(seed ^ 0x6f6c_6465_7200) }
    }

    /// Everybody sees what has been written so far.
    pub(super) fn clear(&mut self) {
        self.words.clear();
    }
}

impl Checker {
    /// A word changes: keeps what it held.
    pub(super) fn keep_older(
        &mut self,
        written: Moment,
        (at, bytes): (usize, u32),
        (value, newer): (u64, u64),
    ) {
        let Some(older) = self.older.as_mut().filter(|_| at < self.shared_from) else { return };
        // Words of other sizes in the same place.
        let overlaps = |kept: &Older, from: usize| from + kept.bytes as usize > at;
        let first = at & !7;
        if first != at && older.words.get(&first).is_some_and(|kept| overlaps(kept, first)) {
            older.words.remove(&first);
        }
        if bytes == 8 {
            older.words.remove(&(at + 4));
        }
        let word = self.words.words.get(&at).cloned().unwrap_or_default();
        let (newer, looks) = (newer & u64::MAX >> (64 - 8 * bytes), Vec::new());
        older.words.insert(at, Older { bytes, value, newer, written, looks, word });
    }

    /// The older value of a word that holds `now`, if a look of the lane finds that: it takes over what had been released
    /// into it then.
    pub(super) fn older_value(
        &mut self,
        lane: Idx,
        (at, bytes): (usize, u32),
        now: u64,
        how: Qualifiers,
        pc: Pc,
    ) -> Option<u64> {
        let mut older = self.older.take()?;
        let found = self.find_older(&mut older, lane, (at, bytes), now);
        let value = found.map(|kept| kept.value);
        if let Some(kept) = found {
            self.order_older(lane, at, &kept.word, how, pc);
        }
        self.older = Some(older);
        value
    }

    fn find_older<'o>(
        &self,
        older: &'o mut OlderWords,
        lane: Idx,
        (at, bytes): (usize, u32),
        now: u64,
    ) -> Option<&'o Older> {
        let holds =
            |kept: &Older| kept.bytes == bytes && kept.newer == now && kept.looks.len() < LOOKS;
        if !older.words.get(&at).is_some_and(holds) {
            older.words.remove(&at);
            return None;
        }
        let kept = older.words.get_mut(&at)?;
        let knows = |it: &Moment| self.ordered(Party::Lane(lane), it.warp, it.mask, it.epoch);
        if knows(&kept.written) || kept.looks.iter().any(knows) {
            return None;
        }
        if !older.rng.chance(SHOWN) {
            kept.looks.push(self.moment(lane));
            return None;
        }
        Some(kept)
    }

    /// What a lane does now.
    pub(super) fn moment(&self, lane: Idx) -> Moment {
        let warp = lane / 32;
        Moment { warp, mask: 1 << (lane % 32), epoch: self.warps[warp].epoch }
    }
}
