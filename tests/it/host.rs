//! The emitted text on the host, under seeded schedules: every byte against the oracle.
//!
//! What a shape is compiled for is fixed; tokens, routing, blocks and the schedule follow from the
//! seed, so that one compilation serves many runs.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ep_codegen::schedule::{RoleRule, RuleSet};
use ep_runtime::Emitted;
use ep_runtime::backend::Backend;
use ep_runtime::buffer::{
    BufferOptions, BuiltIn, BuiltInBy, CallOptions, Emit, Payload, StandardPipeline, Via,
};
use ep_runtime::error::CallError;
use ep_runtime::host::mutant::{DEVICE_LIBRARY, Mutant};
use ep_runtime::host::{Build, FailureKind, Faults, HostBackend, HostOptions, Programs, Rule};
use ep_runtime::ir::{POLICIES, Waiver};
use ep_runtime::jit::Arch;
use ep_runtime::plan::Config;
use ep_verify::Findings;
use ep_verify::options::{ring_tunes, unit_tunes};
use ep_verify::oracle::RoutingOptions;
use ep_verify::probe::probe;
use ep_verify::selftest::{Case, Selftest};

use crate::usual;

/// The C++ compiler; none on a machine without one.
pub(crate) fn programs() -> Option<&'static Arc<Programs>> {
    static PROGRAMS: LazyLock<Option<Arc<Programs>>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host");
        match Programs::find_with(&folder) {
            Ok(programs) => Some(programs),
            Err(error) => {
                // Past the capture of the harness, which hides what passing tests print.
                let _ = writeln!(std::io::stderr(), "skipped: {error}");
                None
            }
        }
    });
    PROGRAMS.as_ref()
}

/// What kernels are compiled for.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    arch: Arch,
    pub(crate) options: BufferOptions,
}

impl Shape {
    pub(crate) fn new(ranks: usize, via: Via, hidden: usize, topk: usize, experts: usize) -> Shape {
        let options = BufferOptions::new(12, hidden, topk, experts);
        let options =
            BufferOptions { via, one_launch: Some(false), push_combine: Some(false), ..options };
        Shape { ranks, arch: Arch::Sm90a, options }
    }

    pub(crate) fn payload(mut self, payload: Payload) -> Shape {
        self.options.payload = payload;
        self
    }

    fn biases(mut self, biases: usize) -> Shape {
        self.options.biases = biases;
        self
    }

    /// The path without TMA.
    pub(crate) fn vector(mut self) -> Shape {
        self.arch = Arch::Sm80;
        self
    }

    fn rings(mut self, stripes: i64, depth: i64, chunk: i64) -> Shape {
        self.options.tunes = ring_tunes(&self.options, stripes, depth, chunk);
        self
    }

    fn units(mut self, stripes: i64, kib: i64) -> Shape {
        self.options.tunes = unit_tunes(&self.options, stripes, kib);
        self
    }

    pub(crate) fn case(&self, seed: u64) -> Case {
        Case::random_for(self.options.clone(), self.ranks, seed)
    }

    fn host(&self, programs: &Arc<Programs>, options: HostOptions) -> Arc<HostBackend> {
        let arch = self.arch;
        // A process of its own: what crashes is reported, and tests use both cores.
        let isolation = Some(Duration::from_secs(120));
        let options = HostOptions { arch, isolation, ..options };
        HostBackend::new(programs, options).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Runs the body on a group for one seed.
pub(crate) fn on_host<T>(
    shape: &Shape,
    case: Case,
    options: HostOptions,
    body: impl FnOnce(&Selftest, &HostBackend) -> T,
) -> Option<T> {
    on_host_with(&BuiltIn, shape, case, options, body)
}

/// Runs the body on a group for one seed, with the kernel texts that `emit` gives.
pub(crate) fn on_host_with<T>(
    emit: &dyn Emit,
    shape: &Shape,
    case: Case,
    mut options: HostOptions,
    body: impl FnOnce(&Selftest, &HostBackend) -> T,
) -> Option<T> {
    let backend = shape.host(programs()?, {
        options.spec.seed = case.seed;
        options
    });
    let group = backend.group().unwrap_or_else(|error| panic!("{error}"));
    let test = Selftest::new(&group, emit, case).unwrap_or_else(|error| panic!("{error}"));
    Some(body(&test, &backend))
}

pub(crate) fn good(seed: u64, outcome: Result<Findings, CallError>) {
    match outcome {
        Ok(findings) => assert!(findings.is_good(), "seed {seed}: {findings}"),
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Calls in a row, then calls with everyone waiting in between, all of it in one world, so that epochs,
/// rings and slots go round.
pub(crate) fn check(shape: &Shape, build: Build, seeds: std::ops::Range<u64>) {
    for seed in usual::some(seeds, 6) {
        let mut case = shape.case(seed);
        case.options.live = 5;
        let options = HostOptions { build, ..HostOptions::new(shape.ranks) };
        on_host(shape, case, options, |test, _| {
            good(seed, test.check_back_to_back());
            good(seed, test.check());
        });
    }
}

/// Every stripe is sent by several warps.
fn direct() -> Shape {
    Shape::new(4, Via::Direct, 128, 4, 10).units(4, 1)
}

fn ring() -> Shape {
    Shape::new(4, Via::Ring, 128, 4, 10).rings(4, 16, 8)
}

#[test]
fn direct_and_pull_are_right_under_every_schedule() {
    check(&direct(), Build::Plain, 0..12);
}

#[test]
fn rings_are_right_under_every_schedule() {
    check(&ring(), Build::Plain, 0..12);
}

/// A stripe is one unit, as when there are few tokens; or it is so long that a warp looks at more tokens
/// than it has lanes to know where its own go.
#[test]
fn stripes_of_any_length_are_right_at_length() {
    check(&Shape::new(4, Via::Direct, 128, 4, 10), Build::Plain, 0..4);
    let mut long = Shape::new(2, Via::Direct, 64, 1, 2).units(4, 1);
    long.options.tokens = 400;
    check(&long, Build::Plain, 0..3);
    check(&long.vector(), Build::Plain, 0..2);
}

/// A call finds its words as it needs them, however many blocks the call before it had.
#[test]
fn calls_of_one_buffer_may_have_any_number_of_blocks() {
    let mut shape = Shape::new(2, Via::Direct, 128, 1, 2).units(4, 1);
    shape.options.tokens = 60;
    let composed = BuiltInBy(RuleSet::Without(RoleRule::OneLaunch));
    let texts: [&dyn Emit; 4] = [&BuiltIn, &BuiltIn, &BuiltIn, &composed];
    for (seed, texts) in (0..).zip(texts) {
        let case = Case { tokens: vec![60, 60], ..shape.case(seed) };
        let mut options = HostOptions::new(2);
        options.spec.seed = seed;
        let Some(programs) = programs() else { return };
        let group = shape.host(programs, options).group().unwrap_or_else(|error| panic!("{error}"));
        let test = Selftest::new(&group, texts, case);
        let mut test = test.unwrap_or_else(|error| panic!("{error}"));
        for blocks in [3, 2, 3, 1, 4] {
            test.set_calls(CallOptions::sms(blocks), CallOptions::sms(2));
            good(seed, test.check());
        }
    }
}

/// Counts are exchanged by a grid of any size; rows move where all blocks run side by side.
#[test]
fn counts_need_no_room_for_all_blocks_at_once() {
    let shape = direct();
    let blocks = CallOptions::sms(7);
    let case = Case { dispatch: blocks, combine: blocks, ..shape.case(3) };
    let mut options = HostOptions::new(shape.ranks);
    options.spec.max_resident_blocks = 3;
    on_host(&shape, case, options, |test, _| {
        good(3, test.check_counts());
        let refused = test.check().expect_err("the rows do not move").to_string();
        assert!(refused.contains("7 blocks"), "{refused}");
    });
}

/// More rows than slots, a chunk as long as can be, and credit for each row alone.
#[test]
fn rings_of_every_depth_go_round_at_length() {
    for (depth, chunk) in [(16, 8), (32, 1)] {
        let mut shape = Shape::new(2, Via::Ring, 64, 1, 2).rings(4, depth, chunk);
        shape.options.tokens = 200;
        check(&shape, Build::Plain, 0..3);
    }
}

#[test]
fn fp8_rows_keep_their_scales() {
    let fp8 = |via| Shape::new(3, via, 256, 2, 7).payload(Payload::Fp8);
    check(&fp8(Via::Direct), Build::Plain, 0..6);
    check(&fp8(Via::Ring).rings(4, 16, 4), Build::Plain, 0..6);
}

/// The last scale block of 2880 values is short.
#[test]
fn packed_rows_of_2880_values_keep_their_scales_at_length() {
    let packed = |via| Shape::new(2, via, 2880, 8, 32).payload(Payload::Fp8Packed);
    check(&packed(Via::Direct).biases(2), Build::Plain, 0..4);
    check(&packed(Via::Ring).biases(1).rings(6, 32, 16), Build::Plain, 0..4);
}

#[test]
fn the_path_without_tma_is_right() {
    check(&Shape::new(2, Via::Direct, 256, 32, 64).vector(), Build::Plain, 0..5);
    check(&Shape::new(3, Via::Ring, 2880, 32, 40).rings(4, 16, 2).vector(), Build::Plain, 0..3);
}

#[test]
fn one_rank_sends_to_itself_at_length() {
    for via in [Via::Direct, Via::Ring] {
        let mut shape = Shape::new(1, via, 128, 1, 3);
        shape.options.weights = false;
        check(&shape, Build::Plain, 0..5);
    }
}

/// Every access is ordered with every other one that it must be ordered with.
#[test]
fn an_emulator_of_too_many_ranks_is_refused() {
    let Some(programs) = programs() else { return };
    let refused = HostBackend::new(programs, HostOptions::new(1 << 31)).err();
    let said = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(
        said.contains("2147483648 ranks are too many: the emulator runs at most 1024"),
        "{said}"
    );
}

#[test]
fn no_access_races_with_another() {
    check(&direct(), Build::Checked, 0..2);
    check(&ring(), Build::Checked, 0..2);
    check(&ring().vector(), Build::Checked, 0..1);
}

/// An output that holds what arrives, and one that does not: every rank says so, no row moves, and
/// the next call of the same group goes well.
#[test]
fn a_small_output_is_refused_by_every_rank() {
    let mut case = direct().case(1);
    case.tokens = vec![12, 9, 12, 12];
    case.routing = RoutingOptions { absent: 0.4, ..RoutingOptions::even(4, 10) };
    for (capacity, fits) in [(44, true), (8, false)] {
        case.options.capacity = Some(capacity);
        on_host(&direct(), case.clone(), HostOptions::new(4), |test, _| match test.check() {
            Err(CallError::OutputTooSmall { rank, need, have }) => {
                assert!(!fits, "rank {rank} needs {need}");
                assert!(need > have && have == 8);
                good(1, test.check_counts());
            }
            outcome => {
                assert!(fits);
                good(1, outcome);
            }
        });
    }
}

/// Slow ranks and late copies change nothing but the order.
#[test]
fn slow_parts_change_no_result() {
    let slow = Faults { slow_ranks: vec![1], ..Faults::default() };
    let ahead = Faults { slow_ranks: vec![0, 2, 3], ..Faults::default() };
    let late = Faults { late_bulk: Some(0), ..Faults::default() };
    for faults in [slow, ahead, late] {
        for shape in [direct(), ring()] {
            let mut options = HostOptions::new(4);
            options.spec.faults = faults.clone();
            on_host(&shape, shape.case(5), options, |test, _| good(5, test.check()));
        }
    }
}

/// A rank that stops early in a call: the others drain and leave their kernels, and the error says
/// whom they waited for.
#[test]
fn a_dead_rank_is_named_by_the_ranks_that_wait_for_it() {
    for shape in [direct(), ring()] {
        let mut case = shape.case(3);
        case.tokens = vec![12; 4];
        for (dead, step) in [(0, 100), (2, 2000)] {
            let mut options = HostOptions::new(4);
            options.spec.faults.dead_rank = Some((dead, step));
            on_host(&shape, case.clone(), options, |test, backend| {
                let error = test.check().expect_err("a rank is dead");
                let CallError::Timeout(timeouts) = &error else { panic!("{error}") };
                let waits_on_dead = |edge: &(usize, usize)| edge.1 == dead as usize;
                assert!(timeouts.edges().iter().any(waits_on_dead), "{error}");
                let failure = backend.failure().expect("the run failed");
                assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
                assert!(failure.drained, "{failure}");
                // The group is stopped for good, and says why each time.
                assert_eq!(test.check().expect_err("it is stopped"), error);
            });
        }
    }
}

/// What a look at a machine does works here too: words travel, and a silent rank is named.
#[test]
fn the_probe_finds_all_well() {
    let Some(programs) = programs() else { return };
    let backend = direct().host(programs, HostOptions::new(4));
    let backend: Arc<dyn Backend> = backend;
    good(0, probe(&backend));
}

/// One seed always gives one schedule.
#[test]
fn a_seed_replays_a_run() {
    let schedule = |seed| {
        let case = Case { seed, ..ring().case(7) };
        on_host(&ring(), case, HostOptions::new(4), |test, backend| {
            good(seed, test.check());
            backend.stats()
        })
    };
    assert_eq!(schedule(7), schedule(7));
    if programs().is_some() {
        assert_ne!(schedule(7).map(|it| it.schedule), schedule(8).map(|it| it.schedule));
    }
}

/// The standard pipelines, with a policy waived for the ring of the dispatch.
struct Waiving;

impl Emit for Waiving {
    fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
        let mut emitted = BuiltIn.emit(pipeline, config)?;
        let dispatches = [StandardPipeline::NvlDispatch, StandardPipeline::NvlDispatchCached];
        if dispatches.contains(&pipeline) {
            let (policy, reason) = ("credit_fence".to_string(), "a test".to_string());
            emitted.plan.waivers.push(("ring".to_string(), Waiver { policy, reason }));
        }
        Ok(emitted)
    }
}

/// Without its fence a dispatch breaks a policy, unless its declaration waives it for the channel.
#[test]
fn a_waived_policy_is_not_checked() {
    let Some(programs) = programs() else { return };
    let unfenced = "\
== ring: no proxy fence between a credit and the bulk store
in nvl_dispatch.cu
- mover.fence_global();
-                     mover.row(ep::at_lane_of(peer, slot), &args.x[token * args.x_stride]);
+ mover.row(ep::at_lane_of(peer, slot), &args.x[token * args.x_stride]);
";
    let mutants = Mutant::parse(unfenced).unwrap_or_else(|error| panic!("{error}"));
    let planted = programs.planted(&mutants[0]);
    let mut shape = Shape::new(2, Via::Ring, 64, 1, 2).rings(4, 16, 4);
    shape.options.tokens = 160;
    let mut case = shape.case(1);
    case.tokens = vec![160; 2];
    let outcome = |emit: &dyn Emit| {
        let options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
        let backend = shape.host(&planted, options);
        let group = backend.group().unwrap_or_else(|error| panic!("{error}"));
        let test = Selftest::new(&group, emit, case.clone());
        test.unwrap_or_else(|error| panic!("{error}")).check_dispatch()
    };
    let error = outcome(&BuiltIn).expect_err("a fence is missing").to_string();
    assert!(error.contains("[credit_fence]"), "{error}");
    good(1, outcome(&Waiving));
    let known = |policy: &&str| Rule::named(policy).is_some_and(Rule::is_policy);
    assert!(POLICIES.iter().all(known), "the checker knows every policy");
}

/// A report of two accesses names the lines of the library and the statements of both.
#[test]
fn a_report_names_both_statements() {
    let Some(programs) = programs() else { return };
    let mutants = Mutant::parse(DEVICE_LIBRARY).unwrap_or_else(|error| panic!("{error}"));
    let expected: [(&str, Via, [&str; 4]); 2] = [
        (
            "ring: rows and credits are told without a release",
            Via::Ring,
            ["mover.cuh", "[+55  store recv_x", "(nvl_dispatch::send)", "[bulk_wait]"],
        ),
        (
            "mover: a flush waits for reads only",
            Via::Direct,
            ["mover.cuh", "[+93  record recv_src", "(nvl_dispatch::send)", "[full_wait]"],
        ),
    ];
    for (name, via, parts) in expected {
        let bug = mutants.iter().find(|mutant| mutant.name == name).expect("the bug is listed");
        let mut shape = Shape::new(2, via, 128, 2, 4);
        shape.options.tokens = 60;
        let options = HostOptions { build: Build::Checked, ..HostOptions::new(2) };
        let backend = shape.host(&programs.planted(bug), options);
        let group = backend.group().unwrap_or_else(|error| panic!("{error}"));
        let case = Case { tokens: vec![60; 2], ..shape.case(1) };
        let test = Selftest::new(&group, &BuiltIn, case).unwrap_or_else(|error| panic!("{error}"));
        let error = test.check_dispatch().expect_err(name).to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {parts:?}\n{error}");
    }
}

/// Rings whose ends never tell each other anything: who waits for whom, by pipeline, role and
/// statement, in the words of the kernels' own records and of the emulator.
#[test]
fn a_planted_circle_is_reported_by_statements() {
    let Some(programs) = programs() else { return };
    let silent = "\
== ring: nobody is told anything
in ep/ends.cuh
- add_release_sys(words + there(ring), number);
";
    let mutants = Mutant::parse(silent).unwrap_or_else(|error| panic!("{error}"));
    let shape = Shape::new(2, Via::Ring, 64, 1, 2).rings(4, 16, 4);
    let mut case = shape.case(1);
    case.tokens = vec![12; 2];
    let options = HostOptions::new(2);
    let backend = shape.host(&programs.planted(&mutants[0]), options);
    let group = backend.group().unwrap_or_else(|error| panic!("{error}"));
    let test = Selftest::new(&group, &BuiltIn, case).unwrap_or_else(|error| panic!("{error}"));
    let error = test.check_dispatch().expect_err("no row arrives");
    let seen = backend.report().expect("the run failed");
    insta::assert_snapshot!(without_lines(&format!("{error}\n\nThe emulator saw a {seen}")));
}

/// The text without the numbers of lines of C++.
fn without_lines(text: &str) -> String {
    let mut parts = text.split(".cuh:").flat_map(|part| part.split(".cu:"));
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(".cuh:LINE");
        out.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    }
    out
}
