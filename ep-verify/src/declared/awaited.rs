//! The kernel that makes what a call waits for words for: it writes as late as the declaration lets it.

use std::collections::BTreeSet;

use ep_runtime::backend::StepBeside;
use ep_runtime::meaning::Word;

/// Memory that is read behind words only.
pub(super) struct Memory<'a> {
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// The words of each read.
    pub(super) reads: Vec<&'a [Word]>,
}

/// The words that a call waits for, and what it reads behind them.
#[derive(Default)]
pub(super) struct Awaited<'a> {
    /// Each with where it is.
    pub(super) words: Vec<(Word, u64)>,
    memory: Vec<Memory<'a>>,
}

impl<'a> Awaited<'a> {
    /// Adds memory by rising address, neighbors with the same words as one piece.
    pub(super) fn read_behind(&mut self, memory: impl Iterator<Item = Memory<'a>>) {
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
