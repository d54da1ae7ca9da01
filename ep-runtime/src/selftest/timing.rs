//! How long calls take on all ranks together.

use std::fmt;
use std::time::Duration;

use super::{Meeting, Selftest, wire_time};
use crate::backend::{Event, Stream};
use crate::buffer::{CombineInput, Handle, Offered, StandardPipeline, Via};
use crate::error::CallError;
use crate::group::positive;
use crate::memory::HostMemory;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Layout, notify and rows; the host does not wait for counts.
    Dispatch,
    /// The same, and the host knows the counts before the next call.
    DispatchCounted,
    /// Layout and notify alone.
    Counts,
    /// Rows along the tables of an earlier dispatch.
    CachedDispatch,
    /// Rows back and their sums.
    Combine,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 5] = [
        Operation::Dispatch,
        Operation::DispatchCounted,
        Operation::Counts,
        Operation::CachedDispatch,
        Operation::Combine,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Dispatch => "dispatch",
            Operation::DispatchCounted => "dispatch-counted",
            Operation::Counts => "counts",
            Operation::CachedDispatch => "cached-dispatch",
            Operation::Combine => "combine",
        }
    }
}

/// How calls follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Back to back: mean of many.
    Loop,
    /// One at a time, all ranks started at one moment: median.
    Iso,
}

impl Mode {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Loop => "loop",
            Mode::Iso => "iso",
        }
    }
}

/// One result; its display is one line of JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// What was timed.
    pub operation: Operation,
    /// How calls followed one another.
    pub mode: Mode,
    /// Payload of the dispatch; a combine always moves bf16.
    pub payload: &'static str,
    /// How rows travelled.
    pub via: Via,
    /// Ranks.
    pub ranks: usize,
    /// Most tokens of any rank.
    pub tokens: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Experts per token.
    pub topk: usize,
    /// Experts.
    pub experts: usize,
    /// Blocks of each kernel of the call.
    pub sms: u32,
    /// Time of one call: that of the slowest rank.
    pub time: Duration,
    /// Bytes that the busiest rank sends or fetches over the wire in one call.
    pub bytes: u64,
    /// The wire's own time for as many bytes, measured in the same run.
    pub wire: Option<Duration>,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let us = micros(self.time);
        let wire_us = self.wire.map_or("null".to_string(), |wire| format!("{:.2}", micros(wire)));
        let rate = if us > 0.0 { self.bytes as f64 / us / 1e3 } else { 0.0 };
        write!(
            f,
            "{{\"op\": \"{}\", \"mode\": \"{}\", \"payload\": \"{}\", \"via\": \"{}\", \
             \"ranks\": {}, \"tokens\": {}, \"hidden\": {}, \"topk\": {}, \"experts\": {}, \
             \"sms\": {}, \"us\": {us:.2}, \"wire_us\": {wire_us}, \"bytes\": {}, \
             \"gb_per_s\": {rate:.1}}}",
            self.operation.name(),
            self.mode.name(),
            self.payload,
            self.via.name(),
            self.ranks,
            self.tokens,
            self.hidden,
            self.topk,
            self.experts,
            self.sms,
            self.bytes
        )
    }
}

/// What the calls of one rank need, made before the clock starts.
struct RankCalls {
    rank: usize,
    handle: Option<Handle>,
    offered: Option<Offered>,
}

/// The events and the gate of one rank.
struct Clock<'a> {
    test: &'a Selftest,
    rank: usize,
    start: Event,
    stop: Event,
    gate: &'a HostMemory,
}

impl Selftest {
    /// Times `iterations` calls after `warmup` others. Needs kernels that run by themselves.
    pub fn time(
        &self,
        operation: Operation,
        mode: Mode,
        warmup: usize,
        iterations: usize,
    ) -> Result<Timing, CallError> {
        let backend = self.group.backend();
        if !backend.runs_alone() {
            let what = format!("{} cannot be timed", backend.name());
            return Err(CallError::Mismatch { what });
        }
        let gate = HostMemory::new(backend, self.group.local().start, 4)?;
        let calls = self.rank_calls(operation)?;
        let meeting = self.meeting();
        let rounds = self.for_each_rank(&|rank| {
            meeting.attend(|| {
                let clock = Clock::new(self, rank, &gate)?;
                let own = &calls[self.group.local_index(rank)?];
                match mode {
                    Mode::Loop => clock.back_to_back(own, operation, warmup, iterations, &meeting),
                    Mode::Iso => clock.one_by_one(own, operation, warmup, iterations, &meeting),
                }
            })
        })?;
        self.settle()?;
        let local = u64::try_from(slowest(&rounds, mode).as_nanos()).unwrap_or(u64::MAX);
        let all = backend.gather("compare times", local)?;
        let time = Duration::from_nanos(all.into_iter().max().unwrap_or(local));
        let call = match operation {
            Operation::Combine => &self.case.combine,
            _ => &self.case.dispatch,
        };
        Ok(Timing {
            operation,
            mode,
            payload: if operation == Operation::Combine {
                "bf16"
            } else {
                self.case.options.payload.name()
            },
            via: self.case.options.via,
            ranks: self.group.ranks(),
            tokens: self.case.tokens.iter().copied().max().unwrap_or(0),
            hidden: self.case.options.hidden,
            topk: self.case.options.topk,
            experts: self.case.options.experts,
            sms: call.blocks,
            time,
            bytes: self.wire_bytes(operation),
            wire: None,
        })
    }

    /// Handles and combine inputs, from one dispatch before the clock starts.
    fn rank_calls(&self, operation: Operation) -> Result<Vec<RankCalls>, CallError> {
        let needs_handle = matches!(operation, Operation::CachedDispatch | Operation::Combine);
        if !needs_handle {
            let local = self.group.local();
            return Ok(local.map(|rank| RankCalls { rank, handle: None, offered: None }).collect());
        }
        let handles = self.for_each_rank(&|rank| {
            let (handle, _) =
                self.buffer.dispatch(rank, &self.input(rank)?, &self.case.dispatch)?;
            handle.counts()?;
            Ok(handle)
        })?;
        self.settle()?;
        let offered = match operation {
            Operation::Combine => self.offer_rows()?.into_iter().map(Some).collect(),
            _ => handles.iter().map(|_| None).collect::<Vec<_>>(),
        };
        let calls = handles.into_iter().zip(offered);
        Ok(calls
            .map(|(handle, offered)| RankCalls {
                rank: handle.rank(),
                handle: Some(handle),
                offered,
            })
            .collect())
    }

    /// One call; what it leaves is dropped.
    fn call(&self, own: &RankCalls, operation: Operation) -> Result<(), CallError> {
        let (rank, call) = (own.rank, &self.case.dispatch);
        let missing = || CallError::Mismatch { what: "the call needs a handle".to_string() };
        match operation {
            Operation::Dispatch | Operation::DispatchCounted => {
                let (handle, _) = self.buffer.dispatch(rank, &self.input(rank)?, call)?;
                if operation == Operation::DispatchCounted {
                    handle.counts()?;
                }
                Ok(())
            }
            Operation::Counts => {
                self.buffer.exchange_counts(rank, &self.input(rank)?, call).map(|_| ())
            }
            Operation::CachedDispatch => {
                let handle = own.handle.as_ref().ok_or_else(missing)?;
                self.buffer.cached_dispatch(handle, &self.input(rank)?, call).map(|_| ())
            }
            Operation::Combine => {
                let handle = own.handle.as_ref().ok_or_else(missing)?;
                let offered = own.offered.as_ref().ok_or_else(missing)?;
                self.combine(handle, CombineInput::Offered(offered))
            }
        }
    }

    /// The wire's own time for what an operation moves.
    pub fn wire(&self, operation: Operation) -> Result<Option<Duration>, CallError> {
        let found = wire_time(&self.group, self.wire_bytes(operation))?;
        Ok(found.map(|(time, _)| time))
    }

    /// Bytes over the wire of the busiest rank: rows and the records that go with them.
    fn wire_bytes(&self, operation: Operation) -> u64 {
        let pipeline = match operation {
            Operation::Counts => return 0,
            Operation::Combine => StandardPipeline::NvlCombine,
            Operation::CachedDispatch => StandardPipeline::NvlDispatchCached,
            Operation::Dispatch | Operation::DispatchCounted => StandardPipeline::NvlDispatch,
        };
        let plan = self.buffer.plan(pipeline);
        let messages = plan.map(|plan| plan.messages.as_slice()).unwrap_or_default();
        let row = messages.iter().map(|m| positive(m.row_bytes + m.meta_bytes)).max().unwrap_or(0);
        let ranks = 0..self.group.ranks();
        ranks.map(|rank| self.oracle.remote_rows(rank) as u64 * row).max().unwrap_or(0)
    }
}

/// The time of the slowest rank: of the whole loop, or the median of its rounds.
fn slowest(rounds: &[Vec<Duration>], mode: Mode) -> Duration {
    let count = rounds.iter().map(Vec::len).min().unwrap_or(0);
    let mut slowest: Vec<Duration> = (0..count)
        .map(|round| rounds.iter().map(|own| own[round]).max().unwrap_or_default())
        .collect();
    slowest.sort_unstable();
    match mode {
        Mode::Loop => slowest.last().copied().unwrap_or_default(),
        Mode::Iso => slowest.get(count / 2).copied().unwrap_or_default(),
    }
}

impl<'a> Clock<'a> {
    fn new(test: &'a Selftest, rank: usize, gate: &'a HostMemory) -> Result<Clock<'a>, CallError> {
        let backend = test.group.backend();
        let start = backend.create_event(rank)?;
        let stop = backend.create_event(rank)?;
        Ok(Clock { test, rank, start, stop, gate })
    }

    /// Queues the start of a round behind the gate.
    fn begin(&self, round: u32) -> Result<(), CallError> {
        let backend = self.test.group.backend();
        backend.hold(self.rank, Stream::OWN, self.gate.block(), 0, round)?;
        Ok(backend.record(self.rank, Stream::OWN, &self.start)?)
    }

    /// Opens the gate once all ranks stand before it.
    fn open(&self, round: u32, meeting: &Meeting) -> Result<(), CallError> {
        if meeting.join()? {
            self.test.group.backend().gather("open the gate", 0)?;
            self.gate.write(0, &[round])?;
        }
        Ok(())
    }

    fn end(&self) -> Result<(), CallError> {
        let backend = self.test.group.backend();
        Ok(backend.record(self.rank, Stream::OWN, &self.stop)?)
    }

    /// Whether the host waits for the device inside the call.
    fn waits_for_counts(&self, operation: Operation) -> bool {
        match operation {
            Operation::DispatchCounted => true,
            Operation::Dispatch => !self.test.buffer.holds_worst_case(),
            _ => false,
        }
    }

    /// Waits for the round and reads the clock.
    fn read(&self) -> Result<Duration, CallError> {
        self.test.group.sync(self.rank)?;
        Ok(self.test.group.backend().elapsed(self.rank, &self.start, &self.stop)?)
    }

    /// The mean of many calls, one round of warm-up and one that counts.
    fn back_to_back(
        &self,
        own: &RankCalls,
        operation: Operation,
        warmup: usize,
        iterations: usize,
        meeting: &Meeting,
    ) -> Result<Vec<Duration>, CallError> {
        for (round, count) in (1..).zip([warmup.max(1), iterations.max(1)]) {
            self.begin(round)?;
            // Behind the gate nothing completes: a call that waits for counts comes after it opens,
            // and so does whatever might fill the stream's queue.
            self.open(round, meeting)?;
            (0..count).try_for_each(|_| self.test.call(own, operation))?;
            self.end()?;
            let total = self.read()?;
            if round == 2 {
                return Ok(vec![total / count as u32]);
            }
        }
        Ok(Vec::new())
    }

    /// Each call in a round of its own.
    fn one_by_one(
        &self,
        own: &RankCalls,
        operation: Operation,
        warmup: usize,
        iterations: usize,
        meeting: &Meeting,
    ) -> Result<Vec<Duration>, CallError> {
        let mut rounds = Vec::with_capacity(iterations);
        for round in 1..=(warmup + iterations.max(1)) as u32 {
            self.begin(round)?;
            if self.waits_for_counts(operation) {
                self.open(round, meeting)?;
                self.test.call(own, operation)?;
                self.end()?;
            } else {
                // All of the call is queued before the gate opens: what is timed is the device.
                self.test.call(own, operation)?;
                self.end()?;
                self.open(round, meeting)?;
            }
            let time = self.read()?;
            if round as usize > warmup {
                rounds.push(time);
            }
        }
        Ok(rounds)
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        let backend = self.test.group.backend();
        for event in [&mut self.start, &mut self.stop] {
            let event = std::mem::replace(event, Event(0));
            let _ = backend.destroy_event(self.rank, event);
        }
    }
}
