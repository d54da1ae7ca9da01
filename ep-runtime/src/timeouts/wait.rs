//! One wait that did not end, in words, from the record of its warp.

use std::fmt;

use ep_codegen::ir::facts::Pair;
use ep_codegen::plan::{Plan, camel};

/// Records that one pipeline may write on one rank before later ones are dropped.
pub const RECORD_CAPACITY: u32 = 64;

/// Bytes from one record to the next: one cache line each.
pub const RECORD_BYTES: u64 = 64;

/// The words of `ep::Record` (`templates/device/ep/sync.cuh`) in order, 4 bytes each. A test holds
/// this list against the header's text.
pub(super) const RECORD_WORDS: [&str; 13] = [
    "pipeline", "role", "channel", "kind", "expired", "stripe", "peer", "want", "seen", "epoch",
    "block", "warp", "written",
];

/// Offset of the word that says that a record is complete.
pub(crate) const WRITTEN_AT: u64 = 4 * 12;

/// What a warp waited for: the values of `ep::Waiting`, with the words of the report, and what the
/// pairs of statements publish that such a wait may be for.
const WAITING: [(&str, &str, &[&str]); 14] = [
    ("kCredit", "room in the ring", &["credit"]),
    ("kArrival", "a row in the ring", &["messages"]),
    ("kHeader", "the stripe's first row and count", &["header"]),
    ("kRetired", "the consumer's end of an earlier call", &["credit"]),
    ("kReady", "the announcement of an output", &["credit", "ready"]),
    ("kClosed", "the last row", &["messages"]),
    ("kFlag", "the message in a slot", &["messages"]),
    ("kReleased", "the last reader", &["credit"]),
    ("kSequence", "other warps of its role", &[]),
    ("kBlocks", "the other blocks of the grid", &[]),
    ("kCapacity", "room in the output", &[]),
    ("kQueue", "room in a queue of the network", &[]),
    ("kDrained", "the network to read what it sends", &[]),
    ("kWord", "another kernel to raise a word", &[]),
];

/// The kind of a wait for a word, whose number is that of a tensor and of no channel.
const WORD_KIND: u32 = 13;

/// The kind of a record that says that the output holds fewer rows than arrive.
const CAPACITY_KIND: u32 = 10;

/// One wait that did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckWait {
    /// Rank that waited.
    pub rank: usize,
    /// Pipeline, as declared.
    pub pipeline: String,
    /// Role, as declared; its number if the plan does not know it.
    pub role: String,
    /// Channel, as the emitted `Cfg` names it.
    pub channel: String,
    /// What it waited for, in words.
    pub waiting_for: String,
    /// Whether this wait expired itself, or was cut short when another wait stopped the group.
    pub expired: bool,
    /// Stripe, if the wait is for one.
    pub stripe: Option<i32>,
    /// Rank that was waited for, if it is one.
    pub peer: Option<usize>,
    /// Counter value that would have ended the wait.
    pub want: u32,
    /// Counter value last seen, if it was recorded.
    pub seen: Option<u32>,
    /// Number of the call.
    pub epoch: u32,
    /// Block of the grid.
    pub block: u32,
    /// Warp of the block.
    pub warp: u32,
    /// The statements that wait here, each with a statement that could end the wait.
    pub pairs: Vec<Pair>,
}

/// The numbers of a wait, as a kernel gives them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitNumbers {
    pub(crate) rank: usize,
    pub(crate) role: u32,
    pub(crate) channel: u32,
    pub(crate) kind: u32,
    pub(crate) expired: bool,
    pub(crate) stripe: i32,
    pub(crate) peer: i32,
    pub(crate) want: u32,
    pub(crate) seen: Option<u32>,
    pub(crate) epoch: u32,
    pub(crate) block: u32,
    pub(crate) warp: u32,
}

impl StuckWait {
    /// Whether the record reports rows that did not fit, and not something that did not arrive.
    pub fn is_overflow(&self) -> bool {
        self.waiting_for == WAITING[CAPACITY_KIND as usize].1
    }

    /// Whether it is a wait for warps of the same kernel, which themselves wait for something else.
    pub(super) fn is_inner(&self) -> bool {
        let inner = |(name, ..): &&(&str, &str, _)| ["kSequence", "kBlocks"].contains(name);
        WAITING.iter().filter(inner).any(|(_, text, _)| *text == self.waiting_for)
    }

    /// Reads a record's words; `None` when it was never written.
    pub(super) fn read(
        rank: usize,
        plan: &Plan,
        words: &[u32; RECORD_WORDS.len()],
    ) -> Option<StuckWait> {
        let word = |name: &str| {
            let index = RECORD_WORDS.iter().position(|word| *word == name);
            index.map_or(0, |index| words[index])
        };
        let numbers = WaitNumbers {
            rank,
            role: word("role"),
            channel: word("channel"),
            kind: word("kind"),
            expired: word("expired") != 0,
            stripe: word("stripe") as i32,
            peer: word("peer") as i32,
            want: word("want"),
            seen: Some(word("seen")),
            epoch: word("epoch"),
            block: word("block"),
            warp: word("warp"),
        };
        (word("written") != 0).then(|| StuckWait::named(plan, &numbers))
    }

    /// The wait with the names of the plan.
    pub(crate) fn named(plan: &Plan, numbers: &WaitNumbers) -> StuckWait {
        let WaitNumbers { rank, expired, stripe, peer, want, seen, epoch, block, warp, .. } =
            *numbers;
        let waiting = usize::try_from(numbers.kind).ok().and_then(|kind| WAITING.get(kind));
        let role = role_name(plan, numbers.role);
        let channel = match numbers.kind {
            WORD_KIND => word_name(plan, numbers.channel),
            _ => named(plan, "kChannel", numbers.channel),
        };
        let channel = channel.unwrap_or_else(|| format!("#{}", numbers.channel));
        let awaits = |pair: &&Pair| {
            pair.consume.role == role
                && camel(&pair.channel) == channel
                && waiting.is_some_and(|(.., published)| published.contains(&pair.what.name()))
        };
        let unknown = || format!("kind {}", numbers.kind);
        StuckWait {
            rank,
            pipeline: plan.pipeline.clone(),
            waiting_for: waiting.map_or_else(unknown, |(_, text, _)| (*text).into()),
            expired,
            stripe: Some(stripe).filter(|stripe| *stripe >= 0),
            peer: usize::try_from(peer).ok(),
            want,
            seen,
            epoch,
            block,
            warp,
            pairs: plan.pairs.iter().filter(awaits).cloned().collect(),
            role,
            channel,
        }
    }
}

/// The nested struct of `Cfg` whose member `member` has this value.
fn named(plan: &Plan, member: &str, value: u32) -> Option<String> {
    let holds = |group: &&ep_codegen::plan::CfgGroup| {
        group.members.iter().any(|m| m.name == member && m.value == i64::from(value))
    };
    plan.cfg.iter().find(holds).map(|group| group.name.trim_end_matches('_').to_string())
}

/// The tensor with this number of those whose words are awaited, as the emitted `Cfg` names it.
fn word_name(plan: &Plan, number: u32) -> Option<String> {
    let words = plan.cfg.iter().find(|group| group.name == "Words")?;
    let own = words.members.iter().find(|member| member.value == i64::from(number))?;
    Some(own.name.trim_start_matches('k').to_string())
}

fn role_name(plan: &Plan, role: u32) -> String {
    let listed = || plan.roles.get(role as usize).map(|role| role.name.clone());
    named(plan, "kRole", role).or_else(listed).unwrap_or_else(|| format!("role {role}"))
}

impl fmt::Display for StuckWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {} {} waits", self.rank, self.pipeline, self.role)?;
        match self.peer {
            Some(peer) if !self.is_inner() => write!(f, " for rank {peer}: {}", self.waiting_for)?,
            _ => write!(f, " for {}", self.waiting_for)?,
        }
        match self.peer {
            Some(peer) if self.is_inner() => write!(f, ", {} of rank {peer}", self.channel)?,
            _ => write!(f, " of {}", self.channel)?,
        }
        if let Some(stripe) = self.stripe {
            write!(f, ", stripe {stripe}")?;
        }
        write!(f, " (call {}, wants {}", self.epoch, self.want)?;
        if let Some(seen) = self.seen {
            write!(f, ", sees {seen}")?;
        }
        write!(f, "; block {} warp {})", self.block, self.warp)?;
        for (index, pair) in self.pairs.iter().enumerate() {
            let (publish, number) = (&pair.publish, pair.number);
            match index {
                0 => write!(f, " at +{}, for", pair.consume.line)?,
                _ => f.write_str(" or")?,
            }
            write!(f, " {} +{} (W{number})", publish.role, publish.line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::members;
    use crate::fake::plan_of;

    #[test]
    fn the_record_is_what_the_header_says() {
        let declared = members("struct alignas(64) Record {");
        let words: Vec<&str> = declared
            .iter()
            .map(|line| line.strip_prefix("u32 ").or(line.strip_prefix("i32 ")).unwrap())
            .collect();
        // What follows is padding.
        assert_eq!(words[..RECORD_WORDS.len()], RECORD_WORDS);
        assert_eq!(RECORD_WORDS[WRITTEN_AT as usize / 4], "written");
        assert!(RECORD_WORDS.len() as u64 * 4 <= RECORD_BYTES);
    }

    #[test]
    fn every_kind_of_wait_has_words() {
        let ours: Vec<&str> = WAITING.iter().map(|(name, ..)| *name).collect();
        assert_eq!(members("enum class Waiting"), ours);
        assert_eq!(WAITING[CAPACITY_KIND as usize].0, "kCapacity");
    }

    #[test]
    fn a_wait_reads_as_a_sentence() {
        let plan = plan_of("NvlDispatch", vec![]);
        let words = [0, 0, 0, 5, 1, 7, 2, 9, 4, 3, 1, 6, 1];
        let wait = StuckWait::read(1, &plan, &words).unwrap();
        let text = "rank 1: NvlDispatch role 0 waits for rank 2: the last row of #0, stripe 7 \
                    (call 3, wants 9, sees 4; block 1 warp 6)";
        assert_eq!(wait.to_string(), text);
        assert!(StuckWait::read(1, &plan, &[0; 13]).is_none());
    }
}
