//! How many SMs the closed form gives a direct dispatch, and from what.

use std::fmt;

use ep_runtime::plan::Plan;
use ep_runtime::tune::{Rates, Traffic, Tuning};

use crate::json::Object;

/// The pipeline whose calls the closed form describes, and its arm.
const PIPELINE: &str = "NvlDispatch";
const ARM: (&str, &str) = ("via", "Direct");

/// What a call takes at rates that were measured once, on another machine perhaps.
pub(super) struct Tuned {
    rates: Rates,
    tuning: Tuning,
}

impl Tuned {
    /// None for any other pipeline or arm.
    pub(super) fn of(plan: &Plan) -> Option<Tuned> {
        let is_arm = |(axis, arm): &(String, String)| (axis.as_str(), arm.as_str()) == ARM;
        if plan.pipeline != PIPELINE || !plan.arms.iter().any(is_arm) {
            return None;
        }
        let number = |name: &str| plan.numbers.get(name).copied();
        let row = plan.messages.iter().map(|layout| layout.row_bytes + layout.meta_bytes).max()?;
        let rates = Rates::H200;
        // The number of SMs is the same for any number of tokens.
        let (ranks, experts, topk) = (number("ranks")?, number("experts")?, number("topk")?);
        let traffic = Traffic::even(ranks, experts, topk, 1, row);
        Some(Tuned { rates, tuning: Tuning::choose(&rates, &traffic) })
    }

    pub(super) fn object(&self) -> Object {
        Object::new()
            .with("sms", self.tuning.sms)
            .with("store_mb_per_s", self.rates.store)
            .with("link_mb_per_s", self.rates.link)
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { sms, seconds } = self.tuning;
        let nanoseconds = seconds * 1e9;
        write!(
            f,
            "{sms} SMs reach the wire: {nanoseconds:.0} ns a token; as on four H200, where {}",
            self.rates
        )
    }
}
