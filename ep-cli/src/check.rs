//! `epforge check`: pipelines on the host under many schedules, each of which a seed replays.

mod courses;
mod coverage;
mod fault;
mod mode;
mod mutants;
mod mutate;
mod plant;
mod pool;
mod random;
mod shape;
pub(crate) mod soak;
mod trial;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::{ArgGroup, ValueEnum};
use ep_runtime::AnyPipeline;
use ep_runtime::buffer::{BufferOptions, Payload, Via};
use ep_runtime::host::Programs;
use ep_runtime::jit::Arch;
use ep_verify::options::{ring_tunes, unit_tunes};

use crate::declared::Subject;
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::machine::warn;
use crate::problem::{Asked, PROBLEM_HELP, Problem, Reach, checked, fits_here};
use crate::progress::Progress;
use crate::wire::Net;
use coverage::Marked;
use fault::Fault;
use mode::Mode;
use pool::on_all_cores;
use trial::{LIMIT, Standard, Trial, Trouble, Variant, What};

/// Most schedules of a variant: more than years of them.
const MOST_SCHEDULES: u64 = 1_000_000_000;

/// Options of `check`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = PROBLEM_HELP, group = ArgGroup::new("bugs").args(["mutants", "mutate"]))]
pub(crate) struct Options {
    /// The files of `--declarations`, which a replay needs too.
    #[arg(skip)]
    pub(crate) declarations: Vec<PathBuf>,
    /// A pipeline, dispatch+combine, or all. For layout, nvl-dispatch and nvl-combine, the pipelines that they need
    /// run first
    #[arg(required_unless_present_any = ["mutants", "mutate", "random", "courses"])]
    pipeline: Option<String>,
    /// Plant bugs in the device library, one by one, and report which are found: all bugs, or those whose names
    /// contain a text
    #[arg(long, value_name = "TEXT", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with_all = ["pipeline", "schedules", "mode", "fault", "every_fault", "fuzz_shapes", "ranks", "nodes", "tokens", "set", "kind"])]
    mutants: Option<String>,
    /// Compare this many random declarations, each from a seed, with their meaning
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SCHEDULES), conflicts_with_all = ["pipeline", "mutants", "mutate", "schedules", "mode", "fault", "every_fault", "fuzz_shapes", "ranks", "nodes", "tokens", "set", "kind", "kernels"])]
    random: Option<u64>,
    /// Run the courses that test mutations, with this many schedules each: calls of every arm in every kind, rare
    /// shapes, and functions of the device library
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SCHEDULES), conflicts_with_all = ["pipeline", "mutants", "mutate", "random", "schedules", "mode", "fault", "every_fault", "fuzz_shapes", "ranks", "nodes", "tokens", "set", "kind", "kernels", "coverage"])]
    courses: Option<u64>,
    /// Mutate headers of the device library or texts of kernels (`rings.cuh,rows.cuh`), one line (`rings.cuh:88`),
    /// or all of them, and report which mutations are found
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pipeline", "mutants", "schedules", "mode", "fault", "every_fault", "fuzz_shapes", "ranks", "nodes", "tokens", "set", "kind"])]
    mutate: Option<String>,
    /// Number of these bugs to run, drawn by the seed
    #[arg(long, value_name = "N", requires = "bugs")]
    sample: Option<usize>,
    /// Judge these bugs only by the results of kernels, with the checker off
    #[arg(long, requires = "bugs", conflicts_with = "mutants")]
    outputs: bool,
    /// Start with this bug, to continue an earlier run
    #[arg(
        long,
        value_name = "N",
        requires = "bugs",
        conflicts_with = "mutants",
        default_value_t = 0
    )]
    from: usize,
    /// Give up on a bug when its runs would take more than this many million steps without the bug
    #[arg(long, value_name = "M", requires = "bugs", conflicts_with = "mutants", value_parser = clap::value_parser!(u64).range(1..=MOST_SCHEDULES))]
    budget: Option<u64>,
    /// Skip the bugs in this file, which has the format of the list of equivalent mutations
    #[arg(long, value_name = "FILE", requires = "bugs", conflicts_with = "mutants")]
    known: Option<PathBuf>,
    /// Plant the bug in this file into every text that it is about, and check the result. The file has the format of
    /// `ep-runtime/examples/known_bugs`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mutants", "mutate", "random", "courses", "coverage"])]
    plant: Option<PathBuf>,
    /// Number of schedules for each variant
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=MOST_SCHEDULES))]
    schedules: u64,
    /// How each run is checked
    #[arg(long, value_enum, default_value_t = Mode::Fast)]
    mode: Mode,
    /// The first seed; each further schedule uses the next seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Use a new shape for each seed, or for every N seeds
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    fuzz_shapes: Option<u64>,
    /// A fault to cause in every schedule
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// Cause all faults in turn, one per schedule
    #[arg(long, conflicts_with = "fault")]
    every_fault: bool,
    /// Report which lines and branches of the device library the schedules reach
    #[arg(long, conflicts_with_all = ["mutants", "mutate", "random"])]
    coverage: bool,
    #[command(flatten)]
    problem: Problem,
    #[command(flatten)]
    net: Net,
}

impl Options {
    /// Whether it runs a pipeline by its name, or all of them.
    pub(crate) fn takes_pipelines(&self) -> bool {
        self.pipeline.is_some()
    }

    fn name(&self) -> &str {
        self.pipeline.as_deref().unwrap_or("all")
    }

    /// What the name asks for: `all` are the standard pipelines of `entries`, as far as they go, and every
    /// other one.
    fn asked(&self, entries: &[AnyPipeline]) -> Result<Vec<Asked>, Failure> {
        if self.name() != "all" {
            return Ok(vec![Asked::of(entries, self.name())?]);
        }
        let all = entries.iter().map(Asked::entry);
        let (standard, mut declared): (Vec<Asked>, Vec<Asked>) =
            all.partition(|asked| matches!(asked, Asked::Standard(_)));
        let reach = standard.into_iter().filter_map(|asked| match asked {
            Asked::Standard(reach) => Some(reach),
            Asked::Declared(_) => None,
        });
        declared.splice(0..0, reach.max().map(Asked::Standard));
        Ok(declared)
    }

    /// Refuses seeds that are none, of so many schedules.
    fn has_seeds(&self, schedules: u64) -> Result<(), Failure> {
        let seed = self.seed;
        match seed.checked_add(schedules - 1) {
            Some(_) => Ok(()),
            None => {
                let last = u64::MAX;
                let what = format!(
                    "{schedules} schedules from seed {seed} would exceed the last seed, {last}"
                );
                Err(Failure::WrongUse(what))
            }
        }
    }

    /// Refuses what every schedule of standard pipelines draws for itself.
    fn has_effect(&self) -> Result<(), Failure> {
        if self.name() != "all" {
            self.problem.settled()?.without_nodes(self.name())?;
        }
        let drawn: &[&str] = match self.fuzz_shapes {
            Some(_) => &["alignment", "hidden", "topk", "experts", "weights", "bias"],
            None => &["alignment"],
        };
        if let Some(name) = drawn.iter().find(|name| self.problem.sets(name)) {
            let what = format!("`{name}` has no effect here: each schedule draws its own value");
            return Err(Failure::WrongUse(what));
        }
        match self.problem.tokens {
            Some(_) if self.fuzz_shapes.is_some() => Err(Failure::WrongUse(
                "`--tokens` has no effect with `--fuzz-shapes`: each schedule draws its own shape"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses network options if no variant uses a network.
    fn check_net(&self, variants: &[Variant]) -> Result<(), Failure> {
        let mut refused = self.net.has_effect(self.name(), None);
        for variant in variants {
            let What::Declared(subject) = &variant.what else { continue };
            let nodes = subject.between_nodes(&variant.problem)?;
            if nodes.is_some() && refused.is_err() {
                refused = self.net.has_effect(&variant.name, nodes);
            }
        }
        refused
    }

    /// What goes wrong in the schedule of this seed.
    fn fault(&self, seed: u64) -> Option<Fault> {
        let all = Fault::value_variants();
        let turn = (seed % all.len() as u64) as usize;
        if self.every_fault { all.get(turn).copied() } else { self.fault }
    }

    /// The fault that this seed injects into a variant, if any. Faults of inputs are for standard pipelines only.
    fn fault_in(&self, variant: &Variant, seed: u64) -> Option<Fault> {
        let is_there =
            |fault: &Fault| matches!(variant.what, What::Standard(_)) || !fault.is_of_inputs();
        self.fault(seed).filter(is_there)
    }
}

pub(crate) fn run(
    options: &Options,
    entries: &[AnyPipeline],
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    options.net.check_model()?;
    if options.mutants.is_some() && options.sample.is_none() && options.seed != 1 {
        let what = "`--seed` has no effect without `--sample`, which draws the bugs to run";
        return Err(Failure::WrongUse(what.to_string()));
    }
    if let Some(text) = &options.mutants {
        return mutants::run(text, (options.sample, options.seed), json, out);
    }
    if let Some(count) = options.random {
        return random::run(count, options.seed, json, out, err);
    }
    if let Some(count) = options.courses {
        options.has_seeds(count)?;
        return courses::run(count, options.seed, json, out);
    }
    if let Some(file) = &options.mutate {
        let request = mutate::Request {
            file,
            sample: options.sample,
            known: options.known.as_deref(),
            seed: options.seed,
            outputs: options.outputs,
            from: options.from,
            budget: options.budget.map_or(u64::MAX, |millions| millions * 1_000_000),
        };
        return mutate::run(&request, json, out);
    }
    options.has_seeds(options.schedules)?;
    // Wrong use is said before a compiler is looked for.
    asked_of_standard(options, &options.asked(entries)?)?;
    let bug = options.plant.as_deref().map(plant::read).transpose()?;
    let programs = plant::programs(bug.as_ref())?;
    let marked = options.coverage.then(|| Marked::new(&programs)).transpose()?;
    let programs = marked.as_ref().map_or(programs, |marked| Arc::clone(&marked.programs));
    let variants = variants(options, entries, &programs)?;
    let settled = options.problem.settled()?;
    let is_nobodys =
        |(name, _): &&(String, String)| variants.iter().all(|variant| !variant.problem.sets(name));
    let nodes = settled.nodes.filter(|_| variants.iter().all(|it| it.problem.nodes.is_none()));
    let unknown = settled.set.iter().find(is_nobodys).map(|(name, _)| name.as_str());
    if let Some(name) = unknown.or(nodes.map(|_| "nodes")) {
        return Err(Failure::WrongUse(format!("no pipeline of this command has `{name}`")));
    }
    options.check_net(&variants)?;
    let Some(marked) = marked else {
        let outcome = check_all(options, &variants, &programs, json, (out, err));
        return plant::is_somewhere(bug.as_ref(), &programs, options.name()).and(outcome);
    };
    let is_all = options.name() == "all";
    if is_all {
        marked.run_all()?;
    }
    check_all(options, &variants, &programs, json, (&mut *out, err))?;
    match marked.report(json, out)? {
        unnamed if is_all && unnamed > 0 => Err(Failure::Failed(format!(
            "{unnamed} lines are not run, and the list does not give a reason"
        ))),
        _ => Ok(()),
    }
}

/// All variants that are asked for.
fn variants(
    options: &Options,
    entries: &[AnyPipeline],
    programs: &Arc<Programs>,
) -> Result<Vec<Variant>, Failure> {
    let asked = options.asked(entries)?;
    let mut variants = asked_of_standard(options, &asked)?;
    for asked in &asked {
        if let Asked::Declared(entry) = asked {
            variants.push(declared(options, entry, programs)?);
        }
    }
    Ok(variants)
}

/// The variants of the standard pipelines that are asked for.
fn asked_of_standard(options: &Options, asked: &[Asked]) -> Result<Vec<Variant>, Failure> {
    let mut variants = Vec::new();
    for asked in asked {
        if let Asked::Standard(reach) = asked {
            options.has_effect()?;
            variants.extend(standard(options, *reach)?);
        }
    }
    Ok(variants)
}

/// Runs every schedule of the variants and says what came of it.
fn check_all(
    options: &Options,
    variants: &[Variant],
    programs: &Arc<Programs>,
    json: bool,
    (out, err): (&mut dyn Write, &mut dyn Write),
) -> Result<(), Failure> {
    warn(programs, err);
    let started = Instant::now();
    let mut tallies: Vec<Tally> = variants.iter().map(|_| Tally::default()).collect();
    let mut machine = None;
    let progress = Progress::new(variants.len() as u64 * options.schedules);
    for_each_trial(options, variants, programs, |index, seed, outcome| {
        let tally = &mut tallies[index];
        tally.done += 1;
        match outcome {
            Ok(steps) => tally.steps += steps,
            Err(Trouble::Machine(what)) => machine = Some(what),
            Err(Trouble::NoPlan(report) | Trouble::Found(report)) => {
                tally.failures.insert(seed, report);
            }
        }
        progress.step(&variants[index].name);
    });
    drop(progress);
    warn(programs, err);
    if let Some(what) = machine {
        return Err(Failure::Failed(format!("this machine cannot run it: {what}")));
    }
    for (variant, tally) in variants.iter().zip(&tallies) {
        match json {
            true => writeln!(out, "{}", tally.object(options, variant))?,
            false => tally.show(options, variant, out)?,
        }
    }
    let failed = tallies.iter().filter(|tally| !tally.failures.is_empty()).count();
    if !json {
        let done: u64 = tallies.iter().map(|tally| tally.done).sum();
        let seconds = started.elapsed().as_secs_f64();
        let mode = options.mode.name();
        writeln!(
            out,
            "{done} schedules ({mode}), {failed} of {} variants failed, {seconds:.1} s",
            variants.len()
        )?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{failed} of {} variants failed", variants.len()))),
    }
}

/// What the schedules of a variant came to.
#[derive(Default)]
struct Tally {
    done: u64,
    steps: u64,
    /// Reports by seed; the schedules after the first one may have been left out.
    failures: BTreeMap<u64, String>,
}

impl Tally {
    fn show(
        &self,
        options: &Options,
        variant: &Variant,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let (name, done) = (&variant.name, self.done);
        let Some((seed, report)) = self.failures.first_key_value() else {
            let steps = self.steps as f64 / 1e6;
            writeln!(out, "  ok      {name:36} {done} schedules, {steps:.1} million steps")?;
            return Ok(());
        };
        writeln!(out, "  FAILED  {name:36} with seed {seed}")?;
        show_report(report, &replay(options, variant, *seed), out)
    }

    fn object(&self, options: &Options, variant: &Variant) -> Object {
        let object = Object::new()
            .with("variant", &variant.name)
            .with("mode", options.mode.name())
            .with("fault", options.fault.map(Fault::name))
            .with("every_fault", options.every_fault)
            .with("schedules", self.done)
            .with("million_steps", Value::Tenths(self.steps as f64 / 1e6));
        self.with_failure(object, |seed| replay(options, variant, seed))
    }

    /// `object`, and the first failure if there is any.
    fn with_failure(&self, object: Object, replay: impl Fn(u64) -> String) -> Object {
        let object = object.with("failed", !self.failures.is_empty());
        match self.failures.first_key_value() {
            None => object,
            Some((seed, report)) => {
                object.with("seed", *seed).with("report", report).with("replay", replay(*seed))
            }
        }
    }
}

/// What is wrong, and how it is run again.
fn show_report(report: &str, replay: &str, out: &mut dyn Write) -> Result<(), Failure> {
    for line in report.lines() {
        writeln!(out, "    {line}")?;
    }
    writeln!(out, "    replay: {replay}")?;
    Ok(())
}

/// The command line that runs this schedule again.
fn replay(options: &Options, variant: &Variant, seed: u64) -> String {
    let fuzz = match options.fuzz_shapes {
        None => String::new(),
        Some(1) => " --fuzz-shapes".to_owned(),
        Some(seeds) => format!(" --fuzz-shapes={seeds}"),
    };
    let fault = options.fault_in(variant, seed);
    let fault = fault.map(|it| format!(" --fault {}", it.name())).unwrap_or_default();
    let mut words = variant.problem.words();
    if let What::Standard(standard) = &variant.what {
        let own = &standard.options;
        for (name, value) in [("payload", own.payload.name()), ("via", own.via.name())] {
            if !options.problem.sets(name) {
                words.push_str(&format!(" --set {name}={value}"));
            }
        }
    }
    let plant = options.plant.as_ref().map(|file| format!(" --plant {}", file.display()));
    let plant = plant.unwrap_or_default();
    let files = options.declarations.iter();
    let files: String = files.map(|file| format!(" --declarations {}", file.display())).collect();
    let (pipeline, mode) = (&variant.pipeline, options.mode.name());
    format!(
        "epforge check{files} {pipeline} {words} --mode {mode} --seed {seed} --schedules 1{fuzz}{fault}{plant}"
    )
}

/// A pipeline that its declaration is the oracle of.
fn declared(
    options: &Options,
    entry: &AnyPipeline,
    programs: &Programs,
) -> Result<Variant, Failure> {
    if let Some(fault) = options.fault.filter(|fault| fault.is_of_inputs()) {
        let (fault, name) = (fault.name(), entry.name);
        let what = format!(
            "`{fault}` is a fault of the standard pipelines, and `{name}` is not one of them"
        );
        return Err(Failure::WrongUse(what));
    }
    let subject = Subject::new(entry, programs)?;
    let mut problem = options.problem.settled()?;
    if options.name() == "all" {
        // What some have, others need not.
        problem.set.retain(|(name, _)| subject.knows(name));
        problem.nodes = problem.nodes.filter(|_| subject.knows("nodes"));
        problem.ranks = problem.ranks.filter(|_| subject.has("ranks"));
    }
    let problem = subject.asked(&problem)?;
    if options.fuzz_shapes.is_none() {
        subject.calls(&problem, Arch::Sm90a, 0, options.seed)?;
    }
    let (name, pipeline) = (entry.name.to_owned(), entry.name.to_owned());
    Ok(Variant { name, pipeline, what: What::Declared(Box::new(subject)), problem })
}

/// The variants of standard pipelines: every payload and way that the command line leaves open.
fn standard(options: &Options, reach: Reach) -> Result<Vec<Variant>, Failure> {
    let ways: Vec<(Payload, Via)> = [Via::Direct, Via::Ring]
        .into_iter()
        .flat_map(|via| Payload::ALL.map(|payload| (payload, via)))
        .collect();
    let problem = Problem { nodes: None, ..options.problem.settled()? };
    // Only a dispatch, and what goes with it, depends on the payload.
    let every_payload = matches!(options.name(), "nvl-dispatch" | "dispatch+combine" | "all");
    let mut variants = Vec::new();
    for (payload, via) in ways {
        let base = BufferOptions { payload, via, ..BufferOptions::new(12, 128, 4, 10) };
        // Small rings go round in small problems, and small units are several a stripe.
        let tunes = match via {
            Via::Ring => ring_tunes(&base, 4, 16, 8),
            Via::Direct => unit_tunes(&base, 4, 1),
        };
        let base = BufferOptions { tunes, ..base };
        let asked = problem.options(base)?;
        let open = every_payload || options.problem.sets("payload") || payload == Payload::Bf16;
        if open && (asked.payload, asked.via) == (payload, via) {
            let what = match reach {
                Reach::Counts => "layout".to_owned(),
                Reach::Dispatch => format!("nvl-dispatch {}", payload.name()),
                Reach::Combine => format!("dispatch+combine {}", payload.name()),
            };
            let name = format!("{what} {}", via.name());
            let standard = Standard { reach, options: asked };
            if options.fuzz_shapes.is_none() {
                let ranks = problem.ranks() as usize;
                checked(&standard.options, ranks)?;
                fits_here(&standard.options, ranks)?;
                standard.plan(ranks)?;
            }
            let pipeline = match reach {
                Reach::Counts => "layout",
                Reach::Dispatch => "nvl-dispatch",
                Reach::Combine => "dispatch+combine",
            };
            let (pipeline, problem) = (pipeline.to_owned(), problem.clone());
            let what = What::Standard(Box::new(standard));
            variants.push(Variant { name, pipeline, what, problem });
        }
    }
    Ok(variants)
}

/// Runs every seed of every variant, on all cores, and tells `done` about each. After a failure the
/// later seeds of its variant are left out.
fn for_each_trial(
    options: &Options,
    variants: &[Variant],
    programs: &Arc<Programs>,
    mut done: impl FnMut(usize, u64, Result<u64, Trouble>),
) {
    let each = usize::try_from(options.schedules).unwrap_or(usize::MAX);
    let place = |number: usize| (number / each, options.seed + (number % each) as u64);
    let failed: Vec<AtomicBool> = variants.iter().map(|_| AtomicBool::new(false)).collect();
    let work = |number: usize| {
        let (index, seed) = place(number);
        if failed[index].load(Ordering::Relaxed) {
            return None;
        }
        let trial = Trial {
            net: &options.net,
            problem: &variants[index].problem,
            build: options.mode.build(options.fuzz_shapes.unwrap_or(options.schedules)),
            fault: options.fault_in(&variants[index], seed),
            shape: options.fuzz_shapes.map(|seeds| seed / seeds),
            // What another process comes to is not noted here.
            isolation: (!options.coverage).then_some(LIMIT),
            seed,
        };
        let outcome = trial.run(&variants[index], programs);
        failed[index].fetch_or(outcome.is_err(), Ordering::Relaxed);
        Some(outcome)
    };
    on_all_cores(variants.len().saturating_mul(each), work, |number, outcome| {
        let (index, seed) = place(number);
        if let Some(outcome) = outcome {
            done(index, seed, outcome);
        }
    });
}
