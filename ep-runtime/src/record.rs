//! Timeout records: what the warps of a stopped group were waiting for, in words.

use std::collections::BTreeSet;
use std::fmt;

use ep_codegen::ir::facts::Pair;
use ep_codegen::plan::{Plan, camel};

use crate::backend::BackendError;
use crate::memory::HostMemory;
use crate::whereabouts::Whereabouts;

/// Records that one pipeline may write on one rank before later ones are dropped.
pub const RECORD_CAPACITY: u32 = 64;

/// Bytes from one record to the next: a cache line each.
pub const RECORD_BYTES: u64 = 64;

/// The words of `ep::Record` (`templates/device/ep/sync.cuh`) in order, 4 bytes each. A test holds
/// this list against the header's text.
const RECORD_WORDS: [&str; 13] = [
    "pipeline", "role", "channel", "kind", "expired", "stripe", "peer", "want", "seen", "epoch",
    "block", "warp", "written",
];

/// Offset of the word that says that a record is complete.
pub(crate) const WRITTEN_AT: u64 = 4 * 12;

/// What a warp waited for: the values of `ep::Waiting`, with the words of the report, and what the
/// pairs of statements publish that such a wait may be for.
const WAITING: [(&str, &str, &[&str]); 11] = [
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
];

/// The kind of a record that says that the output holds fewer rows than arrive.
const CAPACITY_KIND: u32 = 10;

/// One wait that did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
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
    /// Whether this wait ran out of time, or was cut short by the stop of another one.
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
    /// The statements that wait here, each with one that could end the wait.
    pub pairs: Vec<Pair>,
}

/// The numbers of a wait, as a kernel gives them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
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

impl Wait {
    /// Whether the record says that rows did not fit, rather than that something did not come.
    pub fn is_overflow(&self) -> bool {
        self.waiting_for == WAITING[CAPACITY_KIND as usize].1
    }

    /// Whether it is a wait for warps of the same kernel, which themselves wait for something else.
    fn is_inner(&self) -> bool {
        let inner = |(name, ..): &&(&str, &str, _)| ["kSequence", "kBlocks"].contains(name);
        WAITING.iter().filter(inner).any(|(_, text, _)| *text == self.waiting_for)
    }

    /// Reads a record's words; `None` when it was never written.
    fn read(rank: usize, plan: &Plan, words: &[u32; RECORD_WORDS.len()]) -> Option<Wait> {
        let word = |name: &str| {
            let index = RECORD_WORDS.iter().position(|word| *word == name);
            index.map_or(0, |index| words[index])
        };
        let numbers = Numbers {
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
        (word("written") != 0).then(|| Wait::named(plan, &numbers))
    }

    /// The wait with the names of the plan.
    pub(crate) fn named(plan: &Plan, numbers: &Numbers) -> Wait {
        let Numbers { rank, expired, stripe, peer, want, seen, epoch, block, warp, .. } = *numbers;
        let waiting = usize::try_from(numbers.kind).ok().and_then(|kind| WAITING.get(kind));
        let role = role_name(plan, numbers.role);
        let channel = named(plan, "kChannel", numbers.channel);
        let channel = channel.unwrap_or_else(|| format!("#{}", numbers.channel));
        let awaits = |pair: &&Pair| {
            pair.consume.role == role
                && camel(&pair.channel) == channel
                && waiting.is_some_and(|(.., published)| published.contains(&pair.what.name()))
        };
        let unknown = || format!("kind {}", numbers.kind);
        Wait {
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
    plan.cfg.iter().find(holds).map(|group| group.name.clone())
}

fn role_name(plan: &Plan, role: u32) -> String {
    let listed = || plan.roles.get(role as usize).map(|role| role.name.clone());
    named(plan, "kRole", role).or_else(listed).unwrap_or_else(|| format!("role {role}"))
}

impl fmt::Display for Wait {
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

/// All waits that the local ranks recorded when their group was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// Waits for peers come first, of them those that ran out of time, in order of rank.
    pub waits: Vec<Wait>,
    /// Where the ranks are that they wait for.
    pub whereabouts: Vec<Whereabouts>,
}

impl Timeouts {
    pub(crate) fn new(mut waits: Vec<Wait>) -> Timeouts {
        waits.sort_by_key(|wait| (wait.is_inner(), !wait.expired, wait.rank));
        Timeouts { waits, whereabouts: Vec::new() }
    }

    /// The records of one pipeline on one rank.
    pub(crate) fn read(
        rank: usize,
        plan: &Plan,
        records: &HostMemory,
    ) -> Result<Vec<Wait>, BackendError> {
        let mut waits = Vec::new();
        for slot in 0..u64::from(RECORD_CAPACITY) {
            let mut words = [0; RECORD_WORDS.len()];
            records.read(slot * RECORD_BYTES, &mut words)?;
            waits.extend(Wait::read(rank, plan, &words));
        }
        Ok(waits)
    }

    /// Who waits on whom: pairs of ranks, each once, from waits that ran out of time; on a rank where
    /// only waits for its own warps did, from those that were cut short. And whoever waits on a rank
    /// that is the cause of it all, however that wait ended.
    pub fn edges(&self) -> Vec<(usize, usize)> {
        let expired = |rank: usize| self.outer().any(|wait| wait.expired && wait.rank == rank);
        let counted = self.outer().filter(|wait| wait.expired || !expired(wait.rank));
        let causes = self.causes().map(|why| (why.rank, why.peer));
        each_once(counted.filter_map(edge).chain(causes))
    }

    /// Waits for peers.
    fn outer(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|wait| !wait.is_inner())
    }

    /// Ranks that wait for each other, unless they do so because another one is elsewhere. If those
    /// whose waits ran out do not, then with those whose waits were cut short.
    fn circle(&self) -> Option<String> {
        if self.causes().next().is_some() {
            return None;
        }
        circle(&self.edges()).or_else(|| circle(&each_once(self.outer().filter_map(edge))))
    }

    /// Ranks for which others wait in vain, and which wait for nobody themselves.
    fn causes(&self) -> impl Iterator<Item = &Whereabouts> {
        self.whereabouts.iter().filter(|why| why.reason.is_cause())
    }
}

impl fmt::Display for Timeouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        f.write_str("the group is stopped")?;
        for (from, to) in self.edges() {
            write!(f, "; rank {from} waits on rank {to}")?;
        }
        if let Some(circle) = self.circle() {
            write!(f, "; {circle}")?;
        }
        for why in &self.whereabouts {
            write!(f, "\n  {why}")?;
        }
        let like = |a: &Wait, b: &Wait| {
            let kind = |it: &Wait| (it.rank, it.peer, it.expired);
            kind(a) == kind(b)
                && (&a.pipeline, &a.role) == (&b.pipeline, &b.role)
                && (&a.channel, &a.waiting_for) == (&b.channel, &b.waiting_for)
        };
        let mut kinds: Vec<(&Wait, usize)> = Vec::new();
        for wait in &self.waits {
            match kinds.iter_mut().find(|(first, _)| like(first, wait)) {
                Some((_, more)) => *more += 1,
                None => kinds.push((wait, 0)),
            }
        }
        for (wait, more) in kinds.iter().take(SHOWN) {
            write!(f, "\n  {wait}")?;
            if *more > 0 {
                write!(f, "; {more} more like it")?;
            }
        }
        match kinds.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} other kinds of waits"),
        }
    }
}

/// The rank that waits, and the one that it waits for.
fn edge(wait: &Wait) -> Option<(usize, usize)> {
    Some((wait.rank, wait.peer?))
}

fn each_once(edges: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    edges.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Ranks of which each waits for the next and the last for the first, in words, if there are any.
pub(crate) fn circle(edges: &[(usize, usize)]) -> Option<String> {
    let next = |rank: usize| {
        edges.iter().find(|(from, to)| *from == rank && to != from).map(|(_, to)| *to)
    };
    for (start, _) in edges {
        let mut path = vec![*start];
        // Following first edges is enough to show one circle, not to find every one.
        while let Some(rank) = next(path[path.len() - 1]) {
            if let Some(begin) = path.iter().position(|known| *known == rank) {
                let ranks: Vec<String> =
                    path[begin..].iter().map(|rank| format!("rank {rank}")).collect();
                return Some(format!("a circle: {} wait for each other", ranks.join(" -> ")));
            }
            path.push(rank);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{GROUP_BYTES, GROUP_MEMBERS};
    use crate::device::HEADERS;
    use crate::fake::plan_of;
    use crate::whereabouts::{Reason, STATE_WORDS};

    /// The lines between `head` and the closing brace, without comments, each up to its semicolon.
    fn body(head: &str) -> Vec<String> {
        let (_, sync) = HEADERS.iter().find(|(name, _)| *name == "ep/sync.cuh").unwrap();
        let start = sync.find(head).unwrap_or_else(|| panic!("no `{head}` in sync.cuh"));
        let lines = sync[start..].lines().skip(1).take_while(|line| !line.starts_with('}'));
        let code = lines.map(|line| line.split("//").next().unwrap_or("").trim());
        let code = code.flat_map(|line| line.split_inclusive([';', ',']));
        let code = code.map(|part| part.trim().trim_end_matches([';', ',']).to_string());
        code.filter(|part| !part.is_empty()).collect()
    }

    #[test]
    fn the_group_is_what_the_header_says() {
        let declared = body("struct Group {");
        let ours: Vec<String> = GROUP_MEMBERS.iter().map(|(text, _)| text.to_string()).collect();
        assert_eq!(declared, ours);
        let mut offset = 0;
        for (text, at) in GROUP_MEMBERS {
            let wide = text.contains('*') || text.starts_with("u64");
            let bytes: usize = if wide { 8 } else { 4 };
            offset = usize::next_multiple_of(offset, bytes);
            assert_eq!(offset, at, "{text}");
            offset += bytes;
        }
        assert_eq!(offset.next_multiple_of(8), GROUP_BYTES);
    }

    #[test]
    fn the_record_is_what_the_header_says() {
        let declared = body("struct alignas(64) Record {");
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
    fn the_state_is_what_the_header_says() {
        let declared = body("struct State {");
        let ours: Vec<String> = STATE_WORDS.iter().map(|word| format!("u32 {word}")).collect();
        assert_eq!(declared, ours);
    }

    #[test]
    fn every_kind_of_wait_has_words() {
        let ours: Vec<&str> = WAITING.iter().map(|(name, ..)| *name).collect();
        assert_eq!(body("enum class Waiting"), ours);
        assert_eq!(WAITING[CAPACITY_KIND as usize].0, "kCapacity");
    }

    #[test]
    fn a_wait_reads_as_a_sentence() {
        let plan = plan_of("NvlDispatch", vec![]);
        let words = [0, 0, 0, 5, 1, 7, 2, 9, 4, 3, 1, 6, 1];
        let wait = Wait::read(1, &plan, &words).unwrap();
        let text = "rank 1: NvlDispatch role 0 waits for rank 2: the last row of #0, stripe 7 \
                    (call 3, wants 9, sees 4; block 1 warp 6)";
        assert_eq!(wait.to_string(), text);
        assert!(Wait::read(1, &plan, &[0; 13]).is_none());
        let timeouts = Timeouts::new(vec![wait]);
        assert_eq!(timeouts.edges(), [(1, 2)]);
    }

    /// Rank 0 has waited for rank 1 in vain; what rank 1 was waiting for then was cut short.
    #[test]
    fn a_wait_that_was_cut_short_closes_a_circle_or_tells_the_cause() {
        let plan = plan_of("NvlDispatch", vec![]);
        let wait = |rank: usize, peer: u32, expired: u32| {
            Wait::read(rank, &plan, &[0, 0, 0, 5, expired, 7, peer, 9, 4, 3, 1, 6, 1]).unwrap()
        };
        let mut timeouts = Timeouts::new(vec![wait(0, 1, 1), wait(1, 0, 0)]);
        assert!(timeouts.to_string().contains("; a circle: rank 0 -> rank 1 wait for each other"));
        let why = |reason| Whereabouts {
            rank: 0,
            pipeline: "NvlDispatch".to_string(),
            call: 3,
            peer: 2,
            reason,
        };
        timeouts.whereabouts = vec![why(Reason::Inside)];
        assert!(timeouts.to_string().contains("a circle"));
        timeouts.whereabouts = vec![why(Reason::NotCome)];
        let text = timeouts.to_string();
        let head = "the group is stopped; rank 0 waits on rank 1; rank 0 waits on rank 2; rank 1 \
                    waits on rank 0\n  rank 2 has not come to call 3 of NvlDispatch\n";
        assert!(text.starts_with(head), "{text}");
    }

    #[test]
    fn a_circle_is_found_behind_its_entry() {
        let text = "a circle: rank 1 -> rank 2 wait for each other";
        assert_eq!(circle(&[(0, 1), (1, 2), (2, 1)]).as_deref(), Some(text));
        assert_eq!(circle(&[(0, 1)]), None);
        assert_eq!(circle(&[(0, 0)]), None, "own warps are not peers");
    }
}
