//! Streams, events and captures of the fake device. It is as unkind as a device may be: what no event
//! orders runs in the reverse order of the streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{World, kernels};
use crate::backend::{BackendError, Captured, Kept, RowCopy};

/// One thing in a stream.
#[derive(Clone)]
pub(super) enum Work {
    Fill {
        at: u64,
        byte: u8,
        bytes: u64,
    },
    Copy(RowCopy),
    Kernel {
        text: String,
        blocks: u32,
        args: Vec<u8>,
        /// Its place among all kernels of the rank, in the order of the calls.
        turn: u64,
    },
    Mark(u64),
    Wait(u64),
    /// Until the host has written at least `value` to the word `at`.
    Hold {
        at: u64,
        value: u32,
    },
}

/// What is being captured, or was.
#[derive(Default)]
struct Recording {
    work: Vec<(u64, Work)>,
    kept: Vec<Kept>,
    broken: bool,
}

/// The streams of all ranks.
#[derive(Default)]
pub(super) struct Streams {
    queues: BTreeMap<(usize, u64), VecDeque<Work>>,
    /// Kernels called and run, by rank.
    turns: BTreeMap<usize, (u64, u64)>,
    /// For each event the mark that it stands for, and the capture that the mark is in.
    events: BTreeMap<u64, (u64, Option<u64>)>,
    passed: BTreeSet<u64>,
    /// Words that the host has written, by address.
    pub(super) words: BTreeMap<u64, u32>,
    open: BTreeMap<(usize, u64), u64>,
    recordings: BTreeMap<u64, Recording>,
    /// The last number given to a mark, an event, a capture or a stream.
    last_number: u64,
}

fn wrong<T>(what: String) -> Result<T, BackendError> {
    Err(BackendError::Wrong { what })
}

impl Streams {
    pub(super) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn put(&mut self, rank: usize, stream: u64, work: Work) {
        if let Some(recording) = self.recording(rank, stream) {
            recording.work.push((stream, work));
            return;
        }
        let work = match work {
            Work::Kernel { text, blocks, args, .. } => {
                let turns = self.turns.entry(rank).or_default();
                turns.0 += 1;
                Work::Kernel { text, blocks, args, turn: turns.0 }
            }
            work => work,
        };
        self.queues.entry((rank, stream)).or_default().push_back(work);
    }

    fn recording(&mut self, rank: usize, stream: u64) -> Option<&mut Recording> {
        self.recordings.get_mut(self.open.get(&(rank, stream))?)
    }

    pub(super) fn capture(&self, rank: usize, stream: u64) -> Option<u64> {
        self.open.get(&(rank, stream)).copied()
    }

    pub(super) fn begin(&mut self, rank: usize, stream: u64) {
        let number = self.number();
        self.open.insert((rank, stream), number);
        self.recordings.insert(number, Recording::default());
    }

    pub(super) fn end(&mut self, rank: usize, stream: u64) -> Result<Captured, BackendError> {
        let Some(number) = self.open.get(&(rank, stream)).copied() else {
            return wrong(format!("stream {stream} of rank {rank} captures nothing"));
        };
        self.open.retain(|_, open| *open != number);
        match self.recordings[&number].broken {
            true => wrong(format!("a stream of rank {rank} was waited for while it was captured")),
            false => Ok(Captured(number)),
        }
    }

    pub(super) fn keep(&mut self, rank: usize, stream: u64, kept: Kept) {
        self.recording(rank, stream).unwrap().kept.push(kept);
    }

    pub(super) fn destroy(&mut self, captured: Captured) -> Vec<Kept> {
        self.recordings.remove(&captured.0).unwrap().kept
    }

    /// Queues what was captured: each of its streams as a stream of its own, between what `stream`
    /// holds before and after.
    pub(super) fn replay(&mut self, rank: usize, stream: u64, captured: &Captured) {
        let work = self.recordings[&captured.0].work.clone();
        let (begin, mut marks, mut streams) = (self.number(), BTreeMap::new(), BTreeMap::new());
        self.put(rank, stream, Work::Mark(begin));
        for (of, work) in work {
            let own = match streams.get(&of) {
                Some(own) => *own,
                None => {
                    // Above all streams of callers.
                    let own = (1 << 32) + self.number();
                    streams.insert(of, own);
                    self.put(rank, own, Work::Wait(begin));
                    own
                }
            };
            let work = match work {
                Work::Mark(mark) => Work::Mark(*marks.entry(mark).or_insert(self.number())),
                Work::Wait(mark) => Work::Wait(*marks.entry(mark).or_insert(self.number())),
                work => work,
            };
            self.put(rank, own, work);
        }
        for own in streams.into_values() {
            let end = self.number();
            self.put(rank, own, Work::Mark(end));
            self.put(rank, stream, Work::Wait(end));
        }
    }

    pub(super) fn record(&mut self, rank: usize, stream: u64, event: u64) {
        let mark = self.number();
        self.events.insert(event, (mark, self.capture(rank, stream)));
        self.put(rank, stream, Work::Mark(mark));
    }

    pub(super) fn wait(
        &mut self,
        rank: usize,
        stream: u64,
        event: u64,
    ) -> Result<(), BackendError> {
        let Some((mark, recorded)) = self.events.get(&event).copied() else { return Ok(()) };
        let own = self.capture(rank, stream);
        if own.is_some() && recorded != own {
            return wrong(format!("an event of rank {rank} crosses the border of a capture"));
        }
        if let Some(capture) = recorded.filter(|capture| self.open.values().any(|o| o == capture)) {
            // The stream joins the capture.
            self.open.insert((rank, stream), capture);
        }
        self.put(rank, stream, Work::Wait(mark));
        Ok(())
    }

    /// Fails for a stream that is captured, which ends the capture.
    pub(super) fn require_running(&mut self, rank: usize, stream: u64) -> Result<(), BackendError> {
        match self.recording(rank, stream) {
            Some(recording) => {
                recording.broken = true;
                wrong(format!(
                    "stream {stream} of rank {rank} is captured and cannot be waited for"
                ))
            }
            None => Ok(()),
        }
    }

    /// The longest waits of the kernels that are queued.
    pub(super) fn timeouts_ns(&self) -> Vec<u64> {
        let kernels = self.queues.values().flatten().filter_map(|work| match work {
            Work::Kernel { args, .. } => Some(args),
            _ => None,
        });
        kernels.map(|args| u64::from_le_bytes(args[40..48].try_into().unwrap())).collect()
    }

    pub(super) fn is_empty(&self, rank: usize, stream: u64) -> bool {
        self.queues.get(&(rank, stream)).is_none_or(VecDeque::is_empty)
    }

    /// The next thing that can happen: on the last stream that has one.
    fn next(&mut self, ranks: usize) -> Option<Next> {
        let streams: BTreeSet<u64> = self.queues.keys().map(|(_, stream)| *stream).collect();
        for stream in streams.into_iter().rev() {
            for rank in 0..ranks {
                let at = (rank, stream);
                match self.queues.get(&at).and_then(VecDeque::front) {
                    Some(Work::Kernel { text, .. }) => {
                        let text = text.clone();
                        if let Some(works) = self.take_kernel(ranks, at, &text) {
                            return Some(Next::Kernel(text, works));
                        }
                    }
                    Some(Work::Wait(mark)) if !self.passed.contains(mark) => {}
                    Some(Work::Hold { at, value }) if self.words.get(at) < Some(value) => {}
                    None => {}
                    Some(_) => return self.queues.get_mut(&at)?.pop_front().map(Next::Alone),
                }
            }
        }
        None
    }

    /// A kernel that every rank has come to, one of them in the queue `at`.
    fn take_kernel(&mut self, ranks: usize, at: (usize, u64), text: &str) -> Option<Vec<Work>> {
        let queue_of = |rank: usize| {
            let mut queues = self.queues.range((rank, 0)..=(rank, u64::MAX)).rev();
            let here = |front: Option<&Work>| matches!(front, Some(Work::Kernel { text: own, .. }) if own == text);
            let (found, _) = queues.find(|(_, queue)| here(queue.front()))?;
            Some(if rank == at.0 { at } else { *found })
        };
        let queues = (0..ranks).map(queue_of).collect::<Option<Vec<(usize, u64)>>>()?;
        let mut works = Vec::new();
        for at in queues {
            let work = self.queues.get_mut(&at)?.pop_front()?;
            let turns = self.turns.entry(at.0).or_default();
            turns.1 += 1;
            if let Work::Kernel { turn, .. } = &work {
                assert_eq!(*turn, turns.1, "the kernels of a rank run in the order of its calls");
            }
            works.push(work);
        }
        Some(works)
    }
}

/// What happens next.
enum Next {
    Alone(Work),
    /// A kernel by its text, with its work on every rank.
    Kernel(String, Vec<Work>),
}

impl World {
    /// Runs what can run.
    pub(super) fn run(&mut self) {
        let ranks = self.ends.len();
        while let Some(next) = self.streams.next(ranks) {
            match next {
                Next::Kernel(text, works) => kernels::run(self, &text, &works),
                Next::Alone(Work::Fill { at, byte, bytes }) => self.at(at, bytes).fill(byte),
                Next::Alone(Work::Copy(copy)) => {
                    for (to, from) in copy.places() {
                        let row = self.at(from, copy.row_bytes).to_vec();
                        self.at(to, copy.row_bytes).copy_from_slice(&row);
                    }
                }
                Next::Alone(Work::Mark(mark)) => drop(self.streams.passed.insert(mark)),
                Next::Alone(_) => {}
            }
        }
    }
}
