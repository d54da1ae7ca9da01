//! Bytes that a channel puts on the wire, per token or per call.

use std::fmt;

use ep_runtime::ir::{Channel, PeerSet, Pipeline};
use ep_runtime::plan::{MessageLayout, Numbers, Plan};
use ep_runtime::tune::mean_groups;

use crate::json::{Object, Value};

/// What a channel sends to other ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Traffic {
    /// A message per token and place it goes to.
    PerToken {
        /// Bytes of one message.
        bytes: i64,
        /// Messages that leave the rank, for a token.
        messages: f64,
        /// Whether `messages` is a mean over random routing, or else the most there can be.
        is_mean: bool,
        /// What a message goes to.
        to: &'static str,
    },
    /// One message per call and peer.
    PerCall {
        /// Bytes of one message.
        bytes: i64,
        /// Messages that leave the rank.
        messages: i64,
    },
}

impl Traffic {
    /// The traffic of `channel`; none where the numbers of the shape do not tell it.
    pub(super) fn of(ir: &Pipeline, channel: &Channel, plan: &Plan) -> Option<Traffic> {
        let message = ir.messages.iter().find(|message| message.name == channel.message)?;
        let layout = plan.messages.iter().find(|layout| layout.name == channel.message)?;
        let MessageLayout { row_bytes, meta_bytes, slot_bytes, .. } = layout;
        let has_row = message.fields.iter().any(|field| field.row);
        let (groups, to) = destinations(channel, &plan.numbers)?;
        if !has_row {
            return Some(Traffic::PerCall { bytes: *slot_bytes, messages: groups - 1 });
        }
        let bytes = row_bytes + meta_bytes;
        let remote = (groups - 1) as f64 / groups as f64;
        let topk = *plan.numbers.get("topk")?;
        // Slots with one index beside the source are places of rows between two ranks.
        let slot = &channel.slot_names;
        let is_of_rank = slot.len() == 2 && slot.iter().any(|name| name == "source");
        if channel.kind.traits().is_indexed && !is_of_rank {
            let messages = topk as f64 * remote;
            return Some(Traffic::PerToken { bytes, messages, is_mean: true, to: "expert" });
        }
        let (all, is_mean) = match plan.numbers.get("experts") {
            Some(experts) => (mean_groups(groups, *experts, topk), true),
            None => (groups.min(topk) as f64, false),
        };
        // Where a token goes to all groups at most one of them is its own.
        let messages = if is_mean { all * remote } else { all.min((groups - 1) as f64) };
        Some(Traffic::PerToken { bytes, messages, is_mean, to })
    }

    /// Adds the figures to the object of a channel.
    pub(super) fn add_to(&self, object: Object) -> Object {
        match self {
            Traffic::PerToken { bytes, messages, is_mean, .. } => object
                .with("message_bytes", *bytes)
                .with("messages_per_token", Value::Tenths(*messages))
                .with("wire_bytes_per_token", Value::Tenths(*bytes as f64 * messages))
                .with("is_mean", *is_mean),
            Traffic::PerCall { bytes, messages } => object
                .with("message_bytes", *bytes)
                .with("messages_per_call", *messages)
                .with("wire_bytes_per_call", bytes * messages),
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Traffic::PerToken { bytes, messages, is_mean, to } => {
                let total = *bytes as f64 * messages;
                let how = if *is_mean { "on average over random experts" } else { "at most" };
                write!(
                    f,
                    "{total:.0} bytes a token {how}: {messages:.2} messages of {bytes} bytes, one \
                     for each other {to} it goes to"
                )
            }
            Traffic::PerCall { bytes, messages } => {
                write!(f, "{} bytes a call: {messages} messages of {bytes} bytes", bytes * messages)
            }
        }
    }
}

/// How many places the channel leads to, this rank's own included, and what one of them is.
fn destinations(channel: &Channel, numbers: &Numbers) -> Option<(i64, &'static str)> {
    let (name, to) = match channel.per {
        PeerSet::All | PeerSet::Others => ("ranks", "rank"),
        PeerSet::Local => ("local_ranks", "rank of the node"),
        PeerSet::Rail => ("nodes", "node"),
    };
    let count = *numbers.get(name)?;
    (count > 0).then_some((count, to))
}
