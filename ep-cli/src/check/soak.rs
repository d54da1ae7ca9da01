//! `epforge soak`: random problems, schedules and faults for hours, with a line a minute.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ep_runtime::AnyPipeline;
use ep_runtime::buffer::BuiltIn;
use ep_runtime::host::Programs;
use ep_verify::oracle::Random;
use ep_verify::selftest::{Case, Selftest};

use super::pool::until_nothing;
use super::trial::{LIMIT, Trial, Trouble, Variant, What};
use super::{Mode, replay, variants};
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::kernels::Kernels;
use crate::machine::{GpuRequest, Machine, Ranks, warn};
use crate::problem::{Problem, no_machine};
use crate::wire::Net;

/// Of so many runs, one is checked, and one has a fault.
const CHECKED: u64 = 8;
const STRUCK: u64 = 3;

/// How often it says how far it is.
const INTERVAL: Duration = Duration::from_secs(60);

/// Longest wait of a kernel on a GPU.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Options of `soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The files of `--declarations`, which a replay needs too.
    #[arg(skip)]
    pub(crate) declarations: Vec<PathBuf>,
    /// Number of hours to run; at least one problem runs, and the last one runs to its end
    #[arg(long, value_name = "N", value_parser = hours)]
    hours: Duration,
    /// Where the problems run
    #[arg(long, value_enum, default_value_t = Machine::Host)]
    backend: Machine,
    /// Maximum ranks of a problem; on GPUs, the ranks of every problem
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// The first seed; each further problem uses the next seed
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=u64::from(u32::MAX)))]
    seed: u64,
}

/// A time in hours.
fn hours(text: &str) -> Result<Duration, String> {
    const MOST: f64 = 10_000.0;
    let hours = text.parse().ok().filter(|hours| *hours > 0.0 && *hours <= MOST);
    let hours: f64 = hours.ok_or_else(|| format!("it is not a number of hours up to {MOST}"))?;
    Ok(Duration::from_secs_f64(3600.0 * hours))
}

pub(crate) fn run(
    options: &Options,
    entries: &[AnyPipeline],
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let mut tally = Tally::new(options, json);
    match options.backend {
        Machine::Host => on_host(options, entries, &mut tally, out, err)?,
        Machine::Gpu => on_gpus(options, &mut tally, out)?,
    }
    tally.line("end", out)?;
    match tally.failed {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{count} of {} problems failed", tally.runs))),
    }
}

fn on_host(
    options: &Options,
    entries: &[AnyPipeline],
    tally: &mut Tally,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let programs = Programs::find().map_err(no_machine)?;
    warn(&programs, err);
    let mut all = Vec::new();
    for kernels in [Kernels::Chosen, Kernels::Plain] {
        all.extend(variants(&check(options, 0, kernels), entries, &programs)?);
    }
    // Nodes may not share so many ranks evenly.
    all.retain(|variant| match &variant.what {
        What::Standard(_) => true,
        What::Declared(subject) => subject.ranks(&variant.problem).is_ok(),
    });
    let ends = tally.begun + options.hours;
    let work = |number: usize| {
        let is_over = number > 0 && Instant::now() >= ends;
        (!is_over).then(|| attempt(options, &all, number as u64, &programs))
    };
    let (mut told, mut machine) = (Ok(()), None);
    until_nothing(work, |ended: Option<(usize, Ended)>| {
        let ended = ended.map(|(_, ended)| ended);
        if let Some(Ended { outcome: Err(Trouble::Machine(what)), .. }) = &ended {
            machine = Some(what.clone());
        }
        let noted = ended.map_or(Ok(()), |ended| tally.add(&ended, out));
        let noted = noted.and_then(|()| tally.tick(out));
        told = std::mem::replace(&mut told, Ok(())).and(noted);
    });
    warn(&programs, err);
    told?;
    machine
        .map_or(Ok(()), |what| Err(Failure::Failed(format!("this machine cannot run it: {what}"))))
}

/// A problem that has run.
struct Ended {
    seed: u64,
    is_checked: bool,
    is_struck: bool,
    /// The scheduler's steps.
    outcome: Result<u64, Trouble>,
    /// The command line that runs it again.
    replay: String,
}

/// What `check` would be asked for with the same seed.
fn check(options: &Options, seed: u64, kernels: Kernels) -> super::Options {
    super::Options {
        declarations: options.declarations.clone(),
        pipeline: Some("all".to_owned()),
        mutants: None,
        random: None,
        mutate: None,
        plant: None,
        courses: None,
        sample: None,
        known: None,
        outputs: false,
        from: 0,
        budget: None,
        schedules: 1,
        mode: if seed % CHECKED == 1 { Mode::Hb } else { Mode::Fast },
        seed,
        fuzz_shapes: Some(1),
        fault: None,
        every_fault: seed % STRUCK == 2,
        coverage: false,
        problem: Problem {
            ranks: Some(options.ranks),
            nodes: None,
            tokens: None,
            set: Vec::new(),
            kernels,
        },
        net: Net::default(),
    }
}

fn attempt(options: &Options, all: &[Variant], number: u64, programs: &Arc<Programs>) -> Ended {
    let seed = options.seed + number;
    let variant = &all[Random::new(seed << 8 | 5).below(all.len())];
    let asked = check(options, seed, variant.problem.kernels);
    let fault = asked.fault_in(variant, seed);
    let trial = Trial {
        problem: &variant.problem,
        net: &asked.net,
        build: asked.mode.build(1),
        fault,
        shape: Some(seed),
        isolation: Some(LIMIT),
        seed,
    };
    let outcome = trial.run(variant, programs);
    let is_checked = asked.mode == Mode::Hb;
    Ended {
        seed,
        is_checked,
        is_struck: fault.is_some(),
        outcome,
        replay: replay(&asked, variant, seed),
    }
}

fn on_gpus(options: &Options, tally: &mut Tally, out: &mut dyn Write) -> Result<(), Failure> {
    let ranks = options.ranks as usize;
    let made = Ranks::on_gpus(&GpuRequest::threads(ranks, TIMEOUT))?;
    let sms = made.sms();
    let ends = tally.begun + options.hours;
    let mut seed = options.seed;
    loop {
        let case = Case::random(ranks, seed, sms);
        let words = format!("{case:?}");
        let found = Selftest::new(&made.group, &BuiltIn, case).and_then(|test| test.check());
        // After an error the group takes no more calls.
        let found = found.map_err(|error| Failure::Failed(format!("{words}: {error}")))?;
        let outcome = match found.is_good() {
            true => Ok(0),
            false => Err(Trouble::Found(format!("{words}: {found}"))),
        };
        let replay =
            format!("epforge soak --backend gpu --ranks {ranks} --hours 0.0001 --seed {seed}");
        let ended = Ended { seed, is_checked: false, is_struck: false, outcome, replay };
        tally.add(&ended, out)?;
        tally.tick(out)?;
        if Instant::now() >= ends {
            return Ok(());
        }
        seed += 1;
    }
}

/// What has come of all problems so far.
struct Tally {
    json: bool,
    machine: Machine,
    first: u64,
    begun: Instant,
    told: Instant,
    runs: u64,
    checked: u64,
    struck: u64,
    steps: u64,
    failed: u64,
}

impl Tally {
    fn new(options: &Options, json: bool) -> Tally {
        let (machine, first, begun) = (options.backend, options.seed, Instant::now());
        let [runs, checked, struck, steps, failed] = [0; 5];
        Tally { json, machine, first, begun, told: begun, runs, checked, struck, steps, failed }
    }

    fn add(&mut self, ended: &Ended, out: &mut dyn Write) -> Result<(), Failure> {
        self.runs += 1;
        self.checked += u64::from(ended.is_checked);
        self.struck += u64::from(ended.is_struck);
        let report = match &ended.outcome {
            Ok(steps) => {
                self.steps += steps;
                return Ok(());
            }
            Err(Trouble::Machine(_)) => return Ok(()),
            Err(Trouble::NoPlan(report) | Trouble::Found(report)) => report,
        };
        self.failed += 1;
        if self.json {
            let object = Object::new().with("seed", ended.seed).with("report", report);
            writeln!(out, "{}", object.with("replay", &ended.replay))?;
        } else {
            writeln!(out, "  FAILED  with seed {}", ended.seed)?;
            for line in report.lines() {
                writeln!(out, "    {line}")?;
            }
            writeln!(out, "    replay: {}", ended.replay)?;
        }
        Ok(out.flush()?)
    }

    /// Says how far it is, if it is time.
    fn tick(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        if self.told.elapsed() >= INTERVAL {
            self.told = Instant::now();
            self.line("so far", out)?;
        }
        Ok(())
    }

    fn line(&self, what: &str, out: &mut dyn Write) -> io::Result<()> {
        let Tally { runs, checked, struck, failed, .. } = *self;
        let (minutes, steps) = (self.begun.elapsed().as_secs_f64() / 60.0, self.steps as f64 / 1e6);
        let (first, last) = (self.first, self.first + runs.saturating_sub(1));
        let place = if self.machine == Machine::Host { "host" } else { "gpu" };
        if self.json {
            let object = Object::new()
                .with("soak", what)
                .with("backend", place)
                .with("minutes", Value::Tenths(minutes))
                .with("problems", runs)
                .with("first_seed", first)
                .with("last_seed", last)
                .with("checked", checked)
                .with("with_faults", struck)
                .with("million_steps", Value::Tenths(steps))
                .with("failed", failed);
            writeln!(out, "{object}")?;
        } else {
            writeln!(
                out,
                "{what}: {minutes:.1} min on the {place}, {runs} problems (seeds {first} to {last}), {checked} \
                 checked, {struck} with faults, {steps:.1} million steps, {failed} failed"
            )?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_a_time() {
        assert_eq!(hours("0.5"), Ok(Duration::from_secs(1800)));
        for wrong in ["0", "-1", "x", "NaN", "inf", "1e9", ""] {
            assert!(hours(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_failed_is_told_with_its_replay() {
        let options = Options {
            declarations: Vec::new(),
            hours: INTERVAL,
            backend: Machine::Host,
            ranks: 4,
            seed: 7,
        };
        let (mut tally, mut out) = (Tally::new(&options, false), Vec::new());
        let ended = |outcome, is_checked| {
            let replay = "epforge check all".to_owned();
            Ended { seed: 8, is_checked, is_struck: !is_checked, outcome, replay }
        };
        tally.add(&ended(Ok(2_000_000), true), &mut out).expect("it is written");
        let wrong = Trouble::Found("a race\nhere".to_owned());
        tally.add(&ended(Err(wrong), false), &mut out).expect("it is written");
        tally.line("end", &mut out).expect("it is written");
        let text = String::from_utf8(out).expect("a text");
        assert_eq!(
            text,
            "  FAILED  with seed 8\n    a race\n    here\n    replay: epforge check all\nend: 0.0 min on the \
             host, 2 problems (seeds 7 to 8), 1 checked, 1 with faults, 2.0 million steps, 1 failed\n"
        );
    }

    #[test]
    fn seeds_have_their_shares() {
        let options = Options {
            declarations: Vec::new(),
            hours: INTERVAL,
            backend: Machine::Host,
            ranks: 4,
            seed: 1,
        };
        let all: Vec<_> = (1..=24).map(|seed| check(&options, seed, Kernels::Chosen)).collect();
        assert_eq!(all.iter().filter(|it| it.mode == Mode::Hb).count(), 3);
        assert_eq!(all.iter().filter(|it| it.every_fault).count(), 8);
    }
}
