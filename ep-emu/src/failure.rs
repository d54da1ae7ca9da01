//! What a run can end with: numbers of a good one, a typed failure with its places of a bad one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Lines of a report about waits.
const LINES: usize = 24;

/// Why a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Two accesses that nothing orders, or a rule of the memory model that was not kept.
    Race,
    /// Nothing can run any more and lanes still wait.
    Deadlock,
    /// The kernel stopped itself.
    Trap,
    /// A warp function was called with a mask or operation that cannot be.
    Warp,
    /// A block barrier was used with a count or by warps that cannot be.
    Barrier,
    /// An mbarrier was used before its initialisation, overwritten, or over-arrived.
    Mbarrier,
    /// A bulk copy was misaligned or left the memory it may touch.
    Bulk,
    /// An access outside every allocation.
    OutOfBounds,
    /// An actor, such as a network card, was asked for what it cannot do.
    Network,
    /// A lane left with work still open (M6).
    Exit,
    /// A lane's stack was too small.
    StackOverflow,
    /// The run took more scheduler steps than allowed: lanes run, but nothing gets done.
    Livelock,
    /// The process that ran the kernel was ended by a signal.
    Crash,
    /// The process that ran the kernel did not answer in time.
    Hang,
    /// The launch itself is impossible (grid, shared memory, arguments, platform).
    Launch,
}

impl FailureKind {
    const ALL: [(Self, &'static str); 15] = [
        (Self::Race, "race"),
        (Self::Deadlock, "deadlock"),
        (Self::Trap, "trap"),
        (Self::Warp, "warp function"),
        (Self::Barrier, "barrier"),
        (Self::Mbarrier, "mbarrier"),
        (Self::Bulk, "bulk copy"),
        (Self::OutOfBounds, "out of bounds"),
        (Self::Network, "network"),
        (Self::Exit, "exit"),
        (Self::StackOverflow, "stack overflow"),
        (Self::Livelock, "livelock"),
        (Self::Crash, "crash"),
        (Self::Hang, "hang"),
        (Self::Launch, "launch"),
    ];

    /// One or two words, as printed and as sent between processes.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("failure", |(_, name)| name)
    }

    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened, as a class.
    pub kind: FailureKind,
    /// What happened, in words, with source lines; may have several lines.
    pub message: String,
    /// Seed that replays it.
    pub seed: u64,
    /// Whether all living lanes still ran to their end (a deadlock whose waits expired).
    pub drained: bool,
    /// What lanes were waiting for when nothing could run any more.
    pub waits: Vec<Wait>,
    /// What those waited for that still had not left when all bounded waits had expired.
    pub left: Vec<Wait>,
}

impl Failure {
    /// A failure before or beside a run.
    pub(crate) fn new(kind: FailureKind, message: String) -> Self {
        Self { kind, message, seed: 0, drained: false, waits: Vec::new(), left: Vec::new() }
    }
}

/// What some lanes of a warp were waiting for in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Rank.
    pub rank: u32,
    /// Block of the grid.
    pub block: u32,
    /// Warp of the block.
    pub warp: u32,
    /// Lanes of the warp, a bit each.
    pub lanes: u32,
    /// What the kernel said it waits for, if it did.
    pub site: Option<WaitSite>,
    /// What they do, in words: the word that a lane polls and what it saw, or the barrier.
    pub what: String,
    /// Where in the kernel.
    pub place: String,
    /// Whether it came after all, when others had given up and gone on.
    pub met: bool,
}

/// A wait as the kernel names it (`ep::note_wait`): the numbers of its timeout records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSite {
    /// Number of the pipeline in its group.
    pub pipeline: u32,
    /// `Cfg` role.
    pub role: u32,
    /// `Cfg` channel.
    pub channel: u32,
    /// `ep::Waiting`.
    pub kind: u32,
    /// Stripe, or -1.
    pub stripe: i32,
    /// Peer, or -1.
    pub peer: i32,
    /// Counter value that would end the wait.
    pub want: u32,
    /// Number of the call.
    pub epoch: u32,
}

impl Failure {
    /// What happened, then two lines for all waits of a rank at one place of the kernel: what the
    /// first of them is for, by `name`, and what its lanes do.
    pub fn report(&self, name: impl Fn(&Wait) -> String) -> String {
        let mut text = self.message.clone();
        list(&mut text, &self.waits, &name);
        // Where no wait has a bound, all are there already.
        if !self.left.is_empty() && self.left != self.waits {
            text.push_str("\n  when all waits had expired, these had not left the kernel:");
            list(&mut text, &self.left, &name);
        }
        text
    }
}

/// Adds the waits to a report, those of a rank at one place of the kernel together.
fn list(text: &mut String, waits: &[Wait], name: impl Fn(&Wait) -> String) {
    type Key<'w> = (u32, &'w str, Option<(u32, u32, u32, u32)>);
    let mut places: BTreeMap<Key<'_>, Vec<&Wait>> = BTreeMap::new();
    for wait in waits {
        let site = wait.site.map(|it| (it.pipeline, it.role, it.channel, it.kind));
        places.entry((wait.rank, &wait.place, site)).or_default().push(wait);
    }
    for waits in places.values().take(LINES) {
        let first = waits[0];
        let (warp, lanes, what, place) = (first.warp, first.lanes, &first.what, &first.place);
        text.push_str(&format!("\n  {}", name(first)));
        text.push_str(&format!("\n    warp {warp} lanes {lanes:08x}: {what} at {place}"));
        if waits.len() > 1 {
            text.push_str(&format!("; {}", like_it(&waits[1..])));
        }
    }
    if places.len() > LINES {
        text.push_str(&format!("\n  and {} more", places.len() - LINES));
    }
}

/// `3 more like it, of stripes 1 2, for ranks 0 3`.
fn like_it(waits: &[&Wait]) -> String {
    let numbers = |what: &str, number: fn(WaitSite) -> i32| {
        let sites = waits.iter().filter_map(|wait| wait.site).map(number);
        let all: BTreeSet<i32> = sites.filter(|number| *number >= 0).collect();
        let texts: Vec<String> = all.iter().map(i32::to_string).collect();
        if texts.is_empty() { String::new() } else { format!(", {what} {}", texts.join(" ")) }
    };
    let stripes = numbers("of stripes", |site| site.stripe);
    format!("{} more like it{stripes}{}", waits.len(), numbers("for ranks", |site| site.peer))
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report(Wait::to_string);
        write!(out, "{}: {report} (seed {})", self.kind.name(), self.seed)
    }
}

/// By numbers: only the host knows the names.
impl fmt::Display for Wait {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rank {} block {}", self.rank, self.block)?;
        let Some(WaitSite { pipeline, role, channel, kind, stripe, peer, want, epoch }) = self.site
        else {
            return Ok(());
        };
        write!(out, ": role {role} of pipeline {pipeline} waits for kind {kind} of channel ")?;
        write!(out, "{channel}, stripe {stripe}, peer {peer} (call {epoch}, wants {want})")
    }
}

impl std::error::Error for Failure {}

/// What a completed run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Lanes that ran.
    pub lanes: u64,
    /// Choices of the scheduler.
    pub steps: u64,
    /// Switches from one fiber to another.
    pub switches: u64,
    /// Calls of warp functions, counted per lane.
    pub collectives: u64,
    /// Strong loads and atomics.
    pub polls: u64,
    /// Phases of bulk copies.
    pub bulk_steps: u64,
    /// Times that nothing could run by itself.
    pub idle: u64,
    /// Digest of every choice: equal for equal schedules, whatever the build.
    pub schedule: u64,
    /// Virtual nanoseconds.
    pub clock_ns: u64,
}
