//! `epforge check --mutants`: bugs planted in the device library, one by one, and how each shows.
//!
//! A checker that finds nothing in the library is worth as much as what it finds in a broken one.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::buffer::{BufferOptions, BuiltIn, Via};
use ep_runtime::host::mutant::{DEVICE_LIBRARY, Mutant};
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_verify::options::{ring_tunes, set_piece, unit_tunes};
use ep_verify::oracle::{Random, RoutingOptions};
use ep_verify::selftest::{Case, Selftest};

use super::fault::{Fault, judge};
use super::pool::on_all_cores;
use crate::failure::Failure;
use crate::json::Object;
use crate::problem::no_machine;
use crate::progress::Progress;

const RANKS: usize = 3;

/// Tokens and values a row: rows of three pieces and of one.
const SIZES: [(usize, usize); 2] = [(160, 1040), (160, 128)];

/// Where one launch does it all, also fewer tokens than warps: ranks that send little are soon ahead.
const SMALL: (usize, usize) = (5, 128);

/// Runs of each kind, in order: a bug that the checker sees shows in its first run. A run is a seed, in
/// every shape that uses the file of the bug. The last ones are stopped at some step.
const RUNS: [(Build, u64, bool); 3] =
    [(Build::Checked, 2, false), (Build::Plain, 10, false), (Build::Plain, 16, true)];

/// A kernel that a bug keeps busy is a failure after this, many times what a good one takes.
const MAX_STEPS: u64 = 100_000_000;
const LIMIT: Duration = Duration::from_secs(120);

/// How a planted bug showed.
struct Found {
    mode: &'static str,
    way: Way,
    seed: u64,
    report: String,
}

/// What became of one planted bug.
struct Hunt {
    found: Option<Found>,
    runs: u64,
}

/// Plants the bugs whose names hold `text`; so many of them, drawn by a seed, if a number is given.
pub(super) fn run(
    text: &str,
    (sample, seed): (Option<usize>, u64),
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let mut mutants = Mutant::parse(DEVICE_LIBRARY).map_err(|error| failed(&error))?;
    mutants.retain(|mutant| mutant.name.contains(text));
    if mutants.is_empty() {
        return Err(Failure::WrongUse(format!("no planted bug has `{text}` in its name")));
    }
    if let Some(count) = sample {
        mutants.retain(|mutant| mutant.equivalent.is_none());
        Random::new(seed).choose(&mut mutants, count);
    }
    let programs = Programs::find().map_err(no_machine)?;
    let progress = Progress::new(mutants.len() as u64);
    let mut hunts: Vec<Result<Option<Hunt>, String>> = mutants.iter().map(|_| Ok(None)).collect();
    let work = |index: usize| {
        let mutant: &Mutant = &mutants[index];
        mutant.equivalent.is_none().then(|| hunt(mutant, &programs)).transpose()
    };
    on_all_cores(mutants.len(), work, |index, hunt| {
        progress.step(&mutants[index].name);
        hunts[index] = hunt;
    });
    drop(progress);
    let wrong: Vec<&str> =
        hunts.iter().filter_map(|hunt| Some(hunt.as_ref().err()?.as_str())).collect();
    if !wrong.is_empty() {
        return Err(Failure::Failed(wrong.join("\n")));
    }
    let hunts: Vec<Option<Hunt>> = hunts.into_iter().flatten().collect();
    for (mutant, hunt) in mutants.iter().zip(&hunts) {
        match json {
            true => writeln!(out, "{}", object(mutant, hunt.as_ref()))?,
            false => show(mutant, hunt.as_ref(), out)?,
        }
    }
    let planted = hunts.iter().flatten().count();
    let found = hunts.iter().flatten().filter(|hunt| hunt.found.is_some()).count();
    if !json {
        writeln!(out, "{found} of {planted} planted bugs found")?;
    }
    match planted - found {
        0 => Ok(()),
        missed => {
            Err(Failure::Failed(format!("{missed} of {planted} planted bugs were not found")))
        }
    }
}

/// Runs every shape with the bug in it until a run fails. A bug that does not compile is none.
fn hunt(mutant: &Mutant, programs: &Programs) -> Result<Hunt, String> {
    let planted = programs.planted(mutant);
    let (mut runs, mut steps) = (0, 0);
    for (build, seeds, stops) in RUNS {
        for seed in 1..=seeds {
            runs += 1;
            for shape in shapes(&mutant.file) {
                let stop = stops.then(|| Fault::StoppedRank.drawn(RANKS, seed, steps));
                let run = attempt(&planted, shape, (build, seed), stop);
                let run = run.map_err(|error| {
                    format!("the bug `{}` cannot be planted: {error}", mutant.name)
                })?;
                match run {
                    Ok(taken) => steps = steps.max(taken),
                    Err(report) => {
                        let mode = match (build, stops) {
                            (Build::Checked, _) => "hb",
                            (_, true) => "stopped",
                            _ => "fast",
                        };
                        let found = Found { mode, way: shape.way, seed, report };
                        return Ok(Hunt { found: Some(found), runs });
                    }
                }
            }
        }
    }
    Ok(Hunt { found: None, runs })
}

/// What a run is about.
#[derive(Clone, Copy)]
struct Shape {
    way: Way,
    /// Tokens and values a row.
    size: (usize, usize),
    /// Whether one rank sends alone: then nothing but offers tells it that the others have read their rows.
    lone: bool,
    /// Whether rows of few tokens travel as words.
    words: bool,
}

/// The ways that use a file, in every size.
fn shapes(file: &str) -> impl Iterator<Item = Shape> {
    let ways = ways(file);
    let shape = |way: &Way, size| Shape { way: *way, size, lone: false, words: true };
    let few = ways.iter().filter(|way| **way == Way::OneLaunch).flat_map(move |way| {
        let words = shape(way, SMALL);
        let rows = Shape { words: false, ..words };
        [words, rows, Shape { lone: true, ..rows }]
    });
    SIZES.into_iter().flat_map(move |size| ways.iter().map(move |way| shape(way, size))).chain(few)
}

/// How rows go: through rings, or straight in two launches or in one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ring,
    Direct,
    OneLaunch,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Ring => "ring",
            Way::Direct => "direct",
            Way::OneLaunch => "one launch",
        }
    }

    fn via(self) -> Via {
        if self == Way::Ring { Via::Ring } else { Via::Direct }
    }
}

/// The ways that use a file.
fn ways(file: &str) -> &'static [Way] {
    match file {
        "ep/ends.cuh" | "ep/rings.cuh" => &[Way::Ring],
        "ep/direct.cuh" | "ep/pull.cuh" => &[Way::Direct],
        "ep/one_launch.cuh" => &[Way::OneLaunch],
        _ => &[Way::Ring, Way::Direct],
    }
}

/// A chain of calls in one world, with more rows a stripe than its ring has slots or a warp takes at a
/// time, and tokens that go nowhere: everything that the library does is needed. Gives the steps that it
/// took, or says what went wrong; an error if the calls cannot be made. `stop`: a rank that is stopped,
/// and when.
fn attempt(
    programs: &Arc<Programs>,
    Shape { way, size: (tokens, hidden), lone, words }: Shape,
    (build, seed): (Build, u64),
    stop: Option<(u32, u64)>,
) -> Result<Result<u64, String>, String> {
    let (via, one_launch) = (way.via(), Some(way == Way::OneLaunch));
    let options = BufferOptions::new(tokens, hidden, 3, 7);
    let options = BufferOptions { via, one_launch, push_combine: Some(false), ..options };
    let mut options = BufferOptions { live: 5, biases: 1, ..options };
    if via == Via::Ring {
        options.tunes = ring_tunes(&options, 4, 16, 4);
    } else {
        options.tunes = unit_tunes(&options, 4, 1);
    }
    if !words {
        options.tunes.decode_dispatch.words = Some(0);
    }
    set_piece(&mut options, 1024);
    let routing = RoutingOptions { absent: 0.2, ..RoutingOptions::even(3, 7) };
    let mut case = Case { routing, seed, ..Case::even(options, RANKS, 4) };
    if lone {
        Fault::EmptyRanks.alter(&mut case, (seed % RANKS as u64) as u32);
    }
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut host = HostOptions { build, isolation: Some(LIMIT), ..HostOptions::new(RANKS) };
    host.spec.seed = seed;
    host.spec.max_steps = MAX_STEPS;
    if let Some(place) = stop {
        host.spec.faults = Fault::StoppedRank.faults(RANKS as u32, place);
    }
    let backend = HostBackend::new(programs, host).map_err(|error| text(&error))?;
    let group = backend.group().map_err(|error| text(&error))?;
    let test = Selftest::new(&group, &BuiltIn, case).map_err(|error| text(&error))?;
    // They wrap on the way.
    backend.start_rings_at(u32::MAX - 8);
    let struck = stop.map(|(rank, _)| (Fault::StoppedRank, rank));
    // A first call finds no words of an earlier one that would do.
    for queued in [false, true] {
        let outcome = if queued { test.check_back_to_back() } else { test.check() };
        match judge(struck, outcome, &backend) {
            Ok(true) => {}
            Ok(false) => break,
            // What the emulator saw says more than what the kernels recorded of it.
            Err(report) => return Ok(Err(backend.report().unwrap_or(report))),
        }
    }
    Ok(Ok(backend.stats().steps))
}

fn show(mutant: &Mutant, hunt: Option<&Hunt>, out: &mut dyn Write) -> Result<(), Failure> {
    let name = &mutant.name;
    match hunt {
        Some(Hunt { found: Some(found), runs }) => {
            writeln!(out, "  found   {name} ({}, run {runs})", found.mode)?;
            for line in found.report.lines().take(4) {
                writeln!(out, "            {line}")?;
            }
        }
        Some(Hunt { found: None, runs }) => {
            writeln!(out, "  MISSED  {name}: {runs} runs went well")?;
        }
        None => {
            let why = mutant.equivalent.as_deref().unwrap_or_default();
            writeln!(out, "  none    {name}: nothing can find it, {why}")?;
        }
    }
    Ok(())
}

fn object(mutant: &Mutant, hunt: Option<&Hunt>) -> Object {
    let object = Object::new().with("mutant", &mutant.name).with("file", &mutant.file);
    let Some(hunt) = hunt else {
        return object.with("found", false).with("equivalent", mutant.equivalent.clone());
    };
    let object = object.with("found", hunt.found.is_some()).with("runs", hunt.runs);
    match &hunt.found {
        None => object,
        Some(found) => object
            .with("mode", found.mode)
            .with("via", found.way.name())
            .with("seed", found.seed)
            .with("report", &found.report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_that_cannot_be_planted_is_not_found() {
        let list = "== no such line\nin ep/direct.cuh\n- nowhere();\n+ there();\n";
        let mutants = Mutant::parse(list).unwrap_or_else(|error| panic!("{error}"));
        let programs = Programs::find().unwrap_or_else(|error| panic!("{error}"));
        let said = hunt(&mutants[0], &programs).map(|hunt| hunt.runs);
        let text = "the bug `no such line` cannot be planted: mutant `no such line`: its text occurs 0 \
                    times instead of once";
        assert_eq!(said, Err(text.to_owned()));
    }
}
