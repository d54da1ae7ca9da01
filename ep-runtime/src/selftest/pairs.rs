//! Many dispatches and combines in a row, with nobody waiting for any of them.

use super::load::Load;
use super::{Dispatched, Findings, POISON, Selftest};
use crate::buffer::{CombineInput, Handle, Offered, Payload, Received};
use crate::error::CallError;

/// Pairs between two looks at what they leave.
const BETWEEN_LOOKS: usize = 200;

impl Selftest {
    /// Queues `pairs` dispatches with a combine behind each, in turn on these inputs and on those of
    /// `other`, which uses the same buffer, and with them a launch of `load`. Now and then everything
    /// is waited for, compared and poisoned.
    ///
    /// The buffer holds the worst case, and has two live handles.
    pub fn check_pairs(
        &self,
        other: &Selftest,
        pairs: usize,
        load: Option<&Load>,
    ) -> Result<Findings, CallError> {
        let offered = [self.offer_rows()?, other.offer_rows()?];
        let mut findings = Findings::default();
        let mut left = pairs;
        while left > 0 {
            let count = left.min(BETWEEN_LOOKS);
            left -= count;
            self.poison()?;
            for test in [self, other] {
                test.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
            }
            let series = Series { tests: [self, other], offered: &offered, count, load };
            findings.merge(series.run()?);
        }
        if let Some(load) = load {
            findings.merge(load.check()?);
        }
        Ok(findings)
    }
}

/// Pairs without a look in between.
struct Series<'a> {
    tests: [&'a Selftest; 2],
    /// Combine inputs of both, by local rank.
    offered: &'a [Vec<Offered>; 2],
    count: usize,
    load: Option<&'a Load>,
}

impl Series<'_> {
    fn run(&self) -> Result<Findings, CallError> {
        let test = self.tests[0];
        let last = match test.group.backend().runs_alone() {
            true => test.for_each_rank(&|rank| self.alone(rank))?,
            false => self.together()?,
        };
        test.settle()?;
        let newest = self.tests[(self.count - 1) % 2];
        // The last two pairs leave their sums; with one there is but one.
        let sums = &self.tests[..self.count.min(2)];
        let found = test.for_each_rank(&|rank| {
            let last = &last[test.group.local_index(rank)?];
            let mut found = newest.verify_counts(&last.handle)?;
            found.merge(newest.verify_rows("last pair", &last.received, true)?);
            for test in sums {
                found.merge(test.verify_sums(rank, test.combines_in_place())?);
            }
            Ok(found)
        })?;
        let mut findings = Findings::default();
        found.into_iter().for_each(|found| findings.merge(found));
        Ok(findings)
    }

    /// All pairs of one rank.
    fn alone(&self, rank: usize) -> Result<Dispatched, CallError> {
        let index = self.tests[0].group.local_index(rank)?;
        let mut last = None;
        for pair in 0..self.count {
            let test = self.tests[pair % 2];
            // An output is given back before the next one is taken.
            drop(last.take());
            let (handle, received) =
                test.buffer.dispatch(rank, &test.input(rank)?, &test.case.dispatch)?;
            test.combine_pair(&handle, &received, &self.offered[pair % 2][index])?;
            if let Some(load) = self.load {
                load.launch(rank)?;
            }
            last = Some(Dispatched { handle, received });
        }
        last.ok_or_else(|| CallError::Mismatch { what: "a series has a pair".to_string() })
    }

    /// The same where one thread launches for all ranks.
    fn together(&self) -> Result<Vec<Dispatched>, CallError> {
        let mut last = Vec::new();
        for pair in 0..self.count {
            let test = self.tests[pair % 2];
            last.clear();
            last = test.dispatch()?;
            for (one, offered) in last.iter().zip(&self.offered[pair % 2]) {
                test.combine_pair(&one.handle, &one.received, offered)?;
                if let Some(load) = self.load {
                    load.launch(one.handle.rank())?;
                }
            }
        }
        Ok(last)
    }
}

impl Selftest {
    /// Whether received rows are what a combine adds up: only BF16 rows can be.
    fn combines_in_place(&self) -> bool {
        self.case.options.payload == Payload::Bf16
    }

    fn combine_pair(
        &self,
        handle: &Handle,
        received: &Received,
        offered: &Offered,
    ) -> Result<(), CallError> {
        match self.combines_in_place() {
            true => self.combine(handle, CombineInput::InPlace(received, Some(offered))),
            false => self.combine(handle, CombineInput::Offered(offered)),
        }
    }
}
