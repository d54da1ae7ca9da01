//! `epforge run`: runs one random problem on the host or on GPUs. The results are compared with the oracle of
//! the standard pipelines, or with the declaration of any other pipeline.

mod cards;

use std::io::Write;
use std::time::{Duration, Instant};

use ep_runtime::AnyPipeline;
use ep_runtime::buffer::BufferOptions;
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::host::Programs;
use ep_runtime::net::ModelNetwork;
use ep_verify::Findings;
use ep_verify::declared::Declared;
use ep_verify::selftest::{Case, Selftest};

use crate::declared::{ROUNDS, Subject, knows, second_opinion};
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::machine::{GpuRequest, Machine, Perturb, Ranks, host_backend, warn};
use crate::moved::{moved, table};
use crate::nodes::{Between, NodeOptions};
use crate::plan_text::aligned;
use crate::problem::{
    Asked, PROBLEM_HELP, Problem, Reach, checked, failed, fits_here, no_machine, reference_options,
};
use crate::selection::find;
use crate::talk::Talk;
use crate::wire::{Joint, Net};

/// Most SMs of a kernel: more than any GPU has.
const MOST_SMS: i64 = 1024;

/// Options of `run`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = PROBLEM_HELP)]
pub(crate) struct Options {
    /// A pipeline, or dispatch+combine. For layout, nvl-dispatch and nvl-combine, the pipelines that they need run
    /// first. With --net libfabric:.., pipelines with a + between them
    pipeline: String,
    /// Where the pipeline runs
    #[arg(long, value_enum, default_value_t = Machine::Host)]
    backend: Machine,
    #[command(flatten)]
    problem: Problem,
    /// Number of SMs for each kernel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_SMS))]
    sms: Option<u32>,
    #[command(flatten)]
    net: Net,
    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    perturb: Perturb,
    /// Seed for the routing, all values, and the schedule on the host
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(
    options: &Options,
    entries: &[AnyPipeline],
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    options.perturb.check(options.backend)?;
    let joint = match options.node.are_ranks() {
        true => options.net.joint_of_ranks(),
        false => options.net.joint().cloned(),
    };
    if let Some(joint) = joint {
        options.node.check(&joint)?;
        return run_between(options, &joint, entries, &mut Talk { json, out });
    }
    if let Some(cards) = options.net.cards() {
        options.node.check_cards()?;
        return cards::run(options, cards, entries, &mut Talk { json, out });
    }
    options.node.check_absent()?;
    match Asked::of(entries, &options.pipeline)? {
        Asked::Standard(reach) => {
            let problem = options.problem.settled()?;
            problem.without_nodes(&options.pipeline)?;
            options.net.has_effect(&options.pipeline, None)?;
            run_standard(&Options { problem, ..options.clone() }, reach, json, out, err)
        }
        Asked::Declared(entry) => run_declared(options, &entry, json, out, err),
    }
}

/// A process for each node; several pipelines are named with `+` between them.
fn run_between(
    options: &Options,
    joint: &Joint,
    entries: &[AnyPipeline],
    talk: &mut Talk<'_>,
) -> Result<(), Failure> {
    let is_card = matches!(joint, Joint::Cards(_) | Joint::Played(_));
    if matches!(joint, Joint::Cards(_)) && options.backend == Machine::Host {
        let what =
            format!("`{joint}` works only with `--backend gpu`, where GPUs write to network cards");
        return Err(Failure::WrongUse(what));
    }
    let (nodes, local_ranks) = options.nodes(&joint.to_string())?;
    let between = Between {
        options: &options.node,
        joint: joint.clone(),
        nodes: nodes as usize,
        local_ranks: local_ranks as usize,
        machine: options.backend,
        sms: options.sms,
        perturb: options.perturb,
        seed: options.seed,
        cases: options.cases(entries, is_card)?,
    };
    between.run("run", talk)
}

impl Options {
    /// How many nodes of how many ranks the network `name` joins.
    fn nodes(&self, name: &str) -> Result<(u32, u32), Failure> {
        let problem = self.problem.settled()?;
        let Some(nodes) = problem.nodes else {
            let what = format!("`{name}` connects nodes: give their number, such as `--nodes 2`");
            return Err(Failure::WrongUse(what));
        };
        let (_, local_ranks) = problem.shared(nodes)?;
        if nodes < 2 {
            let what = format!("`{name}` connects nodes, and `--nodes` gives only one");
            return Err(Failure::WrongUse(what));
        }
        Ok((nodes, local_ranks))
    }

    /// The pipelines that are named, with `+` between them, and what is asked of each; whether their kernels write to
    /// network cards.
    fn cases(
        &self,
        entries: &[AnyPipeline],
        is_card: bool,
    ) -> Result<Vec<(AnyPipeline, Problem)>, Failure> {
        let problem = self.problem.settled()?;
        let mut cases = Vec::new();
        for name in self.pipeline.split('+') {
            let entry = find(entries, name)?;
            let known = problem.set.iter().filter(|(name, _)| knows(entry, name)).cloned();
            let mut set: Vec<(String, String)> = known.collect();
            let is_open = knows(entry, "network") && set.iter().all(|(name, _)| name != "network");
            if is_open && is_card {
                set.push(("network".to_string(), "ibgda".to_string()));
            }
            let own = Problem { set, ..problem.clone() };
            cases.push((*entry, Subject::with(entry)?.asked(&own)?));
        }
        let knows_it = |name: &str| cases.iter().any(|(entry, _)| knows(entry, name));
        match problem.set.iter().find(|(name, _)| !knows_it(name)) {
            None => Ok(cases),
            Some((name, _)) => {
                let what = format!("{} knows of no `{name}`", self.pipeline);
                Err(Failure::WrongUse(what))
            }
        }
    }
}

fn run_standard(
    options: &Options,
    reach: Reach,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let buffer = options.problem.options(reference_options())?;
    let ranks = options.problem.ranks() as usize;
    checked(&buffer, ranks)?;
    let mut compiler = None;
    let (group, machine) = match options.backend {
        Machine::Host => {
            fits_here(&buffer, ranks)?;
            let programs = compiler.insert(Programs::find().map_err(no_machine)?);
            (Ranks::on_host(programs, ranks, options.seed)?.group, "the host".to_owned())
        }
        Machine::Gpu => on_gpus(ranks, options.perturb)?,
    };
    let usual = if options.backend == Machine::Host { 8 } else { 24 };
    let share = group.backend().sms(0);
    let sms = options.sms.unwrap_or(usual.min(share));
    let case = Case { seed: options.seed, ..Case::even(buffer.clone(), ranks, sms) };
    let test = Selftest::new(&group, options.problem.source(), case).map_err(failed)?;
    if let Some(programs) = &compiler {
        warn(programs, err);
    }
    let started = Instant::now();
    let findings = match reach {
        Reach::Counts => test.check_counts(),
        Reach::Dispatch => test.check_dispatch(),
        Reach::Combine => test.check(),
    };
    let mut findings = findings.map_err(failed)?;
    let asked = (&options.problem, &buffer);
    findings.merge(second_opinion(&group, asked, reach, options.seed)?);
    let shown = Shown { reach, buffer: &buffer, machine: &machine, seconds: started.elapsed() };
    if json {
        shown.objects(&test, &findings, out)?;
    } else {
        shown.text(options, &test, &findings, out)?;
    }
    done(&findings)
}

fn on_gpus(ranks: usize, perturb: Perturb) -> Result<(Group, String), Failure> {
    let request = GpuRequest::threads(ranks, GroupOptions::default().timeout).perturbed(perturb);
    let group = Ranks::on_gpus(&request)?.group;
    let machine = group.backend().name();
    Ok((group, machine))
}

/// Two calls of other sizes, each twice, as their declaration says.
fn run_declared(
    options: &Options,
    entry: &AnyPipeline,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let programs = Programs::find().map_err(no_machine)?;
    let subject = Subject::new(entry, &programs)?;
    let problem = subject.asked(&options.problem)?;
    let ranks = subject.ranks(&problem)?;
    options.net.has_effect(entry.name, subject.between_nodes(&problem)?)?;
    let mut host = None;
    let (group, machine) = match options.backend {
        Machine::Host => {
            let backend = host_backend(&programs, ranks, options.seed)?;
            let group = host.insert(backend).group().map_err(failed)?;
            (group, "the host".to_owned())
        }
        Machine::Gpu => on_gpus(ranks, options.perturb)?,
    };
    let arch = group.backend().arch();
    let calls = subject.calls(&problem, arch, options.seed, options.seed)?;
    warn(&programs, err);
    let sms = options.sms.unwrap_or(calls.blocks_min() + (options.seed % 3) as u32);
    let started = Instant::now();
    let declared = Declared::new(&calls.emitted, &calls.drawn, ROUNDS, &subject.functions());
    let declared = declared.map_err(|wrong| Failure::Failed(format!("{}: {wrong}", entry.name)))?;
    let plan = &calls.emitted.plan;
    let network = match &host {
        Some(host) => options.net.network(host, plan).map_err(failed)?,
        None if plan.network_counters > 0 => {
            let what = format!(
                "{} needs a network, and GPUs of one process have none: add `--net libfabric:tcp`",
                entry.name
            );
            return Err(Failure::WrongUse(what));
        }
        None => None,
    };
    let addresses = network.as_ref().map(ModelNetwork::addresses).unwrap_or_default();
    let findings = declared.check_over(&group, sms, &addresses).map_err(failed)?;
    let seconds = started.elapsed();
    if json {
        writeln!(out, "{}", totals(&findings, &machine, seconds))?;
    } else {
        let (name, shape, seed) = (entry.name, calls.shape(), options.seed);
        writeln!(out, "{name} on {machine}: {shape}, {sms} SMs, seed {seed}\n")?;
        verdict(&findings, seconds, out)?;
    }
    done(&findings)
}

fn done(findings: &Findings) -> Result<(), Failure> {
    match findings.is_good() {
        true => Ok(()),
        false => Err(Failure::Failed(findings.to_string())),
    }
}

fn verdict(findings: &Findings, seconds: Duration, out: &mut dyn Write) -> Result<(), Failure> {
    let word = if findings.is_good() { "ok" } else { "wrong" };
    writeln!(out, "{word} in {:.1} s: {findings}", seconds.as_secs_f64())?;
    Ok(())
}

/// What came of all checks.
fn totals(findings: &Findings, machine: &str, seconds: Duration) -> Object {
    let compared: u64 = findings.checks.iter().map(|(_, found)| found.compared).sum();
    let wrong: u64 = findings.checks.iter().map(|(_, found)| found.wrong).sum();
    Object::new()
        .with("machine", machine)
        .with("checks", findings.checks.len())
        .with("compared", compared)
        .with("wrong", wrong)
        .with("seconds", Value::Tenths(seconds.as_secs_f64()))
}

/// What is told of a run.
struct Shown<'a> {
    reach: Reach,
    buffer: &'a BufferOptions,
    machine: &'a str,
    seconds: Duration,
}

impl Shown<'_> {
    fn text(
        &self,
        options: &Options,
        test: &Selftest,
        findings: &Findings,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let BufferOptions { hidden, topk, experts, tokens, .. } = self.buffer;
        writeln!(
            out,
            "{} on {}: {} ranks, {tokens} tokens of {hidden} {} values each, top-{topk} of {experts} \
             experts, {}, seed {}\n",
            options.pipeline,
            self.machine,
            options.problem.ranks(),
            self.buffer.payload.name(),
            self.buffer.via.name(),
            options.seed,
        )?;
        let moved = moved(test.buffer(), test.oracle(), &self.reach.launched(test.buffer()));
        write!(out, "{}", aligned(&table(&moved)))?;
        writeln!(out)?;
        verdict(findings, self.seconds, out)
    }

    fn objects(
        &self,
        test: &Selftest,
        findings: &Findings,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        for it in moved(test.buffer(), test.oracle(), &self.reach.launched(test.buffer())) {
            writeln!(out, "{}", it.object())?;
        }
        let object = totals(findings, self.machine, self.seconds);
        writeln!(out, "{object}")?;
        Ok(())
    }
}
