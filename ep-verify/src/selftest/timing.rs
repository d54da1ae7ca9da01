//! How long calls take on all ranks together.

mod clock;
mod replays;
mod rounds;
mod run;
mod times;

use std::time::Duration;

use super::Selftest;
use crate::findings::Findings;
use ep_runtime::buffer::{Buffer, CombineInput, Handle, Offered, Received, StandardPipeline};
use ep_runtime::error::CallError;

use replays::Replays;
pub(super) use replays::time_replays;
pub(crate) use rounds::time_rounds;
use run::Run;
pub use times::Percentiles;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Counts and rows; the host does not wait for counts.
    Dispatch,
    /// Counts and rows; the host waits for the counts before it makes the next call.
    DispatchCounted,
    /// The exchange of counts alone.
    Counts,
    /// Rows along the tables of an earlier dispatch.
    CachedDispatch,
    /// Rows back and their sums.
    Combine,
    /// A dispatch, then the combine of what it left.
    Both,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 6] = [
        Operation::Dispatch,
        Operation::DispatchCounted,
        Operation::Counts,
        Operation::CachedDispatch,
        Operation::Combine,
        Operation::Both,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Dispatch => "dispatch",
            Operation::DispatchCounted => "dispatch-counted",
            Operation::Counts => "counts",
            Operation::CachedDispatch => "cached-dispatch",
            Operation::Combine => "combine",
            Operation::Both => "both",
        }
    }

    /// The kernels of a call of a buffer, in order.
    pub fn pipelines(self, buffer: &Buffer) -> Vec<StandardPipeline> {
        let (dispatch, combine) = (buffer.dispatch_pipelines(), buffer.combine_pipeline());
        match self {
            Operation::Dispatch | Operation::DispatchCounted => dispatch.to_vec(),
            Operation::Counts => vec![StandardPipeline::Layout],
            Operation::CachedDispatch => vec![StandardPipeline::NvlDispatchCached],
            Operation::Combine => vec![combine],
            Operation::Both => [dispatch, &[combine]].concat(),
        }
    }

    /// The last of them: the one that moves rows, if any does.
    pub fn main_pipeline(self, buffer: &Buffer) -> StandardPipeline {
        self.pipelines(buffer).last().copied().unwrap_or(StandardPipeline::NvlDispatch)
    }

    /// Whether it dispatches rows whose counts are new.
    fn moves_fresh_rows(self) -> bool {
        matches!(self, Operation::Dispatch | Operation::DispatchCounted | Operation::Both)
    }

    /// Whether it follows the tables of an earlier dispatch.
    fn needs_handle(self) -> bool {
        matches!(self, Operation::CachedDispatch | Operation::Combine)
    }

    /// Whether there are low-latency calls that do it.
    pub fn is_of_few_tokens(self) -> bool {
        matches!(self, Operation::Dispatch | Operation::Combine | Operation::Both)
    }

    pub(super) fn combines(self) -> bool {
        matches!(self, Operation::Combine | Operation::Both)
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

/// One result.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// What was timed.
    pub operation: Operation,
    /// How calls followed one another.
    pub mode: Mode,
    /// Most SMs that any kernel of the call took: kernels of one call run in turn.
    pub sms: u32,
    /// Calls in a graph, if they were captured.
    pub graph: Option<u32>,
    /// Time of one call: that of the slowest rank, or the median over the ranks of the period of a graph
    /// that is replayed back to back. None where nothing runs by itself.
    pub time: Option<Duration>,
    /// How the rounds differ, where there are several; `time` is their median.
    pub spread: Option<Percentiles>,
    /// Time that the host spends in one call, less what it waits for counts: median, that of the
    /// slowest rank. None where nothing runs by itself.
    pub host_time: Option<Duration>,
    /// Bytes that the busiest rank sends or fetches over the wire in one call.
    pub bytes: u64,
    /// What the last timed call left, against the oracle.
    pub findings: Findings,
}

/// How many calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeats {
    /// Calls that do not count.
    pub warmup: usize,
    /// Calls that do, the last of them on other inputs.
    pub iterations: usize,
    /// Captures so many calls in a graph, and replays that instead of making calls.
    pub graph: Option<u32>,
}

/// What the calls of one rank need, made before the clock starts.
pub(super) struct RankCalls {
    rank: usize,
    handle: Option<Handle>,
    offered: Option<Offered>,
}

/// What one call leaves.
#[derive(Default)]
pub(super) struct Left {
    handle: Option<Handle>,
    received: Option<Received>,
}

impl Selftest {
    /// Times calls on these inputs; the last one is made on those of `last`, which uses the same
    /// buffer, into an output that was poisoned before, and what it leaves is compared with the
    /// oracle. The buffer has two live outputs. Where kernels do not run by themselves the calls are
    /// made and compared all the same.
    pub fn time(
        &self,
        last: &Selftest,
        operation: Operation,
        mode: Mode,
        repeats: Repeats,
    ) -> Result<Timing, CallError> {
        let calls = repeats.graph.map_or(0, |calls| calls as usize);
        if self.case.options.live < 2 + calls {
            let need = 2 + calls;
            let what = match calls {
                0 => "the last timed call needs an output of its own: 2 live ones".to_string(),
                _ => format!("{calls} calls of a graph need an output each: {need} live ones"),
            };
            return Err(CallError::Mismatch { what });
        }
        let (times, findings) = match repeats.graph {
            None => Run::new(self, last, operation, mode, repeats)?.times()?,
            Some(calls) => Replays::new(self, last, operation, calls)?.times(mode, repeats)?,
        };
        Ok(Timing {
            operation,
            mode,
            graph: repeats.graph,
            sms: self.sms(operation),
            time: times.as_ref().map(|times| times.device.p50),
            spread: times.as_ref().filter(|times| times.is_spread).map(|times| times.device),
            host_time: times.as_ref().map(|times| times.host),
            bytes: self.wire_bytes(operation),
            findings,
        })
    }

    /// Most SMs of any kernel of a call.
    pub fn sms(&self, operation: Operation) -> u32 {
        let of = |pipeline: &StandardPipeline| {
            let call = match pipeline {
                StandardPipeline::NvlCombine | StandardPipeline::DecodeCombine => {
                    &self.case.combine
                }
                _ => &self.case.dispatch,
            };
            self.buffer.sms(*pipeline, call)
        };
        operation.pipelines(&self.buffer).iter().map(of).max().unwrap_or(0)
    }

    /// Handles and combine inputs, from one dispatch before the clock starts.
    pub(super) fn rank_calls(&self, operation: Operation) -> Result<Vec<RankCalls>, CallError> {
        let local = self.group.local();
        let mut calls: Vec<RankCalls> =
            local.map(|rank| RankCalls { rank, handle: None, offered: None }).collect();
        if operation.needs_handle() {
            for (own, dispatched) in calls.iter_mut().zip(self.dispatch()?) {
                own.handle = Some(dispatched.handle);
            }
            let handles = calls.iter().filter_map(|own| own.handle.as_ref());
            handles.into_iter().try_for_each(|handle| handle.counts().map(|_| ()))?;
            self.settle()?;
        }
        if operation.combines() {
            for (own, offered) in calls.iter_mut().zip(self.offer_rows()?) {
                own.offered = Some(offered);
            }
        }
        Ok(calls)
    }

    /// One call on one rank, as far as it goes without the other ranks' launches.
    pub(super) fn begin_call(
        &self,
        own: &RankCalls,
        operation: Operation,
    ) -> Result<Left, CallError> {
        let (rank, call) = (own.rank, &self.case.dispatch);
        let missing = || CallError::Mismatch { what: "the call needs a handle".to_string() };
        let mut left = Left::default();
        match operation {
            _ if operation.moves_fresh_rows() && self.buffer.dispatches_in_one_launch() => {
                let (handle, received) = self.buffer.dispatch(rank, &self.input(rank)?, call)?;
                left = Left { handle: Some(handle), received: Some(received) };
            }
            Operation::Dispatch
            | Operation::DispatchCounted
            | Operation::Counts
            | Operation::Both => {
                left.handle = Some(self.buffer.exchange_counts(rank, &self.input(rank)?, call)?);
            }
            Operation::CachedDispatch => {
                let handle = own.handle.as_ref().ok_or_else(missing)?;
                let received = self.buffer.cached_dispatch(handle, &self.input(rank)?, call)?;
                left.received = Some(received);
            }
            Operation::Combine => {
                let handle = own.handle.as_ref().ok_or_else(missing)?;
                let offered = own.offered.as_ref().ok_or_else(missing)?;
                self.combine(handle, CombineInput::Offered(offered))?;
            }
        }
        Ok(left)
    }

    /// The rest of the call: the rows of a fresh dispatch, which may have to wait for its counts, and
    /// the combine behind it.
    pub(super) fn end_call(
        &self,
        own: &RankCalls,
        left: &mut Left,
        operation: Operation,
    ) -> Result<(), CallError> {
        let Some(handle) = &left.handle else { return Ok(()) };
        if !operation.moves_fresh_rows() {
            return Ok(());
        }
        let (input, call) = (self.input(own.rank)?, &self.case.dispatch);
        let received = match &mut left.received {
            Some(received) => received,
            none => none.insert(self.buffer.dispatch_counted(handle, &input, call)?),
        };
        match &own.offered {
            Some(offered) if self.combines_in_place() => {
                self.combine(handle, CombineInput::InPlace(received, Some(offered)))
            }
            Some(offered) => self.combine(handle, CombineInput::Offered(offered)),
            None => Ok(()),
        }
    }

    /// Compares what a call left on a rank with the oracle.
    fn verify_left(&self, left: &Left, operation: Operation) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        if let Some(handle) = &left.handle {
            findings.merge(self.verify_counts(handle)?);
        }
        if let Some(received) = &left.received {
            let fresh = operation != Operation::CachedDispatch;
            findings.merge(self.verify_rows("last timed call", received, fresh)?);
            findings.merge(self.verify_untouched(received)?);
        }
        Ok(findings)
    }

    /// Compares the sums of the last call, if it has any. A pair of calls adds up rows as they came where
    /// they can be.
    fn verify_sums_of(&self, rank: usize, operation: Operation) -> Result<Findings, CallError> {
        if !operation.combines() {
            return Ok(Findings::default());
        }
        self.verify_sums(rank, operation == Operation::Both && self.combines_in_place())
    }

    /// The wire's own time for what an operation moves.
    pub fn wire(&self, operation: Operation) -> Result<Option<Duration>, CallError> {
        let found = ep_runtime::tune::wire_time(&self.group, self.wire_bytes(operation))?;
        Ok(found.map(|(time, _)| time))
    }

    /// Bytes over the wire of the busiest rank: rows and the records that go with them.
    fn wire_bytes(&self, operation: Operation) -> u64 {
        let pipelines = operation.pipelines(&self.buffer).into_iter();
        let row: u64 = pipelines.map(|pipeline| self.row_bytes(pipeline)).sum();
        let ranks = 0..self.group.ranks();
        ranks.map(|rank| self.oracle.remote_rows(rank) as u64 * row).max().unwrap_or(0)
    }

    /// Bytes that travel with each row of a pipeline: none where no rows do.
    pub(super) fn row_bytes(&self, pipeline: StandardPipeline) -> u64 {
        if pipeline == StandardPipeline::Layout {
            return 0;
        }
        let plan = self.buffer.plan(pipeline);
        let messages = plan.map(|plan| plan.messages.as_slice()).unwrap_or_default();
        let row = messages.iter().map(|m| m.row_bytes + m.meta_bytes).max();
        row.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
    }
}
