//! `epforge demo`: every emitted pipeline, declared, emitted and compiled for all architectures.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use ep_runtime::jit::{Arch, Cache, Jit, Nvrtc, Request, Source};
use ep_runtime::{Entry, device};

use crate::failure::Failure;
use crate::json::Object;
use crate::plan_text::aligned;
use crate::selection::select;

/// Options of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The cache folder; without it the one that the environment names
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// A kernel that waits to be compiled.
struct Pending {
    pipeline: &'static str,
    file: String,
    arch: Arch,
    cuda: String,
}

pub(crate) fn run(
    options: &Options,
    entries: &[Entry],
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut pending = Vec::new();
    for entry in entries.iter().filter(|entry| entry.is_emitted()) {
        for arch in Arch::ALL {
            let selected = select(entry, arch, [])?;
            let cuda = entry.emit(&selected.config)?.cuda;
            pending.push(Pending {
                pipeline: entry.name,
                file: format!("{}.cu", entry.name),
                arch,
                cuda,
            });
        }
    }
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let nvrtc = Nvrtc::find().map_err(|error| failed(&error))?;
    let cache = Cache::at(options.cache.as_deref()).map_err(|error| failed(&error))?;
    let jit = Jit::new(nvrtc, cache);
    if !json {
        declared(entries, out)?;
        writeln!(out, "\ncompiling {} kernels with NVRTC {}", pending.len(), nvrtc.version())?;
        // What follows may take a moment.
        out.flush()?;
    }
    let started = Instant::now();
    let requests: Vec<Request<'_>> = pending.iter().map(request).collect();
    let compiled = jit.compile_all(&requests);
    let seconds = started.elapsed().as_secs_f64();
    let mut rows = Vec::new();
    let mut defects = Vec::new();
    for (kernel, compiled) in pending.iter().zip(compiled) {
        let compiled = compiled.map_err(|error| failed(&error))?;
        let of = format!("{} for {}", kernel.pipeline, kernel.arch.name());
        defects.extend(compiled.defects().iter().map(|defect| format!("{of}: {defect}")));
        for resources in &compiled.resources.kernels {
            if json {
                writeln!(out, "{}", object(kernel, resources, compiled.cached))?;
            }
            rows.push(row(kernel, resources, compiled.cached));
        }
    }
    if !json {
        write!(out, "{}", aligned(&rows))?;
        writeln!(out, "in {seconds:.1} s; `emit` prints the CUDA, `explain` what it does")?;
    }
    if defects.is_empty() { Ok(()) } else { Err(Failure::Failed(defects.join("; "))) }
}

/// The declarations as they stand in the IR: one line per pipeline, and what it moves.
fn declared(entries: &[Entry], out: &mut dyn Write) -> Result<(), Failure> {
    for entry in entries.iter().filter(|entry| entry.is_emitted()) {
        let ir = (entry.ir)();
        let doc = ir.doc.first().map(|line| line.trim()).unwrap_or_default();
        writeln!(out, "{}: {doc}", entry.name)?;
        for channel in &ir.channels {
            writeln!(out, "  {}", ep_runtime::ir::text::channel(channel))?;
        }
        for role in &ir.roles {
            writeln!(out, "  {}", ep_runtime::ir::text::role(role))?;
        }
    }
    Ok(())
}

fn request(kernel: &Pending) -> Request<'_> {
    let source = Source { name: &kernel.file, text: &kernel.cuda, headers: device::HEADERS };
    Request { source, arch: kernel.arch, options: &[] }
}

fn row(kernel: &Pending, resources: &ep_runtime::jit::Kernel, cached: bool) -> Vec<String> {
    vec![
        kernel.pipeline.to_owned(),
        kernel.arch.name().to_owned(),
        format!("{} lines of CUDA", kernel.cuda.lines().count()),
        format!("{} registers", resources.registers),
        format!("{} bytes of stack", resources.stack),
        format!("{} bytes of code", resources.code),
        (if cached { "from the cache" } else { "compiled" }).to_owned(),
    ]
}

fn object(kernel: &Pending, resources: &ep_runtime::jit::Kernel, cached: bool) -> Object {
    Object::new()
        .with("pipeline", kernel.pipeline)
        .with("arch", kernel.arch.name())
        .with("lines", i64::try_from(kernel.cuda.lines().count()).unwrap_or(i64::MAX))
        .with("registers", resources.registers)
        .with("stack", resources.stack)
        .with("code", i64::try_from(resources.code).unwrap_or(i64::MAX))
        .with("cached", cached)
}
