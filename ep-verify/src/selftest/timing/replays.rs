//! Calls that are captured in a graph and replayed, timed: what the host spends on them is gone.

use std::time::{Duration, Instant};

use ep_runtime::backend::Stream;
use ep_runtime::error::CallError;
use ep_runtime::graph::Graph;
use ep_runtime::group::Group;

use super::clock::{Clock, with_clocks};
use super::rounds::in_a_row;
use super::times::{Across, RankTimes, Times, median};
use super::{Left, Mode, Operation, RankCalls, Repeats};
use crate::findings::Findings;
use crate::selftest::{POISON, Selftest, settle};

/// How long the handles and outputs of a dropped graph may stay taken. The driver gives them back on a thread
/// of its own.
const LET_GO: Duration = Duration::from_secs(10);

/// The calls of one rank, in a graph.
struct RankGraph {
    graph: Graph,
    /// What each call leaves.
    left: Vec<Left>,
    own: RankCalls,
    /// Makes the tables that the calls follow.
    tables: Option<Graph>,
}

/// One operation in a graph for each local rank. They work in the memory of `last`, which holds the
/// inputs of `usual` while the clock runs.
pub(super) struct Replays<'a> {
    usual: &'a Selftest,
    last: &'a Selftest,
    operation: Operation,
    calls: u32,
    ranks: Vec<RankGraph>,
}

impl<'a> Replays<'a> {
    pub(super) fn new(
        usual: &'a Selftest,
        last: &'a Selftest,
        operation: Operation,
        calls: u32,
    ) -> Result<Replays<'a>, CallError> {
        if operation == Operation::DispatchCounted {
            let what = "a graph cannot hold a dispatch whose counts the host waits for";
            return Err(CallError::Capture { what: what.to_string() });
        }
        if calls == 0 {
            return Err(CallError::Capture { what: "a graph holds at least 1 call".to_string() });
        }
        let ranks = last.for_each_rank(&|rank| {
            last.await_free(rank, calls)?;
            last.capture_calls(rank, operation, calls)
        })?;
        Ok(Replays { usual, last, operation, calls, ranks })
    }

    /// Compares what a replay leaves before and after; no times where nothing runs by itself.
    pub(super) fn times(
        &self,
        mode: Mode,
        repeats: Repeats,
    ) -> Result<(Option<Times>, Findings), CallError> {
        let mut findings = self.check()?;
        self.bring(self.usual)?;
        let graphs: Vec<&Graph> = self.ranks.iter().map(|own| &own.graph).collect();
        let times = time_replays(&self.usual.group, &graphs, self.calls, mode, repeats)?;
        findings.merge(self.check()?);
        Ok((times, findings))
    }

    /// Writes the inputs of `source` to where the graphs read theirs.
    fn bring(&self, source: &Selftest) -> Result<(), CallError> {
        // No process still reads what is written now.
        self.last.settle()?;
        self.last.group.gather("the last replay is over", 0)?;
        for RankGraph { own, tables, .. } in &self.ranks {
            self.last.rank(own.rank)?.write(own.rank, &source.oracle, &source.host)?;
            if let Some(offered) = &own.offered {
                source.write_offered(own.rank, offered)?;
            }
            if let Some(tables) = tables {
                tables.replay(Stream::OWN)?;
            }
        }
        self.last.settle()
    }

    /// One replay on the inputs of `last`, into poisoned outputs.
    fn check(&self) -> Result<Findings, CallError> {
        let last = self.last;
        self.bring(last)?;
        last.poison()?;
        last.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
        last.settle()?;
        self.ranks.iter().try_for_each(|own| own.graph.replay(Stream::OWN))?;
        last.settle()?;
        let found = last.for_each_rank(&|rank| {
            let own = &self.ranks[last.group.local_index(rank)?];
            let mut found = last.verify_sums_of(rank, self.operation)?;
            for left in &own.left {
                found.merge(last.verify_left(left, self.operation)?);
            }
            Ok(found)
        });
        let mut findings = Findings::default();
        found?.into_iter().for_each(|found| findings.merge(found));
        Ok(findings)
    }
}

impl Selftest {
    /// Waits until a graph that was dropped has given back what `calls` captured calls take: a handle and an output
    /// each, and one more for tables or for the input of a combine. No capture is tried before: a capture that
    /// fails takes what is free, and gives it back late, too.
    fn await_free(&self, rank: usize, calls: u32) -> Result<(), CallError> {
        let deadline = Instant::now() + LET_GO;
        while self.buffer.free(rank)? <= calls as usize && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn capture_calls(
        &self,
        rank: usize,
        operation: Operation,
        calls: u32,
    ) -> Result<RankGraph, CallError> {
        let mut own = RankCalls { rank, handle: None, offered: None };
        let mut tables = None;
        if operation.needs_handle() {
            let input = self.input(rank)?;
            let dispatch = || self.buffer.dispatch(rank, &input, &self.case.dispatch);
            let (graph, (handle, _)) = self.group.capture(rank, Stream::OWN, dispatch)?;
            (tables, own.handle) = (Some(graph), Some(handle));
        }
        if operation.combines() {
            own.offered = Some(self.buffer.offer(rank)?);
        }
        let (graph, left) = self.group.capture(rank, Stream::OWN, || {
            let call = |_| {
                let mut left = self.begin_call(&own, operation)?;
                self.end_call(&own, &mut left, operation)?;
                Ok(left)
            };
            (0..calls).map(call).collect::<Result<Vec<_>, CallError>>()
        })?;
        Ok(RankGraph { graph, left, own, tables })
    }
}

/// Replays a graph of each local rank, with `calls` calls each; none where nothing runs by itself.
pub(in crate::selftest) fn time_replays(
    group: &Group,
    graphs: &[&Graph],
    calls: u32,
    mode: Mode,
    repeats: Repeats,
) -> Result<Option<Times>, CallError> {
    let Repeats { warmup, iterations, .. } = repeats;
    let rounds = warmup + iterations.max(1);
    if !group.backend().runs_alone() {
        for _ in 0..rounds {
            graphs.iter().try_for_each(|graph| graph.replay(Stream::OWN))?;
            settle(group)?;
        }
        return Ok(None);
    }
    let marks = if mode == Mode::Loop { rounds } else { 1 };
    let ranks = with_clocks(group, marks, &|clock| {
        let graph = graphs[group.local_index(clock.rank)?];
        let mut times = match mode {
            Mode::Loop => in_a_row(clock, rounds, &|| replay(graph, clock))?,
            Mode::Iso => apart(graph, clock, rounds)?,
        };
        times.drain(..warmup);
        let host = median(clock.in_calls.take()) / calls;
        Ok(RankTimes { rounds: times, host })
    })?;
    let across = if mode == Mode::Loop { Across::Median } else { Across::Slowest };
    let mut times = Times::of(group, &ranks, across)?;
    times.device = times.device.of_one(calls);
    Ok(Some(times))
}

/// Replays that begin when all ranks have met.
fn apart(graph: &Graph, clock: &Clock<'_>, rounds: usize) -> Result<Vec<Duration>, CallError> {
    let mut times = Vec::with_capacity(rounds);
    for round in 1..=rounds {
        clock.begin(round as u32)?;
        replay(graph, clock)?;
        clock.mark(1)?;
        clock.open(round as u32)?;
        times.push(clock.read()?);
    }
    Ok(times)
}

fn replay(graph: &Graph, clock: &Clock<'_>) -> Result<(), CallError> {
    let begun = Instant::now();
    graph.replay(Stream::OWN)?;
    clock.in_calls.borrow_mut().push(begun.elapsed());
    Ok(())
}
