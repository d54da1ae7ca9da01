//! `epforge selftest`: everything that can be tested on this machine by the program alone, as a list
//! of cases with a line for each.

mod apart;
mod cases;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ep_runtime::buffer::CallOptions;
use ep_runtime::host::Programs;
use ep_runtime::net::Fabric;

use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::machine::{GpuRequest, Machine, Perturb, REQUIRED, Ranks, gpus, required_gpus, warn};
use crate::numbers::{count, millis, positive};
use crate::problem::no_machine;
use crate::progress::Progress;

/// Options of `selftest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the cases run; on the host they are small
    #[arg(long, value_enum, default_value_t = Machine::Gpu)]
    backend: Machine,
    /// Run only cases whose name contains this text
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Run only groups of this many ranks
    #[arg(long, value_name = "N", value_parser = positive)]
    ranks: Option<usize>,
    /// Number of random shapes
    #[arg(long, value_name = "N", value_parser = count)]
    random: Option<usize>,
    /// Number of dispatch and combine pairs in the long run
    #[arg(long, value_name = "N", value_parser = count)]
    pairs: Option<usize>,
    /// Timeout of each wait in a kernel
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = millis)]
    timeout_ms: u64,
    #[command(flatten)]
    perturb: Perturb,
    /// List the cases without running them
    #[arg(long)]
    list: bool,
}

/// What a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// The host, or one GPU, which ranks may share.
    Anything,
    /// More streams than a GPU has queues for when ranks share it: the host, or a GPU for each rank.
    /// Where two streams share a queue, a kernel may stand behind one that waits for it.
    Queues,
    /// A process for each rank: GPUs, or one that they share.
    Processes,
    /// A process for each rank, on GPUs or on one that the ranks share, and a libfabric between the processes.
    Network,
    /// A GPU for each rank.
    GpuPerRank,
}

/// One thing to test, on groups of several sizes.
struct Case {
    name: &'static str,
    about: &'static str,
    needs: Needs,
    /// Ranks of the groups that it runs on.
    ranks: &'static [usize],
    /// Runs it and tells in a few words what it has compared.
    run: fn(&Place<'_>, usize) -> Result<String, Failure>,
}

/// What became of a case.
enum Outcome {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// Where cases run.
struct Place<'a> {
    options: &'a Options,
    /// None: on GPUs.
    programs: Option<Arc<Programs>>,
    /// GPUs of this machine, or why none can be used.
    gpus: Result<usize, String>,
    /// GPUs that there have to be.
    required: usize,
}

pub(crate) fn run(
    options: &Options,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    if options.list {
        return list(json, out);
    }
    options.perturb.check(options.backend)?;
    let programs = match options.backend {
        Machine::Host => Some(Programs::find().map_err(no_machine)?),
        Machine::Gpu => None,
    };
    let required = required_gpus()?;
    let gpus = match options.backend {
        Machine::Host => Ok(0),
        Machine::Gpu => gpus().map_err(|failure| failure.sentence()),
    };
    let place = Place { options, programs, gpus, required };
    let mut counts = [0_i64; 3];
    let all =
        cases::CASES.iter().flat_map(|case| case.ranks.iter().map(move |ranks| (case, *ranks)));
    let chosen: Vec<(&Case, usize)> =
        all.filter(|(case, ranks)| options.selects(case, *ranks)).collect();
    let progress = Progress::new(chosen.len() as u64);
    for (case, ranks) in chosen {
        progress.begin(format!("{}, {ranks} ranks", case.name));
        let started = Instant::now();
        let outcome = place.outcome(case, ranks);
        counts[outcome.place()] += 1;
        progress.step(case.name);
        progress.aside(|| tell(case, ranks, &outcome, started.elapsed(), json, out))?;
    }
    drop(progress);
    if let Some(programs) = &place.programs {
        warn(programs, err);
    }
    let [passed, skipped, failed] = counts;
    if json {
        let object = Object::new().with("passed", passed);
        writeln!(out, "{}", object.with("skipped", skipped).with("failed", failed))?;
    } else {
        writeln!(out, "{passed} passed, {skipped} skipped, {failed} failed")?;
    }
    match (failed, passed + skipped) {
        (0, 0) => Err(Failure::WrongUse("no case is chosen: --list names them".to_owned())),
        (0, _) => Ok(()),
        (1, _) => Err(Failure::Failed("1 case failed".to_owned())),
        _ => Err(Failure::Failed(format!("{failed} cases failed"))),
    }
}

fn list(json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    for Case { name, about, needs, ranks, .. } in cases::CASES {
        if json {
            let object = Object::new().with("case", *name).with("about", *about);
            writeln!(out, "{}", object.with("needs", needs.name()).with("ranks", ranks.to_vec()))?;
        } else {
            let needs = needs.name().map_or(String::new(), |needs| format!(" ({needs})"));
            writeln!(out, "{name:<18} {about}{needs}")?;
        }
    }
    Ok(())
}

fn tell(
    case: &Case,
    ranks: usize,
    outcome: &Outcome,
    time: Duration,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (word, text) = match outcome {
        Outcome::Passed(text) => ("ok", text),
        Outcome::Skipped(text) => ("skipped", text),
        Outcome::Failed(text) => ("FAILED", text),
    };
    let seconds = time.as_secs_f64();
    if json {
        let object = Object::new()
            .with("case", case.name)
            .with("ranks", ranks)
            .with("outcome", word.to_lowercase())
            .with("text", text)
            .with("seconds", Value::Tenths(seconds));
        writeln!(out, "{object}")?;
    } else {
        let group = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        writeln!(out, "{word:<7} {:<18} {group:<8} {seconds:>6.1} s  {text}", case.name)?;
    }
    Ok(out.flush()?)
}

impl Options {
    fn selects(&self, case: &Case, ranks: usize) -> bool {
        self.case.as_ref().is_none_or(|part| case.name.contains(part.as_str()))
            && self.ranks.is_none_or(|only| only == ranks)
    }
}

impl Needs {
    /// In words; nothing for what every machine has.
    fn name(self) -> Option<&'static str> {
        match self {
            Needs::Anything => None,
            Needs::Processes => Some("GPUs"),
            Needs::Network => Some("GPUs and libfabric"),
            Needs::Queues | Needs::GpuPerRank => Some("a GPU for each rank"),
        }
    }
}

impl Outcome {
    /// Its place among the counts of the summary.
    fn place(&self) -> usize {
        match self {
            Outcome::Passed(_) => 0,
            Outcome::Skipped(_) => 1,
            Outcome::Failed(_) => 2,
        }
    }
}

impl Place<'_> {
    fn outcome(&self, case: &Case, ranks: usize) -> Outcome {
        if let Some(outcome) = self.lacks(case.needs, ranks) {
            return outcome;
        }
        match (case.run)(self, ranks) {
            Ok(text) => Outcome::Passed(text),
            Err(failure) => Outcome::Failed(failure.sentence()),
        }
    }

    /// What comes of a case that this machine cannot run.
    fn lacks(&self, needs: Needs, ranks: usize) -> Option<Outcome> {
        if self.is_host() {
            let why = "the host has all ranks in one process".to_owned();
            let has = matches!(needs, Needs::Anything | Needs::Queues);
            return (!has).then_some(Outcome::Skipped(why));
        }
        let need = match needs {
            Needs::Queues | Needs::GpuPerRank => ranks,
            Needs::Anything | Needs::Processes | Needs::Network => 1,
        };
        let why = match &self.gpus {
            Ok(found) if *found >= need && needs == Needs::Network => {
                return Fabric::find().err().map(|error| Outcome::Skipped(error.to_string()));
            }
            Ok(found) if *found >= need => return None,
            Ok(found) => format!("{need} GPUs needed, {found} found"),
            Err(why) => why.clone(),
        };
        // A machine that promises GPUs may not pass for want of them.
        Some(match need <= self.required {
            true => Outcome::Failed(format!("{why} ({REQUIRED}={})", self.required)),
            false => Outcome::Skipped(why),
        })
    }

    fn is_host(&self) -> bool {
        self.programs.is_some()
    }

    /// A number for GPUs, and one for the host, where all is slow.
    fn either<T>(&self, gpu: T, host: T) -> T {
        if self.is_host() { host } else { gpu }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.options.timeout_ms)
    }

    /// A group of `ranks` ranks in this process, spread over the GPUs in turn.
    fn group(&self, ranks: usize) -> Result<Ranks, Failure> {
        match &self.programs {
            Some(programs) => Ranks::on_host(programs, ranks, 1),
            None => Ranks::on_gpus(&self.request(ranks)),
        }
    }

    /// That group, whose calls go on without a rank that does not answer in time, if they can.
    fn group_leaving_out_absent(&self, ranks: usize) -> Result<Ranks, Failure> {
        match &self.programs {
            Some(programs) => Ranks::on_host_with(programs, ranks, 1, true),
            None => {
                // So long that nobody who is late is taken for absent.
                let timeout = self.timeout().min(Duration::from_millis(500));
                let request = self.request(ranks);
                Ranks::on_gpus(&GpuRequest { timeout, leaves_out_absent: true, ..request })
            }
        }
    }

    /// The group of `group`, on GPUs.
    fn request(&self, ranks: usize) -> GpuRequest {
        GpuRequest::threads(ranks, self.timeout()).perturbed(self.options.perturb)
    }

    /// As many SMs as a rank may fill, but no more than are usual.
    fn call(&self, ranks: &Ranks) -> CallOptions {
        let usual = self.either(16, 4);
        CallOptions::sms(usual.min(ranks.sms()))
    }
}
