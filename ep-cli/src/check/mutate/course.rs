//! The problems that mutations are put to: together they come to every line of the device library.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::backend::BackendError;
use ep_runtime::buffer::{
    BufferOptions, BuiltIn, BuiltInPlain, Emit, MemoryUsage, Payload, StandardPipeline, Via,
};
use ep_runtime::error::CallError;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::Arch;
use ep_verify::Findings;
use ep_verify::options::{ring_settings, set_tune, unit_settings};
use ep_verify::oracle::RoutingOptions;
use ep_verify::selftest::{Case, Selftest};

use crate::check::fault::{Fault, judge};

/// A problem, and the calls that are made of it.
#[derive(Debug, Clone)]
pub(super) struct Course {
    pub(super) name: &'static str,
    ranks: usize,
    arch: Arch,
    plain: bool,
    options: BufferOptions,
    calls: Calls,
    sms: u32,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// A chain of calls that uses its buffers again at once, then calls that are waited for.
    Chain,
    /// Each call, waited for.
    Once,
    /// Rows for each expert apart.
    Expanded,
    /// Captured calls that take their numbers of tokens from memory.
    Replayed,
}

/// How a course is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) build: Build,
    pub(super) seed: u64,
    /// The mutation that holds; 0: none.
    pub(super) mutation: u32,
    /// A rank that is stopped, and at which step.
    pub(super) stop: Option<(u32, u64)>,
    pub(super) max_steps: u64,
    /// Runs kernels in a process of their own, which may take so long.
    pub(super) isolation: Option<Duration>,
}

/// All courses.
pub(super) fn courses() -> Vec<Course> {
    let chain = |name, via, hidden: usize, tokens: usize| {
        let options = BufferOptions::new(tokens, hidden, 3, 7);
        let options = BufferOptions { via, live: 5, biases: 1, one_launch: Some(false), ..options };
        Course {
            name,
            ranks: 3,
            arch: Arch::Sm90a,
            plain: false,
            options,
            calls: Calls::Chain,
            sms: 4,
        }
    };
    let paid = |course: Course, payload| {
        let options = BufferOptions { payload, ..course.options };
        Course { options, ..course }
    };
    let plain = |course: Course| Course { plain: true, ..course };
    let vector = |course: Course| Course { arch: Arch::Sm80, ..course };
    let (direct, ring) = (Via::Direct, Via::Ring);
    let crowd = |name, via| {
        let mut course = chain(name, via, 128, 2);
        (course.ranks, course.options.experts) = (34, 41);
        Course { calls: Calls::Once, sms: 2, ..course }
    };
    let with = |calls, course: Course| Course { calls, ..course };
    let whole = |course: Course| {
        let options = BufferOptions { one_launch: Some(true), ..course.options };
        Course { options, ..course }
    };
    let once = |name, via, hidden| with(Calls::Once, chain(name, via, hidden, 40));
    let mut all = vec![
        once("direct", direct, 128),
        once("ring", ring, 128),
        plain(paid(once("plain direct", direct, 128), Payload::Fp8)),
        plain(once("plain ring", ring, 128)),
        vector(paid(once("vector direct", direct, 1040), Payload::Fp8Packed)),
        vector(paid(once("vector ring", ring, 1040), Payload::Fp8)),
        with(Calls::Expanded, paid(chain("expanded", direct, 256, 40), Payload::Fp8)),
        with(Calls::Replayed, chain("replayed direct", direct, 128, 40)),
        with(Calls::Replayed, chain("replayed ring", ring, 128, 40)),
        chain("chained direct", direct, 1040, 160),
        paid(whole(chain("one launch", direct, 1040, 70)), Payload::Fp8),
        chain("chained ring", ring, 1040, 160),
        crowd("many ranks direct", direct),
        crowd("many ranks ring", ring),
    ];
    for course in &mut all {
        let options = &mut course.options;
        options.settings = match options.via {
            Via::Ring => ring_settings(options, 4, 16, 4),
            Via::Direct => unit_settings(options, 4, 1),
        };
        set_tune(options, "piece", 1024);
    }
    all
}

impl Course {
    fn source(&self) -> &'static dyn Emit {
        if self.plain { &BuiltInPlain } else { &BuiltIn }
    }

    /// The texts of its buffer, by the names of their kernels.
    pub(super) fn texts(&self) -> Result<Vec<(String, String)>, String> {
        let noted = Noted { source: self.source(), texts: RefCell::default() };
        let made = MemoryUsage::of(&self.options, self.ranks, self.arch, &noted);
        made.map_err(|error| format!("{}: {error}", self.name))?;
        Ok(noted.texts.into_inner())
    }

    /// Runs it. Gives the steps that it took, or says what went wrong; an error if the calls cannot be
    /// made.
    pub(super) fn run(
        &self,
        programs: &Arc<Programs>,
        way: Way,
    ) -> Result<Result<u64, String>, String> {
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        let backend = self.backend(programs, way).map_err(|error| text(&error))?;
        let group = backend.group().map_err(|error| text(&error))?;
        let mut test = match Selftest::new(&group, self.source(), self.case(way.seed)) {
            Ok(test) => test,
            // A kernel that ran before the first call.
            Err(CallError::Backend(BackendError::Kernel { report, .. })) => return Ok(Err(report)),
            Err(error) => return Err(text(&error)),
        };
        let struck = way.stop.map(|(rank, _)| (Fault::StoppedRank, rank));
        for turn in 0..2 {
            let Some(outcome) = self.call(&mut test, turn) else { break };
            match judge(struck, outcome, &backend) {
                Ok(true) => {}
                Ok(false) => break,
                // What the emulator saw says more than what the kernels recorded of it.
                Err(report) => return Ok(Err(backend.report().unwrap_or(report))),
            }
        }
        Ok(Ok(backend.stats().steps))
    }

    fn case(&self, seed: u64) -> Case {
        let (topk, experts) = (self.options.topk, self.options.experts);
        let routing = RoutingOptions { absent: 0.2, ..RoutingOptions::even(topk, experts) };
        let mut case =
            Case { routing, seed, ..Case::even(self.options.clone(), self.ranks, self.sms) };
        case.dispatch.remote_sms = Some(self.sms / 2);
        case
    }

    fn backend(
        &self,
        programs: &Arc<Programs>,
        way: Way,
    ) -> Result<Arc<HostBackend>, BackendError> {
        let (build, isolation, arch) = (way.build, way.isolation, self.arch);
        let mut host = HostOptions { build, isolation, arch, ..HostOptions::new(self.ranks) };
        host.spec.seed = way.seed;
        host.spec.max_steps = way.max_steps;
        host.spec.mutation = way.mutation;
        if let Some(place) = way.stop {
            host.spec.faults = Fault::StoppedRank.faults(self.ranks as u32, place);
        }
        HostBackend::new(programs, host)
    }

    /// One of its calls; none after the last.
    fn call(&self, test: &mut Selftest, turn: usize) -> Option<Result<Findings, CallError>> {
        match (self.calls, turn) {
            (Calls::Chain, 0) => Some(test.check_back_to_back()),
            (Calls::Chain, _) | (Calls::Once, 0) => Some(test.check()),
            (Calls::Expanded, 0) => Some(test.check_expanded(16, 0)),
            (Calls::Replayed, 0) => Some(test.check_replayed(3)),
            _ => None,
        }
    }

    /// Whether the checker would take minutes for it.
    pub(super) fn is_large(&self) -> bool {
        self.ranks > 32
    }

    /// How many ranks it has.
    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }
}

/// Emits as `source` does, and keeps the texts.
struct Noted {
    source: &'static dyn Emit,
    texts: RefCell<Vec<(String, String)>>,
}

impl Emit for Noted {
    fn emit(
        &self,
        pipeline: StandardPipeline,
        arch: Arch,
        settings: &[(String, String)],
    ) -> Result<Emitted, CallError> {
        let emitted = self.source.emit(pipeline, arch, settings)?;
        self.texts.borrow_mut().push((emitted.plan.entry.clone(), emitted.cuda.clone()));
        Ok(emitted)
    }
}
