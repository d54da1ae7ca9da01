//! Calls in a row that nobody waits for, and the first half of a dispatch alone.

use super::experts::Experts;
use super::{Dispatched, POISON, Selftest};
use crate::findings::Findings;
use ep_runtime::args::Rows;
use ep_runtime::buffer::{CombineInput, DispatchInput, Handle, Offered, Payload, Received};
use ep_runtime::error::CallError;

impl Selftest {
    /// Exchanges counts alone and compares what they leave with the oracle.
    pub fn check_counts(&self) -> Result<Findings, CallError> {
        self.poison()?;
        let handles = self.exchange_counts()?;
        self.settle()?;
        let mut findings = Findings::default();
        for handle in &handles {
            findings.merge(self.verify_counts(handle)?);
        }
        Ok(findings)
    }

    /// A dispatch and its combine on every local rank, which nobody waits for.
    #[cfg(test)]
    pub(crate) fn queue_one(&self) -> Result<(), CallError> {
        let offered = self.group.local().map(|rank| self.buffer.offer(rank));
        let offered = offered.collect::<Result<Vec<_>, _>>()?;
        let (handles, _) = split(self.dispatch()?);
        handles
            .iter()
            .zip(&offered)
            .try_for_each(|(handle, offered)| self.combine(handle, CombineInput::Offered(offered)))
    }

    /// As [`Selftest::check`] without the combine.
    pub fn check_dispatch(&self) -> Result<Findings, CallError> {
        self.check_through(false)
    }

    /// Queues dispatches, and what follows each, before it waits for any of them: fresh ones, some without
    /// a combine, then cached ones, between which nothing brings the ranks together, then counts alone. Every other one leaves out the
    /// first token, so that each place of an output is written by another rank than the last time. All
    /// dispatches use one output. What the last calls leave is compared with the oracle.
    ///
    /// The buffer holds the worst case, and has five live handles and cached dispatches.
    pub fn check_back_to_back(&self) -> Result<Findings, CallError> {
        self.poison()?;
        let queue = Queue::new(self)?;
        self.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
        self.settle()?;
        let (all, fewer) = (self.inputs(0)?, self.inputs(1)?);
        let fresh = |inputs: &[DispatchInput], next: Next| {
            let (handles, received) = split(self.dispatch_inputs(inputs)?);
            queue.follow(&handles, &received, next)?;
            Ok::<_, CallError>((handles, received))
        };
        let (of_all, _) = fresh(&all, Next::Experts)?;
        let (of_fewer, _) = fresh(&fewer, Next::InPlace)?;
        // Between these nothing brings the ranks together either: an output is filled again as soon as
        // its rank has read it.
        for inputs in [&all, &fewer, &all] {
            fresh(inputs, Next::ExpertsAlone)?;
        }
        let cached = |fewer_tokens: bool, next: Next| {
            let (handles, inputs) =
                if fewer_tokens { (&of_fewer, &fewer) } else { (&of_all, &all) };
            let received = handles.iter().zip(inputs).map(|(handle, input)| {
                self.buffer.cached_dispatch(handle, input, &self.case.dispatch)
            });
            queue.follow(handles, &received.collect::<Result<Vec<_>, _>>()?, next)
        };
        for next in [Next::InPlace, Next::ExpertsAlone, Next::Experts] {
            cached(false, next)?;
            cached(true, next)?;
        }
        // Counts in a row, with no rows between them, each with others than two calls ago.
        let _fewer = self.exchange_inputs(&fewer)?;
        let counted = self.exchange_inputs(&all)?;
        let (last, received) = fresh(&all, Next::Experts)?;
        self.settle()?;
        let mut findings = Findings::default();
        for handle in &counted {
            findings.merge(self.verify_counts(handle)?);
        }
        for (handle, received) in last.iter().zip(&received) {
            findings.merge(self.verify_counts(handle)?);
            findings.merge(self.verify_rows("last dispatch", received, true)?);
            findings.merge(self.verify_untouched(received)?);
            findings.merge(self.verify_sums(handle.rank(), queue.experts.is_some())?);
        }
        Ok(findings)
    }

    /// The inputs of all local ranks without their first tokens.
    fn inputs(&self, without: usize) -> Result<Vec<DispatchInput>, CallError> {
        let options = &self.case.options;
        let input = |rank: usize| {
            let all = self.input(rank)?;
            let skipped = without.min(all.tokens) as u64;
            let rows = |rows: Rows, value_bytes: u64| {
                let bytes = skipped * rows.row_stride as u64 * value_bytes;
                Rows { address: rows.address + bytes, ..rows }
            };
            Ok(DispatchInput {
                tokens: all.tokens - skipped as usize,
                tokens_from: all.tokens_from,
                x: rows(all.x, options.payload.value_bytes()),
                scale: rows(all.scale, options.payload.scale_bytes()),
                topk_idx: all.topk_idx + skipped * 8 * options.topk as u64,
                topk_weights: all.topk_weights + skipped * 4 * options.topk as u64,
            })
        };
        self.group.local().map(input).collect()
    }
}

/// What follows a dispatch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A combine of the rows where they came in.
    InPlace,
    /// Experts, and a combine of what they made.
    Experts,
    /// Experts, and no combine.
    ExpertsAlone,
}

/// What the queued calls of a test use besides its buffer.
struct Queue<'a> {
    test: &'a Selftest,
    offered: Vec<Offered>,
    /// None for rows that are not BF16: their combines take what the host made.
    experts: Option<Experts>,
}

impl<'a> Queue<'a> {
    fn new(test: &'a Selftest) -> Result<Queue<'a>, CallError> {
        let options = &test.case.options;
        let experts = match options.payload {
            Payload::Bf16 => Some(Experts::new(&test.group, options.hidden)?),
            Payload::Fp8 | Payload::Fp8Packed => None,
        };
        Ok(Queue { test, offered: test.offer_rows()?, experts })
    }

    /// Queues what follows a dispatch on all local ranks.
    fn follow(
        &self,
        handles: &[Handle],
        received: &[Received],
        next: Next,
    ) -> Result<(), CallError> {
        for ((handle, rows), offered) in handles.iter().zip(received).zip(&self.offered) {
            let input = match &self.experts {
                Some(_) if next == Next::InPlace => CombineInput::InPlace(rows, Some(offered)),
                Some(experts) => {
                    experts.work(handle, rows, offered)?;
                    CombineInput::Offered(offered)
                }
                None => CombineInput::Offered(offered),
            };
            if next != Next::ExpertsAlone {
                self.test.combine(handle, input)?;
            }
        }
        Ok(())
    }
}

fn split(dispatched: Vec<Dispatched>) -> (Vec<Handle>, Vec<Received>) {
    dispatched.into_iter().map(|dispatched| (dispatched.handle, dispatched.received)).unzip()
}
