//! Calls that are captured once and replayed with inputs and token counts that change in memory.

use super::data::HostData;
use super::{Case, POISON, Selftest};
use crate::findings::Findings;
use crate::oracle::{RowReader, compare_bytes};
use ep_runtime::backend::Stream;
use ep_runtime::buffer::{CombineInput, DispatchInput, Handle, Offered, Received};
use ep_runtime::error::CallError;
use ep_runtime::graph::Graph;
use ep_runtime::memory::DeviceMemory;

/// The captured calls of one rank, and what they leave.
struct Captured {
    graph: Graph,
    handle: Handle,
    received: Received,
    /// Of the cached dispatch, if the buffer has it.
    again: Option<Received>,
    offered: Offered,
    /// Holds the number of tokens.
    count: DeviceMemory,
}

impl Selftest {
    /// Captures a dispatch, a cached one if the buffer has it, and a combine, once; then replays them
    /// with other tokens, routing and rows each time, and compares what each replay leaves with the
    /// oracle.
    ///
    /// The case has as many tokens on every rank as the buffer takes, and the buffer holds the worst
    /// case, with two live outputs if it has cached dispatches.
    pub fn check_replayed(&mut self, replays: u64) -> Result<Findings, CallError> {
        let captured = self.for_each_rank(&|rank| self.capture(rank))?;
        let mut findings = Findings::default();
        for replay in 1..=replays {
            self.redraw(self.case.seed + replay)?;
            findings.merge(self.check_replay(&captured)?);
        }
        Ok(findings)
    }

    fn capture(&self, rank: usize) -> Result<Captured, CallError> {
        let offered = self.buffer.offer(rank)?;
        let count = DeviceMemory::zeroed(self.group.backend(), rank, 4)?;
        let input = DispatchInput {
            tokens: self.case.options.tokens,
            tokens_from: count.address(),
            ..self.input(rank)?
        };
        let (graph, (handle, received, again)) = self.group.capture(rank, Stream::OWN, || {
            let call = &self.case.dispatch;
            let (handle, received) = self.buffer.dispatch(rank, &input, call)?;
            let again = match self.case.options.cached {
                true => Some(self.buffer.cached_dispatch(&handle, &input, call)?),
                false => None,
            };
            self.combine(&handle, CombineInput::Offered(&offered))?;
            Ok((handle, received, again))
        })?;
        Ok(Captured { graph, handle, received, again, offered, count })
    }

    /// Another problem of the same shape, with at most as many tokens, in the same memory.
    fn redraw(&mut self, seed: u64) -> Result<(), CallError> {
        // No process still reads what is written now.
        self.settle()?;
        self.group.backend().gather("the last problem is solved", 0)?;
        let ranks = self.group.ranks();
        let drawn = Case::random_for(self.case.options.clone(), ranks, seed);
        let problem =
            Case { tokens: drawn.tokens, routing: drawn.routing, seed, ..self.case.clone() };
        let (oracle, host) = HostData::random(&problem, ranks);
        self.case.tokens = problem.tokens;
        self.oracle = oracle;
        self.host = host;
        self.group.local().zip(&self.ranks).try_for_each(|(rank, data)| {
            data.write(rank, &self.oracle, &self.host)?;
            data.poison_sums(POISON)
        })
    }

    fn check_replay(&self, captured: &[Captured]) -> Result<Findings, CallError> {
        for own in captured {
            let rank = own.graph.rank();
            self.write_offered(rank, &own.offered)?;
            own.count.write(0, &(self.case.tokens[rank] as i32).to_le_bytes())?;
        }
        self.poison()?;
        for own in captured {
            own.graph.replay(Stream::OWN)?;
        }
        self.settle()?;
        let mut findings = Findings::default();
        for own in captured {
            findings.merge(self.verify_counts(&own.handle)?);
            findings.merge(self.verify_rows("replayed dispatch", &own.received, true)?);
            if let Some(again) = &own.again {
                findings.merge(self.verify_rows("replayed cached dispatch", again, false)?);
            }
            findings.merge(self.verify_sums(own.graph.rank(), false)?);
            findings.merge(self.verify_sums_behind(own.graph.rank())?);
        }
        Ok(findings)
    }

    /// Behind the tokens that there are, a combine leaves its outputs as they were.
    fn verify_sums_behind(&self, rank: usize) -> Result<Findings, CallError> {
        let (options, data) = (&self.case.options, self.rank(rank)?);
        let outputs = [("combined", &data.combined, 2 * options.hidden)];
        let weights = ("combined_weights", &data.combined_weights, 4 * options.topk);
        let mut findings = Findings::default();
        for (name, memory, width) in outputs.into_iter().chain(options.weights.then_some(weights)) {
            let from = self.case.tokens[rank];
            let mut rest = vec![0; (options.tokens - from) * width];
            memory.read((from * width) as u64, &mut rest)?;
            let untouched = vec![POISON; width];
            let rows = RowReader::dense(&rest, width);
            let found = compare_bytes(name, rows, options.tokens - from, |row| {
                (&untouched, format!("token {}", from + row))
            });
            findings.add(format!("combine rank {rank} {name} behind the tokens"), found);
        }
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unordered::UnorderedBackend;
    use ep_runtime::buffer::{Buffer, BufferOptions, BuiltIn, CallOptions, Via};
    use ep_runtime::group::{Group, GroupOptions};
    use std::sync::Arc;

    fn case(ranks: usize, options: BufferOptions) -> Option<(Arc<UnorderedBackend>, Selftest)> {
        let backend = UnorderedBackend::new(ranks)?;
        let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
        let case = Case::even(options, ranks, 4);
        let test = Selftest::new(&group, &BuiltIn, case).unwrap();
        Some((backend, test))
    }

    #[test]
    fn replays_take_tokens_and_rows_from_memory() {
        for via in [Via::Direct, Via::Ring] {
            let options = BufferOptions { via, live: 2, ..BufferOptions::new(9, 64, 2, 5) };
            let Some((_, mut test)) = case(3, options) else { return };
            let findings = test.check_replayed(4).unwrap();
            assert!(findings.is_good(), "{findings}");
            // Calls that are not captured go on beside them.
            test.redraw(99).unwrap();
            assert!(test.check().unwrap().is_good());
        }
    }

    #[test]
    fn what_a_graph_uses_is_given_to_nobody_else() {
        let Some((_, test)) = case(1, BufferOptions::new(8, 64, 2, 4)) else { return };
        let call = CallOptions::sms(4);
        let input = test.input(0).unwrap();
        let offered = test.buffer.offer(0).unwrap();
        let (graph, ()) = test
            .group
            .capture(0, Stream::OWN, || {
                let (handle, _) = test.buffer.dispatch(0, &input, &call)?;
                let error = handle.counts().unwrap_err();
                let text = "a captured dispatch has counts only after a replay of its graph: wait for a \
                replay first";
                assert_eq!(error.to_string(), text);
                test.combine(&handle, CombineInput::Offered(&offered))
            })
            .unwrap();
        drop(offered);
        let taken = test.buffer.dispatch(0, &input, &call).err().unwrap();
        let text = "rank 0: all 1 outputs are in use; drop one, or make more";
        assert_eq!(taken.to_string(), text);
        assert!(test.buffer.offer(0).is_err());
        graph.replay(Stream::OWN).unwrap();
        test.group.sync(0).unwrap();
        drop(graph);
        assert!(test.buffer.offer(0).is_ok());
        test.buffer.dispatch(0, &input, &call).unwrap();
    }

    /// A graph outlives the buffer that it calls, whose memory goes with it.
    #[test]
    fn a_graph_keeps_its_buffer() {
        let Some((backend, test)) = case(1, BufferOptions::new(8, 64, 2, 4)) else { return };
        let buffer = Buffer::new(&test.group, test.case.options.clone(), &BuiltIn).unwrap();
        let (input, call) = (test.input(0).unwrap(), CallOptions::sms(4));
        let capture = test.group.capture(0, Stream::OWN, || buffer.dispatch(0, &input, &call));
        let (graph, (handle, received)) = capture.unwrap();
        let rows = received.x().unwrap().address;
        drop((buffer, handle, received));
        graph.replay(Stream::OWN).unwrap();
        test.group.sync(0).unwrap();
        assert!(backend.maps(rows));
        drop(graph);
        assert!(!backend.maps(rows), "the window is unmapped");
    }

    #[test]
    fn what_a_graph_cannot_hold_is_refused() {
        let options = BufferOptions { capacity: Some(10), ..BufferOptions::new(8, 64, 2, 4) };
        let Some((_, test)) = case(2, options) else { return };
        let call = CallOptions::sms(4);
        let input = test.input(0).unwrap();
        let text = |error: CallError| {
            assert!(matches!(error, CallError::Capture { .. }), "{error:?}");
            error.to_string()
        };
        let dispatch =
            test.group.capture(0, Stream::OWN, || test.buffer.dispatch(0, &input, &call));
        assert_eq!(
            text(dispatch.err().unwrap()),
            "a dispatch into outputs of 10 rows waits for its counts, which a graph cannot: give \
             outputs room for all 16 rows, or capture a cached dispatch"
        );
        let nested = test
            .group
            .capture(0, Stream::OWN, || test.group.capture(0, Stream::OWN, || Ok(())).map(|_| ()));
        let nested = text(nested.err().unwrap());
        assert_eq!(nested, "the stream of rank 0 is being captured already");
        // Nothing was captured or taken, and the stream runs again.
        let (graph, ()) = test.group.capture(0, Stream::OWN, || Ok(())).unwrap();
        let other = test.group.capture(0, Stream::OWN, || graph.replay(Stream::OWN));
        assert!(text(other.err().unwrap()).starts_with("a graph cannot be part of another one"));
        graph.replay(Stream::OWN).unwrap();
        test.group.sync(0).unwrap();
    }
}
