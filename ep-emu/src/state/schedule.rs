//! The seeded choice: its policies, and what goes wrong on purpose.

use super::Idx;
use crate::rng::Rng;

/// How the next warp is chosen. Each holds for a while, then its choices are drawn anew: bugs that
/// need one party far ahead of another get their chance several times in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The other three in turns, by the seed.
    Mixed,
    /// Any warp that can run.
    Uniform,
    /// The warp of highest priority; priorities are random, and the running warp drops to the
    /// lowest one at random steps.
    Priorities,
    /// A rank, a block, a warp, or every other block runs only when nothing else can.
    Starve,
}

/// What the policy is doing now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    Uniform,
    /// Priorities by a hash with this salt.
    Priorities {
        salt: u64,
    },
    Starve(Victims),
}

/// Whom a turn starves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victims {
    Rank(u32),
    Block(Idx),
    Warp(Idx),
    /// The blocks of this parity: often all senders, or all receivers.
    Parity(u32),
}

/// What is wrong with the machine on purpose. Steps count from the world's first run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// These ranks run at a sixty-fourth of the speed.
    pub slow_ranks: Vec<u32>,
    /// This rank stops for good at this scheduler step.
    pub dead_rank: Option<(u32, u64)>,
    /// This rank begins its first launch at this step, or when nothing else can run: where waits run out, as
    /// the first of them do.
    pub late_rank: Option<(u32, u64)>,
    /// The word that stops this rank ([`World::set_stop_word`]) is raised at this step: its lanes are
    /// to leave whatever they do.
    ///
    /// [`World::set_stop_word`]: crate::World::set_stop_word
    pub stopped_rank: Option<(u32, u64)>,
    /// Bulk copies of this rank happen only when nothing else can.
    pub late_bulk: Option<u32>,
    /// Bulk copies that this rank issues after so many steps never happen.
    pub stalled_bulk: Option<(u32, u64)>,
}

/// The state of the choice.
pub(crate) struct Schedule {
    pub(crate) rng: Rng,
    /// Warps that have a lane that can run.
    pub(crate) ready: Vec<Idx>,
    pub(crate) policy: Policy,
    pub(crate) turn: Turn,
    /// Step at which the turn ends.
    pub(crate) turn_ends: u64,
    /// The warp that dropped to the lowest priority last.
    pub(crate) dropped: Option<Idx>,
    pub(crate) faults: Faults,
    pub(crate) stay: u32,
    pub(crate) preemption: u32,
    pub(crate) bulk: u32,
    pub(crate) lane_order: u32,
    pub(crate) max_steps: u64,
    pub(crate) rounds: u32,
    pub(crate) progress: u64,
    pub(crate) expired: bool,
    /// A stop word has been raised.
    pub(crate) stopped: bool,
}

impl Schedule {
    /// The schedule of `seed`.
    pub(crate) fn new(seed: u64, policy: Policy, faults: Faults, max_steps: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            policy,
            turn: Turn::Uniform,
            turn_ends: 0,
            dropped: None,
            faults,
            stay: [1024, 990, 700][rng.below(3)],
            preemption: [0, 20, 150][rng.below(3)],
            bulk: [2, 40, 300][rng.below(3)],
            lane_order: rng.below(3) as u32,
            max_steps,
            rounds: 0,
            progress: 0,
            expired: false,
            stopped: false,
            ready: Vec::new(),
            rng,
        }
    }

    /// Whether the running lane gives way now.
    #[inline(always)]
    pub(crate) fn preempts(&mut self) -> bool {
        self.preemption != 0 && self.rng.chance(self.preemption)
    }

    /// The faults that were asked for.
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }
}
