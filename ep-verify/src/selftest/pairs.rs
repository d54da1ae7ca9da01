//! Many dispatches and combines in a row, with nobody waiting for any of them.

use super::load::Load;
use super::{Dispatched, POISON, Selftest};
use crate::findings::Findings;
use ep_runtime::backend::Stream;
use ep_runtime::buffer::{CallOptions, CombineInput, Offered, Payload};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;

/// Pairs between two looks at what they leave.
const BETWEEN_LOOKS: usize = 200;

/// The streams that the calls of a rank are put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// All into its own.
    OwnStream,
    /// Each into another than the one before, of two that the caller orders in no way.
    TwoStreams,
}

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
        turns: Turns,
        load: Option<&Load>,
    ) -> Result<Findings, CallError> {
        let streams = Streams::new(&self.group, turns)?;
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
            let series =
                Series { tests: [self, other], offered: &offered, streams: &streams, count, load };
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
    streams: &'a Streams,
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

    /// How a rank dispatches and combines in a pair.
    fn calls(&self, pair: usize, rank: usize) -> Result<[CallOptions; 2], CallError> {
        let case = &self.tests[pair % 2].case;
        let index = self.tests[0].group.local_index(rank)?;
        let [first, second] = self.streams.ranks[index];
        let dispatch = CallOptions { stream: first, ..case.dispatch };
        Ok([dispatch, CallOptions { stream: second, ..case.combine }])
    }

    /// All pairs of one rank.
    fn alone(&self, rank: usize) -> Result<Dispatched, CallError> {
        let mut last = None;
        for pair in 0..self.count {
            let test = self.tests[pair % 2];
            // An output is given back before the next one is taken.
            drop(last.take());
            let [dispatch, combine] = self.calls(pair, rank)?;
            let (handle, received) = test.buffer.dispatch(rank, &test.input(rank)?, &dispatch)?;
            let dispatched = Dispatched { handle, received };
            self.follow(pair, &dispatched, &combine)?;
            last = Some(dispatched);
        }
        last.ok_or_else(|| CallError::Mismatch { what: "a series has a pair".to_string() })
    }

    /// All pairs of all local ranks, where one thread launches for all of them.
    fn together(&self) -> Result<Vec<Dispatched>, CallError> {
        let mut last = Vec::new();
        for pair in 0..self.count {
            let test = self.tests[pair % 2];
            last.clear();
            if test.buffer.dispatches_in_one_launch() {
                for rank in test.group.local() {
                    let [dispatch, combine] = self.calls(pair, rank)?;
                    let (handle, received) =
                        test.buffer.dispatch(rank, &test.input(rank)?, &dispatch)?;
                    last.push(Dispatched { handle, received });
                    self.follow(pair, &last[last.len() - 1], &combine)?;
                }
                continue;
            }
            let handles = test.group.local().map(|rank| {
                let [dispatch, _] = self.calls(pair, rank)?;
                test.buffer.exchange_counts(rank, &test.input(rank)?, &dispatch)
            });
            for handle in handles.collect::<Result<Vec<_>, _>>()? {
                let rank = handle.rank();
                let [dispatch, combine] = self.calls(pair, rank)?;
                let input = test.input(rank)?;
                let received = test.buffer.dispatch_counted(&handle, &input, &dispatch)?;
                last.push(Dispatched { handle, received });
                self.follow(pair, &last[last.len() - 1], &combine)?;
            }
        }
        Ok(last)
    }

    /// What comes behind the dispatch of a pair.
    fn follow(
        &self,
        pair: usize,
        dispatched: &Dispatched,
        call: &CallOptions,
    ) -> Result<(), CallError> {
        let test = self.tests[pair % 2];
        let Dispatched { handle, received } = dispatched;
        let offered = &self.offered[pair % 2][test.group.local_index(handle.rank())?];
        let input = match test.combines_in_place() {
            true => CombineInput::InPlace(received, Some(offered)),
            false => CombineInput::Offered(offered),
        };
        test.combine_with(handle, input, call)?;
        self.load.map_or(Ok(()), |load| load.launch(handle.rank()))
    }
}

impl Selftest {
    /// Whether received rows are what a combine adds up: only BF16 rows can be.
    pub(super) fn combines_in_place(&self) -> bool {
        self.case.options.payload == Payload::Bf16
    }
}

/// Two streams of each local rank.
struct Streams {
    group: Group,
    ranks: Vec<[Stream; 2]>,
}

impl Streams {
    fn new(group: &Group, turns: Turns) -> Result<Streams, CallError> {
        let mut streams = Streams { group: group.clone(), ranks: Vec::new() };
        for rank in group.local() {
            let create = || group.backend().create_stream(rank);
            streams.ranks.push(match turns {
                Turns::OwnStream => [Stream::OWN; 2],
                Turns::TwoStreams => [create()?, create()?],
            });
        }
        Ok(streams)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for (rank, streams) in self.group.local().zip(&self.ranks) {
            for stream in streams.iter().filter(|stream| **stream != Stream::OWN) {
                // All calls in them have been waited for, or have failed.
                let _ = self.group.backend().destroy_stream(rank, *stream);
            }
        }
    }
}
