//! What goes wrong on purpose, and what a run may then end with.

use clap::ValueEnum;
use ep_runtime::backend::BackendError;
use ep_runtime::buffer::Placement;
use ep_runtime::error::CallError;
use ep_runtime::host::{FailureKind, Faults, HostBackend, Wait};
use ep_runtime::timeouts::{RECORD_CAPACITY, StuckWait};
use ep_verify::Findings;
use ep_verify::oracle::Random;
use ep_verify::selftest::Case;

/// Something that goes wrong, or is as uneven as can be, in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// One rank runs at 1/64 of the speed: the results stay right
    SlowRank,
    /// All ranks but one run at 1/64 of the speed, and that one is calls ahead: the results stay right
    RankAhead,
    /// One rank starts late: the results stay right
    LateRank,
    /// The bulk copies of one rank finish late: the results stay right
    LateBulk,
    /// All ranks but one have no tokens: the results stay right
    EmptyRanks,
    /// All tokens go to one rank: the results stay right
    OneTarget,
    /// One rank makes a call of another shape: the other ranks name the rank that they wait for
    OtherShape,
    /// One rank stops for good: the other ranks name the rank that they wait for
    DeadRank,
    /// The stop word of one rank is raised at a random step: all ranks stop in order
    StoppedRank,
    /// The bulk copies of one rank stop for good: waiting ranks name the rank that they wait for
    StalledBulk,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::SlowRank => "slow-rank",
            Fault::RankAhead => "rank-ahead",
            Fault::LateRank => "late-rank",
            Fault::LateBulk => "late-bulk",
            Fault::EmptyRanks => "empty-ranks",
            Fault::OneTarget => "one-target",
            Fault::OtherShape => "other-shape",
            Fault::DeadRank => "dead-rank",
            Fault::StoppedRank => "stopped-rank",
            Fault::StalledBulk => "stalled-bulk",
        }
    }

    /// Whether it is about the inputs of the standard pipelines.
    pub(super) fn is_of_inputs(self) -> bool {
        matches!(self, Fault::EmptyRanks | Fault::OneTarget | Fault::OtherShape)
    }

    /// Whether it strikes at a step.
    pub(super) fn is_timed(self) -> bool {
        use Fault::{DeadRank, LateRank, StalledBulk, StoppedRank};
        matches!(self, LateRank | DeadRank | StoppedRank | StalledBulk)
    }

    /// Whom it strikes, and at which of so many steps: any, and in every other schedule one of the
    /// first, when less has happened yet.
    pub(super) fn drawn(self, ranks: usize, seed: u64, steps: u64) -> (u32, u64) {
        let mut random = Random::new(seed << 8 | 2);
        let rank = random.below(ranks) as u32;
        let mut steps = steps.max(1);
        if seed / 2 % 2 == 1 {
            steps >>= random.below(steps.ilog2() as usize + 1);
        }
        (rank, 1 + random.below(usize::try_from(steps).unwrap_or(usize::MAX)) as u64)
    }

    /// What it does to a machine of so many ranks.
    pub(super) fn faults(self, ranks: u32, (rank, step): (u32, u64)) -> Faults {
        match self {
            Fault::EmptyRanks | Fault::OneTarget | Fault::OtherShape => Faults::default(),
            Fault::SlowRank => Faults { slow_ranks: vec![rank], ..Faults::default() },
            Fault::RankAhead => {
                let others = (0..ranks).filter(|other| *other != rank);
                Faults { slow_ranks: others.collect(), ..Faults::default() }
            }
            Fault::LateRank => Faults { late_rank: Some((rank, step)), ..Faults::default() },
            Fault::StoppedRank => Faults { stopped_rank: Some((rank, step)), ..Faults::default() },
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

    /// Whether an error is one that this fault, on `rank`, may end in.
    fn explains(self, rank: u32, error: &CallError, backend: &HostBackend) -> bool {
        use Fault::{DeadRank, OtherShape, StalledBulk, StoppedRank};
        if !matches!(self, DeadRank | OtherShape | StoppedRank | StalledBulk) {
            return false;
        }
        let own = rank as usize;
        match error {
            CallError::Timeout(timeouts) => may_be_for(own, &timeouts.waits),
            // It left before it had counted, and nobody waited for it.
            CallError::Silent { rank, .. } => self == StoppedRank && *rank == own,
            // Nobody else needed the rank any more, or nobody's wait has a bound: a warp that waits
            // for its own copy.
            CallError::Backend(BackendError::Kernel { .. }) => {
                backend.failure().is_some_and(|failure| {
                    let text = failure.to_string();
                    text.contains(&format!("rank {rank}")) && text.contains("by a fault")
                })
            }
            _ => false,
        }
    }

    /// What is wrong with how the kernels ended: after a fault every lane leaves, with nothing open
    /// and nothing stored outside. Only a warp whose own copy never ends has to stay.
    fn disorder(self, rank: u32, backend: &HostBackend) -> Option<String> {
        let failure = backend.failure()?;
        let stays = |wait: &Wait| self == Fault::StalledBulk && wait.rank == rank;
        let ended = match failure.kind {
            FailureKind::Deadlock => failure.drained || failure.left.iter().all(stays),
            // Nobody needed the rank that died.
            FailureKind::Hang => self == Fault::DeadRank && failure.message.contains("by a fault"),
            _ => false,
        };
        (!ended).then(|| format!("after {}, ranks did not leave in order", self.name()))
    }
}

/// Whether a rank may be what all wait for in the end: it waits, or is waited for. What any of several ranks
/// may bring names none of them; then all that is named has to wait so itself.
fn may_be_for(rank: usize, waits: &[StuckWait]) -> bool {
    let names_none = |of: usize| waits.iter().any(|it| it.rank == of && it.peer.is_none());
    waits.iter().any(|wait| wait.rank == rank || wait.peer == Some(rank))
        || waits.iter().all(|wait| wait.peer.is_none_or(names_none))
}

/// What is wrong with the records of waits that ran out: each warp that waited when nothing could run any
/// more leaves one. Kernels that began later leave others.
fn misreport(error: &CallError, backend: &HostBackend) -> Option<String> {
    let CallError::Timeout(timeouts) = error else { return None };
    let (records, waits) = (&timeouts.waits, backend.waits());
    let is_twice = |(at, record): &(usize, &StuckWait)| records[..*at].contains(record);
    if let Some((_, record)) = records.iter().enumerate().find(is_twice) {
        return Some(format!("a warp wrote two records: {record}"));
    }
    // Which of its lanes still waits, and for whom, only the warp knows.
    let is_of = |record: &StuckWait, wait: &StuckWait| {
        let StuckWait { stripe, peer, want, seen, expired, .. } = *record;
        StuckWait { stripe, peer, want, seen, expired, ..wait.clone() } == *record
    };
    let is_told = |wait: &&StuckWait| {
        let of_its_pipeline = records
            .iter()
            .filter(|record| record.rank == wait.rank && record.pipeline == wait.pipeline);
        // There is room for so many.
        of_its_pipeline.clone().count() >= RECORD_CAPACITY as usize
            || of_its_pipeline.clone().any(|record| is_of(record, wait))
    };
    let wait = waits.iter().find(|wait| !is_told(wait))?;
    Some(format!("no record says that {wait}"))
}

/// Whether the run goes on, is over, or has failed, after a call that may have had a fault.
pub(super) fn judge(
    fault: Option<(Fault, u32)>,
    outcome: Result<Findings, CallError>,
    backend: &HostBackend,
) -> Result<bool, String> {
    let seen = || backend.report().map(|report| format!("\n{report}")).unwrap_or_default();
    if let Some((fault, rank)) = fault
        && let Some(disorder) = fault.disorder(rank, backend)
    {
        return Err(format!("{disorder}{}", seen()));
    }
    match outcome {
        Ok(findings) if findings.is_good() => Ok(true),
        // A rank that was stopped leaves its outputs as they are, and nobody need have waited for it.
        Ok(_) if matches!(fault, Some((Fault::StoppedRank, _))) => Ok(false),
        Ok(findings) => Err(findings.to_string()),
        Err(error) => match fault {
            Some((fault, rank)) if fault.explains(rank, &error, backend) => {
                misreport(&error, backend)
                    .map_or(Ok(false), |what| Err(format!("{what}{}", seen())))
            }
            _ if matches!(error, CallError::Timeout(_)) => Err(format!("{error}{}", seen())),
            _ => Err(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use ep_runtime::buffer::{BufferOptions, BuiltIn};
    use ep_runtime::host::mutant::Mutant;
    use ep_runtime::host::{HostOptions, Programs};
    use ep_verify::selftest::Selftest;

    use super::*;

    /// Bugs in what a warp records of its wait.
    const LIST: &str = "
== a thread is named for its warp
in ep/sync.cuh
- Quad{seen, epoch, blockIdx.x, threadIdx.x / kLanes}
+ Quad{seen, epoch, blockIdx.x, threadIdx.x}

== every lane leaves a record
in ep/sync.cuh
- const bool blame = lane_index() == __ffs(static_cast<int>(waiting)) - 1;
+ const bool blame = waiting != 0;

== no lane leaves one
in ep/sync.cuh
-         write_record(group, epoch, role, site, seen, expired);
+         if (!expired) write_record(group, epoch, role, site, seen, expired);
";

    /// Exchanges counts with a rank that is dead from the first step on.
    fn judged(programs: &std::sync::Arc<Programs>) -> Result<bool, String> {
        let mut host = HostOptions::new(2);
        host.spec.faults = Fault::DeadRank.faults(2, (1, 1));
        let backend = HostBackend::new(programs, host).unwrap();
        let group = backend.group().unwrap();
        let case = Case::even(BufferOptions::new(8, 64, 2, 4), 2, 4);
        let outcome = Selftest::new(&group, &BuiltIn, case).and_then(|test| test.check_counts());
        judge(Some((Fault::DeadRank, 1)), outcome, &backend)
    }

    #[test]
    fn the_rank_named_for_a_fault_waits_for_it() {
        let wait = |rank, peer| StuckWait {
            rank,
            pipeline: "P".to_owned(),
            role: "R".to_owned(),
            channel: "C".to_owned(),
            waiting_for: "a row in the ring".to_owned(),
            expired: true,
            stripe: None,
            peer,
            want: 0,
            seen: None,
            epoch: 1,
            block: 0,
            warp: 0,
            pairs: Vec::new(),
        };
        for (waits, is_explained) in [
            (vec![wait(0, Some(2))], true),
            (vec![wait(2, Some(0)), wait(1, Some(0))], true),
            (vec![wait(0, Some(1))], false),
            (vec![wait(0, None), wait(1, None)], true),
            // Rank 0 waits for its own forwarder, which waits for whichever node sends first.
            (vec![wait(0, Some(0)), wait(0, None), wait(3, None)], true),
            (vec![wait(0, Some(1)), wait(0, None)], false),
        ] {
            assert_eq!(may_be_for(2, &waits), is_explained, "{waits:?}");
        }
    }

    #[test]
    fn who_is_stopped_alone_need_not_be_waited_for() {
        let Ok(programs) = Programs::find() else { return };
        let mut host = HostOptions::new(1);
        host.spec.faults = Fault::StoppedRank.faults(1, (0, 1));
        let backend = HostBackend::new(&programs, host).unwrap();
        let case = Case::even(BufferOptions::new(8, 64, 2, 4), 1, 4);
        let test = Selftest::new(&backend.group().unwrap(), &BuiltIn, case);
        let outcome = test.and_then(|test| test.check());
        assert!(matches!(outcome, Err(CallError::Silent { rank: 0, .. })), "{outcome:?}");
        assert_eq!(judge(Some((Fault::StoppedRank, 0)), outcome, &backend), Ok(false));
    }

    #[test]
    fn records_are_compared_with_what_lanes_wait_for() {
        let Ok(programs) = Programs::find() else { return };
        assert_eq!(judged(&programs), Ok(false));
        for mutant in Mutant::parse(LIST).unwrap() {
            let said = judged(&programs.planted(&mutant)).expect_err(&mutant.name);
            assert!(said.contains("record"), "{}: {said}", mutant.name);
        }
    }
}
