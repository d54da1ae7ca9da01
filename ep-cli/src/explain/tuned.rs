//! How many SMs the closed form gives a pipeline that splits them, and from what.

use std::fmt;

use ep_runtime::ir::Pipeline;
use ep_runtime::plan::Plan;
use ep_runtime::tune::{Rates, Traffic, Tuning};

use crate::json::Object;

/// The argument by which a call says how many of its SMs send to other ranks.
const SPLIT: &str = "remote_blocks";

/// What a call takes at rates that were measured once, on another machine perhaps.
pub(super) struct Tuned {
    rates: Rates,
    tuning: Tuning,
}

impl Tuned {
    /// None for a pipeline that splits nothing.
    pub(super) fn of(ir: &Pipeline, plan: &Plan) -> Option<Tuned> {
        ir.args.iter().find(|arg| arg.name == SPLIT)?;
        let number = |name: &str| plan.numbers.get(name).copied();
        let row = plan.messages.iter().map(|layout| layout.row_bytes + layout.meta_bytes).max()?;
        let rates = Rates::H200;
        // The split is the same for any number of tokens.
        let (ranks, experts, topk) = (number("ranks")?, number("experts")?, number("topk")?);
        let traffic = Traffic::even(ranks, experts, topk, 1, row);
        Some(Tuned { rates, tuning: Tuning::choose(&rates, &traffic) })
    }

    pub(super) fn object(&self) -> Object {
        let (Rates { copy, push, both, link }, Tuning { sms, remote, .. }) =
            (self.rates, self.tuning);
        Object::new()
            .with("sms", sms)
            .with(SPLIT, remote)
            .with("copy_mb_per_s", copy)
            .with("push_mb_per_s", push)
            .with("both_mb_per_s", both)
            .with("link_mb_per_s", link)
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { sms, remote, seconds } = self.tuning;
        let nanoseconds = seconds * 1e9;
        write!(
            f,
            "{sms} SMs reach the wire, {remote} of them for other ranks: {nanoseconds:.0} ns a token; \
             as on four H200, where {}",
            self.rates
        )
    }
}
