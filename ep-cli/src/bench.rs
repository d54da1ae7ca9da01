//! `epforge bench`: dispatch and combine, checked against the oracle and timed, beside what the wire
//! gives for the same bytes; or one pipeline, compared with its declaration.

mod between;
mod chart;
mod few;
mod nodes;
mod pipeline;
mod request;
mod result;
mod routing;
mod survive;
mod talk;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use ep_runtime::AnyPipeline;
use ep_runtime::buffer::{BufferOptions, Payload};
use ep_runtime::group::Group;
use ep_runtime::host::Programs;
use ep_runtime::jit::{Cache, Nvrtc};
use ep_runtime::tune::wire_time;
use ep_runtime::tune::{Rates, RatesSource, Tuning};
use ep_verify::probe::probe;
use ep_verify::selftest::{Operation, Selftest};

use crate::failure::Failure;
use crate::files;
use crate::json::{Object, Value};
use crate::machine::{GpuRequest, Machine, Ranks, gpus, required_gpus, warn};
use crate::moved::bytes;
use crate::problem::{failed, memory_parts, no_machine};
use crate::processes;
use crate::program;
use crate::selection::find;
pub(crate) use request::Options;
use request::{Batch, Probe, Request};
use result::{Least, Measured, Texts};
use talk::Talk;

/// Bytes that fill the wire.
const WIRE_BYTES: u64 = 128 << 20;

pub(crate) fn run(
    options: &Options,
    entries: &[AnyPipeline],
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    if let (Some(results), Some(chart)) = (&options.draw, &options.chart) {
        let text = fs::read_to_string(results).map_err(|error| unusable(results, &error))?;
        return draw(&text, chart);
    }
    let mut talk = Talk { json, speaks: true, progress: None, out, err };
    if let Some(name) = &options.pipeline {
        return pipeline::run(options, find(entries, name)?, &mut talk);
    }
    if options.nodes()?.is_some() {
        return between::run(options, talk);
    }
    let (request, ranks) = match options.backend {
        Machine::Host => {
            let request = options.request(0)?;
            let programs = Programs::find().map_err(no_machine)?;
            warn(&programs, talk.err);
            let ranks = Ranks::on_host(&programs, request.gpus.ranks, options.seed())?;
            (request, ranks)
        }
        Machine::Gpu => {
            let Some(found) = found_gpus(&mut talk)? else { return Ok(()) };
            let request = options.request(found)?;
            if options.processes && !processes::is_member() {
                return processes::spawn(request.gpus.ranks, options.kill);
            }
            let ranks = Ranks::on_gpus(&request.gpus)?;
            (request, ranks)
        }
    };
    talk.speaks = ranks.is_first();
    if let Some(killed) = options.kill {
        return survive::run(ranks, &request, options.kernels, killed, &mut talk);
    }
    let mut bench = Bench { options, request, ranks, talk, lines: Vec::new(), titled: false };
    bench.all()?;
    let lines = bench.lines.concat();
    match &options.chart {
        Some(chart) if bench.ranks.is_first() => draw(&lines, chart),
        _ => Ok(()),
    }
}

/// How many GPUs there are. None on a machine without any, unless some are required.
fn found_gpus(talk: &mut Talk<'_>) -> Result<Option<usize>, Failure> {
    let required = required_gpus()?;
    let found = gpus().and_then(|found| match found >= required.max(1) {
        true => Ok(found),
        false => {
            let needed = required.max(1);
            Err(Failure::Failed(format!("{needed} GPUs needed, {found} found")))
        }
    });
    match found {
        Err(failure) if required == 0 => talk.skipped(&failure).map(|()| None),
        found => found.map(Some),
    }
}

fn draw(results: &str, chart: &Path) -> Result<(), Failure> {
    let svg = chart::svg(results).map_err(Failure::Failed)?;
    files::write(chart, &svg).map_err(|error| unusable(chart, &error))
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{} cannot be used: {error}", path.display()))
}

/// A run of the command on a group.
struct Bench<'a> {
    options: &'a Options,
    request: Request,
    ranks: Ranks,
    talk: Talk<'a>,
    /// The machine and the results, each a line of JSON.
    lines: Vec<String>,
    titled: bool,
}

/// One operation, with the inputs of all its calls and of the last one.
struct Run<'a> {
    test: &'a Selftest,
    last: &'a Selftest,
    routing: &'a str,
    operation: Operation,
}

impl Bench<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        if self.options.probe() != Probe::No {
            look(&self.ranks.group, &mut self.talk)?;
        }
        if self.options.probe() == Probe::Only {
            return Ok(());
        }
        let rates = self.rates()?;
        self.random_shapes()?;
        let payloads = self.request.payloads.clone();
        for batch in self.request.batches.clone() {
            for (index, payload) in payloads.iter().enumerate() {
                match self.request.low_latency {
                    Some(way) => self.few_tokens(way, *payload, &batch, index == 0)?,
                    None => self.payload(*payload, &batch, rates, index == 0)?,
                }
            }
        }
        tell_compiled(&self.ranks, &mut self.talk)
    }

    fn group(&self) -> &Group {
        &self.ranks.group
    }

    /// What this machine gives, and where that is known from.
    fn rates(&mut self) -> Result<Rates, Failure> {
        let cache = Cache::at(None).map_err(|error| Failure::Failed(error.to_string()))?;
        let perturb = self.request.gpus.perturb;
        let (rates, source) = match perturb {
            // Plain pushes are disturbed as well, and what they give is kept for those that are not.
            Some(_) => (Rates::H200, RatesSource::Assumed),
            None => Rates::of(self.group(), &cache).map_err(failed)?,
        };
        let machine = machine(&self.ranks, &self.request.gpus)?;
        let nvrtc = Nvrtc::find().ok().map(|nvrtc| nvrtc.version().to_string());
        let object = Object::new()
            .with("command", command())
            .with("machine", &machine)
            .with("nvrtc", nvrtc)
            .with("ranks", self.request.gpus.ranks)
            .with("rates", source.name())
            .with("store_mb_per_s", rates.store)
            .with("link_mb_per_s", rates.link);
        self.lines.push(format!("{object}\n"));
        self.talk.object(&object)?;
        self.talk.say(&format!("{machine}; {} rates: {rates}", source.name()))?;
        tell_perturbed(perturb, &mut self.talk)?;
        Ok(rates)
    }

    /// Checks as many random problems as were asked for, each in a buffer of its own.
    fn random_shapes(&mut self) -> Result<(), Failure> {
        for index in 0..self.options.random {
            let case = self.request.random_case(index, self.ranks.sms());
            let words = format!("random shape {index}: {case:?}");
            let with = |text: String| Failure::Failed(format!("{words}\n{text}"));
            let test = Selftest::new(self.group(), self.options.kernels.source(), case);
            let test = test.map_err(|error| with(error.to_string()))?;
            let findings = test.check().map_err(|error| with(error.to_string()))?;
            if !findings.is_good() {
                return Err(with(findings.to_string()));
            }
        }
        match self.options.random {
            0 => Ok(()),
            count => self.talk.say(&format!("{count} random shapes: all equal")),
        }
    }

    /// Everything with rows of one kind. A combine moves the same rows whatever came, so that it is
    /// timed once.
    fn payload(
        &mut self,
        payload: Payload,
        batch: &Batch,
        rates: Rates,
        combines: bool,
    ) -> Result<(), Failure> {
        let buffer = BufferOptions { rates, ..self.request.buffer(payload, batch) };
        let tuning = self.tuning(&buffer, rates)?;
        let sweep = self.request.sweep(self.ranks.sms(), tuning.sms);
        let Some(first) = sweep.first() else { return Ok(()) };
        let has_cached = buffer.cached;
        let is_timed = |operation: &Operation| match operation {
            Operation::Combine => combines,
            Operation::CachedDispatch => has_cached,
            _ => true,
        };
        let operations: Vec<Operation> =
            self.request.operations.iter().copied().filter(is_timed).collect();
        let measurements = operations.len() * sweep.len() * self.request.modes.len();
        self.talk.begin(measurements, format!("{}: kernels", payload.name()));
        let case = self.request.case(buffer, batch, *first);
        let mut test =
            Selftest::new(self.group(), self.options.kernels.source(), case).map_err(failed)?;
        let texts = Texts::of(test.buffer(), self.group(), self.options.kernels)?;
        self.memory(&test)?;
        self.check(&test, "before timing")?;
        if self.options.outputs {
            self.outputs(&test)?;
        }
        if self.request.repeats.iterations == 0 {
            return Ok(());
        }
        if self.request.repeats.graph.is_some() {
            self.floor_is_right(&test)?;
        }
        let last = self.request.seed.wrapping_add(1 << 32);
        let mut last = test.reseeded(last).map_err(failed)?;
        for operation in operations {
            for sms in &sweep {
                test.set_calls(sms.dispatch, sms.combine);
                last.set_calls(sms.dispatch, sms.combine);
                let run =
                    Run { test: &test, last: &last, routing: batch.routing.text(), operation };
                let least = self.least(&run)?;
                self.time(&run, least, rates, &texts)?;
            }
        }
        self.check(&test, "after timing")
    }

    /// What the same rows take at least: with many of them, and in a graph.
    fn least(&self, run: &Run<'_>) -> Result<Least, Failure> {
        let (test, operation) = (run.test, run.operation);
        Ok(match self.request.repeats.graph {
            None => Least::Wire(test.wire(operation).map_err(failed)?),
            Some(_) => {
                let found = test.floor(operation, test.sms(operation), self.request.repeats);
                Least::Floor(found.map_err(failed)?)
            }
        })
    }

    /// The floor is compared as well, also where nothing is timed.
    fn floor_is_right(&mut self, test: &Selftest) -> Result<(), Failure> {
        let findings = test.check_floor().map_err(failed)?;
        let text = format!("{}: the floor: {findings}", test.buffer().options().payload.name());
        match findings.is_good() {
            true => self.talk.say(&text),
            false => Err(Failure::Failed(text)),
        }
    }

    /// Tells what the buffer takes on each rank.
    fn memory(&mut self, test: &Selftest) -> Result<(), Failure> {
        let parts = memory_parts(&test.buffer().memory());
        let payload = test.buffer().options().payload.name();
        let object = Object::new().with("memory", payload);
        let object = parts.iter().fold(object, |object, (name, count)| object.with(name, *count));
        self.talk.object(&object)?;
        let words =
            parts.map(|(name, count)| format!("{} {}", name.replace('_', " "), bytes(count)));
        self.talk.say(&format!("{payload}: memory of a rank: {}", words.join(", ")))
    }

    /// What the closed form says about a dispatch.
    fn tuning(&mut self, buffer: &BufferOptions, rates: Rates) -> Result<Tuning, Failure> {
        let tuning = Tuning::choose(&rates, &buffer.traffic(self.request.gpus.ranks));
        let Tuning { sms, seconds } = tuning;
        let (name, us) = (buffer.payload.name(), seconds * 1e6);
        let object =
            Object::new().with("tuning", name).with("sms", sms).with("us", Value::Hundredths(us));
        self.talk.object(&object)?;
        self.talk.say(&format!("{name}: {sms} SMs reach the wire: {us:.1} us of rows"))?;
        Ok(tuning)
    }

    fn time(
        &mut self,
        run: &Run<'_>,
        least: Least,
        rates: Rates,
        texts: &Texts,
    ) -> Result<(), Failure> {
        let Run { test, operation, .. } = *run;
        for mode in self.request.modes.clone() {
            let repeats = self.request.repeats;
            let timing = test.time(run.last, operation, mode, repeats).map_err(failed)?;
            if !timing.findings.is_good() {
                let (operation, mode) = (operation.name(), mode.name());
                let text = format!("{operation}, last call of the {mode}: {}", timing.findings);
                return Err(Failure::Failed(text));
            }
            let bound = rates.wire(timing.bytes);
            let text = texts.of_operation(operation);
            let routing = run.routing;
            self.talk.step(operation.name());
            let measured = Measured { timing: &timing, test, routing, least, bound, text };
            let object = measured.object();
            self.lines.push(format!("{object}\n"));
            self.talk.object(&object)?;
            if !self.talk.json {
                if !std::mem::replace(&mut self.titled, true) {
                    self.talk.say(least.titles())?;
                }
                self.talk.say(&measured.row())?;
            }
        }
        Ok(())
    }

    /// Compares one run of everything with the oracle.
    fn check(&mut self, test: &Selftest, when: &str) -> Result<(), Failure> {
        check(test, when, &mut self.talk)
    }

    fn outputs(&mut self, test: &Selftest) -> Result<(), Failure> {
        let digests = test.output_digests().map_err(failed)?;
        let digests: Vec<String> = digests.iter().map(|it| format!("{it:016x}")).collect();
        let payload = test.buffer().options().payload.name();
        self.talk.say(&format!("{payload}: outputs of the ranks: {}", digests.join(" ")))?;
        self.talk.object(&Object::new().with("outputs", payload).with("digests", digests))
    }
}

/// Sends words between all ranks, and bytes as fast as they go.
fn look(group: &Group, talk: &mut Talk<'_>) -> Result<(), Failure> {
    let findings = probe(group.backend()).map_err(failed)?;
    if !findings.is_good() {
        return Err(Failure::Failed(format!("probe: {findings}")));
    }
    talk.say(&format!("probe: {findings}"))?;
    if let Some((time, sms)) = wire_time(group, WIRE_BYTES).map_err(failed)? {
        let rate = WIRE_BYTES as f64 / time.as_secs_f64() / 1e9;
        talk.say(&format!("wire: {rate:.1} GB/s from each rank with {sms} SMs"))?;
    }
    Ok(())
}

/// The GPUs of all ranks in words; a process among others has opened its own alone.
fn machine(ranks: &Ranks, request: &GpuRequest) -> Result<String, Failure> {
    let own = ranks.group.backend().name();
    let (true, Some((_, model))) = (processes::is_member(), own.split_once(" x ")) else {
        return Ok(own);
    };
    let found = gpus()?;
    let used: BTreeSet<i32> = (0..request.ranks).map(|rank| request.device(rank, found)).collect();
    Ok(format!("{} x {model}", used.len()))
}

fn tell_perturbed(perturb: Option<u64>, talk: &mut Talk<'_>) -> Result<(), Failure> {
    match perturb {
        Some(seed) => talk.say(&format!("perturbed with seed {seed}: the times mean nothing")),
        None => Ok(()),
    }
}

/// Says how many kernels were compiled, once all is measured.
fn tell_compiled(ranks: &Ranks, talk: &mut Talk<'_>) -> Result<(), Failure> {
    talk.progress = None;
    let Some((made, found)) = ranks.compiled()? else { return Ok(()) };
    talk.object(&Object::new().with("compiled", made).with("cached", found))?;
    talk.say(&format!("kernels: {made} compiled, {found} from the cache"))
}

fn check(test: &Selftest, when: &str, talk: &mut Talk<'_>) -> Result<(), Failure> {
    let findings = test.check().map_err(failed)?;
    let payload = test.buffer().options().payload.name();
    let text = format!("{payload}: {when}: {findings}");
    match findings.is_good() {
        true => talk.say(&text),
        false => Err(Failure::Failed(text)),
    }
}

/// The command line of this process, as it stands in kept results.
fn command() -> String {
    let words = program::words().into_iter().map(|word| word.to_string_lossy().into_owned());
    std::iter::once("epforge".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
