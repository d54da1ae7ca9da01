//! Calls of full size, captured in a graph and replayed.

use ep_runtime::backend::Stream;
use ep_runtime::error::CallError;
use ep_runtime::graph::Graph;

use super::{Drawn, LowLatency, OneRank, Way};
use crate::findings::Findings;
use crate::selftest::for_each_rank;
use crate::selftest::once::Crossing;
use crate::selftest::timing::{Mode, Operation, Percentiles, Repeats, time_replays};

/// Draws of the calls that are timed, and of the last replay.
const USUAL: Drawn = Drawn { call: 1, missing: None, full: true };
const LAST: Drawn = Drawn { call: 2, missing: None, full: true };

impl LowLatency {
    /// Times calls in which every rank has all of its tokens, in graphs of `calls`, and holds what one more replay
    /// leaves on other inputs. No times where nothing runs by itself.
    pub fn time(
        &self,
        operation: Operation,
        calls: u32,
        mode: Mode,
        repeats: Repeats,
    ) -> Result<(Option<Percentiles>, Findings), CallError> {
        if !operation.is_of_few_tokens() {
            let what = format!("there is no low-latency {}", operation.name());
            return Err(CallError::Mismatch { what });
        }
        let found = self.prepare(USUAL, true)?;
        if !found.is_good() {
            return Ok((None, found));
        }
        let graphs = for_each_rank(&self.group, &|rank| self.capture(rank, operation, calls))?;
        let graphs: Vec<&Graph> = graphs.iter().collect();
        let times = time_replays(&self.group, &graphs, calls, mode, repeats)?;
        let found = self.prepare(LAST, operation == Operation::Combine)?;
        if !found.is_good() {
            return Ok((None, found));
        }
        graphs.iter().try_for_each(|graph| graph.replay(Stream::OWN))?;
        self.settle()?;
        for own in &self.ranks {
            let args = self.judge_args(own, LAST);
            if operation != Operation::Combine {
                own.judges.launch(own.judges.rows, &args)?;
            }
            if operation == Operation::Both {
                // What experts give back is made behind the replay.
                own.calls.send_back(&self.case.call, self.case.tokens, false)?;
            }
            if operation.combines() {
                own.judges.launch(own.judges.sums, &args)?;
            }
        }
        Ok((times.map(|times| times.device), self.look(calls)?))
    }

    /// Draws the inputs of all ranks; with a dispatch and what its experts make, for a combine.
    fn prepare(&self, drawn: Drawn, with_rows: bool) -> Result<Findings, CallError> {
        self.settle()?;
        self.group.gather("the calls before are over", 0)?;
        for own in &self.ranks {
            let args = self.judge_args(own, drawn);
            own.judges.launch(own.judges.inputs, &args)?;
            if with_rows {
                own.calls.send_rows(&self.case.call, self.case.tokens, false)?;
                own.judges.launch(own.judges.rows, &args)?;
            }
        }
        self.look(1)
    }

    /// Makes one call with all tokens. `look` is called before and after it, while no call is in flight.
    pub fn once(
        &self,
        operation: Operation,
        look: &mut dyn FnMut() -> Result<(), CallError>,
    ) -> Result<Crossing, CallError> {
        self.prepare(USUAL, true)?;
        look()?;
        for own in &self.ranks {
            if operation != Operation::Combine {
                own.calls.send_rows(&self.case.call, self.case.tokens, false)?;
            }
            if operation.combines() {
                own.calls.send_back(&self.case.call, self.case.tokens, false)?;
            }
        }
        self.settle()?;
        look()?;
        let rows = self.far_rows()?;
        let times = if operation == Operation::Both { 2 } else { 1 };
        Crossing::of(rows.into_iter().map(|rows| times * rows)).gathered(&self.group)
    }

    /// By local rank, the rows that cross to other nodes: one for each expert of a token, or one for each rank of its experts.
    fn far_rows(&self) -> Result<Vec<usize>, CallError> {
        let (ranks, nodes) = (self.group.ranks(), self.group.nodes());
        let (experts, _) = self.case.packed(ranks);
        let each = ranks / nodes;
        let rows = self.ranks.iter().map(|own| {
            let entries = own.given.topk_idx.read()?;
            let rows = entries.chunks(self.case.topk).map(|token| {
                let named = token.iter().filter(|expert| **expert >= 0);
                let mut to: Vec<usize> = named.map(|expert| *expert as usize / experts).collect();
                to.retain(|rank| rank / each != own.rank / each);
                if self.case.way != Way::PerExpert {
                    to.sort_unstable();
                    to.dedup();
                }
                to.len()
            });
            Ok(rows.sum())
        });
        rows.collect()
    }

    fn capture(&self, rank: usize, operation: Operation, calls: u32) -> Result<Graph, CallError> {
        let own: &OneRank = &self.ranks[self.group.local_index(rank)?];
        let (call, tokens) = (&self.case.call, self.case.tokens);
        let (graph, ()) = self.group.capture(rank, Stream::OWN, || {
            (0..calls).try_for_each(|_| {
                if operation != Operation::Combine {
                    own.calls.send_rows(call, tokens, false)?;
                }
                if operation.combines() {
                    own.calls.send_back(call, tokens, false)?;
                }
                Ok(())
            })
        })?;
        Ok(graph)
    }
}
