//! Dispatch and combine on the GPUs of this machine: checked against the oracle, then timed.
//!
//! One file that runs without cargo, such as `ep-gpu-bench ranks=4 tokens=4096 hidden=7168 topk=8
//! experts=256`. Results are lines of JSON on standard output, everything else goes to standard
//! error. It ends with 0 when all was right, 1 when something differed or failed, 2 on wrong use,
//! and 0 with a word on standard error when there are fewer GPUs than needed, unless
//! `EP_REQUIRE_GPUS` asks for them.

mod processes;
mod request;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use ep_runtime::backend::Backend;
use ep_runtime::buffer::Declared;
use ep_runtime::error::CallError;
use ep_runtime::gpu::{self, GpuBackend, GpuOptions};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::selftest::{self, Mode, Operation, Selftest, Timing};

use request::Request;

/// Why a run ended without results.
enum Failure {
    /// Names or values that the program does not take.
    Usage(String),
    /// The machine lacks what the request needs.
    Absent(String),
    /// Something failed or differed.
    Wrong(String),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => {
            say(&format!("{text}\n{}", request::USAGE));
            ExitCode::from(2)
        }
        Err(Failure::Absent(text)) if std::env::var_os("EP_REQUIRE_GPUS").is_none() => {
            say(&format!("skipped: {text}"));
            ExitCode::SUCCESS
        }
        Err(Failure::Absent(text) | Failure::Wrong(text)) => {
            say(&text);
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Wrong(error.to_string())
}

fn run() -> Result<(), Failure> {
    let request = Request::parse(std::env::args().skip(1)).map_err(Failure::Usage)?;
    let required = std::env::var("EP_REQUIRE_GPUS").ok().and_then(|value| value.parse().ok());
    let devices = gpu::devices().map_err(|error| Failure::Absent(error.to_string()))?;
    let needed: usize = required.unwrap_or(1);
    if devices.len() < needed {
        return Err(Failure::Absent(format!("{needed} GPUs needed, {} found", devices.len())));
    }
    if request.processes && !processes::is_child() {
        return processes::spawn(request.ranks, request.kill);
    }
    let nvrtc = Nvrtc::find().map_err(wrong)?;
    let jit = Jit::new(nvrtc, Cache::at(None).map_err(wrong)?);
    let backend: Arc<dyn Backend> = Arc::new(open(&request, Arc::new(jit), devices.len())?);
    let local = backend.local();
    say(&format!("ranks {local:?}: {}, NVRTC {}", backend.name(), nvrtc.version()));
    if request.probe {
        let findings = selftest::probe(&backend).map_err(wrong)?;
        if !findings.is_good() {
            return Err(Failure::Wrong(format!("probe: {findings}")));
        }
        say(&format!("probe: {findings}"));
    }
    let share = backend.multiprocessors(local.start);
    let group_options = GroupOptions { timeout: request.timeout };
    let group = Group::new(backend, group_options).map_err(wrong)?;
    if request.probe {
        show_wire(&group)?;
    }
    if request.probe_only {
        return Ok(());
    }
    check_random_shapes(&group, &request)?;
    let test = Selftest::new(&group, &Declared, request.case(share)).map_err(wrong)?;
    say(&format!("memory per rank: {:?}", test.buffer().memory()));
    check(&test, "before timing")?;
    if let Some(killed) = request.kill {
        return survive(test, group, &request, killed);
    }
    if request.iterations > 0 {
        time(&test, &request)?;
        check(&test, "after timing")?;
    }
    Ok(())
}

/// Ends the process of one rank; the others have to learn it from a call, within its timeout, and
/// to go on in a new group.
fn survive(test: Selftest, group: Group, request: &Request, killed: usize) -> Result<(), Failure> {
    let rank = group.local().start;
    if rank == killed {
        std::process::abort();
    }
    let begun = Instant::now();
    let error = test.dispatch_alone().err().ok_or_else(|| wrong("nobody noticed the end"))?;
    let waited = begun.elapsed();
    let CallError::Timeout(timeouts) = &error else { return Err(wrong(error)) };
    if waited > request.timeout * 3 || !timeouts.edges().iter().any(|(_, to)| *to == killed) {
        return Err(wrong(format!("after {waited:?}: {error}")));
    }
    say(&format!("rank {rank} after {waited:?}: {error}"));
    drop((test, group));
    let fewer = request.without(killed);
    let nvrtc = Nvrtc::find().map_err(wrong)?;
    let jit = Arc::new(Jit::new(nvrtc, Cache::at(None).map_err(wrong)?));
    let count = gpu::devices().map_err(wrong)?.len();
    let compile = gpu::compile_with(jit);
    let backend = processes::join_again(killed, |rank| fewer.device(rank, count), compile)?;
    let group_options = GroupOptions { timeout: request.timeout };
    let group = Group::new(Arc::new(backend), group_options).map_err(wrong)?;
    let share = group.backend().multiprocessors(group.local().start);
    let test = Selftest::new(&group, &Declared, fewer.case(share)).map_err(wrong)?;
    check(&test, "in a new group")
}

/// Says what the wire gives, for a volume that fills it.
fn show_wire(group: &Group) -> Result<(), Failure> {
    const BYTES: u64 = 128 << 20;
    if let Some((time, blocks)) = selftest::wire_time(group, BYTES).map_err(wrong)? {
        let rate = BYTES as f64 / time.as_secs_f64() / 1e9;
        say(&format!("wire: {rate:.1} GB/s from each rank with {blocks} blocks"));
    }
    Ok(())
}

/// The GPUs of this process: all of them, or that of its one rank.
fn open(request: &Request, jit: Arc<Jit>, count: usize) -> Result<GpuBackend, Failure> {
    let compile = gpu::compile_with(jit);
    if request.processes {
        return processes::join(|rank| request.device(rank, count), compile);
    }
    let mut options = match &request.devices {
        Some(devices) => GpuOptions { devices: devices.clone(), ..GpuOptions::default() },
        None => GpuOptions::spread(request.ranks).map_err(wrong)?,
    };
    options.sharing = request.sharing;
    options.cooperative = request.cooperative;
    GpuBackend::new(&options, compile).map_err(wrong)
}

/// Compares one run of everything with the oracle.
fn check(test: &Selftest, when: &str) -> Result<(), Failure> {
    let findings = test.check().map_err(wrong)?;
    let text = format!("{when}: {findings}");
    if !findings.is_good() {
        return Err(Failure::Wrong(text));
    }
    say(&text);
    Ok(())
}

fn time(test: &Selftest, request: &Request) -> Result<(), Failure> {
    for operation in Operation::ALL {
        if operation == Operation::CachedDispatch && !test.buffer().options().cached {
            continue;
        }
        let wire = test.wire(operation).map_err(wrong)?;
        for mode in [Mode::Loop, Mode::Iso] {
            let timing =
                test.time(operation, mode, request.warmup, request.iterations).map_err(wrong)?;
            let timing = Timing { wire, ..timing };
            if !test.is_first() {
                continue;
            }
            let mut out = std::io::stdout().lock();
            writeln!(out, "{timing}").and_then(|()| out.flush()).map_err(wrong)?;
        }
    }
    Ok(())
}

/// Checks as many random problems as the request asks for, each in a buffer of its own.
fn check_random_shapes(group: &Group, request: &Request) -> Result<(), Failure> {
    for index in 0..request.random {
        let share = group.backend().multiprocessors(group.local().start);
        let case = request.random_case(index, share);
        let words = format!("random shape {index}: {case:?}");
        let with = |text: String| Failure::Wrong(format!("{words}\n{text}"));
        let test =
            Selftest::new(group, &Declared, case).map_err(|error| with(error.to_string()))?;
        let findings = test.check().map_err(|error| with(error.to_string()))?;
        if !findings.is_good() {
            return Err(with(findings.to_string()));
        }
    }
    if request.random > 0 {
        say(&format!("{} random shapes: all equal", request.random));
    }
    Ok(())
}
