//! The words through which lanes order themselves, and what was released into each.

use std::collections::HashMap;
use std::rc::Rc;

use super::clock::{Pool, View, join};
use crate::abi::{Pc, Scope};
use crate::state::Idx;

/// Who released into a word: one rank and block, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) rank: Option<u32>,
    pub(super) block: Option<Idx>,
}

impl Owner {
    fn merge(self, other: Self) -> Self {
        let rank = self.rank.filter(|rank| Some(*rank) == other.rank);
        Self { rank, block: self.block.filter(|block| Some(*block) == other.block) }
    }

    /// The narrowest scope that holds the owner and a reader.
    pub(super) fn distance(self, rank: u32, block: Idx) -> Scope {
        if self.block == Some(block) {
            Scope::Cta
        } else if self.rank == Some(rank) {
            Scope::Gpu
        } else {
            Scope::Sys
        }
    }
}

/// What releases of one scope have put into a word.
#[derive(Clone, Debug)]
pub(super) struct Released {
    pub(super) scope: Scope,
    pub(super) owner: Owner,
    pub(super) view: Rc<View>,
    pub(super) pc: Pc,
}

/// A word through which lanes order themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct Word {
    pub(super) released: Vec<Released>,
    /// Changes with every release: an acquire that saw it already has nothing to join.
    pub(super) version: u32,
}

impl Word {
    /// Adds to `view` what was released at `scope` or a wider one.
    pub(super) fn told(&self, view: &mut View, scope: Scope) {
        let released = self.released.iter().filter(|released| released.scope >= scope);
        released.for_each(|released| join(view, &released.view));
    }
}

/// The words, by offset.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) words: HashMap<usize, Word>,
    versions: u32,
}

impl Words {
    /// Adds what is released; without `keeps`, in place of what was there.
    pub(super) fn put(&mut self, at: usize, new: Released, keeps: bool, pool: &mut Pool) {
        self.versions += 1;
        let word = self.words.entry(at).or_default();
        word.version = self.versions;
        if !keeps {
            for old in word.released.drain(..) {
                pool.give(old.view);
            }
        }
        match word.released.iter_mut().find(|old| old.scope == new.scope) {
            Some(old) => {
                add(&mut old.view, &new.view, pool);
                old.owner = old.owner.merge(new.owner);
                old.pc = new.pc;
                pool.give(new.view);
            }
            None => word.released.push(new),
        }
    }

    /// Nobody has released into this word any more.
    pub(super) fn clear(&mut self, at: usize, pool: &mut Pool) {
        if let Some(word) = self.words.remove(&at) {
            for old in word.released {
                pool.give(old.view);
            }
        }
    }
}

/// Joins `more` into a view that others may hold as it is now.
pub(super) fn add(view: &mut Rc<View>, more: &View, pool: &mut Pool) {
    if Rc::get_mut(view).is_none() {
        *view = Rc::new(pool.copy(view));
    }
    if let Some(own) = Rc::get_mut(view) {
        join(own, more);
    }
}
