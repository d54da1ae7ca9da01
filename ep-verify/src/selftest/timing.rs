//! How long calls take on all ranks together.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::{POISON, RankBarrier, Selftest};
use crate::findings::Findings;
use crate::probe::Probe;
use ep_runtime::backend::{Event, Stream};
use ep_runtime::buffer::{
    CallOptions, CombineInput, Handle, Offered, Received, StandardPipeline, Via,
};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::memory::HostMemory;

/// What a gate holds at the end: no round has a larger number.
const OPEN_FOR_GOOD: u32 = i32::MAX as u32;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Counts and rows; the host does not wait for counts.
    Dispatch,
    /// The same, and the host knows the counts before the next call.
    DispatchCounted,
    /// The exchange of counts alone.
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

    /// The kernels of a call, in order.
    pub fn pipelines(self) -> &'static [StandardPipeline] {
        use StandardPipeline as Standard;
        match self {
            Operation::Dispatch | Operation::DispatchCounted => {
                &[Standard::Layout, Standard::NvlDispatch]
            }
            Operation::Counts => &[Standard::Layout],
            Operation::CachedDispatch => &[Standard::NvlDispatchCached],
            Operation::Combine => &[Standard::NvlCombine],
        }
    }

    /// The last of them: the one that moves rows, if any does.
    pub fn main_pipeline(self) -> StandardPipeline {
        *self.pipelines().last().unwrap_or(&StandardPipeline::NvlDispatch)
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
    /// Those of them that send to other ranks, where they are set apart.
    pub remote: Option<u32>,
    /// Time of one call: that of the slowest rank. None where nothing runs by itself.
    pub time: Option<Duration>,
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
}

/// What the calls of one rank need, made before the clock starts.
struct RankCalls {
    rank: usize,
    handle: Option<Handle>,
    offered: Option<Offered>,
}

/// What one call leaves.
#[derive(Default)]
struct Left {
    handle: Option<Handle>,
    received: Option<Received>,
}

/// The events and the gate of one rank.
struct Clock<'a> {
    group: &'a Group,
    rank: usize,
    /// Of the start and the end of a round.
    events: Vec<Event>,
    gate: &'a HostMemory,
    /// Brings the ranks of all processes together, whose gates open one after another.
    line: &'a Probe,
    barrier: &'a RankBarrier,
    /// How long the host was in each call.
    in_calls: RefCell<Vec<Duration>>,
}

/// What the clock of one rank shows after its calls.
struct RankTimes {
    /// Of the device: each round, or the mean of all.
    rounds: Vec<Duration>,
    /// Of the host: one call.
    host: Duration,
}

/// What the clocks of all ranks show.
struct Times {
    device: Duration,
    host: Duration,
}

/// One timed run: the same calls over and over, and the last one on other inputs.
struct Run<'a> {
    usual: &'a Selftest,
    last: &'a Selftest,
    usual_calls: Vec<RankCalls>,
    last_calls: Vec<RankCalls>,
    operation: Operation,
    mode: Mode,
    repeats: Repeats,
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
        let backend = self.group.backend();
        if self.case.options.live < 2 {
            let what = "the last timed call needs an output of its own: 2 live ones".to_string();
            return Err(CallError::Mismatch { what });
        }
        let (usual_calls, last_calls) = (self.rank_calls(operation)?, last.rank_calls(operation)?);
        let run = Run { usual: self, last, usual_calls, last_calls, operation, mode, repeats };
        self.poison()?;
        last.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
        self.settle()?;
        let (times, findings) = match backend.runs_alone() {
            true => run.timed().map(|(times, findings)| (Some(times), findings))?,
            false => (None, run.untimed()?),
        };
        Ok(Timing {
            operation,
            mode,
            sms: self.sms(operation),
            remote: self.sending(operation),
            time: times.as_ref().map(|times| times.device),
            host_time: times.as_ref().map(|times| times.host),
            bytes: self.wire_bytes(operation),
            findings,
        })
    }

    /// Most SMs of any kernel of a call.
    fn sms(&self, operation: Operation) -> u32 {
        let call = self.call_options(operation);
        let of = |pipeline: &StandardPipeline| self.buffer.sms(*pipeline, call);
        operation.pipelines().iter().map(of).max().unwrap_or(0)
    }

    /// Blocks of the call that send to other ranks, if it splits them.
    fn sending(&self, operation: Operation) -> Option<u32> {
        let moves = matches!(
            operation.main_pipeline(),
            StandardPipeline::NvlDispatch | StandardPipeline::NvlDispatchCached
        );
        let splits = moves && self.case.options.via == Via::Direct;
        splits.then(|| self.buffer.remote_sms(self.call_options(operation)))
    }

    fn call_options(&self, operation: Operation) -> &CallOptions {
        match operation {
            Operation::Combine => &self.case.combine,
            _ => &self.case.dispatch,
        }
    }

    /// Handles and combine inputs, from one dispatch before the clock starts.
    fn rank_calls(&self, operation: Operation) -> Result<Vec<RankCalls>, CallError> {
        let needs_handle = matches!(operation, Operation::CachedDispatch | Operation::Combine);
        if !needs_handle {
            let local = self.group.local();
            return Ok(local.map(|rank| RankCalls { rank, handle: None, offered: None }).collect());
        }
        let handles: Vec<Handle> =
            self.dispatch()?.into_iter().map(|dispatched| dispatched.handle).collect();
        handles.iter().try_for_each(|handle| handle.counts().map(|_| ()))?;
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

    /// One call on one rank, as far as it goes without the other ranks' launches.
    fn begin_call(&self, own: &RankCalls, operation: Operation) -> Result<Left, CallError> {
        let (rank, call) = (own.rank, &self.case.dispatch);
        let missing = || CallError::Mismatch { what: "the call needs a handle".to_string() };
        let mut left = Left::default();
        match operation {
            Operation::Dispatch | Operation::DispatchCounted | Operation::Counts => {
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

    /// The rest of the call: the rows of a fresh dispatch, which may have to wait for its counts.
    fn end_call(&self, left: &mut Left, operation: Operation) -> Result<(), CallError> {
        let Some(handle) = &left.handle else { return Ok(()) };
        if operation != Operation::Counts {
            let (input, call) = (self.input(handle.rank())?, &self.case.dispatch);
            left.received = Some(self.buffer.dispatch_counted(handle, &input, call)?);
        }
        Ok(())
    }

    /// Compares what a call left on a rank with the oracle.
    fn verify_left(
        &self,
        rank: usize,
        left: &Left,
        operation: Operation,
    ) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        if let Some(handle) = &left.handle {
            findings.merge(self.verify_counts(handle)?);
        }
        if let Some(received) = &left.received {
            let fresh = operation != Operation::CachedDispatch;
            findings.merge(self.verify_rows("last timed call", received, fresh)?);
            findings.merge(self.verify_untouched(received)?);
        }
        if operation == Operation::Combine {
            findings.merge(self.verify_sums(rank, false)?);
        }
        Ok(findings)
    }

    /// The wire's own time for what an operation moves.
    pub fn wire(&self, operation: Operation) -> Result<Option<Duration>, CallError> {
        let found = ep_runtime::tune::wire_time(&self.group, self.wire_bytes(operation))?;
        Ok(found.map(|(time, _)| time))
    }

    /// Bytes over the wire of the busiest rank: rows and the records that go with them.
    fn wire_bytes(&self, operation: Operation) -> u64 {
        if operation == Operation::Counts {
            return 0;
        }
        let plan = self.buffer.plan(operation.main_pipeline());
        let messages = plan.map(|plan| plan.messages.as_slice()).unwrap_or_default();
        let row = messages.iter().map(|m| m.row_bytes + m.meta_bytes).max();
        let row = row.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let ranks = 0..self.group.ranks();
        ranks.map(|rank| self.oracle.remote_rows(rank) as u64 * row).max().unwrap_or(0)
    }
}

/// The time of the slowest rank: of the whole loop, or the median of its rounds.
fn slowest(ranks: &[RankTimes], mode: Mode) -> Duration {
    let count = ranks.iter().map(|own| own.rounds.len()).min().unwrap_or(0);
    let slowest = |round: usize| ranks.iter().map(|own| own.rounds[round]).max();
    let slowest: Vec<Duration> = (0..count).filter_map(slowest).collect();
    match mode {
        Mode::Loop => slowest.into_iter().max().unwrap_or_default(),
        Mode::Iso => median(slowest),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl Run<'_> {
    /// Each call on a thread of its rank, with the clock running.
    fn timed(&self) -> Result<(Times, Findings), CallError> {
        let (test, backend) = (self.usual, self.usual.group.backend());
        let gate = HostMemory::new(backend, test.group.local().start, 4)?;
        let line = Probe::new(test.group.clone())?;
        let barrier = test.barrier();
        let done = test.for_each_rank(&|rank| {
            barrier.attend(|| {
                let clock = Clock::new(&test.group, rank, &gate, &line, &barrier)?;
                let (rounds, left) = match self.mode {
                    Mode::Loop => self.back_to_back(&clock)?,
                    Mode::Iso => self.one_by_one(&clock)?,
                };
                let host = median(clock.in_calls.take());
                Ok((RankTimes { rounds, host }, left))
            })
        });
        // After an error what stands before the gate has to go on, or nobody could ever wait for it.
        gate.write(0, &[OPEN_FOR_GOOD])?;
        let done = done?;
        test.settle()?;
        let (ranks, left): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        let of_all = |label: &str, local: Duration| {
            let local = u64::try_from(local.as_nanos()).unwrap_or(u64::MAX);
            let all = backend.gather(label, local)?;
            Ok::<_, CallError>(Duration::from_nanos(all.into_iter().max().unwrap_or(local)))
        };
        let host = ranks.iter().map(|own| own.host).max().unwrap_or_default();
        let times = Times {
            device: of_all("compare times", slowest(&ranks, self.mode))?,
            host: of_all("compare times of the host", host)?,
        };
        Ok((times, self.verify(&left)?))
    }

    /// The same calls where one thread has to launch for all ranks before it waits for any.
    fn untimed(&self) -> Result<Findings, CallError> {
        let mut before = Vec::new();
        let count = self.repeats.warmup + self.repeats.iterations.max(1);
        for index in 0..count {
            let is_last = index + 1 == count;
            let (test, calls) = self.calls(is_last);
            if !is_last {
                before.clear();
            }
            let left = calls.iter().map(|own| test.begin_call(own, self.operation));
            let mut left = left.collect::<Result<Vec<_>, _>>()?;
            left.iter_mut().try_for_each(|left| test.end_call(left, self.operation))?;
            test.settle()?;
            if is_last {
                return self.verify(&left);
            }
            before = left;
        }
        Ok(Findings::default())
    }

    fn calls(&self, is_last: bool) -> (&Selftest, &[RankCalls]) {
        match is_last {
            true => (self.last, &self.last_calls),
            false => (self.usual, &self.usual_calls),
        }
    }

    /// One call on one rank.
    fn call(&self, clock: &Clock<'_>, is_last: bool) -> Result<Left, CallError> {
        let (test, calls) = self.calls(is_last);
        let own = &calls[test.group.local_index(clock.rank)?];
        let begun = Instant::now();
        let mut left = test.begin_call(own, self.operation)?;
        let mut in_call = begun.elapsed();
        if self.moves_by_counts() {
            wait_for_counts(&left)?;
        }
        let resumed = Instant::now();
        test.end_call(&mut left, self.operation)?;
        in_call += resumed.elapsed();
        clock.in_calls.borrow_mut().push(in_call);
        if self.operation == Operation::DispatchCounted {
            wait_for_counts(&left)?;
        }
        Ok(left)
    }

    /// Calls back to back on one rank; the last of `count` may be the last of the run. What the one
    /// before it left stays alive, so that it cannot take an output that was written before.
    fn calls_in_a_row(
        &self,
        clock: &Clock<'_>,
        count: usize,
        ends: bool,
    ) -> Result<Left, CallError> {
        let mut left = Left::default();
        for index in 0..count {
            if ends && index + 1 == count {
                let _before = left;
                return self.call(clock, true);
            }
            drop(std::mem::take(&mut left));
            left = self.call(clock, false)?;
        }
        Ok(left)
    }

    fn verify(&self, left: &[Left]) -> Result<Findings, CallError> {
        let found = self.last.for_each_rank(&|rank| {
            let left = &left[self.last.group.local_index(rank)?];
            self.last.verify_left(rank, left, self.operation)
        });
        let mut findings = Findings::default();
        found?.into_iter().for_each(|found| findings.merge(found));
        Ok(findings)
    }

    /// The mean of many calls, one round of warm-up and one that counts.
    fn back_to_back(&self, clock: &Clock<'_>) -> Result<(Vec<Duration>, Left), CallError> {
        let Repeats { warmup, iterations } = self.repeats;
        // Behind the gate nothing completes: a call that waits for counts comes after it opens, and
        // so does whatever might fill the stream's queue.
        clock.begin(1)?;
        clock.open(1)?;
        drop(self.calls_in_a_row(clock, warmup.max(1), false)?);
        clock.end()?;
        clock.read()?;
        clock.in_calls.take();
        let count = iterations.max(1);
        clock.begin(2)?;
        clock.open(2)?;
        let left = self.calls_in_a_row(clock, count, true)?;
        clock.end()?;
        let total = clock.read()?;
        Ok((vec![total / count as u32], left))
    }

    /// Each call in a round of its own.
    fn one_by_one(&self, clock: &Clock<'_>) -> Result<(Vec<Duration>, Left), CallError> {
        let Repeats { warmup, iterations } = self.repeats;
        let count = warmup + iterations.max(1);
        let mut rounds = Vec::with_capacity(count);
        let mut before = Left::default();
        for round in 1..=count {
            let is_last = round == count;
            if !is_last {
                drop(std::mem::take(&mut before));
            }
            clock.begin(round as u32)?;
            let opens_late = !self.waits_for_counts();
            if !opens_late {
                clock.open(round as u32)?;
            }
            let left = self.call(clock, is_last)?;
            clock.end()?;
            // All of the call is queued before the gate opens: what is timed is the device.
            if opens_late {
                clock.open(round as u32)?;
            }
            let time = clock.read()?;
            match round > warmup {
                true => rounds.push(time),
                false => drop(clock.in_calls.take()),
            }
            if is_last {
                return Ok((rounds, left));
            }
            before = left;
        }
        Ok((rounds, before))
    }

    /// Whether the host waits for the device inside the call.
    fn waits_for_counts(&self) -> bool {
        self.operation == Operation::DispatchCounted || self.moves_by_counts()
    }

    /// Whether rows cannot move before the host knows how many come.
    fn moves_by_counts(&self) -> bool {
        let moves = matches!(self.operation, Operation::Dispatch | Operation::DispatchCounted);
        moves && !self.usual.buffer.holds_worst_case()
    }
}

fn wait_for_counts(left: &Left) -> Result<(), CallError> {
    left.handle.as_ref().map_or(Ok(()), |handle| handle.counts().map(|_| ()))
}

impl<'a> Clock<'a> {
    fn new(
        group: &'a Group,
        rank: usize,
        gate: &'a HostMemory,
        line: &'a Probe,
        barrier: &'a RankBarrier,
    ) -> Result<Clock<'a>, CallError> {
        let backend = group.backend();
        let events = vec![backend.create_event(rank)?, backend.create_event(rank)?];
        Ok(Clock { group, rank, events, gate, line, barrier, in_calls: RefCell::default() })
    }

    /// Queues the start of a round behind the gate and the line.
    fn begin(&self, round: u32) -> Result<(), CallError> {
        let backend = self.group.backend();
        backend.hold(self.rank, Stream::OWN, self.gate.block(), 0, round)?;
        self.line.launch(self.rank, -1)?;
        Ok(backend.record(self.rank, Stream::OWN, &self.events[0])?)
    }

    /// Opens the gate once all ranks stand before it.
    fn open(&self, round: u32) -> Result<(), CallError> {
        if self.barrier.join()? {
            self.group.backend().gather("open the gate", 0)?;
            self.gate.write(0, &[round])?;
        }
        Ok(())
    }

    fn end(&self) -> Result<(), CallError> {
        Ok(self.group.backend().record(self.rank, Stream::OWN, &self.events[1])?)
    }

    /// Waits for the round and reads the clock.
    fn read(&self) -> Result<Duration, CallError> {
        self.group.sync(self.rank)?;
        Ok(self.group.backend().elapsed(self.rank, &self.events[0], &self.events[1])?)
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        for event in std::mem::take(&mut self.events) {
            let _ = self.group.backend().destroy_event(self.rank, event);
        }
    }
}
