//! The kernel that makes what a call waits for words for: it writes as late as the declaration lets it.

use std::collections::{BTreeMap, BTreeSet};

use ep_runtime::backend::StepBeside;
use ep_runtime::ir::{Pipeline, Tensor, walk};
use ep_runtime::meaning::{self, Behind, Word};

use super::place::Place;

/// Memory that is read behind words only.
pub(super) struct Memory<'a> {
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// The words of each read.
    pub(super) reads: Vec<&'a [Word]>,
}

/// The words that a call waits for, and what it reads behind them.
pub(super) struct Awaited<'a> {
    /// Names of the tensors of words, and of those that are read behind words only.
    awaited: Vec<&'a str>,
    behind: Vec<&'a str>,
    /// What was read behind which words.
    reads: &'a BTreeMap<String, Vec<Behind>>,
    /// The words, each with where it is.
    words: Vec<(Word, u64)>,
    memory: Vec<Memory<'a>>,
}

impl<'a> Awaited<'a> {
    /// For a call with the tensors that are `there`.
    pub(super) fn new(
        ir: &'a Pipeline,
        there: &dyn Fn(&str) -> bool,
        reads: &'a BTreeMap<String, Vec<Behind>>,
    ) -> Awaited<'a> {
        let names = |tensors: Vec<&'a Tensor>| tensors.iter().map(|it| it.name.as_str()).collect();
        let awaited = names(walk::awaited_words(ir));
        let behind = names(walk::behind_words(ir, there));
        Awaited { awaited, behind, reads, words: Vec::new(), memory: Vec::new() }
    }

    /// Takes a part of a tensor that lies at an address, if it is of these.
    pub(super) fn see(
        &mut self,
        (name, part): (&str, usize),
        data: &meaning::Tensor,
        place: &Place,
        address: u64,
    ) {
        if self.awaited.contains(&name) {
            self.words.extend(place.words(name, address));
        }
        if self.behind.contains(&name) {
            let reads = self.reads.get(name).map_or(&[][..], Vec::as_slice);
            self.read_behind(place.elements(data, part, address, reads));
        }
    }

    /// Adds memory by rising address, neighbors with the same words as one piece.
    fn read_behind(&mut self, memory: impl Iterator<Item = Memory<'a>>) {
        for next in memory {
            match self.memory.last_mut() {
                Some(last) if last.at + last.bytes == next.at && last.reads == next.reads => {
                    last.bytes += next.bytes;
                }
                _ => self.memory.push(next),
            }
        }
    }

    /// Raises one word after the other, each when what is read behind it and those before is written; the last one
    /// first if `backward`. What nothing reads is written before all of them.
    pub(super) fn steps(mut self, backward: bool) -> Vec<StepBeside> {
        if backward {
            self.words.reverse();
        }
        let mut raised = BTreeSet::new();
        let mut left = self.memory;
        let mut steps = Vec::new();
        for (word, at) in self.words {
            raised.insert(word);
            let may_come = |read: &&[Word]| read.iter().all(|it| raised.contains(it));
            let (due, later): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|it| it.reads.is_empty() || it.reads.iter().any(may_come));
            left = later;
            let written = due.iter().map(|it| (it.at, it.bytes)).collect();
            steps.push(StepBeside { written, raised: vec![at] });
        }
        steps
    }
}
