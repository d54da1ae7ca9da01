//! One schedule of one variant: a world of its own, and every call in it held against the oracle.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::backend::BackendError;
use ep_runtime::buffer::{BufferOptions, Emit};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_verify::Findings;
use ep_verify::selftest::{Case, Selftest};

use super::fault::{Fault, judge};
use super::shape;
use crate::failure::Failure;
use crate::problem::{Reach, emit};

/// Longest run between two waits of the host.
const LIMIT: Duration = Duration::from_secs(300);

/// How many shapes are drawn before one of them has a plan.
const DRAWS: u64 = 64;

/// What is checked.
#[derive(Debug, Clone)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) reach: Reach,
    pub(super) options: BufferOptions,
}

impl Variant {
    /// Plans its kernels, so that a value that no plan takes is told before anything runs.
    pub(super) fn plan(&self, ranks: usize) -> Result<(), Failure> {
        emit(&self.options, self.reach.pipelines(), ranks, Arch::Sm90a)?;
        Ok(())
    }
}

/// One schedule.
#[derive(Clone, Copy)]
pub(super) struct Trial {
    pub(super) ranks: usize,
    /// Where the kernels come from.
    pub(super) source: &'static dyn Emit,
    pub(super) build: Build,
    pub(super) fault: Option<Fault>,
    pub(super) other_shapes: bool,
    pub(super) seed: u64,
}

/// A call of a run, as it is checked.
type Call = fn(&Selftest) -> Result<Findings, CallError>;

impl Trial {
    /// Runs it; gives the steps of the scheduler, or what is wrong.
    pub(super) fn run(&self, variant: &Variant, programs: &Arc<Programs>) -> Result<u64, Trouble> {
        if !self.other_shapes {
            return self.run_shape(variant, &variant.options, self.ranks, programs);
        }
        let mut refused = Trouble::Found(String::new());
        for draw in 0..DRAWS {
            let (options, ranks) = shape::drawn(&variant.options, self.ranks, self.seed, draw);
            match self.run_shape(variant, &options, ranks, programs) {
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

    fn run_shape(
        &self,
        variant: &Variant,
        options: &BufferOptions,
        ranks: usize,
        programs: &Arc<Programs>,
    ) -> Result<u64, Trouble> {
        let Some(fault) = self.fault else {
            return self.run_struck(variant, options, ranks, programs, None);
        };
        // A fault that strikes at a step strikes at any of those that the run takes without it.
        let steps = match fault.is_timed() {
            true => self.run_struck(variant, options, ranks, programs, None)?,
            false => 0,
        };
        let place = fault.drawn(ranks, self.seed, steps);
        self.run_struck(variant, options, ranks, programs, Some((fault, place)))
    }

    /// Runs a shape with a fault at a place: on a rank, at a step.
    fn run_struck(
        &self,
        variant: &Variant,
        options: &BufferOptions,
        ranks: usize,
        programs: &Arc<Programs>,
        struck: Option<(Fault, (u32, u64))>,
    ) -> Result<u64, Trouble> {
        let mut host = HostOptions::new(ranks);
        host.build = self.build;
        host.isolation = Some(LIMIT);
        host.spec.seed = self.seed;
        if let Some((fault, place)) = struck {
            host.spec.faults = fault.faults(host.spec.ranks, place);
        }
        let backend = HostBackend::new(programs, host).map_err(CallError::from)?;
        let group = backend.group()?;
        // Five handles: ranks may be calls apart.
        let options = BufferOptions { live: 5, ..options.clone() };
        let mut case = Case::random_for(options, ranks, self.seed);
        shape::fill(&mut case);
        if let Some((fault, (rank, _))) = struck {
            fault.alter(&mut case, rank);
        }
        let struck = struck.map(|(fault, (rank, _))| (fault, rank));
        let test = |case: Case| Selftest::new(&group, self.source, case);
        // A failure of the machine is judged by nobody.
        let judged = |outcome: Result<Findings, CallError>| match outcome {
            Err(error) if is_machine(&error) => Err(Trouble::from(error)),
            outcome => judge(struck, outcome, &backend).map_err(Trouble::Found),
        };
        if let Some((Fault::OtherShape, rank)) = struck {
            let options =
                BufferOptions { experts: case.options.experts + 1, ..case.options.clone() };
            let other = test(Case::random_for(options, ranks, self.seed))?;
            let outcome = call_apart(&group, &test(case)?, &other, rank as usize);
            // A rank that is alone in its group has nobody to miss.
            if judged(outcome)? && ranks > 1 {
                let what = format!("rank {rank} makes another call, and nobody says so");
                return Err(Trouble::Found(what));
            }
            return Ok(backend.stats().steps);
        }
        let test = test(case)?;
        for call in calls(variant.reach, self.seed) {
            if !judged(call(&test))? {
                break;
            }
        }
        Ok(backend.stats().steps)
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
