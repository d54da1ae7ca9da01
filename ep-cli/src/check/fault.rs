//! What goes wrong on purpose, and what a run may then end with.

use clap::ValueEnum;
use ep_runtime::backend::BackendError;
use ep_runtime::buffer::Placement;
use ep_runtime::error::CallError;
use ep_runtime::host::{FailureKind, Faults, HostBackend};
use ep_verify::Findings;
use ep_verify::oracle::Random;
use ep_verify::selftest::Case;

/// Something that goes wrong, or is as uneven as can be, in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// One rank runs at a sixty-fourth of the speed: the results stay right
    SlowRank,
    /// All ranks but one do, so that it is calls ahead: the results stay right
    RankAhead,
    /// The copies of one rank come late: the results stay right
    LateBulk,
    /// All ranks but one have no tokens: the results stay right
    EmptyRanks,
    /// All tokens go to one rank: the results stay right
    OneTarget,
    /// One rank stops for good: the others say whom they wait for
    DeadRank,
    /// The copies of one rank stop for good: the ranks that wait say for whom
    StalledBulk,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::SlowRank => "slow-rank",
            Fault::RankAhead => "rank-ahead",
            Fault::LateBulk => "late-bulk",
            Fault::EmptyRanks => "empty-ranks",
            Fault::OneTarget => "one-target",
            Fault::DeadRank => "dead-rank",
            Fault::StalledBulk => "stalled-bulk",
        }
    }

    /// Whom it strikes, and after how many steps.
    pub(super) fn drawn(self, ranks: usize, seed: u64) -> (u32, u64) {
        let mut random = Random::new(seed << 8 | 2);
        let rank = random.below(ranks) as u32;
        let magnitude = 6 + random.below(14);
        (rank, (1 << magnitude) + random.below(1 << magnitude) as u64)
    }

    /// What it does to a machine of so many ranks.
    pub(super) fn faults(self, ranks: u32, (rank, step): (u32, u64)) -> Faults {
        match self {
            Fault::EmptyRanks | Fault::OneTarget => Faults::default(),
            Fault::SlowRank => Faults { slow_ranks: vec![rank], ..Faults::default() },
            Fault::RankAhead => {
                let others = (0..ranks).filter(|other| *other != rank);
                Faults { slow_ranks: others.collect(), ..Faults::default() }
            }
            Fault::LateBulk => Faults { late_bulk: Some(rank), ..Faults::default() },
            Fault::DeadRank => Faults { dead_rank: Some((rank, step)), ..Faults::default() },
            Fault::StalledBulk => Faults { stalled_bulk: Some((rank, step)), ..Faults::default() },
        }
    }

    /// What it does to the inputs.
    pub(super) fn alter(self, case: &mut Case, rank: u32) {
        let ranks = case.tokens.len();
        let rank = rank as usize;
        match self {
            Fault::EmptyRanks => {
                case.tokens = vec![0; ranks];
                case.tokens[rank] = case.options.tokens;
            }
            Fault::OneTarget => {
                let own = Placement::even(case.options.experts, ranks).experts(rank);
                case.routing.first = own.start as usize;
                case.routing.experts = (own.end - own.start) as usize;
                case.tokens = vec![case.options.tokens; ranks];
            }
            _ => {}
        }
    }

    /// Whether an error is the one that this fault, on `rank`, has to end in.
    fn explains(self, rank: u32, error: &CallError, backend: &HostBackend) -> bool {
        if !matches!(self, Fault::DeadRank | Fault::StalledBulk) {
            return false;
        }
        let own = rank as usize;
        match error {
            CallError::Timeout(timeouts) => {
                timeouts.waits.iter().any(|wait| wait.rank == own || wait.peer == Some(own))
            }
            // Nobody else needed the rank any more, or nobody's wait has a bound: a warp that waits
            // for its own copy.
            CallError::Backend(BackendError::Kernel { .. }) => {
                backend.failure().is_some_and(|failure| {
                    let kinds = [FailureKind::Hang, FailureKind::Deadlock];
                    let text = failure.to_string();
                    kinds.contains(&failure.kind)
                        && text.contains(&format!("rank {rank}"))
                        && text.contains("by a fault")
                })
            }
            _ => false,
        }
    }
}

/// Whether the run goes on, is over, or has failed, after a call that may have had a fault.
pub(super) fn judge(
    fault: Option<(Fault, u32)>,
    outcome: Result<Findings, CallError>,
    backend: &HostBackend,
) -> Result<bool, String> {
    match outcome {
        Ok(findings) if findings.is_good() => Ok(true),
        Ok(findings) => Err(findings.to_string()),
        Err(error) => match fault {
            Some((fault, rank)) if fault.explains(rank, &error, backend) => Ok(false),
            _ => {
                let seen = backend.report().map(|report| format!("\n{report}"));
                let seen = seen.filter(|_| matches!(error, CallError::Timeout(_)));
                Err(format!("{error}{}", seen.unwrap_or_default()))
            }
        },
    }
}
