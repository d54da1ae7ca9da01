//! Dispatch and combine on the GPUs of this machine: checked against the oracle, then timed.
//!
//! One file that runs without cargo: `ep-benches ranks=4 tokens=4096 hidden=7168 topk=8 experts=256`.
//! Results are lines of JSON on standard output, everything else goes to standard error. It ends with
//! 0 when all was right, 1 when something differed or failed, 2 on wrong use, and 0 with a word on
//! standard error when there are fewer GPUs than needed, unless `EP_REQUIRE_GPUS` asks for them.

mod request;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use ep_runtime::backend::Backend;
use ep_runtime::buffer::Declared;
use ep_runtime::gpu::{self, GpuBackend, GpuOptions};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::selftest::{self, Mode, Operation, Selftest};

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
    let nvrtc = Nvrtc::find().map_err(wrong)?;
    let jit = Jit::new(nvrtc, Cache::at(None).map_err(wrong)?);
    let mut options = match &request.devices {
        Some(devices) => GpuOptions { devices: devices.clone(), ..GpuOptions::default() },
        None => GpuOptions::spread(request.ranks).map_err(wrong)?,
    };
    options.sharing = request.sharing;
    options.cooperative = request.cooperative;
    let backend = GpuBackend::new(&options, gpu::compile_with(Arc::new(jit))).map_err(wrong)?;
    say(&format!("{}, NVRTC {}", backend.name(), nvrtc.version()));
    let share = backend.multiprocessors(0);
    let group_options = GroupOptions { timeout: request.timeout };
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let findings = selftest::probe(&backend).map_err(wrong)?;
    if !findings.is_good() {
        return Err(Failure::Wrong(format!("probe: {findings}")));
    }
    say(&format!("probe: {findings}"));
    if request.probe_only {
        return Ok(());
    }
    let group = Group::new(backend, group_options).map_err(wrong)?;
    check_random_shapes(&group, &request)?;
    let case = request.case(share);
    let test = Selftest::new(&group, &Declared, case).map_err(wrong)?;
    say(&format!("memory per rank: {:?}", test.buffer().memory()));
    check(&test, "before timing")?;
    if request.iterations > 0 {
        time(&test, &request)?;
        check(&test, "after timing")?;
    }
    Ok(())
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
        for mode in [Mode::Loop, Mode::Iso] {
            let timing =
                test.time(operation, mode, request.warmup, request.iterations).map_err(wrong)?;
            let mut out = std::io::stdout().lock();
            writeln!(out, "{timing}").and_then(|()| out.flush()).map_err(wrong)?;
        }
    }
    Ok(())
}

/// Checks as many random problems as the request asks for, each in a buffer of its own.
fn check_random_shapes(group: &Group, request: &Request) -> Result<(), Failure> {
    for index in 0..request.random {
        let share = group.backend().multiprocessors(0);
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
