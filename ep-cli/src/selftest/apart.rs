//! Cases whose ranks are processes of their own: this program, run once for each.

use std::ffi::OsString;
use std::process::Stdio;

use ep_runtime::gpu::EXCHANGE_VARIABLE;
use ep_runtime::jit::{CACHE_VARIABLE, Cache, Scratch};
use serde_json::Value;

use super::Place;
use crate::failure::Failure;
use crate::processes;
use crate::program;

/// A problem of `bench` that takes a moment.
fn problem(place: &Place<'_>, ranks: usize) -> Vec<OsString> {
    let timeout = place.options.timeout_ms.to_string();
    let words = [
        "bench",
        "--json",
        "--tokens",
        "300",
        "--set",
        "hidden=2880",
        "--set",
        "topk=5",
        "--set",
        "experts=12",
        "--sms",
        "16",
        "--ranks",
    ];
    let words = words.iter().map(OsString::from);
    let rest = [ranks.to_string(), "--timeout-ms".to_owned(), timeout];
    let perturb = place.options.perturb.seed.map(|seed| format!("--perturb={seed}"));
    words.chain(rest.into_iter().chain(perturb).map(OsString::from)).collect()
}

/// That problem: everything is checked, nothing is timed, and outputs are told.
fn checked(place: &Place<'_>, ranks: usize) -> Vec<OsString> {
    let words = ["--outputs", "--iterations", "0", "--probe", "no"].map(OsString::from);
    [problem(place, ranks), words.to_vec()].concat()
}

fn in_processes(mut problem: Vec<OsString>) -> Vec<OsString> {
    problem.push("--processes".into());
    problem
}

/// The JSON objects of an output.
fn objects(out: &[u8]) -> Result<Vec<Value>, Failure> {
    let text = String::from_utf8_lossy(out);
    let parsed = text.lines().map(|line| {
        serde_json::from_str(line).map_err(|error| failed(format!("`{line}` is no JSON: {error}")))
    });
    parsed.collect()
}

fn failed(text: impl std::fmt::Display) -> Failure {
    Failure::Failed(text.to_string())
}

/// Digests of all outputs, by payload and rank.
fn digests(out: &[u8]) -> Result<Vec<Value>, Failure> {
    let objects = objects(out)?;
    let digests: Vec<Value> =
        objects.into_iter().filter(|object| object["digests"].is_array()).collect();
    match digests.len() {
        2 => Ok(digests),
        count => Err(failed(format!("{count} lists of digests for 2 payloads"))),
    }
}

pub(super) fn same_bytes(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let problem = checked(place, ranks);
    let apart = processes::output(ranks, &in_processes(problem.clone()), &[], None)?;
    let mut command = program::again().map_err(failed)?;
    let together = command.args(&problem).stdin(Stdio::null()).output().map_err(failed)?;
    if !together.status.success() {
        return Err(failed(String::from_utf8_lossy(&together.stderr)));
    }
    let (together, apart) = (digests(&together.stdout)?, digests(&apart.stdout)?);
    let shown = |all: &[Value]| {
        let texts = all.iter().map(|one| one["digests"].to_string());
        texts.collect::<Vec<_>>().join(" ")
    };
    match together == apart {
        true => Ok(format!("digests {}", shown(&together))),
        false => Err(failed(format!("threads {}, processes {}", shown(&together), shown(&apart)))),
    }
}

pub(super) fn both_exchanges(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let problem = in_processes(checked(place, ranks));
    let digests_by = |exchange: &str| {
        let variables = [(EXCHANGE_VARIABLE, exchange.into())];
        digests(&processes::output(ranks, &problem, &variables, None)?.stdout)
    };
    let (descriptors, ipc) = (digests_by("descriptors")?, digests_by("ipc")?);
    match descriptors == ipc {
        true => Ok("descriptors and CUDA IPC bring the same bytes".to_owned()),
        false => Err(failed(format!("descriptors {descriptors:?}, CUDA IPC {ipc:?}"))),
    }
}

/// What is called between nodes.
const BETWEEN: &str =
    "node-layout+node-dispatch+node-combine+low-latency-dispatch+low-latency-combine";

pub(super) fn nodes(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let (wanted, ranks) = (BETWEEN.split('+').count() * ranks, ranks.to_string());
    let mut told = Vec::new();
    for net in ["libfabric:shm", "libfabric:tcp", "card"] {
        let words = ["run", BETWEEN, "--backend", "gpu", "--nodes", "2", "--processes"];
        let mut command = program::again().map_err(failed)?;
        command.args(words).args(["--calls", "10", "--ranks", &ranks, "--net", net]);
        command.args(place.options.perturb.seed.map(|seed| format!("--perturb={seed}")));
        let ended = command.stdin(Stdio::null()).output().map_err(failed)?;
        if !ended.status.success() {
            return Err(failed(String::from_utf8_lossy(&ended.stderr).trim_end()));
        }
        let said = String::from_utf8_lossy(&ended.stdout);
        let equal = said.matches(" values equal").count();
        if equal != wanted {
            return Err(failed(format!("{equal} of {wanted} comparisons over {net}: {said}")));
        }
        told.push(format!("{equal} comparisons over {net}"));
    }
    Ok(told.join(", "))
}

pub(super) fn compile_once(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let fresh = Scratch::below(&std::env::temp_dir()).map_err(failed)?;
    let folder = fresh.path().join("cache");
    let variables = [(CACHE_VARIABLE, folder.clone().into_os_string())];
    processes::output(ranks, &in_processes(checked(place, ranks)), &variables, None).and_then(
        |output| {
            let object = objects(&output.stdout)?.into_iter().find(|it| it["compiled"].is_number());
            let compiled = object.and_then(|object| object["compiled"].as_u64());
            let cache = Cache::open(&folder).map_err(failed)?;
            let kept = cache.list().map_err(failed)?;
            // Beside kernels the cache keeps the rates of the machine.
            let kernels = kept
                .iter()
                .filter(|it| it.entry.as_ref().is_ok_and(|entry| entry.target.starts_with("sm_")));
            let kernels = kernels.count() as u64;
            match compiled {
                Some(compiled) if compiled == kernels && kernels > 0 => {
                    Ok(format!("{kernels} kernels, each compiled by one of {ranks} processes"))
                }
                other => Err(failed(format!("{other:?} compiles for {kernels} kernels"))),
            }
        },
    )
}

pub(super) fn lost_rank(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let (line, said) = killed(ranks, &killing(place, ranks, &[]))?;
    match said.contains("in a new group") {
        true => Ok(line),
        false => Err(failed(format!("there was no new group: {said}"))),
    }
}

/// Each process that is left ends well only if it has named the one that was killed.
pub(super) fn lost_far_rank(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    killed(ranks, &killing(place, ranks, &BETWEEN_CARDS)).map(|(line, _)| line)
}

/// Two nodes whose cards are kernels.
const BETWEEN_CARDS: [&str; 4] = ["--nodes", "2", "--net", "card"];

/// A problem whose last rank is killed.
fn killing(place: &Place<'_>, ranks: usize, more: &[&str]) -> Vec<OsString> {
    let mut problem = in_processes(problem(place, ranks));
    problem.extend(more.iter().map(OsString::from));
    problem.extend(["--kill".into(), (ranks - 1).to_string().into()]);
    problem
}

/// Kills the last rank during calls. Returns the line in which rank 0 reports it, and the whole output.
fn killed(ranks: usize, problem: &[OsString]) -> Result<(String, String), Failure> {
    let output = processes::output(ranks, problem, &[], Some(ranks - 1))?;
    // With JSON a command talks on standard error.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = said.lines().find(|line| line.starts_with("rank 0 after ")).map(str::to_owned);
    let line = line.ok_or_else(|| failed(format!("rank 0 tells nothing of it: {said}")))?;
    Ok((line, said))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::CommandLine;
    use crate::selftest::Options;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// The cases themselves need GPUs.
    #[test]
    fn bench_takes_the_options_of_all_cases() {
        let Line { options } = Line::try_parse_from(["selftest"]).unwrap();
        let place = Place { options: &options, programs: None, gpus: Ok(4), required: 0 };
        for words in [
            checked(&place, 4),
            in_processes(checked(&place, 4)),
            killing(&place, 4, &[]),
            killing(&place, 4, &BETWEEN_CARDS),
        ] {
            let line = [vec!["epforge".into()], words].concat();
            CommandLine::try_parse_from(line).map(drop).unwrap();
        }
    }
}
