//! Calls of any pipeline, compared with their meaning and then timed on the same inputs.

use ep_runtime::backend::{KernelBeside, Stream};
use ep_runtime::error::CallError;
use ep_runtime::graph::Graph;
use ep_runtime::group::Group;

use super::{Declared, Ready};
use crate::Findings;
use crate::selftest::{
    Floor, FloorTimes, Percentiles, Repeats, for_each_rank, settle, time_rounds,
};

/// What crosses between ranks in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MovedBytes {
    /// Bytes of rows that leave the busiest rank or come to it, whichever is more.
    pub row_bytes: u64,
    /// Bytes of all other fields of the same messages.
    pub field_bytes: u64,
    /// Most messages with a row that one rank sends, including those to itself.
    pub rows: u64,
}

impl MovedBytes {
    /// Bytes of whole messages.
    pub fn bytes(&self) -> u64 {
        self.row_bytes + self.field_bytes
    }
}

/// How long a call takes.
#[derive(Debug, Clone)]
pub struct Timed {
    /// One call behind another. None where nothing runs by itself.
    pub in_loop: Option<Percentiles>,
    /// Calls of a graph that is replayed. None where nothing runs by itself.
    pub in_graph: Option<Percentiles>,
    /// What calls left before and after they were timed, compared with what they mean.
    pub findings: Findings,
}

impl Declared<'_> {
    /// Makes the calls once and compares what they leave; then times rounds of `repeats.graph` calls, which are
    /// launched, and replayed from a graph; then makes them again in outputs that are full of other bytes, and
    /// compares. What differs ends it before anything is timed. Every rank takes part.
    pub fn time_compared(
        &self,
        group: &Group,
        blocks: u32,
        repeats: Repeats,
        network: &[u64],
    ) -> Result<Timed, CallError> {
        let ready = self.ready(group, network)?;
        let mut timed = Timed { in_loop: None, in_graph: None, findings: Findings::default() };
        timed.findings = self.compare_once(group, &ready, blocks, ", before timing")?;
        if !timed.findings.is_good() || repeats.iterations == 0 {
            return Ok(timed);
        }
        let calls = repeats.graph.unwrap_or(1).max(1);
        let queue = |rank: usize| (0..calls).try_for_each(|_| self.queue(&ready, rank, blocks));
        let of_one = calls * self.calls.len().max(1) as u32;
        timed.in_loop = time_rounds(group, of_one, repeats, &queue)?;
        let graphs = for_each_rank(group, &|rank| {
            let (graph, ()) = group.capture(rank, Stream::OWN, || queue(rank))?;
            Ok(graph)
        })?;
        let replay = |rank: usize| {
            let graph: &Graph = &graphs[group.local_index(rank)?];
            graph.replay(Stream::OWN)
        };
        timed.in_graph = time_rounds(group, of_one, repeats, &replay)?;
        self.restore(group, &ready)?;
        timed.findings.merge(self.compare_once(group, &ready, blocks, ", after timing")?);
        Ok(timed)
    }

    /// Queues every call once on a local rank.
    fn queue(&self, ready: &Ready, rank: usize, blocks: u32) -> Result<(), CallError> {
        let mut own = ready.bound.iter().filter(|own| own.rank == rank);
        own.try_for_each(|own| ready.kernel.launch(rank, Stream::OWN, blocks, &own.bindings))
    }

    /// Makes all rounds of the calls, and compares what they leave.
    fn compare_once(
        &self,
        group: &Group,
        ready: &Ready,
        blocks: u32,
        when: &str,
    ) -> Result<Findings, CallError> {
        let beside: Vec<KernelBeside> = ready.bound.iter().map(|own| own.beside.clone()).collect();
        group.backend().run_beside(&beside);
        let launched = self.launch(group, &ready.kernel, &ready.bound, blocks, self.rounds);
        group.backend().run_beside(&[]);
        launched?;
        self.compared(group, &ready.bound, when)
    }

    /// Writes what outputs held before the calls.
    fn restore(&self, group: &Group, ready: &Ready) -> Result<(), CallError> {
        settle(group)?;
        group.backend().gather("all timed calls are done", 0)?;
        for (turn, ranks) in ready.bound.chunks(group.local().len().max(1)).enumerate() {
            for own in ranks {
                for (name, part, place, address) in &own.outputs {
                    let bytes = self.calls[turn].before(own.rank, (name, *part), place);
                    group.backend().write(own.rank, *address, &bytes)?;
                }
            }
        }
        settle(group)?;
        group.backend().gather("outputs are as they were", 0)?;
        Ok(())
    }

    /// What crosses between ranks in the first of the calls.
    pub fn traffic(&self) -> MovedBytes {
        let ranks = self.ranks();
        let (mut out, mut into) = (vec![(0, 0); ranks], vec![(0, 0); ranks]);
        for (from, to, messages, [row, fields]) in self.moved() {
            for (rows, others) in [&mut out[from], &mut into[to]] {
                if from != to {
                    *rows += messages * row;
                    *others += messages * fields;
                }
            }
        }
        let busiest = out.into_iter().chain(into).max_by_key(|(rows, others)| rows + others);
        let (row_bytes, field_bytes) = busiest.unwrap_or_default();
        let rows = self.rows_to().iter().map(|to| to.iter().sum::<usize>() as u64).max();
        MovedBytes { row_bytes, field_bytes, rows: rows.unwrap_or(0) }
    }

    /// The least time of the same messages, one kernel that knows all places: see [`FloorTimes`]. None where nothing
    /// runs by itself or bulk copies are missing, and if no row moves. What the kernel leaves is compared in any case.
    pub fn floor(
        &self,
        group: &Group,
        sms: u32,
        repeats: Repeats,
    ) -> Result<Option<FloorTimes>, CallError> {
        let rows_to = self.rows_to();
        let all: u64 = rows_to.iter().flatten().map(|rows| *rows as u64).sum();
        if all == 0 {
            return Ok(None);
        }
        let moved = self.moved().filter(|(.., [row, _])| *row > 0);
        let bytes: u64 =
            moved.map(|(_, _, messages, [row, fields])| messages * (row + fields)).sum();
        let Some(floor) = Floor::of_pushes(group, &rows_to, bytes.div_ceil(all))? else {
            return Ok(None);
        };
        floor.times(sms, repeats)
    }

    fn ranks(&self) -> usize {
        self.calls.first().map_or(0, |call| call.drawn.ranks.len())
    }

    /// Messages with a row, by sender and receiver.
    fn rows_to(&self) -> Vec<Vec<usize>> {
        let mut rows = vec![vec![0; self.ranks()]; self.ranks()];
        for (from, to, messages, [row, _]) in self.moved() {
            rows[from][to] += if row > 0 { messages as usize } else { 0 };
        }
        rows
    }

    /// Sender, receiver, number of messages, and the bytes of the row and of the other fields of each.
    fn moved(&self) -> impl Iterator<Item = (usize, usize, u64, [u64; 2])> {
        let layouts = &self.emitted.plan.messages;
        let moved = self.calls.first().into_iter().flat_map(|call| {
            let channels = &call.drawn.ir.channels;
            call.outcome.moved.iter().map(move |moved| (channels, moved))
        });
        moved.filter_map(move |(channels, moved)| {
            let channel = channels.iter().find(|channel| channel.name == moved.channel)?;
            let layout = layouts.iter().find(|layout| layout.name == channel.message)?;
            let bytes = [layout.row_bytes, layout.meta_bytes];
            let bytes = bytes.map(|bytes| u64::try_from(bytes).unwrap_or(0));
            Some((moved.from, moved.to, moved.messages, bytes))
        })
    }
}
