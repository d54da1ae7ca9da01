//! One schedule of one variant. It has a world of its own, and every call in it is compared with the oracle or
//! with the declaration.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::backend::BackendError;
use ep_runtime::buffer::{BufferOptions, BuiltIn};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_runtime::net::ModelNetwork;
use ep_verify::Findings;
use ep_verify::declared::Declared;
use ep_verify::selftest::{Case, Selftest};

use super::fault::{Fault, judge};
use super::shape;
use crate::declared::{ROUNDS, Subject, second_opinion};
use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::problem::{Problem, Reach, emit};
use crate::wire::Net;

/// Longest run between two waits of the host.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// Of so many schedules, one is compared with the declarations as well.
const OPINIONS: u64 = 4;

/// Of so many schedules, in one the counters of rings wrap soon.
const WRAPS: u64 = 4;

/// Of so many drawn shapes, one does without a rank.
const LEAVES: u64 = 4;

/// At how many steps a fault strikes in a schedule, each in a run of its own.
pub(super) const STRIKES: u64 = 3;

/// How many shapes are drawn before one of them has a plan.
const DRAWS: u64 = 64;

/// What is checked.
pub(super) struct Variant {
    pub(super) name: String,
    /// What the command line calls it.
    pub(super) pipeline: String,
    pub(super) what: What,
    pub(super) problem: Problem,
}

/// The reference for the results of calls.
pub(super) enum What {
    /// The oracle of the standard pipelines.
    Standard(Box<Standard>),
    /// The declaration.
    Declared(Box<Subject>),
}

/// Standard pipelines with the options of a buffer.
#[derive(Debug, Clone)]
pub(super) struct Standard {
    pub(super) reach: Reach,
    pub(super) options: BufferOptions,
}

impl Standard {
    /// Plans its kernels, so that a value that no plan takes is told before anything runs.
    pub(super) fn plan(&self, ranks: usize) -> Result<(), Failure> {
        emit(&BuiltIn, &self.options, self.reach.pipelines(), ranks, Arch::Sm90a)?;
        Ok(())
    }
}

/// One schedule.
#[derive(Clone, Copy)]
pub(super) struct Trial<'a> {
    pub(super) problem: &'a Problem,
    pub(super) net: &'a Net,
    pub(super) build: Build,
    pub(super) fault: Option<Fault>,
    /// The number of the shape that it draws, if it draws one.
    pub(super) shape: Option<u64>,
    /// Runs kernels in a process of their own, which may take so long.
    pub(super) isolation: Option<Duration>,
    pub(super) seed: u64,
}

/// A call of a run, as it is checked.
type Call = fn(&Selftest) -> Result<Findings, CallError>;

impl Trial<'_> {
    /// Runs it; gives the steps of the scheduler, or what is wrong.
    pub(super) fn run(&self, variant: &Variant, programs: &Arc<Programs>) -> Result<u64, Trouble> {
        match &variant.what {
            What::Standard(standard) => self.run_standard(standard, programs),
            What::Declared(subject) => self.run_declared(subject, programs),
        }
    }

    fn run_standard(&self, standard: &Standard, programs: &Arc<Programs>) -> Result<u64, Trouble> {
        let ranks = self.problem.ranks() as usize;
        let Some(shape) = self.shape else {
            return self.run_shape(standard.reach, &standard.options, ranks, programs);
        };
        let mut refused = Trouble::Found(String::new());
        for draw in 0..DRAWS {
            let (options, ranks) = shape::drawn(&standard.options, ranks, shape, draw);
            match self.run_shape(standard.reach, &options, ranks, programs) {
                // Not every shape that can be drawn has a plan.
                Err(trouble @ Trouble::NoPlan(_)) => refused = trouble,
                Err(Trouble::Found(report)) => {
                    let BufferOptions { tokens, hidden, topk, experts, .. } = options;
                    let shape = format!(
                        "{ranks} ranks, {tokens} tokens, hidden {hidden}, top-{topk} of {experts}"
                    );
                    return Err(Trouble::Found(format!("{shape}\n{report}")));
                }
                outcome => return outcome,
            }
        }
        Err(refused)
    }

    /// Calls as they are drawn from the declaration: of the same shape for every seed, or of another.
    fn run_declared(&self, subject: &Subject, programs: &Arc<Programs>) -> Result<u64, Trouble> {
        let (problem, arch) = (self.emitted(), self.arch());
        let calls = subject.calls(&problem, arch, self.shape.unwrap_or(0), self.seed);
        let mut calls = calls.map_err(|failure| Trouble::NoPlan(failure.sentence()))?;
        if self.shape.is_some() && self.seed % LEAVES == 3 {
            calls.leave_out((self.seed / LEAVES) as usize);
        }
        let declared = Declared::new(&calls.emitted, &calls.drawn, ROUNDS, &subject.functions());
        let declared = declared.map_err(|wrong| Trouble::Found(wrong.to_string()))?;
        let ranks = subject.ranks(&problem);
        let ranks = ranks.map_err(|failure| Trouble::NoPlan(failure.sentence()))?;
        let blocks = calls.blocks_min() + (self.seed % 3) as u32;
        let run = |struck: Option<(Fault, (u32, u64))>| {
            let backend = HostBackend::new(programs, self.host(ranks, struck));
            let backend = backend.map_err(CallError::from)?;
            let network = self.net.network(&backend, &calls.emitted.plan)?;
            let addresses = network.as_ref().map(ModelNetwork::addresses).unwrap_or_default();
            let outcome = declared.check_over(&backend.group()?, blocks, &addresses);
            let rank = struck.map(|(fault, (rank, _))| (fault, rank));
            judged(rank, outcome, &backend)
                .map_err(|trouble| trouble.about(&calls.shape()))
                .map(|_| backend.stats().steps)
        };
        self.strike(ranks, run)
    }

    /// Runs without a fault, or with one: where it strikes at a step, at some of those that the run takes
    /// without it.
    fn strike(
        &self,
        ranks: usize,
        run: impl Fn(Option<(Fault, (u32, u64))>) -> Result<u64, Trouble>,
    ) -> Result<u64, Trouble> {
        let Some(fault) = self.fault else { return run(None) };
        if !fault.is_timed() {
            return run(Some((fault, fault.drawn(ranks, self.seed, 0))));
        }
        let steps = run(None)?;
        (0..STRIKES).try_fold(0, |sum, turn| {
            let place = fault.drawn(ranks, struck_seed(self.seed, turn), steps);
            Ok(sum + run(Some((fault, place)))?)
        })
    }

    /// The problem, where shapes are drawn statement by statement in every fourth one.
    fn emitted(&self) -> Problem {
        let kernels = match self.shape.is_some_and(|shape| shape % 8 >= 6) {
            true => Kernels::Plain,
            false => self.problem.kernels,
        };
        Problem { kernels, ..self.problem.clone() }
    }

    /// What texts are emitted for: where shapes are drawn, for every eighth one without TMA.
    fn arch(&self) -> Arch {
        if matches!(self.shape.map(|shape| shape % 16), Some(3 | 10)) {
            Arch::Sm80
        } else {
            Arch::Sm90a
        }
    }

    /// How the machine runs, with a fault on a rank at a step.
    fn host(&self, ranks: usize, struck: Option<(Fault, (u32, u64))>) -> HostOptions {
        let mut host = HostOptions::new(ranks);
        (host.build, host.arch) = (self.build, self.arch());
        host.isolation = self.isolation;
        host.spec.seed = self.seed;
        if let Some((fault, place)) = struck {
            host.spec.faults = fault.faults(host.spec.ranks, place);
        }
        host
    }

    fn run_shape(
        &self,
        reach: Reach,
        options: &BufferOptions,
        ranks: usize,
        programs: &Arc<Programs>,
    ) -> Result<u64, Trouble> {
        self.strike(ranks, |struck| self.run_struck(reach, options, ranks, programs, struck))
    }

    /// Runs a shape with a fault at a place: on a rank, at a step.
    fn run_struck(
        &self,
        reach: Reach,
        options: &BufferOptions,
        ranks: usize,
        programs: &Arc<Programs>,
        struck: Option<(Fault, (u32, u64))>,
    ) -> Result<u64, Trouble> {
        let backend =
            HostBackend::new(programs, self.host(ranks, struck)).map_err(CallError::from)?;
        let (group, problem) = (backend.group()?, self.emitted());
        // Five handles: ranks may be calls apart.
        let options = BufferOptions {
            live: 5,
            ..shape::way(options.clone(), self.shape.unwrap_or(self.seed))
        };
        let mut case = Case::random_for(options, ranks, self.seed);
        shape::fill(&mut case);
        if let Some((fault, (rank, _))) = struck {
            fault.alter(&mut case, rank);
        }
        let struck = struck.map(|(fault, (rank, _))| (fault, rank));
        let test = |case: Case| Selftest::new(&group, problem.source(), case);
        let judged = |outcome| judged(struck, outcome, &backend);
        if let Some((Fault::OtherShape, rank)) = struck {
            let options =
                BufferOptions { experts: case.options.experts + 1, ..case.options.clone() };
            let other = test(Case::random_for(options, ranks, self.seed))?;
            let outcome = call_apart(&group, &test(case)?, &other, rank as usize);
            // A rank that is alone in its group has nobody to miss.
            if judged(outcome)? && ranks > 1 {
                let what = format!("rank {rank} makes a different call, and no rank reports it");
                return Err(Trouble::Found(what));
            }
            return Ok(backend.stats().steps);
        }
        let test = test(case)?;
        if self.seed % WRAPS == 3 {
            backend.start_rings_at(u32::MAX - (self.seed / WRAPS % 64) as u32);
        }
        for call in calls(reach, self.seed) {
            if !judged(call(&test))? {
                break;
            }
        }
        if struck.is_none() && self.seed % OPINIONS == 1 {
            let asked = (&problem, test.buffer().options());
            let opinion = second_opinion(&group, asked, reach, self.seed);
            let opinion = opinion.map_err(|failure| Trouble::Found(failure.sentence()))?;
            judged(Ok(opinion))?;
        }
        Ok(backend.stats().steps)
    }
}

/// What draws where a fault strikes for the `turn`th time: early in every other turn.
pub(super) fn struck_seed(seed: u64, turn: u64) -> u64 {
    seed.wrapping_add(turn * ((1 << 32) + 2))
}

/// Whether the run goes on after a call that may have had a fault. A failure of the machine is judged by
/// nobody.
fn judged(
    struck: Option<(Fault, u32)>,
    outcome: Result<Findings, CallError>,
    backend: &HostBackend,
) -> Result<bool, Trouble> {
    match outcome {
        Err(error) if is_machine(&error) => Err(Trouble::from(error)),
        outcome => judge(struck, outcome, backend).map_err(Trouble::Found),
    }
}

/// Why a schedule has no result.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The shape has no plan.
    NoPlan(String),
    /// This machine has not what it takes: no memory, no disk, no compiler. It says nothing of the
    /// kernels, and no seed replays it.
    Machine(String),
    /// Something is wrong with what ran.
    Found(String),
}

impl Trouble {
    /// Puts the shape before the report of what is wrong. Every other trouble stays as it is.
    fn about(self, shape: &str) -> Trouble {
        match self {
            Trouble::Found(report) => Trouble::Found(format!("{shape}\n{report}")),
            other => other,
        }
    }
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Trouble {
        match error {
            CallError::Plan(error) => Trouble::NoPlan(format!("no plan: {error}")),
            error if is_machine(&error) => Trouble::Machine(error.to_string()),
            error => Trouble::Found(error.to_string()),
        }
    }
}

fn is_machine(error: &CallError) -> bool {
    use BackendError::{Failed, Missing};
    matches!(error, CallError::Backend(Missing { .. } | Failed { .. }))
}

/// The first half of a dispatch on every rank, on one of them that of another problem.
fn call_apart(
    group: &Group,
    test: &Selftest,
    other: &Selftest,
    rank: usize,
) -> Result<Findings, CallError> {
    let own = |at: usize| if at == rank { other } else { test };
    let handles = group.local().map(|at| own(at).exchange_alone(at));
    let _handles = handles.collect::<Result<Vec<_>, _>>()?;
    group.local().try_for_each(|at| group.sync(at))?;
    Ok(Findings::default())
}

/// Enough calls that epochs, rings and slots go round. Every other schedule queues many of them before
/// it waits, which takes four times as long as the others.
fn calls(reach: Reach, seed: u64) -> &'static [Call] {
    match reach {
        Reach::Counts => &[Selftest::check_counts, Selftest::check_counts, Selftest::check_counts],
        Reach::Dispatch => &[Selftest::check_dispatch, Selftest::check_dispatch],
        Reach::Combine if seed.is_multiple_of(2) => &[Selftest::check_back_to_back],
        Reach::Combine => &[Selftest::check, Selftest::check_counts],
    }
}
