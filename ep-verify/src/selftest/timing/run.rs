//! Calls that the host makes one by one, timed.

use std::time::{Duration, Instant};

use ep_runtime::error::CallError;

use super::clock::{Clock, with_clocks};
use super::times::{Across, RankTimes, Times, median};
use super::{Left, Mode, Operation, RankCalls, Repeats};
use crate::findings::Findings;
use crate::selftest::{POISON, Selftest};

/// One timed run: the same calls over and over, and the last one on other inputs.
pub(super) struct Run<'a> {
    usual: &'a Selftest,
    last: &'a Selftest,
    usual_calls: Vec<RankCalls>,
    last_calls: Vec<RankCalls>,
    operation: Operation,
    mode: Mode,
    repeats: Repeats,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        usual: &'a Selftest,
        last: &'a Selftest,
        operation: Operation,
        mode: Mode,
        repeats: Repeats,
    ) -> Result<Run<'a>, CallError> {
        let (usual_calls, last_calls) = (usual.rank_calls(operation)?, last.rank_calls(operation)?);
        Ok(Run { usual, last, usual_calls, last_calls, operation, mode, repeats })
    }

    /// Makes the calls; no times where nothing runs by itself.
    pub(super) fn times(&self) -> Result<(Option<Times>, Findings), CallError> {
        self.usual.poison()?;
        self.last.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
        self.usual.settle()?;
        match self.usual.group.backend().runs_alone() {
            true => self.timed().map(|(times, findings)| (Some(times), findings)),
            false => Ok((None, self.untimed()?)),
        }
    }
}

impl Run<'_> {
    /// Each call on a thread of its rank, with the clock running.
    fn timed(&self) -> Result<(Times, Findings), CallError> {
        let done = with_clocks(&self.usual.group, 1, &|clock| {
            let (rounds, left) = match self.mode {
                Mode::Loop => self.back_to_back(clock)?,
                Mode::Iso => self.one_by_one(clock)?,
            };
            let host = median(clock.in_calls.take());
            Ok((RankTimes { rounds, host }, left))
        })?;
        let (ranks, left): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        Ok((Times::of(&self.usual.group, &ranks, Across::Slowest)?, self.verify(&left)?))
    }

    /// Each call without a clock, where one thread has to launch for all ranks before it waits for any.
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
            let ends = calls.iter().zip(&mut left);
            ends.into_iter()
                .try_for_each(|(own, left)| test.end_call(own, left, self.operation))?;
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
        test.end_call(own, &mut left, self.operation)?;
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
            let mut found = self.last.verify_left(left, self.operation)?;
            found.merge(self.last.verify_sums_of(rank, self.operation)?);
            Ok(found)
        });
        let mut findings = Findings::default();
        found?.into_iter().for_each(|found| findings.merge(found));
        Ok(findings)
    }

    /// The mean of many calls, one round of warm-up and one that counts.
    fn back_to_back(&self, clock: &Clock<'_>) -> Result<(Vec<Duration>, Left), CallError> {
        let Repeats { warmup, iterations, .. } = self.repeats;
        // Behind the gate nothing completes: a call that waits for counts comes after it opens, and
        // so does whatever might fill the stream's queue.
        clock.begin(1)?;
        clock.open(1)?;
        drop(self.calls_in_a_row(clock, warmup.max(1), false)?);
        clock.mark(1)?;
        clock.read()?;
        clock.in_calls.take();
        let count = iterations.max(1);
        clock.begin(2)?;
        clock.open(2)?;
        let left = self.calls_in_a_row(clock, count, true)?;
        clock.mark(1)?;
        let total = clock.read()?;
        Ok((vec![total / count as u32], left))
    }

    /// Each call in a round of its own.
    fn one_by_one(&self, clock: &Clock<'_>) -> Result<(Vec<Duration>, Left), CallError> {
        let Repeats { warmup, iterations, .. } = self.repeats;
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
            clock.mark(1)?;
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
        self.operation.moves_fresh_rows() && !self.usual.buffer.holds_worst_case()
    }
}

fn wait_for_counts(left: &Left) -> Result<(), CallError> {
    left.handle.as_ref().map_or(Ok(()), |handle| handle.counts().map(|_| ()))
}
