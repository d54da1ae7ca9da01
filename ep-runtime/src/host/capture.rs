//! Captures on the host: work put into a captured stream goes into a list, and a replay queues all of the
//! list again.
//!
//! Captures are as strict as on a GPU: the host cannot wait for a stream that is being captured, and no
//! event crosses the border of a capture.

use std::collections::BTreeMap;

use super::queue::{Machine, Work};
use crate::backend::{BackendError, Capture, Captured, Kept, Stream};

/// A capture that is going on.
#[derive(Default)]
struct Open {
    number: u64,
    work: Vec<Work>,
    kept: Vec<Kept>,
    /// What ended it early.
    broken: Option<String>,
}

/// What was captured for a rank.
struct Recorded {
    rank: usize,
    work: Vec<Work>,
    kept: Vec<Kept>,
}

/// The captures of a machine.
#[derive(Default)]
pub(super) struct Captures {
    open: BTreeMap<(usize, u64), Open>,
    recorded: BTreeMap<u64, Recorded>,
    /// In which capture an event was recorded last, if in one.
    events: BTreeMap<u64, u64>,
    begun: u64,
}

fn wrong<T>(what: String) -> Result<T, BackendError> {
    Err(BackendError::Wrong { what })
}

impl Machine {
    /// Puts work into a stream: into the rank's queue, or into a capture.
    pub(super) fn put(&mut self, rank: usize, stream: Stream, work: Work) {
        match self.captures.open.get_mut(&(rank, stream.raw())) {
            Some(open) => open.work.push(work),
            None => {
                self.queue(rank, work);
                self.run_host_work();
            }
        }
    }

    pub(super) fn capture(&self, rank: usize, stream: Stream) -> Option<Capture> {
        let open = self.captures.open.get(&(rank, stream.raw()))?;
        Some(Capture(open.number))
    }

    /// Fails for a stream that is captured, whose capture then fails as well.
    pub(super) fn require_running(
        &mut self,
        rank: usize,
        stream: Stream,
    ) -> Result<(), BackendError> {
        let Some(open) = self.captures.open.get_mut(&(rank, stream.raw())) else { return Ok(()) };
        let what = format!("a stream of rank {rank} was waited for while it was captured");
        open.broken.get_or_insert(what.clone());
        wrong(what)
    }

    pub(super) fn note_event(&mut self, rank: usize, stream: Stream, event: u64) {
        match self.capture(rank, stream) {
            Some(Capture(number)) => self.captures.events.insert(event, number),
            None => self.captures.events.remove(&event),
        };
    }

    /// Fails if the event was recorded on the other side of the border of a capture.
    pub(super) fn require_inside(
        &mut self,
        rank: usize,
        stream: Stream,
        event: u64,
    ) -> Result<(), BackendError> {
        let recorded = self.captures.events.get(&event).copied();
        if self.capture(rank, stream).map(|capture| capture.0) == recorded {
            return Ok(());
        }
        wrong(format!("an event of rank {rank} crosses the border of a capture"))
    }

    pub(super) fn begin_capture(
        &mut self,
        rank: usize,
        stream: Stream,
    ) -> Result<(), BackendError> {
        if self.capture(rank, stream).is_some() {
            return wrong(format!("a stream of rank {rank} is being captured already"));
        }
        self.captures.begun += 1;
        let open = Open { number: self.captures.begun, ..Open::default() };
        self.captures.open.insert((rank, stream.raw()), open);
        Ok(())
    }

    pub(super) fn keep(
        &mut self,
        rank: usize,
        stream: Stream,
        kept: Kept,
    ) -> Result<(), BackendError> {
        match self.captures.open.get_mut(&(rank, stream.raw())) {
            Some(open) => {
                open.kept.push(kept);
                Ok(())
            }
            None => wrong(format!("the stream of rank {rank} captures nothing")),
        }
    }

    pub(super) fn end_capture(
        &mut self,
        rank: usize,
        stream: Stream,
    ) -> Result<Captured, BackendError> {
        let Some(open) = self.captures.open.remove(&(rank, stream.raw())) else {
            return wrong(format!("the stream of rank {rank} captures nothing"));
        };
        self.captures.events.retain(|_, number| *number != open.number);
        if let Some(what) = open.broken {
            self.dropped.extend(open.kept);
            return wrong(what);
        }
        let recorded = Recorded { rank, work: open.work, kept: open.kept };
        self.captures.recorded.insert(open.number, recorded);
        Ok(Captured(open.number))
    }

    pub(super) fn replay(
        &mut self,
        rank: usize,
        stream: Stream,
        captured: &Captured,
    ) -> Result<(), BackendError> {
        self.check()?;
        let recorded = self.captures.recorded.get(&captured.0);
        let Some(recorded) = recorded.filter(|recorded| recorded.rank == rank) else {
            return wrong(format!("graph {} does not belong to rank {rank}", captured.0));
        };
        for work in recorded.work.clone() {
            self.put(rank, stream, work);
        }
        Ok(())
    }

    pub(super) fn destroy_captured(&mut self, captured: Captured) {
        let recorded = self.captures.recorded.remove(&captured.0);
        self.dropped.extend(recorded.into_iter().flat_map(|recorded| recorded.kept));
    }
}
