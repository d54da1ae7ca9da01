//! The problems that mutations run on: together they reach every line of the device library.

mod own;
mod standard;

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::AnyPipeline;
use ep_runtime::backend::BackendError;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::ir::network::carriers;
use ep_runtime::ir::{Axis, Dim, DimKind, Transport};
use ep_runtime::jit::Arch;
use ep_runtime::meaning::Wrong;
use ep_runtime::net::{ModelNetwork, ModelOptions};
use ep_runtime::pipelines::ALL;
use ep_runtime::plan::Plan;
use ep_verify::Findings;
use ep_verify::declared::Declared;
use ep_verify::functions::{FunctionSet, functions};
use ep_verify::selftest::Selftest;

use crate::check::fault::{Fault, judge};
use crate::declared::{Calls, ROUNDS, Subject};
use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::problem::Problem;
use own::{OWN, Own};
use standard::Standard;

/// Ranks of a pipeline that is compared only with its declaration, and the most rows of a size.
const RANKS: u32 = 4;
const ROWS: usize = 24;

/// How the kernels of a pipeline are made: a word for it, which kernels, and for what.
const KINDS: [(&str, Kernels, Arch); 3] = [
    ("", Kernels::Chosen, Arch::Sm90a),
    ("plain ", Kernels::Plain, Arch::Sm90a),
    ("vector ", Kernels::Chosen, Arch::Sm80),
];

/// A problem, and the calls that are made of it.
pub(in crate::check) struct Course {
    pub(in crate::check) name: String,
    what: What,
    /// Whether what it comes to is looked at by the sanitizers as well.
    is_sanitized: bool,
}

/// The reference for the results of calls.
enum What {
    /// The oracle of the standard pipelines.
    Standard(Box<Standard>),
    /// The declaration.
    Declared(Box<Drawn>),
    /// Plain answers.
    Functions(FunctionSet),
}

/// Calls of one pipeline.
struct Drawn {
    subject: Subject,
    calls: Calls,
    ranks: usize,
    /// How often each call is made.
    rounds: usize,
    /// Blocks beyond the fewest that run every role.
    more_blocks: u32,
    /// Whether a rank says that its outputs hold less than comes to it.
    short: bool,
    arch: Arch,
}

/// How a course is run.
#[derive(Debug, Clone, Copy)]
pub(in crate::check) struct Way {
    pub(in crate::check) build: Build,
    pub(in crate::check) seed: u64,
    /// The mutation that holds; 0: none.
    pub(in crate::check) mutation: u32,
    /// What goes wrong, on which rank and at which step.
    pub(in crate::check) struck: Option<(Fault, (u32, u64))>,
    pub(in crate::check) max_steps: u64,
    /// Runs kernels in a process of their own, which may take so long.
    pub(in crate::check) isolation: Option<Duration>,
}

/// All courses.
pub(in crate::check) fn courses(programs: &Programs) -> Result<Vec<Course>, Failure> {
    let plain = |name: String, what: What| Course { name, what, is_sanitized: false };
    let of = |which: FunctionSet| format!("functions, {}", which.name());
    let mut all: Vec<Course> =
        FunctionSet::ALL.map(|which| plain(of(which), What::Functions(which))).into();
    all.extend(FunctionSet::ALL.map(|which| {
        let name = format!("sanitized {}", of(which));
        Course { is_sanitized: true, ..plain(name, What::Functions(which)) }
    }));
    let standard = standard::all().into_iter();
    all.extend(standard.map(|(name, it)| plain(name.to_owned(), What::Standard(Box::new(it)))));
    for entry in &ALL {
        let axes = entry.ir().axes;
        let most_arms = axes.iter().map(|axis| axis.arms.len()).max().unwrap_or_default();
        for turn in 0..most_arms.max(KINDS.len()) {
            let (word, kernels, arch) = KINDS[turn % KINDS.len()];
            // Each arm in one of them at least.
            let arm = |axis: &Axis| {
                let arm = &axis.arms[turn % axis.arms.len()];
                (axis.name.clone(), arm.name.clone())
            };
            let set: Vec<(String, String)> = axes.iter().map(arm).collect();
            let arms: String = set.iter().map(|(_, arm)| format!(" {arm}")).collect();
            let name = format!("{word}{}{arms}", entry.name);
            let made = |name, nodes| {
                Course::declared(entry, (name, set.clone(), nodes), (kernels, arch), programs)
            };
            all.push(made(name.clone(), None)?);
            if spans_nodes(entry) {
                all.push(made(format!("{name} between nodes"), Some(2))?);
            }
        }
        if carriers(&entry.ir()).is_some_and(|all| all.contains(&Transport::Ibgda)) {
            let set = vec![("network".to_owned(), "ibgda".to_owned())];
            let name = format!("{} through cards", entry.name);
            all.push(Course::declared(
                entry,
                (name, set, None),
                (Kernels::Chosen, Arch::Sm90a),
                programs,
            )?);
        }
        for own in OWN.iter().filter(|own| own.pipeline == entry.name) {
            all.push(Course::own(entry, own, programs)?);
        }
        let name = format!("{} without a rank", entry.name);
        let mut course = Course::declared(
            entry,
            (name, Vec::new(), None),
            (Kernels::Chosen, Arch::Sm90a),
            programs,
        )?;
        if let What::Declared(drawn) = &mut course.what
            && drawn.calls.leave_out(1)
        {
            all.push(course);
        }
    }
    Ok(all)
}

/// Whether a pipeline may run within a node, and between some as well.
fn spans_nodes(entry: &AnyPipeline) -> bool {
    let is_one =
        |dim: &Dim| dim.name == "nodes" && matches!(dim.kind, DimKind::Given { low: 1, .. });
    entry.ir().dims.iter().any(is_one)
}

impl Course {
    /// Calls of a pipeline with some numbers and arms, on so many nodes if it knows of any, made in one way.
    fn declared(
        entry: &AnyPipeline,
        (name, set, nodes): (String, Vec<(String, String)>, Option<u32>),
        (kernels, arch): (Kernels, Arch),
        programs: &Programs,
    ) -> Result<Course, Failure> {
        let problem = Problem { ranks: Some(RANKS), nodes, tokens: Some(ROWS), set, kernels };
        Ok(Course::of_drawn(name, Drawn::new(entry, &problem, arch, programs)?))
    }

    /// Calls of a pipeline with a problem of its own.
    fn own(entry: &AnyPipeline, own: &Own, programs: &Programs) -> Result<Course, Failure> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let set = own.set.iter().copied().flatten().map(owned).collect();
        let Own { ranks, nodes, rows, rounds, kernels, more_blocks, short, far_apart, .. } = *own;
        let problem = Problem { ranks: Some(ranks), nodes, tokens: Some(rows), set, kernels };
        let mut drawn = Drawn::new(entry, &problem, Arch::Sm90a, programs)?;
        if far_apart {
            drawn.calls.spread_floats();
        }
        let name = format!("{}, {}", entry.name, own.name);
        Ok(Course::of_drawn(name, Drawn { rounds, more_blocks, short, ..drawn }))
    }

    fn of_drawn(name: String, drawn: Drawn) -> Course {
        Course { name, what: What::Declared(Box::new(drawn)), is_sanitized: false }
    }

    /// The texts of its kernels, by their names.
    pub(super) fn texts(&self) -> Result<Vec<(String, String)>, String> {
        match &self.what {
            What::Standard(standard) => {
                standard.texts().map_err(|error| format!("{}: {error}", self.name))
            }
            What::Declared(drawn) => {
                let emitted = &drawn.calls.emitted;
                Ok(vec![(emitted.plan.entry.clone(), emitted.cuda.clone())])
            }
            What::Functions(which) => {
                let (text, entry) = which.text();
                Ok(vec![(entry.to_owned(), text.to_owned())])
            }
        }
    }

    /// Whether its text is that of a pipeline, whose mutations count.
    pub(super) fn is_of_pipeline(&self) -> bool {
        !matches!(self.what, What::Functions(_))
    }

    /// Runs it. Gives the steps that it took, or says what went wrong; an error if the calls cannot be
    /// made.
    pub(in crate::check) fn run(
        &self,
        programs: &Arc<Programs>,
        way: Way,
    ) -> Result<Result<u64, String>, String> {
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        let backend = self.backend(programs, way).map_err(|error| text(&error))?;
        let group = backend.group().map_err(|error| text(&error))?;
        let struck = way.struck.map(|(fault, (rank, _))| (fault, rank));
        let judge = |outcome| {
            // What the emulator saw says more than what the kernels recorded of it.
            judge(struck, outcome, &backend).map_err(|report| backend.report().unwrap_or(report))
        };
        let judged = match &self.what {
            What::Standard(standard) => {
                let mut test =
                    match Selftest::new(&group, standard.source(), standard.case(way.seed)) {
                        Ok(test) => test,
                        // A kernel that ran before the first call.
                        Err(CallError::Backend(BackendError::Kernel { report, .. })) => {
                            return Ok(Err(report));
                        }
                        Err(error) => return Err(text(&error)),
                    };
                // They wrap on the way.
                backend.start_rings_at(u32::MAX - 8);
                let outcomes = standard.calls().iter().map(|call| call(&mut test));
                let judged = outcomes.map(judge).find(|judged| !matches!(judged, Ok(true)));
                judged.unwrap_or(Ok(true))
            }
            What::Declared(drawn) => {
                judge(drawn.check(&backend, &group).map_err(|error| text(&error))?)
            }
            What::Functions(which) => {
                let plan = which.plan(self.arch());
                judge(over_network(&backend, &plan, |net| functions(&group, *which, net)))
            }
        };
        Ok(judged.map(|_| backend.stats().steps))
    }

    fn backend(
        &self,
        programs: &Arc<Programs>,
        way: Way,
    ) -> Result<Arc<HostBackend>, BackendError> {
        let (build, isolation, arch) = (way.build, way.isolation, self.arch());
        let mut host = HostOptions { build, isolation, arch, ..HostOptions::new(self.ranks()) };
        host.spec.seed = way.seed;
        host.spec.max_steps = way.max_steps;
        host.spec.mutation = way.mutation;
        if let Some((fault, place)) = way.struck {
            host.spec.faults = fault.faults(host.spec.ranks, place);
        }
        HostBackend::new(programs, host)
    }

    fn arch(&self) -> Arch {
        match &self.what {
            What::Standard(standard) => standard.arch,
            What::Declared(drawn) => drawn.arch,
            What::Functions(_) => Arch::Sm90a,
        }
    }

    /// How it is compiled where the checker looks on.
    pub(in crate::check) fn build(&self) -> Build {
        match (self.is_sanitized, self.is_large()) {
            (true, _) => Build::Sanitized,
            (_, true) => Build::Plain,
            _ => Build::Checked,
        }
    }

    /// Whether a rank that stops or dies is part of it.
    pub(in crate::check) fn has_faults(&self) -> bool {
        let is_short = matches!(&self.what, What::Declared(drawn) if drawn.short);
        self.is_of_pipeline() && !self.is_large() && !is_short
    }

    /// Whether it takes longer than all the rest, and the checker minutes.
    pub(super) fn is_large(&self) -> bool {
        self.ranks() > 32
    }

    /// Whether it takes as long as several others.
    pub(super) fn is_long(&self) -> bool {
        self.is_large() || matches!(&self.what, What::Standard(it) if it.is_chained())
    }

    /// How many ranks it has.
    pub(in crate::check) fn ranks(&self) -> usize {
        match &self.what {
            What::Standard(standard) => standard.ranks,
            What::Declared(drawn) => drawn.ranks,
            What::Functions(which) => which.ranks(),
        }
    }
}

impl Drawn {
    fn new(
        entry: &AnyPipeline,
        problem: &Problem,
        arch: Arch,
        programs: &Programs,
    ) -> Result<Drawn, Failure> {
        let subject = Subject::new(entry, programs)?;
        let calls = subject.calls(problem, arch, 1, 1)?;
        let ranks = subject.ranks(problem)?;
        let (rounds, more_blocks, short) = (ROUNDS, 1, false);
        Ok(Drawn { subject, calls, ranks, rounds, more_blocks, short, arch })
    }

    /// Makes its calls and compares them with the declaration; an error if the declaration itself is wrong.
    fn check(
        &self,
        backend: &Arc<HostBackend>,
        group: &Group,
    ) -> Result<Result<Findings, CallError>, Wrong> {
        let Calls { emitted, drawn } = &self.calls;
        let declared = Declared::new(emitted, drawn, self.rounds, &self.subject.functions())?;
        let blocks = self.calls.blocks_min() + self.more_blocks;
        Ok(over_network(backend, &emitted.plan, |net| match self.short {
            true => declared.check_short(group, blocks, net),
            false => declared.check_over(group, blocks, net),
        }))
    }
}

/// What a check gives of a kernel that finds the network which its plan takes at these addresses.
fn over_network(
    backend: &Arc<HostBackend>,
    plan: &Plan,
    check: impl FnOnce(&[u64]) -> Result<Findings, CallError>,
) -> Result<Findings, CallError> {
    let network = ModelNetwork::of_plan(backend, plan, &ModelOptions::default());
    let network = network.map_err(CallError::Network)?;
    check(&network.as_ref().map(ModelNetwork::addresses).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use ep_runtime::Emitted;
    use ep_runtime::ir::Arm;

    use super::*;

    #[test]
    fn tight_courses_send_more_than_a_ring_holds_at_length() {
        let Ok(programs) = Programs::find() else { return };
        let courses = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        let tight = |course: &&Course| course.name.ends_with(", tight");
        let tight: Vec<&Course> = courses.iter().filter(tight).collect();
        assert_eq!(tight.len(), 2);
        for course in tight {
            let What::Declared(drawn) = &course.what else { panic!("{}", course.name) };
            let plan = &drawn.calls.emitted.plan;
            assert_eq!((plan.numbers["rdma_depth"], plan.numbers["nvl_depth"]), (32, 32));
            let rows = drawn.calls.drawn.iter().flat_map(|call| &call.ranks);
            let most = rows.filter_map(|rank| rank.sizes.get("tokens")).max().copied();
            assert!(most > Some(4 * 32), "{}: {most:?} tokens", course.name);
        }
        for name in OWN.iter().map(|own| format!("{}, {}", own.pipeline, own.name)) {
            assert!(courses.iter().any(|course| course.name == name), "{name}");
        }
    }

    #[test]
    fn each_arm_has_a_course_at_length() {
        let Ok(programs) = Programs::find() else { return };
        let courses = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        let plans: Vec<&Emitted> = courses
            .iter()
            .filter_map(|course| match &course.what {
                What::Declared(drawn) => Some(&drawn.calls.emitted),
                What::Standard(_) | What::Functions(_) => None,
            })
            .collect();
        let leaves_out = |course: &Course| match &course.what {
            What::Declared(drawn) => drawn.calls.drawn[0].ranks.iter().any(|rank| !rank.alive),
            What::Standard(_) | What::Functions(_) => false,
        };
        let without: Vec<&Course> = courses.iter().filter(|course| leaves_out(course)).collect();
        assert!(without.iter().any(|it| it.name == "low-latency-combine without a rank"));
        assert!(without.iter().all(|it| it.name.ends_with(" without a rank")));
        for entry in &ALL {
            let ir = entry.ir();
            let arms = |axis: &Axis| {
                let arm = |arm: &Arm| (axis.name.clone(), arm.name.clone());
                axis.arms.iter().map(arm).collect::<Vec<_>>()
            };
            for arm in ir.axes.iter().flat_map(arms) {
                let is_run =
                    |it: &&Emitted| it.plan.pipeline == ir.name && it.plan.arms.contains(&arm);
                assert!(plans.iter().any(is_run), "{} {arm:?}", ir.name);
            }
        }
    }
}
