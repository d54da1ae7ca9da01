//! The clock of each rank: a gate before which all ranks gather, and events behind it.

use std::cell::RefCell;
use std::time::Duration;

use ep_runtime::backend::{Event, Stream};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::memory::HostMemory;

use crate::probe::Probe;
use crate::selftest::barrier::RankBarrier;
use crate::selftest::{barrier, for_each_rank, settle};

/// What a gate holds at the end: no round has a larger number.
const OPEN_FOR_GOOD: u32 = i32::MAX as u32;

/// The events and the gate of one rank.
pub(super) struct Clock<'a> {
    group: &'a Group,
    pub(super) rank: usize,
    /// The start of a round, its end, and what comes behind it.
    events: Vec<Event>,
    gate: &'a HostMemory,
    /// Brings the ranks of all processes together, whose gates open one after another.
    line: &'a Probe,
    barrier: &'a RankBarrier,
    /// How long the host was in each call.
    pub(super) in_calls: RefCell<Vec<Duration>>,
}

/// Runs `body` on a thread of each local rank, with a clock that can mark so many places.
pub(super) fn with_clocks<T: Send>(
    group: &Group,
    marks: usize,
    body: &(dyn Fn(&Clock<'_>) -> Result<T, CallError> + Sync),
) -> Result<Vec<T>, CallError> {
    let gate = HostMemory::new(group.backend(), group.local().start, 4)?;
    let line = Probe::new(group.clone())?;
    let barrier = barrier(group);
    let done = for_each_rank(group, &|rank| {
        barrier.attend(|| body(&Clock::new(group, rank, &gate, &line, &barrier, marks)?))
    });
    // After an error what stands before the gate has to go on, or nobody could ever wait for it.
    gate.write(0, &[OPEN_FOR_GOOD])?;
    let done = done?;
    settle(group)?;
    Ok(done)
}

impl<'a> Clock<'a> {
    fn new(
        group: &'a Group,
        rank: usize,
        gate: &'a HostMemory,
        line: &'a Probe,
        barrier: &'a RankBarrier,
        marks: usize,
    ) -> Result<Clock<'a>, CallError> {
        let (events, in_calls) = (Vec::new(), RefCell::default());
        let mut clock = Clock { group, rank, events, gate, line, barrier, in_calls };
        for _ in 0..=marks {
            clock.events.push(group.backend().create_event(rank)?);
        }
        Ok(clock)
    }

    /// Queues the start of a round behind the gate and the line.
    pub(super) fn begin(&self, round: u32) -> Result<(), CallError> {
        let backend = self.group.backend();
        backend.hold(self.rank, Stream::OWN, self.gate.block(), 0, round)?;
        self.line.launch(self.rank, -1)?;
        self.mark(0)
    }

    /// Opens the gate once all ranks stand before it.
    pub(super) fn open(&self, round: u32) -> Result<(), CallError> {
        if self.barrier.join()? {
            self.group.gather("open the gate", 0)?;
            self.gate.write(0, &[round])?;
        }
        Ok(())
    }

    /// Marks what is queued so far; mark 0 is the start of the round.
    pub(super) fn mark(&self, index: usize) -> Result<(), CallError> {
        Ok(self.group.backend().record(self.rank, Stream::OWN, &self.events[index])?)
    }

    /// Waits for the round, and reads how long it took to the first mark.
    pub(super) fn read(&self) -> Result<Duration, CallError> {
        self.group.sync(self.rank)?;
        Ok(self.group.backend().elapsed(self.rank, &self.events[0], &self.events[1])?)
    }

    /// Waits for all marks, and reads how long each came behind the one before.
    pub(super) fn periods(&self) -> Result<Vec<Duration>, CallError> {
        self.group.sync(self.rank)?;
        let pairs = self.events.windows(2);
        let periods = pairs.map(|pair| self.group.backend().elapsed(self.rank, &pair[0], &pair[1]));
        Ok(periods.collect::<Result<Vec<_>, _>>()?)
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        for event in std::mem::take(&mut self.events) {
            let _ = self.group.backend().destroy_event(self.rank, event);
        }
    }
}
