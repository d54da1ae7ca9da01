//! Calls in a row that nobody waits for, and the first half of a dispatch alone.

use super::{Dispatched, Findings, POISON, Selftest};
use crate::buffer::{CombineInput, Payload};
use crate::error::CallError;

impl Selftest {
    /// Runs layout and notify alone and compares what they leave with the oracle.
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

    /// As [`Selftest::check`] without the combine.
    pub fn check_dispatch(&self) -> Result<Findings, CallError> {
        self.check_through(false)
    }

    /// Queues as many dispatches as the buffer has live handles, with a combine behind each, before
    /// it waits for any of them: ranks may be calls apart. All dispatches use one output, and BF16 rows
    /// are combined where they came in, as by experts that change nothing; what the last calls leave
    /// is compared with the oracle.
    ///
    /// The buffer holds the worst case.
    pub fn check_queued(&self) -> Result<Findings, CallError> {
        self.poison()?;
        let in_place = self.case.options.payload == Payload::Bf16;
        let offered = self.offer_rows()?;
        self.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
        let mut handles = Vec::new();
        let mut last = Vec::new();
        for _ in 0..self.case.options.live {
            // The output of the call before is free again, and the next dispatch takes it.
            last.clear();
            for Dispatched { handle, received } in self.dispatch()? {
                let offered = &offered[self.group.local_index(handle.rank())?];
                let input = match in_place {
                    true => CombineInput::InPlace(&received, Some(offered)),
                    false => CombineInput::Offered(offered),
                };
                self.combine(&handle, input)?;
                handles.push(handle);
                last.push(received);
            }
        }
        self.settle()?;
        let mut findings = Findings::default();
        for handle in &handles {
            findings.merge(self.verify_counts(handle)?);
        }
        for received in &last {
            findings.merge(self.verify_rows("last dispatch", received, true)?);
            findings.merge(self.verify_sums(received.rank(), in_place)?);
        }
        Ok(findings)
    }
}
