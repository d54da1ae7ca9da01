//! `epforge bench NAME`: one pipeline on inputs drawn from its declaration, compared with what the declaration means
//! and then timed, beside a plain push of the same bytes.

use std::time::Duration;

use ep_runtime::AnyPipeline;
use ep_runtime::host::Programs;
use ep_runtime::jit::Nvrtc;
use ep_runtime::tune::wire_time;
use ep_verify::declared::{Declared, MovedBytes};
use ep_verify::selftest::{FloorTimes, Percentiles, Repeats};

use super::request::{Options, Probe};
use super::talk::Talk;
use super::{command, found_gpus, look, machine, micros, tell_compiled, tell_perturbed};
use crate::declared::{Calls, Subject};
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::machine::{GpuRequest, Machine, Ranks, warn};
use crate::problem::{Problem, failed, no_machine};
use crate::processes;

/// Most rows of a rank for which the time of one kernel that knows all places is a floor; above, the link is.
const FEW_ROWS: u64 = 1024;

const TITLES: &str = "\
mode    tokens SMs        us       p95       p99   wire us  floor us  ratio        bytes  GB/s";

pub(super) fn run(
    options: &Options,
    entry: &AnyPipeline,
    talk: &mut Talk<'_>,
) -> Result<(), Failure> {
    let mut subject = Subject::with(entry)?;
    let on_host = options.backend == Machine::Host;
    let found = match on_host {
        true => 0,
        false => match found_gpus(talk)? {
            Some(found) => found,
            None => return Ok(()),
        },
    };
    let (request, problems) = options.problems(found, &subject)?;
    if let Some(problem) = problems.first()
        && subject.between_nodes(problem)?.is_some()
    {
        let what = format!("{} needs a network: `bench` times pipelines of one node", entry.name);
        return Err(Failure::WrongUse(what));
    }
    if options.processes && !processes::is_member() {
        return processes::spawn(request.ranks, None);
    }
    let mut programs = None;
    if on_host || subject.has_functions() {
        let found = programs.insert(Programs::find().map_err(no_machine)?);
        subject.compile(found)?;
        warn(found, talk.err);
    }
    let ranks = match &programs {
        Some(programs) if on_host => Ranks::on_host(programs, request.ranks, options.seed())?,
        _ => Ranks::on_gpus(&request)?,
    };
    talk.speaks = ranks.is_first();
    let mut bench = Bench { options, entry, subject, request, ranks, titled: false };
    bench.all(&problems, talk)
}

/// A run of the command on a group.
struct Bench<'a> {
    options: &'a Options,
    entry: &'a AnyPipeline,
    subject: Subject,
    request: GpuRequest,
    ranks: Ranks,
    titled: bool,
}

impl Bench<'_> {
    fn all(&mut self, problems: &[Problem], talk: &mut Talk<'_>) -> Result<(), Failure> {
        if self.options.probe() != Probe::No {
            look(&self.ranks.group, talk)?;
        }
        if self.options.probe() == Probe::Only {
            return Ok(());
        }
        let machine = machine(&self.ranks, &self.request)?;
        let nvrtc = Nvrtc::find().ok().map(|nvrtc| nvrtc.version().to_string());
        let object = Object::new().with("command", command()).with("machine", &machine);
        let object = object.with("nvrtc", nvrtc).with("ranks", self.request.ranks);
        talk.object(&object)?;
        talk.say(&machine)?;
        tell_perturbed(self.request.perturb, talk)?;
        for problem in problems {
            self.problem(problem, talk)?;
        }
        tell_compiled(&self.ranks, talk)
    }

    /// Everything with one number of tokens.
    fn problem(&mut self, problem: &Problem, talk: &mut Talk<'_>) -> Result<(), Failure> {
        let (name, group) = (self.entry.name, &self.ranks.group);
        let (arch, seed) = (group.backend().arch(), self.options.seed());
        let calls = self.subject.full_call(problem, arch, seed)?;
        talk.say(&format!("{name}: {}", calls.shape()))?;
        let functions = self.subject.functions();
        let declared = Declared::new(&calls.emitted, &calls.drawn, 1, &functions);
        let declared = declared.map_err(|wrong| Failure::Failed(format!("{name}: {wrong}")))?;
        let repeats = self.options.rounds();
        let traffic = declared.traffic();
        let wire = wire_time(group, traffic.bytes()).map_err(failed)?.map(|(time, _)| time);
        for sms in self.options.blocks(calls.blocks_min(), self.ranks.sms()) {
            let timed = declared.time_compared(group, sms, repeats, &[]).map_err(failed)?;
            if !timed.findings.is_good() {
                return Err(Failure::Failed(timed.findings.to_string()));
            }
            talk.say(&format!("{name}: {}", timed.findings))?;
            for line in calls.emitted.plan.idle(i64::from(sms)) {
                talk.say(&format!("{name}: {line}"))?;
            }
            if repeats.iterations == 0 {
                continue;
            }
            let floor = match traffic.rows <= FEW_ROWS {
                true => declared.floor(group, sms, repeats).map_err(failed)?,
                false => None,
            };
            let compared = timed.findings.checks.iter().map(|(_, found)| found.compared).sum();
            let tokens = calls.rows();
            let line = Line { name, calls: &calls, tokens, sms, traffic, wire, floor, compared };
            if !talk.json && !std::mem::replace(&mut self.titled, true) {
                talk.say(TITLES)?;
            }
            for (mode, times) in
                [(Mode::Loop, timed.in_loop), (Mode::Graph(repeats), timed.in_graph)]
            {
                talk.object(&line.object(mode, times, self.request.ranks))?;
                if !talk.json {
                    talk.say(&line.row(mode, times))?;
                }
            }
        }
        Ok(())
    }
}

/// How calls follow one another.
#[derive(Clone, Copy)]
enum Mode {
    /// The host launches each.
    Loop,
    /// A graph of several is replayed.
    Graph(Repeats),
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Loop => "loop",
            Mode::Graph(_) => "graph",
        }
    }
}

/// One result and what it belongs to.
struct Line<'a> {
    name: &'static str,
    calls: &'a Calls,
    tokens: Option<i64>,
    sms: u32,
    traffic: MovedBytes,
    wire: Option<Duration>,
    floor: Option<FloorTimes>,
    compared: u64,
}

impl Line<'_> {
    /// The time as a multiple of the floor, which calls of a loop do not reach; else of the plain push.
    fn ratio(&self, mode: Mode, times: Option<Percentiles>) -> Option<f64> {
        let floor = self.floor.filter(|_| matches!(mode, Mode::Graph(_)));
        let least = floor.map(|floor| floor.same).or(self.wire).map(micros)?;
        times.filter(|_| least > 0.0).map(|times| micros(times.p50) / least)
    }

    fn rate(&self, times: Option<Percentiles>) -> Option<f64> {
        let us = times.map(|times| micros(times.p50)).filter(|us| *us > 0.0)?;
        Some(self.traffic.bytes() as f64 / us / 1e3)
    }

    fn object(&self, mode: Mode, times: Option<Percentiles>, ranks: usize) -> Object {
        let us = |time: Option<Duration>| time.map(micros).map(Value::Hundredths);
        let calls = match mode {
            Mode::Loop => None,
            Mode::Graph(repeats) => repeats.graph,
        };
        Object::new()
            .with("pipeline", self.name)
            .with("mode", mode.name())
            .with("graph", calls)
            .with("shape", self.calls.shape())
            .with("ranks", ranks)
            .with("tokens", self.tokens)
            .with("sms", self.sms)
            .with("us", us(times.map(|times| times.p50)))
            .with("p95_us", us(times.map(|times| times.p95)))
            .with("p99_us", us(times.map(|times| times.p99)))
            .with("wire_us", us(self.wire))
            .with("floor_us", us(self.floor.map(|floor| floor.same)))
            .with("best_floor_us", us(self.floor.map(|floor| floor.best)))
            .with("best_floor_sms", self.floor.map(|floor| floor.best_sms))
            .with("ratio", self.ratio(mode, times).map(Value::Hundredths))
            .with("bytes", self.traffic.bytes())
            .with("row_bytes", self.traffic.row_bytes)
            .with("field_bytes", self.traffic.field_bytes)
            .with("gb_per_s", self.rate(times).map(Value::Tenths))
            .with("compared", self.compared)
            .with("cuda_digest", self.calls.emitted.digest())
    }

    fn row(&self, mode: Mode, times: Option<Percentiles>) -> String {
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let us = |time: Option<Duration>| shown(time.map(micros), 1);
        format!(
            "{:<7} {:>6} {:>3} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>12} {:>5}",
            mode.name(),
            self.tokens.map_or("-".to_owned(), |tokens| tokens.to_string()),
            self.sms,
            us(times.map(|times| times.p50)),
            us(times.map(|times| times.p95)),
            us(times.map(|times| times.p99)),
            us(self.wire),
            us(self.floor.map(|floor| floor.same)),
            shown(self.ratio(mode, times), 2),
            self.traffic.bytes(),
            shown(self.rate(times), 0),
        )
    }
}
