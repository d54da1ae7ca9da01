//! What a run can end with: numbers of a good one, a typed failure with its places of a bad one.

use std::fmt;

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
    const ALL: [(Self, &'static str); 14] = [
        (Self::Race, "race"),
        (Self::Deadlock, "deadlock"),
        (Self::Trap, "trap"),
        (Self::Warp, "warp function"),
        (Self::Barrier, "barrier"),
        (Self::Mbarrier, "mbarrier"),
        (Self::Bulk, "bulk copy"),
        (Self::OutOfBounds, "out of bounds"),
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
}

impl Failure {
    /// A failure before or beside a run.
    pub(crate) fn new(kind: FailureKind, message: String) -> Self {
        Self { kind, message, seed: 0, drained: false, waits: Vec::new() }
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
}

/// A wait as the kernel names it (`ep::note_wait`): the numbers of its timeout records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSite {
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
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} (seed {})", self.kind.name(), self.message, self.seed)
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
