//! `epforge demo`: a mixture of experts on 4 ranks. Rows go to their experts, the experts work on
//! them, the rows come back and are added up.

mod experts;
mod layer;
mod nodes;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ep_runtime::backend::Backend;
use ep_runtime::buffer::{BufferOptions, BuiltIn};
use ep_runtime::device::HEADERS;
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::{Arch, Cache, Scratch};
use ep_runtime::{backend::BackendError, gpu};
use ep_verify::oracle::{Oracle, Random, RoutingOptions};

use crate::failure::Failure;
use crate::files;
use crate::machine::warn;
use crate::moved::{moved, table};
use crate::plan_text::aligned;
use crate::problem::{Reach, emit, failed, gpus, no_machine};
use crate::talk::Talk;
use experts::Tokens;
use layer::Layer;

const RANKS: usize = 4;
const TOKENS: usize = 64;
const HIDDEN: usize = 1024;
const TOPK: usize = 4;
const EXPERTS: usize = 16;
const SEED: u64 = 1;

/// Longest run of one call on the host.
const HOST_LIMIT: Duration = Duration::from_secs(300);

/// Options of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder for the emitted CUDA; a folder of the cache by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Use no GPU of this machine
    #[arg(long)]
    host: bool,
    #[command(flatten)]
    nodes: nodes::Nodes,
}

/// What a run of the layer gave.
struct Done {
    rows: usize,
    wrong: usize,
}

pub(crate) fn run(
    options: &Options,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    if let Some(nodes) = options.nodes.nodes {
        return nodes::run(&options.nodes, nodes as usize, &mut Talk { json, out });
    }
    let buffer = BufferOptions {
        one_launch: Some(false),
        push_combine: Some(false),
        ..BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS)
    };
    let folder = match &options.out {
        Some(folder) => folder.clone(),
        None => default_folder()?,
    };
    let arch = Arch::Sm90a;
    let written = write_cuda(&folder, &buffer, arch)?;
    let mut talk = Talk { json, out };
    talk.say(&format!(
        "{RANKS} ranks, {TOKENS} tokens of {HIDDEN} bf16 values each, top-{TOPK} of {EXPERTS} experts"
    ))?;
    talk.say(&format!("emitted {}", written.join(", ")))?;
    let problem = Problem::random(&buffer);
    let on_gpus = match options.host {
        true => None,
        false => run_on_gpus(&problem, &mut talk)?,
    };
    // The host checks what no GPU can show: that nothing but luck orders two accesses.
    let on_host = match Programs::find() {
        Ok(programs) => {
            let done = run_on_host(&programs, &problem, &mut talk)?;
            warn(&programs, err);
            Some(done)
        }
        Err(error) if on_gpus.is_none() => return Err(no_machine(error)),
        Err(error) => {
            talk.say(&format!("not run on the host: {error}"))?;
            None
        }
    };
    let all: Vec<&Done> = on_gpus.iter().chain(&on_host).collect();
    let wrong = all.iter().map(|done| done.wrong).sum::<usize>();
    let rows = all.iter().map(|done| done.rows).max().unwrap_or(0);
    let path = fs::canonicalize(&folder).unwrap_or(folder);
    let hb = if on_host.is_some() { ", hb clean" } else { "" };
    let verdict = if wrong == 0 { "ok" } else { "failed" };
    let line = format!(
        "demo {verdict}: {RANKS} ranks, {rows} rows, {wrong} wrong{hb}, cuda at {}",
        path.display()
    );
    talk.end("demo", &line)?;
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{wrong} sums are wrong"))),
    }
}

/// The tokens of all ranks, where they go, and what has to come back.
struct Problem {
    options: BufferOptions,
    oracle: Oracle,
    tokens: Vec<Tokens>,
    /// What every rank has to get, by rank.
    expected: Vec<Vec<u16>>,
}

impl Problem {
    fn random(options: &BufferOptions) -> Problem {
        let mut random = Random::new(SEED);
        let routing = RoutingOptions::even(options.topk, options.experts);
        let routings = (0..RANKS).map(|_| routing.routing(options.tokens, &mut random)).collect();
        let oracle = Oracle::new(options.experts, options.placement(RANKS), routings);
        let tokens: Vec<Tokens> =
            (0..RANKS).map(|_| Tokens::random(options, &mut random)).collect();
        let expected = (0..RANKS).map(|rank| tokens[rank].through_experts(&oracle, rank)).collect();
        Problem { options: options.clone(), oracle, tokens, expected }
    }

    /// Runs the layer on a group and says what it did.
    fn run_on(&self, group: &Group, machine: &str, talk: &mut Talk<'_>) -> Result<Done, Failure> {
        let started = Instant::now();
        let layer = Layer::new(group, &self.options, self).map_err(failed)?;
        let (rows, combined) = layer.forward(self).map_err(failed)?;
        let wrong = |rank: usize| {
            let pairs = combined[rank].chunks(HIDDEN).zip(self.expected[rank].chunks(HIDDEN));
            pairs.filter(|(have, want)| have != want).count()
        };
        let done = Done { rows, wrong: (0..RANKS).map(wrong).sum() };
        let seconds = started.elapsed().as_secs_f64();
        talk.say(&format!("\non {machine}, in {seconds:.1} s:\n"))?;
        tell_moved(talk, &layer, &self.oracle)?;
        Ok(done)
    }
}

/// Runs on the GPUs; none if there are none, or nothing to compile for them with.
fn run_on_gpus(problem: &Problem, talk: &mut Talk<'_>) -> Result<Option<Done>, Failure> {
    if !matches!(gpu::devices(), Ok(devices) if !devices.is_empty()) {
        return Ok(None);
    }
    let backend = match gpus(RANKS) {
        Ok(backend) => backend,
        Err(failure) => {
            talk.say(&format!("the GPUs are not used: {failure}"))?;
            return Ok(None);
        }
    };
    let machine = backend.name();
    let group = Group::new(backend, GroupOptions::default()).map_err(failed)?;
    problem.run_on(&group, &machine, talk).map(Some)
}

/// Runs in the emulator, which checks the order of all accesses.
fn run_on_host(
    programs: &Arc<Programs>,
    problem: &Problem,
    talk: &mut Talk<'_>,
) -> Result<Done, Failure> {
    let options = HostOptions {
        build: Build::Checked,
        isolation: Some(HOST_LIMIT),
        ..HostOptions::new(RANKS)
    };
    let backend: Result<Arc<HostBackend>, BackendError> = HostBackend::new(programs, options);
    let group = backend.map_err(no_machine)?.group().map_err(failed)?;
    problem.run_on(&group, "the host, with every access checked", talk)
}

/// A folder of the cache; without one a fresh folder.
fn default_folder() -> Result<PathBuf, Failure> {
    let text = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let cache = Cache::at(None).map_err(|error| text(&error))?;
    match cache.folder() {
        Some(folder) => Ok(folder.join("demo")),
        None => cache.scratch().map(Scratch::keep).map_err(|error| text(&error)),
    }
}

/// Writes the emitted kernels and the headers that they include; gives their file names.
fn write_cuda(folder: &Path, options: &BufferOptions, arch: Arch) -> Result<Vec<String>, Failure> {
    let unusable = |path: &Path, error: &std::io::Error| {
        Failure::Failed(format!("{} cannot be written: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        if let Some(above) = path.parent().filter(|above| *above != folder) {
            files::make_folder(above).map_err(|error| unusable(above, &error))?;
        }
        files::write(&path, text).map_err(|error| unusable(&path, &error))
    };
    for (name, text) in HEADERS {
        write(name, text)?;
    }
    let mut names = Vec::new();
    for emitted in emit(&BuiltIn, options, Reach::Combine.pipelines(), RANKS, arch)? {
        let name = format!("{}.cu", emitted.plan.entry);
        write(&name, &emitted.cuda)?;
        names.push(format!("{name} ({} lines)", emitted.cuda.lines().count()));
    }
    Ok(names)
}

/// What moved.
fn tell_moved(talk: &mut Talk<'_>, layer: &Layer, oracle: &Oracle) -> Result<(), Failure> {
    let moved = moved(layer.buffer(), oracle, Reach::Combine.pipelines());
    if talk.json {
        for it in moved {
            writeln!(talk.out, "{}", it.object())?;
        }
        return Ok(());
    }
    Ok(write!(talk.out, "{}", aligned(&table(&moved)))?)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Links that somebody put into the folder lead nowhere.
    #[test]
    fn planted_links_are_not_written_through() {
        let folder = Scratch::below(&std::env::temp_dir()).unwrap();
        let [own, out] = ["own", "out"].map(|name| folder.path().join(name));
        fs::create_dir_all(out.join("ep")).unwrap();
        fs::write(&own, "mine").unwrap();
        for name in ["layout.cu", HEADERS[0].0] {
            symlink(&own, out.join(name)).unwrap();
        }
        let options = BufferOptions::new(TOKENS, HIDDEN, TOPK, EXPERTS);
        assert_eq!(write_cuda(&out, &options, Arch::Sm90a).unwrap().len(), 3);
        assert_eq!(fs::read_to_string(&own).unwrap(), "mine");
        assert_eq!(fs::read_to_string(out.join(HEADERS[0].0)).unwrap(), HEADERS[0].1);

        let elsewhere = folder.path().join("elsewhere");
        fs::rename(out.join("ep"), &elsewhere).unwrap();
        symlink(&elsewhere, out.join("ep")).unwrap();
        let refused = write_cuda(&out, &options, Arch::Sm90a).unwrap_err().to_string();
        assert!(refused.ends_with("ep cannot be written: it is no folder"), "{refused}");
    }
}
