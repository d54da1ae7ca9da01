//! Streams, events and captures: what no event orders runs in the reverse order of the streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ep_runtime::backend::{BackendError, Captured, Code, Image, RowCopy};

/// One thing in a stream.
#[derive(Clone)]
pub(super) enum Work {
    Fill {
        at: u64,
        byte: u8,
        bytes: u64,
    },
    Copy(RowCopy),
    Kernel(Kernel),
    Mark(u64),
    Wait(u64),
    /// Until the host has written at least `value` to the word `at`.
    Hold {
        at: u64,
        value: u32,
    },
}

/// A launch.
#[derive(Clone)]
pub(super) struct Kernel {
    pub(super) code: Code,
    pub(super) image: Image,
    pub(super) name: String,
    pub(super) blocks: u32,
    pub(super) waits: bool,
    pub(super) phases: u32,
    pub(super) args: Vec<u8>,
    /// Its place among all kernels of the rank, in the order of the calls.
    pub(super) turn: u64,
}

/// What is being captured.
#[derive(Default)]
struct Recording {
    work: Vec<(u64, Work)>,
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
    captured: BTreeMap<u64, Vec<(u64, Work)>>,
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
            Work::Kernel(kernel) => {
                let turns = self.turns.entry(rank).or_default();
                turns.0 += 1;
                Work::Kernel(Kernel { turn: turns.0, ..kernel })
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

    /// Begins a capture and gives its number.
    pub(super) fn begin(&mut self, rank: usize, stream: u64) -> u64 {
        let number = self.number();
        self.open.insert((rank, stream), number);
        self.recordings.insert(number, Recording::default());
        number
    }

    /// Ends a capture: its number, and whether it may be used.
    pub(super) fn end(
        &mut self,
        rank: usize,
        stream: u64,
    ) -> Result<(u64, Result<(), BackendError>), BackendError> {
        let Some(number) = self.open.get(&(rank, stream)).copied() else {
            return wrong(format!("stream {stream} of rank {rank} captures nothing"));
        };
        self.open.retain(|_, open| *open != number);
        Ok((
            number,
            match self.recordings[&number].broken {
                true => {
                    wrong(format!("a stream of rank {rank} was waited for while it was captured"))
                }
                false => Ok(()),
            },
        ))
    }

    /// Under which name what was captured is replayed.
    pub(super) fn store(&mut self, number: u64, captured: &Captured) {
        let recording = self.recordings.remove(&number).unwrap_or_default();
        self.captured.insert(captured.raw(), recording.work);
    }

    pub(super) fn destroy(&mut self, captured: &Captured) {
        self.captured.remove(&captured.raw());
    }

    /// Queues what was captured: each of its streams as a stream of its own, between what `stream`
    /// holds before and after.
    pub(super) fn replay(&mut self, rank: usize, stream: u64, captured: &Captured) {
        let work = self.captured[&captured.raw()].clone();
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
            Work::Kernel(Kernel { args, .. }) => Some(args),
            _ => None,
        });
        kernels.map(|args| u64::from_le_bytes(args[40..48].try_into().unwrap())).collect()
    }

    pub(super) fn is_empty(&self, rank: usize, stream: u64) -> bool {
        self.queues.get(&(rank, stream)).is_none_or(VecDeque::is_empty)
    }

    pub(super) fn pass(&mut self, mark: u64) {
        self.passed.insert(mark);
    }

    /// The next thing that can happen: on the last stream that has one.
    pub(super) fn next(&mut self, ranks: usize) -> Option<Next> {
        let streams: BTreeSet<u64> = self.queues.keys().map(|(_, stream)| *stream).collect();
        for stream in streams.into_iter().rev() {
            for rank in 0..ranks {
                let at = (rank, stream);
                match self.queues.get(&at).and_then(VecDeque::front) {
                    Some(Work::Kernel(kernel)) => {
                        let image = kernel.image.clone();
                        if let Some(kernels) = self.take_kernel(ranks, at, &image) {
                            return Some(Next::Kernel(kernels));
                        }
                    }
                    Some(Work::Wait(mark)) if !self.passed.contains(mark) => {}
                    Some(Work::Hold { at, value }) if self.words.get(at) < Some(value) => {}
                    None => {}
                    Some(_) => {
                        let work = self.queues.get_mut(&at)?.pop_front()?;
                        return Some(Next::Alone(rank, work));
                    }
                }
            }
        }
        None
    }

    /// A kernel that every rank has come to, one of them in the queue `at`.
    fn take_kernel(
        &mut self,
        ranks: usize,
        at: (usize, u64),
        image: &Image,
    ) -> Option<Vec<Kernel>> {
        let is_it = |front: Option<&Work>| matches!(front, Some(Work::Kernel(kernel)) if kernel.image == *image);
        let queue_of = |rank: usize| {
            let mut queues = self.queues.range((rank, 0)..=(rank, u64::MAX)).rev();
            let (found, _) = queues.find(|(_, queue)| is_it(queue.front()))?;
            Some(if rank == at.0 { at } else { *found })
        };
        let queues = (0..ranks).map(queue_of).collect::<Option<Vec<(usize, u64)>>>()?;
        let mut kernels = Vec::new();
        for at in queues {
            let Work::Kernel(kernel) = self.queues.get_mut(&at)?.pop_front()? else { return None };
            let turns = self.turns.entry(at.0).or_default();
            turns.1 += 1;
            assert_eq!(kernel.turn, turns.1, "the kernels of a rank run in the order of its calls");
            kernels.push(kernel);
        }
        Some(kernels)
    }
}

/// What happens next.
pub(super) enum Next {
    /// Something of one rank.
    Alone(usize, Work),
    /// One kernel on every rank.
    Kernel(Vec<Kernel>),
}
